/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/pair: the two sides of a handshake, and good messages to be spoilt. */
#ifndef FAR_TESTS_SUPPORT_PAIR_H
#define FAR_TESTS_SUPPORT_PAIR_H

#include <stdio.h>

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

/* Into an array that is long enough. */
#define set_text(to, text) snprintf(to, sizeof(to), "%s", text)

/* Workers that agree on everything; to be changed before `pair_begin` or `run`. */
pair *new_pair(far__role role);
void pair_end(pair *p);
void pair_begin(pair *p);
/* Takes what the dialler wants to say to the acceptor, or back. */
void to_acceptor(pair *p);
void to_dialler(pair *p);
/* Begins and goes on as long as a side has something to say. */
void run(pair *p);
void assert_mentions(const far_error *error, const char *part);

/* The four messages of a good handshake. */
typedef struct record {
    uint8_t bytes[4][FAR__HANDSHAKE_MAX];
    size_t size[4];
} record;

void record_of(record *out);
/* Gives message `which` as `bytes` to whoever waits for it; the ones before are good. */
far__handshake *give(pair *p, const record *good, int which, const void *bytes, size_t size,
                     far__handshake_step *step);

#endif
