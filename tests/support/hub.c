/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/hub: the in-process engine.
 *
 * Design notes. Every transport has a mailbox under the hub's one lock and an eventfd that its agent's
 * loop watches. A connection is named by its dialler's rank and a number that the dialler drew; parcels
 * say which end they are for. Nothing leaves before flush, so an abandoned message was either not sent at
 * all or is delivered. Buffers travel by reference count, all else is copied at send. */
#include "support/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "proto/message.h"

typedef enum parcel_kind {
    PARCEL_OPEN,
    PARCEL_MESSAGE,
    PARCEL_CLOSE,
} parcel_kind;

typedef struct parcel {
    far__list link;
    parcel_kind kind;
    bool to_dialler;
    uint32_t dialler; /* with `number`: which connection */
    uint64_t number;
    uint32_t from;
    uint64_t token, size;
    int64_t deadline;
    size_t deadline_at, header_size, segment_count;
    uint8_t *header, *copies;
    far__segment *segments;
} parcel;

struct far__transport {
    far__loop *loop;
    far__transport_up up;
    far__watch watch;
    bool watched;
    uint32_t rank; /* HUB_RANKS: does not listen */
    uint64_t next_number;
    far__map dialled, accepted; /* number; dialler << 32 | number -> hub_conn */
    /* under hub_lock */
    bool accepting, stopped;
    far__list mail, early; /* early: for connections that are not accepted yet */
};

typedef struct hub_conn {
    far__conn head;
    far__ref refs;
    far__transport *transport;
    bool dialled;
    uint32_t dialler, other; /* ranks */
    uint64_t number;
    far__list out, in;
    uint64_t out_bytes, next_token, flushed; /* flushed: the last token sent */
    uint64_t limit;
    bool reads, reading, ended, broken, closed; /* reading: read_task is posted */
    far_status status;
    const char *why;
    far__task open_task, close_task, read_task;
    char peer[16];
} hub_conn;

static far__mutex hub_lock = {PTHREAD_MUTEX_INITIALIZER};
static far__transport *ranks[HUB_RANKS];

static void check_loop(const far__transport *t, const char *what)
{
    if (far__loop_here(t->loop))
        return;
    fprintf(stderr, "hub: %s is not called on the loop thread\n", what);
    abort();
}

/* ------------------------------------------------------------------------------------- parcels */

static void parcel_free(parcel *p, far_buffer **orphans)
{
    for (size_t i = 0; i < p->segment_count; i++)
        if (p->segments[i].buffer)
            far__buffer_drop(p->segments[i].buffer, orphans);
    far__mem_free(p->header);
    far__mem_free(p->copies);
    far__mem_free(p->segments);
    far__mem_free(p);
}

static void parcels_free(const far__transport *t, far__list *all)
{
    far_buffer *orphans = NULL;
    far__list *n;
    while ((n = far__list_pop(all)))
        parcel_free(far__container_of(n, parcel, link), &orphans);
    if (orphans)
        t->up.orphans(orphans, t->up.arg);
}

/* Takes the buffers' references in any case. */
static parcel *parcel_create(const far__outgoing *m)
{
    size_t copied = 0;
    parcel *p = far__mem_zalloc(sizeof *p);
    for (size_t i = 0; i < m->segment_count; i++)
        copied += m->segments[i].buffer ? 0 : m->segments[i].size;
    if (p) {
        far__list_init(&p->link);
        p->header = far__mem_alloc(m->header_size);
        p->copies = far__mem_alloc(copied + 1);
        p->segments = far__mem_array(m->segment_count + 1, sizeof *p->segments);
    }
    if (!p || !p->header || !p->copies || !p->segments) {
        for (size_t i = 0; i < m->segment_count; i++)
            far_buffer_release(m->segments[i].buffer); /* no test runs out of memory here */
        if (p)
            parcel_free(p, &(far_buffer *){NULL});
        return NULL;
    }
    memcpy(p->header, m->header, m->header_size);
    p->header_size = m->header_size;
    p->deadline = m->deadline;
    p->deadline_at = m->deadline_at;
    p->segment_count = m->segment_count;
    p->size = m->header_size;
    size_t at = 0;
    for (size_t i = 0; i < m->segment_count; i++) {
        far__segment *s = &p->segments[i];
        *s = m->segments[i];
        p->size += s->size;
        if (s->buffer)
            continue;
        if (s->size)
            memcpy(p->copies + at, s->data, s->size);
        s->data = p->copies + at;
        at += s->size;
    }
    return p;
}

static void ring(far__transport *t)
{
    uint64_t one = 1;
    if (write(t->watch.fd, &one, sizeof one) != (ssize_t)sizeof one)
        abort();
}

/* Puts a parcel into the mailbox of the connection's other end. False: nobody lives there. */
static bool post(const hub_conn *c, parcel *p)
{
    p->to_dialler = !c->dialled;
    p->dialler = c->dialler;
    p->number = c->number;
    p->from = c->transport->rank;
    far__mutex_lock(&hub_lock);
    far__transport *to = ranks[c->other];
    if (to && to->stopped && p->kind == PARCEL_OPEN)
        to = NULL;
    if (to) {
        far__list_add_tail(&to->mail, &p->link);
        ring(to);
    }
    far__mutex_unlock(&hub_lock);
    return to != NULL;
}

static bool post_note(const hub_conn *c, parcel_kind kind)
{
    parcel *p = far__mem_zalloc(sizeof *p);
    if (!p)
        abort();
    p->kind = kind;
    if (post(c, p))
        return true;
    parcel_free(p, &(far_buffer *){NULL});
    return false;
}

/* --------------------------------------------------------------------------------- connections */

static far__map *map_of(hub_conn *c, uint64_t *key)
{
    *key = c->dialled ? c->number : ((uint64_t)c->dialler << 32 | c->number);
    return c->dialled ? &c->transport->dialled : &c->transport->accepted;
}

static hub_conn *find(far__transport *t, const parcel *p)
{
    if (p->to_dialler)
        return far__map_get(&t->dialled, p->number);
    return far__map_get(&t->accepted, (uint64_t)p->dialler << 32 | p->number);
}

static hub_conn *conn_create(far__transport *t, bool dialled, uint32_t dialler, uint32_t other,
                             uint64_t number)
{
    hub_conn *c = far__mem_zalloc(sizeof *c);
    if (!c)
        return NULL;
    far__ref_init(&c->refs);
    c->head.ops = &far__hub_ops;
    c->transport = t;
    c->dialled = dialled;
    c->dialler = dialler;
    c->other = other;
    c->number = number;
    c->limit = 4096;
    far__list_init(&c->out);
    far__list_init(&c->in);
    snprintf(c->peer, sizeof c->peer, "hub:%u", (unsigned)other);
    uint64_t key;
    far__map *map = map_of(c, &key);
    if (far__map_put(map, key, c) != FAR_OK)
        abort();
    return c;
}

static void conn_release(far__conn *head)
{
    hub_conn *c = (hub_conn *)head;
    if (!far__ref_release(&c->refs))
        return;
    far__transport *t = c->transport;
    void *owner = head->owner;
    parcels_free(t, &c->out);
    parcels_free(t, &c->in);
    far__mem_free(c);
    if (owner)
        t->up.gone(owner, t->up.arg);
}

static void conn_hold(far__conn *head)
{
    far__ref_hold(&((hub_conn *)head)->refs);
}

static void tell_closed(far__task *task)
{
    hub_conn *c = far__container_of(task, hub_conn, close_task);
    if (!c->closed)
        c->transport->up.closed(&c->head, c->status, c->why, c->transport->up.arg);
    conn_release(&c->head);
}

static void tell_opened(far__task *task)
{
    hub_conn *c = far__container_of(task, hub_conn, open_task);
    if (!c->closed && !c->broken)
        c->transport->up.opened(&c->head, c->transport->up.arg);
    conn_release(&c->head);
}

static void conn_break(hub_conn *c, far_status status, const char *why)
{
    if (c->broken || c->closed)
        return;
    c->broken = true;
    c->status = status;
    c->why = why;
    conn_hold(&c->head);
    c->close_task.run = tell_closed;
    far__loop_post(c->transport->loop, &c->close_task);
}

static far_status dial(far__transport *t, const char *address, void *owner, far__mutex *lock,
                       far__conn **out, far_error *error)
{
    unsigned rank = HUB_RANKS;
    check_loop(t, "dial");
    if (sscanf(address, "hub:%u", &rank) != 1 || rank >= HUB_RANKS)
        return far__error_set(error, FAR_EINVAL, "%s: not an address", address);
    if (t->rank == HUB_RANKS)
        return far__error_set(error, FAR_EPEER, "%s: who does not listen cannot dial", address);
    hub_conn *c = conn_create(t, true, t->rank, rank, ++t->next_number);
    if (!c)
        return far__error_set(error, FAR_ENOMEM, "%s: out of memory", address);
    if (!post_note(c, PARCEL_OPEN)) {
        far__map_remove(&t->dialled, c->number);
        conn_release(&c->head);
        return far__error_set(error, FAR_EPEER, "%s: nobody is there", address);
    }
    c->head.owner = owner;
    c->head.lock = lock;
    c->reads = true;
    conn_hold(&c->head);
    c->open_task.run = tell_opened;
    far__loop_post(t->loop, &c->open_task);
    *out = &c->head;
    return FAR_OK;
}

static void conn_close(far__conn *head)
{
    hub_conn *c = (hub_conn *)head;
    check_loop(c->transport, "close");
    if (c->closed)
        abort();
    c->closed = true;
    if (!c->ended)
        (void)post_note(c, PARCEL_CLOSE);
    uint64_t key;
    far__map *map = map_of(c, &key);
    far__map_remove(map, key);
    conn_release(head);
}

/* ----------------------------------------------------------------------------------- sending */

static far_status conn_send(far__conn *head, const far__outgoing *message, uint64_t *token)
{
    hub_conn *c = (hub_conn *)head;
    check_loop(c->transport, "send");
    parcel *p = parcel_create(message);
    if (!p)
        return FAR_ENOMEM;
    p->kind = PARCEL_MESSAGE;
    p->token = *token = ++c->next_token;
    c->out_bytes += p->size;
    far__list_add_tail(&c->out, &p->link);
    return FAR_OK;
}

static void conn_flush(far__conn *head)
{
    hub_conn *c = (hub_conn *)head;
    check_loop(c->transport, "flush");
    if (c->broken || c->closed)
        return;
    far__list *n;
    while ((n = far__list_pop(&c->out))) {
        parcel *p = far__container_of(n, parcel, link);
        uint64_t size = p->size, token = p->token;
        if (p->deadline != FAR__NEVER) {
            int64_t left = p->deadline - far__clock_now();
            far__store_u64(p->header + p->deadline_at, left > 0 ? (uint64_t)left : 1);
        }
        if (!post(c, p)) {
            far__list_add_head(&c->out, n);
            conn_break(c, FAR_EPEER, "nobody is there any more");
            return;
        }
        c->out_bytes -= size;
        c->flushed = token;
        atomic_fetch_add_explicit(c->transport->up.bytes_sent, size, memory_order_relaxed);
    }
}

static uint64_t conn_pending(const far__conn *head)
{
    const hub_conn *c = (const hub_conn *)head;
    check_loop(c->transport, "pending");
    return c->out_bytes;
}

static bool conn_started(const far__conn *head, uint64_t token)
{
    const hub_conn *c = (const hub_conn *)head;
    check_loop(c->transport, "started");
    return token <= c->flushed;
}

static void conn_abandon(far__conn *head, uint64_t token)
{
    hub_conn *c = (hub_conn *)head;
    check_loop(c->transport, "abandon");
    far__list_for_each_safe (n, &c->out) {
        parcel *p = far__container_of(n, parcel, link);
        if (p->token != token)
            continue;
        far__list one;
        far__list_init(&one);
        far__list_remove(n);
        c->out_bytes -= p->size;
        far__list_add_tail(&one, n);
        parcels_free(c->transport, &one);
        return;
    }
}

/* ---------------------------------------------------------------------------------- receiving */

static far__drive_result conn_drive(far__conn *head, int64_t deadline)
{
    hub_conn *c = (hub_conn *)head;
    far__transport *t = c->transport;
    check_loop(t, "drive");
    if (deadline != 0)
        abort(); /* the loop does not wait */
    conn_hold(head);
    while (!c->closed && !c->broken && !far__list_empty(&c->in)) {
        parcel *p = far__container_of(far__list_pop(&c->in), parcel, link);
        far__inbound in = {.header = p->header,
                           .header_size = p->header_size,
                           .segments = p->segments,
                           .segment_count = p->segment_count};
        uint64_t body = p->size - p->header_size;
        far_status status = body > c->limit ? FAR_ETOOBIG : t->up.received(head, &in, t->up.arg);
        far_buffer *orphans = NULL;
        parcel_free(p, &orphans);
        if (orphans)
            t->up.orphans(orphans, t->up.arg);
        if (status != FAR_OK)
            conn_break(c, status, far_status_text(status));
    }
    if (c->ended)
        conn_break(c, FAR_EPEER, "closed by the peer");
    bool over = c->closed || c->broken;
    conn_release(head);
    return over ? FAR__DRIVE_CLOSED : FAR__DRIVE_READ;
}

static void read_if_wanted(hub_conn *c)
{
    if (c->closed || c->broken)
        return;
    if (c->ended || (c->reads && !far__list_empty(&c->in)))
        c->transport->up.readable(&c->head, c->transport->up.arg);
}

static void read_later(far__task *task)
{
    hub_conn *c = far__container_of(task, hub_conn, read_task);
    c->reading = false;
    read_if_wanted(c);
    conn_release(&c->head);
}

static void conn_watch(far__conn *head, bool on)
{
    hub_conn *c = (hub_conn *)head;
    check_loop(c->transport, "watch");
    c->reads = on;
    if (!on || far__list_empty(&c->in) || c->reading || c->broken || c->closed)
        return;
    conn_hold(head); /* not from here: the owner's lock is held */
    c->reading = true;
    c->read_task.run = read_later;
    far__loop_post(c->transport->loop, &c->read_task);
}

static void accept_one(far__transport *t, const parcel *p)
{
    hub_conn *c = conn_create(t, false, p->dialler, p->from, p->number);
    if (!c)
        abort();
    if (t->stopped || !t->up.accepted(&c->head, t->up.arg)) {
        uint64_t key;
        far__map *map = map_of(c, &key);
        (void)post_note(c, PARCEL_CLOSE);
        far__map_remove(map, key);
        c->head.owner = NULL;
        conn_release(&c->head);
        return;
    }
    c->reads = true;
}

static void deliver(far__transport *t, parcel *p)
{
    hub_conn *c = find(t, p);
    if (p->kind == PARCEL_OPEN)
        accept_one(t, p);
    if (c && p->kind == PARCEL_MESSAGE) {
        atomic_fetch_add_explicit(t->up.bytes_received, p->size, memory_order_relaxed);
        far__list_add_tail(&c->in, &p->link);
        p = NULL;
    }
    if (c && p && p->kind == PARCEL_CLOSE)
        c->ended = true;
    if (p) {
        far__list one;
        far__list_init(&one);
        far__list_add_tail(&one, &p->link);
        parcels_free(t, &one);
    }
    if (c) {
        conn_hold(&c->head);
        read_if_wanted(c);
        conn_release(&c->head);
    }
}

static void mail_ready(far__watch *w, uint32_t events)
{
    (void)events;
    far__transport *t = far__container_of(w, far__transport, watch);
    uint64_t count;
    if (read(w->fd, &count, sizeof count) < 0)
        return;
    for (;;) {
        far__mutex_lock(&hub_lock);
        far__list *n = far__list_pop(&t->mail);
        parcel *p = n ? far__container_of(n, parcel, link) : NULL;
        bool wait = p && !p->to_dialler && !t->accepting && !t->stopped;
        if (wait)
            far__list_add_tail(&t->early, n);
        far__mutex_unlock(&hub_lock);
        if (!p)
            return;
        if (!wait)
            deliver(t, p);
    }
}

/* ------------------------------------------------------------------------------- the transport */

static bool handles(const char *address)
{
    return strncmp(address, "hub:", 4) == 0;
}

static far_status create(far__loop *loop, const far__transport_up *up, far__transport **out)
{
    far__transport *t = far__mem_zalloc(sizeof *t);
    if (!t)
        return FAR_ENOMEM;
    t->loop = loop;
    t->up = *up;
    t->rank = HUB_RANKS;
    far__list_init(&t->mail);
    far__list_init(&t->early);
    t->watch = (far__watch){.ready = mail_ready, .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (t->watch.fd < 0 || far__loop_add(loop, &t->watch, EPOLLIN) != FAR_OK)
        abort();
    *out = t;
    return FAR_OK;
}

/* Nothing comes in any more; who dials finds nobody. */
static void unlist(far__transport *t)
{
    far__mutex_lock(&hub_lock);
    if (t->rank < HUB_RANKS && ranks[t->rank] == t)
        ranks[t->rank] = NULL;
    far__mutex_unlock(&hub_lock);
}

static void destroy(far__transport *t)
{
    unlist(t);
    if (t->dialled.count || t->accepted.count) {
        fprintf(stderr, "hub: destroyed with connections open\n");
        abort();
    }
    far__loop_remove(t->loop, &t->watch);
    close(t->watch.fd);
    parcels_free(t, &t->mail);
    parcels_free(t, &t->early);
    far__map_fini(&t->dialled);
    far__map_fini(&t->accepted);
    far__mem_free(t);
}

static far_status listen_on(far__transport *t, const char *wish, far__bytes *published,
                            far_error *error)
{
    unsigned rank = HUB_RANKS;
    bool any = strcmp(wish, "hub:*") == 0;
    if (!any && (sscanf(wish, "hub:%u", &rank) != 1 || rank >= HUB_RANKS))
        return far__error_set(error, FAR_EINVAL, "cannot listen on \"%s\": not an address", wish);
    far__mutex_lock(&hub_lock);
    if (any) { /* from 1 on: 0 is looked for */
        rank = 1;
        while (rank < HUB_RANKS && ranks[rank])
            rank++;
    }
    far_status status = rank < HUB_RANKS && !ranks[rank] ? FAR_OK : FAR_EBUSY;
    if (status == FAR_OK) {
        ranks[rank] = t;
        t->rank = rank;
    }
    far__mutex_unlock(&hub_lock);
    if (status != FAR_OK)
        return far__error_set(error, status, "cannot listen on %s: already in use", wish);
    char text[32];
    int size = snprintf(text, sizeof text, " hub:%u", rank);
    return far__bytes_append(published, text, (size_t)size);
}

static far_status accept_start(far__transport *t)
{
    far__mutex_lock(&hub_lock);
    t->accepting = true;
    far__list_splice(&t->early, &t->mail); /* they came before */
    far__list_splice(&t->mail, &t->early);
    ring(t);
    far__mutex_unlock(&hub_lock);
    return FAR_OK;
}

/* Who has dialled and was not accepted yet is refused now: the loop may end before it reads again. */
static void accept_stop(far__transport *t)
{
    far__list refused;
    far__list_init(&refused);
    far__mutex_lock(&hub_lock);
    t->accepting = false;
    t->stopped = true;
    far__list_splice(&t->early, &t->mail);
    far__list_splice(&t->mail, &t->early);
    far__list_for_each_safe (n, &t->mail) {
        if (far__container_of(n, parcel, link)->kind != PARCEL_OPEN)
            continue;
        far__list_remove(n);
        far__list_add_tail(&refused, n);
    }
    ring(t);
    far__mutex_unlock(&hub_lock);
    far__list_for_each (n, &refused)
        accept_one(t, far__container_of(n, parcel, link));
    parcels_free(t, &refused);
}

static void limit(far__conn *head, uint64_t message_max)
{
    hub_conn *c = (hub_conn *)head;
    check_loop(c->transport, "limit");
    c->limit = message_max;
}

static const char *peer_text(const far__conn *c)
{
    return ((const hub_conn *)c)->peer;
}

static void wake(far__conn *c)
{
    (void)c;
    abort(); /* nobody waits in drive */
}

static void serve_add(far__conn *c)
{
    (void)c;
    abort(); /* there is no serving set: the loop reads */
}

static void serve(far__transport *t, int64_t deadline)
{
    (void)t;
    (void)deadline;
    abort();
}

static void serve_wake(far__transport *t)
{
    (void)t;
    abort();
}

static void serve_watch(far__transport *t, bool on)
{
    (void)t;
    (void)on;
    abort();
}

static void forked(far__transport *t)
{
    if (t->rank < HUB_RANKS)
        ranks[t->rank] = NULL;
    close(t->watch.fd);
}

const far__transport_ops far__hub_ops = {
    .name = "hub",
    .flags = FAR__TRANSPORT_LOOP_ONLY,
    .handles = handles,
    .create = create,
    .destroy = destroy,
    .listen = listen_on,
    .accept_start = accept_start,
    .accept_stop = accept_stop,
    .dial = dial,
    .send = conn_send,
    .flush = conn_flush,
    .pending = conn_pending,
    .started = conn_started,
    .abandon = conn_abandon,
    .drive = conn_drive,
    .wake = wake,
    .watch = conn_watch,
    .limit = limit,
    .serve_add = serve_add,
    .serve = serve,
    .serve_wake = serve_wake,
    .serve_watch = serve_watch,
    .hold = conn_hold,
    .release = conn_release,
    .close = conn_close,
    .peer_text = peer_text,
    .forked = forked,
};
