/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/gate: counting what threads have reached, and waiting for it; no durations. Also:
 * does a thread sleep without a time limit? Header only. */
#ifndef FAR_TESTS_SUPPORT_GATE_H
#define FAR_TESTS_SUPPORT_GATE_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { GATE_GUARD_S = 50 };

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t count;
} gate;

#define GATE_INIT                                                                                  \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0                                     \
    }

static inline void gate_pass(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->count++;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static inline size_t gate_count(gate *g)
{
    pthread_mutex_lock(&g->lock);
    size_t count = g->count;
    pthread_mutex_unlock(&g->lock);
    return count;
}

/* Waits until it was passed `count` times in all. */
static inline void gate_wait(gate *g, size_t count)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += GATE_GUARD_S;
    pthread_mutex_lock(&g->lock);
    while (g->count < count) {
        if (pthread_cond_timedwait(&g->changed, &g->lock, &until) != 0) {
            fprintf(stderr, "passed %zu times, %zu wanted\n", g->count, count);
            abort();
        }
    }
    pthread_mutex_unlock(&g->lock);
}

/* Waits until `condition` holds, which no gate can tell. */
#define gate_until(condition)                                                                      \
    do {                                                                                           \
        time_t gate_end_ = time(NULL) + GATE_GUARD_S;                                              \
        while (!(condition)) {                                                                     \
            if (time(NULL) > gate_end_) {                                                          \
                fprintf(stderr, "waited in vain for: %s\n", #condition);                           \
                abort();                                                                           \
            }                                                                                      \
            sched_yield();                                                                         \
        }                                                                                          \
    } while (0)

/* Is thread `tid` of this process inside system call `number`, whose argument `at` (from 0) is zero?
 * Where the kernel does not say it, the answer is yes. */
static inline bool gate_sleeps_in(pid_t tid, long number, int at)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)tid);
    FILE *file = fopen(path, "r");
    if (!file)
        return true;
    long inside = -2;
    unsigned long arg[6] = {0};
    int fields = fscanf(file, "%ld %lx %lx %lx %lx %lx %lx", &inside, &arg[0], &arg[1], &arg[2],
                        &arg[3], &arg[4], &arg[5]);
    bool unreadable = fields == EOF && ferror(file);
    fclose(file);
    return unreadable || (fields == 7 && inside == number && arg[at] == 0);
}

static inline pid_t gate_tid(void)
{
    return (pid_t)syscall(SYS_gettid);
}

#endif
