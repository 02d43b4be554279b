/* SPDX-License-Identifier: BSD-3-Clause
 * async/thread: how the library starts a thread of its own.
 * Floor: async. Thread: any. */
#include "async/thread.h"

#include <assert.h>
#include <signal.h>

far_status far__thread_start(void *(*entry)(void *arg), void *arg, pthread_t *out)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return FAR_ESYSTEM;
    pthread_attr_setdetachstate(&attributes,
                                out ? PTHREAD_CREATE_JOINABLE : PTHREAD_CREATE_DETACHED);
    /* The new thread inherits the mask, so there is no moment at which it takes a signal. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    int rc = pthread_create(&thread, &attributes, entry, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (rc != 0)
        return FAR_ESYSTEM;
    if (out)
        *out = thread;
    return FAR_OK;
}

void far__thread_name(const char *name)
{
    int rc = pthread_setname_np(pthread_self(), name);
    assert(rc == 0);
    (void)rc;
}
