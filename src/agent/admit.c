/* SPDX-License-Identifier: BSD-3-Clause
 * agent/admit: rank 0 admits workers and tells all who is in the job; the others take its word.
 * Floor: agent. Thread: the methods run where they were read.
 *
 * The methods of this file (arguments and results are values):
 *   far.join     [name, incarnation, rank or -1, world size, addresses] -> the roster's snapshot, as soon
 *                as the world is complete
 *   far.roster   a snapshot -> nil: rank 0 tells what has changed
 *   far.missing  [] -> text: for whom or what rank 0 waits
 *   far.hello    [] -> nil: does nothing; proves that calls go through */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"

/* ------------------------------------------------------------------------------- rank 0's methods */

static void reply_nil(far_incoming *in)
{
    far_message *m;
    if (far_message_create(FAR_ENCODING_VALUES, &m) == FAR_OK) {
        if (far_message_put_nil(m) == FAR_OK) {
            far_incoming_reply(in, m);
            return;
        }
        far__agent_drop(far_incoming_agent(in), m);
    }
    far_incoming_fail(in, FAR_ENOMEM, NULL, "out of memory", NULL, NULL);
}

static void refuse(far_incoming *in, far_status status, const char *text)
{
    far_incoming_fail(in, status, NULL, text, NULL, NULL);
}

/* a->lock not held. Answers one joiner with the present roster. */
static void reply_roster(far_agent *a, far_incoming *in)
{
    far_message *m;
    far_status status = far_message_create(FAR_ENCODING_VALUES, &m);
    if (status != FAR_OK) {
        refuse(in, status, "rank 0 is out of memory");
        return;
    }
    far__mutex_lock(&a->lock);
    status = far__roster_encode(&a->roster, m);
    far__mutex_unlock(&a->lock);
    if (status == FAR_OK) {
        far_incoming_reply(in, m);
        return;
    }
    far__agent_drop(a, m);
    refuse(in, status, "rank 0 is out of memory");
}

/* Answers every joiner that waits: with the roster, or with why there will be none. */
void far__join_answer_all(far_agent *a, far_status failed, const char *text)
{
    for (;;) {
        far__mutex_lock(&a->lock);
        far__list *n = far__list_pop(&a->joiners);
        far__mutex_unlock(&a->lock);
        if (!n)
            break;
        far_incoming *in = far__container_of(n, far_incoming, waiting);
        if (failed != FAR_OK)
            refuse(in, failed, text);
        else
            reply_roster(a, in);
    }
    far__mutex_lock(&a->lock);
    a->failure_told = a->failure_told || failed != FAR_OK;
    far__mutex_unlock(&a->lock);
    atomic_fetch_add(&a->joined_word, 1);
    far__futex_wake(&a->joined_word, INT_MAX);
}

static bool text_value(const far_value *v, size_t size_max, char *out)
{
    if (v->kind != FAR_STRING || v->as.bytes.size >= size_max)
        return false;
    memcpy(out, v->as.bytes.data, v->as.bytes.size);
    out[v->as.bytes.size] = 0;
    return strlen(out) == v->as.bytes.size;
}

static bool uint_value(const far_value *v, uint64_t *out)
{
    if (v->kind == FAR_INT && v->as.integer >= 0)
        *out = (uint64_t)v->as.integer;
    else if (v->kind == FAR_UINT)
        *out = v->as.unsigned_integer;
    else
        return false;
    return true;
}

typedef struct wish {
    char name[FAR_NAME_MAX + 1];
    char addresses[4096];
    far__join join;
} wish;

static bool read_wish(far_message *m, wish *w)
{
    const far_value *v;
    size_t count;
    uint64_t incarnation, world;
    if (far_message_values(m, &v, &count) != FAR_OK || count != 1 || v->kind != FAR_LIST ||
        v->as.list.count != 5)
        return false;
    const far_value *f = v->as.list.items;
    if (!text_value(&f[0], sizeof w->name, w->name) || !uint_value(&f[1], &incarnation) ||
        f[2].kind != FAR_INT || !uint_value(&f[3], &world) || world > UINT32_MAX ||
        !text_value(&f[4], sizeof w->addresses, w->addresses))
        return false;
    w->join = (far__join){.name = w->name,
                          .incarnation = incarnation,
                          .rank = f[2].as.integer,
                          .world_size = (uint32_t)world,
                          .addresses = w->addresses};
    return true;
}

static far_status admit(far_agent *a, const far__join *join, far_worker_id *id, bool *complete,
                        bool *failed, far_error *error)
{
    far__mutex_lock(&a->lock);
    far_status status;
    if (a->roster.failed != FAR_OK)
        status = far__error_set(error, a->roster.failed, "%s", a->roster.failed_text);
    else if (a->left || far__agreement_all_asked(&a->agreement)) /* the next job may follow here */
        status = far__error_set(error, FAR_EPEER, "the job is shutting down");
    else
        status = far__roster_admit(&a->roster, join, id, error);
    if (status == FAR_OK)
        status = far__agreement_add(&a->agreement, *id);
    *complete = far__roster_complete(&a->roster);
    *failed = a->roster.failed != FAR_OK;
    far__mutex_unlock(&a->lock);
    return status;
}

static void on_join(far_incoming *in, void *arg)
{
    far_agent *a = arg;
    far__link *l = in->link;
    wish *w = far__mem_alloc(sizeof *w);
    far_error error = {.text = "the request to join cannot be read"};
    far_status status = w ? FAR_EPROTO : FAR_ENOMEM;
    far_worker_id id = FAR__ID_NONE;
    bool complete = false, failed = false;
    /* Only under its own name: the handshake proved it. */
    if (w && read_wish(in->message, w) && strcmp(w->name, l->caller.name) == 0 &&
        w->join.incarnation == l->caller.incarnation && a->self.id == 0)
        status = admit(a, &w->join, &id, &complete, &failed, &error);
    far__mem_free(w);
    if (status != FAR_OK) {
        /* It first: once all are answered rank 0 may leave. */
        refuse(in, status, error.text);
        if (failed) /* a world of fixed size cannot come up any more: all learn it */
            far__join_answer_all(a, status, error.text);
        return;
    }
    l->caller.id = id;
    far__mutex_lock(&l->lock);
    l->admitted = true;
    far__mutex_unlock(&l->lock);
    far__log_info(&a->log, "worker \"%s\" joins as %" PRIu32, l->caller.name, id);
    far__mutex_lock(&a->lock);
    far__list_add_tail(&a->joiners, &in->waiting);
    bool open = a->roster.world_size == 0;
    far__mutex_unlock(&a->lock);
    if (!complete)
        return;
    (void)!far__agent_becomes_open(a); /* before the first of them can call */
    if (open)
        far__join_announce(a);
    far__join_answer_all(a, FAR_OK, NULL);
}

static void on_missing(far_incoming *in, void *arg)
{
    far_agent *a = arg;
    char text[600];
    far__leave_waits_for(a, text, sizeof text);
    far_message *m;
    if (far_message_create(FAR_ENCODING_VALUES, &m) == FAR_OK) {
        if (far_message_put_string(m, text, strlen(text)) == FAR_OK) {
            far_incoming_reply(in, m);
            return;
        }
        far__agent_drop(a, m);
    }
    refuse(in, FAR_ENOMEM, "out of memory");
}

static void on_hello(far_incoming *in, void *arg)
{
    (void)arg;
    reply_nil(in);
}

/* --------------------------------------------------------------------------------- the roster */

static void on_roster(far_incoming *in, void *arg)
{
    far_agent *a = arg;
    bool changed = false;
    if (in->link->caller.id != 0) {
        refuse(in, FAR_EINVAL, "only rank 0 keeps the roster");
        return;
    }
    far__mutex_lock(&a->lock);
    far_status status = far__roster_apply(&a->roster, in->message, &changed);
    far__mutex_unlock(&a->lock);
    if (status != FAR_OK)
        refuse(in, status, "the roster cannot be read");
    else
        reply_nil(in);
    if (status == FAR_OK && changed)
        far__refs_worker_lost(a);
}

static void announce_to(far_agent *a, far_worker_id id)
{
    far__peer *p;
    far_message *m;
    far_future *f;
    if (far__peer_get(a, id, &p) != FAR_OK)
        return;
    if (far_message_create(FAR_ENCODING_VALUES, &m) != FAR_OK)
        goto out_peer;
    far__mutex_lock(&a->lock);
    far_status status = far__roster_encode(&a->roster, m);
    far__mutex_unlock(&a->lock);
    if (status != FAR_OK) {
        far__agent_drop(a, m);
        goto out_peer;
    }
    if (far__call_internal(p, FAR__ROSTER_METHOD, m, &f) == FAR_OK)
        far_future_release(f);
out_peer:
    far__peer_unref(p);
}

void far__join_announce(far_agent *a)
{
    /* Ids, not places: the roster may grow meanwhile. */
    far_worker_id next = 1;
    for (;;) {
        far_worker_id id = FAR__ID_NONE;
        far__mutex_lock(&a->lock);
        for (size_t i = 0; i < a->roster.count && id == FAR__ID_NONE; i++) {
            const far__member *m = &a->roster.members[i];
            if (m->state == FAR__MEMBER_JOINED && m->id >= next)
                id = m->id;
        }
        far__mutex_unlock(&a->lock);
        if (id == FAR__ID_NONE)
            return;
        announce_to(a, id);
        next = id + 1;
    }
}

far_status far__join_methods(far_agent *a)
{
    const far_method methods[] = {
        {.name = FAR__JOIN_METHOD, .handler = on_join, .arg = a},
        {.name = FAR__ROSTER_METHOD, .handler = on_roster, .arg = a},
        {.name = FAR__MISSING_METHOD, .handler = on_missing, .arg = a},
        {.name = FAR__HELLO_METHOD, .handler = on_hello, .arg = a},
    };
    far_status status = FAR_OK;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0] && status == FAR_OK; i++)
        status = far__methods_add(&a->methods, &methods[i], true);
    return status;
}
