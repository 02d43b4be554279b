/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/tensor: tensors in values, from and to DLPack. */
#include "support/test.h"

#include <dlpack/dlpack.h>
#include <stdlib.h>
#include <string.h>

#include "proto/tensor.h"
#include "proto/values.h"
#include "support/failmem.h"

static int deleted;

static void count_delete(DLManagedTensor *managed)
{
    deleted++;
    free(managed);
}

static far_message *new_values(void)
{
    far_message *message;
    assert_ok(far_message_create(FAR_ENCODING_VALUES, &message));
    deleted = 0;
    return message;
}

/* Borrows data, shape and strides. */
static DLManagedTensor *dlpack(void *data, int ndim, int64_t *shape, int64_t *strides,
                               DLDataType dtype)
{
    DLManagedTensor *managed = calloc(1, sizeof *managed);
    managed->dl_tensor = (DLTensor){.data = data,
                                    .device = {.device_type = kDLCPU},
                                    .ndim = ndim,
                                    .dtype = dtype,
                                    .shape = shape,
                                    .strides = strides};
    managed->deleter = count_delete;
    return managed;
}

static const DLDataType int32 = {kDLInt, 32, 1};

static const far_tensor *read_tensor(far_message *message)
{
    const far_value *v;
    size_t count;
    assert_ok(far_message_values(message, &v, &count));
    assert_int_equal(count, 1);
    assert_int_equal(v->kind, FAR_TENSOR);
    return v->as.tensor;
}

static void a_dense_tensor_is_sent_from_where_it_lies(void **state)
{
    (void)state;
    int32_t data[24] = {0};
    int64_t shape[] = {2, 3, 4};
    int64_t strides[] = {12, 4, 1};
    for (int with_strides = 0; with_strides < 2; with_strides++) {
        far_message *message = new_values();
        assert_ok(far_message_put_tensor(
            message, dlpack(data, 3, shape, with_strides ? strides : NULL, int32)));
        assert_int_equal(deleted, 0);
        const far_tensor *t = read_tensor(message);
        assert_int_equal(t->dtype_code, kDLInt);
        assert_int_equal(t->dtype_bits, 32);
        assert_int_equal(t->dtype_lanes, 1);
        assert_int_equal(t->ndim, 3);
        assert_memory_equal(t->shape, shape, sizeof shape);
        assert_int_equal(t->segment, 0);
        assert_int_equal(t->size, sizeof data);
        assert_ptr_equal(t->data, data);
        far_message_discard(message);
        assert_int_equal(deleted, 1);
    }
}

static void the_deleter_waits_for_a_users_thread(void **state)
{
    (void)state;
    int32_t data[1] = {0};
    int64_t shape[] = {1};
    far_message *message = new_values();
    assert_ok(far_message_put_tensor(message, dlpack(data, 1, shape, NULL, int32)));
    far_buffer *orphans = NULL;
    far__message_destroy(message, &orphans);
    assert_int_equal(deleted, 0);
    far__buffers_free(orphans);
    assert_int_equal(deleted, 1);
}

static void a_dense_part_needs_no_copy(void **state)
{
    (void)state;
    int32_t data[24] = {0};
    /* Rows 1 to 2 of 4 x 6, seen as 1 x 2 x 6: the stride of the one says nothing. */
    int64_t shape[] = {1, 2, 6};
    int64_t strides[] = {-77, 6, 1};
    DLManagedTensor *managed = dlpack(data, 3, shape, strides, int32);
    managed->dl_tensor.byte_offset = 6 * sizeof *data;
    far_message *message = new_values();
    assert_ok(far_message_put_tensor(message, managed));
    assert_ptr_equal(read_tensor(message)->data, data + 6);
    assert_int_equal(read_tensor(message)->size, 12 * sizeof *data);
    far_message_discard(message);
    assert_int_equal(deleted, 1);
}

/* Sends a view of `data` (elements of `size` bytes) and compares with a walk over all indices. */
static void check_packed(uint8_t *data, ptrdiff_t origin, int ndim, int64_t *shape,
                         int64_t *strides, DLDataType dtype)
{
    size_t size = (size_t)dtype.bits * dtype.lanes / 8;
    DLManagedTensor *managed = dlpack(data, ndim, shape, strides, dtype);
    managed->dl_tensor.byte_offset = (uint64_t)origin * size;
    far_message *message = new_values();
    assert_ok(far_message_put_tensor(message, managed));
    assert_int_equal(deleted, 1); /* packed, so it is the maker's again */
    const far_tensor *t = read_tensor(message);
    int64_t total = 1;
    for (int i = 0; i < ndim; i++)
        total *= shape[i];
    assert_int_equal(t->size, (size_t)total * size);
    for (int64_t n = 0; n < total; n++) {
        ptrdiff_t at = origin;
        int64_t rest = n;
        for (int i = ndim; i-- > 0;) {
            at += (rest % shape[i]) * strides[i];
            rest /= shape[i];
        }
        assert_memory_equal((uint8_t *)t->data + (size_t)n * size, data + (size_t)at * size, size);
    }
    far_message_discard(message);
    assert_int_equal(deleted, 1);
}

static void strided_tensors_are_packed(void **state)
{
    (void)state;
    static uint8_t data[4096];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 31 + i / 256);
    static const DLDataType types[] = {{kDLUInt, 8, 1},   {kDLFloat, 16, 1}, {kDLFloat, 32, 1},
                                       {kDLFloat, 64, 1}, {kDLFloat, 8, 3},  {kDLComplex, 128, 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        DLDataType type = types[i];
        check_packed(data, 0, 2, (int64_t[]){5, 7}, (int64_t[]){1, 5}, type);  /* transposed */
        check_packed(data, 0, 2, (int64_t[]){4, 3}, (int64_t[]){10, 1}, type); /* columns */
        check_packed(data, 40, 1, (int64_t[]){9}, (int64_t[]){-2}, type);      /* backwards */
        check_packed(data, 0, 2, (int64_t[]){3, 4}, (int64_t[]){0, 1}, type);  /* broadcast */
        check_packed(data, 3, 4, (int64_t[]){2, 1, 3, 4}, (int64_t[]){24, 9, 8, 2}, type);
        check_packed(data, 60, 3, (int64_t[]){2, 3, 4}, (int64_t[]){-16, 5, 1}, type);
        check_packed(data, 0, 3, (int64_t[]){3, 1, 4}, (int64_t[]){20, 7, 1}, type);
    }
    int64_t shape[FAR_TENSOR_DIMS_MAX], strides[FAR_TENSOR_DIMS_MAX];
    for (int i = 0; i < FAR_TENSOR_DIMS_MAX; i++) {
        shape[i] = i % 5 == 0 ? 2 : 1;
        strides[i] = i;
    }
    check_packed(data, 0, FAR_TENSOR_DIMS_MAX, shape, strides, int32);
}

static void empty_and_zero_dimensional_tensors_work(void **state)
{
    (void)state;
    int32_t number = 5;
    far_message *message = new_values();
    assert_ok(far_message_put_tensor(message, dlpack(&number, 0, NULL, NULL, int32)));
    const far_tensor *t = read_tensor(message);
    assert_int_equal(t->ndim, 0);
    assert_int_equal(t->size, 4);
    assert_ptr_equal(t->data, &number);
    far_message_discard(message);
    assert_int_equal(deleted, 1);

    int64_t shape[] = {3, 0, 5}, strides[] = {9, 9, 9};
    message = new_values();
    assert_ok(far_message_put_tensor(message, dlpack(NULL, 3, shape, strides, int32)));
    t = read_tensor(message);
    assert_int_equal(t->size, 0);
    assert_memory_equal(t->shape, shape, sizeof shape);
    far_message_discard(message);
    assert_int_equal(deleted, 1);
}

static void a_tensor_without_deleter_is_nobodys(void **state)
{
    (void)state;
    int32_t data[2] = {1, 2};
    int64_t shape[] = {2};
    DLManagedTensor managed = {.dl_tensor = {.data = data,
                                             .device = {.device_type = kDLCPU},
                                             .ndim = 1,
                                             .dtype = int32,
                                             .shape = shape}};
    far_message *message = new_values();
    assert_ok(far_message_put_tensor(message, &managed));
    far_message_discard(message);
}

static void refuse_put(far_status status, DLManagedTensor *managed)
{
    far_message *message = new_values();
    assert_status(status, far_message_put_tensor(message, managed));
    assert_int_equal(deleted, 1);
    assert_int_equal(far_message_body_size(message), 0);
    assert_int_equal(far_message_segment_count(message), 0);
    far_message_discard(message);
}

static void tensors_that_cannot_be_sent_are_refused(void **state)
{
    (void)state;
    int32_t data[4] = {0};
    int64_t shape[FAR_TENSOR_DIMS_MAX + 1];
    for (int i = 0; i <= FAR_TENSOR_DIMS_MAX; i++)
        shape[i] = 1;
    DLManagedTensor *managed = dlpack(data, 1, shape, NULL, int32);
    managed->dl_tensor.device.device_type = kDLCUDA;
    refuse_put(FAR_EVALUE, managed);
    refuse_put(FAR_EVALUE, dlpack(data, FAR_TENSOR_DIMS_MAX + 1, shape, NULL, int32));
    refuse_put(FAR_EVALUE, dlpack(data, -1, shape, NULL, int32));
    refuse_put(FAR_EVALUE, dlpack(data, 1, NULL, NULL, int32));
    refuse_put(FAR_EVALUE, dlpack(NULL, 1, shape, NULL, int32));
    refuse_put(FAR_EVALUE, dlpack(data, 1, shape, NULL, (DLDataType){kDLInt, 4, 1}));
    refuse_put(FAR_EVALUE, dlpack(data, 1, shape, NULL, (DLDataType){kDLInt, 0, 1}));
    refuse_put(FAR_EVALUE, dlpack(data, 1, shape, NULL, (DLDataType){kDLInt, 32, 0}));
    shape[0] = -1;
    refuse_put(FAR_EVALUE, dlpack(data, 1, shape, NULL, int32));
    shape[0] = shape[1] = INT64_C(1) << 31;
    refuse_put(FAR_EVALUE, dlpack(data, 2, shape, NULL, int32));
    far_message *raw;
    deleted = 0;
    shape[0] = 1;
    assert_ok(far_message_create(FAR_ENCODING_RAW, &raw));
    assert_status(FAR_EINVAL, far_message_put_tensor(raw, dlpack(data, 1, shape, NULL, int32)));
    assert_int_equal(deleted, 1);
    far_message_discard(raw);
    assert_status(FAR_EINVAL, far_message_put_tensor(NULL, dlpack(data, 1, shape, NULL, int32)));
    assert_int_equal(deleted, 2);
    far_message *message = new_values();
    assert_status(FAR_EINVAL, far_message_put_tensor(message, NULL));
    far_message_discard(message);
}

static void the_deleter_runs_once_whatever_fails(void **state)
{
    (void)state;
    int32_t data[8] = {0};
    int64_t shape[] = {2, 2}, dense[] = {2, 1}, loose[] = {4, 2};
    for (int packed = 0; packed < 2; packed++) {
        bool failed = true;
        for (size_t n = 2; failed; n++) {
            failmem_begin(n);
            far_message *message = new_values();
            far_status status = far_message_put_tensor(
                message, dlpack(data, 2, shape, packed ? loose : dense, int32));
            failed = failmem_failed();
            assert_status(failed ? FAR_ENOMEM : FAR_OK, status);
            if (failed) {
                assert_int_equal(deleted, 1);
                assert_int_equal(far_message_segment_count(message), 0);
            }
            far_message_discard(message);
            assert_int_equal(deleted, 1);
            failmem_end();
            assert_true(failed || n > 3);
        }
    }
}

static void a_failed_descriptor_takes_its_segment_back(void **state)
{
    (void)state;
    static char text[FAR__MESSAGE_INLINE - 8];
    int32_t data[1] = {0};
    int64_t shape[] = {1};
    failmem_begin(4); /* message, buffer, segments, and then the body that must grow */
    far_message *message = new_values();
    assert_ok(far_message_put_bytes(message, text, sizeof text));
    assert_status(FAR_ENOMEM, far_message_put_tensor(message, dlpack(data, 1, shape, NULL, int32)));
    assert_true(failmem_failed());
    assert_int_equal(deleted, 1);
    assert_int_equal(far_message_segment_count(message), 0);
    far_message_discard(message);
    failmem_end();
}

static void a_buffer_is_a_tensor_of_its_exact_size(void **state)
{
    (void)state;
    far_message *message = new_values();
    far_tensor t = {.dtype_code = kDLFloat,
                    .dtype_bits = 64,
                    .dtype_lanes = 1,
                    .ndim = 2,
                    .shape = {2, 3},
                    .segment = 99,
                    .size = 1};
    for (size_t size = 47; size <= 49; size++) {
        far_buffer *buffer;
        assert_ok(far_buffer_alloc(size, &buffer));
        assert_status(size == 48 ? FAR_OK : FAR_EINVAL,
                      far_message_put_buffer(message, &t, buffer));
    }
    far_buffer *buffer;
    assert_ok(far_buffer_alloc(1, &buffer));
    assert_status(FAR_EINVAL, far_message_put_buffer(message, NULL, buffer));
    assert_status(FAR_EINVAL, far_message_put_buffer(message, &t, NULL));
    assert_int_equal(far_message_segment_count(message), 1);
    assert_int_equal(read_tensor(message)->segment, 0);
    assert_int_equal(read_tensor(message)->size, 48);
    far_message_discard(message);
}

/* A body of one descriptor, beside a segment of 24 bytes. */
static far_status read_descriptor(const uint8_t *bytes, size_t size)
{
    uint8_t body[512] = {0xc8, (uint8_t)(size >> 8), (uint8_t)size, FAR__VALUES_EXT_TENSOR};
    memcpy(body + 4, bytes, size);
    far_message *message = new_values();
    far_buffer *buffer;
    assert_ok(far_buffer_alloc(24, &buffer));
    assert_ok(far_message_add_segment(message, buffer, NULL));
    assert_ok(far_message_append(message, body, 4 + size));
    const far_value *v;
    size_t count;
    far_status status = far_message_values(message, &v, &count);
    far_message_discard(message);
    return status;
}

static void descriptors_are_checked_against_their_segment(void **state)
{
    (void)state;
    far_tensor good = {
        .dtype_code = kDLInt, .dtype_bits = 32, .dtype_lanes = 1, .ndim = 2, .shape = {2, 3}};
    uint8_t bytes[FAR__TENSOR_BYTES_MAX + 8] = {0};
    far__writer w = far__writer_over(bytes, sizeof bytes);
    far__tensor_encode(&good, &w);
    assert_int_equal(w.used, 12 + 16);
    static const uint8_t expected[] = {0, 32, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 0,
                                       0, 0,  0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0};
    assert_memory_equal(bytes, expected, sizeof expected);
    assert_ok(read_descriptor(bytes, w.used));
    for (size_t size = 0; size < w.used + 8; size++) {
        if (size != w.used)
            assert_status(FAR_EVALUE, read_descriptor(bytes, size));
    }
    static const struct {
        size_t at;
        uint8_t value;
    } changes[] = {
        {1, 31},                                    /* bits */
        {1, 0},    {1, 64},    {2, 0},              /* lanes */
        {2, 2},    {3, 1},     {4, 1},              /* segment */
        {7, 0x80}, {8, 1},                          /* dimensions */
        {8, 3},    {8, 33},    {11, 0x80}, {12, 1}, /* shape */
        {12, 3},   {19, 0x80}, {19, 0x40}, {27, 0xff},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint8_t before = bytes[changes[i].at];
        bytes[changes[i].at] = changes[i].value;
        assert_status(FAR_EVALUE, read_descriptor(bytes, w.used));
        bytes[changes[i].at] = before;
    }
    assert_ok(read_descriptor(bytes, w.used));
}

static void products_that_overflow_are_refused(void **state)
{
    (void)state;
    size_t size;
    far_tensor t = {
        .dtype_bits = 8, .dtype_lanes = 1, .ndim = 3, .shape = {INT64_MAX, INT64_MAX, 0}};
    assert_status(FAR_EVALUE, far__tensor_size(&t, &size));
    t.shape[1] = 1;
    assert_ok(far__tensor_size(&t, &size));
    assert_int_equal(size, 0);
    t.shape[2] = 2;
    assert_status(FAR_EVALUE, far__tensor_size(&t, &size));
    t.shape[0] = INT64_C(1) << 32;
    t.shape[1] = INT64_C(1) << 32;
    t.shape[2] = 1;
    assert_status(FAR_EVALUE, far__tensor_size(&t, &size));
    t.dtype_lanes = UINT16_MAX;
    t.dtype_bits = UINT8_MAX;
    assert_status(FAR_EVALUE, far__tensor_size(&t, &size));
}

static void a_received_tensor_outlives_its_message(void **state)
{
    (void)state;
    int32_t data[6] = {1, 2, 3, 4, 5, 6};
    int64_t shape[] = {1, 2, 3};
    far_message *message = new_values();
    assert_ok(far_message_put_list(message, 2));
    assert_ok(far_message_put_tensor(message, dlpack(data, 3, shape, NULL, int32)));
    assert_ok(far_message_put_nil(message));
    const far_value *v;
    size_t count;
    assert_ok(far_message_values(message, &v, &count));
    const far_value *items = v->as.list.items;
    DLManagedTensor *out = NULL;
    assert_status(FAR_EVALUE, far_value_to_dlpack(message, v, &out));
    assert_status(FAR_EVALUE, far_value_to_dlpack(message, &items[1], &out));
    assert_status(FAR_EINVAL, far_value_to_dlpack(message, NULL, &out));
    assert_null(out);
    assert_ok(far_value_to_dlpack(message, &items[0], &out));
    far_message_discard(message);
    assert_int_equal(deleted, 0);
    const DLTensor *t = &out->dl_tensor;
    assert_ptr_equal(t->data, data);
    assert_int_equal(t->byte_offset, 0);
    assert_int_equal(t->device.device_type, kDLCPU);
    assert_int_equal(t->ndim, 3);
    assert_int_equal(t->dtype.bits, 32);
    assert_memory_equal(t->shape, shape, sizeof shape);
    int64_t strides[] = {6, 3, 1};
    assert_memory_equal(t->strides, strides, sizeof strides);
    out->deleter(out);
    assert_int_equal(deleted, 1);
}

static void a_tensor_of_another_message_is_refused(void **state)
{
    (void)state;
    int32_t data[1] = {1};
    int64_t shape[] = {1};
    far_message *other = new_values();
    far_message *message = new_values();
    assert_ok(far_message_put_tensor(message, dlpack(data, 1, shape, NULL, int32)));
    const far_value *v;
    size_t count;
    assert_ok(far_message_values(message, &v, &count));
    DLManagedTensor *out = NULL;
    assert_status(FAR_EVALUE, far_value_to_dlpack(other, v, &out));
    int32_t others[1] = {2};
    assert_ok(far_message_put_tensor(other, dlpack(others, 1, shape, NULL, int32)));
    assert_status(FAR_EVALUE, far_value_to_dlpack(other, v, &out));
    far_message_discard(other);
    far_message_discard(message);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_dense_tensor_is_sent_from_where_it_lies),
    cmocka_unit_test(the_deleter_waits_for_a_users_thread),
    cmocka_unit_test(a_dense_part_needs_no_copy),
    cmocka_unit_test(strided_tensors_are_packed),
    cmocka_unit_test(empty_and_zero_dimensional_tensors_work),
    cmocka_unit_test(a_tensor_without_deleter_is_nobodys),
    cmocka_unit_test(tensors_that_cannot_be_sent_are_refused),
    cmocka_unit_test(the_deleter_runs_once_whatever_fails),
    cmocka_unit_test(a_failed_descriptor_takes_its_segment_back),
    cmocka_unit_test(a_buffer_is_a_tensor_of_its_exact_size),
    cmocka_unit_test(descriptors_are_checked_against_their_segment),
    cmocka_unit_test(products_that_overflow_are_refused),
    cmocka_unit_test(a_received_tensor_outlives_its_message),
    cmocka_unit_test(a_tensor_of_another_message_is_refused),
};
FAR_TEST_MAIN(tests)
