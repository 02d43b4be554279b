/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/jobserver: an executor over a server whose requests are jobs in a list behind an
 * eventfd, and jobs that say what became of them. It checks at every step that there is at most one
 * reader, the loop included. */
#ifndef FAR_TESTS_SUPPORT_JOBSERVER_H
#define FAR_TESTS_SUPPORT_JOBSERVER_H

#include "async/executor.h"
#include "support/gate.h"

/* From now on the clock stands still, so no watchdog ticks and no stall is seen; until close_server. */
void freeze_clock(void);
void advance_clock(int64_t ns);

typedef struct server {
    far__executor *executor;
    far__loop *loop;
    far__watch watch; /* its fd counts requests */
    int wake_fd;
    pthread_mutex_t lock;
    far__list requests;
    _Atomic pid_t reader;     /* inside ops.read */
    atomic_uint readers;      /* never above one, the loop included */
    atomic_uint watched;      /* now: 0 or 1 */
    atomic_uint watches;      /* how often it began */
    atomic_uint loop_batches; /* how often the loop read */
    /* The loop stops in the midst of a read until this is passed; NULL: it does not. */
    gate *_Atomic loop_hold;
    gate flushed;
} server;

#define THREADS(few, most) ((far__executor_options){.threads = (few), .threads_max = (most)})

void open_server(server *s, far__executor_options o);
/* Gives how many jobs were left. */
size_t stop_server(server *s);
/* Stops, and waits until every thread has left and everything is freed. */
void close_server(server *s);

typedef struct act {
    far__job job;
    gate *hold; /* stays inside until it was passed; NULL: does not */
    gate *started, *done;
    server *server;
    struct act *nested; /* pushed, and waited for */
    atomic_uint runs;
    pid_t tid;
} act;

void make_act(act *a, server *s, _Atomic uint32_t *cost, gate *hold, gate *done);
/* Adds it to what will be read; with the next send_act, in one batch. */
void request_act(server *s, act *a);
void send_act(server *s, act *a);
/* Sends a job of a known short kind and waits for it; gives its thread. */
pid_t call_short(server *s);
pid_t wait_for_reader(server *s);

#endif
