/* SPDX-License-Identifier: BSD-3-Clause
 * tests of async/timer. */
#include "async/timer.h"

#include <stdlib.h>

#include "support/test.h"

static void fire(far__timer *t)
{
    (void)t;
}

static void none_is_never(void **state)
{
    (void)state;
    far__timers s;
    far__timers_init(&s);
    assert_true(far__timers_next(&s) == FAR__NEVER);
    assert_null(far__timers_due(&s, FAR__NEVER));
}

static void due_in_order_of_time(void **state)
{
    (void)state;
    enum { COUNT = 50 };
    far__timers s;
    far__timer t[COUNT];
    far__timers_init(&s);
    srand(7);
    for (int i = 0; i < COUNT; i++) {
        far__timer_init(&t[i], fire);
        far__timers_set(&s, &t[i], rand() % 20);
    }
    int64_t before = 0;
    for (int i = 0; i < COUNT; i++) {
        int64_t next = far__timers_next(&s);
        assert_null(far__timers_due(&s, next - 1));
        far__timer *first = far__timers_due(&s, next);
        assert_non_null(first);
        assert_true(first->at == next && next >= before);
        assert_false(far__timer_armed(first));
        before = next;
    }
    assert_true(far__timers_next(&s) == FAR__NEVER);
}

static void equal_times_in_order_of_setting(void **state)
{
    (void)state;
    far__timers s;
    far__timer a, b, c;
    far__timers_init(&s);
    far__timer_init(&a, fire);
    far__timer_init(&b, fire);
    far__timer_init(&c, fire);
    far__timers_set(&s, &a, 5);
    far__timers_set(&s, &b, 5);
    far__timers_set(&s, &c, 4);
    assert_ptr_equal(far__timers_due(&s, 5), &c);
    assert_ptr_equal(far__timers_due(&s, 5), &a);
    assert_ptr_equal(far__timers_due(&s, 5), &b);
}

static void setting_again_moves(void **state)
{
    (void)state;
    far__timers s;
    far__timer a, b;
    far__timers_init(&s);
    far__timer_init(&a, fire);
    far__timer_init(&b, fire);
    far__timers_set(&s, &a, 5);
    far__timers_set(&s, &b, 7);
    far__timers_set(&s, &a, 9);
    assert_true(far__timers_next(&s) == 7);
    far__timers_set(&s, &a, 1);
    assert_true(far__timers_next(&s) == 1);
    far__timers_clear(&s, &a);
    far__timers_clear(&s, &a);
    assert_false(far__timer_armed(&a));
    assert_true(far__timers_next(&s) == 7);
    far__timers_set(&s, &b, FAR__NEVER);
    assert_false(far__timer_armed(&b));
    assert_true(far__timers_next(&s) == FAR__NEVER);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(none_is_never),
    cmocka_unit_test(due_in_order_of_time),
    cmocka_unit_test(equal_times_in_order_of_setting),
    cmocka_unit_test(setting_again_moves),
};
FAR_TEST_MAIN(tests)
