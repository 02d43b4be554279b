/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of base/buf. */
#include "base/buf.h"

#include <pthread.h>
#include <string.h>

#include "support/failmem.h"
#include "support/test.h"

typedef struct freed {
    int times;
    pthread_t thread;
    size_t live;
} freed;

static void note_free(void *arg)
{
    freed *f = arg;
    f->times++;
    f->thread = pthread_self();
    f->live = far_memory_live();
}

static void wrap_frees_once(void **state)
{
    (void)state;
    char bytes[8];
    for (unsigned flags = 0; flags < 2; flags++) {
        freed f = {.live = 99};
        far_buffer *buffer;
        assert_ok(far_buffer_wrap(bytes, sizeof bytes, note_free, &f, flags, &buffer));
        assert_ptr_equal(far_buffer_data(buffer), bytes);
        assert_int_equal(far_buffer_size(buffer), sizeof bytes);
        assert_ptr_equal(far_buffer_hold(buffer), buffer);
        far_buffer_release(buffer);
        assert_int_equal(f.times, 0);
        far_buffer_release(buffer);
        assert_int_equal(f.times, 1);
        assert_true(pthread_equal(f.thread, pthread_self()));
        assert_int_equal(f.live, 0);
    }
    far_buffer_release(NULL);
}

static void wrap_refuses(void **state)
{
    (void)state;
    char byte;
    freed f = {0};
    far_buffer *buffer = NULL;
    assert_status(FAR_EINVAL, far_buffer_wrap(NULL, 1, note_free, &f, 0, &buffer));
    assert_status(FAR_EINVAL, far_buffer_wrap(&byte, 1, note_free, &f, 2, &buffer));
    assert_status(FAR_EINVAL, far_buffer_wrap(&byte, 1, note_free, &f, 0, NULL));
    failmem_begin(1);
    assert_status(FAR_ENOMEM, far_buffer_wrap(&byte, 1, note_free, &f, 0, &buffer));
    assert_status(FAR_OK, far_buffer_wrap(NULL, 0, NULL, NULL, 0, &buffer));
    far_buffer_release(buffer);
    failmem_end();
    assert_int_equal(f.times, 0);
}

/* The loop thread gives up the last reference to memory of the user's: it must be handed on. */
static void unref_tells_where_to_free(void **state)
{
    (void)state;
    char byte;
    freed f = {0};
    far_buffer *buffer;
    assert_ok(far_buffer_wrap(&byte, 1, note_free, &f, 0, &buffer));
    far_buffer_hold(buffer);
    assert_false(far__buffer_unref(buffer));
    assert_true(far__buffer_unref(buffer));
    assert_int_equal(f.times, 0);
    far__buffer_free(buffer);
    assert_int_equal(f.times, 1);

    assert_ok(far_buffer_wrap(&byte, 1, note_free, &f, FAR_BUFFER_FREE_ANYWHERE, &buffer));
    assert_false(far__buffer_unref(buffer));
    assert_int_equal(f.times, 2);

    assert_ok(far_buffer_wrap(&byte, 1, NULL, NULL, 0, &buffer));
    assert_false(far__buffer_unref(buffer));
}

static void alloc_is_aligned(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 63, 64, 65, 4096, 100001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        far_buffer *buffer;
        assert_ok(far_buffer_alloc(sizes[i], &buffer));
        assert_int_equal((uintptr_t)far_buffer_data(buffer) % 64, 0);
        assert_int_equal(far_buffer_size(buffer), sizes[i]);
        memset(far_buffer_data(buffer), 0xaa, sizes[i]);
        far_buffer_release(buffer);
    }
    far_buffer *none = NULL;
    assert_status(FAR_ENOMEM, far_buffer_alloc(SIZE_MAX, &none));
    assert_status(FAR_EINVAL, far_buffer_alloc(1, NULL));
    failmem_begin(1);
    assert_status(FAR_ENOMEM, far_buffer_alloc(1, &none));
    failmem_end();
    assert_null(none);
}

static void *hold_and_release(void *arg)
{
    for (int i = 0; i < 20000; i++)
        far_buffer_release(far_buffer_hold(arg));
    far_buffer_release(arg);
    return NULL;
}

static void counted_across_threads(void **state)
{
    (void)state;
    char byte;
    freed f = {0};
    far_buffer *buffer;
    assert_ok(far_buffer_wrap(&byte, 1, note_free, &f, 0, &buffer));
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++) {
        far_buffer_hold(buffer);
        assert_int_equal(pthread_create(&threads[i], NULL, hold_and_release, buffer), 0);
    }
    far_buffer_release(buffer);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(f.times, 1);
}

static void bytes_grow(void **state)
{
    (void)state;
    far__bytes b = {0};
    assert_ok(far__bytes_append(&b, NULL, 0));
    assert_int_equal(b.size, 0);
    for (unsigned i = 0; i < 5000; i++) {
        uint8_t byte = (uint8_t)(i % 251);
        assert_ok(far__bytes_append(&b, &byte, 1));
    }
    assert_int_equal(b.size, 5000);
    for (unsigned i = 0; i < 5000; i++)
        assert_int_equal(b.data[i], i % 251);
    assert_ok(far__bytes_reserve(&b, 100000));
    assert_true(b.room - b.size >= 100000);
    assert_int_equal(b.size, 5000);
    far__bytes_fini(&b);
    assert_null(b.data);
    assert_int_equal(b.size, 0);
}

static void bytes_without_memory(void **state)
{
    (void)state;
    failmem_begin(2);
    far__bytes b = {0};
    char big[200] = {0};
    assert_ok(far__bytes_append(&b, "abc", 3));
    assert_status(FAR_ENOMEM, far__bytes_append(&b, big, sizeof big));
    assert_int_equal(b.size, 3);
    assert_memory_equal(b.data, "abc", 3);
    assert_status(FAR_ENOMEM, far__bytes_reserve(&b, SIZE_MAX));
    assert_ok(far__bytes_append(&b, big, sizeof big));
    far__bytes_fini(&b);
    failmem_end();
}

static void writes_little_endian(void **state)
{
    (void)state;
    uint8_t out[20];
    memset(out, 0xee, sizeof out);
    far__writer w = far__writer_over(out, sizeof out);
    far__write_u8(&w, 0x01);
    far__write_u16(&w, 0x0302);
    far__write_u32(&w, 0x07060504);
    far__write_u64(&w, 0x0f0e0d0c0b0a0908);
    far__write_bytes(&w, "xy", 2);
    far__write_zeros(&w, 2);
    far__write_bytes(&w, NULL, 0);
    assert_false(w.failed);
    assert_int_equal(w.used, 19);
    for (unsigned i = 0; i < 15; i++)
        assert_int_equal(out[i], i + 1);
    const uint8_t tail[] = {'x', 'y', 0, 0, 0xee};
    assert_memory_equal(out + 15, tail, 5);
}

static void writer_stops_at_the_end(void **state)
{
    (void)state;
    uint8_t out[4] = {9, 9, 9, 9};
    far__writer w = far__writer_over(out, 3);
    far__write_u16(&w, 1);
    far__write_u32(&w, 0);
    assert_true(w.failed);
    far__write_u8(&w, 7);
    far__write_zeros(&w, 1);
    far__write_bytes(&w, "z", 1);
    assert_true(w.failed);
    const uint8_t wanted[] = {1, 0, 9, 9};
    assert_memory_equal(out, wanted, 4);

    w = far__writer_over(out, 4);
    far__write_zeros(&w, SIZE_MAX);
    assert_true(w.failed);
}

static void reads_back(void **state)
{
    (void)state;
    uint8_t in[17];
    for (unsigned i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)(0xf0 + i);
    far__reader r = far__reader_over(in, sizeof in);
    assert_int_equal(far__read_u8(&r), 0xf0);
    assert_int_equal(far__read_u16(&r), 0xf2f1);
    assert_int_equal(far__read_u32(&r), 0xf6f5f4f3);
    assert_true(far__read_u64(&r) == 0xfefdfcfbfaf9f8f7);
    assert_int_equal(far__reader_left(&r), 2);
    assert_ptr_equal(far__read_bytes(&r, 2), in + 15);
    assert_int_equal(far__reader_left(&r), 0);
    assert_non_null(far__read_bytes(&r, 0));
    assert_false(r.failed);
}

static void reader_stops_at_the_end(void **state)
{
    (void)state;
    const uint8_t in[3] = {1, 2, 3};
    far__reader r = far__reader_over(in, sizeof in);
    assert_int_equal(far__read_u32(&r), 0);
    assert_true(r.failed);
    assert_int_equal(far__read_u8(&r), 0);
    assert_null(far__read_bytes(&r, 0));
    assert_int_equal(far__reader_left(&r), 0);

    r = far__reader_over(in, sizeof in);
    assert_null(far__read_bytes(&r, SIZE_MAX));
    r = far__reader_over(NULL, 0);
    assert_non_null(far__read_bytes(&r, 0));
    assert_int_equal(far__read_u64(&r), 0);
    assert_true(r.failed);
}

static void stores_in_place(void **state)
{
    (void)state;
    uint8_t at[10] = {0};
    far__store_u64(at + 1, 0x8877665544332211);
    const uint8_t wanted[] = {0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0};
    assert_memory_equal(at, wanted, sizeof wanted);
    assert_true(far__load_u64(at + 1) == 0x8877665544332211);
    assert_int_equal(far__load_u32(at + 1), 0x44332211);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(wrap_frees_once),           cmocka_unit_test(wrap_refuses),
    cmocka_unit_test(unref_tells_where_to_free), cmocka_unit_test(alloc_is_aligned),
    cmocka_unit_test(counted_across_threads),    cmocka_unit_test(bytes_grow),
    cmocka_unit_test(bytes_without_memory),      cmocka_unit_test(writes_little_endian),
    cmocka_unit_test(writer_stops_at_the_end),   cmocka_unit_test(reads_back),
    cmocka_unit_test(reader_stops_at_the_end),   cmocka_unit_test(stores_in_place),
};
FAR_TEST_MAIN(tests)
