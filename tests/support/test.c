/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/test: the main of every C test. */
#include "support/test.h"

#include <stdio.h>

void far_test_begin(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
}

int far_test_end(int failed)
{
    size_t live = far_memory_live();
    if (live)
        fprintf(stderr, "%zu allocations are still alive\n", live);
    return failed || live ? 1 : 0;
}
