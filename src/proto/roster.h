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
    far_worker_id next_id; /* open world: never given before */
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
 * repeat). FAR_EBUSY: name or rank taken (text names both holders); in a fixed world the roster is
 * then failed. FAR_EINVAL: bad name, rank outside of the world, no rank in a fixed world gets the
 * lowest free one, world sizes differ (text names both). FAR_ENOMEM. */
far_status far__roster_admit(far__roster *r, const far__join *wish, far_worker_id *id,
                             far_error *error) FAR_MUST_USE;
bool far__roster_complete(const far__roster *r); /* open: always; fixed: all joined once */
/* "rank 1, rank 3" or "3 of 8 workers": who is missing in a fixed world. */
void far__roster_missing(const far__roster *r, char *text, size_t size);
/* Marks left or lost; false: no such joined member. */
bool far__roster_set_state(far__roster *r, far_worker_id id, far__member_state state);

const far__member *far__roster_by_id(const far__roster *r, far_worker_id id);
const far__member *far__roster_by_name(const far__roster *r,
                                       const char *name); /* joined ones first */
/* Up to a few names near `name` (edit distance), comma-separated; "" if none is near. */
void far__roster_near(const far__roster *r, const char *name, char *text, size_t size);

/* Whole snapshot as values, and back. far__roster_apply replaces the copy if the snapshot is newer
 * (*changed says so); FAR_EPROTO: malformed, unchanged. */
far_status far__roster_encode(const far__roster *r, far_message *message) FAR_MUST_USE;
far_status far__roster_apply(far__roster *r, far_message *message, bool *changed) FAR_MUST_USE;

/* FAR_OK for 1 to FAR_NAME_MAX bytes of [A-Za-z0-9_.:-]; else FAR_EINVAL with a text. */
far_status far__name_check(const char *name, far_error *error) FAR_MUST_USE;

#endif
