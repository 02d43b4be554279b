/* SPDX-License-Identifier: BSD-3-Clause
 * proto/refs_user: forks of values that live elsewhere, and the messages that bring references.
 * Invariant: a fork is released only after the owner has answered for it, and only when no handle and
 * no child of it is left. Floor: proto. Thread: as refs.h. */
#include <assert.h>

#include "base/mem.h"
#include "proto/refs_state.h"

/* -------------------------------------------------------------------------------------- forks */

static void queue_notice(far__refs *refs, far__refs_notice *notice)
{
    if (!notice)
        return;
    if (notice->to->lost) {
        refs->counts.notices--;
        far__mem_free(notice);
        return;
    }
    far__refs_queue(refs, notice->to, FAR__REFS_DO_ACCEPT, &notice->queued);
}

void far__refs_fork_answered(far__rref *f)
{
    far__refs_in *in = f->in;
    f->in = NULL;
    if (in && --in->waiting == 0)
        far__list_add_tail(&f->refs->ready, &in->ready);
    far__refs_notice *notice = f->notice;
    f->notice = NULL;
    queue_notice(f->refs, notice);
}

static bool known_to_owner(const far__rref *f)
{
    return f->state != FAR__RREF_UNKNOWN;
}

void far__refs_check_fork(far__rref *f)
{
    if (f->in_call || f->children || (f->handles && !f->detached))
        return;
    if (f->state == FAR__RREF_CONFIRMED) {
        f->state = FAR__RREF_RELEASING;
        far__refs_queue(f->refs, f->peer, FAR__REFS_DO_RELEASE, &f->queued);
    } else if (f->state == FAR__RREF_NEW) {
        /* Nobody wants it, and its owner has not been asked: its giver alone must hear of it. */
        far__list_remove(&f->queued);
        f->state = FAR__RREF_UNKNOWN;
        f->refs->counts.forks--;
        far__refs_fork_answered(f);
    }
    if (known_to_owner(f) || f->handles)
        return;
    far__list_remove(&f->in_owner);
    far__refs_rref_end(f);
}

far_status far__refs_fork_new(far__refs *refs, far__refs_peer *owner, uint8_t state,
                              far__rref **out)
{
    far__rref *f = far__refs_rref_new(refs, false);
    if (!f)
        return FAR_ENOMEM;
    f->owner = owner->who;
    f->peer = owner;
    f->state = state;
    far__list_add_tail(&owner->owned, &f->in_owner);
    far__rref_hold(f);
    refs->counts.forks++;
    *out = f;
    return FAR_OK;
}

/* ----------------------------------------------------------------------------------- coming in */

static far_status new_notice(far__refs *refs, far__refs_peer *to, uint64_t fork,
                             far__refs_notice **out)
{
    far__refs_notice *notice = far__mem_alloc(sizeof *notice);
    if (!notice)
        return FAR_ENOMEM;
    *notice = (far__refs_notice){.to = to, .fork = fork};
    far__list_init(&notice->queued);
    refs->counts.notices++;
    *out = notice;
    return FAR_OK;
}

/* The entry that stands for a reference whose value is gone. */
static far_status new_gone(far__refs *refs, const far__wire_ref *ref, far__rref **out)
{
    far__rref *r = far__refs_rref_new(refs, true);
    if (!r)
        return FAR_ENOMEM;
    r->owner = ref->owner;
    r->id = ref->id;
    r->state = FAR__RREF_MADE;
    far__refs_fault(r, FAR__RREF_GONE, FAR_EPEER);
    *out = r;
    return FAR_OK;
}

static far_status arrive_creation(far__refs *refs, far__refs_peer *from, const far__wire_ref *ref,
                                  far__rref **out)
{
    far__rref *e = far__map_get(&from->made, ref->id.counter);
    if (e && e->state != FAR__RREF_AWAITED)
        return FAR_EPROTO;
    far_status status = FAR_OK;
    if (!e)
        status = far__refs_entry_new(refs, from, ref->id.counter, FAR__RREF_AWAITED, &e);
    if (status != FAR_OK)
        return status;
    far__rref_hold(e);
    status = far__refs_live_add(e, from, ref->fork, from);
    if (status != FAR_OK) {
        far__rref_drop(e);
        return status;
    }
    *out = e;
    return FAR_OK;
}

static far_status arrive_here(far__refs *refs, const far__wire_ref *ref, far__rref **out)
{
    far__rref *e;
    far_status status = far__refs_entry_find(refs, ref->id, &e);
    if (status == FAR_OK && !e)
        status = new_gone(refs, ref, &e);
    if (status != FAR_OK)
        return status;
    far__rref_hold(e);
    *out = e;
    return FAR_OK;
}

/* A fork for us. It is asked about only when the whole message is taken. */
static far_status arrive_fork(far__refs *refs, far__refs_peer *from, const far__wire_ref *ref,
                              far__rref **out)
{
    far__refs_peer *owner = far__refs_peer_of(refs, ref->owner);
    if (!owner)
        return FAR_ENOMEM;
    far__rref *f;
    uint8_t state = owner == from ? FAR__RREF_CONFIRMED : FAR__RREF_NEW;
    far_status status = far__refs_fork_new(refs, owner, state, &f);
    if (status != FAR_OK)
        return status;
    f->id = ref->id;
    f->fork = ref->fork;
    f->giver = from->who;
    if (owner->lost) {
        f->state = FAR__RREF_UNKNOWN;
        refs->counts.forks--;
        far__refs_fault(f, FAR__RREF_OWNER_LOST, FAR_EPEER);
    }
    f->detached = refs->closing;
    *out = f;
    return FAR_OK;
}

static far_status arrive_one(far__refs_in *in, far__refs_peer *from, const far__wire_ref *ref)
{
    far__refs *refs = in->refs;
    far__rref **rref = &in->items[in->count].rref;
    far__refs_notice **notice = &in->items[in->count].notice;
    bool here = far__refs_same(ref->owner, refs->self), creation = false;
    far_status status;
    if (ref->kind == FAR__WIRE_REF_CREATED) {
        creation = true;
        status = arrive_creation(refs, from, ref, rref);
    } else if (here) {
        status = arrive_here(refs, ref, rref);
    } else {
        status = arrive_fork(refs, from, ref, rref);
    }
    if (status != FAR_OK)
        return status;
    if (creation)
        in->created = in->count;
    in->count++; /* now the end of the message ends it too */
    /* Who sent a request learns from the answer that it arrived; but between users the owner's word has
     * to be told as well. */
    if (in->is_reply || (!here && !far__refs_same(ref->owner, from->who)))
        status = new_notice(refs, from, ref->fork, notice);
    return status;
}

/* All has been made: nothing can fail any more. */
static void commit(far__refs_in *in)
{
    far__refs *refs = in->refs;
    for (size_t i = 0; i < in->count; i++) {
        far__rref *r = in->items[i].rref;
        far__refs_notice *notice = in->items[i].notice;
        in->items[i].notice = NULL;
        if (i == in->created)
            r->state = FAR__RREF_MAKING;
        if (r->is_owner || r->state != FAR__RREF_NEW) {
            queue_notice(refs, notice);
            continue;
        }
        r->notice = notice;
        if (!in->is_reply) {
            r->in = in;
            in->waiting++;
        }
        far__refs_queue(refs, r->peer, FAR__REFS_DO_REGISTER, &r->queued);
    }
}

/* Nothing of it was told to anybody: what was made is taken apart in silence. */
static void unmake(far__refs_in *in, far__refs_peer *from, const far__wire_header *header)
{
    for (size_t i = 0; i < in->count; i++) {
        far__rref *r = in->items[i].rref;
        if (in->items[i].notice) {
            in->refs->counts.notices--;
            far__mem_free(in->items[i].notice);
        }
        if (i == in->created) {
            far__wire_ref ref = far__wire_ref_at(header, i);
            far__refs_live_remove(far__map_get(&from->lives, ref.fork));
        }
        if (!r->is_owner && r->state != FAR__RREF_UNKNOWN) {
            r->state = FAR__RREF_UNKNOWN;
            in->refs->counts.forks--;
        }
        far__rref_drop(r);
    }
    in->refs->counts.ins--;
    far__mem_free(in);
}

static bool is_sane(const far__refs *refs, far__refs_peer *from, const far__wire_header *header)
{
    for (size_t i = 0; i < header->ref_count; i++) {
        far__wire_ref ref = far__wire_ref_at(header, i);
        if (ref.kind == FAR__WIRE_REF_CREATED &&
            (!far__refs_same(ref.owner, refs->self) || !far__refs_same(ref.id.maker, from->who) ||
             ref.id.counter != header->ref_number || from->is_self))
            return false;
    }
    return true;
}

far_status far__refs_arrive(far__refs *refs, far__wire_worker who, const far__wire_header *header,
                            far__refs_in **out)
{
    assert(header->ref_count && header->ref_number);
    far__refs_peer *from = far__refs_peer_of(refs, who);
    if (!from)
        return FAR_ENOMEM;
    if (from->lost || refs->closed)
        return FAR_EPEER;
    if (far__ranges_has(&from->seen, header->ref_number)) {
        *out = NULL;
        return FAR_OK;
    }
    if (!is_sane(refs, from, header))
        return FAR_EPROTO;
    far__refs_in *in = far__mem_zalloc(sizeof *in + header->ref_count * sizeof in->items[0]);
    if (!in)
        return FAR_ENOMEM;
    in->refs = refs;
    in->is_reply = header->type == FAR__WIRE_REPLY;
    in->created = SIZE_MAX;
    far__list_init(&in->ready);
    refs->counts.ins++;
    far_status status = far__ranges_reserve(&from->seen, from->seen.count + 1);
    for (size_t i = 0; i < header->ref_count && status == FAR_OK; i++) {
        far__wire_ref ref = far__wire_ref_at(header, i);
        status = arrive_one(in, from, &ref);
    }
    if (status == FAR_OK) /* the room is there */
        status = far__ranges_add(&from->seen, header->ref_number, header->ref_number);
    if (status != FAR_OK) {
        unmake(in, from, header);
        return status;
    }
    commit(in);
    *out = in;
    return FAR_OK;
}

far__rref *far__refs_in_take(far__refs_in *in, size_t i)
{
    if (i >= in->count)
        return NULL;
    far__rref_hold(in->items[i].rref);
    return in->items[i].rref;
}

far__rref *far__refs_in_created(const far__refs_in *in)
{
    return in->created < in->count ? in->items[in->created].rref : NULL;
}

void far__refs_in_end(far__refs_in *in)
{
    far__list_remove(&in->ready);
    for (size_t i = 0; i < in->count; i++) {
        far__rref *r = in->items[i].rref;
        if (r->in == in)
            r->in = NULL;
        far__rref_drop(r);
    }
    in->refs->counts.ins--;
    far__mem_free(in);
}
