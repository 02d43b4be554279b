/* SPDX-License-Identifier: BSD-3-Clause
 * async/loop: one thread that waits in epoll_wait for descriptors, timers and posted work.
 * Floor: async. Thread: said at each function. */
#ifndef FAR_ASYNC_LOOP_H
#define FAR_ASYNC_LOOP_H

#include "async/timer.h"
#include "base/list.h"
#include "base/mutex.h"

typedef struct far__loop far__loop;

/* A descriptor the loop watches; embedded in its owner. */
typedef struct far__watch far__watch;
struct far__watch {
    void (*ready)(far__watch *w, uint32_t events); /* loop thread; EPOLL bits */
    int fd;
};

/* Work handed to the loop thread; embedded in its owner, posted once at a time. */
typedef struct far__task far__task;
struct far__task {
    void (*run)(far__task *t); /* loop thread, no lock held */
    far__task *next;
};

far_status far__loop_create(far__loop **out) FAR_MUST_USE; /* FAR_ENOMEM, FAR_ESYSTEM */
/* Starts the thread; it blocks all signals. FAR_ESYSTEM. */
far_status far__loop_start(far__loop *l) FAR_MUST_USE;
/* Makes the loop end after the posted work, and waits for the thread. Not on the loop thread. Timers
 * that are set stay silent. Never started: runs what was posted here. Twice: nothing happens. */
void far__loop_stop(far__loop *l);
/* Stopped, or never started. No other thread may still be inside a function of this loop. */
void far__loop_destroy(far__loop *l);
/* In a forked child, where the thread is gone: closes the descriptors. Nothing else may follow. */
void far__loop_forked(far__loop *l);
bool far__loop_here(const far__loop *l); /* is this the loop thread? */

/* Any thread; takes effect at once. Level-triggered. FAR_ESYSTEM. */
far_status far__loop_add(far__loop *l, far__watch *w, uint32_t events) FAR_MUST_USE;
void far__loop_change(far__loop *l, far__watch *w, uint32_t events);
/* After it, `ready` is not called for events that epoll_wait gives later. On the loop thread: nor for
 * those of the present batch. */
void far__loop_remove(far__loop *l, far__watch *w);

/* Any thread. Runs t->run soon, in order. After stop: runs it at once in this thread (where
 * far__loop_here is false). */
void far__loop_post(far__loop *l, far__task *t);

/* Timers of the loop. `at` in ns of far__clock_now; re-arming moves it. Any thread; the loop is
 * woken only if it sleeps longer than until `at`. FAR__NEVER: as clear. */
void far__loop_timer_set(far__loop *l, far__timer *t, int64_t at);
/* Any thread. True: it was set, and `fire` will not run for it. False: it was not, and `fire` may be
 * running at this moment unless the caller is the loop thread. */
bool far__loop_timer_clear(far__loop *l, far__timer *t);

/* For epoll_wait: rounded up, so that nothing is early; -1 for FAR__NEVER. */
int far__loop_milliseconds(int64_t limit_ns);
/* The kernel has no epoll_pwait2 (or a test wants it so): timers are up to 1 ms late. */
extern atomic_bool far__loop_coarse;

#endif
