/* SPDX-License-Identifier: BSD-3-Clause
 * agent/join: coming into a job: rank 0 waits until all are there, the others ask it.
 * Floor: agent. Thread: far_agent_join any but ours. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "agent/agent.h"
#include "base/mem.h"

#define SAY_AFTER (5 * FAR_SECOND)        /* who is missing, in the log */
#define RETRY_FIRST (1 * FAR_MILLISECOND) /* rank 0 is not there yet: pauses double ... */
#define RETRY_LAST (64 * FAR_MILLISECOND) /* ... up to this */
#define LAST_WORD (2 * FAR_SECOND)        /* for rank 0 to say who was missing */

/* --------------------------------------------------------------------------------- being member */

/* Zero-terminated text of the published addresses. */
static far_status seal_addresses(far_agent *a)
{
    return far__bytes_append(&a->addresses, "", 1);
}

/* Each address was appended behind a space. */
static const char *published(const far_agent *a)
{
    const char *addresses = (const char *)a->addresses.data;
    return addresses + strspn(addresses, " ");
}

static far_status become_member(far_agent *a, far_worker_id id)
{
    a->self.id = id;
    far__member self = {.id = id, .incarnation = a->self.incarnation};
    memcpy(self.name, a->name, sizeof self.name);
    far_status status = far__peer_create(a, &self, &a->self_peer);
    if (status != FAR_OK)
        return status;
    a->self_peer->is_self = true;
    a->self_peer->state = FAR__PEER_UP;
    status = far__refs_start(a);
    if (status != FAR_OK)
        return status;
    status = far__link_create_self(a, &a->self_link);
    if (status != FAR_OK)
        return status;
    far__link_number(a->self_link);
    a->self_link->caller.id = id;
    a->self_link->caller.incarnation = a->self.incarnation;
    memcpy(a->self_link->caller.name, a->name, sizeof a->self_link->caller.name);
    return FAR_OK;
}

static far_status accept_start(far_agent *a)
{
    far_status status = FAR_OK;
    for (int i = 0; i < a->slot_count && status == FAR_OK; i++)
        status = a->slots[i].ops->accept_start(a->slots[i].transport);
    return status;
}

/* -------------------------------------------------------------------------------------- rank 0 */

static far_status closed_meanwhile(far_error *error)
{
    return far__error_set(error, FAR_ECLOSED, "the agent was closed while joining");
}

static far_status root_wait(far_agent *a, int64_t deadline, far_error *error)
{
    int64_t say_at = far__clock_now() + SAY_AFTER;
    for (;;) {
        char missing[512];
        uint32_t word = atomic_load(&a->joined_word);
        far__mutex_lock(&a->lock);
        far_status failed = a->failure_told ? a->roster.failed : FAR_OK;
        bool complete = far__roster_complete(&a->roster);
        if (failed != FAR_OK)
            far__error_set(error, failed, "%s", a->roster.failed_text);
        far__roster_missing(&a->roster, missing, sizeof missing);
        far__mutex_unlock(&a->lock);
        if (failed != FAR_OK || complete)
            return failed;
        if (atomic_load(&a->state) >= FAR__AGENT_ABORTING)
            return closed_meanwhile(error);
        int64_t now = far__clock_now();
        if (now >= deadline) {
            far__error_set(error, FAR_ETIMEOUT,
                           "the world of %lld is not complete after %.6g s, missing: %s",
                           (long long)a->world_size, (double)a->init_timeout / 1e9, missing);
            far__join_answer_all(a, FAR_ETIMEOUT, error ? error->text : missing);
            return FAR_ETIMEOUT;
        }
        if (now >= say_at) {
            far__log_write(&a->log, FAR_LOG_WARNING, "waiting for the world of %lld: missing %s",
                           (long long)a->world_size, missing);
            say_at += SAY_AFTER;
        }
        (void)far__futex_wait(&a->joined_word, word, say_at < deadline ? say_at : deadline);
    }
}

static far_status join_as_root(far_agent *a, const far__meeting *m, int64_t deadline,
                               far_error *error)
{
    if (getrandom(a->self.job, sizeof a->self.job, 0) != (ssize_t)sizeof a->self.job)
        return far__error_set(error, FAR_ESYSTEM, "no random bytes");
    far__join self = {.name = a->name,
                      .incarnation = a->self.incarnation,
                      .rank = 0,
                      .world_size = (uint32_t)a->world_size,
                      .addresses = published(a)};
    far_worker_id id;
    a->roster.world_size = (uint32_t)a->world_size;
    far_status status = far__roster_admit(&a->roster, &self, &id, error);
    if (status == FAR_OK)
        status = far__agreement_add(&a->agreement, id);
    if (status == FAR_OK)
        status = become_member(a, id);
    if (status == FAR_OK && far__roster_complete(&a->roster) && !far__agent_becomes_open(a))
        status = closed_meanwhile(error);
    if (status == FAR_OK)
        status = accept_start(a);
    if (status == FAR_OK)
        status = far__meet_announce(a, m, error);
    if (status == FAR_OK)
        status = root_wait(a, deadline, error);
    if (status == FAR_OK && !far__agent_becomes_open(a))
        status = closed_meanwhile(error);
    return status;
}

/* ------------------------------------------------------------------------------------ the others */

static void pause_until(int64_t at)
{
    struct timespec ts = {.tv_sec = (time_t)(at / 1000000000), .tv_nsec = at % 1000000000};
    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}

static far_status put_wish(const far_agent *a, far_message *m)
{
    const char *addresses = published(a);
    far_status status = far_message_put_list(m, 5);
    if (status == FAR_OK)
        status = far_message_put_string(m, a->name, strlen(a->name));
    if (status == FAR_OK)
        status = far_message_put_uint(m, a->self.incarnation);
    if (status == FAR_OK)
        status = far_message_put_int(m, a->rank);
    if (status == FAR_OK)
        status = far_message_put_int(m, a->world_size);
    if (status == FAR_OK)
        status = far_message_put_string(m, addresses, strlen(addresses));
    return status;
}

/* What rank 0 says about whom it waits for; "" if it says nothing in time. */
void far__join_ask_missing(far__peer *root, char *text, size_t size)
{
    far_message *m;
    far_future *f;
    text[0] = 0;
    if (far_message_create(FAR_ENCODING_VALUES, &m) != FAR_OK)
        return;
    if (far__call_internal(root, FAR__MISSING_METHOD, m, &f) != FAR_OK)
        return;
    const far_value *v;
    size_t count;
    if (far_future_wait(f, LAST_WORD) == FAR_OK && far_future_message(f) &&
        far_message_values(far_future_message(f), &v, &count) == FAR_OK && count == 1 &&
        v->kind == FAR_STRING)
        snprintf(text, size, "%.*s", (int)v->as.bytes.size, v->as.bytes.data);
    far_future_cancel(f);
    far_future_release(f);
}

/* Waits for the answer to far.join. */
static far_status await_answer(far_agent *a, far__peer *root, far_future *f, int64_t deadline,
                               far_error *error)
{
    for (;;) {
        int64_t now = far__clock_now();
        int64_t left = deadline == FAR__NEVER ? FAR_FOREVER : deadline - now;
        if (left <= 0)
            break;
        far_status status = far_future_wait(f, left < SAY_AFTER ? left : SAY_AFTER);
        if (status == FAR_OK)
            return FAR_OK;
        if (status == FAR_ETIMEOUT && far__clock_now() < deadline) {
            char missing[512];
            far__join_ask_missing(root, missing, sizeof missing);
            far__log_write(&a->log, FAR_LOG_WARNING, "waiting for the world: %s",
                           missing[0] ? missing : "rank 0 does not answer");
        } else if (status != FAR_ETIMEOUT && status != FAR_EINTR) {
            return far__error_set(error, status, "interrupted while joining");
        }
    }
    char missing[512];
    far__join_ask_missing(root, missing, sizeof missing);
    return far__error_set(error, FAR_ETIMEOUT, "the world is not complete after %.6g s: %s",
                          (double)a->init_timeout / 1e9,
                          missing[0] ? missing : "rank 0 does not answer");
}

static far_status take_answer(far_agent *a, far_future *f, far_error *error)
{
    far_failure failure;
    far_future_failure(f, &failure);
    if (failure.status != FAR_OK)
        return far__error_set(error, failure.status, "%s", failure.text);
    bool changed;
    far_worker_id id = FAR__ID_NONE;
    far__mutex_lock(&a->lock);
    far_status status = far__roster_apply(&a->roster, far_future_message(f), &changed);
    for (size_t i = 0; i < a->roster.count; i++)
        if (a->roster.members[i].incarnation == a->self.incarnation)
            id = a->roster.members[i].id;
    far__mutex_unlock(&a->lock);
    if (status == FAR_OK && id == FAR__ID_NONE)
        status = FAR_EPROTO;
    if (status == FAR_OK)
        status = become_member(a, id);
    if (status != FAR_OK)
        far__error_set(error, status, "the answer of rank 0 cannot be used: %s",
                       far_status_text(status));
    return status;
}

/* One try at the addresses that are known now. FAR_EPEER: nobody is there (yet). */
static far_status try_join(far_agent *a, char *addresses, int64_t deadline, far__peer **root,
                           far_error *error)
{
    far__member info = {.id = 0, .addresses = addresses};
    far__peer *p;
    far_message *m;
    far_future *f;
    snprintf(info.name, sizeof info.name, "rank 0");
    far_status status = far__peer_create(a, &info, &p);
    if (status != FAR_OK)
        return far__error_set(error, status, "out of memory");
    p->is_join = true;
    far__mutex_lock(&a->lock);
    *root = p;
    a->root = p;
    bool wanted = atomic_load(&a->state) == FAR__AGENT_JOINING;
    far__mutex_unlock(&a->lock);
    if (!wanted)
        return closed_meanwhile(error);
    status = far_message_create(FAR_ENCODING_VALUES, &m);
    if (status != FAR_OK)
        return far__error_set(error, status, "out of memory");
    status = put_wish(a, m);
    if (status != FAR_OK) {
        far__agent_drop(a, m);
        return far__error_set(error, status, "out of memory");
    }
    status = far__call_internal(p, FAR__JOIN_METHOD, m, &f);
    if (status != FAR_OK)
        return far__error_set(error, status, "cannot call rank 0: %s", far_status_text(status));
    status = await_answer(a, p, f, deadline, error);
    if (status == FAR_OK)
        status = take_answer(a, f, error);
    else
        far_future_cancel(f);
    far_future_release(f);
    return status;
}

typedef struct shut_task {
    far__task task;
    far__peer *peer;
    _Atomic uint32_t done;
} shut_task;

static void shut_on_loop(far__task *task)
{
    shut_task *t = far__container_of(task, shut_task, task);
    far__peer_shut(t->peer, FAR_ECLOSED, "joining is over");
    atomic_store(&t->done, 1);
    far__futex_wake(&t->done, 1);
}

static void interrupt_on_loop(far__task *task)
{
    far_agent *a = far__container_of(task, far_agent, interrupt);
    far__mutex_lock(&a->lock);
    far__peer *root = a->root;
    if (root)
        far__peer_ref(root);
    far__mutex_unlock(&a->lock);
    if (root) {
        far__peer_shut(root, FAR_ECLOSED, "the agent was closed while joining");
        far__peer_unref(root);
    }
    far__agent_unref(a);
}

void far__join_interrupt(far_agent *a)
{
    far__agent_ref(a);
    a->interrupt.run = interrupt_on_loop;
    far__loop_post(a->loop, &a->interrupt);
    atomic_fetch_add(&a->joined_word, 1);
    far__futex_wake(&a->joined_word, INT_MAX);
}

/* The connection over which we joined has done its work. */
static void drop_root(far_agent *a, far__peer *p)
{
    far__mutex_lock(&a->lock);
    bool mine = a->root == p;
    a->root = NULL;
    far__mutex_unlock(&a->lock);
    if (!mine)
        return; /* closing took it */
    shut_task t = {.task.run = shut_on_loop, .peer = p};
    far__loop_post(a->loop, &t.task);
    while (atomic_load(&t.done) == 0)
        (void)far__futex_wait(&t.done, 0, FAR__NEVER);
    far__peer_unref(p);
}

static far_duration time_left(int64_t deadline)
{
    if (deadline == FAR__NEVER)
        return FAR_FOREVER;
    int64_t left = deadline - far__clock_now();
    return left > 0 ? left : 0;
}

/* Calls rank 0 as a member, so that it has a connection of ours that tells it when we die. */
static far_status greet_root(far_agent *a, int64_t deadline, far_error *error)
{
    far__peer *p;
    far_message *m;
    far_future *f;
    far_status status = far__peer_get(a, 0, &p);
    if (status != FAR_OK)
        return far__error_set(error, status, "rank 0 is not in its own roster");
    status = far_message_create(FAR_ENCODING_VALUES, &m);
    if (status == FAR_OK)
        status = far__call_internal(p, FAR__HELLO_METHOD, m, &f);
    if (status == FAR_OK) {
        do
            status = far_future_wait(f, time_left(deadline));
        while (status == FAR_EINTR);
        if (status == FAR_OK)
            status = far_future_status(f);
        far_failure failure;
        far_future_failure(f, &failure);
        if (status != FAR_OK)
            far__error_set(error, status, "cannot call rank 0: %s", failure.text);
        far_future_cancel(f);
        far_future_release(f);
    }
    far__peer_unref(p);
    return status;
}

static bool worth_retrying(far_status status)
{
    return status == FAR_EPEER || status == FAR_EAGAIN;
}

static far_status join_as_other(far_agent *a, const far__meeting *m, int64_t deadline,
                                far_error *error)
{
    int64_t say_at = far__clock_now() + SAY_AFTER;
    int64_t pause = RETRY_FIRST;
    far_error last = {0};
    for (;;) {
        far__bytes addresses = {0};
        far__peer *root = NULL;
        far_status status = far__meet_find(m, &addresses, &last);
        if (status == FAR_OK)
            status = far__bytes_append(&addresses, "", 1);
        if (status == FAR_OK)
            status = try_join(a, (char *)addresses.data, deadline, &root, &last);
        far__bytes_fini(&addresses);
        /* Open before anybody can call: a handler may call in its turn. */
        if (status == FAR_OK && !far__agent_becomes_open(a))
            status = closed_meanwhile(&last);
        if (status == FAR_OK)
            status = accept_start(a);
        if (status == FAR_OK)
            status = greet_root(a, deadline, &last);
        if (root)
            drop_root(a, root);
        if (status == FAR_OK)
            return FAR_OK;
        int64_t now = far__clock_now();
        if (!worth_retrying(status) || a->self.id != FAR__ID_NONE)
            return far__error_set(error, status, "%s", last.text);
        if (atomic_load(&a->state) != FAR__AGENT_JOINING)
            return closed_meanwhile(error);
        if (now >= deadline)
            return far__error_set(error, FAR_ETIMEOUT, "no rank 0 after %.6g s: %.400s",
                                  (double)a->init_timeout / 1e9, last.text);
        if (now >= say_at) {
            far__log_write(&a->log, FAR_LOG_WARNING, "still looking for rank 0: %s", last.text);
            say_at += SAY_AFTER;
        }
        pause_until(now + pause < deadline ? now + pause : deadline);
        if (pause < RETRY_LAST)
            pause *= 2;
    }
}

/* ------------------------------------------------------------------------------------- joining */

static far_status prepare(far_agent *a, far__meeting *m, far_error *error)
{
    far_status status = far__meet_environment(a, error);
    if (status == FAR_OK)
        status = far__meet_parse(a->init_method, m, error);
    if (status == FAR_OK && a->rank < 0 && a->world_size == 1)
        a->rank = 0;
    if (status == FAR_OK)
        status = far__secret_load(a->secret, a->secret_size, a->secret, &a->secret_size, error);
    if (status == FAR_OK)
        status = far__meet_listen(a, m, error);
    if (status == FAR_OK)
        status = seal_addresses(a);
    return status;
}

far_status far_agent_join(far_agent *a, far_error *error)
{
    int state = FAR__AGENT_NEW;
    if (!atomic_compare_exchange_strong(&a->state, &state, FAR__AGENT_JOINING))
        return state >= FAR__AGENT_ABORTING
                   ? far__error_set(error, FAR_ECLOSED, "the agent was closed")
                   : far__error_set(error, FAR_EBUSY, "the agent has joined already");
    far_error why = {.text = ""};
    far__meeting m;
    int64_t deadline = far__deadline(far__clock_now(), a->init_timeout);
    far_status status = far__agent_start(a);
    if (status == FAR_OK)
        status = prepare(a, &m, &why);
    if (status == FAR_OK)
        status = a->rank == 0 ? join_as_root(a, &m, deadline, &why)
                              : join_as_other(a, &m, deadline, &why);
    if (status == FAR_OK)
        return FAR_OK;
    far__error_set(error, status, "worker \"%s\" cannot join: %s", a->name,
                   why.text[0] ? why.text : far_status_text(status));
    far__agent_gives_up(a);
    return status;
}
