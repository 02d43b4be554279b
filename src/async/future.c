/* SPDX-License-Identifier: BSD-3-Clause
 * async/future: a result that comes once, those who wait for it and the callbacks it sets off.
 * Floor: async. Thread: any.
 *
 * Design notes. A future ends exactly once: under its lock the result is stored and `done` is set. The
 * waiters are then told one after another; from the moment a waiter's word says DONE its memory (the
 * stack of the waiting thread) must not be touched, so the next one is looked up before. Waking an
 * address that is gone already is harmless: a futex wake does not read it.
 * Callbacks of one future run one after another in one job, so their order is the order of adding. */
#include "async/future.h"

#include <sched.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static void run_callbacks(far__job *job);

void far__future_init(far_future *f, const far__future_ops *ops, far_worker_id worker)
{
    memset(f, 0, sizeof *f);
    far__ref_init(&f->refs);
    far__mutex_init(&f->lock);
    far__list_init(&f->waiters);
    far__list_init(&f->job.link);
    f->callbacks_end = &f->callbacks;
    f->job.run = run_callbacks;
    f->ops = ops;
    f->worker = worker;
    f->status = FAR_EAGAIN;
}

void far__future_fini(far_future *f)
{
    while (f->callbacks) { /* never ended: a future that its holder forgot to complete */
        far__callback *cb = f->callbacks;
        f->callbacks = cb->next;
        far__mem_free(cb);
    }
    if (f->message)
        f->ops->drop(f, f->message);
    if (f->reason && f->reason->payload)
        f->ops->drop(f, f->reason->payload);
    far__mem_free(f->reason);
    far__mutex_fini(&f->lock);
}

far__reason *far__reason_create(const char *text, const char *type_name, const char *traceback,
                                far_message *payload)
{
    const char *from[3] = {text ? text : "", type_name ? type_name : "",
                           traceback ? traceback : ""};
    size_t size[3], sum = sizeof(far__reason);
    for (int i = 0; i < 3; i++)
        sum += size[i] = strlen(from[i]) + 1;
    far__reason *r = far__mem_alloc(sum);
    if (!r)
        return NULL;
    char *at = (char *)(r + 1);
    const char *to[3];
    for (int i = 0; i < 3; i++) {
        to[i] = memcpy(at, from[i], size[i]);
        at += size[i];
    }
    *r = (far__reason){.text = to[0], .type_name = to[1], .traceback = to[2], .payload = payload};
    return r;
}

void far__waiter_init(far__waiter *w, uint32_t word)
{
    atomic_init(&w->word, word);
    far__list_init(&w->link);
    far__list_init(&w->sleeper);
    w->wake = NULL;
    w->wake_arg = NULL;
    w->thread = pthread_self();
}

bool far__waiter_enter(far__waiter *w, far_future *f)
{
    far__mutex_lock(&f->lock);
    bool open = !f->done;
    if (open)
        far__list_add_tail(&f->waiters, &w->link);
    far__mutex_unlock(&f->lock);
    return open;
}

void far__waiter_leave(far__waiter *w, far_future *f)
{
    far__mutex_lock(&f->lock);
    bool done = f->done;
    if (!done)
        far__list_remove(&w->link);
    far__mutex_unlock(&f->lock);
    /* Else the list is the settling thread's, which may not have come to this waiter yet. */
    while (done && atomic_load_explicit(&w->word, memory_order_acquire) != FAR__WAITER_DONE)
        sched_yield();
}

/* Tells every waiter. The list is this thread's alone: `done` was set under the lock.
 * A reader is woken before its word moves: until then it does not leave, so what `wake` touches is there.
 * Of "it sees done" and "this thread sees that it reads" one is true, by the fence here and the exchange
 * with which it began to read. */
static void wake_waiters(far__list *waiters)
{
    pthread_t here = pthread_self();
    far__list *n = waiters->next;
    atomic_thread_fence(memory_order_seq_cst);
    while (n != waiters) {
        far__waiter *w = far__container_of(n, far__waiter, link);
        n = n->next;
        bool reads = atomic_load(&w->word) == FAR__WAITER_READS;
        if (reads && w->wake && !pthread_equal(w->thread, here))
            w->wake(w->wake_arg);
        atomic_exchange_explicit(&w->word, FAR__WAITER_DONE, memory_order_acq_rel);
        if (!reads)
            far__futex_wake(&w->word, 1);
    }
}

static void run_callbacks(far__job *job)
{
    far_future *f = far__container_of(job, far_future, job);
    far__callback *cb = f->callbacks;
    f->callbacks = NULL;
    while (cb) {
        far__callback *next = cb->next;
        cb->fn(f, cb->arg);
        far__mem_free(cb);
        cb = next;
    }
    far_future_release(f);
}

bool far__future_settle(far_future *f, far_status status, far_message *message, far__reason *reason)
{
    far__list waiters;
    far__list_init(&waiters);
    bool callbacks = false, quick = true;

    far__mutex_lock(&f->lock);
    bool first = !f->done;
    if (first) {
        f->status = status;
        f->message = message;
        f->reason = reason;
        atomic_store_explicit(&f->done, 1, memory_order_release);
        far__list_splice(&waiters, &f->waiters);
        callbacks = f->callbacks != NULL;
        for (far__callback *cb = f->callbacks; cb; cb = cb->next)
            quick = quick && (cb->flags & FAR_CALLBACK_NEVER_BLOCKS);
        if (callbacks)
            far__ref_hold(&f->refs); /* the job's */
    }
    far__mutex_unlock(&f->lock);

    if (!first) {
        if (message)
            f->ops->drop(f, message);
        if (reason && reason->payload)
            f->ops->drop(f, reason->payload);
        far__mem_free(reason);
        return false;
    }
    wake_waiters(&waiters);
    if (callbacks)
        f->ops->run(f, &f->job, quick);
    return true;
}

far_status far__future_sleep(far_future *f, int64_t deadline)
{
    far__waiter w;
    far__waiter_init(&w, FAR__WAITER_SLEEPS);
    if (!far__waiter_enter(&w, f))
        return FAR_OK;
    far_status status = FAR_OK;
    for (;;) {
        if (atomic_load_explicit(&w.word, memory_order_acquire) == FAR__WAITER_DONE)
            return FAR_OK;
        int rc = far__futex_wait(&w.word, FAR__WAITER_SLEEPS, deadline);
        if (rc == ETIMEDOUT)
            status = FAR_ETIMEOUT;
        else if (rc == EINTR)
            status = FAR_EINTR;
        if (status != FAR_OK)
            break;
    }
    far__waiter_leave(&w, f);
    return far_future_done(f) ? FAR_OK : status;
}

far_status far_future_wait(far_future *f, far_duration limit)
{
    if (far_future_done(f))
        return FAR_OK;
    if (limit < 0)
        return FAR_EINVAL;
    if (limit == 0)
        return FAR_ETIMEOUT;
    int64_t deadline = limit == FAR_FOREVER ? FAR__NEVER : far__deadline(far__clock_now(), limit);
    /* A handler thread, of whatever agent, says so: another one may be needed for its queue. */
    far__executor_waiting(true);
    far_status status = f->ops->wait ? f->ops->wait(f, deadline) : far__future_sleep(f, deadline);
    far__executor_waiting(false);
    return status;
}

bool far_future_done(const far_future *f)
{
    return atomic_load_explicit(&f->done, memory_order_acquire) != 0;
}

far_status far_future_status(const far_future *f)
{
    return far_future_done(f) ? f->status : FAR_EAGAIN;
}

far_message *far_future_message(const far_future *f)
{
    return far_future_done(f) && f->status == FAR_OK ? f->message : NULL;
}

far_message *far_future_take_message(far_future *f)
{
    if (!far_future_done(f) || f->status != FAR_OK)
        return NULL;
    far__mutex_lock(&f->lock);
    far_message *m = f->message;
    f->message = NULL;
    far__mutex_unlock(&f->lock);
    return m;
}

void far_future_failure(const far_future *f, far_failure *out)
{
    *out = (far_failure){.status = far_future_status(f),
                         .worker = f->worker,
                         .text = "",
                         .type_name = "",
                         .traceback = ""};
    if (out->status == FAR_OK || out->status == FAR_EAGAIN)
        return;
    const far__reason *r = f->reason;
    out->text = r && r->text[0] ? r->text : far_status_text(out->status);
    if (r) {
        out->type_name = r->type_name;
        out->traceback = r->traceback;
        out->payload = r->payload;
        out->from_handler = r->from_handler;
        out->may_have_run = r->may_have_run;
    }
}

far_status far_future_on_done(far_future *f, far_future_fn fn, void *arg, unsigned flags)
{
    if (!fn)
        return FAR_EINVAL;
    far__callback *cb = far__mem_alloc(sizeof *cb);
    if (!cb)
        return FAR_ENOMEM;
    if (f->ops->watched)
        f->ops->watched(f);
    *cb = (far__callback){.fn = fn, .arg = arg, .flags = flags};
    far__mutex_lock(&f->lock);
    bool open = !f->done;
    if (open) {
        *f->callbacks_end = cb;
        f->callbacks_end = &cb->next;
    }
    far__mutex_unlock(&f->lock);
    if (!open) {
        far__mem_free(cb);
        fn(f, arg);
    }
    return FAR_OK;
}

static void post_notice(far_future *f, void *arg)
{
    far__service_notice(f->ops->service(f), arg);
}

far_status far_future_notify(far_future *f, void *tag)
{
    far__service *service = f->ops->service ? f->ops->service(f) : NULL;
    if (!service || !service->foreign)
        return FAR_EINVAL;
    far__notice *n = far__mem_alloc(sizeof *n);
    if (!n)
        return FAR_ENOMEM;
    n->tag = tag;
    far__list_init(&n->link);
    far_status status = far_future_on_done(f, post_notice, n, FAR_CALLBACK_NEVER_BLOCKS);
    if (status != FAR_OK)
        far__mem_free(n);
    return status;
}

bool far_future_cancel(far_future *f)
{
    if (f->ops->cancel)
        return f->ops->cancel(f);
    return far__future_settle(f, FAR_ECANCELED, NULL, NULL);
}

far_future *far_future_hold(far_future *f)
{
    far__ref_hold(&f->refs);
    return f;
}

void far_future_release(far_future *f)
{
    if (f && far__ref_release(&f->refs))
        f->ops->free(f);
}

bool far_future_complete(far_future *f, far_message *message)
{
    return far__future_settle(f, FAR_OK, message, NULL);
}

bool far_future_fail(far_future *f, far_status status, const char *text)
{
    if (status == FAR_OK)
        status = FAR_EINVAL;
    return far__future_settle(f, status, NULL, far__reason_create(text, NULL, NULL, NULL));
}
