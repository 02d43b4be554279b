/* SPDX-License-Identifier: BSD-3-Clause
 * transport/ring: the bytes of a stream that are ready to be written, frame by frame, in order. Of
 * stream_out only.
 *
 * Two queues: frames, and the pieces of memory that their bytes lie in. A piece is held by a buffer, or
 * by the block of copied bytes that it points into; a piece without either lies in the spill. Only the
 * first frame can be begun, so one spill of a frame's size is enough to finish an abandoned frame from;
 * it is got before the first buffer enters the ring, so giving buffers back never needs memory.
 * Floor: transport. Thread: the connection's lock. */
#ifndef FAR_TRANSPORT_RING_H
#define FAR_TRANSPORT_RING_H

#include "transport/stream.h"

enum {
    FAR__RING_COPY_BELOW = 4096, /* shorter runs of a buffer's bytes are copied */
};

typedef struct far__ring_frame {
    uint64_t token; /* ascending along the ring */
    uint64_t first; /* number of the first of its pieces that are left */
    size_t pieces;
    size_t left; /* bytes not yet written */
    int64_t deadline;
    uint8_t *stamp; /* where the remaining time goes */
    void *owner;
    bool begun; /* the first byte was written */
    bool dead;  /* removed */
} far__ring_frame;

typedef struct far__ring_queue {
    void *items;
    size_t head, end, room;
    uint64_t popped; /* in all: the number of the item at head */
} far__ring_queue;

typedef struct far__ring_block far__ring_block;

/* Zero-initialised is empty and valid. */
typedef struct far__ring {
    far__ring_queue frames, pieces;
    size_t dead;    /* of the frames */
    uint64_t bytes; /* not yet written */
    uint64_t mark;  /* first piece of the frame that is being built */
    far__ring_block *current, *spares;
    size_t spare_count;
    uint8_t *spill;
} far__ring;

void far__ring_fini(far__ring *r, far_buffer **orphans);

/* Building a frame: begin, add ..., then finish, or undo after a failure of add. *run: `size` bytes in
 * one run, to be filled by the caller. FAR_ENOMEM: nothing was begun. */
far_status far__ring_begin(far__ring *r, size_t size, uint8_t **run) FAR_MUST_USE;
/* Copies, or holds `buffer` (which may be NULL) once more. FAR_ENOMEM. */
far_status far__ring_add(far__ring *r, const void *data, size_t size,
                         far_buffer *buffer) FAR_MUST_USE;
/* The buffers that were added must still be held by somebody else. */
void far__ring_undo(far__ring *r);
/* Uses token, deadline, stamp and owner of `frame`. */
void far__ring_finish(far__ring *r, const far__ring_frame *frame);

/* The frame with this token, valid until the ring changes; NULL: not in the ring. */
far__ring_frame *far__ring_find(const far__ring *r, uint64_t token);
/* Lets go of the frame's buffers: if it was begun the rest is sent out of the spill, else it is taken
 * out of the ring. Not between a gather and its written. */
void far__ring_drop(far__ring *r, far__ring_frame *frame, far_buffer **orphans);

size_t far__ring_gather(far__ring *r, int64_t now, struct iovec *iov, size_t room);
/* Up to `size` bytes, of the first frame only, were written: returns how many. *finished: all of it.
 * *owner is the frame's. */
size_t far__ring_written(far__ring *r, size_t size, far_buffer **orphans, void **owner,
                         bool *finished);

#endif
