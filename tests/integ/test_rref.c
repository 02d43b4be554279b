/* SPDX-License-Identifier: BSD-3-Clause
 * References: creating, asking, fetching, passing in every direction. After each test no reference and no
 * value is left anywhere. */
#include "support/rrefs.h"

#include <stdatomic.h>

/* --------------------------------------------------------------------------------------- creating */

static void created_over(cluster_net net)
{
    cluster c;
    far_worker owner;
    void *value;
    char text[100];
    rrefs_open(&c, net, 2);
    for (far_worker_id to = 0; to < 2; to++) {
        far_rref *r = make_at(c.agents[0], to, "make", 40 + to, FAR_NO_LIMIT);
        must(far_rref_is_owner(r) == (to == 0));
        far_rref_owner(r, &owner);
        must(owner.id == to && strcmp(owner.name, to ? "w1" : "w0") == 0);
        must_ok(settle_of(r));
        must(far_rref_confirmed(r));
        for (int i = 0; i < 3; i++)
            must(value_of(r) == 40 + to);
        must_status(to ? FAR_EINVAL : FAR_OK, far_rref_value(r, &value));
        must(to == 1 || *(int64_t *)value == 40);
        far_rref_describe(r, text, sizeof text);
        must_say(text, to ? "worker 1, reference 0:" : "worker 0, reference 0:");
        must_say(text, to ? "CONFIRMED" : "MADE");
        far_rref_describe(r, text, 10);
        must(strlen(text) == 9);
        far_counters k;
        far_agent_counters(c.agents[0], &k);
        must(k.rrefs_held == 1 && k.rrefs_owned == (to == 0));
        far_agent_counters(c.agents[to], &k);
        must(k.rrefs_owned == 1 && k.rrefs_lent == to);
        must(atomic_load(&rrefs.things) == 1);
        must(far_rref_hold(r) == r);
        far_rref_release(r);
        must(value_of(r) == 40 + to);
        far_rref_release(r);
        rrefs_none(&c);
    }
    rrefs_close(&c);
}

static void created_elsewhere_and_here(void **state)
{
    (void)state;
    cluster_each(created_over);
}

/* The result of a handler that answers with a message is the message. */
static void message_over(cluster_net net)
{
    cluster c;
    void *value = &c;
    rrefs_open(&c, net, 2);
    for (far_worker_id to = 0; to < 2; to++) {
        far_rref *r = make_at(c.agents[0], to, "note", 7, FAR_NO_LIMIT);
        must(value_of(r) == 7 && value_of(r) == 7);
        if (to == 0) {
            must_ok(far_rref_value(r, &value));
            must(value == NULL);
        }
        far_rref_release(r);
        /* Also the message that came. */
        r = make_at(c.agents[0], to, "echo", 8, FAR_NO_LIMIT);
        must(value_of(r) == 8);
        far_rref_release(r);
        must_ok(far_remote(c.agents[0], to, "quick", text_message("x"), FAR_NO_LIMIT, &r));
        must_ok(settle_of(r));
        far_rref_release(r);
    }
    rrefs_close(&c);
}

static void a_message_is_a_value(void **state)
{
    (void)state;
    cluster_each(message_over);
}

static void own_over(cluster_net net)
{
    cluster c;
    void *value;
    rrefs_open(&c, net, 2);
    for (size_t i = 0; i < 2; i++) {
        far_rref *r = own_thing(c.agents[i], 5);
        must(far_rref_is_owner(r) && far_rref_confirmed(r));
        must_ok(settle_of(r));
        must_ok(far_rref_value(r, &value));
        must(*(int64_t *)value == 5 && value_of(r) == 5);
        far_rref_release(r);
        gate_until(atomic_load(&rrefs.things) == 0);
        must_status(FAR_EINVAL, far_rref_create(c.agents[i], NULL, NULL, &r));
        int here = 1; /* nothing to be freed */
        must_ok(far_rref_create(c.agents[i], &here, NULL, &r));
        must_ok(far_rref_value(r, &value));
        must(value == &here);
        far_rref_release(r);
    }
    far_rref_release(NULL);
    rrefs_close(&c);
}

static void values_of_ones_own(void **state)
{
    (void)state;
    cluster_each(own_over);
}

static void refused_over(cluster_net net)
{
    cluster c;
    far_rref *r;
    rrefs_open(&c, net, 2);
    far_agent *a = c.agents[0];
    must_status(FAR_ENOWORKER, far_remote(a, 7, "make", int_message(1), FAR_NO_LIMIT, &r));
    must_status(FAR_EINVAL, far_remote(a, 1, "far.x", int_message(1), FAR_NO_LIMIT, &r));
    must_status(FAR_EINVAL, far_remote(a, 1, "", int_message(1), FAR_NO_LIMIT, &r));
    must_status(FAR_EINVAL, far_remote(a, 0, "make", int_message(1), -1, &r));
    far_counters k;
    far_agent_counters(a, &k);
    must(k.calls_started == 0 && k.rrefs_held == 0);
    rrefs_close(&c);
}

static void refused_at_once(void **state)
{
    (void)state;
    cluster_each(refused_over);
}

/* Of a closed agent everything is refused, and the handles are given back all the same. */
static void closed_over(cluster_net net)
{
    cluster c;
    far_rref *r[3], *none;
    far_future *f;
    int here = 1;
    rrefs_open(&c, net, 2);
    r[0] = own_thing(c.agents[0], 1);
    r[1] = make_at(c.agents[0], 1, "make", 2, FAR_NO_LIMIT);
    r[2] = make_at(c.agents[0], 0, "make", 3, FAR_NO_LIMIT);
    must_ok(settle_of(r[1]));
    must_ok(settle_of(r[2]));
    for (size_t i = 0; i < 2; i++)
        far_agent_close(c.agents[i]);
    must_status(FAR_ECLOSED, far_rref_create(c.agents[0], &here, NULL, &none));
    must_status(FAR_ECLOSED,
                far_remote(c.agents[0], 1, "make", int_message(1), FAR_NO_LIMIT, &none));
    for (size_t i = 0; i < 3; i++) {
        far_message *m = text_message("");
        must_status(FAR_ECLOSED, far_rref_fetch(r[i], FAR_ENCODING_RAW, FAR_NO_LIMIT, 0, &f));
        must_status(FAR_ECLOSED, far_message_add_rref(m, r[i], NULL));
        must(far_rref_same(r[i], r[i]));
        far_message_discard(m);
        far_rref_release(r[i]);
    }
    cluster_drop(&c); /* a closed agent frees values when it goes at the latest */
    must(atomic_load(&rrefs.things) == 0);
}

static void references_of_a_closed_agent(void **state)
{
    (void)state;
    cluster_each(closed_over);
}

/* ---------------------------------------------------------------------------------------- asking */

static void same_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 2);
    far_rref *r[6];
    r[0] = make_at(c.agents[0], 1, "make", 1, FAR_NO_LIMIT);
    r[1] = make_at(c.agents[0], 1, "make", 1, FAR_NO_LIMIT);
    r[2] = make_at(c.agents[0], 0, "make", 1, FAR_NO_LIMIT);
    r[3] = make_at(c.agents[1], 1, "make", 1, FAR_NO_LIMIT);
    r[4] = own_thing(c.agents[0], 1);
    r[5] = own_thing(c.agents[1], 1);
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 0; j < 6; j++)
            must(far_rref_same(r[i], r[j]) == (i == j));
    for (size_t i = 0; i < 6; i++)
        for (far_worker_id to = 0; to < 2; to++) {
            far_agent *a = c.agents[i == 3 || i == 5];
            far_rref *again = ask_rref(a, to, "back", message_with(&r[i], 1));
            must(far_rref_same(again, r[i]) && far_rref_same(r[i], again));
            must(far_rref_hash(again) == far_rref_hash(r[i]));
            far_rref_release(again);
        }
    must(far_rref_hash(r[0]) != far_rref_hash(r[1])); /* or all would be in one bucket */
    for (size_t i = 0; i < 6; i++)
        far_rref_release(r[i]);
    rrefs_close(&c);
}

static void which_are_the_same(void **state)
{
    (void)state;
    cluster_each(same_over);
}

typedef struct seen {
    size_t count, held, owned, holders;
    far_worker_id holder;
} seen;

static void see(const far_rref_info *info, void *arg)
{
    seen *s = arg;
    s->count++;
    s->held += info->held;
    s->owned += info->is_owner;
    s->holders += info->holder_count;
    if (info->holder_count)
        s->holder = info->holders[0];
    must(info->state && info->state[0]);
}

static void listed_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    far_rref *r = make_at(c.agents[0], 1, "make", 1, FAR_NO_LIMIT);
    must_ok(settle_of(r));
    seen s = {0};
    far_agent_rrefs(c.agents[0], see, &s);
    must(s.count == 1 && s.held == 1 && s.owned == 0);
    s = (seen){0};
    far_agent_rrefs(c.agents[1], see, &s);
    must(s.owned == 1 && s.holders == 1 && s.holder == 0);
    must(ask_int(c.agents[0], 2, "store", message_with(&r, 1)) == 1);
    far_rref_release(r);
    gate_until((s = (seen){0}, far_agent_rrefs(c.agents[1], see, &s),
                s.holders == 1 && s.holder == 2 && s.held == 0));
    must_ok(ask(c.agents[0], 2, "drop", text_message(""), FAR_NO_LIMIT, NULL));
    rrefs_none(&c);
    s = (seen){0};
    far_agent_rrefs(c.agents[1], see, &s);
    must(s.count == 0);
    rrefs_close(&c);
}

static void who_holds_what_is_listed(void **state)
{
    (void)state;
    cluster_each(listed_over);
}

/* ---------------------------------------------------------------------------------------- passing */

/* Every owner, every way from worker 0 through one or two others, to itself included. */
static void ways_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    for (far_worker_id owner = 0; owner < 3; owner++) {
        far_rref *r = make_at(c.agents[0], owner, "make", 10 + owner, FAR_NO_LIMIT);
        for (far_worker_id first = 0; first < 3; first++) {
            must(ask_int(c.agents[0], first, "use", message_with(&r, 1)) == 10 + owner);
            for (far_worker_id last = 0; last < 3; last++)
                must(ask_int(c.agents[0], first, "pass", int_with(last, r)) == 10 + owner);
        }
        far_rref_release(r);
        /* Passed on while its creation is on its way, and let go at once. */
        for (far_worker_id first = 0; first < 3; first++) {
            r = make_at(c.agents[0], owner, "make", 20, FAR_NO_LIMIT);
            far_future *f =
                begin(c.agents[0], first, "pass", int_with((first + 1) % 3, r), FAR_NO_LIMIT);
            far_rref_release(r);
            must_ok(end_of(f));
            must(int_of(far_future_message(f)) == 20);
            far_future_release(f);
        }
    }
    rrefs_close(&c);
}

static void in_arguments_every_way(void **state)
{
    (void)state;
    cluster_each(ways_over);
}

static void results_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    for (far_worker_id to = 0; to < 3; to++) {
        far_rref *r = ask_rref(c.agents[0], to, "own", int_message(30 + to));
        must(far_rref_is_owner(r) == (to == 0));
        must(value_of(r) == 30 + to);
        for (far_worker_id via = 0; via < 3; via++) {
            far_rref *again = ask_rref(c.agents[0], via, "back", message_with(&r, 1));
            must(far_rref_same(r, again) && far_rref_is_owner(again) == (to == 0));
            must(value_of(again) == 30 + to);
            far_rref_release(again);
        }
        far_rref_release(r);
    }
    rrefs_close(&c);
}

static void in_results_every_way(void **state)
{
    (void)state;
    cluster_each(results_over);
}

/* Results whose references nobody takes, and futures that nobody looks at. */
static void untaken_over(cluster_net net)
{
    cluster c;
    far_message *reply;
    rrefs_open(&c, net, 3);
    for (far_worker_id to = 0; to < 3; to++) {
        must_ok(far_call_sync(c.agents[0], to, "own", int_message(1), FAR_NO_LIMIT, &reply, NULL));
        must(far_message_rref_count(reply) == 1);
        far_message_discard(reply);
        far_future_release(begin(c.agents[0], to, "own", int_message(2), FAR_NO_LIMIT));
        must_ok(end(begin(c.agents[0], to, "own", int_message(3), FAR_NO_LIMIT)));
        far_rref *r = make_at(c.agents[0], (to + 1) % 3, "make", 1, FAR_NO_LIMIT);
        must_ok(end(begin(c.agents[0], to, "echo", message_with(&r, 1), FAR_NO_LIMIT)));
        must(ask_int(c.agents[0], to, "count", message_with(&r, 1)) == 1);
        far_rref_release(r);
    }
    rrefs_close(&c);
}

static void nobody_takes_them(void **state)
{
    (void)state;
    cluster_each(untaken_over);
}

static void several_over(cluster_net net)
{
    cluster c;
    far_rref *r[40], *again;
    size_t index;
    rrefs_open(&c, net, 3);
    int64_t sum = 0;
    for (size_t i = 0; i < 40; i++) {
        r[i] = make_at(c.agents[0], (far_worker_id)(i % 3), "make", (int64_t)i, FAR_NO_LIMIT);
        sum += (int64_t)i;
    }
    for (far_worker_id to = 0; to < 3; to++) {
        far_message *m = message_with(r, 40);
        for (size_t i = 0; i < 40; i++) { /* the same once more */
            must_ok(far_message_add_rref(m, r[i], &index));
            must(index == i);
        }
        must(ask_int(c.agents[0], to, "use", m) == sum);
        must(ask_int(c.agents[0], to, "count", message_with(r, 40)) == 40);
        /* The same twice by two forks of it. */
        far_rref *two[2] = {r[1], ask_rref(c.agents[0], to, "back", message_with(&r[1], 1))};
        must(far_rref_same(two[0], two[1]));
        must(ask_int(c.agents[0], to, "use", message_with(two, 2)) == 2);
        far_rref_release(two[1]);
    }
    /* Taken any number of times. */
    far_message *reply;
    must_ok(far_call_sync(c.agents[0], 2, "back", message_with(r, 40), FAR_NO_LIMIT, &reply, NULL));
    must(far_message_rref_count(reply) == 40);
    for (size_t i = 0; i < 40; i++)
        for (int k = 0; k < 2; k++) {
            must_ok(far_message_rref(reply, i, &again));
            must(far_rref_same(again, r[i]));
            far_rref_release(again);
        }
    must_status(FAR_EINVAL, far_message_rref(reply, 40, &again));
    far_message_discard(reply);
    for (size_t i = 0; i < 40; i++)
        far_rref_release(r[i]);
    rrefs_close(&c);
}

static void several_in_one_call(void **state)
{
    (void)state;
    cluster_each(several_over);
}

/* References as arguments of a creation: the created one is not among them. */
static void creation_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    for (far_worker_id to = 0; to < 3; to++) {
        far_rref *r[2] = {make_at(c.agents[0], 1, "make", 3, FAR_NO_LIMIT),
                          own_thing(c.agents[0], 4)};
        far_rref *all;
        must_ok(far_remote(c.agents[0], to, "use", message_with(r, 2), FAR_NO_LIMIT, &all));
        must(value_of(all) == 7);
        far_rref_release(all);
        must_ok(far_remote(c.agents[0], to, "count", message_with(r, 2), FAR_NO_LIMIT, &all));
        must(value_of(all) == 2);
        far_rref_release(all);
        must_ok(far_remote(c.agents[0], to, "count", text_message(""), FAR_NO_LIMIT, &all));
        must(value_of(all) == 0);
        far_rref_release(all);
        far_rref_release(r[0]);
        far_rref_release(r[1]);
    }
    rrefs_close(&c);
}

static void as_arguments_of_a_creation(void **state)
{
    (void)state;
    cluster_each(creation_over);
}

/* A user keeps it when everybody else has let go. */
static void stored_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    for (far_worker_id owner = 0; owner < 3; owner++)
        for (far_worker_id via = 0; via < 3; via++)
            for (far_worker_id keeper = 0; keeper < 3; keeper++) {
                far_rref *r = make_at(c.agents[0], owner, "make", 9, FAR_NO_LIMIT);
                must(ask_int(c.agents[0], via, "give", int_with(keeper, r)) == 1);
                far_rref_release(r);
                must(ask_int(c.agents[0], keeper, "sum", text_message("")) == 9);
                must(atomic_load(&rrefs.things) == 1);
                must_ok(ask(c.agents[0], keeper, "drop", text_message(""), FAR_NO_LIMIT, NULL));
                gate_until(atomic_load(&rrefs.things) == 0);
            }
    rrefs_close(&c);
}

static void the_last_one_keeps_it(void **state)
{
    (void)state;
    cluster_each(stored_over);
}

/* Messages that are never sent, or refused before they are. */
static void unsent_over(cluster_net net)
{
    cluster c;
    far_future *f;
    far_rref *r[2], *none;
    rrefs_open(&c, net, 2);
    r[0] = make_at(c.agents[0], 1, "make", 1, FAR_NO_LIMIT);
    r[1] = own_thing(c.agents[0], 2);
    far_message_discard(message_with(r, 2));
    must_status(FAR_ENOWORKER, far_call(c.agents[0], 9, "use", message_with(r, 2), 0, 0, &f));
    must_status(FAR_EINVAL, far_call(c.agents[0], 1, "", message_with(r, 2), 0, 0, &f));
    must_status(FAR_ENOWORKER, far_remote(c.agents[0], 9, "use", message_with(r, 2), 0, &none));
    far_message *m = text_message("");
    must(far_message_rref_count(m) == 0);
    must_status(FAR_EINVAL, far_message_rref(m, 0, &none));
    must_ok(far_message_add_rref(m, r[0], NULL));
    must(far_message_rref_count(m) == 0); /* of received ones */
    /* Of another agent. */
    far_rref *other = own_thing(c.agents[1], 3);
    must_status(FAR_EINVAL, far_message_add_rref(m, other, NULL));
    far_rref_release(other);
    /* The message alone keeps it now. */
    far_rref_release(r[0]);
    far_rref_release(r[1]);
    must_ok(end(begin(c.agents[0], 1, "use", m, FAR_NO_LIMIT)));
    rrefs_close(&c);
}

static void messages_that_are_not_sent(void **state)
{
    (void)state;
    cluster_each(unsent_over);
}

/* Many threads make, pass, use and drop at a time. */
enum { CROWD = 4, ROUNDS = RREFS_SLOW ? 10 : 60 };

typedef struct crowd {
    cluster *c;
    size_t number;
    pthread_t thread;
} crowd;

static void *busy(void *arg)
{
    crowd *me = arg;
    far_agent *a = me->c->agents[me->number % 3];
    for (size_t i = 0; i < ROUNDS; i++) {
        far_worker_id owner = (far_worker_id)((me->number + i) % 3);
        far_worker_id user = (far_worker_id)(i / 3 % 3);
        far_rref *r = make_at(a, owner, i % 2 ? "make" : "note", (int64_t)i, FAR_NO_LIMIT);
        must(ask_int(a, user, "use", message_with(&r, 1)) == (int64_t)i);
        far_rref *b = ask_rref(a, user, "back", message_with(&r, 1));
        far_rref_release(r);
        must(value_of(b) == (int64_t)i);
        must(ask_int(a, owner, "pass", int_with(user, b)) == (int64_t)i);
        far_rref_release(b);
    }
    return NULL;
}

static void crowd_over(cluster_net net)
{
    cluster c;
    crowd all[CROWD];
    rrefs_open(&c, net, 3);
    for (size_t i = 0; i < CROWD; i++) {
        all[i] = (crowd){.c = &c, .number = i};
        must(pthread_create(&all[i].thread, NULL, busy, &all[i]) == 0);
    }
    for (size_t i = 0; i < CROWD; i++)
        pthread_join(all[i].thread, NULL);
    rrefs_close(&c);
}

static void many_threads_at_once(void **state)
{
    (void)state;
    cluster_each(crowd_over);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(created_elsewhere_and_here),   cmocka_unit_test(a_message_is_a_value),
    cmocka_unit_test(values_of_ones_own),           cmocka_unit_test(refused_at_once),
    cmocka_unit_test(references_of_a_closed_agent), cmocka_unit_test(which_are_the_same),
    cmocka_unit_test(who_holds_what_is_listed),     cmocka_unit_test(in_arguments_every_way),
    cmocka_unit_test(in_results_every_way),         cmocka_unit_test(nobody_takes_them),
    cmocka_unit_test(several_in_one_call),          cmocka_unit_test(as_arguments_of_a_creation),
    cmocka_unit_test(the_last_one_keeps_it),        cmocka_unit_test(messages_that_are_not_sent),
    cmocka_unit_test(many_threads_at_once),
};
FAR_TEST_MAIN(tests)
