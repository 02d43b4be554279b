/* SPDX-License-Identifier: BSD-3-Clause
 * transport/stream_in against frames made by hand: limits, cuts at every byte, and all that is refused. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "support/test.h"
#include "transport/stream.h"

enum { LIMIT = 1 << 20, FRAMES_ROOM = 1 << 21 };

typedef struct fixture {
    far__stream_in *in;
    far_buffer *orphans;
    far__writer w; /* the frames to be read */
    size_t received, memory_asked;
    size_t header_size, segment_count, bytes; /* of the last message */
    uint32_t sum;                             /* of its bytes */
    bool all_own;                             /* each of its segments had a buffer */
    far_status answer, memory_answer;
    const char *why;
} fixture;

static far_status memory(size_t size, far_buffer **out, void *arg)
{
    fixture *f = arg;
    f->memory_asked++;
    assert_true(size >= FAR__SEGMENT_OWN);
    return f->memory_answer == FAR_OK ? far_buffer_alloc(size, out) : f->memory_answer;
}

static far_status received(far__inbound *m, void *arg)
{
    fixture *f = arg;
    f->received++;
    f->header_size = m->header_size;
    f->segment_count = m->segment_count;
    f->bytes = 0;
    f->sum = 0;
    f->all_own = true;
    const uint8_t *header = m->header;
    for (size_t i = 0; i < m->header_size; i++)
        f->sum += header[i];
    for (size_t i = 0; i < m->segment_count; i++) {
        const uint8_t *data = m->segments[i].data;
        for (size_t k = 0; k < m->segments[i].size; k++)
            f->sum += data[k];
        f->bytes += m->segments[i].size;
        f->all_own = f->all_own && m->segments[i].buffer;
    }
    return f->answer;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    const far__stream_up up = {.memory = memory, .received = received, .arg = f};
    f->w = far__writer_over(malloc(FRAMES_ROOM), FRAMES_ROOM);
    *state = f;
    return far__stream_in_create(&up, LIMIT, &f->in) == FAR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    far__stream_in_destroy(f->in, &f->orphans);
    free(f->w.data);
    free(f);
    return far_memory_live() == 0 ? 0 : -1;
}

/* ------------------------------------------------------------------------------ making frames */

static void prefix(fixture *f, uint32_t size, uint8_t kind, uint16_t segments, uint32_t header,
                   uint32_t stream)
{
    far__write_u32(&f->w, size);
    far__write_u8(&f->w, kind);
    far__write_u8(&f->w, 0);
    far__write_u16(&f->w, segments);
    far__write_u32(&f->w, header);
    far__write_u32(&f->w, stream);
}

static void entry(fixture *f, uint64_t size, uint64_t kind)
{
    far__write_u64(&f->w, size);
    far__write_u64(&f->w, kind);
}

static void body(fixture *f, size_t size)
{
    for (size_t i = 0; i < size; i++)
        far__write_u8(&f->w, 1);
}

/* A message of `count` segments of `size` bytes, each byte 1, in one frame. */
static void whole(fixture *f, uint32_t header, uint16_t count, size_t size)
{
    prefix(f, (uint32_t)(count * 16u + header + count * size), FAR__FRAME_WHOLE, count, header, 0);
    for (unsigned i = 0; i < count; i++)
        entry(f, size, FAR__SEGMENT_INLINE);
    body(f, header + count * size);
}

/* The begin of a message with one segment, of which `here` bytes come along. */
static void begin(fixture *f, uint32_t stream, uint64_t size, size_t here)
{
    prefix(f, (uint32_t)(16 + 8 + here), FAR__FRAME_BEGIN, 1, 8, stream);
    entry(f, size, FAR__SEGMENT_CHUNKED);
    body(f, 8 + here);
}

static void more(fixture *f, uint32_t stream, size_t size)
{
    prefix(f, (uint32_t)size, FAR__FRAME_MORE, 0, 0, stream);
    body(f, size);
}

/* Gives what was written to the stream, at most `most` bytes a read. */
static far_status feed(fixture *f, size_t most)
{
    assert_false(f->w.failed);
    far_status status = FAR_OK;
    for (size_t at = 0; at < f->w.used && status == FAR_OK;) {
        struct iovec iov[2];
        size_t count = far__stream_in_prepare(f->in, iov), size = 0;
        assert_in_range(count, 1, 2);
        for (size_t i = 0; i < count; i++) {
            assert_true(iov[i].iov_len > 0);
            size_t part = f->w.used - at - size;
            if (part > iov[i].iov_len)
                part = iov[i].iov_len;
            if (part > most - size)
                part = most - size;
            memcpy(iov[i].iov_base, f->w.data + at + size, part);
            size += part;
        }
        at += size;
        status = far__stream_in_read(f->in, size, &f->orphans, &f->why);
    }
    f->w.used = 0;
    return status;
}

/* The frames written so far are refused, with a text that has `word` in it, and so is all after. */
static void refused(fixture *f, far_status status, const char *word)
{
    assert_status(status, feed(f, SIZE_MAX));
    assert_non_null(f->why);
    if (!strstr(f->why, word))
        fail_msg("\"%s\" has no \"%s\"", f->why, word);
    struct iovec iov[2];
    assert_int_equal(far__stream_in_prepare(f->in, iov), 0);
    assert_status(status, far__stream_in_read(f->in, 0, &f->orphans, &f->why));
}

/* -------------------------------------------------------------------------------------- cases */

static void frames_may_be_cut_anywhere(void **state)
{
    fixture *f = *state;
    for (size_t most = 1; most < 60; most++) {
        f->received = 0;
        whole(f, 10, 2, 5);
        begin(f, 1, 5000, 100);
        whole(f, 0, 0, 0);
        begin(f, 2, 30, 0);
        more(f, 1, 4900);
        more(f, 2, 29);
        whole(f, 3, 1, 4096);
        more(f, 2, 1);
        assert_ok(feed(f, most));
        assert_int_equal(f->received, 5);
        assert_int_equal(f->sum, 38);
        assert_false(far__stream_in_midway(f->in));
    }
}

static void small_messages_need_no_memory(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < 5000; i++)
        whole(f, 60, 2, 40);
    const size_t live = far_memory_live();
    assert_ok(feed(f, SIZE_MAX));
    assert_int_equal(f->received, 5000);
    assert_int_equal(f->sum, 140);
    assert_true(far_memory_live() <= live + 1); /* the segment array, once */
}

static void empty_messages_and_segments_arrive(void **state)
{
    fixture *f = *state;
    whole(f, 0, 0, 0);
    whole(f, 1, 3, 0);
    whole(f, 0, FAR__SEGMENTS_MAX, 0);
    assert_ok(feed(f, SIZE_MAX));
    assert_int_equal(f->received, 3);
    assert_int_equal(f->segment_count, FAR__SEGMENTS_MAX);
    prefix(f, 16 * 3 + 2, FAR__FRAME_BEGIN, 3, 0, 9);
    entry(f, 0, FAR__SEGMENT_CHUNKED);
    entry(f, 4, FAR__SEGMENT_CHUNKED);
    entry(f, 0, FAR__SEGMENT_CHUNKED);
    body(f, 2);
    more(f, 9, 2);
    assert_ok(feed(f, SIZE_MAX));
    assert_int_equal(f->received, 4);
    assert_int_equal(f->sum, 4);
}

static void the_longest_head_is_read(void **state)
{
    fixture *f = *state;
    const size_t live = far_memory_live();
    for (size_t most = 10000; most < 300000; most += 100000) {
        whole(f, FAR__HEADER_MAX, FAR__SEGMENTS_MAX, 11);
        assert_ok(feed(f, most));
        assert_int_equal(f->header_size, FAR__HEADER_MAX);
        assert_int_equal(f->sum, FAR__HEADER_MAX + FAR__SEGMENTS_MAX * 11);
    }
    assert_int_equal(f->received, 3);
    assert_int_equal(f->memory_asked, 0);
    assert_int_equal(far_memory_live(), live); /* so much is not kept */
}

static void segments_of_the_limit_get_memory_of_their_own(void **state)
{
    fixture *f = *state;
    whole(f, 8, 2, FAR__SEGMENT_OWN - 1);
    assert_ok(feed(f, SIZE_MAX));
    assert_int_equal(f->memory_asked, 0);
    whole(f, 8, 2, FAR__SEGMENT_OWN);
    assert_ok(feed(f, SIZE_MAX));
    assert_int_equal(f->memory_asked, 2);
    assert_true(f->all_own);
    assert_int_equal(f->sum, 8 + 2 * FAR__SEGMENT_OWN);
}

static void large_segments_are_read_to_their_place(void **state)
{
    fixture *f = *state;
    begin(f, 1, 200000, 100);
    prefix(f, 199900, FAR__FRAME_MORE, 0, 0, 1);
    assert_ok(feed(f, SIZE_MAX));
    struct iovec iov[2];
    assert_int_equal(far__stream_in_prepare(f->in, iov), 2);
    assert_int_equal(iov[0].iov_len, 199900);
    memset(iov[0].iov_base, 1, iov[0].iov_len);
    assert_true(far__stream_in_midway(f->in));
    assert_ok(far__stream_in_read(f->in, 199900, &f->orphans, &f->why));
    assert_int_equal(f->received, 1);
    assert_int_equal(f->sum, 200008);
    assert_int_equal(far__stream_in_prepare(f->in, iov), 1);
    assert_int_equal(iov[0].iov_len, 65536);
}

static void a_begun_frame_is_midway(void **state)
{
    fixture *f = *state;
    assert_false(far__stream_in_midway(f->in));
    const size_t size = FAR__FRAME_PREFIX + 30;
    for (size_t at = 1; at < size; at++) {
        whole(f, 30, 0, 0);
        f->w.used = at;
        assert_ok(feed(f, SIZE_MAX));
        assert_true(far__stream_in_midway(f->in));
        memmove(f->w.data, f->w.data + at, size - at); /* the rest of the same frame */
        f->w.used = size - at;
        assert_ok(feed(f, SIZE_MAX));
        assert_false(far__stream_in_midway(f->in));
    }
    begin(f, 1, 10, 0);
    assert_ok(feed(f, SIZE_MAX));
    assert_true(far__stream_in_midway(f->in));
}

static void an_aborted_message_is_forgotten(void **state)
{
    fixture *f = *state;
    begin(f, 7, 100000, 50);
    assert_ok(feed(f, SIZE_MAX));
    assert_int_equal(f->memory_asked, 1);
    const size_t live = far_memory_live();
    prefix(f, 0, FAR__FRAME_ABORT, 0, 0, 7);
    assert_ok(feed(f, SIZE_MAX));
    assert_true(far_memory_live() < live);
    assert_false(far__stream_in_midway(f->in));
    begin(f, 7, 10, 5); /* the number is free again */
    more(f, 7, 5);
    assert_ok(feed(f, SIZE_MAX));
    assert_int_equal(f->received, 1);
    prefix(f, 0, FAR__FRAME_ABORT, 0, 0, 7);
    refused(f, FAR_EPROTO, "ABORT");
}

static void a_message_of_exactly_the_limit_is_taken(void **state)
{
    fixture *f = *state;
    begin(f, 1, LIMIT, 0);
    for (size_t left = LIMIT; left; left -= 131072)
        more(f, 1, 131072);
    assert_ok(feed(f, SIZE_MAX));
    assert_int_equal(f->bytes, LIMIT);
    begin(f, 1, LIMIT + 1, 0);
    refused(f, FAR_ETOOBIG, "limit");
    assert_int_equal(f->memory_asked, 1);
}

static void the_limit_can_be_raised_between_messages(void **state)
{
    fixture *f = *state;
    far__stream_in_limit(f->in, 10);
    whole(f, 100, 1, 10);
    assert_ok(feed(f, SIZE_MAX));
    far__stream_in_limit(f->in, 11);
    whole(f, 100, 1, 11);
    assert_ok(feed(f, SIZE_MAX));
    whole(f, 100, 2, 6);
    refused(f, FAR_ETOOBIG, "limit");
}

static void sizes_that_wrap_are_refused(void **state)
{
    fixture *f = *state;
    prefix(f, 16 * 3, FAR__FRAME_BEGIN, 3, 0, 1);
    entry(f, 8192, FAR__SEGMENT_CHUNKED);
    entry(f, UINT64_MAX - 8191, FAR__SEGMENT_CHUNKED);
    entry(f, 100, FAR__SEGMENT_CHUNKED);
    refused(f, FAR_ETOOBIG, "limit");
    assert_int_equal(f->memory_asked, 0);
}

static void an_unlimited_stream_takes_no_impossible_size(void **state)
{
    fixture *f = *state;
    far__stream_in_limit(f->in, UINT64_MAX);
    begin(f, 1, UINT64_MAX, 0);
    refused(f, FAR_ETOOBIG, "limit");
    assert_int_equal(f->memory_asked, 0);
}

static void a_receivers_error_stops_the_stream(void **state)
{
    fixture *f = *state;
    f->answer = FAR_EAUTH;
    whole(f, 8, 0, 0);
    whole(f, 8, 0, 0);
    refused(f, FAR_EAUTH, "receiver");
    assert_int_equal(f->received, 1);
}

static void missing_memory_is_told(void **state)
{
    fixture *f = *state;
    f->memory_answer = FAR_ENOMEM;
    begin(f, 1, 5000, 0);
    refused(f, FAR_ENOMEM, "memory");
}

static void kinds_to_come_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        uint64_t kind;
        far_status status;
        const char *word;
    } kinds[] = {
        {FAR__SEGMENT_PULL, FAR_EUNSUPPORTED, "pull"},
        {FAR__SEGMENT_SHARED, FAR_EUNSUPPORTED, "shared"},
        {FAR__SEGMENT_INLINE, FAR_EPROTO, "inline"},
        {4, FAR_EPROTO, "unknown segment"},
        {0x100 + FAR__SEGMENT_CHUNKED, FAR_EPROTO, "reserved"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        void *fresh;
        assert_int_equal(setup(&fresh), 0);
        prefix(fresh, 16, FAR__FRAME_BEGIN, 1, 0, 1);
        entry(fresh, 5, kinds[i].kind);
        refused(fresh, kinds[i].status, kinds[i].word);
        assert_int_equal(((fixture *)fresh)->memory_asked, 0);
        assert_int_equal(teardown(&fresh), 0);
    }
}

static void a_whole_has_no_chunked_segments(void **state)
{
    fixture *f = *state;
    prefix(f, 16 + 5, FAR__FRAME_WHOLE, 1, 0, 0);
    entry(f, 5, FAR__SEGMENT_CHUNKED);
    body(f, 5);
    refused(f, FAR_EPROTO, "chunked");
}

static void malformed_prefixes_are_refused(void **state)
{
    static const struct {
        uint32_t size;
        uint8_t kind;
        uint16_t segments;
        uint32_t header, stream;
        const char *word;
    } bad[] = {
        {0, 0, 0, 0, 0, "unknown frame"},
        {0, 5, 0, 0, 0, "unknown frame"},
        {FAR__FRAME_MAX - FAR__FRAME_PREFIX + 1, FAR__FRAME_WHOLE, 0, 0, 0, "frame too long"},
        {UINT32_MAX, FAR__FRAME_MORE, 0, 0, 1, "frame too long"},
        {0, FAR__FRAME_WHOLE, 0, 0, 1, "stream"},
        {200000, FAR__FRAME_WHOLE, FAR__SEGMENTS_MAX + 1, 0, 0, "too many segments"},
        {200000, FAR__FRAME_WHOLE, 0, FAR__HEADER_MAX + 1, 0, "header too long"},
        {16, FAR__FRAME_WHOLE, 1, 1, 0, "head longer"},
        {0, FAR__FRAME_BEGIN, 0, UINT32_MAX, 0, "header too long"},
        {1, FAR__FRAME_MORE, 0, 0, 3, "unknown stream"},
        {1, FAR__FRAME_MORE, 1, 0, 3, "MORE with"},
        {1, FAR__FRAME_MORE, 0, 1, 3, "MORE with"},
        {0, FAR__FRAME_ABORT, 0, 0, 3, "unknown stream"},
        {1, FAR__FRAME_ABORT, 0, 0, 3, "ABORT with"},
        {0, FAR__FRAME_ABORT, 1, 0, 3, "ABORT with"},
        {0, FAR__FRAME_ABORT, 0, 1, 3, "ABORT with"},
        {1, FAR__FRAME_WHOLE, 0, 0, 0, "fill"},
        {0, FAR__FRAME_BEGIN, 0, 0, 1, "already complete"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *fresh;
        assert_int_equal(setup(&fresh), 0);
        fixture *f = fresh;
        prefix(f, bad[i].size, bad[i].kind, bad[i].segments, bad[i].header, bad[i].stream);
        refused(f, FAR_EPROTO, bad[i].word);
        assert_int_equal(teardown(&fresh), 0);
    }
}

static void a_reserved_byte_must_be_zero(void **state)
{
    fixture *f = *state;
    whole(f, 0, 0, 0);
    f->w.data[5] = 1;
    refused(f, FAR_EPROTO, "reserved");
}

static void segments_must_fill_their_whole(void **state)
{
    fixture *f = *state;
    prefix(f, 16 + 6, FAR__FRAME_WHOLE, 1, 0, 0);
    entry(f, 5, FAR__SEGMENT_INLINE);
    body(f, 6);
    refused(f, FAR_EPROTO, "fill");
}

static void a_stream_begins_once(void **state)
{
    fixture *f = *state;
    begin(f, 1, 10, 5);
    begin(f, 1, 10, 5);
    refused(f, FAR_EPROTO, "under way");
}

static void an_empty_more_is_refused(void **state)
{
    fixture *f = *state;
    begin(f, 1, 10, 5);
    more(f, 1, 0);
    refused(f, FAR_EPROTO, "empty");
}

static void a_more_beyond_the_end_is_refused(void **state)
{
    fixture *f = *state;
    begin(f, 1, 10, 5);
    more(f, 1, 6);
    refused(f, FAR_EPROTO, "beyond");
    assert_int_equal(f->received, 0);
}

static void messages_under_way_are_bounded(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 0; i < FAR__STREAM_BULK_MAX; i++)
        begin(f, i, 10, 0);
    assert_ok(feed(f, SIZE_MAX));
    begin(f, FAR__STREAM_BULK_MAX, 10, 0);
    refused(f, FAR_EPROTO, "too many");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(frames_may_be_cut_anywhere, setup, teardown),
    cmocka_unit_test_setup_teardown(small_messages_need_no_memory, setup, teardown),
    cmocka_unit_test_setup_teardown(empty_messages_and_segments_arrive, setup, teardown),
    cmocka_unit_test_setup_teardown(the_longest_head_is_read, setup, teardown),
    cmocka_unit_test_setup_teardown(segments_of_the_limit_get_memory_of_their_own, setup, teardown),
    cmocka_unit_test_setup_teardown(large_segments_are_read_to_their_place, setup, teardown),
    cmocka_unit_test_setup_teardown(a_begun_frame_is_midway, setup, teardown),
    cmocka_unit_test_setup_teardown(an_aborted_message_is_forgotten, setup, teardown),
    cmocka_unit_test_setup_teardown(a_message_of_exactly_the_limit_is_taken, setup, teardown),
    cmocka_unit_test_setup_teardown(the_limit_can_be_raised_between_messages, setup, teardown),
    cmocka_unit_test_setup_teardown(sizes_that_wrap_are_refused, setup, teardown),
    cmocka_unit_test_setup_teardown(an_unlimited_stream_takes_no_impossible_size, setup, teardown),
    cmocka_unit_test_setup_teardown(a_receivers_error_stops_the_stream, setup, teardown),
    cmocka_unit_test_setup_teardown(missing_memory_is_told, setup, teardown),
    cmocka_unit_test(kinds_to_come_are_refused_by_name),
    cmocka_unit_test_setup_teardown(a_whole_has_no_chunked_segments, setup, teardown),
    cmocka_unit_test(malformed_prefixes_are_refused),
    cmocka_unit_test_setup_teardown(a_reserved_byte_must_be_zero, setup, teardown),
    cmocka_unit_test_setup_teardown(segments_must_fill_their_whole, setup, teardown),
    cmocka_unit_test_setup_teardown(a_stream_begins_once, setup, teardown),
    cmocka_unit_test_setup_teardown(an_empty_more_is_refused, setup, teardown),
    cmocka_unit_test_setup_teardown(a_more_beyond_the_end_is_refused, setup, teardown),
    cmocka_unit_test_setup_teardown(messages_under_way_are_bounded, setup, teardown),
};

FAR_TEST_MAIN(tests)
