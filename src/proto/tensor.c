/* SPDX-License-Identifier: BSD-3-Clause
 * proto/tensor: descriptors of tensors, and DLPack tensors to and from a message's segments.
 * Floor: proto. Thread: the message's owner. */
#include "proto/tensor.h"

#include <dlpack/dlpack.h>
#include <string.h>

#include "base/mem.h"

static size_t element_size(const far_tensor *tensor)
{
    unsigned bits = (unsigned)tensor->dtype_bits * tensor->dtype_lanes;
    return bits % 8 ? 0 : bits / 8;
}

far_status far__tensor_size(const far_tensor *tensor, size_t *out)
{
    size_t size = element_size(tensor);
    if (!size || tensor->ndim < 0 || tensor->ndim > FAR_TENSOR_DIMS_MAX)
        return FAR_EVALUE;
    bool empty = false;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t extent = tensor->shape[i];
        if (extent < 0)
            return FAR_EVALUE;
        if (!extent)
            empty = true;
        /* An empty tensor's other extents must fit too: they become strides. */
        else if (__builtin_mul_overflow(size, (size_t)extent, &size) || size > PTRDIFF_MAX)
            return FAR_EVALUE;
    }
    *out = empty ? 0 : size;
    return FAR_OK;
}

void far__tensor_encode(const far_tensor *tensor, far__writer *w)
{
    far__write_u8(w, tensor->dtype_code);
    far__write_u8(w, tensor->dtype_bits);
    far__write_u16(w, tensor->dtype_lanes);
    far__write_u32(w, tensor->segment);
    far__write_u32(w, (uint32_t)tensor->ndim);
    for (int32_t i = 0; i < tensor->ndim; i++)
        far__write_u64(w, (uint64_t)tensor->shape[i]);
}

far_status far__tensor_decode(far__reader *r, const far_message *message, far_tensor *out)
{
    memset(out, 0, sizeof *out);
    out->dtype_code = far__read_u8(r);
    out->dtype_bits = far__read_u8(r);
    out->dtype_lanes = far__read_u16(r);
    out->segment = far__read_u32(r);
    uint32_t ndim = far__read_u32(r);
    if (ndim > FAR_TENSOR_DIMS_MAX)
        return FAR_EVALUE;
    out->ndim = (int32_t)ndim;
    for (uint32_t i = 0; i < ndim; i++)
        out->shape[i] = (int64_t)far__read_u64(r);
    if (r->failed || far__reader_left(r))
        return FAR_EVALUE;
    const far_buffer *segment = far_message_segment(message, out->segment);
    if (!segment || far__tensor_size(out, &out->size) != FAR_OK || out->size != segment->size)
        return FAR_EVALUE;
    out->data = segment->data;
    return FAR_OK;
}

/* ------------------------------------------------------------------------- from DLPack: sending */

static void run_deleter(void *arg)
{
    DLManagedTensor *managed = arg;
    if (managed->deleter)
        managed->deleter(managed);
}

/* Copies dtype and shape; FAR_EVALUE if the tensor is none that can be sent. */
static far_status describe(const DLTensor *dl, far_tensor *out)
{
    if (dl->device.device_type != kDLCPU && dl->device.device_type != kDLCUDAHost &&
        dl->device.device_type != kDLROCMHost)
        return FAR_EVALUE;
    if (dl->ndim < 0 || dl->ndim > FAR_TENSOR_DIMS_MAX || (dl->ndim && !dl->shape))
        return FAR_EVALUE;
    memset(out, 0, sizeof *out);
    out->dtype_code = dl->dtype.code;
    out->dtype_bits = dl->dtype.bits;
    out->dtype_lanes = dl->dtype.lanes;
    out->ndim = dl->ndim;
    for (int32_t i = 0; i < dl->ndim; i++)
        out->shape[i] = dl->shape[i];
    far_status status = far__tensor_size(out, &out->size);
    if (status != FAR_OK)
        return status;
    if (out->size) {
        if (!dl->data)
            return FAR_EVALUE;
        out->data = (char *)dl->data + dl->byte_offset;
    }
    return FAR_OK;
}

/* How many of the first dimensions are not laid out as in a dense row-major tensor: 0 if it is
 * dense. The dimensions after them form one run of bytes: *run elements. */
static int32_t loose_dims(const DLTensor *dl, int64_t *run)
{
    int64_t expected = 1;
    int32_t i = dl->ndim;
    for (; i > 0; i--) {
        int64_t extent = dl->shape[i - 1];
        /* Nobody ever steps along a dimension of one. */
        if (extent != 1 && dl->strides && dl->strides[i - 1] != expected)
            break;
        expected *= extent;
    }
    *run = expected;
    return i;
}

/* Copies `count` runs of `size` bytes that lie `step` bytes apart. Fixed sizes let the compiler turn
 * the copy of an element into one move. */
static char *copy_runs(char *to, const char *from, int64_t count, ptrdiff_t step, size_t size)
{
#define COPY_RUNS(n)                                                                               \
    for (int64_t i = 0; i < count; i++, to += (n))                                                 \
    memcpy(to, from + i * step, (n))
    switch (size) {
    case 1: COPY_RUNS(1); break;
    case 2: COPY_RUNS(2); break;
    case 4: COPY_RUNS(4); break;
    case 8: COPY_RUNS(8); break;
    default: COPY_RUNS(size); break;
    }
#undef COPY_RUNS
    return to;
}

/* Packs the elements in row-major order; the tensor is not empty and has loose dimensions. */
static void pack(const DLTensor *dl, const far_tensor *tensor, int32_t loose, int64_t run, char *to)
{
    const ptrdiff_t element = (ptrdiff_t)element_size(tensor);
    const size_t run_size = (size_t)run * (size_t)element;
    const char *from = tensor->data;
    int64_t at[FAR_TENSOR_DIMS_MAX] = {0};
    const int32_t inner = loose - 1;
    for (;;) {
        to = copy_runs(to, from, dl->shape[inner], dl->strides[inner] * element, run_size);
        int32_t i = inner - 1;
        for (; i >= 0; i--) {
            from += dl->strides[i] * element;
            if (++at[i] < dl->shape[i])
                break;
            from -= dl->strides[i] * element * dl->shape[i];
            at[i] = 0;
        }
        if (i < 0)
            return;
    }
}

/* A buffer of the elements, dense and row-major; the tensor goes with it, also on failure. */
static far_status buffer_of(DLManagedTensor *managed, const far_tensor *tensor, far_buffer **out)
{
    const DLTensor *dl = &managed->dl_tensor;
    int64_t run = 0;
    int32_t loose = tensor->size ? loose_dims(dl, &run) : 0;
    if (!loose) {
        far_status status =
            far_buffer_wrap(tensor->data, tensor->size, run_deleter, managed, 0, out);
        if (status != FAR_OK)
            run_deleter(managed);
        return status;
    }
    far_status status = far_buffer_alloc(tensor->size, out);
    if (status == FAR_OK)
        pack(dl, tensor, loose, run, (*out)->data);
    run_deleter(managed);
    return status;
}

far_status far_message_put_tensor(far_message *message, struct DLManagedTensor *managed)
{
    if (!managed)
        return FAR_EINVAL;
    far_tensor tensor;
    far_status status = FAR_OK;
    if (!message || message->encoding != FAR_ENCODING_VALUES)
        status = FAR_EINVAL;
    else
        status = describe(&managed->dl_tensor, &tensor);
    if (status != FAR_OK) {
        run_deleter(managed);
        return status;
    }
    far_buffer *buffer;
    status = buffer_of(managed, &tensor, &buffer);
    if (status != FAR_OK)
        return status;
    return far_message_put_buffer(message, &tensor, buffer);
}

/* -------------------------------------------------------------------------- to DLPack: receiving */

/* A view that owns its shape and a reference of the segment. */
typedef struct view {
    DLManagedTensor managed;
    far_buffer *segment;
    int64_t shape[FAR_TENSOR_DIMS_MAX], strides[FAR_TENSOR_DIMS_MAX];
} view;

static void delete_view(DLManagedTensor *managed)
{
    view *v = managed->manager_ctx;
    far_buffer *segment = v->segment;
    far__mem_free(v);
    far_buffer_release(segment);
}

far_status far_value_to_dlpack(const far_message *message, const far_value *value,
                               struct DLManagedTensor **out)
{
    if (!message || !value || !out)
        return FAR_EINVAL;
    if (value->kind != FAR_TENSOR)
        return FAR_EVALUE;
    const far_tensor *tensor = value->as.tensor;
    far_buffer *segment = far_message_segment(message, tensor->segment);
    if (!segment || segment->data != tensor->data)
        return FAR_EVALUE;
    view *v = far__mem_zalloc(sizeof *v);
    if (!v)
        return FAR_ENOMEM;
    int64_t stride = 1;
    for (int32_t i = tensor->ndim; i-- > 0;) {
        v->shape[i] = tensor->shape[i];
        v->strides[i] = stride;
        stride *= tensor->shape[i] ? tensor->shape[i] : 1;
    }
    v->segment = far_buffer_hold(segment);
    v->managed = (DLManagedTensor){
        .dl_tensor = {.data = tensor->data,
                      .device = {.device_type = kDLCPU},
                      .ndim = tensor->ndim,
                      .dtype = {tensor->dtype_code, tensor->dtype_bits, tensor->dtype_lanes},
                      .shape = v->shape,
                      .strides = v->strides},
        .manager_ctx = v,
        .deleter = delete_view,
    };
    *out = &v->managed;
    return FAR_OK;
}
