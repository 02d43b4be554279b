/* SPDX-License-Identifier: BSD-3-Clause
 * proto/refs: the machine itself: peers, queues, losses, and the end of references. What can fail takes its memory before anything has changed; what is queued is a part of
 * the thing it is about, so that nothing can fail after that. Floor: proto. Thread: as refs.h. */
#include "proto/refs.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "proto/refs_state.h"

/* -------------------------------------------------------------------------------------- peers */

bool far__refs_same(far__wire_worker a, far__wire_worker b)
{
    return a.id == b.id && a.incarnation == b.incarnation;
}

far__refs_peer *far__refs_peer_known(const far__refs *refs, far__wire_worker who)
{
    far__refs_peer *p = far__map_get(&refs->peers, who.id);
    while (p && p->who.incarnation != who.incarnation)
        p = p->next;
    return p;
}

far__refs_peer *far__refs_peer_of(far__refs *refs, far__wire_worker who)
{
    far__refs_peer *p = far__refs_peer_known(refs, who);
    if (p)
        return p;
    p = far__mem_zalloc(sizeof *p);
    if (!p)
        return NULL;
    p->who = who;
    p->next = far__map_get(&refs->peers, who.id);
    if (far__map_put(&refs->peers, who.id, p) != FAR_OK) {
        far__mem_free(p);
        return NULL;
    }
    p->is_self = far__refs_same(who, refs->self);
    p->drop_at = FAR__NEVER;
    p->next_message = p->next_registration = p->next_void = 1;
    far__ranges_init(&p->seen);
    far__ranges_init(&p->ended);
    far__list_init(&p->busy);
    far__list_init(&p->held);
    far__list_init(&p->owned);
    far__list_init(&p->outs);
    far__list_init(&p->again);
    for (int kind = 0; kind < FAR__REFS_METHODS; kind++)
        far__list_init(&p->queues[kind]);
    far__list_add_tail(&refs->all_peers, &p->all);
    return p;
}

static void free_peer(far__refs_peer *p)
{
    far__list_remove(&p->all);
    far__list_remove(&p->busy);
    far__ranges_fini(&p->seen);
    far__ranges_fini(&p->ended);
    far__map_fini(&p->made);
    far__map_fini(&p->lives);
    far__bytes_fini(&p->last_void_answer);
    far__mem_free(p);
}

void far__refs_wake(far__refs *refs, far__refs_peer *p)
{
    if (far__list_empty(&p->busy))
        far__list_add_tail(&refs->busy, &p->busy);
}

void far__refs_queue(far__refs *refs, far__refs_peer *p, int kind, far__list *node)
{
    assert(!p->lost);
    far__list_add_tail(&p->queues[kind], node);
    far__refs_wake(refs, p);
}

/* ----------------------------------------------------------------------------------- references */

far__rref *far__refs_rref_new(far__refs *refs, bool is_owner)
{
    far__rref *r = far__mem_zalloc(sizeof *r);
    if (!r)
        return NULL;
    r->refs = refs;
    r->is_owner = is_owner;
    far__list_init(&r->forks);
    far__list_init(&r->in_owner);
    far__list_init(&r->queued);
    far__list_init(&r->settled);
    far__list_add_tail(&refs->all, &r->all);
    return r;
}

void far__refs_rref_end(far__rref *r)
{
    far__refs *refs = r->refs;
    far__list_remove(&r->all);
    if (r->value || r->error) {
        r->dead = true;
        far__list_add_tail(&refs->dead, &r->queued);
    } else {
        far__mem_free(r);
    }
}

void far__refs_fault(far__rref *r, far__rref_fault fault, far_status status)
{
    if (r->fault != FAR__RREF_GOOD && fault != FAR__RREF_CLOSED)
        return; /* the first one is the truth */
    r->fault = (uint8_t)fault;
    r->status = status;
}

void far__refs_settle(far__rref *r)
{
    if (!r->watched)
        return;
    r->watched = false;
    far__rref_hold(r);
    far__list_add_tail(&r->refs->settled, &r->settled);
}

void far__refs_check(far__rref *r)
{
    if (r->is_owner)
        far__refs_check_entry(r);
    else
        far__refs_check_fork(r);
}

void far__rref_hold(far__rref *r)
{
    if (r->handles++ == 0)
        r->refs->counts.held++;
}

void far__rref_drop(far__rref *r)
{
    assert(r->handles > 0);
    if (--r->handles == 0) {
        r->refs->counts.held--;
        far__refs_check(r);
    }
}

bool far__rref_confirmed(const far__rref *r)
{
    return r->is_owner || r->state == FAR__RREF_CONFIRMED || r->state == FAR__RREF_RELEASING;
}

bool far__rref_watch(far__rref *r)
{
    if (r->state != FAR__RREF_AWAITED && r->state != FAR__RREF_MAKING &&
        r->state != FAR__RREF_CREATING)
        return false;
    r->watched = true;
    return true;
}

const char *far__rref_state_name(uint8_t state)
{
    static const char *const names[] = {
        [FAR__RREF_AWAITED] = "AWAITED",
        [FAR__RREF_MAKING] = "MAKING",
        [FAR__RREF_MADE] = "MADE",
        [FAR__RREF_CREATING] = "CREATING",
        [FAR__RREF_NEW] = "NEW",
        [FAR__RREF_REGISTERING] = "REGISTERING",
        [FAR__RREF_CONFIRMED] = "CONFIRMED",
        [FAR__RREF_RELEASING] = "RELEASING",
        [FAR__RREF_UNKNOWN] = "UNKNOWN",
    };
    return state < sizeof names / sizeof *names ? names[state] : "?";
}

void far__refs_each(const far__refs *refs, void (*fn)(const far__rref *r, void *arg), void *arg)
{
    far__list_for_each (n, &refs->all)
        fn(far__container_of(n, far__rref, all), arg);
}

void far__rref_holders(const far__rref *entry, void (*fn)(far__wire_worker holder, void *arg),
                       void *arg)
{
    far__list_for_each (n, &entry->forks)
        fn(far__container_of(n, far__refs_live, in_entry)->holder->who, arg);
}

/* --------------------------------------------------------------------------------- the machine */

far_status far__refs_init(far__refs *refs, far__wire_worker self, int64_t grace)
{
    assert(grace >= 0);
    *refs = (far__refs){.self = self, .grace = grace, .next_fork = 1, .next_own = 1};
    far__list_init(&refs->all_peers);
    far__list_init(&refs->busy);
    far__list_init(&refs->all);
    far__list_init(&refs->ready);
    far__list_init(&refs->settled);
    far__list_init(&refs->dead);
    refs->self_peer = far__refs_peer_of(refs, self);
    if (refs->self_peer)
        return FAR_OK;
    far__map_fini(&refs->peers);
    return FAR_ENOMEM;
}

void far__refs_fini(far__refs *refs)
{
    assert(far__list_empty(&refs->all) && far__list_empty(&refs->dead));
    assert(!refs->counts.calls && !refs->counts.ins && !refs->counts.outs);
    far__list_for_each_safe (n, &refs->all_peers)
        free_peer(far__container_of(n, far__refs_peer, all));
    size_t at = 0;
    uint64_t token;
    void *connection;
    while (far__map_next(&refs->connections, &at, &token, &connection))
        far__mem_free(connection);
    far__map_fini(&refs->connections);
    far__map_fini(&refs->children);
    far__map_fini(&refs->peers);
}

void far__refs_shutdown(far__refs *refs)
{
    refs->closing = true;
    far__list_for_each (p, &refs->all_peers) {
        far__refs_peer *peer = far__container_of(p, far__refs_peer, all);
        far__list_for_each_safe (n, &peer->owned) {
            far__rref *f = far__container_of(n, far__rref, in_owner);
            f->detached = true;
            far__refs_fault(f, FAR__RREF_CLOSED, FAR_ECLOSED);
            far__refs_check(f);
        }
    }
}

bool far__refs_idle(const far__refs *refs)
{
    const far__refs_counts *c = &refs->counts;
    return !c->forks && !c->lives && !c->outs && !c->ins && !c->notices && !c->calls;
}

/* --------------------------------------------------------------------------------------- losses */

static void lose_forks(far__refs_peer *owner, far__rref_fault fault, far_status status)
{
    far__list_for_each_safe (n, &owner->owned) {
        far__rref *f = far__container_of(n, far__rref, in_owner);
        far__refs_fault(f, fault, status);
        far__refs_settle(f);
        if (f->in_call || f->state == FAR__RREF_UNKNOWN)
            continue; /* the end of the call does the rest */
        bool unanswered = f->state == FAR__RREF_NEW;
        far__list_remove(&f->queued);
        f->state = FAR__RREF_UNKNOWN;
        f->refs->counts.forks--;
        f->handles++; /* while its message is told */
        if (unanswered)
            far__refs_fork_answered(f);
        f->handles--;
        far__refs_check(f);
    }
}

static void drop_peer(far__refs *refs, far__refs_peer *p)
{
    p->dropped = true;
    if (p->drop_at != FAR__NEVER)
        refs->timed--;
    p->drop_at = FAR__NEVER;
    far__list_for_each_safe (n, &p->outs) {
        far__refs_out *o = far__container_of(n, far__refs_out, in_peer);
        far__refs_out_settle(o, FAR__REFS_FATE_NEVER);
    }
    while (!far__list_empty(&p->held))
        far__refs_live_remove(far__container_of(p->held.next, far__refs_live, in_holder));
    far__ranges_fini(&p->seen);
    far__ranges_fini(&p->ended);
    far__bytes_fini(&p->last_void_answer);
}

/* The calls that failed before: they have no chance any more. */
static void end_again(far__refs *refs, far__refs_peer *p)
{
    far__list *n;
    while ((n = far__list_pop(&p->again))) {
        refs->timed--;
        far__refs_answered(refs, far__container_of(n, far__refs_call, link), FAR_EPEER, NULL, 0, 0);
    }
}

static void lose(far__refs *refs, far__refs_peer *p, far__rref_fault fault, far_status status)
{
    p->lost = true;
    far__list_remove(&p->busy);
    lose_forks(p, fault, status);
    far__refs_entries_lost(p);
    far__list *n;
    while ((n = far__list_pop(&p->queues[FAR__REFS_DO_ACCEPT]))) {
        refs->counts.notices--;
        far__mem_free(far__container_of(n, far__refs_notice, queued));
    }
    while (far__list_pop(&p->queues[FAR__REFS_DO_VOID]) ||
           far__list_pop(&p->queues[FAR__REFS_DO_EXPIRED]))
        continue;
    end_again(refs, p);
}

far_status far__refs_lost(far__refs *refs, far__wire_worker worker, int64_t now)
{
    far__refs_peer *p = far__refs_peer_of(refs, worker);
    if (!p)
        return FAR_ENOMEM;
    if (p->lost || p->is_self)
        return FAR_OK;
    p->drop_at = refs->grace < FAR__NEVER - now ? now + refs->grace : FAR__NEVER - 1;
    refs->timed++;
    lose(refs, p, FAR__RREF_OWNER_LOST, FAR_EPEER);
    return FAR_OK;
}

far_status far__refs_left(far__refs *refs, far__wire_worker worker, int64_t now)
{
    far_status status = far__refs_lost(refs, worker, now);
    far__refs_peer *p = far__refs_peer_known(refs, worker);
    if (status == FAR_OK && !p->dropped && !p->is_self)
        drop_peer(refs, p);
    return status;
}

void far__refs_close(far__refs *refs)
{
    refs->closing = refs->closed = true;
    far__list_for_each (n, &refs->all_peers) {
        far__refs_peer *p = far__container_of(n, far__refs_peer, all);
        if (!p->lost)
            lose(refs, p, FAR__RREF_CLOSED, FAR_ECLOSED);
        if (!p->dropped)
            drop_peer(refs, p);
    }
}

/* ----------------------------------------------------------------------------------- what comes out */

/* Grace periods and pauses that are over. */
static far__refs_call *pass_time(far__refs *refs, int64_t now)
{
    if (!refs->timed)
        return NULL;
    far__list_for_each (n, &refs->all_peers) {
        far__refs_peer *p = far__container_of(n, far__refs_peer, all);
        if (p->drop_at <= now)
            drop_peer(refs, p);
        far__list *first = p->again.next;
        if (first == &p->again)
            continue;
        far__refs_call *call = far__container_of(first, far__refs_call, link);
        if (call->again_at > now)
            continue;
        far__list_remove(first);
        refs->timed--;
        return call;
    }
    return NULL;
}

int64_t far__refs_next_time(const far__refs *refs)
{
    int64_t next = FAR__NEVER;
    if (!refs->timed)
        return next;
    far__list_for_each (n, &refs->all_peers) {
        const far__refs_peer *p = far__container_of(n, far__refs_peer, all);
        if (p->drop_at < next)
            next = p->drop_at;
        if (far__list_empty(&p->again))
            continue;
        int64_t again = far__container_of(p->again.next, far__refs_call, link)->again_at;
        if (again < next)
            next = again;
    }
    return next;
}

/* What this worker has to tell itself. */
static void answer_self(far__refs *refs, far__refs_call *call, int64_t now)
{
    far__bytes answer = {0};
    far_status status = far__refs_request(refs, refs->self, call->method, call->body,
                                          call->body_size, now, &answer);
    far__refs_answered(refs, call, status, answer.data, answer.size, now);
    far__bytes_fini(&answer);
}

static void pop_dead(far__refs *refs, far__refs_action *action)
{
    far__rref *r = far__container_of(refs->dead.next, far__rref, queued);
    action->kind = FAR__REFS_FREE;
    if (r->value) {
        action->value = r->value;
        r->value = NULL;
    } else {
        action->error = r->error;
        r->error = NULL;
    }
    if (r->value || r->error)
        return;
    far__list_remove(&r->queued);
    far__mem_free(r);
}

far_status far__refs_next(far__refs *refs, int64_t now, far__refs_action *action)
{
    *action = (far__refs_action){0};
    for (;;) {
        far__refs_call *call = pass_time(refs, now);
        far__list *n;
        if (!call && (n = far__list_pop(&refs->ready))) {
            action->kind = FAR__REFS_READY;
            action->in = far__container_of(n, far__refs_in, ready);
            return FAR_OK;
        }
        if (!call && (n = far__list_pop(&refs->settled))) {
            action->kind = FAR__REFS_SETTLED;
            action->rref = far__container_of(n, far__rref, settled);
            return FAR_OK;
        }
        if (!call && !far__list_empty(&refs->dead)) {
            pop_dead(refs, action);
            return FAR_OK;
        }
        far_status status = call ? FAR_OK : far__refs_next_call(refs, &call);
        if (status != FAR_OK)
            return status;
        if (call->peer->is_self) {
            answer_self(refs, call, now);
            continue;
        }
        action->kind = FAR__REFS_CALL;
        action->call = call;
        return FAR_OK;
    }
}
