/* SPDX-License-Identifier: BSD-3-Clause
 * References when workers are killed, with real processes: the owner, a user, the middle man who passed
 * one on; and at random moments (FARCALL_KILL_RUNS runs from FARCALL_KILL_SEED on). Nobody sees a wrong
 * object, nobody hangs, and after the grace period nothing is left. */
#include <signal.h>
#include <stdatomic.h>

#include "support/rrefs.h"

enum { SIZE = 3 };

typedef struct job {
    cluster c;
    size_t rank;
    far_duration grace; /* 0: the short one */
    cluster_flag ready, killed, opened;
    far_worker_id victim;
} job;

static far_agent *join(const job *j)
{
    char name[16];
    far_options o;
    far_agent *a;
    far_error error = {.text = ""};
    cluster_fill(&j->c, j->rank, name, &o);
    rrefs_adjust(&o, j->rank, NULL);
    if (j->grace)
        o.lost_grace = j->grace;
    if (cluster_join(j->c.net, &o, &a, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    return a;
}

/* With a loss on the way, which shutdown tells; and what is kept for the lost one does not hold it up. */
static int leave(far_agent *a)
{
    far_error error = {.text = ""};
    far_status status = far_agent_shutdown(a, 40 * FAR_SECOND, &error);
    if (status != FAR_EPEER)
        cluster_fail(__FILE__, __LINE__, error.text);
    rrefs_drop_stored(a);
    far_agent_release(a);
    gate_until(atomic_load(&rrefs.things) == 0);
    return 0;
}

/* Serves until all agree. */
static int serve(void *arg)
{
    const job *j = arg;
    far_agent *a = join(j);
    if (j->victim == 0) /* without rank 0 everybody goes when he will */
        cluster_flag_wait(&j->opened);
    return leave(a);
}

static void prepare(job *j, cluster_net net, far_worker_id victim)
{
    *j = (job){.victim = victim};
    cluster_prepare(&j->c, net, SIZE);
    cluster_flag_init(&j->ready);
    cluster_flag_init(&j->killed);
    cluster_flag_init(&j->opened);
    rrefs_reset();
}

/* The worker of each rank runs its body; the victim is killed when `ready` was set. */
static void run(job *j, int (*const bodies[SIZE])(void *arg))
{
    pid_t pids[SIZE];
    for (size_t i = 0; i < SIZE; i++) {
        j->rank = i;
        pids[i] = cluster_spawn(bodies[i], j);
    }
    cluster_flag_wait(&j->ready);
    cluster_kill(pids[j->victim]);
    for (size_t i = 0; i < SIZE; i++) /* each may wait once */
        cluster_flag_set(&j->killed);
    for (size_t i = 0; i < SIZE; i++) {
        if (i == j->victim)
            continue;
        int code = cluster_reap(pids[i]);
        if (code != 0) {
            fprintf(stderr, "worker %zu ended with %d\n", i, code);
            must(code == 0);
        }
    }
    cluster_flag_fini(&j->ready);
    cluster_flag_fini(&j->killed);
    cluster_flag_fini(&j->opened);
}

/* ------------------------------------------------------------------------------------ the owner dies */

static void must_be_lost(far_rref *r, far_worker_id owner)
{
    char name[16];
    far_future *f;
    far_failure why;
    snprintf(name, sizeof name, "\"w%u\"", (unsigned)owner);
    must_status(FAR_EPEER, settle_of(r));
    far_message *m = text_message("");
    must_status(FAR_EPEER, far_message_add_rref(m, r, NULL));
    far_message_discard(m);
    must_ok(far_rref_fetch(r, FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &f));
    must_status(FAR_EPEER, end_of(f));
    far_future_failure(f, &why);
    must(why.worker == owner && !why.from_handler);
    must_say(why.text, name);
    far_future_release(f);
}

static int user_of_lost(void *arg)
{
    const job *j = arg;
    far_agent *a = join(j);
    far_worker_id other = 0;
    while (other == j->rank || other == j->victim)
        other++;
    far_rref *r = make_at(a, j->victim, "make", 5, FAR_NO_LIMIT);
    far_rref *pending = make_at(a, j->victim, "keep", 5, FAR_NO_LIMIT);
    far_future *fetching, *waiting;
    must_ok(settle_of(r));
    must(ask_int(a, other, "store", message_with(&r, 1)) == 1);
    must(ask_int(a, other, "sum", text_message("")) == 5);
    must_ok(far_rref_fetch(pending, FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &fetching));
    must_ok(far_rref_settled(pending, &waiting));
    must(ask_int(a, j->victim, "use", message_with(&r, 1)) == 5);
    cluster_flag_set(&j->ready);
    cluster_flag_wait(&j->killed);
    must_status(FAR_EPEER, end(fetching));
    must_status(FAR_EPEER, end(waiting));
    must_fetch_fail(r, FAR_EPEER, "w");
    /* Known to all, sooner or later: then without asking anybody. */
    far_message *m = text_message("");
    gate_until(far_message_add_rref(m, r, NULL) == FAR_EPEER);
    far_message_discard(m);
    must_be_lost(r, j->victim);
    must_be_lost(pending, j->victim);
    must_status(FAR_EPEER, ask(a, other, "sum", text_message(""), FAR_NO_LIMIT, NULL));
    must_ok(ask(a, other, "drop", text_message(""), FAR_NO_LIMIT, NULL));
    far_rref_release(r);
    far_rref_release(pending);
    rrefs_none_here(a);
    cluster_flag_set(&j->opened);
    return leave(a);
}

static void owner_over(cluster_net net)
{
    static int (*const bodies[SIZE])(void *arg) = {user_of_lost, serve, serve};
    job j;
    prepare(&j, net, 1);
    run(&j, bodies);
    static int (*const others[SIZE])(void *arg) = {serve, user_of_lost, serve};
    prepare(&j, net, 2);
    run(&j, others);
}

static void uses_of_a_killed_owners_fail(void **state)
{
    (void)state;
    cluster_each_socket(owner_over);
}

static void rank_0_owned_over(cluster_net net)
{
    static int (*const bodies[SIZE])(void *arg) = {serve, user_of_lost, serve};
    job j;
    prepare(&j, net, 0);
    run(&j, bodies);
}

static void uses_of_killed_rank_0_fail(void **state)
{
    (void)state;
    cluster_each_socket(rank_0_owned_over);
}

/* --------------------------------------------------------------------------------------- a user dies */

/* Gives the victim one of its own, one that the victim made here, and one of its own by the other. */
static int owner_of_given(void *arg)
{
    const job *j = arg;
    far_agent *a = join(j);
    far_worker_id other = 0;
    while (other == j->rank || other == j->victim)
        other++;
    far_rref *r = own_thing(a, 7);
    must(ask_int(a, j->victim, "store", message_with(&r, 1)) == 1);
    must(ask_int(a, other, "give", int_with(j->victim, r)) == 1);
    must(ask_int(a, j->victim, "sum", text_message("")) == 14);
    must(value_of(r) == 7);
    far_rref_release(r);
    far_counters k;
    gate_until((far_agent_counters(a, &k), k.rrefs_held == 0 && k.rrefs_lent == 2));
    must(k.rrefs_owned == 1 && atomic_load(&rrefs.things) == 1);
    cluster_flag_set(&j->ready);
    cluster_flag_wait(&j->killed);
    rrefs_none_here(a);
    gate_until(atomic_load(&rrefs.things) == 0);
    must_echo(a, other, "we go on");
    cluster_flag_set(&j->opened);
    return leave(a);
}

static void user_over(cluster_net net)
{
    static int (*const bodies[SIZE])(void *arg) = {owner_of_given, serve, serve};
    static int (*const others[SIZE])(void *arg) = {serve, serve, owner_of_given};
    job j;
    prepare(&j, net, 2);
    run(&j, bodies);
    prepare(&j, net, 1);
    run(&j, others);
}

static void a_killed_users_are_freed(void **state)
{
    (void)state;
    cluster_each_socket(user_over);
}

static void rank_0_uses_over(cluster_net net)
{
    static int (*const bodies[SIZE])(void *arg) = {serve, serve, owner_of_given};
    job j;
    prepare(&j, net, 0);
    run(&j, bodies);
}

static void killed_rank_0s_are_freed(void **state)
{
    (void)state;
    cluster_each_socket(rank_0_uses_over);
}

/* ------------------------------------------------------------------------------- the middle man dies */

/* Worker 0 owns; 1 passed it on to 2 in an answer and dies while 0 has not confirmed that to 2. */
static int owner_of_passed(void *arg)
{
    const job *j = arg;
    far_agent *a = join(j);
    block_method(a, "far.ref.register");
    far_rref *r = own_thing(a, 9);
    must(ask_int(a, 1, "store", message_with(&r, 1)) == 1);
    must(ask_int(a, 2, "get", int_message(1)) == 1);
    wait_blocked(1);
    far_rref_release(r);
    cluster_flag_set(&j->ready);
    cluster_flag_wait(&j->killed);
    far_counters k;
    if (j->grace) {
        /* In time: the child lives though its parent is gone. */
        open_method();
        must(ask_int(a, 2, "sum", text_message("")) == 9);
        far_agent_counters(a, &k);
        must(k.rrefs_owned == 1);
    } else {
        /* Too late: the value is gone, and whoever comes for it is told so. */
        gate_until((far_agent_counters(a, &k), k.rrefs_owned == 0));
        gate_until(atomic_load(&rrefs.things) == 0);
        open_method();
        far_error error = {.text = ""};
        far_status status = FAR_OK;
        gate_until((status = ask(a, 2, "sum", text_message(""), FAR_NO_LIMIT, &error)) != FAR_OK);
        must_status(FAR_EPEER, status);
        must_say(error.text, "late");
    }
    must_ok(ask(a, 2, "drop", text_message(""), FAR_NO_LIMIT, NULL));
    if (j->grace) /* the dead man's share is kept for as long */
        gate_until((far_agent_counters(a, &k), k.rrefs_lent == 1));
    else
        rrefs_none_here(a);
    return leave(a);
}

static void in_time_over(cluster_net net)
{
    static int (*const bodies[SIZE])(void *arg) = {owner_of_passed, serve, serve};
    job j;
    prepare(&j, net, 1);
    j.grace = 600 * FAR_SECOND;
    run(&j, bodies);
}

static void passed_on_in_time(void **state)
{
    (void)state;
    cluster_each_socket(in_time_over);
}

static void too_late_over(cluster_net net)
{
    static int (*const bodies[SIZE])(void *arg) = {owner_of_passed, serve, serve};
    job j;
    prepare(&j, net, 1);
    run(&j, bodies);
}

static void passed_on_too_late(void **state)
{
    (void)state;
    cluster_each_socket(too_late_over);
}

/* ---------------------------------------------------------------------------------- at random moments */

enum { CROWD = 4, OPERATIONS = 120, STEP = 10, HELD = 8 };

typedef struct storm {
    job j;
    uint64_t seed;
    int report[2];              /* 'j': joined; 'p': STEP operations more; '0' + rank: done */
    cluster_flag start, finish; /* all have joined; all who lived have done theirs */
} storm;

static uint64_t draw(uint64_t *s)
{
    uint64_t z = (*s += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Killing may fail anything with FAR_EPEER, and a limit of our own with FAR_ETIMEOUT; nothing else. */
static void must_be_loss(far_status status, bool limited, const char *text)
{
    if (status == FAR_EPEER || (limited && status == FAR_ETIMEOUT))
        return;
    fprintf(stderr, "%s: %s\n", far_status_name(status), text);
    must(status == FAR_EPEER);
}

typedef struct held {
    far_rref *rref;
    int64_t value;
    bool limited;
} held;

/* Nothing here takes long; who waits so long waits for ever. */
static far_status end_soon(far_future *f, const char *what)
{
    far_status status = far_future_wait(f, 25 * FAR_SECOND);
    if (status != FAR_OK)
        cluster_fail(__FILE__, __LINE__, what);
    return far_future_status(f);
}

static void look_at(far_status status, far_future *f, const held *h, int64_t wanted)
{
    far_failure why = {.text = "at once"};
    if (status == FAR_OK) {
        status = end_soon(f, "the call ends");
        far_future_failure(f, &why);
    }
    if (status == FAR_OK)
        must(int_of(far_future_message(f)) == wanted);
    else
        must_be_loss(status, h->limited, why.text);
}

static far_status send_on(far_agent *a, far_worker_id to, const char *method, int64_t n, held *h,
                          far_future **f)
{
    far_message *m = int_message(n);
    far_status status = far_message_add_rref(m, h->rref, NULL);
    if (status == FAR_OK)
        return far_call(a, to, method, m, FAR_NO_LIMIT, 0, f);
    far_message_discard(m);
    return status;
}

/* Comes back as another reference to the same value. */
static void send_back(far_agent *a, far_worker_id to, held *h)
{
    far_future *f = NULL;
    far_failure why = {.text = "at once"};
    far_status status = send_on(a, to, "back", 0, h, &f);
    if (status == FAR_OK) {
        status = end_soon(f, "\"back\" ends");
        far_future_failure(f, &why);
    }
    if (status == FAR_OK) {
        far_rref *again;
        must_ok(far_message_rref(far_future_message(f), 0, &again));
        must(far_rref_same(again, h->rref));
        far_rref_release(h->rref);
        h->rref = again;
    } else {
        must_be_loss(status, h->limited, why.text);
    }
    far_future_release(f);
}

static void make_one(far_agent *a, uint64_t *s, held *h, int64_t value)
{
    far_rref_release(h->rref);
    far_worker_id to = (far_worker_id)(draw(s) % CROWD);
    *h = (held){.value = value, .limited = draw(s) % 8 == 0};
    far_status status =
        far_remote(a, to, draw(s) % 2 ? "make" : "note", int_message(value),
                   h->limited ? 1 + (far_duration)(draw(s) % 500000) : FAR_NO_LIMIT, &h->rref);
    if (status != FAR_OK) {
        must_be_loss(status, false, "remote");
        h->rref = NULL;
    }
}

static void operate(far_agent *a, uint64_t *s, held *h, int64_t value)
{
    far_worker_id to = (far_worker_id)(draw(s) % CROWD), next = (far_worker_id)(draw(s) % CROWD);
    far_future *f = NULL;
    far_status status;
    uint64_t what = draw(s) % 8;
    if (!h->rref || what < 2) {
        make_one(a, s, h, value);
        return;
    }
    switch (what) {
    case 2:
        status = far_rref_fetch(h->rref, FAR_ENCODING_VALUES, FAR_NO_LIMIT, 0, &f);
        look_at(status, f, h, h->value);
        break;
    case 3:
        status = send_on(a, to, "use", 0, h, &f);
        look_at(status, f, h, h->value);
        break;
    case 4:
        status = send_on(a, to, "pass", next, h, &f);
        look_at(status, f, h, h->value);
        break;
    case 5:
        status = send_on(a, to, "give", next, h, &f);
        look_at(status, f, h, 1);
        break;
    case 6: send_back(a, to, h); break;
    default: /* nobody waits */
        status = send_on(a, to, "pass", next, h, &f);
        if (status != FAR_OK)
            must_be_loss(status, h->limited, "at once");
        far_rref_release(h->rref);
        h->rref = NULL;
    }
    far_future_release(f);
}

static void tell(const storm *w, char what)
{
    must(write(w->report[1], &what, 1) == 1);
}

static int rage(void *arg)
{
    storm *w = arg;
    far_agent *a = join(&w->j);
    uint64_t s = w->seed * 1000 + w->j.rank;
    held all[HELD] = {{0}};
    tell(w, 'j');
    cluster_flag_wait(&w->start);
    for (int i = 0; i < OPERATIONS; i++) {
        if (i % STEP == 0)
            tell(w, 'p');
        operate(a, &s, &all[draw(&s) % HELD], (int64_t)w->j.rank * 1000 + i);
    }
    for (size_t i = 0; i < HELD; i++)
        far_rref_release(all[i].rref);
    tell(w, (char)('0' + w->j.rank));
    cluster_flag_wait(&w->finish);
    rrefs_none_here(a);
    gate_until(atomic_load(&rrefs.things) == 0);
    return leave(a);
}

/* Reads reports until there is so much progress, or all who live are done. */
static void await_report(const storm *w, size_t *progress, bool done[CROWD], const bool dead[CROWD],
                         size_t wanted)
{
    while (*progress < wanted) {
        size_t working = 0;
        char what;
        for (size_t i = 0; i < CROWD; i++)
            working += !done[i] && !dead[i];
        if (working == 0)
            return;
        must(read(w->report[0], &what, 1) == 1);
        *progress += what == 'p';
        if (what >= '0' && what < '0' + CROWD)
            done[what - '0'] = true;
    }
}

static void one_storm(uint64_t seed)
{
    storm w = {.seed = seed};
    pid_t pids[CROWD];
    bool dead[CROWD] = {false}, done[CROWD] = {false};
    char joined;
    uint64_t s = seed;
    size_t progress = 0, kills = 1 + draw(&s) % 2;
    cluster_prepare(&w.j.c, draw(&s) % 2 ? CLUSTER_TCP : CLUSTER_UNIX, CROWD);
    cluster_flag_init(&w.start);
    cluster_flag_init(&w.finish);
    must(pipe(w.report) == 0);
    for (size_t i = 0; i < CROWD; i++) {
        w.j.rank = i;
        pids[i] = cluster_spawn(rage, &w);
    }
    for (size_t i = 0; i < CROWD; i++)
        must(read(w.report[0], &joined, 1) == 1 && joined == 'j');
    for (size_t i = 0; i < CROWD; i++)
        cluster_flag_set(&w.start);
    for (size_t k = 0; k < kills; k++) {
        await_report(&w, &progress, done, dead,
                     progress + 1 + draw(&s) % (CROWD * OPERATIONS / STEP / 2));
        size_t victim;
        do
            victim = draw(&s) % CROWD;
        while (dead[victim]);
        cluster_kill(pids[victim]);
        dead[victim] = true;
    }
    await_report(&w, &progress, done, dead, SIZE_MAX);
    close(w.report[1]);
    for (size_t i = 0; i < CROWD; i++)
        cluster_flag_set(&w.finish);
    for (size_t i = 0; i < CROWD; i++) {
        int code = dead[i] ? 0 : cluster_reap(pids[i]);
        if (code != 0) {
            fprintf(stderr, "seed %llu: worker %zu ended with %d\n", (unsigned long long)seed, i,
                    code);
            must(code == 0);
        }
    }
    close(w.report[0]);
    cluster_flag_fini(&w.start);
    cluster_flag_fini(&w.finish);
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void killed_at_random(void **state)
{
    (void)state;
    uint64_t runs = number("FARCALL_KILL_RUNS", RREFS_SLOW ? 4 : 20),
             seed = number("FARCALL_KILL_SEED", 1);
    for (uint64_t i = 0; i < runs; i++) {
        fprintf(stderr, "         seed %llu\n", (unsigned long long)(seed + i));
        rrefs_reset();
        one_storm(seed + i);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(uses_of_a_killed_owners_fail),
    cmocka_unit_test(uses_of_killed_rank_0_fail),
    cmocka_unit_test(a_killed_users_are_freed),
    cmocka_unit_test(killed_rank_0s_are_freed),
    cmocka_unit_test(passed_on_in_time),
    cmocka_unit_test(passed_on_too_late),
    cmocka_unit_test(killed_at_random),
};
FAR_TEST_MAIN(tests)
