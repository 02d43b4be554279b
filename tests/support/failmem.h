/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/failmem: an allocator that fails when it is told to.
 *
 *     bool failed = true;
 *     for (size_t n = 1; failed; n++) { // fails the 1st, then the 2nd, ... until none is left to
 * fail failmem_begin(n); far_status status = make(&thing); failed = failmem_failed();
 *         assert_status(failed ? FAR_ENOMEM : FAR_OK, status);
 *         if (!failed)
 *             drop(thing);
 *         failmem_end();
 *     }
 *
 * Nothing of farcall may be alive at failmem_begin and failmem_end. */
#ifndef FAR_TESTS_SUPPORT_FAILMEM_H
#define FAR_TESTS_SUPPORT_FAILMEM_H

#include <stdbool.h>
#include <stddef.h>

/* From now on the n-th allocation or growth (from 1; of all threads together) fails, once; 0: none
 * does. */
void failmem_begin(size_t n);
/* As failmem_begin, but the n-th and all after it fail. */
void failmem_begin_from(size_t n);
/* How many allocations and growths were asked for since the beginning. */
size_t failmem_count(void);
/* Has one been refused since the beginning? May be asked at any time. */
bool failmem_failed(void);
/* Back to the C library's allocator. */
void failmem_end(void);

#endif
