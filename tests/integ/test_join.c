/* SPDX-License-Identifier: BSD-3-Clause
 * Coming in: what can be wrong, each with its own error; who comes early, late, or never; open worlds;
 * coming again. */
#include "support/cluster.h"
#include "support/handlers.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

/* One worker that joins on a thread of its own. */
typedef struct joiner {
    cluster_net net;
    far_options o;
    char name[16];
    far_agent *agent;
    far_status status;
    far_error error;
    pthread_t thread;
} joiner;

static void *join_main(void *arg)
{
    joiner *j = arg;
    j->status = cluster_join(j->net, &j->o, &j->agent, &j->error);
    return NULL;
}

static void prepare(joiner *j, const cluster *c, size_t rank)
{
    memset(j, 0, sizeof *j);
    j->net = c->net;
    cluster_fill(c, rank, j->name, &j->o);
}

static void start(joiner *j)
{
    must(pthread_create(&j->thread, NULL, join_main, j) == 0);
}

static far_status await(joiner *j)
{
    pthread_join(j->thread, NULL);
    return j->status;
}

static far_status join_here(joiner *j)
{
    join_main(j);
    return j->status;
}

/* ------------------------------------------------------------------------------ wrong in the job */

static void secret_over(cluster_net net)
{
    cluster c;
    joiner zero, one;
    cluster_prepare(&c, net, 2);
    prepare(&zero, &c, 0);
    prepare(&one, &c, 1);
    one.o.secret = "another";
    one.o.secret_size = 7;
    start(&zero);
    must_status(FAR_EAUTH, join_here(&one));
    must(one.error.status == FAR_EAUTH);
    must_say(one.error.text, "w1");
    must_say(one.error.text, "secret");
    /* The stranger has harmed nobody: the right one is still welcome. */
    prepare(&one, &c, 1);
    must_ok(join_here(&one));
    must_ok(await(&zero));
    must_echo(zero.agent, 1, "in");
    far_agent_release(one.agent);
    far_agent_release(zero.agent);
    cluster_settle();
}

static void a_wrong_secret_is_refused(void **state)
{
    (void)state;
    cluster_each(secret_over);
}

/* In a fixed world every join fails, with an error that names the two. */
static void name_over(cluster_net net)
{
    cluster c;
    joiner all[3];
    cluster_prepare(&c, net, 4);
    for (size_t i = 0; i < 3; i++)
        prepare(&all[i], &c, i);
    strcpy(all[2].name, "w1");
    for (size_t i = 0; i < 3; i++)
        start(&all[i]);
    for (size_t i = 0; i < 3; i++) {
        must_status(FAR_EBUSY, await(&all[i]));
        must_say(all[i].error.text, "\"w1\"");
        must_say(all[i].error.text, "is taken");
    }
    cluster_settle();
}

static void a_name_given_twice_fails_all(void **state)
{
    (void)state;
    cluster_each(name_over);
}

static void rank_over(cluster_net net)
{
    cluster c;
    joiner all[3];
    cluster_prepare(&c, net, 4);
    for (size_t i = 0; i < 3; i++)
        prepare(&all[i], &c, i);
    all[2].o.rank = 1;
    for (size_t i = 0; i < 3; i++)
        start(&all[i]);
    for (size_t i = 0; i < 3; i++) {
        must_status(FAR_EBUSY, await(&all[i]));
        must_say(all[i].error.text, "w1");
        must_say(all[i].error.text, "w2");
        must_say(all[i].error.text, "1");
    }
    cluster_settle();
}

static void a_rank_given_twice_fails_all(void **state)
{
    (void)state;
    cluster_each(rank_over);
}

/* The one that was told another size fails; the world comes up without it. */
static void size_over(cluster_net net)
{
    cluster c;
    joiner zero, one;
    cluster_prepare(&c, net, 2);
    prepare(&zero, &c, 0);
    prepare(&one, &c, 1);
    one.o.world_size = 3;
    start(&zero);
    must_status(FAR_EINVAL, join_here(&one));
    must_say(one.error.text, "3");
    must_say(one.error.text, "2");
    prepare(&one, &c, 1);
    must_ok(join_here(&one));
    must_ok(await(&zero));
    far_agent_release(one.agent);
    far_agent_release(zero.agent);
    cluster_settle();
}

static void differing_world_sizes_are_told(void **state)
{
    (void)state;
    cluster_each(size_over);
}

/* ---------------------------------------------------------------------------- wrong by itself */

static void refuse(const far_options *o, far_status wanted, const char *part)
{
    far_agent *a;
    far_error error = {.text = ""};
    must_status(wanted, cluster_join(CLUSTER_TCP, o, &a, &error));
    must(error.status == wanted);
    must_say(error.text, part);
    must_status(wanted, cluster_join(CLUSTER_TCP, o, &a, NULL));
}

static void options_are_checked(void **state)
{
    (void)state;
    cluster c;
    char name[16], long_name[201];
    far_options o, good;
    memset(long_name, 'n', 200);
    long_name[200] = 0;
    cluster_prepare(&c, CLUSTER_TCP, 1);
    cluster_fill(&c, 0, name, &good);
#define WRONG(field, value, part)                                                                  \
    do {                                                                                           \
        o = good;                                                                                  \
        o.field = (value);                                                                         \
        refuse(&o, FAR_EINVAL, part);                                                              \
    } while (0)
    WRONG(name, NULL, "name");
    WRONG(name, "", "name");
    WRONG(name, "a b", "name");
    WRONG(name, long_name, "name");
    WRONG(rank, -2, "rank");
    WRONG(rank, 1, "rank");
    WRONG(world_size, -5, "world_size");
    WRONG(init_timeout, -1, "init_timeout");
    WRONG(default_timeout, -1, "default_timeout");
    WRONG(threads, 0, "threads");
    WRONG(threads_max, 0, "threads");
    WRONG(message_size_max, 100, "message_size_max");
    WRONG(secret_size, 0, "secret");
    WRONG(size, 3, "far_options_init");
    WRONG(init_method, "nowhere", "nowhere");
    WRONG(init_method, "tcp://127.0.0.1", "port");
    WRONG(init_method, "tcp://127.0.0.1:99999", "port");
    WRONG(init_method, "tcp://:1", "host");
    WRONG(init_method, "tcp://no.such.host.invalid:4000", "no.such.host.invalid");
    WRONG(init_method, "file://relative", "relative");
    WRONG(init_method, "file:///nonexistent/folder/x", "/nonexistent/folder");
    WRONG(init_method, "env://", "MASTER_ADDR");
    WRONG(bind_address, "no-such-interface", "no-such-interface");
#undef WRONG
    far_method twice[2] = {handlers_methods[0], handlers_methods[0]};
    o = good;
    o.methods = twice;
    o.method_count = 2;
    refuse(&o, FAR_EBUSY, "echo");
    twice[1].name = "far.own";
    refuse(&o, FAR_EINVAL, "far.own");
    cluster_settle();
}

static void a_port_in_use_is_told(void **state)
{
    (void)state;
    cluster c;
    joiner j;
    int port, fd = socket(AF_INET, SOCK_STREAM, 0);
    cluster_prepare(&c, CLUSTER_TCP, 1);
    must(sscanf(c.init, "tcp://127.0.0.1:%d", &port) == 1);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0);
    prepare(&j, &c, 0);
    must_status(FAR_EBUSY, join_here(&j));
    char text[16];
    snprintf(text, sizeof text, "%d", port);
    must_say(j.error.text, text);
    close(fd);
    prepare(&j, &c, 0);
    must_ok(join_here(&j));
    far_agent_release(j.agent);
    cluster_settle();
}

static void unreachable_over(cluster_net net)
{
    cluster c;
    joiner j;
    cluster_prepare(&c, net, 2);
    prepare(&j, &c, 1);
    j.o.init_timeout = 100 * FAR_MILLISECOND;
    must_status(FAR_ETIMEOUT, join_here(&j));
    must_say(j.error.text, "rank 0");
    must_say(j.error.text, "w1");
    cluster_settle();
}

static void a_missing_rank_0_is_told(void **state)
{
    (void)state;
    cluster_each(unreachable_over);
}

/* Somebody listens there who does not speak: the limit holds all the same. */
static void a_silent_rank_0_is_told(void **state)
{
    (void)state;
    cluster c;
    joiner j;
    int port, fd = socket(AF_INET, SOCK_STREAM, 0);
    cluster_prepare(&c, CLUSTER_TCP, 2);
    must(sscanf(c.init, "tcp://127.0.0.1:%d", &port) == 1);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 5) == 0);
    prepare(&j, &c, 1);
    j.o.init_timeout = 200 * FAR_MILLISECOND;
    must_status(FAR_ETIMEOUT, join_here(&j));
    must_say(j.error.text, "rank 0");
    close(fd);
    cluster_settle();
}

static void missing_over(cluster_net net)
{
    cluster c;
    joiner all[3];
    cluster_prepare(&c, net, 4);
    for (size_t i = 0; i < 3; i++) {
        prepare(&all[i], &c, i);
        all[i].o.init_timeout = (i ? 600 : 300) * FAR_MILLISECOND;
    }
    for (size_t i = 0; i < 3; i++)
        start(&all[i]);
    must_status(FAR_ETIMEOUT, await(&all[0]));
    must_say(all[0].error.text, "rank 3");
    for (size_t i = 1; i < 3; i++) {
        far_status status = await(&all[i]);
        must(status == FAR_ETIMEOUT);
        must_say(all[i].error.text, "rank 3");
    }
    cluster_settle();
}

static void who_is_missing_is_told(void **state)
{
    (void)state;
    cluster_each(missing_over);
}

/* One of the others is told by rank 0 when its own time runs out first. */
static void impatient_over(cluster_net net)
{
    cluster c;
    joiner zero, one, two;
    cluster_prepare(&c, net, 3);
    prepare(&zero, &c, 0);
    prepare(&one, &c, 1);
    prepare(&two, &c, 2);
    one.o.init_timeout = 300 * FAR_MILLISECOND;
    start(&zero);
    must_status(FAR_ETIMEOUT, join_here(&one));
    must_say(one.error.text, "rank 2");
    zero.o.init_timeout = 0;
    /* It was admitted, and is lost now: this world cannot come up any more, and nobody hangs. */
    two.o.init_timeout = 300 * FAR_MILLISECOND;
    (void)join_here(&two);
    if (two.status == FAR_OK)
        far_agent_release(two.agent);
    pthread_join(zero.thread, NULL);
    if (zero.status == FAR_OK)
        far_agent_release(zero.agent);
    cluster_settle();
}

static void the_impatient_is_told_by_rank_0(void **state)
{
    (void)state;
    cluster_each(impatient_over);
}

/* ---------------------------------------------------------------------------- early, late, again */

/* The others are there first; rank 0 comes last. */
static void skew_over(cluster_net net)
{
    cluster c;
    joiner all[4];
    cluster_prepare(&c, net, 4);
    for (size_t i = 4; i-- > 0;) {
        prepare(&all[i], &c, i);
        start(&all[i]);
        /* Until it looks for rank 0, which nothing tells: so much that it has tried. */
        for (int k = 0; k < 2000; k++)
            sched_yield();
    }
    for (size_t i = 0; i < 4; i++)
        must_ok(await(&all[i]));
    for (size_t i = 0; i < 4; i++)
        for (far_worker_id to = 0; to < 4; to++)
            must_echo(all[i].agent, to, "here");
    for (size_t i = 0; i < 4; i++)
        far_agent_release(all[i].agent);
    cluster_settle();
}

static void any_order_will_do(void **state)
{
    (void)state;
    cluster_each(skew_over);
}

static void alone_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, &(cluster_options){.size = 1});
    must_echo(c.agents[0], 0, "alone");
    cluster_close(&c);
}

static void a_world_of_one(void **state)
{
    (void)state;
    cluster_each(alone_over);
}

/* At the same place, one after another. */
static void again_over(cluster_net net)
{
    cluster c;
    cluster_prepare(&c, net, 2);
    for (int i = 0; i < 20; i++) {
        joiner zero, one;
        prepare(&zero, &c, 0);
        prepare(&one, &c, 1);
        start(&one);
        must_ok(join_here(&zero));
        must_ok(await(&one));
        must_echo(zero.agent, 1, "again");
        must_echo(one.agent, 0, "again");
        if (i % 2) {
            far_agent_release(zero.agent);
            far_agent_release(one.agent);
            if (net == CLUSTER_HUB) /* where a place is free only when its agent is freed */
                cluster_settle();
        } else {
            c.agents[0] = zero.agent;
            c.agents[1] = one.agent;
            cluster_close(&c);
        }
    }
    cluster_settle();
}

static void twenty_times_at_one_place(void **state)
{
    (void)state;
    cluster_each(again_over);
}

/* A file that a killed job has left does no harm. */
static void stale_files_do_no_harm(void **state)
{
    (void)state;
    cluster c;
    joiner zero, one;
    handlers_reset();
    cluster_prepare(&c, CLUSTER_UNIX, 2);
    static const char *const stale[] = {"", "garbage\n", "farcall 1\n",
                                        "farcall 1\n tcp:127.0.0.1:1 unix:none:none\n"};
    for (size_t i = 0; i < sizeof stale / sizeof stale[0]; i++) {
        FILE *f = fopen(c.init + 7, "w");
        must(f && fputs(stale[i], f) >= 0 && fclose(f) == 0);
        prepare(&one, &c, 1);
        prepare(&zero, &c, 0);
        start(&one);
        must_ok(join_here(&zero));
        must_ok(await(&one));
        must_echo(one.agent, 0, "fresh");
        far_agent_release(one.agent);
        far_agent_release(zero.agent);
    }
    cluster_settle();
}

/* --------------------------------------------------------------------------------- open worlds */

static void open_over(cluster_net net)
{
    cluster c;
    joiner late, thief;
    far_worker w;
    cluster_open(&c, net, &(cluster_options){.size = 2, .open_world = true});
    must_status(FAR_ENOWORKER, far_agent_find(c.agents[1], "w2", &w, NULL));
    prepare(&late, &c, 2);
    must_ok(join_here(&late));
    must_ok(far_agent_self(late.agent, &w));
    must(w.id == 2);
    /* It knows all at once; the others learn of it soon. */
    must_echo(late.agent, 0, "new");
    must_echo(late.agent, 1, "new");
    gate_until(far_agent_find(c.agents[1], "w2", &w, NULL) == FAR_OK);
    must(w.id == 2);
    must_echo(c.agents[1], 2, "to the new one");
    must_echo(c.agents[0], 2, "to the new one");
    /* A name that is taken: the newcomer alone fails. */
    prepare(&thief, &c, 3);
    strcpy(thief.name, "w1");
    must_status(FAR_EBUSY, join_here(&thief));
    must_say(thief.error.text, "w1");
    must_echo(c.agents[1], 0, "unharmed");
    /* And ids are never given twice. */
    strcpy(thief.name, "w3");
    must_ok(join_here(&thief));
    must_ok(far_agent_self(thief.agent, &w));
    must(w.id >= 3);
    c.agents[2] = late.agent;
    c.agents[3] = thief.agent;
    c.size = 4;
    cluster_close(&c);
}

static void an_open_world_grows(void **state)
{
    (void)state;
    cluster_each(open_over);
}

/* A worker that is closed without a word is lost; its name is free for the one that comes instead. */
static void replaced_over(cluster_net net)
{
    cluster c;
    joiner next;
    far_worker w;
    far_error error;
    cluster_open(&c, net, &(cluster_options){.size = 3, .open_world = true});
    far_agent_release(c.agents[1]);
    gate_until(ask(c.agents[0], 1, "echo", text_message(""), 0, &error) != FAR_OK);
    must(error.status == FAR_EPEER || error.status == FAR_ENOWORKER);
    size_t count = 3;
    gate_until((must_status(FAR_OK, far_agent_workers(c.agents[2], NULL, 0, &count)), count == 2));
    prepare(&next, &c, 1);
    must_ok(join_here(&next));
    must_ok(far_agent_self(next.agent, &w));
    must(w.id == 3);
    far_worker_id id = w.id;
    gate_until(far_agent_find(c.agents[2], "w1", &w, NULL) == FAR_OK && w.id == id);
    must_echo(c.agents[2], id, "the new w1");
    must_echo(next.agent, 2, "from the new w1");
    c.agents[1] = next.agent;
    cluster_drop(&c);
}

static void a_lost_worker_is_replaced(void **state)
{
    (void)state;
    cluster_each(replaced_over);
}

/* ---------------------------------------------------------------------------- not joined, closed */

static void an_agent_that_never_joined(void **state)
{
    (void)state;
    cluster c;
    char name[16];
    far_options o;
    far_agent *a;
    far_future *f;
    far_worker w;
    size_t count;
    far_error error;
    cluster_prepare(&c, CLUSTER_TCP, 1);
    cluster_fill(&c, 0, name, &o);
    must_ok(far_agent_create(&o, &a, NULL));
    must_status(FAR_ECLOSED, far_call(a, 0, "echo", text_message(""), 0, 0, &f));
    must_status(FAR_ECLOSED, far_agent_self(a, &w));
    must_status(FAR_ECLOSED, far_agent_find(a, "w0", &w, NULL));
    must_status(FAR_ECLOSED, far_agent_workers(a, NULL, 0, &count));
    must_status(FAR_ECLOSED, far_agent_shutdown(a, 0, &error));
    must_ok(far_agent_join(a, NULL));
    must_status(FAR_EBUSY, far_agent_join(a, NULL));
    must_echo(a, 0, "joined");
    far_agent_close(a);
    far_agent_close(a);
    must_status(FAR_ECLOSED, far_agent_join(a, &error));
    must_status(FAR_ECLOSED, far_call(a, 0, "echo", text_message(""), 0, 0, &f));
    must_status(FAR_ECLOSED, ask(a, 0, "echo", text_message(""), 0, &error));
    must_status(FAR_ECLOSED, far_agent_find(a, "w0", &w, &error));
    must_status(FAR_ECLOSED, far_agent_shutdown(a, 0, &error));
    far_agent_release(a);
    must_ok(far_agent_create(&o, &a, NULL));
    far_agent_release(a);
    must_ok(far_agent_create(&o, &a, NULL));
    far_agent_close(a);
    far_agent_release(a);
    cluster_settle();
}

static void *close_main(void *arg)
{
    far_agent_close(arg);
    return NULL;
}

/* Closed by another thread while it waits for the world. */
static void closed_while_joining(void **state)
{
    (void)state;
    for (size_t rank = 0; rank < 2; rank++) {
        cluster c;
        joiner j;
        cluster_prepare(&c, CLUSTER_TCP, 2);
        prepare(&j, &c, rank);
        must_ok(far_agent_create(&j.o, &j.agent, NULL));
        far_agent *a = far_agent_hold(j.agent);
        pthread_t thread;
        must(pthread_create(&thread, NULL, close_main, a) == 0);
        j.status = far_agent_join(a, &j.error);
        must_status(FAR_ECLOSED, j.status);
        pthread_join(thread, NULL);
        far_agent_release(a);
        far_agent_release(a);
    }
    cluster_settle();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_wrong_secret_is_refused),
    cmocka_unit_test(a_name_given_twice_fails_all),
    cmocka_unit_test(a_rank_given_twice_fails_all),
    cmocka_unit_test(differing_world_sizes_are_told),
    cmocka_unit_test(options_are_checked),
    cmocka_unit_test(a_port_in_use_is_told),
    cmocka_unit_test(a_missing_rank_0_is_told),
    cmocka_unit_test(a_silent_rank_0_is_told),
    cmocka_unit_test(who_is_missing_is_told),
    cmocka_unit_test(the_impatient_is_told_by_rank_0),
    cmocka_unit_test(any_order_will_do),
    cmocka_unit_test(a_world_of_one),
    cmocka_unit_test(twenty_times_at_one_place),
    cmocka_unit_test(stale_files_do_no_harm),
    cmocka_unit_test(an_open_world_grows),
    cmocka_unit_test(a_lost_worker_is_replaced),
    cmocka_unit_test(an_agent_that_never_joined),
    cmocka_unit_test(closed_while_joining),
};
FAR_TEST_MAIN(tests)
