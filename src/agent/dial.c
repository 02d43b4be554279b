/* SPDX-License-Identifier: BSD-3-Clause
 * agent/dial: getting a connection to a worker: its addresses in turn, the handshake as dialler.
 * Floor: agent. Thread: loop. */
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "agent/agent.h"
#include "base/mem.h"

#define REDIAL_FIRST (50 * FAR_MILLISECOND) /* doubled with each failure in a row */
enum { REDIAL_SHIFT_MAX = 7 };

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

void far__peer_note_failure(far__peer *p, far_status status, const char *text)
{
    p->why_status = status;
    snprintf(p->why, sizeof p->why, "%.250s", text);
}

/* Tries addresses until one is on its way. */
void far__peer_dial_next(far__peer *p)
{
    far_agent *a = p->agent;
    char address[256];
    while (take_address(p, address)) {
        far__transport_slot *slot = far__agent_slot(a, address);
        far_error error = {.status = FAR_EUNSUPPORTED};
        if (!slot) {
            snprintf(error.text, sizeof error.text, "%s: no transport for it", address);
            far__peer_note_failure(p, error.status, error.text);
            continue;
        }
        far__owner *owner = far__mem_alloc(sizeof *owner);
        if (!owner) {
            far__peer_note_failure(p, FAR_ENOMEM, "out of memory");
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
            far__peer_note_failure(p, status, error.text);
    }
    dial_failed(p, p->why_status, p->why);
}

static void send_waiting(far__peer *p);

/* The loop's part of what callers ask for: dial, or send what may only be sent here. */
void far__peer_work(far__task *t)
{
    far__peer *p = far__container_of(t, far__peer, dial_task);
    far__list sent;
    far__list_init(&sent);
    far__mutex_lock(&p->lock);
    p->dial_posted = false;
    bool start = p->state == FAR__PEER_IDLE;
    if (start) {
        p->state = FAR__PEER_DIALLING;
        p->next_address = NULL;
        p->why[0] = 0;
        p->why_status = FAR_EPEER;
    } else if (p->state == FAR__PEER_UP) {
        /* In the order in which callers did things: a call made after a cancel follows it. */
        far__peer_send_cancels(p, &sent);
        send_waiting(p);
    }
    far__mutex_unlock(&p->lock);
    far__peer_forget_cancels(&sent);
    if (start)
        far__peer_dial_next(p);
    far__peer_unref(p);
}

/* Is the worker known to be gone? */
static bool is_gone(far__peer *p)
{
    far_agent *a = p->agent;
    if (p->is_join)
        return true; /* whoever joins tries again by itself */
    far__mutex_lock(&a->lock);
    const far__member *m = far__roster_by_id(&a->roster, p->info.id);
    bool gone = a->left || !m || m->state != FAR__MEMBER_JOINED;
    far__mutex_unlock(&a->lock);
    return gone;
}

/* peer.lock held: takes the calls that are not to be repeated out of the table. */
static void take_unrepeated(far__peer *p, far__list *lost)
{
    for (far__list *n = p->calls.all.next, *next; n != &p->calls.all; n = next) {
        far__call *call = far__container_of(n, far__call, link);
        next = n->next;
        if (call->flags & FAR__CALL_RETRY)
            continue;
        far__calls_remove(&p->calls, call);
        far__list_add_tail(lost, &call->link);
    }
}

/* No address answered. Users' calls fail; the library's own wait for another try. */
static void dial_failed(far__peer *p, far_status status, const char *why)
{
    far__list lost;
    far__list_init(&lost);
    char text[400];
    snprintf(text, sizeof text, "cannot reach it: %s", why[0] ? why : "it has no address");
    bool fatal = status == FAR_EAUTH || status == FAR_EVERSION;
    bool hopeless = fatal || is_gone(p);

    far__mutex_lock(&p->lock);
    if (p->state != FAR__PEER_CLOSED)
        p->state = FAR__PEER_IDLE;
    p->failures++;
    if (hopeless)
        far__calls_lose_all(&p->calls, &lost);
    else
        take_unrepeated(p, &lost);
    far__peer_unwatch_all(p, &lost);
    if (p->calls.count > 0) { /* none of them has a deadline that is nearer */
        unsigned shift = p->failures < REDIAL_SHIFT_MAX ? p->failures : REDIAL_SHIFT_MAX;
        p->timer_at = far__clock_now() + (REDIAL_FIRST << shift);
        far__loop_timer_set(p->agent->loop, &p->timer, p->timer_at);
    }
    far__mutex_unlock(&p->lock);
    far__peer_fail(&lost, fatal ? status : FAR_EPEER, text, false);
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
        if (far__peer_send(p, oc) != FAR_OK)
            break; /* no memory: the next tick tries again */
    }
    far__peer_flush(p);
    far__peer_arm(p);
    if (p->calls.count > 0)
        p->conn->ops->watch(p->conn, true);
}

far_status far__peer_shake(far__owner *owner, far__inbound *m)
{
    far__peer *p = owner->object;
    far_agent *a = p->agent;
    far__handshake *h = p->handshake;
    if (!h || m->segment_count != 0)
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
        if (p->is_join)
            memcpy(a->self.job, h->acceptor.job, sizeof a->self.job);
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
        far__peer_note_failure(p, status, h->error.text);
    }
    far__mutex_unlock(&p->lock);
    if (step == FAR__HANDSHAKE_DONE) {
        far__handshake_fini(h);
        far__mem_free(h);
    }
    return status;
}
