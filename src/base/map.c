/* SPDX-License-Identifier: BSD-3-Clause
 * base/map: map from uint64_t to a pointer: linear probing, removal by shifting back (no
 * tombstones). Floor: base. Thread: the owner's lock. */
#include "base/map.h"

#include <assert.h>

#include "base/mem.h"

enum { ROOM_MIN = 16 };

/* Keys are mostly counters or differ in few bits: mix all of them into the low ones. */
static size_t home_of(uint64_t key, size_t room)
{
    key ^= key >> 32;
    key *= UINT64_C(0x9e3779b97f4a7c15);
    key ^= key >> 29;
    return (size_t)key & (room - 1);
}

/* The slot that holds `key`, or the empty one where it would go. The table is never full. */
static size_t slot_of(const far__map *m, uint64_t key)
{
    size_t at = home_of(key, m->room);
    while (m->slots[at].value && m->slots[at].key != key)
        at = (at + 1) & (m->room - 1);
    return at;
}

static far_status grow(far__map *m)
{
    far__map bigger = {.count = m->count, .room = m->room ? m->room * 2 : ROOM_MIN};
    bigger.slots = far__mem_array(bigger.room, sizeof *bigger.slots);
    if (!bigger.slots)
        return FAR_ENOMEM;
    for (size_t i = 0; i < m->room; i++) {
        if (m->slots[i].value)
            bigger.slots[slot_of(&bigger, m->slots[i].key)] = m->slots[i];
    }
    far__mem_free(m->slots);
    *m = bigger;
    return FAR_OK;
}

void far__map_fini(far__map *m)
{
    far__mem_free(m->slots);
    *m = (far__map){0};
}

void *far__map_get(const far__map *m, uint64_t key)
{
    return m->room ? m->slots[slot_of(m, key)].value : NULL;
}

far_status far__map_put(far__map *m, uint64_t key, void *value)
{
    assert(value);
    if (m->room) {
        far__map_slot *slot = &m->slots[slot_of(m, key)];
        if (slot->value) {
            slot->value = value;
            return FAR_OK;
        }
    }
    if (m->count >= m->room - m->room / 4) {
        far_status status = grow(m);
        if (status != FAR_OK)
            return status;
    }
    m->slots[slot_of(m, key)] = (far__map_slot){.key = key, .value = value};
    m->count++;
    return FAR_OK;
}

void *far__map_remove(far__map *m, uint64_t key)
{
    if (!m->room)
        return NULL;
    const size_t mask = m->room - 1;
    size_t hole = slot_of(m, key);
    void *value = m->slots[hole].value;
    if (!value)
        return NULL;
    /* A later entry of the run moves into the hole unless that would put it before its home. */
    for (size_t at = (hole + 1) & mask; m->slots[at].value; at = (at + 1) & mask) {
        size_t home = home_of(m->slots[at].key, m->room);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            m->slots[hole] = m->slots[at];
            hole = at;
        }
    }
    m->slots[hole] = (far__map_slot){0};
    m->count--;
    return value;
}

bool far__map_next(const far__map *m, size_t *at, uint64_t *key, void **value)
{
    for (; *at < m->room; ++*at) {
        const far__map_slot *slot = &m->slots[*at];
        if (!slot->value)
            continue;
        *key = slot->key;
        *value = slot->value;
        ++*at;
        return true;
    }
    return false;
}
