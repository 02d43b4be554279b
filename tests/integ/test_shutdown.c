/* SPDX-License-Identifier: BSD-3-Clause
 * Leaving: together, with work in flight, out of patience, after a loss, at once; agents that are closed
 * with calls open. */
#include "support/cluster.h"
#include "support/handlers.h"

#include <stdatomic.h>

typedef struct leaver {
    far_agent *agent;
    far_duration timeout;
    far_status status;
    far_error error;
    pthread_t thread;
} leaver;

static void *leave_main(void *arg)
{
    leaver *l = arg;
    l->status = far_agent_shutdown(l->agent, l->timeout, &l->error);
    return NULL;
}

static void start(leaver *l, far_agent *a, far_duration timeout)
{
    memset(l, 0, sizeof *l);
    l->agent = a;
    l->timeout = timeout;
    must(pthread_create(&l->thread, NULL, leave_main, l) == 0);
}

static far_status await(leaver *l)
{
    pthread_join(l->thread, NULL);
    return l->status;
}

static void after_it(far_agent *a)
{
    far_future *f;
    far_error error;
    must_status(FAR_ECLOSED, far_call(a, 0, "echo", text_message(""), 0, 0, &f));
    must_status(FAR_ECLOSED, ask(a, 1, "echo", text_message(""), 0, &error));
    must_status(FAR_ECLOSED, far_agent_shutdown(a, 0, &error));
}

/* ------------------------------------------------------------------------------------- together */

static void in_flight_over(cluster_net net)
{
    cluster c;
    leaver all[3];
    far_future *f[6];
    cluster_open(&c, net, &(cluster_options){.size = 3});
    for (size_t i = 0; i < 6; i++)
        f[i] = begin(c.agents[i % 3], (far_worker_id)((i + i / 3) % 3), "hold",
                     text_message("in flight"), 0);
    gate_wait(&handlers.held, 6);
    for (size_t i = 0; i < 3; i++)
        start(&all[i], c.agents[i], FAR_NO_LIMIT);
    /* Until all have agreed, calls are made and served. */
    must_echo(c.agents[1], 2, "meanwhile");
    must_echo(c.agents[2], 0, "meanwhile");
    for (size_t i = 0; i < 6; i++)
        must(!far_future_done(f[i]));
    handlers_open();
    for (size_t i = 0; i < 3; i++)
        must_ok(await(&all[i]));
    for (size_t i = 0; i < 6; i++) {
        must_ok(far_future_status(f[i]));
        must(is_text(far_future_message(f[i]), "in flight"));
        far_future_release(f[i]);
    }
    for (size_t i = 0; i < 3; i++)
        after_it(c.agents[i]);
    cluster_drop(&c);
}

static void calls_in_flight_finish(void **state)
{
    (void)state;
    cluster_each(in_flight_over);
}

/* A call that sets off the next one, which nobody waits for: hop after hop, all after shutdown was called. */
static _Atomic int hops;

static void hop(far_incoming *in, void *arg)
{
    (void)arg;
    int64_t left = int_of(far_incoming_message(in));
    far_agent *a = far_incoming_agent(in);
    atomic_fetch_add(&hops, 1);
    if (left > 0) {
        far_worker self;
        must_ok(far_agent_self(a, &self));
        far_future_release(begin(a, (self.id + 1) % 3, "hop", int_message(left - 1), 0));
    }
    far_incoming_reply(in, NULL);
}

static void hops_over(cluster_net net)
{
    cluster c;
    leaver all[3];
    cluster_open(&c, net, &(cluster_options){.size = 3});
    for (size_t i = 0; i < 3; i++)
        must_ok(far_agent_register(c.agents[i], &(far_method){.name = "hop", .handler = hop}));
    atomic_store(&hops, 0);
    far_future_release(begin(c.agents[0], 1, "hop", int_message(300), 0));
    for (size_t i = 0; i < 3; i++)
        start(&all[i], c.agents[i], FAR_NO_LIMIT);
    for (size_t i = 0; i < 3; i++)
        must_ok(await(&all[i]));
    must(atomic_load(&hops) == 301);
    cluster_drop(&c);
}

static void a_chain_of_hops_ends_first(void **state)
{
    (void)state;
    cluster_each(hops_over);
}

/* A callback that calls again counts as work. */
static void again(far_future *f, void *arg)
{
    must_ok(far_future_status(f));
    must_echo(arg, 2, "from a callback");
    atomic_fetch_add(&hops, 1);
}

static void callbacks_over(cluster_net net)
{
    cluster c;
    leaver all[3];
    cluster_open(&c, net, &(cluster_options){.size = 3});
    atomic_store(&hops, 0);
    for (int i = 0; i < 50; i++) {
        far_future *f = begin(c.agents[0], (far_worker_id)(i % 3), "echo", text_message("x"), 0);
        must_ok(far_future_on_done(f, again, c.agents[0], 0));
        far_future_release(f);
    }
    for (size_t i = 0; i < 3; i++)
        start(&all[i], c.agents[i], FAR_NO_LIMIT);
    for (size_t i = 0; i < 3; i++)
        must_ok(await(&all[i]));
    must(atomic_load(&hops) == 50);
    cluster_drop(&c);
}

static void callbacks_end_first(void **state)
{
    (void)state;
    cluster_each(callbacks_over);
}

/* A service loop started by a call returns when all have asked. */
static void service_over(cluster_net net)
{
    cluster c;
    leaver all[2];
    cluster_open(&c, net, NULL);
    far_future *f[2];
    for (far_worker_id to = 0; to < 2; to++)
        f[to] = begin(c.agents[0], to, "serve", text_message(""), FAR_NO_LIMIT);
    gate_wait(&handlers.held, 2);
    start(&all[1], c.agents[1], FAR_NO_LIMIT);
    must_echo(c.agents[0], 1, "not yet");
    for (size_t i = 0; i < 2; i++)
        must(!far_future_done(f[i]));
    start(&all[0], c.agents[0], FAR_NO_LIMIT);
    for (size_t i = 0; i < 2; i++)
        must_ok(await(&all[i]));
    for (size_t i = 0; i < 2; i++) {
        must_ok(far_future_status(f[i]));
        must(is_text(far_future_message(f[i]), "closing"));
        far_future_release(f[i]);
    }
    cluster_drop(&c);
}

static void service_loops_see_closing(void **state)
{
    (void)state;
    cluster_each(service_over);
}

/* ------------------------------------------------------------------------------ out of patience */

/* Each in turn asks first, is told who is missing, and works on. */
static void patience_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, &(cluster_options){.size = 3});
    for (size_t first = 0; first < 3; first++) {
        far_error error;
        char missing[8];
        must_status(FAR_ETIMEOUT,
                    far_agent_shutdown(c.agents[first], 50 * FAR_MILLISECOND, &error));
        must(error.status == FAR_ETIMEOUT);
        snprintf(missing, sizeof missing, "\"w%d\"", first == 0 ? 1 : 0);
        must_say(error.text, missing);
        must_say(error.text, "has not called shutdown");
        for (far_worker_id to = 0; to < 3; to++) {
            must_echo(c.agents[first], to, "still here");
            must_echo(c.agents[to], (far_worker_id)first, "still here");
        }
    }
    must_status(FAR_EINVAL, far_agent_shutdown(c.agents[0], -1, NULL));
    cluster_close(&c);
}

static void a_timeout_names_who_is_missing(void **state)
{
    (void)state;
    cluster_each(patience_over);
}

/* All have asked, but somebody's handler goes on. */
static void busy_over(cluster_net net)
{
    cluster c;
    leaver all[2];
    cluster_open(&c, net, NULL);
    far_future *f = begin(c.agents[0], 1, "hold", text_message(""), 0);
    gate_wait(&handlers.held, 1);
    start(&all[0], c.agents[0], 300 * FAR_MILLISECOND);
    start(&all[1], c.agents[1], 300 * FAR_MILLISECOND);
    for (size_t i = 0; i < 2; i++) {
        must_status(FAR_ETIMEOUT, await(&all[i]));
        must_say(all[i].error.text, "shutdown");
    }
    must_echo(c.agents[0], 1, "still here");
    handlers_open();
    must_ok(end(f));
    cluster_close(&c);
}

static void a_busy_handler_lets_it_time_out(void **state)
{
    (void)state;
    cluster_each(busy_over);
}

/* ------------------------------------------------------------------------------------ at once */

static void pending_over(cluster_net net)
{
    cluster c;
    for (size_t who = 0; who < 2; who++) {
        far_failure why;
        far_future *f[3];
        handlers_reset();
        cluster_open(&c, net, NULL);
        f[0] = begin(c.agents[0], 1, "hold", text_message(""), FAR_NO_LIMIT);
        f[1] = begin(c.agents[0], 0, "hold", text_message(""), FAR_NO_LIMIT);
        f[2] = begin(c.agents[1], 0, "hold", text_message(""), FAR_NO_LIMIT);
        gate_wait(&handlers.held, 3);
        far_agent_close(c.agents[who]);
        far_agent_close(c.agents[who]);
        must_status(who == 0 ? FAR_ECLOSED : FAR_EPEER, end_of(f[0]));
        must_status(who == 0 ? FAR_EPEER : FAR_ECLOSED, end_of(f[2]));
        far_future_failure(f[who == 0 ? 2 : 0], &why);
        must(why.may_have_run && !why.from_handler);
        if (who == 0)
            must_status(FAR_ECLOSED, far_future_status(f[1]));
        else
            must(!far_future_done(f[1]));
        after_it(c.agents[who]);
        handlers_open();
        if (who == 1)
            must_ok(end_of(f[1]));
        for (size_t i = 0; i < 3; i++)
            far_future_release(f[i]);
        cluster_drop(&c);
    }
}

static void closing_ends_pending_calls(void **state)
{
    (void)state;
    cluster_each(pending_over);
}

/* Handlers that answer after their agent is closed, and after its last handle is gone. */
static void answer_late_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    far_future *f[4];
    for (size_t i = 0; i < 4; i++)
        f[i] = begin(c.agents[i % 2], (far_worker_id)(i / 2), "keep", text_message("x"), 0);
    gate_wait(&handlers.arrived, 4);
    for (size_t i = 0; i < 2; i++)
        far_agent_release(c.agents[i]);
    for (size_t i = 0; i < 4; i++) {
        far_status status = end(f[i]);
        must(status == FAR_ECLOSED || status == FAR_EPEER);
    }
    far_incoming *in;
    for (int i = 0; (in = handlers_take_kept()); i++) {
        must(far_incoming_cancelled(in));
        if (i % 2)
            far_incoming_fail(in, FAR_EREMOTE, "E", "late", NULL, far_incoming_take_message(in));
        else
            far_incoming_reply(in, text_message("late"));
    }
    cluster_settle();
}

static void late_answers_are_dropped(void **state)
{
    (void)state;
    cluster_each(answer_late_over);
}

/* Closed in the midst of traffic, many times. */
static _Atomic bool stop;

static void *traffic(void *arg)
{
    leaver *l = arg;
    while (!atomic_load(&stop)) {
        far_future *f[4] = {NULL};
        size_t n = 0;
        while (n < 4 && far_call(l->agent, n % 2, n < 2 ? "echo" : "quick", text_message("x"),
                                 n ? FAR_SECOND : 0, 0, &f[n]) == FAR_OK)
            n++;
        for (size_t i = 0; i < n; i++)
            (void)end(f[i]);
        if (n < 4)
            break;
    }
    return NULL;
}

static void storm_over(cluster_net net)
{
    cluster c;
    for (int round = 0; round < 8; round++) {
        leaver all[4];
        atomic_store(&stop, false);
        cluster_open(&c, net, NULL);
        for (size_t i = 0; i < 4; i++) {
            all[i].agent = far_agent_hold(c.agents[i % 2]);
            must(pthread_create(&all[i].thread, NULL, traffic, &all[i]) == 0);
        }
        far_counters k;
        gate_until((far_agent_counters(c.agents[round % 2], &k), k.calls_served > 50));
        far_agent_close(c.agents[round % 2]);
        atomic_store(&stop, true);
        for (size_t i = 0; i < 4; i++) {
            pthread_join(all[i].thread, NULL);
            far_agent_release(all[i].agent);
        }
        cluster_drop(&c);
    }
}

static void closing_in_a_storm(void **state)
{
    (void)state;
    cluster_each(storm_over);
}

/* A handler closes the agent that runs it. */
static void close_self(far_incoming *in, void *arg)
{
    (void)arg;
    far_agent *a = far_agent_hold(far_incoming_agent(in));
    far_agent_close(a);
    must(far_incoming_cancelled(in));
    far_incoming_reply(in, NULL);
    far_agent_release(a);
    gate_pass(&handlers.seen);
}

static void by_handler_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    must_ok(far_agent_register(c.agents[1], &(far_method){.name = "close", .handler = close_self}));
    must_status(FAR_EPEER, ask(c.agents[0], 1, "close", text_message(""), FAR_NO_LIMIT, NULL));
    gate_wait(&handlers.seen, 1);
    must_echo(c.agents[0], 0, "alone");
    cluster_drop(&c);
}

static void a_handler_closes_its_agent(void **state)
{
    (void)state;
    cluster_each(by_handler_over);
}

/* One that was closed without a word is a loss to the others' shutdown, not a reason to wait. */
static void loss_over(cluster_net net)
{
    cluster c;
    leaver all[2];
    cluster_open(&c, net, &(cluster_options){.size = 3});
    start(&all[0], c.agents[0], FAR_NO_LIMIT);
    start(&all[1], c.agents[1], FAR_NO_LIMIT);
    far_agent_close(c.agents[2]);
    for (size_t i = 0; i < 2; i++) {
        must_status(FAR_EPEER, await(&all[i]));
        must_say(all[i].error.text, "w2");
        after_it(c.agents[i]);
    }
    cluster_drop(&c);
}

static void a_lost_worker_stops_nobody(void **state)
{
    (void)state;
    cluster_each(loss_over);
}

/* Rank 0 itself. */
static void root_over(cluster_net net)
{
    cluster c;
    leaver all[2];
    cluster_open(&c, net, &(cluster_options){.size = 3});
    start(&all[0], c.agents[1], FAR_NO_LIMIT);
    far_agent_close(c.agents[0]);
    must_echo(c.agents[2], 2, "on its own");
    start(&all[1], c.agents[2], FAR_NO_LIMIT);
    for (size_t i = 0; i < 2; i++)
        must_status(FAR_EPEER, await(&all[i]));
    cluster_drop(&c);
}

static void a_lost_rank_0_stops_nobody(void **state)
{
    (void)state;
    cluster_each(root_over);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(calls_in_flight_finish),
    cmocka_unit_test(a_chain_of_hops_ends_first),
    cmocka_unit_test(callbacks_end_first),
    cmocka_unit_test(service_loops_see_closing),
    cmocka_unit_test(a_timeout_names_who_is_missing),
    cmocka_unit_test(a_busy_handler_lets_it_time_out),
    cmocka_unit_test(closing_ends_pending_calls),
    cmocka_unit_test(late_answers_are_dropped),
    cmocka_unit_test(closing_in_a_storm),
    cmocka_unit_test(a_handler_closes_its_agent),
    cmocka_unit_test(a_lost_worker_stops_nobody),
    cmocka_unit_test(a_lost_rank_0_stops_nobody),
};
FAR_TEST_MAIN(tests)
