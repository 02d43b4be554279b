/* SPDX-License-Identifier: BSD-3-Clause
 * base/ref: a reference counter, header only. Starts at one.
 * Floor: base. Thread: any. */
#ifndef FAR_BASE_REF_H
#define FAR_BASE_REF_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct far__ref {
    _Atomic uint32_t count;
} far__ref;

static inline void far__ref_init(far__ref *r)
{
    atomic_init(&r->count, 1);
}
static inline void far__ref_hold(far__ref *r)
{
    uint32_t before = atomic_fetch_add_explicit(&r->count, 1, memory_order_relaxed);
    assert(before > 0);
    (void)before;
}
/* True for the one caller that gave up the last reference: it frees the object. The release/acquire
 * pair makes all that others did before their release visible to it. */
static inline bool far__ref_release(far__ref *r)
{
    uint32_t before = atomic_fetch_sub_explicit(&r->count, 1, memory_order_acq_rel);
    assert(before > 0);
    return before == 1;
}
/* Only a hint unless the caller owns the only reference. */
static inline uint32_t far__ref_count(far__ref *r)
{
    return atomic_load_explicit(&r->count, memory_order_acquire);
}

#endif
