/* SPDX-License-Identifier: BSD-3-Clause
 * proto/tensor: a tensor's descriptor on the wire and its size in bytes, for proto/values.
 * Implements far_message_put_tensor and far_value_to_dlpack of farcall.h. Floor: proto. Thread: the
 * message's owner. */
#ifndef FAR_PROTO_TENSOR_H
#define FAR_PROTO_TENSOR_H

#include "proto/message.h"

enum { FAR__TENSOR_BYTES_MAX = 12 + 8 * FAR_TENSOR_DIMS_MAX };

/* Bytes of its elements, from dtype and shape. FAR_EVALUE: dimensions out of range, a negative one,
 * a dtype that is no whole number of bytes, or a size that does not fit. */
far_status far__tensor_size(const far_tensor *tensor, size_t *out) FAR_MUST_USE;
/* Writes the descriptor of a tensor that far__tensor_size accepts. */
void far__tensor_encode(const far_tensor *tensor, far__writer *w);
/* Reads one that must fill `r`, and checks it against the segment it names. FAR_EVALUE. */
far_status far__tensor_decode(far__reader *r, const far_message *message,
                              far_tensor *out) FAR_MUST_USE;

#endif
