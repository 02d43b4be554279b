/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: proto/values. Input: number of segments, their sizes (a byte each), the body. All bytes
 * that a value points to are read; what was read is written and read again; and the body is tried as
 * an error reply. */
#include <dlpack/dlpack.h>
#include <stdlib.h>

#include "base/mem.h"
#include "proto/values.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEGMENTS_MAX = 4 };

static void check(bool ok)
{
    if (!ok)
        abort();
}

static unsigned sum(const void *data, size_t size)
{
    unsigned total = 0;
    for (size_t i = 0; i < size; i++)
        total += ((const uint8_t *)data)[i];
    return total;
}

static volatile unsigned sink; /* so that the reads are not optimised away */

static void visit_tensor(const far_message *from, far_message *to, const far_value *v)
{
    DLManagedTensor *view;
    check(far_value_to_dlpack(from, v, &view) == FAR_OK);
    sink += sum(v->as.tensor->data, v->as.tensor->size);
    check(far_message_put_tensor(to, view) == FAR_OK);
}

/* Writes the value to `to`. */
static void visit(const far_message *from, far_message *to, const far_value *v)
{
    size_t values = 0;
    far_status status = FAR_OK;
    switch (v->kind) {
    case FAR_NIL: status = far_message_put_nil(to); break;
    case FAR_BOOL: status = far_message_put_bool(to, v->as.boolean); break;
    case FAR_INT: status = far_message_put_int(to, v->as.integer); break;
    case FAR_UINT: status = far_message_put_uint(to, v->as.unsigned_integer); break;
    case FAR_FLOAT: status = far_message_put_float(to, v->as.real); break;
    case FAR_STRING: status = far_message_put_string(to, v->as.bytes.data, v->as.bytes.size); break;
    case FAR_BYTES: status = far_message_put_bytes(to, v->as.bytes.data, v->as.bytes.size); break;
    case FAR_LIST:
        status = far_message_put_list(to, (uint32_t)v->as.list.count);
        values = v->as.list.count;
        break;
    case FAR_MAP:
        status = far_message_put_map(to, (uint32_t)v->as.list.count);
        values = 2 * v->as.list.count;
        break;
    case FAR_TENSOR: visit_tensor(from, to, v); break;
    }
    check(status == FAR_OK);
    for (size_t i = 0; i < values; i++)
        visit(from, to, &v->as.list.items[i]);
}

static void read_values(far_message *message)
{
    const far_value *values, *again;
    size_t count, count_again;
    if (far_message_values(message, &values, &count) != FAR_OK)
        return;
    far_message *copy;
    check(far_message_create(FAR_ENCODING_VALUES, &copy) == FAR_OK);
    for (size_t i = 0; i < count; i++)
        visit(message, copy, &values[i]);
    check(far_message_values(copy, &again, &count_again) == FAR_OK);
    check(count == count_again);
    far_message_discard(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    far__reader r = far__reader_over(data, size);
    far_message *message;
    check(far_message_create(FAR_ENCODING_VALUES, &message) == FAR_OK);
    unsigned segments = far__read_u8(&r) % (SEGMENTS_MAX + 1);
    for (unsigned i = 0; i < segments; i++) {
        far_buffer *buffer;
        check(far_buffer_alloc(far__read_u8(&r), &buffer) == FAR_OK);
        for (size_t n = 0; n < far_buffer_size(buffer); n++)
            ((uint8_t *)far_buffer_data(buffer))[n] = (uint8_t)n;
        check(far_message_add_segment(message, buffer, NULL) == FAR_OK);
    }
    size_t left = far__reader_left(&r);
    check(far_message_append(message, far__read_bytes(&r, left), left) == FAR_OK);
    read_values(message);
    far__values_error error;
    if (far__values_get_error(message, &error) == FAR_OK)
        far_message_discard(error.payload);
    far_message_discard(message);
    check(far__mem_live() == 0);
    return 0;
}
