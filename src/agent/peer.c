/* SPDX-License-Identifier: BSD-3-Clause
 * agent/peer: one worker as seen by its callers: dialling, the handshake, sending calls and reading their
 * replies, failure.
 * Floor: agent. Thread: functions with "peer.lock held" any; the upcalls as transport.h says.
 *
 * Design notes. IDLE -> DIALLING -> UP -> IDLE ... -> CLOSED. Calls enter the table in every state but
 * CLOSED; those that were not given to the present connection are sent when one is up. When a connection
 * breaks, calls that had begun to be written fail, the others wait for the next one. When no address of
 * the worker answers, all fail but the library's own, for which it is dialled again after a pause. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "agent/agent.h"
#include "base/mem.h"

enum {
    FLUSH_AT = 4096, /* appended bytes that are worth a write */
    SEGMENTS_ON_STACK = 16,
    BODY_OWN = 4096, /* a body of this size is referenced by the transport, not copied */
};

#define TICK (1 * FAR_MILLISECOND)

far__waiter far__peer_loop_reader;

static void on_timer(far__timer *t);
static void on_tick(far__timer *t);
static void dial(far__task *t);

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
    far__list_init(&p->retired);
    p->timer_at = FAR__NEVER;
    far__timer_init(&p->timer, on_timer);
    far__timer_init(&p->tick, on_tick);
    p->dial_task.run = dial;
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

/* ---------------------------------------------------------------------------------- sending */

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

far_status far__message_send(far__conn *c, const far__wire_header *header, far_message *m,
                             int64_t deadline, uint64_t *token)
{
    uint8_t bytes[FAR__WIRE_NAME_MAX + 128];
    far__writer w = far__writer_over(bytes, sizeof bytes);
    far__wire_encode(header, &w);
    if (w.failed)
        return FAR_ETOOBIG;
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
    far__outgoing out = {.header = bytes,
                         .header_size = w.used,
                         .segments = segments,
                         .segment_count = count,
                         .deadline = deadline,
                         .deadline_at = FAR__WIRE_REMAINING_AT};
    far_status status = c->ops->send(c, &out, token);
    if (segments != on_stack)
        far__mem_free(segments);
    return status;
}

static far_status send_call(far__peer *p, far__outcall *oc)
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

static bool may_touch(const far__peer *p)
{
    return !(p->conn->ops->flags & FAR__TRANSPORT_LOOP_ONLY) || far__loop_here(p->agent->loop);
}

static void post_work(far__peer *p)
{
    if (p->dial_posted)
        return;
    p->dial_posted = true;
    far__peer_ref(p);
    far__loop_post(p->agent->loop, &p->dial_task);
}

far_status far__peer_submit(far__peer *p, far__outcall *oc, bool now)
{
    if (p->state != FAR__PEER_UP || !may_touch(p)) {
        if (p->state != FAR__PEER_DIALLING)
            post_work(p);
        return FAR_OK;
    }
    /* Alone on the way: it need not wait for others. */
    int64_t previous = p->last_call;
    if (oc->started)
        p->last_call = oc->started;
    bool lone = !p->appended && (p->calls.count == 1 || p->last_call - previous > TICK);
    far_status status = send_call(p, oc);
    if (status != FAR_OK)
        return status;
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

void far__peer_cancel(far__peer *p, far__outcall *oc)
{
    if (oc->watched)
        p->watched--;
    oc->watched = false;
    if (p->state != FAR__PEER_UP || !oc->queued || !may_touch(p))
        return;
    p->conn->ops->abandon(p->conn, oc->token);
    far__wire_header h = {.type = FAR__WIRE_CANCEL, .call_id = oc->call.id};
    uint64_t token;
    /* If there is no memory for it the callee works in vain; nothing else happens. */
    if (far__message_send(p->conn, &h, NULL, FAR__NEVER, &token) == FAR_OK)
        far__peer_flush(p);
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

static void on_timer(far__timer *t)
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
        if (p->state == FAR__PEER_UP && send_call(p, oc) == FAR_OK)
            far__peer_flush(p);
        else
            far__calls_sent(&p->calls, call, now); /* due again after a longer pause */
    }
    if (p->state == FAR__PEER_IDLE && p->calls.count > 0)
        post_work(p);
    far__peer_arm(p);
    far__mutex_unlock(&p->lock);
    fail_expired(p, &expired, now);
}

static void on_tick(far__timer *t)
{
    far__peer *p = far__container_of(t, far__peer, tick);
    far__mutex_lock(&p->lock);
    p->tick_armed = false;
    if (p->appended)
        far__peer_flush(p);
    if (p->state == FAR__PEER_UP && p->calls.count > 0 && !p->reader)
        p->conn->ops->watch(p->conn, true);
    far__mutex_unlock(&p->lock);
}

/* ---------------------------------------------------------------------------- dialling, shaking */

static void dial_failed(far__peer *p, far_status status, const char *why);

/* Copies the next address to be tried; false: all were. */
static bool take_address(far__peer *p, char address[256])
{
    const char *at = p->next_address ? p->next_address : p->info.addresses;
    if (!at)
        return false;
    at += strspn(at, " ");
    size_t size = strcspn(at, " ");
    if (size == 0)
        return false;
    p->next_address = at + size;
    snprintf(address, 256, "%.*s", (int)(size < 255 ? size : 255), at);
    return true;
}

static void note_failure(far__peer *p, far_status status, const char *text)
{
    p->why_status = status;
    snprintf(p->why, sizeof p->why, "%s", text);
}

/* Tries addresses until one is on its way. */
static void dial_next(far__peer *p)
{
    far_agent *a = p->agent;
    char address[256];
    while (take_address(p, address)) {
        far__transport_slot *slot = far__agent_slot(a, address);
        far_error error = {.status = FAR_EUNSUPPORTED};
        if (!slot) {
            snprintf(error.text, sizeof error.text, "%s: no transport for it", address);
            note_failure(p, error.status, error.text);
            continue;
        }
        far__owner *owner = far__mem_alloc(sizeof *owner);
        if (!owner) {
            note_failure(p, FAR_ENOMEM, "out of memory");
            break;
        }
        *owner = (far__owner){.kind = FAR__OWNER_PEER, .object = p};
        far__peer_ref(p);
        far__conn *conn;
        far_status status =
            slot->ops->dial(slot->transport, address, owner, &p->lock, &conn, &error);
        if (status == FAR_OK) {
            far__mutex_lock(&p->lock);
            p->conn = conn;
            far__mutex_unlock(&p->lock);
            return;
        }
        far__peer_unref(p);
        far__mem_free(owner);
        /* A socket of another host says nothing about the worker. */
        if (!(status == FAR_EPEER && strncmp(address, "unix:", 5) == 0 && p->why[0]))
            note_failure(p, status, error.text);
    }
    dial_failed(p, p->why_status, p->why);
}

static void send_waiting(far__peer *p);

/* The loop's part of what callers ask for: dial, or send what may only be sent here. */
static void dial(far__task *t)
{
    far__peer *p = far__container_of(t, far__peer, dial_task);
    far__mutex_lock(&p->lock);
    p->dial_posted = false;
    bool start = p->state == FAR__PEER_IDLE;
    if (start) {
        p->state = FAR__PEER_DIALLING;
        p->next_address = NULL;
        p->why[0] = 0;
        p->why_status = FAR_EPEER;
    } else if (p->state == FAR__PEER_UP) {
        send_waiting(p);
    }
    far__mutex_unlock(&p->lock);
    if (start)
        dial_next(p);
    far__peer_unref(p);
}

static void fail_list(far__list *lost, far_status status, const char *why, bool may_have_run)
{
    far__list *n;
    while ((n = far__list_pop(lost))) {
        far__call *call = far__container_of(n, far__call, link);
        far__outcall *oc = far__container_of(call, far__outcall, call);
        far__outcall_fail(oc, status, may_have_run && call->was_sent, why);
    }
}

/* peer.lock held: is the worker known to be gone? */
static bool is_gone(far__peer *p)
{
    far_agent *a = p->agent;
    if (p->is_join)
        return false;
    far__mutex_unlock(&p->lock);
    far__mutex_lock(&a->lock);
    const far__member *m = far__roster_by_id(&a->roster, p->info.id);
    bool gone = a->left || !m || m->state != FAR__MEMBER_JOINED;
    far__mutex_unlock(&a->lock);
    far__mutex_lock(&p->lock);
    return gone;
}

/* No address answered. Users' calls fail; the library's own wait for another try. */
static void dial_failed(far__peer *p, far_status status, const char *why)
{
    far__list lost;
    far__list_init(&lost);
    char text[400];
    snprintf(text, sizeof text, "cannot reach it: %s", why[0] ? why : "it has no address");
    bool fatal = status == FAR_EAUTH || status == FAR_EVERSION;

    far__mutex_lock(&p->lock);
    if (p->state == FAR__PEER_CLOSED) {
        far__mutex_unlock(&p->lock);
        return;
    }
    p->failures++;
    bool gone = is_gone(p);
    if (p->state != FAR__PEER_CLOSED)
        p->state = FAR__PEER_IDLE;
    if (fatal || gone || p->is_join)
        far__calls_lose_all(&p->calls, &lost);
    else
        far__calls_broken(&p->calls, &lost);
    if (!fatal && !gone && !p->is_join) {
        far__list *next;
        for (far__list *n = p->calls.all.next; n != &p->calls.all; n = next) {
            far__call *call = far__container_of(n, far__call, link);
            next = n->next;
            if (call->flags & FAR__CALL_RETRY)
                continue;
            far__calls_remove(&p->calls, call);
            far__list_add_tail(&lost, &call->link);
        }
    }
    far__list_for_each (n, &lost) {
        far__outcall *oc =
            far__container_of(far__container_of(n, far__call, link), far__outcall, call);
        if (oc->watched)
            p->watched--;
        oc->watched = false;
    }
    if (p->calls.count > 0) {
        unsigned shift = p->failures < 7 ? p->failures : 7;
        int64_t at = far__clock_now() + ((50 * FAR_MILLISECOND) << shift);
        p->timer_at = at;
        far__loop_timer_set(p->agent->loop, &p->timer, at);
    }
    far__mutex_unlock(&p->lock);
    fail_list(&lost, fatal ? status : FAR_EPEER, text, false);
}

void far__peer_opened(far__peer *p)
{
    far_agent *a = p->agent;
    uint8_t nonce[FAR__NONCE_SIZE];
    far__handshake *h = far__mem_alloc(sizeof *h);
    if (!h || getrandom(nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce) {
        far__mem_free(h);
        far__peer_broken(p, FAR_ENOMEM, "cannot begin the handshake");
        return;
    }
    far__hello hello = {.role = p->is_join ? FAR__ROLE_JOIN : FAR__ROLE_CALLS,
                        .self = a->self,
                        .version_min = FAR__WIRE_VERSION,
                        .version_max = FAR__WIRE_VERSION};
    if (p->is_join) {
        memset(hello.self.job, 0, sizeof hello.self.job);
    } else {
        memcpy(hello.expected.job, a->self.job, sizeof hello.expected.job);
        hello.expected.id = p->info.id;
        hello.expected.incarnation = p->info.incarnation;
        memcpy(hello.expected.name, p->info.name, sizeof hello.expected.name);
    }
    far__handshake_dial(h, &hello, a->secret, a->secret_size, nonce);
    far__mutex_lock(&p->lock);
    p->handshake = h;
    far__outgoing out = {.header = h->out, .header_size = h->out_size, .deadline = FAR__NEVER};
    uint64_t token;
    far_status status = p->conn->ops->send(p->conn, &out, &token);
    if (status == FAR_OK) {
        p->conn->ops->flush(p->conn);
        p->conn->ops->watch(p->conn, true);
    }
    far__mutex_unlock(&p->lock);
    if (status != FAR_OK)
        far__peer_broken(p, status, "cannot send the handshake");
}

/* peer.lock held: sends what was not given to this connection yet. */
static void send_waiting(far__peer *p)
{
    far__list_for_each (n, &p->calls.all) {
        far__outcall *oc =
            far__container_of(far__container_of(n, far__call, link), far__outcall, call);
        if (oc->queued)
            continue;
        if (send_call(p, oc) != FAR_OK)
            break; /* no memory: the next tick tries again */
    }
    far__peer_flush(p);
    far__peer_arm(p);
    if (p->calls.count > 0)
        p->conn->ops->watch(p->conn, true);
}

static far_status shake(far__peer *p, far__owner *owner, far__inbound *m)
{
    far_agent *a = p->agent;
    far__handshake *h = p->handshake;
    if (m->segment_count != 0)
        return FAR_EPROTO;
    far__handshake_step step = far__handshake_received(h, m->header, m->header_size);
    far_status status = FAR_OK;
    far__mutex_lock(&p->lock);
    if (h->out_size > 0 && (step == FAR__HANDSHAKE_SEND || step == FAR__HANDSHAKE_FAILED)) {
        far__outgoing out = {.header = h->out, .header_size = h->out_size, .deadline = FAR__NEVER};
        uint64_t token;
        status = p->conn->ops->send(p->conn, &out, &token);
        if (status == FAR_OK)
            p->conn->ops->flush(p->conn);
    }
    if (step == FAR__HANDSHAKE_DONE) {
        if (p->is_join) {
            p->info.id = h->acceptor.id;
            p->info.incarnation = h->acceptor.incarnation;
            memcpy(p->info.name, h->acceptor.name, sizeof p->info.name);
            memcpy(a->self.job, h->acceptor.job, sizeof a->self.job);
        }
        owner->shaken = true;
        p->conn->ops->limit(p->conn, a->message_size_max);
        p->state = FAR__PEER_UP;
        p->failures = 0;
        p->handshake = NULL;
        far__count(a, connections_opened, 1);
        send_waiting(p);
    }
    if (step == FAR__HANDSHAKE_FAILED) {
        status = h->status;
        note_failure(p, status, h->error.text);
    }
    far__mutex_unlock(&p->lock);
    if (step == FAR__HANDSHAKE_DONE) {
        far__handshake_fini(h);
        far__mem_free(h);
    }
    return status;
}

/* ----------------------------------------------------------------------------------- receiving */

static far_status received_answer(far__peer *p, const far__wire_header *h, far__inbound *in)
{
    far_agent *a = p->agent;
    far__mutex_lock(&p->lock);
    far__call *call = far__calls_finish(&p->calls, h->call_id);
    far__outcall *oc = call ? far__container_of(call, far__outcall, call) : NULL;
    if (oc && oc->watched) {
        oc->watched = false;
        p->watched--;
    }
    far__mutex_unlock(&p->lock);
    if (!oc) {
        far__count(a, replies_late, 1);
        return FAR_OK; /* what it carried is freed by the transport */
    }
    far_message *m;
    far_status status = far__message_from(a, (far_encoding)h->encoding, in, &m);
    if (status != FAR_OK) {
        far__outcall_fail(oc, status, true, "the reply cannot be kept");
        return FAR_OK;
    }
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
        return p->handshake ? shake(p, owner, m) : FAR_EPROTO;
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
    else if (p->calls.count > 0)
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
    far__list lost;
    far__list_init(&lost);
    far__mutex_lock(&p->lock);
    far__conn *c = p->conn;
    far__handshake *h = p->handshake;
    bool was_up = p->state == FAR__PEER_UP;
    if (c) {
        note_started(p, far__clock_now());
        if (was_up)
            far__calls_broken(&p->calls, &lost);
        far__list_for_each (n, &lost) {
            far__outcall *oc =
                far__container_of(far__container_of(n, far__call, link), far__outcall, call);
            if (oc->watched)
                p->watched--;
            oc->watched = false;
        }
    }
    if (p->appended) {
        p->appended = false;
        atomic_fetch_sub_explicit(&p->agent->flush_needed, 1, memory_order_relaxed);
    }
    p->conn = NULL;
    p->handshake = NULL;
    if (was_up)
        p->state = FAR__PEER_IDLE;
    bool again = was_up && p->calls.count > 0 && !p->is_join;
    if (again)
        post_work(p);
    bool next = p->state == FAR__PEER_DIALLING;
    if (next && !h)
        note_failure(p, status, text);
    else if (next && p->why[0] == 0)
        note_failure(p, status, text);
    far__mutex_unlock(&p->lock);

    if (h) {
        far__handshake_fini(h);
        far__mem_free(h);
    }
    if (c)
        c->ops->close(c);
    char why[300];
    snprintf(why, sizeof why, "the connection broke: %s", text);
    fail_list(&lost, FAR_EPEER, why, true);
    if (next)
        dial_next(p);
    else if (was_up)
        far__leave_peer_broken(p);
}

void far__peer_shut(far__peer *p, far_status status, const char *why)
{
    far__list lost;
    far__list_init(&lost);
    far__mutex_lock(&p->lock);
    far__conn *c = p->conn;
    far__handshake *h = p->handshake;
    p->conn = NULL;
    p->handshake = NULL;
    p->state = FAR__PEER_CLOSED;
    if (p->appended) {
        p->appended = false;
        atomic_fetch_sub_explicit(&p->agent->flush_needed, 1, memory_order_relaxed);
    }
    far__calls_lose_all(&p->calls, &lost);
    far__list_for_each (n, &lost)
        far__container_of(far__container_of(n, far__call, link), far__outcall, call)->watched =
            false;
    p->watched = 0;
    far__loop_timer_clear(p->agent->loop, &p->timer);
    far__loop_timer_clear(p->agent->loop, &p->tick);
    far__mutex_unlock(&p->lock);
    if (h) {
        far__handshake_fini(h);
        far__mem_free(h);
    }
    if (c)
        c->ops->close(c);
    fail_list(&lost, status, why, true);
}
