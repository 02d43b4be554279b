/* SPDX-License-Identifier: BSD-3-Clause
 * proto/ranges: a set of numbers as a mark and sorted ranges above it. Invariant: mark <
 * items[0].first, and between two neighbours at least one number is missing.
 * Floor: proto. Thread: the owner's lock. */
#include "proto/ranges.h"

#include <string.h>

#include "base/mem.h"

enum { ROOM_MIN = 8 };

void far__ranges_init(far__ranges *r)
{
    *r = (far__ranges){.mark = 1};
}

void far__ranges_fini(far__ranges *r)
{
    far__mem_free(r->items);
    *r = (far__ranges){0};
}

far_status far__ranges_reserve(far__ranges *r, size_t count)
{
    if (count <= r->room)
        return FAR_OK;
    size_t room = r->room ? r->room : ROOM_MIN;
    while (room < count) {
        if (room > SIZE_MAX / 2 / sizeof *r->items)
            return FAR_ENOMEM;
        room *= 2;
    }
    far__wire_range *items = far__mem_resize(r->items, room * sizeof *items);
    if (!items)
        return FAR_ENOMEM;
    r->items = items;
    r->room = room;
    return FAR_OK;
}

/* Index of the first range that ends at `n` or behind it; r->count if there is none. */
static size_t first_ending_from(const far__ranges *r, uint64_t n)
{
    size_t low = 0, high = r->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (r->items[middle].last >= n)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Puts `with` in the place of the ranges from..to-1. */
static void replace(far__ranges *r, size_t from, size_t to, const far__wire_range *with,
                    size_t with_count)
{
    if (to < r->count)
        memmove(r->items + from + with_count, r->items + to, (r->count - to) * sizeof *r->items);
    if (with_count)
        r->items[from] = *with;
    r->count = r->count - (to - from) + with_count;
}

static void raise_mark(far__ranges *r, uint64_t mark)
{
    size_t reached = 0;
    while (reached < r->count && r->items[reached].first <= mark) {
        if (r->items[reached].last >= mark)
            mark = r->items[reached].last + 1;
        reached++;
    }
    replace(r, 0, reached, NULL, 0);
    r->mark = mark;
}

far_status far__ranges_add(far__ranges *r, uint64_t first, uint64_t last)
{
    /* The largest number is left out, so that there is always one behind `last`. */
    if (last == UINT64_MAX)
        last--;
    if (first > last || last < r->mark)
        return FAR_OK;
    if (first <= r->mark) {
        raise_mark(r, last + 1);
        return FAR_OK;
    }
    size_t from = first_ending_from(r, first - 1), to = from;
    while (to < r->count && r->items[to].first <= last + 1)
        to++;
    far__wire_range merged = {first, last};
    if (to > from) {
        if (r->items[from].first < merged.first)
            merged.first = r->items[from].first;
        if (r->items[to - 1].last > merged.last)
            merged.last = r->items[to - 1].last;
    } else {
        far_status status = far__ranges_reserve(r, r->count + 1);
        if (status != FAR_OK)
            return status;
    }
    replace(r, from, to, &merged, 1);
    return FAR_OK;
}

bool far__ranges_has(const far__ranges *r, uint64_t n)
{
    if (n < r->mark)
        return true;
    size_t at = first_ending_from(r, n);
    return at < r->count && r->items[at].first <= n;
}
