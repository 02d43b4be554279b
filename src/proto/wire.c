/* SPDX-License-Identifier: BSD-3-Clause
 * proto/wire: writes and reads the header of each message; docs/protocol.md has the tables.
 * Floor: proto. Thread: none of its own. */
#include "proto/wire.h"

#include <assert.h>
#include <string.h>

#include "proto/message.h"

/* Which of the fields a type has; all others must be zero on the wire. */
typedef struct type_row {
    uint8_t flags;     /* those that are allowed */
    bool has_encoding; /* at 2 */
    bool has_refs;     /* at 6 */
    bool has_id;       /* call id or token at 8 */
    bool id_nonzero;   /* 0 is no call */
} type_row;

static const type_row types[] = {
    [FAR__WIRE_REQUEST] = {.flags = FAR__WIRE_RESERVED_METHOD | FAR__WIRE_RETRY |
                                    FAR__WIRE_HAS_REMAINING,
                           .has_encoding = true,
                           .has_refs = true,
                           .has_id = true,
                           .id_nonzero = true},
    [FAR__WIRE_REPLY] = {.flags = FAR__WIRE_RESERVED_METHOD,
                         .has_encoding = true,
                         .has_refs = true,
                         .has_id = true,
                         .id_nonzero = true},
    [FAR__WIRE_ERROR] = {.flags = FAR__WIRE_RESERVED_METHOD,
                         .has_encoding = true,
                         .has_id = true,
                         .id_nonzero = true},
    [FAR__WIRE_CANCEL] = {.has_id = true, .id_nonzero = true},
    [FAR__WIRE_CREDIT] = {0},
    [FAR__WIRE_PING] = {.has_id = true},
    [FAR__WIRE_PONG] = {.has_id = true},
    [FAR__WIRE_ACK] = {0},
    [FAR__WIRE_DIAL_ME] = {0},
    [FAR__WIRE_RESEND] = {.has_id = true, .id_nonzero = true},
};

static const char reserved_prefix[] = "far.";

enum {
    PREFIX_SIZE = 8,    /* type to ref_count */
    REQUEST_FIXED = 24, /* prefix, call id, remaining */
    RANGE_SIZE = 16,    /* of an acknowledgement */
    CREDIT_SIZE = 24,   /* prefix and two totals */
    ACK_FIXED = 16,     /* prefix and mark */
    REFS_FIXED = 8,     /* the message's number, before the references */
    RESERVED_PREFIX_SIZE = sizeof reserved_prefix - 1,
};

static_assert(FAR__WIRE_REMAINING_AT + 8 == REQUEST_FIXED, "remaining is the last fixed field");
static_assert(REQUEST_FIXED + 8 + 4 + FAR__WIRE_NAME_MAX + REFS_FIXED +
                      FAR__WIRE_REFS_MAX * FAR__WIRE_REF_SIZE <=
                  FAR__WIRE_HEADER_MAX,
              "the largest request fits");

static size_t refs_size(const far__wire_header *header)
{
    return header->ref_count ? REFS_FIXED + (size_t)header->ref_count * FAR__WIRE_REF_SIZE : 0;
}

size_t far__wire_size(const far__wire_header *header)
{
    switch (header->type) {
    case FAR__WIRE_REQUEST:
        return REQUEST_FIXED + (header->flags & FAR__WIRE_RETRY ? 8u : 0u) +
               (header->naming != FAR__WIRE_BY_NAME ? 4u : 0u) +
               (header->naming != FAR__WIRE_BY_ID ? header->name_size : 0u) + refs_size(header);
    case FAR__WIRE_REPLY: return PREFIX_SIZE + 8 + refs_size(header);
    case FAR__WIRE_CREDIT: return CREDIT_SIZE;
    case FAR__WIRE_ACK: return ACK_FIXED + (size_t)header->ack_count * RANGE_SIZE;
    case FAR__WIRE_DIAL_ME: return PREFIX_SIZE;
    default: return PREFIX_SIZE + 8;
    }
}

/* What stands at 4: the count of what follows the fixed part. */
static uint16_t count_field(const far__wire_header *header)
{
    if (header->type == FAR__WIRE_ACK)
        return header->ack_count;
    if (header->type == FAR__WIRE_REQUEST && header->naming != FAR__WIRE_BY_ID)
        return header->name_size;
    return 0;
}

static void encode_request(const far__wire_header *header, far__writer *w)
{
    assert(header->naming == FAR__WIRE_BY_ID ||
           (header->name_size >= 1 && header->name_size <= FAR__WIRE_NAME_MAX));
    far__write_u64(w, header->flags & FAR__WIRE_HAS_REMAINING ? (uint64_t)header->remaining : 0);
    if (header->flags & FAR__WIRE_RETRY)
        far__write_u64(w, header->sequence);
    if (header->naming != FAR__WIRE_BY_NAME)
        far__write_u32(w, header->short_id);
    if (header->naming != FAR__WIRE_BY_ID)
        far__write_bytes(w, header->name, header->name_size);
}

static void encode_refs(const far__wire_header *header, far__writer *w)
{
    assert(header->ref_count <= FAR__WIRE_REFS_MAX && header->ref_number);
    far__write_u64(w, header->ref_number);
    far__write_bytes(w, header->refs, (size_t)header->ref_count * FAR__WIRE_REF_SIZE);
}

static void encode_ack(const far__wire_header *header, far__writer *w)
{
    assert(header->ack_count <= FAR__WIRE_RANGES_MAX);
    far__write_u64(w, header->ack_mark);
    for (size_t i = 0; i < header->ack_count; i++) {
        far__write_u64(w, header->ack[i].first);
        far__write_u64(w, header->ack[i].last);
    }
}

void far__wire_encode(const far__wire_header *header, far__writer *w)
{
    assert(header->type >= FAR__WIRE_REQUEST && header->type <= FAR__WIRE_RESEND);
    const type_row *row = &types[header->type];
    far__write_u8(w, header->type);
    far__write_u8(w, header->flags);
    far__write_u8(w, row->has_encoding ? header->encoding : 0);
    far__write_u8(w, header->type == FAR__WIRE_REQUEST ? header->naming : 0);
    far__write_u16(w, count_field(header));
    far__write_u16(w, row->has_refs ? header->ref_count : 0);
    if (row->has_id)
        far__write_u64(w, header->call_id);
    if (header->type == FAR__WIRE_REQUEST)
        encode_request(header, w);
    if (row->has_refs && header->ref_count)
        encode_refs(header, w);
    if (header->type == FAR__WIRE_CREDIT) {
        far__write_u64(w, header->credit_bytes);
        far__write_u64(w, header->credit_calls);
    }
    if (header->type == FAR__WIRE_ACK)
        encode_ack(header, w);
}

static far_status malformed(const char **why, const char *text)
{
    *why = text;
    return FAR_EPROTO;
}

static far_status decode_name(far__reader *r, uint16_t size, far__wire_header *out,
                              const char **why)
{
    if (size < 1 || size > FAR__WIRE_NAME_MAX)
        return malformed(why, "method name: empty or too long");
    out->name_size = size;
    out->name = far__read_bytes(r, size);
    if (!out->name)
        return malformed(why, "header: too short");
    /* Handlers see it as a zero-terminated string. */
    if (memchr(out->name, 0, size))
        return malformed(why, "method name: holds a zero byte");
    return FAR_OK;
}

static far_status decode_request(far__reader *r, uint16_t name_size, far__wire_header *out,
                                 const char **why)
{
    out->remaining = (int64_t)far__read_u64(r);
    if (out->flags & FAR__WIRE_HAS_REMAINING ? out->remaining <= 0 : out->remaining != 0)
        return malformed(why, "remaining time: does not fit its flag");
    if (out->flags & FAR__WIRE_RETRY) {
        out->sequence = far__read_u64(r);
        if (!out->sequence)
            return malformed(why, "sequence: zero");
    }
    if (out->naming > FAR__WIRE_BY_ID)
        return malformed(why, "naming: unknown");
    bool reserved = out->flags & FAR__WIRE_RESERVED_METHOD;
    if (reserved && out->naming != FAR__WIRE_BY_NAME)
        return malformed(why, "naming: reserved methods go by name");
    if (out->naming != FAR__WIRE_BY_NAME)
        out->short_id = far__read_u32(r);
    if (out->naming == FAR__WIRE_BY_ID)
        return name_size ? malformed(why, "method name: a size without a name") : FAR_OK;
    far_status status = decode_name(r, name_size, out, why);
    if (status != FAR_OK)
        return status;
    if (reserved && (name_size <= RESERVED_PREFIX_SIZE ||
                     memcmp(out->name, reserved_prefix, RESERVED_PREFIX_SIZE) != 0))
        return malformed(why, "flags: reserved, but the method is not");
    return FAR_OK;
}

static far_status decode_ack(far__reader *r, uint16_t count, far__wire_header *out,
                             const char **why)
{
    if (count > FAR__WIRE_RANGES_MAX)
        return malformed(why, "acknowledgement: too many ranges");
    out->ack_mark = far__read_u64(r);
    out->ack_count = count;
    uint64_t after = out->ack_mark;
    for (size_t i = 0; i < count; i++) {
        far__wire_range range = {.first = far__read_u64(r)};
        range.last = far__read_u64(r);
        if (r->failed)
            return malformed(why, "header: too short");
        /* The mark itself is not finished, else it would be higher. */
        if (range.first <= after || range.last < range.first)
            return malformed(why, "acknowledgement: ranges are not ascending");
        after = range.last;
        out->ack[i] = range;
    }
    return FAR_OK;
}

void far__wire_put_worker(const far__wire_worker *worker, far__writer *w)
{
    far__write_u32(w, worker->id);
    far__write_u64(w, worker->incarnation);
}

far__wire_worker far__wire_get_worker(far__reader *r)
{
    far__wire_worker worker = {.id = far__read_u32(r)};
    worker.incarnation = far__read_u64(r);
    return worker;
}

void far__wire_put_ref(const far__wire_ref *ref, far__writer *w)
{
    far__write_u8(w, ref->kind);
    far__write_zeros(w, 7);
    far__wire_put_worker(&ref->owner, w);
    far__wire_put_worker(&ref->id.maker, w);
    far__write_u64(w, ref->id.counter);
    far__write_u64(w, ref->fork);
}

static far__wire_ref get_ref(far__reader *r, bool *zeros)
{
    far__wire_ref ref = {.kind = far__read_u8(r)};
    *zeros = true;
    for (int i = 0; i < 7; i++) {
        if (far__read_u8(r))
            *zeros = false;
    }
    ref.owner = far__wire_get_worker(r);
    ref.id.maker = far__wire_get_worker(r);
    ref.id.counter = far__read_u64(r);
    ref.fork = far__read_u64(r);
    return ref;
}

far__wire_ref far__wire_ref_at(const far__wire_header *header, size_t i)
{
    assert(i < header->ref_count);
    far__reader r = far__reader_over(header->refs + i * FAR__WIRE_REF_SIZE, FAR__WIRE_REF_SIZE);
    bool zeros;
    return get_ref(&r, &zeros);
}

static far_status decode_refs(far__reader *r, far__wire_header *out, const char **why)
{
    if (out->ref_count > FAR__WIRE_REFS_MAX)
        return malformed(why, "references: more than 512");
    out->ref_number = far__read_u64(r);
    if (!out->ref_number)
        return malformed(why, "references: message number zero");
    const size_t size = (size_t)out->ref_count * FAR__WIRE_REF_SIZE;
    out->refs = far__read_bytes(r, size);
    if (!out->refs)
        return malformed(why, "header: too short");
    far__reader list = far__reader_over(out->refs, size);
    bool created = false;
    for (size_t i = 0; i < out->ref_count; i++) {
        bool zeros;
        far__wire_ref ref = get_ref(&list, &zeros);
        if (!zeros || ref.kind > FAR__WIRE_REF_CREATED)
            return malformed(why, "references: unknown kind");
        if (!ref.id.counter || !ref.fork)
            return malformed(why, "references: number zero");
        if (ref.kind == FAR__WIRE_REF_CREATED) {
            if (created || out->type != FAR__WIRE_REQUEST)
                return malformed(why, "references: one creation a request");
            created = true;
        }
    }
    return FAR_OK;
}

static far_status check_encoding(const far__wire_header *h, const char **why)
{
    const type_row *row = &types[h->type];
    if (h->type == FAR__WIRE_ERROR ? h->encoding != FAR_ENCODING_VALUES
                                   : h->encoding > (row->has_encoding ? FAR_ENCODING_PICKLE : 0))
        return malformed(why, "encoding: unknown for this type");
    return FAR_OK;
}

/* The fields of the first 16 bytes, which most types share. */
static far_status decode_common(far__reader *r, far__wire_header *out, uint16_t *count,
                                const char **why)
{
    out->type = far__read_u8(r);
    if (out->type < FAR__WIRE_REQUEST || out->type > FAR__WIRE_RESEND)
        return malformed(why, "type: unknown");
    const type_row *row = &types[out->type];
    out->flags = far__read_u8(r);
    if (out->flags & ~row->flags)
        return malformed(why, "flags: unknown for this type");
    out->encoding = far__read_u8(r);
    far_status status = check_encoding(out, why);
    if (status != FAR_OK)
        return status;
    out->naming = far__read_u8(r);
    if (out->naming && out->type != FAR__WIRE_REQUEST)
        return malformed(why, "naming: not zero");
    *count = far__read_u16(r);
    if (*count && out->type != FAR__WIRE_REQUEST && out->type != FAR__WIRE_ACK)
        return malformed(why, "count: not zero");
    out->ref_count = far__read_u16(r);
    if (out->ref_count && !row->has_refs)
        return malformed(why, "references: not in this type");
    if (row->has_id)
        out->call_id = far__read_u64(r);
    if (row->id_nonzero && !out->call_id)
        return malformed(why, "call id: zero");
    return FAR_OK;
}

far_status far__wire_decode(const void *data, size_t size, far__wire_header *out, const char **why)
{
    /* Not the ranges: they are a kilobyte, and only an acknowledgement has some. */
    memset(out, 0, offsetof(far__wire_header, ack));
    *why = NULL;
    if (size > FAR__WIRE_HEADER_MAX)
        return malformed(why, "header: too long");
    far__reader r = far__reader_over(data, size);
    uint16_t count = 0;
    far_status status = decode_common(&r, out, &count, why);
    if (status == FAR_OK && out->type == FAR__WIRE_REQUEST)
        status = decode_request(&r, count, out, why);
    if (status == FAR_OK && out->type == FAR__WIRE_ACK)
        status = decode_ack(&r, count, out, why);
    if (status == FAR_OK && out->ref_count)
        status = decode_refs(&r, out, why);
    if (out->type == FAR__WIRE_CREDIT) {
        out->credit_bytes = far__read_u64(&r);
        out->credit_calls = far__read_u64(&r);
    }
    /* First, because a field that was cut reads as zero and would be blamed instead. */
    if (r.failed)
        return malformed(why, "header: too short");
    if (status != FAR_OK)
        return status;
    if (far__reader_left(&r))
        return malformed(why, "header: bytes after its end");
    return FAR_OK;
}
