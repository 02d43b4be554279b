/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/handlers: the methods that every worker of a test cluster serves, and short ways to call them.
 *   echo, quick   the message back ("quick" never blocks)
 *   name          the text: name of the worker that serves
 *   whom          the text: name of the caller
 *   left          the int: nanoseconds left, -1 if there is no limit
 *   fail          an error of type ValueError with a traceback and, as payload, the message
 *   hold          says handlers.held, waits for handlers_open, echoes
 *   keep          is kept: the test answers by handlers_kept
 *   relay         the int n: 0 answers 0, else calls relay with n - 1 at its caller, answers that + 1
 *   cancelled     says handlers.held, waits until it is cancelled, says handlers.seen, waits for handlers_open
 *   serve         says handlers.held, runs until closing() */
#ifndef FAR_TESTS_SUPPORT_HANDLERS_H
#define FAR_TESTS_SUPPORT_HANDLERS_H

#include "support/cluster.h"

extern const far_method handlers_methods[];
extern const size_t handlers_count;

typedef struct handlers_state {
    gate held, seen, go, arrived; /* arrived: in keep */
    _Atomic uint64_t runs;        /* of hold */
} handlers_state;
extern handlers_state handlers;

/* Everything as at the beginning. No handler may be running. */
void handlers_reset(void);
/* Lets all that hold go on, now and later. */
void handlers_open(void);
/* The calls kept so far, in order of arrival; each is the test's to answer. NULL: not that many. */
far_incoming *handlers_take_kept(void);

far_message *text_message(const char *text); /* raw */
far_message *int_message(int64_t value);
bool is_text(const far_message *m, const char *text);
int64_t int_of(far_message *m); /* discards nothing */

/* far_call that must be taken. */
far_future *begin(far_agent *a, far_worker_id to, const char *method, far_message *m,
                  far_duration timeout);
/* Waits for it; how it ended. */
far_status end_of(far_future *f);
/* The same, and lets it go. */
far_status end(far_future *f);
/* far_call_sync with a raw text that must come back. */
void must_echo(far_agent *a, far_worker_id to, const char *text);
/* far_call_sync that discards what it gives; the text of an error in `error` (may be NULL). */
far_status ask(far_agent *a, far_worker_id to, const char *method, far_message *m,
               far_duration timeout, far_error *error);

#endif
