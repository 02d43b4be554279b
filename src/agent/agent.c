/* SPDX-License-Identifier: BSD-3-Clause
 * agent/agent: one worker's life: options, start, close, counters.
 * Floor: agent. Thread: any, unless said otherwise.
 *
 * Design notes. Closing: the loop ends all calls and connections; then no handler begins any more; then
 * the loop stops. Handlers that run go on: they hold what they use, and their answers are dropped. The
 * struct is freed when the last future, call or connection has let it go. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "agent/agent.h"
#include "base/mem.h"

/* Open agents of this process, for fork only. */
static far__mutex open_lock = {PTHREAD_MUTEX_INITIALIZER};
static far__list open_agents = {&open_agents, &open_agents};
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* -------------------------------------------------------------------------------------- options */

void far_options_init(far_options *o)
{
    *o = (far_options){
        .size = sizeof *o,
        .rank = -1,
        .world_size = -1,
        .init_timeout = 300 * FAR_SECOND,
        .default_timeout = FAR_NO_LIMIT,
        .threads = 16,
        .threads_max = 512,
        .message_size_max = (uint64_t)64 << 30,
        .lost_grace = FAR__REFS_GRACE,
        .log_level = FAR_LOG_WARNING,
    };
}

static far_status check_options(const far_options *o, far_error *error)
{
    if (!o || o->size != sizeof *o)
        return far__error_set(error, FAR_EINVAL,
                              "options: not initialised by far_options_init of this version");
    if (!o->name)
        return far__error_set(error, FAR_EINVAL, "options.name: required");
    far_status status = far__name_check(o->name, error);
    if (status != FAR_OK)
        return status;
    if (o->rank < -1 || o->rank >= UINT32_MAX)
        return far__error_set(error, FAR_EINVAL, "options.rank: %lld is no rank",
                              (long long)o->rank);
    if (o->world_size < -1 || o->world_size >= UINT32_MAX)
        return far__error_set(error, FAR_EINVAL, "options.world_size: %lld is no size",
                              (long long)o->world_size);
    if (o->world_size > 0 && o->rank >= o->world_size)
        return far__error_set(error, FAR_EINVAL, "options.rank: %lld is outside of a world of %lld",
                              (long long)o->rank, (long long)o->world_size);
    if (o->init_timeout < 0)
        return far__error_set(error, FAR_EINVAL, "options.init_timeout: negative");
    if (o->default_timeout < 0)
        return far__error_set(error, FAR_EINVAL, "options.default_timeout: negative");
    if (o->lost_grace < 0)
        return far__error_set(error, FAR_EINVAL, "options.lost_grace: negative");
    if (o->threads < 1 || o->threads_max < 1)
        return far__error_set(error, FAR_EINVAL, "options.threads, threads_max: at least 1");
    if (o->message_size_max < 4096)
        return far__error_set(error, FAR_EINVAL, "options.message_size_max: at least 4096");
    if (o->secret && (o->secret_size == 0 || o->secret_size > FAR__SECRET_MAX))
        return far__error_set(error, FAR_EINVAL, "options.secret: 1 to %d bytes", FAR__SECRET_MAX);
    return FAR_OK;
}

/* NULL stays NULL. False: no memory. */
static bool copy_text(const char *from, char **to)
{
    *to = from ? far__mem_copy_text(from, strlen(from)) : NULL;
    return *to || !from;
}

static far_status copy_options(far_agent *a, const far_options *o, far_error *error)
{
    snprintf(a->name, sizeof a->name, "%s", o->name);
    a->rank = o->rank;
    a->world_size = o->world_size;
    a->transports_wanted = o->transports;
    a->init_timeout = o->init_timeout;
    a->message_size_max = o->message_size_max;
    a->foreign = o->foreign_threads;
    a->fetch = o->fetch;
    a->fetch_arg = o->fetch_arg;
    a->lost_grace = o->lost_grace;
    atomic_init(&a->default_timeout, o->default_timeout);
    far__log_init(&a->log, o->log, o->log_arg, o->log_level);
    if (o->secret) {
        memcpy(a->secret, o->secret, o->secret_size);
        a->secret_size = o->secret_size;
    }
    if (!copy_text(o->init_method, &a->init_method) ||
        !copy_text(o->bind_address, &a->bind_address))
        return FAR_ENOMEM;
    for (size_t i = 0; i < o->method_count; i++) {
        far_status status = far__methods_add(&a->methods, &o->methods[i], false);
        if (status != FAR_OK)
            return far__error_set(error, status, "options.methods[%zu] \"%s\": %s", i,
                                  o->methods[i].name ? o->methods[i].name : "",
                                  status == FAR_EBUSY ? "the name is taken"
                                                      : "not a valid name or no handler");
    }
    return FAR_OK;
}

/* -------------------------------------------------------------------- upcalls of the transports */

static far__owner *owner_of(far__conn *c)
{
    return c->owner;
}

static bool up_accepted(far__conn *c, void *arg)
{
    return far__link_accepted(arg, c);
}

static void up_opened(far__conn *c, void *arg)
{
    (void)arg;
    far__peer_opened(owner_of(c)->object);
}

static void up_readable(far__conn *c, void *arg)
{
    (void)arg;
    far__owner *o = owner_of(c);
    if (o->kind == FAR__OWNER_PEER)
        far__peer_readable(o->object);
    else
        far__link_readable(o->object);
}

static void up_serve_readable(void *arg)
{
    far_agent *a = arg;
    if (!far__executor_loop_begin(a->executor))
        return;
    a->loop_serves = true;
    a->slots[0].ops->serve(a->slots[0].transport, 0);
    a->loop_serves = false;
    far__executor_kick(a->executor);
}

static far_status up_memory(far__conn *c, size_t size, far_buffer **out, void *arg)
{
    (void)c;
    far_agent *a = arg;
    return far__pool_take(a->pool, size, out);
}

static far_status up_received(far__conn *c, far__inbound *m, void *arg)
{
    (void)arg;
    far__owner *o = owner_of(c);
    return o->kind == FAR__OWNER_PEER ? far__peer_received(o, m) : far__link_received(o, m);
}

static void up_closed(far__conn *c, far_status status, const char *text, void *arg)
{
    (void)arg;
    far__owner *o = owner_of(c);
    if (o->kind == FAR__OWNER_PEER)
        far__peer_broken(o->object, status, text);
    else
        far__link_broken(o->object, status, text);
}

static void up_gone(void *owner, void *arg)
{
    (void)arg;
    far__owner *o = owner;
    if (o->kind == FAR__OWNER_PEER)
        far__peer_unref(o->object);
    else
        far__link_unref(o->object);
    far__mem_free(o);
}

static void up_orphans(far_buffer *list, void *arg)
{
    far__agent_orphans(arg, list);
}

/* ---------------------------------------------------------------- what the executor asks for */

static void serve_read(void *arg, int64_t deadline)
{
    far_agent *a = arg;
    a->slots[0].ops->serve(a->slots[0].transport, deadline);
}

static void serve_wake(void *arg)
{
    far_agent *a = arg;
    a->slots[0].ops->serve_wake(a->slots[0].transport);
}

static void serve_watch(void *arg, bool on)
{
    far_agent *a = arg;
    if (a->slot_count > 0)
        a->slots[0].ops->serve_watch(a->slots[0].transport, on);
}

static void flush(void *arg)
{
    far__agent_flush_links(arg);
    far__agent_free_kept();
}

/* ---------------------------------------------------------------------------------- creating */

far_status far__agent_add_transport(far_agent *a, const far__transport_ops *ops)
{
    if (a->slot_count == FAR__TRANSPORTS_MAX)
        return FAR_EBUSY;
    far__transport_up up = {
        .accepted = up_accepted,
        .opened = up_opened,
        .readable = up_readable,
        .serve_readable = up_serve_readable,
        .memory = up_memory,
        .received = up_received,
        .closed = up_closed,
        .gone = up_gone,
        .orphans = up_orphans,
        .bytes_sent = &a->counters.bytes_sent,
        .bytes_received = &a->counters.bytes_received,
        .arg = a,
    };
    far__transport_slot slot = {.ops = ops};
    far_status status = ops->create(a->loop, &up, &slot.transport);
    if (status == FAR_OK)
        a->slots[a->slot_count++] = slot;
    return status;
}

far__transport_slot *far__agent_slot(far_agent *a, const char *address)
{
    bool is_unix = strncmp(address, "unix:", 5) == 0, is_tcp = strncmp(address, "tcp:", 4) == 0;
    unsigned wanted = a->transports_wanted;
    if (wanted &&
        ((is_unix && !(wanted & FAR_TRANSPORT_UNIX)) || (is_tcp && !(wanted & FAR_TRANSPORT_TCP))))
        return NULL;
    for (int i = 0; i < a->slot_count; i++)
        if (a->slots[i].ops->handles(address))
            return &a->slots[i];
    return NULL;
}

static far_status create_parts(far_agent *a, const far_options *o)
{
    far_status status = far__pool_create(o->alloc, o->alloc_arg, &a->pool);
    if (status == FAR_OK)
        status = far__loop_create(&a->loop);
    if (status != FAR_OK)
        return status;
    far__executor_options e = {
        .threads = o->threads,
        .threads_max = o->threads_max,
        .loop = a->loop,
        .service = o->foreign_threads ? &a->service : NULL,
        .ops = {.read = serve_read,
                .wake = serve_wake,
                .watch = serve_watch,
                .flush = flush,
                .leaves = far__agent_free_kept,
                .arg = a},
    };
    status = far__executor_create(&e, &a->executor);
    if (status == FAR_OK)
        status = far__agent_add_transport(a, &far__sock_ops);
    return status;
}

/* Frees what was made, in any stage; nothing runs any more. */
static void destroy(far_agent *a)
{
    far__refs_end(a);
    for (int i = 0; i < a->slot_count; i++)
        a->slots[i].ops->destroy(a->slots[i].transport);
    if (a->executor)
        far__executor_release(a->executor);
    if (a->loop)
        far__loop_destroy(a->loop);
    far__service_fini(&a->service);
    far__pool_release(a->pool);
    far__roster_fini(&a->roster);
    far__agreement_fini(&a->agreement);
    far__map_fini(&a->peers);
    far__methods_fini(&a->methods);
    far__bytes_fini(&a->addresses);
    explicit_bzero(a->secret, sizeof a->secret);
    far__mem_free(a->init_method);
    far__mem_free(a->bind_address);
    far__mutex_fini(&a->lock);
    far__mem_free(a);
}

static void handle_forks(void);

static void add_open(far_agent *a)
{
    pthread_once(&fork_once, handle_forks);
    far__mutex_lock(&open_lock);
    far__list_add_tail(&open_agents, &a->in_open);
    far__mutex_unlock(&open_lock);
}

far_status far_agent_create(const far_options *o, far_agent **out, far_error *error)
{
    far_status status = check_options(o, error);
    if (status != FAR_OK)
        return status;
    far_agent *a = far__mem_zalloc(sizeof *a);
    if (!a)
        return far__error_set(error, FAR_ENOMEM, "no memory for an agent");
    far__ref_init(&a->users);
    far__ref_init(&a->refs);
    far__mutex_init(&a->lock);
    far__list_init(&a->links);
    far__list_init(&a->dirty);
    far__list_init(&a->joiners);
    far__list_init(&a->leavers);
    far__list_init(&a->in_open);
    far__roster_init(&a->roster, 0);
    far__agreement_init(&a->agreement);
    far__service_init(&a->service, o->foreign_threads);
    far__leave_init(a);
    a->self.id = FAR__ID_NONE;
    memcpy(a->self.name, o->name, strlen(o->name) + 1);
    if (getrandom(&a->self.incarnation, sizeof a->self.incarnation, 0) !=
        (ssize_t)sizeof a->self.incarnation)
        status = FAR_ESYSTEM;
    if (status == FAR_OK)
        status = far__methods_init(&a->methods, o->fallback, o->fallback_arg);
    if (status == FAR_OK)
        status = copy_options(a, o, error);
    if (status == FAR_OK)
        status = far__join_methods(a);
    if (status == FAR_OK)
        status = far__leave_methods(a);
    if (status == FAR_OK)
        status = far__refs_methods(a);
    if (status == FAR_OK)
        status = create_parts(a, o);
    if (status != FAR_OK) {
        if (error && error->status != status)
            far__error_set(error, status, "cannot make an agent: %s", far_status_text(status));
        far__service_stop(&a->service);
        destroy(a);
        return status;
    }
    add_open(a);
    *out = a;
    return FAR_OK;
}

far_status far_agent_open(const far_options *options, far_agent **out, far_error *error)
{
    far_agent *a = NULL;
    far_status status = far_agent_create(options, &a, error);
    if (status != FAR_OK)
        return status;
    status = far_agent_join(a, error);
    if (status != FAR_OK) {
        far_agent_release(a);
        return status;
    }
    *out = a;
    return FAR_OK;
}

far_status far__agent_start(far_agent *a)
{
    far_status status = far__loop_start(a->loop);
    if (status == FAR_OK) {
        atomic_store(&a->looping, true);
        far__executor_start(a->executor);
    }
    return status;
}

/* ----------------------------------------------------------------------------------- closing */

typedef struct close_task {
    far__task task;
    far_agent *agent;
    _Atomic uint32_t done;
} close_task;

/* The next peer of the map, taken out; NULL: none is left. */
static far__peer *take_peer(far_agent *a)
{
    size_t at = 0;
    uint64_t key;
    void *value = NULL;
    far__mutex_lock(&a->lock);
    if (far__map_next(&a->peers, &at, &key, &value))
        far__map_remove(&a->peers, key);
    far__mutex_unlock(&a->lock);
    return value;
}

static far__link *first_link(far_agent *a)
{
    far__link *l = NULL;
    far__mutex_lock(&a->lock);
    if (!far__list_empty(&a->links)) {
        l = far__container_of(a->links.next, far__link, in_agent);
        far__link_ref(l);
    }
    far__mutex_unlock(&a->lock);
    return l;
}

static void close_on_loop(far__task *task)
{
    close_task *t = far__container_of(task, close_task, task);
    far_agent *a = t->agent;
    static const char why[] = "the agent was closed";
    for (int i = 0; i < a->slot_count; i++)
        a->slots[i].ops->accept_stop(a->slots[i].transport);
    far__agent_flush_links(a);
    far__leave_close(a);
    far__peer *p;
    while ((p = take_peer(a))) {
        far__peer_shut(p, FAR_ECLOSED, why);
        far__peer_unref(p);
    }
    if (a->self_peer)
        far__peer_shut(a->self_peer, FAR_ECLOSED, why);
    if (a->self_link)
        far__link_shut(a->self_link);
    far__refs_stop(a);
    far__link *l;
    while ((l = first_link(a))) {
        far__link_shut(l);
        far__link_unref(l);
    }
    atomic_store(&t->done, 1);
    far__futex_wake(&t->done, 1);
}

static void wait_word(_Atomic uint32_t *word)
{
    while (atomic_load(word) == 0)
        (void)far__futex_wait(word, 0, FAR__NEVER);
}

static void close_now(far_agent *a)
{
    close_task t = {.task.run = close_on_loop, .agent = a};
    far__loop_post(a->loop, &t.task);
    if (!atomic_load(&a->looping))
        far__loop_stop(a->loop); /* never joined: it is run here */
    wait_word(&t.done);
    /* What is left are calls, which see that they are cancelled, and callbacks, which run here. */
    far__list left, *n;
    far__executor_stop(a->executor, &left);
    while ((n = far__list_pop(&left))) {
        far__job *j = far__container_of(n, far__job, link);
        j->run(j);
    }
    far__loop_stop(a->loop);
    far__refs_drained(a); /* the last answers of the machine's calls came after far__refs_stop */
    far__service_stop(&a->service);
    far__mutex_lock(&open_lock);
    far__list_remove(&a->in_open);
    far__mutex_unlock(&open_lock);
}

/* Another thread closes; a handler that it waits for may be this one, so only outsiders wait for the
 * end. In a forked child there is nobody to wait for. */
static void await_close(far_agent *a)
{
    if (atomic_load(&a->state) != FAR__AGENT_CLOSED && !far__executor_here(a->executor))
        wait_word(&a->closed_word);
}

static void finish_close(far_agent *a)
{
    assert(!far__loop_here(a->loop));
    close_now(a);
    atomic_store(&a->state, FAR__AGENT_CLOSED);
    atomic_store(&a->closed_word, 1);
    far__futex_wake(&a->closed_word, INT_MAX);
}

void far_agent_close(far_agent *a)
{
    far__agent_ref(a);
    int state = atomic_load(&a->state), next;
    do
        next = state == FAR__AGENT_JOINING ? FAR__AGENT_ABORTING : FAR__AGENT_CLOSING;
    while (state < FAR__AGENT_ABORTING && !atomic_compare_exchange_weak(&a->state, &state, next));
    if (state == FAR__AGENT_NEW || state == FAR__AGENT_OPEN) {
        finish_close(a);
    } else {
        if (state == FAR__AGENT_JOINING)
            far__join_interrupt(a);
        await_close(a);
    }
    far__agent_unref(a);
}

bool far__agent_becomes_open(far_agent *a)
{
    int state = FAR__AGENT_JOINING;
    return atomic_compare_exchange_strong(&a->state, &state, FAR__AGENT_OPEN) ||
           state == FAR__AGENT_OPEN;
}

void far__agent_gives_up(far_agent *a)
{
    int joining = FAR__AGENT_JOINING, aborting = FAR__AGENT_ABORTING;
    if (atomic_compare_exchange_strong(&a->state, &joining, FAR__AGENT_CLOSING) ||
        atomic_compare_exchange_strong(&a->state, &aborting, FAR__AGENT_CLOSING))
        finish_close(a);
    else
        far_agent_close(a);
}

void far__agent_ref(far_agent *a)
{
    far__ref_hold(&a->refs);
}

void far__agent_unref(far_agent *a)
{
    if (far__ref_release(&a->refs) && !a->forked)
        destroy(a);
}

far_agent *far_agent_hold(far_agent *a)
{
    far__ref_hold(&a->users);
    return a;
}

void far_agent_release(far_agent *a)
{
    if (!a || !far__ref_release(&a->users) || a->forked)
        return; /* in a forked child nothing can be freed: locks may be held for ever */
    far_agent_close(a);
    far__peer_unref(a->self_peer);
    far__link_unref(a->self_link);
    far__agent_unref(a);
}

/* -------------------------------------------------------------------------------------- forks */

static void before_fork(void)
{
    far__mutex_lock(&open_lock);
}

static void after_fork_parent(void)
{
    far__mutex_unlock(&open_lock);
}

/* The child has one thread; locks of agents may be held by threads that are not there. So nothing but
 * descriptors is touched, and the state, which every public function looks at first. */
static void after_fork_child(void)
{
    far__list_for_each (n, &open_agents) {
        far_agent *a = far__container_of(n, far_agent, in_open);
        a->forked = true;
        atomic_store(&a->state, FAR__AGENT_CLOSED);
        atomic_store(&a->closed_word, 1);
        for (int i = 0; i < a->slot_count; i++)
            a->slots[i].ops->forked(a->slots[i].transport);
        far__loop_forked(a->loop);
        far__executor_forked(a->executor);
    }
    far__list_init(&open_agents);
    far__mutex_unlock(&open_lock);
}

static void handle_forks(void)
{
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

void far_after_fork_child(void)
{
    /* pthread_atfork has done it; kept for languages that cannot know. */
}

/* ---------------------------------------------------------------------------------- small ones */

bool far__agent_is_open(const far_agent *a)
{
    return atomic_load_explicit(&a->state, memory_order_acquire) == FAR__AGENT_OPEN;
}

void far__agent_drop(far_agent *a, far_message *message)
{
    far_buffer *orphans = NULL;
    far__message_destroy(message, &orphans);
    far__agent_orphans(a, orphans);
}

/* The loop thread flushes too, but never keeps any. */
static _Thread_local far_buffer *kept;

void far__agent_orphans(far_agent *a, far_buffer *list)
{
    if (!list)
        return;
    if (!far__executor_here(a->executor)) {
        far__service_orphans(&a->service, list);
        return;
    }
    far_buffer *last = list;
    while (last->next)
        last = last->next;
    last->next = kept;
    kept = list;
}

void far__agent_free_kept(void)
{
    far_buffer *list = kept;
    kept = NULL;
    far__buffers_free(list);
}

far_status far_agent_register(far_agent *a, const far_method *method)
{
    return far__methods_add(&a->methods, method, false);
}

void far_agent_set_default_timeout(far_agent *a, far_duration timeout)
{
    atomic_store_explicit(&a->default_timeout, timeout < 0 ? FAR_NO_LIMIT : timeout,
                          memory_order_relaxed);
}

far_duration far_agent_default_timeout(const far_agent *a)
{
    return atomic_load_explicit(&a->default_timeout, memory_order_relaxed);
}

void far_agent_counters(far_agent *a, far_counters *out)
{
#define READ(name, text) out->name = atomic_load_explicit(&a->counters.name, memory_order_relaxed);
    FAR_COUNTER_MAP(READ)
#undef READ
    if (a->refs_there && !a->forked) {
        far__refs_lock(a);
        out->rrefs_held = a->rrefs.counts.held;
        out->rrefs_owned = a->rrefs.counts.entries;
        out->rrefs_lent = a->rrefs.counts.lives;
        far__refs_unlock(a);
    }
    if (atomic_load(&a->state) < FAR__AGENT_CLOSED)
        out->threads = far__executor_threads(a->executor);
}

far_status far_executor_enter(far_agent *a)
{
    far__agent_ref(a);
    if (atomic_load(&a->state) < FAR__AGENT_CLOSED)
        far__executor_enter(a->executor);
    far__agent_unref(a);
    return FAR_OK;
}

far_status far_service_next(far_agent *a, far_event *event)
{
    if (!a->foreign)
        return FAR_EINVAL;
    return far__service_next(&a->service, event);
}
