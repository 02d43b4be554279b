/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: proto/handshake. First byte of the input, modulo 4: whose message the rest is (HELLO,
 * WELCOME, VERDICT), or 3: changes to the four messages of a good handshake, as entries of message,
 * offset (2 bytes) and a byte to be xored. No change to what is signed may go unnoticed. */
#include <stdlib.h>
#include <string.h>

#include "proto/handshake.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MESSAGES = 4, CHANGES_MAX = 64 };

static far__handshake dialler, acceptor;

static void begin(void)
{
    static const uint8_t dialler_nonce[FAR__NONCE_SIZE] = {1},
                         acceptor_nonce[FAR__NONCE_SIZE] = {2};
    far__hello hello = {.role = FAR__ROLE_CALLS,
                        .self = {{7}, 1, 111, "alice"},
                        .expected = {{7}, 2, 222, "bob"},
                        .version_min = 1,
                        .version_max = 1};
    far__handshake_dial(&dialler, &hello, "secret", 6, dialler_nonce);
    far__handshake_accept(&acceptor, &hello.expected, "secret", 6, acceptor_nonce, NULL, NULL);
}

/* One of the four on its way; false: its sender had nothing to say. */
static bool pass(int which, const uint8_t flips[FAR__HANDSHAKE_MAX], far__handshake_step *step)
{
    far__handshake *from = which % 2 ? &acceptor : &dialler;
    far__handshake *to = which % 2 ? &dialler : &acceptor;
    uint8_t bytes[FAR__HANDSHAKE_MAX];
    if (!from->out_size)
        return false;
    for (size_t i = 0; i < from->out_size; i++)
        bytes[i] = from->out[i] ^ flips[i];
    *step = far__handshake_received(to, bytes, from->out_size);
    return true;
}

static void change(far__reader *r)
{
    static uint8_t flips[MESSAGES][FAR__HANDSHAKE_MAX];
    memset(flips, 0, sizeof flips);
    for (int i = 0; i < CHANGES_MAX; i++) {
        unsigned which = far__read_u8(r) % MESSAGES;
        unsigned at = far__read_u16(r) % FAR__HANDSHAKE_MAX;
        flips[which][at] ^= far__read_u8(r);
    }
    bool changed = false;
    far__handshake_step step = FAR__HANDSHAKE_WAIT;
    begin();
    for (int which = 0; which < MESSAGES; which++) {
        size_t size = which % 2 ? acceptor.out_size : dialler.out_size;
        for (size_t i = 0; which < 3 && i < size; i++)
            changed |= flips[which][i] != 0;
        if (!pass(which, flips[which], &step))
            break;
        if (step == FAR__HANDSHAKE_DONE && changed)
            abort();
        if (step == FAR__HANDSHAKE_FAILED && which % 2)
            break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t nothing[FAR__HANDSHAKE_MAX];
    far__reader r = far__reader_over(data, size);
    far__handshake_step step;
    unsigned mode = far__read_u8(&r) % 4;
    const uint8_t *rest = data + r.used;
    size_t left = far__reader_left(&r);
    begin();
    switch (mode) {
    case 0: far__handshake_received(&acceptor, rest, left); break;
    case 1:
        if (far__handshake_received(&dialler, rest, left) != FAR__HANDSHAKE_FAILED)
            abort(); /* nobody guesses a proof */
        break;
    case 2:
        for (int which = 0; which < 3; which++)
            pass(which, nothing, &step);
        far__handshake_received(&dialler, rest, left);
        break;
    default: change(&r); break;
    }
    far__handshake_fini(&dialler);
    far__handshake_fini(&acceptor);
    return 0;
}
