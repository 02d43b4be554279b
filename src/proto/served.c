/* SPDX-License-Identifier: BSD-3-Clause
 * proto/served: the callee's side of calls that may be repeated. Every sequence is in one of three
 * places: not seen, in `entries`, in `acknowledged`; it moves only forward, so it runs at most once.
 * Floor: proto. Thread: the owner's lock. */
#include "proto/served.h"

#include <assert.h>

#include "base/mem.h"

typedef struct entry {
    far__list link;
    uint64_t sequence;
    uint64_t call_id; /* of the latest arrival */
    void *result;     /* kept, once done */
    bool done;
} entry;

void far__served_init(far__served *s, far__served_drop_fn drop, void *arg)
{
    *s = (far__served){.drop = drop, .drop_arg = arg};
    far__list_init(&s->all);
    far__ranges_init(&s->acknowledged);
}

static void drop_result(far__served *s, void *result)
{
    if (result)
        s->drop(result, s->drop_arg);
}

/* A running one goes too: its handler finds no entry when it ends. */
static void forget(far__served *s, entry *e)
{
    far__map_remove(&s->entries, e->sequence);
    far__list_remove(&e->link);
    drop_result(s, e->result);
    far__mem_free(e);
}

void far__served_fini(far__served *s)
{
    far__list_for_each_safe (n, &s->all)
        forget(s, far__container_of(n, entry, link));
    far__map_fini(&s->entries);
    far__ranges_fini(&s->acknowledged);
}

far_status far__served_begin(far__served *s, uint64_t sequence, uint64_t call_id,
                             far__served_verdict *verdict, void **result)
{
    if (far__ranges_has(&s->acknowledged, sequence)) {
        *verdict = FAR__SERVED_REFUSED;
        *result = NULL;
        return FAR_OK;
    }
    entry *e = far__map_get(&s->entries, sequence);
    if (e) {
        e->call_id = call_id;
        *verdict = e->done ? FAR__SERVED_DONE : FAR__SERVED_RUNNING;
        *result = e->result;
        return FAR_OK;
    }
    e = far__mem_zalloc(sizeof *e);
    if (!e)
        return FAR_ENOMEM;
    e->sequence = sequence;
    e->call_id = call_id;
    far_status status = far__map_put(&s->entries, sequence, e);
    if (status != FAR_OK) {
        far__mem_free(e);
        return status;
    }
    far__list_add_tail(&s->all, &e->link);
    *verdict = FAR__SERVED_NEW;
    *result = NULL;
    return FAR_OK;
}

bool far__served_end(far__served *s, uint64_t sequence, void *result, uint64_t *call_id)
{
    entry *e = far__map_get(&s->entries, sequence);
    if (!e) {
        drop_result(s, result);
        return false;
    }
    assert(!e->done);
    e->done = true;
    e->result = result;
    *call_id = e->call_id;
    return true;
}

/* Walks whichever is shorter, the numbers or the entries: a peer may name 2^63 numbers, and it
 * names the same ones again and again. */
static void forget_range(far__served *s, uint64_t first, uint64_t last)
{
    if (last - first < s->entries.count) {
        for (uint64_t n = first; n <= last; n++) {
            entry *e = far__map_get(&s->entries, n);
            if (e)
                forget(s, e);
        }
        return;
    }
    far__list_for_each_safe (n, &s->all) {
        entry *e = far__container_of(n, entry, link);
        if (e->sequence >= first && e->sequence <= last)
            forget(s, e);
    }
}

far_status far__served_ack(far__served *s, uint64_t mark, const far__wire_range *ranges,
                           size_t count)
{
    far_status status = far__ranges_reserve(&s->acknowledged, s->acknowledged.count + count);
    if (status != FAR_OK)
        return status;
    const uint64_t old_mark = s->acknowledged.mark;
    /* With the room made neither call can fail; the mark itself needs none. */
    if (mark > old_mark) {
        if (far__ranges_add(&s->acknowledged, old_mark, mark - 1) == FAR_OK)
            forget_range(s, old_mark, mark - 1);
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t first = ranges[i].first, last = ranges[i].last;
        /* What the set cannot hold is not forgotten either. */
        if (last == UINT64_MAX)
            last--;
        if (first > last)
            continue;
        if (far__ranges_add(&s->acknowledged, first, last) == FAR_OK)
            forget_range(s, first, last);
    }
    return FAR_OK;
}
