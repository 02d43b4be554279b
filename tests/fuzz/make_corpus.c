/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: writes the seeds of the corpus: make_corpus tests/fuzz/corpus. To be run again when the
 * format of the wire changes; what a fuzzer found is added by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/handshake.h"
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
         {.type = FAR__WIRE_REQUEST, .call_id = 9, .ref_count = 1, .name = "f", .name_size = 1}},
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
    return 0;
}
