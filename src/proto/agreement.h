/* SPDX-License-Identifier: BSD-3-Clause
 * proto/agreement: when may everybody leave. The leader asks all members in rounds; each reports
 * whether it is idle (no call made or served is open, no callback queued) and its activity counter
 * (calls begun, ever). Two successive rounds in which all were idle with unchanged counters mean
 * that nothing was in flight at the end of the first (Mattern's four-counter method, Distributed
 * Computing 2, 1987). Floor: proto. Thread: the agent's roster lock. */
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
    bool last_quiet; /* the round before was quiet */
    bool polling;    /* a round is open */
    bool agreed;
} far__agreement;

typedef enum far__agreement_step {
    FAR__AGREEMENT_WAIT, /* for more to ask, or for reports */
    FAR__AGREEMENT_POLL, /* begin the round a->round: ask every member that is not gone */
    FAR__AGREEMENT_DONE, /* tell everybody */
} far__agreement_step;

void far__agreement_init(far__agreement *a);
void far__agreement_fini(far__agreement *a);
/* A member of the job, once for each. FAR_ENOMEM. */
far_status far__agreement_add(far__agreement *a, far_worker_id id) FAR_MUST_USE;
void far__agreement_asked(far__agreement *a, far_worker_id id);
/* It took its shutdown back (its timeout ran out). */
void far__agreement_withdrawn(far__agreement *a, far_worker_id id);
void far__agreement_gone(far__agreement *a, far_worker_id id);
/* A report of a round that is not open is ignored. */
void far__agreement_report(far__agreement *a, uint64_t round, far_worker_id id, bool idle,
                           uint64_t activity);
/* After each event above. POLL is given once a round; a round that was not quiet is followed by
 * another POLL only from far__agreement_retry (the caller paces it). */
far__agreement_step far__agreement_next(far__agreement *a);
/* The pause after an unquiet round is over. */
void far__agreement_retry(far__agreement *a);
/* Everybody has asked (and is not gone): closing() is true from now on. */
bool far__agreement_all_asked(const far__agreement *a);
/* The first member that has not asked; false: none. */
bool far__agreement_missing(const far__agreement *a, far_worker_id *id);

#endif
