/* SPDX-License-Identifier: BSD-3-Clause
 * proto/refs_calls: the machine's own calls: built of what is queued, answered, and those of other
 * workers taken in. A call that failed is given out again as it was, never anew: the receiver may have
 * done it, and its answer be lost. Floor: proto. Thread: as refs.h. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "proto/refs_state.h"

enum {
    REGISTER_SIZE = 48, /* id, fork, registration */
    EXPIRED_SIZE = 16,  /* message, fork */
    ACCEPT_SIZE = 8,    /* fork */
    VOID_SIZE = 8,      /* message; before all of them the call's number */
    RELEASE_SIZE = 28,  /* fork, registration */
};

static const struct {
    const char *method;
    size_t size, before; /* of an item, of what stands before them */
    size_t said;         /* bytes of the answer an item */
    bool one_by_one;     /* the next is built when the last was answered, so that items gather */
} kinds[FAR__REFS_METHODS] = {
    [FAR__REFS_DO_REGISTER] = {FAR__REFS_REGISTER, REGISTER_SIZE, 0, 1, false},
    [FAR__REFS_DO_EXPIRED] = {FAR__REFS_EXPIRED, EXPIRED_SIZE, 0, 2, false},
    [FAR__REFS_DO_ACCEPT] = {FAR__REFS_ACCEPT, ACCEPT_SIZE, 0, 0, true},
    [FAR__REFS_DO_VOID] = {FAR__REFS_VOID, VOID_SIZE, 8, 1, true},
    [FAR__REFS_DO_RELEASE] = {FAR__REFS_RELEASE, RELEASE_SIZE, 0, 0, true},
};

static_assert(FAR__REFS_BATCH * REGISTER_SIZE <= FAR__WIRE_RESERVED_MAX, "a call fits");

static bool may_call(const far__refs_peer *p, int kind)
{
    return !far__list_empty(&p->queues[kind]) &&
           !(kinds[kind].one_by_one && p->out_calls[kind] > 0);
}

bool far__refs_urgent(const far__refs *refs)
{
    if (!far__list_empty(&refs->ready) || !far__list_empty(&refs->settled))
        return true;
    far__list_for_each (n, &refs->busy) {
        const far__refs_peer *p = far__container_of(n, far__refs_peer, busy);
        if (may_call(p, FAR__REFS_DO_REGISTER) || may_call(p, FAR__REFS_DO_EXPIRED))
            return true;
    }
    return false;
}

/* --------------------------------------------------------------------------------- calls, made */

static far__rref *rref_of(far__list *n)
{
    return far__container_of(n, far__rref, queued);
}

static far__refs_out *out_of(far__list *n)
{
    return far__container_of(n, far__refs_out, queued);
}

static void put_fork(const far__rref *f, far__writer *w)
{
    far__wire_put_worker(&f->giver, w);
    far__write_u64(w, f->fork);
    far__write_u64(w, f->registration);
}

static void put_item(far__refs_peer *p, int kind, far__list *n, far__writer *w)
{
    switch (kind) {
    case FAR__REFS_DO_REGISTER:
        rref_of(n)->registration = p->next_registration++;
        rref_of(n)->state = FAR__RREF_REGISTERING;
        rref_of(n)->in_call = true;
        far__wire_put_worker(&rref_of(n)->id.maker, w);
        far__write_u64(w, rref_of(n)->id.counter);
        put_fork(rref_of(n), w);
        break;
    case FAR__REFS_DO_RELEASE:
        rref_of(n)->in_call = true;
        put_fork(rref_of(n), w);
        break;
    case FAR__REFS_DO_ACCEPT:
        far__write_u64(w, far__container_of(n, far__refs_notice, queued)->fork);
        break;
    case FAR__REFS_DO_VOID:
        out_of(n)->in_call = true;
        far__write_u64(w, out_of(n)->number);
        break;
    default:
        out_of(n)->in_call = true;
        far__write_u64(w, out_of(n)->number);
        far__write_u64(w, out_of(n)->creates);
    }
}

static far_status build_call(far__refs *refs, far__refs_peer *p, int kind, far__refs_call **out)
{
    size_t count = 0;
    far__list_for_each (n, &p->queues[kind]) {
        if (++count == FAR__REFS_BATCH)
            break;
    }
    const size_t size = kinds[kind].before + count * kinds[kind].size;
    far__refs_call *call = far__mem_zalloc(sizeof *call + size);
    if (!call)
        return FAR_ENOMEM;
    call->bytes = (uint8_t *)(call + 1);
    call->method = kinds[kind].method;
    call->to = p->who;
    call->body = call->bytes;
    call->body_size = size;
    call->peer = p;
    call->kind = (uint8_t)kind;
    call->count = count;
    far__list_init(&call->items);
    far__list_init(&call->link);
    far__writer w = far__writer_over(call->bytes, size);
    if (kind == FAR__REFS_DO_VOID)
        far__write_u64(&w, p->next_void++);
    for (size_t i = 0; i < count; i++) {
        far__list *n = far__list_pop(&p->queues[kind]);
        put_item(p, kind, n, &w);
        far__list_add_tail(&call->items, n);
    }
    assert(!w.failed && w.used == size);
    p->out_calls[kind]++;
    refs->counts.calls++;
    *out = call;
    return FAR_OK;
}

/* The next call of some peer; FAR_EAGAIN: none. */
far_status far__refs_next_call(far__refs *refs, far__refs_call **out)
{
    far__list_for_each_safe (n, &refs->busy) {
        far__refs_peer *p = far__container_of(n, far__refs_peer, busy);
        for (int kind = 0; kind < FAR__REFS_METHODS; kind++) {
            if (may_call(p, kind))
                return build_call(refs, p, kind, out);
        }
        far__list_remove(&p->busy); /* until something is queued, or a call is answered */
    }
    return FAR_EAGAIN;
}

/* ------------------------------------------------------------------------------- calls, answered */

static void answered_register(far__rref *f, const uint8_t *said)
{
    f->in_call = false;
    if (said && said[0] == 0) {
        f->state = FAR__RREF_CONFIRMED;
    } else {
        f->state = FAR__RREF_UNKNOWN;
        f->refs->counts.forks--;
        far__refs_fault(f, said ? FAR__RREF_GONE : FAR__RREF_OWNER_LOST, FAR_EPEER);
    }
    far__refs_fork_answered(f);
    far__refs_check(f);
}

static void answered_release(far__rref *f)
{
    f->in_call = false;
    f->state = FAR__RREF_UNKNOWN;
    f->refs->counts.forks--;
    far__refs_check(f);
}

/* `said` NULL: its worker is lost, and the grace period will say the same. */
static void answered_out(far__refs_out *o, int kind, const uint8_t *said)
{
    o->in_call = false;
    if (o->to->dropped)
        far__refs_out_settle(o, FAR__REFS_FATE_NEVER);
    else if (said && kind == FAR__REFS_DO_VOID)
        far__refs_out_settle(o, said[0] ? FAR__REFS_FATE_ARRIVED : FAR__REFS_FATE_NEVER);
    else if (said)
        far__refs_on_verdict(o, said[0], (far_status)said[1]);
    else
        far__refs_out_check(o);
}

static void answered_item(far__refs *refs, int kind, far__list *n, const uint8_t *said)
{
    switch (kind) {
    case FAR__REFS_DO_REGISTER: answered_register(rref_of(n), said); break;
    case FAR__REFS_DO_RELEASE: answered_release(rref_of(n)); break;
    case FAR__REFS_DO_ACCEPT:
        refs->counts.notices--;
        far__mem_free(far__container_of(n, far__refs_notice, queued));
        break;
    default: answered_out(out_of(n), kind, said);
    }
}

void far__refs_answered(far__refs *refs, far__refs_call *call, far_status status,
                        const void *answer, size_t size, int64_t now)
{
    far__refs_peer *p = call->peer;
    const size_t each = kinds[call->kind].said;
    if (status == FAR_OK && size != call->count * each)
        status = FAR_EPROTO;
    if (refs->closed && status != FAR_OK)
        status = FAR_EPEER;
    if (status == FAR_EPEER && !p->lost)
        status = far__refs_lost(refs, call->to, now); /* known: needs no memory */
    if (status != FAR_OK && !p->lost) {
        /* The same call again: one that was done in part, or of which the answer was lost. */
        call->again_at = now + FAR__REFS_PAUSE;
        refs->timed++;
        far__list_add_tail(&p->again, &call->link);
        return;
    }
    const uint8_t *said = status == FAR_OK && !p->lost ? answer : NULL;
    if (status == FAR_OK && each == 0 && !p->lost)
        said = (const uint8_t *)"";
    far__list *n;
    while ((n = far__list_pop(&call->items))) {
        answered_item(refs, call->kind, n, said);
        if (said)
            said += each;
    }
    p->out_calls[call->kind]--;
    refs->counts.calls--;
    far__mem_free(call);
    if (!p->lost)
        far__refs_wake(refs, p);
}

static far_status request(far__refs *refs, far__refs_peer *from, int kind, far__reader *r,
                          far__bytes *answer)
{
    switch (kind) {
    case FAR__REFS_DO_REGISTER: return far__refs_on_register(refs, from, r, answer);
    case FAR__REFS_DO_EXPIRED: return far__refs_on_expired(refs, from, r, answer);
    case FAR__REFS_DO_VOID: return far__refs_on_void(refs, from, r, answer);
    case FAR__REFS_DO_RELEASE: return far__refs_on_release(refs, from, r);
    default: break;
    }
    if (far__reader_left(r) % ACCEPT_SIZE)
        return FAR_EPROTO;
    while (far__reader_left(r))
        far__refs_on_accept(refs, from, far__read_u64(r));
    return FAR_OK;
}

far_status far__refs_request(far__refs *refs, far__wire_worker who, const char *method,
                             const void *body, size_t size, int64_t now, far__bytes *answer)
{
    (void)now;
    int kind = 0;
    while (kind < FAR__REFS_METHODS && strcmp(kinds[kind].method, method) != 0)
        kind++;
    if (kind == FAR__REFS_METHODS || size > FAR__WIRE_RESERVED_MAX)
        return FAR_EPROTO;
    far__refs_peer *from = far__refs_peer_of(refs, who);
    if (!from)
        return FAR_ENOMEM;
    if (from->lost || refs->closed)
        return FAR_EPEER;
    far__reader r = far__reader_over(body, size);
    return request(refs, from, kind, &r, answer);
}
