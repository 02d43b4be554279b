# SPDX-License-Identifier: BSD-3-Clause
# C tests: every tests/{unit,sim,integ}/test_*.c is one program, every case in it one ctest test
# named <folder>.<file>.<case>.

pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)

# What tests share. They see every floor, and link the static library, where the functions that
# libfarcall.so hides can be reached.
add_library(far_test INTERFACE)
target_include_directories(far_test INTERFACE "${PROJECT_SOURCE_DIR}/include"
                           "${farcall_all_floors_dir}" "${PROJECT_SOURCE_DIR}/tests")
target_include_directories(far_test SYSTEM INTERFACE ${MSGPACK_INCLUDE_DIRS}
                           ${DLPACK_INCLUDE_DIR})
target_link_libraries(far_test INTERFACE far_compile farcall_static PkgConfig::CMOCKA
                      OpenSSL::Crypto Threads::Threads m)

file(GLOB support CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/support/*.c")
add_library(far_test_support STATIC ${support})
target_link_libraries(far_test_support PUBLIC far_test)

# farcall_add_cmocka_test(file [LIBS lib...])
function(farcall_add_cmocka_test file)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBS")
  cmake_path(GET file STEM stem)
  cmake_path(GET file PARENT_PATH folder)
  cmake_path(GET folder FILENAME kind)
  string(REGEX REPLACE "^test_" "" short "${stem}")
  set(target ${kind}_${stem})
  add_executable(${target} "${file}")
  target_link_libraries(${target} PRIVATE far_test_support ${arg_LIBS})
  set_target_properties(${target} PROPERTIES
                        RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests/${kind}"
                        OUTPUT_NAME ${stem})

  # The names of the cases come out of the source, so a changed source means a new configure.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  string(REGEX MATCHALL
         "cmocka_unit_test(_setup|_teardown|_setup_teardown|_prestate|_prestate_setup_teardown)?[ \t\r\n]*\\([ \t\r\n]*[A-Za-z_][A-Za-z0-9_]*"
         cases "${text}")
  if(NOT cases)
    message(FATAL_ERROR "${file}: no cmocka_unit_test(name) found")
  endif()
  list(TRANSFORM cases REPLACE ".*[^A-Za-z0-9_]" "")
  list(REMOVE_DUPLICATES cases)
  foreach(case IN LISTS cases)
    set(name ${kind}.${short}.${case})
    add_test(NAME ${name} COMMAND ${target} ${case})
    # A filter that matches no case runs nothing, and cmocka calls that a success.
    set_tests_properties(${name} PROPERTIES TIMEOUT 60 LABELS ${kind}
                         ENVIRONMENT "${FARCALL_TEST_ENV}"
                         FAIL_REGULAR_EXPRESSION "Running 0 test")
  endforeach()
endfunction()

foreach(kind unit sim integ)
  file(GLOB files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/${kind}/test_*.c")
  foreach(file IN LISTS files)
    farcall_add_cmocka_test("${file}")
  endforeach()
endforeach()
