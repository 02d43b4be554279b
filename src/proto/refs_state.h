/* SPDX-License-Identifier: BSD-3-Clause
 * proto/refs_state: what the files of proto/refs share, and nobody else sees.
 *   refs.c       the machine: peers, queues, losses, references' ends
 *   refs_calls.c its calls: built, answered, taken in
 *   refs_owner.c values owned here, live forks, and the requests about them
 *   refs_user.c  forks held here, and the messages that brought them
 *   refs_out.c   messages that take references along
 * Floor: proto. Thread: as refs.h. */
#ifndef FAR_PROTO_REFS_STATE_H
#define FAR_PROTO_REFS_STATE_H

#include "proto/refs.h"

/* In the order of how much a delay harms. */
enum {
    FAR__REFS_DO_REGISTER,
    FAR__REFS_DO_EXPIRED,
    FAR__REFS_DO_ACCEPT,
    FAR__REFS_DO_VOID,
    FAR__REFS_DO_RELEASE,
};

/* What each incarnation of each worker, this one too, is to us. */
struct far__refs_peer {
    far__wire_worker who;
    far__refs_peer *next; /* another incarnation of the same id */
    far__list all, busy;
    bool is_self;
    bool lost;                  /* nothing is sent to it, nothing taken from it */
    bool dropped;               /* the grace period is over too */
    int64_t drop_at;            /* FAR__NEVER: not lost, or dropped */
    uint64_t next_message;      /* to it: numbers of messages with references, from 1 */
    uint64_t next_registration; /* at it, from 1 */
    uint64_t next_void;         /* calls of this kind to it, from 1 */
    uint64_t last_void;         /* the latest that it made here ... */
    far__bytes last_void_answer;
    far__ranges seen;  /* its messages: arrived, or given up by it */
    far__ranges ended; /* its registrations here: released or refused; the tombstones */
    far__map made;     /* counter -> far__rref: entries here whose id it drew */
    far__map lives;    /* fork -> far__refs_live: forks whose number it drew */
    far__list held;    /* far__refs_live that it holds */
    far__list owned;   /* far__rref: our forks of its values */
    far__list outs;    /* messages to it */
    far__list queues[FAR__REFS_METHODS];
    size_t out_calls[FAR__REFS_METHODS];
    far__list again; /* calls that failed */
};

/* A fork that the owner knows of. */
typedef struct far__refs_live {
    far__rref *entry;
    far__refs_peer *holder, *giver; /* giver: who drew the number */
    uint64_t fork;
    far__list in_entry, in_holder;
} far__refs_live;

typedef enum far__refs_way {
    FAR__REFS_WAY_CREATE,     /* ours; the message brings the owner its entry */
    FAR__REFS_WAY_TO_OWNER,   /* nobody's; the message needs the value kept until it arrives */
    FAR__REFS_WAY_FROM_OWNER, /* the receiver's; live already */
    FAR__REFS_WAY_USERS,      /* the receiver's; it will register */
} far__refs_way;

/* A fork on its way. It keeps its parent. */
struct far__refs_child {
    far__refs_out *out;
    far__rref *parent; /* NULL: known to be there, or never to come */
    uint64_t fork;
    uint8_t way;
};

/* "accepted", to be told to who gave the fork. */
struct far__refs_notice {
    far__list queued;
    far__refs_peer *to;
    uint64_t fork;
};

/* refs.c */
far__refs_peer *far__refs_peer_of(far__refs *refs, far__wire_worker who); /* NULL: no memory */
far__refs_peer *far__refs_peer_known(const far__refs *refs, far__wire_worker who);
bool far__refs_same(far__wire_worker a, far__wire_worker b);
/* Puts a node into a queue of the peer. Not of a lost one. */
void far__refs_queue(far__refs *refs, far__refs_peer *p, int kind, far__list *node);
far__rref *far__refs_rref_new(far__refs *refs, bool is_owner); /* NULL: no memory */
/* Frees it, or hands its value to the agent first. In no table, no handle. */
void far__refs_rref_end(far__rref *r);
void far__refs_fault(far__rref *r, far__rref_fault fault, far_status status);
/* Its verdict is there. */
void far__refs_settle(far__rref *r);
/* Something of it has gone: ends it, or asks for its release, if that was the last. */
void far__refs_check(far__rref *r);

/* Something may be said to it. */
void far__refs_wake(far__refs *refs, far__refs_peer *p);

/* refs_calls.c */
/* FAR_EAGAIN: there is none. FAR_ENOMEM. */
far_status far__refs_next_call(far__refs *refs, far__refs_call **out) FAR_MUST_USE;

/* refs_owner.c */
/* The entry with this id: there, or made now as AWAITED; FAR_OK and NULL: it is gone, or never was.
 * FAR_ENOMEM. */
far_status far__refs_entry_find(far__refs *refs, far__wire_ref_id id, far__rref **out) FAR_MUST_USE;
far_status far__refs_entry_new(far__refs *refs, far__refs_peer *maker, uint64_t counter,
                               uint8_t state, far__rref **out) FAR_MUST_USE;
/* FAR_EPROTO: there is another fork of this name. */
far_status far__refs_live_add(far__rref *entry, far__refs_peer *giver, uint64_t fork,
                              far__refs_peer *holder) FAR_MUST_USE;
void far__refs_live_remove(far__refs_live *live); /* ends the entry if that was the last */
void far__refs_check_entry(far__rref *entry);
/* Entries that this peer should have created, and never will now. */
void far__refs_entries_lost(far__refs_peer *maker);
far_status far__refs_on_register(far__refs *refs, far__refs_peer *from, far__reader *r,
                                 far__bytes *answer) FAR_MUST_USE;
far_status far__refs_on_release(far__refs *refs, far__refs_peer *from, far__reader *r) FAR_MUST_USE;
far_status far__refs_on_void(far__refs *refs, far__refs_peer *from, far__reader *r,
                             far__bytes *answer) FAR_MUST_USE;
far_status far__refs_on_expired(far__refs *refs, far__refs_peer *from, far__reader *r,
                                far__bytes *answer) FAR_MUST_USE;

/* refs_user.c */
/* With one handle. FAR_ENOMEM. */
far_status far__refs_fork_new(far__refs *refs, far__refs_peer *owner, uint8_t state,
                              far__rref **out) FAR_MUST_USE;
void far__refs_check_fork(far__rref *fork);
/* The fork's owner has answered, or will not. */
void far__refs_fork_answered(far__rref *fork);

/* refs_out.c */
void far__refs_on_accept(far__refs *refs, far__refs_peer *from, uint64_t fork);
void far__refs_child_arrived(far__refs *refs, uint64_t fork); /* if it is still on its way */
typedef enum far__refs_fate {
    FAR__REFS_FATE_ARRIVED, /* those that are not accepted yet will be */
    FAR__REFS_FATE_NEVER,   /* it did not arrive, and will not */
} far__refs_fate;
void far__refs_out_settle(far__refs_out *out, far__refs_fate fate);
/* Frees it if the agent has given it up, nothing is on its way and nothing is asked about it. */
void far__refs_out_check(far__refs_out *out);
void far__refs_on_verdict(far__refs_out *out, bool known, far_status status);

#endif
