/* SPDX-License-Identifier: BSD-3-Clause
 * tests of async/executor. Where the clock is frozen the watchdog never ticks: what happens there
 * happens without it. */
#include "async/executor.h"

#include <stdlib.h>

#include "support/failmem.h"
#include "support/jobserver.h"
#include "support/test.h"

/* ------------------------------------------------------------------- the role */

static void short_jobs_keep_the_role(void **state)
{
    (void)state;
    freeze_clock();
    server s;
    open_server(&s, THREADS(16, 512));
    assert_int_equal(atomic_load(&s.watched), 1); /* the loop has it first */
    pid_t tid = call_short(&s);
    assert_int_equal(wait_for_reader(&s), tid);
    for (int i = 0; i < 200; i++)
        assert_int_equal(call_short(&s), tid);
    assert_int_equal(far__executor_threads(s.executor), 1);
    assert_int_equal(atomic_load(&s.watches), 1);
    assert_int_equal(atomic_load(&s.loop_batches), 1);
    close_server(&s);
}

static void batch_of_short_jobs_is_run_by_the_reader_alone(void **state)
{
    (void)state;
    enum { BATCH = 64 };
    freeze_clock();
    server s;
    open_server(&s, THREADS(16, 512));
    pid_t tid = call_short(&s);
    wait_for_reader(&s);
    static _Atomic uint32_t cost = 1000;
    gate done = GATE_INIT;
    act a[BATCH];
    for (int i = 0; i < BATCH; i++) {
        make_act(&a[i], &s, &cost, NULL, &done);
        if (i < BATCH - 1)
            request_act(&s, &a[i]);
    }
    send_act(&s, &a[BATCH - 1]);
    gate_wait(&done, BATCH);
    for (int i = 0; i < BATCH; i++)
        assert_int_equal(a[i].tid, tid);
    assert_int_equal(far__executor_threads(s.executor), 1);
    close_server(&s);
}

static void long_job_gives_the_role_to_the_loop_then_to_the_idle_thread(void **state)
{
    (void)state;
    freeze_clock();
    server s;
    open_server(&s, THREADS(16, 512));
    pid_t first = call_short(&s);
    wait_for_reader(&s);

    gate hold = GATE_INIT, done = GATE_INIT, hold2 = GATE_INIT, done2 = GATE_INIT;
    act stuck, stuck2;
    make_act(&stuck, &s, NULL, &hold, &done);
    send_act(&s, &stuck);
    gate_until(atomic_load(&s.watched) == 1); /* nobody is idle */
    pid_t second = call_short(&s);            /* read by the loop, run by a new thread */
    gate_until(atomic_load(&stuck.runs) == 1);
    assert_int_equal(stuck.tid, first);
    assert_int_not_equal(second, first);
    assert_int_equal(wait_for_reader(&s), second); /* which took the role back */
    assert_int_equal(atomic_load(&s.watched), 0);

    gate_pass(&hold);
    gate_wait(&done, 1);
    gate_until(far__executor_busy(s.executor) == 0);
    gate_until(gate_sleeps_in(first, SYS_futex, 3));
    make_act(&stuck2, &s, NULL, &hold2, &done2);
    unsigned watches = atomic_load(&s.watches);
    send_act(&s, &stuck2);
    gate_until(atomic_load(&s.reader) == first);
    gate_until(atomic_load(&stuck2.runs) == 1);
    assert_int_equal(stuck2.tid, second);
    assert_int_equal(call_short(&s), first);
    assert_int_equal(atomic_load(&s.watches), watches);
    assert_int_equal(far__executor_threads(s.executor), 2);
    gate_pass(&hold2);
    close_server(&s);
}

static void stuck_job_of_an_unknown_kind_delays_nobody(void **state)
{
    (void)state;
    freeze_clock();
    server s;
    open_server(&s, THREADS(16, 512));
    pid_t first = call_short(&s);
    wait_for_reader(&s);
    _Atomic uint32_t cost = 0;
    gate hold = GATE_INIT, done = GATE_INIT;
    act stuck, again;
    make_act(&stuck, &s, &cost, &hold, &done);
    send_act(&s, &stuck);
    for (int i = 0; i < 20; i++)
        assert_int_not_equal(call_short(&s), first);
    gate_pass(&hold);
    gate_wait(&done, 1);
    gate_until(far__executor_busy(s.executor) == 0);
    /* By the frozen clock it took no time: now it is known as short, and keeps the role. */
    assert_int_equal(atomic_load(&cost), 1);
    unsigned watches = atomic_load(&s.watches);
    make_act(&again, &s, &cost, NULL, &done);
    send_act(&s, &again);
    gate_wait(&done, 2);
    assert_int_equal(atomic_load(&s.watches), watches);
    close_server(&s);
}

static void watchdog_takes_the_role_from_a_stuck_short_job(void **state)
{
    (void)state;
    server s;
    open_server(&s, THREADS(16, 512));
    pid_t first = call_short(&s);
    wait_for_reader(&s);
    _Atomic uint32_t cost = 1000, other = 1000;
    gate hold = GATE_INIT, done = GATE_INIT, done2 = GATE_INIT;
    act stuck, behind;
    make_act(&stuck, &s, &cost, &hold, &done);
    make_act(&behind, &s, &other, NULL, &done2);
    request_act(&s, &stuck); /* both in one batch: `behind` is in the queue */
    send_act(&s, &behind);
    gate_wait(&done2, 1);
    gate_until(atomic_load(&stuck.runs) == 1);
    assert_int_equal(stuck.tid, first);
    assert_int_not_equal(behind.tid, first);
    gate_until(atomic_load(&cost) >= FAR_MILLISECOND); /* at once, though it has not returned */
    assert_int_not_equal(call_short(&s), first);
    gate_pass(&hold);
    close_server(&s);
}

/* Starred in the design: the role is taken only from a thread that is inside a job. */
static void role_is_taken_only_from_inside_a_job(void **state)
{
    (void)state;
    server s;
    open_server(&s, THREADS(16, 512));
    pid_t tid = call_short(&s);
    assert_int_equal(wait_for_reader(&s), tid);
    for (size_t i = 1; i <= 20; i++) {
        size_t before = gate_count(&s.flushed);
        far__executor_appended(s.executor); /* makes the watchdog tick */
        gate_wait(&s.flushed, before + 1);
        assert_int_equal(atomic_load(&s.reader), tid);
    }
    assert_int_equal(atomic_load(&s.watches), 1);
    close_server(&s);
}

static void no_thread_takes_the_role_while_the_loop_reads(void **state)
{
    (void)state;
    freeze_clock();
    server s;
    open_server(&s, THREADS(1, 1));
    gate hold = GATE_INIT, started = GATE_INIT, done = GATE_INIT, loop_hold = GATE_INIT;
    act stuck, next;
    make_act(&stuck, &s, NULL, &hold, &done);
    stuck.started = &started;
    send_act(&s, &stuck);
    gate_wait(&started, 1);
    atomic_store(&s.loop_hold,
                 &loop_hold); /* the role is with the loop, which has nothing to read */
    make_act(&next, &s, NULL, NULL, &done);
    send_act(&s, &next);
    gate_until(atomic_load(&s.loop_batches) == 2);
    gate_pass(&hold);
    gate_wait(&done, 1);
    gate_until(gate_sleeps_in(stuck.tid, SYS_futex, 3)); /* idle, though nobody has the role */
    assert_int_equal(atomic_load(&s.reader), 0);
    assert_int_equal(atomic_load(&s.watched), 1);
    gate_pass(&loop_hold);
    gate_wait(&done, 2);
    assert_int_equal(wait_for_reader(&s), stuck.tid);
    close_server(&s);
}

static void waiting_for_a_future_gives_the_role_away(void **state)
{
    (void)state;
    freeze_clock();
    server s;
    open_server(&s, THREADS(16, 512));
    pid_t first = call_short(&s);
    wait_for_reader(&s);
    _Atomic uint32_t cost = 1000, cost2 = 1000;
    gate hold = GATE_INIT, done = GATE_INIT, done2 = GATE_INIT;
    act outer, inner;
    make_act(&outer, &s, &cost, NULL, &done);
    make_act(&inner, &s, &cost2, &hold, &done2);
    outer.nested = &inner;
    send_act(&s, &outer); /* short, so it holds the role when it begins to wait */
    gate_until(atomic_load(&inner.runs) == 1);
    gate_pass(&hold);
    gate_wait(&done, 1);
    assert_int_equal(outer.tid, first);
    assert_int_not_equal(inner.tid, first);
    close_server(&s);
}

/* ------------------------------------------------------------------- growth */

static void sixty_four_stuck_jobs_and_still_another_one_runs(void **state)
{
    (void)state;
    enum { STUCK = 64 };
    server s;
    open_server(&s, THREADS(4, 512));
    gate hold = GATE_INIT, started = GATE_INIT, done = GATE_INIT;
    act stuck[STUCK];
    for (int i = 0; i < STUCK; i++) {
        make_act(&stuck[i], &s, NULL, &hold, &done);
        stuck[i].started = &started;
        send_act(&s, &stuck[i]);
    }
    gate_wait(&started, STUCK);
    assert_true(far__executor_threads(s.executor) >= STUCK);
    (void)far__executor_busy(s.executor);
    gate other = GATE_INIT;
    act a;
    make_act(&a, &s, NULL, NULL, &other);
    send_act(&s, &a);
    gate_wait(&other, 1);
    gate_pass(&hold);
    gate_wait(&done, STUCK);
    close_server(&s);
}

/* The clock stands still, so no stall is ever seen: they grow because waiting ones do not count. */
static void nested_waits_grow_the_pool(void **state)
{
    (void)state;
    enum { DEPTH = 60 };
    freeze_clock();
    server s;
    open_server(&s, THREADS(2, 512));
    gate done[DEPTH];
    act a[DEPTH];
    for (int i = DEPTH - 1; i >= 0; i--) {
        done[i] = (gate)GATE_INIT;
        make_act(&a[i], &s, NULL, NULL, &done[i]);
        a[i].nested = i + 1 < DEPTH ? &a[i + 1] : NULL;
    }
    send_act(&s, &a[0]);
    gate_wait(&done[0], 1);
    assert_true(far__executor_threads(s.executor) >= DEPTH - 1);
    close_server(&s);
}

static void without_a_stall_not_beyond_threads(void **state)
{
    (void)state;
    enum { JOBS = 12, FEW = 3 };
    freeze_clock();
    server s;
    open_server(&s, THREADS(FEW, 512));
    gate hold = GATE_INIT, started = GATE_INIT, done = GATE_INIT;
    act a[JOBS];
    for (int i = 0; i < JOBS; i++) {
        make_act(&a[i], &s, NULL, &hold, &done);
        a[i].started = &started;
        assert_true(far__executor_push(s.executor, &a[i].job));
    }
    gate_wait(&started, FEW);
    assert_int_equal(far__executor_threads(s.executor), FEW);
    assert_int_equal(far__executor_busy(s.executor), JOBS);
    gate_pass(&hold);
    gate_wait(&done, JOBS);
    assert_int_equal(far__executor_threads(s.executor), FEW);
    close_server(&s);
}

/* Also starred: a thread that comes back from a job looks at the queue before it sleeps. */
static void threads_max_one_is_hard_and_a_returning_thread_looks(void **state)
{
    (void)state;
    enum { JOBS = 6 };
    server s;
    open_server(&s, THREADS(16, 1));
    gate hold = GATE_INIT, started = GATE_INIT, done = GATE_INIT;
    act a[JOBS];
    for (int i = 0; i < JOBS; i++) {
        make_act(&a[i], &s, NULL, i ? NULL : &hold, &done);
        a[i].started = &started;
        send_act(&s, &a[i]);
        gate_wait(&started, 1);
    }
    gate_until(far__executor_busy(s.executor) == JOBS); /* the loop read them */
    far__executor_enter(s.executor);                    /* one too many: back at once */
    assert_int_equal(far__executor_threads(s.executor), 1);
    assert_int_equal(gate_count(&started), 1);
    gate_pass(&hold);
    gate_wait(&done, JOBS);
    for (int i = 1; i < JOBS; i++)
        assert_int_equal(a[i].tid, a[0].tid);
    wait_for_reader(&s); /* and it takes the role back from the loop */
    close_server(&s);
}

static void threads_that_cannot_be_started_are_tried_again(void **state)
{
    (void)state;
    server s;
    open_server(&s, THREADS(4, 8));
    pthread_attr_t before, huge;
    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&huge), 0);
    assert_int_equal(pthread_attr_setstacksize(&huge, (size_t)1 << 47), 0);
    assert_int_equal(pthread_setattr_default_np(&huge), 0);
    gate done = GATE_INIT;
    act a;
    make_act(&a, &s, NULL, NULL, &done);
    assert_true(far__executor_push(s.executor, &a.job));
    assert_int_equal(far__executor_threads(s.executor), 0);
    assert_int_equal(far__executor_busy(s.executor), 1);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    gate_wait(&done, 1);
    pthread_attr_destroy(&before);
    pthread_attr_destroy(&huge);
    close_server(&s);
}

static void surplus_idle_threads_leave(void **state)
{
    (void)state;
    enum { JOBS = 8 };
    server s;
    far__executor_options o = THREADS(JOBS, JOBS);
    o.idle_ns = 1;
    open_server(&s, o);
    gate hold = GATE_INIT, started = GATE_INIT, done = GATE_INIT;
    act a[JOBS];
    for (int i = 0; i < JOBS; i++) {
        make_act(&a[i], &s, NULL, &hold, &done);
        a[i].started = &started;
        send_act(&s, &a[i]);
    }
    gate_wait(&started, JOBS);
    gate_pass(&hold);
    gate_wait(&done, JOBS);
    gate_until(far__executor_threads(s.executor) == 3); /* the reader and two idle ones */
    (void)call_short(&s);
    assert_in_range(far__executor_threads(s.executor), 3, 4);
    close_server(&s);
}

/* ------------------------------------------------------------------- flushing, quiet */

static void replies_are_flushed_before_a_long_job_and_by_the_watchdog(void **state)
{
    (void)state;
    server s;
    open_server(&s, THREADS(1, 1)); /* nobody else could flush */
    _Atomic uint32_t cost = 1000;
    gate hold = GATE_INIT, started = GATE_INIT, done = GATE_INIT;
    act quick, stuck;
    make_act(&quick, &s, &cost, NULL, &done);
    make_act(&stuck, &s, NULL, &hold, &done);
    stuck.started = &started;
    (void)call_short(&s);
    wait_for_reader(&s);
    size_t before = gate_count(&s.flushed);
    request_act(&s, &quick);
    send_act(&s, &stuck);
    gate_wait(&started, 1);
    assert_true(gate_count(&s.flushed) > before);
    before = gate_count(&s.flushed);
    far__executor_appended(s.executor);
    gate_wait(&s.flushed, before + 1);
    gate_pass(&hold);
    close_server(&s);
}

typedef struct tid_task {
    far__task task;
    pid_t tid;
    gate done;
} tid_task;

static void note_tid(far__task *t)
{
    tid_task *n = far__container_of(t, tid_task, task);
    n->tid = gate_tid();
    gate_pass(&n->done);
}

static void idle_process_has_no_wake_ups(void **state)
{
    (void)state;
    server s;
    open_server(&s, THREADS(16, 512));
    tid_task loop = {.task.run = note_tid, .done = GATE_INIT};
    far__loop_post(s.loop, &loop.task);
    gate_wait(&loop.done, 1);
    gate hold = GATE_INIT, done = GATE_INIT;
    act a[3];
    for (int i = 0; i < 3; i++) {
        make_act(&a[i], &s, NULL, &hold, &done);
        send_act(&s, &a[i]);
    }
    gate_until(atomic_load(&a[0].runs) + atomic_load(&a[1].runs) + atomic_load(&a[2].runs) == 3);
    /* A job that never returns does not keep the watchdog ticking, as it does not hold the role. */
    gate_until(gate_sleeps_in(loop.tid, SYS_epoll_pwait2, 3));
    gate_pass(&hold);
    gate_wait(&done, 3);
    gate_until(gate_sleeps_in(loop.tid, SYS_epoll_pwait2, 3));
    pid_t reader = wait_for_reader(&s);
    gate_until(gate_sleeps_in(reader, SYS_ppoll, 2));
    for (int i = 0; i < 3; i++) {
        if (a[i].tid != reader)
            gate_until(gate_sleeps_in(a[i].tid, SYS_futex, 3));
    }
    close_server(&s);
}

/* ------------------------------------------------------------------- stopping */

static void stop_while_stuck_gives_the_queue_back(void **state)
{
    (void)state;
    server s;
    open_server(&s, THREADS(1, 1));
    gate hold = GATE_INIT, started = GATE_INIT, done = GATE_INIT;
    act a[4];
    for (int i = 0; i < 4; i++) {
        make_act(&a[i], &s, NULL, &hold, &done);
        a[i].started = &started;
        assert_true(far__executor_push(s.executor, &a[i].job));
        gate_wait(&started, 1);
    }
    assert_int_equal(stop_server(&s), 3);
    assert_false(far__executor_push(s.executor, &a[3].job));
    assert_false(far__executor_loop_begin(s.executor));
    assert_int_equal(far__executor_busy(s.executor), 1);
    /* The loop may go while the job is still inside. */
    far__loop_stop(s.loop);
    gate_pass(&hold);
    gate_wait(&done, 1);
    assert_int_equal(gate_count(&started), 1);
    close_server(&s);
}

static void stop_wakes_the_reader_and_the_idle(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        server s;
        open_server(&s, THREADS(4, 4));
        gate hold = GATE_INIT, started = GATE_INIT, done = GATE_INIT;
        act a[4];
        for (int i = 0; i < 4; i++) {
            make_act(&a[i], &s, NULL, &hold, &done);
            a[i].started = &started;
            send_act(&s, &a[i]);
        }
        gate_wait(&started, 4);
        gate_pass(&hold);
        if (round % 2) {
            gate_wait(&done, 4);
            wait_for_reader(&s);
        }
        close_server(&s); /* waits until all have left */
    }
}

/* ------------------------------------------------------------------- the rest of the contract */

static void look_around(far__job *j)
{
    act *a = far__container_of(j, act, job);
    far__executor *e = a->server->executor;
    assert_true(far__executor_here(e));
    assert_int_equal(far__executor_threads(e), 1);
    assert_int_equal(far__executor_busy(e), 1);
    assert_true(far__executor_push(e, &a->nested->job));
    far__executor_waiting(true);
    far__executor_waiting(true); /* within one another */
    far__executor_waiting(false);
    far__executor_waiting(false);
    far__executor_appended(e);
    gate_pass(a->done);
}

static void no_lock_is_held_while_a_job_runs(void **state)
{
    (void)state;
    server s;
    open_server(&s, THREADS(1, 1));
    gate done = GATE_INIT;
    act a, b;
    make_act(&a, &s, NULL, NULL, &done);
    make_act(&b, &s, NULL, NULL, &done);
    a.job.run = look_around;
    a.nested = &b;
    send_act(&s, &a);
    gate_wait(&done, 2);
    assert_false(far__executor_here(s.executor));
    far__executor_waiting(true); /* not one of ours: nothing */
    far__executor_waiting(false);
    close_server(&s);
}

static void *enter_foreign(void *arg)
{
    far__executor_enter(arg);
    return NULL;
}

static void foreign_threads_are_asked_for_and_asked_for_again(void **state)
{
    (void)state;
    freeze_clock();
    server s;
    far__service service;
    far__service_init(&service, true);
    far__executor_options o = THREADS(4, 8);
    o.service = &service;
    open_server(&s, o);
    gate done = GATE_INIT;
    act a;
    make_act(&a, &s, NULL, NULL, &done);
    assert_true(far__executor_push(s.executor, &a.job));
    far_event event = {0};
    assert_ok(far__service_next(&service, &event));
    assert_int_equal(event.kind, FAR_EVENT_START_THREAD);
    /* That one is lost. After a while the executor gives up on it. */
    advance_clock(2 * FAR_SECOND);
    assert_ok(far__service_next(&service, &event));
    assert_int_equal(event.kind, FAR_EVENT_START_THREAD);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, enter_foreign, s.executor), 0);
    gate_wait(&done, 1);
    wait_for_reader(&s);
    (void)stop_server(&s);
    pthread_join(thread, NULL);
    far__service_stop(&service);
    far__service_fini(&service);
    close_server(&s);
}

static void bad_options_and_no_memory(void **state)
{
    (void)state;
    far__executor *e = NULL;
    far__executor_options o = THREADS(0, 1);
    assert_status(FAR_EINVAL, far__executor_create(&o, &e));
    o = THREADS(1, 0);
    assert_status(FAR_EINVAL, far__executor_create(&o, &e));
    failmem_begin(1);
    o = THREADS(1, 1);
    assert_status(FAR_ENOMEM, far__executor_create(&o, &e));
    failmem_end();
    assert_null(e);
}

/* ------------------------------------------------------------------- stress */

enum { PUSHERS = 4, PUSHES = 25000 };

typedef struct pusher {
    server *server;
    gate *done;
    bool by_socket;
    act *acts;
} pusher;

static _Atomic uint32_t stress_costs[3];

static void *push_many(void *arg)
{
    pusher *p = arg;
    for (int i = 0; i < PUSHES; i++) {
        make_act(&p->acts[i], p->server, i % 4 < 3 ? &stress_costs[i % 4] : NULL, NULL, p->done);
        if (p->by_socket)
            send_act(p->server, &p->acts[i]);
        else
            assert_true(far__executor_push(p->server->executor, &p->acts[i].job));
    }
    return NULL;
}

static void stress(unsigned threads, unsigned most, unsigned by_socket)
{
    server s;
    far__executor_options o = THREADS(threads, most);
    o.idle_ns = FAR_MILLISECOND; /* threads come and go */
    open_server(&s, o);
    gate done = GATE_INIT;
    pthread_t ids[PUSHERS];
    pusher p[PUSHERS];
    for (unsigned i = 0; i < PUSHERS; i++) {
        p[i] = (pusher){&s, &done, i < by_socket, calloc(PUSHES, sizeof(act))};
        assert_non_null(p[i].acts);
        assert_int_equal(pthread_create(&ids[i], NULL, push_many, &p[i]), 0);
    }
    for (int i = 0; i < PUSHERS; i++)
        pthread_join(ids[i], NULL);
    gate_wait(&done, (size_t)PUSHERS * PUSHES);
    close_server(&s);
    for (int i = 0; i < PUSHERS; i++) {
        for (int k = 0; k < PUSHES; k++)
            assert_int_equal(atomic_load(&p[i].acts[k].runs), 1);
        free(p[i].acts);
    }
}

static void *push_and_wait(void *arg)
{
    pusher *p = arg;
    gate done = GATE_INIT;
    for (int i = 0; i < PUSHES / 10; i++) {
        make_act(&p->acts[0], p->server, i % 2 ? &stress_costs[0] : NULL, NULL, &done);
        assert_true(far__executor_push(p->server->executor, &p->acts[0].job));
        gate_wait(&done, (size_t)i + 1);
    }
    return NULL;
}

/* The same where everybody is asleep most of the time: each push must wake somebody. */
static void single_pushes(unsigned threads)
{
    freeze_clock(); /* no watchdog to the rescue */
    server s;
    open_server(&s, THREADS(threads, threads));
    pthread_t ids[PUSHERS];
    pusher p[PUSHERS];
    act acts[PUSHERS];
    for (unsigned i = 0; i < PUSHERS; i++) {
        p[i] = (pusher){.server = &s, .acts = &acts[i]};
        assert_int_equal(pthread_create(&ids[i], NULL, push_and_wait, &p[i]), 0);
    }
    for (int i = 0; i < PUSHERS; i++)
        pthread_join(ids[i], NULL);
    close_server(&s);
}

static void single_pushes_wake_somebody(void **state)
{
    (void)state;
    single_pushes(1); /* always the reader */
    single_pushes(3);
}

/* Starred: pushed to the queue implies that somebody looks. */
static void pushed_means_that_somebody_looks(void **state)
{
    (void)state;
    stress(16, 64, 0);
}

static void role_is_never_free_and_never_held_twice(void **state)
{
    (void)state;
    stress(4, 16, 4);
}

static void requests_and_pushes_mixed_on_few_threads(void **state)
{
    (void)state;
    stress(1, 2, 2);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(short_jobs_keep_the_role),
    cmocka_unit_test(batch_of_short_jobs_is_run_by_the_reader_alone),
    cmocka_unit_test(long_job_gives_the_role_to_the_loop_then_to_the_idle_thread),
    cmocka_unit_test(stuck_job_of_an_unknown_kind_delays_nobody),
    cmocka_unit_test(watchdog_takes_the_role_from_a_stuck_short_job),
    cmocka_unit_test(role_is_taken_only_from_inside_a_job),
    cmocka_unit_test(no_thread_takes_the_role_while_the_loop_reads),
    cmocka_unit_test(waiting_for_a_future_gives_the_role_away),
    cmocka_unit_test(sixty_four_stuck_jobs_and_still_another_one_runs),
    cmocka_unit_test(nested_waits_grow_the_pool),
    cmocka_unit_test(without_a_stall_not_beyond_threads),
    cmocka_unit_test(threads_max_one_is_hard_and_a_returning_thread_looks),
    cmocka_unit_test(threads_that_cannot_be_started_are_tried_again),
    cmocka_unit_test(surplus_idle_threads_leave),
    cmocka_unit_test(replies_are_flushed_before_a_long_job_and_by_the_watchdog),
    cmocka_unit_test(idle_process_has_no_wake_ups),
    cmocka_unit_test(stop_while_stuck_gives_the_queue_back),
    cmocka_unit_test(stop_wakes_the_reader_and_the_idle),
    cmocka_unit_test(no_lock_is_held_while_a_job_runs),
    cmocka_unit_test(foreign_threads_are_asked_for_and_asked_for_again),
    cmocka_unit_test(bad_options_and_no_memory),
    cmocka_unit_test(single_pushes_wake_somebody),
    cmocka_unit_test(pushed_means_that_somebody_looks),
    cmocka_unit_test(role_is_never_free_and_never_held_twice),
    cmocka_unit_test(requests_and_pushes_mixed_on_few_threads),
};
FAR_TEST_MAIN(tests)
