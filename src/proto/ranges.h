/* SPDX-License-Identifier: BSD-3-Clause
 * proto/ranges: a set of uint64_t from 1 on, kept as a mark (all below it are in the set) and a
 * sorted array of disjoint, non-adjacent ranges above it. Floor: proto. Thread: the owner's lock.
 */
#ifndef FAR_PROTO_RANGES_H
#define FAR_PROTO_RANGES_H

#include "proto/wire.h"

typedef struct far__ranges {
    uint64_t mark; /* 0 before far__ranges_init; 1: empty set */
    far__wire_range *items;
    size_t count, room;
} far__ranges;

void far__ranges_init(far__ranges *r);
void far__ranges_fini(far__ranges *r);
/* Makes room for `count` ranges in all, so that adding up to there cannot fail. */
far_status far__ranges_reserve(far__ranges *r, size_t count) FAR_MUST_USE; /* FAR_ENOMEM */
/* Adds first..last (inclusive); nothing if first > last. UINT64_MAX itself is never in the set.
 * FAR_ENOMEM: unchanged. */
far_status far__ranges_add(far__ranges *r, uint64_t first, uint64_t last) FAR_MUST_USE;
bool far__ranges_has(const far__ranges *r, uint64_t n);

#endif
