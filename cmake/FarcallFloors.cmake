# SPDX-License-Identifier: BSD-3-Clause
# The floors of the house and the direction of their arrows. Each floor is compiled against a folder
# of its own, <build>/floors/<floor>, which holds links to the source folders it may include from
# and to no other: an include that points upward does not find its file.

set(farcall_sees_base base)
set(farcall_sees_async base async)
set(farcall_sees_proto base proto)
set(farcall_sees_transport base async transport)
set(farcall_sees_agent base async proto transport agent)

# The object libraries made so far, and the folder in which a test finds every floor.
set(farcall_floor_targets "")
set(farcall_all_floors_dir "${CMAKE_BINARY_DIR}/floors/all")

function(farcall_link_folders dir)
  file(REMOVE_RECURSE "${dir}")
  file(MAKE_DIRECTORY "${dir}")
  foreach(seen IN LISTS ARGN)
    file(CREATE_LINK "${PROJECT_SOURCE_DIR}/src/${seen}" "${dir}/${seen}" SYMBOLIC)
  endforeach()
endfunction()

function(farcall_add_floor floor)
  set(dir "${CMAKE_BINARY_DIR}/floors/${floor}")
  farcall_link_folders("${dir}" ${farcall_sees_${floor}})
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/${floor}/*.c")
  if(NOT sources)
    return()
  endif()
  add_library(far_${floor} OBJECT ${sources})
  target_include_directories(far_${floor} PRIVATE "${PROJECT_SOURCE_DIR}/include" "${dir}")
  target_include_directories(far_${floor} SYSTEM PRIVATE ${MSGPACK_INCLUDE_DIRS}
                                                         ${DLPACK_INCLUDE_DIR})
  target_link_libraries(far_${floor} PRIVATE far_compile OpenSSL::Crypto Threads::Threads)
  list(APPEND farcall_floor_targets far_${floor})
  set(farcall_floor_targets "${farcall_floor_targets}" PARENT_SCOPE)
endfunction()

farcall_link_folders("${farcall_all_floors_dir}" base async proto transport agent)
