/* SPDX-License-Identifier: BSD-3-Clause
 * async/thread: how the library starts a thread of its own.
 * Floor: async. Thread: any. */
#ifndef FAR_ASYNC_THREAD_H
#define FAR_ASYNC_THREAD_H

#include <pthread.h>

#include <farcall/farcall.h>

/* Starts a thread that blocks all signals: they are the program's own. `out` NULL: nobody will join
 * it. FAR_ESYSTEM: the system has no more threads. */
far_status far__thread_start(void *(*entry)(void *arg), void *arg, pthread_t *out) FAR_MUST_USE;
/* Of the calling thread; at most 15 bytes. */
void far__thread_name(const char *name);

#endif
