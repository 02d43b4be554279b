/* SPDX-License-Identifier: BSD-3-Clause
 * base/mem: the table through which farcall allocates; tests replace it by one that fails.
 * Floor: base. Thread: any. */
#ifndef FAR_BASE_MEM_H
#define FAR_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#include <farcall/farcall.h>

typedef struct far__mem_table {
    void *(*alloc)(size_t size, void *arg); /* NULL when there is none */
    void *(*resize)(void *old, size_t size, void *arg);
    void (*free)(void *block, void *arg);
    void *arg;
} far__mem_table;

/* Replaces the table (NULL: the C library's). Only while nothing of farcall is allocated. */
void far__mem_set_table(const far__mem_table *table);

void *far__mem_alloc(size_t size);               /* uninitialised; NULL when there is none */
void *far__mem_zalloc(size_t size);              /* zeroed */
void *far__mem_array(size_t count, size_t size); /* zeroed; NULL on overflow too */
/* Grows or shrinks; `old` stays valid when NULL is returned. */
void *far__mem_resize(void *old, size_t size);
void far__mem_free(void *block);                         /* NULL is accepted */
char *far__mem_copy_text(const char *text, size_t size); /* adds the final zero */
/* Blocks alive; counted exactly. far_memory_live() is this. */
size_t far__mem_live(void);

#endif
