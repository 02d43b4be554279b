/* SPDX-License-Identifier: BSD-3-Clause
 * transport/stream_out and its ring: which bytes are written when, and who holds what for how long. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/failmem.h"
#include "support/test.h"
#include "transport/stream.h"

enum { HEADER = 24, IOV = 64, BODY_MAX = FAR__FRAME_MAX - FAR__FRAME_PREFIX };

typedef struct fixture {
    far__stream_out *out;
    far_buffer *orphans;
    uint8_t *wire; /* all that was written */
    size_t wire_size, wire_room;
    size_t read; /* of the wire, by next_frame */
    int freed;   /* buffers of the user */
    uint8_t *data;
    size_t size; /* of `data`, the memory of all buffers here */
} fixture;

typedef struct prefix {
    uint32_t size;
    far__frame_kind kind;
    uint32_t stream;
    const uint8_t *body;
} prefix;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->size = 1000000;
    f->data = malloc(f->size);
    for (size_t i = 0; i < f->size; i++)
        f->data[i] = (uint8_t)(i * 7 + (i >> 8));
    *state = f;
    return far__stream_out_create(&f->out) == FAR_OK ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    far__stream_out_destroy(f->out, &f->orphans);
    while (f->orphans) {
        far_buffer *b = f->orphans;
        f->orphans = b->next;
        far__buffer_free(b);
    }
    free(f->wire);
    free(f->data);
    free(f);
    return far_memory_live() == 0 ? 0 : -1;
}

static void count_free(void *arg)
{
    ((fixture *)arg)->freed++;
}

static far_buffer *wrap(fixture *f, size_t size, unsigned flags)
{
    far_buffer *b;
    assert_true(size <= f->size);
    assert_ok(far_buffer_wrap(f->data, size, count_free, f, flags, &b));
    return b;
}

static far_status try_put(fixture *f, const far__segment *segments, size_t count, int64_t deadline,
                          uint64_t *token)
{
    uint8_t header[HEADER];
    memset(header, 0x55, sizeof header);
    far__outgoing o = {.header = header,
                       .header_size = sizeof header,
                       .segments = segments,
                       .segment_count = count,
                       .deadline = deadline,
                       .deadline_at = 16};
    return far__stream_put(f->out, &o, token, &f->orphans);
}

/* A message with one buffer of `size` bytes. */
static uint64_t put(fixture *f, size_t size)
{
    uint64_t token;
    far__segment seg = {.data = f->data, .size = size};
    seg.buffer = wrap(f, size, FAR_BUFFER_FREE_ANYWHERE);
    assert_ok(try_put(f, &seg, 1, FAR__NEVER, &token));
    return token;
}

static uint64_t put_small(fixture *f)
{
    uint64_t token;
    assert_ok(try_put(f, NULL, 0, FAR__NEVER, &token));
    return token;
}

/* Writes up to `most` bytes of one gather; returns how many. */
static size_t write_at(fixture *f, int64_t now, size_t most)
{
    struct iovec iov[IOV];
    size_t count = far__stream_gather(f->out, now, iov, IOV), size = 0;
    for (size_t i = 0; i < count && size < most; i++) {
        size_t part = iov[i].iov_len < most - size ? iov[i].iov_len : most - size;
        if (f->wire_size + part > f->wire_room) {
            f->wire_room = (f->wire_size + part) * 2;
            f->wire = realloc(f->wire, f->wire_room);
        }
        memcpy(f->wire + f->wire_size, iov[i].iov_base, part);
        f->wire_size += part;
        size += part;
    }
    far__stream_written(f->out, size, &f->orphans);
    return size;
}

static void write_all(fixture *f)
{
    while (write_at(f, 0, SIZE_MAX)) {}
    assert_int_equal(far__stream_pending(f->out), 0);
}

static prefix next_frame(fixture *f)
{
    assert_true(f->wire_size - f->read >= FAR__FRAME_PREFIX);
    const uint8_t *at = f->wire + f->read;
    prefix p = {far__load_u32(at), at[4], far__load_u32(at + 12), at + FAR__FRAME_PREFIX};
    f->read += FAR__FRAME_PREFIX + p.size;
    assert_true(f->read <= f->wire_size);
    return p;
}

static bool all_read(const fixture *f)
{
    return f->read == f->wire_size;
}

/* -------------------------------------------------------------------------------------- cases */

static void a_whole_frame_has_this_form(void **state)
{
    static const uint8_t wanted[] = {
        62, 0, 0, 0, 1, 0, 2, 0, 24, 0, 0, 0, 0, 0, 0, 0, /* prefix */
        4,  0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, /* first segment */
        2,  0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0, 0, 0, 0, 0, /* second segment */
    };
    fixture *f = *state;
    uint64_t token;
    far__segment segs[2] = {{.data = "abcd", .size = 4}, {.data = "ef", .size = 2}};
    assert_ok(try_put(f, segs, 2, FAR__NEVER, &token));
    assert_int_equal(far__stream_pending(f->out), 78);
    write_all(f);
    assert_int_equal(f->wire_size, 78);
    assert_memory_equal(f->wire, wanted, sizeof wanted);
    assert_int_equal(f->wire[48], 0x55);
    assert_memory_equal(f->wire + 72, "abcdef", 6);
}

static void small_messages_are_one_vector(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < 500; i++)
        put_small(f);
    struct iovec iov[IOV];
    assert_int_equal(far__stream_gather(f->out, 0, iov, IOV), 1);
    assert_int_equal(iov[0].iov_len, 500 * (FAR__FRAME_PREFIX + HEADER));
}

static void small_messages_need_no_allocation(void **state)
{
    (void)state;
    failmem_begin(0);
    void *fresh;
    assert_int_equal(setup(&fresh), 0);
    fixture *f = fresh;
    far__segment seg = {.data = f->data, .size = 60};
    size_t warm = 0;
    for (size_t round = 0; round < 2000; round++) {
        if (round == 100)
            warm = failmem_count();
        uint64_t token;
        for (size_t i = 0; i < 1 + round % 100 * 25; i++)
            assert_ok(try_put(f, &seg, 1, 5, &token));
        while (write_at(f, 1, 1 + round * 1000)) {}
        f->wire_size = 0;
    }
    assert_int_equal(failmem_count(), warm);
    assert_int_equal(teardown(&fresh), 0);
    failmem_end();
}

static void a_short_buffer_is_copied_and_a_long_one_held(void **state)
{
    fixture *f = *state;
    put(f, 4095);
    assert_int_equal(f->freed, 1);
    put(f, 4096);
    assert_int_equal(f->freed, 1);
    const size_t size = (size_t)far__stream_pending(f->out);
    assert_int_equal(write_at(f, 0, size - 1), size - 1);
    assert_int_equal(f->freed, 1);
    assert_int_equal(write_at(f, 0, 1), 1);
    assert_int_equal(f->freed, 2);
    assert_memory_equal(f->wire + size - 4096, f->data, 4096);
}

static void a_buffer_with_a_place_to_die_becomes_an_orphan(void **state)
{
    fixture *f = *state;
    uint64_t token;
    far__segment seg = {.data = f->data, .size = 5000, .buffer = wrap(f, 5000, 0)};
    assert_ok(try_put(f, &seg, 1, FAR__NEVER, &token));
    assert_null(f->orphans);
    write_all(f);
    assert_ptr_equal(f->orphans, seg.buffer);
    assert_int_equal(f->freed, 0);
}

static void the_remaining_time_is_that_of_the_first_byte(void **state)
{
    fixture *f = *state;
    const size_t frame = FAR__FRAME_PREFIX + HEADER, at = FAR__FRAME_PREFIX + 16;
    uint64_t token;
    for (size_t i = 0; i < 3; i++)
        assert_ok(try_put(f, NULL, 0, 1000, &token));
    assert_int_equal(write_at(f, 10, 0), 0); /* stamped, not written */
    assert_int_equal(write_at(f, 300, 1), 1);
    assert_int_equal(write_at(f, 400, frame - 1), frame - 1);
    assert_int_equal(far__load_u64(f->wire + at), 700);
    assert_int_equal(write_at(f, 999, frame), frame);
    assert_int_equal(far__load_u64(f->wire + frame + at), 1);
    assert_int_equal(write_at(f, 5000, frame), frame);
    assert_int_equal(far__load_u64(f->wire + 2 * frame + at), 1);

    far__segment seg = {.data = f->data, .size = 500000};
    assert_ok(try_put(f, &seg, 1, 9000, &token));
    assert_int_equal(write_at(f, 6000, 0), 0);
    write_at(f, 8000, SIZE_MAX);
    assert_int_equal(far__load_u64(f->wire + 3 * frame + FAR__FRAME_PREFIX + 16 + 16), 1000);
}

static void a_message_that_did_not_start_is_removed(void **state)
{
    fixture *f = *state;
    uint64_t first = put(f, 100), second = put(f, 5000);
    put_small(f);
    assert_false(far__stream_started(f->out, second));
    far__stream_abandon(f->out, second, &f->orphans);
    assert_int_equal(f->freed, 2);
    far__stream_abandon(f->out, second, &f->orphans);
    write_all(f);
    assert_true(far__stream_started(f->out, first));
    assert_int_equal(next_frame(f).size, 16 + HEADER + 100);
    assert_int_equal(next_frame(f).size, HEADER);
    assert_true(all_read(f));
    far__stream_abandon(f->out, first, &f->orphans); /* written: nothing happens */
    far__stream_abandon(f->out, 12345, &f->orphans);
}

static void a_whole_that_started_is_finished_without_its_buffers(void **state)
{
    fixture *f = *state;
    uint64_t token;
    far__segment segs[2];
    for (size_t i = 0; i < 2; i++)
        segs[i] = (far__segment){f->data, 50000, wrap(f, 50000, FAR_BUFFER_FREE_ANYWHERE)};
    assert_ok(try_put(f, segs, 2, FAR__NEVER, &token));
    put_small(f);
    uint8_t *copy = malloc(50000);
    memcpy(copy, f->data, 50000);
    write_at(f, 0, 20000);
    assert_true(far__stream_started(f->out, token));
    assert_int_equal(f->freed, 0);
    far__stream_abandon(f->out, token, &f->orphans);
    assert_int_equal(f->freed, 2);
    memset(f->data, 0, 50000);
    write_at(f, 0, 40000);
    far__stream_abandon(f->out, token, &f->orphans);
    write_all(f);
    prefix p = next_frame(f);
    assert_int_equal(p.kind, FAR__FRAME_WHOLE);
    assert_memory_equal(p.body + 32 + HEADER, copy, 50000);
    assert_memory_equal(p.body + 32 + HEADER + 50000, copy, 50000);
    assert_int_equal(next_frame(f).size, HEADER);
    assert_true(all_read(f));
    free(copy);
}

static void abandoning_needs_no_memory(void **state)
{
    (void)state;
    failmem_begin(0);
    void *fresh;
    assert_int_equal(setup(&fresh), 0);
    fixture *f = fresh;
    uint64_t tokens[3] = {put(f, 900000), put(f, 100000), put(f, 500000)};
    write_at(f, 0, 1000); /* the WHOLE */
    write_at(f, 0, 150000);
    const size_t before = failmem_count();
    for (size_t i = 0; i < 3; i++)
        far__stream_abandon(f->out, tokens[i], &f->orphans);
    assert_int_equal(failmem_count(), before);
    assert_int_equal(f->freed, 3);
    assert_int_equal(teardown(&fresh), 0);
    failmem_end();
}

static void a_bulk_message_waits_and_is_removed(void **state)
{
    fixture *f = *state;
    uint64_t token = put(f, 500000);
    assert_true(far__stream_pending(f->out) > 500000);
    far__stream_abandon(f->out, token, &f->orphans);
    assert_int_equal(f->freed, 1);
    assert_int_equal(far__stream_pending(f->out), 0);

    token = put(f, 500000);
    assert_int_equal(write_at(f, 0, 0), 0); /* now its BEGIN is in the ring */
    assert_false(far__stream_started(f->out, token));
    far__stream_abandon(f->out, token, &f->orphans);
    assert_int_equal(f->freed, 2);
    write_all(f);
    assert_int_equal(f->wire_size, 0);
}

static void a_bulk_message_that_started_is_aborted(void **state)
{
    fixture *f = *state;
    const size_t cuts[] = {1, BODY_MAX, FAR__FRAME_MAX, FAR__FRAME_MAX + 1, 2 * FAR__FRAME_MAX};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        uint64_t token = put(f, 900000);
        for (size_t left = cuts[i]; left;)
            left -= write_at(f, 0, left);
        assert_true(far__stream_started(f->out, token));
        write_at(f, 0, 0);
        far__stream_abandon(f->out, token, &f->orphans);
        assert_int_equal(f->freed, i + 1);
        far__stream_abandon(f->out, token, &f->orphans);
        write_all(f);
        prefix p = next_frame(f);
        assert_int_equal(p.kind, FAR__FRAME_BEGIN);
        assert_memory_equal(p.body + 16 + HEADER, f->data, BODY_MAX - 16 - HEADER);
        const uint32_t stream = p.stream;
        for (size_t k = 1; k * FAR__FRAME_MAX < cuts[i]; k++)
            assert_int_equal(next_frame(f).kind, FAR__FRAME_MORE);
        p = next_frame(f);
        assert_int_equal(p.kind, FAR__FRAME_ABORT);
        assert_int_equal(p.stream, stream);
        assert_int_equal(p.size, 0);
        assert_true(all_read(f));
    }
}

static void a_last_frame_is_aborted_or_finished(void **state)
{
    fixture *f = *state;
    for (size_t begun = 0; begun < 2; begun++) {
        f->wire_size = f->read = 0;
        uint64_t token = put(f, 300000);
        assert_int_equal(write_at(f, 0, FAR__FRAME_MAX), FAR__FRAME_MAX);
        write_at(f, 0, begun); /* the last frame is in the ring */
        far__stream_abandon(f->out, token, &f->orphans);
        assert_int_equal(f->freed, begun + 1);
        write_all(f);
        assert_int_equal(next_frame(f).kind, FAR__FRAME_BEGIN);
        prefix p = next_frame(f);
        assert_int_equal(p.kind, begun ? FAR__FRAME_MORE : FAR__FRAME_ABORT);
        if (begun)
            assert_memory_equal(p.body, f->data + BODY_MAX - 16 - HEADER, p.size);
        assert_true(all_read(f));
    }
}

static void bulk_messages_take_turns_and_small_ones_pass(void **state)
{
    fixture *f = *state;
    put(f, 900000);
    put(f, 900000);
    write_at(f, 0, SIZE_MAX);
    put_small(f);
    write_all(f);
    prefix p = next_frame(f);
    assert_int_equal(p.kind, FAR__FRAME_BEGIN);
    const uint32_t first = p.stream;
    assert_int_equal(next_frame(f).kind, FAR__FRAME_WHOLE);
    p = next_frame(f);
    assert_int_equal(p.kind, FAR__FRAME_BEGIN);
    const uint32_t second = p.stream;
    assert_int_not_equal(first, second);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(next_frame(f).stream, first);
        assert_int_equal(next_frame(f).stream, second);
    }
    assert_true(all_read(f));
    assert_int_equal(f->freed, 2);
}

static void no_more_are_begun_than_the_receiver_bears(void **state)
{
    fixture *f = *state;
    struct iovec iov[IOV];
    for (size_t i = 0; i <= FAR__STREAM_BULK_MAX; i++)
        put(f, 300000);
    size_t begins = 0;
    for (size_t open = 0, most = 0; far__stream_pending(f->out);) {
        assert_true(far__stream_gather(f->out, 0, iov, IOV) > 0);
        const uint8_t *at = iov[0].iov_base;
        begins += at[4] == FAR__FRAME_BEGIN;
        open = at[4] == FAR__FRAME_BEGIN ? open + 1 : open - 1;
        most = open > most ? open : most;
        assert_in_range(most, 1, FAR__STREAM_BULK_MAX);
        far__stream_written(f->out, FAR__FRAME_PREFIX + far__load_u32(at), &f->orphans);
    }
    assert_int_equal(begins, FAR__STREAM_BULK_MAX + 1);
}

static void a_bulk_message_gives_back_what_was_written(void **state)
{
    fixture *f = *state;
    uint64_t token;
    far__segment segs[2];
    for (size_t i = 0; i < 2; i++)
        segs[i] = (far__segment){f->data, 200000, wrap(f, 200000, FAR_BUFFER_FREE_ANYWHERE)};
    assert_ok(try_put(f, segs, 2, FAR__NEVER, &token));
    assert_int_equal(write_at(f, 0, FAR__FRAME_MAX - 1), FAR__FRAME_MAX - 1);
    assert_int_equal(f->freed, 0);
    assert_int_equal(write_at(f, 0, 1), 1);
    assert_int_equal(f->freed, 1);
    write_all(f);
    assert_int_equal(f->freed, 2);
}

static void limits_are_kept_and_buffers_given_back(void **state)
{
    fixture *f = *state;
    static far__segment segs[FAR__SEGMENTS_MAX + 1];
    static const uint8_t header[FAR__HEADER_MAX + 1];
    segs[0] = (far__segment){f->data, 5000, wrap(f, 5000, FAR_BUFFER_FREE_ANYWHERE)};
    uint64_t token = 77;
    far__outgoing o = {
        .header = header, .header_size = 1, .segments = segs, .deadline = FAR__NEVER};
    o.segment_count = FAR__SEGMENTS_MAX + 1;
    assert_status(FAR_ETOOBIG, far__stream_put(f->out, &o, &token, &f->orphans));
    assert_int_equal(f->freed, 1);
    segs[0] = (far__segment){0};
    o.header_size = FAR__HEADER_MAX + 1;
    o.segment_count = 0;
    assert_status(FAR_ETOOBIG, far__stream_put(f->out, &o, &token, &f->orphans));
    segs[0].size = segs[1].size = SIZE_MAX / 2;
    o.header_size = 0;
    o.segment_count = 2;
    assert_status(FAR_ETOOBIG, far__stream_put(f->out, &o, &token, &f->orphans));
    assert_int_equal(token, 77);
    segs[0].size = segs[1].size = 0;
    o.header_size = FAR__HEADER_MAX;
    o.segment_count = FAR__SEGMENTS_MAX;
    assert_ok(far__stream_put(f->out, &o, &token, &f->orphans));
    write_all(f);
    assert_int_equal(next_frame(f).size, FAR__HEADER_MAX + 16 * FAR__SEGMENTS_MAX);
}

static void the_longest_whole_is_a_frame(void **state)
{
    fixture *f = *state;
    put(f, BODY_MAX - 16 - HEADER);
    put(f, BODY_MAX - 16 - HEADER + 1);
    write_all(f);
    assert_int_equal(next_frame(f).kind, FAR__FRAME_WHOLE);
    assert_int_equal(next_frame(f).kind, FAR__FRAME_BEGIN);
    prefix p = next_frame(f);
    assert_int_equal(p.kind, FAR__FRAME_MORE);
    assert_int_equal(p.size, 1);
    assert_true(all_read(f));
}

/* The peer takes nothing, and calls to it time out for ever. */
static void abandoned_messages_do_not_pile_up(void **state)
{
    fixture *f = *state;
    put(f, 100);
    write_at(f, 0, 10);
    size_t live = 0;
    for (size_t i = 0; i < 100000; i++) {
        uint64_t token = put(f, 1000);
        if (i % 1000 == 0)
            put(f, 200);
        far__stream_abandon(f->out, token, &f->orphans);
        if (i == 5000)
            live = far_memory_live();
    }
    /* What stays keeps a block of others alive with it; a hundred blocks would be leaking. */
    assert_true(far_memory_live() <= live + 100);
    write_all(f);
    assert_int_equal(next_frame(f).size, 16 + HEADER + 100);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(next_frame(f).size, 16 + HEADER + 200);
    assert_true(all_read(f));
}

static void a_long_ring_keeps_its_order(void **state)
{
    fixture *f = *state;
    uint64_t tokens[3] = {0};
    for (uint32_t i = 0; i < 20000; i++) {
        far__segment seg = {.data = &i, .size = sizeof i};
        uint64_t token;
        assert_ok(try_put(f, &seg, 1, FAR__NEVER, &token));
        if (i == 9000 || i == 15000 || i == 19999)
            tokens[i == 9000 ? 0 : i == 15000 ? 1 : 2] = token;
        if (i % 3 == 0)
            write_at(f, 0, 60);
    }
    for (size_t i = 0; i < 3; i++)
        far__stream_abandon(f->out, tokens[i], &f->orphans);
    write_all(f);
    for (uint32_t i = 0; i < 20000; i++) {
        if (i == 9000 || i == 15000 || i == 19999)
            continue;
        assert_int_equal(far__load_u32(next_frame(f).body + 16 + HEADER), i);
    }
    assert_true(all_read(f));
}

/* Always some messages in the ring, so that its queues never start again from their front. */
static void a_ring_that_is_never_empty_keeps_its_order(void **state)
{
    fixture *f = *state;
    const size_t frame = FAR__FRAME_PREFIX + 16 + HEADER + sizeof(uint32_t);
    for (uint32_t i = 0; i < 1000; i++) {
        far__segment seg = {.data = &i, .size = sizeof i};
        uint64_t token;
        assert_ok(try_put(f, &seg, 1, FAR__NEVER, &token));
        if (i >= 20)
            assert_int_equal(write_at(f, 0, frame), frame);
    }
    write_all(f);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(far__load_u32(next_frame(f).body + 16 + HEADER), i);
    assert_true(all_read(f));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(a_whole_frame_has_this_form, setup, teardown),
    cmocka_unit_test_setup_teardown(small_messages_are_one_vector, setup, teardown),
    cmocka_unit_test(small_messages_need_no_allocation),
    cmocka_unit_test_setup_teardown(a_short_buffer_is_copied_and_a_long_one_held, setup, teardown),
    cmocka_unit_test_setup_teardown(a_buffer_with_a_place_to_die_becomes_an_orphan, setup,
                                    teardown),
    cmocka_unit_test_setup_teardown(the_remaining_time_is_that_of_the_first_byte, setup, teardown),
    cmocka_unit_test_setup_teardown(a_message_that_did_not_start_is_removed, setup, teardown),
    cmocka_unit_test_setup_teardown(a_whole_that_started_is_finished_without_its_buffers, setup,
                                    teardown),
    cmocka_unit_test(abandoning_needs_no_memory),
    cmocka_unit_test_setup_teardown(a_bulk_message_waits_and_is_removed, setup, teardown),
    cmocka_unit_test_setup_teardown(a_bulk_message_that_started_is_aborted, setup, teardown),
    cmocka_unit_test_setup_teardown(a_last_frame_is_aborted_or_finished, setup, teardown),
    cmocka_unit_test_setup_teardown(bulk_messages_take_turns_and_small_ones_pass, setup, teardown),
    cmocka_unit_test_setup_teardown(no_more_are_begun_than_the_receiver_bears, setup, teardown),
    cmocka_unit_test_setup_teardown(a_bulk_message_gives_back_what_was_written, setup, teardown),
    cmocka_unit_test_setup_teardown(limits_are_kept_and_buffers_given_back, setup, teardown),
    cmocka_unit_test_setup_teardown(the_longest_whole_is_a_frame, setup, teardown),
    cmocka_unit_test_setup_teardown(abandoned_messages_do_not_pile_up, setup, teardown),
    cmocka_unit_test_setup_teardown(a_long_ring_keeps_its_order, setup, teardown),
    cmocka_unit_test_setup_teardown(a_ring_that_is_never_empty_keeps_its_order, setup, teardown),
};

FAR_TEST_MAIN(tests)
