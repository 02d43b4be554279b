/* SPDX-License-Identifier: BSD-3-Clause
 * transport/stream: cuts messages into frames for a byte stream and joins them again. Pure: it says which
 * bytes to write next and where to read the next ones to; somebody else owns the socket.
 *
 * A frame is a prefix of 16 bytes, little-endian, and at most FAR__FRAME_MAX bytes with it:
 *   0 u32 size           bytes that follow the prefix
 *   4 u8  kind           far__frame_kind
 *   5 u8  zero
 *   6 u16 segment_count  WHOLE, BEGIN
 *   8 u32 header_size    WHOLE, BEGIN
 *  12 u32 stream         BEGIN, MORE, ABORT: which of the messages under way; WHOLE: zero
 * WHOLE and BEGIN go on with segment_count entries of 16 bytes (u64 size, u8 far__segment_kind, 7 zero
 * bytes), then the header, then segment bytes in order. MORE is segment bytes only. Table and header
 * always fit into the first frame.
 *
 * Design notes. What was put in small is copied or referenced at once into the *ring* of bytes in
 * order. A message longer than a frame waits in the *bulk* list, and its next frame moves into the ring
 * (at its tail, in a gather) only when no other bulk frame is in it, taking turns with other bulk
 * messages: so a small message is behind at most one frame, neither kind starves the other, and an
 * abandoned message has at most one frame committed. A frame that was begun is then finished from a
 * private copy, which needs no allocation; one that was not is removed. So the user's memory is free at
 * once. A begun message that is only one frame (or whose last frame was begun) is delivered all the
 * same.
 * Floor: transport. Thread: out: the connection's lock; in: whoever reads the connection. */
#ifndef FAR_TRANSPORT_STREAM_H
#define FAR_TRANSPORT_STREAM_H

#include <sys/uio.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/map.h"

enum {
    FAR__FRAME_PREFIX = 16,
    FAR__FRAME_MAX = 262144,
    FAR__SEGMENTS_MAX = 8192,
    FAR__HEADER_MAX = 32768,
    FAR__SEGMENT_OWN = 4096, /* a received segment of this size or more gets memory of its own */
    FAR__STREAM_BULK_MAX = 4096, /* received messages under way on one connection */
};

typedef enum far__frame_kind {
    FAR__FRAME_WHOLE = 1,
    FAR__FRAME_BEGIN = 2,
    FAR__FRAME_MORE = 3,
    FAR__FRAME_ABORT = 4,
} far__frame_kind;

typedef enum far__segment_kind {
    FAR__SEGMENT_INLINE = 0,  /* in WHOLE */
    FAR__SEGMENT_CHUNKED = 1, /* in BEGIN */
    FAR__SEGMENT_PULL = 2,    /* the receiver reads the sender's memory: not built yet */
    FAR__SEGMENT_SHARED = 3,  /* a mapped buffer: not built yet */
} far__segment_kind;

typedef struct far__segment {
    const void *data;
    size_t size;
    far_buffer *buffer; /* out: held until written, NULL: copied at once. in: see far__inbound */
} far__segment;

/* One message to be sent. */
typedef struct far__outgoing {
    const void *header; /* copied */
    size_t header_size;
    const far__segment *segments; /* references are taken (also on failure) */
    size_t segment_count;
    int64_t deadline;   /* FAR__NEVER: none; else the 8 bytes at deadline_at in the header are */
    size_t deadline_at; /* overwritten with the ns that are left when the first byte is written */
} far__outgoing;

typedef struct far__stream_out far__stream_out;

far_status far__stream_out_create(far__stream_out **out) FAR_MUST_USE;
/* Drops everything. Buffers whose free_fn must not run here go to *orphans, here and below. */
void far__stream_out_destroy(far__stream_out *s, far_buffer **orphans);
/* Queues a message. *token names it for the two functions below. FAR_ETOOBIG: header or segment count
 * over the limits; FAR_ENOMEM: nothing queued. */
far_status far__stream_put(far__stream_out *s, const far__outgoing *message, uint64_t *token,
                           far_buffer **orphans) FAR_MUST_USE;
/* Bytes that can be written now without a further put (bulk messages included). */
uint64_t far__stream_pending(const far__stream_out *s);
/* Fills up to `room` vectors with the next bytes; returns how many. Stamps remaining times. If the
 * memory for a bulk message's frame is short, what is in the ring is given and the rest tried later:
 * 0 while bytes are pending means that. Between a gather and its written only puts may come. */
size_t far__stream_gather(far__stream_out *s, int64_t now, struct iovec *iov, size_t room);
/* The first `size` gathered bytes were written. */
void far__stream_written(far__stream_out *s, size_t size, far_buffer **orphans);
/* Was the first byte of this message written? (Also true of a token that abandon removed: ask before.) */
bool far__stream_started(const far__stream_out *s, uint64_t token);
/* Gives the message up as far as it is not written: not started: removed, never delivered; else see the
 * design notes. Afterwards no buffer of it is held. Written or unknown: nothing happens. */
void far__stream_abandon(far__stream_out *s, uint64_t token, far_buffer **orphans);

/* A received message, valid during the upcall only. A segment with a buffer was read into memory of its
 * own: the receiver takes that reference by setting .buffer to NULL; one without lies in the parse
 * buffer and must be copied. */
typedef struct far__inbound {
    const void *header;
    size_t header_size;
    far__segment *segments;
    size_t segment_count;
} far__inbound;

typedef struct far__stream_in far__stream_in;

typedef struct far__stream_up {
    /* Memory for a segment of `size` bytes (>= FAR__SEGMENT_OWN). */
    far_status (*memory)(size_t size, far_buffer **out, void *arg);
    /* A whole message. Not FAR_OK: the stream is given up with that status. */
    far_status (*received)(far__inbound *message, void *arg);
    void *arg;
} far__stream_up;

/* `message_max`: bytes of all segments of one message. */
far_status far__stream_in_create(const far__stream_up *up, uint64_t message_max,
                                 far__stream_in **out) FAR_MUST_USE;
void far__stream_in_destroy(far__stream_in *s, far_buffer **orphans);
void far__stream_in_limit(far__stream_in *s, uint64_t message_max);
/* Where the next bytes are to be read to: up to 2 vectors (memory of a large segment, then the parse
 * buffer of 64 KiB); returns how many; 0 after a failure. */
size_t far__stream_in_prepare(far__stream_in *s, struct iovec iov[2]);
/* `size` bytes were read there. Calls up for each message completed. FAR_EPROTO, FAR_ETOOBIG,
 * FAR_EUNSUPPORTED, FAR_ENOMEM: give the connection up; *why is a static text. */
far_status far__stream_in_read(far__stream_in *s, size_t size, far_buffer **orphans,
                               const char **why) FAR_MUST_USE;
/* True if some message is under way (so an end of file cuts it). */
bool far__stream_in_midway(const far__stream_in *s);

#endif
