/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: proto/roster. Input: the size of a first snapshot (2 bytes), that snapshot, a second
 * one. Both are applied to one roster; what it holds then must be a good roster, and must come back
 * the same out of its own snapshot. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "proto/roster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool ok)
{
    if (!ok)
        abort();
}

static void check_roster(const far__roster *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const far__member *m = &r->members[i];
        check(i == 0 || r->members[i - 1].id < m->id);
        check(r->world_size == 0 || m->id < r->world_size);
        check(m->state <= FAR__MEMBER_LOST);
        check(far__name_check(m->name, NULL) == FAR_OK);
        check(far__roster_by_id(r, m->id) == m);
        check(m->state != FAR__MEMBER_JOINED || far__roster_by_name(r, m->name) == m);
    }
    char text[200];
    far__roster_missing(r, text, sizeof text);
    far__roster_near(r, "worker1", text, sizeof text);
}

static void check_same(const far__roster *a, const far__roster *b)
{
    check(a->version == b->version && a->world_size == b->world_size);
    check(a->next_id == b->next_id && a->failed == b->failed && a->count == b->count);
    check(strcmp(a->failed_text, b->failed_text) == 0);
    for (size_t i = 0; i < a->count; i++) {
        const far__member *m = &a->members[i], *n = &b->members[i];
        check(m->id == n->id && m->incarnation == n->incarnation && m->state == n->state);
        check(strcmp(m->name, n->name) == 0 && strcmp(m->addresses, n->addresses) == 0);
    }
}

static void apply(far__roster *r, const void *snapshot, size_t size)
{
    far_message *message;
    check(far_message_create(FAR_ENCODING_VALUES, &message) == FAR_OK);
    check(far_message_append(message, snapshot, size) == FAR_OK);
    const uint64_t version = r->version;
    bool changed = false;
    far_status status = far__roster_apply(r, message, &changed);
    check(status == FAR_OK || status == FAR_EPROTO);
    check(changed ? r->version > version : r->version == version);
    far_message_discard(message);
    check_roster(r);
}

static void join_one(far__roster *r)
{
    far__join wish = {.name = "newcomer",
                      .incarnation = 12345,
                      .rank = -1,
                      .world_size = r->world_size,
                      .addresses = "tcp:127.0.0.1:5"};
    far_worker_id id;
    if (far__roster_admit(r, &wish, &id, NULL) == FAR_OK)
        check(far__roster_by_id(r, id)->incarnation == wish.incarnation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    far__reader in = far__reader_over(data, size);
    far__roster r, copy;
    far__roster_init(&r, 0);
    far__roster_init(&copy, 0);
    size_t first = far__read_u16(&in);
    if (first > far__reader_left(&in))
        first = far__reader_left(&in);
    apply(&r, far__read_bytes(&in, first), first);
    size_t second = far__reader_left(&in);
    apply(&r, far__read_bytes(&in, second), second);
    if (r.version > 0) {
        far_message *message;
        bool changed = false;
        check(far_message_create(FAR_ENCODING_VALUES, &message) == FAR_OK);
        check(far__roster_encode(&r, message) == FAR_OK);
        check(far__roster_apply(&copy, message, &changed) == FAR_OK && changed);
        check_same(&r, &copy);
        far_message_discard(message);
    }
    join_one(&r);
    far__roster_fini(&r);
    far__roster_fini(&copy);
    check(far__mem_live() == 0);
    return 0;
}
