/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/rrefs: what the tests of references share: values that are counted, the methods that make
 * and use them, and a gate before the owner's machine.
 *   make      the int n: keeps the thing n (an object)
 *   note      the int n: its result is the int n (a message)
 *   slow      as make, but says rrefs.held first and waits for rrefs.go
 *   raise     fails with a ValueError
 *   use       adds up the values of its references; says rrefs.used when it starts
 *   count     the int: how many references came
 *   own       the int n: answers with a reference to a thing n of its own
 *   back      answers with all the references that came
 *   pass      the int k: calls "use" at worker k with the references that came, answers what that does
 *   give      the int k: calls "store" at worker k with the references that came
 *   store     keeps the references that came until "drop"
 *   stored    answers with the stored references
 *   get       the int k: calls "stored" at worker k and stores what comes; the int: how many
 *   sum       adds up the values of the stored references
 *   drop      lets go what is stored
 *   chain     the int n: calls itself with n - 1 at the next worker, with its references and a new one;
 *             waits for nothing; says rrefs.used */
#ifndef FAR_TESTS_SUPPORT_RREFS_H
#define FAR_TESTS_SUPPORT_RREFS_H

#include "support/cluster.h"
#include "support/handlers.h"

/* How much of what is slow is done where a sanitizer watches. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RREFS_SLOW 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define RREFS_SLOW 1
#endif
#endif
#ifndef RREFS_SLOW
#define RREFS_SLOW 0
#endif

typedef struct rrefs_state {
    gate held, go, used;
    _Atomic int64_t things; /* alive in this process */
} rrefs_state;
extern rrefs_state rrefs;

/* For cluster_options: these methods and those of support/handlers, the fetch handler, a short grace period. */
void rrefs_adjust(far_options *o, size_t rank, void *arg);
/* cluster_open with all of it, and everything as at the beginning. */
void rrefs_open(cluster *c, cluster_net net, size_t size);
void rrefs_reset(void);
/* Lets go what "store" keeps here. */
void rrefs_drop_stored(far_agent *a);

/* Lets go what is stored and waits until no worker knows of any reference, and no thing is alive in this
 * process. */
void rrefs_none(const cluster *c);
void rrefs_none_here(far_agent *a); /* of things it does not speak */
/* The same, then cluster_close. */
void rrefs_close(cluster *c);

/* far_remote that must be taken. */
far_rref *make_at(far_agent *a, far_worker_id to, const char *method, int64_t n,
                  far_duration timeout);
/* A reference to a thing of this worker's own. */
far_rref *own_thing(far_agent *a, int64_t n);
/* A raw-bodied message with these references. */
far_message *message_with(far_rref *const *r, size_t count);
/* An int, with a reference. */
far_message *int_with(int64_t n, far_rref *r);
/* Fetches; how it ended, and the value if all is well. */
far_status fetch(far_rref *r, far_duration timeout, int64_t *value);
/* Fetches what must be there. */
int64_t value_of(far_rref *r);
/* Fetches what must fail; the text says `part`. */
void must_fetch_fail(far_rref *r, far_status status, const char *part);
/* Waits until it is settled; with what. */
far_status settle_of(far_rref *r);
/* far_call_sync to a method that answers with an int. */
int64_t ask_int(far_agent *a, far_worker_id to, const char *method, far_message *m);
/* The same, to one that answers with references, of which the first is returned. */
far_rref *ask_rref(far_agent *a, far_worker_id to, const char *method, far_message *m);

/* A gate before one of the machine's methods at this worker: what comes is kept until it is opened. One
 * at a time; before the first reference. */
void block_method(far_agent *a, const char *method);
void wait_blocked(size_t count); /* until so many calls were kept */
void open_method(void);          /* lets them go, and all that follow */

#endif
