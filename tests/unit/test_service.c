/* SPDX-License-Identifier: BSD-3-Clause
 * tests of async/service. */
#include "async/service.h"

#include "base/mem.h"
#include "support/gate.h"
#include "support/test.h"

typedef struct freed {
    gate count;
    pthread_t thread;
} freed;

static void free_fn(void *arg)
{
    freed *f = arg;
    f->thread = pthread_self();
    gate_pass(&f->count);
}

static far_buffer *make_orphan(freed *f, far_buffer *next)
{
    static char byte;
    far_buffer *b = NULL;
    assert_ok(far_buffer_wrap(&byte, 1, free_fn, f, 0, &b));
    assert_true(far__buffer_unref(b));
    b->next = next;
    return b;
}

static far__notice *make_notice(void *tag)
{
    far__notice *n = far__mem_zalloc(sizeof *n);
    assert_non_null(n);
    n->tag = tag;
    far__list_init(&n->link);
    return n;
}

static void expect(far__service *s, far_event_kind kind)
{
    far_event event = {0};
    assert_ok(far__service_next(s, &event));
    assert_int_equal(event.kind, kind);
    if (kind == FAR_EVENT_RELEASE)
        event.fn(event.arg);
}

static void foreign_gets_everything_then_stop_for_ever(void **state)
{
    (void)state;
    far__service s;
    far__service_init(&s, true);
    freed f = {.count = GATE_INIT};
    int tag;
    far__service_orphans(&s, NULL);
    far__service_orphans(&s, make_orphan(&f, make_orphan(&f, NULL)));
    far__service_notice(&s, make_notice(&tag));
    far__service_start_thread(&s);
    far__service_stop(&s);
    far__service_start_thread(&s); /* not any more */
    far__service_orphans(&s, make_orphan(&f, NULL));

    expect(&s, FAR_EVENT_START_THREAD);
    for (size_t i = 1; i <= 3; i++) {
        expect(&s, FAR_EVENT_RELEASE);
        assert_int_equal(gate_count(&f.count), i);
    }
    far_event event = {0};
    assert_ok(far__service_next(&s, &event));
    assert_int_equal(event.kind, FAR_EVENT_FUTURE_DONE);
    assert_ptr_equal(event.arg, &tag);
    expect(&s, FAR_EVENT_STOP);
    far__service_orphans(&s, make_orphan(&f, NULL));
    expect(&s, FAR_EVENT_STOP);
    assert_int_equal(gate_count(&f.count), 3);
    far__service_fini(&s);
    assert_int_equal(gate_count(&f.count), 4);
}

static void fini_frees_what_nobody_fetched(void **state)
{
    (void)state;
    far__service s;
    far__service_init(&s, true);
    freed f = {.count = GATE_INIT};
    far__service_start_thread(&s);
    far__service_orphans(&s, make_orphan(&f, NULL));
    far__service_notice(&s, make_notice(NULL));
    far__service_stop(&s);
    far__service_fini(&s);
    assert_int_equal(gate_count(&f.count), 1);
}

typedef struct server {
    far__service *service;
    gate *up;
    gate counts[4]; /* by kind */
    pid_t tid;
} server;

static void *serve(void *arg)
{
    server *v = arg;
    v->tid = gate_tid();
    gate_pass(v->up);
    far_event event;
    while (far__service_next(v->service, &event) == FAR_OK) {
        if (event.kind == FAR_EVENT_RELEASE)
            event.fn(event.arg);
        gate_pass(&v->counts[event.kind]);
        if (event.kind == FAR_EVENT_STOP)
            break;
    }
    return NULL;
}

enum { ADDERS = 3, ADDED = 2000 };

static void *add_many(void *arg)
{
    server *v = arg;
    for (int i = 0; i < ADDED; i++)
        far__service_notice(v->service, make_notice(NULL));
    return NULL;
}

static void nothing_is_lost_between_threads(void **state)
{
    (void)state;
    far__service s;
    far__service_init(&s, true);
    gate up = GATE_INIT;
    server v = {.service = &s, .up = &up, .counts = {GATE_INIT, GATE_INIT, GATE_INIT, GATE_INIT}};
    pthread_t thread, adders[ADDERS];
    assert_int_equal(pthread_create(&thread, NULL, serve, &v), 0);
    gate_wait(&up, 1);
    for (size_t i = 1; i <= 1000; i++) { /* one at a time: each must wake a sleeper */
        far__service_start_thread(&s);
        gate_wait(&v.counts[FAR_EVENT_START_THREAD], i);
    }
    gate_until(gate_sleeps_in(v.tid, SYS_futex, 3)); /* idle: no time limit */
    for (int i = 0; i < ADDERS; i++)
        assert_int_equal(pthread_create(&adders[i], NULL, add_many, &v), 0);
    for (int i = 0; i < ADDERS; i++)
        pthread_join(adders[i], NULL);
    far__service_stop(&s);
    pthread_join(thread, NULL);
    assert_int_equal(gate_count(&v.counts[FAR_EVENT_FUTURE_DONE]), ADDERS * ADDED);
    assert_int_equal(gate_count(&v.counts[FAR_EVENT_STOP]), 1);
    far__service_fini(&s);
}

static void own_thread_starts_on_first_need(void **state)
{
    (void)state;
    far__service s;
    far__service_init(&s, false);
    assert_false(s.running);
    far__service_orphans(&s, NULL);
    assert_false(s.running);
    freed f = {.count = GATE_INIT};
    far__service_orphans(&s, make_orphan(&f, NULL));
    gate_wait(&f.count, 1);
    assert_false(pthread_equal(f.thread, pthread_self()));
    far__service_orphans(&s, make_orphan(&f, make_orphan(&f, NULL)));
    far__service_stop(&s);
    far__service_fini(&s);
    assert_int_equal(gate_count(&f.count), 3);
}

static void own_thread_never_needed(void **state)
{
    (void)state;
    far__service s;
    far__service_init(&s, false);
    far__service_stop(&s);
    freed f = {.count = GATE_INIT};
    far__service_orphans(&s, make_orphan(&f, NULL));
    assert_false(s.running);
    far__service_fini(&s);
    assert_true(pthread_equal(f.thread, pthread_self()));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(foreign_gets_everything_then_stop_for_ever),
    cmocka_unit_test(fini_frees_what_nobody_fetched),
    cmocka_unit_test(nothing_is_lost_between_threads),
    cmocka_unit_test(own_thread_starts_on_first_need),
    cmocka_unit_test(own_thread_never_needed),
};
FAR_TEST_MAIN(tests)
