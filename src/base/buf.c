/* SPDX-License-Identifier: BSD-3-Clause
 * base/buf: counted byte buffers, growing byte strings, and the checked cursors.
 * Floor: base. Thread: a buffer's count any; a cursor one thread. */
#include "base/buf.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#include "base/mem.h"

enum { BUFFER_ALIGNMENT = 64, BYTES_ROOM_MIN = 64 };

far_status far_buffer_wrap(void *data, size_t size, far_free_fn free_fn, void *arg, unsigned flags,
                           far_buffer **out)
{
    if (!out || (!data && size) || (flags & ~(unsigned)FAR_BUFFER_FREE_ANYWHERE))
        return FAR_EINVAL;
    far_buffer *buffer = far__mem_zalloc(sizeof *buffer);
    if (!buffer)
        return FAR_ENOMEM;
    far__ref_init(&buffer->refs);
    buffer->flags = flags;
    buffer->data = data;
    buffer->size = size;
    buffer->free_fn = free_fn;
    buffer->arg = arg;
    *out = buffer;
    return FAR_OK;
}

far_status far_buffer_alloc(size_t size, far_buffer **out)
{
    const size_t extra = sizeof(far_buffer) + BUFFER_ALIGNMENT - 1;
    if (!out)
        return FAR_EINVAL;
    if (size > SIZE_MAX - extra)
        return FAR_ENOMEM;
    far_buffer *buffer = far__mem_alloc(extra + size);
    if (!buffer)
        return FAR_ENOMEM;
    memset(buffer, 0, sizeof *buffer);
    far__ref_init(&buffer->refs);
    buffer->flags = FAR_BUFFER_FREE_ANYWHERE;
    uintptr_t behind = (uintptr_t)(buffer + 1);
    size_t skip = (size_t)(-behind & (BUFFER_ALIGNMENT - 1));
    buffer->data = (char *)(buffer + 1) + skip;
    buffer->size = size;
    *out = buffer;
    return FAR_OK;
}

void *far_buffer_data(const far_buffer *buffer)
{
    return buffer->data;
}

size_t far_buffer_size(const far_buffer *buffer)
{
    return buffer->size;
}

far_buffer *far_buffer_hold(far_buffer *buffer)
{
    far__ref_hold(&buffer->refs);
    return buffer;
}

void far_buffer_release(far_buffer *buffer)
{
    if (buffer && far__buffer_unref(buffer))
        far__buffer_free(buffer);
}

bool far__buffer_unref(far_buffer *buffer)
{
    if (!far__ref_release(&buffer->refs))
        return false;
    if (buffer->free_fn && !(buffer->flags & FAR_BUFFER_FREE_ANYWHERE))
        return true;
    far__buffer_free(buffer);
    return false;
}

void far__buffer_free(far_buffer *buffer)
{
    assert(far__ref_count(&buffer->refs) == 0);
    /* The struct first: once free_fn has run, its user may look at far_memory_live. */
    far_free_fn free_fn = buffer->free_fn;
    void *arg = buffer->arg;
    far__mem_free(buffer);
    if (free_fn)
        free_fn(arg);
}

void far__buffer_drop(far_buffer *buffer, far_buffer **orphans)
{
    if (!buffer || !far__buffer_unref(buffer))
        return;
    buffer->next = *orphans;
    *orphans = buffer;
}

void far__buffers_free(far_buffer *orphans)
{
    while (orphans) {
        far_buffer *next = orphans->next;
        far__buffer_free(orphans);
        orphans = next;
    }
}

void far__bytes_fini(far__bytes *b)
{
    far__mem_free(b->data);
    *b = (far__bytes){0};
}

far_status far__bytes_reserve(far__bytes *b, size_t more)
{
    if (more <= b->room - b->size)
        return FAR_OK;
    if (more > SIZE_MAX - b->size)
        return FAR_ENOMEM;
    size_t room = b->size + more;
    if (room < BYTES_ROOM_MIN)
        room = BYTES_ROOM_MIN;
    if (b->room <= SIZE_MAX / 2 && room < b->room * 2)
        room = b->room * 2;
    uint8_t *data = far__mem_resize(b->data, room);
    if (!data)
        return FAR_ENOMEM;
    b->data = data;
    b->room = room;
    return FAR_OK;
}

far_status far__bytes_append(far__bytes *b, const void *data, size_t size)
{
    if (!size)
        return FAR_OK;
    far_status status = far__bytes_reserve(b, size);
    if (status != FAR_OK)
        return status;
    memcpy(b->data + b->size, data, size);
    b->size += size;
    return FAR_OK;
}

/* Where the next `size` bytes go, and steps over them; NULL (and failed) when there is no room. */
static uint8_t *writer_take(far__writer *w, size_t size)
{
    if (w->failed || size > w->size - w->used) {
        w->failed = true;
        return NULL;
    }
    uint8_t *at = w->data + w->used;
    w->used += size;
    return at;
}

/* The lowest bytes of a little-endian number are its first ones, so one conversion serves all sizes,
 * and a copy of constant size is one instruction. */
static inline void write_le(far__writer *w, uint64_t v, size_t size)
{
    uint8_t *at = writer_take(w, size);
    v = htole64(v);
    if (at)
        memcpy(at, &v, size);
}

void far__write_u8(far__writer *w, uint8_t v)
{
    write_le(w, v, 1);
}

void far__write_u16(far__writer *w, uint16_t v)
{
    write_le(w, v, 2);
}

void far__write_u32(far__writer *w, uint32_t v)
{
    write_le(w, v, 4);
}

void far__write_u64(far__writer *w, uint64_t v)
{
    write_le(w, v, 8);
}

void far__write_bytes(far__writer *w, const void *data, size_t size)
{
    if (!size)
        return;
    uint8_t *at = writer_take(w, size);
    if (at)
        memcpy(at, data, size);
}

void far__write_zeros(far__writer *w, size_t size)
{
    if (!size)
        return;
    uint8_t *at = writer_take(w, size);
    if (at)
        memset(at, 0, size);
}

const void *far__read_bytes(far__reader *r, size_t size)
{
    if (r->failed || size > r->size - r->used) {
        r->failed = true;
        return NULL;
    }
    /* Nothing out of no memory is a success, and NULL means failure. */
    if (!r->data)
        return "";
    const uint8_t *at = r->data + r->used;
    r->used += size;
    return at;
}

static inline uint64_t read_le(far__reader *r, size_t size)
{
    const uint8_t *at = far__read_bytes(r, size);
    uint64_t v = 0;
    if (at)
        memcpy(&v, at, size);
    return le64toh(v);
}

uint8_t far__read_u8(far__reader *r)
{
    return (uint8_t)read_le(r, 1);
}

uint16_t far__read_u16(far__reader *r)
{
    return (uint16_t)read_le(r, 2);
}

uint32_t far__read_u32(far__reader *r)
{
    return (uint32_t)read_le(r, 4);
}

uint64_t far__read_u64(far__reader *r)
{
    return read_le(r, 8);
}

void far__store_u64(void *at, uint64_t v)
{
    v = htole64(v);
    memcpy(at, &v, sizeof v);
}

uint64_t far__load_u64(const void *at)
{
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return le64toh(v);
}

uint32_t far__load_u32(const void *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return le32toh(v);
}
