/* SPDX-License-Identifier: BSD-3-Clause
 * async/timer: timers in order of their time, in a sorted list.
 * Floor: async. Thread: the owner's lock. */
#include "async/timer.h"

static far__timer *timer_of(far__list *link)
{
    return far__container_of(link, far__timer, link);
}

void far__timers_init(far__timers *s)
{
    far__list_init(&s->sorted);
}

void far__timers_set(far__timers *s, far__timer *t, int64_t at)
{
    far__list_remove(&t->link);
    t->at = at;
    if (at == FAR__NEVER)
        return;
    /* From the back: most timers are set later than those that are there. */
    far__list *before = s->sorted.prev;
    while (before != &s->sorted && timer_of(before)->at > at)
        before = before->prev;
    far__list_add_head(before, &t->link);
}

void far__timers_clear(far__timers *s, far__timer *t)
{
    far__timers_set(s, t, FAR__NEVER);
}

int64_t far__timers_next(const far__timers *s)
{
    return far__list_empty(&s->sorted) ? FAR__NEVER : timer_of(s->sorted.next)->at;
}

far__timer *far__timers_due(far__timers *s, int64_t now)
{
    if (far__list_empty(&s->sorted) || timer_of(s->sorted.next)->at > now)
        return NULL;
    return timer_of(far__list_pop(&s->sorted));
}
