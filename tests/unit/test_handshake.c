/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/handshake. */
#include "support/test.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>

#include "base/log.h"
#include "support/pair.h"

static void each_role_is_agreed(void **state)
{
    (void)state;
    for (int role = FAR__ROLE_JOIN; role <= FAR__ROLE_SERVE; role++) {
        pair *p = new_pair((far__role)role);
        p->hello.features = 0xff00f0;
        p->acceptor_features = 0xf000ff;
        run(p);
        assert_int_equal(p->d_step, FAR__HANDSHAKE_DONE);
        assert_int_equal(p->a_step, FAR__HANDSHAKE_DONE);
        assert_int_equal(p->judged, 1);
        assert_int_equal(p->d.version, 1);
        assert_int_equal(p->a.version, 1);
        assert_int_equal(p->d.features, 0xf000f0);
        assert_int_equal(p->a.features, 0xf000f0);
        assert_int_equal(p->d.acceptor.id, 2);
        assert_int_equal(p->d.acceptor.incarnation, 222);
        assert_string_equal(p->d.acceptor.name, "bob");
        assert_memory_equal(p->d.acceptor.job, p->acceptor.job, FAR__JOB_SIZE);
        assert_string_equal(p->a.hello.self.name, "alice");
        assert_string_equal(p->a.peer_library, FAR_VERSION);
        pair_end(p);
    }
}

static void names_of_full_length_and_no_judge_work(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    memset(p->hello.self.name, 'x', FAR_NAME_MAX);
    memset(p->acceptor.name, 'Y', FAR_NAME_MAX);
    p->hello.expected = p->acceptor;
    p->judge = NULL;
    run(p);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_DONE);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_DONE);
    assert_string_equal(p->a.hello.self.name, p->hello.self.name);
    assert_string_equal(p->d.acceptor.name, p->acceptor.name);
    pair_end(p);
}

static void the_highest_common_version_is_taken(void **state)
{
    (void)state;
    static const struct {
        uint32_t d_min, d_max, a_min, a_max, agreed;
    } cases[] = {
        {1, 1, 1, 3, 1}, {1, 5, 2, 3, 3}, {2, 4, 1, 9, 4},
        {3, 3, 1, 3, 3}, {1, 1, 2, 3, 0}, {4, 5, 2, 3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pair *p = new_pair(FAR__ROLE_CALLS);
        p->hello.version_min = cases[i].d_min;
        p->hello.version_max = cases[i].d_max;
        p->acceptor_version_min = cases[i].a_min;
        p->acceptor_version_max = cases[i].a_max;
        run(p);
        if (cases[i].agreed) {
            assert_int_equal(p->d_step, FAR__HANDSHAKE_DONE);
            assert_int_equal(p->a_step, FAR__HANDSHAKE_DONE);
            assert_int_equal(p->d.version, cases[i].agreed);
            assert_int_equal(p->a.version, cases[i].agreed);
        } else {
            assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
            assert_status(FAR_EVERSION, p->d.status);
            char part[64];
            snprintf(part, sizeof part, "speaks %u to %u", cases[i].d_min, cases[i].d_max);
            assert_mentions(&p->d.error, part);
            snprintf(part, sizeof part, "(farcall " FAR_VERSION ") %u to %u", cases[i].a_min,
                     cases[i].a_max);
            assert_mentions(&p->d.error, part);
            assert_int_equal(p->d.out_size, 0);
        }
        pair_end(p);
    }
}

/* The acceptor differs from what the dialler wants; `d` and `a` say who must notice. */
static void expect_mismatch(pair *p, const char *part)
{
    run(p);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EPEER, p->d.status);
    assert_mentions(&p->d.error, "another worker answers there");
    assert_mentions(&p->d.error, part);
    assert_int_equal(p->d.out_size, 0);
    assert_int_equal(p->judged, 0);
    pair_end(p);
}

static void another_worker_is_not_taken_for_the_right_one(void **state)
{
    (void)state;
    for (int role = FAR__ROLE_CALLS; role <= FAR__ROLE_SERVE; role++) {
        pair *p = new_pair((far__role)role);
        p->acceptor.job[FAR__JOB_SIZE - 1]++;
        expect_mismatch(p, "of another job");
        p = new_pair((far__role)role);
        p->acceptor.incarnation++;
        expect_mismatch(p, "started anew");
        p = new_pair((far__role)role);
        p->acceptor.id++;
        expect_mismatch(p, "wanted worker 2 \"bob\", found worker 3 \"bob\"");
        p = new_pair((far__role)role);
        set_text(p->acceptor.name, "carol");
        expect_mismatch(p, "wanted worker 2 \"bob\", found worker 2 \"carol\"");
    }
    pair *p = new_pair(FAR__ROLE_CALLS);
    p->hello.expected.name[0] = 0; /* any */
    run(p);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_DONE);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_DONE);
    pair_end(p);
}

/* Does what a dialler does that overlooks a mismatch: proves its secret all the same. */
static void the_acceptor_checks_by_itself(void **state)
{
    (void)state;
    for (int what = 0; what < 6; what++) {
        pair *p = new_pair(FAR__ROLE_CALLS);
        if (what == 0)
            p->hello.expected.job[0]++;
        if (what == 1)
            p->hello.expected.incarnation++;
        if (what == 2)
            p->hello.expected.id++;
        if (what == 3)
            set_text(p->hello.expected.name, "carol");
        if (what == 4)
            p->hello.version_min = p->hello.version_max = 2;
        if (what == 5)
            p->hello.self.incarnation = p->acceptor.incarnation;
        pair_begin(p);
        to_acceptor(p);
        /* Blind it: what was sent and signed stays, what it compares with does not. */
        p->d.hello.expected = p->acceptor;
        p->d.hello.version_min = p->d.hello.version_max = 1;
        p->d.hello.self.incarnation = 111;
        to_dialler(p);
        assert_int_equal(p->d_step, FAR__HANDSHAKE_SEND);
        to_acceptor(p);
        far_status wanted = what == 4 ? FAR_EVERSION : FAR_EPEER;
        assert_int_equal(p->a_step, FAR__HANDSHAKE_FAILED);
        assert_status(wanted, p->a.status);
        assert_int_equal(p->judged, 0);
        to_dialler(p);
        assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
        assert_status(wanted, p->d.status);
        assert_string_equal(p->d.error.text, p->a.error.text);
        pair_end(p);
    }
}

static far_status refuse_long(const far__hello *hello, far_error *error, void *arg)
{
    (void)hello;
    (void)arg;
    char text[512];
    memset(text, 'w', sizeof text);
    memcpy(text + 494, "\xe2\x82\xac", 3); /* across the 496 bytes that fit */
    text[511] = 0;
    return far__error_set(error, FAR_EBUSY, "%s", text);
}

static far_status refuse_lost(const far__hello *hello, far_error *error, void *arg)
{
    (void)arg;
    return far__error_set(error, FAR_EPEER, "\"%s\" was\ndeclared lost", hello->self.name);
}

static far_status refuse_silently(const far__hello *hello, far_error *error, void *arg)
{
    (void)hello;
    (void)error;
    (void)arg;
    return FAR_ECLOSED;
}

static void the_judges_words_arrive(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_JOIN);
    p->judge = refuse_lost;
    run(p);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_FAILED);
    assert_int_equal(p->a.out_size, FAR__VERDICT_SIZE);
    assert_status(FAR_EPEER, p->a.status);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EPEER, p->d.status);
    assert_status(FAR_EPEER, p->d.error.status);
    assert_string_equal(p->d.error.text, "\"alice\" was declared lost");
    pair_end(p);

    p = new_pair(FAR__ROLE_CALLS);
    p->judge = refuse_silently;
    run(p);
    assert_status(FAR_ECLOSED, p->d.status);
    assert_string_equal(p->d.error.text, far_status_text(FAR_ECLOSED));
    pair_end(p);

    p = new_pair(FAR__ROLE_CALLS);
    p->judge = refuse_long;
    run(p);
    assert_status(FAR_EBUSY, p->d.status);
    assert_int_equal(strlen(p->d.error.text), 494);
    assert_int_equal(strspn(p->d.error.text, "w"), 494);
    pair_end(p);
}

static bool holds(const void *where, size_t size, const char *what)
{
    return memmem(where, size, what, strlen(what)) != NULL;
}

static void the_secret_is_wiped(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    set_text(p->dialler_secret, "the job's very own secret");
    set_text(p->acceptor_secret, "the job's very own secret");
    run(p);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_DONE);
    assert_true(holds(&p->d, sizeof p->d, "very own"));
    far__handshake_fini(&p->d);
    far__handshake_fini(&p->a);
    assert_false(holds(&p->d, sizeof p->d, "very own"));
    assert_false(holds(&p->a, sizeof p->a, "very own"));
    assert_false(holds(&p->d, sizeof p->d, "\xd1\xd1\xd1\xd1"));
    assert_false(holds(&p->a, sizeof p->a, "\xac\xac\xac\xac"));
    /* Who the peer is stays known; and nothing is believed any more. */
    assert_string_equal(p->a.hello.self.name, "alice");
    assert_int_equal(far__handshake_received(&p->a, "", 0), FAR__HANDSHAKE_FAILED);
    pair_end(p);
}

/* The bytes of one handshake, so that no change of the format goes unnoticed. */
static void bytes_stand_where_the_document_says(void **state)
{
    (void)state;
    record good;
    record_of(&good);
    const uint8_t *hello = good.bytes[0], *welcome = good.bytes[1];
    assert_int_equal(good.size[0], 512);
    assert_int_equal(good.size[1], 512);
    assert_int_equal(good.size[2], 64);
    assert_int_equal(good.size[3], 512);
    for (int i = 0; i < 4; i++) {
        assert_memory_equal(good.bytes[i], "FARC", 4);
        assert_int_equal(good.bytes[i][4], i + 1);
    }
    assert_int_equal(hello[5], FAR__ROLE_CALLS);
    assert_int_equal(far__load_u32(hello + 8), 1);
    assert_int_equal(far__load_u32(hello + 12), 1);
    assert_int_equal(hello[24], 0xd1);
    assert_int_equal(hello[55], 0xd1);
    assert_string_equal((const char *)hello + 56, FAR_VERSION);
    assert_int_equal(hello[72], 7); /* self: job, incarnation, id, name */
    assert_int_equal(far__load_u64(hello + 88), 111);
    assert_int_equal(far__load_u32(hello + 96), 1);
    assert_int_equal(hello[100], 5);
    assert_string_equal((const char *)hello + 104, "alice");
    assert_int_equal(far__load_u64(hello + 232 + 16), 222);
    assert_string_equal((const char *)hello + 232 + 32, "bob");
    assert_int_equal(welcome[24], 0xac);
    assert_int_equal(far__load_u64(welcome + 88), 222);
    assert_string_equal((const char *)welcome + 104, "bob");
    /* Who signs what, spelled out. */
    uint8_t text[32 + 512 + 512] = "farcall acceptor v1", proof[32];
    memcpy(text + 32, hello, 512);
    memcpy(text + 544, welcome, 512);
    assert_non_null(HMAC(EVP_sha256(), "secret", 6, text, 32 + 512 + 480, proof, NULL));
    assert_memory_equal(welcome + 480, proof, 32);
    memcpy(text, "farcall dialler v1\0", 20);
    assert_non_null(HMAC(EVP_sha256(), "secret", 6, text, sizeof text, proof, NULL));
    assert_memory_equal(good.bytes[2] + 8, proof, 32);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(each_role_is_agreed),
    cmocka_unit_test(names_of_full_length_and_no_judge_work),
    cmocka_unit_test(the_highest_common_version_is_taken),
    cmocka_unit_test(another_worker_is_not_taken_for_the_right_one),
    cmocka_unit_test(the_acceptor_checks_by_itself),
    cmocka_unit_test(the_judges_words_arrive),
    cmocka_unit_test(the_secret_is_wiped),
    cmocka_unit_test(bytes_stand_where_the_document_says),
};
FAR_TEST_MAIN(tests)
