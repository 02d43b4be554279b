/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/refbench: some far__refs side by side, without a network between them, for the unit
 * tests of proto/refs. What the machines call is brought at once, by settle or call by call. */
#ifndef FAR_TESTS_SUPPORT_REFBENCH_H
#define FAR_TESTS_SUPPORT_REFBENCH_H

#include "proto/refs.h"
#include "proto/refs_state.h"

enum { WORKERS = 4, O = 0, A = 1, B = 2, C = 3 };

extern far__refs refs[WORKERS];
extern bool dead[WORKERS]; /* calls to it answer FAR_EPEER, and it does nothing */
extern int64_t now;
extern int values[8]; /* what references are to; below, how often each was freed */
extern unsigned freed[8], errors_freed[8], ready, settled;
extern far__refs_in *last_ready;
extern far__rref_state settled_state;
extern unsigned calls_made[FAR__REFS_METHODS]; /* by FAR__REFS_DO_... */

far__wire_worker who(unsigned w);
/* Around each case. The tear-down closes all; whatever the case held must have been dropped. */
int set_up(void **state);
int tear_down(void **state);
void perform(unsigned w,
             far__refs_call *call); /* makes a call of worker w, and brings the answer */
void act(unsigned w, const far__refs_action *a);
void settle(void);                     /* all that anybody has to do */
far__refs_call *next_call(unsigned w); /* of worker w, not made; NULL: none */
far__rref *own(unsigned w, int value);
/* With r in it, sealed. */
far__refs_out *message(unsigned from, unsigned to, bool is_reply, far__rref *r);
far_status arrive(unsigned from, unsigned to, const far__refs_out *out, bool is_reply,
                  far__refs_in **in) FAR_MUST_USE;
/* Sends r in a request, which is answered at once; what arrived is not ended. */
far__refs_in *request(unsigned from, unsigned to, far__rref *r);
/* As request, and the receiver keeps the reference. */
far__rref *pass(unsigned from, unsigned to, far__rref *r);
far__refs_out *creation(unsigned from, unsigned to, far__rref **r);

#endif
