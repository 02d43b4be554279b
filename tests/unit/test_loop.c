/* SPDX-License-Identifier: BSD-3-Clause
 * tests of async/loop. */
#include "async/loop.h"

#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "support/failmem.h"
#include "support/gate.h"
#include "support/test.h"

#define HOUR (3600 * FAR_SECOND)

static far__loop *make_loop(void)
{
    far__loop *l = NULL;
    assert_ok(far__loop_create(&l));
    assert_ok(far__loop_start(l));
    return l;
}

static void drop_loop(far__loop *l)
{
    far__loop_stop(l);
    far__loop_destroy(l);
}

/* A task that says that it ran, and where. */
typedef struct note {
    far__task task;
    far__loop *loop;
    gate *done;
    size_t order;
    bool on_loop;
    pid_t tid;
    sigset_t blocked;
    char name[16];
} note;

static void note_run(far__task *t)
{
    note *n = far__container_of(t, note, task);
    n->on_loop = far__loop_here(n->loop);
    n->tid = gate_tid();
    pthread_sigmask(SIG_SETMASK, NULL, &n->blocked);
    pthread_getname_np(pthread_self(), n->name, sizeof n->name);
    n->order = gate_count(n->done);
    gate_pass(n->done);
}

static note make_note(far__loop *l, gate *done)
{
    return (note){.task.run = note_run, .loop = l, .done = done};
}

static pid_t tid_of(far__loop *l)
{
    gate done = GATE_INIT;
    note n = make_note(l, &done);
    far__loop_post(l, &n.task);
    gate_wait(&done, 1);
    return n.tid;
}

static bool asleep_for_ever(pid_t tid)
{
    return gate_sleeps_in(tid, SYS_epoll_pwait2, 3);
}

static void posted_tasks_run_in_order(void **state)
{
    (void)state;
    far__loop *l = NULL;
    assert_ok(far__loop_create(&l));
    gate done = GATE_INIT;
    note n[20];
    for (size_t i = 0; i < 20; i++) {
        n[i] = make_note(l, &done);
        if (i == 10)
            assert_ok(far__loop_start(l));
        far__loop_post(l, &n[i].task);
    }
    gate_wait(&done, 20);
    for (size_t i = 0; i < 20; i++) {
        assert_true(n[i].on_loop);
        assert_int_equal(n[i].order, i);
    }
    assert_false(far__loop_here(l));
    drop_loop(l);
}

static void thread_blocks_signals_and_has_a_name(void **state)
{
    (void)state;
    far__loop *l = make_loop();
    gate done = GATE_INIT;
    note n = make_note(l, &done);
    far__loop_post(l, &n.task);
    gate_wait(&done, 1);
    assert_int_equal(sigismember(&n.blocked, SIGINT), 1);
    assert_int_equal(sigismember(&n.blocked, SIGCHLD), 1);
    assert_string_equal(n.name, "farcall-loop");
    sigset_t mine;
    pthread_sigmask(SIG_SETMASK, NULL, &mine);
    assert_int_equal(sigismember(&mine, SIGINT), 0);
    drop_loop(l);
}

/* Posts a second task from the loop, while it is stopping. */
typedef struct chain {
    far__task task;
    note second;
    gate *hold;
} chain;

static void chain_run(far__task *t)
{
    chain *c = far__container_of(t, chain, task);
    gate_wait(c->hold, 1);
    far__loop_post(c->second.loop, &c->second.task);
}

static void *pass_later(void *arg)
{
    gate_pass(arg);
    return NULL;
}

static void stop_runs_what_was_posted(void **state)
{
    (void)state;
    far__loop *l = make_loop();
    gate done = GATE_INIT, hold = GATE_INIT;
    chain c = {.task.run = chain_run, .second = make_note(l, &done), .hold = &hold};
    far__loop_post(l, &c.task);
    pthread_t helper;
    assert_int_equal(pthread_create(&helper, NULL, pass_later, &hold), 0);
    far__loop_stop(l);
    pthread_join(helper, NULL);
    assert_int_equal(gate_count(&done), 1);
    assert_true(c.second.on_loop);

    note late = make_note(l, &done);
    far__loop_post(l, &late.task);
    assert_int_equal(gate_count(&done), 2);
    assert_int_equal(late.tid, gate_tid());
    far__loop_stop(l);
    far__loop_destroy(l);
}

static void never_started_runs_its_tasks_at_the_end(void **state)
{
    (void)state;
    far__loop *l = NULL;
    assert_ok(far__loop_create(&l));
    gate done = GATE_INIT;
    note n = make_note(l, &done);
    far__loop_post(l, &n.task);
    assert_int_equal(gate_count(&done), 0);
    far__loop_destroy(l);
    assert_int_equal(gate_count(&done), 1);
}

static void idle_loop_sleeps_for_ever(void **state)
{
    (void)state;
    far__loop *l = make_loop();
    pid_t tid = tid_of(l);
    gate_until(asleep_for_ever(tid));
    drop_loop(l);
}

/* ------------------------------------------------------------------- timers */

static _Atomic int64_t fake_now;
static _Atomic size_t looks; /* how often the clock was read */

static int64_t fake_clock(void *arg)
{
    (void)arg;
    atomic_fetch_add(&looks, 1);
    return atomic_load(&fake_now);
}

typedef struct alarm_note {
    far__timer timer;
    far__loop *loop;
    gate fired;
    int64_t times; /* re-arms itself as often */
    int64_t seen;
} alarm_note;

static void alarm_fire(far__timer *t)
{
    alarm_note *a = far__container_of(t, alarm_note, timer);
    assert(far__loop_here(a->loop));
    a->seen = far__clock_now();
    if (--a->times > 0)
        far__loop_timer_set(a->loop, t, a->seen + 1000);
    gate_pass(&a->fired);
}

static void make_alarm(alarm_note *a, far__loop *l, int64_t times)
{
    *a = (alarm_note){.loop = l, .fired = GATE_INIT, .times = times};
    far__timer_init(&a->timer, alarm_fire);
}

static void timer_never_fires_early(void **state)
{
    (void)state;
    atomic_store(&fake_now, 1000);
    far__clock_set(fake_clock, NULL);
    far__loop *l = make_loop();
    alarm_note a;
    make_alarm(&a, l, 1);
    far__loop_timer_set(l, &a.timer, 1000 + 2000000);
    atomic_store(&fake_now, 1000 + 1999999);
    size_t before = atomic_load(&looks);
    gate_until(atomic_load(&looks) > before + 6); /* it looked, and looked again */
    assert_int_equal(gate_count(&a.fired), 0);
    atomic_store(&fake_now, 1000 + 2000000);
    gate_wait(&a.fired, 1);
    drop_loop(l);
    far__clock_set(NULL, NULL);
}

static void timers_fire_by_the_kernels_clock(void **state)
{
    (void)state;
    for (int coarse = 0; coarse < 2; coarse++) {
        atomic_store(&far__loop_coarse, coarse != 0);
        far__loop *l = make_loop();
        alarm_note a;
        make_alarm(&a, l, 20);
        int64_t at = far__clock_now() + 300000;
        far__loop_timer_set(l, &a.timer, at);
        gate_wait(&a.fired, 20);
        far__loop_stop(l);
        assert_true(a.seen >= at + 19 * 1000);
        far__loop_destroy(l);
    }
    atomic_store(&far__loop_coarse, false);
}

static void milliseconds_are_rounded_up(void **state)
{
    (void)state;
    assert_int_equal(far__loop_milliseconds(0), 0);
    assert_int_equal(far__loop_milliseconds(1), 1);
    assert_int_equal(far__loop_milliseconds(1000000), 1);
    assert_int_equal(far__loop_milliseconds(1000001), 2);
    assert_int_equal(far__loop_milliseconds(FAR__NEVER - 1), INT_MAX);
    assert_int_equal(far__loop_milliseconds(FAR__NEVER), -1);
}

static void earlier_timer_wakes_a_sleeping_loop(void **state)
{
    (void)state;
    far__loop *l = make_loop();
    pid_t tid = tid_of(l);
    alarm_note late, early;
    make_alarm(&late, l, 1);
    make_alarm(&early, l, 1);
    gate_until(asleep_for_ever(tid));
    far__loop_timer_set(l, &late.timer, far__clock_now() + HOUR);
    far__loop_timer_set(l, &early.timer, far__clock_now());
    gate_wait(&early.fired, 1);
    assert_true(far__loop_timer_clear(l, &late.timer));
    assert_false(far__loop_timer_clear(l, &late.timer));
    assert_false(far__loop_timer_clear(l, &early.timer));
    (void)tid_of(l); /* clearing does not wake it */
    gate_until(asleep_for_ever(tid));
    drop_loop(l);
    assert_int_equal(gate_count(&late.fired), 0);
}

/* The loop reads the clock when it wakes; a timer behind the first one must not make it do so. */
static void later_timer_does_not_wake_the_loop(void **state)
{
    (void)state;
    enum { ROUNDS = 200 };
    atomic_store(&fake_now, 0);
    far__clock_set(fake_clock, NULL);
    far__loop *l = make_loop();
    pid_t tid = tid_of(l);
    alarm_note first, behind;
    make_alarm(&first, l, 1);
    make_alarm(&behind, l, 1);
    far__loop_timer_set(l, &first.timer, HOUR);
    (void)tid_of(l);
    gate_until(gate_sleeps_in(tid, SYS_epoll_pwait2, 4));
    size_t before = atomic_load(&looks);
    for (int i = 0; i < ROUNDS; i++) {
        far__loop_timer_set(l, &behind.timer, HOUR + i);
        sched_yield();
    }
    assert_int_equal(atomic_load(&looks), before);
    drop_loop(l);
    far__clock_set(NULL, NULL);
}

/* The race between computing the sleep and going to sleep: a lost wake-up would hang here. */
static void no_wake_up_is_lost(void **state)
{
    (void)state;
    enum { ROUNDS = 3000 };
    far__loop *l = make_loop();
    alarm_note a;
    make_alarm(&a, l, 1);
    gate done = GATE_INIT;
    for (size_t i = 1; i <= ROUNDS; i++) {
        far__loop_timer_set(l, &a.timer, far__clock_now());
        if (i % 2)
            gate_wait(&a.fired, i);
        note n = make_note(l, &done);
        far__loop_post(l, &n.task);
        gate_wait(&done, i);
        gate_wait(&a.fired, i);
    }
    drop_loop(l);
}

enum { POSTERS = 4, POSTS = 5000 };

typedef struct poster {
    far__loop *loop;
    gate *done;
    note notes[POSTS];
} poster;

static void *post_many(void *arg)
{
    poster *p = arg;
    for (int i = 0; i < POSTS; i++) {
        p->notes[i] = make_note(p->loop, p->done);
        far__loop_post(p->loop, &p->notes[i].task);
    }
    return NULL;
}

static void posts_of_many_threads_while_it_stops(void **state)
{
    (void)state;
    far__loop *l = make_loop();
    gate done = GATE_INIT;
    pthread_t threads[POSTERS];
    poster *posters = calloc(POSTERS, sizeof *posters);
    assert_non_null(posters);
    for (int i = 0; i < POSTERS; i++) {
        posters[i].loop = l;
        posters[i].done = &done;
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, &posters[i]), 0);
    }
    gate_wait(&done, POSTS);
    far__loop_stop(l);
    for (int i = 0; i < POSTERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(gate_count(&done), POSTERS * POSTS);
    far__loop_destroy(l);
    free(posters);
}

/* ------------------------------------------------------------------- descriptors */

typedef struct bell {
    far__watch watch;
    far__loop *loop;
    struct bell *other; /* removed when this one rings */
    gate rung;
    size_t drain_after; /* rings so often until it is drained: level-triggered */
} bell;

static void bell_ready(far__watch *w, uint32_t events)
{
    bell *b = far__container_of(w, bell, watch);
    assert(events & EPOLLIN);
    if (b->other)
        far__loop_remove(b->loop, &b->other->watch);
    uint64_t count;
    if (gate_count(&b->rung) + 1 >= b->drain_after)
        assert_int_equal(read(w->fd, &count, sizeof count), sizeof count);
    gate_pass(&b->rung);
}

static void make_bell(bell *b, far__loop *l, size_t drain_after)
{
    *b = (bell){.watch.ready = bell_ready,
                .watch.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                .loop = l,
                .rung = GATE_INIT,
                .drain_after = drain_after};
    assert_true(b->watch.fd >= 0);
}

static void ring(bell *b)
{
    uint64_t one = 1;
    assert_int_equal(write(b->watch.fd, &one, sizeof one), sizeof one);
}

static void watches_are_level_triggered(void **state)
{
    (void)state;
    far__loop *l = make_loop();
    bell b;
    make_bell(&b, l, 5);
    assert_ok(far__loop_add(l, &b.watch, 0));
    ring(&b);
    far__loop_change(l, &b.watch, EPOLLIN);
    gate_wait(&b.rung, 5);
    far__loop_remove(l, &b.watch);
    far__loop_remove(l, &b.watch);
    ring(&b);
    (void)tid_of(l);
    assert_int_equal(gate_count(&b.rung), 5);
    drop_loop(l);
    close(b.watch.fd);
}

static void adding_a_bad_descriptor_fails(void **state)
{
    (void)state;
    far__loop *l = make_loop();
    far__watch bad = {.ready = bell_ready, .fd = -1};
    assert_status(FAR_ESYSTEM, far__loop_add(l, &bad, EPOLLIN));
    drop_loop(l);
}

/* Both rang before the loop looked, so both are in one batch; whichever comes first removes the
 * other one, and no event of it may follow. */
static void removing_suppresses_the_present_batch(void **state)
{
    (void)state;
    far__loop *l = NULL;
    assert_ok(far__loop_create(&l));
    bell a, b;
    make_bell(&a, l, 1);
    make_bell(&b, l, 1);
    a.other = &b;
    b.other = &a;
    assert_ok(far__loop_add(l, &a.watch, EPOLLIN));
    assert_ok(far__loop_add(l, &b.watch, EPOLLIN));
    ring(&a);
    ring(&b);
    assert_ok(far__loop_start(l));
    pid_t tid = tid_of(l);
    gate_until(asleep_for_ever(tid));
    drop_loop(l);
    assert_int_equal(gate_count(&a.rung) + gate_count(&b.rung), 1);
    close(a.watch.fd);
    close(b.watch.fd);
}

static void out_of_memory(void **state)
{
    (void)state;
    failmem_begin(1);
    far__loop *l = NULL;
    assert_status(FAR_ENOMEM, far__loop_create(&l));
    assert_null(l);
    failmem_end();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(posted_tasks_run_in_order),
    cmocka_unit_test(thread_blocks_signals_and_has_a_name),
    cmocka_unit_test(stop_runs_what_was_posted),
    cmocka_unit_test(never_started_runs_its_tasks_at_the_end),
    cmocka_unit_test(idle_loop_sleeps_for_ever),
    cmocka_unit_test(timer_never_fires_early),
    cmocka_unit_test(timers_fire_by_the_kernels_clock),
    cmocka_unit_test(milliseconds_are_rounded_up),
    cmocka_unit_test(earlier_timer_wakes_a_sleeping_loop),
    cmocka_unit_test(later_timer_does_not_wake_the_loop),
    cmocka_unit_test(no_wake_up_is_lost),
    cmocka_unit_test(posts_of_many_threads_while_it_stops),
    cmocka_unit_test(watches_are_level_triggered),
    cmocka_unit_test(adding_a_bad_descriptor_fails),
    cmocka_unit_test(removing_suppresses_the_present_batch),
    cmocka_unit_test(out_of_memory),
};
FAR_TEST_MAIN(tests)
