/* SPDX-License-Identifier: BSD-3-Clause
 * async/loop: one thread that waits in epoll_wait for descriptors, timers and posted work.
 * Floor: async. Thread: said at each function.
 *
 * Going to sleep without missing anything: the time until which the loop will sleep is computed and
 * published (sleep_until) in one locked section. Whoever adds something later sees it under the same
 * lock and writes to the eventfd, which epoll_wait finds even if it has not begun yet. Whoever adds
 * something earlier was counted in. */
#include "async/loop.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/time_types.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "async/thread.h"
#include "base/mem.h"

enum {
    EVENTS_MAX = 64,
    TIMERS_A_TURN = 64, /* a timer that is set to the past again and again must not stop the rest */
    TIMER_SLACK_NS = 1000,
};

#define AWAKE INT64_MIN /* of sleep_until: the loop will look by itself */

struct far__loop {
    int epoll_fd;
    far__watch wake_watch; /* the eventfd */
    pthread_t thread;
    bool started, joined; /* of whoever starts and stops it */
    atomic_uint
        changes; /* orders what was done before far__loop_add before `ready`, in C's terms */

    /* of the loop thread */
    struct epoll_event events[EVENTS_MAX];
    int event_at, event_count;

    far__mutex lock; /* guards the rest */
    far__timers timers;
    far__task *first, **last;
    int64_t sleep_until;
    bool woken; /* somebody has written, or is about to write, to the eventfd */
    bool stopping, stopped;
};

static _Thread_local far__loop *here;

atomic_bool far__loop_coarse;

static void drain(far__watch *w, uint32_t events)
{
    (void)events;
    uint64_t count;
    ssize_t size = read(w->fd, &count, sizeof count);
    (void)size;
}

far_status far__loop_create(far__loop **out)
{
    far_status status = FAR_ESYSTEM;
    far__loop *l = far__mem_zalloc(sizeof *l);
    if (!l)
        return FAR_ENOMEM;
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll_fd < 0)
        goto err_free;
    l->wake_watch.ready = drain;
    l->wake_watch.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake_watch.fd < 0)
        goto err_close_epoll;
    status = far__loop_add(l, &l->wake_watch, EPOLLIN);
    if (status != FAR_OK)
        goto err_close_event;
    far__mutex_init(&l->lock);
    far__timers_init(&l->timers);
    l->last = &l->first;
    l->sleep_until = AWAKE;
    *out = l;
    return FAR_OK;

err_close_event:
    close(l->wake_watch.fd);
err_close_epoll:
    close(l->epoll_fd);
err_free:
    far__mem_free(l);
    return status;
}

/* Lock held: must the caller wake the loop, after unlocking, for something that is due at `at`? */
static bool must_wake(far__loop *l, int64_t at)
{
    if (l->sleep_until <= at || l->woken)
        return false;
    l->woken = true;
    return true;
}

static void wake(far__loop *l)
{
    uint64_t one = 1;
    ssize_t size = write(l->wake_watch.fd, &one, sizeof one);
    assert(size == sizeof one || errno == EAGAIN);
    (void)size;
}

static void run_tasks(far__loop *l)
{
    far__mutex_lock(&l->lock);
    far__task *t = l->first;
    l->first = NULL;
    l->last = &l->first;
    far__mutex_unlock(&l->lock);
    while (t) {
        far__task *next = t->next;
        t->run(t);
        t = next;
    }
}

static void run_timers(far__loop *l)
{
    int64_t now = far__clock_now();
    for (int i = 0; i < TIMERS_A_TURN; i++) {
        far__mutex_lock(&l->lock);
        far__timer *t = far__timers_due(&l->timers, now);
        far__mutex_unlock(&l->lock);
        if (!t)
            return;
        t->fire(t);
    }
}

/* False: the loop ends. */
static bool fall_asleep(far__loop *l, int64_t *limit_ns)
{
    bool goes_on = true;
    *limit_ns = 0;
    far__mutex_lock(&l->lock);
    if (!l->first) {
        int64_t next = far__timers_next(&l->timers);
        int64_t now = next == FAR__NEVER ? 0 : far__clock_now();
        if (l->stopping) {
            l->stopped = true;
            goes_on = false;
        } else if (next > now) {
            *limit_ns = next == FAR__NEVER ? FAR__NEVER : next - now;
            l->sleep_until = next;
        }
    }
    far__mutex_unlock(&l->lock);
    return goes_on;
}

static void wake_up(far__loop *l)
{
    far__mutex_lock(&l->lock);
    l->sleep_until = AWAKE;
    l->woken = false;
    far__mutex_unlock(&l->lock);
}

int far__loop_milliseconds(int64_t limit_ns)
{
    if (limit_ns == FAR__NEVER)
        return -1;
    int64_t ms = limit_ns / 1000000 + (limit_ns % 1000000 != 0);
    return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Returns the number of events. */
static int wait_for_events(far__loop *l, int64_t limit_ns)
{
    int count;
#ifdef SYS_epoll_pwait2
    if (!atomic_load_explicit(&far__loop_coarse, memory_order_relaxed)) {
        struct __kernel_timespec ts = {.tv_sec = limit_ns / 1000000000,
                                       .tv_nsec = limit_ns % 1000000000};
        count = (int)syscall(SYS_epoll_pwait2, l->epoll_fd, l->events, EVENTS_MAX,
                             limit_ns == FAR__NEVER ? NULL : &ts, NULL, 0);
        /* EPERM: a filter of system calls that does not know this one. */
        if (count >= 0 || (errno != ENOSYS && errno != EPERM))
            goto out;
        atomic_store_explicit(&far__loop_coarse, true, memory_order_relaxed);
    }
#endif
    count = epoll_wait(l->epoll_fd, l->events, EVENTS_MAX, far__loop_milliseconds(limit_ns));
#ifdef SYS_epoll_pwait2
out:
#endif
    assert(count >= 0 || errno == EINTR);
    return count < 0 ? 0 : count;
}

static void dispatch(far__loop *l, int count)
{
    (void)atomic_load(&l->changes);
    l->event_count = count;
    for (l->event_at = 0; l->event_at < l->event_count; l->event_at++) {
        struct epoll_event *event = &l->events[l->event_at];
        far__watch *w = event->data.ptr;
        if (w)
            w->ready(w, event->events);
    }
    l->event_count = 0;
}

static void *loop_main(void *arg)
{
    far__loop *l = arg;
    here = l;
    far__thread_name("farcall-loop");
    /* Else the kernel may add 50 us to every timer. */
    (void)prctl(PR_SET_TIMERSLACK, (unsigned long)TIMER_SLACK_NS, 0UL, 0UL, 0UL);
    for (;;) {
        run_tasks(l);
        run_timers(l);
        int64_t limit_ns;
        if (!fall_asleep(l, &limit_ns))
            break;
        int count = wait_for_events(l, limit_ns);
        wake_up(l);
        dispatch(l, count);
    }
    here = NULL;
    return NULL;
}

far_status far__loop_start(far__loop *l)
{
    assert(!l->started);
    far_status status = far__thread_start(loop_main, l, &l->thread);
    l->started = status == FAR_OK;
    return status;
}

void far__loop_stop(far__loop *l)
{
    assert(!far__loop_here(l));
    far__mutex_lock(&l->lock);
    l->stopping = true;
    bool write_event = must_wake(l, AWAKE);
    far__mutex_unlock(&l->lock);
    if (write_event)
        wake(l);
    if (l->started && !l->joined) {
        pthread_join(l->thread, NULL);
        l->joined = true;
    }
    /* Never started: what was posted is run here. */
    int64_t limit_ns;
    while (!l->started && fall_asleep(l, &limit_ns))
        run_tasks(l);
}

void far__loop_destroy(far__loop *l)
{
    if (!l->started)
        far__loop_stop(l);
    assert(l->stopped && (l->joined || !l->started));
    close(l->wake_watch.fd);
    close(l->epoll_fd);
    far__mutex_fini(&l->lock);
    far__mem_free(l);
}

void far__loop_forked(far__loop *l)
{
    close(l->wake_watch.fd);
    close(l->epoll_fd);
    l->wake_watch.fd = l->epoll_fd = -1;
}

bool far__loop_here(const far__loop *l)
{
    return here == l;
}

far_status far__loop_add(far__loop *l, far__watch *w, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = w};
    atomic_fetch_add(&l->changes, 1);
    return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, w->fd, &event) == 0 ? FAR_OK : FAR_ESYSTEM;
}

void far__loop_change(far__loop *l, far__watch *w, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = w};
    atomic_fetch_add(&l->changes, 1);
    int rc = epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, w->fd, &event);
    assert(rc == 0);
    (void)rc;
}

void far__loop_remove(far__loop *l, far__watch *w)
{
    int rc = epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
    assert(rc == 0 || errno == ENOENT);
    (void)rc;
    if (!far__loop_here(l))
        return;
    for (int i = l->event_at + 1; i < l->event_count; i++) {
        if (l->events[i].data.ptr == w)
            l->events[i].data.ptr = NULL;
    }
}

void far__loop_post(far__loop *l, far__task *t)
{
    far__mutex_lock(&l->lock);
    if (l->stopped) {
        far__mutex_unlock(&l->lock);
        t->run(t);
        return;
    }
    t->next = NULL;
    *l->last = t;
    l->last = &t->next;
    bool write_event = must_wake(l, AWAKE);
    far__mutex_unlock(&l->lock);
    if (write_event)
        wake(l);
}

void far__loop_timer_set(far__loop *l, far__timer *t, int64_t at)
{
    far__mutex_lock(&l->lock);
    far__timers_set(&l->timers, t, at);
    bool write_event = must_wake(l, at);
    far__mutex_unlock(&l->lock);
    if (write_event)
        wake(l);
}

bool far__loop_timer_clear(far__loop *l, far__timer *t)
{
    far__mutex_lock(&l->lock);
    bool armed = far__timer_armed(t);
    far__timers_clear(&l->timers, t);
    far__mutex_unlock(&l->lock);
    return armed;
}
