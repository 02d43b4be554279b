/* SPDX-License-Identifier: BSD-3-Clause
 * async/executor: threads that run jobs and take turns at the reader role.
 * Floor: async. Thread: any.
 *
 * Everything is guarded by one lock. What must not be done under it (waking, flushing, starting a
 * thread) is noted in an `errands` while the lock is held and done by unlock_and_run. The loop's own
 * lock is taken under it to arm the watchdog: it is a leaf, and after far__executor_stop nobody may
 * touch the loop any more, which only this order gives. */
#include "async/executor.h"

#include <assert.h>
#include <limits.h>

#include "async/thread.h"
#include "base/mem.h"
#include "base/ref.h"

enum {
    IDLE_KEPT = 2,     /* idle threads that stay for ever */
    BUSY_PER_TICK = 4, /* so many jobs in one tick: more will come, keep ticking */
};

#define TICK_NS (1 * FAR_MILLISECOND)   /* of the watchdog */
#define STALL_NS (5 * FAR_MILLISECOND)  /* nothing finished for so long: grow beyond `threads` */
#define RETRY_NS (10 * FAR_MILLISECOND) /* after a thread could not be started */
#define START_LOST_NS (1 * FAR_SECOND)  /* a thread that was asked for never came */
#define IDLE_NS (10 * FAR_SECOND)       /* a thread beyond IDLE_KEPT leaves */
#define COST_STUCK_NS (1 * FAR_MILLISECOND)  /* the least average of what was found stuck */
#define COST_SAMPLE_NS (8 * FAR_MILLISECOND) /* longer ones count as this, so they are forgotten */

/* A thread inside far__executor_enter; lives in that stack frame. */
typedef struct worker worker;
struct worker {
    far__executor *executor;
    worker *outer;         /* what this thread already was when it entered */
    _Atomic uint32_t word; /* 0: idle; 1: told to look */
    far__list link;        /* in `idle` */
    uint64_t job;          /* the number of the job it is inside; 0: none */
    _Atomic uint32_t *cost;
    unsigned waits;
    bool reading; /* inside ops.read, or about to be */
};

typedef enum role {
    ROLE_NONE,   /* not started, or stopped */
    ROLE_THREAD, /* held by `holder`, which may still be on its way */
    ROLE_LOOP,
} role;

struct far__executor {
    far__ref refs;
    far__executor_options o;
    /* Threads inside ops, the service or the loop, all of which may be gone after stop. */
    _Atomic uint32_t inside;
    atomic_bool stopped; /* written under the lock */
    bool forked;         /* this is a child of the process that made it; `stopped` as well */

    far__mutex lock; /* guards the rest */
    far__list queue;
    size_t queued, running;
    role role;
    worker *holder;
    bool loop_reading; /* between far__executor_loop_begin and far__executor_kick */
    bool reader_woken; /* the reader was told to look */
    bool unflushed;    /* replies may have been appended */
    far__list idle;    /* the last one first */
    unsigned idle_count, threads, waiting;
    unsigned coming;       /* idle threads that were woken and have not looked yet */
    unsigned starting;     /* threads that were asked for and have not entered yet */
    unsigned arriving;     /* of `starting`, pthreads of ours, which come for certain */
    _Atomic uint32_t left; /* changes when a thread leaves after `stopped` */
    bool stop_done;
    int64_t started_at, start_after;

    uint64_t taken, finished; /* jobs; the number of a job is `taken` at its beginning */
    far__timer timer;         /* the watchdog; while `ticking` it holds a reference */
    bool ticking;
    uint64_t seen_job, seen_taken, seen_finished; /* at the last tick */
    int64_t stalled_since;
};

/* What is to be done once the lock is dropped. */
typedef struct errands {
    _Atomic uint32_t *wake; /* of an idle thread */
    bool wake_reader, flush, start;
} errands;

static _Thread_local worker *here;

static void go_inside(far__executor *e)
{
    atomic_fetch_add(&e->inside, 1);
}

static void come_out(far__executor *e)
{
    if (atomic_fetch_sub(&e->inside, 1) == 1 && atomic_load(&e->stopped))
        far__futex_wake(&e->inside, INT_MAX);
}

static bool is_short(const _Atomic uint32_t *cost)
{
    if (!cost)
        return false;
    uint32_t average = atomic_load_explicit(cost, memory_order_relaxed);
    return average && average < FAR__SHORT_NS;
}

/* Two threads may learn at once: one sample is lost then, which does no harm. */
static void learn(_Atomic uint32_t *cost, int64_t spent_ns)
{
    uint32_t sample = spent_ns < 1                ? 1
                      : spent_ns > COST_SAMPLE_NS ? (uint32_t)COST_SAMPLE_NS
                                                  : (uint32_t)spent_ns;
    uint32_t average = atomic_load_explicit(cost, memory_order_relaxed);
    average = average ? average - average / 4 + sample / 4 : sample;
    atomic_store_explicit(cost, average ? average : 1, memory_order_relaxed);
}

/* ------------------------------------------------------------------- decisions, lock held */

static worker *worker_of(far__list *link)
{
    return far__container_of(link, worker, link);
}

static worker *wake_idle(far__executor *e, errands *r)
{
    worker *w = worker_of(far__list_pop(&e->idle));
    e->idle_count--;
    e->coming++;
    atomic_store(&w->word, 1);
    assert(!r->wake);
    r->wake = &w->word;
    return w;
}

static void take_from_loop(far__executor *e, worker *w)
{
    e->o.ops.watch(e->o.ops.arg, false);
    e->role = ROLE_THREAD;
    e->holder = w;
}

/* The role leaves `holder` (or the loop, or begins): to the thread that went idle last, else to the
 * loop. */
static void give_role(far__executor *e, errands *r)
{
    if (!far__list_empty(&e->idle)) {
        worker *w = wake_idle(e, r);
        if (e->role == ROLE_LOOP)
            e->o.ops.watch(e->o.ops.arg, false);
        e->role = ROLE_THREAD;
        e->holder = w;
        return;
    }
    if (e->role != ROLE_LOOP)
        e->o.ops.watch(e->o.ops.arg, true);
    e->role = ROLE_LOOP;
    e->holder = NULL;
}

static bool may_start(const far__executor *e, bool stalled)
{
    unsigned all = e->threads + e->starting;
    return all < e->o.threads_max && (stalled || all < e->o.threads + e->waiting);
}

static void ask_for_thread(far__executor *e, int64_t now, errands *r)
{
    e->starting++;
    e->started_at = now;
    r->start = true;
}

/* Could the watchdog do something about a queue that does not move? */
static bool can_help(const far__executor *e)
{
    return e->holder || e->idle_count || e->starting || e->threads < e->o.threads_max;
}

static void arm(far__executor *e)
{
    if (e->ticking || e->stopped)
        return;
    int64_t now = far__clock_now();
    e->ticking = true;
    far__executor_hold(e);
    e->seen_job = e->holder ? e->holder->job : 0;
    e->seen_taken = e->taken;
    e->seen_finished = e->finished;
    e->stalled_since = now;
    far__loop_timer_set(e->o.loop, &e->timer, now + TICK_NS);
}

/* Invariant 2: if the queue is not empty, somebody is on the way to look at it, or the watchdog
 * ticks. One at a time is sent for: who takes a long job sends for the next. */
static void see_to_queue(far__executor *e, errands *r)
{
    if (far__list_empty(&e->queue) || e->coming || e->stopped)
        return;
    if (!far__list_empty(&e->idle)) {
        wake_idle(e, r);
        return;
    }
    if (e->holder && e->holder->reading) {
        if (!e->reader_woken)
            r->wake_reader = e->reader_woken = true;
        return;
    }
    /* A holder that does not read is in a short job or between two: it will look. */
    if (!e->holder && !e->starting && may_start(e, false)) {
        int64_t now = far__clock_now();
        if (now >= e->start_after)
            ask_for_thread(e, now, r);
    }
    if (can_help(e))
        arm(e);
}

/* ------------------------------------------------------------------- errands, lock not held */

static void enter(far__executor *e, unsigned refs);
static void leave(far__executor *e, unsigned refs, bool counted);

static void *thread_main(void *arg)
{
    far__thread_name("farcall-work");
    enter(arg, 1);
    return NULL;
}

static void start_thread(far__executor *e)
{
    if (e->o.service) {
        far__service_start_thread(e->o.service);
        return;
    }
    far__executor_hold(e);
    far__mutex_lock(&e->lock);
    e->arriving++;
    far__mutex_unlock(&e->lock);
    if (far__thread_start(thread_main, e, NULL) == FAR_OK)
        return;
    /* Not fatal: those that exist go on, and the watchdog tries again. The loop thread never runs the
     * jobs itself, not even when there is no thread at all: they may block, and timers must not. */
    far__mutex_lock(&e->lock);
    if (e->starting)
        e->starting--;
    e->start_after = far__clock_now() + RETRY_NS;
    if (!far__list_empty(&e->queue))
        arm(e);
    far__mutex_unlock(&e->lock);
    leave(e, 1, false);
}

static void unlock_and_run(far__executor *e, errands *r)
{
    bool inside = r->wake_reader || r->flush || r->start;
    if (inside)
        go_inside(e);
    far__mutex_unlock(&e->lock);
    if (r->wake)
        far__futex_wake(r->wake, 1);
    if (!inside)
        return;
    if (r->wake_reader)
        e->o.ops.wake(e->o.ops.arg);
    if (r->flush)
        e->o.ops.flush(e->o.ops.arg);
    if (r->start)
        start_thread(e);
    come_out(e);
}

/* ------------------------------------------------------------------- the watchdog, loop thread */

/* Invariant 1: only a holder that is inside a job, the same as a tick ago, loses the role. */
static void watch_holder(far__executor *e, errands *r)
{
    worker *w = e->holder;
    if (w && w->job && w->job == e->seen_job) {
        /* At once, not when it returns: a job that never returns must surprise only once. */
        if (w->cost && atomic_load_explicit(w->cost, memory_order_relaxed) < COST_STUCK_NS)
            atomic_store_explicit(w->cost, (uint32_t)COST_STUCK_NS, memory_order_relaxed);
        give_role(e, r);
    }
    e->seen_job = e->holder ? e->holder->job : 0;
}

static void watch_queue(far__executor *e, int64_t now, errands *r)
{
    bool moved = e->taken != e->seen_taken;
    bool empty = far__list_empty(&e->queue);
    if (empty || e->finished != e->seen_finished)
        e->stalled_since = now;
    e->seen_finished = e->finished;
    if (e->starting && now - e->started_at >= START_LOST_NS)
        e->starting = 0;
    if (empty || e->coming || e->starting)
        return;
    bool stalled = now - e->stalled_since >= STALL_NS;
    if (!far__list_empty(&e->idle)) {
        if (!moved)
            wake_idle(e, r);
    } else if (e->holder && e->holder->reading) {
        see_to_queue(e, r);
    } else if ((stalled || !moved) && may_start(e, stalled) && now >= e->start_after) {
        ask_for_thread(e, now, r);
    }
}

static void tick(far__timer *t)
{
    far__executor *e = far__container_of(t, far__executor, timer);
    errands r = {0};
    int64_t now = far__clock_now();
    far__mutex_lock(&e->lock);
    bool again = false;
    if (!e->stopped) {
        uint64_t taken = e->taken;
        watch_holder(e, &r);
        watch_queue(e, now, &r);
        r.flush = e->unflushed;
        e->unflushed = false;
        again = (e->holder && e->holder->job) || taken - e->seen_taken >= BUSY_PER_TICK ||
                (!far__list_empty(&e->queue) && can_help(e));
        e->seen_taken = taken;
    }
    e->ticking = again;
    if (again) {
        far__executor_hold(e);
        far__loop_timer_set(e->o.loop, &e->timer, now + TICK_NS);
    }
    unlock_and_run(e, &r);
    far__executor_release(e);
}

/* ------------------------------------------------------------------- a worker; lock held */

/* The queue is not empty. */
static void run_job(far__executor *e, worker *w)
{
    errands r = {0};
    far__job *j = far__container_of(far__list_pop(&e->queue), far__job, link);
    _Atomic uint32_t *cost = j->cost; /* run may free the job */
    bool keeps = is_short(cost);
    e->queued--;
    e->running++;
    w->job = ++e->taken;
    w->cost = cost;
    if (!keeps) {
        r.flush = e->unflushed;
        e->unflushed = false;
        if (e->holder == w)
            give_role(e, &r);
        see_to_queue(e, &r);
    } else if (e->holder == w || e->unflushed || !far__list_empty(&e->queue)) {
        arm(e);
    }
    unlock_and_run(e, &r);

    int64_t begin = cost ? far__clock_now() : 0;
    j->run(j);
    int64_t spent = cost ? far__clock_now() - begin : 0;
    if (e->forked)
        return;

    far__mutex_lock(&e->lock);
    if (cost && !e->stopped) /* once stopped, the job may have been the last to keep it alive */
        learn(cost, spent);
    assert(w->waits == 0);
    w->job = 0;
    w->cost = NULL;
    e->running--;
    e->finished++;
    e->unflushed = true;
}

static void flush(far__executor *e)
{
    errands r = {.flush = true};
    e->unflushed = false;
    unlock_and_run(e, &r);
    far__mutex_lock(&e->lock);
}

static void read_requests(far__executor *e, worker *w)
{
    w->reading = true;
    go_inside(e);
    far__mutex_unlock(&e->lock);
    e->o.ops.read(e->o.ops.arg, FAR__NEVER);
    come_out(e);
    far__mutex_lock(&e->lock);
    w->reading = false;
    e->reader_woken = false;
    e->unflushed = true;
}

/* False: leave. */
static bool be_idle(far__executor *e, worker *w)
{
    int64_t until = e->idle_count < IDLE_KEPT
                        ? FAR__NEVER
                        : far__deadline(far__clock_now(), e->o.idle_ns ? e->o.idle_ns : IDLE_NS);
    atomic_store(&w->word, 0);
    far__list_add_head(&e->idle, &w->link);
    e->idle_count++;
    far__mutex_unlock(&e->lock);
    while (!atomic_load(&w->word)) {
        if (far__futex_wait(&w->word, 0, until) == ETIMEDOUT)
            break;
    }
    far__mutex_lock(&e->lock);
    if (atomic_load(&w->word)) {
        e->coming--;
        return true;
    }
    far__list_remove(&w->link);
    e->idle_count--;
    return e->idle_count < IDLE_KEPT || !far__list_empty(&e->queue) || e->role == ROLE_LOOP;
}

static void work(far__executor *e, worker *w)
{
    while (!e->stopped) {
        if (!far__list_empty(&e->queue)) {
            run_job(e, w);
        } else if (e->unflushed) {
            flush(e);
        } else if (e->holder == w) {
            read_requests(e, w);
        } else if (e->role == ROLE_LOOP && !e->loop_reading) {
            take_from_loop(e, w);
        } else if (!be_idle(e, w)) {
            assert(e->holder != w);
            return;
        }
    }
}

/* Gives up `refs` references and what this thread counted for. While far__executor_stop has not
 * returned its caller holds another reference, so the last one is not given up under the lock. */
static void leave(far__executor *e, unsigned refs, bool counted)
{
    far__mutex_lock(&e->lock);
    bool waited_for = !e->stop_done;
    for (unsigned i = 0; waited_for && i < refs; i++)
        (void)far__ref_release(&e->refs);
    if (counted)
        e->threads--;
    else if (e->arriving)
        e->arriving--;
    if (e->stopped && waited_for) {
        atomic_fetch_add(&e->left, 1);
        far__futex_wake(&e->left, INT_MAX);
    }
    far__mutex_unlock(&e->lock);
    for (unsigned i = 0; !waited_for && i < refs; i++)
        far__executor_release(e);
}

/* `refs` are the thread's, to be given up at the end. */
static void enter(far__executor *e, unsigned refs)
{
    worker w = {.executor = e, .outer = here};
    far__list_init(&w.link);
    far__mutex_lock(&e->lock);
    if (e->starting)
        e->starting--;
    bool counted = !e->stopped && e->threads < e->o.threads_max;
    if (counted) {
        if (e->arriving)
            e->arriving--;
        e->threads++;
        here = &w;
        work(e, &w);
        here = w.outer;
        if (e->forked)
            return;
    }
    far__mutex_unlock(&e->lock);
    if (counted && e->o.ops.leaves)
        e->o.ops.leaves();
    leave(e, refs, counted);
}

void far__executor_enter(far__executor *e)
{
    far__executor_hold(e);
    enter(e, 1);
}

void far__executor_waiting(bool waits)
{
    worker *w = here;
    if (!w || w->executor->forked)
        return;
    far__executor *e = w->executor;
    errands r = {0};
    far__mutex_lock(&e->lock);
    if (w->job && waits && w->waits++ == 0) {
        e->waiting++;
        if (e->holder == w)
            give_role(e, &r);
        see_to_queue(e, &r);
    } else if (w->job && !waits) {
        assert(w->waits);
        if (--w->waits == 0)
            e->waiting--;
    }
    unlock_and_run(e, &r);
}

/* ------------------------------------------------------------------- life */

static void no_flush(void *arg)
{
    (void)arg;
}

far_status far__executor_create(const far__executor_options *o, far__executor **out)
{
    if (!o->threads || !o->threads_max)
        return FAR_EINVAL;
    far__executor *e = far__mem_zalloc(sizeof *e);
    if (!e)
        return FAR_ENOMEM;
    far__ref_init(&e->refs);
    e->o = *o;
    if (e->o.threads > e->o.threads_max)
        e->o.threads = e->o.threads_max;
    if (!e->o.ops.flush)
        e->o.ops.flush = no_flush;
    far__mutex_init(&e->lock);
    far__list_init(&e->queue);
    far__list_init(&e->idle);
    far__timer_init(&e->timer, tick);
    *out = e;
    return FAR_OK;
}

void far__executor_start(far__executor *e)
{
    errands r = {0};
    far__mutex_lock(&e->lock);
    if (e->role == ROLE_NONE && !e->stopped)
        give_role(e, &r);
    unlock_and_run(e, &r);
}

/* Until only threads inside a job are left: those stay behind, and are freed of us by their reference. */
static void await_leaving(far__executor *e)
{
    for (;;) {
        uint32_t left = atomic_load(&e->left);
        far__mutex_lock(&e->lock);
        e->stop_done = e->threads == e->running && e->arriving == 0;
        bool done = e->stop_done;
        far__mutex_unlock(&e->lock);
        if (done)
            return;
        (void)far__futex_wait(&e->left, left, FAR__NEVER);
    }
}

void far__executor_stop(far__executor *e, far__list *left)
{
    far__list_init(left);
    errands r = {0};
    far__mutex_lock(&e->lock);
    assert(!here || here->executor != e || !here->reading);
    e->stopped = true;
    far__list_splice(left, &e->queue);
    e->queued = 0;
    if (e->role == ROLE_LOOP)
        e->o.ops.watch(e->o.ops.arg, false);
    r.wake_reader = e->holder && e->holder->reading;
    e->role = ROLE_NONE;
    e->holder = NULL;
    /* Its reference is ours if the tick will not run, else the tick's. */
    bool disarmed = e->ticking && far__loop_timer_clear(e->o.loop, &e->timer);
    if (disarmed)
        e->ticking = false;
    while (!far__list_empty(&e->idle)) {
        errands idle = {0};
        wake_idle(e, &idle);
        unlock_and_run(e, &idle);
        far__mutex_lock(&e->lock);
    }
    unlock_and_run(e, &r);
    uint32_t inside;
    while ((inside = atomic_load(&e->inside)) != 0)
        (void)far__futex_wait(&e->inside, inside, FAR__NEVER);
    await_leaving(e);
    if (disarmed)
        far__executor_release(e);
}

void far__executor_forked(far__executor *e)
{
    e->forked = true;
    atomic_store(&e->stopped, true);
}

far__executor *far__executor_hold(far__executor *e)
{
    far__ref_hold(&e->refs);
    return e;
}

void far__executor_release(far__executor *e)
{
    if (!far__ref_release(&e->refs))
        return;
    assert(far__list_empty(&e->queue) && e->threads == 0 && !e->ticking);
    far__mutex_fini(&e->lock);
    far__mem_free(e);
}

/* ------------------------------------------------------------------- jobs in, questions */

static bool push(far__executor *e, far__job *j, bool by_reader)
{
    errands r = {0};
    far__mutex_lock(&e->lock);
    bool open = !e->stopped;
    if (open) {
        far__list_add_tail(&e->queue, &j->link);
        e->queued++;
        /* The reader itself will look, also if it came here through a callback. */
        if (!by_reader && !(here && here->executor == e && here->reading))
            see_to_queue(e, &r);
    }
    unlock_and_run(e, &r);
    return open;
}

bool far__executor_push(far__executor *e, far__job *j)
{
    return push(e, j, false);
}

bool far__executor_push_read(far__executor *e, far__job *j)
{
    return push(e, j, true);
}

bool far__executor_loop_begin(far__executor *e)
{
    far__mutex_lock(&e->lock);
    bool ours = e->role == ROLE_LOOP;
    if (ours) {
        e->loop_reading = true;
        go_inside(e);
    }
    far__mutex_unlock(&e->lock);
    return ours;
}

void far__executor_kick(far__executor *e)
{
    errands r = {0};
    far__mutex_lock(&e->lock);
    bool was_reading = e->loop_reading;
    e->loop_reading = false;
    if (!e->stopped) {
        r.flush = true;
        e->unflushed = false;
        if (e->role == ROLE_LOOP && !far__list_empty(&e->idle))
            give_role(e, &r);
        see_to_queue(e, &r);
    }
    unlock_and_run(e, &r);
    if (was_reading)
        come_out(e);
}

void far__executor_appended(far__executor *e)
{
    far__mutex_lock(&e->lock);
    e->unflushed = true;
    arm(e);
    far__mutex_unlock(&e->lock);
}

unsigned far__executor_threads(far__executor *e)
{
    far__mutex_lock(&e->lock);
    unsigned threads = e->threads;
    far__mutex_unlock(&e->lock);
    return threads;
}

size_t far__executor_busy(far__executor *e)
{
    far__mutex_lock(&e->lock);
    size_t busy = e->queued + e->running;
    far__mutex_unlock(&e->lock);
    return busy;
}

bool far__executor_here(const far__executor *e)
{
    for (const worker *w = here; w; w = w->outer) {
        if (w->executor == e)
            return true;
    }
    return false;
}
