/* SPDX-License-Identifier: BSD-3-Clause
 * proto/calls: one peer's calls in flight, at the caller: ids, deadlines, cancel, late replies,
 * repeat of calls that may be repeated. Invariant: every call added comes out exactly once, by one
 * of far__calls_finish, _remove, _expired, _broken, _lose_all. Pure: the time is an argument. Calls
 * are embedded in the owner's struct, so nothing is allocated a call in the steady state. Floor:
 * proto. Thread: the peer's lock. */
#ifndef FAR_PROTO_CALLS_H
#define FAR_PROTO_CALLS_H

#include "base/clock.h"
#include "base/heap.h"
#include "base/list.h"
#include "proto/ranges.h"
#include "proto/wire.h"

enum {
    FAR__CALL_RETRY = 1,    /* repeated until answered; carries a sequence */
    FAR__CALL_RESERVED = 2, /* to a "far." method */
};

typedef enum far__call_state {
    FAR__CALL_OUT,     /* in no table */
    FAR__CALL_WAITING, /* added, not one byte written on the present connection */
    FAR__CALL_SENT,    /* the first byte was written */
} far__call_state;

typedef struct far__call {
    uint64_t id;                  /* slot in the low 32 bits, generation above; never 0 */
    uint64_t sequence;            /* RETRY only: dense per pair of incarnations, from 1 */
    int64_t deadline;             /* FAR__NEVER: none */
    far__heap_node timer, repeat; /* repeat: RETRY only; key FAR__NEVER while not SENT */
    far__list link;               /* in order of adding */
    uint8_t flags, state;
    bool was_sent;     /* a byte was written on some connection: it may have run */
    unsigned attempts; /* times that its first byte was written */
} far__call;

typedef struct far__calls_slot {
    far__call *call; /* NULL: free */
    uint32_t generation, next_free;
} far__calls_slot;

typedef struct far__calls {
    far__calls_slot *slots;
    uint32_t slot_count, first_free; /* slot 0 is never used */
    far__heap deadlines, repeats;
    far__list all;
    size_t count, retry_count; /* all calls; those of them with RETRY */
    uint64_t next_sequence;
    far__ranges finished; /* sequences that need no result any more */
    uint64_t late;        /* replies that found no call */
} far__calls;

void far__calls_init(far__calls *c);
void far__calls_fini(far__calls *c); /* must be empty of calls */

/* Adds a call (zero-initialised by the owner) and gives it its id. FAR_ENOMEM: not added. All room
 * that the call will ever need is taken here: the other functions cannot fail. */
far_status far__calls_add(far__calls *c, far__call *call, int64_t deadline,
                          unsigned flags) FAR_MUST_USE;
/* Its first byte was written at `now`; a RETRY call is due again after a growing pause (1 s, 2, 4,
 * 8, then 10). The call must be in the table. */
void far__calls_sent(far__calls *c, far__call *call, int64_t now);
/* A reply (or RESEND) for `id`: the call, still in the table; NULL: none such (not counted). */
far__call *far__calls_find(const far__calls *c, uint64_t id);
/* A reply or error for `id` ends its call: taken out and returned; NULL: late, counted. */
far__call *far__calls_finish(far__calls *c, uint64_t id);
/* Cancelled (or failed to be sent): taken out. */
void far__calls_remove(far__calls *c, far__call *call);
/* The next call whose deadline is <= now, taken out; NULL: none. Never early. */
far__call *far__calls_expired(far__calls *c, int64_t now);
int64_t far__calls_next_deadline(const far__calls *c); /* FAR__NEVER: none */
/* The next RETRY call to be sent again at `now`, still in the table; NULL: none. Its next pause has
 * begun, so it comes again later even if it could not be sent (far__calls_sent begins it anew). */
far__call *far__calls_repeat_due(far__calls *c, int64_t now);
int64_t far__calls_next_repeat(const far__calls *c);
/* The connection broke and the peer may live: WAITING and RETRY calls stay (WAITING, to be sent on
 * the next connection, in order of `all`); the others are taken out to the tail of the list `lost`
 * (by .link). */
void far__calls_broken(far__calls *c, far__list *lost);
/* The peer is lost or the agent closes: every call is taken out to the tail of `lost`. */
void far__calls_lose_all(far__calls *c, far__list *lost);
/* What to acknowledge: mark and ranges (at most `room`, the lowest) of finished RETRY calls. Returns
 * the number of ranges. */
size_t far__calls_ack(const far__calls *c, uint64_t *mark, far__wire_range *ranges, size_t room);

#endif
