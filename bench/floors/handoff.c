/* SPDX-License-Identifier: BSD-3-Clause
 * Floor: a word handed to another thread of the process and back, with a futex each way: the least
 * that a call to oneself costs if another thread is to run it.
 *
 *     handoff COUNT
 *
 * Prints a JSON line with microseconds.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct box {
    _Alignas(128) _Atomic uint32_t there;
    _Alignas(128) _Atomic uint32_t back;
    uint32_t last;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void await(_Atomic uint32_t *word, uint32_t wanted)
{
    uint32_t seen;
    while ((seen = atomic_load_explicit(word, memory_order_acquire)) != wanted)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void post(_Atomic uint32_t *word, uint32_t value)
{
    atomic_store_explicit(word, value, memory_order_release);
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void *answer(void *arg)
{
    struct box *box = arg;
    for (uint32_t i = 1; i <= box->last; i++) {
        await(&box->there, i);
        post(&box->back, i);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    if (count == 0) {
        fprintf(stderr, "usage: handoff COUNT\n");
        return 2;
    }
    uint32_t warm = count / 10 + 2;
    static struct box box;
    box.last = count + warm;
    double *took = calloc(count, sizeof *took);
    pthread_t thread;
    if (took == NULL || pthread_create(&thread, NULL, answer, &box)) {
        fprintf(stderr, "handoff: out of memory\n");
        free(took);
        return 1;
    }
    for (uint32_t i = 1; i <= box.last; i++) {
        double start = now_us();
        post(&box.there, i);
        await(&box.back, i);
        if (i > warm)
            took[i - warm - 1] = now_us() - start;
    }
    pthread_join(thread, NULL);
    qsort(took, count, sizeof *took, compare);
    printf("{\"median\": %.3f, \"p99\": %.3f, \"unit\": \"us\", \"n\": %u}\n", took[count / 2],
           took[(uint64_t)count * 99 / 100], count);
    free(took);
    return 0;
}
