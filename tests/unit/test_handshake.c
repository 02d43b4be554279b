/* SPDX-License-Identifier: BSD-3-Clause
 * tests/unit: proto/handshake. */
#include "support/test.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "proto/handshake.h"

/* Both sides of one connection, and what the messages were. */
typedef struct pair {
    far__hello hello;
    far__identity acceptor;
    char dialler_secret[32], acceptor_secret[32];
    uint8_t dialler_nonce, acceptor_nonce; /* repeated */
    uint32_t acceptor_version_min, acceptor_version_max;
    uint64_t acceptor_features;
    far__judge_fn judge;
    int judged;

    far__handshake d, a;
    far__handshake_step d_step, a_step;
} pair;

static far_status approve(const far__hello *hello, far_error *error, void *arg)
{
    (void)error;
    pair *p = arg;
    p->judged++;
    assert_int_equal(hello->role, p->hello.role);
    assert_memory_equal(hello->self.job, p->hello.self.job, FAR__JOB_SIZE);
    assert_int_equal(hello->self.id, p->hello.self.id);
    assert_int_equal(hello->self.incarnation, p->hello.self.incarnation);
    assert_string_equal(hello->self.name, p->hello.self.name);
    return FAR_OK;
}

static void identify(far__identity *out, uint8_t job, far_worker_id id, uint64_t incarnation,
                     const char *name)
{
    memset(out, 0, sizeof *out);
    memset(out->job, job, FAR__JOB_SIZE);
    out->id = id;
    out->incarnation = incarnation;
    strcpy(out->name, name);
}

static pair *new_pair(far__role role)
{
    pair *p = calloc(1, sizeof *p);
    p->hello.role = role;
    identify(&p->hello.self, 7, 1, 111, "alice");
    identify(&p->acceptor, 7, 2, 222, "bob");
    p->hello.expected = p->acceptor;
    if (role == FAR__ROLE_JOIN) {
        identify(&p->hello.self, 0, UINT32_MAX, 111, "alice");
        memset(&p->hello.expected, 0, sizeof p->hello.expected);
    }
    p->hello.version_min = p->hello.version_max = 1;
    p->acceptor_version_min = p->acceptor_version_max = 1;
    strcpy(p->dialler_secret, "secret");
    strcpy(p->acceptor_secret, "secret");
    p->dialler_nonce = 0xd1;
    p->acceptor_nonce = 0xac;
    p->judge = approve;
    return p;
}

static void begin(pair *p)
{
    uint8_t nonce[FAR__NONCE_SIZE];
    memset(nonce, p->dialler_nonce, sizeof nonce);
    far__handshake_dial(&p->d, &p->hello, p->dialler_secret, strlen(p->dialler_secret), nonce);
    memset(nonce, p->acceptor_nonce, sizeof nonce);
    far__handshake_accept(&p->a, &p->acceptor, p->acceptor_secret, strlen(p->acceptor_secret),
                          nonce, p->judge, p);
    p->a.version_min = p->acceptor_version_min;
    p->a.version_max = p->acceptor_version_max;
    p->a.own_features = p->acceptor_features;
    p->d_step = FAR__HANDSHAKE_SEND;
    p->a_step = FAR__HANDSHAKE_WAIT;
    assert_int_equal(p->d.out_size, FAR__HELLO_SIZE);
    assert_int_equal(p->a.out_size, 0);
}

/* Takes what the dialler wants to say to the acceptor, or back. */
static void to_acceptor(pair *p)
{
    p->a_step = far__handshake_received(&p->a, p->d.out, p->d.out_size);
}
static void to_dialler(pair *p)
{
    p->d_step = far__handshake_received(&p->d, p->a.out, p->a.out_size);
}

/* As far as both sides have something to say. */
static void run(pair *p)
{
    begin(p);
    to_acceptor(p);
    if (p->a.out_size)
        to_dialler(p);
    if (p->d_step == FAR__HANDSHAKE_SEND)
        to_acceptor(p);
    else
        return;
    if (p->a.out_size)
        to_dialler(p);
}

static void end(pair *p)
{
    far__handshake_fini(&p->d);
    far__handshake_fini(&p->a);
    free(p);
}

static void assert_mentions(const far_error *error, const char *part)
{
    if (!strstr(error->text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, error->text);
}

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
        end(p);
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
    end(p);
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
        end(p);
    }
}

static void a_wrong_secret_is_seen_by_the_dialler(void **state)
{
    (void)state;
    static const char *const secrets[] = {"other", "secre", "secret2", "Secret"};
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++) {
        pair *p = new_pair(FAR__ROLE_CALLS);
        strcpy(p->acceptor_secret, secrets[i]);
        run(p);
        assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
        assert_status(FAR_EAUTH, p->d.status);
        assert_status(FAR_EAUTH, p->d.error.status);
        assert_int_equal(p->d.out_size, 0);
        assert_mentions(&p->d.error, "FARCALL_SECRET_FILE");
        /* Not a word of who the stranger claimed to be is believed. */
        assert_string_equal(p->d.acceptor.name, "");
        assert_int_equal(p->judged, 0);
        end(p);
    }
}

/* A dialler that goes on although the acceptor's proof did not convince it. */
static void a_wrong_secret_is_seen_by_the_acceptor(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    begin(p);
    to_acceptor(p);
    pair *q = new_pair(FAR__ROLE_CALLS);
    begin(q);
    /* Another secret, but the same messages so far. */
    strcpy(q->dialler_secret, "wrong");
    strcpy(q->acceptor_secret, "wrong");
    begin(q);
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
    end(q);
    end(p);
}

static void a_dialler_told_its_own_words_is_not_convinced(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_JOIN);
    begin(p);
    uint8_t hello[FAR__HELLO_SIZE];
    memcpy(hello, p->d.out, sizeof hello);
    p->d_step = far__handshake_received(&p->d, hello, sizeof hello);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EPROTO, p->d.status);
    /* The same with the kind of a welcome. */
    begin(p);
    hello[4] = 2;
    hello[5] = 0;
    p->d_step = far__handshake_received(&p->d, hello, sizeof hello);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_FAILED);
    assert_true(p->d.status == FAR_EPROTO || p->d.status == FAR_EAUTH);
    end(p);
}

static void the_acceptors_proof_is_not_the_diallers(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    begin(p);
    to_acceptor(p);
    uint8_t proof[FAR__PROOF_SIZE] = {'F', 'A', 'R', 'C', 3};
    memcpy(proof + 8, p->a.out + FAR__WELCOME_SIZE - 32, 32);
    p->a_step = far__handshake_received(&p->a, proof, sizeof proof);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EAUTH, p->a.status);
    assert_int_equal(p->judged, 0);
    end(p);
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
    end(p);
}

static void an_old_proof_is_worth_nothing(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    begin(p);
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
    begin(p);
    assert_int_equal(far__handshake_received(&p->a, hello, sizeof hello), FAR__HANDSHAKE_SEND);
    assert_int_equal(far__handshake_received(&p->a, proof, sizeof proof), FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EAUTH, p->a.status);
    /* ... and to a dialler with one. */
    p->dialler_nonce = 0xd2;
    begin(p);
    assert_int_equal(far__handshake_received(&p->d, welcome, sizeof welcome),
                     FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EAUTH, p->d.status);
    end(p);
}

static void a_second_proof_is_refused(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    begin(p);
    to_acceptor(p);
    to_dialler(p);
    to_acceptor(p);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_DONE);
    to_acceptor(p);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_FAILED);
    assert_status(FAR_EPROTO, p->a.status);
    assert_int_equal(p->a.out_size, 0);
    assert_int_equal(p->judged, 1);
    end(p);
}

/* The four messages of a good handshake. */
typedef struct record {
    uint8_t bytes[4][FAR__HANDSHAKE_MAX];
    size_t size[4];
} record;

static void record_of(record *out)
{
    pair *p = new_pair(FAR__ROLE_CALLS);
    begin(p);
    for (int i = 0; i < 4; i++) {
        far__handshake *speaker = i % 2 ? &p->a : &p->d;
        out->size[i] = speaker->out_size;
        memcpy(out->bytes[i], speaker->out, speaker->out_size);
        if (i % 2)
            to_dialler(p);
        else
            to_acceptor(p);
    }
    assert_int_equal(p->d_step, FAR__HANDSHAKE_DONE);
    end(p);
}

/* Gives message `which` as `bytes` to whoever waits for it; the ones before are good. */
static far__handshake *give(pair *p, const record *good, int which, const void *bytes, size_t size,
                            far__handshake_step *step)
{
    begin(p);
    for (int i = which % 2 ? 1 : 0; i < which; i += 2)
        far__handshake_received(which % 2 ? &p->d : &p->a, good->bytes[i], good->size[i]);
    far__handshake *listener = which % 2 ? &p->d : &p->a;
    *step = far__handshake_received(listener, bytes, size);
    return listener;
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
    end(p);
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
    end(p);
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
    end(p);
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
        begin(p);
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
    end(p);
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
    end(p);
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
    end(p);
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
    end(p);
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
        strcpy(p->acceptor.name, "carol");
        expect_mismatch(p, "wanted worker 2 \"bob\", found worker 2 \"carol\"");
    }
    pair *p = new_pair(FAR__ROLE_CALLS);
    p->hello.expected.name[0] = 0; /* any */
    run(p);
    assert_int_equal(p->d_step, FAR__HANDSHAKE_DONE);
    assert_int_equal(p->a_step, FAR__HANDSHAKE_DONE);
    end(p);
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
            strcpy(p->hello.expected.name, "carol");
        if (what == 4)
            p->hello.version_min = p->hello.version_max = 2;
        if (what == 5)
            p->hello.self.incarnation = p->acceptor.incarnation;
        begin(p);
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
        end(p);
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
    end(p);

    p = new_pair(FAR__ROLE_CALLS);
    p->judge = refuse_silently;
    run(p);
    assert_status(FAR_ECLOSED, p->d.status);
    assert_string_equal(p->d.error.text, far_status_text(FAR_ECLOSED));
    end(p);

    p = new_pair(FAR__ROLE_CALLS);
    p->judge = refuse_long;
    run(p);
    assert_status(FAR_EBUSY, p->d.status);
    assert_int_equal(strlen(p->d.error.text), 494);
    assert_int_equal(strspn(p->d.error.text, "w"), 494);
    end(p);
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
    end(p);
}

static bool holds(const void *where, size_t size, const char *what)
{
    return memmem(where, size, what, strlen(what)) != NULL;
}

static void the_secret_is_wiped(void **state)
{
    (void)state;
    pair *p = new_pair(FAR__ROLE_CALLS);
    strcpy(p->dialler_secret, "the job's very own secret");
    strcpy(p->acceptor_secret, "the job's very own secret");
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
    end(p);
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
    cmocka_unit_test(another_worker_is_not_taken_for_the_right_one),
    cmocka_unit_test(the_acceptor_checks_by_itself),
    cmocka_unit_test(the_judges_words_arrive),
    cmocka_unit_test(verdicts_are_checked),
    cmocka_unit_test(the_secret_is_wiped),
    cmocka_unit_test(bytes_stand_where_the_document_says),
};
FAR_TEST_MAIN(tests)
