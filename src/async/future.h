/* SPDX-License-Identifier: BSD-3-Clause
 * async/future: a result that comes once, those who wait for it and the callbacks it sets off.
 * Floor: async. Thread: any. */
#ifndef FAR_ASYNC_FUTURE_H
#define FAR_ASYNC_FUTURE_H

#include "async/executor.h"
#include "base/ref.h"

/* What a waiting thread is doing; moves only by compare-and-swap or exchange. */
enum {
    FAR__WAITER_SLEEPS = 0,   /* in futex_wait on its word */
    FAR__WAITER_READS = 1,    /* reads the connection itself; `wake` gets it out */
    FAR__WAITER_PROMOTED = 2, /* was asleep and shall read now */
    FAR__WAITER_DONE = 3,     /* its future has ended: nobody else may touch it any more */
};

typedef struct far__waiter far__waiter;
struct far__waiter {
    _Atomic uint32_t word;
    far__list link;          /* of the future's waiters, under the future's lock */
    far__list sleeper;       /* of the peer's sleepers, under the peer's lock */
    void (*wake)(void *arg); /* gets it out of READS */
    void *wake_arg;
    pthread_t thread;
};

typedef struct far__callback far__callback;
struct far__callback {
    far_future_fn fn;
    void *arg;
    unsigned flags;
    far__callback *next;
};

/* Why a call failed; one allocation of its own with its texts behind it. */
typedef struct far__reason {
    bool from_handler, may_have_run;
    const char *text, *type_name, *traceback;
    far_message *payload;
} far__reason;

/* What the owner of a kind of future does for it. */
typedef struct far__future_ops {
    /* Blocks as far_future_wait; NULL: sleep. */
    far_status (*wait)(far_future *f, int64_t deadline);
    /* A callback is about to be added: somebody must read its result though nobody waits. May be NULL. */
    void (*watched)(far_future *f);
    bool (*cancel)(far_future *f); /* NULL: far__future_fail with FAR_ECANCELED */
    void (*free)(far_future *f);   /* the last reference is gone; calls far__future_fini */
    /* Runs the job on a handler thread, or on the loop thread if `quick`; takes it. */
    void (*run)(far_future *f, far__job *job, bool quick);
    /* Frees a result that nobody wants; the floor below does not know what a message is. */
    void (*drop)(far_future *f, far_message *message);
    /* The service of the owner, for far_future_notify; NULL: none. */
    far__service *(*service)(far_future *f);
} far__future_ops;

struct far_future {
    far__ref refs;
    _Atomic uint32_t done;
    const far__future_ops *ops;
    far__mutex lock; /* waiters, callbacks */
    far__list waiters;
    far__callback *callbacks, **callbacks_end;
    far__job job; /* runs the callbacks */
    far_status status;
    far_worker_id worker;
    far_message *message;
    far__reason *reason; /* NULL: the status' own text */
};

void far__future_init(far_future *f, const far__future_ops *ops, far_worker_id worker);
/* Frees what a future holds. */
void far__future_fini(far_future *f);

/* Ends it with a result (takes `message`) or with an error (takes `reason`, may be NULL). False: it had
 * ended; what was taken is dropped. No lock may be held. */
bool far__future_settle(far_future *f, far_status status, far_message *message,
                        far__reason *reason);
/* Texts are copied (NULL: ""), `payload` taken. NULL when there is no memory: nothing taken. */
far__reason *far__reason_create(const char *text, const char *type_name, const char *traceback,
                                far_message *payload);

/* The generic wait: sleeps until done, `deadline` or a signal. */
far_status far__future_sleep(far_future *f, int64_t deadline) FAR_MUST_USE;

void far__waiter_init(far__waiter *w, uint32_t word);
/* Puts the waiter on the future's list; false: the future has ended. */
bool far__waiter_enter(far__waiter *w, far_future *f);
/* Takes it off again; afterwards nobody touches it. */
void far__waiter_leave(far__waiter *w, far_future *f);

#endif
