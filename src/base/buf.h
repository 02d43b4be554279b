/* SPDX-License-Identifier: BSD-3-Clause
 * base/buf: counted byte buffers, and checked cursors that read and write bytes. Nobody else does
 * pointer arithmetic on bytes of the wire. All numbers little-endian.
 * Floor: base. Thread: a buffer's count any; a cursor one thread. */
#ifndef FAR_BASE_BUF_H
#define FAR_BASE_BUF_H

#include <farcall/farcall.h>

#include "base/ref.h"

struct far_buffer {
    far__ref refs;
    unsigned flags;
    void *data;
    size_t size;
    far_free_fn free_fn; /* NULL: nothing to free but this struct (data may lie behind it) */
    void *arg;
    far_buffer *next; /* of the queue of buffers whose free_fn must run elsewhere */
};

/* Gives up one reference. True: that was the last and free_fn must not run here: the caller hands
 * the buffer to whoever may call far__buffer_free. */
bool far__buffer_unref(far_buffer *buffer);
/* Runs free_fn and frees the struct; the count is already zero. */
void far__buffer_free(far_buffer *buffer);

/* Gives up one reference of `buffer` (NULL is accepted), pushing it on *orphans if that was the last and
 * its free_fn must not run here. */
void far__buffer_drop(far_buffer *buffer, far_buffer **orphans);
/* Runs the free_fn of such a list. */
void far__buffers_free(far_buffer *orphans);

/* A growing byte string. Zero-initialised is empty and valid. */
typedef struct far__bytes {
    uint8_t *data;
    size_t size, room;
} far__bytes;

void far__bytes_fini(far__bytes *b);
far_status far__bytes_reserve(far__bytes *b, size_t more) FAR_MUST_USE; /* FAR_ENOMEM */
far_status far__bytes_append(far__bytes *b, const void *data, size_t size) FAR_MUST_USE;

/* Writes into memory of fixed size. After the first write that does not fit, `failed` stays set and
 * nothing more is written: check once at the end. */
typedef struct far__writer {
    uint8_t *data;
    size_t size, used;
    bool failed;
} far__writer;

static inline far__writer far__writer_over(void *data, size_t size)
{
    return (far__writer){.data = data, .size = size};
}
void far__write_u8(far__writer *w, uint8_t v);
void far__write_u16(far__writer *w, uint16_t v);
void far__write_u32(far__writer *w, uint32_t v);
void far__write_u64(far__writer *w, uint64_t v);
void far__write_bytes(far__writer *w, const void *data, size_t size);
void far__write_zeros(far__writer *w, size_t size);

/* Reads from memory of fixed size, in the same way: after the first read past the end `failed`
 * stays set and every read gives zeros (or NULL). */
typedef struct far__reader {
    const uint8_t *data;
    size_t size, used;
    bool failed;
} far__reader;

static inline far__reader far__reader_over(const void *data, size_t size)
{
    return (far__reader){.data = data, .size = size};
}
uint8_t far__read_u8(far__reader *r);
uint16_t far__read_u16(far__reader *r);
uint32_t far__read_u32(far__reader *r);
uint64_t far__read_u64(far__reader *r);
const void *far__read_bytes(far__reader *r, size_t size); /* borrowed; NULL at failure */
static inline size_t far__reader_left(const far__reader *r)
{
    return r->failed ? 0 : r->size - r->used;
}

/* Overwrites 8 bytes at a place known to be inside. */
void far__store_u64(void *at, uint64_t v);
uint64_t far__load_u64(const void *at);
uint32_t far__load_u32(const void *at);

#endif
