/* SPDX-License-Identifier: BSD-3-Clause
 * base/mem: every allocation of farcall's own, through one table, counted.
 * Floor: base. Thread: any. */
#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static void *libc_alloc(size_t size, void *arg)
{
    (void)arg;
    return malloc(size);
}

static void *libc_resize(void *old, size_t size, void *arg)
{
    (void)arg;
    return realloc(old, size);
}

static void libc_free(void *block, void *arg)
{
    (void)arg;
    free(block);
}

static const far__mem_table libc_table = {libc_alloc, libc_resize, libc_free, NULL};
static far__mem_table current = {libc_alloc, libc_resize, libc_free, NULL};

/* Relaxed: it counts, it orders nothing. */
static atomic_size_t live;

void far__mem_set_table(const far__mem_table *table)
{
    assert(far__mem_live() == 0);
    current = table ? *table : libc_table;
}

void *far__mem_alloc(size_t size)
{
    /* NULL must mean only "none left", and the C library may give NULL for 0 bytes. */
    void *block = current.alloc(size ? size : 1, current.arg);
    if (block)
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return block;
}

void *far__mem_zalloc(size_t size)
{
    void *block = far__mem_alloc(size);
    if (block)
        memset(block, 0, size);
    return block;
}

void *far__mem_array(size_t count, size_t size)
{
    size_t total;
    if (__builtin_mul_overflow(count, size, &total))
        return NULL;
    return far__mem_zalloc(total);
}

void *far__mem_resize(void *old, size_t size)
{
    if (!old)
        return far__mem_alloc(size);
    return current.resize(old, size ? size : 1, current.arg);
}

void far__mem_free(void *block)
{
    if (!block)
        return;
    current.free(block, current.arg);
    /* Whoever sees zero may replace the table: this thread is through with it. */
    size_t before = atomic_fetch_sub_explicit(&live, 1, memory_order_release);
    assert(before > 0);
    (void)before;
}

char *far__mem_copy_text(const char *text, size_t size)
{
    if (size == SIZE_MAX)
        return NULL;
    char *copy = far__mem_alloc(size + 1);
    if (!copy)
        return NULL;
    if (size)
        memcpy(copy, text, size);
    copy[size] = 0;
    return copy;
}

size_t far__mem_live(void)
{
    return atomic_load_explicit(&live, memory_order_acquire);
}

size_t far_memory_live(void)
{
    return far__mem_live();
}
