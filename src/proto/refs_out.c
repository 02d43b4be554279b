/* SPDX-License-Identifier: BSD-3-Clause
 * proto/refs_out: messages that take references along. Invariant: a child keeps its parent until it is
 * known to have arrived (and, from user to user, to be registered) or never to arrive.
 * Floor: proto. Thread: as refs.h. */
#include <assert.h>

#include "base/mem.h"
#include "proto/refs_state.h"

/* ------------------------------------------------------------------------------- going out: adding */

far_status far__refs_out_create(far__refs *refs, far__refs_out **out)
{
    far__refs_out *o = far__mem_zalloc(sizeof *o);
    if (!o)
        return FAR_ENOMEM;
    o->refs = refs;
    far__list_init(&o->in_peer);
    far__list_init(&o->queued);
    far__list_init(&o->in_connection);
    refs->counts.outs++;
    *out = o;
    return FAR_OK;
}

static far_status make_room(far__refs_out *o)
{
    if (o->count == FAR__WIRE_REFS_MAX)
        return FAR_ETOOBIG;
    if (o->count < o->room)
        return FAR_OK;
    size_t room = o->room ? o->room * 2 : 4;
    far__rref **rrefs = far__mem_resize(o->rrefs, room * sizeof(far__rref *));
    if (!rrefs)
        return FAR_ENOMEM;
    o->rrefs = rrefs;
    o->room = room;
    return FAR_OK;
}

far_status far__refs_out_add(far__refs_out *o, far__rref *r, size_t *index)
{
    assert(!o->sealed && r->handles);
    if (r->status != FAR_OK)
        return r->status;
    if (o->refs->closing)
        return FAR_ECLOSED;
    for (size_t i = 0; i < o->count; i++) {
        if (o->rrefs[i] == r) {
            *index = i;
            return FAR_OK;
        }
    }
    far_status status = make_room(o);
    if (status != FAR_OK)
        return status;
    far__rref_hold(r);
    *index = o->count;
    o->rrefs[o->count++] = r;
    return FAR_OK;
}

far_status far__refs_create(far__refs *refs, far__refs_out *o, far__wire_worker to, far__rref **out)
{
    assert(!o->sealed && !o->creates && !far__refs_same(to, refs->self));
    if (refs->closing)
        return FAR_ECLOSED;
    far__refs_peer *owner = far__refs_peer_of(refs, to);
    if (!owner)
        return FAR_ENOMEM;
    far_status status = make_room(o);
    if (status != FAR_OK)
        return status;
    far__rref *f;
    status = far__refs_fork_new(refs, owner, FAR__RREF_CREATING, &f);
    if (status != FAR_OK)
        return status;
    f->fork = refs->next_fork++;
    f->giver = refs->self;
    f->id = (far__wire_ref_id){refs->self, 0};
    far__rref_hold(f);
    o->creates = f->fork;
    o->rrefs[o->count++] = f;
    *out = f;
    return FAR_OK;
}

/* ------------------------------------------------------------------------------ going out: sealing */

static bool is_creation(const far__refs_out *o, const far__rref *r)
{
    return !r->is_owner && r->fork == o->creates && far__refs_same(r->giver, o->refs->self);
}

static uint8_t way_of(const far__refs_out *o, const far__refs_peer *to, const far__rref *r)
{
    if (is_creation(o, r))
        return FAR__REFS_WAY_CREATE;
    if (far__refs_same(r->owner, to->who))
        return FAR__REFS_WAY_TO_OWNER;
    return r->is_owner ? FAR__REFS_WAY_FROM_OWNER : FAR__REFS_WAY_USERS;
}

static void undo_child(far__refs *refs, far__refs_child *c)
{
    far__map_remove(&refs->children, c->fork);
    far__refs_live *live = far__map_get(&refs->self_peer->lives, c->fork);
    if (live)
        far__refs_live_remove(live); /* the message's handle still keeps the entry */
}

static far_status make_child(far__refs_out *o, far__refs_peer *to, far__refs_child *c, far__rref *r)
{
    far__refs *refs = o->refs;
    *c = (far__refs_child){.out = o, .parent = r, .way = way_of(o, to, r)};
    c->fork = c->way == FAR__REFS_WAY_CREATE ? r->fork : refs->next_fork++;
    far_status status = far__map_put(&refs->children, c->fork, c);
    if (status != FAR_OK || c->way != FAR__REFS_WAY_FROM_OWNER)
        return status;
    status = far__refs_live_add(r, refs->self_peer, c->fork, to);
    if (status != FAR_OK)
        far__map_remove(&refs->children, c->fork);
    return status;
}

static void pack(far__refs_out *o, uint8_t *bytes)
{
    far__writer w = far__writer_over(bytes, (size_t)o->count * FAR__WIRE_REF_SIZE);
    for (size_t i = 0; i < o->count; i++) {
        const far__rref *r = o->children[i].parent;
        far__wire_ref ref = {.kind = o->children[i].way == FAR__REFS_WAY_CREATE
                                         ? FAR__WIRE_REF_CREATED
                                         : FAR__WIRE_REF_PASSED,
                             .owner = r->owner,
                             .id = r->id,
                             .fork = o->children[i].fork};
        far__wire_put_ref(&ref, &w);
    }
    assert(!w.failed);
    o->packed = bytes;
}

far_status far__refs_out_seal(far__refs_out *o, far__wire_worker to_who, bool is_reply)
{
    assert(!o->sealed && o->count);
    far__refs *refs = o->refs;
    far__refs_peer *to = far__refs_peer_of(refs, to_who);
    if (!to)
        return FAR_ENOMEM;
    if (to->lost)
        return FAR_EPEER;
    far__refs_child *children = far__mem_alloc(o->count * (sizeof *children + FAR__WIRE_REF_SIZE));
    if (!children)
        return FAR_ENOMEM;
    for (size_t i = 0; i < o->count; i++) {
        far_status status = make_child(o, to, &children[i], o->rrefs[i]);
        if (status == FAR_OK)
            continue;
        while (i-- > 0)
            undo_child(refs, &children[i]);
        far__mem_free(children);
        return status;
    }
    o->number = to->next_message++;
    for (size_t i = 0; i < o->count; i++) {
        far__rref *r = o->rrefs[i];
        if (children[i].way == FAR__REFS_WAY_CREATE) {
            assert(!is_reply && far__refs_same(r->owner, to_who));
            r->id.counter = o->number;
        }
        r->children++;
        far__rref_drop(r);
    }
    o->children = children;
    pack(o, (uint8_t *)(children + o->count));
    far__mem_free(o->rrefs);
    o->rrefs = NULL;
    o->to = to;
    o->open = o->count;
    o->is_reply = is_reply;
    o->sealed = true;
    far__list_add_tail(&to->outs, &o->in_peer);
    return FAR_OK;
}

/* ------------------------------------------------------------------------------ going out: the end */

void far__refs_out_check(far__refs_out *o)
{
    if (!o->over || o->open || o->in_call)
        return;
    far__list_remove(&o->queued);
    far__list_remove(&o->in_connection);
    far__list_remove(&o->in_peer);
    o->refs->counts.outs--;
    far__mem_free(o->children);
    far__mem_free(o->rrefs);
    far__mem_free(o);
}

/* A creation's fork gets the owner's word, unless its verdict came before. */
static void creation_known(far__rref *f, bool known, far_status status)
{
    if (f->state != FAR__RREF_CREATING)
        return;
    f->state = known ? FAR__RREF_CONFIRMED : FAR__RREF_UNKNOWN;
    if (!known)
        f->refs->counts.forks--;
    if (!known && status == FAR_OK)
        status = FAR_EPROTO; /* a verdict from outside */
    if (status != FAR_OK)
        far__refs_fault(f, FAR__RREF_FAILED, status);
    far__refs_settle(f);
}

/* Ends one journey; the message itself is the caller's to check. */
static void end_child(far__refs_child *c, far__refs_fate fate)
{
    far__refs_out *o = c->out;
    far__rref *parent = c->parent;
    if (!parent)
        return;
    far__map_remove(&o->refs->children, c->fork);
    c->parent = NULL;
    o->open--;
    if (c->way == FAR__REFS_WAY_CREATE)
        creation_known(parent, fate == FAR__REFS_FATE_ARRIVED,
                       fate == FAR__REFS_FATE_ARRIVED ? FAR_OK : FAR_EPEER);
    if (c->way == FAR__REFS_WAY_FROM_OWNER && fate == FAR__REFS_FATE_NEVER) {
        far__refs_live *live = far__map_get(&o->refs->self_peer->lives, c->fork);
        if (live)
            far__refs_live_remove(live);
    }
    parent->children--;
    far__refs_check(parent);
}

void far__refs_out_settle(far__refs_out *o, far__refs_fate fate)
{
    for (size_t i = 0; i < o->count; i++) {
        /* That a message arrived says everything but that a fork from user to user is registered. */
        if (fate == FAR__REFS_FATE_ARRIVED && o->children[i].way == FAR__REFS_WAY_USERS)
            continue;
        end_child(&o->children[i], fate);
    }
    far__refs_out_check(o);
}

void far__refs_on_verdict(far__refs_out *o, bool known, far_status status)
{
    far__refs_child *c = far__map_get(&o->refs->children, o->creates);
    if (c)
        creation_known(c->parent, known, status);
    far__refs_out_settle(o, known ? FAR__REFS_FATE_ARRIVED : FAR__REFS_FATE_NEVER);
}

/* What became of it is unknown: its receiver is asked, and will not take it after that. */
static void ask(far__refs_out *o, int kind)
{
    if (o->to->dropped) {
        far__refs_out_settle(o, FAR__REFS_FATE_NEVER);
        return;
    }
    if (!o->open) {
        far__refs_out_check(o);
        return;
    }
    if (o->asking || o->to->lost) /* of a lost one the end of the grace period is the answer */
        return;
    o->asking = (uint8_t)(kind + 1);
    far__refs_queue(o->refs, o->to, kind, &o->queued);
}

/* Before it was sealed nobody else knows of it. */
static bool rolled_back(far__refs_out *o)
{
    o->over = true;
    if (o->sealed)
        return false;
    for (size_t i = 0; i < o->count; i++) {
        far__rref *r = o->rrefs[i];
        if (is_creation(o, r))
            creation_known(r, false, FAR_ECANCELED);
        far__rref_drop(r);
    }
    far__refs_out_check(o);
    return true;
}

bool far__refs_created(far__rref *f, far_status status, void *error)
{
    assert(!f->is_owner);
    if (f->state != FAR__RREF_CREATING)
        return false;
    f->error = error;
    creation_known(f, true, status);
    return true;
}

void far__refs_out_answered(far__refs_out *o)
{
    assert(o->sealed && !o->is_reply && !o->over);
    o->over = true;
    if (o->to->dropped)
        far__refs_out_settle(o, FAR__REFS_FATE_NEVER);
    else
        far__refs_out_settle(o, FAR__REFS_FATE_ARRIVED);
}

void far__refs_out_lost(far__refs_out *o)
{
    assert(!o->over);
    if (!rolled_back(o))
        ask(o, FAR__REFS_DO_VOID);
}

void far__refs_out_expired(far__refs_out *o)
{
    assert(!o->over);
    if (!rolled_back(o))
        ask(o, o->creates ? FAR__REFS_DO_EXPIRED : FAR__REFS_DO_VOID);
}

typedef struct connection {
    far__list outs;
} connection;

void far__refs_out_replied(far__refs_out *o, uint64_t token)
{
    assert(o->sealed && o->is_reply && !o->over);
    o->over = true;
    connection *c = far__map_get(&o->refs->connections, token);
    if (!c || o->to->dropped)
        ask(o, FAR__REFS_DO_VOID);
    else if (o->open)
        far__list_add_tail(&c->outs, &o->in_connection);
    else
        far__refs_out_check(o);
}

far_status far__refs_connected(far__refs *refs, uint64_t token)
{
    assert(token && !far__map_get(&refs->connections, token));
    connection *c = far__mem_alloc(sizeof *c);
    if (!c)
        return FAR_ENOMEM;
    far__list_init(&c->outs);
    far_status status = far__map_put(&refs->connections, token, c);
    if (status != FAR_OK)
        far__mem_free(c);
    return status;
}

void far__refs_broke(far__refs *refs, uint64_t token)
{
    connection *c = far__map_remove(&refs->connections, token);
    if (!c)
        return;
    far__list *n;
    while ((n = far__list_pop(&c->outs)))
        ask(far__container_of(n, far__refs_out, in_connection), FAR__REFS_DO_VOID);
    far__mem_free(c);
}

void far__refs_child_arrived(far__refs *refs, uint64_t fork)
{
    far__refs_child *c = far__map_get(&refs->children, fork);
    if (!c)
        return;
    far__refs_out *o = c->out;
    end_child(c, FAR__REFS_FATE_ARRIVED);
    far__refs_out_check(o);
}

void far__refs_on_accept(far__refs *refs, far__refs_peer *from, uint64_t fork)
{
    far__refs_child *c = far__map_get(&refs->children, fork);
    if (c && c->out->to == from)
        far__refs_child_arrived(refs, fork);
}
