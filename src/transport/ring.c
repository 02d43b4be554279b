/* SPDX-License-Identifier: BSD-3-Clause
 * transport/ring: the bytes of a stream that are ready to be written, frame by frame, in order.
 * Floor: transport. Thread: the connection's lock. */
#include "transport/ring.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
    BLOCK_SIZE = 65536,
    SPARE_MAX = 4,          /* blocks kept for later */
    GATHER_MAX = 1 << 20,   /* no socket takes more at once */
    QUEUE_ROOM_MIN = 64,    /* items */
    QUEUE_ROOM_KEEP = 8192, /* a longer queue is freed when it is empty */
    DEAD_MIN = 64,          /* removed frames that are not worth packing the ring */
};

/* Memory for copied bytes, filled from the front, reused when no piece is left in it. */
struct far__ring_block {
    far__ring_block *next;
    size_t size, used;
    size_t pieces;
    uint8_t data[];
};

typedef far__ring_block block;
typedef far__ring_frame frame;
typedef far__ring_queue queue;

typedef struct piece {
    const uint8_t *data;
    size_t size; /* not yet written */
    far_buffer *buffer;
    block *block;
} piece;

/* ------------------------------------------------------------------------------------ queues */

/* Makes room for one more item. */
static far_status queue_reserve(queue *q, size_t item)
{
    if (q->end < q->room)
        return FAR_OK;
    size_t count = q->end - q->head;
    if (q->head && q->head >= q->room / 2) {
        memmove(q->items, (char *)q->items + q->head * item, count * item);
        q->head = 0;
        q->end = count;
        return FAR_OK;
    }
    size_t room = q->room ? q->room * 2 : QUEUE_ROOM_MIN;
    void *items = far__mem_resize(q->items, room * item);
    if (!items)
        return FAR_ENOMEM;
    q->items = items;
    q->room = room;
    return FAR_OK;
}

static void queue_pop(queue *q)
{
    q->head++;
    q->popped++;
    if (q->head < q->end)
        return;
    q->head = q->end = 0;
    if (q->room > QUEUE_ROOM_KEEP) {
        far__mem_free(q->items);
        q->items = NULL;
        q->room = 0;
    }
}

static inline uint64_t queue_end(const queue *q)
{
    return q->popped + (q->end - q->head);
}

static inline frame *frame_at(const far__ring *r, size_t index)
{
    return (frame *)r->frames.items + index;
}

static inline piece *piece_at(const far__ring *r, size_t index)
{
    return (piece *)r->pieces.items + index;
}

static inline size_t first_piece(const far__ring *r, const frame *f)
{
    return r->pieces.head + (size_t)(f->first - r->pieces.popped);
}

/* ------------------------------------------------------------------------------------ blocks */

static void block_unuse(far__ring *r, block *b)
{
    if (--b->pieces)
        return;
    if (b == r->current) {
        b->used = 0;
    } else if (b->size == BLOCK_SIZE && r->spare_count < SPARE_MAX) {
        b->next = r->spares;
        r->spares = b;
        r->spare_count++;
    } else {
        far__mem_free(b);
    }
}

static block *block_create(size_t size)
{
    block *b = far__mem_alloc(sizeof *b + size);
    if (b)
        *b = (block){.size = size};
    return b;
}

/* A block with `size` bytes left; the current one if possible. */
static block *block_with(far__ring *r, size_t size)
{
    block *b = r->current;
    if (b && b->size - b->used >= size)
        return b;
    if (size > BLOCK_SIZE)
        return block_create(size);
    if (r->spares) {
        b = r->spares;
        r->spares = b->next;
        r->spare_count--;
        b->used = 0;
    } else {
        b = block_create(BLOCK_SIZE);
        if (!b)
            return NULL;
    }
    /* The old one lives on through its pieces: without any it would have been empty. */
    assert(!r->current || r->current->pieces);
    r->current = b;
    return b;
}

/* ------------------------------------------------------------------------------------ pieces */

static void piece_drop(far__ring *r, piece *p, far_buffer **orphans)
{
    far__buffer_drop(p->buffer, orphans);
    if (p->block)
        block_unuse(r, p->block);
    p->buffer = NULL;
    p->block = NULL;
}

/* A new piece of `size` bytes in one block, to be filled; NULL: no memory. */
static uint8_t *add_run(far__ring *r, size_t size)
{
    if (queue_reserve(&r->pieces, sizeof(piece)) != FAR_OK)
        return NULL;
    block *b = block_with(r, size);
    if (!b)
        return NULL;
    uint8_t *at = b->data + b->used;
    b->used += size;
    b->pieces++;
    *piece_at(r, r->pieces.end++) = (piece){.data = at, .size = size, .block = b};
    return at;
}

/* Lengthens the last piece by up to `size` bytes, if its block has room behind it. */
static size_t lengthen(far__ring *r, size_t size, uint8_t **at)
{
    piece *p = piece_at(r, r->pieces.end - 1);
    block *b = r->current;
    if (!b || p->block != b || p->data + p->size != b->data + b->used)
        return 0;
    size_t part = b->size - b->used < size ? b->size - b->used : size;
    *at = b->data + b->used;
    b->used += part;
    p->size += part;
    return part;
}

static far_status add_copy(far__ring *r, const uint8_t *data, size_t size)
{
    while (size) {
        uint8_t *at;
        size_t part = lengthen(r, size, &at);
        if (!part) {
            const block *b = r->current;
            part = b && b->used < b->size ? b->size - b->used : BLOCK_SIZE;
            if (part > size)
                part = size;
            at = add_run(r, part);
            if (!at)
                return FAR_ENOMEM;
        }
        memcpy(at, data, part);
        data += part;
        size -= part;
    }
    return FAR_OK;
}

/* ---------------------------------------------------------------------------------- building */

far_status far__ring_begin(far__ring *r, size_t size, uint8_t **run)
{
    far_status status = queue_reserve(&r->frames, sizeof(frame));
    if (status != FAR_OK)
        return status;
    r->mark = queue_end(&r->pieces);
    uint8_t *at = add_run(r, size);
    if (!at)
        return FAR_ENOMEM;
    *run = at;
    return FAR_OK;
}

far_status far__ring_add(far__ring *r, const void *data, size_t size, far_buffer *buffer)
{
    if (!buffer || size < FAR__RING_COPY_BELOW)
        return add_copy(r, data, size);
    if (!r->spill) {
        r->spill = far__mem_alloc(FAR__FRAME_MAX);
        if (!r->spill)
            return FAR_ENOMEM;
    }
    far_status status = queue_reserve(&r->pieces, sizeof(piece));
    if (status != FAR_OK)
        return status;
    *piece_at(r, r->pieces.end++) =
        (piece){.data = data, .size = size, .buffer = far_buffer_hold(buffer)};
    return FAR_OK;
}

void far__ring_undo(far__ring *r)
{
    far_buffer *none = NULL;
    while (queue_end(&r->pieces) > r->mark)
        piece_drop(r, piece_at(r, --r->pieces.end), &none);
    assert(!none);
}

void far__ring_finish(far__ring *r, const far__ring_frame *f)
{
    frame *to = frame_at(r, r->frames.end++);
    *to = (frame){.token = f->token,
                  .first = r->mark,
                  .pieces = (size_t)(queue_end(&r->pieces) - r->mark),
                  .deadline = f->deadline,
                  .stamp = f->stamp,
                  .owner = f->owner};
    for (size_t i = r->pieces.end - to->pieces; i < r->pieces.end; i++)
        to->left += piece_at(r, i)->size;
    assert(to->left <= FAR__FRAME_MAX);
    r->bytes += to->left;
}

/* ------------------------------------------------------------------------------------ frames */

far__ring_frame *far__ring_find(const far__ring *r, uint64_t token)
{
    size_t low = r->frames.head, high = r->frames.end;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (frame_at(r, middle)->token < token)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == r->frames.end)
        return NULL;
    frame *f = frame_at(r, low);
    return f->token == token && !f->dead ? f : NULL;
}

/* Moves what is alive over what is dead. */
static void pack(far__ring *r)
{
    size_t to = r->frames.head, piece_to = r->pieces.head;
    for (size_t i = r->frames.head; i < r->frames.end; i++) {
        frame f = *frame_at(r, i);
        if (f.dead)
            continue;
        memmove(piece_at(r, piece_to), piece_at(r, first_piece(r, &f)), f.pieces * sizeof(piece));
        f.first = r->pieces.popped + (piece_to - r->pieces.head);
        piece_to += f.pieces;
        *frame_at(r, to++) = f;
    }
    r->frames.end = to;
    r->pieces.end = piece_to;
    r->dead = 0;
}

/* Removes dead frames that are first, or too many: a peer that takes nothing must not make the ring
 * grow when calls to it time out one after the other. */
static void tidy(far__ring *r)
{
    while (r->frames.head < r->frames.end && frame_at(r, r->frames.head)->dead) {
        for (size_t n = frame_at(r, r->frames.head)->pieces; n; n--)
            queue_pop(&r->pieces);
        queue_pop(&r->frames);
        r->dead--;
    }
    if (r->dead > DEAD_MIN && r->dead > (r->frames.end - r->frames.head) / 2)
        pack(r);
}

static void spill(far__ring *r, frame *f, far_buffer **orphans)
{
    size_t at = first_piece(r, f), used = 0;
    for (size_t i = at; i < at + f->pieces; i++) {
        piece *p = piece_at(r, i);
        if (!p->buffer)
            continue;
        assert(used + p->size <= FAR__FRAME_MAX);
        memcpy(r->spill + used, p->data, p->size);
        p->data = r->spill + used;
        used += p->size;
        piece_drop(r, p, orphans);
    }
}

void far__ring_drop(far__ring *r, far__ring_frame *f, far_buffer **orphans)
{
    if (f->begun) {
        spill(r, f, orphans);
        return;
    }
    size_t at = first_piece(r, f);
    for (size_t i = at; i < at + f->pieces; i++)
        piece_drop(r, piece_at(r, i), orphans);
    r->bytes -= f->left;
    f->dead = true;
    r->dead++;
    tidy(r);
}

void far__ring_fini(far__ring *r, far_buffer **orphans)
{
    for (size_t i = r->pieces.head; i < r->pieces.end; i++)
        piece_drop(r, piece_at(r, i), orphans);
    while (r->spares) {
        block *b = r->spares;
        r->spares = b->next;
        far__mem_free(b);
    }
    far__mem_free(r->current);
    far__mem_free(r->spill);
    far__mem_free(r->frames.items);
    far__mem_free(r->pieces.items);
    *r = (far__ring){0};
}

/* ----------------------------------------------------------------------------------- writing */

static void stamp(const frame *f, int64_t now)
{
    /* What was written of a frame, even one byte, must fit what follows. */
    if (f->begun || f->deadline == FAR__NEVER)
        return;
    far__store_u64(f->stamp, f->deadline > now ? (uint64_t)(f->deadline - now) : 1);
}

size_t far__ring_gather(far__ring *r, int64_t now, struct iovec *iov, size_t room)
{
    size_t count = 0, bytes = 0;
    const piece *before = NULL;
    for (size_t i = r->frames.head; i < r->frames.end && bytes < GATHER_MAX; i++) {
        const frame *f = frame_at(r, i);
        if (f->dead)
            continue;
        stamp(f, now);
        bytes += f->left;
        const piece *p = piece_at(r, first_piece(r, f));
        for (const piece *end = p + f->pieces; p < end; before = p++) {
            if (before && p->block == before->block && p->buffer == before->buffer &&
                p->data == before->data + before->size) {
                iov[count - 1].iov_len += p->size;
                continue;
            }
            if (count == room)
                return count;
            iov[count++] = (struct iovec){(void *)(uintptr_t)p->data, p->size};
        }
    }
    return count;
}

size_t far__ring_written(far__ring *r, size_t size, far_buffer **orphans, void **owner,
                         bool *finished)
{
    assert(r->frames.head < r->frames.end);
    frame *f = frame_at(r, r->frames.head);
    const size_t taken = f->left < size ? f->left : size;
    f->begun = true;
    f->left -= taken;
    r->bytes -= taken;
    for (size_t left = taken; left;) {
        piece *p = piece_at(r, r->pieces.head);
        size_t part = p->size < left ? p->size : left;
        p->data += part;
        p->size -= part;
        left -= part;
        if (p->size)
            break;
        piece_drop(r, p, orphans);
        queue_pop(&r->pieces);
        f->first++;
        f->pieces--;
    }
    *owner = f->owner;
    *finished = !f->left;
    if (!f->left) {
        queue_pop(&r->frames);
        tidy(r);
    }
    return taken;
}
