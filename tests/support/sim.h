/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/sim: what the simulations of tests/sim share: a seeded source of chance and a
 * virtual clock with events in order. One thread, no real time: a seed plays the same game always.
 *
 * FARCALL_SIM_SEEDS: how many seeds a case plays. FARCALL_SIM_SEED: play only this one. A seed that
 * fails is printed. Nothing here uses farcall's allocator, so that far_memory_live() counts only
 * what is tested. */
#ifndef FAR_TESTS_SUPPORT_SIM_H
#define FAR_TESTS_SUPPORT_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sim sim;
typedef void (*sim_fn)(sim *s, void *arg);

typedef struct sim_event {
    int64_t time;
    uint64_t order; /* of events of one time: that of adding */
    sim_fn fn;
    void *arg;
} sim_event;

struct sim {
    uint64_t random;
    int64_t now;
    sim_event *events; /* a heap */
    size_t count, room;
    uint64_t next_order, steps;
    void *game; /* the test's own */
};

/* Plays `game` once for each seed and prints the seed of one that does not come back. */
void sim_play(void (*game)(sim *s), unsigned seeds);

uint64_t sim_random(sim *s);
uint64_t sim_below(sim *s, uint64_t limit);        /* 0 .. limit - 1 */
int64_t sim_between(sim *s, int64_t a, int64_t b); /* a .. b */
bool sim_chance(sim *s, unsigned percent);
/* Mostly short, sometimes long: 0 .. 20 * scale. */
int64_t sim_delay(sim *s, int64_t scale);

/* fn(s, arg) at `time` (not before now). */
void sim_at(sim *s, int64_t time, sim_fn fn, void *arg);
int64_t sim_next(const sim *s); /* of the next event; INT64_MAX: none */
/* Moves the clock to the next event and runs it. False: there is none. */
bool sim_step(sim *s);

void *sim_alloc(size_t size); /* zeroed; never NULL */

#endif
