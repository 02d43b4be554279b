/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/handshake: wrong secrets, and messages that were changed, repeated or sent back. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "support/pair.h"

static void a_wrong_secret_is_seen_by_the_dialler(void **state)
{
    (void)state;
    static const char *const secrets[] = {"other", "secre", "secret2", "Secret"};
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++) {
        pair *p = new_pair(FAR__ROLE_CALLS);
        set_text(p->acceptor_secret, secrets[i]);
        run(p);
        assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
        assert_status(FAR_EAUTH, p->d.status);
        assert_status(FAR_EAUTH, p->d.error.status);
        assert_int_equal(p->d.out_size, 0);
        assert_mentions(&p->d.error, "FARCALL_SECRET_FILE");
        /* Not a word of who the stranger claimed to be is believed. */
        assert_string_equal(p->d.acceptor.name, "");
        assert_int_equal(p->judged, 0);
        pair_end(p);
    }
}

/* A dialler that goes on although the acceptor's proof did not convince it. */
static void a_wrong_secret_is_seen_by_the_acceptor(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    pair_begin(p);
    to_acceptor(p);
    pair *q = new_pair(FAR__ROLE_CALLS);
    pair_begin(q);
    /* Another secret, but the same messages so far. */
    set_text(q->dialler_secret, "wrong");
    set_text(q->acceptor_secret, "wrong");
    pair_begin(q);
    to_acceptor(q);
    to_dialler(q);
    p->a_step = far__handshake_received(&p->a, q->d.out, q->d.out_size);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EAUTH, p->a.status);
    assert_int_equal(p->a.out_size, FAR__VERDICT_SIZE);
    assert_int_equal(p->judged, 0);
    q->d_step = far__handshake_received(&q->d, p->a.out, p->a.out_size);
    assert_int_equal(q->d_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EAUTH, q->d.status);
    assert_mentions(&q->d.error, "FARCALL_SECRET");
    assert_mentions(&q->d.error, "FARCALL_SECRET_FILE");
    assert_mentions(&q->d.error, "user's secret file");
    assert_mentions(&q->d.error, "both");
    pair_end(q);
    pair_end(p);
}

static void a_dialler_told_its_own_words_is_not_convinced(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_JOIN);
    pair_begin(p);
    uint8_t hello[FAR__HELLO_SIZE];
    memcpy(hello, p->d.out, sizeof hello);
    p->d_step = far__handshake_received(&p->d, hello, sizeof hello);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EPROTO, p->d.status);
    /* The same with the kind of a welcome. */
    pair_begin(p);
    hello[4] = 2;
    hello[5] = 0;
    p->d_step = far__handshake_received(&p->d, hello, sizeof hello);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
    assert_true(p->d.status == FAR_EPROTO || p->d.status == FAR_EAUTH);
    pair_end(p);
}

static void the_acceptors_proof_is_not_the_diallers(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    pair_begin(p);
    to_acceptor(p);
    uint8_t proof[FAR__PROOF_SIZE] = {'F', 'A', 'R', 'C', 3};
    memcpy(proof + 8, p->a.out + FAR__WELCOME_SIZE - 32, 32);
    p->a_step = far__handshake_received(&p->a, proof, sizeof proof);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EAUTH, p->a.status);
    assert_int_equal(p->judged, 0);
    pair_end(p);
}

/* A stranger who connects a worker's dialling to the same worker's accepting. */
static void a_worker_does_not_talk_to_itself(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_JOIN);
    p->acceptor.incarnation = p->hello.self.incarnation;
    run(p);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EPEER, p->d.status);
    assert_mentions(&p->d.error, "itself");
    pair_end(p);
}

static void an_old_proof_is_worth_nothing(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    pair_begin(p);
    uint8_t hello[FAR__HELLO_SIZE], proof[FAR__PROOF_SIZE], welcome[FAR__WELCOME_SIZE];
    memcpy(hello, p->d.out, sizeof hello);
    to_acceptor(p);
    memcpy(welcome, p->a.out, sizeof welcome);
    to_dialler(p);
    memcpy(proof, p->d.out, sizeof proof);
    to_acceptor(p);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_DONE);
    /* To an acceptor with a fresh nonce ... */
    p->acceptor_nonce = 0xad;
    pair_begin(p);
    assert_int_equal(far__handshake_received(&p->a, hello, sizeof hello), FAR__HANDSHAKE_SEND);
    assert_int_equal(far__handshake_received(&p->a, proof, sizeof proof), FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EAUTH, p->a.status);
    /* ... and to a dialler with one. */
    p->dialler_nonce = 0xd2;
    pair_begin(p);
    assert_int_equal(far__handshake_received(&p->d, welcome, sizeof welcome),
                     FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EAUTH, p->d.status);
    pair_end(p);
}

static void a_second_proof_is_refused(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    pair_begin(p);
    to_acceptor(p);
    to_dialler(p);
    to_acceptor(p);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_DONE);
    to_acceptor(p);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EPROTO, p->a.status);
    assert_int_equal(p->a.out_size, 0);
    assert_int_equal(p->judged, 1);
    pair_end(p);
}

static void only_exact_sizes_are_read(void **state)
{
    (void)state;
    record good;
    record_of(&good);
    pair *p = new_pair(FAR__ROLE_CALLS);
    for (int which = 0; which < 4; which++) {
        for (size_t size = 0; size <= FAR__HANDSHAKE_MAX + 8; size++) {
            /* On the heap, so that a sanitizer sees a read behind the end. */
            uint8_t *bytes = calloc(1, size ? size : 1);
            size_t have = size < good.size[which] ? size : good.size[which];
            memcpy(bytes, good.bytes[which], have);
            far__handshake_step step;
            far__handshake *listener = give(p, &good, which, bytes, size, &step);
            free(bytes);
            if (size == good.size[which]) {
                assert_int_not_equal(step, FAR__HANDSHAKE_FAILED);
                continue;
            }
            assert_int_equal(step, FAR__HANDSHAKE_FAILED);
            assert_status(FAR_EPROTO, listener->status);
            assert_int_equal(listener->out_size, 0);
        }
    }
    pair_end(p);
}

static void only_the_message_that_is_due_is_read(void **state)
{
    (void)state;
    record good;
    record_of(&good);
    pair *p = new_pair(FAR__ROLE_CALLS);
    for (int due = 0; due < 4; due++) {
        for (int given = 0; given < 4; given++) {
            if (given == due)
                continue;
            far__handshake_step step;
            far__handshake *listener =
                give(p, &good, due, good.bytes[given], good.size[given], &step);
            assert_int_equal(step, FAR__HANDSHAKE_FAILED);
            assert_status(FAR_EPROTO, listener->status);
        }
    }
    pair_end(p);
}

static void no_byte_can_be_changed(void **state)
{
    (void)state;
    record good;
    record_of(&good);
    pair *p = new_pair(FAR__ROLE_CALLS);
    for (int which = 1; which < 3; which++) { /* WELCOME and PROOF */
        for (size_t at = 0; at < good.size[which]; at++) {
            for (unsigned bit = 0; bit < 8; bit++) {
                uint8_t bytes[FAR__HANDSHAKE_MAX];
                memcpy(bytes, good.bytes[which], sizeof bytes);
                bytes[at] ^= (uint8_t)(1u << bit);
                far__handshake_step step;
                far__handshake *listener = give(p, &good, which, bytes, good.size[which], &step);
                assert_int_equal(step, FAR__HANDSHAKE_FAILED);
                assert_true(listener->status == FAR_EAUTH || listener->status == FAR_EPROTO);
            }
        }
    }
    assert_int_equal(p->judged, 0);
    pair_end(p);
}

/* A changed HELLO is answered, but the dialler does not take the answer for one to its own. */
static void a_changed_hello_is_seen_later(void **state)
{
    (void)state;
    record good;
    record_of(&good);
    pair *p = new_pair(FAR__ROLE_CALLS);
    size_t answered = 0;
    for (size_t at = 0; at < FAR__HELLO_SIZE; at++) {
        uint8_t bytes[FAR__HELLO_SIZE];
        memcpy(bytes, good.bytes[0], sizeof bytes);
        bytes[at] ^= 1;
        pair_begin(p);
        p->a_step = far__handshake_received(&p->a, bytes, sizeof bytes);
        if (p->a_step == FAR__HANDSHAKE_FAILED) {
            assert_status(FAR_EPROTO, p->a.status);
            assert_int_equal(p->a.out_size, 0);
            continue;
        }
        answered++;
        to_dialler(p);
        assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
        assert_status(FAR_EAUTH, p->d.status);
        p->a_step = far__handshake_received(&p->a, good.bytes[2], good.size[2]);
        assert_int_equal(p->a_step, FAR__HANDSHAKE_FAILED);
        assert_status(FAR_EAUTH, p->a.status);
    }
    assert_true(answered > 100);
    assert_int_equal(p->judged, 0);
    pair_end(p);
}

static void padding_is_zero(void **state)
{
    (void)state;
    record good;
    record_of(&good);
    pair *p = new_pair(FAR__ROLE_CALLS);
    static const size_t places[] = {6, 7, 69, 71, 101, 103, 104 + 5, 231, 391, 392, 511};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint8_t bytes[FAR__HELLO_SIZE];
        memcpy(bytes, good.bytes[0], sizeof bytes);
        bytes[places[i]] = 'x';
        far__handshake_step step;
        give(p, &good, 0, bytes, sizeof bytes, &step);
        assert_int_equal(step, FAR__HANDSHAKE_FAILED);
        assert_status(FAR_EPROTO, p->a.status);
    }
    pair_end(p);
}

static void the_form_of_a_hello_is_checked(void **state)
{
    (void)state;
    record good;
    record_of(&good);
    pair *p = new_pair(FAR__ROLE_CALLS);
    static const struct {
        size_t at;
        uint8_t value;
    } changes[] = {
        {0, 'f'},   {4, 0},   {4, 5},      {5, 0}, /* role */
        {5, 4},     {8, 0},   {8, 2},              /* versions */
        {56, 0x1b},                                /* library */
        {100, 128},                                /* name */
        {104, '/'}, {104, 0}, {104, 0xc3},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint8_t bytes[FAR__HELLO_SIZE];
        memcpy(bytes, good.bytes[0], sizeof bytes);
        assert_int_not_equal(bytes[changes[i].at], changes[i].value);
        bytes[changes[i].at] = changes[i].value;
        far__handshake_step step;
        give(p, &good, 0, bytes, sizeof bytes, &step);
        assert_int_equal(step, FAR__HANDSHAKE_FAILED);
        assert_status(FAR_EPROTO, p->a.status);
    }
    pair_end(p);
}

static void verdicts_are_checked(void **state)
{
    (void)state;
    record good;
    record_of(&good);
    pair *p = new_pair(FAR__ROLE_CALLS);
    static const struct {
        size_t at;
        uint8_t value;
        far_status status;
    } changes[] = {
        {0, 0, FAR_EPROTO},        {4, 3, FAR_EPROTO},     {5, 1, FAR_EPROTO},
        {6, 1, FAR_EPROTO},        {12, 1, FAR_EPROTO},    {14, 1, FAR_EPROTO},
        {16, 'x', FAR_EPROTO},     {511, 'x', FAR_EPROTO}, {13, 2, FAR_EPROTO},
        {8, FAR_EAUTH, FAR_EAUTH}, {8, 200, FAR_EPEER}, /* of a newer version */
        {11, 0x80, FAR_EPEER},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint8_t bytes[FAR__VERDICT_SIZE];
        memcpy(bytes, good.bytes[3], sizeof bytes);
        bytes[changes[i].at] = changes[i].value;
        far__handshake_step step;
        give(p, &good, 3, bytes, sizeof bytes, &step);
        assert_int_equal(step, FAR__HANDSHAKE_FAILED);
        assert_status(changes[i].status, p->d.status);
        assert_true(p->d.error.text[0]);
    }
    uint8_t bytes[FAR__VERDICT_SIZE];
    memcpy(bytes, good.bytes[3], sizeof bytes);
    bytes[8] = FAR_EPEER;
    bytes[12] = 0xf1; /* 497 bytes of text do not fit */
    bytes[13] = 1;
    memset(bytes + 16, 'x', sizeof bytes - 16);
    far__handshake_step step;
    give(p, &good, 3, bytes, sizeof bytes, &step);
    assert_status(FAR_EPROTO, p->d.status);
    bytes[12] = 0xf0;
    give(p, &good, 3, bytes, sizeof bytes, &step);
    assert_status(FAR_EPEER, p->d.status);
    assert_int_equal(strlen(p->d.error.text), 496);
    bytes[8] = FAR_OK; /* success has nothing to say */
    give(p, &good, 3, bytes, sizeof bytes, &step);
    assert_status(FAR_EPROTO, p->d.status);
    bytes[8] = FAR_EPEER;
    bytes[100] = 0;
    give(p, &good, 3, bytes, sizeof bytes, &step);
    assert_status(FAR_EPROTO, p->d.status);
    pair_end(p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_wrong_secret_is_seen_by_the_dialler),
    cmocka_unit_test(a_wrong_secret_is_seen_by_the_acceptor),
    cmocka_unit_test(a_dialler_told_its_own_words_is_not_convinced),
    cmocka_unit_test(the_acceptors_proof_is_not_the_diallers),
    cmocka_unit_test(a_worker_does_not_talk_to_itself),
    cmocka_unit_test(an_old_proof_is_worth_nothing),
    cmocka_unit_test(a_second_proof_is_refused),
    cmocka_unit_test(only_exact_sizes_are_read),
    cmocka_unit_test(only_the_message_that_is_due_is_read),
    cmocka_unit_test(no_byte_can_be_changed),
    cmocka_unit_test(a_changed_hello_is_seen_later),
    cmocka_unit_test(padding_is_zero),
    cmocka_unit_test(the_form_of_a_hello_is_checked),
    cmocka_unit_test(verdicts_are_checked),
};
FAR_TEST_MAIN(tests)
