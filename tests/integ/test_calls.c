/* SPDX-License-Identifier: BSD-3-Clause
 * Calls over every transport and to oneself: what is sent arrives, what is answered comes back, errors say
 * what they are, and calls nest and mix in all ways. */
#include "support/cluster.h"
#include "support/handlers.h"

#include <stdatomic.h>

/* Runs a case from worker 0 to worker 1 and to itself. */
static void both_ways(cluster_net net, void (*body)(cluster *c, far_agent *a, far_worker_id to))
{
    cluster c;
    cluster_open(&c, net, NULL);
    body(&c, c.agents[0], 1);
    body(&c, c.agents[0], 0);
    body(&c, c.agents[1], 0);
    cluster_close(&c);
}

/* ------------------------------------------------------------------------------------ raw bytes */

static void raw_body(cluster *c, far_agent *a, far_worker_id to)
{
    (void)c;
    static const char *const methods[] = {"echo", "quick"};
    for (size_t i = 0; i < 2; i++) {
        far_future *f = begin(a, to, methods[i], text_message("some bytes"), FAR_NO_LIMIT);
        must_ok(end_of(f));
        must(is_text(far_future_message(f), "some bytes"));
        must(far_message_encoding(far_future_message(f)) == FAR_ENCODING_RAW);
        far_message *m = far_future_take_message(f);
        must(is_text(m, "some bytes"));
        must(far_future_take_message(f) == NULL);
        far_message_discard(m);
        far_future_release(f);
        must_ok(end(begin(a, to, methods[i], text_message(""), FAR_NO_LIMIT)));
    }
}

static void raw_over(cluster_net net)
{
    both_ways(net, raw_body);
}

static void raw_bytes_come_back(void **state)
{
    (void)state;
    cluster_each(raw_over);
}

static void fill(uint8_t *data, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i++)
        data[i] = (uint8_t)(i * 31 + seed + (i >> 12));
}

/* Bodies and segments around every limit of the transports: inline, own memory, one frame, many. */
static void sizes_body(cluster *c, far_agent *a, far_worker_id to)
{
    (void)c;
    static const size_t sizes[] = {0,     1,     231,    232,    233,    4095,   4096,   4097,
                                   65535, 65536, 262127, 262128, 262144, 262145, 600000, 1000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        far_message *m;
        size_t size = sizes[i];
        uint8_t *data = malloc(size + 1);
        must(data != NULL);
        fill(data, size, (unsigned)i);
        must_ok(far_message_create(FAR_ENCODING_RAW, &m));
        must_ok(far_message_append(m, data, size));
        for (unsigned k = 0; k < 3; k++) {
            far_buffer *b;
            must_ok(far_buffer_alloc(k == 1 ? 0 : size, &b));
            if (k != 1 && size)
                memcpy(far_buffer_data(b), data, size);
            must_ok(far_message_add_segment(m, b, NULL));
        }
        far_message *reply;
        must_ok(far_call_sync(a, to, "echo", m, FAR_NO_LIMIT, &reply, NULL));
        must(far_message_body_size(reply) == size);
        must(size == 0 || memcmp(far_message_body(reply), data, size) == 0);
        must(far_message_segment_count(reply) == 3);
        must(far_buffer_size(far_message_segment(reply, 1)) == 0);
        for (size_t k = 0; k < 3; k += 2) {
            far_buffer *b = far_message_segment(reply, k);
            must(far_buffer_size(b) == size);
            must(size == 0 || memcmp(far_buffer_data(b), data, size) == 0);
        }
        must(far_message_segment(reply, 3) == NULL);
        far_message_discard(reply);
        free(data);
    }
}

static void sizes_over(cluster_net net)
{
    both_ways(net, sizes_body);
}

static void every_size_comes_back(void **state)
{
    (void)state;
    cluster_each(sizes_over);
}

/* A message of more segments than a transport carries is refused at the call, and harms no other. */
static void segments_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        far_message *m;
        far_future *f;
        must_ok(far_message_create(FAR_ENCODING_RAW, &m));
        for (int i = 0; i < 8192; i++) {
            far_buffer *b;
            must_ok(far_buffer_alloc(1, &b));
            must_ok(far_message_add_segment(m, b, NULL));
        }
        must_status(FAR_ETOOBIG, far_call(c.agents[0], to, "echo", m, FAR_NO_LIMIT, 0, &f));
        must_ok(far_message_create(FAR_ENCODING_RAW, &m));
        for (int i = 0; i < 8191; i++) {
            far_buffer *b;
            must_ok(far_buffer_alloc(1, &b));
            must_ok(far_message_add_segment(m, b, NULL));
        }
        must_ok(ask(c.agents[0], to, "echo", m, FAR_NO_LIMIT, NULL));
    }
    cluster_close(&c);
}

static void too_many_segments_are_refused(void **state)
{
    (void)state;
    cluster_each(segments_over);
}

/* --------------------------------------------------------------------------------------- values */

static far_message *all_kinds(void)
{
    far_message *m;
    must_ok(far_message_create(FAR_ENCODING_VALUES, &m));
    must_ok(far_message_put_list(m, 8));
    must_ok(far_message_put_nil(m));
    must_ok(far_message_put_bool(m, true));
    must_ok(far_message_put_int(m, INT64_MIN));
    must_ok(far_message_put_uint(m, UINT64_MAX));
    must_ok(far_message_put_float(m, 0.1));
    must_ok(far_message_put_string(m, "d\xc3\xa9j\xc3\xa0", 6));
    must_ok(far_message_put_bytes(m, "\0\1\2", 3));
    must_ok(far_message_put_map(m, 1));
    must_ok(far_message_put_string(m, "key", 3));
    must_ok(far_message_put_list(m, 0));
    return m;
}

static void values_body(cluster *c, far_agent *a, far_worker_id to)
{
    (void)c;
    far_message *reply;
    const far_value *v;
    size_t count;
    must_ok(far_call_sync(a, to, "echo", all_kinds(), FAR_SECOND * 30, &reply, NULL));
    must(far_message_encoding(reply) == FAR_ENCODING_VALUES);
    must_ok(far_message_values(reply, &v, &count));
    must(count == 1 && v->kind == FAR_LIST && v->as.list.count == 8);
    const far_value *i = v->as.list.items;
    must(i[0].kind == FAR_NIL);
    must(i[1].kind == FAR_BOOL && i[1].as.boolean);
    must(i[2].kind == FAR_INT && i[2].as.integer == INT64_MIN);
    must(i[3].kind == FAR_UINT && i[3].as.unsigned_integer == UINT64_MAX);
    must(i[4].kind == FAR_FLOAT && !(i[4].as.real < 0.1) && !(i[4].as.real > 0.1));
    must(i[5].kind == FAR_STRING && i[5].as.bytes.size == 6 &&
         memcmp(i[5].as.bytes.data, "d\xc3\xa9j\xc3\xa0", 6) == 0);
    must(i[6].kind == FAR_BYTES && i[6].as.bytes.size == 3 &&
         memcmp(i[6].as.bytes.data, "\0\1\2", 3) == 0);
    must(i[7].kind == FAR_MAP && i[7].as.list.count == 1);
    must(i[7].as.list.items[0].kind == FAR_STRING && i[7].as.list.items[1].kind == FAR_LIST);
    far_message_discard(reply);
}

static void values_over(cluster_net net)
{
    both_ways(net, values_body);
}

static void values_come_back(void **state)
{
    (void)state;
    cluster_each(values_over);
}

/* --------------------------------------------------------------------------------------- errors */

static void error_body(cluster *c, far_agent *a, far_worker_id to)
{
    (void)c;
    far_failure why;
    far_future *f = begin(a, to, "fail", text_message("evidence"), FAR_NO_LIMIT);
    must_status(FAR_EREMOTE, end_of(f));
    must(far_future_message(f) == NULL && far_future_take_message(f) == NULL);
    far_future_failure(f, &why);
    must(why.status == FAR_EREMOTE && why.from_handler && why.worker == to);
    must(strcmp(why.type_name, "ValueError") == 0);
    must(strcmp(why.text, "it is wrong: \xe6\x97\xa5 \\n") == 0);
    must(strcmp(why.traceback, "line 1") == 0);
    must(is_text(why.payload, "evidence"));
    far_future_release(f);

    far_error error;
    must_status(FAR_EREMOTE, ask(a, to, "fail", text_message(""), FAR_NO_LIMIT, &error));
    must(error.status == FAR_EREMOTE);
    must_say(error.text, "ValueError");

    must_status(FAR_ENOMETHOD, ask(a, to, "ecko", text_message(""), FAR_NO_LIMIT, &error));
    must_say(error.text, "ecko");
    must_say(error.text, to ? "w1" : "w0");
}

static void error_over(cluster_net net)
{
    both_ways(net, error_body);
}

static void errors_say_what_they_are(void **state)
{
    (void)state;
    cluster_each(error_over);
}

static void bad_calls_over(cluster_net net)
{
    cluster c;
    far_future *f;
    cluster_open(&c, net, NULL);
    far_agent *a = c.agents[0];
    char longest[1025], longer[1026];
    memset(longest, 'n', 1024);
    longest[1024] = 0;
    memset(longer, 'n', 1025);
    longer[1025] = 0;
    for (far_worker_id to = 0; to < 2; to++) {
        must_status(FAR_EINVAL, far_call(a, to, NULL, text_message(""), 0, 0, &f));
        must_status(FAR_EINVAL, far_call(a, to, "", text_message(""), 0, 0, &f));
        must_status(FAR_EINVAL, far_call(a, to, "far.join", text_message(""), 0, 0, &f));
        must_status(FAR_EINVAL, far_call(a, to, longer, text_message(""), 0, 0, &f));
        must_status(FAR_EINVAL, far_call(a, to, "echo", NULL, 0, 0, &f));
        must_status(FAR_ENOMETHOD, ask(a, to, longest, text_message(""), 0, NULL));
    }
    must_status(FAR_ENOWORKER, far_call(a, 2, "echo", text_message(""), 0, 0, &f));
    far_error error;
    must_status(FAR_ENOWORKER, ask(a, 7, "echo", text_message(""), 0, &error));
    cluster_close(&c);
}

static void bad_calls_are_refused(void **state)
{
    (void)state;
    cluster_each(bad_calls_over);
}

static void workers_are_found(void **state)
{
    (void)state;
    cluster c;
    cluster_open(&c, CLUSTER_UNIX, &(cluster_options){.size = 3});
    far_worker w, all[3];
    far_error error;
    size_t count;
    for (size_t i = 0; i < 3; i++) {
        must_ok(far_agent_self(c.agents[i], &w));
        must(w.id == i);
        must_ok(far_agent_find(c.agents[i], "w2", &w, &error));
        must(w.id == 2 && strcmp(w.name, "w2") == 0);
        must_ok(far_agent_worker(c.agents[i], 1, &w, NULL));
        must(strcmp(w.name, "w1") == 0);
        must_status(FAR_ENOWORKER, far_agent_find(c.agents[i], "w4", &w, &error));
        must(error.status == FAR_ENOWORKER);
        must_say(error.text, "w4");
        must_say(error.text, "near: ");
        must_say(error.text, "w2");
        must_status(FAR_ENOWORKER, far_agent_find(c.agents[i], "nobody at all", &w, NULL));
        must_status(FAR_EINVAL, far_agent_find(c.agents[i], NULL, &w, NULL));
        must_status(FAR_ENOWORKER, far_agent_worker(c.agents[i], 3, &w, &error));
        must_ok(far_agent_workers(c.agents[i], NULL, 0, &count));
        must(count == 3);
        must_ok(far_agent_workers(c.agents[i], all, 3, &count));
        must(count == 3 && all[0].id == 0 && all[2].id == 2);
    }
    cluster_close(&c);
}

static void late(far_incoming *in, void *arg)
{
    far_incoming_reply(in, text_message(arg));
}

static void register_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    far_agent *a = c.agents[1];
    char longer[257];
    memset(longer, 'n', 256);
    longer[256] = 0;
    must_status(FAR_ENOMETHOD, ask(c.agents[0], 1, "late", text_message(""), 0, NULL));
    must_ok(far_agent_register(a, &(far_method){.name = "late", .handler = late, .arg = "one"}));
    must_status(FAR_EBUSY,
                far_agent_register(a, &(far_method){.name = "late", .handler = late, .arg = "x"}));
    must_status(FAR_EINVAL,
                far_agent_register(a, &(far_method){.name = "far.new", .handler = late}));
    must_status(FAR_EINVAL, far_agent_register(a, &(far_method){.name = "", .handler = late}));
    must_status(FAR_EINVAL, far_agent_register(a, &(far_method){.name = NULL, .handler = late}));
    must_status(FAR_EINVAL, far_agent_register(a, &(far_method){.name = longer, .handler = late}));
    must_status(FAR_EINVAL, far_agent_register(a, &(far_method){.name = "none"}));
    far_message *reply;
    must_ok(far_call_sync(c.agents[0], 1, "late", text_message(""), 0, &reply, NULL));
    must(is_text(reply, "one"));
    far_message_discard(reply);
    cluster_close(&c);
}

static void methods_are_registered_once(void **state)
{
    (void)state;
    cluster_each(register_over);
}

static void with_fallback(far_incoming *in, void *arg)
{
    must(arg == &handlers);
    far_incoming_reply(in, text_message(far_incoming_method(in)));
}

static void add_fallback(far_options *o, size_t rank, void *arg)
{
    (void)rank;
    (void)arg;
    o->fallback = with_fallback;
    o->fallback_arg = &handlers;
}

static void fallback_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, &(cluster_options){.adjust = add_fallback});
    for (int i = 0; i < 300; i++) {
        far_message *reply;
        char name[32];
        snprintf(name, sizeof name, "py:module:f%d", i);
        must_ok(far_call_sync(c.agents[0], (far_worker_id)i % 2, name, text_message(""), 0, &reply,
                              NULL));
        must(is_text(reply, name));
        far_message_discard(reply);
    }
    must_echo(c.agents[0], 1, "not by the fallback");
    cluster_close(&c);
}

static void the_fallback_serves_other_names(void **state)
{
    (void)state;
    cluster_each(fallback_over);
}

/* ------------------------------------------------------------------------------- mixed and nested */

static void all_ways_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, &(cluster_options){.size = 3});
    for (int round = 0; round < 20; round++) {
        far_future *f[3][3];
        for (far_worker_id from = 0; from < 3; from++)
            for (far_worker_id to = 0; to < 3; to++)
                f[from][to] = begin(c.agents[from], to, round % 2 ? "whom" : "name",
                                    text_message(""), FAR_NO_LIMIT);
        for (far_worker_id from = 0; from < 3; from++)
            for (far_worker_id to = 0; to < 3; to++) {
                char name[16];
                snprintf(name, sizeof name, "w%u", (unsigned)(round % 2 ? from : to));
                must_ok(end_of(f[from][to]));
                must(is_text(far_future_message(f[from][to]), name));
                far_future_release(f[from][to]);
            }
    }
    cluster_close(&c);
}

static void three_agents_call_all_ways(void **state)
{
    (void)state;
    cluster_each(all_ways_over);
}

static void nested_body(cluster *c, far_agent *a, far_worker_id to)
{
    (void)c;
    far_message *reply;
    far_error error = {.text = ""};
    if (far_call_sync(a, to, "relay", int_message(50), FAR_NO_LIMIT, &reply, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    must(int_of(reply) == 50);
    far_message_discard(reply);
}

static void nested_over(cluster_net net)
{
    both_ways(net, nested_body);
}

static void calls_nest_fifty_deep(void **state)
{
    (void)state;
    cluster_each(nested_over);
}

typedef struct caller {
    cluster *c;
    unsigned number;
    pthread_t thread;
} caller;

static void *call_a_lot(void *arg)
{
    caller *me = arg;
    for (unsigned i = 0; i < 200; i++) {
        char text[40];
        snprintf(text, sizeof text, "thread %u call %u", me->number, i);
        far_agent *a = me->c->agents[me->number % 3];
        if (i % 3) {
            must_echo(a, (me->number + i) % 3, text);
            continue;
        }
        far_future *f[8];
        for (unsigned k = 0; k < 8; k++)
            f[k] = begin(a, k % 3, k % 2 ? "echo" : "quick", text_message(text), FAR_SECOND * 50);
        for (unsigned k = 8; k-- > 0;) {
            must_ok(end_of(f[k]));
            must(is_text(far_future_message(f[k]), text));
            far_future_release(f[k]);
        }
    }
    return NULL;
}

static void threads_over(cluster_net net)
{
    cluster c;
    caller all[8];
    cluster_open(&c, net, &(cluster_options){.size = 3});
    for (unsigned i = 0; i < 8; i++) {
        all[i] = (caller){.c = &c, .number = i};
        must(pthread_create(&all[i].thread, NULL, call_a_lot, &all[i]) == 0);
    }
    for (unsigned i = 0; i < 8; i++)
        pthread_join(all[i].thread, NULL);
    cluster_close(&c);
}

static void eight_threads_call(void **state)
{
    (void)state;
    cluster_each(threads_over);
}

/* --------------------------------------------------------------------------- answering elsewhere */

static void *answer_one(void *arg)
{
    far_incoming_reply(arg, text_message("from another thread"));
    return NULL;
}

static void later_body(cluster *c, far_agent *a, far_worker_id to)
{
    (void)c;
    pthread_t thread;
    far_future *f = begin(a, to, "keep", text_message(""), FAR_NO_LIMIT);
    far_incoming *in;
    gate_until((in = handlers_take_kept()) != NULL);
    must(!far_future_done(f));
    must_status(FAR_ETIMEOUT, far_future_wait(f, 0));
    must_status(FAR_EAGAIN, far_future_status(f));
    must(strcmp(far_incoming_method(in), "keep") == 0);
    must(far_incoming_remaining(in) == FAR_FOREVER && !far_incoming_cancelled(in));
    must(pthread_create(&thread, NULL, answer_one, in) == 0);
    must_ok(end_of(f));
    must(is_text(far_future_message(f), "from another thread"));
    pthread_join(thread, NULL);
    far_future_release(f);
}

static void later_over(cluster_net net)
{
    both_ways(net, later_body);
}

static void replies_come_from_any_thread(void **state)
{
    (void)state;
    cluster_each(later_over);
}

/* A call whose future nobody holds goes on. */
static void dropped_over(cluster_net net)
{
    cluster c;
    cluster_open(&c, net, NULL);
    for (far_worker_id to = 0; to < 2; to++) {
        far_future_release(begin(c.agents[0], to, "keep", text_message(""), FAR_NO_LIMIT));
        far_incoming *in;
        gate_until((in = handlers_take_kept()) != NULL);
        must(!far_incoming_cancelled(in));
        far_incoming_reply(in, NULL);
    }
    cluster_close(&c);
}

static void a_dropped_future_stops_nothing(void **state)
{
    (void)state;
    cluster_each(dropped_over);
}

static void counters_over(cluster_net net)
{
    cluster c;
    far_counters before, k;
    cluster_open(&c, net, NULL);
    far_agent_counters(c.agents[0], &before);
    must(before.calls_started == 0 && before.calls_pending == 0);
    for (int i = 0; i < 10; i++)
        must_echo(c.agents[0], 1, "x");
    for (int i = 0; i < 5; i++)
        must_echo(c.agents[0], 0, "x");
    must_status(FAR_EREMOTE, ask(c.agents[0], 1, "fail", text_message(""), 0, NULL));
    far_agent_counters(c.agents[0], &k);
    must(k.calls_started == 16 && k.calls_completed == 15 && k.calls_failed == 1);
    must(k.self_calls == 5 && k.calls_served == 5 && k.calls_pending == 0);
    must(k.bytes_sent > before.bytes_sent && k.bytes_received > before.bytes_received);
    must(k.connections_opened >= 1);
    far_agent_counters(c.agents[1], &k);
    must(k.calls_served == 11 && k.calls_started == 0);
    cluster_close(&c);
}

static void counters_count(void **state)
{
    (void)state;
    cluster_each(counters_over);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(raw_bytes_come_back),
    cmocka_unit_test(every_size_comes_back),
    cmocka_unit_test(too_many_segments_are_refused),
    cmocka_unit_test(values_come_back),
    cmocka_unit_test(errors_say_what_they_are),
    cmocka_unit_test(bad_calls_are_refused),
    cmocka_unit_test(workers_are_found),
    cmocka_unit_test(methods_are_registered_once),
    cmocka_unit_test(the_fallback_serves_other_names),
    cmocka_unit_test(three_agents_call_all_ways),
    cmocka_unit_test(calls_nest_fifty_deep),
    cmocka_unit_test(eight_threads_call),
    cmocka_unit_test(replies_come_from_any_thread),
    cmocka_unit_test(a_dropped_future_stops_nothing),
    cmocka_unit_test(counters_count),
};
FAR_TEST_MAIN(tests)
