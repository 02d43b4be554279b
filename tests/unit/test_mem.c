/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of base/mem, and of the failing allocator. */
#include "base/mem.h"

#include <pthread.h>
#include <string.h>

#include "support/failmem.h"
#include "support/test.h"

static void counts_blocks(void **state)
{
    (void)state;
    assert_int_equal(far_memory_live(), 0);
    void *a = far__mem_alloc(10);
    void *b = far__mem_zalloc(0);
    char *c = far__mem_copy_text("abc", 2);
    assert_non_null(a);
    assert_non_null(b);
    assert_string_equal(c, "ab");
    assert_int_equal(far_memory_live(), 3);
    a = far__mem_resize(a, 100000);
    assert_non_null(a);
    assert_int_equal(far_memory_live(), 3);
    far__mem_free(a);
    far__mem_free(b);
    far__mem_free(c);
    far__mem_free(NULL);
    assert_int_equal(far_memory_live(), 0);
}

static void zeroed(void **state)
{
    (void)state;
    /* Dirty memory first, so that plain malloc would be seen. */
    unsigned char *dirty = far__mem_alloc(1000);
    memset(dirty, 0xff, 1000);
    far__mem_free(dirty);
    unsigned char *block = far__mem_array(100, 10);
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(block[i], 0);
    far__mem_free(block);
}

static void array_overflow(void **state)
{
    (void)state;
    volatile size_t huge = SIZE_MAX / 2 + 2;
    assert_null(far__mem_array(huge, 2));
    assert_null(far__mem_array(2, huge));
    assert_null(far__mem_copy_text("", SIZE_MAX));
    assert_int_equal(far__mem_live(), 0);
}

static void resize_of_null_allocates(void **state)
{
    (void)state;
    void *block = far__mem_resize(NULL, 0);
    assert_non_null(block);
    assert_int_equal(far__mem_live(), 1);
    block = far__mem_resize(block, 0);
    assert_non_null(block);
    far__mem_free(block);
}

static void failed_resize_keeps_the_old(void **state)
{
    (void)state;
    failmem_begin(2);
    char *block = far__mem_copy_text("kept", 4);
    assert_null(far__mem_resize(block, 1000));
    assert_true(failmem_failed());
    assert_string_equal(block, "kept");
    assert_int_equal(far__mem_live(), 1);
    far__mem_free(block);
    failmem_end();
}

static void fails_the_nth(void **state)
{
    (void)state;
    for (size_t n = 0; n < 5; n++) {
        failmem_begin(n);
        for (size_t i = 1; i <= 4; i++) {
            void *block = far__mem_alloc(1);
            assert_int_equal(block == NULL, i == n);
            far__mem_free(block);
        }
        assert_int_equal(failmem_count(), 4);
        assert_int_equal(failmem_failed(), n != 0);
        assert_int_equal(far__mem_live(), 0);
        failmem_end();
    }
    failmem_begin_from(2);
    void *first = far__mem_alloc(1);
    assert_non_null(first);
    assert_null(far__mem_alloc(1));
    assert_null(far__mem_zalloc(1));
    far__mem_free(first);
    failmem_end();
}

static void *allocate_often(void *arg)
{
    (void)arg;
    for (int i = 0; i < 20000; i++)
        far__mem_free(far__mem_alloc(8));
    return far__mem_alloc(8);
}

static void counts_across_threads(void **state)
{
    (void)state;
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, allocate_often, NULL), 0);
    void *blocks[4];
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], &blocks[i]);
    assert_int_equal(far__mem_live(), 4);
    for (size_t i = 0; i < 4; i++)
        far__mem_free(blocks[i]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(counts_blocks),
    cmocka_unit_test(zeroed),
    cmocka_unit_test(array_overflow),
    cmocka_unit_test(resize_of_null_allocates),
    cmocka_unit_test(failed_resize_keeps_the_old),
    cmocka_unit_test(fails_the_nth),
    cmocka_unit_test(counts_across_threads),
};
FAR_TEST_MAIN(tests)
