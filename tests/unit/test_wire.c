/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/wire. */
#include "support/test.h"

#include <string.h>

#include "proto/wire.h"

enum { ROOM = FAR__WIRE_HEADER_MAX + 64 };

static size_t encode(const far__wire_header *header, uint8_t bytes[ROOM])
{
    memset(bytes, 0xee, ROOM);
    far__writer w = far__writer_over(bytes, ROOM);
    far__wire_encode(header, &w);
    assert_false(w.failed);
    assert_int_equal(w.used, far__wire_size(header));
    return w.used;
}

static far_status decode(const void *bytes, size_t size, far__wire_header *out)
{
    const char *why = "not set";
    far_status status = far__wire_decode(bytes, size, out, &why);
    assert_int_equal(status != FAR_OK, why != NULL);
    return status;
}

static void assert_same(const far__wire_header *a, const far__wire_header *b)
{
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->encoding, b->encoding);
    assert_int_equal(a->naming, b->naming);
    assert_int_equal(a->call_id, b->call_id);
    assert_int_equal(a->remaining, b->remaining);
    assert_int_equal(a->short_id, b->short_id);
    assert_int_equal(a->sequence, b->sequence);
    assert_int_equal(a->name_size, b->name_size);
    if (a->name_size)
        assert_memory_equal(a->name, b->name, a->name_size);
    assert_int_equal(a->ref_count, b->ref_count);
    assert_int_equal(a->ref_number, b->ref_number);
    if (a->ref_count)
        assert_memory_equal(a->refs, b->refs, (size_t)a->ref_count * FAR__WIRE_REF_SIZE);
    assert_int_equal(a->credit_bytes, b->credit_bytes);
    assert_int_equal(a->credit_calls, b->credit_calls);
    assert_int_equal(a->ack_mark, b->ack_mark);
    assert_int_equal(a->ack_count, b->ack_count);
    for (size_t i = 0; i < a->ack_count; i++) {
        assert_int_equal(a->ack[i].first, b->ack[i].first);
        assert_int_equal(a->ack[i].last, b->ack[i].last);
    }
}

/* Two references: one that is passed on, and a creation. */
static const uint8_t two_refs[2 * FAR__WIRE_REF_SIZE] = {
    /* kind, owner, maker, counter, fork */
    0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0x11, 0x12, 0, 0, 0, 0, 0, 0x18, 3, 0, 0, 0, /**/
    0x21, 0, 0, 0, 0, 0, 0, 0x28, 0x31, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x42, 0, 0, 0, 0, 0, 0,
    /* the second */
    1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, /**/
    1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0};

/* One header of each form. */
static const far__wire_header samples[] = {
    {.type = FAR__WIRE_REQUEST, .call_id = 7, .name = "a", .name_size = 1},
    {.type = FAR__WIRE_REQUEST,
     .flags = FAR__WIRE_HAS_REMAINING | FAR__WIRE_RETRY | FAR__WIRE_RESERVED_METHOD,
     .encoding = FAR_ENCODING_VALUES,
     .call_id = UINT64_MAX,
     .remaining = INT64_MAX,
     .sequence = 1,
     .name = "far.join",
     .name_size = 8},
    {.type = FAR__WIRE_REQUEST,
     .flags = FAR__WIRE_HAS_REMAINING,
     .encoding = FAR_ENCODING_PICKLE,
     .naming = FAR__WIRE_BY_NAME_AND_ID,
     .call_id = 1,
     .remaining = 1,
     .short_id = UINT32_MAX,
     .name = "py:module:Class.method",
     .name_size = 22},
    {.type = FAR__WIRE_REQUEST,
     .flags = FAR__WIRE_RETRY,
     .naming = FAR__WIRE_BY_ID,
     .call_id = 1,
     .sequence = UINT64_MAX,
     .short_id = 3},
    {.type = FAR__WIRE_REPLY, .encoding = FAR_ENCODING_PICKLE, .call_id = 0x0102030405060708},
    {.type = FAR__WIRE_REPLY, .flags = FAR__WIRE_RESERVED_METHOD, .call_id = 9},
    {.type = FAR__WIRE_ERROR, .encoding = FAR_ENCODING_VALUES, .call_id = 2},
    {.type = FAR__WIRE_CANCEL, .call_id = 3},
    {.type = FAR__WIRE_CREDIT, .credit_bytes = UINT64_MAX, .credit_calls = 5},
    {.type = FAR__WIRE_PING, .call_id = 0},
    {.type = FAR__WIRE_PONG, .call_id = 11},
    {.type = FAR__WIRE_ACK, .ack_mark = 1},
    {.type = FAR__WIRE_ACK,
     .ack_mark = 10,
     .ack_count = 3,
     .ack = {{11, 11}, {13, 20}, {22, UINT64_MAX}}},
    {.type = FAR__WIRE_DIAL_ME},
    {.type = FAR__WIRE_RESEND, .call_id = 4},
    {.type = FAR__WIRE_REQUEST,
     .call_id = 5,
     .name = "f",
     .name_size = 1,
     .ref_count = 2,
     .ref_number = 5,
     .refs = two_refs},
    {.type = FAR__WIRE_REPLY,
     .call_id = 5,
     .ref_count = 1,
     .ref_number = UINT64_MAX,
     .refs = two_refs},
};
enum { SAMPLES = sizeof samples / sizeof *samples };

static void every_form_comes_back_as_it_was(void **state)
{
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++) {
        uint8_t bytes[ROOM];
        size_t size = encode(&samples[i], bytes);
        far__wire_header out;
        assert_ok(decode(bytes, size, &out));
        assert_same(&samples[i], &out);
    }
}

static void bytes_stand_where_the_document_says(void **state)
{
    (void)state;
    far__wire_header request = {.type = FAR__WIRE_REQUEST,
                                .flags = FAR__WIRE_HAS_REMAINING | FAR__WIRE_RETRY,
                                .encoding = FAR_ENCODING_VALUES,
                                .naming = FAR__WIRE_BY_NAME_AND_ID,
                                .call_id = 0x1122334455667788,
                                .remaining = 0x0102030405060708,
                                .sequence = 0x21,
                                .short_id = 0x31,
                                .name = "add",
                                .name_size = 3};
    static const uint8_t expected[] = {
        1,    6,    1,    1,    3,    0,    0,    0,    /* type, flags, encoding, naming, sizes */
        0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, /* call id */
        8,    7,    6,    5,    4,    3,    2,    1,    /* remaining */
        0x21, 0,    0,    0,    0,    0,    0,    0,    /* sequence */
        0x31, 0,    0,    0,                            /* short id */
        'a',  'd',  'd'};
    uint8_t bytes[ROOM];
    assert_int_equal(encode(&request, bytes), sizeof expected);
    assert_memory_equal(bytes, expected, sizeof expected);
    assert_int_equal(far__load_u64(bytes + FAR__WIRE_REMAINING_AT), request.remaining);
}

static void sizes_are_exact(void **state)
{
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++) {
        uint8_t bytes[ROOM];
        far__wire_header out;
        size_t size = encode(&samples[i], bytes);
        for (size_t cut = 0; cut < size; cut++) {
            /* On the heap, so that a sanitizer sees a read behind the end. */
            uint8_t *part = test_malloc(cut + 1);
            memcpy(part + 1, bytes, cut);
            assert_status(FAR_EPROTO, decode(part + 1, cut, &out));
            test_free(part);
        }
        bytes[size] = 0;
        assert_status(FAR_EPROTO, decode(bytes, size + 1, &out));
    }
    far__writer w = far__writer_over((uint8_t[8]){0}, 8);
    far__wire_encode(&samples[0], &w);
    assert_true(w.failed);
}

static void a_header_over_the_limit_is_refused(void **state)
{
    (void)state;
    static uint8_t bytes[FAR__WIRE_HEADER_MAX + 1];
    far__wire_header out;
    const char *why = NULL;
    bytes[0] = FAR__WIRE_DIAL_ME;
    assert_status(FAR_EPROTO, far__wire_decode(bytes, sizeof bytes, &out, &why));
    assert_string_equal(why, "header: too long");
}

/* Changes one byte of sample `i` and expects a refusal whose text begins with `field`. */
static void refuses(size_t i, size_t at, uint8_t value, const char *field)
{
    uint8_t bytes[ROOM];
    size_t size = encode(&samples[i], bytes);
    assert_true(at < size);
    assert_int_not_equal(bytes[at], value);
    bytes[at] = value;
    far__wire_header out;
    const char *why = "nothing";
    assert_status(FAR_EPROTO, far__wire_decode(bytes, size, &out, &why));
    if (strncmp(why, field, strlen(field)) != 0)
        fail_msg("sample %zu, byte %zu = %u: \"%s\" instead of \"%s\"", i, at, value, why, field);
}

static size_t sample_of(uint8_t type)
{
    for (size_t i = 0; i < SAMPLES; i++) {
        if (samples[i].type == type)
            return i;
    }
    fail_msg("no sample of type %u", type);
    return 0;
}

static void every_field_is_checked(void **state)
{
    (void)state;
    refuses(0, 0, 0, "type");
    refuses(0, 0, 11, "type");
    refuses(0, 0, 255, "type");
    for (int type = FAR__WIRE_REQUEST; type <= FAR__WIRE_RESEND; type++) {
        size_t i = sample_of((uint8_t)type);
        refuses(i, 1, 8, "flags");
        refuses(i, 1, 128, "flags");
        if (type != FAR__WIRE_REQUEST) {
            refuses(i, 1, FAR__WIRE_RETRY, "flags");
            refuses(i, 1, FAR__WIRE_HAS_REMAINING, "flags");
            refuses(i, 3, 1, "naming");
            if (type != FAR__WIRE_ACK)
                refuses(i, 4, 1, "count");
        }
        if (type > FAR__WIRE_ERROR) {
            refuses(i, 1, FAR__WIRE_RESERVED_METHOD, "flags");
            refuses(i, 2, 1, "encoding");
        }
        if (type > FAR__WIRE_REPLY)
            refuses(i, 6, 1, "references");
    }
    refuses(sample_of(FAR__WIRE_REQUEST), 2, 3, "encoding");
    refuses(sample_of(FAR__WIRE_REPLY), 2, 3, "encoding");
    refuses(sample_of(FAR__WIRE_ERROR), 2, FAR_ENCODING_RAW, "encoding");
    refuses(sample_of(FAR__WIRE_ERROR), 2, FAR_ENCODING_PICKLE, "encoding");
}

static void requests_are_consistent(void **state)
{
    (void)state;
    refuses(0, 3, 3, "naming");
    refuses(0, 1, FAR__WIRE_HAS_REMAINING, "remaining");
    refuses(0, 16, 1, "remaining");
    refuses(0, 1, FAR__WIRE_RESERVED_METHOD, "flags");
    refuses(0, 4, 0, "method name");
    refuses(0, 24, 0, "method name");
    refuses(1, 23, 0xff, "remaining"); /* negative */
    refuses(1, 24, 0, "sequence");
    refuses(1, 32, 'F', "flags"); /* "Far.join" is not reserved */
    refuses(1, 3, FAR__WIRE_BY_ID, "naming");
    refuses(3, 4, 1, "method name");
}

static void calls_have_an_id(void **state)
{
    (void)state;
    for (size_t i = 0; i < SAMPLES; i++) {
        far__wire_header header = samples[i], out;
        uint8_t bytes[ROOM];
        header.call_id = 0;
        size_t size = encode(&header, bytes);
        bool needs = header.type <= FAR__WIRE_CANCEL || header.type == FAR__WIRE_RESEND;
        assert_status(needs ? FAR_EPROTO : FAR_OK, decode(bytes, size, &out));
    }
}

static void names_have_a_limit(void **state)
{
    (void)state;
    char name[FAR__WIRE_NAME_MAX + 1];
    memset(name, 'n', sizeof name);
    far__wire_header header = {
        .type = FAR__WIRE_REQUEST, .call_id = 1, .name = name, .name_size = FAR__WIRE_NAME_MAX};
    far__wire_header out;
    uint8_t bytes[ROOM];
    size_t size = encode(&header, bytes);
    assert_ok(decode(bytes, size, &out));
    assert_same(&header, &out);
    bytes[size] = 'n';
    bytes[4] = (FAR__WIRE_NAME_MAX + 1) & 255;
    assert_status(FAR_EPROTO, decode(bytes, size + 1, &out));
}

/* What is wrong with this header, followed by `trail` bytes; "": nothing. */
static const char *why_of(const far__wire_header *header, size_t trail)
{
    static uint8_t bytes[ROOM];
    far__wire_header out;
    const char *why = NULL;
    size_t size = encode(header, bytes);
    far_status status = far__wire_decode(bytes, size + trail, &out, &why);
    assert_status(why ? FAR_EPROTO : FAR_OK, status);
    return why ? why : "";
}

static void references_come_back_one_by_one(void **state)
{
    (void)state;
    far__wire_header header = {.type = FAR__WIRE_REQUEST,
                               .call_id = 1,
                               .name = "f",
                               .name_size = 1,
                               .ref_count = 2,
                               .ref_number = 5,
                               .refs = two_refs};
    static uint8_t bytes[ROOM];
    far__wire_header out;
    assert_ok(decode(bytes, encode(&header, bytes), &out));
    far__wire_ref first = far__wire_ref_at(&out, 0), second = far__wire_ref_at(&out, 1);
    assert_int_equal(first.kind, FAR__WIRE_REF_PASSED);
    assert_int_equal(first.owner.id, 2);
    assert_int_equal(first.owner.incarnation, 0x1800000000001211);
    assert_int_equal(first.id.maker.id, 3);
    assert_int_equal(first.id.maker.incarnation, 0x2800000000000021);
    assert_int_equal(first.id.counter, 0x31);
    assert_int_equal(first.fork, 0x4241);
    assert_int_equal(second.kind, FAR__WIRE_REF_CREATED);
    assert_int_equal(second.fork, 7);
    uint8_t again[2 * FAR__WIRE_REF_SIZE];
    far__writer w = far__writer_over(again, sizeof again);
    far__wire_put_ref(&first, &w);
    far__wire_put_ref(&second, &w);
    assert_false(w.failed);
    assert_memory_equal(again, two_refs, sizeof again);
    assert_int_equal(far__wire_size(&header), 25 + 8 + sizeof two_refs);
}

static void references_are_checked(void **state)
{
    (void)state;
    uint8_t refs[2 * FAR__WIRE_REF_SIZE];
    far__wire_header header = {.type = FAR__WIRE_REQUEST,
                               .call_id = 1,
                               .name = "f",
                               .name_size = 1,
                               .ref_count = 2,
                               .ref_number = 5,
                               .refs = refs};
    static const struct {
        size_t at;
        uint8_t value;
        const char *why;
    } cases[] = {
        {0, 2, "references: unknown kind"},
        {0, 255, "references: unknown kind"},
        {1, 1, "references: unknown kind"},
        {7, 1, "references: unknown kind"},
        {32, 0, "references: number zero"},                      /* of the id */
        {FAR__WIRE_REF_SIZE + 40, 0, "references: number zero"}, /* of the fork */
        {0, 1, "references: one creation a request"},            /* the second is one too */
        {FAR__WIRE_REF_SIZE, 0, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memcpy(refs, two_refs, sizeof refs);
        refs[cases[i].at] = cases[i].value;
        assert_string_equal(why_of(&header, 0), cases[i].why);
    }
    memcpy(refs, two_refs, sizeof refs);
    assert_string_equal(why_of(&header, 0), "");
    assert_string_equal(why_of(&header, 1), "header: bytes after its end");
    header.type = FAR__WIRE_REPLY;
    assert_string_equal(why_of(&header, 0), "references: one creation a request");
    header.ref_count = 1;
    assert_string_equal(why_of(&header, 0), "");

    /* The message's number is not 0. */
    uint8_t bytes[ROOM];
    far__wire_header out;
    const char *why = NULL;
    size_t size = encode(&header, bytes);
    bytes[16] = 0;
    assert_status(FAR_EPROTO, far__wire_decode(bytes, size, &out, &why));
    assert_string_equal(why, "references: message number zero");
}

static void references_have_a_limit_that_fits_the_header(void **state)
{
    (void)state;
    static uint8_t refs[(FAR__WIRE_REFS_MAX + 1) * FAR__WIRE_REF_SIZE], bytes[ROOM];
    char name[FAR__WIRE_NAME_MAX];
    memset(name, 'n', sizeof name);
    for (size_t i = 0; i <= FAR__WIRE_REFS_MAX; i++)
        memcpy(refs + i * FAR__WIRE_REF_SIZE, two_refs, FAR__WIRE_REF_SIZE);
    far__wire_header header = {.type = FAR__WIRE_REQUEST,
                               .flags = FAR__WIRE_RETRY,
                               .naming = FAR__WIRE_BY_NAME_AND_ID,
                               .call_id = 1,
                               .sequence = 1,
                               .name = name,
                               .name_size = sizeof name,
                               .ref_count = FAR__WIRE_REFS_MAX,
                               .ref_number = 1,
                               .refs = refs};
    far__wire_header out;
    size_t size = encode(&header, bytes);
    assert_true(size <= FAR__WIRE_HEADER_MAX);
    assert_ok(decode(bytes, size, &out));
    assert_same(&header, &out);
    /* One more, as a peer without the limit would write it. */
    header.naming = FAR__WIRE_BY_NAME;
    header.name_size = 1;
    size = encode(&header, bytes);
    memcpy(bytes + size, two_refs, FAR__WIRE_REF_SIZE);
    bytes[6] = (FAR__WIRE_REFS_MAX + 1) & 255;
    bytes[7] = (FAR__WIRE_REFS_MAX + 1) >> 8;
    const char *why = NULL;
    assert_status(FAR_EPROTO, far__wire_decode(bytes, size + FAR__WIRE_REF_SIZE, &out, &why));
    assert_string_equal(why, "references: more than 512");
}

static void acknowledged_ranges_ascend(void **state)
{
    (void)state;
    static const struct {
        far__wire_range ranges[2];
        far_status status;
    } cases[] = {
        {{{11, 12}, {14, 14}}, FAR_OK},           {{{11, 12}, {13, 14}}, FAR_OK},
        {{{10, 12}, {14, 14}}, FAR_EPROTO},       {{{12, 11}, {14, 14}}, FAR_EPROTO},
        {{{11, 12}, {12, 14}}, FAR_EPROTO},       {{{13, 14}, {11, 11}}, FAR_EPROTO},
        {{{11, UINT64_MAX}, {0, 0}}, FAR_EPROTO},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        far__wire_header header = {.type = FAR__WIRE_ACK, .ack_mark = 10, .ack_count = 2}, out;
        memcpy(header.ack, cases[i].ranges, sizeof cases[i].ranges);
        uint8_t bytes[ROOM];
        size_t size = encode(&header, bytes);
        assert_status(cases[i].status, decode(bytes, size, &out));
    }
    far__wire_header most = {.type = FAR__WIRE_ACK, .ack_count = FAR__WIRE_RANGES_MAX}, out;
    for (uint64_t i = 0; i < FAR__WIRE_RANGES_MAX; i++)
        most.ack[i] = (far__wire_range){2 * i + 2, 2 * i + 2};
    uint8_t bytes[ROOM];
    size_t size = encode(&most, bytes);
    assert_ok(decode(bytes, size, &out));
    assert_same(&most, &out);
    bytes[4] = FAR__WIRE_RANGES_MAX + 1;
    far__store_u64(bytes + size, 1000);
    far__store_u64(bytes + size + 8, 1000);
    const char *why = NULL;
    assert_status(FAR_EPROTO, far__wire_decode(bytes, size + 16, &out, &why));
    assert_string_equal(why, "acknowledgement: too many ranges");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_form_comes_back_as_it_was),
    cmocka_unit_test(bytes_stand_where_the_document_says),
    cmocka_unit_test(sizes_are_exact),
    cmocka_unit_test(a_header_over_the_limit_is_refused),
    cmocka_unit_test(every_field_is_checked),
    cmocka_unit_test(requests_are_consistent),
    cmocka_unit_test(calls_have_an_id),
    cmocka_unit_test(names_have_a_limit),
    cmocka_unit_test(references_come_back_one_by_one),
    cmocka_unit_test(references_are_checked),
    cmocka_unit_test(references_have_a_limit_that_fits_the_header),
    cmocka_unit_test(acknowledged_ranges_ascend),
};
FAR_TEST_MAIN(tests)
