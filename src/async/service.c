/* SPDX-License-Identifier: BSD-3-Clause
 * async/service: what must run on a thread of its own kind: buffers to free, threads to start,
 * futures to report.
 * Floor: async. Thread: any. */
#include "async/service.h"

#include <assert.h>
#include <limits.h>

#include "async/thread.h"
#include "base/clock.h"
#include "base/mem.h"

void far__service_init(far__service *s, bool foreign)
{
    *s = (far__service){.foreign = foreign};
    far__mutex_init(&s->lock);
    far__list_init(&s->notices);
}

static void free_orphan(void *arg)
{
    far__buffer_free(arg);
}

/* Lock held: the next thing to do, if there is one. Threads first: calls may be waiting for them. */
static bool take(far__service *s, far_event *event)
{
    if (s->starts) {
        s->starts--;
        *event = (far_event){.kind = FAR_EVENT_START_THREAD};
        return true;
    }
    if (s->orphans) {
        far_buffer *buffer = s->orphans;
        s->orphans = buffer->next;
        *event = (far_event){FAR_EVENT_RELEASE, free_orphan, buffer};
        return true;
    }
    far__list *link = far__list_pop(&s->notices);
    if (link) {
        far__notice *n = far__container_of(link, far__notice, link);
        *event = (far_event){.kind = FAR_EVENT_FUTURE_DONE, .arg = n->tag};
        far__mem_free(n);
        return true;
    }
    return false;
}

far_status far__service_next(far__service *s, far_event *event)
{
    for (;;) {
        far__mutex_lock(&s->lock);
        /* After the first STOP nothing else may follow, whatever is added late. */
        bool taken = !s->ended && take(s, event);
        if (!taken && s->stopping) {
            s->ended = taken = true;
            *event = (far_event){.kind = FAR_EVENT_STOP};
        }
        s->asleep = !taken;
        uint32_t word = atomic_load(&s->word);
        far__mutex_unlock(&s->lock);
        if (taken)
            return FAR_OK;
        (void)far__futex_wait(&s->word, word, FAR__NEVER);
    }
}

static void *service_main(void *arg)
{
    far__service *s = arg;
    far__thread_name("farcall-service");
    far_event event;
    while (far__service_next(s, &event) == FAR_OK && event.kind != FAR_EVENT_STOP) {
        if (event.kind == FAR_EVENT_RELEASE)
            event.fn(event.arg);
    }
    return NULL;
}

/* Lock held when called, not afterwards: something was added. */
static void unlock_and_tell(far__service *s)
{
    bool sleeper = s->asleep;
    s->asleep = false;
    atomic_fetch_add(&s->word, 1);
    bool start = !s->foreign && !s->running && !s->stopping;
    if (start)
        s->running = true;
    far__mutex_unlock(&s->lock);
    if (sleeper)
        far__futex_wake(&s->word, INT_MAX);
    if (!start || far__thread_start(service_main, s, &s->thread) == FAR_OK)
        return;
    /* What is queued waits for the next attempt, or for fini. */
    far__mutex_lock(&s->lock);
    s->running = false;
    far__mutex_unlock(&s->lock);
}

void far__service_stop(far__service *s)
{
    far__mutex_lock(&s->lock);
    s->stopping = true;
    unlock_and_tell(s);
}

void far__service_fini(far__service *s)
{
    assert(s->stopping);
    if (s->running)
        pthread_join(s->thread, NULL);
    far_event event;
    while (take(s, &event)) {
        if (event.kind == FAR_EVENT_RELEASE)
            event.fn(event.arg);
    }
    far__mutex_fini(&s->lock);
}

void far__service_orphans(far__service *s, far_buffer *list)
{
    if (!list)
        return;
    far_buffer *last = list;
    while (last->next)
        last = last->next;
    far__mutex_lock(&s->lock);
    last->next = s->orphans;
    s->orphans = list;
    unlock_and_tell(s);
}

void far__service_start_thread(far__service *s)
{
    far__mutex_lock(&s->lock);
    assert(s->foreign);
    if (s->stopping) {
        far__mutex_unlock(&s->lock);
        return;
    }
    s->starts++;
    unlock_and_tell(s);
}

void far__service_notice(far__service *s, far__notice *n)
{
    far__mutex_lock(&s->lock);
    far__list_add_tail(&s->notices, &n->link);
    unlock_and_tell(s);
}
