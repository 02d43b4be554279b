/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/refbench: some far__refs side by side, for unit tests. */
#include "support/refbench.h"

#include <string.h>

#include "support/test.h"

far__refs refs[WORKERS];
bool dead[WORKERS];
int64_t now;
int values[8]; /* what references are to; below, how often each was freed */
unsigned freed[8], errors_freed[8], ready, settled;
far__refs_in *last_ready;
far__rref_state settled_state;
unsigned calls_made[FAR__REFS_METHODS];

far__wire_worker who(unsigned w)
{
    return (far__wire_worker){w, 100 + w};
}

int set_up(void **state)
{
    (void)state;
    now = 0;
    ready = settled = 0;
    last_ready = NULL;
    memset(freed, 0, sizeof freed);
    memset(errors_freed, 0, sizeof errors_freed);
    memset(calls_made, 0, sizeof calls_made);
    memset(dead, 0, sizeof dead);
    for (unsigned w = 0; w < WORKERS; w++)
        assert_ok(far__refs_init(&refs[w], who(w), FAR__REFS_GRACE));
    return 0;
}

static int method_of(const far__refs_call *call)
{
    static const char *const names[] = {FAR__REFS_REGISTER, FAR__REFS_EXPIRED, FAR__REFS_ACCEPT,
                                        FAR__REFS_VOID, FAR__REFS_RELEASE};
    int kind = 0;
    while (strcmp(names[kind], call->method) != 0)
        kind++;
    return kind;
}

/* Makes a call of worker w, and brings the answer. */
void perform(unsigned w, far__refs_call *call)
{
    calls_made[method_of(call)]++;
    far__bytes answer = {0};
    far_status status = FAR_EPEER;
    if (!dead[call->to.id])
        status = far__refs_request(&refs[call->to.id], who(w), call->method, call->body,
                                   call->body_size, now, &answer);
    far__refs_answered(&refs[w], call, status, answer.data, answer.size, now);
    far__bytes_fini(&answer);
}

void act(unsigned w, const far__refs_action *a)
{
    switch (a->kind) {
    case FAR__REFS_CALL: perform(w, a->call); break;
    case FAR__REFS_READY:
        ready++;
        last_ready = a->in;
        break;
    case FAR__REFS_SETTLED:
        settled++;
        settled_state = a->rref->state;
        far__rref_drop(a->rref);
        break;
    case FAR__REFS_FREE:
        if (a->value)
            freed[(int *)a->value - values]++;
        else
            errors_freed[(int *)a->error - values]++;
    }
}

/* All that worker w has to do, and then what the others have. */
void settle(void)
{
    bool more = true;
    while (more) {
        more = false;
        for (unsigned w = 0; w < WORKERS; w++) {
            far__refs_action a;
            while (!dead[w] && far__refs_next(&refs[w], now, &a) == FAR_OK) {
                more = true;
                act(w, &a);
            }
        }
    }
}

/* The next call of worker w, not made. */
far__refs_call *next_call(unsigned w)
{
    far__refs_action a;
    while (far__refs_next(&refs[w], now, &a) == FAR_OK) {
        if (a.kind == FAR__REFS_CALL)
            return a.call;
        act(w, &a);
    }
    return NULL;
}

/* Closes all; whatever the test still held must have been dropped. */
int tear_down(void **state)
{
    (void)state;
    for (unsigned w = 0; w < WORKERS; w++) {
        far__refs_close(&refs[w]);
        far__refs_action a;
        while (far__refs_next(&refs[w], now, &a) == FAR_OK) {
            assert_int_not_equal(a.kind, FAR__REFS_CALL);
            act(w, &a);
        }
        far__refs_fini(&refs[w]);
    }
    assert_int_equal(far_memory_live(), 0);
    return 0;
}

far__rref *own(unsigned w, int value)
{
    far__rref *r;
    assert_ok(far__refs_own(&refs[w], &values[value], &r));
    return r;
}

far__refs_out *message(unsigned from, unsigned to, bool is_reply, far__rref *r)
{
    far__refs_out *out;
    size_t index = 9;
    assert_ok(far__refs_out_create(&refs[from], &out));
    assert_ok(far__refs_out_add(out, r, &index));
    assert_int_equal(index, 0);
    assert_ok(far__refs_out_seal(out, who(to), is_reply));
    return out;
}

far_status arrive(unsigned from, unsigned to, const far__refs_out *out, bool is_reply,
                  far__refs_in **in)
{
    far__wire_header h = {.type = is_reply ? FAR__WIRE_REPLY : FAR__WIRE_REQUEST,
                          .ref_count = out->count,
                          .ref_number = out->number,
                          .refs = out->packed};
    return far__refs_arrive(&refs[to], who(from), &h, in);
}

/* Sends r in a request, which is answered at once; what arrived is not ended. */
far__refs_in *request(unsigned from, unsigned to, far__rref *r)
{
    far__refs_out *out = message(from, to, false, r);
    far__refs_in *in;
    assert_ok(arrive(from, to, out, false, &in));
    assert_non_null(in);
    far__refs_out_answered(out);
    return in;
}

/* As request, and the receiver keeps the reference. */
far__rref *pass(unsigned from, unsigned to, far__rref *r)
{
    far__refs_in *in = request(from, to, r);
    far__rref *got = far__refs_in_take(in, 0);
    far__refs_in_end(in);
    return got;
}

far__refs_out *creation(unsigned from, unsigned to, far__rref **r)
{
    far__refs_out *out;
    assert_ok(far__refs_out_create(&refs[from], &out));
    assert_ok(far__refs_create(&refs[from], out, who(to), r));
    assert_ok(far__refs_out_seal(out, who(to), false));
    return out;
}
