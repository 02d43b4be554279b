/* SPDX-License-Identifier: BSD-3-Clause
 * References: a handler starts when those of its arguments are confirmed; closing and shutting down with
 * references about; very many of them. After each test no reference and no value is left anywhere. */
#include "support/rrefs.h"

#include <malloc.h>
#include <stdatomic.h>

static far_incoming *next_kept(void)
{
    far_incoming *in;
    gate_until((in = handlers_take_kept()) != NULL);
    return in;
}

/* ---------------------------------------------------------------------------------- confirmation */

static void few_threads(far_options *o, size_t rank, void *arg)
{
    rrefs_adjust(o, rank, arg);
    o->threads = o->threads_max = 2;
}

/* Worker 0 passes to 2 what 1 owns; 1 does not answer the registration. */
static void gated_over(cluster_net net)
{
    cluster c;
    far_future *f[20];
    rrefs_reset();
    cluster_open(&c, net, &(cluster_options){.size = 3, .adjust = few_threads});
    block_method(c.agents[1], "far.ref.register");
    far_rref *r = make_at(c.agents[0], 1, "make", 4, FAR_NO_LIMIT);
    must_ok(settle_of(r));
    for (size_t i = 0; i < 20; i++)
        f[i] = begin(c.agents[0], 2, "use", message_with(&r, 1), FAR_NO_LIMIT);
    wait_blocked(1);
    /* Twenty wait there, and both threads are free. */
    for (int i = 0; i < 10; i++)
        must_echo(c.agents[0], 2, "a thread is free");
    must(gate_count(&rrefs.used) == 0);
    /* What needs no word of the owner starts at once: an owner's, one's own, none at all. */
    far_rref *mine = own_thing(c.agents[0], 5);
    must(ask_int(c.agents[0], 2, "use", message_with(&mine, 1)) == 5);
    far_rref *its = make_at(c.agents[0], 2, "make", 6, FAR_NO_LIMIT);
    must(ask_int(c.agents[0], 2, "use", message_with(&its, 1)) == 6);
    must(ask_int(c.agents[0], 2, "use", text_message("")) == 0);
    must(ask_int(c.agents[0], 1, "use", message_with(&r, 1)) == 4);
    must(gate_count(&rrefs.used) == 4);
    for (size_t i = 0; i < 20; i++)
        must(!far_future_done(f[i]));
    /* Cancelled and out of time while they wait: not run. */
    must(far_future_cancel(f[3]));
    far_future *late = begin(c.agents[0], 2, "use", message_with(&r, 1), 5 * FAR_MILLISECOND);
    must_status(FAR_ETIMEOUT, end(late));
    far_rref_release(r);
    open_method();
    for (size_t i = 0; i < 20; i++) {
        far_status status = end_of(f[i]);
        must_status(i == 3 ? FAR_ECANCELED : FAR_OK, status);
        must(i == 3 || int_of(far_future_message(f[i])) == 4);
        far_future_release(f[i]);
    }
    far_rref_release(mine);
    far_rref_release(its);
    rrefs_none(&c);
    must(gate_count(&rrefs.used) == 4 + 19);
    rrefs_close(&c);
}

static void handlers_start_when_confirmed(void **state)
{
    (void)state;
    cluster_each(gated_over);
}

/* A value that is being made is known: a yes. Before its creation has come the owner says nothing else. */
static void making_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    far_rref *r = make_at(c.agents[0], 1, "keep", 1, FAR_NO_LIMIT);
    far_incoming *in = next_kept();
    must(!far_rref_confirmed(r));
    for (far_worker_id to = 0; to < 3; to++) {
        must(ask_int(c.agents[0], to, "count", message_with(&r, 1)) == 1);
        must(ask_int(c.agents[0], to, "store", message_with(&r, 1)) == 1);
    }
    far_incoming_reply(in, int_message(8));
    for (far_worker_id to = 0; to < 3; to++)
        must(ask_int(c.agents[0], to, "sum", text_message("")) == 8);
    must(far_rref_confirmed(r) || settle_of(r) == FAR_OK);
    for (far_worker_id to = 0; to < 3; to++)
        must_ok(ask(c.agents[0], to, "drop", text_message(""), FAR_NO_LIMIT, NULL));
    far_rref_release(r);
    rrefs_close(&c);
}

static void being_made_is_a_yes(void **state)
{
    (void)state;
    cluster_each(making_over);
}

/* A reply completes its future without the owner; its references are not confirmed yet, and usable. */
static void reply_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    block_method(c.agents[1], "far.ref.register");
    far_rref *r = make_at(c.agents[0], 1, "note", 3, FAR_NO_LIMIT);
    must_ok(settle_of(r));
    far_rref *mine = ask_rref(c.agents[2], 1, "own", int_message(4));
    must(far_rref_confirmed(mine)); /* out of the owner's hand */
    /* 2 passes it back to 0 in its answer: "back" must not wait for anything, so 2 gives what it has. */
    far_future *f = begin(c.agents[2], 0, "keep", text_message(""), FAR_NO_LIMIT);
    far_incoming *in = next_kept();
    far_incoming_reply(in, message_with(&r, 1));
    must_ok(end_of(f));
    far_rref *got;
    must_ok(far_message_rref(far_future_message(f), 0, &got));
    far_future_release(f);
    wait_blocked(1);
    must(!far_rref_confirmed(got));
    must(value_of(got) == 3);
    far_rref_release(r); /* and its parent may go */
    must(value_of(got) == 3);
    open_method();
    gate_until(far_rref_confirmed(got));
    far_rref_release(got);
    far_rref_release(mine);
    rrefs_close(&c);
}

static void replies_do_not_wait(void **state)
{
    (void)state;
    cluster_each(reply_over);
}

/* Each of the machine's calls comes late: nothing is freed too early, nothing stays. */
static void delayed_over(cluster_net net)
{
    static const char *const methods[] = {"far.ref.register", "far.ref.release", "far.ref.accept",
                                          "far.ref.void", "far.ref.expired"};
    for (size_t k = 0; k < 5; k++)
        for (far_worker_id where = 0; where < 3; where++) {
            cluster c;
            handlers_reset();
            rrefs_open(&c, net, 3);
            block_method(c.agents[where], methods[k]);
            far_future *f[9];
            for (far_worker_id i = 0; i < 9; i++) {
                far_rref *r = make_at(c.agents[0], i % 3, "make", i, FAR_NO_LIMIT);
                f[i] = begin(c.agents[0], i / 3, "pass", int_with((i + 1) % 3, r), FAR_NO_LIMIT);
                far_rref_release(r);
                far_future *dropped =
                    begin(c.agents[0], i % 3, "own", int_message(1), FAR_NO_LIMIT);
                far_rref *late = make_at(c.agents[0], i % 3, "make", 1, 1000);
                (void)far_future_cancel(dropped);
                far_future_release(dropped);
                far_rref_release(late);
            }
            must_echo(c.agents[0], 1, "meanwhile");
            open_method();
            for (far_worker_id i = 0; i < 9; i++) {
                must_ok(end_of(f[i]));
                must(int_of(far_future_message(f[i])) == i);
                far_future_release(f[i]);
            }
            rrefs_close(&c);
        }
}

static void every_word_may_be_late(void **state)
{
    (void)state;
    cluster_each(delayed_over);
}

/* ---------------------------------------------------------------------------------------- closing */

/* Closed at once with all kinds of references about: in handles, in messages, being made, waited for. */
static void closed_over(cluster_net net)
{
    for (size_t first = 0; first < 3; first++) {
        cluster c;
        handlers_reset();
        rrefs_open(&c, net, 3);
        block_method(c.agents[1], "far.ref.register");
        far_rref *r[6];
        far_future *s[4], *f[6];
        for (far_worker_id to = 0; to < 3; to++) {
            r[to] = make_at(c.agents[0], to, "make", 1, FAR_NO_LIMIT);
            must_ok(settle_of(r[to]));
        }
        r[3] = make_at(c.agents[0], 0, "keep", 1, FAR_NO_LIMIT);
        r[4] = make_at(c.agents[0], 1, "keep", 1, FAR_NO_LIMIT);
        r[5] = own_thing(c.agents[0], 1);
        gate_wait(&handlers.arrived, 2);
        must_ok(far_rref_settled(r[3], &s[0]));
        must_ok(far_rref_settled(r[4], &s[1]));
        must_ok(far_rref_fetch(r[3], FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &s[2]));
        must_ok(far_rref_fetch(r[4], FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &s[3]));
        for (far_worker_id to = 0; to < 3; to++) {
            f[to] = begin(c.agents[0], to, "store", message_with(r, 6), FAR_NO_LIMIT);
            f[3 + to] = begin(c.agents[0], to, "own", int_message(1), FAR_NO_LIMIT);
        }
        wait_blocked(1);
        for (size_t i = 0; i < 3; i++)
            far_agent_close(c.agents[(first + i) % 3]);
        for (size_t i = 0; i < 4; i++) {
            far_status status = end(s[i]);
            must(status == FAR_ECLOSED || status == FAR_EPEER);
        }
        for (size_t i = 0; i < 6; i++)
            (void)end(f[i]);
        open_method();
        far_incoming_reply(next_kept(), int_message(1)); /* their handlers go on */
        far_incoming_fail(next_kept(), FAR_EREMOTE, NULL, "no", NULL, NULL);
        for (size_t i = 0; i < 6; i++)
            far_rref_release(r[i]);
        for (size_t i = 0; i < 3; i++)
            rrefs_drop_stored(c.agents[i]);
        cluster_drop(&c);
        must(atomic_load(&rrefs.things) == 0);
    }
}

static void closing_frees_all(void **state)
{
    (void)state;
    cluster_each(closed_over);
}

/* ------------------------------------------------------------------------------------- shutting down */

static void *shut(void *arg)
{
    far_error error = {.text = ""};
    if (far_agent_shutdown(arg, 40 * FAR_SECOND, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    return NULL;
}

static void shut_all(cluster *c)
{
    pthread_t threads[CLUSTER_MAX];
    for (size_t i = 0; i < c->size; i++)
        must(pthread_create(&threads[i], NULL, shut, c->agents[i]) == 0);
    for (size_t i = 0; i < c->size; i++)
        pthread_join(threads[i], NULL);
}

/* The program still holds references: shutdown returns, and the owners have freed the values. */
static void held_over(cluster_net net)
{
    cluster c;
    far_rref *r[9];
    rrefs_open(&c, net, 3);
    for (far_worker_id i = 0; i < 9; i++) {
        r[i] = make_at(c.agents[i % 3], (i % 3 + 1 + i % 2) % 3, "make", i, FAR_NO_LIMIT);
        must(ask_int(c.agents[i % 3], i / 3, "store", message_with(&r[i], 1)) == 1);
    }
    for (size_t i = 0; i < 3; i++)
        rrefs_drop_stored(c.agents[i]);
    far_rref_release(r[8]);
    shut_all(&c);
    for (size_t i = 0; i < 3; i++) {
        far_counters k;
        far_agent_counters(c.agents[i], &k);
        must(k.rrefs_owned == 0 && k.rrefs_lent == 0 && k.rrefs_held > 0);
    }
    for (size_t i = 0; i < 8; i++) {
        far_future *f;
        char text[100];
        must_status(FAR_ECLOSED, far_rref_fetch(r[i], FAR_ENCODING_RAW, FAR_NO_LIMIT, 0, &f));
        far_rref_describe(r[i], text, sizeof text);
        must_say(text, "FAR_ECLOSED");
        far_rref_release(r[i]);
    }
    cluster_drop(&c);
    must(atomic_load(&rrefs.things) == 0);
}

static void shutdown_with_references_held(void **state)
{
    (void)state;
    cluster_each(held_over);
}

/* Owners hold their own: those are the program's to give back. */
static void owners_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 2);
    far_rref *mine = own_thing(c.agents[0], 1);
    must(ask_int(c.agents[0], 1, "store", message_with(&mine, 1)) == 1);
    shut_all(&c);
    far_counters k;
    far_agent_counters(c.agents[0], &k);
    must(k.rrefs_lent == 0 && k.rrefs_owned == 1);
    void *value;
    must_ok(far_rref_value(mine, &value));
    must(*(int64_t *)value == 1);
    far_rref_release(mine);
    far_agent_counters(c.agents[0], &k);
    must(k.rrefs_owned == 0);
    rrefs_drop_stored(c.agents[1]);
    cluster_drop(&c);
    must(atomic_load(&rrefs.things) == 0);
}

static void owners_keep_their_own(void **state)
{
    (void)state;
    cluster_each(owners_over);
}

/* Twenty hops that nobody waits for, each adding a reference and dropping its own, then shutdown. */
static void chain_over(cluster_net net)
{
    cluster c;
    rrefs_open(&c, net, 3);
    far_future_release(begin(c.agents[0], 1, "chain", int_message(20), FAR_NO_LIMIT));
    far_rref_release(make_at(c.agents[0], 2, "chain", 20, FAR_NO_LIMIT));
    shut_all(&c);
    must(gate_count(&rrefs.used) == 42);
    for (size_t i = 0; i < 3; i++) {
        far_counters k;
        far_agent_counters(c.agents[i], &k);
        must(k.rrefs_owned == 0 && k.rrefs_lent == 0 && k.rrefs_held == 0);
    }
    cluster_drop(&c);
    must(atomic_load(&rrefs.things) == 0);
}

static void a_chain_that_nobody_waits_for(void **state)
{
    (void)state;
    cluster_each(chain_over);
}

/* Shutdown right after, or while, references are made, passed and dropped: again and again. */
static void hasty_over(cluster_net net)
{
    for (int round = 0; round < 10; round++) {
        cluster c;
        rrefs_open(&c, net, 3);
        for (far_worker_id i = 0; i < 9; i++) {
            far_rref *r = make_at(c.agents[i % 3], i / 3, "make", i, i % 4 ? FAR_NO_LIMIT : 1000);
            far_message *m = text_message("");
            if (far_message_add_rref(m, r, NULL) == FAR_OK)
                far_future_release(
                    begin(c.agents[i % 3], (i + 1) % 3, i % 2 ? "back" : "use", m, FAR_NO_LIMIT));
            else
                far_message_discard(m);
            far_rref_release(r);
        }
        cluster_close(&c);
        must(atomic_load(&rrefs.things) == 0);
    }
}

static void shutdown_in_haste(void **state)
{
    (void)state;
    cluster_each(hasty_over);
}

/* -------------------------------------------------------------------------------------- very many */

static size_t many(void)
{
    const char *text = getenv("FARCALL_RREFS");
    return text ? (size_t)strtoull(text, NULL, 10) : RREFS_SLOW ? 1500 : 12500;
}

enum { WINDOW = 500 };

/* Made, fetched, dropped; what is alive does not grow. */
static void stream_of(cluster *c, far_worker_id to, size_t count, size_t *most)
{
    far_future *f[WINDOW];
    far_rref *r[WINDOW];
    for (size_t done = 0; done < count; done += WINDOW) {
        for (size_t i = 0; i < WINDOW; i++) {
            r[i] = make_at(c->agents[0], to, i % 2 ? "make" : "note", (int64_t)i, FAR_NO_LIMIT);
            must_ok(far_rref_fetch(r[i], FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &f[i]));
        }
        for (size_t i = 0; i < WINDOW; i++) {
            must_ok(end(f[i]));
            far_rref_release(r[i]);
        }
        size_t live = far_memory_live();
        *most = live > *most ? live : *most;
        /* How far releases lag behind is the scheduler's choice; here it may lag by so much. */
        if (done / WINDOW % 4 == 3)
            rrefs_none(c);
    }
}

static size_t heap_used(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void many_over(cluster_net net)
{
    cluster c;
    size_t warm = 0, most = 0;
    rrefs_open(&c, net, 2);
    alarm(many() > 100000 ? 3000 : 58);
    for (far_worker_id to = 0; to < 2; to++)
        stream_of(&c, to, 4 * WINDOW, &warm);
    rrefs_none(&c);
    size_t live = far_memory_live(), heap = heap_used();
    for (far_worker_id to = 0; to < 2; to++)
        stream_of(&c, to, many(), &most);
    rrefs_none(&c);
    /* A leak of one allocation in ten references would be seen; tables may keep some room. */
    must(far_memory_live() < live + 1000);
    must(most < 2 * warm + 20 * WINDOW);
    must(heap_used() < heap + (8 << 20));
    rrefs_close(&c);
}

static void memory_is_flat(void **state)
{
    (void)state;
    cluster_each(many_over);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(handlers_start_when_confirmed),
    cmocka_unit_test(being_made_is_a_yes),
    cmocka_unit_test(replies_do_not_wait),
    cmocka_unit_test(every_word_may_be_late),
    cmocka_unit_test(closing_frees_all),
    cmocka_unit_test(shutdown_with_references_held),
    cmocka_unit_test(owners_keep_their_own),
    cmocka_unit_test(a_chain_that_nobody_waits_for),
    cmocka_unit_test(shutdown_in_haste),
    cmocka_unit_test(memory_is_flat),
};
FAR_TEST_MAIN(tests)
