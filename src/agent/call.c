/* SPDX-License-Identifier: BSD-3-Clause
 * agent/call: calls made by this worker: start, end, wait, cancel.
 * Floor: agent. Thread: any.
 *
 * Design notes. Who waits, reads. A waiter that finds nobody reading its peer's connection becomes the
 * reader and drives it until its own call has ended; one that finds a reader sleeps on its own word.
 * Whoever leaves the role for any reason promotes a sleeper, or sees that the loop reads soon
 * (far__peer_pass_role). A promoted waiter whose time is up passes the role on in the same way. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"

static far_status wait_outcall(far_future *f, int64_t deadline);
static bool cancel_outcall(far_future *f);
static void free_outcall(far_future *f);
static void run_callback_job(far_future *f, far__job *job, bool quick);
static void drop_message(far_future *f, far_message *message);
static far__service *service_of(far_future *f);
static void watched(far_future *f);

static const far__future_ops outcall_ops = {
    .wait = wait_outcall,
    .watched = watched,
    .cancel = cancel_outcall,
    .free = free_outcall,
    .run = run_callback_job,
    .drop = drop_message,
    .service = service_of,
};

static far__outcall *outcall_of(const far_future *f)
{
    return far__container_of(f, far__outcall, future);
}

static far_agent *agent_of(const far_future *f)
{
    return outcall_of(f)->peer->agent;
}

/* ----------------------------------------------------------------------- the future's own ops */

/* A callback job on the loop thread, for callbacks that are marked as never blocking. */
typedef struct quick_job {
    far__task task;
    far__job *job;
    far_agent
        *agent; /* counted; NULL: a callback of the library's own, which no shutdown waits for */
} quick_job;

static void run_quick(far__task *task)
{
    quick_job *q = far__container_of(task, quick_job, task);
    far__job *job = q->job;
    far_agent *a = q->agent;
    far__mem_free(q);
    job->run(job);
    if (a) {
        atomic_fetch_sub(&a->quick_jobs, 1);
        far__agent_unref(a);
    }
}

static void run_job(far_agent *a, far__job *job, bool quick, bool internal)
{
    if (quick) {
        quick_job *q = far__mem_alloc(sizeof *q);
        if (q) {
            *q = (quick_job){.task.run = run_quick, .job = job, .agent = internal ? NULL : a};
            if (!internal) {
                far__agent_ref(a);
                atomic_fetch_add(&a->quick_jobs, 1);
            }
            far__loop_post(a->loop, &q->task);
            return;
        }
    }
    /* After closing nobody works any more: the thread that ends the future runs them. */
    if (!far__executor_push(a->executor, job))
        job->run(job);
}

static void run_callback_job(far_future *f, far__job *job, bool quick)
{
    run_job(agent_of(f), job, quick, outcall_of(f)->internal);
}

static void drop_message(far_future *f, far_message *message)
{
    far__agent_drop(agent_of(f), message);
}

static far__service *service_of(far_future *f)
{
    return &agent_of(f)->service;
}

static void free_outcall(far_future *f)
{
    far__outcall *oc = outcall_of(f);
    far__peer *p = oc->peer;
    if (oc->message)
        far__agent_drop(p->agent, oc->message);
    if (oc->orphans)
        far__service_orphans(&p->agent->service, oc->orphans);
    far__future_fini(f);
    far__mem_free(oc);
    far__peer_unref(p);
}

/* Tells the machine how the call ended: its references are at the callee, or not. */
static void end_refs(far__outcall *oc, far_status status, const far__reason *why)
{
    far_agent *a = oc->peer->agent;
    far__refs_out *out = oc->refs_out;
    far__rref *created = oc->created;
    oc->refs_out = NULL;
    oc->created = NULL;
    if (!out && !created)
        return;
    far__reason *error = created && status != FAR_OK ? far__reason_clone(a, why) : NULL;
    bool taken = false;
    far__refs_lock(a);
    if (created && created->is_owner && status != FAR_OK)
        taken = far__refs_made(created, NULL, status, error); /* unless it stands already */
    else if (created && !created->is_owner && oc->answered)
        taken = far__refs_created(created, status, error);
    if (out && oc->answered)
        far__refs_out_answered(out);
    else if (out && status == FAR_ETIMEOUT)
        far__refs_out_expired(out);
    else if (out)
        far__refs_out_lost(out);
    if (created)
        far__rref_drop(created);
    far__refs_unlock(a);
    if (!taken)
        far__reason_free(a, error);
}

/* ---------------------------------------------------------------------------------- starting */

static far_status outcall_create(far__peer *p, const char *method, far_message *message,
                                 far_duration timeout, bool internal, bool waited,
                                 far__outcall **out)
{
    size_t size = strlen(method);
    far__outcall *oc = far__mem_alloc(sizeof *oc + size + 1);
    if (!oc)
        return FAR_ENOMEM;
    memset(oc, 0, sizeof *oc);
    far__future_init(&oc->future, &outcall_ops, p->info.id);
    far__peer_ref(p);
    oc->peer = p;
    oc->message = message;
    oc->timeout = timeout;
    oc->internal = internal;
    oc->waited = waited;
    oc->method_size = size;
    memcpy(oc->method, method, size + 1);
    *out = oc;
    return FAR_OK;
}

/* A self-call is handed over; whoever serves it answers into the same table. */
static far_status hand_over(far__peer *p, far__outcall *oc, far_message *message, uint64_t id,
                            int64_t deadline, far__rref *created)
{
    far_agent *a = p->agent;
    return far__incoming_begin(a->self_link, id, oc->method, oc->method_size,
                               oc->internal ? FAR__WIRE_RESERVED_METHOD : 0, deadline, message,
                               created);
}

static far_status start(far__outcall *oc, unsigned flags, unsigned call_flags, far__rref *created)
{
    far__peer *p = oc->peer;
    bool timed = oc->timeout != FAR_NO_LIMIT;
    oc->started = timed || !(flags & FAR_CALL_NOW) ? far__clock_now() : 0;
    int64_t deadline = far__deadline(oc->started, oc->timeout);
    far_future_hold(&oc->future); /* the table's, until the call has ended */

    far__mutex_lock(&p->lock);
    far_status status = FAR_ECLOSED;
    if (p->state == FAR__PEER_CLOSED)
        goto err_unlock;
    status = far__calls_add(&p->calls, &oc->call, deadline, call_flags);
    if (status != FAR_OK)
        goto err_unlock;
    uint64_t id = oc->call.id;
    far_message *handed = NULL;
    if (p->is_self) { /* once the lock is dropped the call may end at any moment, with what it has */
        handed = oc->message;
        oc->message = NULL;
    } else {
        status = far__peer_submit(p, oc, flags & FAR_CALL_NOW);
    }
    if (status != FAR_OK) {
        far__calls_remove(&p->calls, &oc->call);
        goto err_unlock;
    }
    far__peer_arm(p);
    far__mutex_unlock(&p->lock);
    if (p->is_self) {
        status = hand_over(p, oc, handed, id, deadline, created);
        if (status != FAR_OK) {
            far__mutex_lock(&p->lock);
            bool mine = far__calls_finish(&p->calls, id) != NULL;
            far__mutex_unlock(&p->lock);
            if (mine)
                far_future_release(&oc->future);
            return mine ? status : FAR_OK;
        }
    }
    return FAR_OK;

err_unlock:
    far__mutex_unlock(&p->lock);
    far_future_release(&oc->future);
    return status;
}

/* The message's references become forks for that worker. */
static far_status take_refs(far__peer *p, far__outcall *oc, far__rref *created)
{
    far_agent *a = p->agent;
    if (created) {
        far__refs_lock(a);
        far__rref_hold(created);
        far__refs_unlock(a);
        oc->created = created;
    }
    far__wire_worker to = {.id = p->info.id, .incarnation = p->info.incarnation};
    far_status status = far__carried_seal(oc->message, to, false, &oc->refs_out);
    if (status != FAR_OK || !p->is_self || !oc->refs_out)
        return status;
    /* To oneself they arrive at once. */
    far__wire_header h = {.type = FAR__WIRE_REQUEST};
    bool dropped;
    far__carried_header(oc->refs_out, &h);
    status = far__carried_arrive(a, to, &h, oc->message, &dropped);
    return status == FAR_OK && dropped ? FAR_ECLOSED : status;
}

static far_status make_call(far__peer *p, const char *method, far_message *message,
                            far_duration timeout, unsigned flags, bool internal, far__rref *created,
                            far_future **out)
{
    far_agent *a = p->agent;
    far__outcall *oc;
    far_status status =
        outcall_create(p, method, message, timeout, internal, flags & FAR_CALL_NOW, &oc);
    if (status != FAR_OK) {
        far__agent_drop(a, message);
        return status;
    }
    if (!internal) {
        far__count(a, calls_started, 1);
        far__count(a, calls_pending, 1);
        atomic_fetch_add(&a->open_calls, 1);
        if (p->is_self)
            far__count(a, self_calls, 1);
        atomic_fetch_add_explicit(&a->activity, 1, memory_order_relaxed);
    }
    far_future_hold(&oc->future);
    unsigned call_flags = internal ? FAR__CALL_RESERVED : 0;
    if (internal && !(flags & FAR__CALL_ONCE))
        call_flags |= FAR__CALL_RETRY;
    status = take_refs(p, oc, created);
    if (status == FAR_OK)
        status = start(oc, flags, call_flags, created);
    if (status != FAR_OK) {
        if (!internal) {
            far__count(a, calls_pending, -1);
            far__count(a, calls_failed, 1);
            atomic_fetch_sub(&a->open_calls, 1);
        }
        end_refs(oc, FAR_ECANCELED, NULL);
        far_future_release(&oc->future);
        far_future_release(&oc->future);
        return status;
    }
    *out = &oc->future;
    far_future_release(&oc->future);
    return FAR_OK;
}

far_status far__call_peer(far__peer *p, const char *method, far_message *message,
                          far_duration timeout, unsigned flags, bool internal, far_future **out)
{
    return make_call(p, method, message, timeout, flags, internal, NULL, out);
}

far_status far__call_create(far__peer *p, const char *method, far_message *message,
                            far_duration timeout, far__rref *created, far_future **out)
{
    return make_call(p, method, message, timeout, 0, false, created, out);
}

far_status far__call_internal(far__peer *p, const char *method, far_message *message,
                              far_future **out)
{
    return far__call_peer(p, method, message, FAR_NO_LIMIT, 0, true, out);
}

far_status far__call_check(far_agent *a, const char *method, const far_message *message,
                           far_duration *timeout)
{
    if (!method || !message || (*timeout < 0 && *timeout != FAR_TIMEOUT_DEFAULT))
        return FAR_EINVAL;
    size_t size = strlen(method);
    if (size == 0 || size > FAR__WIRE_NAME_MAX || strncmp(method, "far.", 4) == 0)
        return FAR_EINVAL;
    if (!far__agent_is_open(a))
        return FAR_ECLOSED;
    if (!far__message_fits(a, message))
        return FAR_ETOOBIG;
    if (*timeout == FAR_TIMEOUT_DEFAULT)
        *timeout = far_agent_default_timeout(a);
    return FAR_OK;
}

far_status far_call(far_agent *a, far_worker_id to, const char *method, far_message *message,
                    far_duration timeout, unsigned flags, far_future **out)
{
    far__peer *p = NULL;
    far_status status = far__call_check(a, method, message, &timeout);
    if (status == FAR_OK)
        status = far__peer_get(a, to, &p);
    if (status != FAR_OK) {
        far_message_discard(message);
        return status;
    }
    status = far__call_peer(p, method, message, timeout, flags, false, out);
    far__peer_unref(p);
    return status;
}

static far_status finish_sync(far_future *f, far_message **reply, far_error *error)
{
    far_failure failure;
    far_future_failure(f, &failure);
    if (failure.status == FAR_OK) {
        *reply = far_future_take_message(f);
        return FAR_OK;
    }
    if (failure.type_name[0])
        return far__error_set(error, failure.status, "%s: %s", failure.type_name, failure.text);
    return far__error_set(error, failure.status, "%s", failure.text);
}

far_status far_call_sync(far_agent *a, far_worker_id to, const char *method, far_message *message,
                         far_duration timeout, far_message **reply, far_error *error)
{
    far_future *f;
    far_status status = far_call(a, to, method, message, timeout, FAR_CALL_NOW, &f);
    if (status != FAR_OK)
        return far__error_set(error, status, "cannot call method \"%s\" of worker %" PRIu32 ": %s",
                              method ? method : "", to, far_status_text(status));
    do
        status = far_future_wait(f, FAR_FOREVER);
    while (status == FAR_EINTR);
    status = finish_sync(f, reply, error);
    far_future_release(f);
    return status;
}

/* ------------------------------------------------------------------------------------ ending */

static void count_end(far_agent *a, const far__outcall *oc, far_status status)
{
    if (oc->internal)
        return;
    far__count(a, calls_pending, -1);
    if (status == FAR_OK) {
        far__count(a, calls_completed, 1);
        return;
    }
    far__count(a, calls_failed, 1);
    if (status == FAR_ETIMEOUT)
        far__count(a, calls_timed_out, 1);
    if (status == FAR_ECANCELED)
        far__count(a, calls_cancelled, 1);
}

void far__outcall_end(far__outcall *oc, far_status status, far_message *message,
                      far__reason *reason)
{
    far_agent *a = oc->peer->agent;
    far_message *sent = oc->message;
    far_buffer *orphans = NULL;
    oc->message = NULL;
    far__message_destroy(sent, &orphans);
    /* The thread that waits frees what must be freed on a thread like it: it is awake anyway. */
    if (oc->waited)
        oc->orphans = orphans;
    else if (orphans)
        far__service_orphans(&a->service, orphans);
    end_refs(oc, status, reason);
    count_end(a, oc, status);
    far__future_settle(&oc->future, status, message, reason);
    /* Only now, when its callbacks are queued: no moment in between must look idle. */
    if (!oc->internal)
        atomic_fetch_sub(&a->open_calls, 1);
    far_future_release(&oc->future); /* the table's */
}

void far__outcall_fail(far__outcall *oc, far_status status, bool may_have_run, const char *why)
{
    char text[1024];
    const far__peer *p = oc->peer;
    snprintf(text, sizeof text, "method \"%s\" of worker \"%s\": %s", oc->method, p->info.name,
             why);
    far__reason *reason = far__reason_create(text, NULL, NULL, NULL);
    if (reason)
        reason->may_have_run = may_have_run;
    far__outcall_end(oc, status, NULL, reason);
}

static void watched(far_future *f)
{
    far__outcall *oc = outcall_of(f);
    far__peer *p = oc->peer;
    far__mutex_lock(&p->lock);
    if (oc->call.state != FAR__CALL_OUT && !oc->watched) {
        oc->watched = true;
        p->watched++;
        /* One that only the loop may touch is always watched. */
        if (p->state == FAR__PEER_UP && !p->reader && p->conn && far__peer_may_touch(p))
            p->conn->ops->watch(p->conn, true);
    }
    far__mutex_unlock(&p->lock);
}

static bool cancel_outcall(far_future *f)
{
    far__outcall *oc = outcall_of(f);
    far__peer *p = oc->peer;
    far__mutex_lock(&p->lock);
    bool mine = oc->call.state != FAR__CALL_OUT;
    uint64_t id = oc->call.id;
    if (mine) {
        far__calls_remove(&p->calls, &oc->call);
        if (!p->is_self)
            far__peer_cancel(p, oc);
    }
    far__mutex_unlock(&p->lock);
    if (!mine)
        return false;
    if (p->is_self)
        far__link_cancel(p->agent->self_link, id);
    far__outcall_fail(oc, FAR_ECANCELED, true, "cancelled by the caller");
    return true;
}

/* ----------------------------------------------------------------------------------- waiting */

void far__agent_flush_calls(far_agent *a)
{
    if (atomic_load_explicit(&a->flush_needed, memory_order_relaxed) == 0)
        return;
    far__peer *batch[32];
    size_t at = 0, n;
    do {
        uint64_t key;
        void *value;
        n = 0;
        far__mutex_lock(&a->lock);
        while (n < 32 && far__map_next(&a->peers, &at, &key, &value)) {
            batch[n] = value;
            far__peer_ref(batch[n++]);
        }
        far__mutex_unlock(&a->lock);
        for (size_t i = 0; i < n; i++) {
            far__mutex_lock(&batch[i]->lock);
            if (batch[i]->appended)
                far__peer_flush(batch[i]);
            far__mutex_unlock(&batch[i]->lock);
            far__peer_unref(batch[i]);
        }
    } while (n == 32);
}

static void wake_reader(void *arg)
{
    far__conn *c = arg;
    c->ops->wake(c);
}

/* Reads for everybody until this call has ended or the wait must. */
static far_status read_role(far__outcall *oc, far__conn *c, int64_t deadline)
{
    while (!far_future_done(&oc->future)) {
        switch (c->ops->drive(c, deadline)) {
        case FAR__DRIVE_READ:
        case FAR__DRIVE_WOKEN: break;
        case FAR__DRIVE_SIGNAL: return FAR_EINTR;
        case FAR__DRIVE_CLOSED: return FAR_EPEER;
        case FAR__DRIVE_TIMEOUT:
            if (deadline != FAR__NEVER && far__clock_now() >= deadline)
                return FAR_ETIMEOUT;
            break;
        }
    }
    return FAR_OK;
}

/* Sleeps until done, promoted, or the wait must end. */
static far_status sleep_role(far__waiter *w, int64_t deadline)
{
    for (;;) {
        uint32_t word = atomic_load_explicit(&w->word, memory_order_acquire);
        if (word != FAR__WAITER_SLEEPS)
            return FAR_OK;
        int rc = far__futex_wait(&w->word, FAR__WAITER_SLEEPS, deadline);
        if (rc == ETIMEDOUT)
            return FAR_ETIMEOUT;
        if (rc == EINTR)
            return FAR_EINTR;
    }
}

/* peer.lock held: takes the role if nobody has it, else queues as a sleeper. The connection, held; NULL:
 * there is none to read. */
static far__conn *enter_role(far__peer *p, far__waiter *w, bool *reads)
{
    far__conn *c = p->conn;
    *reads = false;
    if (p->state != FAR__PEER_UP || !c || (c->ops->flags & FAR__TRANSPORT_LOOP_ONLY))
        return NULL;
    c->ops->hold(c);
    w->wake = wake_reader;
    w->wake_arg = c;
    if (p->reader) {
        far__list_add_tail(&p->sleepers, &w->sleeper);
        return c;
    }
    uint32_t expected = FAR__WAITER_SLEEPS;
    if (atomic_compare_exchange_strong(&w->word, &expected, FAR__WAITER_READS)) {
        p->reader = w;
        *reads = true;
        c->ops->watch(c, false);
    }
    return c;
}

static void leave_role(far__peer *p, far__waiter *w)
{
    _Atomic uint32_t *word = NULL;
    far__mutex_lock(&p->lock);
    far__list_remove(&w->sleeper);
    if (p->reader == w)
        word = far__peer_pass_role(p);
    far__mutex_unlock(&p->lock);
    if (word)
        far__futex_wake(word, 1);
}

static far_status wait_for_end(far__outcall *oc, int64_t deadline)
{
    far_future *f = &oc->future;
    far__peer *p = oc->peer;
    far__agent_flush_calls(p->agent);
    if (p->is_self || far__loop_here(p->agent->loop))
        return far__future_sleep(f, deadline);

    far__waiter w;
    far__waiter_init(&w, FAR__WAITER_SLEEPS);
    if (!far__waiter_enter(&w, f))
        return FAR_OK;
    bool reads;
    far__mutex_lock(&p->lock);
    far__conn *c = enter_role(p, &w, &reads);
    far__mutex_unlock(&p->lock);

    far_status status = FAR_OK;
    if (!reads) {
        status = sleep_role(&w, deadline);
        uint32_t expected = FAR__WAITER_PROMOTED;
        reads = atomic_compare_exchange_strong(&w.word, &expected, FAR__WAITER_READS);
    }
    if (reads && status == FAR_OK)
        status = read_role(oc, c, deadline);
    if (c)
        leave_role(p, &w);
    far__waiter_leave(&w, f);
    if (c)
        c->ops->release(c);
    if (far_future_done(f))
        return FAR_OK;
    /* The connection broke: the loop ends the call or sends it anew. */
    if (status == FAR_EPEER)
        return far__future_sleep(f, deadline);
    return status;
}

static far_status wait_outcall(far_future *f, int64_t deadline)
{
    far__outcall *oc = outcall_of(f);
    if (oc->peer->agent->forked)
        return FAR_ECLOSED;
    far_status status = wait_for_end(oc, deadline);
    if (status == FAR_OK && oc->waited)
        far__buffers_free(atomic_exchange(&oc->orphans, NULL));
    return status;
}

/* ------------------------------------------------------------- futures completed by their holder */

typedef struct own_future {
    far_future future;
    far_agent *agent;
} own_future;

static far_agent *own_agent(far_future *f)
{
    return far__container_of(f, own_future, future)->agent;
}

static void own_free(far_future *f)
{
    far_agent *a = own_agent(f);
    far__future_fini(f);
    far__mem_free(far__container_of(f, own_future, future));
    far__agent_unref(a);
}

static void own_run(far_future *f, far__job *job, bool quick)
{
    run_job(own_agent(f), job, quick, false);
}

static void own_drop(far_future *f, far_message *message)
{
    far__agent_drop(own_agent(f), message);
}

static far__service *own_service(far_future *f)
{
    return &own_agent(f)->service;
}

static const far__future_ops own_ops = {
    .free = own_free,
    .run = own_run,
    .drop = own_drop,
    .service = own_service,
};

far_status far_future_create(far_agent *a, far_future **out)
{
    own_future *o = far__mem_alloc(sizeof *o);
    if (!o)
        return FAR_ENOMEM;
    far__future_init(&o->future, &own_ops, a->self.id);
    far__agent_ref(a);
    o->agent = a;
    *out = &o->future;
    return FAR_OK;
}
