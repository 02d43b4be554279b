/* SPDX-License-Identifier: BSD-3-Clause
 * Simulation of proto/calls and proto/served: nodes that call each other over connections which
 * lose, delay, reorder and repeat messages and break, while nodes are started anew. After each
 * event the tables are compared with a plain model. */
#include "proto/calls.h"
#include "proto/served.h"

#include <stdlib.h>

#include "support/sim.h"
#include "support/test.h"

enum { NODES_MAX = 4, OPEN_MAX = 256, CALLS = 120, SECONDS = 60 };

typedef struct game game;
typedef struct peer peer;
typedef struct logical logical;

/* A call as its user sees it, and all that must be true of it. */
struct logical {
    far__call call;
    peer *peer;
    uint64_t number, id;
    int64_t deadline, repeat_due;
    unsigned attempts, starts, completions;
    bool retry;
    logical *next;
};

/* One node's calls to one incarnation of another. */
struct peer {
    game *g;
    unsigned from, to, to_incarnation;
    far__calls calls;
    bool connected, flush_planned, ack_planned, dirty;
    unsigned connection;
    logical *open[OPEN_MAX]; /* in order of adding */
    size_t open_count;
    uint64_t late;
};

typedef struct node {
    unsigned incarnation;
    far__served served[NODES_MAX]; /* by caller */
    unsigned served_incarnation[NODES_MAX];
} node;

struct game {
    sim *s;
    unsigned nodes, loss, repeats; /* in percent */
    bool healed, closed;
    node node[NODES_MAX];
    peer peers[NODES_MAX][NODES_MAX];
    logical *all;
    uint64_t count;
    size_t results; /* kept at callees */
};

typedef enum message_kind { REQUEST, REPLY, ACK } message_kind;

typedef struct message {
    message_kind kind;
    peer *peer;
    unsigned from_incarnation, to_incarnation, connection;
    uint64_t call_id, sequence;
    logical *call;
    uint64_t mark;
    far__wire_range ranges[8];
    size_t range_count;
} message;

/* A handler that runs. */
typedef struct running {
    message request;
} running;

/* What the seeds together must have come across. */
static struct coverage {
    uint64_t replies, timeouts, cancels, lost, late, news, joined, done, refused, dropped, breaks,
        restarts, repeats;
} seen;

static void deliver(sim *s, void *arg);
static void flush(sim *s, void *arg);

static logical *logical_of(far__call *call)
{
    return far__container_of(call, logical, call);
}

static void send_copy(game *g, const message *m)
{
    message *copy = sim_alloc(sizeof *copy);
    *copy = *m;
    sim_at(g->s, g->s->now + sim_delay(g->s, 200 * FAR_MILLISECOND), deliver, copy);
}

/* Only what may be repeated is ever doubled: a stream doubles nothing. */
static void transmit(game *g, const message *m, bool may_double)
{
    if (!sim_chance(g->s, g->loss))
        send_copy(g, m);
    if (may_double && sim_chance(g->s, g->repeats))
        send_copy(g, m);
}

static message message_of(peer *p, message_kind kind)
{
    return (message){.kind = kind,
                     .peer = p,
                     .from_incarnation = p->g->node[p->from].incarnation,
                     .to_incarnation = p->to_incarnation,
                     .connection = p->connection};
}

/* ------------------------------------------------------------------------------ the caller side */

/* The pauses of the contract, written down a second time. */
static int64_t pause_after(unsigned attempt)
{
    static const int64_t seconds[] = {0, 1, 2, 4, 8};
    return (attempt < 5 ? seconds[attempt] : 10) * FAR_SECOND;
}

static void plan_ack(peer *p);

/* The one end of a call. */
static void complete(game *g, logical *l)
{
    assert_int_equal(l->completions, 0);
    l->completions++;
    assert_true(g->s->now <= l->deadline);
    assert_int_equal(l->call.state, FAR__CALL_OUT);
    peer *p = l->peer;
    size_t at = 0;
    while (at < p->open_count && p->open[at] != l)
        at++;
    assert_true(at < p->open_count);
    p->open_count--;
    for (; at < p->open_count; at++)
        p->open[at] = p->open[at + 1];
    p->dirty = true;
    if (l->retry)
        plan_ack(p);
}

static void complete_lost(game *g, far__list *lost)
{
    for (far__list *n; (n = far__list_pop(lost));) {
        complete(g, logical_of(far__container_of(n, far__call, link)));
        seen.lost++;
    }
}

static void send_ack(sim *s, void *arg)
{
    peer *p = arg;
    p->ack_planned = false;
    if (!p->connected)
        return;
    message m = message_of(p, ACK);
    size_t room = p->g->healed ? 8 : 1 + (size_t)sim_below(s, 8);
    m.range_count = far__calls_ack(&p->calls, &m.mark, m.ranges, room);
    transmit(p->g, &m, true);
}

static void plan_ack(peer *p)
{
    if (p->ack_planned)
        return;
    p->ack_planned = true;
    sim *s = p->g->s;
    sim_at(s, s->now + sim_between(s, 0, 100 * FAR_MILLISECOND), send_ack, p);
}

static void write_call(peer *p, logical *l)
{
    game *g = p->g;
    far__calls_sent(&p->calls, &l->call, g->s->now);
    l->attempts++;
    if (l->retry)
        l->repeat_due = g->s->now + pause_after(l->attempts);
    message m = message_of(p, REQUEST);
    m.call = l;
    m.call_id = l->call.id;
    m.sequence = l->call.sequence;
    assert_int_equal(m.call_id, l->id);
    transmit(g, &m, l->retry);
    p->dirty = true;
}

static void plan_flush(peer *p)
{
    if (p->flush_planned)
        return;
    p->flush_planned = true;
    sim *s = p->g->s;
    sim_at(s, s->now + sim_delay(s, 5 * FAR_MILLISECOND), flush, p);
}

/* Writes what waits; sometimes the socket takes only a part. */
static void flush(sim *s, void *arg)
{
    peer *p = arg;
    p->flush_planned = false;
    if (!p->connected)
        return;
    far__list_for_each (n, &p->calls.all) {
        logical *l = logical_of(far__container_of(n, far__call, link));
        if (l->call.state != FAR__CALL_WAITING)
            continue;
        if (sim_chance(s, 10)) {
            plan_flush(p);
            return;
        }
        write_call(p, l);
    }
}

static void begin_call(game *g)
{
    sim *s = g->s;
    peer *p = &g->peers[sim_below(s, g->nodes)][sim_below(s, g->nodes)];
    if (p->open_count == OPEN_MAX)
        return;
    logical *l = sim_alloc(sizeof *l);
    l->peer = p;
    l->number = ++g->count;
    l->retry = sim_chance(s, 50);
    l->repeat_due = FAR__NEVER;
    static const int64_t limits[] = {1, FAR_MILLISECOND, FAR_SECOND / 3, FAR_SECOND * 5,
                                     FAR_SECOND * 40};
    l->deadline = FAR__NEVER;
    if (sim_chance(s, 70))
        l->deadline = s->now + sim_between(s, 1, limits[sim_below(s, 5)]);
    l->next = g->all;
    g->all = l;
    assert_ok(far__calls_add(&p->calls, &l->call, l->deadline, l->retry ? FAR__CALL_RETRY : 0));
    l->id = l->call.id;
    assert_true(l->id != 0 && l->id >> 32 != 0);
    p->open[p->open_count++] = l;
    p->dirty = true;
    plan_flush(p);
}

static void cancel_one(game *g)
{
    peer *p = &g->peers[sim_below(g->s, g->nodes)][sim_below(g->s, g->nodes)];
    if (p->open_count == 0)
        return;
    logical *l = p->open[sim_below(g->s, p->open_count)];
    far__calls_remove(&p->calls, &l->call);
    complete(g, l);
    seen.cancels++;
}

static void reply_arrived(peer *p, const message *m)
{
    logical *l = m->call;
    /* Whatever became of its slot: it ends this call, or none. */
    far__call *wanted = l->completions ? NULL : &l->call;
    assert_ptr_equal(far__calls_find(&p->calls, m->call_id), wanted);
    assert_ptr_equal(far__calls_finish(&p->calls, m->call_id), wanted);
    if (wanted) {
        complete(p->g, l);
        seen.replies++;
    } else {
        p->late++;
        seen.late++;
    }
    p->dirty = true;
}

static void run_timers(game *g, peer *p)
{
    sim *s = g->s;
    for (far__call *call; (call = far__calls_expired(&p->calls, s->now));) {
        assert_int_equal(logical_of(call)->deadline, s->now);
        complete(g, logical_of(call));
        seen.timeouts++;
    }
    for (far__call *call; (call = far__calls_repeat_due(&p->calls, s->now));) {
        logical *l = logical_of(call);
        assert_true(l->retry && p->connected);
        assert_int_equal(l->repeat_due, s->now);
        seen.repeats++;
        if (sim_chance(s, 80))
            write_call(p, l);
        else /* the connection takes nothing now */
            l->repeat_due = s->now + pause_after(l->attempts + 1);
        p->dirty = true;
    }
}

/* ------------------------------------------------------------------------------ the callee side */

static void end_handler(sim *s, void *arg);

static void start_handler(game *g, const message *m)
{
    assert_int_equal(m->call->starts, 0);
    m->call->starts++;
    running *r = sim_alloc(sizeof *r);
    r->request = *m;
    sim_at(g->s, g->s->now + sim_delay(g->s, 500 * FAR_MILLISECOND), end_handler, r);
}

static void reply(game *g, const message *request, uint64_t call_id)
{
    message m = *request;
    m.kind = REPLY;
    m.call_id = call_id;
    transmit(g, &m, true);
}

static void drop_result(void *result, void *arg)
{
    game *g = arg;
    free(result);
    g->results--;
}

/* The table for the caller's present incarnation: an older one is lost with all it kept. */
static far__served *served_of(game *g, const message *m)
{
    node *n = &g->node[m->peer->to];
    unsigned from = m->peer->from;
    if (n->served_incarnation[from] != m->from_incarnation) {
        far__served_fini(&n->served[from]);
        far__served_init(&n->served[from], drop_result, g);
        n->served_incarnation[from] = m->from_incarnation;
    }
    return &n->served[from];
}

static void end_handler(sim *s, void *arg)
{
    running *r = arg;
    const message *m = &r->request;
    game *g = m->peer->g;
    (void)s;
    /* Ended with its process, or nobody is left to answer. */
    bool gone = g->node[m->peer->to].incarnation != m->to_incarnation ||
                g->node[m->peer->from].incarnation != m->from_incarnation;
    if (!gone && !m->call->retry)
        reply(g, m, m->call_id);
    if (!gone && m->call->retry) {
        uint64_t *result = sim_alloc(sizeof *result);
        *result = m->call->number;
        g->results++;
        uint64_t call_id = 0;
        if (far__served_end(served_of(g, m), m->sequence, result, &call_id)) {
            assert_int_equal(call_id, m->call->id);
            reply(g, m, call_id);
        } else {
            assert_int_equal(m->call->completions, 1);
            seen.dropped++;
        }
    }
    free(r);
}

static void request_arrived(game *g, const message *m)
{
    if (!m->call->retry) {
        start_handler(g, m);
        return;
    }
    far__served_verdict verdict;
    void *result;
    assert_ok(far__served_begin(served_of(g, m), m->sequence, m->call_id, &verdict, &result));
    switch (verdict) {
    case FAR__SERVED_NEW:
        seen.news++;
        start_handler(g, m);
        break;
    case FAR__SERVED_RUNNING:
        seen.joined++;
        assert_int_equal(m->call->starts, 1);
        break;
    case FAR__SERVED_DONE:
        seen.done++;
        assert_int_equal(*(uint64_t *)result, m->call->number);
        reply(g, m, m->call_id);
        break;
    case FAR__SERVED_REFUSED:
        seen.refused++;
        assert_int_equal(m->call->completions, 1);
        break;
    }
}

static void deliver(sim *s, void *arg)
{
    message *m = arg;
    peer *p = m->peer;
    game *g = p->g;
    bool same_lives = g->node[p->from].incarnation == m->from_incarnation &&
                      g->node[p->to].incarnation == m->to_incarnation &&
                      p->to_incarnation == m->to_incarnation;
    /* Of a connection that has broken, some bytes are still read. */
    bool lives = p->connected && p->connection == m->connection;
    if (same_lives && (lives || sim_chance(s, 50))) {
        if (m->kind == REQUEST)
            request_arrived(g, m);
        else if (m->kind == REPLY)
            reply_arrived(p, m);
        else
            assert_ok(far__served_ack(served_of(g, m), m->mark, m->ranges, m->range_count));
    }
    free(m);
}

/* ------------------------------------------------------------------------------------ accidents */

static void renew(peer *p)
{
    assert_int_equal(p->open_count, 0);
    far__calls_fini(&p->calls);
    far__calls_init(&p->calls);
    p->late = 0;
    p->to_incarnation = p->g->node[p->to].incarnation;
    /* So that generations of the first slots wrap within the game. */
    if (sim_chance(p->g->s, 30)) {
        logical warm = {0};
        assert_ok(far__calls_add(&p->calls, &warm.call, FAR__NEVER, 0));
        far__calls_remove(&p->calls, &warm.call);
        for (uint32_t i = 1; i < p->calls.slot_count; i++)
            p->calls.slots[i].generation = UINT32_MAX - 1;
    }
}

static void lose_peer(peer *p)
{
    far__list lost;
    far__list_init(&lost);
    far__calls_lose_all(&p->calls, &lost);
    assert_int_equal(p->calls.count, 0);
    complete_lost(p->g, &lost);
}

static void connect_peer(sim *s, void *arg)
{
    (void)s;
    peer *p = arg;
    if (p->connected)
        return;
    if (p->to_incarnation != p->g->node[p->to].incarnation) {
        lose_peer(p);
        renew(p);
    }
    p->connected = true;
    p->connection++;
    plan_flush(p);
    plan_ack(p);
}

static void break_peer(peer *p)
{
    if (!p->connected)
        return;
    p->connected = false;
    seen.breaks++;
    far__list lost;
    far__list_init(&lost);
    far__calls_broken(&p->calls, &lost);
    far__list_for_each (n, &lost) {
        logical *l = logical_of(far__container_of(n, far__call, link));
        assert_true(!l->retry && l->attempts == 1 && l->call.was_sent);
    }
    complete_lost(p->g, &lost);
    for (size_t i = 0; i < p->open_count; i++) {
        p->open[i]->repeat_due = FAR__NEVER;
        assert_int_equal(p->open[i]->call.state, FAR__CALL_WAITING);
        assert_int_equal(p->open[i]->call.was_sent, p->open[i]->attempts > 0);
    }
    p->dirty = true;
    sim *s = p->g->s;
    sim_at(s, s->now + sim_delay(s, FAR_SECOND), connect_peer, p);
}

/* The process is gone with all its calls and all it kept; others see their connections break. */
static void restart(game *g, unsigned which)
{
    seen.restarts++;
    node *n = &g->node[which];
    n->incarnation++;
    for (unsigned i = 0; i < g->nodes; i++) {
        far__served_fini(&n->served[i]);
        far__served_init(&n->served[i], drop_result, g);
        peer *p = &g->peers[which][i];
        break_peer(p);
        lose_peer(p);
        renew(p);
        break_peer(&g->peers[i][which]);
    }
}

/* ------------------------------------------------------------------------------------- checking */

static void audit_finished(const peer *p)
{
    static bool open[CALLS * 4];
    const far__ranges *finished = &p->calls.finished;
    const uint64_t end = p->calls.next_sequence;
    assert_true(end < sizeof open);
    for (uint64_t n = 0; n < end; n++)
        open[n] = false;
    for (size_t i = 0; i < p->open_count; i++)
        open[p->open[i]->call.sequence] = true;
    for (uint64_t n = 1; n < end; n++)
        assert_int_equal(far__ranges_has(finished, n), !open[n]);
    assert_false(far__ranges_has(finished, end));
    uint64_t before = finished->mark;
    for (size_t i = 0; i < finished->count; i++) {
        assert_true(finished->items[i].first > before);
        before = finished->items[i].last + 1;
    }
    assert_true(finished->count <= p->open_count);
}

static void audit(peer *p)
{
    far__calls *c = &p->calls;
    int64_t deadline = FAR__NEVER, repeat = FAR__NEVER;
    assert_int_equal(c->count, p->open_count);
    assert_int_equal(c->late, p->late);
    const far__list *at = &c->all;
    for (size_t i = 0; i < p->open_count; i++) {
        logical *l = p->open[i];
        at = at->next;
        assert_ptr_equal(at, &l->call.link);
        assert_true(l->call.state != FAR__CALL_OUT);
        assert_int_equal(l->call.id, l->id);
        assert_ptr_equal(far__calls_find(c, l->id), &l->call);
        if (l->deadline < deadline)
            deadline = l->deadline;
        if (l->repeat_due < repeat)
            repeat = l->repeat_due;
    }
    assert_ptr_equal(at->next, &c->all);
    assert_int_equal(far__calls_next_deadline(c), deadline);
    assert_int_equal(far__calls_next_repeat(c), repeat);
    audit_finished(p);
}

/* One event, or the timers of one moment. False: nothing is left. */
static bool step(game *g)
{
    sim *s = g->s;
    int64_t timer = FAR__NEVER;
    for (unsigned i = 0; i < g->nodes; i++) {
        for (unsigned j = 0; j < g->nodes; j++) {
            far__calls *c = &g->peers[i][j].calls;
            assert_true(far__calls_next_deadline(c) >= s->now);
            if (far__calls_next_deadline(c) < timer)
                timer = far__calls_next_deadline(c);
            if (far__calls_next_repeat(c) < timer)
                timer = far__calls_next_repeat(c);
        }
    }
    if (timer != FAR__NEVER && timer <= sim_next(s)) {
        assert_null(far__calls_expired(&g->peers[0][0].calls, timer - 1));
        s->now = timer;
        s->steps++;
        for (unsigned i = 0; i < g->nodes; i++) {
            for (unsigned j = 0; j < g->nodes; j++)
                run_timers(g, &g->peers[i][j]);
        }
    } else if (!sim_step(s)) {
        return false;
    }
    for (unsigned i = 0; i < g->nodes; i++) {
        for (unsigned j = 0; j < g->nodes; j++) {
            if (g->peers[i][j].dirty)
                audit(&g->peers[i][j]);
            g->peers[i][j].dirty = false;
        }
    }
    return true;
}

static void something(sim *s, void *arg)
{
    (void)arg;
    game *g = s->game;
    if (g->closed)
        return;
    unsigned dice = (unsigned)sim_below(s, 100);
    if (dice < 75)
        begin_call(g);
    else if (dice < 87)
        cancel_one(g);
    else if (dice < 97)
        break_peer(&g->peers[sim_below(s, g->nodes)][sim_below(s, g->nodes)]);
    else
        restart(g, (unsigned)sim_below(s, g->nodes));
}

/* No more accidents: what is lost already shows when each connection breaks a last time. */
static void heal(sim *s, void *arg)
{
    (void)arg;
    game *g = s->game;
    g->healed = true;
    g->loss = 0;
    for (unsigned i = 0; i < g->nodes; i++) {
        for (unsigned j = 0; j < g->nodes; j++)
            break_peer(&g->peers[i][j]);
    }
}

static void begin_game(game *g)
{
    sim *s = g->s;
    g->nodes = 1 + (unsigned)sim_below(s, NODES_MAX);
    g->loss = (unsigned)sim_below(s, 40);
    g->repeats = (unsigned)sim_below(s, 40);
    for (unsigned i = 0; i < g->nodes; i++) {
        for (unsigned j = 0; j < g->nodes; j++) {
            far__served_init(&g->node[i].served[j], drop_result, g);
            peer *p = &g->peers[i][j];
            *p = (peer){.g = g, .from = i, .to = j};
            far__calls_init(&p->calls);
            renew(p);
            connect_peer(s, p);
        }
    }
    /* The same number in a short or a long time: many calls at once, or many repeats. */
    const int64_t span = sim_between(s, 1, SECONDS) * FAR_SECOND;
    for (int i = 0; i < CALLS; i++)
        sim_at(s, sim_between(s, 0, span), something, NULL);
    sim_at(s, span, heal, NULL);
}

static void end_game(game *g)
{
    for (logical *l = g->all; l; l = l->next) {
        assert_int_equal(l->completions, 1);
        assert_true(l->starts <= 1);
    }
    /* Everything is finished and was acknowledged when the last call ended. */
    if (!g->closed)
        assert_int_equal(g->results, 0);
    for (unsigned i = 0; i < g->nodes; i++) {
        for (unsigned j = 0; j < g->nodes; j++) {
            if (!g->closed)
                assert_int_equal(g->node[i].served[j].entries.count, 0);
            assert_int_equal(g->peers[i][j].calls.finished.count, 0);
            far__served_fini(&g->node[i].served[j]);
            far__calls_fini(&g->peers[i][j].calls);
        }
    }
    assert_int_equal(g->results, 0);
    for (logical *l = g->all, *next; l; l = next) {
        next = l->next;
        free(l);
    }
    assert_int_equal(far_memory_live(), 0);
}

static void play(sim *s)
{
    game *g = sim_alloc(sizeof *g);
    g->s = s;
    s->game = g;
    begin_game(g);
    while (step(g))
        assert_true(s->steps < 100000);
    /* A last word of each caller, in case that an acknowledgement met a broken connection. */
    for (unsigned i = 0; i < g->nodes; i++) {
        for (unsigned j = 0; j < g->nodes; j++)
            send_ack(s, &g->peers[i][j]);
    }
    while (step(g))
        ;
    end_game(g);
    free(g);
}

/* The same, but every agent is closed in the middle of it: all open calls end then. */
static void play_closing(sim *s)
{
    game *g = sim_alloc(sizeof *g);
    g->s = s;
    s->game = g;
    begin_game(g);
    uint64_t end = 20 + sim_below(s, 400);
    while (s->steps < end && step(g))
        ;
    g->closed = true;
    for (unsigned i = 0; i < g->nodes; i++) {
        for (unsigned j = 0; j < g->nodes; j++)
            lose_peer(&g->peers[i][j]);
    }
    while (step(g))
        ;
    end_game(g);
    free(g);
}

static void every_call_ends_once(void **state)
{
    (void)state;
    seen = (struct coverage){0};
    sim_play(play, 500);
    if (seen.replies < 5000)
        return; /* few seeds: they need not have seen everything */
    assert_true(seen.timeouts && seen.cancels && seen.lost && seen.late);
    assert_true(seen.news && seen.joined && seen.done && seen.refused && seen.dropped);
    assert_true(seen.breaks && seen.restarts && seen.repeats);
}

static void closing_loses_nothing(void **state)
{
    (void)state;
    sim_play(play_closing, 100);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_call_ends_once),
    cmocka_unit_test(closing_loses_nothing),
};

FAR_TEST_MAIN(tests)
