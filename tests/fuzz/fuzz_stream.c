/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: transport/stream_in. The first byte seeds the cuts, the others are the bytes of a
 * connection. However they are cut, the same messages arrive and the same end is found, and what
 * arrives can be sent on and arrives again. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "transport/stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MESSAGE_MAX = 20000, IOV = 8 };

typedef struct seen {
    size_t count;
    uint64_t hash; /* of all messages */
    far_status status;
    bool midway;
    far__stream_out *on; /* where messages are sent on; or NULL */
    far_buffer *orphans;
} seen;

static void must(bool truth)
{
    if (!truth)
        abort();
}

static void add_hash(seen *s, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    s->hash = (s->hash ^ size) * UINT64_C(0x100000001b3);
    for (size_t i = 0; i < size; i++)
        s->hash = (s->hash ^ bytes[i]) * UINT64_C(0x100000001b3);
}

static far_status memory(size_t size, far_buffer **out, void *arg)
{
    (void)arg;
    must(size >= FAR__SEGMENT_OWN && size <= MESSAGE_MAX);
    far_status status = far_buffer_alloc(size, out);
    if (status == FAR_OK)
        memset((*out)->data, 0, size);
    return status;
}

static far_status received(far__inbound *m, void *arg)
{
    seen *s = arg;
    size_t sum = 0;
    s->count++;
    must(m->header_size <= FAR__HEADER_MAX && m->segment_count <= FAR__SEGMENTS_MAX);
    add_hash(s, m->header, m->header_size);
    for (size_t i = 0; i < m->segment_count; i++) {
        add_hash(s, m->segments[i].data, m->segments[i].size);
        must((m->segments[i].size >= FAR__SEGMENT_OWN) == (m->segments[i].buffer != NULL));
        sum += m->segments[i].size;
    }
    must(sum <= MESSAGE_MAX);
    if (!s->on)
        return FAR_OK;
    uint64_t token;
    const far__outgoing o = {.header = m->header,
                             .header_size = m->header_size,
                             .segments = m->segments,
                             .segment_count = m->segment_count,
                             .deadline = FAR__NEVER};
    must(far__stream_put(s->on, &o, &token, &s->orphans) == FAR_OK);
    for (size_t i = 0; i < m->segment_count; i++)
        m->segments[i].buffer = NULL; /* the put took them */
    return FAR_OK;
}

/* Reads `size` bytes in pieces that `cuts` decides about; 0: in the largest possible ones. */
static void read_all(far__stream_in *in, const uint8_t *data, size_t size, uint32_t cuts, seen *s)
{
    const char *why = NULL;
    while (size && s->status == FAR_OK) {
        struct iovec iov[2];
        size_t count = far__stream_in_prepare(in, iov), taken = 0;
        size_t most = size;
        if (cuts) {
            cuts = cuts * 1103515245 + 12345;
            most = 1 + (cuts >> 16) % (cuts >> 28 ? 23 : 5000);
            if (most > size)
                most = size;
        }
        for (size_t i = 0; i < count; i++) {
            size_t part = iov[i].iov_len < most - taken ? iov[i].iov_len : most - taken;
            if (part)
                memcpy(iov[i].iov_base, data + taken, part);
            taken += part;
        }
        must(taken > 0);
        data += taken;
        size -= taken;
        s->status = far__stream_in_read(in, taken, &s->orphans, &why);
        must((s->status != FAR_OK) == (why != NULL));
    }
    s->midway = far__stream_in_midway(in);
}

static seen run(const uint8_t *data, size_t size, uint32_t cuts, far__stream_out *on)
{
    seen s = {.on = on};
    far__stream_in *in;
    const far__stream_up up = {.memory = memory, .received = received, .arg = &s};
    must(far__stream_in_create(&up, MESSAGE_MAX, &in) == FAR_OK);
    read_all(in, data, size, cuts, &s);
    far__stream_in_destroy(in, &s.orphans);
    must(!s.orphans);
    return s;
}

/* What was put into `out`, read again. */
static seen run_again(far__stream_out *out, uint32_t cuts)
{
    seen s = {0};
    far__stream_in *in;
    const far__stream_up up = {.memory = memory, .received = received, .arg = &s};
    must(far__stream_in_create(&up, MESSAGE_MAX, &in) == FAR_OK);
    while (far__stream_pending(out)) {
        struct iovec iov[IOV];
        size_t count = far__stream_gather(out, 0, iov, IOV), size = 0;
        for (size_t i = 0; i < count; i++) {
            read_all(in, iov[i].iov_base, iov[i].iov_len, cuts, &s);
            size += iov[i].iov_len;
        }
        must(size > 0);
        far__stream_written(out, size, &s.orphans);
    }
    far__stream_in_destroy(in, &s.orphans);
    must(!s.orphans);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    const uint32_t cuts = data[0] + 1u;
    far__stream_out *out;
    must(far__stream_out_create(&out) == FAR_OK);
    seen at_once = run(data + 1, size - 1, 0, out);
    seen in_pieces = run(data + 1, size - 1, cuts, NULL);
    seen again = run_again(out, cuts);
    must(at_once.count == in_pieces.count && at_once.hash == in_pieces.hash);
    must(at_once.status == in_pieces.status);
    must(at_once.status != FAR_OK || at_once.midway == in_pieces.midway);
    must(again.status == FAR_OK && !again.midway);
    must(again.count == at_once.count && again.hash == at_once.hash);
    far_buffer *orphans = NULL;
    far__stream_out_destroy(out, &orphans);
    must(!orphans && far_memory_live() == 0);
    return 0;
}
