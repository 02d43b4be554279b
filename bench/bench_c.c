/* SPDX-License-Identifier: BSD-3-Clause
 * What calls cost in C: two processes on this machine, which this program forks itself.
 *
 *     bench_c (unix|tcp|self|expiry|killed|init) SCALE
 *
 * SCALE multiplies how often things are done; 1 takes a second or two a group. Prints one JSON line
 * a row.
 */
#include <errno.h>
#include <farcall/farcall.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    WINDOW = 64,
    ARMED = 10000,
    LARGE = 1 << 20,
    CHUNK = 100, /* calls of one kind before those of another */
    INIT_MAX = 16,
};

static double scale = 1;

/* What must not fail here, or there is nothing to measure. */
static void must_at(far_status status, const char *what, const far_error *error)
{
    if (status == FAR_OK)
        return;
    fprintf(stderr, "bench_c: %s: %s: %s\n", what, far_status_name(status),
            error ? error->text : far_status_text(status));
    exit(1);
}
#define must(call) must_at((call), #call, NULL)

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static size_t times(size_t count)
{
    size_t scaled = (size_t)((double)count * scale);
    return scaled > 0 ? scaled : 1;
}

/* ----------------------------------------------------------------------------------- samples */

struct samples {
    double *values;
    size_t count, room;
};

static void add(struct samples *samples, double value)
{
    if (samples->count == samples->room) {
        samples->room = samples->room ? 2 * samples->room : 1024;
        samples->values = realloc(samples->values, samples->room * sizeof *samples->values);
        if (samples->values == NULL)
            must(FAR_ENOMEM);
    }
    samples->values[samples->count++] = value;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Of a rate the bad end is the low one. */
static void report(const char *row, struct samples *samples, const char *unit, int rate)
{
    size_t n = samples->count;
    if (n == 0)
        return;
    qsort(samples->values, n, sizeof *samples->values, compare);
    double late = samples->values[rate ? n / 100 : (n - 1) * 99 / 100];
    printf("{\"row\": \"%s\", \"median\": %.3f, \"p99\": %.3f, \"min\": %.3f, \"unit\": \"%s\", "
           "\"n\": %zu}\n",
           row, samples->values[n / 2], late, samples->values[0], unit, n);
    fflush(stdout);
    free(samples->values);
    *samples = (struct samples){0};
}

/* ------------------------------------------------------------------------------- the other side */

static void serve_echo(far_incoming *call, void *arg)
{
    (void)arg;
    far_incoming_reply(call, far_incoming_take_message(call));
}

static void serve_take(far_incoming *call, void *arg)
{
    (void)arg;
    far_incoming_reply(call, NULL);
}

/* Never answers. The calls are this process's until it is killed. */
static void serve_hold(far_incoming *call, void *arg)
{
    (void)call, (void)arg;
}

static const far_method methods[] = {
    {.name = "short", .handler = serve_echo},
    {.name = "never", .handler = serve_echo, .flags = FAR_METHOD_NEVER_BLOCKS},
    {.name = "take", .handler = serve_take},
    {.name = "hold", .handler = serve_hold, .flags = FAR_METHOD_NEVER_BLOCKS},
};

static char folder[] = "/tmp/farcall-bench-XXXXXX";
static char meeting[sizeof folder + 32];
static unsigned meetings;

/* Every job meets at another file. */
static void next_meeting(void)
{
    snprintf(meeting, sizeof meeting, "file://%s/%u", folder, meetings++);
}

static void last_meeting(void)
{
    char path[sizeof meeting];
    for (unsigned i = 0; i < meetings; i++) {
        snprintf(path, sizeof path, "%s/%u", folder, i);
        unlink(path);
    }
    rmdir(folder);
}

static far_agent *open_agent(int rank, int size, unsigned transports)
{
    char name[16];
    snprintf(name, sizeof name, "rank%d", rank);
    far_options options;
    far_options_init(&options);
    options.name = name;
    options.rank = rank;
    options.world_size = size;
    options.init_method = meeting;
    options.secret = "of this measurement";
    options.secret_size = strlen(options.secret);
    options.bind_address = "127.0.0.1";
    options.transports = transports;
    options.methods = methods;
    options.method_count = sizeof methods / sizeof *methods;
    far_agent *agent;
    far_error error;
    must_at(far_agent_open(&options, &agent, &error), "joining", &error);
    return agent;
}

static pid_t fork_quietly(void)
{
    fflush(NULL);
    pid_t parent = getpid(), child = fork();
    if (child < 0)
        must(FAR_ESYSTEM);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return child;
}

struct pair {
    far_agent *agent;
    far_worker_id peer;
    pid_t child;
};

static struct pair open_pair(unsigned transports)
{
    next_meeting();
    struct pair pair = {.peer = 1};
    pair.child = fork_quietly();
    if (pair.child == 0) {
        open_agent(1, 2, transports);
        for (;;)
            pause();
    }
    pair.agent = open_agent(0, 2, transports);
    return pair;
}

static void close_pair(struct pair *pair)
{
    far_agent_release(pair->agent);
    kill(pair->child, SIGKILL);
    waitpid(pair->child, NULL, 0);
}

/* --------------------------------------------------------------------------------------- calls */

static far_message *small_message(void)
{
    static const char body[24] = "a small message";
    far_message *message;
    must(far_message_create(FAR_ENCODING_RAW, &message));
    must(far_message_append(message, body, sizeof body));
    return message;
}

static void call_once(const struct pair *pair, const char *method, far_message *message,
                      far_duration timeout)
{
    far_message *reply;
    far_error error;
    must_at(far_call_sync(pair->agent, pair->peer, method, message, timeout, &reply, &error),
            method, &error);
    far_message_discard(reply);
}

static void time_small(const struct pair *pair, const char *method, far_duration timeout,
                       size_t count, struct samples *samples)
{
    for (size_t i = 0; i < count; i++) {
        double start = now_us();
        call_once(pair, method, small_message(), timeout);
        if (samples != NULL)
            add(samples, now_us() - start);
    }
}

static void row_small(const struct pair *pair, const char *row, const char *method)
{
    struct samples samples = {0};
    time_small(pair, method, FAR_NO_LIMIT, times(400), NULL);
    time_small(pair, method, FAR_NO_LIMIT, times(4000), &samples);
    report(row, &samples, "us", 0);
}

/* Calls with a limit each and without one, in turns, so that both meet the same moods of the
 * machine; with `armed` calls under way that have a limit and no answer. */
static void row_limits(const struct pair *pair, const char *row, const char *row_without,
                       size_t armed)
{
    far_future **waiting = calloc(armed + 1, sizeof(far_future *));
    if (waiting == NULL)
        must(FAR_ENOMEM);
    for (size_t i = 0; i < armed; i++)
        must(far_call(pair->agent, pair->peer, "hold", small_message(),
                      3600 * FAR_SECOND + (far_duration)i * FAR_MILLISECOND, 0, &waiting[i]));
    struct samples with = {0}, without = {0};
    for (size_t i = 0; i < times(30) + 1; i++) {
        time_small(pair, "short", FAR_NO_LIMIT, CHUNK, i ? &without : NULL);
        time_small(pair, "short", 10 * FAR_SECOND, CHUNK, i ? &with : NULL);
    }
    report(row, &with, "us", 0);
    if (row_without != NULL)
        report(row_without, &without, "us", 0);
    free(without.values);
    for (size_t i = 0; i < armed; i++) {
        far_future_cancel(waiting[i]);
        far_future_release(waiting[i]);
    }
    free(waiting);
}

static void finish(far_future **slot)
{
    if (*slot == NULL)
        return;
    while (far_future_wait(*slot, FAR_FOREVER) == FAR_EINTR)
        ;
    must(far_future_status(*slot));
    far_future_release(*slot);
    *slot = NULL;
}

static double rate_of(const struct pair *pair, const char *method, size_t calls)
{
    far_future *window[WINDOW] = {0};
    double start = now_us();
    for (size_t i = 0; i < calls; i++) {
        finish(&window[i % WINDOW]);
        must(far_call(pair->agent, pair->peer, method, small_message(), FAR_NO_LIMIT, 0,
                      &window[i % WINDOW]));
    }
    for (size_t i = 0; i < WINDOW; i++)
        finish(&window[(calls + i) % WINDOW]);
    return (double)calls / (now_us() - start) * 1e6;
}

static void row_rate(const struct pair *pair, const char *row, const char *method)
{
    struct samples samples = {0};
    rate_of(pair, method, times(2000));
    for (int i = 0; i < 5; i++)
        add(&samples, rate_of(pair, method, times(10000)));
    report(row, &samples, "calls/s", 1);
}

struct caller {
    const struct pair *pair;
    size_t calls;
};

static void *call_often(void *arg)
{
    const struct caller *caller = arg;
    time_small(caller->pair, "never", FAR_NO_LIMIT, caller->calls, NULL);
    return NULL;
}

static void row_threads(const struct pair *pair, const char *row)
{
    struct samples samples = {0};
    for (int round = 0; round < 4; round++) {
        pthread_t threads[8];
        struct caller caller = {pair, times(1000)};
        double start = now_us();
        for (int i = 0; i < 8; i++)
            if (pthread_create(&threads[i], NULL, call_often, &caller))
                must(FAR_ESYSTEM);
        for (int i = 0; i < 8; i++)
            pthread_join(threads[i], NULL);
        if (round > 0)
            add(&samples, (double)(8 * caller.calls) / (now_us() - start) * 1e6);
    }
    report(row, &samples, "calls/s", 1);
}

static void row_large(const struct pair *pair, const char *row, const char *memory)
{
    struct samples samples = {0};
    for (size_t i = 0; i < times(300) + 5; i++) {
        far_buffer *buffer;
        far_message *message;
        double start = now_us();
        must(far_message_create(FAR_ENCODING_RAW, &message));
        must(far_buffer_wrap((void *)memory, LARGE, NULL, NULL, FAR_BUFFER_FREE_ANYWHERE, &buffer));
        must(far_message_add_segment(message, buffer, NULL));
        call_once(pair, "take", message, FAR_NO_LIMIT);
        if (i >= 5)
            add(&samples, now_us() - start);
    }
    report(row, &samples, "us", 0);
}

/* -------------------------------------------------------------------------------------- groups */

static void group_unix(void)
{
    struct pair pair = open_pair(FAR_TRANSPORT_UNIX | FAR_TRANSPORT_TCP);
    row_small(&pair, "c_sync_unix", "short");
    row_small(&pair, "c_sync_unix_never", "never");
    char *memory = aligned_alloc(LARGE, LARGE);
    if (memory == NULL)
        must(FAR_ENOMEM);
    else
        memset(memory, 1, LARGE);
    row_large(&pair, "c_1MiB", memory);
    free(memory);
    row_rate(&pair, "c_async_64", "never");
    row_threads(&pair, "c_threads_8");
    row_limits(&pair, "c_limit", "c_no_limit", 0);
    row_limits(&pair, "c_limit_armed", NULL, ARMED);
    close_pair(&pair);
}

static void group_tcp(void)
{
    struct pair pair = open_pair(FAR_TRANSPORT_TCP);
    row_small(&pair, "c_sync_tcp", "short");
    row_small(&pair, "c_sync_tcp_never", "never");
    close_pair(&pair);
}

static void group_self(void)
{
    next_meeting();
    struct pair self = {.agent = open_agent(0, 1, 0), .peer = 0};
    row_small(&self, "c_self_never", "never");
    row_small(&self, "c_self", "short");
    far_agent_release(self.agent);
}

struct deadline {
    double due;
    double late;
    atomic_int *missing;
};

static void expired(far_future *future, void *arg)
{
    (void)future;
    struct deadline *deadline = arg;
    deadline->late = now_us() - deadline->due;
    atomic_fetch_sub(deadline->missing, 1);
}

/* How long after its limit each of many calls that nobody answers has ended. */
static void row_expiry(const struct pair *pair, const char *row, size_t count, double spread_us)
{
    struct deadline *deadlines = calloc(count, sizeof *deadlines);
    if (deadlines == NULL)
        must(FAR_ENOMEM);
    atomic_int missing = (int)count;
    far_future *last = NULL;
    for (size_t i = 0; i < count; i++) {
        double limit_us = 1000 + spread_us * (double)(i + 1) / (double)count;
        deadlines[i].missing = &missing;
        deadlines[i].due = now_us() + limit_us;
        far_future_release(last);
        must(far_call(pair->agent, pair->peer, "hold", small_message(),
                      (far_duration)(limit_us * 1e3), 0, &last));
        must(far_future_on_done(last, expired, &deadlines[i], FAR_CALLBACK_NEVER_BLOCKS));
    }
    while (far_future_wait(last, FAR_FOREVER) == FAR_EINTR)
        ;
    far_future_release(last);
    while (atomic_load(&missing) > 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    struct samples samples = {0};
    for (size_t i = 0; i < count; i++)
        add(&samples, deadlines[i].late);
    report(row, &samples, "us", 0);
    free(deadlines);
}

static void group_expiry(void)
{
    struct pair pair = open_pair(0);
    row_small(&pair, "c_sync_before", "short");
    struct samples samples = {0};
    for (size_t i = 0; i < times(200); i++) {
        far_duration limit = (far_duration)(500 + 37 * (i % 50)) * FAR_MICROSECOND;
        far_future *future;
        double start = now_us();
        must(
            far_call(pair.agent, pair.peer, "hold", small_message(), limit, FAR_CALL_NOW, &future));
        while (far_future_wait(future, FAR_FOREVER) == FAR_EINTR)
            ;
        add(&samples, now_us() - start - (double)limit / 1e3);
        far_future_release(future);
    }
    report("c_expiry", &samples, "us", 0);
    row_expiry(&pair, "c_expiry_armed", ARMED, 400e3);
    close_pair(&pair);
}

/* From the kill of the callee until a call without a limit has ended. */
static void group_killed(void)
{
    struct samples samples = {0};
    for (size_t i = 0; i < times(10) + 1; i++) {
        struct pair pair = open_pair(0);
        call_once(&pair, "short", small_message(), FAR_NO_LIMIT);
        far_future *future;
        must(far_call(pair.agent, pair.peer, "hold", small_message(), FAR_NO_LIMIT, FAR_CALL_NOW,
                      &future));
        double start = now_us();
        kill(pair.child, SIGKILL);
        while (far_future_wait(future, FAR_FOREVER) == FAR_EINTR)
            ;
        double took = now_us() - start;
        if (far_future_status(future) != FAR_EPEER)
            must_at(far_future_status(future), "killed", NULL);
        if (i > 0)
            add(&samples, took);
        far_future_release(future);
        close_pair(&pair);
    }
    report("c_killed", &samples, "us", 0);
}

static void time_init(int size, struct samples *init, struct samples *leave)
{
    next_meeting();
    pid_t children[INIT_MAX];
    double start = now_us();
    for (int rank = 1; rank < size; rank++) {
        children[rank] = fork_quietly();
        if (children[rank] == 0) {
            far_agent *agent = open_agent(rank, size, 0);
            far_error error;
            must_at(far_agent_shutdown(agent, 60 * FAR_SECOND, &error), "leaving", &error);
            far_agent_release(agent);
            _exit(0);
        }
    }
    far_agent *agent = open_agent(0, size, 0);
    add(init, (now_us() - start) / 1e3);
    start = now_us();
    far_error error;
    must_at(far_agent_shutdown(agent, 60 * FAR_SECOND, &error), "leaving", &error);
    add(leave, (now_us() - start) / 1e3);
    far_agent_release(agent);
    for (int rank = 1; rank < size; rank++)
        waitpid(children[rank], NULL, 0);
}

static void group_init(void)
{
    for (int size = 2; size <= INIT_MAX; size += INIT_MAX - 2) {
        struct samples init = {0}, leave = {0};
        for (size_t i = 0; i < times(5); i++)
            time_init(size, &init, &leave);
        char row[32];
        snprintf(row, sizeof row, "c_init_%d", size);
        report(row, &init, "ms", 0);
        snprintf(row, sizeof row, "c_leave_%d", size);
        report(row, &leave, "ms", 0);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } groups[] = {
        {"unix", group_unix},     {"tcp", group_tcp},       {"self", group_self},
        {"expiry", group_expiry}, {"killed", group_killed}, {"init", group_init},
    };
    size_t chosen = 0, count = sizeof groups / sizeof *groups;
    while (argc == 3 && chosen < count && strcmp(argv[1], groups[chosen].name) != 0)
        chosen++;
    scale = argc == 3 ? strtod(argv[2], NULL) : 0;
    if (argc != 3 || chosen == count || !(scale > 0)) {
        fprintf(stderr, "usage: bench_c (unix|tcp|self|expiry|killed|init) SCALE\n");
        return 2;
    }
    if (mkdtemp(folder) == NULL) {
        fprintf(stderr, "bench_c: %s: %s\n", folder, strerror(errno));
        return 1;
    }
    groups[chosen].run();
    last_meeting();
    return 0;
}
