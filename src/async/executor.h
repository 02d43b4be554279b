/* SPDX-License-Identifier: BSD-3-Clause
 * async/executor: threads that run jobs and take turns at the reader role of the agent's incoming
 * connections. Who supplies the threads is an operations table.
 *
 * Design notes (the measurements are in the project's docs/architecture.md, "Threads").
 * One thread at a time holds the *reader role*: it waits for requests, puts them into the queue and then
 * works the queue like everybody else. It keeps the role through jobs known to be short; before any other
 * job it gives the role to the thread that went idle last, or to the loop thread if none is idle. The
 * watchdog (a timer of the loop, ticking only while somebody holds the role inside a job, the queue is
 * not empty or replies are appended) takes the role from a holder that is stuck.
 * Invariants:
 *  1 The role is taken only from a thread that is inside a job, decided under the lock.
 *  2 Pushed to the queue implies: a thread is on its way to look, or the holder of the role will look.
 *    A new or returning thread looks at the queue before it sleeps.
 *  3 The role is held, on its way to a woken thread, or with the loop: never free.
 *  4 No lock is held while a job runs.
 * Floor: async. Thread: any. */
#ifndef FAR_ASYNC_EXECUTOR_H
#define FAR_ASYNC_EXECUTOR_H

#include "async/loop.h"
#include "async/service.h"
#include "base/list.h"

typedef struct far__executor far__executor;

/* Something to run; embedded in its owner. */
typedef struct far__job far__job;
struct far__job {
    void (*run)(far__job *j); /* a handler thread, no lock held; frees or re-uses the job itself */
    _Atomic uint32_t *cost;   /* moving average of its kind in ns, kept by the executor; NULL: unknown,
                                 treated as long */
    far__list link;
};

typedef struct far__executor_ops {
    /* Waits for requests until `deadline` or far__executor_ops.wake; reads them and pushes jobs by
     * far__executor_push_read. Called only by the holder of the role. */
    void (*read)(void *arg, int64_t deadline);
    /* Makes `read` return soon. Any thread. */
    void (*wake)(void *arg);
    /* The loop thread watches for requests from now on (on) or no more. Under the executor's lock. */
    void (*watch)(void *arg, bool on);
    /* Writes replies that were appended. No lock held. */
    void (*flush)(void *arg);
    void *arg;
} far__executor_ops;

typedef struct far__executor_options {
    unsigned threads, threads_max;
    far__loop *loop;
    far__service *service; /* foreign threads are asked for here; NULL: pthreads */
    far__executor_ops ops;
    void *(*thread_main)(void *arg); /* of a pthread: calls far__executor_enter */
    void *thread_arg;
} far__executor_options;

far_status far__executor_create(const far__executor_options *o, far__executor **out) FAR_MUST_USE;
/* Serving begins: the role goes to the loop, until a first thread takes it. */
void far__executor_start(far__executor *e);
/* No job is begun any more; threads that are not inside a job leave. Jobs in the queue are given back
 * in `left`. Does not wait for jobs that run. */
void far__executor_stop(far__executor *e, far__list *left);
/* After stop; counted, so threads inside a job keep it alive. */
void far__executor_release(far__executor *e);
far__executor *far__executor_hold(far__executor *e);

/* Adds a job from any thread. After stop: false, the caller keeps it. */
bool far__executor_push(far__executor *e, far__job *j);
/* The same for the thread that is inside ops.read: the reader will look at the queue itself. */
bool far__executor_push_read(far__executor *e, far__job *j);
/* The loop thread has read requests while it watched: see that somebody works. */
void far__executor_kick(far__executor *e);

/* A thread comes to work; returns when it may leave (stopped or not needed). */
void far__executor_enter(far__executor *e);
/* This thread, if it is one of ours inside a job, is about to wait for a future (or is back): it gives
 * the role away and does not count as busy, so a queued job finds another thread. */
void far__executor_waiting(far__executor *e, bool waits);
unsigned far__executor_threads(far__executor *e);
/* Jobs queued or running right now. */
size_t far__executor_busy(far__executor *e);
/* Is there a thread of ours here? (a handler or callback that calls back into the library) */
bool far__executor_here(const far__executor *e);

#endif
