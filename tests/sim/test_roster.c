/* SPDX-License-Identifier: BSD-3-Clause
 * Simulation of proto/roster: workers join, repeat their wish, leave and are lost at rank 0, in
 * fixed and open worlds; snapshots reach the copies late, out of order, twice or never. */
#include "proto/roster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/sim.h"
#include "support/test.h"

enum { COPIES = 3, EVENTS = 60, NAMES = 12 };

/* An id that was given, and to whom. */
typedef struct given {
    far_worker_id id;
    uint64_t incarnation;
} given;

typedef struct game {
    sim *s;
    far__roster roster, copies[COPIES];
    given given[EVENTS];
    size_t given_count;
    uint64_t last_incarnation;
} game;

typedef struct delivery {
    game *g;
    far__roster *copy;
    far_message *message;
    uint64_t version;
} delivery;

static struct coverage {
    uint64_t admitted, repeats, refused, gone, newer, older, failed, completed;
} seen;

static void deliver(sim *s, void *arg)
{
    (void)s;
    delivery *d = arg;
    uint64_t before = d->copy->version;
    bool changed;
    assert_ok(far__roster_apply(d->copy, d->message, &changed));
    assert_int_equal(changed, d->version > before);
    assert_int_equal(d->copy->version, changed ? d->version : before);
    seen.newer += changed;
    seen.older += !changed;
    far_message_discard(d->message);
    free(d);
}

static void send_to(game *g, far__roster *copy)
{
    delivery *d = sim_alloc(sizeof *d);
    *d = (delivery){.g = g, .copy = copy, .version = g->roster.version};
    assert_ok(far_message_create(FAR_ENCODING_VALUES, &d->message));
    assert_ok(far__roster_encode(&g->roster, d->message));
    sim_at(g->s, g->s->now + sim_delay(g->s, 100), deliver, d);
}

static void announce(game *g)
{
    for (size_t i = 0; i < COPIES; i++) {
        while (!sim_chance(g->s, 50))
            send_to(g, &g->copies[i]);
    }
}

static void check(const game *g)
{
    const far__roster *r = &g->roster;
    assert_int_equal(r->count, g->given_count);
    for (size_t i = 0; i < r->count; i++) {
        const far__member *m = &r->members[i];
        assert_true(i == 0 || r->members[i - 1].id < m->id);
        assert_true(r->world_size == 0 || m->id < r->world_size);
        assert_ptr_equal(far__roster_by_id(r, m->id), m);
        for (size_t j = 0; j < i; j++) {
            bool both = m->state == FAR__MEMBER_JOINED && r->members[j].state == FAR__MEMBER_JOINED;
            assert_false(both && strcmp(m->name, r->members[j].name) == 0);
        }
        if (m->state == FAR__MEMBER_JOINED)
            assert_ptr_equal(far__roster_by_name(r, m->name), m);
    }
    for (size_t i = 0; i < g->given_count; i++) {
        const far__member *m = far__roster_by_id(r, g->given[i].id);
        assert_int_equal(m->incarnation, g->given[i].incarnation);
    }
}

/* A new worker, or one that repeats its wish because the answer was lost. */
static void join(game *g)
{
    sim *s = g->s;
    far__roster *r = &g->roster;
    char name[16], addresses[32];
    snprintf(name, sizeof name, "w%d", (int)sim_below(s, NAMES));
    snprintf(addresses, sizeof addresses, "tcp:10.0.0.%d:1", (int)sim_below(s, 200));
    far__join wish = {.name = name, .rank = -1, .world_size = r->world_size};
    wish.addresses = addresses;
    wish.incarnation = ++g->last_incarnation;
    if (r->count == 0)
        wish.rank = 0;
    else if (sim_chance(s, 30))
        wish.rank = sim_between(s, 0, 20);
    const given *again = NULL;
    if (g->given_count && sim_chance(s, 20)) {
        again = &g->given[sim_below(s, g->given_count)];
        wish.incarnation = again->incarnation;
    }
    bool was_failed = r->failed != FAR_OK, was_complete = far__roster_complete(r);
    uint64_t version = r->version;
    far_worker_id id;
    far_status status = far__roster_admit(r, &wish, &id, NULL);
    assert_false(was_failed && status == FAR_OK);
    assert_false((r->world_size == 0 || was_complete) && r->failed != FAR_OK);
    if (status != FAR_OK) {
        assert_true(status == FAR_EBUSY || status == FAR_EINVAL);
        seen.refused++;
        seen.failed += r->failed != FAR_OK && !was_failed;
    } else if (again) {
        assert_int_equal(id, again->id);
        assert_int_equal(far__roster_by_id(r, id)->state, FAR__MEMBER_JOINED);
        assert_int_equal(r->version, version);
        seen.repeats++;
    } else {
        assert_true(wish.rank < 0 || id == wish.rank);
        for (size_t i = 0; i < g->given_count; i++)
            assert_true(g->given[i].id != id);
        g->given[g->given_count++] = (given){.id = id, .incarnation = wish.incarnation};
        assert_true(r->version > version);
        seen.admitted++;
        seen.completed += r->world_size && far__roster_complete(r);
    }
}

static void something(sim *s, void *arg)
{
    game *g = arg;
    if (g->given_count == 0 || sim_chance(s, 60)) {
        join(g);
    } else {
        far_worker_id id = g->given[sim_below(s, g->given_count)].id;
        bool joined = far__roster_by_id(&g->roster, id)->state == FAR__MEMBER_JOINED;
        far__member_state state = sim_chance(s, 50) ? FAR__MEMBER_LEFT : FAR__MEMBER_LOST;
        assert_int_equal(far__roster_set_state(&g->roster, id, state), joined);
        seen.gone += joined;
    }
    check(g);
    announce(g);
}

static void assert_same(const far__roster *a, const far__roster *b)
{
    assert_int_equal(a->version, b->version);
    assert_int_equal(a->world_size, b->world_size);
    assert_int_equal(a->failed, b->failed);
    assert_string_equal(a->failed_text, b->failed_text);
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        assert_int_equal(a->members[i].id, b->members[i].id);
        assert_int_equal(a->members[i].incarnation, b->members[i].incarnation);
        assert_int_equal(a->members[i].state, b->members[i].state);
        assert_string_equal(a->members[i].name, b->members[i].name);
        assert_string_equal(a->members[i].addresses, b->members[i].addresses);
    }
}

static void play(sim *s)
{
    game *g = sim_alloc(sizeof *g);
    g->s = s;
    uint32_t world_size = sim_chance(s, 50) ? 0 : 1 + (uint32_t)sim_below(s, 6);
    far__roster_init(&g->roster, world_size);
    for (size_t i = 0; i < COPIES; i++)
        far__roster_init(&g->copies[i], world_size);
    for (int i = 0; i < EVENTS; i++)
        sim_at(s, sim_between(s, 0, 2000), something, g);
    while (sim_step(s))
        ;
    /* The last word reaches everybody, before or after older ones. */
    for (size_t i = 0; i < COPIES; i++) {
        send_to(g, &g->copies[i]);
        send_to(g, &g->copies[i]);
    }
    while (sim_step(s))
        ;
    for (size_t i = 0; i < COPIES; i++) {
        assert_same(&g->roster, &g->copies[i]);
        far__roster_fini(&g->copies[i]);
    }
    far__roster_fini(&g->roster);
    free(g);
    assert_int_equal(far_memory_live(), 0);
}

static void copies_converge(void **state)
{
    (void)state;
    seen = (struct coverage){0};
    sim_play(play, 300);
    if (seen.admitted < 1000)
        return; /* few seeds: they need not have seen everything */
    assert_true(seen.repeats && seen.refused && seen.gone && seen.newer && seen.older);
    assert_true(seen.failed && seen.completed);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(copies_converge),
};

FAR_TEST_MAIN(tests)
