/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of proto/served; tests/sim/test_calls plays it against a bad network. */
#include "proto/served.h"

#include "support/failmem.h"
#include "support/test.h"

static int results[10]; /* times that each was dropped */

static void drop(void *result, void *arg)
{
    assert_ptr_equal(arg, results);
    ++*(int *)result;
}

static void begin_test(far__served *s)
{
    for (size_t i = 0; i < 10; i++)
        results[i] = 0;
    far__served_init(s, drop, results);
}

static far__served_verdict begin(far__served *s, uint64_t sequence, uint64_t id)
{
    far__served_verdict verdict;
    void *result;
    assert_ok(far__served_begin(s, sequence, id, &verdict, &result));
    if (verdict != FAR__SERVED_DONE)
        assert_null(result);
    return verdict;
}

static void a_repeat_joins_the_running_one(void **state)
{
    (void)state;
    far__served s;
    begin_test(&s);
    assert_int_equal(begin(&s, 1, 100), FAR__SERVED_NEW);
    assert_int_equal(begin(&s, 1, 200), FAR__SERVED_RUNNING);
    uint64_t id = 0;
    assert_true(far__served_end(&s, 1, &results[0], &id));
    assert_int_equal(id, 200);
    far__served_fini(&s);
    assert_int_equal(results[0], 1);
}

static void a_repeat_gets_the_kept_result(void **state)
{
    (void)state;
    far__served s;
    begin_test(&s);
    assert_int_equal(begin(&s, 3, 1), FAR__SERVED_NEW);
    uint64_t id;
    assert_true(far__served_end(&s, 3, &results[3], &id));
    far__served_verdict verdict;
    void *result;
    for (uint64_t again = 2; again < 4; again++) {
        assert_ok(far__served_begin(&s, 3, again, &verdict, &result));
        assert_int_equal(verdict, FAR__SERVED_DONE);
        assert_ptr_equal(result, &results[3]);
    }
    assert_ok(far__served_ack(&s, 1, &(far__wire_range){3, 3}, 1));
    assert_int_equal(results[3], 1);
    assert_int_equal(begin(&s, 3, 4), FAR__SERVED_REFUSED);
    assert_int_equal(begin(&s, 2, 5), FAR__SERVED_NEW);
    far__served_fini(&s);
    assert_int_equal(results[3], 1);
}

static void a_result_may_be_null(void **state)
{
    (void)state;
    far__served s;
    begin_test(&s);
    assert_int_equal(begin(&s, 1, 1), FAR__SERVED_NEW);
    uint64_t id;
    assert_true(far__served_end(&s, 1, NULL, &id));
    assert_int_equal(begin(&s, 1, 2), FAR__SERVED_DONE);
    far__served_fini(&s);
}

static void acknowledged_while_running_drops_the_result(void **state)
{
    (void)state;
    far__served s;
    begin_test(&s);
    assert_int_equal(begin(&s, 1, 1), FAR__SERVED_NEW);
    assert_ok(far__served_ack(&s, 2, NULL, 0));
    assert_int_equal(begin(&s, 1, 2), FAR__SERVED_REFUSED);
    uint64_t id = 77;
    assert_false(far__served_end(&s, 1, &results[1], &id));
    assert_int_equal(id, 77);
    assert_int_equal(results[1], 1);
    assert_int_equal(s.entries.count, 0);
    far__served_fini(&s);
}

static void marks_and_ranges_drop_exactly_theirs(void **state)
{
    (void)state;
    far__served s;
    begin_test(&s);
    uint64_t id;
    for (uint64_t n = 1; n < 10; n++) {
        assert_int_equal(begin(&s, n, n), FAR__SERVED_NEW);
        assert_true(far__served_end(&s, n, &results[n], &id));
    }
    const far__wire_range ranges[] = {{5, 6}, {8, 8}};
    for (int again = 0; again < 2; again++) {
        assert_ok(far__served_ack(&s, 3, ranges, 2));
        static const int wanted[10] = {0, 1, 1, 0, 0, 1, 1, 0, 1, 0};
        assert_memory_equal(results, wanted, sizeof wanted);
    }
    assert_ok(far__served_ack(&s, 2, NULL, 0)); /* an old one */
    assert_int_equal(s.entries.count, 4);
    assert_int_equal(begin(&s, 3, 1), FAR__SERVED_DONE);
    far__served_fini(&s);
    for (size_t n = 1; n < 10; n++)
        assert_int_equal(results[n], 1);
}

static void a_peer_may_claim_anything(void **state)
{
    (void)state;
    far__served s;
    begin_test(&s);
    uint64_t id;
    assert_int_equal(begin(&s, 0, 1), FAR__SERVED_REFUSED);
    assert_int_equal(begin(&s, UINT64_MAX, 1), FAR__SERVED_NEW);
    assert_int_equal(begin(&s, 7, 1), FAR__SERVED_NEW);
    assert_true(far__served_end(&s, 7, &results[7], &id));
    const far__wire_range ranges[] = {{9, 2}, {0, 0}, {UINT64_MAX, UINT64_MAX}, {5, UINT64_MAX}};
    assert_ok(far__served_ack(&s, 0, ranges, 4));
    assert_int_equal(results[7], 1);
    assert_true(far__served_end(&s, UINT64_MAX, &results[8], &id));
    assert_ok(far__served_ack(&s, UINT64_MAX, ranges, 4));
    assert_int_equal(begin(&s, 1, 1), FAR__SERVED_REFUSED);
    assert_int_equal(results[8], 0);
    far__served_fini(&s);
    assert_int_equal(results[8], 1);
}

static void without_memory_nothing_changes(void **state)
{
    (void)state;
    bool failed = true;
    for (size_t n = 1; failed; n++) {
        failmem_begin(n);
        far__served s;
        begin_test(&s);
        far__served_verdict verdict;
        void *result;
        far_status status = far__served_begin(&s, 2, 1, &verdict, &result);
        uint64_t id;
        if (status == FAR_OK) {
            assert_true(far__served_end(&s, 2, &results[0], &id));
            status = far__served_ack(&s, 1, &(far__wire_range){2, 2}, 1);
            assert_int_equal(results[0], status == FAR_OK);
            assert_int_equal(s.entries.count, status != FAR_OK);
        } else {
            assert_int_equal(s.entries.count, 0);
        }
        failed = failmem_failed();
        assert_status(failed ? FAR_ENOMEM : FAR_OK, status);
        far__served_fini(&s);
        failmem_end();
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_repeat_joins_the_running_one),
    cmocka_unit_test(a_repeat_gets_the_kept_result),
    cmocka_unit_test(a_result_may_be_null),
    cmocka_unit_test(acknowledged_while_running_drops_the_result),
    cmocka_unit_test(marks_and_ranges_drop_exactly_theirs),
    cmocka_unit_test(a_peer_may_claim_anything),
    cmocka_unit_test(without_memory_nothing_changes),
};

FAR_TEST_MAIN(tests)
