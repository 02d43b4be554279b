# SPDX-License-Identifier: BSD-3-Clause
# far_compile: how every C file of this project is compiled. Link it privately.
# FARCALL_SANITIZER_ENV: what a test needs in its environment to run a program that loads sanitized
# code without being sanitized itself (the Python interpreter); empty without FARCALL_SANITIZE.
# FARCALL_TEST_ENV: what every test gets in its environment.

add_library(far_compile INTERFACE)
# Empty rather than 1, so that a file which says "#define _GNU_SOURCE" as well does no harm.
target_compile_definitions(far_compile INTERFACE _GNU_SOURCE=)
target_compile_options(far_compile INTERFACE -Wall -Wextra -Wshadow -Wconversion
                                             -fno-omit-frame-pointer)
# Off where a user builds: a newer compiler that knows one more warning must not stop an installation.
option(FARCALL_WERROR "Warnings are errors" ON)
if(FARCALL_WERROR)
  target_compile_options(far_compile INTERFACE -Werror)
endif()

set(FARCALL_SANITIZER_ENV "")
# At the first race, also in a child that leaves by _exit and would not tell otherwise.
set(FARCALL_TEST_ENV "TSAN_OPTIONS=halt_on_error=1" "UBSAN_OPTIONS=print_stacktrace=1")
if(FARCALL_SANITIZE)
  add_compile_options(-fsanitize=${FARCALL_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${FARCALL_SANITIZE})
  if(FARCALL_SANITIZE MATCHES "address")
    if(CMAKE_C_COMPILER_ID STREQUAL "Clang")
      set(runtime libclang_rt.asan-x86_64.so)
    else()
      set(runtime libasan.so)
    endif()
    execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=${runtime}
                    OUTPUT_VARIABLE runtime_path OUTPUT_STRIP_TRAILING_WHITESPACE)
    # The interpreter keeps objects until it ends: leaks are counted by far_memory_live instead.
    set(FARCALL_SANITIZER_ENV "LD_PRELOAD=${runtime_path}" "ASAN_OPTIONS=detect_leaks=0")
  endif()
endif()
