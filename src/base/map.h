/* SPDX-License-Identifier: BSD-3-Clause
 * base/map: map from uint64_t to a pointer (open addressing, grows by doubling). NULL is no value.
 * Floor: base. Thread: the owner's lock. */
#ifndef FAR_BASE_MAP_H
#define FAR_BASE_MAP_H

#include <farcall/farcall.h>

typedef struct far__map_slot {
    uint64_t key;
    void *value;
} far__map_slot;

/* Zero-initialised is empty and valid. */
typedef struct far__map {
    far__map_slot *slots;
    size_t count, room; /* room: 0 or a power of two */
} far__map;

void far__map_fini(far__map *m); /* frees the table, not the values */
void *far__map_get(const far__map *m, uint64_t key);
/* Sets or replaces; `value` must not be NULL. FAR_ENOMEM: unchanged. */
far_status far__map_put(far__map *m, uint64_t key, void *value) FAR_MUST_USE;
void *far__map_remove(far__map *m, uint64_t key); /* the value, or NULL */
/* Visits in no order: start with *at = 0; false at the end. Removing the visited key is allowed
 * only when iteration restarts; adding is not. */
bool far__map_next(const far__map *m, size_t *at, uint64_t *key, void **value);

#endif
