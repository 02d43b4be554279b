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

enum { FAR__SHORT_NS = 20000 }; /* jobs of this average cost or more are long */

/* Something to run; embedded in its owner. */
typedef struct far__job far__job;
struct far__job {
    void (*run)(far__job *j); /* a handler thread, no lock held; frees or re-uses the job itself */
    _Atomic uint32_t *cost;   /* moving average of its kind in ns, kept by the executor, 0: not seen
                                 yet; touched after run unless stopped, so it outlives the job. NULL:
                                 always long */
    far__list link;
};

typedef struct far__executor_ops {
    /* Waits for requests until `deadline` or far__executor_ops.wake; reads them and pushes jobs by
     * far__executor_push_read. Called only by the holder of the role. */
    void (*read)(void *arg, int64_t deadline);
    /* Makes the present or else the next `read` return soon. Any thread. */
    void (*wake)(void *arg);
    /* The loop thread watches for requests from now on (on) or no more. Under the executor's lock: add
     * or remove a watch, nothing else. The watch's `ready` asks far__executor_loop_begin. */
    void (*watch)(void *arg, bool on);
    /* Writes replies that were appended. No lock held. Called before a reader or idle thread sleeps,
     * before a job not known as short, and by the watchdog. NULL: nothing to do. */
    void (*flush)(void *arg);
    /* A thread works no more and is about to leave. No lock held. It may come after stop, when what it
     * would be told about is gone. NULL: nothing to do. */
    void (*leaves)(void);
    void *arg;
} far__executor_ops;

typedef struct far__executor_options {
    unsigned threads, threads_max;
    far__loop *loop;
    far__service *service; /* foreign threads are asked for here; NULL: pthreads */
    far__executor_ops ops;
    int64_t
        idle_ns; /* an idle thread beyond a couple leaves after it; 0: 10 s, FAR__NEVER: stays */
} far__executor_options;

/* A thread that cannot be started is no error: the others go on, and it is tried again every 10 ms while
 * jobs wait, also when there is no other. FAR_EINVAL (threads or threads_max 0), FAR_ENOMEM. */
far_status far__executor_create(const far__executor_options *o, far__executor **out) FAR_MUST_USE;
/* Serving begins: the role goes to the loop, until a first thread takes it. */
void far__executor_start(far__executor *e);
/* No job is begun any more; threads that are not inside a job leave. Jobs in the queue are given back
 * in `left`, which is initialised here. Does not wait for jobs that run, but for all other threads to
 * leave: afterwards nobody touches ops, service or loop. Before far__loop_stop; not inside ops. */
void far__executor_stop(far__executor *e, far__list *left);
/* In a forked child: locks may be held for ever, so a job that comes back here (its handler forked) takes
 * none, and far__executor_enter returns. */
void far__executor_forked(far__executor *e);
/* After stop; counted, so threads inside a job keep it alive. */
void far__executor_release(far__executor *e);
far__executor *far__executor_hold(far__executor *e);

/* Adds a job from any thread. After stop: false, the caller keeps it. */
bool far__executor_push(far__executor *e, far__job *j);
/* The same for the thread that is inside ops.read: the reader will look at the queue itself. */
bool far__executor_push_read(far__executor *e, far__job *j);
/* Loop thread, before it reads because ops.watch is on. False: a thread has the role by now, do not
 * read. True: nobody else reads until far__executor_kick, which must follow. */
bool far__executor_loop_begin(far__executor *e) FAR_MUST_USE;
/* The loop thread has read requests while it watched: see that somebody works. Flushes. */
void far__executor_kick(far__executor *e);
/* A reply was appended in the midst of a job, or by a thread that is none of ours: it is flushed within
 * a tick of the watchdog. Not needed where the job ends soon: its end does the same. */
void far__executor_appended(far__executor *e);

/* A thread comes to work; returns when it may leave (stopped, not needed, or threads_max are here). */
void far__executor_enter(far__executor *e);
/* This thread, if it is inside a job of any executor, is about to wait for a future (or is back): it gives
 * the role away and does not count as busy, so a queued job finds another. */
void far__executor_waiting(bool waits);
unsigned far__executor_threads(far__executor *e);
/* Jobs queued or running right now. */
size_t far__executor_busy(far__executor *e);
/* Is there a thread of ours here? (a handler or callback that calls back into the library) */
bool far__executor_here(const far__executor *e);

#endif
