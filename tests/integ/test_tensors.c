/* SPDX-License-Identifier: BSD-3-Clause
 * Tensors: DLPack in and out, whose memory it is and until when, the user's allocator, large ones and
 * those of no bytes, the limit of a message. */
#include "support/cluster.h"
#include "support/handlers.h"

#include <dlpack/dlpack.h>
#include <stdatomic.h>

#include "agent/agent.h"

/* A tensor of ours whose deleter says where and how often it ran. */
typedef struct owned {
    DLManagedTensor managed;
    int64_t shape[4], strides[4];
    _Atomic int deleted;
} owned;

static const far__loop *loops[CLUSTER_MAX]; /* whose threads must not run a deleter */

static void guard_loops(const cluster *c)
{
    for (size_t i = 0; i < CLUSTER_MAX; i++)
        loops[i] = i < c->size ? c->agents[i]->loop : NULL;
}

static void delete_owned(DLManagedTensor *t)
{
    owned *o = t->manager_ctx;
    for (size_t i = 0; i < CLUSTER_MAX; i++)
        must(!loops[i] || !far__loop_here(loops[i]));
    must(atomic_fetch_add(&o->deleted, 1) == 0);
}

static void make(owned *o, void *data, int ndim, const int64_t *shape)
{
    memset(o, 0, sizeof *o);
    for (int i = 0; i < ndim; i++)
        o->shape[i] = shape[i];
    o->managed = (DLManagedTensor){
        .dl_tensor = {.data = data,
                      .device = {.device_type = kDLCPU},
                      .ndim = ndim,
                      .dtype = {kDLFloat, 32, 1},
                      .shape = o->shape},
        .manager_ctx = o,
        .deleter = delete_owned,
    };
}

static far_message *with_tensor(owned *o)
{
    far_message *m;
    must_ok(far_message_create(FAR_ENCODING_VALUES, &m));
    must_ok(far_message_put_tensor(m, &o->managed));
    return m;
}

static const far_tensor *tensor_of(far_message *m)
{
    const far_value *v;
    size_t count;
    must_ok(far_message_values(m, &v, &count));
    must(count == 1 && v->kind == FAR_TENSOR);
    return v->as.tensor;
}

static void both(cluster_net net, void (*body)(far_agent *a, far_worker_id to),
                 const cluster_options *o)
{
    cluster c;
    cluster_open(&c, net, o);
    guard_loops(&c);
    body(c.agents[0], 1);
    body(c.agents[0], 0);
    cluster_close(&c);
}

/* ----------------------------------------------------------------------------------- in and out */

static void send_dense(far_agent *a, far_worker_id to)
{
    enum { N = 100000 };
    float *data = malloc(N * sizeof *data);
    must(data != NULL);
    for (int i = 0; i < N; i++)
        data[i] = (float)i / 3;
    owned o;
    make(&o, data, 2, (int64_t[]){100, N / 100});
    far_message *reply;
    must_ok(far_call_sync(a, to, "echo", with_tensor(&o), FAR_NO_LIMIT, &reply, NULL));
    const far_tensor *t = tensor_of(reply);
    must(t->ndim == 2 && t->shape[0] == 100 && t->shape[1] == N / 100);
    must(t->dtype_code == kDLFloat && t->dtype_bits == 32 && t->dtype_lanes == 1);
    must(t->size == N * sizeof *data && memcmp(t->data, data, t->size) == 0);

    /* The view keeps the memory, not the message. */
    const far_value *v;
    size_t count;
    DLManagedTensor *view;
    must_ok(far_message_values(reply, &v, &count));
    must_ok(far_value_to_dlpack(reply, v, &view));
    far_message_discard(reply);
    must(view->dl_tensor.ndim == 2 && view->dl_tensor.shape[0] == 100);
    must(memcmp(view->dl_tensor.data, data, N * sizeof *data) == 0);
    view->deleter(view);
    gate_until(atomic_load(&o.deleted) == 1);
    free(data);
}

static void dense_over(cluster_net net)
{
    both(net, send_dense, NULL);
}

static void dense_tensors_come_back(void **state)
{
    (void)state;
    cluster_each(dense_over);
}

static void send_strided(far_agent *a, far_worker_id to)
{
    float data[6][8];
    for (int i = 0; i < 48; i++)
        data[i / 8][i % 8] = (float)i;
    owned o;
    make(&o, data, 2, (int64_t[]){4, 6}); /* the transposed left part */
    o.strides[0] = 1;
    o.strides[1] = 8;
    o.managed.dl_tensor.strides = o.strides;
    far_message *m = with_tensor(&o), *reply;
    must(o.deleted == 1); /* packed: nothing of it is needed any more */
    memset(data, 0, sizeof data);
    must_ok(far_call_sync(a, to, "echo", m, FAR_NO_LIMIT, &reply, NULL));
    const far_tensor *t = tensor_of(reply);
    const float *got = t->data;
    must(t->size == 24 * sizeof(float));
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 6; k++) {
            float wanted = (float)(k * 8 + i);
            must(memcmp(&got[i * 6 + k], &wanted, sizeof wanted) == 0);
        }
    far_message_discard(reply);
}

static void strided_over(cluster_net net)
{
    both(net, send_strided, NULL);
}

static void strided_tensors_are_packed(void **state)
{
    (void)state;
    cluster_each(strided_over);
}

/* Empty ones of several shapes, a scalar, nil, all in one message with a full one. */
static void send_small(far_agent *a, far_worker_id to)
{
    static const int64_t shapes[][3] = {{0, 0, 0}, {3, 0, 2}, {0, 5, 1}, {1, 1, 1}, {2, 3, 4}};
    enum { COUNT = sizeof shapes / sizeof shapes[0] };
    float data[24] = {1, 2, 3, 4}, one = 7;
    owned o[COUNT], scalar;
    far_message *m, *reply;
    must_ok(far_message_create(FAR_ENCODING_VALUES, &m));
    must_ok(far_message_put_list(m, COUNT + 2));
    for (size_t i = 0; i < COUNT; i++) {
        make(&o[i], i < 3 ? NULL : data, 3, shapes[i]);
        must_ok(far_message_put_tensor(m, &o[i].managed));
    }
    make(&scalar, &one, 0, NULL);
    must_ok(far_message_put_tensor(m, &scalar.managed));
    must_ok(far_message_put_nil(m));
    must_ok(far_call_sync(a, to, "echo", m, FAR_NO_LIMIT, &reply, NULL));
    const far_value *v;
    size_t count;
    must_ok(far_message_values(reply, &v, &count));
    must(v->as.list.count == COUNT + 2);
    for (size_t i = 0; i < COUNT; i++) {
        const far_tensor *t = v->as.list.items[i].as.tensor;
        must(v->as.list.items[i].kind == FAR_TENSOR && t->ndim == 3);
        must(memcmp(t->shape, shapes[i], sizeof shapes[i]) == 0);
        must((t->size == 0) == (i < 3));
    }
    const far_value *s = &v->as.list.items[COUNT];
    must(s->kind == FAR_TENSOR && s->as.tensor->ndim == 0 && s->as.tensor->size == 4);
    must(memcmp(s->as.tensor->data, &one, 4) == 0);
    must(v->as.list.items[COUNT + 1].kind == FAR_NIL);
    DLManagedTensor *view;
    must_ok(far_value_to_dlpack(reply, &v->as.list.items[1], &view));
    must(view->dl_tensor.shape[1] == 0);
    view->deleter(view);
    must_status(FAR_EVALUE, far_value_to_dlpack(reply, &v->as.list.items[COUNT + 1], &view));
    far_message_discard(reply);
    for (size_t i = 0; i < COUNT; i++)
        gate_until(atomic_load(&o[i].deleted) == 1);
    gate_until(atomic_load(&scalar.deleted) == 1);
}

static void small_over(cluster_net net)
{
    both(net, send_small, NULL);
}

static void empty_and_scalar_tensors_come_back(void **state)
{
    (void)state;
    cluster_each(small_over);
}

static void send_large(far_agent *a, far_worker_id to)
{
    const size_t size = (size_t)64 << 20;
    uint32_t *data = malloc(size);
    must(data != NULL);
    for (size_t i = 0; i < size / 4; i++)
        data[i] = (uint32_t)i * 2654435761u;
    owned o;
    make(&o, data, 1, (int64_t[]){(int64_t)(size / 4)});
    far_message *reply;
    must_ok(far_call_sync(a, to, "echo", with_tensor(&o), FAR_NO_LIMIT, &reply, NULL));
    const far_tensor *t = tensor_of(reply);
    must(t->size == size && memcmp(t->data, data, size) == 0);
    far_message_discard(reply);
    gate_until(atomic_load(&o.deleted) == 1);
    free(data);
}

static void large_over(cluster_net net)
{
    both(net, send_large, NULL);
}

static void large_tensors_come_back(void **state)
{
    (void)state;
    cluster_each(large_over);
}

/* --------------------------------------------------------------------------- every way to end */

/* The deleter runs once however the call ends; afterwards the memory may change. */
static void ways_over(cluster_net net)
{
    enum { SIZE = 1 << 20 };
    cluster c;
    far_future *f;
    cluster_open(&c, net, NULL);
    guard_loops(&c);
    far_agent *a = c.agents[0];
    float *data = calloc(SIZE, sizeof *data);
    must(data != NULL);
    int64_t shape[] = {SIZE};
    owned o;
    far_message *m;

    make(&o, data, 1, shape); /* never sent */
    far_message_discard(with_tensor(&o));
    must(o.deleted == 1);

    make(&o, data, 1, shape); /* cannot be put */
    must_ok(far_message_create(FAR_ENCODING_RAW, &m));
    must_status(FAR_EINVAL, far_message_put_tensor(m, &o.managed));
    must(o.deleted == 1);
    far_message_discard(m);

    make(&o, data, 1, shape); /* on another device */
    o.managed.dl_tensor.device.device_type = kDLCUDA;
    must_ok(far_message_create(FAR_ENCODING_VALUES, &m));
    must_status(FAR_EVALUE, far_message_put_tensor(m, &o.managed));
    must(o.deleted == 1);
    far_message_discard(m);

    for (far_worker_id to = 0; to < 2; to++) {
        make(&o, data, 1, shape); /* refused at the call */
        must_status(FAR_EINVAL, far_call(a, to, "", with_tensor(&o), 0, 0, &f));
        must(o.deleted == 1);

        make(&o, data, 1, shape); /* no such method */
        must_status(FAR_ENOMETHOD, ask(a, to, "none", with_tensor(&o), 0, NULL));
        gate_until(atomic_load(&o.deleted) == 1);

        make(&o, data, 1, shape); /* an error that carries it back */
        must_status(FAR_EREMOTE, ask(a, to, "fail", with_tensor(&o), 0, NULL));
        gate_until(atomic_load(&o.deleted) == 1);

        for (int i = 0; i < 20; i++) { /* timed out, before, while or after it is written */
            make(&o, data, 1, shape);
            far_status status = ask(a, to, "echo", with_tensor(&o),
                                    (far_duration)(i * 200 + 1) * FAR_MICROSECOND, NULL);
            must(status == FAR_OK || status == FAR_ETIMEOUT);
            gate_until(atomic_load(&o.deleted) == 1);
            memset(data, i, SIZE * sizeof *data);
        }
        for (int i = 0; i < 20; i++) { /* cancelled */
            make(&o, data, 1, shape);
            f = begin(a, to, "echo", with_tensor(&o), 0);
            (void)!far_future_wait(f, (far_duration)i * 100 * FAR_MICROSECOND);
            (void)far_future_cancel(f);
            far_future_release(f);
            gate_until(atomic_load(&o.deleted) == 1);
            memset(data, i, SIZE * sizeof *data);
        }
    }
    must_echo(a, 1, "alive");
    cluster_close(&c);
    free(data);
}

static void deleters_run_once_whatever_happens(void **state)
{
    (void)state;
    cluster_each(ways_over);
}

/* Callee and caller closed while large messages are under way. */
static void closed_over(cluster_net net)
{
    enum { SIZE = 4 << 20, COUNT = 4 };
    cluster c;
    float *data = calloc(SIZE, sizeof *data);
    must(data != NULL);
    for (size_t who = 0; who < 2; who++) {
        owned o[COUNT];
        far_future *f[COUNT];
        cluster_open(&c, net, NULL);
        guard_loops(&c);
        for (size_t i = 0; i < COUNT; i++) {
            make(&o[i], data, 1, (int64_t[]){SIZE});
            f[i] = begin(c.agents[0], i % 2, "echo", with_tensor(&o[i]), 0);
        }
        far_agent_close(c.agents[who]);
        for (size_t i = 0; i < COUNT; i++) {
            far_status status = end(f[i]);
            must(status == FAR_OK || status == (who == 0 ? FAR_ECLOSED : FAR_EPEER));
        }
        far_agent_close(c.agents[1 - who]);
        cluster_drop(&c);
        for (size_t i = 0; i < COUNT; i++)
            must(o[i].deleted == 1);
    }
    free(data);
}

static void deleters_run_when_agents_close(void **state)
{
    (void)state;
    cluster_each(closed_over);
}

/* -------------------------------------------------------------------------- the user's allocator */

static _Atomic int taken, given;

static void give(void *arg)
{
    atomic_fetch_add(&given, 1);
    free(arg);
}

static void *take(size_t size, void *arg, far_free_fn *free_fn, void **free_arg)
{
    must(arg == &taken);
    if (size > 1 << 20)
        return NULL; /* the library's own, please */
    void *p = malloc(size);
    must(p != NULL);
    atomic_fetch_add(&taken, 1);
    *free_fn = give;
    *free_arg = p;
    return p;
}

static void with_allocator(far_options *o, size_t rank, void *arg)
{
    (void)arg;
    if (rank == 0)
        return;
    o->alloc = take;
    o->alloc_arg = &taken;
}

static void allocator_over(cluster_net net)
{
    cluster c;
    atomic_store(&taken, 0);
    atomic_store(&given, 0);
    cluster_open(&c, net, &(cluster_options){.adjust = with_allocator});
    guard_loops(&c);
    float *data = calloc(1 << 20, sizeof *data);
    must(data != NULL);
    for (int i = 0; i < 10; i++) {
        owned o;
        make(&o, data, 1, (int64_t[]){i < 8 ? 100000 : 1 << 20});
        must_ok(ask(c.agents[0], 1, "echo", with_tensor(&o), 0, NULL));
        gate_until(atomic_load(&o.deleted) == 1);
    }
    must(taken == 8);
    cluster_close(&c);
    must(given == 8);
    free(data);
}

static void received_memory_is_the_users(void **state)
{
    (void)state;
    cluster_each_socket(allocator_over);
}

/* --------------------------------------------------------------------------------------- limits */

static void small_limit(far_options *o, size_t rank, void *arg)
{
    (void)arg;
    o->message_size_max = rank == 2 ? (uint64_t)1 << 30 : 1 << 20;
}

static void answer_much(far_incoming *in, void *arg)
{
    (void)arg;
    far_message *m = text_message("");
    far_buffer *b;
    must_ok(far_buffer_alloc((1 << 20) + 1, &b));
    memset(far_buffer_data(b), 0, (1 << 20) + 1);
    must_ok(far_message_add_segment(m, b, NULL));
    far_incoming_reply(in, m);
}

static far_message *raw_of(void *data, size_t size)
{
    far_message *m = text_message("");
    far_buffer *b;
    must_ok(far_buffer_wrap(data, size, NULL, NULL, 0, &b));
    must_ok(far_message_add_segment(m, b, NULL));
    return m;
}

static void limit_over(cluster_net net)
{
    cluster c;
    far_future *f;
    far_error error;
    char *data = calloc(1, (1 << 20) + 1);
    must(data != NULL);
    cluster_open(&c, net, &(cluster_options){.size = 3, .adjust = small_limit});
    for (size_t i = 0; i < 2; i++)
        must_ok(
            far_agent_register(c.agents[i], &(far_method){.name = "much", .handler = answer_much}));
    for (far_worker_id to = 0; to < 2; to++) {
        must_ok(ask(c.agents[0], to, "echo", raw_of(data, 1 << 20), 0, NULL));
        must_status(FAR_ETOOBIG,
                    far_call(c.agents[0], to, "echo", raw_of(data, (1 << 20) + 1), 0, 0, &f));
        /* 5 GiB need not exist to be refused. */
        must_status(FAR_ETOOBIG,
                    far_call(c.agents[0], to, "echo", raw_of(data, (size_t)5 << 30), 0, 0, &f));
        must_status(FAR_ETOOBIG, ask(c.agents[0], to, "much", text_message(""), 0, &error));
        must_say(error.text, "limit");
    }
    /* Worker 2 may send more than worker 1 takes: that call fails, and the next one works. */
    far_status status = ask(c.agents[2], 1, "echo", raw_of(data, (1 << 20) + 1), 0, &error);
    must(status == FAR_EPEER || status == FAR_ETOOBIG);
    must_echo(c.agents[2], 1, "alive");
    cluster_close(&c);
    free(data);
}

static void too_large_is_refused(void **state)
{
    (void)state;
    cluster_each(limit_over);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(dense_tensors_come_back),
    cmocka_unit_test(strided_tensors_are_packed),
    cmocka_unit_test(empty_and_scalar_tensors_come_back),
    cmocka_unit_test(large_tensors_come_back),
    cmocka_unit_test(deleters_run_once_whatever_happens),
    cmocka_unit_test(deleters_run_when_agents_close),
    cmocka_unit_test(received_memory_is_the_users),
    cmocka_unit_test(too_large_is_refused),
};
FAR_TEST_MAIN(tests)
