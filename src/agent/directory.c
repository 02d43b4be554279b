/* SPDX-License-Identifier: BSD-3-Clause
 * agent/directory: questions about who is in the job.
 * Floor: agent. Thread: any. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"

static void describe(const far__member *m, far_worker *out)
{
    out->id = m->id;
    out->incarnation = m->incarnation;
    memcpy(out->name, m->name, sizeof out->name);
}

far_status far_agent_self(const far_agent *a, far_worker *out)
{
    if (a->self.id == FAR__ID_NONE)
        return FAR_ECLOSED;
    out->id = a->self.id;
    out->incarnation = a->self.incarnation;
    memcpy(out->name, a->self.name, sizeof out->name);
    return FAR_OK;
}

far_status far_agent_find(far_agent *a, const char *name, far_worker *out, far_error *error)
{
    if (!name)
        return far__error_set(error, FAR_EINVAL, "no name given");
    if (!far__agent_is_open(a))
        return far__error_set(error, FAR_ECLOSED, "%s", far_status_text(FAR_ECLOSED));
    char near[256] = "";
    far__mutex_lock(&a->lock);
    const far__member *m = far__roster_by_name(&a->roster, name);
    if (m && m->state != FAR__MEMBER_LEFT)
        describe(m, out);
    else
        m = NULL;
    if (!m)
        far__roster_near(&a->roster, name, near, sizeof near);
    far__mutex_unlock(&a->lock);
    if (m)
        return FAR_OK;
    return far__error_set(error, FAR_ENOWORKER, "no worker is named \"%.200s\"%s%s%s", name,
                          near[0] ? " (near: " : "", near, near[0] ? ")" : "");
}

far_status far_agent_worker(far_agent *a, far_worker_id id, far_worker *out, far_error *error)
{
    if (!far__agent_is_open(a))
        return far__error_set(error, FAR_ECLOSED, "%s", far_status_text(FAR_ECLOSED));
    far__mutex_lock(&a->lock);
    const far__member *m = far__roster_by_id(&a->roster, id);
    if (m && m->state != FAR__MEMBER_LEFT)
        describe(m, out);
    else
        m = NULL;
    far__mutex_unlock(&a->lock);
    if (m)
        return FAR_OK;
    return far__error_set(error, FAR_ENOWORKER, "no worker has id %" PRIu32, id);
}

far_status far_agent_workers(far_agent *a, far_worker *out, size_t capacity, size_t *count)
{
    if (!far__agent_is_open(a))
        return FAR_ECLOSED;
    size_t n = 0;
    far__mutex_lock(&a->lock);
    for (size_t i = 0; i < a->roster.count; i++) {
        const far__member *m = &a->roster.members[i];
        if (m->state != FAR__MEMBER_JOINED)
            continue;
        if (n < capacity)
            describe(m, &out[n]);
        n++;
    }
    far__mutex_unlock(&a->lock);
    *count = n;
    return FAR_OK;
}
