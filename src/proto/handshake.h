/* SPDX-License-Identifier: BSD-3-Clause
 * proto/handshake: who are you, which version, do you know the job's secret. Pure: random bytes are
 * arguments. Mutual challenge and response: HMAC-SHA-256 (RFC 2104, by OpenSSL) over a label of the
 * role and both HELLO and WELCOME as sent, so nonces, names, ids, versions and the job are all
 * bound, and a proof of one side is useless as the other's.
 *
 *   dialler                                acceptor
 *   HELLO (fixed size)            ->
 *                                 <-       WELCOME (fixed size, with the acceptor's proof)
 *   PROOF (fixed size)            ->
 *                                 <-       VERDICT (fixed size: status and text)
 *
 * Nothing of a HELLO but its form is judged before PROOF is verified, so a stranger learns nothing.
 * Floor: proto. Thread: none of its own. */
#ifndef FAR_PROTO_HANDSHAKE_H
#define FAR_PROTO_HANDSHAKE_H

#include "base/buf.h"

enum {
    FAR__HELLO_SIZE = 512,
    FAR__WELCOME_SIZE = 512,
    FAR__PROOF_SIZE = 64,
    FAR__VERDICT_SIZE = 512,
    FAR__HANDSHAKE_MAX = 512, /* no message of the handshake is longer */
    FAR__NONCE_SIZE = 32,
    FAR__JOB_SIZE = 16,
    FAR__SECRET_MAX = 4096,
    FAR__LIBRARY_SIZE = 16, /* of a library's version text, "0.1.0", zero-padded */
};

typedef enum far__role {
    FAR__ROLE_JOIN = 1,  /* carries calls of a worker that is not yet in the job, to rank 0 only */
    FAR__ROLE_CALLS = 2, /* calls go from the dialler to the acceptor */
    FAR__ROLE_SERVE = 3, /* calls go from the acceptor to the dialler (asked for by dial-me) */
} far__role;

typedef struct far__identity {
    uint8_t job[FAR__JOB_SIZE]; /* zero: not yet known */
    far_worker_id id;           /* UINT32_MAX: not yet known */
    uint64_t incarnation;
    char name[FAR_NAME_MAX + 1]; /* "" : any (a join does not know rank 0's name) */
} far__identity;

typedef struct far__hello {
    far__role role;
    far__identity self;     /* the dialler */
    far__identity expected; /* the acceptor as the dialler expects it; ignored in a join */
    uint32_t version_min, version_max; /* of the protocol */
    uint64_t features;
} far__hello;

typedef enum far__handshake_step {
    FAR__HANDSHAKE_WAIT,   /* wait for the next message */
    FAR__HANDSHAKE_SEND,   /* send `out`, then wait */
    FAR__HANDSHAKE_DONE,   /* acceptor: send `out`, then calls may flow; dialler: calls may flow */
    FAR__HANDSHAKE_FAILED, /* acceptor: send `out` if out_size > 0; then close; see status, text */
} far__handshake_step;

/* What the acceptor says of a dialler that has proved the secret: FAR_OK or a refusal with text
 * (wrong job, an incarnation that was declared lost, not rank 0, ...). */
typedef far_status (*far__judge_fn)(const far__hello *hello, far_error *error, void *arg);

/* One side of one connection. */
typedef struct far__handshake {
    bool dialler;
    far__hello hello;                  /* dialler: mine; acceptor: the peer's, once read */
    far__identity acceptor;            /* acceptor: mine; dialler: the peer's, once proved */
    uint32_t version;                  /* agreed, from DONE on */
    uint64_t features;                 /* common ones */
    uint32_t version_min, version_max; /* acceptor: those it speaks */
    uint64_t own_features;             /* acceptor: those it has; may be set before the HELLO */
    char peer_library[FAR__LIBRARY_SIZE + 1]; /* acceptor: version of the dialler's library */
    uint8_t secret[FAR__SECRET_MAX];
    size_t secret_size;
    uint8_t nonce[FAR__NONCE_SIZE];
    int stage;
    uint8_t hello_bytes[FAR__HELLO_SIZE], welcome_bytes[FAR__WELCOME_SIZE];
    uint8_t out[FAR__HANDSHAKE_MAX]; /* what to send now */
    size_t out_size;
    far__judge_fn judge;
    void *judge_arg;
    far_status status; /* FAILED: FAR_EAUTH, FAR_EVERSION, FAR_EPROTO, or the judge's */
    far_error error;
} far__handshake;

/* Copies everything; `secret` of 1 to FAR__SECRET_MAX bytes. The dialler's first step is SEND. An
 * acceptor speaks FAR__WIRE_VERSION alone and has no features unless its fields are set after. */
void far__handshake_dial(far__handshake *h, const far__hello *hello, const void *secret,
                         size_t secret_size, const uint8_t nonce[FAR__NONCE_SIZE]);
void far__handshake_accept(far__handshake *h, const far__identity *self, const void *secret,
                           size_t secret_size, const uint8_t nonce[FAR__NONCE_SIZE],
                           far__judge_fn judge, void *judge_arg);
/* Feeds one received message and gives the next step. */
far__handshake_step far__handshake_received(far__handshake *h, const void *data, size_t size);
/* Wipes the secret and nonces. */
void far__handshake_fini(far__handshake *h);

#endif
