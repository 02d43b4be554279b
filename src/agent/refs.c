/* SPDX-License-Identifier: BSD-3-Clause
 * agent/refs: drives proto/refs: references of messages that go out and come in, the machine's own
 * calls, what it gives to be freed.
 * Floor: agent. Thread: any; far__refs_work the loop.
 *
 * Design notes. agent.refs_lock guards the machine. It is a leaf: nothing else is taken under it, and what
 * follows from an event (far__refs_next) is done by the loop: at once if somebody is held up by it, else
 * at a tick, so that releases gather. Values and errors that the machine holds are far__kept and
 * far__reason. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"

#define TICK (1 * FAR_MILLISECOND)

/* A READY that came before its call was entered. */
static char ready_early;

/* ------------------------------------------------------------------------------ lock, schedule */

void far__refs_lock(far_agent *a)
{
    far__mutex_lock(&a->refs_lock);
}

void far__refs_unlock(far_agent *a)
{
    bool open = atomic_load(&a->state) < FAR__AGENT_CLOSING;
    bool urgent = far__refs_urgent(&a->rrefs);
    bool post = open && urgent && !a->refs_posted;
    bool arm = open && !urgent && !a->refs_posted && !a->refs_ticking;
    if (post)
        a->refs_posted = true;
    if (arm) { /* the timer may be set already, for the end of a grace period far away */
        a->refs_ticking = true;
        far__loop_timer_set(a->loop, &a->refs_timer, far__clock_now() + TICK);
    }
    far__mutex_unlock(&a->refs_lock);
    if (post) {
        far__agent_ref(a);
        far__loop_post(a->loop, &a->refs_task);
    }
}

/* ----------------------------------------------------------------------------- values and errors */

far__kept *far__kept_object(void *value, far_free_fn free_fn)
{
    far__kept *k = far__mem_zalloc(sizeof *k);
    if (!k)
        return NULL;
    if (far_buffer_wrap(value, 0, free_fn, value, 0, &k->object) != FAR_OK) {
        far__mem_free(k);
        return NULL;
    }
    return k;
}

far__kept *far__kept_message(far_message *message)
{
    far__kept *k = far__mem_zalloc(sizeof *k);
    if (k)
        k->message = message;
    return k;
}

void far__kept_free(far_agent *a, far__kept *k)
{
    far_buffer *orphans = NULL;
    if (!k)
        return;
    far__buffer_drop(k->object, &orphans);
    far__agent_orphans(a, orphans);
    if (k->message)
        far__agent_drop(a, k->message);
    far__mem_free(k);
}

far__reason *far__reason_clone(far_agent *a, const far__reason *from)
{
    if (!from)
        return NULL;
    far_message *payload = NULL;
    if (from->payload && far__message_clone(from->payload, &payload) != FAR_OK)
        payload = NULL; /* the texts say it all the same */
    far__reason *r = far__reason_create(from->text, from->type_name, from->traceback, payload);
    if (r) {
        r->from_handler = from->from_handler;
        r->may_have_run = from->may_have_run;
    } else if (payload) {
        far__agent_drop(a, payload);
    }
    return r;
}

void far__reason_free(far_agent *a, far__reason *r)
{
    if (r && r->payload)
        far__agent_drop(a, r->payload);
    far__mem_free(r);
}

far__reason *far__rref_reason(far_agent *a, const far__rref *r, const char *owner)
{
    char text[FAR_NAME_MAX + 100];
    switch (r->fault) {
    case FAR__RREF_FAILED:
        if (r->error)
            return far__reason_clone(a, r->error);
        snprintf(text, sizeof text, "the creation of the value failed: %s",
                 far_status_text(r->status));
        break;
    case FAR__RREF_OWNER_LOST:
        snprintf(text, sizeof text, "worker %" PRIu32 " (\"%s\"), which owns the value, was lost",
                 r->owner.id, owner);
        break;
    case FAR__RREF_GONE:
        snprintf(text, sizeof text,
                 "the reference came too late: the worker that passed it on was lost");
        break;
    default: snprintf(text, sizeof text, "the references of this worker are closed"); break;
    }
    far__reason *reason = far__reason_create(text, NULL, NULL, NULL);
    if (reason)
        reason->from_handler = r->fault == FAR__RREF_FAILED;
    return reason;
}

/* --------------------------------------------------------------------------- of messages, going out */

static void carried_end(far_message *m)
{
    far__carried *c = m->refs;
    far_agent *a = c->agent;
    m->refs = NULL;
    far__refs_lock(a);
    if (c->out)
        far__refs_out_lost(c->out);
    if (c->in)
        far__refs_in_end(c->in);
    far__refs_unlock(a);
    far__mem_free(c);
    far__agent_unref(a);
}

far_status far__carried_make(far_agent *a, far_message *m)
{
    if (m->refs)
        return ((far__carried *)m->refs)->agent == a ? FAR_OK : FAR_EINVAL;
    far__carried *c = far__mem_zalloc(sizeof *c);
    if (!c)
        return FAR_ENOMEM;
    far__agent_ref(a);
    c->agent = a;
    m->refs = c;
    m->refs_end = carried_end;
    return FAR_OK;
}

far_status far__carried_out(far_agent *a, far_message *m, far__refs_out **out)
{
    far_status status = far__carried_make(a, m);
    if (status != FAR_OK)
        return status;
    far__carried *c = m->refs;
    if (c->in)
        return FAR_EINVAL; /* a received message is not sent on */
    if (!c->out) {
        far__refs_lock(a);
        status = far__refs_out_create(&a->rrefs, &c->out);
        far__refs_unlock(a);
    }
    *out = c->out;
    return status;
}

far_status far__carried_seal(far_message *m, far__wire_worker to, bool is_reply,
                             far__refs_out **out)
{
    *out = NULL;
    far__carried *c = m->refs;
    if (!c || !c->out)
        return FAR_OK;
    if (c->out->count == 0) /* none could be added; its end gives up the list */
        return FAR_OK;
    far_agent *a = c->agent;
    far__refs_lock(a);
    far_status status = far__refs_out_seal(c->out, to, is_reply);
    far__refs_unlock(a);
    if (status != FAR_OK)
        return status; /* the message's end gives it up */
    *out = c->out;
    c->out = NULL;
    return FAR_OK;
}

void far__carried_header(const far__refs_out *out, far__wire_header *h)
{
    if (!out)
        return;
    h->ref_count = out->count;
    h->ref_number = out->number;
    h->refs = out->packed;
}

/* ---------------------------------------------------------------------------- of messages, coming in */

far_status far__carried_arrive(far_agent *a, far__wire_worker from, const far__wire_header *h,
                               far_message *m, bool *dropped)
{
    *dropped = false;
    if (h->ref_count == 0)
        return FAR_OK;
    far_status status = far__carried_make(a, m);
    if (status != FAR_OK)
        return status;
    far__carried *c = m->refs;
    far__refs_lock(a);
    status = far__refs_arrive(&a->rrefs, from, h, &c->in);
    far__refs_unlock(a);
    if (status == FAR_EPEER || (status == FAR_OK && !c->in)) {
        *dropped = true; /* of a lost worker, a repeat, or given up by its sender */
        return FAR_OK;
    }
    return status;
}

size_t far__carried_count(const far_message *m)
{
    const far__carried *c = m->refs;
    if (!c || !c->in)
        return 0;
    return c->in->count - (far__refs_in_created(c->in) ? 1 : 0);
}

bool far__carried_strip(far_message *m)
{
    const far__carried *c = m->refs;
    if (!c)
        return true;
    if ((c->out && c->out->count > 0) || far__carried_count(m) > 0)
        return false;
    carried_end(m);
    return true;
}

bool far__carried_wait(far_incoming *in)
{
    far__carried *c = in->message ? in->message->refs : NULL;
    if (!c || !c->in)
        return false;
    far_agent *a = c->agent;
    far__refs_lock(a);
    far__rref *entry = far__refs_in_created(c->in);
    if (entry) {
        far__rref_hold(entry);
        in->entry = entry;
    }
    bool wait = c->in->waiting > 0 && c->in->user != &ready_early;
    if (wait)
        c->in->user = in;
    far__refs_unlock(a);
    return wait;
}

/* ------------------------------------------------------------------------------ the machine's calls */

typedef struct machine_call {
    far_agent *agent; /* counted */
    far__refs_call *call;
} machine_call;

static void answered(far_agent *a, far__refs_call *call, far_status status, far_message *m)
{
    far__refs_lock(a);
    far__refs_answered(&a->rrefs, call, status, m ? far_message_body(m) : NULL,
                       m ? far_message_body_size(m) : 0, far__clock_now());
    far__refs_unlock(a);
}

static void on_answer(far_future *f, void *arg)
{
    machine_call *mc = arg;
    far_failure failure;
    far_future_failure(f, &failure);
    /* An answer that says FAR_EPEER comes from a worker that lives: the call is repeated. */
    far_status status = failure.status;
    if (status == FAR_EPEER && failure.from_handler)
        status = FAR_EAGAIN;
    answered(mc->agent, mc->call, status, far_future_message(f));
    far__agent_unref(mc->agent);
    far__mem_free(mc);
}

static far_status send_machine_call(far_agent *a, far__refs_call *call)
{
    far__peer *p = NULL;
    far_message *m;
    far_future *f;
    machine_call *mc = far__mem_alloc(sizeof *mc);
    if (!mc)
        return FAR_ENOMEM;
    *mc = (machine_call){.agent = a, .call = call};
    far_status status = far__peer_get(a, call->to.id, &p);
    if (status == FAR_ENOWORKER)
        status = FAR_EPEER;
    if (status == FAR_OK && p->info.incarnation != call->to.incarnation)
        status = FAR_EPEER;
    if (status == FAR_OK)
        status = far_message_create(FAR_ENCODING_RAW, &m);
    if (status != FAR_OK)
        goto err_peer;
    status = far_message_append(m, call->body, call->body_size);
    if (status != FAR_OK) {
        far__agent_drop(a, m);
        goto err_peer;
    }
    status = far__call_internal(p, call->method, m, &f);
    if (status != FAR_OK)
        goto err_peer;
    far__peer_unref(p);
    far__agent_ref(a);
    status = far_future_on_done(f, on_answer, mc, FAR_CALLBACK_NEVER_BLOCKS);
    if (status != FAR_OK) {
        /* Nobody will hear of it: so it is not made. */
        far_future_cancel(f);
        far__agent_unref(a);
        far__mem_free(mc);
    }
    far_future_release(f);
    return status;

err_peer:
    far__peer_unref(p);
    far__mem_free(mc);
    return status;
}

static void on_machine_call(far_incoming *in, void *arg)
{
    far_agent *a = arg;
    const far_worker *caller = far_incoming_caller(in);
    far__wire_worker from = {.id = caller->id, .incarnation = caller->incarnation};
    far__bytes answer = {0};
    far_message *m = in->message, *reply = NULL;
    far__refs_lock(a);
    far_status status =
        far__refs_request(&a->rrefs, from, far_incoming_method(in), far_message_body(m),
                          far_message_body_size(m), far__clock_now(), &answer);
    far__refs_unlock(a);
    if (status == FAR_OK)
        status = far_message_create(FAR_ENCODING_RAW, &reply);
    if (status == FAR_OK)
        status = far_message_append(reply, answer.data, answer.size);
    far__bytes_fini(&answer);
    if (status == FAR_OK) {
        far_incoming_reply(in, reply);
        return;
    }
    if (reply)
        far__agent_drop(a, reply);
    far_incoming_fail(in, status, NULL, far_status_text(status), NULL, NULL);
}

/* -------------------------------------------------------------------------------------- actions */

static void act(far_agent *a, const far__refs_action *action)
{
    switch (action->kind) {
    case FAR__REFS_CALL: {
        far_status status = send_machine_call(a, action->call);
        if (status != FAR_OK)
            answered(a, action->call, status, NULL);
        break;
    }
    case FAR__REFS_READY: break; /* done under the lock, see next */
    case FAR__REFS_SETTLED: far__rref_settle(a, action->rref); break;
    case FAR__REFS_FREE:
        far__kept_free(a, action->value);
        far__reason_free(a, action->error);
        break;
    }
}

/* The next action; what READY frees to start is given in *start. */
static far_status next(far_agent *a, far__refs_action *action, far_incoming **start)
{
    *start = NULL;
    far__mutex_lock(&a->refs_lock);
    far_status status = far__refs_next(&a->rrefs, far__clock_now(), action);
    if (status == FAR_OK && action->kind == FAR__REFS_READY) {
        *start = action->in->user;
        action->in->user = &ready_early;
    }
    far__mutex_unlock(&a->refs_lock);
    return status;
}

static void pump(far_agent *a)
{
    far__refs_action action;
    far_incoming *start;
    while (next(a, &action, &start) == FAR_OK) {
        act(a, &action);
        if (start)
            far__incoming_start(start);
    }
}

void far__refs_work(far_agent *a)
{
    pump(a);
    far__mutex_lock(&a->refs_lock);
    int64_t at = far__refs_next_time(&a->rrefs);
    if (at != FAR__NEVER && atomic_load(&a->state) < FAR__AGENT_CLOSING && !a->refs_ticking)
        far__loop_timer_set(a->loop, &a->refs_timer, at);
    far__mutex_unlock(&a->refs_lock);
}

static void on_task(far__task *t)
{
    far_agent *a = far__container_of(t, far_agent, refs_task);
    far__mutex_lock(&a->refs_lock);
    a->refs_posted = false;
    far__mutex_unlock(&a->refs_lock);
    far__refs_work(a);
    far__agent_unref(a);
}

static void on_timer(far__timer *t)
{
    far_agent *a = far__container_of(t, far_agent, refs_timer);
    far__mutex_lock(&a->refs_lock);
    a->refs_ticking = false;
    far__mutex_unlock(&a->refs_lock);
    far__refs_work(a);
}

/* ----------------------------------------------------------------------------------------- life */

far_status far__refs_start(far_agent *a)
{
    far__wire_worker self = {.id = a->self.id, .incarnation = a->self.incarnation};
    far_status status = far__refs_init(&a->rrefs, self, a->lost_grace);
    a->refs_there = status == FAR_OK;
    return status;
}

far_status far__refs_methods(far_agent *a)
{
    static const char *const names[] = {FAR__REFS_REGISTER, FAR__REFS_RELEASE, FAR__REFS_ACCEPT,
                                        FAR__REFS_VOID, FAR__REFS_EXPIRED};
    far__mutex_init(&a->refs_lock);
    far__timer_init(&a->refs_timer, on_timer);
    far__list_init(&a->settle_waits);
    a->refs_task.run = on_task;
    far_status status = FAR_OK;
    for (size_t i = 0; i < FAR__REFS_METHODS && status == FAR_OK; i++) {
        far_method m = {.name = names[i], .handler = on_machine_call, .arg = a};
        status = far__methods_add(&a->methods, &m, true);
    }
    if (status == FAR_OK)
        status = far__rref_methods(a);
    return status;
}

void far__refs_worker_lost(far_agent *a)
{
    /* All that the roster calls lost: once more does no harm. */
    for (size_t i = 0;; i++) {
        far__mutex_lock(&a->lock);
        bool more = i < a->roster.count;
        far__member m = {0};
        if (more)
            m = a->roster.members[i];
        far__mutex_unlock(&a->lock);
        if (!more)
            return;
        if (m.state != FAR__MEMBER_LOST)
            continue;
        far__wire_worker who = {m.id, m.incarnation};
        int64_t now = far__clock_now();
        far__refs_lock(a);
        /* Once references are given back nobody comes for what it handed out. */
        far_status status = a->refs_shut ? far__refs_left(&a->rrefs, who, now)
                                         : far__refs_lost(&a->rrefs, who, now);
        if (status != FAR_OK)
            far__log_error(&a->log, "no memory to note the loss of worker %" PRIu32, m.id);
        far__refs_unlock(a);
    }
}

void far__refs_stop(far_agent *a)
{
    if (!a->refs_there)
        return;
    far__loop_timer_clear(a->loop, &a->refs_timer);
    far__mutex_lock(&a->refs_lock);
    far__refs_close(&a->rrefs);
    far__mutex_unlock(&a->refs_lock);
    pump(a);
    far__rref_stop(a);
}

void far__refs_end(far_agent *a)
{
    if (a->refs_there) {
        pump(a);
        far__refs_fini(&a->rrefs);
    }
    far__mutex_fini(&a->refs_lock);
}

void far__refs_drained(far_agent *a)
{
    if (a->refs_there && atomic_load(&a->state) >= FAR__AGENT_CLOSING)
        pump(a);
}
