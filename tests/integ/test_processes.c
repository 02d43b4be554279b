/* SPDX-License-Identifier: BSD-3-Clause
 * Real processes over unix and TCP sockets: they meet and call, one is killed, one forks, strangers knock.
 * The test itself opens no agent but where it says so: what is forked has one thread. */
#include "support/cluster.h"
#include "support/handlers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* What every worker of a job of processes is told. */
typedef struct job {
    cluster c;
    size_t rank;
    cluster_flag ready, go, done;
    pid_t victim;
} job;

static void job_begin(job *j, cluster_net net, size_t size)
{
    memset(j, 0, sizeof *j);
    cluster_prepare(&j->c, net, size);
    cluster_flag_init(&j->ready);
    cluster_flag_init(&j->go);
    cluster_flag_init(&j->done);
}

static void job_end(job *j)
{
    cluster_flag_fini(&j->ready);
    cluster_flag_fini(&j->go);
    cluster_flag_fini(&j->done);
}

static pid_t spawn(job *j, size_t rank, int (*body)(void *arg))
{
    j->rank = rank;
    return cluster_spawn(body, j);
}

static int until_killed(void)
{
    while (pause() != 0)
        ;
    return 1;
}

static far_agent *join(job *j)
{
    char name[16];
    far_options o;
    far_agent *a;
    far_error error = {.text = ""};
    cluster_fill(&j->c, j->rank, name, &o);
    if (far_agent_open(&o, &a, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    return a;
}

static void leave(far_agent *a)
{
    far_error error = {.text = ""};
    if (far_agent_shutdown(a, 40 * FAR_SECOND, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    far_agent_release(a);
}

/* -------------------------------------------------------------------------------- meet and call */

static int call_all(void *arg)
{
    job *j = arg;
    far_agent *a = join(j);
    for (int i = 0; i < 50; i++)
        for (far_worker_id to = 0; to < j->c.size; to++)
            must_echo(a, to, "between processes");
    far_message *m = text_message(""), *reply;
    far_buffer *b;
    must_ok(far_buffer_alloc(3 << 20, &b));
    memset(far_buffer_data(b), (int)j->rank, 3 << 20);
    must_ok(far_message_add_segment(m, b, NULL));
    must_ok(
        far_call_sync(a, (far_worker_id)((j->rank + 1) % j->c.size), "echo", m, 0, &reply, NULL));
    const uint8_t *got = far_buffer_data(far_message_segment(reply, 0));
    must(far_buffer_size(far_message_segment(reply, 0)) == 3 << 20);
    must(got[0] == j->rank && got[(3 << 20) - 1] == j->rank);
    far_message_discard(reply);
    leave(a);
    return 0;
}

static void meet_over(cluster_net net)
{
    job j;
    pid_t pids[4];
    job_begin(&j, net, 4);
    for (size_t i = 0; i < 4; i++)
        pids[i] = spawn(&j, i, call_all);
    for (size_t i = 0; i < 4; i++)
        must(cluster_reap(pids[i]) == 0);
    job_end(&j);
}

static void processes_meet_and_call(void **state)
{
    (void)state;
    cluster_each_socket(meet_over);
}

/* By the environment, with the user's own secret file, which the first one makes. */
static int by_environment(void *arg)
{
    job *j = arg;
    char text[16], name[16];
    far_options o;
    far_agent *a;
    far_error error = {.text = ""};
    cluster_fill(&j->c, j->rank, name, &o);
    o.rank = o.world_size = -1;
    o.init_method = NULL;
    o.secret = NULL;
    o.secret_size = 0;
    o.transports = 0;
    snprintf(text, sizeof text, "%zu", j->rank);
    must(setenv("RANK", text, 1) == 0 && setenv("WORLD_SIZE", "3", 1) == 0);
    must(setenv("MASTER_ADDR", "127.0.0.1", 1) == 0);
    must(setenv("MASTER_PORT", strrchr(j->c.init, ':') + 1, 1) == 0);
    if (far_agent_open(&o, &a, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    for (far_worker_id to = 0; to < 3; to++)
        must_echo(a, to, "by the environment");
    leave(a);
    return 0;
}

static void the_environment_is_enough(void **state)
{
    (void)state;
    job j;
    pid_t pids[3];
    job_begin(&j, CLUSTER_TCP, 3);
    for (size_t i = 0; i < 3; i++)
        pids[i] = spawn(&j, i, by_environment);
    for (size_t i = 0; i < 3; i++)
        must(cluster_reap(pids[i]) == 0);
    job_end(&j);
}

/* ---------------------------------------------------------------------------------------- killed */

static int be_victim(void *arg)
{
    job *j = arg;
    (void)join(j);
    gate_wait(&handlers.held, 1); /* the caller's call is being served */
    cluster_flag_set(&j->ready);
    return until_killed();
}

/* Calls the victim without a limit, sees it die, and goes on with the third one. */
static int lose_one(void *arg)
{
    job *j = arg;
    far_agent *a = join(j);
    far_failure why;
    far_future *f[3] = {begin(a, 2, "hold", text_message(""), FAR_NO_LIMIT),
                        begin(a, 2, "keep", text_message(""), FAR_FOREVER),
                        begin(a, 2, "hold", text_message(""), 50 * FAR_SECOND)};
    for (size_t i = 0; i < 3; i++) {
        must_status(FAR_EPEER, end_of(f[i]));
        far_future_failure(f[i], &why);
        must(why.worker == 2 && why.may_have_run && !why.from_handler);
        must_say(why.text, "w2");
        far_future_release(f[i]);
    }
    far_error error;
    must_status(FAR_EPEER, ask(a, 2, "echo", text_message(""), FAR_NO_LIMIT, &error));
    must_say(error.text, "w2");
    must_echo(a, 0, "alive");
    must_echo(a, 1, "alive");
    cluster_flag_set(&j->done);
    /* The dead one counts as having asked. */
    must_status(FAR_EPEER, far_agent_shutdown(a, 40 * FAR_SECOND, &error));
    must_say(error.text, "w2");
    far_agent_release(a);
    return 0;
}

static int look_on(void *arg)
{
    job *j = arg;
    far_agent *a = join(j);
    far_error error = {.text = ""};
    far_status status = far_agent_shutdown(a, 40 * FAR_SECOND, &error);
    must_status(FAR_EPEER, status);
    must_say(error.text, "w2");
    far_agent_release(a);
    return 0;
}

static void killed_over(cluster_net net)
{
    for (size_t who = 0; who < 2; who++) { /* the caller is rank 0, or is not */
        job j;
        job_begin(&j, net, 3);
        pid_t victim = spawn(&j, 2, be_victim);
        pid_t caller = spawn(&j, who, lose_one);
        pid_t third = spawn(&j, 1 - who, look_on);
        cluster_flag_wait(&j.ready);
        cluster_kill(victim);
        cluster_flag_wait(&j.done);
        must(cluster_reap(caller) == 0);
        must(cluster_reap(third) == 0);
        job_end(&j);
    }
}

static void a_killed_callee_ends_its_calls(void **state)
{
    (void)state;
    cluster_each_socket(killed_over);
}

/* Killed while it waits for the world: rank 0 says who. */
static int join_only(void *arg)
{
    job *j = arg;
    (void)join(j);
    return 0;
}

static int join_in_vain(void *arg)
{
    job *j = arg;
    char name[16];
    far_options o;
    far_agent *a;
    far_error error = {.text = ""};
    cluster_fill(&j->c, j->rank, name, &o);
    o.init_timeout = FAR_SECOND;
    must(far_agent_open(&o, &a, &error) != FAR_OK);
    must(error.text[0]);
    return 0;
}

static void killed_joining_over(cluster_net net)
{
    job j;
    job_begin(&j, net, 3);
    pid_t victim = spawn(&j, 1, join_only);
    pid_t zero = spawn(&j, 0, join_in_vain);
    cluster_kill(victim);
    must(cluster_reap(zero) == 0);
    job_end(&j);
}

static void killed_while_joining(void **state)
{
    (void)state;
    cluster_each_socket(killed_joining_over);
}

/* A killed job leaves nothing that stops the next one at the same place. */
static int call_then_wait(void *arg)
{
    job *j = arg;
    far_agent *a = join(j);
    must_echo(a, 0, "first");
    cluster_flag_set(&j->ready);
    return until_killed();
}

static void next_over(cluster_net net)
{
    job j;
    pid_t pids[2];
    job_begin(&j, net, 2);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 2; i++)
            pids[i] = spawn(&j, i, call_then_wait);
        for (size_t i = 0; i < 2; i++)
            cluster_flag_wait(&j.ready);
        for (size_t i = 0; i < 2; i++)
            cluster_kill(pids[i]);
    }
    for (size_t i = 0; i < 2; i++)
        pids[i] = spawn(&j, i, call_all);
    for (size_t i = 0; i < 2; i++)
        must(cluster_reap(pids[i]) == 0);
    job_end(&j);
}

static void the_next_job_meets_at_the_same_place(void **state)
{
    (void)state;
    cluster_each_socket(next_over);
}

/* -------------------------------------------------------------------------------------- signals */

static void ignore(int number)
{
    (void)number;
}

typedef struct knocker {
    pthread_t target;
    _Atomic bool stop;
} knocker;

static void *knock(void *arg)
{
    knocker *k = arg;
    while (!atomic_load(&k->stop)) {
        pthread_kill(k->target, SIGUSR1);
        sched_yield();
    }
    return NULL;
}

/* A wait returns on a signal and can be resumed; a synchronous call resumes by itself. */
static int be_signalled(void *arg)
{
    job *j = arg;
    struct sigaction action = {.sa_handler = ignore}; /* without SA_RESTART */
    must(sigaction(SIGUSR1, &action, NULL) == 0);
    far_agent *a = join(j);
    for (far_worker_id to = 0; to < 2; to++) {
        pthread_t thread;
        knocker k = {.target = pthread_self()};
        far_future *f = begin(a, to, "keep", text_message(""), FAR_SECOND);
        must(pthread_create(&thread, NULL, knock, &k) == 0);
        far_status status;
        size_t interrupted = 0;
        while ((status = far_future_wait(f, FAR_FOREVER)) == FAR_EINTR)
            interrupted++;
        must_ok(status);
        must_status(FAR_ETIMEOUT, far_future_status(f));
        must(interrupted > 0);
        far_future_release(f);
        for (int i = 0; i < 100; i++)
            must_echo(a, to, "through signals");
        atomic_store(&k.stop, true);
        pthread_join(thread, NULL);
    }
    far_incoming *in;
    while ((in = handlers_take_kept()))
        far_incoming_reply(in, NULL);
    cluster_flag_set(&j->done);
    leave(a);
    return 0;
}

static int answer_at_the_end(void *arg)
{
    job *j = arg;
    far_agent *a = join(j);
    cluster_flag_wait(&j->done);
    far_incoming *in;
    while ((in = handlers_take_kept()))
        far_incoming_reply(in, NULL);
    leave(a);
    return 0;
}

static void signals_over(cluster_net net)
{
    job j;
    job_begin(&j, net, 2);
    pid_t zero = spawn(&j, 0, be_signalled), one = spawn(&j, 1, answer_at_the_end);
    must(cluster_reap(zero) == 0);
    must(cluster_reap(one) == 0);
    job_end(&j);
}

static void signals_interrupt_a_wait_only(void **state)
{
    (void)state;
    cluster_each_socket(signals_over);
}

/* ----------------------------------------------------------------------------------------- forks */

/* In the child every use is an error, and it may open anew; the parent notices nothing. */
static int use_in_child(far_agent *old, far_future *open)
{
    far_future *f;
    far_worker w;
    far_error error;
    size_t count;
    alarm(30);
    must_status(FAR_ECLOSED, far_call(old, 1, "echo", text_message(""), 0, 0, &f));
    must_status(FAR_ECLOSED, far_call(old, 0, "echo", text_message(""), 0, 0, &f));
    must_status(FAR_ECLOSED, ask(old, 1, "echo", text_message(""), FAR_SECOND, &error));
    must_status(FAR_ECLOSED, far_agent_find(old, "w1", &w, &error));
    must_status(FAR_ECLOSED, far_agent_workers(old, NULL, 0, &count));
    must_status(FAR_ECLOSED, far_agent_shutdown(old, 0, &error));
    must_status(FAR_ECLOSED, far_future_wait(open, FAR_SECOND));
    far_after_fork_child();
    far_agent_close(old);
    far_agent_release(old);

    job j;
    job_begin(&j, CLUSTER_TCP, 1);
    far_agent *a = join(&j);
    must_echo(a, 0, "anew");
    far_error why = {.text = ""};
    if (far_agent_shutdown(a, 0, &why) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, why.text);
    far_agent_release(a);
    return 0;
}

static int fork_in_the_midst(void *arg)
{
    job *j = arg;
    far_agent *a = join(j);
    must_echo(a, 1, "before");
    far_future *f = begin(a, 1, "hold", text_message("across"), FAR_NO_LIMIT);
    for (int i = 0; i < 3; i++) {
        pid_t pid = fork();
        must(pid >= 0);
        if (pid == 0)
            _exit(use_in_child(a, f));
        must(cluster_reap(pid) == 0);
        must_echo(a, 1, "after");
        must_echo(a, 0, "after");
    }
    cluster_flag_set(&j->go);
    must_ok(end(f));
    leave(a);
    return 0;
}

static int hold_until_told(void *arg)
{
    job *j = arg;
    far_agent *a = join(j);
    cluster_flag_wait(&j->go);
    handlers_open();
    leave(a);
    return 0;
}

static void fork_over(cluster_net net)
{
    job j;
    job_begin(&j, net, 2);
    pid_t zero = spawn(&j, 0, fork_in_the_midst), one = spawn(&j, 1, hold_until_told);
    must(cluster_reap(zero) == 0);
    must(cluster_reap(one) == 0);
    job_end(&j);
}

static void a_forked_child_starts_anew(void **state)
{
    (void)state;
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
    skip(); /* it allows no threads in the child of a process with threads */
#endif
#endif
    cluster_each_socket(fork_over);
}

/* ------------------------------------------------------------------------------------- strangers */

static int knock_at(const char *init)
{
    int port;
    must(sscanf(init, "tcp://127.0.0.1:%d", &port) == 1);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    return fd;
}

/* Sends; the other side may hang up at any time. Waits until it does, if told. */
static void say(int fd, const void *data, size_t size, bool until_closed)
{
    (void)!send(fd, data, size, MSG_NOSIGNAL);
    char rest[256];
    while (until_closed && recv(fd, rest, sizeof rest, 0) > 0)
        ;
    close(fd);
}

static void strangers_disturb_nobody(void **state)
{
    (void)state;
    cluster c;
    enum { SILENT = 20 };
    int silent[SILENT];
    handlers_reset();
    cluster_open(&c, CLUSTER_TCP, &(cluster_options){.size = 2});
    far_future *f = begin(c.agents[1], 0, "hold", text_message("all the while"), FAR_NO_LIMIT);
    for (size_t i = 0; i < SILENT; i++)
        silent[i] = knock_at(c.init); /* half-open: says nothing, or half a prefix */
    for (size_t i = 0; i < SILENT; i += 2)
        must(send(silent[i], "\x40\0\0", 3, 0) == 3);

    static const char http[] = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    say(knock_at(c.init), http, sizeof http - 1, true);
    uint8_t bytes[4096];
    uint32_t seed = 12345;
    for (int i = 0; i < 200; i++) {
        for (size_t k = 0; k < sizeof bytes; k++) {
            seed = seed * 1664525 + 1013904223;
            bytes[k] = (uint8_t)(seed >> 24);
        }
        size_t size = (size_t)i * 20 + 1;
        if (i % 4 == 0)
            memset(bytes, 0xff, 16); /* a frame of 4 GiB */
        if (i % 4 == 1)
            memset(bytes, 0, sizeof bytes);
        if (i % 4 == 2) { /* a good prefix before nonsense */
            memset(bytes, 0, 16);
            bytes[0] = 64;
            bytes[4] = 1;
            bytes[8] = 64;
            size = 80;
        }
        say(knock_at(c.init), bytes, size, i % 4 == 2);
    }
    for (int i = 0; i < 50; i++)
        close(knock_at(c.init));
    must_echo(c.agents[1], 0, "undisturbed");
    must_echo(c.agents[0], 1, "undisturbed");
    handlers_open();
    must_ok(end(f));
    far_counters k;
    far_agent_counters(c.agents[0], &k);
    must(k.calls_failed == 0);
    for (size_t i = 0; i < SILENT; i++)
        close(silent[i]);
    cluster_close(&c);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(processes_meet_and_call),
    cmocka_unit_test(the_environment_is_enough),
    cmocka_unit_test(a_killed_callee_ends_its_calls),
    cmocka_unit_test(killed_while_joining),
    cmocka_unit_test(the_next_job_meets_at_the_same_place),
    cmocka_unit_test(signals_interrupt_a_wait_only),
    cmocka_unit_test(a_forked_child_starts_anew),
    cmocka_unit_test(strangers_disturb_nobody),
};
FAR_TEST_MAIN(tests)
