/* SPDX-License-Identifier: BSD-3-Clause
 * tests/fuzz: proto/calls and proto/served. Input: a list of events, two bytes each (what, and to
 * which call or how long). A caller's table and a callee's are driven by them; replies and
 * acknowledgements may carry any number. What goes in must come out exactly once. */
#include <stdlib.h>

#include "base/mem.h"
#include "proto/calls.h"
#include "proto/served.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CALLS = 64 };

typedef struct fuzz {
    far__calls calls;
    far__served served;
    far__call call[CALLS];
    bool open[CALLS];
    size_t open_count, results;
    uint64_t late;
    int64_t now;
    uint64_t running[CALLS]; /* sequence, or 0 */
} fuzz;

static void check(bool ok)
{
    if (!ok)
        abort();
}

static void drop(void *result, void *arg)
{
    free(result);
    ((fuzz *)arg)->results--;
}

static void came_out(fuzz *f, far__call *call)
{
    size_t i = (size_t)(call - f->call);
    check(f->open[i] && call->state == FAR__CALL_OUT);
    f->open[i] = false;
    f->open_count--;
}

static void came_out_all(fuzz *f, far__list *lost)
{
    for (far__list *n; (n = far__list_pop(lost));)
        came_out(f, far__container_of(n, far__call, link));
}

static void caller_event(fuzz *f, unsigned what, unsigned which)
{
    far__call *call = &f->call[which % CALLS];
    const bool open = f->open[which % CALLS];
    far__list lost;
    far__list_init(&lost);
    switch (what) {
    case 0:
    case 1:
        if (open)
            break;
        *call = (far__call){0};
        check(far__calls_add(&f->calls, call,
                             which >= 192 ? FAR__NEVER : f->now + (int64_t)which * FAR_SECOND,
                             what ? FAR__CALL_RETRY : 0) == FAR_OK);
        f->open[which % CALLS] = true;
        f->open_count++;
        break;
    case 2:
        if (open)
            far__calls_sent(&f->calls, call, f->now);
        break;
    case 3: {
        /* The id of an ended call stays in it until it is used again: a late reply. */
        far__call *found = far__calls_finish(&f->calls, call->id);
        check(found == (open ? call : NULL));
        f->late += !found;
        if (found)
            came_out(f, found);
        break;
    }
    case 4: {
        uint64_t id = (uint64_t)(which / 16) << 32 | which % 16;
        far__call *found = far__calls_finish(&f->calls, id);
        f->late += !found;
        if (found)
            came_out(f, found);
        break;
    }
    case 5:
        if (open) {
            far__calls_remove(&f->calls, call);
            came_out(f, call);
        }
        break;
    case 6:
        f->now += (int64_t)which * FAR_SECOND / 8;
        for (far__call *c; (c = far__calls_expired(&f->calls, f->now));) {
            check(c->deadline <= f->now);
            came_out(f, c);
        }
        check(far__calls_next_deadline(&f->calls) > f->now);
        while (far__calls_repeat_due(&f->calls, f->now))
            ;
        check(far__calls_next_repeat(&f->calls) > f->now);
        break;
    case 7: far__calls_broken(&f->calls, &lost); break;
    case 8: far__calls_lose_all(&f->calls, &lost); break;
    default: break;
    }
    came_out_all(f, &lost);
    check(f->calls.count == f->open_count && f->calls.late == f->late);
}

static void end(fuzz *f, uint64_t sequence)
{
    uint64_t call_id;
    f->results++;
    far__served_end(&f->served, sequence, malloc(1), &call_id);
}

static void served_event(fuzz *f, unsigned what, unsigned which)
{
    far__served_verdict verdict;
    void *result;
    uint64_t *running = &f->running[which % CALLS];
    switch (what) {
    case 9: {
        uint64_t sequence = f->call[which % CALLS].sequence;
        check(far__served_begin(&f->served, sequence, which, &verdict, &result) == FAR_OK);
        check((verdict == FAR__SERVED_DONE) == (result != NULL));
        check(sequence != 0 || verdict == FAR__SERVED_REFUSED);
        if (verdict != FAR__SERVED_NEW)
            break;
        for (size_t i = 0; i < CALLS; i++)
            check(f->running[i] != sequence);
        if (*running)
            end(f, sequence); /* no place to remember it */
        else
            *running = sequence;
        break;
    }
    case 10:
        if (*running)
            end(f, *running);
        *running = 0;
        break;
    case 11: {
        uint64_t mark;
        far__wire_range ranges[4];
        size_t count = far__calls_ack(&f->calls, &mark, ranges, which % 4);
        check(far__served_ack(&f->served, mark, ranges, count) == FAR_OK);
        break;
    }
    case 12: {
        uint64_t first = which % 16, last = which / 16;
        far__wire_range range = {first == 15 ? UINT64_MAX : first, last == 15 ? UINT64_MAX : last};
        check(far__served_ack(&f->served, 0, &range, 1) == FAR_OK);
        break;
    }
    default: break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fuzz f;
    f = (fuzz){0};
    far__calls_init(&f.calls);
    far__served_init(&f.served, drop, &f);
    for (size_t i = 0; i + 1 < size; i += 2) {
        unsigned what = data[i] % 13;
        if (what <= 8)
            caller_event(&f, what, data[i + 1]);
        else
            served_event(&f, what, data[i + 1]);
    }
    far__list lost;
    far__list_init(&lost);
    far__calls_lose_all(&f.calls, &lost);
    came_out_all(&f, &lost);
    check(f.open_count == 0);
    uint64_t mark;
    far__wire_range range;
    check(far__calls_ack(&f.calls, &mark, &range, 1) == 0);
    check(far__served_ack(&f.served, mark, NULL, 0) == FAR_OK);
    check(f.results == 0 && f.served.entries.count == 0);
    far__calls_fini(&f.calls);
    far__served_fini(&f.served);
    check(far__mem_live() == 0);
    return 0;
}
