/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/refs, rules 1 to 3 of docs/references.md: forks and the messages that carry them. Worker O is
 * the owner. */
#include "support/refbench.h"

#include <string.h>

#include "support/test.h"

/* ------------------------------------------------------------------------------ rules 1 and 2 */

static void a_value_lives_while_anybody_holds_it(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *theirs = pass(O, A, mine);
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 0);
    assert_false(far__refs_idle(&refs[O]));
    far__rref_drop(theirs);
    assert_int_equal(freed[1], 0); /* a drop sends nothing by itself */
    settle();
    assert_int_equal(freed[1], 1);
    assert_true(far__refs_idle(&refs[O]) && far__refs_idle(&refs[A]));
}

static void owner_to_user_the_fork_is_live_when_sealed(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1);
    far__refs_out *out = message(O, A, false, mine);
    assert_int_equal(mine->lives, 1);
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 0);
    far__refs_in *in;
    assert_ok(arrive(O, A, out, false, &in));
    assert_int_equal(in->waiting, 0); /* no question, no waiting */
    far__rref *got = far__refs_in_take(in, 0);
    assert_true(far__rref_confirmed(got));
    far__refs_in_end(in);
    far__refs_out_answered(out);
    far__rref_drop(got);
    settle();
    assert_int_equal(freed[1], 1);
    assert_int_equal(calls_made[FAR__REFS_DO_RELEASE], 1);
    assert_int_equal(calls_made[FAR__REFS_DO_ACCEPT], 0);
}

static void user_to_owner_it_uses_the_value_itself(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *theirs = pass(O, A, mine);
    far__rref_drop(mine);
    far__refs_out *out = message(A, O, false, theirs);
    far__rref_drop(theirs); /* only the message keeps it now */
    settle();
    assert_int_equal(freed[1], 0);
    far__refs_in *in;
    assert_ok(arrive(A, O, out, false, &in));
    far__rref *back = far__refs_in_take(in, 0);
    assert_true(back->is_owner && back->state == FAR__RREF_MADE);
    assert_ptr_equal(back->value, &values[1]);
    far__refs_in_end(in);
    far__refs_out_answered(out);
    settle();
    assert_int_equal(freed[1], 0);
    far__rref_drop(back);
    settle();
    assert_int_equal(freed[1], 1);
}

static void user_to_user_the_parent_waits_until_the_child_is_registered(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__rref_drop(mine);
    far__refs_in *in = request(A, B, a);
    assert_int_equal(in->waiting, 1); /* the function does not start yet */
    far__rref *b = far__refs_in_take(in, 0);
    assert_false(far__rref_confirmed(b));
    far__rref_drop(a);
    assert_null(next_call(A)); /* no release: the child is not accepted */
    assert_true(far__refs_urgent(&refs[B]));
    far__refs_call *call = next_call(B);
    assert_string_equal(call->method, FAR__REFS_REGISTER);
    perform(B, call);
    settle();
    assert_int_equal(ready, 1);
    assert_ptr_equal(last_ready, in);
    assert_int_equal(in->waiting, 0);
    assert_true(far__rref_confirmed(b));
    assert_int_equal(calls_made[FAR__REFS_DO_ACCEPT], 1);
    assert_int_equal(calls_made[FAR__REFS_DO_RELEASE], 1); /* of A's */
    assert_int_equal(freed[1], 0);
    far__refs_in_end(in);
    far__rref_drop(b);
    settle();
    assert_int_equal(freed[1], 1);
}

static void a_fork_that_nobody_wants_is_accepted_without_a_question(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__refs_in_end(request(A, B, a)); /* dropped before the owner was asked */
    far__rref_drop(a);
    far__rref_drop(mine);
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_REGISTER], 0);
    assert_int_equal(calls_made[FAR__REFS_DO_ACCEPT], 1);
    assert_int_equal(freed[1], 1);
    /* But one with children is registered first. */
    mine = own(O, 2);
    a = pass(O, A, mine);
    far__rref_drop(mine);
    far__rref *b = pass(A, B, a);
    far__refs_in *in = request(B, C, b);
    far__rref_drop(a);
    far__rref_drop(b);
    settle();
    assert_int_equal(freed[2], 0);
    far__refs_in_end(in);
    settle();
    assert_int_equal(freed[2], 1);
}

static void a_reference_in_a_reply_is_accepted(void **state)
{
    (void)state;
    assert_ok(far__refs_connected(&refs[O], 7));
    assert_ok(far__refs_connected(&refs[A], 8));
    far__rref *mine = own(O, 1);
    far__refs_out *out = message(O, A, true, mine);
    far__refs_out_replied(out, 7);
    far__refs_in *in;
    assert_ok(arrive(O, A, out, true, &in));
    far__rref *a = far__refs_in_take(in, 0);
    far__refs_in_end(in);
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_ACCEPT], 1);
    assert_int_equal(refs[O].counts.outs, 0);
    /* And from a user back to the owner. */
    out = message(A, O, true, a);
    far__refs_out_replied(out, 8);
    far__rref_drop(a);
    assert_ok(arrive(A, O, out, true, &in));
    far__rref_drop(mine);
    far__refs_in_end(in);
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_ACCEPT], 2);
    assert_int_equal(freed[1], 1);
    assert_int_equal(calls_made[FAR__REFS_DO_VOID], 0);
}

static void a_reply_does_not_wait_for_the_owner(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    assert_ok(far__refs_connected(&refs[A], 7));
    far__refs_out *out = message(A, B, true, a);
    far__refs_out_replied(out, 7);
    far__refs_in *in;
    assert_ok(arrive(A, B, out, true, &in));
    assert_int_equal(in->waiting, 0);
    far__rref *b = far__refs_in_take(in, 0);
    far__refs_in_end(in);
    /* Unconfirmed, it can be passed on all the same. */
    far__rref *c = pass(B, C, b);
    far__rref_drop(mine);
    far__rref_drop(a);
    far__rref_drop(b);
    settle();
    assert_int_equal(ready, 0);
    assert_int_equal(freed[1], 0);
    far__rref_drop(c);
    settle();
    assert_int_equal(freed[1], 1);
}

static void to_oneself_by_the_same_rules(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *again = pass(O, O, mine);
    assert_ptr_equal(again, mine);
    far__rref *a = pass(O, A, mine);
    far__rref_drop(again);
    far__rref_drop(mine);
    far__refs_in *in = request(A, A, a);
    far__rref *second = far__refs_in_take(in, 0);
    assert_ptr_not_equal(second, a); /* another fork of the same reference */
    assert_int_equal(second->id.counter, a->id.counter);
    far__rref_drop(a);
    settle();
    assert_int_equal(ready, 1);
    far__refs_in_end(in);
    assert_int_equal(freed[1], 0);
    far__rref_drop(second);
    settle();
    assert_int_equal(freed[1], 1);
}

static void a_late_registration_finds_the_tombstone(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine), *b = pass(A, B, a);
    far__refs_call *call = next_call(B);
    uint8_t late[64];
    assert_true(call->body_size <= sizeof late);
    memcpy(late, call->body, call->body_size);
    size_t size = call->body_size;
    perform(B, call);
    far__rref_drop(b);
    settle();
    assert_int_equal(mine->lives, 1); /* A's */
    far__bytes answer = {0};
    assert_ok(far__refs_request(&refs[O], who(B), FAR__REFS_REGISTER, late, size, now, &answer));
    assert_int_equal(answer.size, 1);
    assert_int_equal(mine->lives, 1);
    far__bytes_fini(&answer);
    /* It has shrunk into a mark. */
    assert_int_equal(far__refs_peer_known(&refs[O], who(B))->ended.count, 0);
    far__rref_drop(mine);
    far__rref_drop(a);
    settle();
    assert_int_equal(freed[1], 1);
}

/* ------------------------------------------------------------------------------------- rule 3 */

static void what_was_not_taken_goes_with_the_message(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1);
    far__refs_in *in = request(O, A, mine);
    assert_null(far__refs_in_created(in));
    far__refs_in_end(in);
    settle();
    assert_int_equal(mine->lives, 0);
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 1);
}

static void handles_go_by_index_any_number_of_times(void **state)
{
    (void)state;
    far__rref *one = own(O, 1), *two = own(O, 2);
    far__refs_out *out;
    size_t i;
    assert_ok(far__refs_out_create(&refs[O], &out));
    assert_ok(far__refs_out_add(out, one, &i));
    assert_ok(far__refs_out_add(out, two, &i));
    assert_int_equal(i, 1);
    assert_ok(far__refs_out_add(out, one, &i));
    assert_int_equal(i, 0); /* once is enough */
    assert_ok(far__refs_out_seal(out, who(A), false));
    assert_int_equal(out->count, 2);
    far__refs_in *in;
    assert_ok(arrive(O, A, out, false, &in));
    far__refs_out_answered(out);
    far__rref *x = far__refs_in_take(in, 1), *y = far__refs_in_take(in, 1);
    assert_ptr_equal(x, y);
    assert_null(far__refs_in_take(in, 2));
    far__refs_in_end(in);
    far__rref_drop(x);
    settle();
    assert_int_equal(two->lives, 1);
    far__rref_drop(y);
    far__rref_drop(one);
    far__rref_drop(two);
    settle();
    assert_int_equal(freed[1] + freed[2], 2);
}

static void a_message_has_a_limit_of_references(void **state)
{
    (void)state;
    static far__rref *all[FAR__WIRE_REFS_MAX + 1];
    far__refs_out *out;
    size_t i;
    assert_ok(far__refs_out_create(&refs[O], &out));
    for (size_t n = 0; n <= FAR__WIRE_REFS_MAX; n++) {
        all[n] = own(O, 1);
        far_status status = far__refs_out_add(out, all[n], &i);
        assert_status(n < FAR__WIRE_REFS_MAX ? FAR_OK : FAR_ETOOBIG, status);
    }
    assert_ok(far__refs_out_seal(out, who(A), false));
    far__refs_in *in;
    assert_ok(arrive(O, A, out, false, &in));
    far__refs_in_end(in);
    far__refs_out_answered(out);
    for (size_t n = 0; n <= FAR__WIRE_REFS_MAX; n++)
        far__rref_drop(all[n]);
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_RELEASE], 1); /* all in one */
    assert_int_equal(freed[1], FAR__WIRE_REFS_MAX + 1);
}

static void a_double_registers_nothing(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1);
    far__refs_out *out = message(O, A, false, mine);
    far__refs_in *in, *twice = (far__refs_in *)&values[0];
    assert_ok(arrive(O, A, out, false, &in));
    assert_ok(arrive(O, A, out, false, &twice));
    assert_null(twice);
    far__refs_in_end(in);
    assert_ok(arrive(O, A, out, false, &twice)); /* after its end too */
    assert_null(twice);
    far__refs_out_answered(out);
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 1);
}

static void before_it_is_sealed_it_is_rolled_back_in_silence(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1);
    far__refs_out *out;
    size_t i;
    assert_ok(far__refs_out_create(&refs[O], &out));
    assert_ok(far__refs_out_add(out, mine, &i));
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 0); /* the message holds it */
    far__refs_out_lost(out);
    settle();
    assert_int_equal(freed[1], 1);
    assert_null(next_call(O));
}

static void a_message_that_was_lost_is_refused_and_rolled_back(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1);
    far__refs_out *out = message(O, A, false, mine);
    far__wire_header h = {.type = FAR__WIRE_REQUEST, .ref_count = 1, .ref_number = out->number};
    uint8_t packed[FAR__WIRE_REF_SIZE];
    memcpy(packed, out->packed, sizeof packed);
    h.refs = packed;
    far__refs_out_lost(out);
    assert_int_equal(mine->lives, 1); /* it may have arrived: ask */
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_VOID], 1);
    assert_int_equal(mine->lives, 0);
    far__refs_in *in = (far__refs_in *)&values[0];
    assert_ok(far__refs_arrive(&refs[A], who(O), &h, &in));
    assert_null(in);
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 1);
    assert_int_equal(far__refs_peer_known(&refs[A], who(O))->seen.count, 0);
}

static void a_lost_message_that_had_arrived_stands(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1);
    far__refs_out *out = message(O, A, false, mine);
    far__refs_in *in;
    assert_ok(arrive(O, A, out, false, &in));
    far__refs_out_lost(out); /* only its answer was */
    far__rref *a = far__refs_in_take(in, 0);
    far__refs_in_end(in);
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 0);
    far__rref_drop(a);
    settle();
    assert_int_equal(freed[1], 1);
}

static void a_repeated_void_gets_the_first_answer(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1);
    far__refs_out *out = message(O, A, false, mine);
    far__refs_out_lost(out);
    far__refs_call *call = next_call(O);
    far__bytes first = {0}, second = {0};
    assert_ok(far__refs_request(&refs[A], who(O), call->method, call->body, call->body_size, now,
                                &first));
    assert_ok(far__refs_request(&refs[A], who(O), call->method, call->body, call->body_size, now,
                                &second));
    assert_int_equal(first.size, 1);
    assert_int_equal(second.size, 1);
    assert_int_equal(first.data[0], 0);
    assert_int_equal(second.data[0], 0);
    far__refs_answered(&refs[O], call, FAR_OK, second.data, second.size, now);
    far__bytes_fini(&first);
    far__bytes_fini(&second);
    assert_int_equal(mine->lives, 0);
    far__rref_drop(mine);
    settle();
}

static void a_reply_on_a_broken_connection_is_asked_about(void **state)
{
    (void)state;
    assert_ok(far__refs_connected(&refs[O], 7));
    far__rref *mine = own(O, 1);
    far__refs_out_replied(message(O, A, true, mine), 7);
    assert_null(next_call(O)); /* it will arrive */
    far__refs_broke(&refs[O], 7);
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_VOID], 1);
    assert_int_equal(mine->lives, 0);
    /* Broken already, when the agent says so. */
    far__refs_out_replied(message(O, A, true, mine), 7);
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_VOID], 2);
    far__refs_broke(&refs[O], 7);
    far__rref_drop(mine);
    settle();
    assert_int_equal(freed[1], 1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(a_value_lives_while_anybody_holds_it, set_up, tear_down),
    cmocka_unit_test_setup_teardown(owner_to_user_the_fork_is_live_when_sealed, set_up, tear_down),
    cmocka_unit_test_setup_teardown(user_to_owner_it_uses_the_value_itself, set_up, tear_down),
    cmocka_unit_test_setup_teardown(user_to_user_the_parent_waits_until_the_child_is_registered,
                                    set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_fork_that_nobody_wants_is_accepted_without_a_question, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(a_reference_in_a_reply_is_accepted, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_reply_does_not_wait_for_the_owner, set_up, tear_down),
    cmocka_unit_test_setup_teardown(to_oneself_by_the_same_rules, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_late_registration_finds_the_tombstone, set_up, tear_down),
    cmocka_unit_test_setup_teardown(what_was_not_taken_goes_with_the_message, set_up, tear_down),
    cmocka_unit_test_setup_teardown(handles_go_by_index_any_number_of_times, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_message_has_a_limit_of_references, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_double_registers_nothing, set_up, tear_down),
    cmocka_unit_test_setup_teardown(before_it_is_sealed_it_is_rolled_back_in_silence, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(a_message_that_was_lost_is_refused_and_rolled_back, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(a_lost_message_that_had_arrived_stands, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_repeated_void_gets_the_first_answer, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_reply_on_a_broken_connection_is_asked_about, set_up,
                                    tear_down),
};
FAR_TEST_MAIN(tests)
