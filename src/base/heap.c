/* SPDX-License-Identifier: BSD-3-Clause
 * base/heap: deadlines in order: a binary min-heap of intrusive nodes that know their place.
 * Floor: base. Thread: the owner's lock. */
#include "base/heap.h"

#include <assert.h>

#include "base/mem.h"

enum { ROOM_MIN = 16 };

/* Places are 1-based, so the parent of i is i / 2; the node at place i lies in nodes[i - 1]. */
static void put(far__heap *h, size_t place, far__heap_node *n)
{
    h->nodes[place - 1] = n;
    n->index = place;
}

/* Finds the place for `n` from the free place `at` towards the root. */
static void sift_up(far__heap *h, size_t at, far__heap_node *n)
{
    while (at > 1 && h->nodes[at / 2 - 1]->key > n->key) {
        put(h, at, h->nodes[at / 2 - 1]);
        at /= 2;
    }
    put(h, at, n);
}

/* The same towards the leaves. */
static void sift_down(far__heap *h, size_t at, far__heap_node *n)
{
    while (at * 2 <= h->count) {
        size_t child = at * 2;
        if (child < h->count && h->nodes[child]->key < h->nodes[child - 1]->key)
            child++;
        if (h->nodes[child - 1]->key >= n->key)
            break;
        put(h, at, h->nodes[child - 1]);
        at = child;
    }
    put(h, at, n);
}

void far__heap_fini(far__heap *h)
{
    for (size_t i = 0; i < h->count; i++)
        h->nodes[i]->index = 0;
    far__mem_free(h->nodes);
    *h = (far__heap){0};
}

far_status far__heap_add(far__heap *h, far__heap_node *n, int64_t key)
{
    assert(n->index == 0);
    if (h->count == h->room) {
        size_t room = h->room ? h->room * 2 : ROOM_MIN;
        far__heap_node **nodes = far__mem_resize(h->nodes, room * sizeof *nodes);
        if (!nodes)
            return FAR_ENOMEM;
        h->nodes = nodes;
        h->room = room;
    }
    n->key = key;
    h->count++;
    sift_up(h, h->count, n);
    return FAR_OK;
}

void far__heap_remove(far__heap *h, far__heap_node *n)
{
    if (n->index == 0)
        return;
    size_t place = n->index;
    assert(place <= h->count && h->nodes[place - 1] == n);
    far__heap_node *last = h->nodes[h->count - 1];
    h->count--;
    n->index = 0;
    if (last == n)
        return;
    if (place > 1 && h->nodes[place / 2 - 1]->key > last->key)
        sift_up(h, place, last);
    else
        sift_down(h, place, last);
}

far__heap_node *far__heap_first(const far__heap *h)
{
    return h->count ? h->nodes[0] : NULL;
}
