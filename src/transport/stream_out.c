/* SPDX-License-Identifier: BSD-3-Clause
 * transport/stream_out: the sending half of a stream: cuts messages into frames and says which bytes
 * are to be written next.
 * Floor: transport. Thread: the connection's lock. */
#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "transport/ring.h"
#include "transport/stream.h"

enum { ENTRY_SIZE = 16 /* of the segment table */ };

/* A message longer than a frame. */
typedef struct bulk {
    far__list link; /* of turns or waiting; alone while one of its frames is in the ring */
    uint64_t token;
    uint32_t stream;
    bool taking_turns; /* counted in turn_count */
    bool opened;       /* BEGIN was committed to the ring */
    bool begun;        /* the first byte of BEGIN was written */
    bool last;         /* its last frame was committed */
    bool aborting;     /* nothing but ABORT follows */
    int64_t deadline;
    size_t deadline_at;
    size_t at, offset;  /* the next byte to be committed */
    size_t released;    /* segments before this one are no longer held */
    uint64_t left;      /* segment bytes not yet committed */
    far_buffer *copies; /* table and header, then the segments that were copied */
    size_t head_size;   /* of table and header */
    size_t segment_count;
    far__segment segments[];
} bulk;

struct far__stream_out {
    far__ring ring;
    uint64_t token_next;
    uint32_t stream_next;
    far__map bulks;           /* by token */
    far__list turns, waiting; /* of bulks */
    size_t turn_count;        /* never more than the receiver bears */
    uint64_t bulk_bytes;      /* on the wire, of all that is not committed */
    bulk *committed;          /* whose frame is in the ring: never more than one */
    uint64_t committed_token; /* of that frame */
};

static void write_prefix(far__writer *w, size_t size, far__frame_kind kind, size_t segment_count,
                         size_t header_size, uint32_t stream)
{
    far__write_u32(w, (uint32_t)size);
    far__write_u8(w, (uint8_t)kind);
    far__write_u8(w, 0);
    far__write_u16(w, (uint16_t)segment_count);
    far__write_u32(w, (uint32_t)header_size);
    far__write_u32(w, stream);
}

static void write_head(far__writer *w, const far__outgoing *m, far__segment_kind kind)
{
    for (size_t i = 0; i < m->segment_count; i++) {
        far__write_u64(w, m->segments[i].size);
        far__write_u64(w, kind); /* and the 7 zero bytes */
    }
    far__write_bytes(w, m->header, m->header_size);
}

/* -------------------------------------------------------------------------------------- bulk */

/* Bytes on the wire of what is not committed yet. */
static uint64_t bulk_wire(const bulk *b)
{
    const uint64_t body_max = FAR__FRAME_MAX - FAR__FRAME_PREFIX;
    if (b->aborting)
        return b->last ? 0 : FAR__FRAME_PREFIX;
    uint64_t bytes = b->left + (b->opened ? 0 : b->head_size);
    return bytes + (bytes + body_max - 1) / body_max * FAR__FRAME_PREFIX;
}

static void bulk_release(bulk *b, size_t end, far_buffer **orphans)
{
    for (; b->released < end; b->released++) {
        far__buffer_drop(b->segments[b->released].buffer, orphans);
        b->segments[b->released].buffer = NULL;
    }
}

static void bulk_free(bulk *b, far_buffer **orphans)
{
    bulk_release(b, b->segment_count, orphans);
    far__buffer_drop(b->copies, orphans);
    far__mem_free(b);
}

static void bulk_end(far__stream_out *s, bulk *b, far_buffer **orphans)
{
    s->bulk_bytes -= bulk_wire(b);
    if (b->taking_turns)
        s->turn_count--;
    far__list_remove(&b->link);
    far__map_remove(&s->bulks, b->token);
    bulk_free(b, orphans);
}

/* Adds the next `body` bytes of `b` to the frame that is built. The cursor moves only if all went
 * well. */
static far_status add_body(far__stream_out *s, bulk *b, size_t body)
{
    size_t at = b->at, offset = b->offset;
    for (size_t left = body; left;) {
        const far__segment *seg = &b->segments[at];
        size_t part = seg->size - offset < left ? seg->size - offset : left;
        far_status status =
            far__ring_add(&s->ring, (const uint8_t *)seg->data + offset, part, seg->buffer);
        if (status != FAR_OK)
            return status;
        left -= part;
        offset += part;
        if (offset == seg->size) {
            at++;
            offset = 0;
        }
    }
    b->at = at;
    b->offset = offset;
    b->left -= body;
    return FAR_OK;
}

/* Moves the next frame of `b` into the ring. FAR_ENOMEM: nothing has changed. */
static far_status commit(far__stream_out *s, bulk *b)
{
    const far__frame_kind kind = b->aborting ? FAR__FRAME_ABORT
                                 : b->opened ? FAR__FRAME_MORE
                                             : FAR__FRAME_BEGIN;
    const bool begin = kind == FAR__FRAME_BEGIN;
    const uint64_t wire = bulk_wire(b);
    const size_t head = begin ? b->head_size : 0, table = b->segment_count * ENTRY_SIZE;
    size_t body = FAR__FRAME_MAX - FAR__FRAME_PREFIX - head;
    if (body > b->left)
        body = (size_t)b->left;

    uint8_t *run;
    far_status status = far__ring_begin(&s->ring, FAR__FRAME_PREFIX + head, &run);
    if (status != FAR_OK)
        return status;
    status = add_body(s, b, body);
    if (status != FAR_OK) {
        far__ring_undo(&s->ring);
        return status;
    }
    far__writer w = far__writer_over(run, FAR__FRAME_PREFIX + head);
    write_prefix(&w, head + body, kind, begin ? b->segment_count : 0, begin ? head - table : 0,
                 b->stream);
    far__write_bytes(&w, b->copies ? b->copies->data : NULL, head);
    assert(!w.failed);
    far__ring_frame f = {.token = s->token_next++, .deadline = FAR__NEVER, .owner = b};
    if (begin && b->deadline != FAR__NEVER) {
        f.deadline = b->deadline;
        f.stamp = run + FAR__FRAME_PREFIX + table + b->deadline_at;
    }
    far__ring_finish(&s->ring, &f);
    b->opened = true;
    b->last = b->left == 0;
    s->committed = b;
    s->committed_token = f.token;
    far__list_remove(&b->link);
    s->bulk_bytes = s->bulk_bytes - wire + bulk_wire(b);
    return FAR_OK;
}

/* Keeps one bulk frame in the ring, so that neither small messages nor bulk ones can starve the
 * others. */
static void take_turn(far__stream_out *s)
{
    while (s->turn_count < FAR__STREAM_BULK_MAX && !far__list_empty(&s->waiting)) {
        bulk *b = far__container_of(far__list_pop(&s->waiting), bulk, link);
        far__list_add_tail(&s->turns, &b->link);
        b->taking_turns = true;
        s->turn_count++;
    }
    if (s->committed || far__list_empty(&s->turns))
        return;
    if (commit(s, far__container_of(s->turns.next, bulk, link)) != FAR_OK)
        return; /* the next gather tries again */
}

/* The committed frame left the ring, written or removed. */
static void turn_over(far__stream_out *s)
{
    far__list_add_tail(&s->turns, &s->committed->link);
    s->committed = NULL;
}

static void abandon_bulk(far__stream_out *s, bulk *b, far_buffer **orphans)
{
    if (b->aborting)
        return;
    if (s->committed == b) {
        far__ring_frame *f = far__ring_find(&s->ring, s->committed_token);
        const bool stays = f->begun;
        far__ring_drop(&s->ring, f, orphans);
        if (!stays) {
            b->last = false;
            turn_over(s);
        }
    }
    if (!b->begun) {
        bulk_end(s, b, orphans);
        return;
    }
    bulk_release(b, b->segment_count, orphans);
    far__buffer_drop(b->copies, orphans);
    b->copies = NULL;
    if (b->last)
        return; /* the frame that was begun completes the message */
    s->bulk_bytes -= bulk_wire(b);
    b->aborting = true;
    b->left = 0;
    s->bulk_bytes += bulk_wire(b);
}

/* ----------------------------------------------------------------------------------- putting */

static far_status put_whole(far__stream_out *s, const far__outgoing *m, size_t body)
{
    const size_t table = m->segment_count * ENTRY_SIZE;
    const size_t head = FAR__FRAME_PREFIX + table + m->header_size;
    uint8_t *run;
    far_status status = far__ring_begin(&s->ring, head, &run);
    if (status != FAR_OK)
        return status;
    far__writer w = far__writer_over(run, head);
    write_prefix(&w, head - FAR__FRAME_PREFIX + body, FAR__FRAME_WHOLE, m->segment_count,
                 m->header_size, 0);
    write_head(&w, m, FAR__SEGMENT_INLINE);
    assert(!w.failed);
    for (size_t i = 0; i < m->segment_count; i++) {
        const far__segment *seg = &m->segments[i];
        status = far__ring_add(&s->ring, seg->data, seg->size, seg->buffer);
        if (status != FAR_OK) {
            far__ring_undo(&s->ring);
            return status;
        }
    }
    far__ring_frame f = {.token = s->token_next++, .deadline = m->deadline};
    if (m->deadline != FAR__NEVER)
        f.stamp = run + FAR__FRAME_PREFIX + table + m->deadline_at;
    far__ring_finish(&s->ring, &f);
    return FAR_OK;
}

static bool is_copied(const far__segment *seg)
{
    return !seg->buffer || seg->size < FAR__RING_COPY_BELOW;
}

static void bulk_fill(bulk *b, const far__outgoing *m, far__writer *w)
{
    b->segment_count = m->segment_count;
    for (size_t i = 0; i < m->segment_count; i++) {
        far__segment seg = m->segments[i];
        if (is_copied(&seg)) {
            const void *copy = w->data + w->used;
            far__write_bytes(w, seg.data, seg.size);
            seg.data = copy;
            seg.buffer = b->copies;
        }
        far_buffer_hold(seg.buffer);
        b->segments[i] = seg;
        b->left += seg.size;
    }
}

static far_status put_bulk(far__stream_out *s, const far__outgoing *m)
{
    const size_t head = m->segment_count * ENTRY_SIZE + m->header_size;
    size_t copied = head;
    for (size_t i = 0; i < m->segment_count; i++)
        copied += is_copied(&m->segments[i]) ? m->segments[i].size : 0;
    bulk *b = far__mem_zalloc(sizeof *b + m->segment_count * sizeof(far__segment));
    if (!b)
        return FAR_ENOMEM;
    far_status status = far_buffer_alloc(copied, &b->copies);
    if (status != FAR_OK)
        goto err_free_bulk;
    b->token = s->token_next;
    status = far__map_put(&s->bulks, b->token, b);
    if (status != FAR_OK)
        goto err_release_copies;
    s->token_next++;
    b->stream = s->stream_next++;
    b->deadline = m->deadline;
    b->deadline_at = m->deadline_at;
    b->head_size = head;
    far__writer w = far__writer_over(b->copies->data, copied);
    write_head(&w, m, FAR__SEGMENT_CHUNKED);
    bulk_fill(b, m, &w);
    assert(!w.failed);
    far__list_add_tail(&s->waiting, &b->link);
    s->bulk_bytes += bulk_wire(b);
    return FAR_OK;

err_release_copies:
    far_buffer_release(b->copies);
err_free_bulk:
    far__mem_free(b);
    return status;
}

static far_status check(const far__outgoing *m, size_t *body)
{
    assert(m->deadline == FAR__NEVER ||
           (m->header_size >= 8 && m->deadline_at <= m->header_size - 8));
    if (m->header_size > FAR__HEADER_MAX || m->segment_count > FAR__SEGMENTS_MAX)
        return FAR_ETOOBIG;
    size_t sum = 0;
    for (size_t i = 0; i < m->segment_count; i++) {
        /* Half of the address space, so that no other sum can wrap. */
        if (m->segments[i].size > SIZE_MAX / 2 - sum)
            return FAR_ETOOBIG;
        sum += m->segments[i].size;
    }
    *body = sum;
    return FAR_OK;
}

far_status far__stream_put(far__stream_out *s, const far__outgoing *message, uint64_t *token,
                           far_buffer **orphans)
{
    size_t body;
    far_status status = check(message, &body);
    if (status == FAR_OK) {
        const uint64_t mine = s->token_next;
        size_t head =
            FAR__FRAME_PREFIX + message->segment_count * ENTRY_SIZE + message->header_size;
        status = body <= FAR__FRAME_MAX - head ? put_whole(s, message, body) : put_bulk(s, message);
        if (status == FAR_OK)
            *token = mine;
    }
    /* What is still needed was held once more. */
    for (size_t i = 0; i < message->segment_count; i++)
        far__buffer_drop(message->segments[i].buffer, orphans);
    return status;
}

/* ------------------------------------------------------------------------------------ the rest */

far_status far__stream_out_create(far__stream_out **out)
{
    far__stream_out *s = far__mem_zalloc(sizeof *s);
    if (!s)
        return FAR_ENOMEM;
    s->token_next = 1;
    s->stream_next = 1;
    far__list_init(&s->turns);
    far__list_init(&s->waiting);
    *out = s;
    return FAR_OK;
}

void far__stream_out_destroy(far__stream_out *s, far_buffer **orphans)
{
    if (!s)
        return;
    far__ring_fini(&s->ring, orphans);
    size_t at = 0;
    uint64_t token;
    void *b;
    while (far__map_next(&s->bulks, &at, &token, &b))
        bulk_free(b, orphans);
    far__map_fini(&s->bulks);
    far__mem_free(s);
}

uint64_t far__stream_pending(const far__stream_out *s)
{
    return s->ring.bytes + s->bulk_bytes;
}

size_t far__stream_gather(far__stream_out *s, int64_t now, struct iovec *iov, size_t room)
{
    take_turn(s);
    return far__ring_gather(&s->ring, now, iov, room);
}

void far__stream_written(far__stream_out *s, size_t size, far_buffer **orphans)
{
    while (size) {
        void *owner;
        bool finished;
        size -= far__ring_written(&s->ring, size, orphans, &owner, &finished);
        bulk *b = owner;
        if (!b)
            continue;
        b->begun = true;
        if (!finished)
            break;
        bulk_release(b, b->at, orphans);
        turn_over(s);
        if (b->last)
            bulk_end(s, b, orphans);
    }
}

bool far__stream_started(const far__stream_out *s, uint64_t token)
{
    const bulk *b = far__map_get(&s->bulks, token);
    if (b)
        return b->begun;
    const far__ring_frame *f = far__ring_find(&s->ring, token);
    return f ? f->begun : true;
}

void far__stream_abandon(far__stream_out *s, uint64_t token, far_buffer **orphans)
{
    bulk *b = far__map_get(&s->bulks, token);
    if (b) {
        abandon_bulk(s, b, orphans);
        return;
    }
    far__ring_frame *f = far__ring_find(&s->ring, token);
    if (f && !f->owner)
        far__ring_drop(&s->ring, f, orphans);
}
