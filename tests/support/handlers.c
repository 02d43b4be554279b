/* SPDX-License-Identifier: BSD-3-Clause
 * tests/support/handlers: the methods that every worker of a test cluster serves. */
#include "support/handlers.h"

#include <stdatomic.h>
#include <string.h>

enum { KEPT_MAX = 20000 };

handlers_state handlers = {
    .held = GATE_INIT, .seen = GATE_INIT, .go = GATE_INIT, .arrived = GATE_INIT};

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static far_incoming *kept[KEPT_MAX];
static size_t kept_from, kept_to;

static void gate_reset(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->count = 0;
    pthread_mutex_unlock(&g->lock);
}

void handlers_reset(void)
{
    gate_reset(&handlers.held);
    gate_reset(&handlers.seen);
    gate_reset(&handlers.go);
    gate_reset(&handlers.arrived);
    atomic_store(&handlers.runs, 0);
    pthread_mutex_lock(&kept_lock);
    must(kept_from == kept_to);
    kept_from = kept_to = 0;
    pthread_mutex_unlock(&kept_lock);
}

void handlers_open(void)
{
    gate_pass(&handlers.go);
}

far_incoming *handlers_take_kept(void)
{
    far_incoming *in = NULL;
    pthread_mutex_lock(&kept_lock);
    if (kept_from < kept_to)
        in = kept[kept_from++];
    pthread_mutex_unlock(&kept_lock);
    return in;
}

/* ------------------------------------------------------------------------------------ messages */

far_message *text_message(const char *text)
{
    far_message *m;
    must_ok(far_message_create(FAR_ENCODING_RAW, &m));
    must_ok(far_message_append(m, text, strlen(text)));
    return m;
}

far_message *int_message(int64_t value)
{
    far_message *m;
    must_ok(far_message_create(FAR_ENCODING_VALUES, &m));
    must_ok(far_message_put_int(m, value));
    return m;
}

bool is_text(const far_message *m, const char *text)
{
    return m && far_message_body_size(m) == strlen(text) &&
           memcmp(far_message_body(m), text, strlen(text)) == 0;
}

int64_t int_of(far_message *m)
{
    const far_value *v;
    size_t count;
    must_ok(far_message_values(m, &v, &count));
    must(count == 1 && v->kind == FAR_INT);
    return v->as.integer;
}

/* ------------------------------------------------------------------------------------- methods */

static void echo(far_incoming *in, void *arg)
{
    (void)arg;
    far_incoming_reply(in, far_incoming_take_message(in));
}

static void name(far_incoming *in, void *arg)
{
    (void)arg;
    far_worker self;
    must_ok(far_agent_self(far_incoming_agent(in), &self));
    far_incoming_reply(in, text_message(self.name));
}

static void whom(far_incoming *in, void *arg)
{
    (void)arg;
    far_incoming_reply(in, text_message(far_incoming_caller(in)->name));
}

static void left(far_incoming *in, void *arg)
{
    (void)arg;
    far_duration remaining = far_incoming_remaining(in);
    far_incoming_reply(in, int_message(remaining == FAR_FOREVER ? -1 : remaining));
}

static void give_error(far_incoming *in, void *arg)
{
    (void)arg;
    far_incoming_fail(in, FAR_EREMOTE, "ValueError", "it is wrong: \xe6\x97\xa5 \\n", "line 1",
                      far_incoming_take_message(in));
}

static void hold(far_incoming *in, void *arg)
{
    (void)arg;
    atomic_fetch_add(&handlers.runs, 1);
    gate_pass(&handlers.held);
    gate_wait(&handlers.go, 1);
    far_incoming_reply(in, far_incoming_take_message(in));
}

static void keep(far_incoming *in, void *arg)
{
    (void)arg;
    pthread_mutex_lock(&kept_lock);
    must(kept_to < KEPT_MAX);
    kept[kept_to++] = in;
    pthread_mutex_unlock(&kept_lock);
    gate_pass(&handlers.arrived);
}

static void relay(far_incoming *in, void *arg)
{
    (void)arg;
    int64_t n = int_of(far_incoming_message(in));
    if (n == 0) {
        far_incoming_reply(in, int_message(0));
        return;
    }
    far_message *reply;
    far_error error = {.text = ""};
    far_status status = far_call_sync(far_incoming_agent(in), far_incoming_caller(in)->id, "relay",
                                      int_message(n - 1), FAR_NO_LIMIT, &reply, &error);
    if (status != FAR_OK) {
        far_incoming_fail(in, status, NULL, error.text, NULL, NULL);
        return;
    }
    int64_t depth = int_of(reply) + 1;
    far_message_discard(reply);
    far_incoming_reply(in, int_message(depth));
}

static void cancelled(far_incoming *in, void *arg)
{
    (void)arg;
    gate_pass(&handlers.held);
    gate_until(far_incoming_cancelled(in));
    gate_pass(&handlers.seen);
    gate_wait(&handlers.go, 1);
    far_incoming_reply(in, NULL);
}

static void serve(far_incoming *in, void *arg)
{
    (void)arg;
    gate_pass(&handlers.held);
    gate_until(far_incoming_closing(in));
    far_incoming_reply(in, text_message("closing"));
}

const far_method handlers_methods[] = {
    {.name = "echo", .handler = echo},
    {.name = "quick", .handler = echo, .flags = FAR_METHOD_NEVER_BLOCKS},
    {.name = "name", .handler = name},
    {.name = "whom", .handler = whom},
    {.name = "left", .handler = left},
    {.name = "fail", .handler = give_error},
    {.name = "hold", .handler = hold},
    {.name = "keep", .handler = keep, .flags = FAR_METHOD_NEVER_BLOCKS},
    {.name = "relay", .handler = relay},
    {.name = "cancelled", .handler = cancelled},
    {.name = "serve", .handler = serve},
};
const size_t handlers_count = sizeof handlers_methods / sizeof handlers_methods[0];

/* ------------------------------------------------------------------------------------- calling */

far_future *begin(far_agent *a, far_worker_id to, const char *method, far_message *m,
                  far_duration timeout)
{
    far_future *f;
    must_ok(far_call(a, to, method, m, timeout, 0, &f));
    return f;
}

far_status end_of(far_future *f)
{
    far_status status;
    do
        status = far_future_wait(f, FAR_FOREVER);
    while (status == FAR_EINTR);
    must_ok(status);
    must(far_future_done(f));
    return far_future_status(f);
}

far_status end(far_future *f)
{
    far_status status = end_of(f);
    far_future_release(f);
    return status;
}

far_status ask(far_agent *a, far_worker_id to, const char *method, far_message *m,
               far_duration timeout, far_error *error)
{
    far_message *reply;
    far_status status = far_call_sync(a, to, method, m, timeout, &reply, error);
    if (status == FAR_OK)
        far_message_discard(reply);
    return status;
}

void must_echo(far_agent *a, far_worker_id to, const char *text)
{
    far_message *reply;
    far_error error = {.text = ""};
    if (far_call_sync(a, to, "echo", text_message(text), FAR_NO_LIMIT, &reply, &error) != FAR_OK)
        cluster_fail(__FILE__, __LINE__, error.text);
    must(is_text(reply, text));
    far_message_discard(reply);
}
