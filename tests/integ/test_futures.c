/* SPDX-License-Identifier: BSD-3-Clause
 * What one can do with a call besides waiting: cancel it, hang callbacks on it, make futures of one's own. */
#include "support/cluster.h"
#include "support/handlers.h"

#include <stdatomic.h>

#include "agent/agent.h"

static void few_threads(far_options *o, size_t rank, void *arg)
{
    (void)rank;
    (void)arg;
    o->threads = o->threads_max = 2;
}

/* --------------------------------------------------------------------------------------- cancel */

static void running_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        far_failure why;
        far_future *f = begin(c.agents[0], to, "cancelled", text_message(""), FAR_NO_LIMIT);
        gate_wait(&handlers.held, to + 1);
        must(far_future_cancel(f));
        must_status(FAR_ECANCELED, far_future_status(f));
        must(!far_future_cancel(f));
        far_future_failure(f, &why);
        must(why.status == FAR_ECANCELED && !why.from_handler);
        must_say(why.text, "cancelled");
        gate_wait(&handlers.seen, to + 1);
        far_future_release(f);
    }
    handlers_open();
    must_echo(c.agents[0], 1, "alive");
    far_counters k;
    far_agent_counters(c.agents[0], &k);
    must(k.calls_cancelled == 2 && k.calls_failed == 2);
    cluster_close(&c);
}

static void a_running_handler_sees_cancel(void **state)
{
    (void)state;
    cluster_each(running_over);
}

/* A hundred wait behind stuck handlers; 99 are taken back and never run. */
static void queued_over(cluster_net net)
{
    cluster c;
    far_counters k;
    far_future *stuck[4], *f[2][100];
    cluster_open(&c, net, &(cluster_options){.adjust = few_threads});
    for (size_t i = 0; i < 4; i++)
        stuck[i] = begin(c.agents[0], i < 2, "hold", text_message(""), FAR_NO_LIMIT);
    gate_wait(&handlers.held, 4);
    for (far_worker_id to = 0; to < 2; to++) {
        for (size_t i = 0; i < 100; i++)
            f[to][i] = begin(c.agents[0], to, "echo", text_message("x"), FAR_NO_LIMIT);
        for (size_t i = 0; i < 99; i++)
            must(far_future_cancel(f[to][i]));
    }
    /* What was cancelled is known at the callee before its threads are free. */
    far_future *mark = begin(c.agents[0], 1, "quick", text_message(""), FAR_NO_LIMIT);
    must_ok(end(mark));
    handlers_open();
    for (far_worker_id to = 0; to < 2; to++) {
        for (size_t i = 0; i < 99; i++)
            must_status(FAR_ECANCELED, end(f[to][i]));
        must_ok(end(f[to][99]));
    }
    for (size_t i = 0; i < 4; i++)
        must_ok(end(stuck[i]));
    /* The other thread may still be dropping the last of them. */
    gate_until((far_agent_counters(c.agents[0], &k), k.calls_cancelled_unrun == 99));
    must(k.calls_cancelled == 198);
    must(k.calls_served == 3); /* two held, one echo */
    far_agent_counters(c.agents[1], &k);
    must(k.calls_served == 4);           /* and the mark */
    must(k.calls_cancelled_unrun <= 99); /* some were never sent */
    cluster_close(&c);
}

static void cancelled_in_the_queue_never_run(void **state)
{
    (void)state;
    cluster_each(queued_over);
}

/* Taken back at once, before anything may have been written; then over a connection that is new. */
static void unsent_over(cluster_net net)
{
    cluster c;
    far_counters k;
    cluster_open(&c, net, NULL);
    for (int i = 0; i < 200; i++) {
        far_future *f = begin(c.agents[1], (far_worker_id)(i % 2), "hold", text_message("x"), 0);
        bool mine = far_future_cancel(f);
        must(mine);
        must_status(FAR_ECANCELED, end(f));
    }
    handlers_open();
    must_echo(c.agents[1], 0, "alive");
    must_echo(c.agents[1], 1, "alive");
    far_agent_counters(c.agents[1], &k);
    must(k.calls_cancelled == 200 && k.calls_pending == 0);
    cluster_close(&c);
}

static void cancel_before_it_is_sent(void **state)
{
    (void)state;
    cluster_each(unsent_over);
}

static void ended_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        far_future *f = begin(c.agents[0], to, "echo", text_message("x"), FAR_NO_LIMIT);
        must_ok(end_of(f));
        must(!far_future_cancel(f));
        must_ok(far_future_status(f));
        must(is_text(far_future_message(f), "x"));
        far_future_release(f);
    }
    cluster_close(&c);
}

static void cancel_comes_too_late(void **state)
{
    (void)state;
    cluster_each(ended_over);
}

/* A large message that is cancelled while it is being written: its memory is free at once. */
static void midway_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (int i = 0; i < 20; i++) {
        far_message *m = text_message("");
        far_buffer *b;
        must_ok(far_buffer_alloc(8 << 20, &b));
        memset(far_buffer_data(b), i, 8 << 20);
        must_ok(far_message_add_segment(m, b, NULL));
        far_future *f = begin(c.agents[0], 1, "echo", m, FAR_NO_LIMIT);
        if (i % 2)
            (void)!far_future_wait(f, FAR_MILLISECOND);
        (void)far_future_cancel(f);
        (void)end(f);
    }
    must_echo(c.agents[0], 1, "alive");
    cluster_close(&c);
}

static void cancel_while_it_is_written(void **state)
{
    (void)state;
    cluster_each(midway_over);
}

/* ------------------------------------------------------------------------------------ callbacks */

typedef struct record {
    far_agent *agent;
    gate done;
    _Atomic uint32_t order[8];
    _Atomic uint32_t count;
    bool on_loop, waits;
    pthread_t thread;
} record;

typedef struct step {
    record *r;
    uint32_t number;
} step;

static void note(far_future *f, void *arg)
{
    step *s = arg;
    must(far_future_done(f));
    if (far__loop_here(s->r->agent->loop))
        s->r->on_loop = true;
    s->r->thread = pthread_self();
    atomic_store(&s->r->order[atomic_fetch_add(&s->r->count, 1)], s->number);
    gate_pass(&s->r->done);
}

static void order_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++)
        for (int quick = 0; quick < 2; quick++) {
            record r = {.agent = c.agents[0], .done = GATE_INIT};
            step steps[6];
            far_future *f = begin(c.agents[0], to, "keep", text_message(""), FAR_NO_LIMIT);
            for (uint32_t i = 0; i < 5; i++) {
                steps[i] = (step){.r = &r, .number = i};
                must_ok(
                    far_future_on_done(f, note, &steps[i], quick ? FAR_CALLBACK_NEVER_BLOCKS : 0));
            }
            must(gate_count(&r.done) == 0);
            far_incoming *in;
            gate_until((in = handlers_take_kept()) != NULL);
            far_incoming_reply(in, NULL);
            /* Nobody waits for the call: the callbacks run all the same. */
            gate_wait(&r.done, 5);
            for (uint32_t i = 0; i < 5; i++)
                must(r.order[i] == i);
            must(quick || !r.on_loop);
            /* Added to one that has ended: at once, here. */
            steps[5] = (step){.r = &r, .number = 5};
            must_ok(far_future_on_done(f, note, &steps[5], 0));
            must(r.count == 6 && r.order[5] == 5 && pthread_equal(r.thread, pthread_self()));
            must_status(FAR_EINVAL, far_future_on_done(f, NULL, NULL, 0));
            far_future_release(f);
        }
    cluster_close(&c);
}

static void callbacks_run_in_order(void **state)
{
    (void)state;
    cluster_each(order_over);
}

static void call_again(far_future *f, void *arg)
{
    record *r = arg;
    must_ok(far_future_status(f));
    must_echo(r->agent, 1, "from a callback");
    must_echo(r->agent, 0, "from a callback");
    gate_pass(&r->done);
}

/* A callback that waits for other calls, also with one thread only. */
static void one_thread(far_options *o, size_t rank, void *arg)
{
    (void)arg;
    (void)rank;
    o->threads = 1;
    o->threads_max = 3;
}

static void waiting_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, &(cluster_options){.adjust = one_thread});
    record r = {.agent = c.agents[0], .done = GATE_INIT};
    for (far_worker_id to = 0; to < 2; to++) {
        far_future *f = begin(c.agents[0], to, "echo", text_message(""), FAR_NO_LIMIT);
        must_ok(far_future_on_done(f, call_again, &r, 0));
        far_future_release(f);
    }
    gate_wait(&r.done, 2);
    cluster_close(&c);
}

static void callbacks_may_call(void **state)
{
    (void)state;
    cluster_each(waiting_over);
}

/* Callbacks of calls that fail: by timeout and by cancel; those run as well. */
static void failed_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        record r = {.agent = c.agents[0], .done = GATE_INIT};
        step one = {.r = &r, .number = 1}, two = {.r = &r, .number = 2};
        far_future *f = begin(c.agents[0], to, "keep", text_message(""), FAR_MILLISECOND);
        must_ok(far_future_on_done(f, note, &one, 0));
        gate_wait(&r.done, 1);
        must_status(FAR_ETIMEOUT, end(f));
        f = begin(c.agents[0], to, "keep", text_message(""), FAR_NO_LIMIT);
        must_ok(far_future_on_done(f, note, &two, 0));
        must(far_future_cancel(f));
        gate_wait(&r.done, 2);
        must_status(FAR_ECANCELED, end(f));
    }
    must_echo(c.agents[0], 1, "x");
    far_incoming *in;
    while ((in = handlers_take_kept()))
        far_incoming_reply(in, NULL);
    cluster_close(&c);
}

static void callbacks_of_failed_calls_run(void **state)
{
    (void)state;
    cluster_each(failed_over);
}

/* Fifty at a time with callbacks, none held, a thousand rounds. */
static void count_one(far_future *f, void *arg)
{
    must_ok(far_future_status(f));
    gate_pass(arg);
}

static void rounds_over(cluster_net net)
{
    cluster c;
    gate done = GATE_INIT;
    cluster_open(&c, net, NULL);
    for (size_t round = 0; round < 200; round++) {
        for (size_t i = 0; i < 50; i++) {
            far_future *f = begin(c.agents[0], i % 2, i % 3 ? "echo" : "quick", text_message("x"),
                                  FAR_SECOND * 50);
            must_ok(far_future_on_done(f, count_one, &done, i % 5 ? 0 : FAR_CALLBACK_NEVER_BLOCKS));
            far_future_release(f);
        }
        gate_wait(&done, (round + 1) * 50);
    }
    cluster_close(&c);
}

static void callbacks_never_hang(void **state)
{
    (void)state;
    cluster_each(rounds_over);
}

/* Many threads wait for one call, with limits that run out and without. */
typedef struct waiter {
    far_future *f;
    far_duration limit;
    far_status got;
    pthread_t thread;
} waiter;

static void *wait_one(void *arg)
{
    waiter *w = arg;
    w->got = far_future_wait(w->f, w->limit);
    return NULL;
}

static void waiters_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        waiter all[8];
        far_future *f = begin(c.agents[0], to, "keep", text_message(""), FAR_NO_LIMIT);
        for (size_t i = 0; i < 8; i++) {
            all[i] = (waiter){.f = f, .limit = i % 2 ? FAR_FOREVER : FAR_MILLISECOND};
            must(pthread_create(&all[i].thread, NULL, wait_one, &all[i]) == 0);
        }
        for (size_t i = 0; i < 8; i += 2) {
            pthread_join(all[i].thread, NULL);
            must_status(FAR_ETIMEOUT, all[i].got);
        }
        far_incoming *in;
        gate_until((in = handlers_take_kept()) != NULL);
        far_incoming_reply(in, NULL);
        for (size_t i = 1; i < 8; i += 2) {
            pthread_join(all[i].thread, NULL);
            must_ok(all[i].got);
        }
        must_ok(end(f));
    }
    cluster_close(&c);
}

static void many_wait_for_one(void **state)
{
    (void)state;
    cluster_each(waiters_over);
}

/* ------------------------------------------------------------------------- futures of one's own */

static void own_futures_are_completed_once(void **state)
{
    (void)state;
    cluster c;
    far_future *f;
    far_failure why;
    cluster_open(&c, CLUSTER_UNIX, NULL);
    record r = {.agent = c.agents[0], .done = GATE_INIT};
    step one = {.r = &r, .number = 1};

    must_ok(far_future_create(c.agents[0], &f));
    must(!far_future_done(f));
    must_status(FAR_EAGAIN, far_future_status(f));
    must_status(FAR_ETIMEOUT, far_future_wait(f, FAR_MILLISECOND));
    far_future_failure(f, &why);
    must(why.status == FAR_EAGAIN);
    must_ok(far_future_on_done(f, note, &one, 0));
    must(far_future_complete(f, text_message("mine")));
    must(!far_future_complete(f, text_message("again")));
    must(!far_future_fail(f, FAR_EREMOTE, "again"));
    must(!far_future_cancel(f));
    gate_wait(&r.done, 1);
    must(is_text(far_future_message(f), "mine"));
    must_ok(end(f));

    must_ok(far_future_create(c.agents[0], &f));
    must(far_future_fail(f, FAR_EVALUE, "no good"));
    far_future_failure(f, &why);
    must(why.status == FAR_EVALUE && strcmp(why.text, "no good") == 0);
    must(!far_future_complete(f, text_message("again")));
    far_future_release(f);

    must_ok(far_future_create(c.agents[0], &f));
    must(far_future_cancel(f));
    must_status(FAR_ECANCELED, end(f));

    must_ok(far_future_create(c.agents[0], &f)); /* forgotten, with a callback that never runs */
    must_ok(far_future_on_done(f, note, &one, 0));
    far_future_release(f);
    must_status(FAR_EINVAL,
                far_future_notify((f = begin(c.agents[0], 1, "echo", text_message(""), 0)), NULL));
    must_ok(end(f));
    cluster_close(&c);
}

/* Completed by another thread while several wait, and after its agent is closed. */
static void *complete_it(void *arg)
{
    must(far_future_complete(arg, text_message("late")));
    return NULL;
}

static void own_futures_outlive_the_agent(void **state)
{
    (void)state;
    cluster c;
    pthread_t thread;
    far_future *f;
    cluster_open(&c, CLUSTER_TCP, NULL);
    must_ok(far_future_create(c.agents[1], &f));
    record r = {.agent = c.agents[1], .done = GATE_INIT};
    for (size_t i = 0; i < 2; i++)
        far_agent_close(c.agents[i]);
    must(pthread_create(&thread, NULL, complete_it, f) == 0);
    must_ok(end_of(f));
    must(is_text(far_future_message(f), "late"));
    pthread_join(thread, NULL);
    step one = {.r = &r, .number = 1};
    must_ok(far_future_on_done(f, note, &one, 0));
    must(r.count == 1);
    far_future_release(f);
    cluster_drop(&c);
}

/* A reply made of several calls: the handler returns at once, its last callback answers. */
typedef struct gather {
    far_incoming *in;
    _Atomic int left;
} gather;

static void gathered(far_future *f, void *arg)
{
    gather *g = arg;
    must_ok(far_future_status(f));
    if (atomic_fetch_sub(&g->left, 1) != 1)
        return;
    far_incoming_reply(g->in, text_message("all"));
    free(g);
}

static void spread(far_incoming *in, void *arg)
{
    (void)arg;
    gather *g = malloc(sizeof *g);
    must(g != NULL);
    *g = (gather){.in = in, .left = 3};
    far_agent *a = far_incoming_agent(in);
    for (far_worker_id to = 0; to < 3; to++) {
        far_future *f = begin(a, to, "echo", text_message("part"), FAR_NO_LIMIT);
        must_ok(far_future_on_done(f, gathered, g, 0));
        far_future_release(f);
    }
}

static void gather_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, &(cluster_options){.size = 3});
    must_ok(far_agent_register(c.agents[1], &(far_method){.name = "spread", .handler = spread}));
    for (int i = 0; i < 50; i++) {
        far_message *reply;
        must_ok(far_call_sync(c.agents[i % 3], 1, "spread", text_message(""), FAR_NO_LIMIT, &reply,
                              NULL));
        must(is_text(reply, "all"));
        far_message_discard(reply);
    }
    cluster_close(&c);
}

static void replies_are_made_of_several_calls(void **state)
{
    (void)state;
    cluster_each(gather_over);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_running_handler_sees_cancel),
    cmocka_unit_test(cancelled_in_the_queue_never_run),
    cmocka_unit_test(cancel_before_it_is_sent),
    cmocka_unit_test(cancel_comes_too_late),
    cmocka_unit_test(cancel_while_it_is_written),
    cmocka_unit_test(callbacks_run_in_order),
    cmocka_unit_test(callbacks_may_call),
    cmocka_unit_test(callbacks_of_failed_calls_run),
    cmocka_unit_test(callbacks_never_hang),
    cmocka_unit_test(many_wait_for_one),
    cmocka_unit_test(own_futures_are_completed_once),
    cmocka_unit_test(own_futures_outlive_the_agent),
    cmocka_unit_test(replies_are_made_of_several_calls),
};
FAR_TEST_MAIN(tests)
