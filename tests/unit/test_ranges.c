/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of proto/ranges. */
#include "proto/ranges.h"

#include "support/failmem.h"
#include "support/test.h"

/* The invariant of the file, and the same members as the model. */
static void check(const far__ranges *r, const bool *model, uint64_t size)
{
    uint64_t before = r->mark;
    for (size_t i = 0; i < r->count; i++) {
        assert_true(r->items[i].first > before);
        assert_true(r->items[i].last >= r->items[i].first);
        before = r->items[i].last + 1;
    }
    for (uint64_t n = 1; n < size; n++)
        assert_int_equal(far__ranges_has(r, n), model[n]);
}

static void empty_has_nothing(void **state)
{
    (void)state;
    far__ranges r;
    far__ranges_init(&r);
    assert_int_equal(r.mark, 1);
    assert_false(far__ranges_has(&r, 1));
    assert_false(far__ranges_has(&r, UINT64_MAX));
    far__ranges_fini(&r);
}

static void mark_swallows_what_touches(void **state)
{
    (void)state;
    far__ranges r;
    far__ranges_init(&r);
    assert_ok(far__ranges_add(&r, 3, 4));
    assert_ok(far__ranges_add(&r, 6, 9));
    assert_int_equal(r.mark, 1);
    assert_int_equal(r.count, 2);
    assert_ok(far__ranges_add(&r, 1, 2));
    assert_int_equal(r.mark, 5);
    assert_int_equal(r.count, 1);
    assert_ok(far__ranges_add(&r, 5, 7));
    assert_int_equal(r.mark, 10);
    assert_int_equal(r.count, 0);
    assert_ok(far__ranges_add(&r, 1, 10));
    assert_int_equal(r.mark, 11);
    far__ranges_fini(&r);
}

static void neighbours_join(void **state)
{
    (void)state;
    far__ranges r;
    far__ranges_init(&r);
    assert_ok(far__ranges_add(&r, 10, 10));
    assert_ok(far__ranges_add(&r, 12, 12));
    assert_int_equal(r.count, 2);
    assert_ok(far__ranges_add(&r, 11, 11));
    assert_int_equal(r.count, 1);
    assert_ok(far__ranges_add(&r, 20, 30));
    assert_ok(far__ranges_add(&r, 5, 40));
    assert_int_equal(r.count, 1);
    assert_int_equal(r.items[0].first, 5);
    assert_int_equal(r.items[0].last, 40);
    far__ranges_fini(&r);
}

static void strange_numbers_do_no_harm(void **state)
{
    (void)state;
    far__ranges r;
    far__ranges_init(&r);
    assert_ok(far__ranges_add(&r, 9, 3));
    assert_int_equal(r.count, 0);
    assert_ok(far__ranges_add(&r, UINT64_MAX, UINT64_MAX));
    assert_false(far__ranges_has(&r, UINT64_MAX));
    assert_ok(far__ranges_add(&r, 7, UINT64_MAX));
    assert_int_equal(r.items[0].last, UINT64_MAX - 1);
    assert_ok(far__ranges_add(&r, 0, 6));
    assert_int_equal(r.mark, UINT64_MAX);
    assert_true(far__ranges_has(&r, 0));
    assert_ok(far__ranges_add(&r, 1, UINT64_MAX));
    assert_int_equal(r.mark, UINT64_MAX);
    far__ranges_fini(&r);
}

static void agrees_with_a_plain_set(void **state)
{
    (void)state;
    enum { SIZE = 200 };
    uint64_t random = 7;
    for (int run = 0; run < 50; run++) {
        bool model[SIZE] = {false};
        far__ranges r;
        far__ranges_init(&r);
        for (int step = 0; step < 60; step++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t first = 1 + (random >> 33) % (SIZE - 12);
            uint64_t last = first + (random >> 20) % 4;
            assert_ok(far__ranges_add(&r, first, last));
            for (uint64_t n = first; n <= last; n++)
                model[n] = true;
            check(&r, model, SIZE);
        }
        far__ranges_fini(&r);
    }
}

static void without_memory_it_is_unchanged(void **state)
{
    (void)state;
    failmem_begin(2);
    far__ranges r;
    far__ranges_init(&r);
    size_t added = 0;
    while (!failmem_failed()) {
        uint64_t n = 2 + 2 * added;
        far_status status = far__ranges_add(&r, n, n);
        assert_status(failmem_failed() ? FAR_ENOMEM : FAR_OK, status);
        assert_int_equal(far__ranges_has(&r, n), status == FAR_OK);
        added += status == FAR_OK;
    }
    assert_int_equal(r.count, added);
    far__ranges_fini(&r);
    failmem_end();
}

static void reserved_room_is_enough(void **state)
{
    (void)state;
    failmem_begin(2);
    far__ranges r;
    far__ranges_init(&r);
    assert_ok(far__ranges_reserve(&r, 20));
    for (uint64_t n = 0; n < 20; n++)
        assert_ok(far__ranges_add(&r, 100 - 3 * n, 100 - 3 * n));
    assert_false(failmem_failed());
    far__ranges_fini(&r);
    failmem_end();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(empty_has_nothing),       cmocka_unit_test(mark_swallows_what_touches),
    cmocka_unit_test(neighbours_join),         cmocka_unit_test(strange_numbers_do_no_harm),
    cmocka_unit_test(agrees_with_a_plain_set), cmocka_unit_test(without_memory_it_is_unchanged),
    cmocka_unit_test(reserved_room_is_enough),
};

FAR_TEST_MAIN(tests)
