/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of base/heap. */
#include "base/heap.h"

#include "support/failmem.h"
#include "support/test.h"

enum { COUNT = 500 };

static uint64_t next_random(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* Every node knows its place and is no earlier than its parent. */
static void check(const far__heap *h)
{
    for (size_t i = 1; i <= h->count; i++) {
        assert_int_equal(h->nodes[i - 1]->index, i);
        if (i > 1)
            assert_true(h->nodes[i / 2 - 1]->key <= h->nodes[i - 1]->key);
    }
}

static void comes_out_in_order(void **state)
{
    (void)state;
    static far__heap_node nodes[COUNT];
    far__heap h = {0};
    uint64_t random = 42;
    assert_null(far__heap_first(&h));
    for (size_t i = 0; i < COUNT; i++)
        assert_ok(far__heap_add(&h, &nodes[i], (int64_t)(next_random(&random) % 200) - 100));
    check(&h);
    int64_t last = INT64_MIN;
    for (size_t i = 0; i < COUNT; i++) {
        far__heap_node *n = far__heap_first(&h);
        assert_true(n->key >= last);
        last = n->key;
        far__heap_remove(&h, n);
        assert_int_equal(n->index, 0);
    }
    assert_null(far__heap_first(&h));
    far__heap_fini(&h);
}

static void removes_from_the_middle(void **state)
{
    (void)state;
    static far__heap_node nodes[COUNT];
    far__heap h = {0};
    uint64_t random = 7;
    size_t inside = 0;
    for (int step = 0; step < 20000; step++) {
        far__heap_node *n = &nodes[next_random(&random) % COUNT];
        if (n->index) {
            far__heap_remove(&h, n);
            inside--;
        } else {
            assert_ok(far__heap_add(&h, n, (int64_t)(next_random(&random) % 1000)));
            inside++;
        }
        assert_int_equal(h.count, inside);
        if (step % 64 == 0)
            check(&h);
        for (size_t i = 0; step % 512 == 0 && i < COUNT; i++) {
            if (nodes[i].index)
                assert_true(far__heap_first(&h)->key <= nodes[i].key);
        }
    }
    far__heap_fini(&h);
    for (size_t i = 0; i < COUNT; i++)
        assert_int_equal(nodes[i].index, 0);
}

static void removing_twice_is_nothing(void **state)
{
    (void)state;
    far__heap h = {0};
    far__heap_node a = {0}, b = {0};
    far__heap_remove(&h, &a);
    assert_ok(far__heap_add(&h, &a, INT64_MAX));
    assert_ok(far__heap_add(&h, &b, INT64_MIN));
    assert_ptr_equal(far__heap_first(&h), &b);
    far__heap_remove(&h, &b);
    far__heap_remove(&h, &b);
    assert_ptr_equal(far__heap_first(&h), &a);
    assert_int_equal(h.count, 1);
    far__heap_fini(&h);
}

static void without_memory_nothing_changes(void **state)
{
    (void)state;
    static far__heap_node nodes[COUNT];
    far__heap h = {0};
    failmem_begin_from(2);
    size_t added = 0;
    while (added < COUNT && far__heap_add(&h, &nodes[added], (int64_t)added) == FAR_OK)
        added++;
    assert_true(failmem_failed());
    assert_int_equal(nodes[added].index, 0);
    assert_int_equal(h.count, added);
    check(&h);
    far__heap_fini(&h);
    failmem_end();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(comes_out_in_order),
    cmocka_unit_test(removes_from_the_middle),
    cmocka_unit_test(removing_twice_is_nothing),
    cmocka_unit_test(without_memory_nothing_changes),
};
FAR_TEST_MAIN(tests)
