/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/rrefs: what the tests of references share. */
#include "support/rrefs.h"

#include <stdatomic.h>

#include "agent/agent.h"

rrefs_state rrefs = {.held = GATE_INIT, .go = GATE_INIT, .used = GATE_INIT};

typedef struct thing {
    int64_t number;
} thing;

typedef struct stored {
    struct stored *next;
    far_agent *agent;
    far_rref *rref;
} stored;

static pthread_mutex_t store_lock = PTHREAD_MUTEX_INITIALIZER;
static stored *store_head;

static thing *thing_new(int64_t n)
{
    thing *t = malloc(sizeof *t);
    must(t != NULL);
    t->number = n;
    atomic_fetch_add(&rrefs.things, 1);
    return t;
}

static void thing_free(void *arg)
{
    thing *t = arg;
    t->number = -1;
    free(t);
    atomic_fetch_sub(&rrefs.things, 1);
}

/* ----------------------------------------------------------------------------------- short ways */

far_rref *make_at(far_agent *a, far_worker_id to, const char *method, int64_t n,
                  far_duration timeout)
{
    far_rref *r;
    must_ok(far_remote(a, to, method, int_message(n), timeout, &r));
    return r;
}

far_rref *own_thing(far_agent *a, int64_t n)
{
    far_rref *r;
    must_ok(far_rref_create(a, thing_new(n), thing_free, &r));
    return r;
}

far_message *message_with(far_rref *const *r, size_t count)
{
    far_message *m;
    must_ok(far_message_create(FAR_ENCODING_RAW, &m));
    for (size_t i = 0; i < count; i++)
        must_ok(far_message_add_rref(m, r[i], NULL));
    return m;
}

far_message *int_with(int64_t n, far_rref *r)
{
    far_message *m = int_message(n);
    must_ok(far_message_add_rref(m, r, NULL));
    return m;
}

far_status fetch(far_rref *r, far_duration timeout, int64_t *value)
{
    far_future *f;
    far_status status = far_rref_fetch(r, FAR_ENCODING_VALUES, timeout, FAR_CALL_NOW, &f);
    if (status != FAR_OK)
        return status;
    status = end_of(f);
    if (status == FAR_OK)
        *value = int_of(far_future_message(f));
    far_future_release(f);
    return status;
}

int64_t value_of(far_rref *r)
{
    int64_t value = 0;
    must_ok(fetch(r, FAR_NO_LIMIT, &value));
    return value;
}

void must_fetch_fail(far_rref *r, far_status status, const char *part)
{
    far_future *f;
    far_failure why;
    must_ok(far_rref_fetch(r, FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &f));
    must_status(status, end_of(f));
    far_future_failure(f, &why);
    must_say(why.text, part);
    far_future_release(f);
}

far_status settle_of(far_rref *r)
{
    far_future *f;
    must_ok(far_rref_settled(r, &f));
    return end(f);
}

int64_t ask_int(far_agent *a, far_worker_id to, const char *method, far_message *m)
{
    far_message *reply;
    far_error error = {.text = ""};
    if (far_call_sync(a, to, method, m, FAR_NO_LIMIT, &reply, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    int64_t value = int_of(reply);
    far_message_discard(reply);
    return value;
}

far_rref *ask_rref(far_agent *a, far_worker_id to, const char *method, far_message *m)
{
    far_message *reply;
    far_rref *r;
    far_error error = {.text = ""};
    if (far_call_sync(a, to, method, m, FAR_NO_LIMIT, &reply, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    must_ok(far_message_rref(reply, 0, &r));
    far_message_discard(reply);
    return r;
}

/* ------------------------------------------------------------------------------------- methods */

static void make(far_incoming *in, void *arg)
{
    (void)arg;
    far_incoming_keep(in, thing_new(int_of(far_incoming_message(in))), thing_free);
}

static void note(far_incoming *in, void *arg)
{
    (void)arg;
    far_incoming_reply(in, int_message(int_of(far_incoming_message(in))));
}

static void slow(far_incoming *in, void *arg)
{
    gate_pass(&rrefs.held);
    gate_wait(&rrefs.go, 1);
    make(in, arg);
}

static void raise_error(far_incoming *in, void *arg)
{
    (void)arg;
    far_incoming_fail(in, FAR_EREMOTE, "ValueError", "it cannot be made", "line 7",
                      text_message("payload"));
}

static void fail_with(far_incoming *in, far_future *f)
{
    far_failure why;
    far_future_failure(f, &why);
    far_incoming_fail(in, why.status, why.type_name, why.text, NULL, NULL);
}

static void add_up(far_incoming *in, far_rref *const *all, size_t count)
{
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        far_future *f;
        far_status status =
            far_rref_fetch(all[i], FAR_ENCODING_VALUES, FAR_NO_LIMIT, FAR_CALL_NOW, &f);
        if (status != FAR_OK) {
            far_incoming_fail(in, status, NULL, "fetch is refused", NULL, NULL);
            return;
        }
        if (end_of(f) != FAR_OK) {
            fail_with(in, f);
            far_future_release(f);
            return;
        }
        sum += int_of(far_future_message(f));
        far_future_release(f);
    }
    far_incoming_reply(in, int_message(sum));
}

enum { TAKE_MAX = 64, GUARD_S = 25 };

static size_t take_all(far_incoming *in, far_rref *all[TAKE_MAX])
{
    far_message *m = far_incoming_message(in);
    size_t count = far_message_rref_count(m);
    must(count <= TAKE_MAX);
    for (size_t i = 0; i < count; i++)
        must_ok(far_message_rref(m, i, &all[i]));
    return count;
}

static void let_go(far_rref *const *all, size_t count)
{
    for (size_t i = 0; i < count; i++)
        far_rref_release(all[i]);
}

static void use(far_incoming *in, void *arg)
{
    (void)arg;
    far_rref *all[TAKE_MAX];
    size_t count = take_all(in, all);
    gate_pass(&rrefs.used);
    add_up(in, all, count);
    let_go(all, count);
}

static void count_them(far_incoming *in, void *arg)
{
    (void)arg;
    far_incoming_reply(in, int_message((int64_t)far_message_rref_count(far_incoming_message(in))));
}

static void own(far_incoming *in, void *arg)
{
    (void)arg;
    far_rref *r;
    thing *t = thing_new(int_of(far_incoming_message(in)));
    far_status status = far_rref_create(far_incoming_agent(in), t, thing_free, &r);
    if (status != FAR_OK) { /* it may be closing */
        thing_free(t);
        far_incoming_fail(in, status, NULL, "no reference", NULL, NULL);
        return;
    }
    far_message *m;
    must_ok(far_message_create(FAR_ENCODING_RAW, &m));
    (void)!far_message_add_rref(m, r, NULL);
    far_rref_release(r);
    far_incoming_reply(in, m);
}

/* A message with these, which are let go. NULL: the call is failed. */
static far_message *carry_on(far_incoming *in, far_rref *const *all, size_t count)
{
    far_message *m;
    must_ok(far_message_create(FAR_ENCODING_RAW, &m));
    far_status status = FAR_OK;
    for (size_t i = 0; i < count && status == FAR_OK; i++)
        status = far_message_add_rref(m, all[i], NULL);
    let_go(all, count);
    if (status == FAR_OK)
        return m;
    far_message_discard(m);
    far_incoming_fail(in, status, NULL, "it cannot be passed on", NULL, NULL);
    return NULL;
}

static void back(far_incoming *in, void *arg)
{
    (void)arg;
    far_rref *all[TAKE_MAX];
    far_message *m = carry_on(in, all, take_all(in, all));
    if (m)
        far_incoming_reply(in, m);
}

static void hand_on(far_incoming *in, const char *method)
{
    far_rref *all[TAKE_MAX];
    far_future *f;
    int64_t to = int_of(far_incoming_message(in));
    far_message *m = carry_on(in, all, take_all(in, all));
    if (!m)
        return;
    far_status status = far_call(far_incoming_agent(in), (far_worker_id)to, method, m, FAR_NO_LIMIT,
                                 FAR_CALL_NOW, &f);
    if (status != FAR_OK) {
        far_incoming_fail(in, status, NULL, "cannot call on", NULL, NULL);
        return;
    }
    if (end_of(f) == FAR_OK)
        far_incoming_reply(in, far_future_take_message(f));
    else
        fail_with(in, f);
    far_future_release(f);
}

static void pass(far_incoming *in, void *arg)
{
    (void)arg;
    hand_on(in, "use");
}

static void give(far_incoming *in, void *arg)
{
    (void)arg;
    hand_on(in, "store");
}

static void keep_all(far_agent *a, far_message *m)
{
    size_t count = far_message_rref_count(m);
    for (size_t i = 0; i < count; i++) {
        stored *s = malloc(sizeof *s);
        must(s != NULL);
        *s = (stored){.agent = a};
        must_ok(far_message_rref(m, i, &s->rref));
        pthread_mutex_lock(&store_lock);
        s->next = store_head;
        store_head = s;
        pthread_mutex_unlock(&store_lock);
    }
}

static void store(far_incoming *in, void *arg)
{
    (void)arg;
    far_message *m = far_incoming_message(in);
    keep_all(far_incoming_agent(in), m);
    far_incoming_reply(in, int_message((int64_t)far_message_rref_count(m)));
}

static size_t hold_stored(far_agent *a, far_rref *all[TAKE_MAX])
{
    size_t count = 0;
    pthread_mutex_lock(&store_lock);
    for (stored *s = store_head; s; s = s->next) {
        if (s->agent == a && count < TAKE_MAX)
            all[count++] = far_rref_hold(s->rref);
    }
    pthread_mutex_unlock(&store_lock);
    return count;
}

static void give_stored(far_incoming *in, void *arg)
{
    (void)arg;
    far_rref *all[TAKE_MAX];
    far_message *m = carry_on(in, all, hold_stored(far_incoming_agent(in), all));
    if (m)
        far_incoming_reply(in, m);
}

static void get(far_incoming *in, void *arg)
{
    (void)arg;
    far_message *reply;
    far_agent *a = far_incoming_agent(in);
    far_worker_id from = (far_worker_id)int_of(far_incoming_message(in));
    far_error error = {.text = ""};
    far_status status =
        far_call_sync(a, from, "stored", text_message(""), FAR_NO_LIMIT, &reply, &error);
    if (status != FAR_OK) {
        far_incoming_fail(in, status, NULL, error.text, NULL, NULL);
        return;
    }
    keep_all(a, reply);
    far_incoming_reply(in, int_message((int64_t)far_message_rref_count(reply)));
    far_message_discard(reply);
}

static void sum(far_incoming *in, void *arg)
{
    (void)arg;
    far_rref *all[TAKE_MAX];
    size_t count = hold_stored(far_incoming_agent(in), all);
    add_up(in, all, count);
    let_go(all, count);
}

void rrefs_drop_stored(far_agent *a)
{
    stored *mine = NULL;
    pthread_mutex_lock(&store_lock);
    for (stored **at = &store_head; *at;) {
        stored *s = *at;
        if (s->agent != a) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        s->next = mine;
        mine = s;
    }
    pthread_mutex_unlock(&store_lock);
    while (mine) {
        stored *s = mine;
        mine = s->next;
        far_rref_release(s->rref);
        free(s);
    }
}

static void drop(far_incoming *in, void *arg)
{
    (void)arg;
    rrefs_drop_stored(far_incoming_agent(in));
    far_incoming_reply(in, NULL);
}

static void chain(far_incoming *in, void *arg)
{
    (void)arg;
    far_agent *a = far_incoming_agent(in);
    far_rref *all[TAKE_MAX];
    far_future *f;
    far_worker self;
    far_worker workers[CLUSTER_MAX];
    size_t count = take_all(in, all), size;
    int64_t n = int_of(far_incoming_message(in));
    must_ok(far_agent_self(a, &self));
    must_ok(far_agent_workers(a, workers, CLUSTER_MAX, &size));
    if (n > 0) {
        far_message *m = int_message(n - 1);
        for (size_t i = 0; i < count; i++)
            must_ok(far_message_add_rref(m, all[i], NULL));
        far_rref *mine = own_thing(a, n);
        must_ok(far_message_add_rref(m, mine, NULL));
        far_rref_release(mine);
        far_worker_id next = (far_worker_id)((self.id + 1) % size);
        must_ok(far_call(a, next, "chain", m, FAR_NO_LIMIT, 0, &f));
        far_future_release(f);
    }
    let_go(all, count);
    gate_pass(&rrefs.used);
    far_incoming_reply(in, NULL);
}

static void fetched(far_incoming *in, void *arg)
{
    (void)arg;
    far_encoding encoding;
    const thing *t = far_incoming_kept(in, &encoding);
    must(t != NULL && encoding == FAR_ENCODING_VALUES);
    far_incoming_reply(in, int_message(t->number));
}

static const far_method methods[] = {
    {.name = "make", .handler = make},
    {.name = "note", .handler = note},
    {.name = "slow", .handler = slow},
    {.name = "raise", .handler = raise_error},
    {.name = "use", .handler = use},
    {.name = "count", .handler = count_them},
    {.name = "own", .handler = own},
    {.name = "back", .handler = back},
    {.name = "pass", .handler = pass},
    {.name = "give", .handler = give},
    {.name = "store", .handler = store},
    {.name = "sum", .handler = sum},
    {.name = "stored", .handler = give_stored},
    {.name = "get", .handler = get},
    {.name = "drop", .handler = drop},
    {.name = "chain", .handler = chain},
};

enum { METHODS = sizeof methods / sizeof methods[0], ALL_MAX = 64 };
static far_method all_methods[ALL_MAX];

static void gather_methods(void)
{
    must(METHODS + handlers_count <= ALL_MAX);
    memcpy(all_methods, methods, sizeof methods);
    memcpy(all_methods + METHODS, handlers_methods, handlers_count * sizeof *handlers_methods);
}

void rrefs_adjust(far_options *o, size_t rank, void *arg)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)rank;
    (void)arg;
    must(pthread_once(&once, gather_methods) == 0);
    o->methods = all_methods;
    o->method_count = METHODS + handlers_count;
    o->fetch = fetched;
    o->lost_grace = 200 * FAR_MILLISECOND;
}

/* ---------------------------------------------------------------------------- opening and closing */

static void empty_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->count = 0;
    pthread_mutex_unlock(&g->lock);
}

void rrefs_reset(void)
{
    empty_gate(&rrefs.held);
    empty_gate(&rrefs.go);
    empty_gate(&rrefs.used);
    must(atomic_load(&rrefs.things) == 0);
}

void rrefs_open(cluster *c, cluster_net net, size_t size)
{
    rrefs_reset();
    cluster_open(c, net, &(cluster_options){.size = size, .adjust = rrefs_adjust});
}

static void count_one(const far_rref_info *info, void *arg)
{
    (void)info;
    ++*(size_t *)arg;
}

static bool is_empty(far_agent *a)
{
    far_counters k;
    size_t known = 0;
    far_agent_counters(a, &k);
    far_agent_rrefs(a, count_one, &known);
    return k.rrefs_held == 0 && k.rrefs_owned == 0 && k.rrefs_lent == 0 && known == 0;
}

static void print_one(const far_rref_info *info, void *arg)
{
    far_worker self;
    must_ok(far_agent_self(arg, &self));
    fprintf(stderr, "worker %u: of %u, %s%s, holders:", self.id, info->owner, info->state,
            info->held ? ", held" : "");
    for (size_t i = 0; i < info->holder_count; i++)
        fprintf(stderr, " %u", info->holders[i]);
    fprintf(stderr, "\n");
}

void rrefs_none_here(far_agent *a)
{
    time_t until = time(NULL) + GUARD_S;
    while (rrefs_drop_stored(a), !is_empty(a)) {
        if (time(NULL) > until) {
            far_agent_rrefs(a, print_one, a);
            cluster_fail(__FILE__, __LINE__, "no reference is left");
        }
        sched_yield();
    }
}

void rrefs_none(const cluster *c)
{
    time_t until = time(NULL) + GUARD_S;
    for (size_t i = 0; i < c->size; i++) {
        while (rrefs_drop_stored(c->agents[i]), !is_empty(c->agents[i])) {
            if (time(NULL) > until) { /* what all of them know */
                for (size_t k = 0; k < c->size; k++)
                    far_agent_rrefs(c->agents[k], print_one, c->agents[k]);
                cluster_fail(__FILE__, __LINE__, "no reference is left");
            }
            sched_yield();
        }
    }
    gate_until(atomic_load(&rrefs.things) == 0);
}

void rrefs_close(cluster *c)
{
    rrefs_none(c);
    cluster_close(c);
}

/* ------------------------------------------------------------------------------- gate of a method */

enum { BLOCKED_MAX = 256 };

static struct {
    pthread_mutex_t lock;
    far_handler handler; /* the machine's */
    void *arg;
    bool open;
    far_incoming *kept[BLOCKED_MAX];
    size_t count;
    gate came;
} blocked = {.lock = PTHREAD_MUTEX_INITIALIZER, .came = GATE_INIT};

static void keep_blocked(far_incoming *in, void *arg)
{
    pthread_mutex_lock(&blocked.lock);
    bool keep = !blocked.open;
    must(!keep || blocked.count < BLOCKED_MAX);
    if (keep)
        blocked.kept[blocked.count++] = in;
    pthread_mutex_unlock(&blocked.lock);
    if (keep)
        gate_pass(&blocked.came);
    else
        blocked.handler(in, arg);
}

void block_method(far_agent *a, const char *method)
{
    far__method *m = far__methods_find(&a->methods, method, strlen(method));
    must(m != NULL);
    empty_gate(&blocked.came);
    pthread_mutex_lock(&blocked.lock);
    blocked.open = false;
    blocked.count = 0;
    blocked.handler = m->handler;
    blocked.arg = m->arg;
    pthread_mutex_unlock(&blocked.lock);
    far__mutex_lock(&a->methods.lock);
    m->handler = keep_blocked;
    far__mutex_unlock(&a->methods.lock);
}

void wait_blocked(size_t count)
{
    gate_wait(&blocked.came, count);
}

void open_method(void)
{
    pthread_mutex_lock(&blocked.lock);
    blocked.open = true;
    size_t count = blocked.count;
    pthread_mutex_unlock(&blocked.lock);
    for (size_t i = 0; i < count; i++)
        blocked.handler(blocked.kept[i], blocked.arg);
}
