/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/failmem: an allocator that fails when it is told to. */
#include "support/failmem.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/mem.h"

static atomic_size_t asked;
static atomic_bool refused;
static size_t first, last;

static bool refuse(void)
{
    size_t number = atomic_fetch_add(&asked, 1) + 1;
    if (number < first || number > last)
        return false;
    atomic_store(&refused, true);
    return true;
}

static void *fail_alloc(size_t size, void *arg)
{
    (void)arg;
    return refuse() ? NULL : malloc(size);
}

static void *fail_resize(void *old, size_t size, void *arg)
{
    (void)arg;
    return refuse() ? NULL : realloc(old, size);
}

static void fail_free(void *block, void *arg)
{
    (void)arg;
    free(block);
}

static void begin(size_t from, size_t to)
{
    static const far__mem_table table = {fail_alloc, fail_resize, fail_free, NULL};
    atomic_store(&asked, 0);
    atomic_store(&refused, false);
    first = from ? from : SIZE_MAX;
    last = from ? to : SIZE_MAX;
    far__mem_set_table(&table);
}

void failmem_begin(size_t n)
{
    begin(n, n);
}

void failmem_begin_from(size_t n)
{
    begin(n, SIZE_MAX);
}

size_t failmem_count(void)
{
    return atomic_load(&asked);
}

bool failmem_failed(void)
{
    return atomic_load(&refused);
}

void failmem_end(void)
{
    far__mem_set_table(NULL);
}
