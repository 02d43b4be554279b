/* SPDX-License-Identifier: BSD-3-Clause
 * base/heap: deadlines in order: a binary min-heap of intrusive nodes, removal from the middle
 * included. Floor: base. Thread: the owner's lock. */
#ifndef FAR_BASE_HEAP_H
#define FAR_BASE_HEAP_H

#include <farcall/farcall.h>

typedef struct far__heap_node {
    int64_t key;  /* set by far__heap_add */
    size_t index; /* 1-based place in the heap; 0: in no heap */
} far__heap_node;

/* Zero-initialised is empty and valid. */
typedef struct far__heap {
    far__heap_node **nodes;
    size_t count, room;
} far__heap;

void far__heap_fini(far__heap *h);
far_status far__heap_add(far__heap *h, far__heap_node *n,
                         int64_t key) FAR_MUST_USE;     /* FAR_ENOMEM */
void far__heap_remove(far__heap *h, far__heap_node *n); /* a node in no heap: nothing happens */
far__heap_node *far__heap_first(const far__heap *h);    /* NULL if empty */

#endif
