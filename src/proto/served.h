/* SPDX-License-Identifier: BSD-3-Clause
 * proto/served: the callee's side of calls that may be repeated (RETRY), one table a caller
 * incarnation: a repeat is joined to the running handler or gets the kept result; nothing runs
 * twice. Calls without RETRY never come here. Floor: proto. Thread: the owner's lock. */
#ifndef FAR_PROTO_SERVED_H
#define FAR_PROTO_SERVED_H

#include "base/list.h"
#include "base/map.h"
#include "proto/ranges.h"

typedef enum far__served_verdict {
    FAR__SERVED_NEW,     /* run it; end with far__served_end */
    FAR__SERVED_RUNNING, /* it runs; the answer will go to this arrival's call id */
    FAR__SERVED_DONE,    /* answer with *result, borrowed until acknowledged */
    FAR__SERVED_REFUSED, /* finished and acknowledged: drop it */
} far__served_verdict;

typedef void (*far__served_drop_fn)(void *result, void *arg); /* frees a kept result */

typedef struct far__served {
    far__map entries; /* by sequence: running, or with a kept result */
    far__list all;    /* the same entries */
    far__ranges acknowledged;
    far__served_drop_fn drop;
    void *drop_arg;
} far__served;

void far__served_init(far__served *s, far__served_drop_fn drop, void *arg);
void far__served_fini(far__served *s); /* drops every kept result */
/* A call with `sequence` arrived under `call_id`. *result is NULL unless the verdict is DONE.
 * FAR_ENOMEM: not entered, do not run it. */
far_status far__served_begin(far__served *s, uint64_t sequence, uint64_t call_id,
                             far__served_verdict *verdict, void **result) FAR_MUST_USE;
/* The handler of a NEW one answered; `result` (may be NULL) is kept (taken) until acknowledged.
 * *call_id is the id of the latest arrival, to which the answer goes. False: acknowledged meanwhile,
 * `result` was dropped. */
bool far__served_end(far__served *s, uint64_t sequence, void *result, uint64_t *call_id);
/* The caller needs no result below `mark` or in the ranges any more: kept ones are dropped. Bytes of
 * a peer: any numbers do. FAR_ENOMEM: nothing changed. */
far_status far__served_ack(far__served *s, uint64_t mark, const far__wire_range *ranges,
                           size_t count) FAR_MUST_USE;

#endif
