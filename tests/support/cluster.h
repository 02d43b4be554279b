/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/cluster: a whole job inside a test: as agents of this process, over sockets or the hub, or as
 * forked processes. Nothing here sleeps or asserts a duration; a guard of one minute ends a test that
 * hangs. The must_... checks may be used on any thread and in children: they end the process. */
#ifndef FAR_TESTS_SUPPORT_CLUSTER_H
#define FAR_TESTS_SUPPORT_CLUSTER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "support/gate.h"
#include "support/test.h"

#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            cluster_fail(__FILE__, __LINE__, #condition);                                          \
    } while (0)
#define must_ok(expression) must_status(FAR_OK, expression)
#define must_status(wanted, expression)                                                            \
    cluster_check(__FILE__, __LINE__, #expression, (wanted), (expression))
/* `text` contains `part`. */
#define must_say(text, part) cluster_contains(__FILE__, __LINE__, (text), (part))

_Noreturn void cluster_fail(const char *file, int line, const char *what);
void cluster_check(const char *file, int line, const char *what, far_status wanted, far_status got);
void cluster_contains(const char *file, int line, const char *text, const char *part);

typedef enum cluster_net {
    CLUSTER_UNIX, /* met by a file */
    CLUSTER_TCP,
    CLUSTER_TCP6,
    CLUSTER_HUB,
} cluster_net;

/* Runs a case over each of them; the name goes to stderr first, so that a failure says where. */
void cluster_each(void (*body)(cluster_net net));
void cluster_each_socket(void (*body)(cluster_net net));

enum { CLUSTER_MAX = 8 };

/* Where a job meets: a port that is free now, a file of this test, or the hub. */
void cluster_place(cluster_net net, char init[256]);

typedef struct cluster_options {
    size_t size; /* workers; default 2 */
    bool open_world;
    void (*adjust)(far_options *o, size_t rank, void *arg); /* NULL: nothing to change */
    void *arg;
} cluster_options;

typedef struct cluster {
    cluster_net net;
    size_t size;
    bool open_world;
    char init[256];
    far_agent *agents[CLUSTER_MAX]; /* worker "w<rank>" has the id <rank> */
} cluster;

/* Options of worker "w<rank>" with the handlers of support/handlers. `name` holds the name. */
void cluster_fill(const cluster *c, size_t rank, char name[16], far_options *o);
/* far_agent_open, with the hub where it is needed. */
far_status cluster_join(cluster_net net, const far_options *o, far_agent **out, far_error *error);
/* A place alone, for tests that join by themselves. */
void cluster_prepare(cluster *c, cluster_net net, size_t size);
/* All workers as agents of this process. `o` may be NULL. */
void cluster_open(cluster *c, cluster_net net, const cluster_options *o);
/* All shut down together, which must succeed; afterwards nothing is alive. */
void cluster_close(cluster *c);
/* All are closed without a word. */
void cluster_drop(cluster *c);
/* Waits until every allocation of farcall's is given back: threads that end hold some a little longer. */
void cluster_settle(void);

/* ---------------------------------------------------------------------------- processes */

/* Runs body(arg) in a forked child, which exits with its result, or with 99 if something of farcall's is
 * still alive then. It dies with this process. Fork before threads are there. */
pid_t cluster_spawn(int (*body)(void *arg), void *arg);
/* Waits for its end: the exit code, or 128 + the signal that killed it. */
int cluster_reap(pid_t pid);
void cluster_kill(pid_t pid); /* SIGKILL, and reaps */

/* One process tells others something, once. Made before the fork. */
typedef struct cluster_flag {
    int fd[2];
} cluster_flag;
void cluster_flag_init(cluster_flag *f);
void cluster_flag_set(const cluster_flag *f);
void cluster_flag_wait(const cluster_flag *f); /* each wait needs a set of its own */
void cluster_flag_fini(cluster_flag *f);

#endif
