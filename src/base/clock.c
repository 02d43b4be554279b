/* SPDX-License-Identifier: BSD-3-Clause
 * base/clock: the kernel's monotonic clock, or the one a test has set.
 * Floor: base. Thread: any. */
#include "base/clock.h"

#include <time.h>

static int64_t kernel_now(void *arg)
{
    (void)arg;
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static far__clock_fn clock_fn = kernel_now;
static void *clock_arg;

void far__clock_set(far__clock_fn fn, void *arg)
{
    clock_fn = fn ? fn : kernel_now;
    clock_arg = fn ? arg : NULL;
}

int64_t far__clock_now(void)
{
    return clock_fn(clock_arg);
}
