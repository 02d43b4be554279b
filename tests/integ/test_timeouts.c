/* SPDX-License-Identifier: BSD-3-Clause
 * Timeouts: every kind of limit, to another worker and to oneself, nested, with every handler thread stuck and
 * with ten thousand calls in flight. How late they are is the benchmark's business; here they end, and
 * never early. */
#include "support/cluster.h"
#include "support/handlers.h"

#include <stdatomic.h>

#include "base/clock.h"

enum { MANY = 10000 };

static void few_threads(far_options *o, size_t rank, void *arg)
{
    (void)rank;
    (void)arg;
    o->threads = o->threads_max = 2;
}

static const far_duration limits[] = {FAR_MICROSECOND, FAR_MILLISECOND, 50 * FAR_MILLISECOND,
                                      FAR_SECOND};
enum { LIMITS = sizeof limits / sizeof limits[0] };

/* Nobody answers: every limit ends its call with its own error, and not before. */
static void run_out(cluster *c, far_worker_id to, const char *method)
{
    far_future *f[LIMITS];
    int64_t since[LIMITS];
    for (size_t i = 0; i < LIMITS; i++) {
        since[i] = far__clock_now();
        f[i] = begin(c->agents[0], to, method, text_message(""), limits[i]);
    }
    for (size_t i = 0; i < LIMITS; i++) {
        (void)end_of(f[i]);
        far_failure why;
        far_future_failure(f[i], &why);
        if (why.status != FAR_ETIMEOUT)
            cluster_fail(__FILE__, __LINE__, why.text);
        must(far__clock_now() - since[i] >= limits[i]);
        must(why.status == FAR_ETIMEOUT && !why.from_handler && why.worker == to);
        must_say(why.text, method);
        must_say(why.text, to ? "w1" : "w0");
        must_say(why.text, "limit");
        far_future_release(f[i]);
    }
    far_error error;
    int64_t start = far__clock_now();
    must_status(FAR_ETIMEOUT, ask(c->agents[0], to, method, text_message(""), limits[1], &error));
    must(far__clock_now() - start >= limits[1]);
    must_say(error.text, method);
}

static void answer_kept(size_t count)
{
    for (size_t i = 0; i < count; i++) {
        far_incoming *in;
        gate_until((in = handlers_take_kept()) != NULL);
        far_incoming_reply(in, NULL);
    }
}

/* Those kept so far, and however many are still to come. */
static void answer_all_kept(void)
{
    far_incoming *in;
    while ((in = handlers_take_kept()))
        far_incoming_reply(in, NULL);
}

static void each_limit_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++)
        run_out(&c, to, "keep");
    /* All connections are still good. */
    must_echo(c.agents[0], 1, "alive");
    must_echo(c.agents[0], 0, "alive");
    answer_all_kept();
    cluster_close(&c);
}

static void each_limit_ends_its_call(void **state)
{
    (void)state;
    cluster_each(each_limit_over);
}

static void stuck_over(cluster_net net)
{
    cluster c;
    far_future *stuck[4];
    cluster_open(&c, net, &(cluster_options){.adjust = few_threads});
    /* Both threads of both workers. */
    for (size_t i = 0; i < 4; i++)
        stuck[i] = begin(c.agents[0], i < 2, "hold", text_message(""), FAR_NO_LIMIT);
    gate_wait(&handlers.held, 4);
    run_out(&c, 1, "echo");
    run_out(&c, 0, "echo");
    far_counters k;
    must_ok(far_future_wait(stuck[0], 0) == FAR_ETIMEOUT ? FAR_OK : FAR_EBUSY);
    handlers_open();
    for (size_t i = 0; i < 4; i++)
        must_ok(end(stuck[i]));
    /* None of the expired calls was run. */
    must_echo(c.agents[0], 1, "next");
    far_agent_counters(c.agents[1], &k);
    must(k.calls_served == 3);
    /* Those of a microsecond may have been found dead before they were sent. */
    gate_until((far_agent_counters(c.agents[1], &k),
                k.calls_expired_unrun + k.calls_cancelled_unrun >= LIMITS - 1));
    cluster_close(&c);
}

static void limits_hold_with_every_thread_stuck(void **state)
{
    (void)state;
    cluster_each(stuck_over);
}

/* Limits that are none: the call lives until it is answered. */
static void endless_over(cluster_net net)
{
    static const far_duration none[] = {FAR_NO_LIMIT, FAR_FOREVER, FAR_FOREVER - 1,
                                        FAR_TIMEOUT_DEFAULT, INT64_MAX / 2};
    enum { NONE = sizeof none / sizeof none[0] };
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        far_future *f[NONE];
        for (size_t i = 0; i < NONE; i++)
            f[i] = begin(c.agents[0], to, "keep", text_message(""), none[i]);
        gate_wait(&handlers.arrived, (to + 1) * NONE);
        for (size_t i = 0; i < NONE; i++)
            must_status(FAR_ETIMEOUT, far_future_wait(f[i], FAR_MILLISECOND));
        answer_kept(NONE);
        for (size_t i = 0; i < NONE; i++)
            must_ok(end(f[i]));
    }
    cluster_close(&c);
}

static void no_limit_is_none(void **state)
{
    (void)state;
    cluster_each(endless_over);
}

static void negative_over(cluster_net net)
{
    cluster c;
    far_future *f;
    far_message *reply;
    far_counters k;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        must_status(FAR_EINVAL, far_call(c.agents[0], to, "echo", text_message(""), -1, 0, &f));
        must_status(FAR_EINVAL,
                    far_call(c.agents[0], to, "echo", text_message(""), INT64_MIN + 1, 0, &f));
        must_status(FAR_EINVAL, far_call_sync(c.agents[0], to, "echo", text_message(""),
                                              -FAR_SECOND, &reply, NULL));
    }
    f = begin(c.agents[0], 1, "keep", text_message(""), FAR_NO_LIMIT);
    must_status(FAR_EINVAL, far_future_wait(f, -1));
    must_status(FAR_EINVAL, far_future_wait(f, FAR_TIMEOUT_DEFAULT));
    answer_kept(1);
    must_ok(end(f));
    far_agent_counters(c.agents[0], &k);
    must(k.calls_started == 1);
    cluster_close(&c);
}

static void negative_limits_are_refused(void **state)
{
    (void)state;
    cluster_each(negative_over);
}

static void default_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    far_agent *a = c.agents[0];
    must(far_agent_default_timeout(a) == FAR_NO_LIMIT);
    far_agent_set_default_timeout(a, 2 * FAR_MILLISECOND);
    must(far_agent_default_timeout(a) == 2 * FAR_MILLISECOND);
    for (far_worker_id to = 0; to < 2; to++) {
        must_status(FAR_ETIMEOUT, end(begin(a, to, "keep", text_message(""), FAR_TIMEOUT_DEFAULT)));
        /* One that is given is not touched by it. */
        far_future *f = begin(a, to, "keep", text_message(""), FAR_NO_LIMIT);
        must_status(FAR_ETIMEOUT, far_future_wait(f, 10 * FAR_MILLISECOND));
        /* The first one may have run out before it was run. */
        while (far_future_wait(f, FAR_MILLISECOND) == FAR_ETIMEOUT)
            answer_all_kept();
        must_ok(end(f));
    }
    /* Nor are the library's own calls: the others hold for longer than this. */
    far_agent_set_default_timeout(a, 1);
    answer_all_kept();
    cluster_close(&c);
}

static void the_default_is_for_user_calls(void **state)
{
    (void)state;
    cluster_each(default_over);
}

/* ------------------------------------------------------------------------------ at the callee */

static void left_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        far_message *reply;
        must_ok(
            far_call_sync(c.agents[0], to, "left", text_message(""), FAR_NO_LIMIT, &reply, NULL));
        must(int_of(reply) == -1);
        far_message_discard(reply);
        must_ok(far_call_sync(c.agents[0], to, "left", text_message(""), 30 * FAR_SECOND, &reply,
                              NULL));
        int64_t left = int_of(reply);
        must(left > 0 && left <= 30 * FAR_SECOND);
        far_message_discard(reply);
    }
    cluster_close(&c);
}

static void the_rest_of_the_time_travels(void **state)
{
    (void)state;
    cluster_each(left_over);
}

/* A running handler sees that its caller's time is up. */
static void running_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        far_future *f = begin(c.agents[0], to, "cancelled", text_message(""), FAR_SECOND / 10);
        must_status(FAR_ETIMEOUT, end(f));
        gate_wait(&handlers.seen, to + 1);
    }
    handlers_open();
    cluster_close(&c);
}

static void running_handlers_see_it(void **state)
{
    (void)state;
    cluster_each(running_over);
}

/* Late replies are dropped, freed and counted. */
static void late_over(cluster_net net)
{
    cluster c;
    far_counters k;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        must_status(FAR_ETIMEOUT,
                    end(begin(c.agents[0], to, "hold", text_message("x"), 50 * FAR_MILLISECOND)));
    }
    far_agent_counters(c.agents[0], &k);
    must(k.calls_timed_out == 2 && k.calls_failed == 2);
    handlers_open();
    must_echo(c.agents[0], 1, "alive");
    must_echo(c.agents[0], 0, "alive");
    cluster_close(&c);
}

static void late_replies_are_dropped(void **state)
{
    (void)state;
    cluster_each(late_over);
}

/* The inner call's limit is its own: the outer one has none. */
static void inner(far_incoming *in, void *arg)
{
    (void)arg;
    far_error error = {.text = ""};
    far_status status = ask(far_incoming_agent(in), far_incoming_caller(in)->id, "keep",
                            text_message(""), 20 * FAR_MILLISECOND, &error);
    must_status(FAR_ETIMEOUT, status);
    must(far_incoming_remaining(in) == FAR_FOREVER);
    far_incoming_fail(in, FAR_ETIMEOUT, NULL, error.text, NULL, NULL);
}

static void nested_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, &(cluster_options){.adjust = few_threads});
    for (size_t i = 0; i < 2; i++)
        must_ok(far_agent_register(c.agents[i], &(far_method){.name = "inner", .handler = inner}));
    for (far_worker_id to = 0; to < 2; to++) {
        far_failure why;
        far_future *f = begin(c.agents[0], to, "inner", text_message(""), FAR_NO_LIMIT);
        must_status(FAR_ETIMEOUT, end_of(f));
        far_future_failure(f, &why);
        must(why.from_handler);
        must_say(why.text, "keep");
        far_future_release(f);
    }
    gate_until((answer_all_kept(), gate_count(&handlers.arrived) == 2));
    answer_all_kept();
    cluster_close(&c);
}

static void nested_limits_are_their_own(void **state)
{
    (void)state;
    cluster_each(nested_over);
}

/* ---------------------------------------------------------------------------------- ten thousand */

static void many_to(cluster *c, far_worker_id to, far_future **f)
{
    far_counters k;
    uint64_t before;
    far_agent_counters(c->agents[0], &k);
    before = k.calls_timed_out;
    for (size_t i = 0; i < MANY; i++) /* 1 us to 100 ms, every one different */
        f[i] = begin(c->agents[0], to, "keep", text_message(""),
                     (far_duration)(1000 + i * 7919 % MANY * 10000));
    far_future *last = begin(c->agents[0], to, "echo", text_message("last"), FAR_NO_LIMIT);
    for (size_t i = 0; i < MANY; i++)
        must_status(FAR_ETIMEOUT, end(f[i]));
    must_ok(end(last));
    far_agent_counters(c->agents[0], &k);
    must(k.calls_timed_out - before == MANY && k.calls_pending == 0);
}

static void many_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    far_future **f = calloc(MANY, sizeof *f);
    must(f != NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        many_to(&c, to, f);
        answer_all_kept();
        handlers_reset();
    }
    must_echo(c.agents[0], 1, "alive");
    answer_all_kept();
    cluster_close(&c);
    free(f);
}

static void ten_thousand_limits_end(void **state)
{
    (void)state;
    cluster_each(many_over);
}

/* The small limits with ten thousand calls in flight that have none. */
static void crowded_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    far_future **f = calloc(MANY, sizeof *f);
    must(f != NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        for (size_t i = 0; i < MANY; i++)
            f[i] = begin(c.agents[0], to, "keep", text_message("x"), FAR_NO_LIMIT);
        run_out(&c, to, "keep");
        gate_wait(&handlers.arrived, MANY);
        answer_kept(MANY);
        answer_all_kept();
        for (size_t i = 0; i < MANY; i++)
            must_ok(end(f[i]));
        must_echo(c.agents[0], to, "alive");
        answer_all_kept();
        handlers_reset();
    }
    cluster_close(&c);
    free(f);
}

static void limits_hold_in_a_crowd(void **state)
{
    (void)state;
    cluster_each(crowded_over);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(each_limit_ends_its_call),
    cmocka_unit_test(limits_hold_with_every_thread_stuck),
    cmocka_unit_test(no_limit_is_none),
    cmocka_unit_test(negative_limits_are_refused),
    cmocka_unit_test(the_default_is_for_user_calls),
    cmocka_unit_test(the_rest_of_the_time_travels),
    cmocka_unit_test(running_handlers_see_it),
    cmocka_unit_test(late_replies_are_dropped),
    cmocka_unit_test(nested_limits_are_their_own),
    cmocka_unit_test(ten_thousand_limits_end),
    cmocka_unit_test(limits_hold_in_a_crowd),
};
FAR_TEST_MAIN(tests)
