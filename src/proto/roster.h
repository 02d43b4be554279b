/* SPDX-License-Identifier: BSD-3-Clause
 * proto/roster: who is in the job. Rank 0 admits, numbers and announces; the others hold a copy
 * that is replaced by newer snapshots. Pure. Floor: proto. Thread: the agent's roster lock. */
#ifndef FAR_PROTO_ROSTER_H
#define FAR_PROTO_ROSTER_H

#include "proto/message.h"

typedef enum far__member_state {
    FAR__MEMBER_JOINED = 0,
    FAR__MEMBER_LEFT = 1,
    FAR__MEMBER_LOST = 2,
} far__member_state;

typedef struct far__member {
    far_worker_id id;
    uint64_t incarnation;
    uint8_t state;
    char name[FAR_NAME_MAX + 1];
    char *addresses; /* space-separated "unix:BOOTID:NAME" "tcp:1.2.3.4:5" "tcp:[::1]:5", best first
                      */
} far__member;

typedef struct far__roster {
    uint32_t world_size;  /* 0: open */
    uint64_t version;     /* grows with each change at rank 0 */
    far__member *members; /* ascending by id; a restarted worker of an open world gets a new id */
    size_t count, room;
    far_worker_id next_id; /* open world: the next to be given */
    far_status failed;     /* a fixed world that cannot come up: every join fails with this ... */
    char failed_text[512]; /* ... and this */
} far__roster;

void far__roster_init(far__roster *r, uint32_t world_size);
void far__roster_fini(far__roster *r);

/* A wish to join. `rank` -1: none. `world_size`: what the newcomer was told (0: open). */
typedef struct far__join {
    const char *name;
    uint64_t incarnation;
    int64_t rank;
    uint32_t world_size;
    const char *addresses;
} far__join;

/* Rank 0: admits the wish and gives its id; the same incarnation again gives the same id (a
 * repeat). Without a rank: in a fixed world the lowest free one but 0, in an open one the next id.
 * Rank 0 itself must be the first. FAR_EBUSY: name or rank taken (text names both holders); a fixed
 * world that is not complete is then failed. FAR_EINVAL: bad name or addresses, rank outside of the
 * world, world sizes differ (text names both), an incarnation that has left or was lost. A newcomer's
 * FAR_EINVAL harms nobody else. FAR_ENOMEM. */
far_status far__roster_admit(far__roster *r, const far__join *wish, far_worker_id *id,
                             far_error *error) FAR_MUST_USE;
bool far__roster_complete(const far__roster *r); /* open: always; fixed: all joined once */
/* "rank 1, rank 3" or, if they are many, "30 of 80 workers": who is missing in a fixed world. "" if
 * nobody is. */
void far__roster_missing(const far__roster *r, char *text, size_t size);
/* Marks left or lost, and drops the addresses; false: no such joined member. Rank 0's word only: a
 * copy that did so would refuse the next snapshot as not newer. */
bool far__roster_set_state(far__roster *r, far_worker_id id, far__member_state state);

const far__member *far__roster_by_id(const far__roster *r, far_worker_id id);
/* The joined one; if there is none, the latest that had the name. */
const far__member *far__roster_by_name(const far__roster *r, const char *name);
/* Up to a few names near `name` (edit distance), comma-separated; "" if none is near. */
void far__roster_near(const far__roster *r, const char *name, char *text, size_t size);

/* Whole snapshot as one value, and back. far__roster_encode appends it; far__roster_apply reads the
 * message's last value and replaces the copy (its members' addresses move: hold no pointers) if the
 * snapshot is newer (*changed says so). FAR_EPROTO: malformed, FAR_ENOMEM: both unchanged. */
far_status far__roster_encode(const far__roster *r, far_message *message) FAR_MUST_USE;
far_status far__roster_apply(far__roster *r, far_message *message, bool *changed) FAR_MUST_USE;

/* FAR_OK for 1 to FAR_NAME_MAX bytes of [A-Za-z0-9_.:-]; else FAR_EINVAL with a text. */
far_status far__name_check(const char *name, far_error *error) FAR_MUST_USE;

#endif
