/* SPDX-License-Identifier: BSD-3-Clause
 * agent/methods: name -> handler, with the running average of each name's cost. Names that only the
 * fallback serves get entries of their own as they come, up to a bound, so that they are measured too.
 * Floor: agent. Thread: any. */
#include <string.h>

#include "agent/agent.h"
#include "base/mem.h"

enum { LEARNED_MAX = 4096 };

/* FNV-1a, 64 bits (Fowler, Noll, Vo). */
static uint64_t hash(const char *name, size_t size)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ (uint8_t)name[i]) * 1099511628211u;
    return h;
}

static far__method *make(const char *name, size_t size)
{
    far__method *m = far__mem_zalloc(sizeof *m + size + 1);
    if (m)
        memcpy(m->name, name, size);
    return m;
}

static far__method *lookup(const far__methods *m, uint64_t h, const char *name, size_t size)
{
    far__method *e = far__map_get(&m->by_hash, h);
    while (e && (strlen(e->name) != size || memcmp(e->name, name, size) != 0))
        e = e->next;
    return e;
}

static far_status insert(far__methods *m, uint64_t h, far__method *e)
{
    e->next = far__map_get(&m->by_hash, h);
    return far__map_put(&m->by_hash, h, e);
}

far_status far__methods_init(far__methods *m, far_handler fallback, void *arg)
{
    *m = (far__methods){.fallback = fallback, .fallback_arg = arg};
    far__mutex_init(&m->lock);
    m->overflow = make("", 0);
    if (!m->overflow)
        return FAR_ENOMEM;
    m->overflow->handler = fallback;
    m->overflow->arg = arg;
    return FAR_OK;
}

void far__methods_fini(far__methods *m)
{
    size_t at = 0;
    uint64_t key;
    void *value;
    while (far__map_next(&m->by_hash, &at, &key, &value))
        for (far__method *e = value, *next; e; e = next) {
            next = e->next;
            far__mem_free(e);
        }
    far__map_fini(&m->by_hash);
    far__mem_free(m->overflow);
    far__mutex_fini(&m->lock);
}

far_status far__methods_add(far__methods *m, const far_method *method, bool reserved)
{
    size_t size = method->name ? strlen(method->name) : 0;
    if (size == 0 || size > 255 || !method->handler)
        return FAR_EINVAL;
    if (!reserved && strncmp(method->name, "far.", 4) == 0)
        return FAR_EINVAL;
    far__method *e = make(method->name, size);
    if (!e)
        return FAR_ENOMEM;
    e->handler = method->handler;
    e->arg = method->arg;
    e->flags = method->flags;
    e->reserved = reserved;
    uint64_t h = hash(e->name, size);

    far__mutex_lock(&m->lock);
    far__method *old = lookup(m, h, e->name, size);
    /* Calls that hold a learned entry go on to the fallback, new ones come here. */
    bool learned = old && old->handler == m->fallback && old->arg == m->fallback_arg;
    far_status status = old && !learned ? FAR_EBUSY : insert(m, h, e);
    far__mutex_unlock(&m->lock);
    if (status != FAR_OK)
        far__mem_free(e);
    return status;
}

far__method *far__methods_find(far__methods *m, const char *name, size_t size)
{
    uint64_t h = hash(name, size);
    far__mutex_lock(&m->lock);
    far__method *e = lookup(m, h, name, size);
    bool reserved = size >= 4 && memcmp(name, "far.", 4) == 0;
    if (!e && m->fallback && !reserved) {
        if (m->learned < LEARNED_MAX)
            e = make(name, size);
        if (e) {
            e->handler = m->fallback;
            e->arg = m->fallback_arg;
            if (insert(m, h, e) == FAR_OK) {
                m->learned++;
            } else {
                far__mem_free(e);
                e = NULL;
            }
        }
        if (!e)
            e = m->overflow;
    }
    far__mutex_unlock(&m->lock);
    return e;
}
