/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of base/clock. */
#include "base/clock.h"

#include <time.h>

#include "support/test.h"

static int64_t fixed(void *arg)
{
    return *(int64_t *)arg;
}

static void kernel_time_is_monotonic(void **state)
{
    (void)state;
    struct timespec ts;
    int64_t before = far__clock_now();
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &ts), 0);
    int64_t after = far__clock_now();
    int64_t between = (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
    assert_true(before <= between && between <= after);
}

static void tests_own_time(void **state)
{
    (void)state;
    int64_t now = 12345;
    far__clock_set(fixed, &now);
    assert_int_equal(far__clock_now(), 12345);
    now = 99;
    assert_int_equal(far__clock_now(), 99);
    far__clock_set(NULL, NULL);
    assert_true(far__clock_now() > 12345);
}

static void deadlines_do_not_overflow(void **state)
{
    (void)state;
    assert_true(far__deadline(1000, 5) == 1005);
    assert_true(far__deadline(1000, FAR_NO_LIMIT) == FAR__NEVER);
    assert_true(far__deadline(1000, FAR_FOREVER) == FAR__NEVER);
    assert_true(far__deadline(1000, INT64_MAX - 1000) == FAR__NEVER);
    assert_true(far__deadline(1000, INT64_MAX - 1001) == FAR__NEVER - 1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(kernel_time_is_monotonic),
    cmocka_unit_test(tests_own_time),
    cmocka_unit_test(deadlines_do_not_overflow),
};
FAR_TEST_MAIN(tests)
