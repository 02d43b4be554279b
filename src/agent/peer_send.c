/* SPDX-License-Identifier: BSD-3-Clause
 * agent/peer_send: giving calls to a peer's connection, taking them back, and the timers of a peer.
 * Floor: agent. Thread: functions with "peer.lock held" any; the timers the loop.
 *
 * Design notes. A call is written at once if it is alone on its way or somebody waits for it; else it is
 * appended, and written with others at a few KiB, before any wait, or at the tick. */
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

/* A body that the transport shall not copy becomes a buffer. */
static far_status seal_body(far_message *m)
{
    if (m->body_buffer || m->body_size < BODY_OWN || m->body == m->inline_body)
        return FAR_OK;
    far_status status = far_buffer_wrap(m->body, m->body_size, far__mem_free, m->body,
                                        FAR_BUFFER_FREE_ANYWHERE, &m->body_buffer);
    if (status == FAR_OK)
        m->body_room = 0;
    return status;
}

bool far__message_fits(const far_agent *a, const far_message *m)
{
    return m->segment_count < FAR__SEGMENTS_MAX && /* the body is one more */
           far__message_size(m) <= a->message_size_max;
}

static far_status send_bytes(far__conn *c, const far__writer *header, far_message *m,
                             int64_t deadline, uint64_t *token)
{
    far__segment on_stack[SEGMENTS_ON_STACK], *segments = on_stack;
    size_t count = m ? m->segment_count + 1 : 0;
    if (m) {
        far_status status = seal_body(m);
        if (status != FAR_OK)
            return status;
        if (count > SEGMENTS_ON_STACK)
            segments = far__mem_array(count, sizeof *segments);
        if (!segments)
            return FAR_ENOMEM;
        segments[0] =
            (far__segment){.data = m->body,
                           .size = m->body_size,
                           .buffer = m->body_buffer ? far_buffer_hold(m->body_buffer) : NULL};
        for (size_t i = 1; i < count; i++) {
            far_buffer *b = m->segments[i - 1];
            segments[i] =
                (far__segment){.data = b->data, .size = b->size, .buffer = far_buffer_hold(b)};
        }
    }
    far__outgoing out = {.header = header->data,
                         .header_size = header->used,
                         .segments = segments,
                         .segment_count = count,
                         .deadline = deadline,
                         .deadline_at = FAR__WIRE_REMAINING_AT};
    far_status status = c->ops->send(c, &out, token);
    if (segments != on_stack)
        far__mem_free(segments);
    return status;
}

far_status far__message_send(far__conn *c, const far__wire_header *header, far_message *m,
                             int64_t deadline, uint64_t *token)
{
    uint8_t small[FAR__WIRE_NAME_MAX + 128], *bytes = small;
    size_t size = far__wire_size(header);
    if (size > sizeof small) { /* many references */
        bytes = far__mem_alloc(size);
        if (!bytes)
            return FAR_ENOMEM;
    }
    far__writer w = far__writer_over(bytes, size);
    far__wire_encode(header, &w);
    far_status status = w.failed ? FAR_ETOOBIG : send_bytes(c, &w, m, deadline, token);
    if (bytes != small)
        far__mem_free(bytes);
    return status;
}

far_status far__peer_send(far__peer *p, far__outcall *oc)
{
    const far__call *call = &oc->call;
    far__wire_header h = {.type = FAR__WIRE_REQUEST,
                          .encoding = (uint8_t)oc->message->encoding,
                          .naming = FAR__WIRE_BY_NAME,
                          .call_id = call->id,
                          .name = oc->method,
                          .name_size = (uint16_t)oc->method_size};
    if (call->deadline != FAR__NEVER) {
        h.flags |= FAR__WIRE_HAS_REMAINING;
        h.remaining = 1; /* stamped by the transport */
    }
    if (call->flags & FAR__CALL_RESERVED)
        h.flags |= FAR__WIRE_RESERVED_METHOD;
    if (call->flags & FAR__CALL_RETRY) {
        h.flags |= FAR__WIRE_RETRY;
        h.sequence = call->sequence;
    }
    far__carried_header(oc->refs_out, &h);
    far_status status = far__message_send(p->conn, &h, oc->message, call->deadline, &oc->token);
    if (status != FAR_OK)
        return status;
    oc->queued = true;
    if (call->flags & FAR__CALL_RETRY)
        far__calls_sent(&p->calls, &oc->call, far__clock_now());
    return FAR_OK;
}

void far__peer_flush(far__peer *p)
{
    if (p->appended) {
        p->appended = false;
        atomic_fetch_sub_explicit(&p->agent->flush_needed, 1, memory_order_relaxed);
    }
    if (p->conn && p->state == FAR__PEER_UP)
        p->conn->ops->flush(p->conn);
}

bool far__peer_may_touch(const far__peer *p)
{
    return !(p->conn->ops->flags & FAR__TRANSPORT_LOOP_ONLY) || far__loop_here(p->agent->loop);
}

void far__peer_post(far__peer *p)
{
    if (p->dial_posted)
        return;
    p->dial_posted = true;
    far__peer_ref(p);
    far__loop_post(p->agent->loop, &p->dial_task);
}

far_status far__peer_submit(far__peer *p, far__outcall *oc, bool now)
{
    if (p->state != FAR__PEER_UP || !far__peer_may_touch(p)) {
        if (p->state != FAR__PEER_DIALLING)
            far__peer_post(p);
        return FAR_OK;
    }
    /* Alone on the way: it need not wait for others. */
    int64_t previous = p->last_call;
    if (oc->started)
        p->last_call = oc->started;
    bool lone = !p->appended && (p->calls.count == 1 || p->last_call - previous > TICK);
    far_status status = far__peer_send(p, oc);
    if (status != FAR_OK)
        return status;
    if (p->conn->ops->flags & FAR__TRANSPORT_LOOP_ONLY)
        now = true; /* appended bytes are flushed by whoever waits */
    if (now || lone || p->conn->ops->pending(p->conn) >= FLUSH_AT) {
        far__peer_flush(p);
    } else if (!p->appended) {
        p->appended = true;
        atomic_fetch_add_explicit(&p->agent->flush_needed, 1, memory_order_relaxed);
    }
    if (!now)
        far__peer_arm_tick(p); /* nobody reads the reply of a call that nobody waits for */
    return FAR_OK;
}

static void send_cancel(far__peer *p, const far__outcall *oc)
{
    p->conn->ops->abandon(p->conn, oc->token);
    far__wire_header h = {.type = FAR__WIRE_CANCEL, .call_id = oc->call.id};
    uint64_t token;
    /* If there is no memory for it the callee works in vain; nothing else happens. */
    if (far__message_send(p->conn, &h, NULL, FAR__NEVER, &token) == FAR_OK)
        far__peer_flush(p);
}

void far__peer_cancel(far__peer *p, far__outcall *oc)
{
    far__peer_unwatch(p, oc);
    if (p->state != FAR__PEER_UP || !oc->queued)
        return;
    /* An answer that crosses the cancel is read even if no other call follows: it may bring references.
     * One that follows on this connection finds it read, or knows that there will be none. */
    p->late = true;
    far__peer_arm_tick(p);
    if (far__peer_may_touch(p)) {
        send_cancel(p, oc);
        return;
    }
    far_future_hold(&oc->future); /* the list's */
    far__list_add_tail(&p->cancelled, &oc->call.link);
    far__peer_post(p);
}

void far__peer_send_cancels(far__peer *p, far__list *sent)
{
    far__list_for_each (n, &p->cancelled)
        send_cancel(p,
                    far__container_of(far__container_of(n, far__call, link), far__outcall, call));
    far__list_splice(sent, &p->cancelled);
}

void far__peer_forget_cancels(far__list *sent)
{
    far__list *n;
    while ((n = far__list_pop(sent)))
        far_future_release(
            &far__container_of(far__container_of(n, far__call, link), far__outcall, call)->future);
}

/* ------------------------------------------------------------------------------------- timers */

void far__peer_arm(far__peer *p)
{
    int64_t at = far__calls_next_deadline(&p->calls), repeat = far__calls_next_repeat(&p->calls);
    if (repeat < at)
        at = repeat;
    if (at >= p->timer_at)
        return; /* awake early enough; it looks again then */
    p->timer_at = at;
    far__loop_timer_set(p->agent->loop, &p->timer, at);
}

void far__peer_arm_tick(far__peer *p)
{
    if (p->tick_armed)
        return;
    p->tick_armed = true;
    far__loop_timer_set(p->agent->loop, &p->tick, far__clock_now() + TICK);
}

/* Collects the calls that have run out, by call.link. */
static void take_expired(far__peer *p, int64_t now, far__list *expired)
{
    far__call *call;
    while ((call = far__calls_expired(&p->calls, now))) {
        far__list_add_tail(expired, &call->link);
        if (!p->is_self)
            far__peer_cancel(p, far__container_of(call, far__outcall, call));
    }
}

static void fail_expired(far__peer *p, far__list *expired, int64_t now)
{
    far__list *n;
    while ((n = far__list_pop(expired))) {
        far__outcall *oc =
            far__container_of(far__container_of(n, far__call, link), far__outcall, call);
        if (p->is_self)
            far__link_cancel(p->agent->self_link, oc->call.id);
        char why[128];
        snprintf(why, sizeof why, "timed out: limit %.6g s, %.6g s have passed",
                 (double)oc->timeout / 1e9, (double)(now - oc->started) / 1e9);
        far__outcall_fail(oc, FAR_ETIMEOUT, true, why);
    }
}

void far__peer_on_timer(far__timer *t)
{
    far__peer *p = far__container_of(t, far__peer, timer);
    far__list expired;
    far__list_init(&expired);
    int64_t now = far__clock_now();
    far__mutex_lock(&p->lock);
    p->timer_at = FAR__NEVER;
    take_expired(p, now, &expired);
    far__call *call;
    while ((call = far__calls_repeat_due(&p->calls, now))) {
        far__outcall *oc = far__container_of(call, far__outcall, call);
        if (p->state == FAR__PEER_UP && far__peer_send(p, oc) == FAR_OK)
            far__peer_flush(p);
        else
            far__calls_sent(&p->calls, call, now); /* due again after a longer pause */
    }
    if (p->state == FAR__PEER_IDLE && p->calls.count > 0)
        far__peer_post(p);
    far__peer_arm(p);
    far__mutex_unlock(&p->lock);
    fail_expired(p, &expired, now);
}

void far__peer_on_tick(far__timer *t)
{
    far__peer *p = far__container_of(t, far__peer, tick);
    far__mutex_lock(&p->lock);
    p->tick_armed = false;
    if (p->appended)
        far__peer_flush(p);
    if (p->state == FAR__PEER_UP && (p->calls.count > 0 || p->late) && !p->reader) {
        p->late = false;
        p->conn->ops->watch(p->conn, true);
    }
    far__mutex_unlock(&p->lock);
}
