/* SPDX-License-Identifier: BSD-3-Clause
 * proto/agreement: when may everybody leave. The leader asks all members in rounds; each reports
 * whether it is idle (no call made or served is open, no callback queued) and its activity counter
 * (calls begun here, made and arrived, ever). Two successive rounds in which all were idle with
 * unchanged counters mean that nothing was in flight at the end of the first (after Mattern's
 * four-counter method, Distributed Computing 2, 1987); the proof and what it asks of the agent:
 * docs/shutdown.md. Floor: proto. Thread: the agent's roster lock. */
#ifndef FAR_PROTO_AGREEMENT_H
#define FAR_PROTO_AGREEMENT_H

#include "base/buf.h"

typedef struct far__agreement_member {
    far_worker_id id;
    bool asked;    /* it has called shutdown */
    bool gone;     /* left or lost: needs no report */
    bool reported; /* in the present round */
    bool idle;     /* its report */
    uint64_t activity, activity_before;
} far__agreement_member;

typedef struct far__agreement {
    far__agreement_member *members;
    size_t count, room;
    uint64_t round;  /* 0: none begun */
    bool last_quiet; /* in the round before, all had asked and were idle */
    bool polling;    /* a round is open */
    bool spoiled;    /* ... which cannot be quiet any more */
    bool pausing;    /* the next round waits for far__agreement_retry */
    bool agreed;
} far__agreement;

typedef enum far__agreement_step {
    FAR__AGREEMENT_WAIT, /* for more to ask, or for reports */
    FAR__AGREEMENT_POLL, /* begin the round a->round: ask every member that is not gone */
    FAR__AGREEMENT_DONE, /* tell everybody */
} far__agreement_step;

void far__agreement_init(far__agreement *a);
void far__agreement_fini(far__agreement *a);
/* A member of the job (again: nothing happens); one that comes while a round is open spoils it.
 * FAR_ENOMEM. */
far_status far__agreement_add(far__agreement *a, far_worker_id id) FAR_MUST_USE;
void far__agreement_asked(far__agreement *a, far_worker_id id);
/* It took its shutdown back (its timeout ran out). False: too late, all have agreed. */
bool far__agreement_withdrawn(far__agreement *a, far_worker_id id);
/* It has left or was lost: counts as having asked, needs no report, and spoils the open round. */
void far__agreement_gone(far__agreement *a, far_worker_id id);
/* A report of a round that is not open is ignored. */
void far__agreement_report(far__agreement *a, uint64_t round, far_worker_id id, bool idle,
                           uint64_t activity);
/* After each event above. POLL is given once a round. A round in which not all were idle, or counters
 * had changed, is followed by another only after far__agreement_retry (the caller paces it). DONE is
 * given for ever. */
far__agreement_step far__agreement_next(far__agreement *a);
/* The pause after such a round is over. */
void far__agreement_retry(far__agreement *a);
/* After DONE: a second agreement among the same members, who have asked already. Rounds count on. */
void far__agreement_again(far__agreement *a);
/* Everybody who is not gone has asked: closing() is true. */
bool far__agreement_all_asked(const far__agreement *a);
/* The first member that has not asked; false: none. */
bool far__agreement_missing(const far__agreement *a, far_worker_id *id);

#endif
