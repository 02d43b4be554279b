/* SPDX-License-Identifier: BSD-3-Clause
 * proto/wire: the header of every message, encode and decode side by side. The transport's prefix
 * (sizes, segment table, chunks) is transport/stream's; the handshake's frames are
 * proto/handshake's. Floor: proto. Thread: none of its own. */
#ifndef FAR_PROTO_WIRE_H
#define FAR_PROTO_WIRE_H

#include "base/buf.h"

enum {
    FAR__WIRE_VERSION = 1,
    FAR__WIRE_HEADER_MAX = 32768,    /* bytes; larger ones are refused */
    FAR__WIRE_NAME_MAX = 1024,       /* bytes of a method name (py:module:qualname is long) */
    FAR__WIRE_RANGES_MAX = 64,       /* of an acknowledgement */
    FAR__WIRE_REMAINING_AT = 16,     /* offset in a request's header of the remaining time */
    FAR__WIRE_RESERVED_MAX = 262144, /* bytes: body of a call to a reserved method, or its reply */
    FAR__WIRE_REF_SIZE = 48,         /* bytes of one reference in the list of a REQUEST or REPLY */
    FAR__WIRE_REFS_MAX = 512,        /* references of a message; with the longest name they fit */
};

typedef enum far__wire_type {
    FAR__WIRE_REQUEST = 1,
    FAR__WIRE_REPLY = 2,
    FAR__WIRE_ERROR = 3,  /* a reply whose body says what went wrong */
    FAR__WIRE_CANCEL = 4, /* the caller has given up `call_id` */
    FAR__WIRE_CREDIT = 5,
    FAR__WIRE_PING = 6,
    FAR__WIRE_PONG = 7,
    FAR__WIRE_ACK = 8,     /* retried calls whose results are no longer needed */
    FAR__WIRE_DIAL_ME = 9, /* to a caller: please dial a connection that carries my calls to you */
    FAR__WIRE_RESEND = 10, /* short id unknown: `call_id` was not run, send it with its name */
} far__wire_type;

enum {
    FAR__WIRE_RESERVED_METHOD = 1, /* a "far." method or its reply: needs no credit */
    FAR__WIRE_RETRY = 2,           /* `sequence` is set; may be a repeat */
    FAR__WIRE_HAS_REMAINING = 4,   /* `remaining` is set */
};

typedef enum far__wire_naming {
    FAR__WIRE_BY_NAME = 0,
    FAR__WIRE_BY_NAME_AND_ID = 1,
    FAR__WIRE_BY_ID = 2,
} far__wire_naming;

typedef struct far__wire_range {
    uint64_t first, last; /* inclusive */
} far__wire_range;

/* One start of one worker. */
typedef struct far__wire_worker {
    far_worker_id id;
    uint64_t incarnation;
} far__wire_worker;

typedef struct far__wire_ref_id {
    far__wire_worker maker; /* who drew the counter */
    uint64_t counter;       /* from 1 */
} far__wire_ref_id;

typedef enum far__wire_ref_kind {
    FAR__WIRE_REF_PASSED = 0,
    FAR__WIRE_REF_CREATED = 1, /* REQUEST only, once: the result shall stay under this id */
} far__wire_ref_kind;

/* A reference that a message carries. The parent of the new fork is a fork of the message's sender, who
 * drew the fork's number too, so neither's worker is on the wire. */
typedef struct far__wire_ref {
    uint8_t kind;
    far__wire_worker owner;
    far__wire_ref_id id; /* with `owner`, the reference's name */
    uint64_t fork;       /* of the copy that travels: a counter of the sender's, from 1 */
} far__wire_ref;

/* Which fields are on the wire depends on the type; the others are zero after decoding (of `ack` only
 * the first ack_count are set). */
typedef struct far__wire_header {
    uint8_t type;
    uint8_t flags;
    uint8_t encoding;  /* REQUEST, REPLY: far_encoding; ERROR: FAR_ENCODING_VALUES */
    uint8_t naming;    /* REQUEST */
    uint64_t call_id;  /* REQUEST, REPLY, ERROR, CANCEL, RESEND; PING, PONG: a token */
    int64_t remaining; /* REQUEST: ns left, > 0 if set; stamped when first written */
    uint32_t short_id; /* REQUEST by id */
    uint64_t sequence; /* RETRY: number among the retried calls of this pair */
    const char *name;  /* REQUEST by name; borrowed, not zero-terminated */
    uint16_t name_size;
    uint16_t ref_count; /* REQUEST, REPLY: references carried */
    uint64_t
        ref_number; /* with ref_count > 0: of this message among those with references, from 1 */
    const uint8_t *refs;   /* their bytes, ref_count * FAR__WIRE_REF_SIZE; borrowed */
    uint64_t credit_bytes; /* CREDIT: totals since the connection began */
    uint64_t credit_calls;
    uint64_t ack_mark; /* ACK: all sequences below are finished */
    uint16_t ack_count;
    far__wire_range ack[FAR__WIRE_RANGES_MAX]; /* ACK: finished ones above the mark, ascending */
} far__wire_header;

/* Appends to `w`. Only a programmer's mistake or a too small `w` (w->failed) can go wrong.
 * A REQUEST's remaining time lies at FAR__WIRE_REMAINING_AT from the header's begin. */
void far__wire_encode(const far__wire_header *header, far__writer *w);
/* Bytes that far__wire_encode will write. */
size_t far__wire_size(const far__wire_header *header);
/* FAR_EPROTO: malformed. `why` becomes a static text that names the field, or NULL on success. `out`
 * borrows from `data`. */
far_status far__wire_decode(const void *data, size_t size, far__wire_header *out,
                            const char **why) FAR_MUST_USE;

/* One reference of the list, as in far__wire_header.refs. */
void far__wire_put_ref(const far__wire_ref *ref, far__writer *w);
/* Reference `i` of a decoded header (i < ref_count); far__wire_decode has found it well-formed. */
far__wire_ref far__wire_ref_at(const far__wire_header *header, size_t i);
/* 12 bytes each; nothing is checked but the reader's end. */
void far__wire_put_worker(const far__wire_worker *worker, far__writer *w);
far__wire_worker far__wire_get_worker(far__reader *r);

#endif
