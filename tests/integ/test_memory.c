/* SPDX-License-Identifier: BSD-3-Clause
 * Memory that is refused: the 1st, the 2nd, the n-th allocation of a whole life fails, once. Whatever
 * was under way ends with an error or without one, nothing hangs and nothing is left. */
#include "support/cluster.h"
#include "support/failmem.h"
#include "support/handlers.h"

#define LIMIT (20 * FAR_SECOND) /* of a call whose answer was lost for want of memory */

static char big[20000];

static far_message *message_of(size_t size)
{
    far_message *m;
    far_buffer *b;
    if (far_message_create(FAR_ENCODING_RAW, &m) != FAR_OK)
        return NULL;
    if (far_message_append(m, big, size) == FAR_OK && far_buffer_alloc(size, &b) == FAR_OK) {
        memset(far_buffer_data(b), 1, size);
        if (far_message_add_segment(m, b, NULL) == FAR_OK)
            return m;
    }
    far_message_discard(m);
    return NULL;
}

static void count_one(far_future *f, void *arg)
{
    must(far_future_done(f));
    gate_pass(arg);
}

/* True: all went well. */
static bool call(far_agent *a, far_worker_id to, const char *method, size_t size)
{
    gate called = GATE_INIT;
    far_message *m = message_of(size);
    far_future *f;
    if (!m || far_call(a, to, method, m, LIMIT, 0, &f) != FAR_OK)
        return false;
    bool told = far_future_on_done(f, count_one, &called, 0) == FAR_OK;
    far_status status;
    do
        status = far_future_wait(f, FAR_FOREVER);
    while (status == FAR_EINTR);
    must_ok(status);
    status = far_future_status(f);
    must(status != FAR_ETIMEOUT);
    if (status == FAR_OK)
        must(far_message_body_size(far_future_message(f)) == size);
    if (told)
        gate_wait(&called, 1);
    far_future_release(f);
    return told && status == FAR_OK;
}

static bool cancel(far_agent *a, far_worker_id to)
{
    far_message *m = message_of(10);
    far_future *f;
    if (!m || far_call(a, to, "echo", m, LIMIT, 0, &f) != FAR_OK)
        return false;
    /* False: another thread is ending it at this moment. */
    if (far_future_cancel(f))
        must(far_future_done(f));
    far_status status;
    do
        status = far_future_wait(f, FAR_FOREVER);
    while (status == FAR_EINTR);
    must_ok(status);
    far_future_release(f);
    return true;
}

static bool talk(far_agent *a, far_worker_id to)
{
    bool well = call(a, to, "echo", 10);
    well = call(a, to, "quick", 10) && well;
    well = call(a, to, "echo", sizeof big) && well;
    well = call(a, to, "no such method", 10) || well;
    well = cancel(a, to) && well;
    return call(a, to, "echo", 100) && well;
}

typedef struct life {
    far_agent *agent, *other;
    far_status status;
} life;

static void *join(void *arg)
{
    life *l = arg;
    l->status = far_agent_join(l->agent, NULL);
    if (l->status != FAR_OK && l->other)
        far_agent_close(l->other); /* it would wait for us */
    return NULL;
}

static bool open_both(cluster *c, life lives[2])
{
    char names[2][16];
    far_options o;
    pthread_t threads[2];
    size_t made = 0;
    for (; made < c->size; made++) {
        cluster_fill(c, made, names[made], &o);
        if (far_agent_create(&o, &lives[made].agent, NULL) != FAR_OK)
            break;
    }
    bool well = made == c->size;
    for (size_t i = 0; i < made && well; i++) {
        lives[i].other = made > 1 ? lives[1 - i].agent : NULL;
        must(pthread_create(&threads[i], NULL, join, &lives[i]) == 0);
    }
    bool joining = well;
    for (size_t i = 0; i < made && joining; i++) {
        must(pthread_join(threads[i], NULL) == 0);
        well = well && lives[i].status == FAR_OK;
    }
    for (size_t i = 0; i < made && !well; i++) {
        far_agent_release(lives[i].agent);
        lives[i].agent = NULL;
    }
    return well;
}

/* `begin_at`: the n-th allocation fails, or all from it on. */
static void lead_lives(cluster_net net, size_t size, void (*begin_at)(size_t n))
{
    bool failed = true;
    size_t n = 1;
    for (; failed; n++) {
        cluster c;
        life lives[2] = {{NULL, NULL, FAR_OK}, {NULL, NULL, FAR_OK}};
        cluster_prepare(&c, net, size);
        begin_at(n);
        bool well = open_both(&c, lives);
        if (well) {
            for (far_worker_id to = 0; to < size; to++)
                well = talk(lives[0].agent, to) && well;
            far_agent_release(lives[0].agent);
            if (size > 1)
                far_agent_release(lives[1].agent);
        }
        cluster_settle();
        failed = failmem_failed();
        must(well || failed);
        failmem_end();
    }
    fprintf(stderr, "         %zu allocations\n", n);
}

static void alone(void **state)
{
    (void)state;
    lead_lives(CLUSTER_UNIX, 1, failmem_begin);
    lead_lives(CLUSTER_UNIX, 1, failmem_begin_from);
}

static void two(void **state)
{
    (void)state;
    lead_lives(CLUSTER_UNIX, 2, failmem_begin);
    lead_lives(CLUSTER_TCP, 2, failmem_begin);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(alone),
    cmocka_unit_test(two),
};
FAR_TEST_MAIN(tests)
