/* SPDX-License-Identifier: BSD-3-Clause
 * proto/agreement: rounds of reports until two in a row show that nothing is in flight.
 *
 * Why two rounds are enough. Let t(i) be the moment at which member i made its report of round k,
 * and u(i) that of round k+1. Round k+1 is begun when all reports of round k are here, at T: so
 * t(i) < T < u(i). If i was idle at t(i) and began no call, made or arrived, until u(i), it was idle
 * all the time between, because nothing else ends idleness. So all members were idle at the one
 * moment T, and a call in flight is open at its caller from making it until it has ended. One round
 * is not enough: its reports are of different moments, and a call can wander behind the leader's
 * back from who has not reported to who has. docs/shutdown.md says what the agent must hold to.
 * Floor: proto. Thread: the agent's roster lock. */
#include "proto/agreement.h"

#include <assert.h>

#include <string.h>

#include "base/mem.h"

enum { ROOM_MIN = 8 };

void far__agreement_init(far__agreement *a)
{
    *a = (far__agreement){0};
}

void far__agreement_fini(far__agreement *a)
{
    far__mem_free(a->members);
    *a = (far__agreement){0};
}

/* Index of the first member whose id is `id` or higher. */
static size_t place_of(const far__agreement *a, far_worker_id id)
{
    size_t low = 0, high = a->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (a->members[middle].id >= id)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* NULL: no such member, as a peer may claim. */
static far__agreement_member *member_of(far__agreement *a, far_worker_id id)
{
    size_t at = place_of(a, id);
    return at < a->count && a->members[at].id == id ? &a->members[at] : NULL;
}

far_status far__agreement_add(far__agreement *a, far_worker_id id)
{
    if (member_of(a, id))
        return FAR_OK;
    if (a->count == a->room) {
        size_t room = a->room ? a->room * 2 : ROOM_MIN;
        far__agreement_member *members = far__mem_resize(a->members, room * sizeof *members);
        if (!members)
            return FAR_ENOMEM;
        a->members = members;
        a->room = room;
    }
    size_t at = place_of(a, id);
    memmove(a->members + at + 1, a->members + at, (a->count - at) * sizeof *a->members);
    /* Nobody asks it for a report of the open round, so it counts as reported. */
    a->members[at] = (far__agreement_member){.id = id, .reported = true};
    a->count++;
    a->spoiled = true;
    a->last_quiet = false;
    return FAR_OK;
}

void far__agreement_asked(far__agreement *a, far_worker_id id)
{
    far__agreement_member *m = member_of(a, id);
    if (m)
        m->asked = true;
}

bool far__agreement_withdrawn(far__agreement *a, far_worker_id id)
{
    if (a->agreed)
        return false;
    far__agreement_member *m = member_of(a, id);
    if (m && m->asked) {
        m->asked = false;
        /* It may make calls now and ask again before the open round ends. */
        a->spoiled = true;
        a->last_quiet = false;
    }
    return true;
}

void far__agreement_gone(far__agreement *a, far_worker_id id)
{
    far__agreement_member *m = member_of(a, id);
    if (!m || m->gone)
        return;
    m->gone = true;
    /* A call of its last moments may have reached a member that had reported already. */
    a->spoiled = true;
    a->last_quiet = false;
}

void far__agreement_report(far__agreement *a, uint64_t round, far_worker_id id, bool idle,
                           uint64_t activity)
{
    far__agreement_member *m = member_of(a, id);
    if (!m || !a->polling || round != a->round || m->reported)
        return;
    m->reported = true;
    m->idle = idle;
    m->activity_before = m->activity;
    m->activity = activity;
}

bool far__agreement_missing(const far__agreement *a, far_worker_id *id)
{
    for (size_t i = 0; i < a->count; i++) {
        if (!a->members[i].gone && !a->members[i].asked) {
            *id = a->members[i].id;
            return true;
        }
    }
    return false;
}

bool far__agreement_all_asked(const far__agreement *a)
{
    far_worker_id id;
    return a->count > 0 && !far__agreement_missing(a, &id);
}

static bool all_reported(const far__agreement *a)
{
    for (size_t i = 0; i < a->count; i++) {
        if (!a->members[i].gone && !a->members[i].reported)
            return false;
    }
    return true;
}

/* Judges the round that has just ended. */
static void end_round(far__agreement *a)
{
    bool quiet = !a->spoiled && far__agreement_all_asked(a), unchanged = true;
    for (size_t i = 0; i < a->count; i++) {
        const far__agreement_member *m = &a->members[i];
        if (m->gone)
            continue;
        quiet = quiet && m->idle;
        unchanged = unchanged && m->activity == m->activity_before;
    }
    a->polling = false;
    a->agreed = quiet && unchanged && a->last_quiet;
    /* All idle with changed counters is at least the first round of a new pair, but a paced one:
     * somebody is still at work. */
    a->pausing = !quiet || (a->last_quiet && !unchanged);
    a->last_quiet = quiet;
}

far__agreement_step far__agreement_next(far__agreement *a)
{
    if (a->polling && all_reported(a))
        end_round(a);
    if (a->agreed)
        return FAR__AGREEMENT_DONE;
    if (a->polling || a->pausing || !far__agreement_all_asked(a))
        return FAR__AGREEMENT_WAIT;
    a->round++;
    a->polling = true;
    a->spoiled = false;
    for (size_t i = 0; i < a->count; i++)
        a->members[i].reported = false;
    return FAR__AGREEMENT_POLL;
}

void far__agreement_retry(far__agreement *a)
{
    a->pausing = false;
}

void far__agreement_again(far__agreement *a)
{
    assert(a->agreed);
    a->agreed = a->last_quiet = a->polling = a->spoiled = a->pausing = false;
}
