/* SPDX-License-Identifier: BSD-3-Clause
 * proto/calls: one peer's calls in flight, at the caller. A call lives in a slot from adding until
 * it is taken out; the slot's generation, part of the id, tells a late reply from one for the
 * slot's next call. Floor: proto. Thread: the peer's lock. */
#include "proto/calls.h"

#include <assert.h>

#include "base/mem.h"

enum { SLOTS_MIN = 64, PAUSE_FIRST_S = 1, PAUSE_MAX_S = 10 };

static far__call *call_of_timer(far__heap_node *n)
{
    return far__container_of(n, far__call, timer);
}

static far__call *call_of_repeat(far__heap_node *n)
{
    return far__container_of(n, far__call, repeat);
}

static far__call *call_of_link(far__list *n)
{
    return far__container_of(n, far__call, link);
}

/* The pause after the attempt `attempt`, counted from 1. */
static far_duration pause_after(unsigned attempt)
{
    far_duration pause = PAUSE_FIRST_S;
    for (unsigned i = 1; i < attempt && pause < PAUSE_MAX_S; i++)
        pause *= 2;
    return (pause < PAUSE_MAX_S ? pause : PAUSE_MAX_S) * FAR_SECOND;
}

/* A RETRY call is in `repeats` from adding until it is taken out, so this finds the room that it
 * had before and cannot fail. */
static void repeat_at(far__calls *c, far__call *call, int64_t time)
{
    far__heap_remove(&c->repeats, &call->repeat);
    far_status status = far__heap_add(&c->repeats, &call->repeat, time);
    assert(status == FAR_OK);
    (void)status;
}

void far__calls_init(far__calls *c)
{
    *c = (far__calls){.next_sequence = 1};
    far__list_init(&c->all);
    far__ranges_init(&c->finished);
}

void far__calls_fini(far__calls *c)
{
    assert(c->count == 0 && far__list_empty(&c->all));
    far__mem_free(c->slots);
    far__heap_fini(&c->deadlines);
    far__heap_fini(&c->repeats);
    far__ranges_fini(&c->finished);
    *c = (far__calls){0};
}

static far_status grow_slots(far__calls *c)
{
    if (c->slot_count > UINT32_MAX / 2)
        return FAR_ENOMEM;
    uint32_t count = c->slot_count ? c->slot_count * 2 : SLOTS_MIN;
    far__calls_slot *slots = far__mem_resize(c->slots, (size_t)count * sizeof *slots);
    if (!slots)
        return FAR_ENOMEM;
    /* From the back, so that the lowest is taken first. Slot 0 is the end of the free list. */
    for (uint32_t i = count - 1; i >= c->slot_count && i > 0; i--) {
        slots[i] = (far__calls_slot){.next_free = c->first_free};
        c->first_free = i;
    }
    if (c->slot_count == 0)
        slots[0] = (far__calls_slot){0};
    c->slots = slots;
    c->slot_count = count;
    return FAR_OK;
}

static void take_slot(far__calls *c, far__call *call)
{
    uint32_t index = c->first_free;
    far__calls_slot *slot = &c->slots[index];
    c->first_free = slot->next_free;
    slot->next_free = 0;
    slot->call = call;
    if (++slot->generation == 0)
        slot->generation = 1;
    call->id = (uint64_t)slot->generation << 32 | index;
}

static void give_slot(far__calls *c, const far__call *call)
{
    uint32_t index = (uint32_t)call->id;
    far__calls_slot *slot = &c->slots[index];
    assert(slot->call == call);
    slot->call = NULL;
    slot->next_free = c->first_free;
    c->first_free = index;
}

far_status far__calls_add(far__calls *c, far__call *call, int64_t deadline, unsigned flags)
{
    assert(call->state == FAR__CALL_OUT);
    const bool retry = flags & FAR__CALL_RETRY;
    far_status status = c->first_free ? FAR_OK : grow_slots(c);
    if (status != FAR_OK)
        return status;
    if (retry) {
        /* Two ranges of `finished` are parted by a call that is still in the table, and so is the
         * first one from the mark: there are never more ranges than such calls. */
        status = far__ranges_reserve(&c->finished, c->retry_count + 1);
        if (status != FAR_OK)
            return status;
        status = far__heap_add(&c->repeats, &call->repeat, FAR__NEVER);
        if (status != FAR_OK)
            return status;
    }
    if (deadline != FAR__NEVER) {
        status = far__heap_add(&c->deadlines, &call->timer, deadline);
        if (status != FAR_OK)
            goto err_remove_repeat;
    }
    take_slot(c, call);
    call->sequence = retry ? c->next_sequence++ : 0;
    call->deadline = deadline;
    call->flags = (uint8_t)flags;
    call->state = FAR__CALL_WAITING;
    call->was_sent = false;
    call->attempts = 0;
    far__list_add_tail(&c->all, &call->link);
    c->count++;
    c->retry_count += retry;
    return FAR_OK;

err_remove_repeat:
    far__heap_remove(&c->repeats, &call->repeat);
    return status;
}

void far__calls_sent(far__calls *c, far__call *call, int64_t now)
{
    assert(call->state != FAR__CALL_OUT);
    call->state = FAR__CALL_SENT;
    call->was_sent = true;
    call->attempts++;
    if (call->flags & FAR__CALL_RETRY)
        repeat_at(c, call, far__deadline(now, pause_after(call->attempts)));
}

far__call *far__calls_find(const far__calls *c, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    if (index >= c->slot_count)
        return NULL;
    far__call *call = c->slots[index].call;
    return call && call->id == id ? call : NULL;
}

void far__calls_remove(far__calls *c, far__call *call)
{
    assert(call->state != FAR__CALL_OUT);
    give_slot(c, call);
    far__heap_remove(&c->deadlines, &call->timer);
    far__heap_remove(&c->repeats, &call->repeat);
    far__list_remove(&call->link);
    call->state = FAR__CALL_OUT;
    c->count--;
    if (call->flags & FAR__CALL_RETRY) {
        c->retry_count--;
        far_status status = far__ranges_add(&c->finished, call->sequence, call->sequence);
        assert(status == FAR_OK); /* far__calls_add made the room */
        (void)status;
    }
}

far__call *far__calls_finish(far__calls *c, uint64_t id)
{
    far__call *call = far__calls_find(c, id);
    if (call)
        far__calls_remove(c, call);
    else
        c->late++;
    return call;
}

far__call *far__calls_expired(far__calls *c, int64_t now)
{
    far__heap_node *first = far__heap_first(&c->deadlines);
    if (!first || first->key > now)
        return NULL;
    far__call *call = call_of_timer(first);
    far__calls_remove(c, call);
    return call;
}

int64_t far__calls_next_deadline(const far__calls *c)
{
    const far__heap_node *first = far__heap_first(&c->deadlines);
    return first ? first->key : FAR__NEVER;
}

far__call *far__calls_repeat_due(far__calls *c, int64_t now)
{
    far__heap_node *first = far__heap_first(&c->repeats);
    if (!first || first->key == FAR__NEVER || first->key > now)
        return NULL;
    far__call *call = call_of_repeat(first);
    repeat_at(c, call, far__deadline(now, pause_after(call->attempts + 1)));
    return call;
}

int64_t far__calls_next_repeat(const far__calls *c)
{
    const far__heap_node *first = far__heap_first(&c->repeats);
    return first ? first->key : FAR__NEVER;
}

void far__calls_broken(far__calls *c, far__list *lost)
{
    far__list_for_each_safe (n, &c->all) {
        far__call *call = call_of_link(n);
        if (call->flags & FAR__CALL_RETRY) {
            /* It is sent on the next connection anyway: no repeat before that. */
            call->state = FAR__CALL_WAITING;
            repeat_at(c, call, FAR__NEVER);
        } else if (call->state == FAR__CALL_SENT) {
            far__calls_remove(c, call);
            far__list_add_tail(lost, &call->link);
        }
    }
}

void far__calls_lose_all(far__calls *c, far__list *lost)
{
    far__list_for_each_safe (n, &c->all) {
        far__call *call = call_of_link(n);
        far__calls_remove(c, call);
        far__list_add_tail(lost, &call->link);
    }
}

size_t far__calls_ack(const far__calls *c, uint64_t *mark, far__wire_range *ranges, size_t room)
{
    size_t count = c->finished.count < room ? c->finished.count : room;
    for (size_t i = 0; i < count; i++)
        ranges[i] = c->finished.items[i];
    *mark = c->finished.mark;
    return count;
}
