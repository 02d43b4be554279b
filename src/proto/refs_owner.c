/* SPDX-License-Identifier: BSD-3-Clause
 * proto/refs_owner: values owned here, their live forks, and what other workers ask about them.
 * Invariant: an entry is in its maker's table while it has a handle, a child on its way or a live
 * fork, and no longer. Floor: proto. Thread: as refs.h. */
#include <assert.h>

#include "base/buf.h"
#include "base/mem.h"
#include "proto/refs_state.h"

far_status far__refs_entry_new(far__refs *refs, far__refs_peer *maker, uint64_t counter,
                               uint8_t state, far__rref **out)
{
    far__rref *r = far__refs_rref_new(refs, true);
    if (!r)
        return FAR_ENOMEM;
    far_status status = far__map_put(&maker->made, counter, r);
    if (status != FAR_OK) {
        far__refs_rref_end(r);
        return status;
    }
    r->peer = maker;
    r->owner = refs->self;
    r->id = (far__wire_ref_id){maker->who, counter};
    r->state = state;
    refs->counts.entries++;
    *out = r;
    return FAR_OK;
}

far_status far__refs_entry_find(far__refs *refs, far__wire_ref_id id, far__rref **out)
{
    far__refs_peer *maker = far__refs_peer_of(refs, id.maker);
    if (!maker)
        return FAR_ENOMEM;
    *out = far__map_get(&maker->made, id.counter);
    /* A creation has the number of its message. One that has been seen, or will not be taken any more,
     * would have left its entry here: it is gone. */
    if (*out || maker->is_self || maker->lost || far__ranges_has(&maker->seen, id.counter))
        return FAR_OK;
    return far__refs_entry_new(refs, maker, id.counter, FAR__RREF_AWAITED, out);
}

void far__refs_check_entry(far__rref *e)
{
    if (e->handles || e->children || e->lives)
        return;
    if (e->peer) {
        far__map_remove(&e->peer->made, e->id.counter);
        e->refs->counts.entries--;
        e->peer = NULL;
    }
    far__refs_rref_end(e);
}

far_status far__refs_live_add(far__rref *entry, far__refs_peer *giver, uint64_t fork,
                              far__refs_peer *holder)
{
    if (far__map_get(&giver->lives, fork))
        return FAR_EPROTO;
    far__refs_live *live = far__mem_zalloc(sizeof *live);
    if (!live)
        return FAR_ENOMEM;
    far_status status = far__map_put(&giver->lives, fork, live);
    if (status != FAR_OK) {
        far__mem_free(live);
        return status;
    }
    *live = (far__refs_live){.entry = entry, .holder = holder, .giver = giver, .fork = fork};
    far__list_add_tail(&entry->forks, &live->in_entry);
    far__list_add_tail(&holder->held, &live->in_holder);
    entry->lives++;
    entry->refs->counts.lives++;
    return FAR_OK;
}

void far__refs_live_remove(far__refs_live *live)
{
    far__rref *entry = live->entry;
    far__map_remove(&live->giver->lives, live->fork);
    far__list_remove(&live->in_entry);
    far__list_remove(&live->in_holder);
    far__mem_free(live);
    entry->lives--;
    entry->refs->counts.lives--;
    far__refs_check_entry(entry);
}

void far__refs_entries_lost(far__refs_peer *maker)
{
    size_t at = 0;
    uint64_t counter;
    void *value;
    while (far__map_next(&maker->made, &at, &counter, &value)) {
        far__rref *e = value;
        if (e->state != FAR__RREF_AWAITED)
            continue;
        e->state = FAR__RREF_MADE;
        far__refs_fault(e, FAR__RREF_FAILED, FAR_EPEER);
        far__refs_settle(e);
    }
}

far_status far__refs_own(far__refs *refs, void *value, far__rref **out)
{
    if (refs->closing)
        return FAR_ECLOSED;
    far__rref *r;
    far_status status = far__refs_entry_new(refs, refs->self_peer, refs->next_own,
                                            value ? FAR__RREF_MADE : FAR__RREF_MAKING, &r);
    if (status != FAR_OK)
        return status;
    refs->next_own++;
    r->value = value;
    far__rref_hold(r);
    *out = r;
    return FAR_OK;
}

bool far__refs_made(far__rref *e, void *value, far_status status, void *error)
{
    assert(e->is_owner && e->handles);
    if (e->state != FAR__RREF_MAKING)
        return false;
    e->state = FAR__RREF_MADE;
    e->value = value;
    if (status != FAR_OK) {
        assert(!value);
        far__refs_fault(e, FAR__RREF_FAILED, status);
        e->error = error;
    }
    far__refs_settle(e);
    return true;
}

/* --------------------------------------------------------------------------------- requests */

enum { YES = 0, GONE = 1 }; /* answers to register */

/* One registration: rule 2, and the tombstones. */
static far_status register_one(far__refs *refs, far__refs_peer *from, far__wire_ref_id id,
                               far__wire_ref_id fork, uint64_t registration, uint8_t *answer)
{
    *answer = GONE;
    /* It has been released, or was refused, already: this is a late repeat. */
    if (far__ranges_has(&from->ended, registration))
        return FAR_OK;
    far__refs_peer *giver = far__refs_peer_of(refs, fork.maker);
    if (!giver)
        return FAR_ENOMEM;
    far__refs_live *live = far__map_get(&giver->lives, fork.counter);
    if (live) {
        bool same = live->holder == from && live->entry->id.counter == id.counter &&
                    far__refs_same(live->entry->id.maker, id.maker);
        *answer = YES;
        return same ? FAR_OK : FAR_EPROTO;
    }
    if (giver->is_self)
        return FAR_EPROTO; /* ours are live from the beginning */
    far__rref *entry;
    far_status status = far__refs_entry_find(refs, id, &entry);
    if (status != FAR_OK)
        return status;
    if (!entry)
        return far__ranges_add(&from->ended, registration, registration);
    status = far__refs_live_add(entry, giver, fork.counter, from);
    if (status != FAR_OK)
        far__refs_check_entry(entry);
    else
        *answer = YES;
    return status;
}

static bool bad_id(far__wire_ref_id id)
{
    return id.counter == 0;
}

far_status far__refs_on_register(far__refs *refs, far__refs_peer *from, far__reader *r,
                                 far__bytes *answer)
{
    while (far__reader_left(r)) {
        far__wire_ref_id id = {.maker = far__wire_get_worker(r)};
        id.counter = far__read_u64(r);
        far__wire_ref_id fork = {.maker = far__wire_get_worker(r)};
        fork.counter = far__read_u64(r);
        uint64_t registration = far__read_u64(r);
        if (r->failed || bad_id(id) || bad_id(fork) || !registration)
            return FAR_EPROTO;
        uint8_t said;
        far_status status = register_one(refs, from, id, fork, registration, &said);
        if (status == FAR_OK)
            status = far__bytes_append(answer, &said, 1);
        if (status != FAR_OK)
            return status;
    }
    return FAR_OK;
}

far_status far__refs_on_release(far__refs *refs, far__refs_peer *from, far__reader *r)
{
    while (far__reader_left(r)) {
        far__wire_ref_id fork = {.maker = far__wire_get_worker(r)};
        fork.counter = far__read_u64(r);
        uint64_t registration = far__read_u64(r);
        if (r->failed || bad_id(fork))
            return FAR_EPROTO;
        /* First, so that nothing has happened if there is no memory. */
        if (registration) {
            far_status status = far__ranges_add(&from->ended, registration, registration);
            if (status != FAR_OK)
                return status;
        }
        far__refs_peer *giver = far__refs_peer_known(refs, fork.maker);
        far__refs_live *live = giver ? far__map_get(&giver->lives, fork.counter) : NULL;
        if (!live || live->holder != from)
            continue;
        /* Who releases a fork that we gave has got it. */
        if (giver->is_self) {
            live->entry->handles++;
            far__refs_child_arrived(refs, fork.counter);
            live->entry->handles--;
        }
        far__refs_live_remove(live);
    }
    return FAR_OK;
}

enum { VOIDED = 0, TAKEN = 1 }; /* answers to void */

/* The message `number` of this peer will not be taken any more. */
static void refuse_message(far__refs_peer *from, uint64_t number, far_status status)
{
    far__rref *awaited = far__map_get(&from->made, number);
    if (!awaited || awaited->state != FAR__RREF_AWAITED)
        return;
    awaited->state = FAR__RREF_MADE;
    far__refs_fault(awaited, FAR__RREF_FAILED, status);
    far__refs_settle(awaited);
}

far_status far__refs_on_void(far__refs *refs, far__refs_peer *from, far__reader *r,
                             far__bytes *answer)
{
    (void)refs;
    uint64_t call = far__read_u64(r);
    if (r->failed || !call || far__reader_left(r) % 8)
        return FAR_EPROTO;
    /* A repeat: what was void then is seen now, so the answer was kept. Of an older call it does not
     * matter, since this peer makes one after the other. */
    if (call < from->last_void)
        return FAR_OK;
    if (call == from->last_void)
        return far__bytes_append(answer, from->last_void_answer.data, from->last_void_answer.size);
    const size_t count = far__reader_left(r) / 8;
    far__bytes kept = {0};
    far_status status = far__ranges_reserve(&from->seen, from->seen.count + count);
    if (status == FAR_OK)
        status = far__bytes_reserve(&kept, count);
    if (status == FAR_OK)
        status = far__bytes_reserve(answer, count);
    if (status != FAR_OK) {
        far__bytes_fini(&kept);
        return status;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t number = far__read_u64(r);
        uint8_t said = far__ranges_has(&from->seen, number) ? TAKEN : VOIDED;
        if (said == VOIDED) {
            refuse_message(from, number, FAR_EPEER);
            status = far__ranges_add(&from->seen, number, number);
        }
        if (status == FAR_OK)
            status = far__bytes_append(&kept, &said, 1);
        assert(status == FAR_OK); /* the room was there */
    }
    far__bytes_fini(&from->last_void_answer);
    from->last_void_answer = kept;
    from->last_void = call;
    return far__bytes_append(answer, kept.data, kept.size);
}

/* The limit of a creation ran out at its creator: what stands here is the verdict. */
static far_status expire_one(far__refs_peer *from, uint64_t number, uint64_t fork, uint8_t said[2])
{
    if (!far__ranges_has(&from->seen, number)) {
        far_status status = far__ranges_add(&from->seen, number, number);
        if (status != FAR_OK)
            return status;
        refuse_message(from, number, FAR_ETIMEOUT);
    }
    far__refs_live *live = far__map_get(&from->lives, fork);
    if (!live || live->holder != from || live->entry->peer != from ||
        live->entry->id.counter != number) {
        said[0] = 0;
        said[1] = FAR_ETIMEOUT;
        return FAR_OK;
    }
    far__rref *e = live->entry;
    if (e->state == FAR__RREF_MAKING) {
        e->state = FAR__RREF_MADE;
        far__refs_fault(e, FAR__RREF_FAILED, FAR_ETIMEOUT);
        far__refs_settle(e);
    }
    said[0] = 1;
    said[1] = (uint8_t)e->status;
    return FAR_OK;
}

far_status far__refs_on_expired(far__refs *refs, far__refs_peer *from, far__reader *r,
                                far__bytes *answer)
{
    (void)refs;
    while (far__reader_left(r)) {
        uint64_t number = far__read_u64(r), fork = far__read_u64(r);
        if (r->failed || !number || !fork)
            return FAR_EPROTO;
        uint8_t said[2];
        far_status status = expire_one(from, number, fork, said);
        if (status == FAR_OK)
            status = far__bytes_append(answer, said, sizeof said);
        if (status != FAR_OK)
            return status;
    }
    return FAR_OK;
}
