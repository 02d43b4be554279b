/* SPDX-License-Identifier: BSD-3-Clause
 * async/timer: timers in order of their time. Pure but for its lock's absence: the loop guards it.
 * Floor: async. Thread: the owner's lock. */
#ifndef FAR_ASYNC_TIMER_H
#define FAR_ASYNC_TIMER_H

#include "base/clock.h"
#include "base/list.h"

/* Few timers an agent (calls have their own heap), so a sorted list serves. */
typedef struct far__timer far__timer;
struct far__timer {
    void (*fire)(far__timer *t); /* loop thread, no lock held */
    int64_t at;
    far__list link;
};

typedef struct far__timers {
    far__list sorted;
} far__timers;

static inline void far__timer_init(far__timer *t, void (*fire)(far__timer *t))
{
    t->fire = fire;
    t->at = FAR__NEVER;
    far__list_init(&t->link);
}
static inline bool far__timer_armed(const far__timer *t)
{
    return !far__list_empty(&t->link);
}
void far__timers_init(far__timers *s);
void far__timers_set(far__timers *s, far__timer *t, int64_t at);
void far__timers_clear(far__timers *s, far__timer *t);
int64_t far__timers_next(const far__timers *s);           /* FAR__NEVER: none */
far__timer *far__timers_due(far__timers *s, int64_t now); /* taken out; NULL: none */

#endif
