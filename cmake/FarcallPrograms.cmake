# SPDX-License-Identifier: BSD-3-Clause
# examples/*.c, bench/*.c and bench/floors/*.c: one program a file. They know farcall.h and the
# shared library only; the floors of the measurements know not even these.

function(farcall_add_programs folder)
  file(GLOB files CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${folder}/*.c")
  foreach(file IN LISTS files)
    cmake_path(GET file STEM stem)
    string(REPLACE "/" "_" prefix "${folder}")
    set(target ${prefix}_${stem})
    add_executable(${target} "${file}")
    target_include_directories(${target} SYSTEM PRIVATE ${DLPACK_INCLUDE_DIR})
    target_link_libraries(${target} PRIVATE far_compile ${ARGN} Threads::Threads m)
    set_target_properties(${target} PROPERTIES OUTPUT_NAME ${stem}
                          RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/${folder}")
  endforeach()
endfunction()

if(FARCALL_BUILD_EXAMPLES)
  farcall_add_programs(examples farcall)
endif()
if(FARCALL_BUILD_BENCH)
  farcall_add_programs(bench farcall)
  farcall_add_programs(bench/floors)
endif()

# examples/<program> with as many workers.
function(farcall_test_example name workers program)
  add_test(NAME examples.${name}
           COMMAND ${launch} -n ${workers} "${FARCALL_PYTHON}"
                   "${PROJECT_SOURCE_DIR}/examples/${program}" ${ARGN})
  set_tests_properties(
    examples.${name} PROPERTIES TIMEOUT 300 LABELS examples
    ENVIRONMENT "PYTHONPATH=${CMAKE_BINARY_DIR}/python;${FARCALL_SANITIZER_ENV}")
endfunction()

# They are run as well: that all comes out, not how fast.
if(FARCALL_BUILD_TESTS AND NOT FARCALL_SANITIZE MATCHES "thread")
  set(launch "${FARCALL_PYTHON}" "${PROJECT_SOURCE_DIR}/python/farcall/launch.py" run)
  if(FARCALL_BUILD_EXAMPLES)
    add_test(NAME examples.matrix
             COMMAND ${launch} -n 3 "$<TARGET_FILE:examples_matrix>" --calls 200)
    set_tests_properties(examples.matrix PROPERTIES TIMEOUT 60 LABELS examples)
  endif()
  if(FARCALL_BUILD_EXAMPLES AND FARCALL_BUILD_PYTHON)
    farcall_test_example(rl 4 rl/main.py --picture "${CMAKE_BINARY_DIR}/examples/rl.png")
    farcall_test_example(pipeline 4 pipeline.py)
    farcall_test_example(service 3 service.py)
  endif()
  if(FARCALL_BUILD_BENCH AND FARCALL_BUILD_PYTHON)
    add_test(NAME bench.smoke
             COMMAND "${FARCALL_PYTHON}" "${PROJECT_SOURCE_DIR}/bench/run.py" --quick --smoke
                     --build "${CMAKE_BINARY_DIR}" --out "${CMAKE_BINARY_DIR}/bench/smoke.json")
    set_tests_properties(bench.smoke PROPERTIES TIMEOUT 120 LABELS bench)
  endif()
endif()
