/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/message. */
#include "support/test.h"

#include <string.h>

#include "proto/message.h"
#include "support/failmem.h"

static void count_free(void *arg)
{
    ++*(int *)arg;
}

static far_buffer *counted(int *freed, size_t size, unsigned flags)
{
    static char bytes[64];
    far_buffer *buffer;
    assert_ok(far_buffer_wrap(bytes, size, count_free, freed, flags, &buffer));
    return buffer;
}

static void creates_only_known_encodings(void **state)
{
    (void)state;
    far_message *message = NULL;
    assert_status(FAR_EINVAL, far_message_create((far_encoding)3, &message));
    assert_status(FAR_EINVAL, far_message_create(FAR_ENCODING_RAW, NULL));
    assert_null(message);
    for (int encoding = FAR_ENCODING_RAW; encoding <= FAR_ENCODING_PICKLE; encoding++) {
        assert_ok(far_message_create((far_encoding)encoding, &message));
        assert_int_equal(far_message_encoding(message), encoding);
        assert_int_equal(far_message_body_size(message), 0);
        assert_non_null(far_message_body(message));
        assert_int_equal(far_message_segment_count(message), 0);
        assert_null(far_message_segment(message, 0));
        far_message_discard(message);
    }
    far_message_discard(NULL);
}

static void body_grows_past_the_inline_part(void **state)
{
    (void)state;
    far_message *message;
    assert_ok(far_message_create(FAR_ENCODING_RAW, &message));
    size_t live = far_memory_live();
    enum { COUNT = 5000 };
    for (int i = 0; i < COUNT; i++) {
        uint8_t byte = (uint8_t)(i * 7);
        assert_ok(far_message_append(message, &byte, 1));
        if (i + 1 == FAR__MESSAGE_INLINE)
            assert_int_equal(far_memory_live(), live);
    }
    assert_int_equal(far_message_body_size(message), COUNT);
    assert_int_equal(far__message_size(message), COUNT);
    const uint8_t *body = far_message_body(message);
    for (int i = 0; i < COUNT; i++)
        assert_int_equal(body[i], (uint8_t)(i * 7));
    assert_ok(far_message_append(message, NULL, 0));
    assert_status(FAR_EINVAL, far_message_append(message, NULL, 1));
    assert_status(FAR_ENOMEM, far_message_append(message, body, SIZE_MAX));
    assert_int_equal(far_message_body_size(message), COUNT);
    far_message_discard(message);
}

static void a_buffer_becomes_the_body(void **state)
{
    (void)state;
    int freed = 0;
    far_message *message;
    assert_ok(far_message_create(FAR_ENCODING_PICKLE, &message));
    far_buffer *buffer = counted(&freed, 10, 0);
    assert_ok(far_message_set_body(message, buffer));
    assert_ptr_equal(far_message_body(message), far_buffer_data(buffer));
    assert_int_equal(far_message_body_size(message), 10);
    assert_status(FAR_EBUSY, far_message_append(message, "x", 1));
    assert_status(FAR_EINVAL, far_message_set_body(message, NULL));
    int second = 0;
    assert_status(FAR_EBUSY, far_message_set_body(message, counted(&second, 1, 0)));
    assert_int_equal(second, 1);
    assert_int_equal(freed, 0);
    far_message_discard(message);
    assert_int_equal(freed, 1);
}

static void a_body_that_was_begun_is_not_replaced(void **state)
{
    (void)state;
    int freed = 0;
    far_message *message;
    assert_ok(far_message_create(FAR_ENCODING_RAW, &message));
    assert_ok(far_message_append(message, "abc", 3));
    assert_status(FAR_EBUSY, far_message_set_body(message, counted(&freed, 4, 0)));
    assert_int_equal(freed, 1);
    assert_memory_equal(far_message_body(message), "abc", 3);
    far_message_discard(message);
}

static void segments_keep_their_order(void **state)
{
    (void)state;
    enum { COUNT = 100 };
    int freed = 0;
    far_message *message;
    assert_ok(far_message_create(FAR_ENCODING_RAW, &message));
    assert_ok(far_message_append(message, "abc", 3));
    for (size_t i = 0; i < COUNT; i++) {
        size_t index = SIZE_MAX;
        assert_ok(
            far_message_add_segment(message, counted(&freed, i % 60, 0), i % 2 ? &index : NULL));
        if (i % 2)
            assert_int_equal(index, i);
    }
    assert_int_equal(far_message_segment_count(message), COUNT);
    size_t size = 3;
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(far_buffer_size(far_message_segment(message, i)), i % 60);
        size += i % 60;
    }
    assert_null(far_message_segment(message, COUNT));
    assert_int_equal(far__message_size(message), size);
    assert_status(FAR_EINVAL, far_message_add_segment(message, NULL, NULL));
    far_message_discard(message);
    assert_int_equal(freed, COUNT);
}

static void destroy_leaves_the_users_memory_to_its_thread(void **state)
{
    (void)state;
    int here = 0, anywhere = 0, body = 0, held = 0;
    far_message *message;
    assert_ok(far_message_create(FAR_ENCODING_RAW, &message));
    assert_ok(far_message_set_body(message, counted(&body, 1, 0)));
    assert_ok(far_message_add_segment(message, counted(&here, 1, 0), NULL));
    assert_ok(
        far_message_add_segment(message, counted(&anywhere, 1, FAR_BUFFER_FREE_ANYWHERE), NULL));
    far_buffer *kept = counted(&held, 1, 0);
    assert_ok(far_message_add_segment(message, far_buffer_hold(kept), NULL));
    far_buffer *orphans = NULL;
    far__message_destroy(message, &orphans);
    assert_int_equal(anywhere, 1);
    assert_int_equal(here, 0);
    assert_int_equal(body, 0);
    assert_non_null(orphans);
    far__buffers_free(orphans);
    assert_int_equal(here, 1);
    assert_int_equal(body, 1);
    assert_int_equal(held, 0);
    far__buffers_free(NULL);
    orphans = NULL;
    far__buffer_drop(kept, &orphans);
    assert_int_equal(held, 0);
    assert_ptr_equal(orphans, kept);
    far__buffers_free(orphans);
    assert_int_equal(held, 1);
    far__buffer_drop(NULL, &orphans);
    far__message_destroy(NULL, &orphans);
}

static far_status fill(int *freed)
{
    static const char text[FAR__MESSAGE_INLINE + 1] = "t";
    static char bytes[1];
    far_message *message;
    far_status status = far_message_create(FAR_ENCODING_RAW, &message);
    if (status != FAR_OK)
        return status;
    status = far_message_append(message, text, sizeof text);
    for (int i = 0; status == FAR_OK && i < 10; i++) {
        far_buffer *buffer;
        status = far_buffer_wrap(bytes, 1, count_free, freed, 0, &buffer);
        if (status != FAR_OK)
            break;
        --*freed; /* its release makes up for it */
        status = far_message_add_segment(message, buffer, NULL);
    }
    far_message_discard(message);
    return status;
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    bool failed = true;
    for (size_t n = 1; failed; n++) {
        int balance = 0;
        failmem_begin(n);
        far_status status = fill(&balance);
        failed = failmem_failed();
        failmem_end();
        assert_status(failed ? FAR_ENOMEM : FAR_OK, status);
        assert_int_equal(balance, 0);
        assert_true(failed || n > 10);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(creates_only_known_encodings),
    cmocka_unit_test(body_grows_past_the_inline_part),
    cmocka_unit_test(a_buffer_becomes_the_body),
    cmocka_unit_test(a_body_that_was_begun_is_not_replaced),
    cmocka_unit_test(segments_keep_their_order),
    cmocka_unit_test(destroy_leaves_the_users_memory_to_its_thread),
    cmocka_unit_test(survives_every_failed_allocation),
};
FAR_TEST_MAIN(tests)
