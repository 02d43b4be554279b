/* SPDX-License-Identifier: BSD-3-Clause
 * proto/message: the far_message struct: encoding, body, segments.
 * Floor: proto. Thread: the message's owner. */
#ifndef FAR_PROTO_MESSAGE_H
#define FAR_PROTO_MESSAGE_H

#include "base/buf.h"

enum { FAR__MESSAGE_INLINE = 232 }; /* a small call's body needs no allocation of its own */

struct far_message {
    far_encoding encoding;
    uint8_t *body; /* inline_body, or grown memory, or body_buffer's bytes */
    size_t body_size, body_room;
    far_buffer *body_buffer; /* set: the body is that buffer's bytes and cannot grow */
    far_buffer **segments;
    size_t segment_count, segment_room;
    void *values; /* decoded values and their memory, owned by proto/values; NULL before decoding */
    void *refs;   /* what it carries of references: the agent's; NULL: nothing */
    void (*refs_end)(far_message *m); /* gives that up; called by far__message_destroy */
    uint8_t inline_body[FAR__MESSAGE_INLINE];
};

/* Frees the message. Buffers whose free_fn must not run here (far__buffer_unref) are pushed on the
 * list *orphans for whoever may run them. */
void far__message_destroy(far_message *message, far_buffer **orphans);
/* A message of the same body and segments; these are shared, references are not taken along. */
far_status far__message_clone(const far_message *from, far_message **out) FAR_MUST_USE;
/* Body and segments together. */
uint64_t far__message_size(const far_message *message);

#endif
