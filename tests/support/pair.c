/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/pair: the two sides of a handshake, and good messages to be spoilt. */
#include "support/pair.h"

#include <stdlib.h>
#include <string.h>

#include "support/test.h"

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
    set_text(out->name, name);
}

pair *new_pair(far__role role)
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
    set_text(p->dialler_secret, "secret");
    set_text(p->acceptor_secret, "secret");
    p->dialler_nonce = 0xd1;
    p->acceptor_nonce = 0xac;
    p->judge = approve;
    return p;
}

void pair_begin(pair *p)
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

void to_acceptor(pair *p)
{
    p->a_step = far__handshake_received(&p->a, p->d.out, p->d.out_size);
}

void to_dialler(pair *p)
{
    p->d_step = far__handshake_received(&p->d, p->a.out, p->a.out_size);
}

void run(pair *p)
{
    pair_begin(p);
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

void pair_end(pair *p)
{
    far__handshake_fini(&p->d);
    far__handshake_fini(&p->a);
    free(p);
}

void assert_mentions(const far_error *error, const char *part)
{
    if (!strstr(error->text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, error->text);
}

void record_of(record *out)
{
    pair *p = new_pair(FAR__ROLE_CALLS);
    pair_begin(p);
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
    pair_end(p);
}

far__handshake *give(pair *p, const record *good, int which, const void *bytes, size_t size,
                     far__handshake_step *step)
{
    pair_begin(p);
    for (int i = which % 2 ? 1 : 0; i < which; i += 2)
        far__handshake_received(which % 2 ? &p->d : &p->a, good->bytes[i], good->size[i]);
    far__handshake *listener = which % 2 ? &p->d : &p->a;
    *step = far__handshake_received(listener, bytes, size);
    return listener;
}
