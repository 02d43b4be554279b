/* SPDX-License-Identifier: BSD-3-Clause
 * References: creations that fail, are late or never come; messages that are dropped on the way. After
 * each test no reference and no value is left anywhere. */
#include "support/rrefs.h"

#include <stdatomic.h>

static far_incoming *next_kept(void)
{
    far_incoming *in;
    gate_until((in = handlers_take_kept()) != NULL);
    return in;
}

static void free_count(void *arg)
{
    atomic_fetch_add((_Atomic int *)arg, 1);
}

/* -------------------------------------------------------------------------------- failed creations */

/* Every use of it here raises what it failed with. */
static void must_have_failed(far_rref *r, far_status status, const char *part)
{
    far_future *f;
    far_failure why;
    void *value;
    far_worker owner;
    far_message *m = text_message("");
    far_rref_owner(r, &owner);
    must_status(status, settle_of(r));
    must_status(status, far_message_add_rref(m, r, NULL));
    far_message_discard(m);
    must_status(far_rref_is_owner(r) ? status : FAR_EINVAL, far_rref_value(r, &value));
    for (int way = 0; way < 2; way++) {
        if (way)
            must_ok(far_rref_settled(r, &f));
        else
            must_ok(far_rref_fetch(r, FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &f));
        must_status(status, end_of(f));
        far_future_failure(f, &why);
        must(why.status == status && why.worker == owner.id);
        must_say(why.text, part);
        far_future_release(f);
    }
}

static void raises_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    for (far_worker_id to = 0; to < 2; to++) {
        far_future *f;
        far_failure why;
        far_rref *r = make_at(c.agents[0], to, "raise", 1, FAR_NO_LIMIT);
        /* Passed on before it is known, or refused: the use there raises it too. */
        far_message *m = text_message("");
        if (far_message_add_rref(m, r, NULL) == FAR_OK) {
            f = begin(c.agents[0], 2, "use", m, FAR_NO_LIMIT);
            must_status(FAR_EREMOTE, end_of(f));
            far_future_failure(f, &why);
            must(strcmp(why.type_name, "ValueError") == 0);
            far_future_release(f);
        } else {
            far_message_discard(m);
        }
        must_have_failed(r, FAR_EREMOTE, "it cannot be made");
        must_ok(far_rref_fetch(r, FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &f));
        must_status(FAR_EREMOTE, end_of(f));
        far_future_failure(f, &why);
        must(why.from_handler && strcmp(why.type_name, "ValueError") == 0);
        must(strcmp(why.traceback, "line 7") == 0);
        must(why.payload && is_text(why.payload, "payload"));
        far_future_release(f);
        far_rref_release(r);

        rrefs_none(&c);
        r = make_at(c.agents[0], to, "no such", 1, FAR_NO_LIMIT);
        must_have_failed(r, FAR_ENOMETHOD, "no such");
        must(far_rref_confirmed(r));
        far_counters k;
        far_agent_counters(c.agents[to], &k);
        must(k.rrefs_owned == 1); /* it lives until it is let go */
        far_rref_release(r);
        rrefs_none(&c);
    }
    rrefs_close(&c);
}

static void raised_at_every_use(void **state)
{
    (void)state;
    cluster_each(raises_over);
}

/* Others who hold it already when it fails. */
static void elsewhere_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    for (far_worker_id to = 0; to < 2; to++) {
        far_future *f;
        far_failure why;
        far_rref *r = make_at(c.agents[0], to, "keep", 1, FAR_NO_LIMIT);
        far_incoming *in = next_kept();
        must(far_incoming_is_remote(in));
        must(ask_int(c.agents[0], 2, "store", message_with(&r, 1)) == 1);
        f = begin(c.agents[0], 2, "sum", text_message(""), FAR_NO_LIMIT);
        must_status(FAR_ETIMEOUT, far_future_wait(f, 5 * FAR_MILLISECOND));
        far_incoming_fail(in, FAR_EREMOTE, "KeyError", "it was never there", NULL, NULL);
        must_status(FAR_EREMOTE, end_of(f));
        far_future_failure(f, &why);
        must(why.from_handler && strcmp(why.type_name, "KeyError") == 0);
        far_future_release(f);
        must_have_failed(r, FAR_EREMOTE, "it was never there");
        far_rref_release(r);
        must_status(FAR_EREMOTE, ask(c.agents[0], 2, "sum", text_message(""), FAR_NO_LIMIT, NULL));
        must_ok(ask(c.agents[0], 2, "drop", text_message(""), FAR_NO_LIMIT, NULL));
        rrefs_none(&c);
    }
    rrefs_close(&c);
}

static void raised_at_others_too(void **state)
{
    (void)state;
    cluster_each(elsewhere_over);
}

/* A creator that has let go before its creation fails, or is made. */
static void dropped_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 2);
    for (far_worker_id to = 0; to < 2; to++)
        for (int good = 0; good < 2; good++) {
            far_rref_release(make_at(c.agents[0], to, "keep", 1, FAR_NO_LIMIT));
            far_incoming *in = next_kept();
            _Atomic int freed = 0;
            if (good)
                far_incoming_keep(in, &freed, free_count);
            else
                far_incoming_fail(in, FAR_EREMOTE, NULL, "no", NULL, text_message("p"));
            gate_until(atomic_load(&freed) == good);
            for (int i = 0; i < 100; i++)
                far_rref_release(make_at(c.agents[0], to, i % 2 ? "make" : "raise", 1, 0));
            rrefs_none(&c);
        }
    rrefs_close(&c);
}

static void let_go_while_it_is_made(void **state)
{
    (void)state;
    cluster_each(dropped_over);
}

/* far_incoming_keep for a call that is no creation; objects that nobody can send. */
static void no_fetch(far_options *o, size_t rank, void *arg)
{
    rrefs_adjust(o, rank, arg);
    o->fetch = NULL;
}

static void misused_over(cluster_net net)
{
    cluster c;
    rrefs_reset();
    cluster_open(&c, net, &(cluster_options){.adjust = no_fetch});
    for (far_worker_id to = 0; to < 2; to++) {
        far_error error = {.text = ""};
        must_status(FAR_EINVAL, ask(c.agents[0], to, "make", int_message(1), FAR_NO_LIMIT, &error));
        must_say(error.text, "remote");
        gate_until(atomic_load(&rrefs.things) == 0);
        far_rref *r = make_at(c.agents[0], to, "make", 1, FAR_NO_LIMIT);
        must_fetch_fail(r, FAR_EVALUE, "cannot be sent");
        far_rref_release(r);
        /* "rref.fetch" without a reference, or with one of somebody else. */
        must_status(FAR_EINVAL, ask(c.agents[0], to, "rref.fetch", text_message("x"), 0, NULL));
        r = make_at(c.agents[0], !to, "note", 1, FAR_NO_LIMIT);
        must_ok(settle_of(r));
        must_status(FAR_EINVAL, ask(c.agents[0], to, "rref.fetch", message_with(&r, 1), 0, NULL));
        far_rref_release(r);
    }
    rrefs_close(&c);
}

static void misuse_is_answered(void **state)
{
    (void)state;
    cluster_each(misused_over);
}

/* -------------------------------------------------------------------------------- time runs out */

static void late_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    for (far_worker_id to = 0; to < 2; to++) {
        far_counters k;
        _Atomic int freed = 0;
        far_rref *r = make_at(c.agents[0], to, "keep", 1, 30 * FAR_MILLISECOND);
        far_incoming *in = next_kept();
        must(ask_int(c.agents[0], 2, "store", message_with(&r, 1)) == 1);
        must_have_failed(r, FAR_ETIMEOUT, to ? "" : "keep");
        must(far_incoming_cancelled(in));
        must_status(FAR_ETIMEOUT, ask(c.agents[0], 2, "sum", text_message(""), FAR_NO_LIMIT, NULL));
        /* The late value is freed, the entry stands. */
        far_incoming_keep(in, &freed, free_count);
        gate_until(atomic_load(&freed) == 1);
        must_have_failed(r, FAR_ETIMEOUT, "");
        far_agent_counters(c.agents[to], &k);
        must(k.rrefs_owned == 1);
        far_rref_release(r);
        must_status(FAR_ETIMEOUT, ask(c.agents[0], 2, "sum", text_message(""), FAR_NO_LIMIT, NULL));
        far_agent_counters(c.agents[to], &k);
        must(k.rrefs_owned == 1);
        must_ok(ask(c.agents[0], 2, "drop", text_message(""), FAR_NO_LIMIT, NULL));
        rrefs_none(&c);
    }
    rrefs_close(&c);
}

static void the_limit_covers_the_running(void **state)
{
    (void)state;
    cluster_each(late_over);
}

/* The value stands when the limit runs out at the creator, or about then: what the owner says is true. */
static void close_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 2);
    for (far_worker_id to = 0; to < 2; to++)
        for (int i = 0; i < 300; i++) {
            int64_t value;
            far_rref *r = make_at(c.agents[0], to, i % 2 ? "make" : "note", i, 1 + i % 100 * 3000);
            far_status verdict = settle_of(r);
            must(verdict == FAR_OK || verdict == FAR_ETIMEOUT);
            must_status(verdict, fetch(r, FAR_NO_LIMIT, &value));
            must(verdict != FAR_OK || value == i);
            must_status(verdict, settle_of(r));
            far_rref_release(r);
        }
    rrefs_close(&c);
}

static void a_close_race_has_one_verdict(void **state)
{
    (void)state;
    cluster_each(close_over);
}

static void few_threads(far_options *o, size_t rank, void *arg)
{
    rrefs_adjust(o, rank, arg);
    o->threads = o->threads_max = 2;
}

/* No thread gets to it in time: it is not run, and the error entry is all that happens. */
static void unrun_over(cluster_net net)
{
    cluster c;
    far_future *stuck[4];
    rrefs_reset();
    cluster_open(&c, net, &(cluster_options){.adjust = few_threads});
    for (size_t i = 0; i < 4; i++)
        stuck[i] = begin(c.agents[0], i < 2, "hold", text_message(""), FAR_NO_LIMIT);
    gate_wait(&handlers.held, 4);
    far_rref *r[2], *b[2];
    for (far_worker_id to = 0; to < 2; to++) {
        r[to] = make_at(c.agents[0], to, "make", 1, 20 * FAR_MILLISECOND);
        must_status(FAR_ETIMEOUT, settle_of(r[to]));
        b[to] = make_at(c.agents[0], to, "make", 2, FAR_NO_LIMIT); /* let go before it is run */
        far_rref_release(b[to]);
    }
    handlers_open();
    for (size_t i = 0; i < 4; i++)
        must_ok(end(stuck[i]));
    for (far_worker_id to = 0; to < 2; to++) {
        must_have_failed(r[to], FAR_ETIMEOUT, "");
        far_rref_release(r[to]);
    }
    rrefs_close(&c);
}

static void not_run_when_its_time_is_up(void **state)
{
    (void)state;
    cluster_each(unrun_over);
}

/* A fetch while the value is being made waits as long as it is told and no longer. */
static void fetch_over(cluster_net net)
{
    cluster c;
    void *value;
    rrefs_open(&c, net, 3);
    for (far_worker_id to = 0; to < 3; to++) {
        int64_t got;
        far_future *f[20];
        far_rref *r = make_at(c.agents[0], to, "slow", 50, FAR_NO_LIMIT);
        gate_wait(&rrefs.held, to + 1);
        must_status(FAR_ETIMEOUT, fetch(r, 10 * FAR_MILLISECOND, &got));
        must_status(FAR_ETIMEOUT, fetch(r, 1, &got));
        far_future *s;
        must_ok(far_rref_settled(r, &s));
        must_status(FAR_ETIMEOUT, far_future_wait(s, 0));
        must_status(to ? FAR_EINVAL : FAR_EAGAIN, far_rref_value(r, &value));
        /* Twenty who wait, one of them taken back; others by a user's fork. */
        for (size_t i = 0; i < 20; i++)
            must_ok(far_rref_fetch(r, FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &f[i]));
        must(far_future_cancel(f[7]));
        far_future *use = begin(c.agents[0], 2, "use", message_with(&r, 1), FAR_NO_LIMIT);
        gate_wait(&rrefs.used, to + 1);
        if (to == 2)
            far_future_release(f[8]); /* nobody wants it any more */
        gate_pass(&rrefs.go);
        for (size_t i = 0; i < 20; i++) {
            if (to == 2 && i == 8)
                continue;
            far_status status = end_of(f[i]);
            must_status(i == 7 ? FAR_ECANCELED : FAR_OK, status);
            must(i == 7 || int_of(far_future_message(f[i])) == 50);
            far_future_release(f[i]);
        }
        must_ok(end(s));
        must_ok(end(use));
        must(value_of(r) == 50);
        far_rref_release(r);
        rrefs_none(&c);
        pthread_mutex_lock(&rrefs.go.lock);
        rrefs.go.count = 0;
        pthread_mutex_unlock(&rrefs.go.lock);
    }
    rrefs_close(&c);
}

static void fetching_what_is_being_made(void **state)
{
    (void)state;
    cluster_each(fetch_over);
}

/* Ten thousand fetches wait for one value, on a worker with two threads. */
static void crowd_over(cluster_net net)
{
    enum { WAIT = 2000 };
    cluster c;
    rrefs_reset();
    cluster_open(&c, net, &(cluster_options){.adjust = few_threads});
    for (far_worker_id to = 0; to < 2; to++) {
        far_rref *r = make_at(c.agents[0], to, "keep", 1, FAR_NO_LIMIT);
        far_incoming *in = next_kept();
        far_future *f[WAIT];
        for (size_t i = 0; i < WAIT; i++)
            must_ok(far_rref_fetch(r, FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &f[i]));
        must_echo(c.agents[0], to, "there are threads");
        far_incoming_reply(in, int_message(6));
        for (size_t i = 0; i < WAIT; i++)
            must_ok(end(f[i]));
        far_rref_release(r);
    }
    rrefs_close(&c);
}

static void waiting_holds_no_thread(void **state)
{
    (void)state;
    cluster_each(crowd_over);
}

/* ------------------------------------------------------------------------- messages that are dropped */

/* In a queue behind stuck threads: cancelled, expired, and their references come free. */
static void queued_over(cluster_net net)
{
    cluster c;
    far_future *stuck[6], *f[3][10];
    rrefs_reset();
    cluster_open(&c, net, &(cluster_options){.size = 3, .adjust = few_threads});
    for (size_t i = 0; i < 6; i++)
        stuck[i] = begin(c.agents[0], (far_worker_id)(i / 2), "hold", text_message(""), 0);
    gate_wait(&handlers.held, 6);
    far_rref *r = own_thing(c.agents[0], 3);
    for (far_worker_id to = 0; to < 3; to++) {
        for (size_t i = 0; i < 10; i++)
            f[to][i] = begin(c.agents[0], to, "use", message_with(&r, 1),
                             i < 5 ? FAR_NO_LIMIT : 10 * FAR_MILLISECOND);
        for (size_t i = 0; i < 4; i++)
            must(far_future_cancel(f[to][i]));
        for (size_t i = 5; i < 10; i++)
            must_status(FAR_ETIMEOUT, end_of(f[to][i]));
    }
    far_rref_release(r);
    must(atomic_load(&rrefs.things) == 1);
    handlers_open();
    for (size_t i = 0; i < 6; i++)
        must_ok(end(stuck[i]));
    for (far_worker_id to = 0; to < 3; to++) {
        for (size_t i = 0; i < 10; i++) {
            far_status status = end(f[to][i]);
            must_status(i < 4 ? FAR_ECANCELED : i == 4 ? FAR_OK : FAR_ETIMEOUT, status);
        }
    }
    rrefs_close(&c);
}

static void dropped_in_the_queue(void **state)
{
    (void)state;
    cluster_each(queued_over);
}

/* Cancelled at once: before it is sent, while it is, or when it has arrived; with big bodies too. */
static void racing_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    far_rref *r[3];
    for (far_worker_id i = 0; i < 3; i++)
        r[i] = make_at(c.agents[0], i, "make", 1, FAR_NO_LIMIT);
    for (int i = 0; i < 300; i++) {
        far_message *m = message_with(r, 3);
        if (i % 10 == 0) {
            far_buffer *b;
            must_ok(far_buffer_alloc(1 << 20, &b));
            memset(far_buffer_data(b), i, 1 << 20);
            must_ok(far_message_add_segment(m, b, NULL));
        }
        far_future *f = begin(c.agents[0], (far_worker_id)(i % 3), i % 2 ? "use" : "back", m,
                              i % 5 ? FAR_NO_LIMIT : 1 + i * 1000);
        if (i % 4 == 1)
            (void)!far_future_wait(f, FAR_MICROSECOND * i);
        (void)far_future_cancel(f);
        (void)end(f);
    }
    for (size_t i = 0; i < 3; i++)
        far_rref_release(r[i]);
    rrefs_close(&c);
}

static void cancelled_at_any_moment(void **state)
{
    (void)state;
    cluster_each(racing_over);
}

static uint64_t unrun(far_agent *a)
{
    far_counters k;
    far_agent_counters(a, &k);
    return k.calls_expired_unrun + k.calls_cancelled_unrun;
}

/* A call whose handler has begun and whose caller has given up, by its limit or by cancel. On a busy
 * machine a limit can pass before the handler begins; then a longer one is tried. */
static far_incoming *given_up(cluster *c, far_worker_id to, far_rref *r, far_duration limit)
{
    for (;; limit *= 2) {
        uint64_t before = unrun(c->agents[to]);
        far_future *f = begin(c->agents[0], to, "keep", message_with(&r, 1), limit);
        far_incoming *in = NULL;
        gate_until((in = handlers_take_kept()) || (limit && unrun(c->agents[to]) != before));
        if (in && limit == FAR_NO_LIMIT)
            must(far_future_cancel(f));
        must_status(limit ? FAR_ETIMEOUT : FAR_ECANCELED, end(f));
        if (in)
            return in;
    }
}

/* Replies with references that come too late. */
static void replies_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    for (far_worker_id to = 0; to < 3; to++)
        for (int limit = 0; limit < 2; limit++) {
            far_rref *r = make_at(c.agents[0], 1, "make", 1, FAR_NO_LIMIT), *back;
            far_incoming *in = given_up(&c, to, r, limit ? 5 * FAR_MILLISECOND : FAR_NO_LIMIT);
            far_rref_release(r);
            must_ok(far_message_rref(far_incoming_message(in), 0, &back));
            far_rref *mine = own_thing(c.agents[to], 2);
            far_message *m = message_with((far_rref *[]){back, mine}, 2);
            far_rref_release(back);
            far_rref_release(mine);
            far_incoming_reply(in, m);
            rrefs_none(&c);
        }
    rrefs_close(&c);
}

static void late_replies_let_go(void **state)
{
    (void)state;
    cluster_each(replies_over);
}

/* Bodies that cannot be read, calls that are refused at the callee. */
static void small_messages(far_options *o, size_t rank, void *arg)
{
    rrefs_adjust(o, rank, arg);
    o->message_size_max = rank ? 1 << 16 : 1 << 22;
}

static void unreadable(far_incoming *in, void *arg)
{
    (void)arg;
    const far_value *v;
    size_t count;
    far_status status = far_message_values(far_incoming_message(in), &v, &count);
    far_incoming_fail(in, status, NULL, "unreadable", NULL, NULL);
}

static void unreadable_over(cluster_net net)
{
    cluster c;
    rrefs_reset();
    cluster_open(&c, net, &(cluster_options){.size = 3, .adjust = small_messages});
    for (size_t i = 0; i < 3; i++)
        must_ok(far_agent_register(c.agents[i],
                                   &(far_method){.name = "unreadable", .handler = unreadable}));
    for (far_worker_id to = 0; to < 3; to++) {
        far_rref *r[2] = {make_at(c.agents[0], 1, "make", 1, FAR_NO_LIMIT),
                          own_thing(c.agents[0], 2)};
        far_message *m;
        must_ok(far_message_create(FAR_ENCODING_VALUES, &m));
        must_ok(far_message_append(m, "\xc1\xc1", 2));
        for (size_t i = 0; i < 2; i++)
            must_ok(far_message_add_rref(m, r[i], NULL));
        must_status(FAR_EVALUE, ask(c.agents[0], to, "unreadable", m, FAR_NO_LIMIT, NULL));
        must_status(FAR_ENOMETHOD,
                    ask(c.agents[0], to, "none", message_with(r, 2), FAR_NO_LIMIT, NULL));
        m = message_with(r, 2);
        far_buffer *b;
        must_ok(far_buffer_alloc(1 << 20, &b));
        memset(far_buffer_data(b), 1, 1 << 20);
        must_ok(far_message_add_segment(m, b, NULL));
        /* Too big for the other side: its connection ends, and nothing is kept by it. */
        (void)!ask(c.agents[0], to, "use", m, FAR_NO_LIMIT, NULL);
        far_rref_release(r[0]);
        far_rref_release(r[1]);
        rrefs_none(&c);
    }
    rrefs_close(&c);
}

static void unreadable_and_refused(void **state)
{
    (void)state;
    cluster_each(unreadable_over);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(raised_at_every_use),          cmocka_unit_test(raised_at_others_too),
    cmocka_unit_test(let_go_while_it_is_made),      cmocka_unit_test(misuse_is_answered),
    cmocka_unit_test(the_limit_covers_the_running), cmocka_unit_test(a_close_race_has_one_verdict),
    cmocka_unit_test(not_run_when_its_time_is_up),  cmocka_unit_test(fetching_what_is_being_made),
    cmocka_unit_test(waiting_holds_no_thread),      cmocka_unit_test(dropped_in_the_queue),
    cmocka_unit_test(cancelled_at_any_moment),      cmocka_unit_test(late_replies_let_go),
    cmocka_unit_test(unreadable_and_refused),
};
FAR_TEST_MAIN(tests)
