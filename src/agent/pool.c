/* SPDX-License-Identifier: BSD-3-Clause
 * agent/pool: memory for large received segments. Fresh memory costs many times a copy at its first
 * touch, so blocks are kept and reused; from 2 MiB on they are asked to be in huge pages.
 * Invariant: idle bytes never exceed POOL_IDLE_MAX.
 * Floor: agent. Thread: any. */
#include <string.h>
#include <sys/mman.h>

#include "agent/agent.h"
#include "base/mem.h"

enum {
    POOL_FROM = 65536, /* smaller ones come from the common allocator */
    HUGE_PAGE = 2097152,
    CLASSES = 48,
};
#define POOL_IDLE_MAX ((size_t)512 << 20)

/* A block is a mapping; a struct of its own describes it, so that the data stays page-aligned. */
typedef struct pool_block {
    far__pool *pool;
    void *data;
    size_t size;
    int class;
    struct pool_block *next;
} pool_block;

struct far__pool {
    far__ref refs;
    far_alloc_fn alloc;
    void *alloc_arg;
    far__mutex lock;
    pool_block *idle[CLASSES];
    size_t idle_bytes;
};

far_status far__pool_create(far_alloc_fn alloc, void *alloc_arg, far__pool **out)
{
    far__pool *p = far__mem_zalloc(sizeof *p);
    if (!p)
        return FAR_ENOMEM;
    far__ref_init(&p->refs);
    far__mutex_init(&p->lock);
    p->alloc = alloc;
    p->alloc_arg = alloc_arg;
    *out = p;
    return FAR_OK;
}

static void block_destroy(pool_block *b)
{
    munmap(b->data, b->size);
    far__mem_free(b);
}

void far__pool_release(far__pool *p)
{
    if (!p || !far__ref_release(&p->refs))
        return;
    for (int i = 0; i < CLASSES; i++)
        for (pool_block *b = p->idle[i], *next; b; b = next) {
            next = b->next;
            block_destroy(b);
        }
    far__mutex_fini(&p->lock);
    far__mem_free(p);
}

/* Four sizes a power of two, so at most a quarter is wasted. */
static int class_of(size_t size, size_t *rounded)
{
    int class = 0;
    size_t step = POOL_FROM / 4, at = POOL_FROM;
    while (at < size) {
        at += step;
        class ++;
        if (class % 4 == 0)
            step *= 2;
    }
    *rounded = at;
    return class;
}

static void give_back(void *arg)
{
    pool_block *b = arg;
    far__pool *p = b->pool;
    far__mutex_lock(&p->lock);
    bool keep = b->class < CLASSES && p->idle_bytes + b->size <= POOL_IDLE_MAX;
    if (keep) {
        b->next = p->idle[b->class];
        p->idle[b->class] = b;
        p->idle_bytes += b->size;
    }
    far__mutex_unlock(&p->lock);
    if (!keep)
        block_destroy(b);
    far__pool_release(p);
}

static pool_block *block_create(size_t size, int class)
{
    pool_block *b = far__mem_zalloc(sizeof *b);
    if (!b)
        return NULL;
    b->size = size;
    b->class = class;
    /* cppcheck-suppress invalidFunctionArg ; -1 is the descriptor of anonymous memory */
    b->data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->data == MAP_FAILED) {
        far__mem_free(b);
        return NULL;
    }
    if (size >= HUGE_PAGE)
        (void)madvise(b->data, size, MADV_HUGEPAGE); /* only a wish */
    return b;
}

static far_status take_from_user(far__pool *p, size_t size, far_buffer **out)
{
    far_free_fn free_fn = NULL;
    void *free_arg = NULL;
    void *data = p->alloc(size, p->alloc_arg, &free_fn, &free_arg);
    if (!data)
        return FAR_EAGAIN;
    far_status status =
        far_buffer_wrap(data, size, free_fn, free_arg, FAR_BUFFER_FREE_ANYWHERE, out);
    if (status != FAR_OK && free_fn)
        free_fn(free_arg);
    return status;
}

far_status far__pool_take(far__pool *p, size_t size, far_buffer **out)
{
    if (p->alloc) {
        far_status status = take_from_user(p, size, out);
        if (status != FAR_EAGAIN)
            return status;
    }
    if (size < POOL_FROM)
        return far_buffer_alloc(size, out);
    size_t rounded;
    int class = class_of(size, &rounded);
    pool_block *b = NULL;
    if (class < CLASSES) {
        far__mutex_lock(&p->lock);
        b = p->idle[class];
        if (b) {
            p->idle[class] = b->next;
            p->idle_bytes -= b->size;
        }
        far__mutex_unlock(&p->lock);
    }
    if (!b)
        b = block_create(rounded, class);
    if (!b)
        return FAR_ENOMEM;
    b->pool = p;
    far__ref_hold(&p->refs);
    far_status status = far_buffer_wrap(b->data, size, give_back, b, FAR_BUFFER_FREE_ANYWHERE, out);
    if (status != FAR_OK)
        give_back(b);
    return status;
}
