/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/values: reading and writing values, and error replies. */
#include "support/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "proto/values.h"
#include "support/failmem.h"

static far_message *new_values(void)
{
    far_message *message;
    assert_ok(far_message_create(FAR_ENCODING_VALUES, &message));
    return message;
}

static far_message *of_bytes(const void *data, size_t size)
{
    far_message *message = new_values();
    assert_ok(far_message_append(message, data, size));
    return message;
}
#define OF(text) of_bytes("" text, sizeof text - 1)

/* Expects the whole body to be refused. */
static void refuse(const void *data, size_t size)
{
    far_message *message = of_bytes(data, size);
    const far_value *values = NULL;
    size_t count = 77;
    assert_status(FAR_EVALUE, far_message_values(message, &values, &count));
    assert_null(values);
    assert_int_equal(count, 77);
    assert_null(message->values);
    far_message_discard(message);
}
#define REFUSE(text) refuse("" text, sizeof text - 1)

static const far_value *read_one(far_message *message)
{
    const far_value *values;
    size_t count;
    assert_ok(far_message_values(message, &values, &count));
    assert_int_equal(count, 1);
    return values;
}

static void assert_text(const far_value *value, far_kind kind, const char *text)
{
    assert_int_equal(value->kind, kind);
    assert_int_equal(value->as.bytes.size, strlen(text));
    assert_memory_equal(value->as.bytes.data, text, strlen(text));
}

static void scalars_come_back(void **state)
{
    (void)state;
    far_message *message = new_values();
    assert_ok(far_message_put_nil(message));
    assert_ok(far_message_put_bool(message, true));
    assert_ok(far_message_put_bool(message, false));
    assert_ok(far_message_put_float(message, -0.1));
    assert_ok(far_message_put_float(message, INFINITY));
    assert_ok(far_message_put_string(message, "h\xc3\xa9", 3));
    assert_ok(far_message_put_string(message, NULL, 0));
    assert_ok(far_message_put_bytes(message, "\0\1", 2));
    assert_ok(far_message_put_bytes(message, NULL, 0));
    const far_value *v;
    size_t count;
    assert_ok(far_message_values(message, &v, &count));
    assert_int_equal(count, 9);
    assert_int_equal(v[0].kind, FAR_NIL);
    assert_int_equal(v[1].kind, FAR_BOOL);
    assert_true(v[1].as.boolean);
    assert_int_equal(v[2].kind, FAR_BOOL);
    assert_false(v[2].as.boolean);
    assert_int_equal(v[3].kind, FAR_FLOAT);
    assert_true(v[3].as.real == -0.1);
    assert_true(isinf(v[4].as.real));
    assert_text(&v[5], FAR_STRING, "h\xc3\xa9");
    assert_text(&v[6], FAR_STRING, "");
    assert_int_equal(v[7].kind, FAR_BYTES);
    assert_int_equal(v[7].as.bytes.size, 2);
    assert_memory_equal(v[7].as.bytes.data, "\0\1", 2);
    assert_text(&v[8], FAR_BYTES, "");
    const far_value *again;
    assert_ok(far_message_values(message, &again, &count));
    assert_ptr_equal(again, v);
    far_message_discard(message);
}

static void integers_of_every_width_come_back(void **state)
{
    (void)state;
    for (int bit = 0; bit < 63; bit++) {
        for (int64_t off = -1; off <= 1; off++) {
            int64_t n = (int64_t)(UINT64_C(1) << bit) + off;
            far_message *message = new_values();
            assert_ok(far_message_put_list(message, 3));
            assert_ok(far_message_put_int(message, n));
            assert_ok(far_message_put_int(message, -n));
            assert_ok(far_message_put_uint(message, (uint64_t)n));
            const far_value *items = read_one(message)->as.list.items;
            for (int i = 0; i < 3; i++)
                assert_int_equal(items[i].kind, FAR_INT);
            assert_true(items[0].as.integer == n);
            assert_true(items[1].as.integer == -n);
            assert_true(items[2].as.integer == n);
            far_message_discard(message);
        }
    }
    far_message *message = new_values();
    assert_ok(far_message_put_list(message, 3));
    assert_ok(far_message_put_int(message, INT64_MIN));
    assert_ok(far_message_put_uint(message, (uint64_t)INT64_MAX + 1));
    assert_ok(far_message_put_uint(message, UINT64_MAX));
    const far_value *items = read_one(message)->as.list.items;
    assert_int_equal(items[0].kind, FAR_INT);
    assert_true(items[0].as.integer == INT64_MIN);
    assert_int_equal(items[1].kind, FAR_UINT);
    assert_true(items[1].as.unsigned_integer == (uint64_t)INT64_MAX + 1);
    assert_int_equal(items[2].kind, FAR_UINT);
    assert_true(items[2].as.unsigned_integer == UINT64_MAX);
    far_message_discard(message);
}

static void strings_of_every_header_come_back(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 31, 32, 255, 256, 65535, 65536, 100000};
    static char text[100000];
    memset(text, 't', sizeof text);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        far_message *message = new_values();
        assert_ok(far_message_put_map(message, 1));
        assert_ok(far_message_put_string(message, text, sizes[i]));
        assert_ok(far_message_put_bytes(message, text, sizes[i]));
        const far_value *map = read_one(message);
        assert_int_equal(map->kind, FAR_MAP);
        assert_int_equal(map->as.list.count, 1);
        assert_int_equal(map->as.list.items[0].kind, FAR_STRING);
        assert_int_equal(map->as.list.items[0].as.bytes.size, sizes[i]);
        assert_int_equal(map->as.list.items[1].kind, FAR_BYTES);
        assert_int_equal(map->as.list.items[1].as.bytes.size, sizes[i]);
        assert_memory_equal(map->as.list.items[1].as.bytes.data, text, sizes[i]);
        far_message_discard(message);
    }
}

static void lists_of_every_header_come_back(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 15, 16, 65535, 65536};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        far_message *message = new_values();
        assert_ok(far_message_put_list(message, counts[i]));
        for (uint32_t n = 0; n < counts[i]; n++)
            assert_ok(far_message_put_int(message, n));
        assert_ok(far_message_put_map(message, counts[i]));
        for (uint32_t n = 0; n < counts[i]; n++) {
            assert_ok(far_message_put_int(message, n));
            assert_ok(far_message_put_list(message, 0));
        }
        const far_value *v;
        size_t count;
        assert_ok(far_message_values(message, &v, &count));
        assert_int_equal(count, 2);
        assert_int_equal(v[0].kind, FAR_LIST);
        assert_int_equal(v[0].as.list.count, counts[i]);
        assert_int_equal(v[1].kind, FAR_MAP);
        assert_int_equal(v[1].as.list.count, counts[i]);
        for (uint32_t n = 0; n < counts[i]; n++) {
            assert_int_equal(v[0].as.list.items[n].as.integer, n);
            assert_int_equal(v[1].as.list.items[(size_t)2 * n].as.integer, n);
            assert_int_equal(v[1].as.list.items[(size_t)2 * n + 1].kind, FAR_LIST);
        }
        far_message_discard(message);
    }
}

static void a_call_reads_as_written(void **state)
{
    (void)state;
    far_message *message = new_values();
    assert_ok(far_message_put_list(message, 2));
    assert_ok(far_message_put_int(message, 1));
    assert_ok(far_message_put_list(message, 1));
    assert_ok(far_message_put_nil(message));
    assert_ok(far_message_put_map(message, 2));
    assert_ok(far_message_put_string(message, "k", 1));
    assert_ok(far_message_put_bool(message, true));
    assert_ok(far_message_put_list(message, 1)); /* any value may be a key */
    assert_ok(far_message_put_int(message, 5));
    assert_ok(far_message_put_string(message, "v", 1));
    const far_value *v;
    size_t count;
    assert_ok(far_message_values(message, &v, &count));
    assert_int_equal(count, 2);
    assert_int_equal(v[0].as.list.count, 2);
    assert_int_equal(v[0].as.list.items[0].as.integer, 1);
    assert_int_equal(v[0].as.list.items[1].as.list.items[0].kind, FAR_NIL);
    assert_text(&v[1].as.list.items[0], FAR_STRING, "k");
    assert_true(v[1].as.list.items[1].as.boolean);
    assert_int_equal(v[1].as.list.items[2].kind, FAR_LIST);
    assert_int_equal(v[1].as.list.items[2].as.list.items[0].as.integer, 5);
    assert_text(&v[1].as.list.items[3], FAR_STRING, "v");
    far_message_discard(message);
}

static void float32_is_read(void **state)
{
    (void)state;
    far_message *message = OF("\xca\x3f\xc0\x00\x00");
    const far_value *v = read_one(message);
    assert_int_equal(v->kind, FAR_FLOAT);
    assert_true(v->as.real == 1.5);
    far_message_discard(message);
}

static void an_empty_body_has_no_values(void **state)
{
    (void)state;
    far_message *message = new_values();
    const far_value *v;
    size_t count = 1;
    assert_ok(far_message_values(message, &v, &count));
    assert_int_equal(count, 0);
    far_message_discard(message);
}

static void nesting_has_a_limit(void **state)
{
    (void)state;
    uint8_t body[FAR__VALUES_DEPTH_MAX + 2];
    memset(body, 0x91, sizeof body); /* a list of one */
    body[FAR__VALUES_DEPTH_MAX] = 0xc0;
    far_message *message = of_bytes(body, FAR__VALUES_DEPTH_MAX + 1);
    const far_value *v = read_one(message);
    for (int i = 0; i < FAR__VALUES_DEPTH_MAX; i++) {
        assert_int_equal(v->kind, FAR_LIST);
        v = v->as.list.items;
    }
    assert_int_equal(v->kind, FAR_NIL);
    far_message_discard(message);
    memset(body, 0x91, sizeof body);
    body[FAR__VALUES_DEPTH_MAX + 1] = 0xc0;
    refuse(body, sizeof body);
    static uint8_t deep[1 << 20];
    memset(deep, 0x81, sizeof deep); /* a map of one: its key is a map of one ... */
    refuse(deep, sizeof deep);
}

/* Refuses any block above `limit`. */
static size_t limit, largest, total;

static void *limited_alloc(size_t size, void *arg)
{
    (void)arg;
    largest = size > largest ? size : largest;
    total += size;
    return size > limit ? NULL : malloc(size);
}

static void *limited_resize(void *old, size_t size, void *arg)
{
    (void)arg;
    largest = size > largest ? size : largest;
    total += size;
    return size > limit ? NULL : realloc(old, size);
}

static void limited_free(void *block, void *arg)
{
    (void)arg;
    free(block);
}

static void announced_counts_take_no_memory(void **state)
{
    (void)state;
    static const far__mem_table table = {limited_alloc, limited_resize, limited_free, NULL};
    limit = 4096;
    largest = 0;
    far__mem_set_table(&table);
    REFUSE("\xdd\xff\xff\xff\xff\xc0\xc0\xc0\xc0\xc0"); /* a list of 2^32 - 1 */
    REFUSE("\xdf\xff\xff\xff\xff\xc0\xc0\xc0\xc0\xc0"); /* a map */
    REFUSE("\xdd\x80\x00\x00\x00");
    REFUSE("\xdb\xff\xff\xff\xff\x61"); /* a string */
    REFUSE("\xc6\xff\xff\xff\xff\x61"); /* bytes */
    REFUSE("\xc9\xff\xff\xff\xff\x01"); /* an extension, whose size + 1 is 0 in 32 bits */
    REFUSE("\xc9\xff\xff\xff\xfe\x01");
    REFUSE("\x92\xdd\x00\x00\x00\x05\xc0\xc0\xc0"); /* two lists that share the bytes left */
    far__mem_set_table(NULL);
    assert_in_range(largest, 1, limit);
}

static void nested_claims_share_the_body(void **state)
{
    (void)state;
    static const far__mem_table table = {limited_alloc, limited_resize, limited_free, NULL};
    static uint8_t body[4000];
    memset(body, 0xc0, sizeof body);
    /* Each list claims nearly the whole body, inside the one before. */
    for (size_t i = 0; i < FAR__VALUES_DEPTH_MAX; i++)
        memcpy(body + 3 * i, "\xdc\x0e\x00", 3);
    limit = SIZE_MAX;
    total = 0;
    far__mem_set_table(&table);
    refuse(body, sizeof body);
    far__mem_set_table(NULL);
    assert_in_range(total, 1, 3 * sizeof body * sizeof(far_value));
}

static void malformed_bodies_are_refused(void **state)
{
    (void)state;
    REFUSE("\xc1");     /* no type */
    REFUSE("\xc0\xc1"); /* garbage behind a value */
    REFUSE("\xc0\x91"); /* a list that is cut behind a value */
    REFUSE("\xa3"
           "ab"); /* strings that are cut */
    REFUSE("\xd9");
    REFUSE("\xd9\x01");
    REFUSE("\xda\x00");
    REFUSE("\xc4\x02\x00");
    REFUSE("\xcb\0\0\0\0\0\0\0");
    REFUSE("\xcd\0");
    REFUSE("\x93\x01\x02");
    REFUSE("\x81\x01");
    REFUSE("\xd6\xff\0\0\0\0"); /* the timestamp extension */
    REFUSE("\xd4\x02\x00");     /* an unknown one */
    REFUSE("\xd4\x01\x00");     /* a tensor of one byte */
    REFUSE("\xc7\x00\x01");     /* a tensor of none */
    REFUSE("\xd5");
}

static void cutting_a_body_anywhere_is_seen(void **state)
{
    (void)state;
    far_message *whole = new_values();
    assert_ok(far_message_put_list(whole, 5));
    assert_ok(far_message_put_string(whole, "text", 4));
    assert_ok(far_message_put_float(whole, 1.0));
    assert_ok(far_message_put_uint(whole, UINT64_MAX));
    assert_ok(far_message_put_map(whole, 1));
    assert_ok(far_message_put_int(whole, -1000));
    assert_ok(far_message_put_bytes(whole, "b", 1));
    assert_ok(far_message_put_nil(whole));
    for (size_t cut = 1; cut < far_message_body_size(whole); cut++)
        refuse(far_message_body(whole), cut);
    read_one(whole);
    far_message_discard(whole);
}

static void only_values_take_values(void **state)
{
    (void)state;
    far_message *message;
    assert_ok(far_message_create(FAR_ENCODING_RAW, &message));
    far_tensor tensor = {.dtype_bits = 8, .dtype_lanes = 1};
    far_buffer *buffer;
    const far_value *v;
    size_t count;
    assert_status(FAR_EINVAL, far_message_put_nil(message));
    assert_status(FAR_EINVAL, far_message_put_bool(message, true));
    assert_status(FAR_EINVAL, far_message_put_int(message, 1));
    assert_status(FAR_EINVAL, far_message_put_uint(message, 1));
    assert_status(FAR_EINVAL, far_message_put_float(message, 1));
    assert_status(FAR_EINVAL, far_message_put_string(message, "", 0));
    assert_status(FAR_EINVAL, far_message_put_bytes(message, "", 0));
    assert_status(FAR_EINVAL, far_message_put_list(message, 0));
    assert_status(FAR_EINVAL, far_message_put_map(message, 0));
    assert_ok(far_buffer_alloc(1, &buffer));
    assert_status(FAR_EINVAL, far_message_put_buffer(message, &tensor, buffer));
    assert_status(FAR_EVALUE, far_message_values(message, &v, &count));
    assert_int_equal(far_message_body_size(message), 0);
    far_message_discard(message);
}

static void sizes_past_32_bits_are_too_big(void **state)
{
    (void)state;
    far_message *message = new_values();
    assert_status(FAR_ETOOBIG, far_message_put_string(message, "", (size_t)UINT32_MAX + 1));
    assert_status(FAR_ETOOBIG, far_message_put_bytes(message, "", (size_t)UINT32_MAX + 1));
    assert_status(FAR_EINVAL, far_message_put_string(message, NULL, 1));
    assert_status(FAR_EINVAL, far_message_put_bytes(message, NULL, 1));
    assert_int_equal(far_message_body_size(message), 0);
    far_message_discard(message);
}

static void nothing_is_added_to_a_body_that_was_read(void **state)
{
    (void)state;
    far_message *message = new_values();
    assert_ok(far_message_put_string(message, "text", 4));
    const far_value *v = read_one(message);
    assert_status(FAR_EBUSY, far_message_put_nil(message));
    assert_status(FAR_EBUSY, far_message_append(message, "x", 1));
    assert_text(v, FAR_STRING, "text");
    far_message_discard(message);
}

static void a_failed_write_leaves_no_part(void **state)
{
    (void)state;
    static char text[FAR__MESSAGE_INLINE];
    failmem_begin(2);
    far_message *message = new_values();
    assert_ok(far_message_put_nil(message));
    /* The header fits into the inline body, the text does not. */
    assert_status(FAR_ENOMEM, far_message_put_string(message, text, sizeof text));
    assert_int_equal(far_message_body_size(message), 1);
    assert_ok(far_message_put_nil(message));
    const far_value *v;
    size_t count;
    assert_ok(far_message_values(message, &v, &count));
    assert_int_equal(count, 2);
    far_message_discard(message);
    failmem_end();
}

static far_status read_nested(far_message *message)
{
    const far_value *v;
    size_t count;
    return far_message_values(message, &v, &count);
}

static void reading_survives_every_failed_allocation(void **state)
{
    (void)state;
    static uint8_t body[20000];
    memset(body, 0xc0, sizeof body);
    memcpy(body + 10, "\xdc\x20\x00", 3); /* a list of 8192 */
    bool failed = true;
    for (size_t n = 3; failed; n++) { /* two make the message */
        failmem_begin(n);
        far_message *message = of_bytes(body, sizeof body);
        far_status status = read_nested(message);
        failed = failmem_failed();
        assert_status(failed ? FAR_ENOMEM : FAR_OK, status);
        assert_ok(read_nested(message)); /* a failure leaves it as it was */
        far_message_discard(message);
        failmem_end();
        assert_true(failed || n > 8);
    }
}

/* -------------------------------------------------------------------------------- error replies */

static void errors_come_back(void **state)
{
    (void)state;
    far_message *message = new_values();
    assert_ok(
        far__values_put_error(message, FAR_EREMOTE, "ValueError", "bad", "line 1\nline 2", NULL));
    far__values_error error;
    assert_ok(far__values_get_error(message, &error));
    assert_status(FAR_EREMOTE, error.status);
    assert_string_equal(error.type_name, "ValueError");
    assert_string_equal(error.text, "bad");
    assert_string_equal(error.traceback, "line 1\nline 2");
    assert_null(error.payload);
    far_message_discard(message);
    message = new_values();
    assert_ok(far__values_put_error(message, FAR_ENOMETHOD, NULL, "no", NULL, NULL));
    assert_ok(far__values_get_error(message, &error));
    assert_status(FAR_ENOMETHOD, error.status);
    assert_string_equal(error.type_name, "");
    assert_string_equal(error.text, "no");
    assert_string_equal(error.traceback, "");
    far_message_discard(message);
}

static far_message *new_payload(bool as_buffer)
{
    far_message *payload;
    far_buffer *buffer;
    assert_ok(far_message_create(FAR_ENCODING_PICKLE, &payload));
    if (as_buffer) {
        assert_ok(far_buffer_alloc(6, &buffer));
        memcpy(far_buffer_data(buffer), "pickle", 6);
        assert_ok(far_message_set_body(payload, buffer));
    } else {
        assert_ok(far_message_append(payload, "pickle", 6));
    }
    for (size_t i = 0; i < 3; i++) {
        assert_ok(far_buffer_alloc(i, &buffer));
        assert_ok(far_message_add_segment(payload, buffer, NULL));
    }
    return payload;
}

static void errors_carry_a_payload(void **state)
{
    (void)state;
    for (int as_buffer = 0; as_buffer < 2; as_buffer++) {
        far_message *message = new_values();
        assert_ok(far__values_put_error(message, FAR_EREMOTE, "E", "", "", new_payload(as_buffer)));
        assert_int_equal(far_message_segment_count(message), 4);
        far__values_error error;
        assert_ok(far__values_get_error(message, &error));
        far_message_discard(error.payload);
        assert_ok(far__values_get_error(message, &error)); /* as often as one likes */
        far_message *payload = error.payload;
        far_message_discard(message); /* the payload stands by itself */
        assert_int_equal(far_message_encoding(payload), FAR_ENCODING_PICKLE);
        assert_int_equal(far_message_body_size(payload), 6);
        assert_memory_equal(far_message_body(payload), "pickle", 6);
        assert_int_equal(far_message_segment_count(payload), 3);
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(far_buffer_size(far_message_segment(payload, i)), i);
        far_message_discard(payload);
    }
}

static void malformed_errors_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        size_t size;
        bool segment;
    } cases[] = {
#define CASE(text, segment) {text, sizeof text - 1, segment}
        CASE("", false),
        CASE("\xc0", false),
        CASE("\x95\x11\xa0\xa0\xa0", false),         /* cut */
        CASE("\x94\x11\xa0\xa0\xa0", false),         /* too few */
        CASE("\x96\x11\xa0\xa0\xa0\xc0\xc0", false), /* too many */
        CASE("\x95\x11\xa0\xa0\xa0\xc0\xc0", false), /* a value behind it */
        CASE("\x95\x00\xa0\xa0\xa0\xc0", false),     /* success is no error */
        CASE("\x95\xff\xa0\xa0\xa0\xc0", false),
        CASE("\x95\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa0\xa0\xa0\xc0", false),
        CASE("\x95\xc0\xa0\xa0\xa0\xc0", false),
        CASE("\x95\x11\xc0\xa0\xa0\xc0", false),
        CASE("\x95\x11\xa0\x01\xa0\xc0", false),
        CASE("\x95\x11\xa0\xa0\xc4\x00\xc0", false),
        CASE("\x95\x11\xa0\xa0\xa0\xc0", true),  /* a segment of nobody */
        CASE("\x95\x11\xa0\xa0\xa0\x02", false), /* a payload without its body */
        CASE("\x95\x11\xa0\xa0\xa0\x03", true),  /* an unknown encoding */
        CASE("\x95\x11\xa0\xa0\xa0\xff", true),
        CASE("\x95\x11\xa0\xa0\xa0\xa0", true),
#undef CASE
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        far_message *message = of_bytes(cases[i].body, cases[i].size);
        far_buffer *buffer;
        assert_ok(far_buffer_alloc(1, &buffer));
        if (cases[i].segment)
            assert_ok(far_message_add_segment(message, far_buffer_hold(buffer), NULL));
        far_buffer_release(buffer);
        far__values_error error;
        assert_status(FAR_EPROTO, far__values_get_error(message, &error));
        far_message_discard(message);
    }
    far_message *raw;
    far__values_error error;
    assert_ok(far_message_create(FAR_ENCODING_RAW, &raw));
    assert_status(FAR_EPROTO, far__values_get_error(raw, &error));
    far_message_discard(raw);
}

static void a_status_of_a_newer_version_is_the_handlers(void **state)
{
    (void)state;
    far_message *message = OF("\x95\xcd\x03\xe8\xa0\xa3new\xa0\xc0");
    far__values_error error;
    assert_ok(far__values_get_error(message, &error));
    assert_status(FAR_EREMOTE, error.status);
    assert_string_equal(error.text, "new");
    far_message_discard(message);
}

static void errors_survive_every_failed_allocation(void **state)
{
    (void)state;
    bool failed = true;
    for (size_t n = 1; failed; n++) {
        failmem_begin(n);
        far_message *message = NULL, *payload = NULL;
        far__values_error error = {0};
        far_status status = far_message_create(FAR_ENCODING_VALUES, &message);
        if (status == FAR_OK)
            status = far_message_create(FAR_ENCODING_RAW, &payload);
        if (status == FAR_OK) {
            far_buffer *buffer;
            status = far_buffer_alloc(1, &buffer);
            if (status == FAR_OK)
                status = far_message_add_segment(payload, buffer, NULL);
            if (status != FAR_OK)
                far_message_discard(payload);
        }
        if (status == FAR_OK)
            status = far__values_put_error(message, FAR_EREMOTE, "T", "x", "tb", payload);
        if (status == FAR_OK)
            status = far__values_get_error(message, &error);
        failed = failmem_failed();
        assert_status(failed ? FAR_ENOMEM : FAR_OK, status);
        if (!failed)
            far_message_discard(error.payload);
        far_message_discard(message);
        failmem_end();
        assert_true(failed || n > 8);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(scalars_come_back),
    cmocka_unit_test(integers_of_every_width_come_back),
    cmocka_unit_test(strings_of_every_header_come_back),
    cmocka_unit_test(lists_of_every_header_come_back),
    cmocka_unit_test(a_call_reads_as_written),
    cmocka_unit_test(float32_is_read),
    cmocka_unit_test(an_empty_body_has_no_values),
    cmocka_unit_test(nesting_has_a_limit),
    cmocka_unit_test(announced_counts_take_no_memory),
    cmocka_unit_test(nested_claims_share_the_body),
    cmocka_unit_test(malformed_bodies_are_refused),
    cmocka_unit_test(cutting_a_body_anywhere_is_seen),
    cmocka_unit_test(only_values_take_values),
    cmocka_unit_test(sizes_past_32_bits_are_too_big),
    cmocka_unit_test(nothing_is_added_to_a_body_that_was_read),
    cmocka_unit_test(a_failed_write_leaves_no_part),
    cmocka_unit_test(reading_survives_every_failed_allocation),
    cmocka_unit_test(errors_come_back),
    cmocka_unit_test(errors_carry_a_payload),
    cmocka_unit_test(malformed_errors_are_refused),
    cmocka_unit_test(a_status_of_a_newer_version_is_the_handlers),
    cmocka_unit_test(errors_survive_every_failed_allocation),
};
FAR_TEST_MAIN(tests)
