/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of base/map. */
#include "base/map.h"

#include <string.h>

#include "support/failmem.h"
#include "support/test.h"

static int values[4096];

static void put_get_remove(void **state)
{
    (void)state;
    far__map m = {0};
    assert_null(far__map_get(&m, 1));
    assert_null(far__map_remove(&m, 1));
    assert_ok(far__map_put(&m, 0, &values[0]));
    assert_ok(far__map_put(&m, UINT64_MAX, &values[1]));
    assert_ptr_equal(far__map_get(&m, 0), &values[0]);
    assert_ptr_equal(far__map_get(&m, UINT64_MAX), &values[1]);
    assert_null(far__map_get(&m, 1));
    assert_ok(far__map_put(&m, 0, &values[2]));
    assert_ptr_equal(far__map_get(&m, 0), &values[2]);
    assert_int_equal(m.count, 2);
    assert_ptr_equal(far__map_remove(&m, 0), &values[2]);
    assert_null(far__map_remove(&m, 0));
    assert_null(far__map_get(&m, 0));
    assert_int_equal(m.count, 1);
    far__map_fini(&m);
    assert_int_equal(m.count, 0);
}

/* Against a plain array, over a small space of keys so that runs collide, wrap round and are cut.
 */
static void agrees_with_an_array(void **state)
{
    (void)state;
    const uint64_t steps[] = {1, UINT64_C(1) << 32, UINT64_C(0x0001000100010001)};
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        far__map m = {0};
        int *model[300] = {0};
        size_t count = 0;
        uint64_t random = 88172645463325252u + s;
        for (int i = 0; i < 60000; i++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            size_t k = (size_t)(random >> 8) % 300;
            if (random & 1) {
                int *value = &values[(random >> 20) % 4096];
                count += model[k] == NULL;
                model[k] = value;
                assert_ok(far__map_put(&m, k * steps[s], value));
            } else {
                count -= model[k] != NULL;
                assert_ptr_equal(far__map_remove(&m, k * steps[s]), model[k]);
                model[k] = NULL;
            }
            size_t other = (size_t)(random >> 40) % 300;
            assert_ptr_equal(far__map_get(&m, other * steps[s]), model[other]);
            assert_int_equal(m.count, count);
        }
        for (size_t k = 0; k < 300; k++)
            assert_ptr_equal(far__map_get(&m, k * steps[s]), model[k]);
        far__map_fini(&m);
    }
}

/* Ids are counters that come and go: the table must not grow with how many there ever were. */
static void stays_small(void **state)
{
    (void)state;
    far__map m = {0};
    for (uint64_t id = 0; id < 100000; id++) {
        assert_ok(far__map_put(&m, id, &values[0]));
        if (id >= 10)
            assert_non_null(far__map_remove(&m, id - 10));
    }
    assert_int_equal(m.count, 10);
    assert_true(m.room <= 64);
    far__map_fini(&m);
}

static void visits_each_once(void **state)
{
    (void)state;
    far__map m = {0};
    size_t at = 0;
    uint64_t key;
    void *value;
    assert_false(far__map_next(&m, &at, &key, &value));
    for (uint64_t k = 0; k < 1000; k++)
        assert_ok(far__map_put(&m, k * k, &values[k]));
    int seen[1000] = {0};
    while (far__map_next(&m, &at, &key, &value)) {
        size_t k = (size_t)((int *)value - values);
        assert_true(k < 1000 && key == k * k);
        seen[k]++;
    }
    for (size_t k = 0; k < 1000; k++)
        assert_int_equal(seen[k], 1);
    /* Emptying it by restarting after each removal. */
    for (at = 0; far__map_next(&m, &at, &key, &value); at = 0)
        assert_ptr_equal(far__map_remove(&m, key), value);
    assert_int_equal(m.count, 0);
    far__map_fini(&m);
}

static void without_memory_nothing_changes(void **state)
{
    (void)state;
    far__map m = {0};
    failmem_begin(1);
    assert_status(FAR_ENOMEM, far__map_put(&m, 5, &values[5]));
    assert_int_equal(m.count, 0);
    failmem_end();
    failmem_begin_from(2);
    size_t stored = 0;
    while (far__map_put(&m, stored, &values[stored]) == FAR_OK)
        stored++;
    assert_true(failmem_failed());
    assert_int_equal(m.count, stored);
    for (size_t k = 0; k < stored; k++)
        assert_ptr_equal(far__map_get(&m, k), &values[k]);
    assert_null(far__map_get(&m, stored));
    /* A replacement needs no memory. */
    assert_ok(far__map_put(&m, 0, &values[9]));
    far__map_fini(&m);
    failmem_end();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(put_get_remove),
    cmocka_unit_test(agrees_with_an_array),
    cmocka_unit_test(stays_small),
    cmocka_unit_test(visits_each_once),
    cmocka_unit_test(without_memory_nothing_changes),
};
FAR_TEST_MAIN(tests)
