/* SPDX-License-Identifier: BSD-3-Clause
 * base/clock: the clock as a function pointer, so that tests own time. Times are int64_t
 * nanoseconds of CLOCK_MONOTONIC; FAR__NEVER is later than all. Floor: base. Thread: any. */
#ifndef FAR_BASE_CLOCK_H
#define FAR_BASE_CLOCK_H

#include <stdint.h>

#include <farcall/farcall.h>

#define FAR__NEVER INT64_MAX

typedef int64_t (*far__clock_fn)(void *arg);

void far__clock_set(far__clock_fn fn, void *arg); /* NULL: the kernel's; only while nothing runs */
int64_t far__clock_now(void);

/* now + limit without overflow; FAR_NO_LIMIT and FAR_FOREVER give FAR__NEVER. */
static inline int64_t far__deadline(int64_t now, far_duration limit)
{
    if (limit == FAR_NO_LIMIT || limit >= INT64_MAX - now)
        return FAR__NEVER;
    return now + limit;
}

#endif
