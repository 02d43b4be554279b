/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/cluster: a whole job inside a test. */
#include "support/cluster.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"
#include "support/handlers.h"
#include "support/hub.h"

enum { GUARD_S = 58 };

static char home[64];
static pid_t home_owner;

/* -------------------------------------------------------------------------------------- checks */

_Noreturn void cluster_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: (process %ld) does not hold: %s\n", file, line, (long)getpid(), what);
    abort();
}

void cluster_check(const char *file, int line, const char *what, far_status wanted, far_status got)
{
    if (got == wanted)
        return;
    char text[512];
    snprintf(text, sizeof text, "%s gives %s, not %s", what, far_status_name(got),
             far_status_name(wanted));
    cluster_fail(file, line, text);
}

void cluster_contains(const char *file, int line, const char *text, const char *part)
{
    if (strstr(text, part))
        return;
    char what[1200];
    snprintf(what, sizeof what, "\"%.900s\" says \"%.200s\"", text, part);
    cluster_fail(file, line, what);
}

/* ---------------------------------------------------------------------------------- environment */

static void remove_home(void)
{
    char command[128];
    if (getpid() != home_owner)
        return;
    snprintf(command, sizeof command, "rm -rf '%s'", home);
    if (system(command) != 0)
        fprintf(stderr, "%s was not removed\n", home);
}

/* Nothing of the user's own files or environment may change what a test sees. */
static void be_private(void)
{
    static const char *const names[] = {
        "RANK",         "WORLD_SIZE",   "MASTER_ADDR",    "MASTER_PORT", "FARCALL_PORT",
        "FARCALL_INIT", "FARCALL_BIND", "FARCALL_SECRET", "FARCALL_LOG", "FARCALL_SECRET_FILE"};
    alarm(GUARD_S);
    if (home[0])
        return;
    snprintf(home, sizeof home, "/tmp/farcall-integ-XXXXXX");
    must(mkdtemp(home) != NULL);
    home_owner = getpid();
    atexit(remove_home);
    must(setenv("HOME", home, 1) == 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

/* Is nobody there? Bound as the library does it. */
static bool is_free(bool v6, uint16_t port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at = {.any.sa_family = v6 ? AF_INET6 : AF_INET};
    at.v4.sin_port = htons(port); /* both families keep it at the same place */
    if (v6)
        at.v6.sin6_addr = in6addr_loopback;
    else
        at.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int one = 1, fd = socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    bool ok = bind(fd, &at.any, v6 ? sizeof at.v6 : sizeof at.v4) == 0 && listen(fd, 1) == 0;
    close(fd);
    return ok;
}

/* Below those that the kernel gives away itself: one of those may be taken by any connection of another
 * test before this one comes to listen. */
static uint16_t free_port(bool v6)
{
    enum { FROM = 12000, COUNT = 20000 };
    static unsigned next;
    if (!next)
        next = (unsigned)getpid() * 37;
    for (unsigned i = 0; i < COUNT; i++) {
        uint16_t port = (uint16_t)(FROM + next++ % COUNT);
        if (is_free(v6, port))
            return port;
    }
    cluster_fail(__FILE__, __LINE__, "a port is free");
}

void cluster_place(cluster_net net, char init[256])
{
    static unsigned files;
    be_private();
    switch (net) {
    case CLUSTER_UNIX: snprintf(init, 256, "file://%s/meet-%u", home, ++files); break;
    case CLUSTER_TCP: snprintf(init, 256, "tcp://127.0.0.1:%u", free_port(false)); break;
    case CLUSTER_TCP6: snprintf(init, 256, "tcp://[::1]:%u", free_port(true)); break;
    case CLUSTER_HUB: snprintf(init, 256, "at://hub:0"); break;
    }
}

static bool has_v6(void)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    bool ok = bind(fd, (struct sockaddr *)&at, sizeof at) == 0;
    close(fd);
    return ok;
}

static void over(const char *name, cluster_net net, void (*body)(cluster_net net))
{
    fprintf(stderr, "         over %s\n", name);
    handlers_reset();
    body(net);
}

void cluster_each_socket(void (*body)(cluster_net net))
{
    over("unix sockets", CLUSTER_UNIX, body);
    over("tcp", CLUSTER_TCP, body);
    if (has_v6())
        over("tcp by IPv6", CLUSTER_TCP6, body);
}

void cluster_each(void (*body)(cluster_net net))
{
    cluster_each_socket(body);
    over("the hub", CLUSTER_HUB, body);
}

/* -------------------------------------------------------------------------------------- joining */

static void keep_quiet(far_log_level level, const char *text, void *arg)
{
    (void)arg;
    if (getenv("CLUSTER_LOG"))
        fprintf(stderr, "%d %s\n", (int)level, text);
}

void cluster_fill(const cluster *c, size_t rank, char name[16], far_options *o)
{
    static const char secret[] = "of the tests";
    far_options_init(o);
    snprintf(name, 16, "w%zu", rank);
    o->name = name;
    o->rank = c->open_world && rank > 0 ? -1 : (int64_t)rank;
    o->world_size = c->open_world ? 0 : (int64_t)c->size;
    o->init_method = c->init;
    o->secret = secret;
    o->secret_size = sizeof secret - 1;
    o->init_timeout = 40 * FAR_SECOND;
    o->methods = handlers_methods;
    o->method_count = handlers_count;
    o->log = keep_quiet;
    if (getenv("CLUSTER_LOG"))
        o->log_level = FAR_LOG_DEBUG;
    if (c->net == CLUSTER_UNIX)
        o->transports = FAR_TRANSPORT_UNIX;
    if (c->net == CLUSTER_TCP || c->net == CLUSTER_TCP6)
        o->transports = FAR_TRANSPORT_TCP;
}

far_status cluster_join(cluster_net net, const far_options *o, far_agent **out, far_error *error)
{
    far_agent *a;
    far_status status = far_agent_create(o, &a, error);
    if (status != FAR_OK)
        return status;
    if (net == CLUSTER_HUB)
        must_ok(far__agent_add_transport(a, &far__hub_ops));
    status = far_agent_join(a, error);
    if (status == FAR_OK)
        *out = a;
    else
        far_agent_release(a);
    return status;
}

void cluster_prepare(cluster *c, cluster_net net, size_t size)
{
    *c = (cluster){.net = net, .size = size};
    cluster_place(net, c->init);
}

typedef struct opener {
    cluster *c;
    const cluster_options *o;
    size_t rank;
    pthread_t thread;
} opener;

static void *open_one(void *arg)
{
    opener *one = arg;
    char name[16];
    far_options o;
    far_error error = {.text = ""};
    cluster_fill(one->c, one->rank, name, &o);
    if (one->o && one->o->adjust)
        one->o->adjust(&o, one->rank, one->o->arg);
    if (cluster_join(one->c->net, &o, &one->c->agents[one->rank], &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    return NULL;
}

void cluster_open(cluster *c, cluster_net net, const cluster_options *o)
{
    opener all[CLUSTER_MAX];
    cluster_prepare(c, net, o && o->size ? o->size : 2);
    c->open_world = o && o->open_world;
    must(c->size <= CLUSTER_MAX);
    for (size_t i = 0; i < c->size; i++) {
        all[i] = (opener){.c = c, .o = o, .rank = i};
        if (c->open_world) /* one after another, so that ids are known */
            open_one(&all[i]);
        else
            must(pthread_create(&all[i].thread, NULL, open_one, &all[i]) == 0);
    }
    for (size_t i = 0; i < c->size && !c->open_world; i++)
        pthread_join(all[i].thread, NULL);
}

static void *shut_one(void *arg)
{
    far_agent *a = arg;
    far_error error = {.text = ""};
    if (far_agent_shutdown(a, 40 * FAR_SECOND, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    far_agent_release(a);
    return NULL;
}

void cluster_close(cluster *c)
{
    pthread_t threads[CLUSTER_MAX];
    for (size_t i = 0; i < c->size; i++)
        must(pthread_create(&threads[i], NULL, shut_one, c->agents[i]) == 0);
    for (size_t i = 0; i < c->size; i++)
        pthread_join(threads[i], NULL);
    cluster_settle();
}

void cluster_drop(cluster *c)
{
    for (size_t i = 0; i < c->size; i++)
        far_agent_release(c->agents[i]);
    cluster_settle();
}

void cluster_settle(void)
{
    gate_until(far_memory_live() == 0);
}

/* ------------------------------------------------------------------------------------ processes */

pid_t cluster_spawn(int (*body)(void *arg), void *arg)
{
    be_private();
    fflush(NULL);
    pid_t pid = fork();
    must(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(GUARD_S);
    int code = body(arg);
    fflush(NULL);
    time_t until = time(NULL) + 5;
    while (far_memory_live() && time(NULL) < until)
        sched_yield();
    if (code == 0 && far_memory_live()) {
        fprintf(stderr, "child: %zu allocations are still alive\n", far_memory_live());
        code = 99;
    }
    _exit(code);
}

int cluster_reap(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        must(errno == EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void cluster_kill(pid_t pid)
{
    must(kill(pid, SIGKILL) == 0);
    must(cluster_reap(pid) == 128 + SIGKILL);
}

void cluster_flag_init(cluster_flag *f)
{
    must(pipe(f->fd) == 0);
}

void cluster_flag_set(const cluster_flag *f)
{
    must(write(f->fd[1], "x", 1) == 1);
}

void cluster_flag_wait(const cluster_flag *f)
{
    char byte;
    ssize_t n;
    while ((n = read(f->fd[0], &byte, 1)) < 0)
        must(errno == EINTR);
    must(n == 1);
}

void cluster_flag_fini(cluster_flag *f)
{
    close(f->fd[0]);
    close(f->fd[1]);
}
