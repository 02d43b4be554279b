/* SPDX-License-Identifier: BSD-3-Clause
 * proto/values: MessagePack values and tensor descriptors in a message: what all languages can
 * read. Implements far_message_put_*, far_message_values and far_value_to_dlpack of farcall.h by
 * msgpack-c. A tensor is an extension value of type FAR__VALUES_EXT_TENSOR: u8 code, u8 bits, u16
 * lanes, u32 segment, u32 ndim, ndim x i64 shape, little-endian. Floor: proto. Thread: the
 * message's owner. */
#ifndef FAR_PROTO_VALUES_H
#define FAR_PROTO_VALUES_H

#include "proto/message.h"

enum {
    FAR__VALUES_EXT_TENSOR = 1,
    FAR__VALUES_DEPTH_MAX = 64, /* nesting of lists and maps; deeper is FAR_EVALUE */
};

/* Frees what far_message_values decoded; called by far__message_destroy. NULL is accepted. */
void far__values_free(void *values);

/* Body of an ERROR message: [status, type name, text, traceback, payload encoding or nil]; a
 * payload's body and segments follow as segments 0, 1, ... Takes `payload`. FAR_ENOMEM. */
far_status far__values_put_error(far_message *message, far_status error, const char *type_name,
                                 const char *text, const char *traceback,
                                 far_message *payload) FAR_MUST_USE;

typedef struct far__values_error {
    far_status status;
    const char *type_name, *text,
        *traceback;       /* zero-terminated, never NULL; live with the message */
    far_message *payload; /* the caller's, or NULL */
} far__values_error;

/* Reads one. FAR_EPROTO: malformed. */
far_status far__values_get_error(far_message *message, far__values_error *out) FAR_MUST_USE;

#endif
