/* SPDX-License-Identifier: BSD-3-Clause
 * agent/leave: the agreement to go, and who is lost. Rank 0 leads; proto/agreement decides.
 * Floor: agent. Thread: far_agent_shutdown any but ours; the methods run where they were read.
 *
 * The methods of this file (arguments and results are values):
 *   far.shutdown [] -> nil once all have agreed: this worker has called shutdown
 *   far.stay     [] -> bool: it takes that back, its timeout ran out; false: too late, all have agreed
 *   far.quiet    [round, phase] -> [round, idle, activity]: rank 0 asks a member
 *
 * There are two agreements, one after the other. In the first phase all calls come to their end; then
 * nothing uses a reference any more, and in the second every fork is released before anybody goes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"

#define SAY_EVERY (10 * FAR_SECOND)       /* what shutdown waits for, in the log */
#define ROUND_PAUSE (5 * FAR_MILLISECOND) /* after a round that was not quiet */
#define PROBE_LIMIT (10 * FAR_SECOND) /* for a member whose connection broke to prove it lives */
#define LAST_WORD (2 * FAR_SECOND)    /* for rank 0 to answer when the time is up */
#define LINGER (2 * FAR_SECOND)       /* for the others to have read the last answer */

enum { AGREED = 1, CLOSED_BEFORE = 2 }; /* far_agent.agreed_word */

static void step(far_agent *a);

/* ------------------------------------------------------------------------------ is it quiet here */

/* The counter is read first: what begins after that shows in the next round's. Without new beginnings
 * things only end, or turn into what is read later (a call into its callback's job), so the order of the
 * other three makes them one moment's truth. See docs/shutdown.md. */
static bool is_idle(far_agent *a, uint64_t *activity)
{
    *activity = atomic_load(&a->activity);
    return atomic_load(&a->open_calls) == 0 && atomic_load(&a->counters.calls_serving) == 0 &&
           atomic_load(&a->quick_jobs) == 0 && far__executor_busy(a->executor) == 0;
}

/* In the second phase: references are given back, and then there are none. */
static bool refs_idle(far_agent *a)
{
    far__refs_lock(a);
    bool first = !a->refs_shut;
    if (first)
        far__refs_shutdown(&a->rrefs);
    a->refs_shut = true;
    far__refs_unlock(a);
    if (first)
        far__refs_worker_lost(a);
    far__refs_lock(a);
    bool idle = far__refs_idle(&a->rrefs);
    far__refs_unlock(a);
    return idle;
}

static bool is_quiet(far_agent *a, bool second, uint64_t *activity)
{
    return is_idle(a, activity) && (!second || refs_idle(a));
}

static void set_closing(far_agent *a)
{
    atomic_store_explicit(&a->closing, true, memory_order_release);
}

static bool read_two(far_message *m, size_t fields, const far_value **out)
{
    size_t count;
    return far_message_values(m, out, &count) == FAR_OK && count == 1 && (*out)->kind == FAR_LIST &&
           (*out)->as.list.count == fields && (*out = (*out)->as.list.items)->kind == FAR_INT;
}

static far_status put_report(far_message *m, int64_t round, bool idle, uint64_t activity)
{
    far_status status = far_message_put_list(m, 3);
    if (status == FAR_OK)
        status = far_message_put_int(m, round);
    if (status == FAR_OK)
        status = far_message_put_bool(m, idle);
    if (status == FAR_OK)
        status = far_message_put_uint(m, activity);
    return status;
}

static void on_quiet(far_incoming *in, void *arg)
{
    far_agent *a = arg;
    const far_value *f;
    if (in->link->caller.id != 0 || !read_two(in->message, 2, &f) || f[1].kind != FAR_INT) {
        far_incoming_fail(in, FAR_EINVAL, NULL, "not a question of rank 0", NULL, NULL);
        return;
    }
    set_closing(a);
    uint64_t activity;
    bool idle = is_quiet(a, f[1].as.integer > 0, &activity);
    far_message *m;
    if (far_message_create(FAR_ENCODING_VALUES, &m) == FAR_OK) {
        if (put_report(m, f[0].as.integer, idle, activity) == FAR_OK) {
            far_incoming_reply(in, m);
            return;
        }
        far__agent_drop(a, m);
    }
    far_incoming_fail(in, FAR_ENOMEM, NULL, "out of memory", NULL, NULL);
}

/* ---------------------------------------------------------------------------- rank 0: the rounds */

static void on_report(far_future *f, void *arg)
{
    far_agent *a = arg;
    far_failure failure;
    far_future_failure(f, &failure);
    const far_value *v;
    far_message *m = far_future_message(f);
    far__mutex_lock(&a->lock);
    if (m && read_two(m, 3, &v) && v[1].kind == FAR_BOOL && v[2].kind == FAR_INT)
        far__agreement_report(&a->agreement, (uint64_t)v[0].as.integer, failure.worker,
                              v[1].as.boolean, (uint64_t)v[2].as.integer);
    far__mutex_unlock(&a->lock);
    step(a);
    far__agent_unref(a);
}

static void ask_member(far_agent *a, far_worker_id id, uint64_t round, bool second)
{
    far__peer *p;
    far_message *m;
    far_future *f;
    if (far__peer_get(a, id, &p) != FAR_OK)
        return;
    if (far_message_create(FAR_ENCODING_VALUES, &m) != FAR_OK)
        goto out_peer;
    if (far_message_put_list(m, 2) != FAR_OK || far_message_put_int(m, (int64_t)round) != FAR_OK ||
        far_message_put_int(m, second) != FAR_OK) {
        far__agent_drop(a, m);
        goto out_peer;
    }
    if (far__call_internal(p, FAR__QUIET_METHOD, m, &f) != FAR_OK)
        goto out_peer;
    far__agent_ref(a);
    if (far_future_on_done(f, on_report, a, FAR_CALLBACK_NEVER_BLOCKS) != FAR_OK)
        far__agent_unref(a);
    far_future_release(f);
out_peer:
    far__peer_unref(p);
}

static void ask_all(far_agent *a, uint64_t round, bool second)
{
    for (size_t i = 0;; i++) {
        far__mutex_lock(&a->lock);
        bool more = i < a->agreement.count;
        far__agreement_member m = {0};
        if (more)
            m = a->agreement.members[i];
        far__mutex_unlock(&a->lock);
        if (!more)
            return;
        if (m.id != 0 && !m.gone)
            ask_member(a, m.id, round, second);
    }
}

/* Rank 0: lead() need not wait any more. */
static void end_leading(far_agent *a, uint32_t how)
{
    uint32_t expected = 0;
    if (atomic_compare_exchange_strong(&a->agreed_word, &expected, how))
        far__futex_wake(&a->agreed_word, INT_MAX);
}

static void answer_leavers(far_agent *a)
{
    for (;;) {
        far__mutex_lock(&a->lock);
        far__list *n = far__list_pop(&a->leavers);
        far__mutex_unlock(&a->lock);
        if (!n)
            break;
        far_incoming *in = far__container_of(n, far_incoming, waiting);
        far_message *m = NULL;
        char name[FAR_NAME_MAX + 1];
        far__mutex_lock(&a->lock);
        snprintf(name, sizeof name, "%s", a->lost_name);
        far__mutex_unlock(&a->lock);
        far_status status = far_message_create(FAR_ENCODING_VALUES, &m);
        if (status == FAR_OK)
            status = far_message_put_string(m, name, strlen(name));
        if (status == FAR_OK) {
            far_incoming_reply(in, m);
            continue;
        }
        if (m)
            far__agent_drop(a, m);
        far_incoming_fail(in, FAR_ENOMEM, NULL, "rank 0 is out of memory", NULL, NULL);
    }
    end_leading(a, AGREED);
}

/* After each event of the agreement; a->lock not held. */
static void step(far_agent *a)
{
    for (;;) {
        far__mutex_lock(&a->lock);
        if (atomic_load(&a->state) != FAR__AGENT_OPEN) {
            far__mutex_unlock(&a->lock);
            return;
        }
        bool all = far__agreement_all_asked(&a->agreement);
        far__agreement_step next = far__agreement_next(&a->agreement);
        uint64_t round = a->agreement.round;
        bool pausing = a->agreement.pausing;
        bool again = next == FAR__AGREEMENT_DONE && !a->second_phase;
        if (again) {
            a->second_phase = true;
            far__agreement_again(&a->agreement);
        }
        bool second = a->second_phase;
        if (next == FAR__AGREEMENT_DONE && !again)
            a->left = true;
        far__mutex_unlock(&a->lock);
        if (all)
            set_closing(a);
        if (pausing)
            far__loop_timer_set(a->loop, &a->agreement_timer, far__clock_now() + ROUND_PAUSE);
        if (again)
            continue;
        if (next == FAR__AGREEMENT_DONE)
            answer_leavers(a);
        if (next != FAR__AGREEMENT_POLL)
            return;
        ask_all(a, round, second);
        uint64_t activity;
        bool idle = is_quiet(a, second, &activity);
        far__mutex_lock(&a->lock);
        far__agreement_report(&a->agreement, round, 0, idle, activity);
        far__mutex_unlock(&a->lock);
    }
}

static void next_round(far__timer *t)
{
    far_agent *a = far__container_of(t, far_agent, agreement_timer);
    far__mutex_lock(&a->lock);
    far__agreement_retry(&a->agreement);
    far__mutex_unlock(&a->lock);
    step(a);
}

void far__leave_init(far_agent *a)
{
    far__timer_init(&a->agreement_timer, next_round);
}

static void asked(far_agent *a, far_worker_id id)
{
    far__mutex_lock(&a->lock);
    far__agreement_asked(&a->agreement, id);
    far__mutex_unlock(&a->lock);
    step(a);
}

static void on_shutdown(far_incoming *in, void *arg)
{
    far_agent *a = arg;
    far_worker_id id = in->link->caller.id;
    far__mutex_lock(&a->lock);
    bool done = a->left;
    far__list_add_tail(&a->leavers, &in->waiting);
    far__mutex_unlock(&a->lock);
    if (done)
        answer_leavers(a);
    else
        asked(a, id);
}

static void on_stay(far_incoming *in, void *arg)
{
    far_agent *a = arg;
    far__mutex_lock(&a->lock);
    bool stays = !a->second_phase && far__agreement_withdrawn(&a->agreement, in->link->caller.id);
    far__mutex_unlock(&a->lock);
    far_message *m;
    if (far_message_create(FAR_ENCODING_VALUES, &m) == FAR_OK) {
        if (far_message_put_bool(m, stays) == FAR_OK) {
            far_incoming_reply(in, m);
            return;
        }
        far__agent_drop(a, m);
    }
    far_incoming_fail(in, FAR_ENOMEM, NULL, "out of memory", NULL, NULL);
}

far_status far__leave_methods(far_agent *a)
{
    const far_method methods[] = {
        {.name = FAR__SHUTDOWN_METHOD, .handler = on_shutdown, .arg = a},
        {.name = FAR__STAY_METHOD, .handler = on_stay, .arg = a},
        {.name = FAR__QUIET_METHOD, .handler = on_quiet, .arg = a},
    };
    far_status status = FAR_OK;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0] && status == FAR_OK; i++)
        status = far__methods_add(&a->methods, &methods[i], true);
    return status;
}

void far__leave_waits_for(far_agent *a, char *text, size_t size)
{
    far__mutex_lock(&a->lock);
    char missing[400];
    far_worker_id id;
    bool complete = far__roster_complete(&a->roster);
    if (!complete) {
        far__roster_missing(&a->roster, missing, sizeof missing);
        snprintf(text, size, "missing: %s", missing);
    } else if (far__agreement_missing(&a->agreement, &id)) {
        const far__member *m = far__roster_by_id(&a->roster, id);
        snprintf(text, size, "worker %" PRIu32 " (\"%s\") has not called shutdown", id,
                 m ? m->name : "?");
    } else {
        size_t at = 0;
        text[0] = 0;
        for (size_t i = 0; i < a->agreement.count && at < size; i++) {
            const far__agreement_member *g = &a->agreement.members[i];
            if (g->gone || (g->reported && g->idle))
                continue;
            const far__member *m = far__roster_by_id(&a->roster, g->id);
            int n = snprintf(text + at, size - at, "%sworker %" PRIu32 " (\"%s\") has calls open",
                             at ? ", " : "", g->id, m ? m->name : "?");
            at += n > 0 ? (size_t)n : 0;
        }
        if (!text[0])
            snprintf(text, size, "the last calls are ending");
    }
    far__mutex_unlock(&a->lock);
}

/* ---------------------------------------------------------------------------------- who is lost */

/* Rank 0 says who is lost; of rank 0 itself, and of all after its loss, everybody judges alone. */
static bool judges(far_agent *a, far_worker_id id)
{
    if (a->self.id == 0 || id == 0)
        return true;
    far__mutex_lock(&a->lock);
    const far__member *root = far__roster_by_id(&a->roster, 0);
    bool alone = root && root->state == FAR__MEMBER_LOST;
    far__mutex_unlock(&a->lock);
    return alone;
}

static void probe_all(far_agent *a);

static void declare_lost(far_agent *a, far_worker_id id)
{
    bool leads = a->self.id == 0;
    far__mutex_lock(&a->lock);
    const far__member *m = far__roster_by_id(&a->roster, id);
    bool changed = !a->left && m && m->state == FAR__MEMBER_JOINED &&
                   far__roster_set_state(&a->roster, id, FAR__MEMBER_LOST);
    if (changed && leads) {
        a->lost_someone = true;
        m = far__roster_by_id(&a->roster, id);
        snprintf(a->lost_name, sizeof a->lost_name, "%s", m->name);
        far__agreement_gone(&a->agreement, id);
    }
    char name[FAR_NAME_MAX + 1] = "";
    if (changed)
        snprintf(name, sizeof name, "%s", m->name);
    far__mutex_unlock(&a->lock);
    if (!changed)
        return;
    far__log_warning(&a->log, "worker %" PRIu32 " (\"%s\") is lost", id, name);
    far__refs_worker_lost(a);
    if (leads) {
        far__join_announce(a);
        step(a);
    } else if (id == 0) {
        probe_all(a);
    }
}

static void on_probe(far_future *f, void *arg)
{
    far_agent *a = arg;
    far_failure failure;
    far_future_failure(f, &failure);
    if (failure.status != FAR_OK && failure.status != FAR_ECLOSED)
        declare_lost(a, failure.worker);
    far__agent_unref(a);
}

static bool still_linked(far_agent *a, uint64_t incarnation)
{
    bool linked = false;
    far__mutex_lock(&a->lock);
    far__list_for_each (n, &a->links) {
        const far__link *l = far__container_of(n, far__link, in_agent);
        linked = linked || (l->ready && l->caller.incarnation == incarnation);
    }
    far__mutex_unlock(&a->lock);
    return linked;
}

/* A connection of this member broke: does it still answer when it is dialled? */
static void probe(far_agent *a, far_worker_id id, uint64_t incarnation)
{
    far__peer *p;
    far_message *m;
    far_future *f;
    far__mutex_lock(&a->lock);
    const far__member *member = far__roster_by_id(&a->roster, id);
    bool known = member && member->state == FAR__MEMBER_JOINED &&
                 member->incarnation == incarnation && !a->left;
    bool complete = far__roster_complete(&a->roster);
    far__mutex_unlock(&a->lock);
    if (!known || still_linked(a, incarnation))
        return;
    if (!complete) { /* it listens only once the world is complete */
        declare_lost(a, id);
        return;
    }
    if (far__peer_get(a, id, &p) != FAR_OK)
        return;
    if (far_message_create(FAR_ENCODING_VALUES, &m) != FAR_OK)
        goto out_peer;
    if (far__call_peer(p, FAR__HELLO_METHOD, m, PROBE_LIMIT, FAR__CALL_ONCE, true, &f) != FAR_OK)
        goto out_peer;
    far__agent_ref(a);
    if (far_future_on_done(f, on_probe, a, FAR_CALLBACK_NEVER_BLOCKS) != FAR_OK)
        far__agent_unref(a);
    far_future_release(f);
out_peer:
    far__peer_unref(p);
}

/* Whoever broke before nobody was left to say it. */
static void probe_all(far_agent *a)
{
    for (size_t i = 0;; i++) {
        far__member m = {0};
        far__mutex_lock(&a->lock);
        bool more = i < a->roster.count;
        if (more)
            m = a->roster.members[i];
        far__mutex_unlock(&a->lock);
        if (!more)
            return;
        if (m.id != 0 && m.id != a->self.id)
            probe(a, m.id, m.incarnation);
    }
}

void far__leave_broken(far_agent *a, far_worker_id id, uint64_t incarnation)
{
    atomic_fetch_add(&a->joined_word, 1); /* somebody may wait for the connections to end */
    far__futex_wake(&a->joined_word, INT_MAX);
    if (judges(a, id) && atomic_load(&a->state) < FAR__AGENT_ABORTING)
        probe(a, id, incarnation);
}

void far__leave_peer_broken(far__peer *p)
{
    far_agent *a = p->agent;
    if (!p->is_join && far__agent_is_open(a) && judges(a, p->info.id))
        probe(a, p->info.id, p->info.incarnation);
}

void far__leave_close(far_agent *a)
{
    far__loop_timer_clear(a->loop, &a->agreement_timer);
    end_leading(a, CLOSED_BEFORE);
    far__mutex_lock(&a->lock);
    far__list all;
    far__list_init(&all);
    far__list_splice(&all, &a->joiners);
    far__list_splice(&all, &a->leavers);
    far__peer *root = a->root;
    a->root = NULL;
    far__mutex_unlock(&a->lock);
    far__list *n;
    while ((n = far__list_pop(&all)))
        far_incoming_fail(far__container_of(n, far_incoming, waiting), FAR_ECLOSED, NULL,
                          "rank 0 is closing", NULL, NULL);
    far__agent_flush_links(a);
    if (root) {
        far__peer_shut(root, FAR_ECLOSED, "the agent was closed");
        far__peer_unref(root);
    }
}

/* --------------------------------------------------------------------------------- shutting down */

static const char closed_meanwhile[] = "the agent was closed during shutdown";

/* Waits in steps until *done() or the deadline, and says in the log what it waits for. */
static far_status lead(far_agent *a, int64_t deadline, far_error *error)
{
    int64_t say_at = far__clock_now() + SAY_EVERY;
    char text[512];
    bool late = false;
    asked(a, 0);
    while (!atomic_load(&a->agreed_word)) {
        int64_t now = far__clock_now();
        if (now >= deadline || now >= say_at) {
            far__leave_waits_for(a, text, sizeof text);
            if (now < deadline)
                far__log_write(&a->log, FAR_LOG_WARNING, "shutdown waits: %s", text);
            say_at += SAY_EVERY;
        }
        if (now >= deadline) {
            far__mutex_lock(&a->lock);
            bool stays = !a->second_phase && far__agreement_withdrawn(&a->agreement, 0);
            far__mutex_unlock(&a->lock);
            if (!stays && !late) { /* all have agreed: it is a matter of moments */
                late = true;
                deadline = now + LAST_WORD;
                continue;
            }
            return far__error_set(error, FAR_ETIMEOUT, "shutdown timed out: %s", text);
        }
        (void)far__futex_wait(&a->agreed_word, 0, say_at < deadline ? say_at : deadline);
    }
    if (atomic_load(&a->agreed_word) == CLOSED_BEFORE)
        return far__error_set(error, FAR_ECLOSED, closed_meanwhile);
    return FAR_OK;
}

void far__leave_linger(far_agent *a)
{
    int64_t deadline = far__clock_now() + LINGER;
    for (;;) {
        uint32_t word = atomic_load(&a->joined_word);
        far__mutex_lock(&a->lock);
        bool empty = far__list_empty(&a->links);
        far__mutex_unlock(&a->lock);
        if (empty || far__clock_now() >= deadline)
            return;
        (void)far__futex_wait(&a->joined_word, word, deadline);
    }
}

/* Takes the shutdown back. False: rank 0 says, within `limit`, that all have agreed already. */
static bool take_back(far__peer *root, far_duration limit)
{
    far_message *m;
    far_future *f;
    const far_value *v;
    size_t count;
    if (far_message_create(FAR_ENCODING_VALUES, &m) != FAR_OK ||
        far__call_internal(root, FAR__STAY_METHOD, m, &f) != FAR_OK)
        return true;
    bool stays = true;
    if (far_future_wait(f, limit) == FAR_OK && far_future_message(f) &&
        far_message_values(far_future_message(f), &v, &count) == FAR_OK && count == 1 &&
        v->kind == FAR_BOOL)
        stays = v->as.boolean;
    far_future_release(f);
    return stays;
}

static far_status await_agreement(far_agent *a, far__peer *root, far_future *f, int64_t deadline,
                                  far_error *error)
{
    char text[512];
    for (;;) {
        int64_t now = far__clock_now(),
                left = deadline == FAR__NEVER ? FAR_FOREVER : deadline - now;
        if (left > SAY_EVERY)
            left = SAY_EVERY;
        far_status status = left > 0 ? far_future_wait(f, left) : FAR_ETIMEOUT;
        if (status == FAR_OK)
            return FAR_OK;
        if (status == FAR_EINTR)
            continue;
        far__join_ask_missing(root, text, sizeof text);
        if (far__clock_now() >= deadline) {
            /* Who has not answered the question before will not answer this one any sooner. */
            if (!take_back(root, text[0] ? LAST_WORD : 0) &&
                far_future_wait(f, LAST_WORD) == FAR_OK)
                return FAR_OK;
            return far__error_set(error, FAR_ETIMEOUT, "shutdown timed out: %s",
                                  text[0] ? text : "rank 0 does not answer");
        }
        far__log_write(&a->log, FAR_LOG_WARNING, "shutdown waits: %s",
                       text[0] ? text : "rank 0 does not answer");
    }
}

/* One question to rank 0, until it is answered, fails or the deadline. *failed says how it failed. */
static far_status ask_root(far_agent *a, far__peer *root, int64_t deadline, far_status *failed,
                           far_error *error)
{
    far_message *m;
    far_future *f;
    far_status status = far_message_create(FAR_ENCODING_VALUES, &m);
    if (status == FAR_OK)
        status =
            far__call_peer(root, FAR__SHUTDOWN_METHOD, m, FAR_NO_LIMIT, FAR__CALL_ONCE, true, &f);
    if (status != FAR_OK)
        return far__error_set(error, status, "cannot ask rank 0 to shut down: %s",
                              far_status_text(status));
    status = await_agreement(a, root, f, deadline, error);
    far_failure failure;
    far_future_failure(f, &failure);
    *failed = failure.status;
    const far_value *v;
    size_t count;
    if (status == FAR_OK && failure.status != FAR_OK && !far__agent_is_open(a)) {
        status = far__error_set(error, FAR_ECLOSED, closed_meanwhile);
    } else if (status == FAR_OK && failure.status != FAR_OK) {
        far__error_set(error, FAR_EPEER, "rank 0 was lost during shutdown: %s", failure.text);
    } else if (status == FAR_OK &&
               far_message_values(far_future_message(f), &v, &count) == FAR_OK && count == 1 &&
               v->kind == FAR_STRING && v->as.bytes.size > 0) {
        a->lost_someone = true;
        snprintf(a->lost_name, sizeof a->lost_name, "%.*s", (int)v->as.bytes.size,
                 v->as.bytes.data);
    }
    far_future_cancel(f);
    far_future_release(f);
    return status;
}

/* A broken connection says nothing yet: asked anew, rank 0 answers if it lives. It is lost when it
 * cannot be reached twice in a row. */
static far_status follow(far_agent *a, int64_t deadline, far_error *error)
{
    far__peer *root;
    far_status status = far__peer_get(a, 0, &root);
    if (status != FAR_OK)
        return far__error_set(error, status, "there is no rank 0");
    for (int unreached = 0; unreached < 2; unreached++) {
        far_status failed = FAR_OK;
        status = ask_root(a, root, deadline, &failed, error);
        if (status != FAR_OK || failed == FAR_OK)
            break;
        status = FAR_EPEER;
        if (failed != FAR_EPEER)
            break;
    }
    far__peer_unref(root);
    return status;
}

far_status far_agent_shutdown(far_agent *a, far_duration timeout, far_error *error)
{
    if (timeout < 0)
        return far__error_set(error, FAR_EINVAL, "the timeout is negative");
    if (!far__agent_is_open(a))
        return far__error_set(error, FAR_ECLOSED, "%s", far_status_text(FAR_ECLOSED));
    if (far__executor_here(a->executor) || far__loop_here(a->loop))
        return far__error_set(error, FAR_EINVAL,
                              "inside a handler or callback: shutdown would wait for its end");
    int64_t deadline = far__deadline(far__clock_now(), timeout);
    bool leads = a->self.id == 0;
    far_status status = leads ? lead(a, deadline, error) : follow(a, deadline, error);
    if (status == FAR_ETIMEOUT || status == FAR_ECLOSED)
        return status;
    if (leads)
        far__leave_linger(a);
    bool lost = a->lost_someone;
    far_agent_close(a);
    if (status == FAR_OK && lost)
        return far__error_set(error, FAR_EPEER, "worker \"%s\" was lost", a->lost_name);
    return status;
}
