/* SPDX-License-Identifier: BSD-3-Clause
 * proto/roster: who is in the job. Members are never removed, only marked: so an id or an
 * incarnation is never admitted twice. Floor: proto. Thread: the agent's roster lock. */
#include "proto/roster.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    ROOM_MIN = 8,
    ADDRESSES_MAX = 4096, /* bytes of a member's addresses */
    SHOWN_MAX = 100,      /* of them in an error's text */
    MISSING_MAX = 8,      /* ranks named one by one */
    NEAR_MAX = 3,
    FIELD_COUNT = 6,        /* of a snapshot */
    MEMBER_FIELD_COUNT = 5, /* of a member in it */
};

void far__roster_init(far__roster *r, uint32_t world_size)
{
    *r = (far__roster){.world_size = world_size};
}

void far__roster_fini(far__roster *r)
{
    for (size_t i = 0; i < r->count; i++)
        far__mem_free(r->members[i].addresses);
    far__mem_free(r->members);
    *r = (far__roster){0};
}

/* ------------------------------------------------------------------------------------- checks */

far_status far__name_check(const char *name, far_error *error)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_.:-";
    if (!name || !*name)
        return far__error_set(error, FAR_EINVAL, "a worker needs a name");
    size_t size = strnlen(name, FAR_NAME_MAX + 1);
    if (size > FAR_NAME_MAX)
        return far__error_set(error, FAR_EINVAL,
                              "the name \"%.20s...\" is longer than %d characters", name,
                              FAR_NAME_MAX);
    size_t good = strspn(name, allowed);
    if (good < size)
        return far__error_set(error, FAR_EINVAL,
                              "the name \"%s\" has a character other than A-Z a-z 0-9 _ . : - at "
                              "place %zu",
                              name, good + 1);
    return FAR_OK;
}

static bool addresses_good(const char *text, size_t size)
{
    if (size > ADDRESSES_MAX)
        return false;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < 0x20 || text[i] > 0x7e)
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------------------------- lookup */

/* Index of the first member whose id is `id` or higher. */
static size_t place_of(const far__roster *r, far_worker_id id)
{
    size_t low = 0, high = r->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->members[middle].id >= id)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

const far__member *far__roster_by_id(const far__roster *r, far_worker_id id)
{
    size_t at = place_of(r, id);
    return at < r->count && r->members[at].id == id ? &r->members[at] : NULL;
}

const far__member *far__roster_by_name(const far__roster *r, const char *name)
{
    const far__member *gone = NULL;
    for (size_t i = 0; i < r->count; i++) {
        if (strcmp(r->members[i].name, name) != 0)
            continue;
        if (r->members[i].state == FAR__MEMBER_JOINED)
            return &r->members[i];
        gone = &r->members[i];
    }
    return gone;
}

static const far__member *by_incarnation(const far__roster *r, uint64_t incarnation)
{
    for (size_t i = 0; i < r->count; i++) {
        if (r->members[i].incarnation == incarnation)
            return &r->members[i];
    }
    return NULL;
}

/* Levenshtein distance. */
static size_t distance(const char *a, const char *b)
{
    size_t row[FAR_NAME_MAX + 1];
    size_t b_size = strnlen(b, FAR_NAME_MAX);
    for (size_t j = 0; j <= b_size; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] && i <= FAR_NAME_MAX; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_size; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[b_size];
}

void far__roster_near(const far__roster *r, const char *name, char *text, size_t size)
{
    const far__member *best[NEAR_MAX];
    size_t best_distance[NEAR_MAX];
    size_t count = 0;
    const size_t limit = 1 + strlen(name) / 4;
    for (size_t i = 0; i < r->count; i++) {
        if (r->members[i].state != FAR__MEMBER_JOINED)
            continue;
        size_t d = distance(name, r->members[i].name);
        if (d > limit || (count == NEAR_MAX && d >= best_distance[count - 1]))
            continue;
        size_t at = count < NEAR_MAX ? count++ : count - 1;
        for (; at > 0 && best_distance[at - 1] > d; at--) {
            best[at] = best[at - 1];
            best_distance[at] = best_distance[at - 1];
        }
        best[at] = &r->members[i];
        best_distance[at] = d;
    }
    if (size)
        text[0] = 0;
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        size_t wanted = strlen(best[i]->name) + (i ? 2 : 0);
        if (used + wanted >= size)
            break;
        snprintf(text + used, size - used, "%s%s", i ? ", " : "", best[i]->name);
        used += wanted;
    }
}

/* ------------------------------------------------------------------------------------ joining */

bool far__roster_complete(const far__roster *r)
{
    return r->world_size == 0 || r->count == r->world_size;
}

void far__roster_missing(const far__roster *r, char *text, size_t size)
{
    if (size == 0)
        return;
    text[0] = 0;
    if (far__roster_complete(r))
        return;
    size_t missing = r->world_size - r->count, used = 0;
    bool fits = missing <= MISSING_MAX;
    far_worker_id rank = 0;
    for (size_t i = 0, named = 0; fits && named < missing; rank++) {
        if (i < r->count && r->members[i].id == rank) {
            i++;
            continue;
        }
        int wrote = snprintf(text + used, size - used, "%srank %" PRIu32, named ? ", " : "", rank);
        fits = wrote > 0 && (size_t)wrote < size - used;
        used += (size_t)wrote;
        named++;
    }
    if (!fits)
        snprintf(text, size, "%zu of %" PRIu32 " workers", missing, r->world_size);
}

static const char *shown(const char *addresses)
{
    return addresses && *addresses ? addresses : "no address";
}

static const char *shown_of(const far__member *m)
{
    if (m->state == FAR__MEMBER_JOINED)
        return shown(m->addresses);
    return m->state == FAR__MEMBER_LEFT ? "has left" : "was lost";
}

/* A clash: in a fixed world nobody can go on, because somebody's place stays empty. A world that
 * has been complete is past that: only the newcomer fails. */
static far_status clash(far__roster *r, const char *text, far_error *error)
{
    if (!far__roster_complete(r)) {
        r->failed = FAR_EBUSY;
        snprintf(r->failed_text, sizeof r->failed_text, "%s", text);
        r->version++;
    }
    return far__error_set(error, FAR_EBUSY, "%s", text);
}

static far_status check_wish(const far__roster *r, const far__join *wish, far_error *error)
{
    far_status status = far__name_check(wish->name, error);
    if (status != FAR_OK)
        return status;
    if (wish->addresses && !addresses_good(wish->addresses, strlen(wish->addresses)))
        return far__error_set(error, FAR_EINVAL, "the addresses of \"%s\" are malformed",
                              wish->name);
    if (wish->world_size != r->world_size) {
        if (wish->world_size == 0)
            return far__error_set(error, FAR_EINVAL,
                                  "\"%s\" was started without a world size, rank 0 with world size "
                                  "%" PRIu32,
                                  wish->name, r->world_size);
        if (r->world_size == 0)
            return far__error_set(error, FAR_EINVAL,
                                  "\"%s\" was started with world size %" PRIu32
                                  ", rank 0 without one",
                                  wish->name, wish->world_size);
        return far__error_set(error, FAR_EINVAL,
                              "\"%s\" was started with world size %" PRIu32
                              ", rank 0 with world size %" PRIu32,
                              wish->name, wish->world_size, r->world_size);
    }
    int64_t limit = r->world_size ? (int64_t)r->world_size : (int64_t)UINT32_MAX;
    if (wish->rank < -1 || wish->rank >= limit)
        return far__error_set(error, FAR_EINVAL,
                              "\"%s\" wants rank %" PRId64 ", which is outside of 0..%" PRId64,
                              wish->name, wish->rank, limit - 1);
    return FAR_OK;
}

/* The lowest id from `from` on that was never given; false: none below `limit`. */
static bool free_id(const far__roster *r, far_worker_id from, far_worker_id limit,
                    far_worker_id *id)
{
    size_t at = place_of(r, from);
    while (at < r->count && r->members[at].id == from) {
        at++;
        from++;
    }
    if (from >= limit)
        return false;
    *id = from;
    return true;
}

static far_status choose_id(far__roster *r, const far__join *wish, far_worker_id *id,
                            far_error *error)
{
    char text[sizeof error->text];
    if (wish->rank >= 0) {
        const far__member *holder = far__roster_by_id(r, (far_worker_id)wish->rank);
        if (holder) {
            snprintf(text, sizeof text,
                     "rank %" PRId64 " is taken: worker \"%s\" (%.*s) and a newcomer \"%s\" (%.*s)",
                     wish->rank, holder->name, SHOWN_MAX, shown_of(holder), wish->name, SHOWN_MAX,
                     shown(wish->addresses));
            return clash(r, text, error);
        }
        *id = (far_worker_id)wish->rank;
        return FAR_OK;
    }
    bool found =
        r->world_size ? free_id(r, 1, r->world_size, id) : free_id(r, r->next_id, UINT32_MAX, id);
    if (found)
        return FAR_OK;
    snprintf(text, sizeof text, "all ranks are taken: no place for a newcomer \"%s\" (%.*s)",
             wish->name, SHOWN_MAX, shown(wish->addresses));
    return clash(r, text, error);
}

static far_status insert(far__roster *r, far_worker_id id, const far__join *wish)
{
    if (r->count == r->room) {
        size_t room = r->room ? r->room * 2 : ROOM_MIN;
        far__member *members = far__mem_resize(r->members, room * sizeof *members);
        if (!members)
            return FAR_ENOMEM;
        r->members = members;
        r->room = room;
    }
    const char *addresses = wish->addresses ? wish->addresses : "";
    char *copy = far__mem_copy_text(addresses, strlen(addresses));
    if (!copy)
        return FAR_ENOMEM;
    size_t at = place_of(r, id);
    memmove(r->members + at + 1, r->members + at, (r->count - at) * sizeof *r->members);
    far__member *m = &r->members[at];
    *m = (far__member){
        .id = id,
        .incarnation = wish->incarnation,
        .state = FAR__MEMBER_JOINED,
        .addresses = copy,
    };
    memcpy(m->name, wish->name, strlen(wish->name));
    r->count++;
    return FAR_OK;
}

far_status far__roster_admit(far__roster *r, const far__join *wish, far_worker_id *id,
                             far_error *error)
{
    if (r->failed != FAR_OK)
        return far__error_set(error, r->failed, "%s", r->failed_text);
    far_status status = check_wish(r, wish, error);
    if (status != FAR_OK)
        return status;
    const far__member *same = by_incarnation(r, wish->incarnation);
    if (same && same->state != FAR__MEMBER_JOINED)
        return far__error_set(error, FAR_EINVAL,
                              "worker %" PRIu32 " \"%s\" %s: it can only join again when started "
                              "anew",
                              same->id, same->name, shown_of(same));
    if (same) {
        *id = same->id;
        return FAR_OK;
    }
    const far__member *holder = far__roster_by_name(r, wish->name);
    if (holder && (holder->state == FAR__MEMBER_JOINED || r->world_size)) {
        char text[sizeof error->text];
        snprintf(text, sizeof text,
                 "the name \"%s\" is taken: worker %" PRIu32 " (%.*s) and a newcomer (%.*s)",
                 wish->name, holder->id, SHOWN_MAX, shown_of(holder), SHOWN_MAX,
                 shown(wish->addresses));
        return clash(r, text, error);
    }
    far_worker_id chosen = 0;
    status = choose_id(r, wish, &chosen, error);
    if (status != FAR_OK)
        return status;
    status = insert(r, chosen, wish);
    if (status != FAR_OK)
        return far__error_set(error, status, "no memory for one more worker");
    if (r->world_size == 0)
        (void)free_id(r, r->next_id, UINT32_MAX, &r->next_id);
    r->version++;
    *id = chosen;
    return FAR_OK;
}

bool far__roster_set_state(far__roster *r, far_worker_id id, far__member_state state)
{
    size_t at = place_of(r, id);
    if (at == r->count || r->members[at].id != id || r->members[at].state != FAR__MEMBER_JOINED ||
        state == FAR__MEMBER_JOINED)
        return false;
    r->members[at].state = (uint8_t)state;
    /* Nobody dials it any more, and snapshots of a long job stay small. */
    r->members[at].addresses[0] = 0;
    r->version++;
    return true;
}

/* ----------------------------------------------------------------------------------- snapshot */

static far_status put_text(far_message *message, const char *text)
{
    return far_message_put_string(message, text, strlen(text));
}

static far_status put_member(far_message *message, const far__member *m)
{
    far_status status = far_message_put_list(message, MEMBER_FIELD_COUNT);
    if (status == FAR_OK)
        status = far_message_put_uint(message, m->id);
    if (status == FAR_OK)
        status = far_message_put_uint(message, m->incarnation);
    if (status == FAR_OK)
        status = far_message_put_uint(message, m->state);
    if (status == FAR_OK)
        status = put_text(message, m->name);
    if (status == FAR_OK)
        status = put_text(message, m->addresses);
    return status;
}

far_status far__roster_encode(const far__roster *r, far_message *message)
{
    far_status status = far_message_put_list(message, FIELD_COUNT);
    if (status == FAR_OK)
        status = far_message_put_uint(message, r->version);
    if (status == FAR_OK)
        status = far_message_put_uint(message, r->world_size);
    if (status == FAR_OK)
        status = far_message_put_uint(message, r->next_id);
    if (status == FAR_OK)
        status = far_message_put_uint(message, (uint64_t)r->failed);
    if (status == FAR_OK)
        status = put_text(message, r->failed_text);
    if (status == FAR_OK)
        status = far_message_put_list(message, (uint32_t)r->count);
    for (size_t i = 0; status == FAR_OK && i < r->count; i++)
        status = put_member(message, &r->members[i]);
    return status;
}

static bool get_uint(const far_value *v, uint64_t max, uint64_t *out)
{
    uint64_t n;
    if (v->kind == FAR_INT && v->as.integer >= 0)
        n = (uint64_t)v->as.integer;
    else if (v->kind == FAR_UINT)
        n = v->as.unsigned_integer;
    else
        return false;
    if (n > max)
        return false;
    *out = n;
    return true;
}

/* Copies a text without control characters into `out`, which has room for `max` bytes and a zero. */
static bool get_text(const far_value *v, size_t max, char *out)
{
    if (v->kind != FAR_STRING || v->as.bytes.size > max)
        return false;
    for (size_t i = 0; i < v->as.bytes.size; i++) {
        if ((unsigned char)v->as.bytes.data[i] < 0x20)
            return false;
    }
    if (v->as.bytes.size)
        memcpy(out, v->as.bytes.data, v->as.bytes.size);
    out[v->as.bytes.size] = 0;
    return true;
}

/* Items of a list with at least `count` of them (a later version may say more); NULL: none such. */
static const far_value *get_list(const far_value *v, size_t count)
{
    return v->kind == FAR_LIST && v->as.list.count >= count ? v->as.list.items : NULL;
}

/* Fills all of `m` but addresses, which are only checked. */
static bool get_member(const far_value *v, far__member *m)
{
    const far_value *f = get_list(v, MEMBER_FIELD_COUNT);
    uint64_t id, state;
    if (!f || !get_uint(&f[0], UINT32_MAX - 1, &id) ||
        !get_uint(&f[1], UINT64_MAX, &m->incarnation) ||
        !get_uint(&f[2], FAR__MEMBER_LOST, &state) || !get_text(&f[3], FAR_NAME_MAX, m->name) ||
        far__name_check(m->name, NULL) != FAR_OK)
        return false;
    m->id = (far_worker_id)id;
    m->state = (uint8_t)state;
    return f[4].kind == FAR_STRING && addresses_good(f[4].as.bytes.data, f[4].as.bytes.size);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* FAR_EPROTO if two joined members have one name. */
static far_status check_names(const far__roster *r)
{
    const char **names = far__mem_array(r->count ? r->count : 1, sizeof *names);
    if (!names)
        return FAR_ENOMEM;
    size_t count = 0;
    for (size_t i = 0; i < r->count; i++) {
        if (r->members[i].state == FAR__MEMBER_JOINED)
            names[count++] = r->members[i].name;
    }
    qsort(names, count, sizeof *names, compare_names);
    far_status status = FAR_OK;
    for (size_t i = 1; i < count; i++) {
        if (strcmp(names[i - 1], names[i]) == 0)
            status = FAR_EPROTO;
    }
    far__mem_free(names);
    return status;
}

/* Appends the member `v` to the new copy `r`; `old` is the present one. */
static far_status read_member(far__roster *r, const far__roster *old, const far_value *v)
{
    far__member m = {0};
    if (!get_member(v, &m))
        return FAR_EPROTO;
    if ((r->count && m.id <= r->members[r->count - 1].id) ||
        (r->world_size && m.id >= r->world_size))
        return FAR_EPROTO;
    const far__member *known = far__roster_by_id(old, m.id);
    if (known && known->incarnation != m.incarnation)
        return FAR_EPROTO;
    const far_value *addresses = &v->as.list.items[4];
    m.addresses = far__mem_copy_text(addresses->as.bytes.data, addresses->as.bytes.size);
    if (!m.addresses)
        return FAR_ENOMEM;
    r->members[r->count++] = m;
    return FAR_OK;
}

static far_status read_snapshot(far__roster *r, const far__roster *old, const far_value *v)
{
    const far_value *f = get_list(v, FIELD_COUNT);
    uint64_t world_size, next_id, failed;
    if (!f || !get_uint(&f[0], UINT64_MAX, &r->version) ||
        !get_uint(&f[1], UINT32_MAX, &world_size) || !get_uint(&f[2], UINT32_MAX, &next_id) ||
        !get_uint(&f[3], FAR_ESYSTEM, &failed) ||
        !get_text(&f[4], sizeof r->failed_text - 1, r->failed_text) || f[5].kind != FAR_LIST)
        return FAR_EPROTO;
    r->world_size = (uint32_t)world_size;
    r->next_id = (far_worker_id)next_id;
    r->failed = (far_status)failed;
    /* The decoded list is in memory already: its count is no bare promise. */
    size_t count = f[5].as.list.count;
    r->members = far__mem_array(count ? count : 1, sizeof *r->members);
    if (!r->members)
        return FAR_ENOMEM;
    r->room = count ? count : 1;
    far_status status = FAR_OK;
    for (size_t i = 0; status == FAR_OK && i < count; i++)
        status = read_member(r, old, &f[5].as.list.items[i]);
    return status == FAR_OK ? check_names(r) : status;
}

far_status far__roster_apply(far__roster *r, far_message *message, bool *changed)
{
    const far_value *values;
    size_t count;
    far_status status = far_message_values(message, &values, &count);
    if (status != FAR_OK)
        return status == FAR_ENOMEM ? status : FAR_EPROTO;
    if (count == 0)
        return FAR_EPROTO;
    far__roster fresh = {0};
    status = read_snapshot(&fresh, r, &values[count - 1]);
    if (status == FAR_OK && fresh.version > r->version) {
        far__roster old = *r;
        *r = fresh;
        fresh = old;
        *changed = true;
    } else if (status == FAR_OK) {
        *changed = false;
    }
    far__roster_fini(&fresh);
    return status;
}
