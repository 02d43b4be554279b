/* SPDX-License-Identifier: BSD-3-Clause
 * base/list: intrusive doubly linked list, header only. A node that is in no list points to itself.
 * Floor: base. Thread: the owner's lock. */
#ifndef FAR_BASE_LIST_H
#define FAR_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct far__list far__list;
struct far__list {
    far__list *next, *prev;
};

#define far__container_of(ptr, type, member)                                                       \
    ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void far__list_init(far__list *l)
{
    l->next = l->prev = l;
}
static inline bool far__list_empty(const far__list *l)
{
    return l->next == l;
}
static inline void far__list_add_tail(far__list *head, far__list *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}
static inline void far__list_add_head(far__list *head, far__list *n)
{
    far__list_add_tail(head->next, n);
}
/* Leaves the node alone in a list of its own, so removing twice does no harm. */
static inline void far__list_remove(far__list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    n->next = n->prev = n;
}
/* The first node, removed; NULL if there is none. */
static inline far__list *far__list_pop(far__list *head)
{
    far__list *n = head->next;
    if (n == head)
        return NULL;
    far__list_remove(n);
    return n;
}
/* Moves all of `from` to the tail of `to`. */
static inline void far__list_splice(far__list *to, far__list *from)
{
    if (far__list_empty(from))
        return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    far__list_init(from);
}
#define far__list_for_each(n, head) for (far__list *n = (head)->next; n != (head); n = n->next)
#define far__list_for_each_safe(n, head)                                                           \
    for (far__list *n = (head)->next, *n##_next = n->next; n != (head);                            \
         n = n##_next, n##_next = n->next)

#endif
