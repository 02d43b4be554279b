# SPDX-License-Identifier: BSD-3-Clause
# libfarcall.so and libfarcall.a from the floors' objects, and how others find them.

set(objects "")
foreach(floor IN LISTS farcall_floor_targets)
  list(APPEND objects $<TARGET_OBJECTS:${floor}>)
endforeach()

add_library(farcall SHARED ${objects})
add_library(farcall_static STATIC ${objects})
set_target_properties(farcall PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)
set_target_properties(farcall_static PROPERTIES OUTPUT_NAME farcall)
if(NOT FARCALL_SANITIZE)
  target_link_options(farcall PRIVATE LINKER:-z,defs)
endif()
foreach(lib farcall farcall_static)
  # The floors are C; a library of objects alone does not say so by itself.
  set_target_properties(${lib} PROPERTIES LINKER_LANGUAGE C)
  target_include_directories(${lib} INTERFACE
                             $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_directories(${lib} PRIVATE $<BUILD_INTERFACE:${MSGPACK_LIBRARY_DIRS}>)
  target_link_libraries(${lib} PRIVATE ${MSGPACK_LIBRARIES} OpenSSL::Crypto Threads::Threads)
  add_library(farcall::${lib} ALIAS ${lib})
endforeach()

install(TARGETS farcall farcall_static EXPORT farcallTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES "${PROJECT_SOURCE_DIR}/include/farcall/farcall.h"
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/farcall)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/farcall)
install(EXPORT farcallTargets NAMESPACE farcall:: DESTINATION ${package_dir})
configure_package_config_file(cmake/farcallConfig.cmake.in farcallConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(farcallConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/farcall.pc.in farcall.pc @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/farcallConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/farcallConfigVersion.cmake"
        DESTINATION ${package_dir})
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/farcall.pc"
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
