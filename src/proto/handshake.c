/* SPDX-License-Identifier: BSD-3-Clause
 * proto/handshake: writes and judges the four messages by which two workers prove who they are;
 * docs/protocol.md has the tables. Floor: proto. Thread: none of its own. */
#include "proto/handshake.h"

#include <assert.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "proto/wire.h"

enum {
    KIND_HELLO = 1,
    KIND_WELCOME = 2,
    KIND_PROOF = 3,
    KIND_VERDICT = 4,

    LABEL_SIZE = 32, /* zero-padded, so that no label is another's beginning */
    HMAC_SIZE = 32,  /* of SHA-256 */
    WELCOME_SIGNED = FAR__WELCOME_SIZE - HMAC_SIZE, /* the proof stands at the end */
    HEAD_SIZE = 8,                                  /* magic, kind, role or zero, 2 zero bytes */
    VERDICT_TEXT_AT = 16,
    VERDICT_TEXT_MAX = FAR__VERDICT_SIZE - VERDICT_TEXT_AT,
};

typedef enum stage {
    STAGE_HELLO,   /* acceptor waits for it */
    STAGE_WELCOME, /* dialler */
    STAGE_PROOF,   /* acceptor */
    STAGE_VERDICT, /* dialler */
    STAGE_OVER,
} stage;

static const char magic[4] = {'F', 'A', 'R', 'C'};

/* A side signs with its own label, so that a proof sent back to its maker proves nothing. */
static const char acceptor_label[LABEL_SIZE] = "farcall acceptor v1";
static const char dialler_label[LABEL_SIZE] = "farcall dialler v1";

static const char secret_hint[] =
    "the two ends hold different secrets: set the same FARCALL_SECRET or FARCALL_SECRET_FILE on "
    "both, or let both use the same user's secret file";

/* What HELLO and WELCOME have in common. */
typedef struct greeting {
    uint32_t version_min, version_max;
    uint64_t features;
    char library[FAR__LIBRARY_SIZE + 1];
    far__identity self;
} greeting;

/* ------------------------------------------------------------------------------------ writing */

static void write_identity(far__writer *w, const far__identity *identity)
{
    size_t size = strnlen(identity->name, FAR_NAME_MAX);
    far__write_bytes(w, identity->job, FAR__JOB_SIZE);
    far__write_u64(w, identity->incarnation);
    far__write_u32(w, identity->id);
    far__write_u8(w, (uint8_t)size);
    far__write_zeros(w, 3);
    far__write_bytes(w, identity->name, size);
    far__write_zeros(w, FAR_NAME_MAX + 1 - size);
}

static void write_head(far__writer *w, uint8_t kind, uint8_t role)
{
    far__write_bytes(w, magic, sizeof magic);
    far__write_u8(w, kind);
    far__write_u8(w, role);
    far__write_zeros(w, 2);
}

static void write_greeting(far__writer *w, uint32_t version_min, uint32_t version_max,
                           uint64_t features, const uint8_t nonce[FAR__NONCE_SIZE],
                           const far__identity *self)
{
    far__write_u32(w, version_min);
    far__write_u32(w, version_max);
    far__write_u64(w, features);
    far__write_bytes(w, nonce, FAR__NONCE_SIZE);
    const char *library = far_version();
    size_t size = strnlen(library, FAR__LIBRARY_SIZE);
    far__write_bytes(w, library, size);
    far__write_zeros(w, FAR__LIBRARY_SIZE - size);
    write_identity(w, self);
}

static void write_hello(far__handshake *h)
{
    static const far__identity nobody;
    far__writer w = far__writer_over(h->hello_bytes, sizeof h->hello_bytes);
    write_head(&w, KIND_HELLO, (uint8_t)h->hello.role);
    write_greeting(&w, h->hello.version_min, h->hello.version_max, h->hello.features, h->nonce,
                   &h->hello.self);
    write_identity(&w, h->hello.role == FAR__ROLE_JOIN ? &nobody : &h->hello.expected);
    far__write_zeros(&w, w.size - w.used);
    assert(!w.failed);
}

/* The proof of one side. `welcome_size`: as much of WELCOME as that side signs. */
static bool sign(const far__handshake *h, const char label[LABEL_SIZE], size_t welcome_size,
                 uint8_t out[HMAC_SIZE])
{
    uint8_t text[LABEL_SIZE + FAR__HELLO_SIZE + FAR__WELCOME_SIZE];
    far__writer w = far__writer_over(text, sizeof text);
    far__write_bytes(&w, label, LABEL_SIZE);
    far__write_bytes(&w, h->hello_bytes, sizeof h->hello_bytes);
    far__write_bytes(&w, h->welcome_bytes, welcome_size);
    unsigned size = 0;
    return HMAC(EVP_sha256(), h->secret, (int)h->secret_size, text, w.used, out, &size) &&
           size == HMAC_SIZE;
}

static bool write_welcome(far__handshake *h)
{
    far__writer w = far__writer_over(h->welcome_bytes, sizeof h->welcome_bytes);
    write_head(&w, KIND_WELCOME, 0);
    write_greeting(&w, h->version_min, h->version_max, h->own_features, h->nonce, &h->acceptor);
    far__write_zeros(&w, WELCOME_SIGNED - w.used);
    uint8_t proof[HMAC_SIZE];
    if (!sign(h, acceptor_label, WELCOME_SIGNED, proof))
        return false;
    far__write_bytes(&w, proof, sizeof proof);
    assert(!w.failed && w.used == w.size);
    return true;
}

static void set_out(far__handshake *h, const void *data, size_t size)
{
    memcpy(h->out, data, size);
    h->out_size = size;
}

static bool write_proof(far__handshake *h)
{
    uint8_t proof[HMAC_SIZE];
    if (!sign(h, dialler_label, FAR__WELCOME_SIZE, proof))
        return false;
    far__writer w = far__writer_over(h->out, FAR__PROOF_SIZE);
    write_head(&w, KIND_PROOF, 0);
    far__write_bytes(&w, proof, sizeof proof);
    far__write_zeros(&w, w.size - w.used);
    h->out_size = FAR__PROOF_SIZE;
    return true;
}

/* The longest part of `text` that fits and does not end inside a character. */
static size_t text_fit(const char *text, size_t room)
{
    size_t size = strlen(text);
    if (size <= room)
        return size;
    size = room;
    while (size > 0 && ((uint8_t)text[size] & 0xc0) == 0x80)
        size--;
    return size;
}

static void write_verdict(far__handshake *h, far_status status, const char *text)
{
    size_t size = text_fit(text, VERDICT_TEXT_MAX);
    far__writer w = far__writer_over(h->out, FAR__VERDICT_SIZE);
    write_head(&w, KIND_VERDICT, 0);
    far__write_u32(&w, status);
    far__write_u16(&w, (uint16_t)size);
    far__write_zeros(&w, VERDICT_TEXT_AT - w.used);
    far__write_bytes(&w, text, size);
    far__write_zeros(&w, w.size - w.used);
    h->out_size = FAR__VERDICT_SIZE;
}

/* ------------------------------------------------------------------------------------ reading */

static bool all_zero(const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (bytes[i])
            return false;
    }
    return true;
}

static bool read_zeros(far__reader *r, size_t size)
{
    const uint8_t *bytes = far__read_bytes(r, size);
    return bytes && all_zero(bytes, size);
}

static bool read_head(far__reader *r, uint8_t kind, uint8_t *role)
{
    const char *begin = far__read_bytes(r, sizeof magic);
    if (!begin || memcmp(begin, magic, sizeof magic) != 0)
        return false;
    if (far__read_u8(r) != kind)
        return false;
    *role = far__read_u8(r);
    return read_zeros(r, 2);
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == ':' || c == '-';
}

static bool read_identity(far__reader *r, far__identity *out)
{
    memset(out, 0, sizeof *out);
    const void *job = far__read_bytes(r, FAR__JOB_SIZE);
    if (job)
        memcpy(out->job, job, FAR__JOB_SIZE);
    out->incarnation = far__read_u64(r);
    out->id = far__read_u32(r);
    size_t size = far__read_u8(r);
    if (size > FAR_NAME_MAX || !read_zeros(r, 3))
        return false;
    const char *name = far__read_bytes(r, size);
    if (!name || !read_zeros(r, FAR_NAME_MAX + 1 - size))
        return false;
    for (size_t i = 0; i < size; i++) {
        if (!name_char(name[i]))
            return false;
    }
    memcpy(out->name, name, size);
    return true;
}

static bool read_greeting(far__reader *r, greeting *out)
{
    memset(out, 0, sizeof *out);
    out->version_min = far__read_u32(r);
    out->version_max = far__read_u32(r);
    if (!out->version_min || out->version_max < out->version_min)
        return false;
    out->features = far__read_u64(r);
    far__read_bytes(r, FAR__NONCE_SIZE); /* it counts as a part of what is signed */
    const char *library = far__read_bytes(r, FAR__LIBRARY_SIZE);
    if (!library)
        return false;
    size_t size = strnlen(library, FAR__LIBRARY_SIZE);
    if (!all_zero((const uint8_t *)library + size, FAR__LIBRARY_SIZE - size))
        return false;
    for (size_t i = 0; i < size; i++) {
        if (library[i] < '!' || library[i] > '~')
            return false;
    }
    memcpy(out->library, library, size);
    return read_identity(r, &out->self);
}

static bool read_hello(far__handshake *h, const void *data)
{
    far__reader r = far__reader_over(data, FAR__HELLO_SIZE);
    uint8_t role;
    greeting g;
    if (!read_head(&r, KIND_HELLO, &role) || role < FAR__ROLE_JOIN || role > FAR__ROLE_SERVE)
        return false;
    if (!read_greeting(&r, &g) || !read_identity(&r, &h->hello.expected))
        return false;
    if (!read_zeros(&r, far__reader_left(&r)))
        return false;
    h->hello.role = (far__role)role;
    h->hello.self = g.self;
    h->hello.version_min = g.version_min;
    h->hello.version_max = g.version_max;
    h->hello.features = g.features;
    memcpy(h->peer_library, g.library, sizeof g.library);
    memcpy(h->hello_bytes, data, FAR__HELLO_SIZE);
    return true;
}

static bool read_welcome(far__handshake *h, const void *data, greeting *out)
{
    far__reader r = far__reader_over(data, FAR__WELCOME_SIZE);
    uint8_t role;
    if (!read_head(&r, KIND_WELCOME, &role) || role || !read_greeting(&r, out))
        return false;
    if (!read_zeros(&r, WELCOME_SIGNED - r.used))
        return false;
    memcpy(h->welcome_bytes, data, FAR__WELCOME_SIZE);
    return true;
}

/* ----------------------------------------------------------------------------------- judging */

static far__handshake_step fail(far__handshake *h, far_status status)
{
    h->stage = STAGE_OVER;
    h->status = h->error.status = status;
    return FAR__HANDSHAKE_FAILED;
}

static far__handshake_step fail_text(far__handshake *h, far_status status, const char *text)
{
    far__error_set(&h->error, status, "%s", text);
    return fail(h, status);
}

/* Agrees on the version; false: there is no common one, and the error names both sides. */
static bool agree(far__handshake *h, uint32_t peer_min, uint32_t peer_max, uint64_t peer_features,
                  const char *peer_library)
{
    uint32_t own_min = h->dialler ? h->hello.version_min : h->version_min;
    uint32_t own_max = h->dialler ? h->hello.version_max : h->version_max;
    uint32_t lowest = own_min > peer_min ? own_min : peer_min;
    uint32_t highest = own_max < peer_max ? own_max : peer_max;
    if (lowest > highest) {
        far__error_set(&h->error, FAR_EVERSION,
                       "no common protocol version: the %s (farcall %s) speaks %" PRIu32
                       " to %" PRIu32 ", the %s (farcall %s) %" PRIu32 " to %" PRIu32,
                       h->dialler ? "dialler" : "acceptor", far_version(), own_min, own_max,
                       h->dialler ? "acceptor" : "dialler", peer_library[0] ? peer_library : "?",
                       peer_min, peer_max);
        return false;
    }
    h->version = highest;
    h->features = (h->dialler ? h->hello.features : h->own_features) & peer_features;
    return true;
}

static bool same_worker(const far__identity *expected, const far__identity *found)
{
    return memcmp(expected->job, found->job, FAR__JOB_SIZE) == 0 && expected->id == found->id &&
           expected->incarnation == found->incarnation &&
           (!expected->name[0] || strcmp(expected->name, found->name) == 0);
}

static void name_mismatch(far_error *error, const far__identity *expected,
                          const far__identity *found)
{
    const char *how = "";
    if (memcmp(expected->job, found->job, FAR__JOB_SIZE) != 0)
        how = " of another job";
    else if (expected->id == found->id && strcmp(expected->name, found->name) == 0)
        how = ", started anew";
    far__error_set(error, FAR_EPEER,
                   "another worker answers there: wanted worker %" PRIu32 " \"%s\", found worker "
                   "%" PRIu32 " \"%s\"%s",
                   expected->id, expected->name, found->id, found->name, how);
}

/* Whoever relays our own messages to us has no secret to know. */
static bool is_self(const far__handshake *h, far_error *error)
{
    if (h->hello.self.incarnation != h->acceptor.incarnation)
        return false;
    far__error_set(error, FAR_EPEER, "this worker has reached itself");
    return true;
}

static far__handshake_step on_hello(far__handshake *h, const void *data, size_t size)
{
    if (size != FAR__HELLO_SIZE || !read_hello(h, data))
        return fail_text(h, FAR_EPROTO, "malformed hello: that was no farcall worker");
    if (!write_welcome(h))
        return fail_text(h, FAR_ESYSTEM, "OpenSSL cannot compute HMAC-SHA-256");
    set_out(h, h->welcome_bytes, FAR__WELCOME_SIZE);
    h->stage = STAGE_PROOF;
    return FAR__HANDSHAKE_SEND;
}

static far__handshake_step on_welcome(far__handshake *h, const void *data, size_t size)
{
    greeting g;
    if (size != FAR__WELCOME_SIZE || !read_welcome(h, data, &g))
        return fail_text(h, FAR_EPROTO, "malformed welcome: no farcall worker answers there");
    uint8_t proof[HMAC_SIZE];
    if (!sign(h, acceptor_label, WELCOME_SIGNED, proof))
        return fail_text(h, FAR_ESYSTEM, "OpenSSL cannot compute HMAC-SHA-256");
    if (CRYPTO_memcmp(proof, h->welcome_bytes + WELCOME_SIGNED, HMAC_SIZE) != 0)
        return fail_text(h, FAR_EAUTH, secret_hint);
    h->acceptor = g.self;
    if (is_self(h, &h->error))
        return fail(h, FAR_EPEER);
    if (!agree(h, g.version_min, g.version_max, g.features, g.library))
        return fail(h, FAR_EVERSION);
    if (h->hello.role != FAR__ROLE_JOIN && !same_worker(&h->hello.expected, &h->acceptor)) {
        name_mismatch(&h->error, &h->hello.expected, &h->acceptor);
        return fail(h, FAR_EPEER);
    }
    if (!write_proof(h))
        return fail_text(h, FAR_ESYSTEM, "OpenSSL cannot compute HMAC-SHA-256");
    h->stage = STAGE_VERDICT;
    return FAR__HANDSHAKE_SEND;
}

/* Everything about a dialler whose proof is right. */
static far_status judge(far__handshake *h)
{
    if (is_self(h, &h->error))
        return FAR_EPEER;
    if (!agree(h, h->hello.version_min, h->hello.version_max, h->hello.features, h->peer_library))
        return FAR_EVERSION;
    if (h->hello.role != FAR__ROLE_JOIN && !same_worker(&h->hello.expected, &h->acceptor)) {
        name_mismatch(&h->error, &h->hello.expected, &h->acceptor);
        return FAR_EPEER;
    }
    return h->judge ? h->judge(&h->hello, &h->error, h->judge_arg) : FAR_OK;
}

static far__handshake_step refuse(far__handshake *h, far_status status)
{
    if (!h->error.text[0])
        far__error_set(&h->error, status, "%s", far_status_text(status));
    write_verdict(h, status, h->error.text);
    return fail(h, status);
}

static far__handshake_step on_proof(far__handshake *h, const void *data, size_t size)
{
    far__reader r = far__reader_over(data, size);
    uint8_t role, expected[HMAC_SIZE];
    if (size != FAR__PROOF_SIZE || !read_head(&r, KIND_PROOF, &role) || role)
        return fail_text(h, FAR_EPROTO, "malformed proof");
    const void *proof = far__read_bytes(&r, HMAC_SIZE);
    if (!proof || !read_zeros(&r, far__reader_left(&r)))
        return fail_text(h, FAR_EPROTO, "malformed proof");
    if (!sign(h, dialler_label, FAR__WELCOME_SIZE, expected))
        return fail_text(h, FAR_ESYSTEM, "OpenSSL cannot compute HMAC-SHA-256");
    if (CRYPTO_memcmp(expected, proof, HMAC_SIZE) != 0) {
        far__error_set(&h->error, FAR_EAUTH, "%s", secret_hint);
        return refuse(h, FAR_EAUTH);
    }
    far_status status = judge(h);
    if (status != FAR_OK)
        return refuse(h, status);
    write_verdict(h, FAR_OK, "");
    h->stage = STAGE_OVER;
    return FAR__HANDSHAKE_DONE;
}

static bool read_verdict(const void *data, far_status *status, far_error *error)
{
    far__reader r = far__reader_over(data, FAR__VERDICT_SIZE);
    uint8_t role;
    if (!read_head(&r, KIND_VERDICT, &role) || role)
        return false;
    uint32_t code = far__read_u32(&r);
    size_t size = far__read_u16(&r);
    if (!read_zeros(&r, VERDICT_TEXT_AT - r.used) || (code == FAR_OK && size))
        return false;
    const char *text = far__read_bytes(&r, size);
    if (!text || memchr(text, 0, size) || !read_zeros(&r, far__reader_left(&r)))
        return false;
    *status = (far_status)code;
    /* A code that only a newer version has. */
    if (strcmp(far_status_name(*status), "FAR_?") == 0)
        *status = FAR_EPEER;
    if (*status != FAR_OK)
        far__error_set(error, *status, "%.*s", (int)size, text);
    /* The verdict carries no proof: its text must not drive a terminal. */
    for (char *c = error->text; *c; c++) {
        if ((uint8_t)*c < 0x20 || *c == 0x7f)
            *c = ' ';
    }
    return true;
}

static far__handshake_step on_verdict(far__handshake *h, const void *data, size_t size)
{
    far_status status;
    if (size != FAR__VERDICT_SIZE || !read_verdict(data, &status, &h->error))
        return fail_text(h, FAR_EPROTO, "malformed verdict");
    if (status != FAR_OK) {
        if (!h->error.text[0])
            far__error_set(&h->error, status, "%s", far_status_text(status));
        return fail(h, status);
    }
    h->stage = STAGE_OVER;
    return FAR__HANDSHAKE_DONE;
}

/* ------------------------------------------------------------------------------------ the sides */

static void init(far__handshake *h, const void *secret, size_t secret_size,
                 const uint8_t nonce[FAR__NONCE_SIZE])
{
    assert(secret_size >= 1 && secret_size <= FAR__SECRET_MAX);
    memset(h, 0, sizeof *h);
    memcpy(h->secret, secret, secret_size);
    h->secret_size = secret_size;
    memcpy(h->nonce, nonce, FAR__NONCE_SIZE);
}

void far__handshake_dial(far__handshake *h, const far__hello *hello, const void *secret,
                         size_t secret_size, const uint8_t nonce[FAR__NONCE_SIZE])
{
    init(h, secret, secret_size, nonce);
    assert(hello->version_min >= 1 && hello->version_max >= hello->version_min);
    h->dialler = true;
    h->hello = *hello;
    h->stage = STAGE_WELCOME;
    write_hello(h);
    set_out(h, h->hello_bytes, FAR__HELLO_SIZE);
}

void far__handshake_accept(far__handshake *h, const far__identity *self, const void *secret,
                           size_t secret_size, const uint8_t nonce[FAR__NONCE_SIZE],
                           far__judge_fn judge_fn, void *judge_arg)
{
    init(h, secret, secret_size, nonce);
    h->acceptor = *self;
    h->version_min = h->version_max = FAR__WIRE_VERSION;
    h->judge = judge_fn;
    h->judge_arg = judge_arg;
    h->stage = STAGE_HELLO;
}

far__handshake_step far__handshake_received(far__handshake *h, const void *data, size_t size)
{
    h->out_size = 0;
    switch (h->stage) {
    case STAGE_HELLO: return on_hello(h, data, size);
    case STAGE_WELCOME: return on_welcome(h, data, size);
    case STAGE_PROOF: return on_proof(h, data, size);
    case STAGE_VERDICT: return on_verdict(h, data, size);
    default: return fail_text(h, FAR_EPROTO, "a message after the end of the handshake");
    }
}

void far__handshake_fini(far__handshake *h)
{
    OPENSSL_cleanse(h->secret, sizeof h->secret);
    OPENSSL_cleanse(h->nonce, sizeof h->nonce);
    OPENSSL_cleanse(h->hello_bytes, sizeof h->hello_bytes);
    OPENSSL_cleanse(h->welcome_bytes, sizeof h->welcome_bytes);
    OPENSSL_cleanse(h->out, sizeof h->out);
    h->secret_size = h->out_size = 0;
    h->stage = STAGE_OVER;
}
