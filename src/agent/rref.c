/* SPDX-License-Identifier: BSD-3-Clause
 * agent/rref: the public remote reference: creating, using, fetching.
 * Floor: agent. Thread: any.
 *
 * Design notes. A far_rref is a far__rref of the machine; each handle of the program counts there, and
 * holds the agent. A fetch is an ordinary call, "rref.fetch", that carries the reference: so the owner
 * finds its own entry in the message, and needs no table of its own. While the value is being made the
 * fetch waits at the owner without a thread. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"

#define FETCH_METHOD "rref.fetch"

static far__rref *rref_of(const far_rref *r)
{
    return (far__rref *)(uintptr_t)r;
}

static far_agent *agent_of(const far__rref *r)
{
    return far__container_of(r->refs, far_agent, rrefs);
}

/* Gives the machine's handle to the program. */
static far_rref *to_program(far_agent *a, far__rref *r)
{
    far__agent_ref(a);
    return (far_rref *)r;
}

far_rref *far_rref_hold(far_rref *rref)
{
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    far__refs_lock(a);
    far__rref_hold(r);
    far__refs_unlock(a);
    return to_program(a, r);
}

void far_rref_release(far_rref *rref)
{
    if (!rref)
        return;
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    if (!a->forked) {
        far__refs_lock(a);
        far__rref_drop(r);
        far__refs_unlock(a);
        far__refs_drained(a);
    }
    far__agent_unref(a);
}

/* ------------------------------------------------------------------------------------- creating */

far_status far_rref_create(far_agent *a, void *value, far_free_fn free_fn, far_rref **out)
{
    if (!value)
        return FAR_EINVAL;
    if (!a->refs_there || atomic_load(&a->state) >= FAR__AGENT_CLOSING)
        return FAR_ECLOSED;
    far__kept *k = far__kept_object(value, free_fn);
    if (!k)
        return FAR_ENOMEM;
    far__rref *r;
    far__refs_lock(a);
    far_status status = far__refs_own(&a->rrefs, k, &r);
    far__refs_unlock(a);
    if (status != FAR_OK) {
        k->object->free_fn = NULL; /* the value stays the caller's */
        far__kept_free(a, k);
        return status;
    }
    *out = to_program(a, r);
    return FAR_OK;
}

static far_status create_here(far__peer *p, const char *method, far_message *message,
                              far_duration timeout, far__rref **r, far_future **f)
{
    far_agent *a = p->agent;
    far__refs_lock(a);
    far_status status = far__refs_own(&a->rrefs, NULL, r);
    far__refs_unlock(a);
    if (status != FAR_OK) {
        far__agent_drop(a, message);
        return status;
    }
    status = far__call_create(p, method, message, timeout, *r, f);
    if (status != FAR_OK) {
        far__refs_lock(a);
        far__rref_drop(*r);
        far__refs_unlock(a);
    }
    return status;
}

static far_status create_there(far__peer *p, const char *method, far_message *message,
                               far_duration timeout, far__rref **r, far_future **f)
{
    far_agent *a = p->agent;
    far__refs_out *refs_out;
    far_status status = far__carried_out(a, message, &refs_out);
    if (status == FAR_OK) {
        far__wire_worker to = {.id = p->info.id, .incarnation = p->info.incarnation};
        far__refs_lock(a);
        status = far__refs_create(&a->rrefs, refs_out, to, r);
        far__refs_unlock(a);
    }
    if (status != FAR_OK) {
        far__agent_drop(a, message);
        return status;
    }
    status = far__call_create(p, method, message, timeout, *r, f);
    if (status != FAR_OK) {
        far__refs_lock(a);
        far__rref_drop(*r);
        far__refs_unlock(a);
    }
    return status;
}

far_status far_remote(far_agent *a, far_worker_id to, const char *method, far_message *message,
                      far_duration timeout, far_rref **out)
{
    far__peer *p = NULL;
    far__rref *r;
    far_future *f;
    far_status status = far__call_check(a, method, message, &timeout);
    if (status == FAR_OK)
        status = far__peer_get(a, to, &p);
    if (status != FAR_OK) {
        far_message_discard(message);
        return status;
    }
    status = p->is_self ? create_here(p, method, message, timeout, &r, &f)
                        : create_there(p, method, message, timeout, &r, &f);
    far__peer_unref(p);
    if (status != FAR_OK)
        return status;
    far_future_release(f);
    *out = to_program(a, r);
    return FAR_OK;
}

/* ------------------------------------------------------------------------------------ questions */

bool far_rref_is_owner(const far_rref *rref)
{
    return rref_of(rref)->is_owner;
}

void far_rref_owner(const far_rref *rref, far_worker *out)
{
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    *out = (far_worker){.id = r->owner.id, .incarnation = r->owner.incarnation};
    far__mutex_lock(&a->lock);
    const far__member *m = far__roster_by_id(&a->roster, r->owner.id);
    if (m && m->incarnation == r->owner.incarnation)
        memcpy(out->name, m->name, sizeof out->name);
    far__mutex_unlock(&a->lock);
}

bool far_rref_confirmed(const far_rref *rref)
{
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    far__refs_lock(a);
    bool confirmed = far__rref_confirmed(r);
    far__refs_unlock(a);
    return confirmed;
}

/* Ids do not change, so no lock is needed. */
bool far_rref_same(const far_rref *x, const far_rref *y)
{
    const far__rref *a = rref_of(x), *b = rref_of(y);
    return a->owner.incarnation == b->owner.incarnation && a->owner.id == b->owner.id &&
           a->id.maker.incarnation == b->id.maker.incarnation && a->id.maker.id == b->id.maker.id &&
           a->id.counter == b->id.counter;
}

uint64_t far_rref_hash(const far_rref *rref)
{
    const far__rref *r = rref_of(rref);
    uint64_t h = (r->owner.incarnation ^ r->id.maker.incarnation * 3) + r->id.counter;
    return h * 0x9E3779B97F4A7C15u;
}

void far_rref_describe(const far_rref *rref, char *text, size_t size)
{
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    far__refs_lock(a);
    const char *state =
        r->status != FAR_OK ? far_status_name(r->status) : far__rref_state_name(r->state);
    far__refs_unlock(a);
    snprintf(text, size, "worker %" PRIu32 ", reference %" PRIu32 ":%" PRIu64 ", %s", r->owner.id,
             r->id.maker.id, r->id.counter, state);
}

typedef struct listing {
    void (*fn)(const far_rref_info *info, void *arg);
    void *arg;
    far_worker_id holders[64]; /* the first ones */
    size_t count;
} listing;

static void list_holder(far__wire_worker holder, void *arg)
{
    listing *l = arg;
    if (l->count < sizeof l->holders / sizeof l->holders[0])
        l->holders[l->count++] = holder.id;
}

static void list_rref(const far__rref *r, void *arg)
{
    listing *l = arg;
    l->count = 0;
    if (r->is_owner)
        far__rref_holders(r, list_holder, l);
    far_rref_info info = {.owner = r->owner.id,
                          .is_owner = r->is_owner,
                          .held = r->handles > 0,
                          .state = far__rref_state_name(r->state),
                          .holders = l->holders,
                          .holder_count = l->count};
    l->fn(&info, l->arg);
}

void far_agent_rrefs(far_agent *a, void (*fn)(const far_rref_info *info, void *arg), void *arg)
{
    if (!a->refs_there || a->forked)
        return;
    listing l = {.fn = fn, .arg = arg};
    far__refs_lock(a);
    far__refs_each(&a->rrefs, list_rref, &l);
    far__refs_unlock(a);
}

/* ------------------------------------------------------------------------------------- settling */

/* Who waits for a reference to be settled: a future, or a fetch that is being served. */
typedef struct settle_wait settle_wait;
struct settle_wait {
    far_future *future;
    far_incoming *fetch;
    far__rref *rref;
    settle_wait *next;
    far__list in_agent;
};

/* refs_lock held: queues; false: it is settled already, or will not be any more. */
static bool wait_settled(far_agent *a, far__rref *r, settle_wait *w)
{
    if (a->rrefs.closed || !far__rref_watch(r))
        return false;
    w->rref = r;
    w->next = r->user;
    r->user = w;
    far__list_init(&w->in_agent);
    far__list_add_tail(&a->settle_waits, &w->in_agent);
    return true;
}

/* What uses of `r` end with now; why, if it is no success. */
static far_status verdict(far_agent *a, far__rref *r, far__reason **reason)
{
    far_worker owner;
    *reason = NULL;
    far__refs_lock(a);
    far_status status = r->status;
    if (status == FAR_OK && a->rrefs.closed && far__rref_watch(r))
        status = FAR_ECLOSED;
    far__refs_unlock(a);
    if (status == FAR_OK)
        return FAR_OK;
    far_rref_owner((far_rref *)r, &owner);
    far__refs_lock(a);
    *reason = far__rref_reason(a, r, owner.name);
    far__refs_unlock(a);
    return status;
}

static void end_future(far_agent *a, far__rref *r, far_future *f)
{
    far__reason *reason;
    far_status status = verdict(a, r, &reason);
    far_message *m = NULL;
    if (status == FAR_OK)
        status = far_message_create(FAR_ENCODING_RAW, &m);
    far__future_settle(f, status, m, reason);
    far_future_release(f);
}

far_status far_rref_settled(far_rref *rref, far_future **out)
{
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    if (a->forked)
        return FAR_ECLOSED;
    far_future *f;
    settle_wait *w = far__mem_zalloc(sizeof *w);
    if (!w)
        return FAR_ENOMEM;
    far_status status = far_future_create(a, &f);
    if (status != FAR_OK) {
        far__mem_free(w);
        return status;
    }
    f->worker = r->owner.id;
    w->future = far_future_hold(f);
    far__refs_lock(a);
    bool waits = wait_settled(a, r, w);
    far__refs_unlock(a);
    if (!waits) {
        far__mem_free(w);
        end_future(a, r, f);
    }
    *out = f;
    return FAR_OK;
}

far_status far_rref_value(far_rref *rref, void **out)
{
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    if (!r->is_owner)
        return FAR_EINVAL;
    far__refs_lock(a);
    far_status status = r->status;
    if (status == FAR_OK && r->state != FAR__RREF_MADE)
        status = FAR_EAGAIN;
    const far__kept *k = r->value;
    if (status == FAR_OK)
        *out = k && k->object ? far_buffer_data(k->object) : NULL;
    far__refs_unlock(a);
    return status;
}

/* ------------------------------------------------------------------------------------- fetching */

static void serve_fetch(far_agent *a, far_incoming *in);

/* refs_lock held: takes all who wait for it. */
static settle_wait *take_waits(far__rref *r)
{
    settle_wait *all = r->user;
    r->user = NULL;
    for (settle_wait *w = all; w; w = w->next)
        far__list_remove(&w->in_agent);
    return all;
}

static void end_waits(far_agent *a, far__rref *r, settle_wait *w)
{
    while (w) {
        settle_wait *next = w->next;
        if (w->future)
            end_future(a, r, w->future);
        else
            serve_fetch(a, w->fetch);
        far__mem_free(w);
        w = next;
    }
    far__refs_lock(a);
    far__rref_drop(r);
    far__refs_unlock(a);
}

/* The loop tells what was watched; drops the handle that came with it. */
void far__rref_settle(far_agent *a, far__rref *r)
{
    far__refs_lock(a);
    settle_wait *w = take_waits(r);
    far__refs_unlock(a);
    end_waits(a, r, w);
}

void far__rref_stop(far_agent *a)
{
    for (;;) {
        far__refs_lock(a);
        far__list *first = a->settle_waits.next;
        bool none = far__list_empty(&a->settle_waits);
        far__rref *r = none ? NULL : far__container_of(first, settle_wait, in_agent)->rref;
        settle_wait *w = r ? take_waits(r) : NULL;
        if (r)
            far__rref_hold(r);
        far__refs_unlock(a);
        if (!r)
            return;
        end_waits(a, r, w);
    }
}

static void fail_fetch(far_agent *a, far_incoming *in, far_status status, far__reason *reason)
{
    far_message *payload = reason ? reason->payload : NULL;
    if (reason)
        reason->payload = NULL;
    far_incoming_fail(in, status, reason ? reason->type_name : NULL,
                      reason ? reason->text : far_status_text(status),
                      reason ? reason->traceback : NULL, payload);
    far__reason_free(a, reason);
}

/* The entry is settled. A message is answered here; an object by the language's fetch handler, on a
 * handler thread. */
static void serve_fetch(far_agent *a, far_incoming *in)
{
    far__rref *r = in->fetched;
    far_message *m = NULL;
    far__reason *reason;
    far_status status = verdict(a, r, &reason);
    far__refs_lock(a);
    const far__kept *k = r->value;
    if (status == FAR_OK && k && k->message)
        status = far__message_clone(k->message, &m);
    bool object = k && k->object;
    far__refs_unlock(a);
    if (status != FAR_OK)
        fail_fetch(a, in, status, reason);
    else if (m)
        far_incoming_reply(in, m);
    else if (object && a->fetch)
        far__incoming_fetch(in);
    else
        far_incoming_fail(in, FAR_EVALUE, NULL, "the value cannot be sent", NULL, NULL);
}

static void on_fetch(far_incoming *in, void *arg)
{
    far_agent *a = arg;
    far__carried *c = in->message->refs;
    settle_wait *w = far__mem_zalloc(sizeof *w);
    far__refs_lock(a);
    far__rref *r = c && c->in ? far__refs_in_take(c->in, 0) : NULL;
    bool mine = r && r->is_owner && w;
    in->fetched = r;
    bool waits = false;
    if (mine) {
        w->fetch = in;
        waits = wait_settled(a, r, w);
    }
    far__refs_unlock(a);
    if (waits)
        return;
    far__mem_free(w);
    if (mine)
        serve_fetch(a, in);
    else
        far_incoming_fail(in, w ? FAR_EINVAL : FAR_ENOMEM, NULL,
                          "no reference to a value of this worker", NULL, NULL);
}

far_status far__rref_methods(far_agent *a)
{
    far_method m = {.name = FETCH_METHOD, .handler = on_fetch, .arg = a};
    return far__methods_add(&a->methods, &m, false);
}

/* A use of a reference whose creation is known to have failed: the error is in the future. */
static far_status failed_use(far_agent *a, far__rref *r, far_future **out)
{
    far_future *f;
    far_status status = far_future_create(a, &f);
    if (status != FAR_OK)
        return status;
    f->worker = r->owner.id;
    end_future(a, r, far_future_hold(f));
    *out = f;
    return FAR_OK;
}

far_status far_rref_fetch(far_rref *rref, far_encoding encoding, far_duration timeout,
                          unsigned flags, far_future **out)
{
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    far_message *m;
    far_status status = far_message_create(FAR_ENCODING_RAW, &m);
    if (status != FAR_OK)
        return status;
    uint8_t wish = (uint8_t)encoding;
    status = far_message_append(m, &wish, 1);
    if (status == FAR_OK)
        status = far_message_add_rref(m, rref, NULL);
    if (status == FAR_OK)
        return far_call(a, r->owner.id, FETCH_METHOD, m, timeout, flags, out);
    far__agent_drop(a, m);
    far__refs_lock(a);
    bool failed = r->status != FAR_OK;
    far__refs_unlock(a);
    return failed && far__agent_is_open(a) ? failed_use(a, r, out) : status;
}

/* ------------------------------------------------------------------------------------- messages */

far_status far_message_add_rref(far_message *m, far_rref *rref, size_t *index)
{
    far__rref *r = rref_of(rref);
    far_agent *a = agent_of(r);
    far__refs_out *out;
    size_t at;
    if (a->forked)
        return FAR_ECLOSED;
    far_status status = far__carried_out(a, m, &out);
    if (status != FAR_OK)
        return status;
    far__refs_lock(a);
    status = far__refs_out_add(out, r, &at);
    far__refs_unlock(a);
    if (status == FAR_OK && index)
        *index = at;
    return status;
}

size_t far_message_rref_count(const far_message *m)
{
    return far__carried_count(m);
}

far_status far_message_rref(far_message *m, size_t index, far_rref **out)
{
    far__carried *c = m->refs;
    if (!c || !c->in)
        return FAR_EINVAL;
    far_agent *a = c->agent;
    far__refs_lock(a);
    /* The created one stands behind those that were passed. */
    far__rref *r = index < far__carried_count(m) ? far__refs_in_take(c->in, index) : NULL;
    far__refs_unlock(a);
    if (!r)
        return FAR_EINVAL;
    *out = to_program(a, r);
    return FAR_OK;
}
