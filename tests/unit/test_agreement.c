/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of proto/agreement; tests/sim/test_agreement plays it with random calls. */
#include "proto/agreement.h"

#include "support/failmem.h"
#include "support/test.h"

static void begin(far__agreement *a, far_worker_id count)
{
    far__agreement_init(a);
    /* Not in order. */
    for (far_worker_id i = count; i-- > 0;)
        assert_ok(far__agreement_add(a, i));
    assert_int_equal(far__agreement_next(a), FAR__AGREEMENT_WAIT);
    assert_false(far__agreement_all_asked(a));
}

static void all_ask(far__agreement *a)
{
    for (size_t i = 0; i < a->count; i++)
        far__agreement_asked(a, a->members[i].id);
    assert_true(far__agreement_all_asked(a));
}

/* Expects a new round, in which every member but one is idle (UINT32_MAX: all). */
static far__agreement_step round_of(far__agreement *a, far_worker_id busy, uint64_t activity)
{
    assert_int_equal(far__agreement_next(a), FAR__AGREEMENT_POLL);
    for (size_t i = 0; i < a->count; i++) {
        assert_int_equal(far__agreement_next(a), FAR__AGREEMENT_WAIT);
        far__agreement_report(a, a->round, a->members[i].id, a->members[i].id != busy, activity);
    }
    return far__agreement_next(a);
}

static void waits_until_everybody_asks(void **state)
{
    (void)state;
    far__agreement a;
    begin(&a, 3);
    far_worker_id id = 99;
    assert_true(far__agreement_missing(&a, &id));
    assert_int_equal(id, 0);
    far__agreement_asked(&a, 0);
    far__agreement_asked(&a, 2);
    far__agreement_asked(&a, 7); /* unknown */
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    assert_true(far__agreement_missing(&a, &id));
    assert_int_equal(id, 1);
    far__agreement_asked(&a, 1);
    assert_false(far__agreement_missing(&a, &id));
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    assert_int_equal(a.round, 1);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_fini(&a);
}

static void nobody_agrees_on_nothing(void **state)
{
    (void)state;
    far__agreement a;
    far__agreement_init(&a);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_fini(&a);
}

static void two_quiet_rounds_agree(void **state)
{
    (void)state;
    far__agreement a;
    begin(&a, 3);
    all_ask(&a);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    for (far_worker_id i = 0; i < 3; i++)
        far__agreement_report(&a, 1, i, true, 10);
    /* The end of the first is the beginning of the second. */
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    assert_int_equal(a.round, 2);
    far__agreement_report(&a, 1, 0, true, 10); /* of the wrong round */
    far__agreement_report(&a, 2, 0, true, 10);
    far__agreement_report(&a, 2, 0, false, 11); /* a second one of this round */
    far__agreement_report(&a, 2, 1, true, 10);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_report(&a, 2, 2, true, 10);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_DONE);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_DONE);
    assert_false(far__agreement_withdrawn(&a, 1));
    far__agreement_fini(&a);
}

static void a_busy_round_is_followed_by_a_pause(void **state)
{
    (void)state;
    far__agreement a;
    begin(&a, 2);
    all_ask(&a);
    assert_int_equal(round_of(&a, 1, 5), FAR__AGREEMENT_WAIT);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_retry(&a);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    far__agreement_report(&a, 2, 0, true, 5);
    far__agreement_report(&a, 2, 1, true, 5);
    /* Quiet, but the one before was not. */
    assert_int_equal(round_of(&a, UINT32_MAX, 5), FAR__AGREEMENT_DONE);
    far__agreement_fini(&a);
}

static void a_changed_counter_needs_one_more_round(void **state)
{
    (void)state;
    far__agreement a;
    begin(&a, 2);
    all_ask(&a);
    assert_int_equal(round_of(&a, UINT32_MAX, 5), FAR__AGREEMENT_POLL);
    far__agreement_report(&a, 2, 0, true, 5);
    far__agreement_report(&a, 2, 1, true, 6);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_retry(&a);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    far__agreement_report(&a, 3, 0, true, 5);
    far__agreement_report(&a, 3, 1, true, 6);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_DONE);
    far__agreement_fini(&a);
}

static void the_gone_count_as_having_asked(void **state)
{
    (void)state;
    far__agreement a;
    begin(&a, 3);
    far__agreement_asked(&a, 0);
    far__agreement_asked(&a, 1);
    far__agreement_gone(&a, 2);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    far__agreement_report(&a, 1, 0, true, 0);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_gone(&a, 1); /* within a round: that one does not count */
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_retry(&a);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    far__agreement_report(&a, 2, 0, true, 0);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    far__agreement_gone(&a, 1); /* known */
    far__agreement_report(&a, 3, 0, true, 0);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_DONE);
    far__agreement_fini(&a);
}

static void a_withdrawal_spoils_the_round(void **state)
{
    (void)state;
    far__agreement a;
    begin(&a, 2);
    all_ask(&a);
    assert_int_equal(round_of(&a, UINT32_MAX, 5), FAR__AGREEMENT_POLL);
    far__agreement_report(&a, 2, 1, true, 5);
    assert_true(far__agreement_withdrawn(&a, 1));
    assert_false(far__agreement_all_asked(&a));
    far__agreement_asked(&a, 1);
    far__agreement_report(&a, 2, 0, true, 5);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_retry(&a);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_POLL);
    far__agreement_report(&a, 3, 0, true, 5);
    far__agreement_report(&a, 3, 1, true, 5);
    assert_int_equal(round_of(&a, UINT32_MAX, 5), FAR__AGREEMENT_DONE);
    far__agreement_fini(&a);
}

static void a_newcomer_spoils_the_round(void **state)
{
    (void)state;
    far__agreement a;
    begin(&a, 2);
    all_ask(&a);
    assert_int_equal(round_of(&a, UINT32_MAX, 5), FAR__AGREEMENT_POLL);
    assert_ok(far__agreement_add(&a, 1)); /* known: nothing happens */
    assert_ok(far__agreement_add(&a, 9));
    assert_false(far__agreement_all_asked(&a));
    far__agreement_asked(&a, 9);
    far__agreement_report(&a, 2, 0, true, 5);
    far__agreement_report(&a, 2, 9, true, 0);
    far__agreement_report(&a, 2, 1, true, 5);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_WAIT);
    far__agreement_retry(&a);
    assert_int_equal(round_of(&a, UINT32_MAX, 5), FAR__AGREEMENT_POLL);
    for (size_t i = 0; i < 3; i++)
        far__agreement_report(&a, 4, a.members[i].id, true, 5);
    assert_int_equal(far__agreement_next(&a), FAR__AGREEMENT_DONE);
    far__agreement_fini(&a);
}

static void adding_may_find_no_memory(void **state)
{
    (void)state;
    bool failed = true;
    for (size_t n = 1; failed; n++) {
        failmem_begin(n);
        far__agreement a;
        far__agreement_init(&a);
        for (far_worker_id i = 0; i < 20; i++) {
            size_t before = a.count;
            far_status status = far__agreement_add(&a, i);
            assert_int_equal(a.count, before + (status == FAR_OK));
        }
        failed = failmem_failed();
        assert_int_equal(a.count, failed ? 19 : 20);
        far__agreement_fini(&a);
        failmem_end();
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(waits_until_everybody_asks),
    cmocka_unit_test(nobody_agrees_on_nothing),
    cmocka_unit_test(two_quiet_rounds_agree),
    cmocka_unit_test(a_busy_round_is_followed_by_a_pause),
    cmocka_unit_test(a_changed_counter_needs_one_more_round),
    cmocka_unit_test(the_gone_count_as_having_asked),
    cmocka_unit_test(a_withdrawal_spoils_the_round),
    cmocka_unit_test(a_newcomer_spoils_the_round),
    cmocka_unit_test(adding_may_find_no_memory),
};

FAR_TEST_MAIN(tests)
