/* SPDX-License-Identifier: BSD-3-Clause
 * agent/link: one connection on which calls come in: the handshake as acceptor, requests and cancels.
 * Floor: agent. Thread: the loop until the handshake is over, then the holder of the reader role. */
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#include "agent/agent.h"
#include "base/mem.h"

#define HANDSHAKE_LIMIT (10 * FAR_SECOND)

static void handshake_late(far__timer *t);

static far_status create(far_agent *a, far__link **out)
{
    far__link *l = far__mem_zalloc(sizeof *l);
    if (!l)
        return FAR_ENOMEM;
    far__ref_init(&l->refs);
    far__agent_ref(a);
    l->agent = a;
    far__mutex_init(&l->lock);
    far__list_init(&l->in_agent);
    far__list_init(&l->in_dirty);
    far__timer_init(&l->timer, handshake_late);
    *out = l;
    return FAR_OK;
}

far_status far__link_create_self(far_agent *a, far__link **out)
{
    far__link *l;
    far_status status = create(a, &l);
    if (status != FAR_OK)
        return status;
    l->is_self = true;
    *out = l;
    return FAR_OK;
}

void far__link_ref(far__link *l)
{
    far__ref_hold(&l->refs);
}

void far__link_unref(far__link *l)
{
    if (!l || !far__ref_release(&l->refs))
        return;
    far_agent *a = l->agent;
    far__map_fini(&l->running);
    far__mutex_fini(&l->lock);
    far__mem_free(l->handshake);
    far__mem_free(l);
    far__agent_unref(a);
}

void far__link_number(far__link *l)
{
    far_agent *a = l->agent;
    l->number = atomic_fetch_add(&a->next_link, 1) + 1;
    if (!a->refs_there)
        return;
    far__refs_lock(a);
    if (far__refs_connected(&a->rrefs, l->number) != FAR_OK)
        far__log_debug(&a->log,
                       "no memory to note a connection"); /* costs a question, see refs.h */
    far__refs_unlock(a);
}

/* ---------------------------------------------------------------------------------- handshake */

/* Is this dialler welcome? It has proved that it knows the secret. */
static far_status judge(const far__hello *hello, far_error *error, void *arg)
{
    far__link *l = arg;
    far_agent *a = l->agent;
    if (hello->role == FAR__ROLE_SERVE)
        return far__error_set(error, FAR_EUNSUPPORTED,
                              "connections that carry calls backwards are not built yet");
    if (hello->role == FAR__ROLE_JOIN && a->self.id != 0)
        return far__error_set(error, FAR_EINVAL,
                              "worker \"%s\" has rank %" PRIu32 ": only rank 0 admits workers",
                              a->name, a->self.id);
    far__mutex_lock(&a->lock);
    const far__member *m = far__roster_by_id(&a->roster, hello->self.id);
    bool lost = hello->role == FAR__ROLE_CALLS && m && m->state == FAR__MEMBER_LOST &&
                m->incarnation == hello->self.incarnation;
    far__mutex_unlock(&a->lock);
    if (lost)
        return far__error_set(error, FAR_EPEER, "worker \"%s\" was declared lost",
                              hello->self.name);
    return FAR_OK;
}

static void handshake_late(far__timer *t)
{
    far__link *l = far__container_of(t, far__link, timer);
    far__log_info(&l->agent->log, "a connection did not finish its handshake in time");
    far__link_broken(l, FAR_ETIMEOUT, "the handshake took too long");
}

bool far__link_accepted(far_agent *a, far__conn *conn)
{
    far__link *l;
    uint8_t nonce[FAR__NONCE_SIZE];
    if (getrandom(nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
        return false;
    far__owner *owner = far__mem_alloc(sizeof *owner);
    if (!owner)
        return false;
    if (create(a, &l) != FAR_OK)
        goto err_owner;
    l->handshake = far__mem_alloc(sizeof *l->handshake);
    if (!l->handshake)
        goto err_link;
    far__handshake_accept(l->handshake, &a->self, a->secret, a->secret_size, nonce, judge, l);
    l->conn = conn;
    *owner = (far__owner){.kind = FAR__OWNER_LINK, .object = l};
    conn->owner = owner;
    conn->lock = &l->lock;
    far__link_ref(l); /* the connection's; the first one is the agent's */
    far__mutex_lock(&a->lock);
    far__list_add_tail(&a->links, &l->in_agent);
    far__mutex_unlock(&a->lock);
    far__loop_timer_set(a->loop, &l->timer, far__clock_now() + HANDSHAKE_LIMIT);
    return true;

err_link:
    far__link_unref(l);
err_owner:
    far__mem_free(owner);
    return false;
}

static far_status send_step(far__link *l, const far__handshake *h)
{
    far__outgoing out = {.header = h->out, .header_size = h->out_size, .deadline = FAR__NEVER};
    uint64_t token;
    far_status status = l->conn->ops->send(l->conn, &out, &token);
    if (status == FAR_OK)
        l->conn->ops->flush(l->conn);
    return status;
}

static far_status shake(far__link *l, far__owner *owner, far__inbound *m)
{
    far_agent *a = l->agent;
    far__handshake *h = l->handshake;
    if (m->segment_count != 0)
        return FAR_EPROTO;
    far__handshake_step step = far__handshake_received(h, m->header, m->header_size);
    if (step == FAR__HANDSHAKE_WAIT)
        return FAR_OK;
    far__mutex_lock(&l->lock);
    far_status status = h->out_size > 0 ? send_step(l, h) : FAR_OK;
    far__mutex_unlock(&l->lock);
    if (step == FAR__HANDSHAKE_FAILED) {
        far__count(a, connections_refused, 1);
        far__log_warning(&a->log, "refused a connection from %s: %s",
                         l->conn->ops->peer_text(l->conn), h->error.text);
        return h->status;
    }
    if (step == FAR__HANDSHAKE_DONE && status == FAR_OK) {
        l->role = h->hello.role;
        l->caller.id = h->hello.self.id;
        l->caller.incarnation = h->hello.self.incarnation;
        memcpy(l->caller.name, h->hello.self.name, sizeof l->caller.name);
        l->conn->ops->limit(l->conn, a->message_size_max);
        l->ready = true;
        owner->shaken = true;
        l->handshake = NULL;
        far__handshake_fini(h);
        far__mem_free(h);
        far__loop_timer_clear(a->loop, &l->timer);
        far__link_number(l);
        far__count(a, connections_opened, 1);
    }
    return status;
}

/* --------------------------------------------------------------------------------------- requests */

static bool is_name(const far__wire_header *h, const char *name)
{
    return h->name_size == strlen(name) && memcmp(h->name, name, h->name_size) == 0;
}

static far_status received_request(far__link *l, const far__wire_header *h, far__inbound *in)
{
    far_agent *a = l->agent;
    if (h->naming != FAR__WIRE_BY_NAME)
        return FAR_EUNSUPPORTED;
    bool reserved = h->flags & FAR__WIRE_RESERVED_METHOD;
    bool far_name = h->name_size >= 4 && memcmp(h->name, "far.", 4) == 0;
    if (reserved != far_name)
        return FAR_EPROTO;
    if (l->role == FAR__ROLE_JOIN && !is_name(h, FAR__JOIN_METHOD) &&
        !is_name(h, FAR__MISSING_METHOD))
        return FAR_EPROTO;
    far_message *m;
    far_status status = far__message_from(a, (far_encoding)h->encoding, in, &m);
    if (status != FAR_OK)
        return status;
    if (reserved && far__message_size(m) > FAR__WIRE_RESERVED_MAX) {
        far__agent_drop(a, m);
        return FAR_ETOOBIG;
    }
    far__wire_worker from = {.id = l->caller.id, .incarnation = l->caller.incarnation};
    bool dropped;
    status = far__carried_arrive(a, from, h, m, &dropped);
    if (status != FAR_OK || dropped) {
        far__agent_drop(a, m);
        return status;
    }
    int64_t deadline = h->flags & FAR__WIRE_HAS_REMAINING
                           ? far__deadline(far__clock_now(), h->remaining)
                           : FAR__NEVER;
    return far__incoming_begin(l, h->call_id, h->name, h->name_size, h->flags, deadline, m, NULL);
}

void far__link_cancel(far__link *l, uint64_t call_id)
{
    far__mutex_lock(&l->lock);
    far_incoming *in = far__map_get(&l->running, call_id);
    if (in)
        atomic_store_explicit(&in->cancelled, true, memory_order_release);
    far__mutex_unlock(&l->lock);
}

far_status far__link_received(far__owner *owner, far__inbound *m)
{
    far__link *l = owner->object;
    if (!owner->shaken)
        return l->handshake ? shake(l, owner, m) : FAR_EPROTO;
    far__wire_header h;
    const char *why;
    far_status status = far__wire_decode(m->header, m->header_size, &h, &why);
    if (status == FAR_OK) {
        switch (h.type) {
        case FAR__WIRE_REQUEST: status = received_request(l, &h, m); break;
        case FAR__WIRE_CANCEL: far__link_cancel(l, h.call_id); break;
        case FAR__WIRE_ACK:
        case FAR__WIRE_CREDIT:
        case FAR__WIRE_PONG: break;
        case FAR__WIRE_PING: {
            far__wire_header pong = {.type = FAR__WIRE_PONG, .call_id = h.call_id};
            far__mutex_lock(&l->lock);
            status = far__link_send(l, &pong, NULL, NULL, true);
            far__mutex_unlock(&l->lock);
            break;
        }
        default: status = FAR_EPROTO; why = "a message that goes the other way";
        }
    }
    if (status == FAR_EPROTO || status == FAR_EUNSUPPORTED || status == FAR_ETOOBIG)
        far__log_warning(&l->agent->log, "worker \"%s\" sent bad bytes: %s", l->caller.name,
                         why ? why : far_status_text(status));
    return status;
}

void far__link_readable(far__link *l)
{
    far__conn *c = l->conn; /* only this thread clears it */
    if (!c)
        return;
    c->ops->hold(c);
    c->ops->drive(c, 0);
    if (l->ready && !l->serving && !(c->ops->flags & FAR__TRANSPORT_LOOP_ONLY)) {
        l->serving = true;
        c->ops->serve_add(c);
    }
    c->ops->release(c);
    far__agent_flush_links(l->agent);
}

/* ----------------------------------------------------------------------------------- answering */

/* A frame of a transport that only the loop may touch. */
typedef struct posted_frame {
    far__task task;
    far__link *link; /* counted */
    far__wire_header header;
    far_message *message;
    far__refs_out *refs_out;
} posted_frame;

/* The references of a reply: it was given to the connection, or surely was not. */
static void end_refs(far__link *l, far__refs_out *out, bool given)
{
    if (!out)
        return;
    far__refs_lock(l->agent);
    if (given)
        far__refs_out_replied(out, l->number);
    else
        far__refs_out_lost(out);
    far__refs_unlock(l->agent);
}

static void send_posted(far__task *task)
{
    posted_frame *f = far__container_of(task, posted_frame, task);
    far__link *l = f->link;
    far_status status = FAR_OK;
    far__mutex_lock(&l->lock);
    bool given = false;
    if (l->conn) {
        uint64_t token;
        status = far__message_send(l->conn, &f->header, f->message, FAR__NEVER, &token);
        given = status == FAR_OK;
        if (given)
            l->conn->ops->flush(l->conn);
    }
    far__mutex_unlock(&l->lock);
    if (status != FAR_OK)
        far__link_give_up(l);
    if (f->message)
        far__agent_drop(l->agent, f->message);
    end_refs(l, f->refs_out, given);
    far__mem_free(f);
    far__link_unref(l);
}

far_status far__link_send(far__link *l, const far__wire_header *header, far_message *m,
                          far__refs_out *refs_out, bool now)
{
    far__conn *c = l->conn;
    uint64_t token;
    far_status status = FAR_OK;
    if (!c) {
        if (m)
            far__agent_drop(l->agent, m);
        end_refs(l, refs_out, false);
        return FAR_OK;
    }
    if ((c->ops->flags & FAR__TRANSPORT_LOOP_ONLY) && !far__loop_here(l->agent->loop)) {
        posted_frame *f = far__mem_alloc(sizeof *f);
        if (f) {
            *f = (posted_frame){.task.run = send_posted,
                                .link = l,
                                .header = *header,
                                .message = m,
                                .refs_out = refs_out};
            far__link_ref(l);
            far__loop_post(l->agent->loop, &f->task);
            return FAR_OK;
        }
        status = FAR_ENOMEM;
    } else {
        status = far__message_send(c, header, m, FAR__NEVER, &token);
        if (status == FAR_OK && now)
            c->ops->flush(c);
    }
    if (m)
        far__agent_drop(l->agent, m);
    end_refs(l, refs_out, status == FAR_OK);
    return status;
}

void far__link_mark_dirty(far__link *l)
{
    far_agent *a = l->agent;
    far__mutex_lock(&a->lock);
    /* Closing flushes once; who comes after that would wait, and keep the agent, for ever. */
    if (far__list_empty(&l->in_dirty) && atomic_load(&a->state) < FAR__AGENT_CLOSING) {
        far__link_ref(l);
        far__list_add_tail(&a->dirty, &l->in_dirty);
    }
    far__mutex_unlock(&a->lock);
    if (!far__agent_is_open(a)) /* the last one to do it may have been here already */
        far__agent_flush_links(a);
}

void far__agent_flush_links(far_agent *a)
{
    for (;;) {
        far__mutex_lock(&a->lock);
        far__list *n = far__list_pop(&a->dirty);
        far__mutex_unlock(&a->lock);
        if (!n)
            return;
        far__link *l = far__container_of(n, far__link, in_dirty);
        far__mutex_lock(&l->lock);
        l->dirty = false;
        if (l->conn)
            l->conn->ops->flush(l->conn);
        far__mutex_unlock(&l->lock);
        far__link_unref(l);
    }
}

/* --------------------------------------------------------------------------------------- the end */

/* Everybody who serves a call of this link sees that it is cancelled. True: it was open. */
static bool detach(far__link *l)
{
    far_agent *a = l->agent;
    far__mutex_lock(&l->lock);
    far__conn *c = l->conn;
    far__handshake *h = l->handshake;
    bool open = !l->closed;
    l->closed = true;
    l->conn = NULL;
    l->handshake = NULL;
    size_t at = 0;
    uint64_t key;
    void *value;
    while (far__map_next(&l->running, &at, &key, &value))
        atomic_store_explicit(&((far_incoming *)value)->cancelled, true, memory_order_release);
    far__mutex_unlock(&l->lock);
    if (!open)
        return false;
    far__loop_timer_clear(a->loop, &l->timer);
    if (h) {
        far__handshake_fini(h);
        far__mem_free(h);
    }
    if (c)
        c->ops->close(c);
    if (l->number && a->refs_there) {
        far__refs_lock(a);
        far__refs_broke(&a->rrefs, l->number);
        far__refs_unlock(a);
    }
    far__mutex_lock(&a->lock);
    bool listed = !far__list_empty(&l->in_agent);
    far__list_remove(&l->in_agent);
    far__mutex_unlock(&a->lock);
    if (listed)
        far__link_unref(l); /* the agent's */
    return true;
}

void far__link_broken(far__link *l, far_status status, const char *text)
{
    far_agent *a = l->agent;
    bool member = l->ready && (l->role == FAR__ROLE_CALLS || l->admitted);
    far_worker caller = l->caller;
    far__link_ref(l);
    if (detach(l)) {
        far__log_debug(&a->log, "the connection from worker \"%s\" ended: %s (%s)", caller.name,
                       text, far_status_name(status));
        if (member)
            far__leave_broken(a, caller.id, caller.incarnation);
    }
    far__link_unref(l);
}

static void give_up(far__task *task)
{
    far__link *l = far__container_of(task, far__link, give_up);
    far__link_broken(l, FAR_ENOMEM, "no memory to answer a call");
    far__link_unref(l);
}

void far__link_give_up(far__link *l)
{
    far__mutex_lock(&l->lock);
    bool first = l->conn && !l->given_up;
    l->given_up = true;
    far__mutex_unlock(&l->lock);
    if (!first)
        return;
    far__link_ref(l);
    l->give_up.run = give_up;
    far__loop_post(l->agent->loop, &l->give_up);
}

void far__link_shut(far__link *l)
{
    far__link_ref(l);
    detach(l);
    far__link_unref(l);
}
