/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: proto/refs. One worker whose peers send whatever the input says, between things that its
 * own program does. Nothing may be freed twice or used after, nothing may be left when all is closed.
 * Input: steps, each a byte that says which, and the bytes that the step needs; numbers are small, so
 * that they meet. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "proto/refs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KEPT = 8, VALUES = 256 };

static far__refs refs;
static far__rref *held[KEPT];
static far__refs_out *outs[KEPT];
static far__refs_in *ins[KEPT];
static far__refs_call *calls[KEPT];
static unsigned char values[VALUES]; /* 1: given to the machine */
static size_t next_value;
static int64_t now;
static uint64_t connections;
static far__reader input;

static void check(bool ok)
{
    if (!ok)
        abort();
}

static far__wire_worker someone(void)
{
    uint8_t b = far__read_u8(&input);
    return (far__wire_worker){b & 3u, 10u + (b >> 7)};
}

static size_t place(void)
{
    return far__read_u8(&input) % KEPT;
}

static void keep(far__rref *r)
{
    size_t i = place();
    if (held[i])
        far__rref_drop(held[i]);
    held[i] = r;
}

static void *new_value(void)
{
    unsigned char *v = &values[next_value++ % VALUES];
    if (*v)
        return NULL;
    *v = 1;
    return v;
}

static void take_back(void *value)
{
    unsigned char *v = value;
    check(*v == 1);
    *v = 0;
}

static void arrive(void)
{
    uint8_t packed[4 * FAR__WIRE_REF_SIZE];
    far__writer w = far__writer_over(packed, sizeof packed);
    far__wire_header h = {.type = far__read_u8(&input) & 1 ? FAR__WIRE_REPLY : FAR__WIRE_REQUEST};
    h.ref_number = 1u + far__read_u8(&input) % 8;
    h.ref_count = (uint16_t)(1u + far__read_u8(&input) % 4);
    h.refs = packed;
    far__wire_worker from = someone();
    for (unsigned i = 0; i < h.ref_count; i++) {
        far__wire_ref ref = {.kind = i == 0 && h.type == FAR__WIRE_REQUEST
                                         ? far__read_u8(&input) & 1
                                         : FAR__WIRE_REF_PASSED,
                             .owner = someone()};
        ref.id.maker = someone();
        ref.id.counter = 1u + far__read_u8(&input) % 8;
        ref.fork = 1u + far__read_u8(&input) % 8;
        far__wire_put_ref(&ref, &w);
    }
    size_t i = place();
    far__refs_in *in;
    if (ins[i]) {
        far__refs_in_end(ins[i]);
        ins[i] = NULL;
    }
    if (far__refs_arrive(&refs, from, &h, &in) == FAR_OK)
        ins[i] = in;
}

static void request(void)
{
    static const char *const methods[] = {FAR__REFS_REGISTER, FAR__REFS_RELEASE, FAR__REFS_ACCEPT,
                                          FAR__REFS_VOID, FAR__REFS_EXPIRED};
    const char *method = methods[far__read_u8(&input) % 5];
    far__wire_worker from = someone();
    uint8_t body[256];
    far__writer w = far__writer_over(body, sizeof body);
    /* Letters: a worker, or a number. */
    uint8_t length = far__read_u8(&input) % 16;
    for (uint8_t i = 0; i < length; i++) {
        uint8_t letter = far__read_u8(&input);
        if (letter & 0x80) {
            far__wire_worker worker = {letter & 3u, 10u + (letter >> 6 & 1u)};
            far__wire_put_worker(&worker, &w);
        } else {
            far__write_u64(&w, letter % 8);
        }
    }
    far__bytes answer = {0};
    far_status status = far__refs_request(&refs, from, method, body, w.used, now, &answer);
    check(status == FAR_OK || status == FAR_EPROTO || status == FAR_EPEER);
    far__bytes_fini(&answer);
}

static void act(const far__refs_action *a)
{
    size_t i;
    switch (a->kind) {
    case FAR__REFS_CALL:
        for (i = 0; i < KEPT && calls[i]; i++)
            continue;
        if (i < KEPT)
            calls[i] = a->call;
        else
            far__refs_answered(&refs, a->call, FAR_ESYSTEM, NULL, 0, now);
        break;
    case FAR__REFS_FREE: take_back(a->value ? a->value : a->error); break;
    case FAR__REFS_SETTLED: far__rref_drop(a->rref); break;
    case FAR__REFS_READY: check(a->in->waiting == 0);
    }
}

static void next(void)
{
    far__refs_action a;
    for (int i = 0; i < 4 && far__refs_next(&refs, now, &a) == FAR_OK; i++)
        act(&a);
}

static void answer(void)
{
    size_t i = place();
    far_status status = far__read_u8(&input) & 3 ? FAR_OK : FAR_EPEER;
    uint8_t said[64];
    size_t size = far__read_u8(&input) % sizeof said;
    for (size_t k = 0; k < size; k++)
        said[k] = far__read_u8(&input);
    if (calls[i])
        far__refs_answered(&refs, calls[i], status, said, size, now);
    calls[i] = NULL;
}

static void send(void)
{
    size_t o = place(), count = far__read_u8(&input) % 4, index;
    bool creates = far__read_u8(&input) & 1, is_reply = far__read_u8(&input) & 1;
    far__wire_worker to = someone();
    if (outs[o] || far__refs_out_create(&refs, &outs[o]) != FAR_OK)
        return;
    for (size_t k = 0; k < count; k++) {
        far__rref *r = held[place()];
        if (r)
            (void)!far__refs_out_add(outs[o], r, &index);
    }
    far__rref *r;
    creates =
        creates && !is_reply && (to.id != refs.self.id || to.incarnation != refs.self.incarnation);
    if (creates && far__refs_create(&refs, outs[o], to, &r) == FAR_OK) {
        (void)far__rref_watch(r);
        keep(r);
    }
    if (outs[o]->count && far__refs_out_seal(outs[o], to, is_reply) == FAR_OK) {
        if (!is_reply)
            return;
        far__refs_out_replied(outs[o], 1u + far__read_u8(&input) % 4);
        outs[o] = NULL;
        return;
    }
    far__refs_out_lost(outs[o]);
    outs[o] = NULL;
}

static void end_out(void)
{
    size_t o = place();
    uint8_t how = far__read_u8(&input) % 3;
    if (!outs[o])
        return;
    if (how == 0)
        far__refs_out_answered(outs[o]);
    else if (how == 1)
        far__refs_out_lost(outs[o]);
    else
        far__refs_out_expired(outs[o]);
    outs[o] = NULL;
}

static void own_or_make(void)
{
    far__refs_in *in = ins[place()];
    far__rref *entry = in ? far__refs_in_created(in) : NULL, *r;
    void *value = new_value();
    if (!value)
        return;
    if (entry ? !far__refs_made(entry, value, FAR_OK, NULL)
              : far__refs_own(&refs, value, &r) != FAR_OK)
        take_back(value);
    else if (!entry)
        keep(r);
}

static void touch(void)
{
    size_t i = place();
    uint8_t how = far__read_u8(&input) % 4;
    if (how == 0 && held[i]) {
        far__rref_drop(held[i]);
        held[i] = NULL;
    } else if (how == 1 && ins[i]) {
        far__rref *r = far__refs_in_take(ins[i], far__read_u8(&input) % 4);
        if (r)
            keep(r);
    } else if (how == 2 && ins[i]) {
        far__refs_in_end(ins[i]);
        ins[i] = NULL;
    } else if (how == 3 && held[i]) {
        (void)far__rref_watch(held[i]);
    }
}

static void world(void)
{
    uint8_t how = far__read_u8(&input);
    if (how % 8 == 0)
        (void)!far__refs_lost(&refs, someone(), now);
    else if (how % 8 == 1)
        (void)!far__refs_left(&refs, someone(), now);
    else if (how % 8 == 2)
        now += far__read_u8(&input) * (FAR_SECOND / 10);
    else if (how % 8 == 3)
        far__refs_broke(&refs, 1u + far__read_u8(&input) % 4);
    else if (how % 8 == 4 && connections < 4)
        (void)!far__refs_connected(&refs, ++connections);
    else if (how == 255)
        far__refs_shutdown(&refs);
}

static void close_all(void)
{
    far__refs_close(&refs);
    far__refs_action a;
    for (size_t i = 0; i < KEPT; i++) {
        if (calls[i])
            far__refs_answered(&refs, calls[i], FAR_ECLOSED, NULL, 0, now);
        if (outs[i])
            far__refs_out_lost(outs[i]);
        if (ins[i])
            far__refs_in_end(ins[i]);
        if (held[i])
            far__rref_drop(held[i]);
    }
    memset(calls, 0, sizeof calls);
    memset(outs, 0, sizeof outs);
    memset(ins, 0, sizeof ins);
    memset(held, 0, sizeof held);
    while (far__refs_next(&refs, now, &a) == FAR_OK) {
        check(a.kind != FAR__REFS_CALL);
        act(&a);
    }
    far__refs_fini(&refs);
    for (size_t i = 0; i < VALUES; i++)
        check(!values[i]);
    check(far__mem_live() == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const steps[])(void) = {arrive,  request, next,        answer, send,
                                          end_out, touch,   own_or_make, world};
    input = far__reader_over(data, size);
    now = 0;
    connections = 0;
    if (far__refs_init(&refs, (far__wire_worker){1, 10}, FAR__REFS_GRACE) != FAR_OK)
        return 0;
    while (far__reader_left(&input))
        steps[far__read_u8(&input) % (sizeof steps / sizeof *steps)]();
    close_all();
    return 0;
}
