/* SPDX-License-Identifier: BSD-3-Clause
 * transport/stream_in: the receiving half of a stream: joins frames to messages, and says where the
 * next bytes are to be read to.
 * Floor: transport. Thread: whoever reads the connection.
 *
 * A frame goes one of two ways. A WHOLE that fits the parse buffer and has short segments only is waited
 * for and delivered from there. Of all others the head is taken apart first; their segment bytes are
 * then moved, or read by the caller directly, to where they will stay. */
#include "transport/stream.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

enum {
    ENTRY_SIZE = 16, /* of the segment table */
    PARSE_SIZE = 65536,
    /* When a large run is read to its own place, only little is read beyond it: what is read beyond is
     * mostly the next part of the same message, and would have to be moved. */
    DIRECT_LARGE = 16384,
    BEYOND_LARGE = 4096,
    STORE_KEEP = 65536,   /* a larger store is freed after the message */
    SEGMENTS_KEEP = 1024, /* in the same way */
    SEGMENTS_ROOM_MIN = 16,
};

/* A message of which segment bytes are still to come. */
typedef struct joining {
    uint32_t stream;
    far__segment *segments;
    size_t segment_count, segment_room;
    uint8_t *store; /* the header, then the bytes of short segments */
    size_t store_room, header_size;
    size_t at, offset; /* where the next byte goes */
    uint64_t left;     /* bytes to come */
} joining;

typedef struct table {
    uint64_t sum;
    size_t short_sum; /* of the segments that get no memory of their own */
} table;

enum where { AT_PREFIX, AT_HEAD, IN_PLACE, AT_DATA };

struct far__stream_in {
    far__stream_up up;
    uint64_t message_max;
    far_status failed;
    const char *why;
    enum where where;
    /* The frame that is being read. */
    uint8_t kind;
    uint32_t stream;
    size_t size, segment_count, header_size; /* size: without the prefix */
    size_t left;                             /* segment bytes to come */
    joining *joining;                        /* what they belong to */
    joining whole;                           /* of WHOLE frames; its memory is used again */
    far__map streams;                        /* of joining */
    size_t direct;                           /* bytes offered in their own place by prepare */
    uint8_t *head;                           /* a head too long for the parse buffer */
    size_t head_used;
    size_t begin, end; /* of the bytes in the parse buffer not yet taken */
    uint8_t parse[PARSE_SIZE];
};

static far_status fail(far__stream_in *s, far_status status, const char *why)
{
    s->failed = status;
    s->why = why;
    return status;
}

static far_status malformed(far__stream_in *s, const char *why)
{
    return fail(s, FAR_EPROTO, why);
}

static size_t head_size(const far__stream_in *s)
{
    return s->segment_count * ENTRY_SIZE + s->header_size;
}

/* ----------------------------------------------------------------------------------- joining */

static void joining_drop(joining *j, far_buffer **orphans)
{
    for (size_t i = 0; i < j->segment_count; i++)
        far__buffer_drop(j->segments[i].buffer, orphans);
    j->segment_count = 0;
}

static void joining_fini(joining *j, far_buffer **orphans)
{
    joining_drop(j, orphans);
    far__mem_free(j->segments);
    far__mem_free(j->store);
}

static far_status reserve_segments(joining *j, size_t count)
{
    if (count <= j->segment_room)
        return FAR_OK;
    size_t room = count < SEGMENTS_ROOM_MIN ? SEGMENTS_ROOM_MIN : count;
    far__segment *segments = far__mem_array(room, sizeof *segments);
    if (!segments)
        return FAR_ENOMEM;
    far__mem_free(j->segments);
    j->segments = segments;
    j->segment_room = room;
    return FAR_OK;
}

static far_status reserve_store(joining *j, size_t size)
{
    if (size <= j->store_room)
        return FAR_OK;
    uint8_t *store = far__mem_alloc(size);
    if (!store)
        return FAR_ENOMEM;
    far__mem_free(j->store);
    j->store = store;
    j->store_room = size;
    return FAR_OK;
}

/* Large messages are rare, connections may be many. */
static void trim(joining *j)
{
    if (j->store_room > STORE_KEEP) {
        far__mem_free(j->store);
        j->store = NULL;
        j->store_room = 0;
    }
    if (j->segment_room > SEGMENTS_KEEP) {
        far__mem_free(j->segments);
        j->segments = NULL;
        j->segment_room = 0;
    }
}

/* Gives the segments of `j`, whose sizes are set, their places. */
static far_status place_segments(far__stream_in *s, joining *j, const uint8_t *header,
                                 size_t short_sum)
{
    if (reserve_store(j, s->header_size + short_sum) != FAR_OK)
        return fail(s, FAR_ENOMEM, "no memory for a message");
    j->header_size = s->header_size;
    if (s->header_size)
        memcpy(j->store, header, s->header_size);
    size_t used = s->header_size;
    for (size_t i = 0; i < j->segment_count; i++) {
        far__segment *seg = &j->segments[i];
        if (seg->size < FAR__SEGMENT_OWN) {
            seg->data = j->store + used;
            used += seg->size;
            continue;
        }
        far_status status = s->up.memory(seg->size, &seg->buffer, s->up.arg);
        if (status != FAR_OK) {
            seg->buffer = NULL;
            return fail(s, status, "no memory for a segment");
        }
        assert(seg->buffer->size >= seg->size);
        seg->data = seg->buffer->data;
    }
    return FAR_OK;
}

static far_status call_up(far__stream_in *s, far__inbound *message)
{
    far_status status = s->up.received(message, s->up.arg);
    return status == FAR_OK ? FAR_OK : fail(s, status, "refused by the receiver");
}

static far_status deliver(far__stream_in *s, joining *j, far_buffer **orphans)
{
    if (j != &s->whole)
        far__map_remove(&s->streams, j->stream);
    far__inbound message = {.header = j->store,
                            .header_size = j->header_size,
                            .segments = j->segments,
                            .segment_count = j->segment_count};
    far_status status = call_up(s, &message);
    if (j != &s->whole) {
        joining_fini(j, orphans);
        far__mem_free(j);
        return status;
    }
    joining_drop(j, orphans);
    trim(j);
    return status;
}

/* ------------------------------------------------------------------------------------- heads */

static far_status check_kind(far__stream_in *s, uint64_t kind)
{
    if (kind > 0xff)
        return malformed(s, "a segment's reserved bytes are not zero");
    switch (kind) {
    case FAR__SEGMENT_INLINE:
        return s->kind == FAR__FRAME_WHOLE ? FAR_OK : malformed(s, "inline segment in a BEGIN");
    case FAR__SEGMENT_CHUNKED:
        return s->kind == FAR__FRAME_BEGIN ? FAR_OK : malformed(s, "chunked segment in a WHOLE");
    case FAR__SEGMENT_PULL: return fail(s, FAR_EUNSUPPORTED, "segment kind pull");
    case FAR__SEGMENT_SHARED: return fail(s, FAR_EUNSUPPORTED, "segment kind shared");
    default: return malformed(s, "unknown segment kind");
    }
}

static far_status read_table(far__stream_in *s, const uint8_t *head, joining *j, table *out)
{
    if (reserve_segments(j, s->segment_count) != FAR_OK)
        return fail(s, FAR_ENOMEM, "no memory for a segment table");
    far__reader r = far__reader_over(head, s->segment_count * ENTRY_SIZE);
    table t = {0};
    for (size_t i = 0; i < s->segment_count; i++) {
        uint64_t size = far__read_u64(&r);
        far_status status = check_kind(s, far__read_u64(&r));
        if (status != FAR_OK)
            return status;
        /* The sum never passes message_max, so it cannot wrap. */
        if (size > s->message_max - t.sum || size > SIZE_MAX / 2)
            return fail(s, FAR_ETOOBIG, "message larger than the limit");
        t.sum += size;
        if (size < FAR__SEGMENT_OWN)
            t.short_sum += (size_t)size;
        j->segments[i] = (far__segment){.size = (size_t)size};
    }
    *out = t;
    return FAR_OK;
}

static far_status start_whole(far__stream_in *s, const uint8_t *head)
{
    joining *j = &s->whole;
    table t;
    far_status status = read_table(s, head, j, &t);
    if (status != FAR_OK)
        return status;
    if (t.sum != s->size - head_size(s))
        return malformed(s, "the segments do not fill their WHOLE");
    j->segment_count = s->segment_count;
    if (t.sum == t.short_sum && s->size <= PARSE_SIZE) {
        s->where = IN_PLACE;
        return FAR_OK;
    }
    j->at = j->offset = 0;
    j->left = t.sum;
    s->joining = j;
    s->left = (size_t)t.sum;
    s->where = AT_DATA;
    return place_segments(s, j, head + s->segment_count * ENTRY_SIZE, t.short_sum);
}

static far_status start_bulk(far__stream_in *s, const uint8_t *head, far_buffer **orphans)
{
    if (s->streams.count >= FAR__STREAM_BULK_MAX)
        return malformed(s, "too many messages under way");
    if (far__map_get(&s->streams, s->stream))
        return malformed(s, "BEGIN of a stream that is under way");
    joining *j = far__mem_zalloc(sizeof *j);
    if (!j)
        return fail(s, FAR_ENOMEM, "no memory for a message");
    j->stream = s->stream;
    table t;
    far_status status = read_table(s, head, j, &t);
    if (status != FAR_OK)
        goto err_free;
    const size_t here = s->size - head_size(s);
    if (here >= t.sum) {
        status = malformed(s, "BEGIN of a message that is already complete");
        goto err_free;
    }
    j->segment_count = s->segment_count;
    j->left = t.sum;
    status = place_segments(s, j, head + s->segment_count * ENTRY_SIZE, t.short_sum);
    if (status != FAR_OK)
        goto err_free;
    if (far__map_put(&s->streams, j->stream, j) != FAR_OK) {
        status = fail(s, FAR_ENOMEM, "no memory for a message");
        goto err_free;
    }
    s->joining = j;
    s->left = here;
    s->where = AT_DATA;
    return FAR_OK;

err_free:
    joining_fini(j, orphans);
    far__mem_free(j);
    return status;
}

static far_status start_more(far__stream_in *s)
{
    if (s->segment_count || s->header_size)
        return malformed(s, "MORE with a head");
    joining *j = far__map_get(&s->streams, s->stream);
    if (!j)
        return malformed(s, "MORE of an unknown stream");
    if (!s->size)
        return malformed(s, "empty MORE");
    if (s->size > j->left)
        return malformed(s, "MORE beyond the end of its message");
    s->joining = j;
    s->left = s->size;
    s->where = AT_DATA;
    return FAR_OK;
}

static far_status take_abort(far__stream_in *s, far_buffer **orphans)
{
    if (s->segment_count || s->header_size || s->size)
        return malformed(s, "ABORT with a head or a body");
    joining *j = far__map_remove(&s->streams, s->stream);
    if (!j)
        return malformed(s, "ABORT of an unknown stream");
    joining_fini(j, orphans);
    far__mem_free(j);
    return FAR_OK;
}

static far_status take_prefix(far__stream_in *s, far_buffer **orphans)
{
    far__reader r = far__reader_over(s->parse + s->begin, FAR__FRAME_PREFIX);
    s->begin += FAR__FRAME_PREFIX;
    s->size = far__read_u32(&r);
    s->kind = far__read_u8(&r);
    const uint8_t zero = far__read_u8(&r);
    s->segment_count = far__read_u16(&r);
    s->header_size = far__read_u32(&r);
    s->stream = far__read_u32(&r);
    if (zero)
        return malformed(s, "a frame's reserved byte is not zero");
    if (s->size > FAR__FRAME_MAX - FAR__FRAME_PREFIX)
        return malformed(s, "frame too long");
    switch (s->kind) {
    case FAR__FRAME_WHOLE:
        if (s->stream)
            return malformed(s, "WHOLE with a stream");
        break;
    case FAR__FRAME_BEGIN: break;
    case FAR__FRAME_MORE: return start_more(s);
    case FAR__FRAME_ABORT: return take_abort(s, orphans);
    default: return malformed(s, "unknown frame kind");
    }
    if (s->segment_count > FAR__SEGMENTS_MAX)
        return malformed(s, "too many segments");
    if (s->header_size > FAR__HEADER_MAX)
        return malformed(s, "header too long");
    if (head_size(s) > s->size)
        return malformed(s, "head longer than its frame");
    s->where = AT_HEAD;
    return FAR_OK;
}

/* ----------------------------------------------------------------------------------- parsing */

/* Each step takes bytes of the parse buffer; *more: go on, else it needs bytes that are not there. */

static far_status step_head(far__stream_in *s, far_buffer **orphans, bool *more)
{
    const size_t size = head_size(s), here = s->end - s->begin;
    const uint8_t *head = s->parse + s->begin;
    if (size > PARSE_SIZE) {
        if (!s->head) {
            s->head = far__mem_alloc(size);
            if (!s->head)
                return fail(s, FAR_ENOMEM, "no memory for a head");
            s->head_used = 0;
        }
        size_t part = size - s->head_used < here ? size - s->head_used : here;
        memcpy(s->head + s->head_used, head, part);
        s->head_used += part;
        s->begin += part;
        if (s->head_used < size)
            return FAR_OK;
        head = s->head;
    } else if (here < size) {
        return FAR_OK;
    }
    far_status status =
        s->kind == FAR__FRAME_WHOLE ? start_whole(s, head) : start_bulk(s, head, orphans);
    if (s->where != IN_PLACE && !s->head)
        s->begin += size;
    far__mem_free(s->head);
    s->head = NULL;
    *more = true;
    return status;
}

static far_status step_in_place(far__stream_in *s, bool *more)
{
    if (s->end - s->begin < s->size)
        return FAR_OK;
    joining *j = &s->whole;
    far__inbound message = {.header = s->parse + s->begin + s->segment_count * ENTRY_SIZE,
                            .header_size = s->header_size,
                            .segments = j->segments,
                            .segment_count = j->segment_count};
    const uint8_t *data = s->parse + s->begin + head_size(s);
    for (size_t i = 0; i < j->segment_count; i++) {
        j->segments[i].data = data;
        data += j->segments[i].size;
    }
    s->begin += s->size;
    s->where = AT_PREFIX;
    *more = true;
    far_status status = call_up(s, &message);
    j->segment_count = 0;
    trim(j);
    return status;
}

/* The next run of bytes that belong to one segment. There is one: left is not zero. */
static size_t next_run(far__stream_in *s, uint8_t **at)
{
    joining *j = s->joining;
    while (j->offset == j->segments[j->at].size) {
        j->at++;
        j->offset = 0;
    }
    const far__segment *seg = &j->segments[j->at];
    *at = (uint8_t *)(uintptr_t)seg->data + j->offset;
    return seg->size - j->offset < s->left ? seg->size - j->offset : s->left;
}

static void run_taken(far__stream_in *s, size_t size)
{
    s->joining->offset += size;
    s->joining->left -= size;
    s->left -= size;
}

static far_status step_data(far__stream_in *s, far_buffer **orphans, bool *more)
{
    while (s->left) {
        uint8_t *at;
        size_t part = next_run(s, &at), here = s->end - s->begin;
        if (!here)
            return FAR_OK;
        if (part > here)
            part = here;
        memcpy(at, s->parse + s->begin, part);
        s->begin += part;
        run_taken(s, part);
    }
    joining *j = s->joining;
    s->joining = NULL;
    s->where = AT_PREFIX;
    *more = true;
    return j->left ? FAR_OK : deliver(s, j, orphans);
}

static far_status step(far__stream_in *s, far_buffer **orphans, bool *more)
{
    switch (s->where) {
    case AT_HEAD: return step_head(s, orphans, more);
    case IN_PLACE: return step_in_place(s, more);
    case AT_DATA: return step_data(s, orphans, more);
    case AT_PREFIX: break;
    }
    if (s->end - s->begin < FAR__FRAME_PREFIX)
        return FAR_OK;
    *more = true;
    return take_prefix(s, orphans);
}

/* ------------------------------------------------------------------------------------ public */

far_status far__stream_in_create(const far__stream_up *up, uint64_t message_max,
                                 far__stream_in **out)
{
    far__stream_in *s = far__mem_alloc(sizeof *s);
    if (!s)
        return FAR_ENOMEM;
    /* All but the parse buffer, whose pages are better left untouched until they are needed. */
    memset(s, 0, offsetof(far__stream_in, parse));
    s->up = *up;
    s->message_max = message_max;
    *out = s;
    return FAR_OK;
}

void far__stream_in_destroy(far__stream_in *s, far_buffer **orphans)
{
    if (!s)
        return;
    size_t at = 0;
    uint64_t stream;
    void *j;
    while (far__map_next(&s->streams, &at, &stream, &j)) {
        joining_fini(j, orphans);
        far__mem_free(j);
    }
    far__map_fini(&s->streams);
    joining_fini(&s->whole, orphans);
    far__mem_free(s->head);
    far__mem_free(s);
}

void far__stream_in_limit(far__stream_in *s, uint64_t message_max)
{
    s->message_max = message_max;
}

size_t far__stream_in_prepare(far__stream_in *s, struct iovec iov[2])
{
    size_t count = 0, room = PARSE_SIZE;
    if (s->failed != FAR_OK)
        return 0;
    /* What is left is the beginning of a frame: it is moved once at most. */
    if (s->begin) {
        memmove(s->parse, s->parse + s->begin, s->end - s->begin);
        s->end -= s->begin;
        s->begin = 0;
    }
    s->direct = 0;
    if (s->where == AT_DATA && s->left) {
        uint8_t *at;
        size_t run = next_run(s, &at);
        if (s->joining->segments[s->joining->at].buffer) {
            s->direct = run;
            iov[count++] = (struct iovec){at, run};
            if (run >= DIRECT_LARGE)
                room = BEYOND_LARGE;
        }
    }
    iov[count++] = (struct iovec){s->parse + s->end, room - s->end};
    return count;
}

far_status far__stream_in_read(far__stream_in *s, size_t size, far_buffer **orphans,
                               const char **why)
{
    const size_t direct = size < s->direct ? size : s->direct;
    assert(size - direct <= PARSE_SIZE - s->end);
    bool more = s->failed == FAR_OK;
    if (direct)
        run_taken(s, direct);
    s->direct -= direct;
    s->end += size - direct;
    while (more) {
        more = false;
        far_status status = step(s, orphans, &more);
        if (status != FAR_OK)
            more = false;
    }
    if (s->failed != FAR_OK)
        *why = s->why;
    return s->failed;
}

bool far__stream_in_midway(const far__stream_in *s)
{
    return s->where != AT_PREFIX || s->begin < s->end || s->streams.count;
}
