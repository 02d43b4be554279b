/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/refs, rules 6 and 7 of docs/references.md, the machine's calls, hostile bytes, no memory. */
#include "support/refbench.h"

#include <string.h>

#include "support/failmem.h"
#include "support/test.h"

/* ------------------------------------------------------------------------------- rules 6 and 7 */

static void a_shutdown_releases_everything(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine), *b = pass(A, B, a);
    far__rref_drop(mine);
    settle();
    for (unsigned w = 0; w < WORKERS; w++)
        far__refs_shutdown(&refs[w]);
    settle();
    assert_int_equal(freed[1], 1);
    for (unsigned w = 0; w < WORKERS; w++)
        assert_true(far__refs_idle(&refs[w]));
    /* What the program still holds fails. */
    assert_status(FAR_ECLOSED, a->status);
    assert_int_equal(b->fault, FAR__RREF_CLOSED);
    far__rref *r;
    assert_status(FAR_ECLOSED, far__refs_own(&refs[O], &values[2], &r));
    far__refs_out *out;
    size_t i;
    assert_ok(far__refs_out_create(&refs[A], &out));
    assert_status(FAR_ECLOSED, far__refs_out_add(out, a, &i));
    assert_status(FAR_ECLOSED, far__refs_create(&refs[A], out, who(O), &r));
    far__refs_out_lost(out);
    assert_int_equal(refs[A].counts.held, 1);
    far__rref_drop(a);
    far__rref_drop(b);
}

static void a_shutdown_waits_for_what_is_on_its_way(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__refs_in *in = request(A, B, a);
    far__refs_shutdown(&refs[A]);
    far__refs_shutdown(&refs[B]);
    assert_false(far__refs_idle(&refs[A]));
    settle();
    far__refs_in_end(in);
    settle();
    assert_true(far__refs_idle(&refs[A]) && far__refs_idle(&refs[B]));
    assert_int_equal(mine->lives, 0);
    far__rref_drop(a);
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 1);
}

static unsigned told;

static void tell(const far__rref *r, void *arg)
{
    assert_string_not_equal(far__rref_state_name(r->state), "?");
    assert_ptr_equal(arg, &told);
    told++;
}

static void tell_holder(far__wire_worker holder, void *arg)
{
    assert_ptr_equal(arg, &told);
    told += holder.id;
}

static void who_holds_what_can_be_seen(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine), *b = pass(O, B, mine);
    told = 0;
    far__refs_each(&refs[O], tell, &told);
    assert_int_equal(told, 1);
    told = 0;
    far__rref_holders(mine, tell_holder, &told);
    assert_int_equal(told, A + B);
    assert_string_equal(far__rref_state_name(99), "?");
    far__rref_drop(a);
    far__rref_drop(b);
    far__rref_drop(mine);
    settle();
}

static void releases_gather(void **state)
{
    (void)state;
    enum { MANY = FAR__REFS_BATCH + 10 };
    static far__rref *all[MANY];
    far__rref *mine = own(O, 1);
    for (unsigned i = 0; i < MANY; i++)
        all[i] = pass(O, A, mine);
    far__rref_drop(all[0]);
    far__refs_call *first = next_call(A);
    assert_int_equal(first->count, 1);
    for (unsigned i = 1; i < MANY; i++)
        far__rref_drop(all[i]);
    assert_false(far__refs_urgent(&refs[A]));
    assert_null(next_call(A)); /* while one is out */
    perform(A, first);
    far__refs_call *second = next_call(A);
    assert_int_equal(second->count, FAR__REFS_BATCH);
    assert_true(second->body_size <= FAR__WIRE_RESERVED_MAX);
    perform(A, second);
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_RELEASE], 3);
    assert_int_equal(mine->lives, 0);
    far__rref_drop(mine);
    settle();
}

/* ------------------------------------------------------------------------------------ the calls */

static void a_call_that_failed_comes_again_as_it_was(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__rref_drop(a);
    far__refs_call *call = next_call(A);
    uint8_t body[64];
    size_t size = call->body_size;
    memcpy(body, call->body, size);
    far__refs_answered(&refs[A], call, FAR_ENOMEM, NULL, 0, now);
    assert_null(next_call(A));
    assert_int_equal(far__refs_next_time(&refs[A]), FAR__REFS_PAUSE);
    assert_false(far__refs_idle(&refs[A]));
    now = FAR__REFS_PAUSE;
    call = next_call(A);
    assert_int_equal(call->body_size, size);
    assert_memory_equal(call->body, body, size);
    /* An answer of the wrong size is none. */
    far__refs_answered(&refs[A], call, FAR_OK, "x", 1, now);
    assert_null(next_call(A));
    now += FAR__REFS_PAUSE;
    settle();
    assert_int_equal(mine->lives, 0);
    far__rref_drop(mine);
    settle();

    /* One that waits when its worker is lost ends with it. */
    mine = own(O, 2);
    a = pass(O, A, mine);
    far__rref_drop(a);
    far__refs_answered(&refs[A], next_call(A), FAR_ESYSTEM, NULL, 0, now);
    assert_ok(far__refs_lost(&refs[A], who(O), now));
    assert_int_equal(refs[A].counts.calls, 0);
    assert_int_equal(refs[A].counts.forks, 0);
    far__rref_drop(mine);
}

static void nobody_can_speak_for_another(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__rref_drop(mine);
    far__refs_out *out = message(A, B, false, a);
    far__rref_drop(a);
    uint8_t accept[8], release[28];
    far__store_u64(accept, refs[A].next_fork - 1);
    far__bytes answer = {0};
    assert_ok(far__refs_request(&refs[A], who(C), FAR__REFS_ACCEPT, accept, 8, now, &answer));
    assert_int_equal(refs[A].children.count, 1);
    far__writer w = far__writer_over(release, sizeof release);
    far__wire_put_worker(&refs[O].self, &w);
    far__write_u64(&w, 1);
    far__write_u64(&w, 0);
    assert_ok(far__refs_request(&refs[O], who(B), FAR__REFS_RELEASE, release, sizeof release, now,
                                &answer));
    settle();
    assert_int_equal(freed[1], 0);
    /* From whom it concerns. */
    assert_ok(far__refs_request(&refs[A], who(B), FAR__REFS_ACCEPT, accept, 8, now, &answer));
    settle();
    assert_int_equal(freed[1], 1);
    far__refs_out_answered(out);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    static const char *const methods[] = {FAR__REFS_REGISTER, FAR__REFS_RELEASE, FAR__REFS_ACCEPT,
                                          FAR__REFS_VOID, FAR__REFS_EXPIRED};
    uint8_t zeros[64] = {0};
    far__bytes answer = {0};
    for (size_t i = 0; i < 5; i++) {
        for (size_t size = 1; size < 8; size++)
            assert_status(FAR_EPROTO, far__refs_request(&refs[O], who(A), methods[i], zeros, size,
                                                        now, &answer));
    }
    assert_status(FAR_EPROTO,
                  far__refs_request(&refs[O], who(A), FAR__REFS_REGISTER, zeros, 48, now, &answer));
    assert_status(FAR_EPROTO,
                  far__refs_request(&refs[O], who(A), FAR__REFS_RELEASE, zeros, 28, now, &answer));
    assert_status(FAR_EPROTO,
                  far__refs_request(&refs[O], who(A), FAR__REFS_VOID, zeros, 16, now, &answer));
    assert_status(FAR_EPROTO,
                  far__refs_request(&refs[O], who(A), FAR__REFS_EXPIRED, zeros, 16, now, &answer));
    assert_status(FAR_EPROTO,
                  far__refs_request(&refs[O], who(A), "far.ref.other", zeros, 8, now, &answer));
    far__bytes_fini(&answer);

    /* A creation for somebody else, by somebody else, or under another number. */
    far__wire_ref good = {
        .kind = FAR__WIRE_REF_CREATED, .owner = who(O), .id = {who(A), 5}, .fork = 1};
    far__wire_ref bad[3] = {good, good, good};
    bad[0].owner = who(B);
    bad[1].id.maker = who(B);
    bad[2].id.counter = 6;
    for (size_t i = 0; i < 3; i++) {
        uint8_t packed[FAR__WIRE_REF_SIZE];
        far__writer w = far__writer_over(packed, sizeof packed);
        far__wire_put_ref(&bad[i], &w);
        far__wire_header h = {
            .type = FAR__WIRE_REQUEST, .ref_count = 1, .ref_number = 5, .refs = packed};
        far__refs_in *in;
        assert_status(FAR_EPROTO, far__refs_arrive(&refs[O], who(A), &h, &in));
    }
    assert_int_equal(refs[O].counts.entries, 0);
}

static void closing_ends_whatever_is_open(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine), *r;
    far__refs_in *in = request(A, B, a);
    far__refs_out *create = creation(A, O, &r), *open = message(A, B, false, a);
    assert_true(far__rref_watch(r));
    far__refs_call *call = next_call(B);
    for (unsigned w = 0; w < WORKERS; w++)
        far__refs_close(&refs[w]);
    assert_int_equal(r->fault, FAR__RREF_CLOSED);
    far__refs_answered(&refs[B], call, FAR_ECANCELED, NULL, 0, now);
    assert_null(next_call(A));
    assert_int_equal(settled, 1);
    far__refs_out_lost(create);
    far__refs_out_answered(open);
    far__refs_in_end(in);
    far__rref_drop(r);
    far__rref_drop(a);
    assert_int_equal(freed[1], 0);
    far__rref_drop(mine);
    assert_null(next_call(O));
    assert_int_equal(freed[1], 1);
}

static void a_machine_needs_memory_to_begin(void **state)
{
    (void)state;
    assert_int_equal(tear_down(NULL), 0);
    bool failed = true;
    for (size_t n = 1; failed; n++) {
        far__refs machine;
        failmem_begin(n);
        far_status status = far__refs_init(&machine, who(O), 0);
        failed = failmem_failed();
        assert_status(failed ? FAR_ENOMEM : FAR_OK, status);
        if (status == FAR_OK) {
            far__refs_close(&machine);
            far__refs_fini(&machine);
        }
        assert_int_equal(far_memory_live(), 0);
        failmem_end();
    }
    assert_int_equal(set_up(NULL), 0);
}

/* A little of everything, where any allocation may fail; each step is repeated until it works. */
static void no_memory_changes_nothing(void **state)
{
    (void)state;
    bool failed = true;
    assert_int_equal(tear_down(NULL), 0);
    failmem_begin(0);
    assert_int_equal(set_up(NULL), 0);
    const size_t before = failmem_count();
    assert_int_equal(tear_down(NULL), 0);
    failmem_end();
    for (size_t n = before + 1; failed; n++) {
        failmem_begin(n);
        assert_int_equal(set_up(NULL), 0);
        size_t i;
        far__rref *mine, *a, *r = NULL;
        far__refs_out *out;
        far__refs_in *in, *in_b;
#define AGAIN(expression)                                                                          \
    do {                                                                                           \
        far_status status_ = (expression);                                                         \
        if (status_ == FAR_ENOMEM)                                                                 \
            status_ = (expression);                                                                \
        assert_ok(status_);                                                                        \
    } while (0)
        AGAIN(far__refs_own(&refs[O], &values[1], &mine));
        AGAIN(far__refs_out_create(&refs[O], &out));
        AGAIN(far__refs_out_add(out, mine, &i));
        AGAIN(far__refs_out_seal(out, who(A), false));
        AGAIN(arrive(O, A, out, false, &in));
        far__refs_out_answered(out);
        a = far__refs_in_take(in, 0);
        far__refs_in_end(in);
        AGAIN(far__refs_connected(&refs[A], 7));
        AGAIN(far__refs_out_create(&refs[A], &out));
        AGAIN(far__refs_create(&refs[A], out, who(B), &r));
        AGAIN(far__refs_out_add(out, a, &i));
        AGAIN(far__refs_out_seal(out, who(B), false));
        AGAIN(arrive(A, B, out, false, &in_b));
        assert_true(far__refs_created(r, FAR_OK, NULL));
        far__refs_out_answered(out);
        assert_true(far__refs_made(far__refs_in_created(in_b), &values[2], FAR_OK, NULL));
        AGAIN(far__refs_out_create(&refs[A], &out));
        AGAIN(far__refs_out_add(out, r, &i));
        AGAIN(far__refs_out_seal(out, who(C), true));
        far__refs_out_replied(out, 7);
        AGAIN(arrive(A, C, out, true, &in));
        far__rref_drop(r);
        far__rref_drop(a);
        far__rref_drop(mine);
        for (int rounds = 0; rounds < 4; rounds++, now += FAR__REFS_PAUSE)
            settle();
        far__refs_in_end(in);
        far__refs_in_end(in_b);
        AGAIN(far__refs_lost(&refs[O], who(C), now));
        for (int rounds = 0; rounds < 4; rounds++, now += FAR__REFS_PAUSE)
            settle();
        assert_int_equal(freed[1], 1);
        assert_int_equal(freed[2], 1);
        failed = failmem_failed();
        assert_int_equal(tear_down(NULL), 0);
        failmem_end();
    }
    assert_int_equal(set_up(NULL), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(a_shutdown_releases_everything, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_shutdown_waits_for_what_is_on_its_way, set_up, tear_down),
    cmocka_unit_test_setup_teardown(who_holds_what_can_be_seen, set_up, tear_down),
    cmocka_unit_test_setup_teardown(releases_gather, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_call_that_failed_comes_again_as_it_was, set_up, tear_down),
    cmocka_unit_test_setup_teardown(nobody_can_speak_for_another, set_up, tear_down),
    cmocka_unit_test_setup_teardown(nonsense_is_refused, set_up, tear_down),
    cmocka_unit_test_setup_teardown(closing_ends_whatever_is_open, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_machine_needs_memory_to_begin, set_up, tear_down),
    cmocka_unit_test_setup_teardown(no_memory_changes_nothing, set_up, tear_down),
};
FAR_TEST_MAIN(tests)
