/* SPDX-License-Identifier: BSD-3-Clause
 * Both halves of transport/stream, joined by a pipe: random messages, put and abandoned in random order,
 * written and read in random pieces, and the same while allocations fail. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/failmem.h"
#include "support/test.h"
#include "transport/stream.h"

enum { MESSAGES_MAX = 64, SEGMENTS_MAX = 12, HEADER_MIN = 24, IOV = 16 };

typedef struct message {
    uint64_t token;
    size_t header_size, segment_count;
    size_t sizes[SEGMENTS_MAX];
    int buffers; /* wrapped by the user and not yet freed */
    int64_t deadline;
    int64_t written_at; /* the time of the gather whose bytes were the message's first */
    bool sent, bulk, abandoned, removed, received;
} message;

typedef struct user_memory {
    uint8_t *data;
    message *owner;
} user_memory;

typedef struct wire {
    uint8_t *bytes;
    size_t head, end, room;
} wire;

typedef struct world {
    uint64_t seed;
    int64_t now;
    far__stream_out *out;
    far__stream_in *in;
    far_buffer *orphans;
    message messages[MESSAGES_MAX];
    size_t count;
    size_t whole_received; /* 1 + index of the last WHOLE that arrived */
    wire wire;
    bool may_fail;
} world;

static uint64_t draw(world *w)
{
    w->seed ^= w->seed << 13;
    w->seed ^= w->seed >> 7;
    w->seed ^= w->seed << 17;
    return w->seed >> 11;
}

static size_t below(world *w, size_t n)
{
    return (size_t)(draw(w) % n);
}

static uint8_t content(size_t id, size_t segment, size_t at)
{
    return (uint8_t)(id * 31 + segment * 7 + at + (at >> 8) * 3 + (at >> 16));
}

static void run_orphans(world *w)
{
    while (w->orphans) {
        far_buffer *b = w->orphans;
        w->orphans = b->next;
        far__buffer_free(b);
    }
}

static void free_user_memory(void *arg)
{
    user_memory *m = arg;
    m->owner->buffers--;
    free(m->data);
    free(m);
}

/* Sizes around the limits where the way of a segment changes. */
static size_t draw_size(world *w)
{
    switch (below(w, 10)) {
    case 0: return 0;
    case 1: return 4095 + below(w, 3);
    case 2: return 4096 + below(w, 70000);
    case 3: return 262000 + below(w, 300);
    case 4: return below(w, 3) ? 100 : 400000 + below(w, 300000);
    default: return below(w, 300);
    }
}

static far_status fill_segment(world *w, size_t id, size_t index, far__segment *out)
{
    message *m = &w->messages[id];
    size_t size = m->sizes[index];
    user_memory *u = malloc(sizeof *u);
    *u = (user_memory){malloc(size ? size : 1), m};
    for (size_t i = 0; i < size; i++)
        u->data[i] = content(id, index, i);
    m->buffers++;
    unsigned flags = below(w, 2) ? FAR_BUFFER_FREE_ANYWHERE : 0;
    *out = (far__segment){.data = u->data, .size = size};
    far_status status = far_buffer_wrap(u->data, size, free_user_memory, u, flags, &out->buffer);
    if (status != FAR_OK)
        free_user_memory(u);
    return status;
}

static void give_back(world *w, far_buffer *buffer)
{
    if (!buffer || !far__buffer_unref(buffer))
        return;
    buffer->next = w->orphans;
    w->orphans = buffer;
}

static void put(world *w)
{
    const size_t id = w->count++;
    message *m = &w->messages[id];
    far__segment segments[SEGMENTS_MAX];
    uint8_t *private_memory[SEGMENTS_MAX] = {NULL};
    uint8_t header[2048];
    m->header_size = HEADER_MIN + below(w, below(w, 4) ? 100 : 2000);
    m->segment_count = below(w, 3) ? below(w, 3) : below(w, SEGMENTS_MAX + 1);
    m->deadline = below(w, 3) ? FAR__NEVER : w->now + (int64_t)below(w, 2000);
    for (size_t i = 0; i < m->header_size; i++)
        header[i] = content(id, 99, i);
    far__store_u64(header, id);
    far_status status = FAR_OK;
    size_t bytes = 16 + 16 * m->segment_count + m->header_size;
    for (size_t i = 0; i < m->segment_count; i++) {
        m->sizes[i] = draw_size(w);
        bytes += m->sizes[i];
        status = fill_segment(w, id, i, &segments[i]);
        if (status != FAR_OK) {
            while (i--)
                give_back(w, segments[i].buffer);
            break;
        }
        if (below(w, 4) == 0) { /* without a buffer: the stream must copy at once */
            private_memory[i] = malloc(m->sizes[i] + 1);
            memcpy(private_memory[i], segments[i].data, m->sizes[i]);
            give_back(w, segments[i].buffer);
            segments[i].data = private_memory[i];
            segments[i].buffer = NULL;
        }
    }
    const uint64_t before = far__stream_pending(w->out);
    if (status == FAR_OK) {
        far__outgoing o = {.header = header,
                           .header_size = m->header_size,
                           .segments = segments,
                           .segment_count = m->segment_count,
                           .deadline = m->deadline,
                           .deadline_at = 8};
        m->bulk = bytes > FAR__FRAME_MAX;
        status = far__stream_put(w->out, &o, &m->token, &w->orphans);
        memset(header, 0xee, sizeof header);
    }
    for (size_t i = 0; i < m->segment_count; i++)
        free(private_memory[i]);
    run_orphans(w);
    if (status == FAR_OK) {
        m->sent = true;
        assert_true(far__stream_pending(w->out) >= before + bytes);
        assert_false(far__stream_started(w->out, m->token));
    } else {
        assert_true(w->may_fail);
        assert_status(FAR_ENOMEM, status);
        assert_int_equal(m->buffers, 0);
        assert_int_equal(far__stream_pending(w->out), before);
    }
}

static void abandon(world *w)
{
    if (!w->count)
        return;
    message *m = &w->messages[below(w, w->count)];
    if (!m->sent)
        return;
    if (!m->abandoned)
        m->removed = !far__stream_started(w->out, m->token);
    m->abandoned = true;
    far__stream_abandon(w->out, m->token, &w->orphans);
    run_orphans(w);
    assert_int_equal(m->buffers, 0);
}

static void note_started(world *w)
{
    for (size_t i = 0; i < w->count; i++) {
        message *m = &w->messages[i];
        if (m->sent && !m->removed && !m->written_at && far__stream_started(w->out, m->token))
            m->written_at = w->now;
    }
}

static void write_some(world *w)
{
    struct iovec iov[IOV];
    const uint64_t pending = far__stream_pending(w->out);
    size_t count = far__stream_gather(w->out, w->now, iov, 1 + below(w, IOV)), total = 0;
    assert_int_equal(far__stream_pending(w->out), pending);
    for (size_t i = 0; i < count; i++)
        total += iov[i].iov_len;
    if (!total) {
        assert_true(!pending || w->may_fail);
        return;
    }
    size_t size = below(w, 2) ? total : 1 + below(w, below(w, 2) ? total : 40 < total ? 40 : total);
    wire *p = &w->wire;
    if (p->end + size > p->room) {
        p->room = (p->end + size) * 2;
        p->bytes = realloc(p->bytes, p->room);
    }
    for (size_t i = 0, left = size; left; i++) {
        size_t part = iov[i].iov_len < left ? iov[i].iov_len : left;
        memcpy(p->bytes + p->end, iov[i].iov_base, part);
        p->end += part;
        left -= part;
    }
    far__stream_written(w->out, size, &w->orphans);
    run_orphans(w);
    assert_int_equal(far__stream_pending(w->out), pending - size);
    note_started(w);
}

static far_status memory(size_t size, far_buffer **out, void *arg)
{
    (void)arg;
    assert_true(size >= FAR__SEGMENT_OWN);
    return far_buffer_alloc(size, out);
}

static void check_deadline(const message *m, const uint8_t *header)
{
    if (m->deadline == FAR__NEVER)
        return;
    int64_t left = m->deadline - m->written_at;
    assert_int_equal(far__load_u64(header + 8), left > 0 ? left : 1);
}

static far_status received(far__inbound *in, void *arg)
{
    world *w = arg;
    const uint8_t *header = in->header;
    assert_true(in->header_size >= HEADER_MIN);
    const size_t id = (size_t)far__load_u64(header);
    assert_true(id < w->count);
    message *m = &w->messages[id];
    assert_true(m->sent && !m->removed && !m->received);
    m->received = true;
    if (!m->bulk) {
        assert_true(id >= w->whole_received);
        w->whole_received = id + 1;
    }
    assert_int_equal(in->header_size, m->header_size);
    check_deadline(m, header);
    size_t from = m->deadline == FAR__NEVER ? 8 : 16;
    for (size_t i = from; i < m->header_size; i++)
        assert_true(header[i] == content(id, 99, i));
    assert_int_equal(in->segment_count, m->segment_count);
    for (size_t s = 0; s < m->segment_count; s++) {
        far__segment *seg = &in->segments[s];
        assert_int_equal(seg->size, m->sizes[s]);
        const uint8_t *data = seg->data;
        size_t wrong = 0;
        for (size_t i = 0; i < seg->size; i++)
            wrong += data[i] != content(id, s, i);
        assert_int_equal(wrong, 0);
        if (seg->buffer && below(w, 2)) {
            far_buffer_release(seg->buffer);
            seg->buffer = NULL;
        }
    }
    return FAR_OK;
}

static far_status read_some(world *w)
{
    struct iovec iov[2];
    wire *p = &w->wire;
    size_t count = far__stream_in_prepare(w->in, iov), size = 0;
    size_t most = below(w, 2) ? SIZE_MAX : 1 + below(w, below(w, 2) ? 30 : 100000);
    for (size_t i = 0; i < count; i++) {
        size_t part = p->end - p->head;
        if (part > iov[i].iov_len)
            part = iov[i].iov_len;
        if (part > most - size)
            part = most - size;
        if (part)
            memcpy(iov[i].iov_base, p->bytes + p->head, part);
        p->head += part;
        size += part;
        if (part < iov[i].iov_len)
            break;
    }
    if (p->head == p->end)
        p->head = p->end = 0;
    const char *why = NULL;
    far_status status = far__stream_in_read(w->in, size, &w->orphans, &why);
    run_orphans(w);
    if (status != FAR_OK) {
        assert_true(w->may_fail);
        assert_status(FAR_ENOMEM, status);
        assert_non_null(why);
    }
    return status;
}

static void check_end(world *w)
{
    assert_int_equal(far__stream_pending(w->out), 0);
    assert_false(far__stream_in_midway(w->in));
    for (size_t i = 0; i < w->count; i++) {
        message *m = &w->messages[i];
        assert_int_equal(m->buffers, 0);
        if (!m->sent || m->removed)
            assert_false(m->received);
        else if (!m->abandoned || !m->bulk)
            assert_true(m->received);
    }
}

/* All that happens once both halves exist. FAR_ENOMEM: the reading half gave up. */
static far_status play(world *w)
{
    size_t steps = 50 + below(w, 400), eagerness = 2 + below(w, 12);
    far_status status = FAR_OK;
    for (size_t i = 0; i < steps && status == FAR_OK; i++) {
        w->now += (int64_t)below(w, 100);
        size_t choice = below(w, 2 * eagerness + 3);
        if (choice < 2 && w->count < MESSAGES_MAX)
            put(w);
        else if (choice == 2)
            abandon(w);
        else if (choice % 2)
            write_some(w);
        else
            status = read_some(w);
    }
    while (status == FAR_OK && (far__stream_pending(w->out) || w->wire.end)) {
        write_some(w);
        status = read_some(w);
    }
    return status;
}

static void run(uint64_t seed, bool may_fail)
{
    world w = {.seed = seed * UINT64_C(0x9e3779b97f4a7c15) + 1, .now = 1000, .may_fail = may_fail};
    const far__stream_up up = {.memory = memory, .received = received, .arg = &w};
    far_status status = far__stream_out_create(&w.out);
    if (status == FAR_OK)
        status = far__stream_in_create(&up, 1 << 30, &w.in);
    if (status == FAR_OK) {
        status = play(&w);
        if (status == FAR_OK)
            check_end(&w);
    }
    assert_true(status == FAR_OK || may_fail);
    far__stream_out_destroy(w.out, &w.orphans);
    far__stream_in_destroy(w.in, &w.orphans);
    run_orphans(&w);
    for (size_t i = 0; i < w.count; i++)
        assert_int_equal(w.messages[i].buffers, 0);
    free(w.wire.bytes);
    assert_int_equal(far_memory_live(), 0);
}

static void messages_arrive_intact(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++)
        run(seed, false);
}

static void one_failed_allocation_changes_nothing_else(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        bool failed = true;
        for (size_t n = 1; failed; n += 1 + n / 8) {
            failmem_begin(n);
            run(seed, true);
            failed = failmem_failed();
            failmem_end();
        }
    }
}

static void no_memory_at_all_gives_errors_only(void **state)
{
    (void)state;
    for (size_t n = 1; n < 40; n++) {
        world w = {.seed = n + 77, .now = 1000, .may_fail = true};
        failmem_begin_from(n);
        const far__stream_up up = {.memory = memory, .received = received, .arg = &w};
        if (far__stream_out_create(&w.out) == FAR_OK &&
            far__stream_in_create(&up, 1 << 30, &w.in) == FAR_OK) {
            for (size_t i = 0; i < 60; i++) {
                if (w.count < MESSAGES_MAX && below(&w, 2))
                    put(&w);
                else if (below(&w, 2))
                    write_some(&w);
                else if (below(&w, 2))
                    abandon(&w);
                else if (read_some(&w) != FAR_OK)
                    break;
            }
        }
        far__stream_out_destroy(w.out, &w.orphans);
        far__stream_in_destroy(w.in, &w.orphans);
        run_orphans(&w);
        free(w.wire.bytes);
        assert_true(failmem_failed());
        failmem_end();
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(messages_arrive_intact),
    cmocka_unit_test(one_failed_allocation_changes_nothing_else),
    cmocka_unit_test(no_memory_at_all_gives_errors_only),
};

FAR_TEST_MAIN(tests)
