/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/sim: chance and a virtual clock for the simulations of tests/sim. */
#include "support/sim.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "support/test.h"

/* cmocka leaves a failing case by longjmp: what is set here is what the tear-down prints. */
static bool playing;
static uint64_t playing_seed;

static void say_seed(void)
{
    if (playing)
        fprintf(stderr, "simulation failed: play it again with FARCALL_SIM_SEED=%" PRIu64 "\n",
                playing_seed);
    playing = false;
}

/* An assertion of farcall's own, or a sanitizer, ends the process without atexit. */
static void say_seed_and_die(int signal_number)
{
    (void)signal_number;
    say_seed();
    _exit(134);
}

extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void register_once(void)
{
    static bool registered;
    if (registered)
        return;
    registered = true;
    atexit(say_seed);
    signal(SIGABRT, say_seed_and_die);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(say_seed);
}

static uint64_t number_in_environment(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void play_one(void (*game)(sim *s), uint64_t seed)
{
    say_seed(); /* of the case before, if that failed */
    playing = true;
    playing_seed = seed;
    sim s = {.random = seed};
    s.random = sim_random(&s); /* else one seed's numbers are the next seed's, shifted by one */
    game(&s);
    free(s.events);
    playing = false;
}

void sim_play(void (*game)(sim *s), unsigned seeds)
{
    register_once();
    uint64_t only = number_in_environment("FARCALL_SIM_SEED", UINT64_MAX);
    if (only != UINT64_MAX) {
        play_one(game, only);
        return;
    }
    uint64_t count = number_in_environment("FARCALL_SIM_SEEDS", seeds);
    for (uint64_t seed = 0; seed < count; seed++)
        play_one(game, seed);
}

/* splitmix64: a counter, well mixed. */
uint64_t sim_random(sim *s)
{
    s->random += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = s->random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t sim_below(sim *s, uint64_t limit)
{
    return sim_random(s) % limit;
}

int64_t sim_between(sim *s, int64_t a, int64_t b)
{
    return a + (int64_t)sim_below(s, (uint64_t)(b - a) + 1);
}

bool sim_chance(sim *s, unsigned percent)
{
    return sim_below(s, 100) < percent;
}

int64_t sim_delay(sim *s, int64_t scale)
{
    return sim_between(s, 0, sim_chance(s, 10) ? 20 * scale : scale);
}

static bool before(const sim_event *a, const sim_event *b)
{
    return a->time != b->time ? a->time < b->time : a->order < b->order;
}

void sim_at(sim *s, int64_t time, sim_fn fn, void *arg)
{
    assert_true(time >= s->now);
    if (s->count == s->room) {
        s->room = s->room ? s->room * 2 : 64;
        s->events = realloc(s->events, s->room * sizeof *s->events);
        assert_non_null(s->events);
    }
    sim_event event = {.time = time, .order = s->next_order++, .fn = fn, .arg = arg};
    size_t at = s->count++;
    for (; at > 0 && before(&event, &s->events[(at - 1) / 2]); at = (at - 1) / 2)
        s->events[at] = s->events[(at - 1) / 2];
    s->events[at] = event;
}

int64_t sim_next(const sim *s)
{
    return s->count ? s->events[0].time : INT64_MAX;
}

bool sim_step(sim *s)
{
    if (s->count == 0)
        return false;
    sim_event event = s->events[0];
    sim_event last = s->events[--s->count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= s->count)
            break;
        if (child + 1 < s->count && before(&s->events[child + 1], &s->events[child]))
            child++;
        if (!before(&s->events[child], &last))
            break;
        s->events[at] = s->events[child];
        at = child;
    }
    if (s->count)
        s->events[at] = last;
    s->now = event.time;
    s->steps++;
    event.fn(s, event.arg);
    return true;
}

void *sim_alloc(size_t size)
{
    void *block = calloc(1, size);
    assert_non_null(block);
    return block;
}
