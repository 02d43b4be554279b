/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/refs, rules 4 and 5 of docs/references.md: creations, and losses. Worker O is the owner. */
#include "support/refbench.h"

#include <string.h>

#include "support/test.h"

/* ------------------------------------------------------------------------------------- rule 4 */

static void a_creation_is_confirmed_by_the_owner(void **state)
{
    (void)state;
    far__rref *r;
    far__refs_out *out = creation(A, O, &r);
    assert_false(far__rref_confirmed(r));
    assert_true(far__rref_watch(r));
    far__refs_in *in;
    assert_ok(arrive(A, O, out, false, &in));
    far__rref *entry = far__refs_in_created(in);
    assert_non_null(entry);
    assert_int_equal(entry->state, FAR__RREF_MAKING);
    assert_int_equal(in->waiting, 0);
    assert_true(far__refs_made(entry, &values[1], FAR_OK, NULL));
    far__refs_in_end(in);
    settle();
    assert_int_equal(settled, 0);
    assert_true(far__refs_created(r, FAR_OK, NULL));
    far__refs_out_answered(out);
    settle();
    assert_int_equal(settled, 1);
    assert_true(far__rref_confirmed(r));
    assert_false(far__rref_watch(r));
    assert_int_equal(freed[1], 0);
    far__rref_drop(r);
    settle();
    assert_int_equal(freed[1], 1);
}

static void a_creation_that_failed_is_remembered(void **state)
{
    (void)state;
    far__rref *r;
    far__refs_out *out = creation(A, O, &r);
    far__refs_in *in;
    assert_ok(arrive(A, O, out, false, &in));
    assert_true(far__refs_made(far__refs_in_created(in), NULL, FAR_EREMOTE, &values[1]));
    far__refs_in_end(in);
    assert_true(far__refs_created(r, FAR_EREMOTE, &values[2]));
    far__refs_out_answered(out);
    assert_int_equal(r->fault, FAR__RREF_FAILED);
    assert_status(FAR_EREMOTE, r->status);
    assert_ptr_equal(r->error, &values[2]);
    far__refs_out *other;
    size_t i;
    assert_ok(far__refs_out_create(&refs[A], &other));
    assert_status(FAR_EREMOTE, far__refs_out_add(other, r, &i)); /* passing it on raises */
    far__refs_out_lost(other);
    settle();
    assert_int_equal(errors_freed[1], 0); /* the owner's entry lives until released */
    far__rref_drop(r);
    settle();
    assert_int_equal(errors_freed[1], 1);
    assert_int_equal(errors_freed[2], 1);
}

static void an_expired_creation_gets_the_owners_verdict(void **state)
{
    (void)state;
    far__rref *r;
    far__refs_in *in;
    /* Being made: it is entered as failed, and the late value is not taken. */
    far__refs_out *out = creation(A, O, &r);
    assert_ok(arrive(A, O, out, false, &in));
    far__refs_out_expired(out);
    assert_int_equal(r->state, FAR__RREF_CREATING); /* until the verdict */
    settle();
    assert_status(FAR_ETIMEOUT, r->status);
    assert_true(far__rref_confirmed(r));
    assert_false(far__refs_made(far__refs_in_created(in), &values[1], FAR_OK, NULL));
    far__refs_in_end(in);
    far__rref_drop(r);
    settle();
    assert_true(far__refs_idle(&refs[O]));
    assert_int_equal(refs[O].counts.entries, 0);

    /* Made already: the value stands. */
    out = creation(A, O, &r);
    assert_ok(arrive(A, O, out, false, &in));
    assert_true(far__refs_made(far__refs_in_created(in), &values[2], FAR_OK, NULL));
    far__refs_in_end(in);
    far__refs_out_expired(out);
    settle();
    assert_status(FAR_OK, r->status);
    far__rref_drop(r);
    settle();
    assert_int_equal(freed[2], 1);

    /* Never arrived, and will not any more: nothing to release. */
    memset(calls_made, 0, sizeof calls_made);
    out = creation(A, O, &r);
    far__refs_out_expired(out);
    settle();
    assert_status(FAR_ETIMEOUT, r->status);
    assert_false(far__rref_confirmed(r));
    far__rref_drop(r);
    settle();
    assert_int_equal(calls_made[FAR__REFS_DO_RELEASE], 0);
    assert_true(far__refs_idle(&refs[A]));
}

static void a_lost_creation_fails_or_stands(void **state)
{
    (void)state;
    far__rref *r;
    far__refs_in *in;
    far__refs_out *out = creation(A, O, &r);
    far__refs_out_lost(out);
    settle();
    assert_status(FAR_EPEER, r->status);
    assert_int_equal(r->fault, FAR__RREF_FAILED);
    far__rref_drop(r);
    /* It was there, only the answer got lost: the owner has the verdict. */
    out = creation(A, O, &r);
    assert_ok(arrive(A, O, out, false, &in));
    far__refs_out_lost(out);
    settle();
    assert_status(FAR_OK, r->status);
    assert_true(far__rref_confirmed(r));
    far__rref_drop(r);
    settle();
    assert_true(far__refs_made(far__refs_in_created(in), &values[1], FAR_OK, NULL));
    far__refs_in_end(in); /* nobody wants the value any more */
    settle();
    assert_int_equal(freed[1], 1);
}

static void a_fetch_that_overtakes_the_creation_waits(void **state)
{
    (void)state;
    far__rref *r;
    far__refs_in *fetch, *in;
    far__refs_out *out = creation(A, O, &r);
    fetch = request(A, O, r);
    far__rref *entry = far__refs_in_take(fetch, 0);
    assert_int_equal(entry->state, FAR__RREF_AWAITED);
    assert_true(far__rref_watch(entry));
    assert_true(far__rref_watch(entry)); /* tells once all the same */
    assert_ok(arrive(A, O, out, false, &in));
    assert_ptr_equal(far__refs_in_created(in), entry);
    settle();
    assert_int_equal(settled, 0);
    assert_true(far__refs_made(entry, &values[1], FAR_OK, NULL));
    settle();
    assert_int_equal(settled, 1);
    assert_int_equal(settled_state, FAR__RREF_MADE);
    far__refs_in_end(in);
    far__refs_in_end(fetch);
    far__rref_drop(entry);
    assert_true(far__refs_created(r, FAR_OK, NULL));
    far__refs_out_answered(out);
    far__rref_drop(r);
    settle();
    assert_int_equal(freed[1], 1);
}

static void who_awaits_a_creation_learns_that_it_never_comes(void **state)
{
    (void)state;
    far__rref *r;
    far__refs_out *out = creation(A, O, &r);
    far__rref *b = pass(A, B, r); /* registers under an id that the owner does not know yet */
    settle();
    assert_true(far__rref_confirmed(b)); /* being made is a yes */
    far__refs_in *fetch = request(B, O, b);
    far__rref *entry = far__refs_in_take(fetch, 0);
    assert_true(far__rref_watch(entry));
    far__refs_out_lost(out);
    settle();
    assert_int_equal(settled, 1);
    assert_int_equal(entry->fault, FAR__RREF_FAILED);
    far__rref_drop(entry);
    far__refs_in_end(fetch);
    far__rref_drop(r);
    far__rref_drop(b);

    /* Or its creator dies. */
    out = creation(A, O, &r);
    fetch = request(A, O, r);
    entry = far__refs_in_take(fetch, 0);
    assert_true(far__rref_watch(entry));
    assert_ok(far__refs_lost(&refs[O], who(A), now));
    settle();
    assert_int_equal(settled, 2);
    assert_status(FAR_EPEER, entry->status);
    far__rref_drop(entry);
    far__refs_in_end(fetch);
    far__refs_out_answered(out);
    far__rref_drop(r);
}

static void remote_to_oneself_is_an_owners_reference(void **state)
{
    (void)state;
    far__rref *r;
    assert_ok(far__refs_own(&refs[O], NULL, &r));
    assert_true(r->is_owner && far__rref_confirmed(r));
    assert_int_equal(r->state, FAR__RREF_MAKING);
    assert_true(far__rref_watch(r));
    assert_true(far__refs_made(r, &values[1], FAR_OK, NULL));
    settle();
    assert_int_equal(settled, 1);
    far__rref_drop(r);
    settle();
    assert_int_equal(freed[1], 1);
}

/* ------------------------------------------------------------------------------------- rule 5 */

static void a_lost_users_forks_are_kept_for_a_while(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__rref_drop(mine);
    dead[A] = true;
    assert_ok(far__refs_lost(&refs[O], who(A), now));
    assert_ok(far__refs_lost(&refs[O], who(A), now + FAR_SECOND)); /* said twice */
    assert_int_equal(far__refs_next_time(&refs[O]), FAR__REFS_GRACE);
    now = FAR__REFS_GRACE - 1;
    settle();
    assert_int_equal(freed[1], 0);
    now = FAR__REFS_GRACE;
    settle();
    assert_int_equal(freed[1], 1);
    assert_int_equal(far__refs_next_time(&refs[O]), FAR__NEVER);
    far__rref_drop(a);
}

static void a_lost_middle_mans_children_register_in_time(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        far__rref *mine = own(O, 1 + late), *a = pass(O, A, mine);
        far__rref_drop(mine);
        far__refs_in *in = request(A, B, a);
        far__rref *b = far__refs_in_take(in, 0);
        far__refs_in_end(in);
        settle();
        far__rref_drop(a);
        settle(); /* now only B's is live */
        far__refs_in *last = request(B, C, b);
        far__rref *c = far__refs_in_take(last, 0);
        far__wire_worker gone = who(B);
        int64_t began = now;
        assert_ok(far__refs_lost(&refs[O], gone, now));
        if (late) {
            now = began + FAR__REFS_GRACE;
            far__refs_action act_now;
            while (far__refs_next(&refs[O], now, &act_now) == FAR_OK)
                act(O, &act_now);
            assert_int_equal(freed[2], 1);
        }
        far__refs_call *call = next_call(C);
        perform(C, call);
        assert_int_equal(c->fault, late ? FAR__RREF_GONE : FAR__RREF_GOOD);
        assert_int_equal(last->waiting, 0); /* an error is an answer: the function runs */
        dead[B] = true;
        assert_ok(far__refs_lost(&refs[C], gone, now));
        settle();
        now += FAR__REFS_GRACE;
        settle();
        assert_int_equal(freed[1 + late], late);
        far__refs_in_end(last);
        far__rref_drop(c);
        far__rref_drop(b);
        settle();
        assert_int_equal(freed[1 + late], 1);
        if (late)
            return;
        assert_int_equal(tear_down(NULL), 0);
        assert_int_equal(set_up(NULL), 0);
    }
}

static void a_parent_waits_for_a_lost_receivers_children_too(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__rref_drop(mine);
    far__refs_in *in = request(A, B, a); /* B dies before it asks the owner */
    far__rref_drop(a);
    dead[B] = true;
    assert_ok(far__refs_lost(&refs[A], who(B), now));
    assert_ok(far__refs_lost(&refs[O], who(B), now));
    settle();
    assert_int_equal(freed[1], 0);
    now = FAR__REFS_GRACE;
    settle();
    assert_int_equal(freed[1], 1);
    far__refs_in_end(in);
}

static void when_the_owner_is_lost_every_use_fails(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine), *b;
    far__refs_in *in = request(A, B, a); /* waits for the owner */
    b = far__refs_in_take(in, 0);
    dead[O] = true;
    assert_ok(far__refs_lost(&refs[B], who(O), now));
    settle();
    assert_int_equal(ready, 1); /* lost is an answer */
    assert_int_equal(b->fault, FAR__RREF_OWNER_LOST);
    assert_status(FAR_EPEER, b->status);
    far__refs_out *out;
    size_t i;
    assert_ok(far__refs_out_create(&refs[B], &out));
    assert_status(FAR_EPEER, far__refs_out_add(out, b, &i));
    far__refs_out_lost(out);
    /* A learns it by its own release. */
    far__rref_drop(a);
    settle();
    assert_true(far__refs_peer_known(&refs[A], who(O))->lost);
    far__refs_in_end(in);
    far__rref_drop(b);
    settle();
    /* One that comes after the loss. */
    assert_status(FAR_EPEER, far__refs_arrive(&refs[B], who(O),
                                              &(far__wire_header){.ref_count = 1,
                                                                  .ref_number = 9,
                                                                  .refs = (const uint8_t *)values},
                                              &in));
    now = FAR__REFS_GRACE;
    settle();
    assert_true(far__refs_idle(&refs[A]) && far__refs_idle(&refs[B]));
    far__rref_drop(mine);
}

static void an_owner_is_lost_while_it_is_asked(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__refs_in *in = request(A, B, a);
    far__refs_call *call = next_call(B);
    dead[O] = true;
    assert_ok(far__refs_lost(&refs[B], who(O), now));
    assert_int_equal(in->waiting, 1);
    perform(B, call);
    settle();
    assert_int_equal(ready, 1);
    far__refs_in_end(in);
    far__rref_drop(a);
    far__rref_drop(mine);
    settle();
}

static void who_leaves_has_released_everything(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1), *a = pass(O, A, mine);
    far__rref_drop(mine);
    dead[A] = true;
    assert_ok(far__refs_left(&refs[O], who(A), now));
    settle();
    assert_int_equal(freed[1], 1);
    far__rref_drop(a);
}

static void a_new_incarnation_is_somebody_else(void **state)
{
    (void)state;
    far__rref *mine = own(O, 1);
    far__refs_out *out = message(O, A, false, mine);
    far__refs_in *in;
    assert_ok(arrive(O, A, out, false, &in));
    far__refs_out_answered(out);
    far__wire_worker again = {A, 999};
    far__refs_peer *p = far__refs_peer_of(&refs[O], again);
    assert_ptr_not_equal(p, far__refs_peer_known(&refs[O], who(A)));
    /* Its release of the other's fork does nothing. */
    uint8_t body[28];
    far__writer w = far__writer_over(body, sizeof body);
    far__wire_put_worker(&refs[O].self, &w);
    far__write_u64(&w, 1);
    far__write_u64(&w, 0);
    far__bytes answer = {0};
    assert_ok(
        far__refs_request(&refs[O], again, FAR__REFS_RELEASE, body, sizeof body, now, &answer));
    assert_int_equal(mine->lives, 1);
    assert_ok(
        far__refs_request(&refs[O], who(A), FAR__REFS_RELEASE, body, sizeof body, now, &answer));
    assert_int_equal(mine->lives, 0);
    far__refs_in_end(in);
    far__rref_drop(mine);
    settle();
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(a_creation_is_confirmed_by_the_owner, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_creation_that_failed_is_remembered, set_up, tear_down),
    cmocka_unit_test_setup_teardown(an_expired_creation_gets_the_owners_verdict, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_lost_creation_fails_or_stands, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_fetch_that_overtakes_the_creation_waits, set_up, tear_down),
    cmocka_unit_test_setup_teardown(who_awaits_a_creation_learns_that_it_never_comes, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(remote_to_oneself_is_an_owners_reference, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_lost_users_forks_are_kept_for_a_while, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_lost_middle_mans_children_register_in_time, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(a_parent_waits_for_a_lost_receivers_children_too, set_up,
                                    tear_down),
    cmocka_unit_test_setup_teardown(when_the_owner_is_lost_every_use_fails, set_up, tear_down),
    cmocka_unit_test_setup_teardown(an_owner_is_lost_while_it_is_asked, set_up, tear_down),
    cmocka_unit_test_setup_teardown(who_leaves_has_released_everything, set_up, tear_down),
    cmocka_unit_test_setup_teardown(a_new_incarnation_is_somebody_else, set_up, tear_down),
};
FAR_TEST_MAIN(tests)
