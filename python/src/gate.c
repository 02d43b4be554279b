/* SPDX-License-Identifier: BSD-3-Clause
 * gate: one future that ends when many have, or when the first of them failed: wait_all and
 * collect_all. Floor: Python. Thread: its callbacks touch nothing of Python, so they run anywhere. */
#include "farpy.h"

#include <stdatomic.h>
#include <stdlib.h>

typedef struct gate {
    atomic_size_t users;            /* callbacks that will come, and the maker */
    atomic_size_t missing;          /* futures that have not ended */
    _Atomic(far_message *) message; /* what opens it; taken by whoever opens it */
    far_future *future;
    bool first_error; /* the first failure opens it */
} gate;

static void gate_open(gate *g)
{
    far_message *message = atomic_exchange(&g->message, NULL);
    if (message)
        (void)far_future_complete(g->future, message);
}

static void gate_release(gate *g)
{
    if (atomic_fetch_sub(&g->users, 1) != 1)
        return;
    far_message_discard(atomic_exchange(&g->message, NULL));
    far_future_release(g->future);
    free(g);
}

static void one_ended(far_future *future, void *arg)
{
    gate *g = arg;
    bool failed = g->first_error && far_future_status(future) != FAR_OK;
    if (atomic_fetch_sub(&g->missing, 1) == 1 || failed)
        gate_open(g);
    gate_release(g);
}

/* Takes `future`. */
static gate *gate_create(far__py_state *st, far_future *future, size_t count, bool first_error)
{
    far_message *message;
    far_status status = far_message_create(FAR_ENCODING_RAW, &message);
    gate *g = status == FAR_OK ? calloc(1, sizeof *g) : NULL;
    if (!g) {
        if (status == FAR_OK)
            far_message_discard(message);
        far_future_release(future);
        far__py_raise(st, FAR_ENOMEM, NULL);
        return NULL;
    }
    atomic_init(&g->users, 1);
    atomic_init(&g->missing, count);
    atomic_init(&g->message, message);
    g->future = future;
    g->first_error = first_error;
    return g;
}

/* Hangs the gate on every future; those that have ended are counted at once. */
static int gate_hang(far__py_state *st, gate *g, PyObject *futures)
{
    far_status status = FAR_OK;
    for (Py_ssize_t i = 0; status == FAR_OK && i < PyTuple_Size(futures); i++) {
        far_future *ref = ((far__py_future *)PyTuple_GetItem(futures, i))->ref;
        atomic_fetch_add(&g->users, 1);
        Py_BEGIN_ALLOW_THREADS
        status = far_future_on_done(ref, one_ended, g, FAR_CALLBACK_NEVER_BLOCKS);
        Py_END_ALLOW_THREADS
        if (status != FAR_OK)
            atomic_fetch_sub(&g->users, 1); /* not the last: the maker is still there */
    }
    if (status == FAR_OK)
        return 0;
    far__py_raise(st, status, NULL);
    return -1;
}

/* A tuple of what surely are Futures. */
static PyObject *all_futures(far__py_state *st, PyObject *given)
{
    PyObject *futures = PySequence_Tuple(given);
    for (Py_ssize_t i = 0; futures && i < PyTuple_Size(futures); i++) {
        PyObject *item = PyTuple_GetItem(futures, i);
        if (PyObject_TypeCheck(item, st->future_type))
            continue;
        PyErr_Format(PyExc_TypeError, "futures are needed, not %R", item);
        Py_CLEAR(futures);
    }
    return futures;
}

static int wait_for(far__py_state *st, PyObject *futures, far_duration limit)
{
    size_t missing = 0;
    far__py_agent *agent = NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(futures); i++) {
        far__py_future *future = (far__py_future *)PyTuple_GetItem(futures, i);
        far_status status = far_future_status(future->ref);
        if (status != FAR_OK && status != FAR_EAGAIN)
            return 0;
        missing += status == FAR_EAGAIN;
        if (status == FAR_EAGAIN && !agent)
            agent = future->agent;
    }
    if (missing == 0)
        return 0;
    far_future *ref;
    far_status status = far_future_create(agent->ref, &ref);
    if (status != FAR_OK) {
        far__py_raise(st, status, NULL);
        return -1;
    }
    gate *g = gate_create(st, ref, (size_t)PyTuple_Size(futures), true);
    if (!g)
        return -1;
    int rc = gate_hang(st, g, futures);
    if (rc == 0)
        rc = far__py_wait(g->future, limit);
    gate_release(g);
    return rc;
}

PyObject *far__py_wait_all(far__py_state *st, PyObject *args)
{
    PyObject *given, *timeout = Py_None;
    far_duration limit;
    if (!PyArg_ParseTuple(args, "O|O:_wait_all", &given, &timeout) ||
        far__py_limit(st, timeout, &far__py_limit_wait, &limit) < 0)
        return NULL;
    PyObject *futures = all_futures(st, given);
    if (!futures)
        return NULL;
    Py_ssize_t count = PyTuple_Size(futures);
    PyObject *values = NULL;
    int rc = wait_for(st, futures, limit);
    if (rc == 1)
        PyErr_Format(st->RpcTimeoutError, "waited %S s for %zd calls (they go on)", timeout, count);
    if (rc == 0)
        values = PyList_New(count);
    /* Errors first: a call that still runs must not hide one. */
    for (Py_ssize_t i = 0; values && i < count; i++) {
        far__py_future *future = (far__py_future *)PyTuple_GetItem(futures, i);
        far_status status = far_future_status(future->ref);
        if (status == FAR_OK || status == FAR_EAGAIN)
            continue;
        Py_XDECREF(far__py_future_value(future));
        Py_CLEAR(values);
    }
    for (Py_ssize_t i = 0; values && i < count; i++) {
        PyObject *value = far__py_future_value((far__py_future *)PyTuple_GetItem(futures, i));
        if (!value || PyList_SetItem(values, i, value) < 0)
            Py_CLEAR(values);
    }
    Py_DECREF(futures);
    return values;
}

PyObject *far__py_collect_all(far__py_state *st, PyObject *given)
{
    PyObject *futures = all_futures(st, given);
    if (!futures)
        return NULL;
    Py_ssize_t count = PyTuple_Size(futures);
    far__py_agent *agent =
        count > 0 ? (far__py_agent *)Py_NewRef(
                        (PyObject *)((far__py_future *)PyTuple_GetItem(futures, 0))->agent)
                  : far__py_default_agent(st);
    far__py_future *all = agent ? far__py_future_made(st, agent) : NULL;
    Py_XDECREF((PyObject *)agent);
    if (all) {
        all->claimed = true;
        all->value = PySequence_List(futures);
        gate *g =
            all->value ? gate_create(st, far_future_hold(all->ref), (size_t)count, false) : NULL;
        if (g && count == 0)
            gate_open(g);
        if (!g || gate_hang(st, g, futures) < 0)
            Py_CLEAR(all);
        if (g)
            gate_release(g);
    }
    Py_DECREF(futures);
    return (PyObject *)all;
}
