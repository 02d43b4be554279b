/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: writes the seeds of the corpus: make_corpus tests/fuzz/corpus. To be run again when the
 * format of the wire changes; what a fuzzer found is added by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/handshake.h"
#include "proto/roster.h"
#include "proto/values.h"
#include "proto/wire.h"

static const char *root;

static void save(const char *target, const char *name, const void *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", root, target, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void must(far_status status)
{
    if (status != FAR_OK) {
        fprintf(stderr, "%s\n", far_status_name(status));
        exit(1);
    }
}

static void wire(void)
{
    static uint8_t references[2 * FAR__WIRE_REF_SIZE];
    far__writer list = far__writer_over(references, sizeof references);
    far__wire_ref ref = {.owner = {2, 22}, .id = {{1, 11}, 1}, .fork = 1};
    far__wire_put_ref(&ref, &list);
    ref = (far__wire_ref){
        .kind = FAR__WIRE_REF_CREATED, .owner = {2, 22}, .id = {{1, 11}, 3}, .fork = 2};
    far__wire_put_ref(&ref, &list);
    static const struct {
        const char *name;
        far__wire_header header;
    } seeds[] = {
        {"request",
         {.type = FAR__WIRE_REQUEST, .encoding = 1, .call_id = 7, .name = "add", .name_size = 3}},
        {"request-reserved",
         {.type = FAR__WIRE_REQUEST,
          .flags = 7,
          .encoding = 1,
          .call_id = 1,
          .remaining = 1000,
          .sequence = 1,
          .name = "far.join",
          .name_size = 8}},
        {"request-name-and-id",
         {.type = FAR__WIRE_REQUEST,
          .flags = FAR__WIRE_HAS_REMAINING,
          .naming = FAR__WIRE_BY_NAME_AND_ID,
          .encoding = 2,
          .call_id = 9,
          .remaining = 5,
          .short_id = 3,
          .name = "py:m:f",
          .name_size = 6}},
        {"request-id",
         {.type = FAR__WIRE_REQUEST, .naming = FAR__WIRE_BY_ID, .call_id = 9, .short_id = 3}},
        {"request-references",
         {.type = FAR__WIRE_REQUEST,
          .call_id = 9,
          .ref_count = 2,
          .ref_number = 3,
          .refs = references,
          .name = "f",
          .name_size = 1}},
        {"reply-references",
         {.type = FAR__WIRE_REPLY,
          .call_id = 9,
          .ref_count = 1,
          .ref_number = 3,
          .refs = references}},
        {"reply", {.type = FAR__WIRE_REPLY, .encoding = 2, .call_id = 7}},
        {"error", {.type = FAR__WIRE_ERROR, .encoding = 1, .call_id = 7}},
        {"cancel", {.type = FAR__WIRE_CANCEL, .call_id = 7}},
        {"credit", {.type = FAR__WIRE_CREDIT, .credit_bytes = 4096, .credit_calls = 3}},
        {"ping", {.type = FAR__WIRE_PING, .call_id = 1}},
        {"pong", {.type = FAR__WIRE_PONG, .call_id = 1}},
        {"ack", {.type = FAR__WIRE_ACK, .ack_mark = 5, .ack_count = 2, .ack = {{7, 9}, {11, 11}}}},
        {"dial-me", {.type = FAR__WIRE_DIAL_ME}},
        {"resend", {.type = FAR__WIRE_RESEND, .call_id = 7}},
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        uint8_t bytes[256];
        far__writer w = far__writer_over(bytes, sizeof bytes);
        far__wire_encode(&seeds[i].header, &w);
        save("wire", seeds[i].name, bytes, w.used);
    }
}

/* As fuzz_values reads it: segment count, sizes, body. */
static void save_values(const char *name, far_message *message)
{
    uint8_t bytes[4096];
    far__writer w = far__writer_over(bytes, sizeof bytes);
    far__write_u8(&w, (uint8_t)far_message_segment_count(message));
    for (size_t i = 0; i < far_message_segment_count(message); i++)
        far__write_u8(&w, (uint8_t)far_buffer_size(far_message_segment(message, i)));
    far__write_bytes(&w, far_message_body(message), far_message_body_size(message));
    save("values", name, bytes, w.used);
    far_message_discard(message);
}

static far_message *new_message(far_encoding encoding)
{
    far_message *message;
    must(far_message_create(encoding, &message));
    return message;
}

static void put_matrix(far_message *message, int64_t rows, int64_t columns)
{
    far_tensor t = {
        .dtype_code = 2, .dtype_bits = 32, .dtype_lanes = 1, .ndim = 2, .shape = {rows, columns}};
    far_buffer *buffer;
    must(far_buffer_alloc((size_t)(rows * columns * 4), &buffer));
    must(far_message_put_buffer(message, &t, buffer));
}

static void values(void)
{
    far_message *message = new_message(FAR_ENCODING_VALUES);
    must(far_message_put_list(message, 7));
    must(far_message_put_nil(message));
    must(far_message_put_bool(message, true));
    must(far_message_put_int(message, -70000));
    must(far_message_put_uint(message, UINT64_MAX));
    must(far_message_put_float(message, 0.5));
    must(far_message_put_string(message, "text", 4));
    must(far_message_put_bytes(message, "\0\1", 2));
    must(far_message_put_map(message, 1));
    must(far_message_put_string(message, "key", 3));
    must(far_message_put_list(message, 0));
    save_values("call", message);

    message = new_message(FAR_ENCODING_VALUES);
    must(far_message_put_list(message, 3));
    put_matrix(message, 2, 3);
    put_matrix(message, 0, 9);
    put_matrix(message, 1, 1);
    save_values("tensors", message);

    message = new_message(FAR_ENCODING_VALUES);
    must(far__values_put_error(message, FAR_EREMOTE, "ValueError", "bad", "line 1", NULL));
    save_values("error", message);

    far_message *payload = new_message(FAR_ENCODING_PICKLE);
    must(far_message_append(payload, "pickle", 6));
    message = new_message(FAR_ENCODING_VALUES);
    must(far__values_put_error(message, FAR_EREMOTE, "ValueError", "bad", "", payload));
    save_values("error-payload", message);

    save("values", "claims-much", "\0\xdd\xff\xff\xff\xff\xc0", 7);
    uint8_t deep[FAR__VALUES_DEPTH_MAX + 3] = {0};
    memset(deep + 1, 0x91, sizeof deep - 1);
    save("values", "deep", deep, sizeof deep);
    save("values", "extension-overflow", "\0\xc9\xff\xff\xff\xff\x01", 7);
}

static void save_message(const char *name, uint8_t mode, const void *data, size_t size)
{
    uint8_t bytes[1 + FAR__HANDSHAKE_MAX] = {mode};
    memcpy(bytes + 1, data, size);
    save("handshake", name, bytes, 1 + size);
}

/* The same two workers as in fuzz_handshake. */
static void handshake(void)
{
    static far__handshake dialler, acceptor;
    static const uint8_t dialler_nonce[FAR__NONCE_SIZE] = {1},
                         acceptor_nonce[FAR__NONCE_SIZE] = {3};
    far__hello hello = {.role = FAR__ROLE_CALLS,
                        .self = {{7}, 1, 111, "alice"},
                        .expected = {{7}, 2, 222, "bob"},
                        .version_min = 1,
                        .version_max = 1};
    far__handshake_dial(&dialler, &hello, "secret", 6, dialler_nonce);
    far__handshake_accept(&acceptor, &hello.expected, "secret", 6, acceptor_nonce, NULL, NULL);
    save_message("hello", 0, dialler.out, dialler.out_size);
    (void)far__handshake_received(&acceptor, dialler.out, dialler.out_size);
    acceptor.out[FAR__WELCOME_SIZE - 1] ^= 1; /* a right proof would be a finding */
    save_message("welcome", 1, acceptor.out, acceptor.out_size);
    acceptor.out[FAR__WELCOME_SIZE - 1] ^= 1;
    (void)far__handshake_received(&dialler, acceptor.out, acceptor.out_size);
    (void)far__handshake_received(&acceptor, dialler.out, dialler.out_size);
    save_message("verdict", 2, acceptor.out, acceptor.out_size);
    save("handshake", "good", "\3", 1);
    save("handshake", "change-hello", "\3\0\x18\0\1", 5);
    save("handshake", "change-welcome", "\3\1\x10\0\1", 5);
    save("handshake", "change-proof", "\3\2\x09\0\x80", 5);
    save("handshake", "change-verdict", "\3\3\x08\0\x0d", 5);
    far__handshake_fini(&dialler);
    far__handshake_fini(&acceptor);
}

/* A name twice is refused. */
static bool admit(far__roster *r, const char *name, uint64_t incarnation)
{
    far__join wish = {.name = name,
                      .incarnation = incarnation,
                      .rank = -1,
                      .world_size = r->world_size,
                      .addresses = "unix:abc:farcall-1 tcp:127.0.0.1:5"};
    far_worker_id id;
    return far__roster_admit(r, &wish, &id, NULL) == FAR_OK;
}

/* Two snapshots as the target wants them. */
static void save_snapshots(const char *name, const far_message *first, const far_message *second)
{
    uint8_t bytes[4096];
    far__writer w = far__writer_over(bytes, sizeof bytes);
    far__write_u16(&w, (uint16_t)far_message_body_size(first));
    far__write_bytes(&w, far_message_body(first), far_message_body_size(first));
    far__write_bytes(&w, far_message_body(second), far_message_body_size(second));
    save("roster", name, bytes, w.used);
}

static void roster(void)
{
    for (uint32_t world_size = 0; world_size <= 4; world_size += 4) {
        far__roster r;
        far_message *early, *late;
        far__roster_init(&r, world_size);
        must(far_message_create(FAR_ENCODING_VALUES, &early));
        must(far_message_create(FAR_ENCODING_VALUES, &late));
        admit(&r, "master", 1);
        admit(&r, "worker1", UINT64_MAX);
        must(far__roster_encode(&r, early));
        (void)far__roster_set_state(&r, 1, FAR__MEMBER_LOST);
        admit(&r, "worker2", 3);
        admit(&r, "worker2", 4);
        must(far__roster_encode(&r, late));
        save_snapshots(world_size ? "fixed" : "open", early, late);
        save_snapshots(world_size ? "fixed-backwards" : "open-backwards", late, early);
        far_message_discard(early);
        far_message_discard(late);
        far__roster_fini(&r);
    }
}

/* Pairs of an event (see fuzz_calls.c) and its number. */
static void calls(void)
{
    save("calls", "reply", "\0\xc1\2\1\3\1\3\1\3\2", 10);
    save("calls", "expire", "\0\1\0\2\2\2\6\x10\6\x20\3\1", 12);
    save("calls", "retry", "\1\xc1\2\1\x9\1\x9\1\6\x10\2\1\xa\1\x9\1\3\1\xb\1\x9\1", 22);
    save("calls", "broken", "\1\xc1\0\xc2\0\xc3\2\1\2\3\7\0\2\1\2\2\x9\1\xa\1\x8\0\xb\3", 24);
    save("calls", "gaps", "\1\xc1\1\xc2\1\xc3\1\xc4\x9\2\xa\2\x9\4\5\2\5\4\xb\3\xa\4\5\3\xb\3", 26);
    save("calls", "claims", "\1\xc1\x9\1\xa\1\xc\xf1\xc\xff\xc\x1f\4\x11\4\0\4\x1f", 18);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus folder\n");
        return 2;
    }
    root = argv[1];
    mkdir(root, 0777);
    wire();
    values();
    handshake();
    roster();
    calls();
    return 0;
}
