/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/refworld: the world of tests/sim/test_refs. */
#include "support/refworld.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "support/test.h"

struct refworld_coverage refworld_seen;
unsigned refworld_scarcity;

/* One call of a machine's own, repeated until answered. */
struct internal {
    node *from, *to;
    far__refs_call *call;
    bool open;
    internal *next;
};

typedef struct packet {
    internal *call;
    const char *method;
    far__bytes bytes; /* of the test's own memory */
    far_status status;
} packet;

/* ------------------------------------------------------------------------------------- memory */

static sim *scarce_for;

static void *scarce_alloc(size_t size, void *arg)
{
    (void)arg;
    return refworld_scarcity && sim_chance(scarce_for, refworld_scarcity) ? NULL : malloc(size);
}
static void *scarce_resize(void *old, size_t size, void *arg)
{
    (void)arg;
    return refworld_scarcity && sim_chance(scarce_for, refworld_scarcity) ? NULL
                                                                          : realloc(old, size);
}
static void scarce_free(void *block, void *arg)
{
    (void)arg;
    free(block);
}
static const far__mem_table scarce = {scarce_alloc, scarce_resize, scarce_free, NULL};

bool refworld_no_memory(far_status status)
{
    if (status == FAR_ENOMEM)
        refworld_seen.no_memory++;
    return status == FAR_ENOMEM;
}

node *refworld_node(game *g, far__wire_worker who)
{
    for (unsigned i = 0; i < g->nodes; i++) {
        if (far__refs_same(g->node[i]->who, who))
            return g->node[i];
    }
    fail_msg("a worker that never was");
    return NULL;
}

thing *refworld_thing(game *g, node *owner)
{
    thing *t = sim_alloc(sizeof *t);
    t->owner = owner;
    t->next = g->things;
    g->things = t;
    return t;
}

void refworld_drop(node *n, size_t i)
{
    far__rref *r = n->held[i].rref;
    n->held[i] = n->held[--n->held_count];
    far__rref_drop(r);
}

/* ------------------------------------------------------------------------------- the machines' calls */

static void free_packet(packet *p)
{
    free(p->bytes.data);
    free(p);
}

static packet *packet_of(internal *c, const void *data, size_t size)
{
    packet *p = sim_alloc(sizeof *p);
    p->call = c;
    p->bytes.data = sim_alloc(size + 1);
    if (size)
        memcpy(p->bytes.data, data, size);
    p->bytes.size = size;
    return p;
}

static void internal_answered(sim *s, void *arg)
{
    packet *p = arg;
    internal *c = p->call;
    if (c->open && c->from->alive) {
        c->open = false;
        if (p->status != FAR_OK)
            refworld_seen.retried++;
        far__refs_answered(&c->from->refs, c->call, p->status, p->bytes.data, p->bytes.size,
                           s->now);
        refworld_pump(c->from);
    }
    free_packet(p);
}

static void internal_arrives(sim *s, void *arg)
{
    packet *p = arg;
    internal *c = p->call;
    node *at = c->to;
    game *g = at->g;
    if (at->alive) {
        far__bytes answer = {0};
        far_status status = far__refs_request(&at->refs, c->from->who, p->method, p->bytes.data,
                                              p->bytes.size, s->now, &answer);
        assert_true(status == FAR_OK || refworld_no_memory(status) ||
                    (status == FAR_EPEER && !c->from->alive));
        if (status != FAR_EPEER && !sim_chance(s, g->calm ? 0 : g->loss)) {
            packet *back = packet_of(c, answer.data, answer.size);
            back->status = status;
            sim_at(s, s->now + sim_delay(s, 100 * FAR_MILLISECOND), internal_answered, back);
        }
        far__bytes_fini(&answer);
        refworld_pump(at);
    }
    free_packet(p);
}

static void transmit_internal(sim *s, void *arg)
{
    internal *c = arg;
    game *g = c->from->g;
    if (!c->open || !c->from->alive)
        return;
    unsigned copies = (unsigned)!sim_chance(s, g->calm ? 0 : g->loss) +
                      (unsigned)sim_chance(s, g->calm ? 0 : g->doubles);
    while (copies-- > 0) {
        packet *p = packet_of(c, c->call->body, c->call->body_size);
        p->method = c->call->method;
        sim_at(s, s->now + sim_delay(s, 300 * FAR_MILLISECOND), internal_arrives, p);
    }
    sim_at(s, s->now + FAR_SECOND, transmit_internal, c);
}

static void begin_internal(node *from, far__refs_call *call)
{
    game *g = from->g;
    internal *c = sim_alloc(sizeof *c);
    *c = (internal){.from = from, .to = refworld_node(g, call->to), .call = call, .open = true};
    assert_true(c->to != from);
    c->next = g->internals;
    g->internals = c;
    transmit_internal(g->s, c);
}

static void free_value(node *at, const far__refs_action *a)
{
    thing *t = a->value ? a->value : a->error;
    game *g = at->g;
    assert_true(t->owner == at);
    assert_true(a->value ? t->made && !t->freed : t->error && !t->error_freed);
    if (a->value)
        t->freed = true;
    else
        t->error_freed = true;
    g->check(g);
}

static void settled(node *at, far__rref *r)
{
    for (served *v = at->g->serving; v; v = v->next) {
        if (v->at == at && v->waits == r && !v->ended && v->started)
            v->at->g->go_on(v);
    }
    far__rref_drop(r);
}

static void act(node *n, const far__refs_action *a)
{
    switch (a->kind) {
    case FAR__REFS_CALL: begin_internal(n, a->call); break;
    case FAR__REFS_FREE: free_value(n, a); break;
    case FAR__REFS_SETTLED: settled(n, a->rref); break;
    case FAR__REFS_READY:
        refworld_seen.ready++;
        for (served *v = n->g->serving; v; v = v->next) {
            if (v->at == n && !v->ended && v->in == a->in) {
                assert_int_equal(v->in->waiting, 0);
                v->at->g->go_on(v);
            }
        }
    }
}

static void on_timer(sim *s, void *arg)
{
    node *n = arg;
    if (n->timer_at == s->now && n->alive)
        refworld_pump_now(n);
}

static void planned_pump(sim *s, void *arg)
{
    (void)s;
    node *n = arg;
    n->pump_planned = false;
    if (n->alive)
        refworld_pump_now(n);
}

void refworld_pump(node *n)
{
    if (far__refs_urgent(&n->refs) && sim_chance(n->g->s, 70)) {
        refworld_pump_now(n);
    } else if (!n->pump_planned) {
        n->pump_planned = true;
        sim_at(n->g->s, n->g->s->now + sim_delay(n->g->s, 20 * FAR_MILLISECOND), planned_pump, n);
    }
}

void refworld_pump_now(node *n)
{
    sim *s = n->g->s;
    far__refs_action a;
    far_status status;
    while ((status = far__refs_next(&n->refs, s->now, &a)) == FAR_OK)
        act(n, &a);
    if (refworld_no_memory(status) && !n->pump_planned) {
        n->pump_planned = true;
        sim_at(s, s->now + 50 * FAR_MILLISECOND, planned_pump, n);
    }
    int64_t next = far__refs_next_time(&n->refs);
    if (next != FAR__NEVER) {
        n->timer_at = next > s->now ? next : s->now + 1;
        sim_at(s, n->timer_at, on_timer, n);
    }
}

/* ------------------------------------------------------------------------------- life and death */

static void learns_of_loss(sim *s, void *arg)
{
    node **pair = arg;
    node *n = pair[0], *dead = pair[1];
    if (n->alive) {
        while (far__refs_lost(&n->refs, dead->who, s->now) != FAR_OK)
            refworld_seen.no_memory++;
        for (internal *c = n->g->internals; c; c = c->next) {
            if (c->open && c->from == n && c->to == dead) {
                c->open = false;
                far__refs_answered(&n->refs, c->call, FAR_EPEER, NULL, 0, s->now);
            }
        }
        for (request *r = n->g->requests; r; r = r->next) {
            if (r->open && r->from == n && r->to == dead)
                n->g->end_request(s, r);
        }
        refworld_pump(n);
    }
    free(pair);
}

static void tell_loss(node *n, node *dead, int64_t at)
{
    node **pair = sim_alloc(2 * sizeof *pair);
    pair[0] = n;
    pair[1] = dead;
    sim_at(n->g->s, at, learns_of_loss, pair);
}

/* Ends all that the agent of this node has open. */
static void close_node(node *n)
{
    game *g = n->g;
    far__refs_close(&n->refs);
    for (internal *c = g->internals; c; c = c->next) {
        if (c->open && c->from == n) {
            c->open = false;
            far__refs_answered(&n->refs, c->call, FAR_ECLOSED, NULL, 0, g->s->now);
        }
    }
    for (request *r = g->requests; r; r = r->next) {
        if (r->open && r->from == n) {
            r->open = false;
            far__refs_out_lost(r->out);
            if (r->created)
                far__rref_drop(r->created);
        }
    }
    for (served *v = g->serving; v; v = v->next) {
        if (v->at == n && !v->ended) {
            v->ended = true;
            if (v->waits)
                far__rref_drop(v->waits);
            far__refs_in_end(v->in);
        }
    }
    while (n->held_count)
        refworld_drop(n, n->held_count - 1);
    far__refs_action a;
    far_status status;
    while ((status = far__refs_next(&n->refs, g->s->now, &a)) == FAR_OK) {
        assert_true(a.kind == FAR__REFS_FREE || a.kind == FAR__REFS_SETTLED);
        if (a.kind == FAR__REFS_FREE)
            free_value(n, &a);
        else
            far__rref_drop(a.rref);
    }
    assert_status(FAR_EAGAIN, status);
    far__refs_fini(&n->refs);
}

static void step_program(sim *s, void *arg)
{
    node *n = arg;
    game *g = n->g;
    if (!n->alive || g->calm)
        return;
    g->step(n);
    if (n->alive)
        sim_at(s, s->now + sim_delay(s, 150 * FAR_MILLISECOND), step_program, n);
}

node *refworld_open(game *g, far_worker_id id)
{
    node *n = sim_alloc(sizeof *n);
    n->g = g;
    n->index = g->nodes;
    n->who = (far__wire_worker){id, ++g->incarnations};
    g->node[g->nodes++] = n;
    unsigned was = refworld_scarcity;
    refworld_scarcity = 0;
    assert_ok(far__refs_init(&n->refs, n->who, REFWORLD_GRACE));
    refworld_scarcity = was;
    n->alive = true;
    for (unsigned i = 0; i + 1 < g->nodes; i++) {
        if (!g->node[i]->alive)
            tell_loss(n, g->node[i], g->s->now);
    }
    sim_at(g->s, g->s->now + sim_delay(g->s, 150 * FAR_MILLISECOND), step_program, n);
    return n;
}

void refworld_crash(node *n)
{
    game *g = n->g;
    unsigned was = refworld_scarcity;
    refworld_scarcity = 0;
    n->alive = false;
    n->died_at = g->s->now;
    refworld_seen.crashes++;
    close_node(n);
    refworld_scarcity = was;
    for (unsigned i = 0; i < g->nodes; i++) {
        if (g->node[i]->alive)
            tell_loss(g->node[i], n, g->s->now + sim_delay(g->s, 250 * FAR_MILLISECOND));
    }
    if (g->nodes < NODES_MAX && sim_chance(g->s, 60))
        refworld_open(g, n->who.id);
}

/* Streams: what lost a reply breaks in the end; what is broken is dialled again. */
static void tend_connections(sim *s, void *arg)
{
    game *g = arg;
    for (unsigned i = 0; i < g->nodes; i++) {
        node *n = g->node[i];
        for (unsigned k = 0; k < NODES_MAX && n->alive; k++) {
            uint64_t *c = &n->connection[k];
            if (*c >> 63) {
                far__refs_broke(&n->refs, *c & ~REFWORLD_DOOMED);
                *c = 0;
                refworld_pump(n);
            }
            if (!*c && sim_chance(s, 80)) {
                uint64_t token = ++g->next_connection;
                if (far__refs_connected(&n->refs, token) == FAR_OK)
                    *c = token;
            }
        }
    }
    if (!g->over)
        sim_at(s, s->now + (g->calm ? 3000 : 300) * FAR_MILLISECOND, tend_connections, g);
}

#define FREE_LIST(type, head, before)                                                              \
    for (type *at = head, *after; at; at = after) {                                                \
        after = at->next;                                                                          \
        before;                                                                                    \
        free(at);                                                                                  \
    }

void refworld_init(game *g, sim *s)
{
    g->s = s;
    scarce_for = s;
    refworld_scarcity = 0;
    far__mem_set_table(&scarce);
    sim_at(s, 0, tend_connections, g);
}

void refworld_fini(game *g)
{
    for (unsigned i = 0; i < g->nodes; i++) {
        node *n = g->node[i];
        if (!n->alive)
            continue;
        n->alive = false;
        close_node(n);
    }
    /* What is still under way finds nobody. */
    g->over = true;
    while (sim_step(g->s))
        continue;
    for (unsigned i = 0; i < g->nodes; i++) {
        free(g->node[i]->seen);
        free(g->node[i]);
    }
    FREE_LIST(thing, g->things, (void)0)
    FREE_LIST(request, g->requests, (void)0)
    FREE_LIST(served, g->serving, free(at->m))
    FREE_LIST(internal, g->internals, (void)0)
    assert_int_equal(far_memory_live(), 0);
    far__mem_set_table(NULL);
}
