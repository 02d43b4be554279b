/* SPDX-License-Identifier: BSD-3-Clause
 * Simulation of proto/agreement: members call each other in random trees (long chains, calls from
 * callbacks, calls to oneself, handlers that go on after their answer) while one after another asks
 * for shutdown, takes it back, joins or dies. The agreement must never be reached while a call is
 * left anywhere, and must be reached in the end. */
#include "proto/agreement.h"

#include <stdlib.h>

#include "support/sim.h"
#include "support/test.h"

enum { MEMBERS_MAX = 8, HOPS = 20, WANDERING_HOPS = 400, ROOTS_MAX = 4, TREE_MAX = 400 };

typedef struct game game;

typedef struct member {
    game *g;
    far_worker_id id;
    bool exists, alive, lost_known; /* lost_known: everybody refuses it */
    size_t open;                    /* calls made, calls served, callbacks */
    uint64_t activity;
    unsigned roots; /* that its user still makes before asking */
    bool withdraws, asked;
} member;

/* All calls that grow out of one are one tree. */
typedef struct call {
    game *g;
    member *from, *to;
    unsigned hops; /* left */
    unsigned *budget;
    struct call *parent; /* whose handler waits for this one */
    unsigned waiting;    /* for so many children, before its answer */
    bool arrived, answered, ended;
    struct call *next;
} call;

struct game {
    sim *s;
    far__agreement agreement;
    member members[MEMBERS_MAX];
    unsigned count;
    bool wandering; /* a few single calls are handed on and on: little is open at a time */
    int64_t call_scale, control_scale; /* of delays: either may be much faster than the other */
    size_t travelling;                 /* calls that are open at a caller who lives */
    call *all;
    unsigned *budgets[MEMBERS_MAX * ROOTS_MAX * 4];
    size_t budget_count;
    bool retry_planned, done;
};

typedef struct note {
    member *about;
    enum { ASKED, WITHDRAWN, LOST, REPORT } what;
    uint64_t round, activity;
    bool idle;
} note;

static struct coverage {
    uint64_t calls, self_calls, callbacks, late_children, lost, withdrawn, too_late, joined, busy,
        games, rounds;
} seen;

static void lead(game *g);
static void arrive(sim *s, void *arg);
static void live(sim *s, void *arg);

static int64_t soon(game *g)
{
    return g->s->now + sim_delay(g->s, g->call_scale);
}

static int64_t control_soon(game *g)
{
    return g->s->now + sim_delay(g->s, g->control_scale);
}

/* ------------------------------------------------------------------------------- calls and trees */

static void begin_call(member *from, unsigned hops, unsigned *budget, call *parent)
{
    game *g = from->g;
    if (!from->alive || *budget == 0)
        return;
    assert_false(g->done);
    --*budget;
    call *c = sim_alloc(sizeof *c);
    member *to = &g->members[sim_below(g->s, g->count)];
    *c = (call){.g = g, .from = from, .to = to, .hops = hops, .budget = budget, .parent = parent};
    c->next = g->all;
    g->all = c;
    if (parent)
        parent->waiting++;
    from->open++;
    from->activity++;
    g->travelling++;
    seen.calls++;
    seen.self_calls += from == to;
    sim_at(g->s, soon(g), arrive, c);
}

static void answer_if_ready(call *c);

static void callback(sim *s, void *arg)
{
    call *c = arg;
    if (!c->from->alive)
        return;
    assert_false(c->g->done);
    seen.callbacks++;
    if (c->hops > 0 && !c->g->wandering && sim_chance(s, 50))
        begin_call(c->from, c->hops - 1, c->budget, NULL);
    c->from->open--;
}

/* Its answer, or the news that its callee died, is at its caller. */
static void end_call(sim *s, void *arg)
{
    call *c = arg;
    if (!c->from->alive || c->ended)
        return;
    assert_false(c->g->done);
    c->ended = true;
    c->g->travelling--;
    bool has_callback = sim_chance(s, 40);
    if (has_callback)
        sim_at(s, soon(c->g), callback, c);
    call *parent = c->parent;
    if (parent && --parent->waiting == 0)
        answer_if_ready(parent);
    if (!has_callback)
        c->from->open--;
}

/* A handler that has answered and goes on. */
static void finish_handler(sim *s, void *arg)
{
    call *c = arg;
    if (!c->to->alive)
        return;
    assert_false(c->g->done);
    if (c->hops > 0 && sim_chance(s, c->g->wandering ? 98 : 50)) {
        begin_call(c->to, c->hops - 1, c->budget, NULL);
        seen.late_children++;
    }
    c->to->open--;
}

static void answer_if_ready(call *c)
{
    game *g = c->g;
    if (c->waiting > 0 || c->answered || !c->to->alive)
        return;
    c->answered = true;
    sim_at(g->s, soon(g), end_call, c);
    if (sim_chance(g->s, g->wandering ? 98 : 20))
        sim_at(g->s, soon(g), finish_handler, c);
    else
        c->to->open--;
}

static void handle(sim *s, void *arg)
{
    call *c = arg;
    if (!c->to->alive)
        return;
    assert_false(c->g->done);
    unsigned children = 0;
    if (c->hops > 0 && !c->g->wandering)
        children = sim_chance(s, 80) ? 1 : (unsigned)sim_below(s, 3);
    for (unsigned i = 0; i < children; i++)
        begin_call(c->to, c->hops - 1, c->budget, sim_chance(s, 70) ? c : NULL);
    answer_if_ready(c);
}

static void arrive(sim *s, void *arg)
{
    call *c = arg;
    game *g = c->g;
    if (!c->to->alive) {
        sim_at(s, soon(g), end_call, c); /* the caller sees the connection break */
        return;
    }
    if (c->from->lost_known)
        return;
    assert_false(g->done);
    c->arrived = true;
    c->to->open++;
    c->to->activity++;
    sim_at(s, soon(g), handle, c);
}

/* --------------------------------------------------------------------------- users and the leader */

static void tell(member *m, note n);

static void withdraw(sim *s, void *arg)
{
    (void)s;
    member *m = arg;
    if (m->alive)
        tell(m, (note){.what = WITHDRAWN});
    seen.withdrawn++;
}

static void hear(sim *s, void *arg)
{
    note *n = arg;
    member *m = n->about;
    game *g = m->g;
    switch (n->what) {
    case ASKED:
        far__agreement_asked(&g->agreement, m->id);
        /* Asking and taking it back are calls in a row. */
        if (m->withdraws) {
            m->withdraws = false;
            m->roots = (unsigned)sim_below(s, m->g->wandering ? 2 : ROOTS_MAX);
            sim_at(s, control_soon(g), withdraw, m);
        }
        break;
    case WITHDRAWN:
        /* The answer reaches the member before its user goes on. */
        if (far__agreement_withdrawn(&g->agreement, m->id)) {
            m->asked = false;
            sim_at(s, soon(g), live, m);
        } else {
            seen.too_late++;
        }
        break;
    case LOST:
        m->lost_known = true;
        far__agreement_gone(&g->agreement, m->id);
        break;
    case REPORT:
        seen.busy += !n->idle;
        far__agreement_report(&g->agreement, n->round, m->id, n->idle, n->activity);
        break;
    }
    free(n);
    lead(g);
}

static void tell(member *m, note n)
{
    game *g = m->g;
    note *copy = sim_alloc(sizeof *copy);
    *copy = n;
    copy->about = m;
    sim_at(g->s, control_soon(g), hear, copy);
}

/* A member's user makes some calls, then asks for shutdown. */
static void live(sim *s, void *arg)
{
    member *m = arg;
    game *g = m->g;
    if (!m->alive || m->asked)
        return;
    if (m->roots > 0) {
        m->roots--;
        unsigned *budget = sim_alloc(sizeof *budget);
        *budget = 1 + (unsigned)sim_below(s, TREE_MAX);
        g->budgets[g->budget_count++] = budget;
        begin_call(m, (unsigned)sim_below(s, g->wandering ? WANDERING_HOPS : HOPS + 1), budget,
                   NULL);
        sim_at(s, soon(g), live, m);
        return;
    }
    m->asked = true;
    tell(m, (note){.what = ASKED});
}

static void asked_for_report(sim *s, void *arg)
{
    note *n = arg;
    member *m = n->about;
    if (m->alive) {
        note report = {
            .what = REPORT, .round = n->round, .idle = m->open == 0, .activity = m->activity};
        tell(m, report);
        if (sim_chance(s, 10)) /* one repeated answer, which comes at any time */
            tell(m, report);
    }
    free(n);
}

static void retry(sim *s, void *arg)
{
    (void)s;
    game *g = arg;
    g->retry_planned = false;
    far__agreement_retry(&g->agreement);
    lead(g);
}

/* What must be true when all have agreed. */
static void check_done(const game *g)
{
    assert_int_equal(g->travelling, 0);
    for (unsigned i = 0; i < g->count; i++) {
        const member *m = &g->members[i];
        if (m->exists && m->alive) {
            assert_int_equal(m->open, 0);
            assert_true(m->asked);
        }
    }
}

static void lead(game *g)
{
    far__agreement *a = &g->agreement;
    switch (far__agreement_next(a)) {
    case FAR__AGREEMENT_WAIT:
        if (a->pausing && !g->retry_planned) {
            g->retry_planned = true;
            sim_at(g->s, g->s->now + sim_between(g->s, 0, g->control_scale), retry, g);
        }
        break;
    case FAR__AGREEMENT_POLL:
        seen.rounds++;
        for (size_t i = 0; i < a->count; i++) {
            if (a->members[i].gone)
                continue;
            note *n = sim_alloc(sizeof *n);
            *n = (note){.about = &g->members[a->members[i].id], .round = a->round};
            sim_at(g->s, control_soon(g), asked_for_report, n);
        }
        break;
    case FAR__AGREEMENT_DONE:
        check_done(g);
        g->done = true;
        break;
    }
}

/* ------------------------------------------------------------------------------------ accidents */

static void die(sim *s, void *arg)
{
    member *m = arg;
    game *g = m->g;
    if (!m->exists || !m->alive || g->done)
        return;
    m->alive = false;
    seen.lost++;
    for (call *c = g->all; c; c = c->next) {
        if (c->from == m && !c->ended)
            g->travelling--;
        if (c->to == m && c->arrived && !c->answered)
            sim_at(s, soon(g), end_call, c);
    }
    tell(m, (note){.what = LOST});
}

static void exist(member *m)
{
    sim *s = m->g->s;
    assert_ok(far__agreement_add(&m->g->agreement, m->id));
    m->exists = m->alive = true;
    m->roots = (unsigned)sim_below(s, ROOTS_MAX);
    if (m->g->wandering)
        m->roots = sim_below(s, m->g->count) == 0;
    m->withdraws = sim_chance(s, 20);
    sim_at(s, soon(m->g), live, m);
}

/* An open world admits nobody once all have asked. */
static void join(sim *s, void *arg)
{
    (void)s;
    member *m = arg;
    if (m->g->done || far__agreement_all_asked(&m->g->agreement))
        return;
    exist(m);
    m->g->count++;
    seen.joined++;
    lead(m->g);
}

static void play(sim *s)
{
    game *g = sim_alloc(sizeof *g);
    g->s = s;
    far__agreement_init(&g->agreement);
    static const int64_t scales[] = {30, 300, 3000};
    g->call_scale = scales[sim_below(s, 3)];
    g->control_scale = scales[sim_below(s, 3)];
    g->wandering = sim_chance(s, 50);
    if (g->wandering) /* many hops a round, and many rounds a game */
        g->control_scale = g->call_scale * sim_between(s, 1, 20);
    g->count = 1 + (unsigned)sim_below(s, MEMBERS_MAX - 1);
    for (unsigned i = 0; i < MEMBERS_MAX; i++)
        g->members[i] = (member){.g = g, .id = i};
    const unsigned count = g->count;
    for (unsigned i = 0; i < count; i++)
        exist(&g->members[i]);
    if (sim_chance(s, 30))
        sim_at(s, sim_delay(s, 5000), join, &g->members[count]);
    for (unsigned i = 1; i < count; i++) {
        if (sim_chance(s, 10))
            sim_at(s, sim_delay(s, 5000), die, &g->members[i]);
    }
    /* Whatever happens after the agreement trips the assertions above. */
    while (sim_step(s))
        assert_true(s->steps < 200000);
    assert_true(g->done);
    seen.games++;
    far__agreement_fini(&g->agreement);
    for (call *c = g->all, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    for (size_t i = 0; i < g->budget_count; i++)
        free(g->budgets[i]);
    free(g);
    assert_int_equal(far_memory_live(), 0);
}

static void all_leave_at_once(void **state)
{
    (void)state;
    seen = (struct coverage){0};
    sim_play(play, 2000);
    if (seen.games < 500)
        return; /* few seeds: they need not have seen everything */
    assert_true(seen.calls && seen.self_calls && seen.callbacks && seen.late_children);
    assert_true(seen.lost && seen.withdrawn && seen.too_late && seen.joined);
    assert_true(seen.busy && seen.rounds > 2 * seen.games);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_leave_at_once),
};

FAR_TEST_MAIN(tests)
