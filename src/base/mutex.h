/* SPDX-License-Identifier: BSD-3-Clause
 * base/mutex: mutex and futex word, header only.
 * Floor: base. Thread: any. Locks are short, never nested, never held across anything that blocks.
 */
#ifndef FAR_BASE_MUTEX_H
#define FAR_BASE_MUTEX_H

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct far__mutex {
    pthread_mutex_t m;
} far__mutex;

static inline void far__mutex_init(far__mutex *m)
{
    int rc = pthread_mutex_init(&m->m, NULL);
    assert(rc == 0);
    (void)rc;
}
static inline void far__mutex_fini(far__mutex *m)
{
    pthread_mutex_destroy(&m->m);
}
static inline void far__mutex_lock(far__mutex *m)
{
    int rc = pthread_mutex_lock(&m->m);
    assert(rc == 0);
    (void)rc;
}
static inline void far__mutex_unlock(far__mutex *m)
{
    int rc = pthread_mutex_unlock(&m->m);
    assert(rc == 0);
    (void)rc;
}

/* Sleeps while *word == value, until the absolute CLOCK_MONOTONIC time `until_ns` (INT64_MAX: no
 * limit). Returns 0 (woken, or the word differs, or spuriously), ETIMEDOUT or EINTR. */
static inline int far__futex_wait(_Atomic uint32_t *word, uint32_t value, int64_t until_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(until_ns / 1000000000),
                          .tv_nsec = (long)(until_ns % 1000000000)};
    long rc = syscall(SYS_futex, word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, value,
                      until_ns == INT64_MAX ? NULL : &ts, NULL, FUTEX_BITSET_MATCH_ANY);
    if (rc == 0 || errno == EAGAIN)
        return 0;
    return errno;
}
static inline void far__futex_wake(_Atomic uint32_t *word, int count)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, count, NULL, NULL, 0);
}

#endif
