/* SPDX-License-Identifier: BSD-3-Clause
 * proto/values: reads MessagePack bodies into far_value arrays, writes values and error replies.
 * Tensors stand in proto/tensor.c. Floor: proto. Thread: the message's owner.
 *
 * Reading uses msgpack-c's parser template with callbacks of our own. msgpack_unpack_next would do,
 * but it allocates what a list's header claims (96 GiB for a body of 5 bytes) before it looks for
 * the items, nests no deeper than 32 and allocates past base/mem. Here a header that claims more
 * values than the body has bytes left for is refused first, so memory is bounded by the body's size. */
#include "proto/values.h"

#include <limits.h>
#include <string.h>

#include "base/mem.h"
#include "proto/tensor.h"

#define MSGPACK_EMBED_STACK_SIZE FAR__VALUES_DEPTH_MAX
#include <msgpack/pack.h>
#include <msgpack/unpack.h>
#include <msgpack/unpack_define.h>

/* ------------------------------------------------------------------------------------- memory */

enum { BLOCK_MIN = 1024, BLOCK_MAX = 65536, TOP_ROOM_MIN = 4 };

typedef struct block block;
struct block {
    block *next;
    size_t used, room; /* of the bytes behind this struct */
};

/* The decoded values of one message, with the memory they point into. */
typedef struct arena {
    block *blocks; /* the one being filled first */
    far_value *top;
    size_t top_count, top_room;
} arena;

/* Zero-size requests give a valid place too. NULL when there is none. */
static void *arena_take(arena *a, size_t size)
{
    const size_t alignment = _Alignof(max_align_t);
    if (size > SIZE_MAX / 2)
        return NULL;
    size = (size + alignment - 1) & ~(alignment - 1);
    block *b = a->blocks;
    if (!b || size > b->room - b->used) {
        size_t room = b && b->room < BLOCK_MAX ? b->room * 2 : BLOCK_MIN;
        if (b && b->room >= BLOCK_MAX)
            room = BLOCK_MAX;
        if (room < size)
            room = size;
        b = far__mem_alloc(sizeof *b + alignment + room);
        if (!b)
            return NULL;
        *b = (block){.next = a->blocks, .room = room};
        a->blocks = b;
    }
    uintptr_t at = ((uintptr_t)(b + 1) + alignment - 1) & ~(uintptr_t)(alignment - 1);
    void *place = (void *)(at + b->used);
    b->used += size;
    return place;
}

void far__values_free(void *values)
{
    arena *a = values;
    if (!a)
        return;
    for (block *b = a->blocks, *next; b; b = next) {
        next = b->next;
        far__mem_free(b);
    }
    far__mem_free(a->top);
    far__mem_free(a);
}

static far_status arena_push(arena *a, const far_value *value)
{
    if (a->top_count == a->top_room) {
        size_t room = a->top_room ? a->top_room * 2 : TOP_ROOM_MIN;
        if (room > SIZE_MAX / sizeof *a->top)
            return FAR_ENOMEM;
        far_value *top = far__mem_resize(a->top, room * sizeof *top);
        if (!top)
            return FAR_ENOMEM;
        a->top = top;
        a->top_room = room;
    }
    a->top[a->top_count++] = *value;
    return FAR_OK;
}

/* ------------------------------------------------------------------------------------ reading */

/* What the parser knows of one value. */
typedef struct parsed {
    far_value value;
    far_value *next; /* of a list or map: where its next item goes */
} parsed;

typedef struct parser {
    far_message *message;
    arena *arena;
    size_t budget; /* values that may yet be announced: each takes at least a byte of the body */
    far_status status;
} parser;

static int refuse(parser *p, far_status status)
{
    p->status = status;
    return -1;
}

static parsed on_root(parser *p)
{
    (void)p;
    return (parsed){0};
}

static int on_int64(parser *p, int64_t number, parsed *out)
{
    (void)p;
    out->value = (far_value){.kind = FAR_INT, .as.integer = number};
    return 0;
}

static int on_uint64(parser *p, uint64_t number, parsed *out)
{
    if (number <= INT64_MAX)
        return on_int64(p, (int64_t)number, out);
    out->value = (far_value){.kind = FAR_UINT, .as.unsigned_integer = number};
    return 0;
}

#define on_uint8 on_int64
#define on_uint16 on_int64
#define on_uint32 on_int64
#define on_int8 on_int64
#define on_int16 on_int64
#define on_int32 on_int64
#define on_float on_double

static int on_double(parser *p, double number, parsed *out)
{
    (void)p;
    out->value = (far_value){.kind = FAR_FLOAT, .as.real = number};
    return 0;
}

static int on_nil(parser *p, parsed *out)
{
    (void)p;
    out->value = (far_value){.kind = FAR_NIL};
    return 0;
}

static int on_true(parser *p, parsed *out)
{
    (void)p;
    out->value = (far_value){.kind = FAR_BOOL, .as.boolean = true};
    return 0;
}

static int on_false(parser *p, parsed *out)
{
    (void)p;
    out->value = (far_value){.kind = FAR_BOOL, .as.boolean = false};
    return 0;
}

static int open_list(parser *p, far_kind kind, size_t count, size_t values, parsed *out)
{
    if (values > p->budget)
        return refuse(p, FAR_EVALUE);
    p->budget -= values;
    far_value *items = arena_take(p->arena, values * sizeof *items);
    if (!items)
        return refuse(p, FAR_ENOMEM);
    out->value = (far_value){.kind = kind, .as.list = {items, count}};
    out->next = items;
    return 0;
}

static int on_array(parser *p, size_t count, parsed *out)
{
    return open_list(p, FAR_LIST, count, count, out);
}

static int on_array_item(parser *p, parsed *list, parsed item)
{
    (void)p;
    *list->next++ = item.value;
    return 0;
}

static int on_map(parser *p, size_t count, parsed *out)
{
    return open_list(p, FAR_MAP, count, count * 2, out);
}

static int on_map_item(parser *p, parsed *map, parsed key, parsed value)
{
    (void)p;
    *map->next++ = key.value;
    *map->next++ = value.value;
    return 0;
}

static int on_str(parser *p, const char *base, const char *data, unsigned size, parsed *out)
{
    (void)p;
    (void)base;
    out->value = (far_value){.kind = FAR_STRING, .as.bytes = {data, size}};
    return 0;
}

static int on_bin(parser *p, const char *base, const char *data, unsigned size, parsed *out)
{
    (void)p;
    (void)base;
    out->value = (far_value){.kind = FAR_BYTES, .as.bytes = {data, size}};
    return 0;
}

/* The first of the `size` bytes is the extension's type. */
static int on_ext(parser *p, const char *base, const char *data, unsigned size, parsed *out)
{
    (void)base;
    far__reader r = far__reader_over(data, size);
    if (far__read_u8(&r) != FAR__VALUES_EXT_TENSOR || r.failed)
        return refuse(p, FAR_EVALUE);
    far_tensor *tensor = arena_take(p->arena, sizeof *tensor);
    if (!tensor)
        return refuse(p, FAR_ENOMEM);
    far_status status = far__tensor_decode(&r, p->message, tensor);
    if (status != FAR_OK)
        return refuse(p, status);
    out->value = (far_value){.kind = FAR_TENSOR, .as.tensor = tensor};
    return 0;
}

#define msgpack_unpack_struct(name) struct parser##name
#define msgpack_unpack_func(result, name) static inline result parser##name
#define msgpack_unpack_callback(name) on##name
#define msgpack_unpack_object parsed
#define msgpack_unpack_user parser
#include <msgpack/unpack_template.h>

static far_status decode(far_message *message, arena *a)
{
    const char *data = (const char *)message->body;
    struct parser_context context;
    context.user = (parser){.message = message, .arena = a, .budget = message->body_size};
    for (size_t at = 0; at < message->body_size;) {
        parser_init(&context);
        context.user.status = FAR_EVALUE; /* too deep, cut short, or no MessagePack */
        if (parser_execute(&context, data, message->body_size, &at) <= 0)
            return context.user.status;
        parsed done = parser_data(&context);
        far_status status = arena_push(a, &done.value);
        if (status != FAR_OK)
            return status;
    }
    return FAR_OK;
}

far_status far_message_values(far_message *message, const far_value **values, size_t *count)
{
    if (!message || !values || !count)
        return FAR_EINVAL;
    if (message->encoding != FAR_ENCODING_VALUES)
        return FAR_EVALUE;
    arena *a = message->values;
    if (!a) {
        a = far__mem_zalloc(sizeof *a);
        if (!a)
            return FAR_ENOMEM;
        far_status status = decode(message, a);
        if (status != FAR_OK) {
            far__values_free(a);
            return status;
        }
        message->values = a;
    }
    *values = a->top;
    *count = a->top_count;
    return FAR_OK;
}

/* ------------------------------------------------------------------------------------ writing */

/* One value being appended. A failure takes back what was written of it. */
typedef struct put {
    msgpack_packer packer;
    far_message *message;
    size_t size_before;
    far_status status;
} put;

static int put_write(void *arg, const char *data, size_t size)
{
    put *p = arg;
    p->status = far_message_append(p->message, data, size);
    return p->status == FAR_OK ? 0 : -1;
}

static far_status put_begin(put *p, far_message *message)
{
    if (!message || message->encoding != FAR_ENCODING_VALUES)
        return FAR_EINVAL;
    *p = (put){.packer = {.data = p, .callback = put_write},
               .message = message,
               .size_before = message->body_size};
    return FAR_OK;
}

static far_status put_end(put *p)
{
    if (p->status != FAR_OK)
        p->message->body_size = p->size_before;
    return p->status;
}

far_status far_message_put_nil(far_message *message)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    msgpack_pack_nil(&p.packer);
    return put_end(&p);
}

far_status far_message_put_bool(far_message *message, bool value)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    if (value)
        msgpack_pack_true(&p.packer);
    else
        msgpack_pack_false(&p.packer);
    return put_end(&p);
}

far_status far_message_put_int(far_message *message, int64_t value)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    msgpack_pack_int64(&p.packer, value);
    return put_end(&p);
}

far_status far_message_put_uint(far_message *message, uint64_t value)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    msgpack_pack_uint64(&p.packer, value);
    return put_end(&p);
}

far_status far_message_put_float(far_message *message, double value)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    msgpack_pack_double(&p.packer, value);
    return put_end(&p);
}

far_status far_message_put_string(far_message *message, const char *text, size_t size)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    if (!text && size)
        return FAR_EINVAL;
    if (size > UINT32_MAX)
        return FAR_ETOOBIG;
    msgpack_pack_str_with_body(&p.packer, text, size);
    return put_end(&p);
}

far_status far_message_put_bytes(far_message *message, const void *data, size_t size)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    if (!data && size)
        return FAR_EINVAL;
    if (size > UINT32_MAX)
        return FAR_ETOOBIG;
    msgpack_pack_bin_with_body(&p.packer, data, size);
    return put_end(&p);
}

far_status far_message_put_list(far_message *message, uint32_t count)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    msgpack_pack_array(&p.packer, count);
    return put_end(&p);
}

far_status far_message_put_map(far_message *message, uint32_t count)
{
    put p;
    far_status status = put_begin(&p, message);
    if (status != FAR_OK)
        return status;
    msgpack_pack_map(&p.packer, count);
    return put_end(&p);
}

far_status far_message_put_buffer(far_message *message, const far_tensor *tensor,
                                  far_buffer *buffer)
{
    if (!buffer)
        return FAR_EINVAL;
    put p;
    far_status status = put_begin(&p, message);
    size_t size = 0, index = 0;
    if (status == FAR_OK && (!tensor || far__tensor_size(tensor, &size) != FAR_OK ||
                             size != buffer->size || message->segment_count >= UINT32_MAX))
        status = FAR_EINVAL;
    if (status != FAR_OK) {
        far_buffer_release(buffer);
        return status;
    }
    status = far_message_add_segment(message, buffer, &index);
    if (status != FAR_OK)
        return status;
    far_tensor described = *tensor;
    described.segment = (uint32_t)index;
    uint8_t bytes[FAR__TENSOR_BYTES_MAX];
    far__writer w = far__writer_over(bytes, sizeof bytes);
    far__tensor_encode(&described, &w);
    msgpack_pack_ext_with_body(&p.packer, bytes, w.used, FAR__VALUES_EXT_TENSOR);
    status = put_end(&p);
    if (status != FAR_OK) {
        message->segment_count--;
        far_buffer_release(buffer);
    }
    return status;
}

/* -------------------------------------------------------------------------------- error replies */

enum { ERROR_FIELDS = 5 };

static far_status put_text(far_message *message, const char *text)
{
    return far_message_put_string(message, text ? text : "", text ? strlen(text) : 0);
}

/* The payload's body as one reference of a buffer. */
static far_status payload_body(far_message *payload, far_buffer **out)
{
    if (payload->body_buffer) {
        *out = far_buffer_hold(payload->body_buffer);
        return FAR_OK;
    }
    far_status status = far_buffer_alloc(payload->body_size, out);
    if (status == FAR_OK && payload->body_size)
        memcpy((*out)->data, payload->body, payload->body_size);
    return status;
}

static far_status put_payload(far_message *message, far_message *payload)
{
    if (!payload)
        return far_message_put_nil(message);
    far_status status = far_message_put_int(message, payload->encoding);
    far_buffer *body = NULL;
    if (status == FAR_OK)
        status = payload_body(payload, &body);
    if (status == FAR_OK)
        status = far_message_add_segment(message, body, NULL);
    for (size_t i = 0; status == FAR_OK && i < payload->segment_count; i++)
        status = far_message_add_segment(message, far_buffer_hold(payload->segments[i]), NULL);
    return status;
}

far_status far__values_put_error(far_message *message, far_status error, const char *type_name,
                                 const char *text, const char *traceback, far_message *payload)
{
    far_status status = far_message_put_list(message, ERROR_FIELDS);
    if (status == FAR_OK)
        status = far_message_put_int(message, error);
    if (status == FAR_OK)
        status = put_text(message, type_name);
    if (status == FAR_OK)
        status = put_text(message, text);
    if (status == FAR_OK)
        status = put_text(message, traceback);
    if (status == FAR_OK)
        status = put_payload(message, payload);
    far_message_discard(payload);
    return status;
}

/* A string of the error as zero-terminated text in the message's own memory. */
static far_status get_text(far_message *message, const far_value *value, const char **out)
{
    if (value->kind != FAR_STRING)
        return FAR_EPROTO;
    size_t size = value->as.bytes.size;
    char *text = arena_take(message->values, size + 1);
    if (!text)
        return FAR_ENOMEM;
    if (size)
        memcpy(text, value->as.bytes.data, size);
    text[size] = 0;
    *out = text;
    return FAR_OK;
}

static far_status get_payload(far_message *message, const far_value *encoding, far_message **out)
{
    if (encoding->kind == FAR_NIL) {
        *out = NULL;
        return message->segment_count ? FAR_EPROTO : FAR_OK;
    }
    if (encoding->kind != FAR_INT || encoding->as.integer < 0 ||
        encoding->as.integer > FAR_ENCODING_PICKLE || !message->segment_count)
        return FAR_EPROTO;
    far_message *payload;
    far_status status = far_message_create((far_encoding)encoding->as.integer, &payload);
    if (status != FAR_OK)
        return status;
    status = far_message_set_body(payload, far_buffer_hold(message->segments[0]));
    for (size_t i = 1; status == FAR_OK && i < message->segment_count; i++)
        status = far_message_add_segment(payload, far_buffer_hold(message->segments[i]), NULL);
    if (status != FAR_OK) {
        far_message_discard(payload);
        return status;
    }
    *out = payload;
    return FAR_OK;
}

far_status far__values_get_error(far_message *message, far__values_error *out)
{
    const far_value *values;
    size_t count;
    far_status status = far_message_values(message, &values, &count);
    if (status == FAR_EVALUE)
        return FAR_EPROTO;
    if (status != FAR_OK)
        return status;
    if (count != 1 || values->kind != FAR_LIST || values->as.list.count != ERROR_FIELDS)
        return FAR_EPROTO;
    const far_value *fields = values->as.list.items;
    if (fields[0].kind != FAR_INT || fields[0].as.integer < 1 || fields[0].as.integer > INT_MAX)
        return FAR_EPROTO;
    far__values_error error = {.status = (far_status)fields[0].as.integer};
    /* A code that only a newer version has: its text still says what happened. */
    if (strcmp(far_status_name(error.status), "FAR_?") == 0)
        error.status = FAR_EREMOTE;
    status = get_text(message, &fields[1], &error.type_name);
    if (status == FAR_OK)
        status = get_text(message, &fields[2], &error.text);
    if (status == FAR_OK)
        status = get_text(message, &fields[3], &error.traceback);
    if (status == FAR_OK)
        status = get_payload(message, &fields[4], &error.payload);
    if (status == FAR_OK)
        *out = error;
    return status;
}
