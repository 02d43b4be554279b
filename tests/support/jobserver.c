/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/jobserver: an executor over a server that reads jobs, for tests. */
#include "support/jobserver.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "base/clock.h"
#include "support/test.h"

static _Atomic int64_t fake_now;

static int64_t fake_clock(void *arg)
{
    (void)arg;
    return atomic_load(&fake_now);
}

void freeze_clock(void)
{
    atomic_store(&fake_now, far__clock_now());
    far__clock_set(fake_clock, NULL);
}

void advance_clock(int64_t ns)
{
    atomic_fetch_add(&fake_now, ns);
}

static void ring(int fd)
{
    uint64_t one = 1;
    ssize_t size = write(fd, &one, sizeof one);
    assert_int_equal(size, sizeof one);
}

static void drain(int fd)
{
    uint64_t count;
    ssize_t size = read(fd, &count, sizeof count);
    (void)size;
}

static void read_batch(server *s)
{
    far__list batch, *link;
    far__list_init(&batch);
    assert_int_equal(atomic_fetch_add(&s->readers, 1), 0);
    drain(s->watch.fd);
    pthread_mutex_lock(&s->lock);
    far__list_splice(&batch, &s->requests);
    pthread_mutex_unlock(&s->lock);
    while ((link = far__list_pop(&batch)))
        (void)far__executor_push_read(s->executor, far__container_of(link, far__job, link));
    atomic_fetch_sub(&s->readers, 1);
}

static void server_read(void *arg, int64_t deadline)
{
    server *s = arg;
    assert_true(deadline == FAR__NEVER);
    assert_int_equal(atomic_load(&s->watched), 0);
    assert_int_equal(atomic_exchange(&s->reader, gate_tid()), 0);
    struct pollfd fds[2] = {{.fd = s->watch.fd, .events = POLLIN},
                            {.fd = s->wake_fd, .events = POLLIN}};
    (void)ppoll(fds, 2, NULL, NULL);
    if (fds[1].revents)
        drain(s->wake_fd);
    if (fds[0].revents)
        read_batch(s);
    atomic_store(&s->reader, 0);
}

static void server_wake(void *arg)
{
    server *s = arg;
    ring(s->wake_fd);
}

static void server_ready(far__watch *w, uint32_t events)
{
    server *s = far__container_of(w, server, watch);
    (void)events;
    if (!far__executor_loop_begin(s->executor))
        return;
    atomic_fetch_add(&s->loop_batches, 1);
    gate *hold = atomic_load(&s->loop_hold);
    if (hold)
        gate_wait(hold, 1);
    read_batch(s);
    far__executor_kick(s->executor);
}

static void server_watch(void *arg, bool on)
{
    server *s = arg;
    assert_int_equal(atomic_exchange(&s->watched, on), !on);
    if (!on) {
        far__loop_remove(s->loop, &s->watch);
        return;
    }
    assert_int_equal(atomic_load(&s->reader), 0);
    atomic_fetch_add(&s->watches, 1);
    assert_ok(far__loop_add(s->loop, &s->watch, EPOLLIN));
}

static void server_flush(void *arg)
{
    server *s = arg;
    gate_pass(&s->flushed);
}

void open_server(server *s, far__executor_options o)
{
    *s = (server){.lock = PTHREAD_MUTEX_INITIALIZER, .flushed = GATE_INIT};
    far__list_init(&s->requests);
    s->watch.ready = server_ready;
    s->watch.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_true(s->watch.fd >= 0 && s->wake_fd >= 0);
    assert_ok(far__loop_create(&s->loop));
    assert_ok(far__loop_start(s->loop));
    o.loop = s->loop;
    o.ops = (far__executor_ops){.read = server_read,
                                .wake = server_wake,
                                .watch = server_watch,
                                .flush = server_flush,
                                .arg = s};
    if (!o.idle_ns)
        o.idle_ns = FAR__NEVER;
    assert_ok(far__executor_create(&o, &s->executor));
    far__executor_start(s->executor);
}

size_t stop_server(server *s)
{
    far__list left;
    size_t count = 0;
    far__executor_stop(s->executor, &left);
    while (far__list_pop(&left))
        count++;
    assert_int_equal(atomic_load(&s->reader), 0);
    assert_int_equal(atomic_load(&s->watched), 0);
    return count;
}

void close_server(server *s)
{
    (void)stop_server(s);
    gate_until(far__executor_threads(s->executor) == 0);
    assert_int_equal(far__executor_busy(s->executor), 0);
    far__loop_stop(s->loop);
    far__executor_release(s->executor);
    far__loop_destroy(s->loop);
    gate_until(far_memory_live() == 0); /* the last threads are on their way out */
    close(s->watch.fd);
    close(s->wake_fd);
    far__clock_set(NULL, NULL);
}

static gate nowhere = GATE_INIT;

static void act_run(far__job *j)
{
    act *a = far__container_of(j, act, job);
    a->tid = gate_tid();
    gate *done = a->done;
    atomic_fetch_add(&a->runs, 1);
    gate_pass(a->started);
    if (a->nested) {
        assert_true(far__executor_push(a->server->executor, &a->nested->job));
        far__executor_waiting(true);
        gate_wait(a->nested->done, 1);
        far__executor_waiting(false);
    }
    if (a->hold)
        gate_wait(a->hold, 1);
    gate_pass(done);
}

void make_act(act *a, server *s, _Atomic uint32_t *cost, gate *hold, gate *done)
{
    *a = (act){.job = {.run = act_run, .cost = cost},
               .hold = hold,
               .started = &nowhere,
               .done = done,
               .server = s};
    far__list_init(&a->job.link);
}

void request_act(server *s, act *a)
{
    pthread_mutex_lock(&s->lock);
    far__list_add_tail(&s->requests, &a->job.link);
    pthread_mutex_unlock(&s->lock);
}

void send_act(server *s, act *a)
{
    request_act(s, a);
    ring(s->watch.fd);
}

pid_t call_short(server *s)
{
    static _Atomic uint32_t cost; /* it is written after the job is done */
    atomic_store(&cost, 1000);
    gate done = GATE_INIT;
    act a;
    make_act(&a, s, &cost, NULL, &done);
    send_act(s, &a);
    gate_wait(&done, 1);
    return a.tid;
}

pid_t wait_for_reader(server *s)
{
    pid_t tid = 0;
    gate_until((tid = atomic_load(&s->reader)) != 0);
    return tid;
}
