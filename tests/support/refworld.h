/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/refworld: the world of tests/sim/test_refs: workers with a far__refs each, the calls of
 * the machines over a network that loses, doubles and reorders, connections that break, memory that
 * runs out, crashes and what others learn of them. */
#ifndef FAR_TESTS_SUPPORT_REFWORLD_H
#define FAR_TESTS_SUPPORT_REFWORLD_H

#include "proto/refs.h"
#include "proto/refs_state.h"
#include "support/sim.h"

#define REFWORLD_GRACE (5 * FAR_SECOND)
/* Of node.connection: it lost something and will break. */
#define REFWORLD_DOOMED (UINT64_C(1) << 63)

enum { NODES_MAX = 8, HELD_MAX = 24, REFS_MAX = 4, HEADER_MAX = 512 };

typedef struct game game;
typedef struct node node;
typedef struct served served;

/* A value as its users see it. */
typedef struct thing {
    node *owner;
    bool arrived;     /* its creation, at the owner */
    bool made, freed; /* the value */
    bool error, error_freed;
    bool given_up; /* its creation may never have arrived */
    struct thing *next;
} thing;

/* One handle of a program, and through whose hands the reference came (a bit a node). */
typedef struct handle {
    far__rref *rref;
    thing *thing;
    unsigned chain;
} handle;

/* A value that was seen live at its owner under this fork, and is not any more: it must not come back. */
typedef struct fork_seen {
    uint64_t fork;
    far__wire_worker giver;
    uint64_t last; /* step at which it was live */
} fork_seen;

struct node {
    game *g;
    unsigned index;
    far__wire_worker who;
    far__refs refs;
    bool alive, pump_planned;
    int64_t died_at;
    int64_t timer_at;
    uint64_t connection[NODES_MAX]; /* on which it replies to that node; 0: none now */
    handle held[HELD_MAX];
    size_t held_count;
    fork_seen *seen;
    size_t seen_count, seen_room;
};

/* A call of a program, at its caller. */
typedef struct request {
    game *g;
    node *from, *to;
    far__refs_out *out; /* while it is open */
    far__rref *created; /* a handle: of a remote() */
    thing *creates;
    bool open;
    struct request *next;
} request;

typedef struct message {
    node *from, *to;
    request *request;
    bool is_reply;
    uint8_t header[HEADER_MAX];
    size_t header_size;
    handle refs[REFS_MAX];     /* .rref unset */
    size_t ref_count, created; /* created: index of the creation; ref_count: none */
    far__rref *fetches;        /* != NULL: index 0 is to be read at its owner */
} message;

/* A request that is being served. */
struct served {
    node *at;
    message *m;
    far__refs_in *in;
    far__rref *waits; /* the fetched entry, watched: a handle */
    bool started, ended;
    served *next;
};

typedef struct internal internal;

struct game {
    sim *s;
    /* The test's own: compares everything with the model; goes on with a request of which nothing is
     * waiting any more; does something at random. */
    void (*check)(game *g);
    void (*go_on)(served *v);
    void (*step)(node *n);
    void (*end_request)(sim *s, void *r); /* by its caller: a limit ran out, a worker was lost */
    node *node[NODES_MAX];
    unsigned nodes, loss, doubles, crashes_left;
    bool calm, over;
    uint64_t next_connection, incarnations;
    thing *things;
    request *requests;
    served *serving;
    internal *internals;
};

/* What the seeds together have come across; the first ones are counted here, the others by the test. */
extern struct refworld_coverage {
    uint64_t crashes, no_memory, ready, retried;
} refworld_seen;

extern unsigned refworld_scarcity; /* percent of farcall's allocations that fail */

/* Takes over farcall's memory; `g` has its hooks. */
void refworld_init(game *g, sim *s);
/* Ends everything, and gives the memory back; nothing of farcall's may be left. */
void refworld_fini(game *g);
bool refworld_no_memory(far_status status); /* FAR_ENOMEM, and counts it */
node *refworld_open(game *g, far_worker_id id);
node *refworld_node(game *g, far__wire_worker who);
void refworld_crash(node *n);
thing *refworld_thing(game *g, node *owner);
void refworld_drop(node *n, size_t i); /* a handle of the program's */
/* Acts on what the machine gives, at once or a little later. */
void refworld_pump(node *n);
void refworld_pump_now(node *n);

#endif
