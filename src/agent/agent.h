/* SPDX-License-Identifier: BSD-3-Clause
 * agent/agent: the structs of a worker and what the files of this floor offer each other.
 *   agent.c    options, life, counters        call.c      calls made: start, end, wait
 *   peer.c     one connection for calls out   peer_send.c giving calls to it, its timers
 *   dial.c     getting that connection        link.c      one connection for calls in
 *   incoming.c a call being served            methods.c   name -> handler
 *   directory.c who is in the job             join.c      coming in
 *   admit.c    rank 0 lets workers in
 *   meet.c     where rank 0 is                leave.c     the agreement to go
 *   secret.c   the job's secret               pool.c      memory for received tensors
 *   rref.c     remote references               refs.c      drives proto/refs for them
 * Floor: agent. Thread: said at each function.
 *
 * Locks, none of them held while another of this list is taken: peer.lock, link.lock, agent.lock,
 * methods.lock, pool.lock. The small locks of the loop, the service, the executor and a transport are
 * leaves: they may be taken under these. */
#ifndef FAR_AGENT_AGENT_H
#define FAR_AGENT_AGENT_H

#include "async/future.h"
#include "base/log.h"
#include "base/map.h"
#include "proto/agreement.h"
#include "proto/calls.h"
#include "proto/handshake.h"
#include "proto/message.h"
#include "proto/refs.h"
#include "proto/roster.h"
#include "proto/served.h"
#include "proto/values.h"
#include "transport/transport.h"

#define FAR__JOIN_METHOD "far.join"
#define FAR__ROSTER_METHOD "far.roster"
#define FAR__SHUTDOWN_METHOD "far.shutdown"
#define FAR__QUIET_METHOD "far.quiet"
#define FAR__STAY_METHOD "far.stay"
#define FAR__MISSING_METHOD "far.missing"
#define FAR__HELLO_METHOD "far.hello"

enum {
    FAR__TRANSPORTS_MAX = 4,
    FAR__ID_NONE = UINT32_MAX,
};

typedef struct far__peer far__peer;
typedef struct far__link far__link;

/* -------------------------------------------------------------------------------- methods.c */

typedef struct far__method far__method;
struct far__method {
    far__method *next; /* of the same hash */
    far_handler handler;
    void *arg;
    unsigned flags;
    bool reserved;         /* "far.": runs where it was read */
    _Atomic uint32_t cost; /* moving average, ns */
    char name[];
};

typedef struct far__methods {
    far__mutex lock;
    far__map by_hash;
    size_t learned; /* entries made for the fallback */
    far_handler fallback;
    void *fallback_arg;
    far__method *overflow; /* for names that come when the table of learned ones is full */
} far__methods;

far_status far__methods_init(far__methods *m, far_handler fallback, void *arg) FAR_MUST_USE;
void far__methods_fini(far__methods *m);
far_status far__methods_add(far__methods *m, const far_method *method, bool reserved) FAR_MUST_USE;
/* NULL: neither registered nor is there a fallback. Lives as long as the table. */
far__method *far__methods_find(far__methods *m, const char *name, size_t size);

/* ----------------------------------------------------------------------------------- pool.c */

typedef struct far__pool far__pool;

far_status far__pool_create(far_alloc_fn alloc, void *alloc_arg, far__pool **out) FAR_MUST_USE;
/* Buffers that are still out keep it alive. */
void far__pool_release(far__pool *p);
far_status far__pool_take(far__pool *p, size_t size, far_buffer **out) FAR_MUST_USE;

/* ----------------------------------------------------------------------------------- agent.c */

typedef enum far__agent_state {
    FAR__AGENT_NEW,
    FAR__AGENT_JOINING,
    FAR__AGENT_OPEN,
    FAR__AGENT_ABORTING, /* closed while joining: the joining thread takes it down */
    FAR__AGENT_CLOSING,
    FAR__AGENT_CLOSED,
} far__agent_state;

typedef struct far__counters {
#define FAR__COUNTER_FIELD(name, text) _Atomic uint64_t name;
    FAR_COUNTER_MAP(FAR__COUNTER_FIELD)
#undef FAR__COUNTER_FIELD
} far__counters;

#define far__count(agent, name, n)                                                                 \
    atomic_fetch_add_explicit(&(agent)->counters.name, (uint64_t)(n), memory_order_relaxed)

typedef struct far__transport_slot {
    const far__transport_ops *ops;
    far__transport *transport;
} far__transport_slot;

struct far_agent {
    far__ref users; /* handles of the program: the last one closes */
    far__ref refs;  /* users as one, threads, peers, links, futures */
    _Atomic int state;
    _Atomic uint32_t closed_word; /* 1 when far_agent_close is through */

    /* Set at creation. */
    char name[FAR_NAME_MAX + 1];
    int64_t rank, world_size;
    char *init_method, *bind_address;
    unsigned transports_wanted;
    far_duration init_timeout, lost_grace;
    far_handler fetch;
    void *fetch_arg;
    uint64_t message_size_max;
    bool foreign;
    uint8_t secret[FAR__SECRET_MAX];
    size_t secret_size;
    far__log log;
    far__transport_slot slots[FAR__TRANSPORTS_MAX];
    int slot_count;
    far__methods methods;
    far__pool *pool;

    far__loop *loop;
    atomic_bool looping; /* its thread was started */
    far__service service;
    far__executor *executor;
    _Atomic int64_t default_timeout;
    far__counters counters;
    _Atomic bool closing; /* all have asked for shutdown */
    bool forked;      /* this is a child of the process that opened it: nothing works any more */
    bool loop_serves; /* loop thread only: it is inside serve */

    /* Written while joining, before calls flow; read freely afterwards. */
    far__identity self;
    far__bytes addresses;
    far__peer *self_peer;
    far__link *self_link;

    far__mutex lock; /* all below */
    far__map peers;  /* id -> far__peer, counted */
    far__list links; /* far__link.in_agent, counted */
    far__list dirty; /* links with appended replies, counted */
    far__roster roster;
    far__list joiners; /* rank 0: far_incoming waiting for the world */
    bool failure_told; /* rank 0: to them, so that it may leave */
    far__agreement agreement;
    far__list leavers; /* rank 0: far_incoming of far.shutdown */
    bool leading;      /* rank 0: the agreement machine runs */
    bool second_phase; /* rank 0: all calls have ended, references are given back */
    bool left;         /* the agreement is reached: nothing is lost any more */
    bool lost_someone;
    char lost_name[FAR_NAME_MAX + 1];
    far__timer agreement_timer;
    far__peer *root;               /* while joining: the connection to rank 0 */
    far__task interrupt;           /* of joining */
    _Atomic uint32_t joined_word;  /* changes when rank 0 should look at roster or links */
    _Atomic uint32_t agreed_word;  /* rank 0: 1 when agreed, 2 when closed before */
    _Atomic uint32_t flush_needed; /* peers with appended calls */
    _Atomic uint64_t activity;     /* calls begun, ever: made and served */
    _Atomic uint32_t open_calls;   /* users' calls whose end is not through yet, callbacks queued */
    _Atomic uint32_t quick_jobs;   /* users' callbacks on their way to the loop thread */

    far__mutex refs_lock; /* a leaf; the seven below */
    far__refs rrefs;
    far__list settle_waits; /* for values that are being made; see rref.c */
    far__task refs_task;
    far__timer refs_timer;
    bool refs_posted;           /* refs_task is on its way */
    bool refs_ticking;          /* refs_timer is, within a tick */
    bool refs_shut;             /* far__refs_shutdown was called */
    bool refs_there;            /* refs is initialised: from becoming a member on */
    _Atomic uint64_t next_link; /* numbers of connections, for refs */

    far__list in_open; /* of the process-wide list */
};

bool far__agent_is_open(const far_agent *a);
void far__agent_ref(far_agent *a);
void far__agent_unref(far_agent *a);
/* Frees a message on any thread: what must be freed elsewhere goes to the service. */
void far__agent_drop(far_agent *a, far_message *message);
/* Buffers that must not be freed here (they may be on the loop thread, or under a lock). On a handler
 * thread they are kept for it until far__agent_free_kept, else the service gets them. */
void far__agent_orphans(far_agent *a, far_buffer *list);
/* No lock held: frees what far__agent_orphans kept for this thread. */
void far__agent_free_kept(void);
/* The transport that handles `address`; NULL: none. */
far__transport_slot *far__agent_slot(far_agent *a, const char *address);
/* For tests: another transport, before join. */
far_status far__agent_add_transport(far_agent *a, const far__transport_ops *ops) FAR_MUST_USE;
/* Any thread, while joining: calls may be made from now on. False: the agent was closed meanwhile. */
bool far__agent_becomes_open(far_agent *a) FAR_MUST_USE;
/* The joining thread has failed: closes, also for those who asked for it meanwhile. */
void far__agent_gives_up(far_agent *a);
/* Starts loop and executor, once; the transports must be there. */
far_status far__agent_start(far_agent *a) FAR_MUST_USE;

/* ------------------------------------------------------------------------------------ call.c */

/* What is kept for a reference: a message, or an object of a language. */
typedef struct far__kept {
    far_buffer *object; /* wraps it; its free_fn runs where that of a buffer may */
    far_message *message;
} far__kept;

/* The references of a message: far_message.refs. */
typedef struct far__carried {
    far_agent *agent;   /* counted */
    far__refs_out *out; /* being written; taken out when the message is sent */
    far__refs_in *in;   /* received */
} far__carried;

/* One call made: the far_future that the user holds, and its place in the peer's table. */
typedef struct far__outcall {
    far_future future; /* first: the user's pointer is this */
    far__call call;
    far__peer *peer;         /* counted */
    far_message *message;    /* kept until the call has ended, so that it can be sent anew */
    far__refs_out *refs_out; /* its references, or NULL */
    far__rref *created;      /* of far_remote, with a handle */
    bool answered;           /* an answer of any kind was read */
    uint64_t token;          /* of the transport */
    int64_t started;
    far_duration timeout;
    bool internal;                 /* made by the library: not counted as a user's */
    bool queued;                   /* given to the present connection */
    bool watched;                  /* has callbacks */
    bool waited;                   /* FAR_CALL_NOW: somebody waits for it */
    _Atomic(far_buffer *) orphans; /* of the message, for whoever waits */
    size_t method_size;
    char method[];
} far__outcall;

enum {
    FAR__CALL_ONCE = 0x100
}; /* internal, but not repeated: fails when the worker is not reached */

/* far_call without its checks of the agent's state; `peer` borrowed; takes `message`. */
far_status far__call_peer(far__peer *peer, const char *method, far_message *message,
                          far_duration timeout, unsigned flags, bool internal,
                          far_future **out) FAR_MUST_USE;
/* far_call's checks: fills in the default timeout. */
far_status far__call_check(far_agent *a, const char *method, const far_message *message,
                           far_duration *timeout) FAR_MUST_USE;
/* A user's call whose result stays at the callee as `created`; holds that. Takes `message`. */
far_status far__call_create(far__peer *peer, const char *method, far_message *message,
                            far_duration timeout, far__rref *created,
                            far_future **out) FAR_MUST_USE;
/* A call of the library's own to a reserved method, repeated until answered or the worker is lost. */
far_status far__call_internal(far__peer *peer, const char *method, far_message *message,
                              far_future **out) FAR_MUST_USE;
/* Ends a call that was taken out of its peer's table; no lock held. Takes message, reason. */
void far__outcall_end(far__outcall *oc, far_status status, far_message *message,
                      far__reason *reason);
/* Ends with a text "method "m" of worker "w": why". */
void far__outcall_fail(far__outcall *oc, far_status status, bool may_have_run, const char *why);
/* Writes what has been appended for any peer. */
void far__agent_flush_calls(far_agent *a);

/* What hangs at far__conn.owner: both kinds of connection begin with it. */
typedef struct far__owner {
    enum { FAR__OWNER_PEER, FAR__OWNER_LINK } kind;
    void *object; /* far__peer or far__link, counted */
    bool shaken;  /* the handshake is over; the reader's */
} far__owner;

/* ------------------------------------------------------------------------------------ peer.c */

typedef enum far__peer_state {
    FAR__PEER_IDLE,     /* no connection */
    FAR__PEER_DIALLING, /* connecting or shaking hands */
    FAR__PEER_UP,
    FAR__PEER_CLOSED, /* no calls any more */
} far__peer_state;

struct far__peer {
    far__ref refs;
    far_agent *agent; /* counted */
    far__member info; /* set at creation; of a join: rank 0, whoever that is */
    bool is_self, is_join;

    far__mutex lock; /* all below; the connection's lock */
    far__peer_state state;
    far__conn *conn;
    far__handshake *handshake; /* while DIALLING */
    const char *next_address;  /* in info.addresses: to be tried next */
    char why[256];             /* the last failure to connect */
    far_status why_status;
    unsigned failures; /* in a row */
    far__calls calls;
    far__waiter *reader; /* who reads; &far__peer_loop_reader: the loop */
    far__list sleepers;  /* far__waiter.sleeper */
    far__list cancelled; /* by far__outcall.call.link, counted: the loop shall tell the callee */
    size_t watched;      /* pending calls with callbacks */
    bool late;           /* the answer of a call that was given up may be on its way */
    int64_t last_call;
    bool appended; /* counted in agent.flush_needed */
    bool dial_posted, tick_armed;
    int64_t timer_at;
    far__timer timer; /* deadlines, repeats, dialling again */
    far__timer tick;  /* flush, and see that somebody reads */
    far__task dial_task;
};

extern far__waiter far__peer_loop_reader;

far_status far__peer_create(far_agent *a, const far__member *info, far__peer **out) FAR_MUST_USE;
void far__peer_ref(far__peer *p);
void far__peer_unref(far__peer *p);
/* The peer with this id, made on first use; counted. FAR_ENOWORKER. */
far_status far__peer_get(far_agent *a, far_worker_id id, far__peer **out) FAR_MUST_USE;
/* Within the limits of size and number of segments. */
bool far__message_fits(const far_agent *a, const far_message *message);
/* conn->lock held: queues a header and a message (NULL: none), which stays the caller's. */
far_status far__message_send(far__conn *c, const far__wire_header *header, far_message *m,
                             int64_t deadline, uint64_t *token) FAR_MUST_USE;
/* peer.lock held: gives the call to the connection if it is up, else sees that one is dialled. */
far_status far__peer_submit(far__peer *p, far__outcall *oc, bool now) FAR_MUST_USE;
/* peer.lock held: tells the callee that the call is given up. */
void far__peer_cancel(far__peer *p, far__outcall *oc);
/* peer.lock held: writes what was appended. */
void far__peer_flush(far__peer *p);
/* peer.lock held: sees that the loop is awake at the next deadline. */
void far__peer_arm(far__peer *p);
void far__peer_arm_tick(far__peer *p);
/* peer.lock held: the reader has left. The word to be woken after the unlock, or NULL. */
_Atomic uint32_t *far__peer_pass_role(far__peer *p);
/* Loop thread: ends all calls with `status` and closes the connection; nothing is accepted any more. */
void far__peer_shut(far__peer *p, far_status status, const char *why);

/* peer.lock held: gives one call to the connection, which is up. */
far_status far__peer_send(far__peer *p, far__outcall *oc) FAR_MUST_USE;
/* peer.lock held, with a connection: may this thread send on it? */
bool far__peer_may_touch(const far__peer *p);
/* peer.lock held, UP, loop thread: tells the callee of calls cancelled elsewhere; moves them to `sent`. */
void far__peer_send_cancels(far__peer *p, far__list *sent);
/* No lock held: gives up such a list. */
void far__peer_forget_cancels(far__list *sent);
/* peer.lock held: the loop shall dial, or send what only it may send. */
void far__peer_post(far__peer *p);
void far__peer_work(far__task *t); /* the loop's part of it */
void far__peer_on_timer(far__timer *t);
void far__peer_on_tick(far__timer *t);
/* Loop thread: tries the next addresses until one is on its way; none: calls fail. */
void far__peer_dial_next(far__peer *p);
void far__peer_note_failure(far__peer *p, far_status status, const char *text);
/* peer.lock held: these calls have ended. */
void far__peer_unwatch(far__peer *p, far__outcall *oc);
void far__peer_unwatch_all(far__peer *p, const far__list *calls);
/* No lock held: ends a list of calls (by call.link) that were taken out of the table. */
void far__peer_fail(far__list *lost, far_status status, const char *why, bool may_have_run);

/* upcalls of its connection, loop thread or reader */
far_status far__peer_shake(far__owner *owner, far__inbound *message);
void far__peer_opened(far__peer *p);
void far__peer_readable(far__peer *p);
far_status far__peer_received(far__owner *owner, far__inbound *message);
void far__peer_broken(far__peer *p, far_status status, const char *text);

/* ------------------------------------------------------------------------------------ link.c */

struct far__link {
    far__ref refs;
    far_agent *agent; /* counted */
    far__list in_agent, in_dirty;
    uint64_t number; /* for refs: of this connection, never used again */
    far_worker caller;
    far__role role;
    bool is_self;
    bool ready;       /* the handshake is over; loop thread */
    bool serving;     /* in the serving set; loop thread */
    far__timer timer; /* of the handshake */

    far__mutex lock; /* all below; the connection's lock */
    far__conn *conn; /* NULL: self, or broken */
    far__handshake *handshake;
    far__map running; /* call id -> far_incoming, borrowed */
    bool admitted;    /* a join that became a member */
    bool given_up;    /* give_up was posted */
    far__task give_up;
    bool dirty; /* in agent.dirty */
    bool closed;
};

far_status far__link_create_self(far_agent *a, far__link **out) FAR_MUST_USE;
void far__link_number(far__link *l); /* the connection is up: it gets its number */
void far__link_ref(far__link *l);
void far__link_unref(far__link *l);
bool far__link_accepted(far_agent *a, far__conn *conn);
void far__link_readable(far__link *l);
far_status far__link_received(far__owner *owner, far__inbound *message);
void far__link_broken(far__link *l, far_status status, const char *text);
/* The caller of this call has given it up. */
void far__link_cancel(far__link *l, uint64_t call_id);
/* Loop thread: closes it; running calls see that they are cancelled. */
void far__link_shut(far__link *l);
/* No lock held: there is no memory to answer a call of it; the end of the connection tells its caller. */
void far__link_give_up(far__link *l);
/* link.lock held: sends a frame with a message and its references (NULL: none; both taken), now or
 * appended. */
far_status far__link_send(far__link *l, const far__wire_header *header, far_message *m,
                          far__refs_out *refs_out, bool now) FAR_MUST_USE;
/* Something was appended: far__agent_flush_links writes it. */
void far__link_mark_dirty(far__link *l);
/* Writes appended replies of all links. */
void far__agent_flush_links(far_agent *a);

/* -------------------------------------------------------------------------------- incoming.c */

struct far_incoming {
    far__job job;
    far__link *link;      /* counted */
    far__peer *self_peer; /* of a call to oneself, counted: where the answer goes */
    far__method *method;
    far_message *message;
    uint64_t call_id;
    int64_t deadline;
    _Atomic bool cancelled;
    bool internal;      /* to a reserved method */
    far__list waiting;  /* in agent.joiners or leavers */
    far__rref *entry;   /* of far_remote: where the result is kept; with a handle */
    far__rref *fetched; /* of a fetch: what is asked for; with a handle */
    char name[];
};

/* Builds a message of what arrived: takes the segments' buffers. */
far_status far__message_from(far_agent *a, far_encoding encoding, far__inbound *in,
                             far_message **out) FAR_MUST_USE;
/* Enters a call of this link and runs it or queues it. `flags` are FAR__WIRE_... Takes `message`.
 * `entry`: of a far_remote to oneself, or NULL; borrowed. */
far_status far__incoming_begin(far__link *l, uint64_t call_id, const char *name, size_t name_size,
                               unsigned flags, int64_t deadline, far_message *message,
                               far__rref *entry) FAR_MUST_USE;
/* Its references are confirmed: runs it or queues it. */
void far__incoming_start(far_incoming *in);
/* A fetch of an object: the language's fetch handler runs next, on a handler thread. */
void far__incoming_fetch(far_incoming *in);
/* Forgets a call that was not run. */
void far__incoming_forget(far_incoming *in);

/* ------------------------------------------------------------------------------------ refs.c */

/* The machine's lock; unlock sees that what follows is done. */
void far__refs_lock(far_agent *a);
void far__refs_unlock(far_agent *a);
far_status far__refs_methods(far_agent *a) FAR_MUST_USE; /* at creation */
far_status far__refs_start(far_agent *a) FAR_MUST_USE;   /* on becoming a member */
void far__refs_work(far_agent *a);                       /* loop thread: does what is to be done */
void far__refs_worker_lost(far_agent *a);                /* the roster has new losses */
void far__refs_stop(far_agent *a);                       /* loop thread, closing */
void far__refs_end(far_agent *a);                        /* the last use of the agent */
/* After a handle was given up: a closed agent has no loop that frees what it held. */
void far__refs_drained(far_agent *a);

far_status far__carried_make(far_agent *a, far_message *m) FAR_MUST_USE;
/* The list to which references of a message being written are added. */
far_status far__carried_out(far_agent *a, far_message *m, far__refs_out **out) FAR_MUST_USE;
/* The message goes to `to`: takes its references out, sealed; *out NULL: it has none. */
far_status far__carried_seal(far_message *m, far__wire_worker to, bool is_reply,
                             far__refs_out **out) FAR_MUST_USE;
void far__carried_header(const far__refs_out *out, far__wire_header *h);
/* Before anything else is done with a received message; *dropped: it must not be used. */
far_status far__carried_arrive(far_agent *a, far__wire_worker from, const far__wire_header *h,
                               far_message *m, bool *dropped) FAR_MUST_USE;
/* How many references a received message brings; the one that it creates is not among them. */
size_t far__carried_count(const far_message *m);
/* Makes a message one without references; false: it has some that its body can name. */
bool far__carried_strip(far_message *m);
/* True: far__incoming_start follows when the references of this call are confirmed. */
bool far__carried_wait(far_incoming *in);

far__kept *far__kept_object(void *value, far_free_fn free_fn); /* NULL: no memory, not taken */
far__kept *far__kept_message(far_message *message);
void far__kept_free(far_agent *a, far__kept *k);
far__reason *far__reason_clone(far_agent *a, const far__reason *from);
void far__reason_free(far_agent *a, far__reason *r);
/* refs_lock held: why uses of `r` fail. */
far__reason *far__rref_reason(far_agent *a, const far__rref *r, const char *owner);

/* rref.c */
far_status far__rref_methods(far_agent *a) FAR_MUST_USE;
void far__rref_settle(far_agent *a, far__rref *r); /* loop thread */
void far__rref_stop(far_agent *a); /* closing: who waits for a value has waited enough */

/* -------------------------------------------------------------- directory.c, join.c, leave.c */

/* Parts of an init method; see meet.c. */
typedef struct far__meeting {
    enum { FAR__MEET_TCP, FAR__MEET_FILE, FAR__MEET_ADDRESS } kind;
    char host[256];
    uint16_t port;
    char path[512];
} far__meeting;

/* Reads options and environment. */
far_status far__meet_parse(const char *init_method, far__meeting *out,
                           far_error *error) FAR_MUST_USE;
far_status far__meet_environment(far_agent *a, far_error *error) FAR_MUST_USE;
/* Rank 0: listens where it will be looked for. Others: on addresses near the way to rank 0. */
far_status far__meet_listen(far_agent *a, const far__meeting *m, far_error *error) FAR_MUST_USE;
/* Rank 0 of a file meeting: writes the file; and takes it away. */
far_status far__meet_announce(far_agent *a, const far__meeting *m, far_error *error) FAR_MUST_USE;
/* Addresses of rank 0 to be tried now, space-separated; FAR_EAGAIN: not there yet. */
far_status far__meet_find(const far__meeting *m, far__bytes *addresses,
                          far_error *error) FAR_MUST_USE;

far_status far__secret_load(const void *given, size_t given_size, uint8_t out[FAR__SECRET_MAX],
                            size_t *size, far_error *error) FAR_MUST_USE;

far_status far__join_methods(far_agent *a) FAR_MUST_USE;
far_status far__leave_methods(far_agent *a) FAR_MUST_USE;
/* The state has become ABORTING: the joining thread shall notice. */
void far__join_interrupt(far_agent *a);
void far__leave_init(far_agent *a);
/* Loop thread, closing: gives up the calls that wait for the world or for the agreement. */
void far__leave_close(far_agent *a);
/* Rank 0, after the agreement: waits until the others have closed their connections, or a little. */
void far__leave_linger(far_agent *a);
/* Loop thread: a connection for calls out broke, and nothing is wanted of it now. */
void far__leave_peer_broken(far__peer *p);
/* Rank 0: the connection of this member broke. */
void far__leave_broken(far_agent *a, far_worker_id id, uint64_t incarnation);
/* "missing: rank 1", "worker 2 ("b") has not called shutdown", ...: as rank 0 knows it. */
void far__leave_waits_for(far_agent *a, char *text, size_t size);
/* The same as rank 0 says it; blocks for 2 s at most; "" if it does not answer. */
void far__join_ask_missing(far__peer *root, char *text, size_t size);
/* Rank 0: answers every joiner that waits: with the roster, or with why there will be none. */
void far__join_answer_all(far_agent *a, far_status failed, const char *text);
/* Rank 0, agent.lock not held: tells every member of the changed roster. */
void far__join_announce(far_agent *a);

#endif
