/* SPDX-License-Identifier: BSD-3-Clause
 * Tests of proto/roster; tests/sim/test_roster plays it with random joins and losses. */
#include "proto/roster.h"

#include <stdio.h>
#include <string.h>

#include "support/failmem.h"
#include "support/test.h"

static far__join wish_of(const far__roster *r, const char *name, uint64_t incarnation, int64_t rank)
{
    return (far__join){.name = name,
                       .incarnation = incarnation,
                       .rank = rank,
                       .world_size = r->world_size,
                       .addresses = "tcp:127.0.0.1:5"};
}

static far_worker_id admit(far__roster *r, const char *name, uint64_t incarnation, int64_t rank)
{
    far__join wish = wish_of(r, name, incarnation, rank);
    far_worker_id id = 12345;
    far_error error = {0};
    far_status status = far__roster_admit(r, &wish, &id, &error);
    if (status != FAR_OK)
        fail_msg("%s", error.text);
    return id;
}

/* The text is in error->text. */
static void refuse(far__roster *r, const far__join *wish, far_status wanted, far_error *error)
{
    far_worker_id id = 777;
    *error = (far_error){0};
    assert_status(wanted, far__roster_admit(r, wish, &id, error));
    assert_int_equal(id, 777);
    assert_status(wanted, error->status);
    assert_true(strlen(error->text) > 0);
    assert_status(wanted, far__roster_admit(r, wish, &id, NULL));
}

static void refuse_wish(far__roster *r, const char *name, uint64_t incarnation, int64_t rank,
                        far_status wanted, far_error *error)
{
    far__join wish = wish_of(r, name, incarnation, rank);
    refuse(r, &wish, wanted, error);
}

static void has(const far_error *error, const char *part)
{
    if (!strstr(error->text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, error->text);
}

static void names_are_checked(void **state)
{
    (void)state;
    char longest[FAR_NAME_MAX + 2];
    memset(longest, 'a', sizeof longest);
    longest[FAR_NAME_MAX] = 0;
    assert_ok(far__name_check("A-z_0.9:x", NULL));
    assert_ok(far__name_check(longest, NULL));
    longest[FAR_NAME_MAX] = 'a';
    longest[FAR_NAME_MAX + 1] = 0;
    far_error error;
    assert_status(FAR_EINVAL, far__name_check(longest, &error));
    has(&error, "127");
    assert_status(FAR_EINVAL, far__name_check("two words", &error));
    has(&error, "\"two words\"");
    has(&error, "place 4");
    assert_status(FAR_EINVAL, far__name_check("", &error));
    assert_status(FAR_EINVAL, far__name_check(NULL, NULL));
    assert_status(FAR_EINVAL, far__name_check("\xc3\xa4", &error));
}

static void a_fixed_world_fills(void **state)
{
    (void)state;
    far__roster r;
    far__roster_init(&r, 4);
    char text[64];
    assert_int_equal(admit(&r, "a", 1, 0), 0);
    far__roster_missing(&r, text, sizeof text);
    assert_string_equal(text, "rank 1, rank 2, rank 3");
    assert_int_equal(admit(&r, "c", 2, 2), 2);
    far__roster_missing(&r, text, sizeof text);
    assert_string_equal(text, "rank 1, rank 3");
    far__roster_missing(&r, text, 14); /* too little room for both */
    assert_string_equal(text, "2 of 4 worker");
    uint64_t version = r.version;
    assert_int_equal(admit(&r, "c", 2, 2), 2); /* a repeat */
    assert_int_equal(r.version, version);
    assert_false(far__roster_complete(&r));
    assert_int_equal(admit(&r, "b", 3, -1), 1);
    assert_int_equal(admit(&r, "d", 4, -1), 3);
    assert_true(far__roster_complete(&r));
    assert_true(r.version > version);
    far__roster_missing(&r, text, sizeof text);
    assert_string_equal(text, "");
    for (far_worker_id i = 0; i < 4; i++)
        assert_int_equal(far__roster_by_id(&r, i)->id, i);
    assert_null(far__roster_by_id(&r, 4));
    assert_int_equal(far__roster_by_name(&r, "b")->id, 1);
    assert_null(far__roster_by_name(&r, "x"));
    /* It has been complete: one too many harms only itself. */
    far_error error;
    refuse_wish(&r, "e", 5, -1, FAR_EBUSY, &error);
    has(&error, "\"e\"");
    refuse_wish(&r, "e", 5, 3, FAR_EBUSY, &error);
    assert_status(FAR_OK, r.failed);
    assert_int_equal(admit(&r, "d", 4, -1), 3);
    far__roster_fini(&r);
}

static void many_missing_are_counted(void **state)
{
    (void)state;
    far__roster r;
    far__roster_init(&r, UINT32_MAX);
    char text[64];
    admit(&r, "a", 1, 0);
    far__roster_missing(&r, text, sizeof text);
    assert_string_equal(text, "4294967294 of 4294967295 workers");
    assert_int_equal(admit(&r, "b", 2, UINT32_MAX - 1), UINT32_MAX - 1);
    far__roster_fini(&r);
}

static void a_name_twice_fails_a_fixed_world(void **state)
{
    (void)state;
    far__roster r;
    far__roster_init(&r, 3);
    admit(&r, "a", 1, 1);
    far__join wish = wish_of(&r, "a", 2, 2);
    wish.addresses = "tcp:10.0.0.2:7";
    far_error error;
    uint64_t version = r.version;
    refuse(&r, &wish, FAR_EBUSY, &error);
    assert_string_equal(error.text, "the name \"a\" is taken: worker 1 (tcp:127.0.0.1:5) and a "
                                    "newcomer (tcp:10.0.0.2:7)");
    assert_status(FAR_EBUSY, r.failed);
    assert_true(r.version > version);
    /* All others learn the same. */
    far_error other;
    refuse_wish(&r, "b", 3, 0, FAR_EBUSY, &other);
    assert_string_equal(other.text, error.text);
    refuse_wish(&r, "a", 1, 1, FAR_EBUSY, &other);
    assert_string_equal(other.text, error.text);
    far__roster_fini(&r);
}

static void a_rank_twice_fails_a_fixed_world(void **state)
{
    (void)state;
    far__roster r;
    far__roster_init(&r, 3);
    admit(&r, "a", 1, 0);
    far_error error;
    refuse_wish(&r, "b", 2, 0, FAR_EBUSY, &error);
    has(&error, "rank 0");
    has(&error, "\"a\"");
    has(&error, "\"b\"");
    assert_status(FAR_EBUSY, r.failed);
    far__roster_fini(&r);
}

static void bad_wishes_harm_nobody_else(void **state)
{
    (void)state;
    far__roster r;
    far__roster_init(&r, 4);
    far_error error;
    far__join wish = wish_of(&r, "b", 2, 1);
    wish.world_size = 8;
    refuse(&r, &wish, FAR_EINVAL, &error);
    has(&error, "8");
    has(&error, "4");
    wish.world_size = 0;
    refuse(&r, &wish, FAR_EINVAL, &error);
    has(&error, "4");
    refuse_wish(&r, "b", 2, 4, FAR_EINVAL, &error);
    has(&error, "rank 4");
    has(&error, "0..3");
    refuse_wish(&r, "b", 2, -2, FAR_EINVAL, &error);
    refuse_wish(&r, "b b", 2, 1, FAR_EINVAL, &error);
    wish = wish_of(&r, "b", 2, 1);
    wish.addresses = "tcp:\n";
    refuse(&r, &wish, FAR_EINVAL, &error);
    char *huge = test_malloc(5000);
    memset(huge, 'a', 5000);
    huge[4999] = 0;
    wish.addresses = huge;
    refuse(&r, &wish, FAR_EINVAL, &error);
    test_free(huge);
    assert_int_equal(r.count, 0);
    assert_status(FAR_OK, r.failed);
    wish.addresses = NULL;
    far_worker_id id;
    assert_ok(far__roster_admit(&r, &wish, &id, &error));
    assert_string_equal(far__roster_by_id(&r, id)->addresses, "");
    far__roster_fini(&r);

    far__roster_init(&r, 0);
    wish = wish_of(&r, "b", 2, -1);
    wish.world_size = 8;
    refuse(&r, &wish, FAR_EINVAL, &error);
    refuse_wish(&r, "b", 2, UINT32_MAX, FAR_EINVAL, &error);
    far__roster_fini(&r);
}

static void an_open_world_never_gives_an_id_twice(void **state)
{
    (void)state;
    far__roster r;
    far__roster_init(&r, 0);
    far_error error;
    assert_int_equal(admit(&r, "a", 1, 0), 0);
    assert_true(far__roster_complete(&r));
    assert_int_equal(admit(&r, "b", 2, -1), 1);
    refuse_wish(&r, "b", 3, -1, FAR_EBUSY, &error);
    has(&error, "\"b\"");
    assert_status(FAR_OK, r.failed);
    uint64_t version = r.version;
    assert_true(far__roster_set_state(&r, 1, FAR__MEMBER_LOST));
    assert_true(r.version > version);
    assert_false(far__roster_set_state(&r, 1, FAR__MEMBER_LEFT));
    assert_false(far__roster_set_state(&r, 9, FAR__MEMBER_LEFT));
    assert_false(far__roster_set_state(&r, 0, FAR__MEMBER_JOINED));
    assert_string_equal(far__roster_by_id(&r, 1)->addresses, "");
    assert_int_equal(far__roster_by_name(&r, "b")->id, 1);
    /* The lost one itself is refused for ever, its name is free, its id is not. */
    refuse_wish(&r, "b", 2, -1, FAR_EINVAL, &error);
    has(&error, "was lost");
    assert_int_equal(admit(&r, "b", 3, -1), 2);
    assert_int_equal(far__roster_by_name(&r, "b")->id, 2);
    refuse_wish(&r, "c", 4, 1, FAR_EBUSY, &error);
    assert_int_equal(admit(&r, "c", 4, 4), 4);
    assert_int_equal(admit(&r, "d", 5, -1), 3);
    assert_int_equal(admit(&r, "e", 6, -1), 5);
    assert_true(far__roster_set_state(&r, 2, FAR__MEMBER_LEFT));
    assert_int_equal(far__roster_by_name(&r, "b")->id, 2); /* the latest */
    char text[8] = "x";
    far__roster_missing(&r, text, sizeof text);
    assert_string_equal(text, "");
    far__roster_fini(&r);
}

static void ids_of_an_open_world_can_run_out(void **state)
{
    (void)state;
    far__roster r;
    far__roster_init(&r, 0);
    admit(&r, "a", 1, 0);
    admit(&r, "b", 2, UINT32_MAX - 1);
    r.next_id = UINT32_MAX - 2;
    assert_int_equal(admit(&r, "c", 3, -1), UINT32_MAX - 2);
    far_error error;
    refuse_wish(&r, "d", 4, -1, FAR_EBUSY, &error);
    refuse_wish(&r, "d", 4, -1, FAR_EBUSY, &error);
    assert_int_equal(admit(&r, "d", 4, 7), 7);
    far__roster_fini(&r);
}

static void near_names_are_found(void **state)
{
    (void)state;
    far__roster r;
    far__roster_init(&r, 0);
    static const char *const names[] = {"master", "worker1",  "worker2",
                                        "worker", "worker10", "trainer"};
    for (size_t i = 0; i < 6; i++)
        admit(&r, names[i], i, -1);
    char text[64];
    far__roster_near(&r, "worker0", text, sizeof text);
    assert_string_equal(text, "worker1, worker2, worker");
    far__roster_near(&r, "wroker", text, sizeof text);
    assert_string_equal(text, "worker");
    far__roster_near(&r, "mastr", text, sizeof text);
    assert_string_equal(text, "master");
    far__roster_near(&r, "nothing", text, sizeof text);
    assert_string_equal(text, "");
    far__roster_near(&r, "worker0", text, 10);
    assert_string_equal(text, "worker1");
    assert_true(far__roster_set_state(&r, 5, FAR__MEMBER_LOST));
    far__roster_near(&r, "trainer", text, sizeof text);
    assert_string_equal(text, "");
    char huge[1000];
    memset(huge, 'w', sizeof huge);
    huge[sizeof huge - 1] = 0;
    far__roster_near(&r, huge, text, sizeof text);
    far__roster_fini(&r);
}

/* ----------------------------------------------------------------------------------- snapshots */

static far_message *encoded(const far__roster *r)
{
    far_message *m;
    assert_ok(far_message_create(FAR_ENCODING_VALUES, &m));
    assert_ok(far__roster_encode(r, m));
    return m;
}

static void fill(far__roster *r)
{
    far__roster_init(r, 0);
    admit(r, "a", UINT64_MAX, 0);
    admit(r, "b", 2, -1);
    admit(r, "c", 3, -1);
    assert_true(far__roster_set_state(r, 1, FAR__MEMBER_LEFT));
    admit(r, "b", 4, 9);
}

static void assert_same(const far__roster *a, const far__roster *b)
{
    assert_int_equal(a->version, b->version);
    assert_int_equal(a->world_size, b->world_size);
    assert_int_equal(a->next_id, b->next_id);
    assert_int_equal(a->failed, b->failed);
    assert_string_equal(a->failed_text, b->failed_text);
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        assert_int_equal(a->members[i].id, b->members[i].id);
        assert_int_equal(a->members[i].incarnation, b->members[i].incarnation);
        assert_int_equal(a->members[i].state, b->members[i].state);
        assert_string_equal(a->members[i].name, b->members[i].name);
        assert_string_equal(a->members[i].addresses, b->members[i].addresses);
    }
}

static void a_snapshot_gives_the_same_roster(void **state)
{
    (void)state;
    far__roster r, copy;
    fill(&r);
    far__roster_init(&copy, 0);
    far_message *m = encoded(&r);
    bool changed = false;
    assert_ok(far__roster_apply(&copy, m, &changed));
    assert_true(changed);
    assert_same(&r, &copy);
    assert_ok(far__roster_apply(&copy, m, &changed));
    assert_false(changed);
    /* A newer one, then the old one again. */
    admit(&r, "d", 5, -1);
    far_message *newer = encoded(&r);
    assert_ok(far__roster_apply(&copy, newer, &changed));
    assert_true(changed);
    assert_ok(far__roster_apply(&copy, m, &changed));
    assert_false(changed);
    assert_same(&r, &copy);
    far_message_discard(m);
    far_message_discard(newer);
    far__roster_fini(&r);
    far__roster_fini(&copy);
}

static void a_failed_world_is_told(void **state)
{
    (void)state;
    far__roster r, copy;
    far__roster_init(&r, 2);
    far__roster_init(&copy, 2);
    admit(&r, "a", 1, 0);
    far_error error;
    refuse_wish(&r, "a", 2, 1, FAR_EBUSY, &error);
    far_message *m;
    assert_ok(far_message_create(FAR_ENCODING_VALUES, &m));
    assert_ok(far_message_put_int(m, 7)); /* the snapshot is the last value */
    assert_ok(far__roster_encode(&r, m));
    bool changed;
    assert_ok(far__roster_apply(&copy, m, &changed));
    assert_same(&r, &copy);
    assert_string_equal(copy.failed_text, error.text);
    far_message_discard(m);
    far__roster_fini(&r);
    far__roster_fini(&copy);
}

/* One member's fields, to be spoilt one at a time. */
typedef struct spoilt {
    uint64_t id, incarnation, state;
    const char *name, *addresses;
} spoilt;

static far_message *snapshot_of(uint64_t version, uint64_t world_size, uint64_t failed,
                                const spoilt *members, uint32_t count)
{
    far_message *m;
    assert_ok(far_message_create(FAR_ENCODING_VALUES, &m));
    assert_ok(far_message_put_list(m, 7)); /* one more than this version knows */
    assert_ok(far_message_put_uint(m, version));
    assert_ok(far_message_put_uint(m, world_size));
    assert_ok(far_message_put_uint(m, 0));
    assert_ok(far_message_put_uint(m, failed));
    assert_ok(far_message_put_string(m, "", 0));
    assert_ok(far_message_put_list(m, count));
    for (uint32_t i = 0; i < count; i++) {
        assert_ok(far_message_put_list(m, 6));
        assert_ok(far_message_put_uint(m, members[i].id));
        assert_ok(far_message_put_uint(m, members[i].incarnation));
        assert_ok(far_message_put_uint(m, members[i].state));
        assert_ok(far_message_put_string(m, members[i].name, strlen(members[i].name)));
        assert_ok(far_message_put_string(m, members[i].addresses, strlen(members[i].addresses)));
        assert_ok(far_message_put_nil(m));
    }
    assert_ok(far_message_put_nil(m));
    return m;
}

static void apply(far__roster *r, far_message *m, far_status wanted)
{
    bool changed = false;
    assert_status(wanted, far__roster_apply(r, m, &changed));
    assert_int_equal(changed, wanted == FAR_OK);
    far_message_discard(m);
}

static void malformed_snapshots_change_nothing(void **state)
{
    (void)state;
    far__roster r, before;
    far__roster_init(&r, 0);
    far__roster_init(&before, 0);
    const spoilt good[2] = {{0, 1, 0, "a", "x"}, {1, 2, 0, "b", "y z"}};
    apply(&r, snapshot_of(5, 0, 0, good, 2), FAR_OK);
    apply(&before, snapshot_of(5, 0, 0, good, 2), FAR_OK);
    const spoilt bad[] = {
        {0, 2, 0, "b", ""},          {UINT32_MAX, 2, 0, "b", ""}, {1, 3, 0, "b", ""},
        {1, 2, 3, "b", ""},          {1, 2, 0, "", ""},           {1, 2, 0, "b b", ""},
        {1, 2, 0, "b", "\x7f"},      {1, 2, 0, "a", ""},          {1, 2, 0, "b\n", ""},
        {UINT64_MAX, 2, 0, "b", ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const spoilt members[2] = {good[0], bad[i]};
        apply(&r, snapshot_of(6, 0, 0, members, 2), FAR_EPROTO);
        assert_same(&r, &before);
    }
    apply(&r, snapshot_of(6, 1, 0, good, 2), FAR_EPROTO); /* id outside of the world */
    apply(&r, snapshot_of(6, UINT64_MAX, 0, good, 2), FAR_EPROTO);
    apply(&r, snapshot_of(6, 0, 99, good, 2), FAR_EPROTO);
    assert_same(&r, &before);
    const spoilt one_gone[2] = {{0, 1, 1, "b", ""}, good[1]};
    apply(&r, snapshot_of(6, 0, 0, one_gone, 2), FAR_OK); /* the gone may share a name */
    far__roster_fini(&r);
    far__roster_fini(&before);
}

static void every_cut_and_every_changed_byte_is_survived(void **state)
{
    (void)state;
    far__roster r;
    fill(&r);
    far_message *whole = encoded(&r);
    size_t size = far_message_body_size(whole);
    uint8_t bytes[1024];
    assert_true(size <= sizeof bytes);
    for (size_t at = 0; at < size; at++) {
        for (int change = 0; change < 10; change++) {
            memcpy(bytes, far_message_body(whole), size);
            size_t used = change == 0 ? at : size;
            if (change == 9)
                bytes[at] = 0xc1;
            else if (change)
                bytes[at] ^= (uint8_t)(1 << (change - 1));
            far_message *m;
            assert_ok(far_message_create(FAR_ENCODING_VALUES, &m));
            assert_ok(far_message_append(m, bytes, used));
            far__roster copy;
            far__roster_init(&copy, 0);
            bool changed;
            far_status status = far__roster_apply(&copy, m, &changed);
            assert_true(status == FAR_OK || status == FAR_EPROTO);
            if (change == 0)
                assert_status(FAR_EPROTO, status);
            if (status != FAR_OK)
                assert_int_equal(copy.count, 0);
            far__roster_fini(&copy);
            far_message_discard(m);
        }
    }
    far_message_discard(whole);
    far__roster_fini(&r);
}

static void without_memory_nothing_changes(void **state)
{
    (void)state;
    bool failed = true;
    for (size_t n = 1; failed; n++) {
        failmem_begin(n);
        far__roster r, copy;
        far__roster_init(&r, 0);
        far__roster_init(&copy, 0);
        far_worker_id id;
        far_status status = FAR_OK;
        for (uint64_t i = 0; status == FAR_OK && i < 10; i++) {
            char name[8];
            snprintf(name, sizeof name, "w%d", (int)i);
            far__join wish = wish_of(&r, name, i, -1);
            status = far__roster_admit(&r, &wish, &id, NULL);
            assert_int_equal(r.count, i + (status == FAR_OK));
            assert_int_equal(r.version, r.count);
        }
        far_message *m = NULL;
        if (status == FAR_OK)
            status = far_message_create(FAR_ENCODING_VALUES, &m);
        if (status == FAR_OK)
            status = far__roster_encode(&r, m);
        bool changed = false;
        if (status == FAR_OK)
            status = far__roster_apply(&copy, m, &changed);
        failed = failmem_failed();
        assert_status(failed ? FAR_ENOMEM : FAR_OK, status);
        assert_int_equal(copy.count, failed ? 0 : 10);
        far_message_discard(m);
        far__roster_fini(&r);
        far__roster_fini(&copy);
        failmem_end();
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(names_are_checked),
    cmocka_unit_test(a_fixed_world_fills),
    cmocka_unit_test(many_missing_are_counted),
    cmocka_unit_test(a_name_twice_fails_a_fixed_world),
    cmocka_unit_test(a_rank_twice_fails_a_fixed_world),
    cmocka_unit_test(bad_wishes_harm_nobody_else),
    cmocka_unit_test(an_open_world_never_gives_an_id_twice),
    cmocka_unit_test(ids_of_an_open_world_can_run_out),
    cmocka_unit_test(near_names_are_found),
    cmocka_unit_test(a_snapshot_gives_the_same_roster),
    cmocka_unit_test(a_failed_world_is_told),
    cmocka_unit_test(malformed_snapshots_change_nothing),
    cmocka_unit_test(every_cut_and_every_changed_byte_is_survived),
    cmocka_unit_test(without_memory_nothing_changes),
};

FAR_TEST_MAIN(tests)
