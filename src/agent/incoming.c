/* SPDX-License-Identifier: BSD-3-Clause
 * agent/incoming: a call being served: queued, run, answered.
 * Floor: agent. Thread: any.
 *
 * Design notes. A far_incoming is owned by its handler until it answers. The link's table only borrows
 * it, so that a cancel finds it; it is taken out there, under the link's lock, before it is freed. */
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"

static void run(far__job *job);

static far_status add_segment(far_agent *a, far__segment *s, far_message *m)
{
    far_buffer *b = s->buffer;
    s->buffer = NULL;
    if (!b) {
        far_status status = far__pool_take(a->pool, s->size, &b);
        if (status != FAR_OK)
            return status;
        if (s->size)
            memcpy(far_buffer_data(b), s->data, s->size);
    }
    return far_message_add_segment(m, b, NULL);
}

far_status far__message_from(far_agent *a, far_encoding encoding, far__inbound *in,
                             far_message **out)
{
    far_message *m;
    if (in->segment_count == 0)
        return FAR_EPROTO; /* the body is always there, though it may be empty */
    far_status status = far_message_create(encoding, &m);
    if (status != FAR_OK)
        return status;
    far__segment *body = &in->segments[0];
    if (body->buffer) {
        status = far_message_set_body(m, body->buffer);
        body->buffer = NULL;
    } else {
        status = far_message_append(m, body->data, body->size);
    }
    for (size_t i = 1; i < in->segment_count && status == FAR_OK; i++)
        status = add_segment(a, &in->segments[i], m);
    if (status != FAR_OK) {
        far__agent_drop(a, m);
        return status;
    }
    *out = m;
    return FAR_OK;
}

/* ----------------------------------------------------------------------------------- beginning */

static bool on_our_thread(far_agent *a)
{
    return far__executor_here(a->executor) || (far__loop_here(a->loop) && a->loop_serves);
}

static void drop_rrefs(far_incoming *in)
{
    far_agent *a = in->link->agent;
    if (!in->entry && !in->fetched)
        return;
    far__refs_lock(a);
    if (in->entry)
        far__rref_drop(in->entry);
    if (in->fetched)
        far__rref_drop(in->fetched);
    far__refs_unlock(a);
}

static void destroy(far_incoming *in)
{
    far__link *l = in->link;
    far_agent *a = l->agent;
    if (in->message)
        far__agent_drop(a, in->message);
    drop_rrefs(in);
    if (!in->internal)
        far__count(a, calls_serving, -1);
    far__peer_unref(in->self_peer);
    far__mem_free(in);
    far__link_unref(l);
}

/* The result of a far_remote: kept, or an error. What the machine does not take any more is freed. */
static void settle_entry(far_incoming *in, far__kept *k, far_status status, far__reason *why)
{
    far_agent *a = in->link->agent;
    far__refs_lock(a);
    bool taken = far__refs_made(in->entry, k, status, why);
    far__refs_unlock(a);
    if (!taken) {
        far__kept_free(a, k);
        far__reason_free(a, why);
    }
}

/* A creation that will not be run. Its creator takes it back only when its limit is over. */
static void fail_unrun(far_incoming *in)
{
    far__link *l = in->link;
    if (!in->entry)
        return;
    far__mutex_lock(&l->lock);
    bool closed = l->closed;
    far__mutex_unlock(&l->lock);
    far_status status = closed ? FAR_EPEER : FAR_ETIMEOUT;
    const char *text = closed ? "the connection to the creator broke before it was run"
                              : "its time was up before it was run";
    settle_entry(in, NULL, status, far__reason_create(text, NULL, NULL, NULL));
}

void far__incoming_forget(far_incoming *in)
{
    far__link *l = in->link;
    fail_unrun(in);
    far__mutex_lock(&l->lock);
    far__map_remove(&l->running, in->call_id);
    far__mutex_unlock(&l->lock);
    destroy(in);
}

static void unknown_method(far_incoming *in)
{
    char text[FAR__WIRE_NAME_MAX + 160];
    snprintf(text, sizeof text, "worker \"%s\" has no method \"%s\"", in->link->agent->name,
             in->name);
    far_incoming_fail(in, FAR_ENOMETHOD, NULL, text, NULL, NULL);
}

static void queue(far_agent *a, far_incoming *in)
{
    in->job.run = run;
    in->job.cost = &in->method->cost;
    bool reading = far__executor_here(a->executor) && !in->link->is_self;
    bool taken = reading ? far__executor_push_read(a->executor, &in->job)
                         : far__executor_push(a->executor, &in->job);
    if (!taken) /* the agent is closing: the caller learns it from its connection's end */
        far_incoming_fail(in, FAR_ECLOSED, NULL, "the worker is closing", NULL, NULL);
}

far_status far__incoming_begin(far__link *l, uint64_t call_id, const char *name, size_t name_size,
                               unsigned flags, int64_t deadline, far_message *message,
                               far__rref *entry)
{
    far_agent *a = l->agent;
    bool reserved = flags & FAR__WIRE_RESERVED_METHOD;
    far_incoming *in = far__mem_alloc(sizeof *in + name_size + 1);
    if (!in) {
        far__agent_drop(a, message);
        return FAR_ENOMEM;
    }
    memset(in, 0, sizeof *in);
    memcpy(in->name, name, name_size);
    in->name[name_size] = 0;
    in->link = l;
    far__link_ref(l);
    if (l->is_self) {
        far__peer_ref(a->self_peer);
        in->self_peer = a->self_peer;
    }
    in->message = message;
    in->call_id = call_id;
    in->deadline = deadline;
    in->internal = reserved;
    if (entry) {
        far__refs_lock(a);
        far__rref_hold(entry);
        far__refs_unlock(a);
        in->entry = entry;
    }
    far__list_init(&in->waiting);
    far__list_init(&in->job.link);
    if (!reserved)
        far__count(a, calls_serving, 1);

    far__mutex_lock(&l->lock);
    bool twice = far__map_get(&l->running, call_id) != NULL;
    far_status status = twice ? FAR_EPROTO : far__map_put(&l->running, call_id, in);
    far__mutex_unlock(&l->lock);
    if (status != FAR_OK) {
        destroy(in);
        /* The repeat of a call that is being served is joined to it: one answer serves both. */
        return twice && (flags & FAR__WIRE_RETRY) ? FAR_OK : status;
    }
    if (!reserved)
        atomic_fetch_add_explicit(&a->activity, 1, memory_order_relaxed);
    if (!far__carried_wait(in))
        far__incoming_start(in);
    return FAR_OK;
}

void far__incoming_start(far_incoming *in)
{
    far_agent *a = in->link->agent;
    in->method = far__methods_find(&a->methods, in->name, strlen(in->name));
    if (!in->method)
        unknown_method(in);
    else if (in->internal || (in->method->flags & FAR_METHOD_NEVER_BLOCKS))
        run(&in->job);
    else
        queue(a, in);
}

static void run_fetch(far__job *job)
{
    far_incoming *in = far__container_of(job, far_incoming, job);
    far_agent *a = in->link->agent;
    if (atomic_load_explicit(&in->cancelled, memory_order_acquire))
        far__incoming_forget(in);
    else
        a->fetch(in, a->fetch_arg);
}

void far__incoming_fetch(far_incoming *in)
{
    far_agent *a = in->link->agent;
    if (far__executor_here(a->executor)) {
        run_fetch(&in->job);
        return;
    }
    in->job.run = run_fetch;
    if (!far__executor_push(a->executor, &in->job))
        far_incoming_fail(in, FAR_ECLOSED, NULL, "the worker is closing", NULL, NULL);
}

static void run(far__job *job)
{
    far_incoming *in = far__container_of(job, far_incoming, job);
    far_agent *a = in->link->agent;
    if (atomic_load_explicit(&in->cancelled, memory_order_acquire)) {
        far__count(a, calls_cancelled_unrun, 1);
        far__incoming_forget(in);
        return;
    }
    if (in->deadline != FAR__NEVER && far__clock_now() >= in->deadline) {
        far__count(a, calls_expired_unrun, 1);
        far__incoming_forget(in);
        return;
    }
    if (!in->internal)
        far__count(a, calls_served, 1);
    in->method->handler(in, in->method->arg);
}

/* ----------------------------------------------------------------------------------- answering */

static bool is_short(const far__method *m)
{
    if (!m || (m->flags & FAR_METHOD_NEVER_BLOCKS))
        return true;
    uint32_t cost = atomic_load_explicit(&m->cost, memory_order_relaxed);
    return cost && cost < FAR__SHORT_NS;
}

/* References in a result that stays here: they arrive at once. */
static far_status hand_back(far_incoming *in, far_message *m, far__refs_out *refs_out)
{
    far_agent *a = in->link->agent;
    far__wire_header h = {.type = FAR__WIRE_REPLY};
    far__wire_worker self = {.id = a->self.id, .incarnation = a->self.incarnation};
    bool dropped;
    far__carried_header(refs_out, &h);
    far_status status = far__carried_arrive(a, self, &h, m, &dropped);
    far__refs_lock(a);
    if (status == FAR_OK)
        far__refs_out_replied(refs_out, in->link->number);
    else
        far__refs_out_lost(refs_out);
    far__refs_unlock(a);
    return status == FAR_OK && dropped ? FAR_ECLOSED : status;
}

/* The answer of a call of this worker to itself. */
static void answer_self(far_incoming *in, far_status status, far_message *m, far__reason *reason,
                        far__refs_out *refs_out)
{
    far_agent *a = in->link->agent;
    far__peer *p = in->self_peer;
    if (refs_out)
        status = hand_back(in, m, refs_out);
    if (status != FAR_OK && m) {
        far__agent_drop(a, m);
        m = NULL;
    }
    far__mutex_lock(&in->link->lock);
    far__map_remove(&in->link->running, in->call_id);
    far__mutex_unlock(&in->link->lock);
    far__peer_ref(p);
    far__mutex_lock(&p->lock);
    far__call *call = far__calls_finish(&p->calls, in->call_id);
    far__outcall *oc = call ? far__container_of(call, far__outcall, call) : NULL;
    if (oc)
        far__peer_unwatch(p, oc);
    far__mutex_unlock(&p->lock);
    destroy(in);
    if (oc) {
        oc->answered = true;
        far__outcall_end(oc, status, m, reason);
    } else {
        far__count(a, replies_late, 1);
        if (m)
            far__agent_drop(a, m);
        if (reason && reason->payload)
            far__agent_drop(a, reason->payload);
        far__mem_free(reason);
    }
    far__peer_unref(p);
}

static void answer_link(far_incoming *in, uint8_t type, far_message *m, far__refs_out *refs_out)
{
    far__link *l = in->link;
    far_agent *a = l->agent;
    /* Replies of short handlers are gathered; behind a long one nobody should have to wait. */
    bool gather = on_our_thread(a) && (in->internal || is_short(in->method)), dirty = false;
    far__wire_header h = {.type = type, .encoding = (uint8_t)m->encoding, .call_id = in->call_id};
    if (in->internal)
        h.flags |= FAR__WIRE_RESERVED_METHOD;
    far__carried_header(refs_out, &h);

    far__mutex_lock(&l->lock);
    far__map_remove(&l->running, in->call_id);
    far_status status = FAR_OK;
    if (l->conn && (l->conn->ops->flags & FAR__TRANSPORT_LOOP_ONLY))
        gather = false; /* not every thread that gathers may flush it */
    if (l->conn && !atomic_load_explicit(&in->cancelled, memory_order_acquire)) {
        status = far__link_send(l, &h, m, refs_out, !gather);
        m = NULL;
        refs_out = NULL;
        dirty = gather && status == FAR_OK && !l->dirty;
        if (dirty)
            l->dirty = true;
    }
    far__mutex_unlock(&l->lock);
    if (m)
        far__agent_drop(a, m);
    if (refs_out) {
        far__refs_lock(a);
        far__refs_out_lost(refs_out);
        far__refs_unlock(a);
    }
    if (status != FAR_OK && type == FAR__WIRE_REPLY) { /* an error is smaller */
        far_incoming_fail(in, status, NULL, "the answer cannot be sent", NULL, NULL);
        return;
    }
    if (status != FAR_OK) {
        far__log_error(&a->log, "cannot answer method \"%s\" of worker \"%s\": %s", in->name,
                       l->caller.name, far_status_text(status));
        far__link_give_up(l);
    }
    if (dirty)
        far__link_mark_dirty(l);
    destroy(in);
    if (!gather)
        far__agent_free_kept();
}

static void keep_message(far_incoming *in, far_message *message);

void far_incoming_reply(far_incoming *in, far_message *message)
{
    far_agent *a = in->link->agent;
    if (a->forked) /* the handler forked: the answer is the parent's to give */
        return;
    if (!message && far_message_create(FAR_ENCODING_RAW, &message) != FAR_OK) {
        far_incoming_fail(in, FAR_ENOMEM, NULL, "the worker is out of memory", NULL, NULL);
        return;
    }
    if (!far__message_fits(a, message)) {
        far__agent_drop(a, message);
        far_incoming_fail(in, FAR_ETOOBIG, NULL, "the result is larger than the limit", NULL, NULL);
        return;
    }
    if (in->entry) {
        keep_message(in, message);
        return;
    }
    far__refs_out *refs_out;
    const far_worker *caller = &in->link->caller;
    far__wire_worker to = {.id = caller->id, .incarnation = caller->incarnation};
    far_status status = far__carried_seal(message, to, true, &refs_out);
    if (status != FAR_OK) {
        far__agent_drop(a, message);
        far_incoming_fail(in, status, NULL, "the references of the result cannot be sent", NULL,
                          NULL);
        return;
    }
    if (in->link->is_self)
        answer_self(in, FAR_OK, message, NULL, refs_out);
    else
        answer_link(in, FAR__WIRE_REPLY, message, refs_out);
}

/* Answers with nothing: the result is kept. */
static void answer_kept(far_incoming *in)
{
    far_message *m;
    if (far_message_create(FAR_ENCODING_RAW, &m) != FAR_OK) {
        far__log_error(&in->link->agent->log, "no memory to answer \"%s\"", in->name);
        far__incoming_forget(in); /* the value stands all the same */
        return;
    }
    if (in->link->is_self)
        answer_self(in, FAR_OK, m, NULL, NULL);
    else
        answer_link(in, FAR__WIRE_REPLY, m, NULL);
}

static void keep_message(far_incoming *in, far_message *message)
{
    far_agent *a = in->link->agent;
    bool bare = far__carried_strip(message);
    far__kept *k = bare ? far__kept_message(message) : NULL;
    if (!k) {
        far_status status = bare ? FAR_ENOMEM : FAR_EVALUE;
        far__agent_drop(a, message);
        far_incoming_fail(in, status, NULL, "the result cannot be kept", NULL, NULL);
        return;
    }
    settle_entry(in, k, FAR_OK, NULL);
    answer_kept(in);
}

bool far_incoming_is_remote(const far_incoming *in)
{
    return in->entry != NULL;
}

void far_incoming_keep(far_incoming *in, void *value, far_free_fn free_fn)
{
    far__kept *k = far__kept_object(value, free_fn);
    if (!k && free_fn)
        free_fn(value);
    if (!k || !in->entry) {
        far__kept_free(in->link->agent, k);
        far_incoming_fail(in, k ? FAR_EINVAL : FAR_ENOMEM, NULL,
                          "only the result of a remote creation is kept", NULL, NULL);
        return;
    }
    settle_entry(in, k, FAR_OK, NULL);
    answer_kept(in);
}

void *far_incoming_kept(const far_incoming *in, far_encoding *encoding)
{
    far__rref *r = in->fetched;
    if (!r)
        return NULL;
    far_agent *a = in->link->agent;
    far__refs_lock(a);
    const far__kept *k = r->value;
    void *value = k && k->object ? far_buffer_data(k->object) : NULL;
    far__refs_unlock(a);
    const uint8_t *wish = far_message_body(in->message);
    *encoding = far_message_body_size(in->message) > 0 ? (far_encoding)*wish : FAR_ENCODING_RAW;
    return value;
}

void far_incoming_fail(far_incoming *in, far_status status, const char *type_name, const char *text,
                       const char *traceback, far_message *payload)
{
    far_agent *a = in->link->agent;
    if (a->forked)
        return;
    if (status == FAR_OK || status == FAR_EAGAIN)
        status = FAR_EREMOTE;
    far__reason *reason = NULL;
    if (in->entry || in->link->is_self) {
        reason = far__reason_create(text, type_name, traceback, payload);
        if (reason)
            reason->from_handler = true;
    }
    if (in->entry)
        settle_entry(in, NULL, status, far__reason_clone(a, reason));
    if (in->link->is_self) {
        if (!reason && payload)
            far__agent_drop(a, payload);
        answer_self(in, status, NULL, reason, NULL);
        return;
    }
    far__mem_free(reason); /* its payload goes on in the answer */
    far_message *m;
    if (far_message_create(FAR_ENCODING_VALUES, &m) != FAR_OK) {
        if (payload)
            far__agent_drop(a, payload);
        goto err_lost;
    }
    if (far__values_put_error(m, status, type_name ? type_name : "", text ? text : "",
                              traceback ? traceback : "", payload) != FAR_OK) {
        far__agent_drop(a, m);
        goto err_lost;
    }
    answer_link(in, FAR__WIRE_ERROR, m, NULL);
    return;

err_lost:
    far__log_error(&a->log, "no memory to answer method \"%s\" of worker \"%s\"", in->name,
                   in->link->caller.name);
    far__link_give_up(in->link);
    far__incoming_forget(in);
}

/* ----------------------------------------------------------------------------------- accessors */

far_agent *far_incoming_agent(const far_incoming *in)
{
    return in->link->agent;
}

const far_worker *far_incoming_caller(const far_incoming *in)
{
    return &in->link->caller;
}

const char *far_incoming_method(const far_incoming *in)
{
    return in->name;
}

far_message *far_incoming_message(far_incoming *in)
{
    return in->message;
}

far_message *far_incoming_take_message(far_incoming *in)
{
    far_message *m = in->message;
    in->message = NULL;
    return m;
}

far_duration far_incoming_remaining(const far_incoming *in)
{
    if (in->deadline == FAR__NEVER)
        return FAR_FOREVER;
    int64_t left = in->deadline - far__clock_now();
    return left > 0 ? left : 0;
}

bool far_incoming_cancelled(const far_incoming *in)
{
    return atomic_load_explicit(&in->cancelled, memory_order_acquire) ||
           far_incoming_remaining(in) == 0;
}

bool far_incoming_closing(const far_incoming *in)
{
    return atomic_load_explicit(&in->link->agent->closing, memory_order_acquire);
}
