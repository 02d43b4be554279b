/* SPDX-License-Identifier: BSD-3-Clause
 * proto/refs: who holds references to whose values: distributed reference counting, one table a
 * worker. docs/references.md has the protocol and why it is right. Pure: messages, answers, losses and
 * the time go in; calls to be made and things to be told come out of far__refs_next.
 * Floor: proto. Thread: one lock of the agent's, held for each function here and released before what
 * far__refs_next gave is acted on.
 *
 * In the agent's words:
 *
 *  - A program holds a far__rref by a counted handle. It is either the owner's entry of a value, or at
 *    a user one *fork*: one copy of the reference. Several forks of one value at one worker are
 *    several far__rref; they are the same reference if owner and id are the same.
 *  - A message that carries references is a far__refs_out at its sender and a far__refs_in at its
 *    receiver. A message without references needs neither.
 *  - The machine's own calls are a far__refs_call each: to a reserved method, repeated by the agent
 *    until it is answered or the worker is lost. They may be repeated, doubled and reordered at will.
 *
 * Sending a request to `to`:
 *     far__refs_out_create(refs, &out);            with the first reference of a message
 *     far__refs_out_add(out, rref, &index);        once each; the body stores the index
 *     far__refs_create(refs, out, to, &rref);      a remote(): its result stays at `to`
 *     far__refs_out_seal(out, to, false);          now out->number, packed, count go into the header
 *     ...
 *     far__refs_created(rref, ...);                the answer of a remote() was read
 *     far__refs_out_answered(out);                 an answer of any kind was read, or else
 *     far__refs_out_lost(out);                     it ended without one (cancelled, broken, not sent)
 *     far__refs_out_expired(out);                  the limit of a remote() ran out
 * Sending a reply: add, seal(out, caller, true), then far__refs_out_replied(out, connection) when it
 * will not be written again, or far__refs_out_lost(out) if it surely was not written.
 * A message that is given up before it was sealed: far__refs_out_lost(out).
 *
 * Receiving, before anything else is done with the message, a refusal included:
 *     far__refs_arrive(refs, from, &header, &in);
 *       in == NULL: a repeat, or given up by its sender: drop it, answer nothing
 *       in->waiting == 0, or a reply: go on; else wait for FAR__REFS_READY before the handler starts
 *     far__refs_in_take(in, i)                     any number of times: a handle
 *     far__refs_in_end(in)                         the message is dropped: what was not taken is freed
 * The handler of a creation takes far__refs_in_created(in), and calls far__refs_made on it. */
#ifndef FAR_PROTO_REFS_H
#define FAR_PROTO_REFS_H

#include "base/clock.h"
#include "base/list.h"
#include "base/map.h"
#include "proto/ranges.h"
#include "proto/wire.h"

#define FAR__REFS_GRACE (15 * FAR_SECOND) /* unless another is given */
#define FAR__REFS_PAUSE FAR_SECOND        /* before a call that failed is given out again */

/* All of them calls with RETRY to reserved methods, without a limit of time; raw bodies. */
#define FAR__REFS_REGISTER "far.ref.register"
#define FAR__REFS_RELEASE "far.ref.release"
#define FAR__REFS_ACCEPT "far.ref.accept"
#define FAR__REFS_VOID "far.ref.void"
#define FAR__REFS_EXPIRED "far.ref.expired"

enum {
    FAR__REFS_METHODS = 5,
    FAR__REFS_BATCH = 1024, /* items of one call */
};

typedef struct far__refs far__refs;
typedef struct far__refs_peer far__refs_peer;     /* inside */
typedef struct far__refs_child far__refs_child;   /* inside */
typedef struct far__refs_notice far__refs_notice; /* inside */
typedef struct far__refs_in far__refs_in;
typedef struct far__refs_out far__refs_out;

/* ------------------------------------------------------------------------------ references */

typedef enum far__rref_state {
    /* an owner's entry */
    FAR__RREF_AWAITED, /* somebody named it before its creation arrived */
    FAR__RREF_MAKING,
    FAR__RREF_MADE, /* the value stands, or `fault` says why there is none */
    /* a user's fork */
    FAR__RREF_CREATING,    /* our creation, the owner's word is missing */
    FAR__RREF_NEW,         /* arrived; the owner is to be asked */
    FAR__RREF_REGISTERING, /* it is asked */
    FAR__RREF_CONFIRMED,   /* the owner knows it (there may be a fault all the same) */
    FAR__RREF_RELEASING,   /* the owner is to be told, or being told, that it is gone */
    FAR__RREF_UNKNOWN,     /* the owner does not know it and never will (again) */
} far__rref_state;

/* Why each use of a reference fails. */
typedef enum far__rref_fault {
    FAR__RREF_GOOD,
    FAR__RREF_FAILED,     /* its creation: `status`, and `error` if there is one */
    FAR__RREF_OWNER_LOST, /* FAR_EPEER */
    FAR__RREF_GONE,       /* came too late: the worker that passed it on was lost; FAR_EPEER */
    FAR__RREF_CLOSED,     /* FAR_ECLOSED: after far__refs_shutdown or _close */
} far__rref_fault;

typedef struct far__rref far__rref;
struct far__rref {
    /* The agent reads these ... */
    bool is_owner;
    uint8_t state, fault;
    far_status status; /* FAR_OK: no fault */
    far__wire_worker owner;
    far__wire_ref_id id;
    uint64_t fork;          /* user */
    far__wire_worker giver; /* user: who drew `fork`; with it, the fork's name */
    void *value;            /* owner, MADE and good: the agent's */
    void *error;            /* FAILED: the agent's, or NULL */
    /* ... and may use this. */
    void *user;

    /* inside */
    far__refs *refs;
    size_t handles, children; /* children: forks of it that travel, and are not known to be there */
    size_t lives;             /* owner: length of `forks` */
    far__list forks;          /* owner: live forks */
    far__list all, in_owner;  /* in refs.all; user: in the owner's peer.owned */
    far__list queued;         /* in a queue, a call, or refs.dead */
    far__list settled;        /* in refs.settled */
    far__refs_peer *peer;     /* user: the owner's; owner: the maker's; NULL: in no table */
    far__refs_in *in;         /* user: the message that waits for it */
    far__refs_notice *notice; /* user: for the giver, once registered */
    uint64_t registration;    /* user: at the owner, 0: none */
    bool watched, detached, in_call, dead;
};

/* A handle more. */
void far__rref_hold(far__rref *r);
/* A handle less. Sends nothing by itself: what follows is queued. */
void far__rref_drop(far__rref *r);
/* The owner's word is there: an owner's own reference always; a creation by its answer. */
bool far__rref_confirmed(const far__rref *r);
/* False: it is settled (an owner's entry MADE, a user's not CREATING). True: FAR__REFS_SETTLED will
 * tell, once, however often this was asked. */
bool far__rref_watch(far__rref *r);
/* "MADE", ...: for debug_info. */
const char *far__rref_state_name(uint8_t state);

/* ------------------------------------------------------------------------------- the machine */

typedef struct far__refs_counts {
    size_t held;    /* references with handles; of them: */
    size_t entries; /* ... values (or errors) owned here, held or not */
    size_t forks;   /* user forks that an owner knows, or may know, or is asked about */
    size_t lives;   /* live forks of values owned here */
    size_t outs;    /* messages with references that are not settled yet */
    size_t ins;     /* messages with references that have arrived and were not ended */
    size_t notices; /* "accepted" to be told, or being told */
    size_t calls;   /* calls given out or to be given out again */
} far__refs_counts;

struct far__refs {
    far__wire_worker self;
    int64_t grace;
    uint64_t next_fork, next_own; /* counters of ids */
    far__map peers;               /* worker id -> far__refs_peer, its incarnations chained */
    far__list all_peers, busy;    /* busy: peers with something queued */
    far__refs_peer *self_peer;
    far__map children;    /* fork -> far__refs_child: on their way */
    far__map connections; /* token -> list of replies written on it */
    far__list all;        /* every far__rref */
    far__list ready, settled, dead;
    far__refs_counts counts;
    size_t timed; /* peers that wait for a time */
    bool closing, closed;
};

/* `grace`: how long a lost worker's forks are kept, ns, not negative. FAR_ENOMEM. */
far_status far__refs_init(far__refs *refs, far__wire_worker self, int64_t grace) FAR_MUST_USE;
/* After far__refs_close, when every call was answered, every message ended, every handle dropped and
 * far__refs_next has nothing left. */
void far__refs_fini(far__refs *refs);
/* Rule 6, before the worker leaves: every fork here is released, the program's handles
 * notwithstanding; each use of them fails from now on (FAR_ECLOSED). Shall be called when no handler
 * runs and no call is open. What the program still holds: far__refs_each. */
void far__refs_shutdown(far__refs *refs);
/* Nothing is left to be told to anybody, and nobody elsewhere holds a value of ours. */
bool far__refs_idle(const far__refs *refs);
/* The worker goes at once: no more calls are given out, and everybody else is as lost. Calls that are
 * out must still be answered (with anything), messages be ended, handles be dropped. */
void far__refs_close(far__refs *refs);
/* Calls fn for every reference here. It must not change anything. */
void far__refs_each(const far__refs *refs, void (*fn)(const far__rref *r, void *arg), void *arg);
/* Calls fn for every holder of a live fork of an owner's entry (a worker with several: several times). */
void far__rref_holders(const far__rref *entry, void (*fn)(far__wire_worker holder, void *arg),
                       void *arg);

/* ------------------------------------------------------------------------------------- owner */

/* RRef(value): takes `value`; one handle. NULL: of a remote() to oneself, still to be made
 * (far__refs_made). FAR_ENOMEM, FAR_ECLOSED: `value` stays the caller's. */
far_status far__refs_own(far__refs *refs, void *value, far__rref **out) FAR_MUST_USE;
/* The creating function has returned: `value` if `status` is FAR_OK, else `error` (may be NULL). True:
 * taken. False: the entry has its verdict already (it expired): both stay the caller's, to be freed. */
bool far__refs_made(far__rref *entry, void *value, far_status status, void *error) FAR_MUST_USE;

/* ------------------------------------------------------------------------- messages going out */

struct far__refs_out {
    /* for the header, once sealed; valid until the agent gives the message up */
    uint64_t number;
    uint16_t count;
    const uint8_t *packed;

    /* inside */
    far__refs *refs;
    far__refs_peer *to;
    far__rref **rrefs; /* added; with a handle each until sealed */
    size_t room;
    far__refs_child *children; /* once sealed */
    size_t open;               /* children on their way */
    far__list in_peer, queued, in_connection;
    uint64_t creates; /* the fork of the creation; 0: none */
    uint8_t asking;   /* 0; else the method that asks what became of it, plus one */
    bool is_reply, sealed, over, in_call;
};

far_status far__refs_out_create(far__refs *refs, far__refs_out **out) FAR_MUST_USE; /* FAR_ENOMEM */
/* The message holds `r` too. The same reference again gives the same index. r->status if that is not
 * FAR_OK: it cannot be passed on. FAR_ETOOBIG: FAR__WIRE_REFS_MAX are in it. FAR_ENOMEM. */
far_status far__refs_out_add(far__refs_out *out, far__rref *r, size_t *index) FAR_MUST_USE;
/* A remote(): adds the creation of a reference owned by `to`, another worker; one handle is returned.
 * Once a message, which must be a request to `to`. Its id is there when the message is sealed.
 * FAR_ECLOSED, FAR_ETOOBIG, FAR_ENOMEM. */
far_status far__refs_create(far__refs *refs, far__refs_out *o, far__wire_worker to,
                            far__rref **out) FAR_MUST_USE;
/* The message will go to `to`, which may be this worker itself. Makes the forks. FAR_EPEER: that
 * worker was lost. FAR_ENOMEM. After either it is as before: give it up by far__refs_out_lost. */
far_status far__refs_out_seal(far__refs_out *out, far__wire_worker to, bool is_reply) FAR_MUST_USE;

/* The answer of a creation was read: FAR_OK, or the creating function's error (`error` is taken, may
 * be NULL). Before far__refs_out_answered; later ones are ignored: false, `error` stays the caller's. */
bool far__refs_created(far__rref *r, far_status status, void *error) FAR_MUST_USE;
/* The end of `out` at the agent, one of four: it may not be used after it. */
void far__refs_out_answered(far__refs_out *out);
void far__refs_out_lost(far__refs_out *out);
void far__refs_out_expired(far__refs_out *out); /* of a message without a creation: as lost */
void far__refs_out_replied(far__refs_out *o, uint64_t token);
/* Connections on which this worker replies, by a number never used again, not 0. A reply that was
 * given up on an unknown or broken one may have been lost, and the receiver is asked. So a connection
 * that could not be noted (FAR_ENOMEM) costs only that question. */
far_status far__refs_connected(far__refs *refs, uint64_t token) FAR_MUST_USE;
void far__refs_broke(far__refs *refs, uint64_t token);

/* --------------------------------------------------------------------------- messages coming in */

struct far__refs_in {
    size_t count;
    size_t waiting; /* a request: references whose owner has not answered yet */
    void *user;     /* the agent's; NULL at first */

    /* inside */
    far__refs *refs;
    far__list ready; /* in refs.ready */
    size_t created;  /* index of the creation; count: none */
    bool is_reply;
    struct {
        far__rref *rref; /* with a handle */
        far__refs_notice *notice;
    } items[];
};

/* A REQUEST or REPLY with references came from the worker `who`. FAR_EPROTO: nonsense. FAR_EPEER: of
 * a lost worker. FAR_ENOMEM. After these nothing has been taken, and the message must count as not
 * arrived: its connection is to be closed (FAR_EPEER: it may be dropped). */
far_status far__refs_arrive(far__refs *refs, far__wire_worker who, const far__wire_header *header,
                            far__refs_in **out) FAR_MUST_USE;
far__rref *far__refs_in_take(far__refs_in *in,
                             size_t i); /* a handle; NULL: there is no such index */
/* The entry that is to be made by this request, borrowed; NULL: it is no creation. */
far__rref *far__refs_in_created(const far__refs_in *in);
void far__refs_in_end(far__refs_in *in);

/* ------------------------------------------------------------------------------ calls and losses */

typedef struct far__refs_call {
    const char *method; /* FAR__REFS_... */
    far__wire_worker to;
    const uint8_t *body; /* raw, at most FAR__WIRE_RESERVED_MAX; there until it is answered */
    size_t body_size;
    void *user; /* the agent's */

    /* inside */
    far__refs_peer *peer;
    uint8_t kind;
    size_t count;
    far__list items, link;
    int64_t again_at;
    uint8_t *bytes;
} far__refs_call;

/* A call of another worker's machine: any of the five methods. `answer` gets the raw body of the reply
 * (appended). FAR_EPROTO: nonsense; FAR_EPEER: of a lost worker; FAR_ENOMEM: nothing or only a part
 * was done, the repeat does the rest. Answer these with an error. */
far_status far__refs_request(far__refs *refs, far__wire_worker who, const char *method,
                             const void *body, size_t size, int64_t now,
                             far__bytes *answer) FAR_MUST_USE;
/* The end of each call that was given out. FAR_OK: `answer` is the reply's body. FAR_EPEER: its worker
 * is lost (as by far__refs_lost). Any other: it is given out again after a pause. */
void far__refs_answered(far__refs *refs, far__refs_call *call, far_status status,
                        const void *answer, size_t size, int64_t now);

/* This incarnation was declared lost: its forks are kept for the grace period, in which forks that it
 * handed out can still register. Once more does no harm. Of every worker that the roster calls lost,
 * those from before our time included. FAR_ENOMEM: say it again. */
far_status far__refs_lost(far__refs *refs, far__wire_worker worker, int64_t now) FAR_MUST_USE;
/* It has left, in agreement with all: nothing is kept. */
far_status far__refs_left(far__refs *refs, far__wire_worker worker, int64_t now) FAR_MUST_USE;

typedef enum far__refs_action_kind {
    FAR__REFS_CALL,    /* make `call` */
    FAR__REFS_READY,   /* `in`: the owners of all its references have answered */
    FAR__REFS_SETTLED, /* `rref`, which was watched; with a handle, to be dropped */
    FAR__REFS_FREE,    /* `value` or `error` (the other is NULL): free it */
} far__refs_action_kind;

typedef struct far__refs_action {
    far__refs_action_kind kind;
    far__refs_call *call;
    far__refs_in *in;
    far__rref *rref;
    void *value, *error;
} far__refs_action;

/* The next thing to do, after any event. FAR_EAGAIN: nothing, until the next event or
 * far__refs_next_time. FAR_ENOMEM: a call could not be built; ask again later. Releases gather while a
 * call of the same kind is out, so the agent may ask at its leisure (a tick), but for
 * far__refs_urgent. */
far_status far__refs_next(far__refs *refs, int64_t now, far__refs_action *action) FAR_MUST_USE;
/* Something waits that holds somebody up: a registration, a READY or a SETTLED. */
bool far__refs_urgent(const far__refs *refs);
int64_t far__refs_next_time(const far__refs *refs); /* FAR__NEVER: none */

#endif
