/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of proto/calls; tests/sim/test_calls plays it against a bad network. */
#include "proto/calls.h"

#include <string.h>

#include "support/failmem.h"
#include "support/test.h"

static far__call *add(far__calls *c, far__call *call, int64_t deadline, unsigned flags)
{
    *call = (far__call){0};
    assert_ok(far__calls_add(c, call, deadline, flags));
    return call;
}

static void a_reply_ends_its_call_once(void **state)
{
    (void)state;
    far__calls c;
    far__calls_init(&c);
    far__call a, b;
    add(&c, &a, FAR__NEVER, 0);
    add(&c, &b, FAR__NEVER, 0);
    assert_true(a.id != 0 && b.id != 0 && a.id != b.id);
    assert_int_equal(a.state, FAR__CALL_WAITING);
    far__calls_sent(&c, &a, 5);
    assert_int_equal(a.state, FAR__CALL_SENT);
    assert_true(a.was_sent);
    assert_ptr_equal(far__calls_find(&c, a.id), &a);
    assert_ptr_equal(far__calls_finish(&c, a.id), &a);
    assert_int_equal(a.state, FAR__CALL_OUT);
    assert_int_equal(c.count, 1);
    assert_int_equal(c.late, 0);
    assert_null(far__calls_find(&c, a.id));
    assert_int_equal(c.late, 0);
    assert_null(far__calls_finish(&c, a.id));
    assert_int_equal(c.late, 1);
    far__calls_remove(&c, &b);
    far__calls_fini(&c);
}

static void ids_that_never_were_are_late(void **state)
{
    (void)state;
    far__calls c;
    far__calls_init(&c);
    assert_null(far__calls_finish(&c, 1));
    far__call a;
    add(&c, &a, FAR__NEVER, 0);
    const uint64_t ids[] = {0, a.id & UINT32_MAX, a.id + 1, a.id + (UINT64_C(1) << 32), UINT64_MAX};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        assert_null(far__calls_finish(&c, ids[i]));
    assert_int_equal(c.late, 6);
    far__calls_remove(&c, &a);
    far__calls_fini(&c);
}

static void a_slot_used_again_has_another_id(void **state)
{
    (void)state;
    far__calls c;
    far__calls_init(&c);
    far__call a;
    uint64_t before = add(&c, &a, FAR__NEVER, 0)->id;
    far__calls_remove(&c, &a);
    uint64_t after = add(&c, &a, FAR__NEVER, 0)->id;
    assert_int_equal((uint32_t)before, (uint32_t)after);
    assert_true(before != after);
    assert_null(far__calls_finish(&c, before));
    far__calls_remove(&c, &a);
    far__calls_fini(&c);
}

static void generation_zero_is_skipped(void **state)
{
    (void)state;
    far__calls c;
    far__calls_init(&c);
    far__call a;
    uint32_t slot = (uint32_t)add(&c, &a, FAR__NEVER, 0)->id;
    far__calls_remove(&c, &a);
    c.slots[slot].generation = UINT32_MAX;
    assert_int_equal(add(&c, &a, FAR__NEVER, 0)->id, UINT64_C(1) << 32 | slot);
    assert_ptr_equal(far__calls_finish(&c, a.id), &a);
    far__calls_fini(&c);
}

static void deadlines_come_in_order_and_never_early(void **state)
{
    (void)state;
    far__calls c;
    far__calls_init(&c);
    far__call a, b, d;
    assert_int_equal(far__calls_next_deadline(&c), FAR__NEVER);
    add(&c, &a, 300, 0);
    add(&c, &b, 100, 0);
    add(&c, &d, FAR__NEVER, 0);
    assert_int_equal(far__calls_next_deadline(&c), 100);
    assert_null(far__calls_expired(&c, 99));
    assert_ptr_equal(far__calls_expired(&c, 100), &b);
    assert_null(far__calls_expired(&c, 100));
    assert_null(far__calls_expired(&c, 299));
    assert_ptr_equal(far__calls_expired(&c, 1000), &a);
    assert_null(far__calls_expired(&c, FAR__NEVER));
    assert_int_equal(far__calls_next_deadline(&c), FAR__NEVER);
    far__calls_remove(&c, &d);
    far__calls_fini(&c);
}

static void repeats_come_with_growing_pauses(void **state)
{
    (void)state;
    far__calls c;
    far__calls_init(&c);
    far__call a, plain;
    add(&c, &plain, FAR__NEVER, 0);
    add(&c, &a, FAR__NEVER, FAR__CALL_RETRY);
    assert_int_equal(far__calls_next_repeat(&c), FAR__NEVER);
    assert_null(far__calls_repeat_due(&c, FAR__NEVER));
    far__calls_sent(&c, &plain, 0);
    far__calls_sent(&c, &a, 0);
    static const int64_t pauses[] = {1, 2, 4, 8, 10, 10, 10};
    int64_t now = 0;
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++) {
        int64_t due = now + pauses[i] * FAR_SECOND;
        assert_int_equal(far__calls_next_repeat(&c), due);
        assert_null(far__calls_repeat_due(&c, due - 1));
        assert_ptr_equal(far__calls_repeat_due(&c, due), &a);
        /* Given once, and not lost if it cannot be sent. */
        assert_null(far__calls_repeat_due(&c, due));
        assert_true(far__calls_next_repeat(&c) > due);
        now = due + 7;
        far__calls_sent(&c, &a, now);
    }
    assert_int_equal(a.attempts, 8);
    assert_int_equal(plain.attempts, 1);
    assert_ptr_equal(far__calls_finish(&c, a.id), &a);
    assert_int_equal(far__calls_next_repeat(&c), FAR__NEVER);
    far__calls_remove(&c, &plain);
    far__calls_fini(&c);
}

static void a_broken_connection_takes_what_was_sent(void **state)
{
    (void)state;
    far__calls c;
    far__calls_init(&c);
    far__call sent, waiting, retry, last;
    add(&c, &sent, 50, 0);
    add(&c, &waiting, 60, 0);
    add(&c, &retry, 70, FAR__CALL_RETRY);
    add(&c, &last, FAR__NEVER, 0);
    far__calls_sent(&c, &sent, 1);
    far__calls_sent(&c, &retry, 1);
    far__list lost;
    far__list_init(&lost);
    far__calls_broken(&c, &lost);
    assert_ptr_equal(far__list_pop(&lost), &sent.link);
    assert_true(far__list_empty(&lost));
    assert_int_equal(sent.state, FAR__CALL_OUT);
    assert_int_equal(retry.state, FAR__CALL_WAITING);
    assert_true(retry.was_sent);
    assert_false(waiting.was_sent);
    assert_int_equal(far__calls_next_repeat(&c), FAR__NEVER);
    assert_int_equal(far__calls_next_deadline(&c), 60);
    assert_ptr_equal(c.all.next, &waiting.link);
    assert_ptr_equal(waiting.link.next, &retry.link);
    assert_ptr_equal(retry.link.next, &last.link);
    far__calls_lose_all(&c, &lost);
    assert_ptr_equal(far__list_pop(&lost), &waiting.link);
    assert_ptr_equal(far__list_pop(&lost), &retry.link);
    assert_ptr_equal(far__list_pop(&lost), &last.link);
    assert_true(far__list_empty(&lost));
    assert_int_equal(c.count, 0);
    assert_int_equal(c.finished.mark, 2);
    far__calls_fini(&c);
}

static void every_end_of_a_retried_call_is_acknowledged(void **state)
{
    (void)state;
    far__calls c;
    far__calls_init(&c);
    far__call r[6], plain;
    for (size_t i = 0; i < 6; i++)
        add(&c, &r[i], i == 3 ? 10 : FAR__NEVER, FAR__CALL_RETRY);
    add(&c, &plain, FAR__NEVER, 0);
    assert_int_equal(plain.sequence, 0);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(r[i].sequence, i + 1);
    uint64_t mark;
    far__wire_range ranges[4];
    assert_int_equal(far__calls_ack(&c, &mark, ranges, 4), 0);
    assert_int_equal(mark, 1);
    far__calls_remove(&c, &r[1]);
    assert_ptr_equal(far__calls_expired(&c, 10), &r[3]);
    assert_int_equal(far__calls_ack(&c, &mark, ranges, 4), 2);
    assert_int_equal(mark, 1);
    assert_int_equal(ranges[0].first, 2);
    assert_int_equal(ranges[0].last, 2);
    assert_int_equal(ranges[1].first, 4);
    assert_int_equal(far__calls_ack(&c, &mark, ranges, 1), 1);
    assert_ptr_equal(far__calls_finish(&c, r[0].id), &r[0]);
    assert_int_equal(far__calls_ack(&c, &mark, ranges, 4), 1);
    assert_int_equal(mark, 3);
    far__list lost;
    far__list_init(&lost);
    far__calls_lose_all(&c, &lost);
    assert_int_equal(far__calls_ack(&c, &mark, ranges, 4), 0);
    assert_int_equal(mark, 7);
    far__calls_fini(&c);
}

static void only_adding_needs_memory(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    static far__call calls[COUNT];
    bool failed = true;
    size_t refusals = 0;
    for (size_t n = 1; failed; n++) {
        failmem_begin(n);
        far__calls c;
        far__calls_init(&c);
        memset(calls, 0, sizeof calls);
        size_t added = 0;
        for (size_t i = 0; i < COUNT; i++) {
            bool before = failmem_failed();
            far_status status = far__calls_add(&c, &calls[i], 1000 + (int64_t)i, FAR__CALL_RETRY);
            assert_status(failmem_failed() != before ? FAR_ENOMEM : FAR_OK, status);
            if (status != FAR_OK) {
                assert_int_equal(calls[i].state, FAR__CALL_OUT);
                assert_ok(far__calls_add(&c, &calls[i], 1000 + (int64_t)i, FAR__CALL_RETRY));
            }
            added++;
            assert_int_equal(c.count, added);
            assert_int_equal(calls[i].sequence, added);
        }
        failed = failmem_failed();
        refusals += failed;
        size_t asked = failmem_count();
        for (size_t i = 0; i < COUNT; i++)
            far__calls_sent(&c, &calls[i], (int64_t)i);
        while (far__calls_repeat_due(&c, FAR_SECOND * 5))
            ;
        /* Every second one makes as many ranges as there can be. */
        for (size_t i = 1; i < COUNT; i += 2)
            assert_ptr_equal(far__calls_finish(&c, calls[i].id), &calls[i]);
        assert_int_equal(c.finished.count, COUNT / 2);
        for (size_t i = 0; i < COUNT; i += 2)
            assert_ptr_equal(far__calls_expired(&c, FAR__NEVER - 1), &calls[i]);
        assert_int_equal(failmem_count(), asked);
        far__calls_fini(&c);
        failmem_end();
    }
    assert_true(refusals > 4);
}

static void the_steady_state_allocates_nothing(void **state)
{
    (void)state;
    enum { COUNT = 100 };
    static far__call calls[COUNT];
    memset(calls, 0, sizeof calls);
    failmem_begin(0);
    far__calls c;
    far__calls_init(&c);
    size_t warm = 0;
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < COUNT; i++)
            assert_ok(far__calls_add(&c, &calls[i], (int64_t)i, i % 2 ? FAR__CALL_RETRY : 0));
        for (size_t i = 0; i < COUNT; i++)
            assert_ptr_equal(far__calls_finish(&c, calls[(i * 7) % COUNT].id),
                             &calls[(i * 7) % COUNT]);
        if (round == 0)
            warm = failmem_count();
    }
    assert_int_equal(failmem_count(), warm);
    far__calls_fini(&c);
    failmem_end();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_reply_ends_its_call_once),
    cmocka_unit_test(ids_that_never_were_are_late),
    cmocka_unit_test(a_slot_used_again_has_another_id),
    cmocka_unit_test(generation_zero_is_skipped),
    cmocka_unit_test(deadlines_come_in_order_and_never_early),
    cmocka_unit_test(repeats_come_with_growing_pauses),
    cmocka_unit_test(a_broken_connection_takes_what_was_sent),
    cmocka_unit_test(every_end_of_a_retried_call_is_acknowledged),
    cmocka_unit_test(only_adding_needs_memory),
    cmocka_unit_test(the_steady_state_allocates_nothing),
};

FAR_TEST_MAIN(tests)
