/* SPDX-License-Identifier: BSD-3-Clause
 * agent/peer: one worker as seen by its callers: the object, reading replies, the reader role, failure.
 * Floor: agent. Thread: functions with "peer.lock held" any; the upcalls as transport.h says.
 *
 * Design notes. IDLE -> DIALLING -> UP -> IDLE ... -> CLOSED. Calls enter the table in every state but
 * CLOSED; those that were not given to the present connection are sent when one is up. When a connection
 * breaks, calls that had begun to be written fail, the others wait for the next one. When no address of
 * the worker answers, all fail but the library's own, for which it is dialled again after a pause. */
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"

enum {
    FLUSH_AT = 4096, /* appended bytes that are worth a write */
    SEGMENTS_ON_STACK = 16,
    BODY_OWN = 4096, /* a body of this size is referenced by the transport, not copied */
};

#define TICK (1 * FAR_MILLISECOND)

far__waiter far__peer_loop_reader;

/* ---------------------------------------------------------------------------------- the object */

static far_status copy_info(const far__member *from, far__member *to)
{
    *to = *from;
    to->addresses = NULL;
    if (from->addresses) {
        to->addresses = far__mem_copy_text(from->addresses, strlen(from->addresses));
        if (!to->addresses)
            return FAR_ENOMEM;
    }
    return FAR_OK;
}

far_status far__peer_create(far_agent *a, const far__member *info, far__peer **out)
{
    far__peer *p = far__mem_zalloc(sizeof *p);
    if (!p)
        return FAR_ENOMEM;
    if (copy_info(info, &p->info) != FAR_OK) {
        far__mem_free(p);
        return FAR_ENOMEM;
    }
    far__ref_init(&p->refs);
    far__agent_ref(a);
    p->agent = a;
    far__mutex_init(&p->lock);
    far__calls_init(&p->calls);
    far__list_init(&p->sleepers);
    far__list_init(&p->cancelled);
    p->timer_at = FAR__NEVER;
    far__timer_init(&p->timer, far__peer_on_timer);
    far__timer_init(&p->tick, far__peer_on_tick);
    p->dial_task.run = far__peer_work;
    *out = p;
    return FAR_OK;
}

void far__peer_ref(far__peer *p)
{
    far__ref_hold(&p->refs);
}

void far__peer_unref(far__peer *p)
{
    if (!p || !far__ref_release(&p->refs))
        return;
    far_agent *a = p->agent;
    far__calls_fini(&p->calls);
    far__mutex_fini(&p->lock);
    far__mem_free(p->handshake);
    far__mem_free(p->info.addresses);
    far__mem_free(p);
    far__agent_unref(a);
}

static far_status make_peer(far_agent *a, far_worker_id id, far__peer **out)
{
    far__member info;
    far__mutex_lock(&a->lock);
    const far__member *m = far__roster_by_id(&a->roster, id);
    far_status status = m && m->state != FAR__MEMBER_LEFT ? copy_info(m, &info) : FAR_ENOWORKER;
    far__mutex_unlock(&a->lock);
    if (status != FAR_OK)
        return status;
    status = far__peer_create(a, &info, out);
    far__mem_free(info.addresses);
    return status;
}

far_status far__peer_get(far_agent *a, far_worker_id id, far__peer **out)
{
    if (id == a->self.id && a->self_peer) {
        far__peer_ref(a->self_peer);
        *out = a->self_peer;
        return FAR_OK;
    }
    far__mutex_lock(&a->lock);
    far__peer *p = far__map_get(&a->peers, id);
    if (p)
        far__peer_ref(p);
    far__mutex_unlock(&a->lock);
    if (p) {
        *out = p;
        return FAR_OK;
    }
    far__peer *fresh;
    far_status status = make_peer(a, id, &fresh);
    if (status != FAR_OK)
        return status;
    far__mutex_lock(&a->lock);
    p = far__map_get(&a->peers, id);
    if (p)
        far__peer_ref(p); /* another thread was faster */
    else if (!far__agent_is_open(a))
        status = FAR_ECLOSED;
    else
        status = far__map_put(&a->peers, id, fresh);
    if (!p && status == FAR_OK) {
        p = fresh;
        far__peer_ref(p);
        fresh = NULL;
    }
    far__mutex_unlock(&a->lock);
    far__peer_unref(fresh);
    if (status == FAR_OK)
        *out = p;
    return status;
}

/* ----------------------------------------------------------------------------------- receiving */

static far_status received_answer(far__peer *p, const far__wire_header *h, far__inbound *in)
{
    far_agent *a = p->agent;
    far__mutex_lock(&p->lock);
    far__call *call = far__calls_finish(&p->calls, h->call_id);
    far__outcall *oc = call ? far__container_of(call, far__outcall, call) : NULL;
    if (oc)
        far__peer_unwatch(p, oc);
    far__mutex_unlock(&p->lock);
    if (!oc && h->ref_count == 0) {
        far__count(a, replies_late, 1);
        return FAR_OK; /* what it carried is freed by the transport */
    }
    far_message *m;
    far__wire_worker from = {.id = p->info.id, .incarnation = p->info.incarnation};
    far_status status = far__message_from(a, (far_encoding)h->encoding, in, &m);
    bool dropped = false;
    if (status == FAR_OK) {
        status = far__carried_arrive(a, from, h, m, &dropped);
        if (status != FAR_OK)
            far__agent_drop(a, m);
    }
    if (!oc) { /* late: its references are given back */
        far__count(a, replies_late, 1);
        if (status == FAR_OK)
            far__agent_drop(a, m);
        return status;
    }
    if (status != FAR_OK || dropped) {
        if (status == FAR_OK)
            far__agent_drop(a, m);
        far__outcall_fail(oc, status != FAR_OK ? status : FAR_EPEER, true,
                          "the reply cannot be kept");
        return status == FAR_ENOMEM ? FAR_OK : status;
    }
    oc->answered = true;
    if (h->type == FAR__WIRE_REPLY) {
        far__outcall_end(oc, FAR_OK, m, NULL);
        return FAR_OK;
    }
    far__values_error e;
    status = far__values_get_error(m, &e);
    if (status != FAR_OK) {
        far__agent_drop(a, m);
        far__outcall_fail(oc, FAR_EPROTO, true, "the error that it answered cannot be read");
        return FAR_EPROTO;
    }
    far__reason *reason = far__reason_create(e.text, e.type_name, e.traceback, e.payload);
    if (reason)
        reason->from_handler = true;
    else if (e.payload)
        far__agent_drop(a, e.payload);
    far_status code = e.status;
    far__agent_drop(a, m);
    far__outcall_end(oc, code, NULL, reason);
    return FAR_OK;
}

far_status far__peer_received(far__owner *owner, far__inbound *m)
{
    far__peer *p = owner->object;
    if (!owner->shaken) /* still read by the loop alone */
        return far__peer_shake(owner, m);
    far__wire_header h;
    const char *why;
    far_status status = far__wire_decode(m->header, m->header_size, &h, &why);
    if (status != FAR_OK)
        return status;
    switch (h.type) {
    case FAR__WIRE_REPLY:
    case FAR__WIRE_ERROR: return received_answer(p, &h, m);
    case FAR__WIRE_CREDIT:
    case FAR__WIRE_PONG: return FAR_OK;
    case FAR__WIRE_PING: {
        far__wire_header pong = {.type = FAR__WIRE_PONG, .call_id = h.call_id};
        uint64_t token;
        far__mutex_lock(&p->lock);
        status = FAR_OK;
        if (p->conn)
            status = far__message_send(p->conn, &pong, NULL, FAR__NEVER, &token);
        far__peer_flush(p);
        far__mutex_unlock(&p->lock);
        return status;
    }
    default: return FAR_EPROTO;
    }
}

/* ------------------------------------------------------------------------------- the reader role */

_Atomic uint32_t *far__peer_pass_role(far__peer *p)
{
    p->reader = NULL;
    if (p->state != FAR__PEER_UP)
        return NULL;
    far__list *n;
    while ((n = far__list_pop(&p->sleepers))) {
        far__waiter *w = far__container_of(n, far__waiter, sleeper);
        uint32_t expected = FAR__WAITER_SLEEPS;
        if (atomic_compare_exchange_strong(&w->word, &expected, FAR__WAITER_PROMOTED)) {
            p->reader = w;
            p->conn->ops->watch(p->conn, false);
            return &w->word;
        }
    }
    if (p->watched > 0)
        p->conn->ops->watch(p->conn, true);
    else if (p->calls.count > 0 || p->late)
        far__peer_arm_tick(p);
    return NULL;
}

void far__peer_readable(far__peer *p)
{
    far__mutex_lock(&p->lock);
    far__conn *c = p->conn;
    bool mine = c && !p->reader;
    if (mine) {
        p->reader = &far__peer_loop_reader;
        c->ops->hold(c);
    }
    far__mutex_unlock(&p->lock);
    if (!mine)
        return;
    c->ops->drive(c, 0);
    _Atomic uint32_t *word = NULL;
    far__mutex_lock(&p->lock);
    if (p->reader == &far__peer_loop_reader)
        word = far__peer_pass_role(p);
    far__mutex_unlock(&p->lock);
    if (word)
        far__futex_wake(word, 1);
    c->ops->release(c);
}

/* --------------------------------------------------------------------------------------- failure */

void far__peer_unwatch(far__peer *p, far__outcall *oc)
{
    if (oc->watched)
        p->watched--;
    oc->watched = false;
}

void far__peer_unwatch_all(far__peer *p, const far__list *calls)
{
    far__list_for_each (n, calls)
        far__peer_unwatch(
            p, far__container_of(far__container_of(n, far__call, link), far__outcall, call));
}

void far__peer_fail(far__list *lost, far_status status, const char *why, bool may_have_run)
{
    far__list *n;
    while ((n = far__list_pop(lost))) {
        far__call *call = far__container_of(n, far__call, link);
        far__outcall *oc = far__container_of(call, far__outcall, call);
        far__outcall_fail(oc, status, may_have_run && call->was_sent, why);
    }
}

/* peer.lock held: what of each call was written? */
static void note_started(far__peer *p, int64_t now)
{
    far__list_for_each (n, &p->calls.all) {
        far__call *call = far__container_of(n, far__call, link);
        far__outcall *oc = far__container_of(call, far__outcall, call);
        if (oc->queued && call->state == FAR__CALL_WAITING &&
            p->conn->ops->started(p->conn, oc->token))
            far__calls_sent(&p->calls, call, now);
        oc->queued = false;
    }
}

void far__peer_broken(far__peer *p, far_status status, const char *text)
{
    far__list lost, cancelled;
    far__list_init(&lost);
    far__list_init(&cancelled);
    far__mutex_lock(&p->lock);
    far__conn *c = p->conn;
    far__handshake *h = p->handshake;
    bool was_up = p->state == FAR__PEER_UP;
    if (c) {
        note_started(p, far__clock_now());
        if (was_up)
            far__calls_broken(&p->calls, &lost);
        far__peer_unwatch_all(p, &lost);
    }
    if (p->appended) {
        p->appended = false;
        atomic_fetch_sub_explicit(&p->agent->flush_needed, 1, memory_order_relaxed);
    }
    far__list_splice(&cancelled, &p->cancelled);
    p->conn = NULL;
    p->handshake = NULL;
    if (was_up)
        p->state = FAR__PEER_IDLE;
    bool again = was_up && p->calls.count > 0 && !p->is_join;
    if (again)
        far__peer_post(p);
    bool next = p->state == FAR__PEER_DIALLING;
    if (next && (!h || p->why[0] == 0)) /* a failed handshake has said why itself */
        far__peer_note_failure(p, status, text);
    far__mutex_unlock(&p->lock);
    far__peer_forget_cancels(&cancelled);

    if (h) {
        far__handshake_fini(h);
        far__mem_free(h);
    }
    if (c)
        c->ops->close(c);
    char why[300];
    snprintf(why, sizeof why, "the connection broke: %s", text);
    far__peer_fail(&lost, FAR_EPEER, why, true);
    if (next)
        far__peer_dial_next(p);
    else if (was_up)
        far__leave_peer_broken(p);
}

void far__peer_shut(far__peer *p, far_status status, const char *why)
{
    far__list lost, cancelled;
    far__list_init(&lost);
    far__list_init(&cancelled);
    far__mutex_lock(&p->lock);
    far__conn *c = p->conn;
    far__handshake *h = p->handshake;
    far__list_splice(&cancelled, &p->cancelled);
    p->conn = NULL;
    p->handshake = NULL;
    p->state = FAR__PEER_CLOSED;
    if (p->appended) {
        p->appended = false;
        atomic_fetch_sub_explicit(&p->agent->flush_needed, 1, memory_order_relaxed);
    }
    far__calls_lose_all(&p->calls, &lost);
    far__peer_unwatch_all(p, &lost);
    far__loop_timer_clear(p->agent->loop, &p->timer);
    far__loop_timer_clear(p->agent->loop, &p->tick);
    far__mutex_unlock(&p->lock);
    far__peer_forget_cancels(&cancelled);
    if (h) {
        far__handshake_fini(h);
        far__mem_free(h);
    }
    if (c)
        c->ops->close(c);
    far__peer_fail(&lost, status, why, true);
}
