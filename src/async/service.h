/* SPDX-License-Identifier: BSD-3-Clause
 * async/service: what must run on a thread of its own kind: buffers to free, threads to start, futures
 * to report. Emptied by far_service_next (foreign threads) or by a pthread of ours, started on demand.
 * Floor: async. Thread: any. */
#ifndef FAR_ASYNC_SERVICE_H
#define FAR_ASYNC_SERVICE_H

#include "base/buf.h"
#include "base/list.h"
#include "base/mutex.h"

/* A report that a future is done; embedded in its owner, posted once. */
typedef struct far__notice far__notice;
struct far__notice {
    void *tag;
    far__list link;
};

typedef struct far__service {
    far__mutex lock;
    _Atomic uint32_t word; /* changes when something was added */
    bool foreign, stopping;
    bool ended;   /* STOP was given */
    bool asleep;  /* somebody waits for the word to change */
    bool running; /* our own pthread exists */
    pthread_t thread;
    unsigned starts;     /* START_THREAD events to be given */
    far_buffer *orphans; /* buffers whose free_fn is to be run */
    far__list notices;   /* far__notice */
} far__service;

void far__service_init(far__service *s, bool foreign);
/* What is there is given out first, then STOP for ever. What is added later is given out too if STOP
 * was not yet, else freed by fini; threads are not asked for any more. */
void far__service_stop(far__service *s);
/* After stop; not on our own pthread, and nobody may be inside a function of this service. Joins our own
 * pthread and frees what nobody fetched (runs free_fn here). */
void far__service_fini(far__service *s);

/* Takes a list of buffers (by .next; NULL: nothing). */
void far__service_orphans(far__service *s, far_buffer *list);
void far__service_start_thread(far__service *s); /* foreign only */
/* FAR_EVENT_FUTURE_DONE; the notice is allocated by far__mem_alloc and taken. */
void far__service_notice(far__service *s, far__notice *n);
/* Blocks; as far_service_next. An orphan is given as RELEASE of far__buffer_free. */
far_status far__service_next(far__service *s, far_event *event) FAR_MUST_USE;

#endif
