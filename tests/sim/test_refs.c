/* SPDX-License-Identifier: BSD-3-Clause
 * Simulation of proto/refs: workers that create, pass, fetch and drop references while messages are
 * lost, doubled and reordered, connections break, memory runs out, and workers crash and are replaced.
 * After each event the tables of all workers are compared with a plain model. */
#include <stdlib.h>
#include <string.h>

#include "support/refworld.h"
#include "support/test.h"

enum { PROGRAM_SECONDS = 15 };

static struct coverage {
    uint64_t created, owned, passed, fetched, fetched_error, gone, voided, refused, awaited,
        expired, overdue, late, self, to_owner, replies, twice;
} seen;

/* ------------------------------------------------------------------------------- what must be true */

/* The dead; and those of them who died so long ago that a grace period may be over. */
static unsigned dead_nodes(const game *g, bool long_ago)
{
    unsigned nodes = 0;
    for (unsigned i = 0; i < g->nodes; i++) {
        const node *n = g->node[i];
        if (!n->alive && (!long_ago || g->s->now - n->died_at >= REFWORLD_GRACE))
            nodes |= 1u << i;
    }
    return nodes;
}

/* May this reference be gone? Its creation never came, or somebody through whose hands it went died. */
static bool may_be_gone(const game *g, const handle *h)
{
    return h->thing->given_up || (h->chain & dead_nodes(g, h->thing->arrived));
}

static void check_handle(const game *g, const handle *h, const node *at)
{
    const far__rref *r = h->rref;
    const thing *t = h->thing;
    assert_true(far__refs_same(r->owner, t->owner->who));
    assert_int_equal(r->is_owner, t->owner == at);
    assert_true(r->handles > 0);
    if (r->fault == FAR__RREF_GONE)
        assert_true(may_be_gone(g, h));
    if (r->fault == FAR__RREF_OWNER_LOST)
        assert_false(t->owner->alive);
    if ((t->freed || t->error_freed) && r->status == FAR_OK && t->owner->alive)
        assert_true(may_be_gone(g, h));
}

/* What is confirmed is live at its owner, under this holder. */
static void check_fork(const far__rref *f, void *arg)
{
    node *at = arg;
    if (f->is_owner || f->state != FAR__RREF_CONFIRMED)
        return;
    node *owner = refworld_node(at->g, f->owner);
    if (!owner->alive)
        return;
    far__refs_peer *giver = far__refs_peer_known(&owner->refs, f->giver);
    far__refs_live *live = giver ? far__map_get(&giver->lives, f->fork) : NULL;
    assert_non_null(live);
    assert_true(far__refs_same(live->holder->who, at->who));
    assert_int_equal(live->entry->id.counter, f->id.counter);
    assert_true(far__refs_same(live->entry->id.maker, f->id.maker));
}

/* A fork that was released does not come back: its release took effect once, for ever. */
static void check_lives(node *at)
{
    far__list_for_each (p, &at->refs.all_peers) {
        far__refs_peer *holder = far__container_of(p, far__refs_peer, all);
        far__list_for_each (n, &holder->held) {
            far__refs_live *live = far__container_of(n, far__refs_live, in_holder);
            assert_true(live->entry->lives > 0 && live->entry->peer);
            fork_seen *found = NULL;
            for (size_t i = at->seen_count; i-- > 0 && !found;) {
                if (at->seen[i].fork == live->fork &&
                    far__refs_same(at->seen[i].giver, live->giver->who))
                    found = &at->seen[i];
            }
            if (!found) {
                if (at->seen_count == at->seen_room) {
                    at->seen_room = at->seen_room ? at->seen_room * 2 : 32;
                    at->seen = realloc(at->seen, at->seen_room * sizeof *at->seen);
                    assert_non_null(at->seen);
                }
                found = &at->seen[at->seen_count++];
                *found = (fork_seen){.fork = live->fork, .giver = live->giver->who};
            } else {
                assert_true(found->last + 1 >= at->g->s->steps);
            }
            found->last = at->g->s->steps;
        }
    }
}

static void check(game *g)
{
    for (unsigned i = 0; i < g->nodes; i++) {
        node *n = g->node[i];
        if (!n->alive)
            continue;
        for (size_t h = 0; h < n->held_count; h++)
            check_handle(g, &n->held[h], n);
        far__refs_each(&n->refs, check_fork, n);
        check_lives(n);
    }
}

/* -------------------------------------------------------------------------------------- programs */

static void keep(node *n, far__rref *r, thing *t, unsigned chain)
{
    if (n->held_count == HELD_MAX) {
        far__rref_drop(r);
        return;
    }
    n->held[n->held_count++] = (handle){r, t, chain | 1u << n->index};
}

static node *anybody(game *g)
{
    return g->node[sim_below(g->s, g->nodes)];
}

static void arrives(sim *s, void *arg);
static void request_ends(sim *s, void *arg);

static void send_message(game *g, message *m, uint8_t type, const far__refs_out *out)
{
    far__wire_header h = {.type = type, .call_id = 1};
    if (type == FAR__WIRE_REQUEST) {
        h.name = "f";
        h.name_size = 1;
    }
    if (out) {
        h.ref_count = out->count;
        h.ref_number = out->number;
        h.refs = out->packed;
    }
    far__writer w = far__writer_over(m->header, sizeof m->header);
    far__wire_encode(&h, &w);
    assert_false(w.failed);
    m->header_size = w.used;
    unsigned copies = 1;
    if (!g->calm)
        copies = (unsigned)!sim_chance(g->s, g->loss) + (unsigned)sim_chance(g->s, g->doubles);
    if (copies == 0 && m->is_reply && out && m->from->connection[m->to->index])
        m->from->connection[m->to->index] |= REFWORLD_DOOMED; /* to be broken */
    while (copies-- > 0) {
        message *copy = sim_alloc(sizeof *copy);
        *copy = *m;
        sim_at(g->s, g->s->now + sim_delay(g->s, 300 * FAR_MILLISECOND), arrives, copy);
    }
}

/* Adds a handle of this node's to a message, both sides of it. */
static bool add(node *n, far__refs_out *out, message *m, const handle *h)
{
    size_t index;
    far_status status = far__refs_out_add(out, h->rref, &index);
    if (refworld_no_memory(status))
        return false;
    if (status != FAR_OK) {
        assert_string_equal(far_status_name(status), far_status_name(h->rref->status));
        return false;
    }
    assert_true(index <= m->ref_count);
    if (index == m->ref_count)
        m->ref_count++;
    m->refs[index] = (handle){NULL, h->thing, h->chain | 1u << n->index};
    return true;
}

static void add_some(node *n, far__refs_out *out, message *m)
{
    size_t wanted = sim_below(n->g->s, REFS_MAX);
    while (wanted-- > 0 && n->held_count && m->ref_count < REFS_MAX)
        add(n, out, m, &n->held[sim_below(n->g->s, n->held_count)]);
}

static void note_way(const node *to, const message *m)
{
    for (size_t i = 0; i < m->ref_count; i++) {
        seen.passed++;
        seen.to_owner += m->refs[i].thing->owner == to;
    }
}

/* A call with references: a remote(), a fetch, or any other. */
static void call(node *n, node *to, bool creates, const handle *fetch)
{
    game *g = n->g;
    far__refs_out *out;
    message m = {.from = n, .to = to, .created = SIZE_MAX};
    bool first = sim_chance(g->s, 50);
    if (refworld_no_memory(far__refs_out_create(&n->refs, &out)))
        return;
    request *r = sim_alloc(sizeof *r);
    *r = (request){.g = g, .from = n, .to = to, .out = out, .open = true};
    r->next = g->requests;
    g->requests = r;
    m.request = r;
    if (fetch) {
        if (!add(n, out, &m, fetch))
            goto give_up;
        m.fetches = fetch->rref;
    }
    if (!fetch && !(creates && first))
        add_some(n, out, &m);
    if (creates && m.ref_count < REFS_MAX) {
        if (far__refs_create(&n->refs, out, to->who, &r->created) != FAR_OK)
            goto give_up;
        r->creates = refworld_thing(g, to);
        m.created = m.ref_count++;
        m.refs[m.created] = (handle){NULL, r->creates, 1u << n->index};
    }
    if (creates && first)
        add_some(n, out, &m);
    if (m.ref_count == 0)
        goto give_up;
    far_status status = far__refs_out_seal(out, to->who, false);
    if (status != FAR_OK) {
        assert_true(refworld_no_memory(status) || (status == FAR_EPEER && !to->alive));
        goto give_up;
    }
    note_way(to, &m);
    seen.self += n == to;
    seen.created += r->created != NULL;
    seen.fetched += fetch != NULL;
    send_message(g, &m, FAR__WIRE_REQUEST, out);
    sim_at(g->s, g->s->now + sim_between(g->s, 1, 4) * sim_between(g->s, 1, 2000) * FAR_MILLISECOND,
           request_ends, r);
    if (r->created) {
        far__rref_hold(r->created);
        keep(n, r->created, r->creates, 1u << n->index);
    }
    return;

give_up:
    r->open = false;
    far__refs_out_lost(out);
    if (r->created)
        far__rref_drop(r->created);
}

/* The caller's limit, or its change of mind. */
static void request_ends(sim *s, void *arg)
{
    (void)s;
    request *r = arg;
    if (!r->open || !r->from->alive)
        return;
    r->open = false;
    if (r->created) {
        r->creates->given_up = true;
        seen.expired++;
        if (sim_chance(s, 70))
            far__refs_out_expired(r->out);
        else
            far__refs_out_lost(r->out);
        far__rref_drop(r->created);
    } else {
        far__refs_out_lost(r->out);
    }
    seen.voided++;
    refworld_pump(r->from);
}

static void take_some(node *at, far__refs_in *in, const message *m)
{
    game *g = at->g;
    assert_int_equal(in->count, m->ref_count);
    for (size_t i = 0; i < in->count; i++) {
        for (int times = 0; times < 2; times++) {
            if (!sim_chance(g->s, 40))
                continue;
            far__rref *r = far__refs_in_take(in, i);
            if (r->fault == FAR__RREF_GONE)
                seen.gone++;
            keep(at, r, m->refs[i].thing, m->refs[i].chain);
        }
    }
    assert_null(far__refs_in_take(in, in->count));
}

static void reply(served *v)
{
    node *at = v->at;
    game *g = at->g;
    message m = {.from = at, .to = v->m->from, .request = v->m->request, .is_reply = true};
    far__refs_out *out = NULL;
    v->ended = true;
    if (sim_chance(g->s, 40) && !refworld_no_memory(far__refs_out_create(&at->refs, &out)))
        add_some(at, out, &m);
    if (out && (m.ref_count == 0 || far__refs_out_seal(out, m.to->who, true) != FAR_OK)) {
        far__refs_out_lost(out);
        out = NULL;
        m.ref_count = 0;
    }
    if (out) {
        note_way(m.to, &m);
        seen.replies++;
    }
    uint64_t connection = at->connection[m.to->index];
    send_message(g, &m, FAR__WIRE_REPLY, out);
    if (out)
        far__refs_out_replied(out, connection & ~REFWORLD_DOOMED);
    far__refs_in_end(v->in);
}

static void end_handler(sim *s, void *arg)
{
    served *v = arg;
    node *at = v->at;
    if (!at->alive || v->ended)
        return;
    far__rref *entry = far__refs_in_created(v->in);
    if (entry) {
        thing *t = v->m->refs[v->m->created].thing;
        bool fails = sim_chance(s, 20);
        if (far__refs_made(entry, fails ? NULL : t, fails ? FAR_EREMOTE : FAR_OK,
                           fails ? t : NULL)) {
            t->made = !fails;
            t->error = fails;
        } else {
            assert_int_equal(entry->status, FAR_ETIMEOUT);
            seen.overdue++;
        }
    }
    reply(v);
    refworld_pump(at);
}

static void read_fetched(served *v)
{
    thing *t = v->m->refs[0].thing;
    far__rref *e = v->waits;
    if (e->fault == FAR__RREF_GONE) {
        assert_true(may_be_gone(v->at->g, &v->m->refs[0]));
    } else if (e->fault == FAR__RREF_FAILED) {
        seen.fetched_error++;
        assert_false(e->value);
        assert_true(t->error || may_be_gone(v->at->g, &v->m->refs[0]));
    } else {
        assert_int_equal(e->fault, FAR__RREF_GOOD);
        assert_ptr_equal(e->value, t);
        assert_true(t->made && !t->freed);
    }
}

/* Called when nothing of it is waiting any more: at its begin, and when the fetched value is there. */
static void start(served *v)
{
    game *g = v->at->g;
    if (!v->started) {
        v->started = true;
        take_some(v->at, v->in, v->m);
        if (v->m->fetches) {
            v->waits = far__refs_in_take(v->in, 0);
            if (v->waits->state == FAR__RREF_AWAITED)
                seen.awaited++;
            if (far__rref_watch(v->waits))
                return;
        }
    }
    if (v->waits) {
        read_fetched(v);
        far__rref_drop(v->waits);
        v->waits = NULL;
    }
    sim_at(g->s, g->s->now + sim_delay(g->s, 100 * FAR_MILLISECOND), end_handler, v);
}

static void request_arrives(message *m, far__refs_in *in)
{
    game *g = m->to->g;
    if (far__refs_in_created(in))
        m->refs[m->created].thing->arrived = true;
    served *v = sim_alloc(sizeof *v);
    message *kept = sim_alloc(sizeof *kept);
    *kept = *m;
    *v = (served){.at = m->to, .m = kept, .in = in};
    v->next = g->serving;
    g->serving = v;
    /* Expired, undecodable, ...: dropped before or while it waits. */
    if (sim_chance(g->s, 10) && !far__refs_in_created(in)) {
        v->ended = true;
        far__refs_in_end(in);
    } else if (in->waiting == 0) {
        start(v);
    }
}

static void reply_arrives(message *m, far__refs_in *in)
{
    request *r = m->request;
    node *at = m->to;
    if (r->open) {
        r->open = false;
        if (r->created) {
            /* What a real answer says: the state at the owner, as the model has it. */
            bool failed = r->creates->error;
            (void)!far__refs_created(r->created, failed ? FAR_EREMOTE : FAR_OK, NULL);
            far__rref_drop(r->created);
        }
        far__refs_out_answered(r->out);
        if (in)
            take_some(at, in, m);
    } else {
        seen.late++;
    }
    if (in)
        far__refs_in_end(in);
}

static void arrives(sim *s, void *arg)
{
    (void)s;
    message *m = arg;
    node *at = m->to;
    far__refs_in *in = NULL;
    far__wire_header h;
    const char *why;
    if (!at->alive)
        goto out;
    assert_ok(far__wire_decode(m->header, m->header_size, &h, &why));
    assert_int_equal(h.ref_count, m->ref_count);
    if (h.ref_count) {
        far_status status = far__refs_arrive(&at->refs, m->from->who, &h, &in);
        if (refworld_no_memory(status) || status == FAR_EPEER) {
            if (status == FAR_EPEER)
                assert_false(m->from->alive);
            seen.refused++;
            if (m->is_reply && m->from->connection[at->index])
                m->from->connection[at->index] |= REFWORLD_DOOMED;
            goto out;
        }
        assert_ok(status);
        if (!in) {
            seen.twice++;
            goto out;
        }
    }
    if (m->is_reply)
        reply_arrives(m, in);
    else
        request_arrives(m, in);
    refworld_pump(at);
out:
    free(m);
}

static void step_program(node *n)
{
    game *g = n->g;
    sim *s = g->s;
    node *to = anybody(g);
    far__rref *r;
    uint64_t dice = sim_below(s, 100);
    if (dice < 15) {
        thing *t = refworld_thing(g, n);
        if (!refworld_no_memory(far__refs_own(&n->refs, t, &r))) {
            t->made = t->arrived = true;
            seen.owned++;
            keep(n, r, t, 0);
        }
    } else if (dice < 35) {
        if (to != n)
            call(n, to, true, NULL);
    } else if (dice < 60) {
        call(n, to, false, NULL);
        /* The middle man dies while what he handed on is under way. */
        if (g->crashes_left && n->held_count && sim_chance(s, 8)) {
            g->crashes_left--;
            refworld_crash(n);
            return;
        }
    } else if (dice < 75 && n->held_count) {
        const handle *h = &n->held[sim_below(s, n->held_count)];
        if (h->thing->owner != n)
            call(n, h->thing->owner, false, h);
    } else if (dice < 97 && n->held_count) {
        refworld_drop(n, sim_below(s, n->held_count));
    } else if (dice >= 97 && sim_chance(s, 50)) {
        /* A connection breaks, with or without losing something. */
        uint64_t token = n->connection[to->index] & ~REFWORLD_DOOMED;
        n->connection[to->index] = 0;
        if (token)
            far__refs_broke(&n->refs, token);
    } else if (g->crashes_left && sim_chance(s, 20)) {
        g->crashes_left--;
        refworld_crash(n);
        return;
    }
    refworld_pump(n);
}

/* ------------------------------------------------------------------------------------- the game */

static void step(game *g)
{
    assert_true(sim_step(g->s));
    check(g);
}

static void check_end(game *g)
{
    for (unsigned i = 0; i < g->nodes; i++) {
        node *n = g->node[i];
        if (!n->alive)
            continue;
        const far__refs_counts *c = &n->refs.counts;
        assert_int_equal(c->held, 0);
        assert_int_equal(c->entries, 0);
        assert_int_equal(c->ins, 0);
        assert_true(far__refs_idle(&n->refs));
        assert_int_equal(n->refs.children.count, 0);
        far__list_for_each (l, &n->refs.all_peers) {
            far__refs_peer *p = far__container_of(l, far__refs_peer, all);
            assert_int_equal(p->made.count, 0);
            assert_int_equal(p->lives.count, 0);
            assert_int_equal(p->seen.count, 0);  /* no message is in doubt ... */
            assert_int_equal(p->ended.count, 0); /* ... and the tombstones are gone */
        }
    }
    for (thing *t = g->things; t; t = t->next) {
        assert_true(!t->made || t->freed);
        assert_true(!t->error || t->error_freed);
    }
    for (served *v = g->serving; v; v = v->next)
        assert_true(v->ended || !v->at->alive);
}

static void play(sim *s)
{
    game g = {.check = check,
              .go_on = start,
              .step = step_program,
              .end_request = request_ends,
              .loss = (unsigned)sim_below(s, 4) * 10,
              .doubles = (unsigned)sim_below(s, 3) * 10,
              .crashes_left = sim_chance(s, 60) ? (unsigned)sim_between(s, 1, 3) : 0};
    refworld_init(&g, s);
    unsigned nodes = (unsigned)sim_between(s, 2, 5);
    for (unsigned i = 0; i < nodes; i++)
        refworld_open(&g, i);
    refworld_scarcity = sim_chance(s, 30) ? (unsigned)sim_between(s, 1, 15) : 0;
    while (s->now < PROGRAM_SECONDS * FAR_SECOND)
        step(&g);
    g.calm = true;
    refworld_scarcity = 0;
    bool shut = sim_chance(s, 40);
    int64_t dropped = s->now + 30 * FAR_SECOND; /* when no handler runs any more */
    while (s->now < dropped)
        step(&g);
    for (unsigned i = 0; i < g.nodes; i++) {
        node *n = g.node[i];
        if (!n->alive)
            continue;
        if (shut)
            far__refs_shutdown(&n->refs);
        while (!shut && n->held_count)
            refworld_drop(n, n->held_count - 1);
        refworld_pump(n);
    }
    while (s->now < dropped + 60 * FAR_SECOND)
        step(&g);
    for (unsigned i = 0; i < g.nodes; i++) {
        node *n = g.node[i];
        if (!n->alive)
            continue;
        assert_true(far__refs_idle(&n->refs));
        while (n->held_count)
            refworld_drop(n, n->held_count - 1);
        refworld_pump_now(n);
    }
    check_end(&g);
    refworld_fini(&g);
}

static void values_live_while_they_are_held_and_no_longer(void **state)
{
    (void)state;
    seen = (struct coverage){0};
    sim_play(play, 200);
    if (getenv("FARCALL_SIM_SEED") || getenv("FARCALL_SIM_SEEDS"))
        return; /* too few seeds may not meet everything */
    const uint64_t *count = (const uint64_t *)&seen, *more = (const uint64_t *)&refworld_seen;
    for (size_t i = 0; i < sizeof seen / sizeof *count; i++)
        assert_true(count[i] >= 20);
    for (size_t i = 0; i < sizeof refworld_seen / sizeof *more; i++)
        assert_true(more[i] >= 20);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(values_live_while_they_are_held_and_no_longer),
};
FAR_TEST_MAIN(tests)
