/* SPDX-License-Identifier: BSD-3-Clause
 * call: from (to, func, args, kwargs, timeout) to a call on its way, and for rpc_sync back.
 * Floor: Python. Thread: with the GIL, released once around everything that can block. */
#include "farpy.h"

#include <string.h>

typedef struct call_args {
    PyObject *to, *func, *args, *kwargs, *timeout; /* borrowed; NULL if not given */
    bool copy;
} call_args;

typedef struct outgoing {
    far_worker_id to;
    PyObject *method; /* owned: far_call borrows its characters */
    const char *method_name;
    far_message *message;
    far_duration limit, packing;
} outgoing;

/* ---- reading the arguments */

enum { POSITIONAL = 5, PARAMETERS = 6 };
static const char *const parameters[PARAMETERS] = {"to",     "func",    "args",
                                                   "kwargs", "timeout", "copy"};

/* `copy` is what is meant if the caller does not say. */
static int parse(const char *function, bool copy, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames, call_args *out)
{
    PyObject *found[PARAMETERS] = {NULL};
    if (nargs > POSITIONAL) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                     function, POSITIONAL, nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < nargs; i++)
        found[i] = args[i];
    Py_ssize_t named = kwnames ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(kwnames, i);
        int at = 0;
        while (at < PARAMETERS && PyUnicode_CompareWithASCIIString(name, parameters[at]) != 0)
            at++;
        if (at == PARAMETERS || found[at]) {
            PyErr_Format(PyExc_TypeError,
                         at == PARAMETERS ? "%s() got an unexpected keyword argument '%U'"
                                          : "%s() got multiple values for argument '%U'",
                         function, name);
            return -1;
        }
        found[at] = args[nargs + i];
    }
    if (!found[0] || !found[1]) {
        PyErr_Format(PyExc_TypeError, "%s() needs to whom (to) and what (func)", function);
        return -1;
    }
    int said = found[5] ? PyObject_IsTrue(found[5]) : copy;
    if (said < 0)
        return -1;
    *out = (call_args){found[0], found[1], found[2], found[3], found[4], said != 0};
    return 0;
}

int far__py_worker(far__py_agent *agent, PyObject *to, far_worker *worker)
{
    far__py_state *st = agent->st;
    far_error error = {FAR_OK, ""};
    far_status status;
    if (PyUnicode_Check(to)) {
        Py_ssize_t size;
        const char *name = PyUnicode_AsUTF8AndSize(to, &size);
        if (!name || strlen(name) != (size_t)size || size > FAR_NAME_MAX) {
            PyErr_Clear();
            PyErr_Format(st->UnknownWorkerError, "%R is no name of a worker", to);
            return -1;
        }
        status = far_agent_find(agent->ref, name, worker, &error);
    } else {
        PyObject *id = NULL;
        if (PyIndex_Check(to) && !PyBool_Check(to))
            id = PyNumber_Index(to);
        else if (PyObject_IsInstance(to, st->worker_info) == 1)
            id = PyObject_GetAttr(to, st->str_id);
        else if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "a worker is a name, an id or a WorkerInfo, not %R", to);
        if (!id)
            return -1;
        int overflow = 0;
        long long number = PyLong_AsLongLongAndOverflow(id, &overflow);
        Py_DECREF(id);
        if (number == -1 && PyErr_Occurred())
            return -1;
        if (overflow || number < 0 || number > (long long)UINT32_MAX) {
            PyErr_Format(st->UnknownWorkerError, "there is no worker with the id %S", to);
            return -1;
        }
        status = far_agent_worker(agent->ref, (far_worker_id)number, worker, &error);
    }
    if (status == FAR_OK)
        return 0;
    far__py_raise(st, status, error.text);
    return -1;
}

PyObject *far__py_worker_info(far__py_state *st, const far_worker *worker)
{
    PyObject *name = far__py_text(worker->name);
    PyObject *id = name ? PyLong_FromUnsignedLong(worker->id) : NULL;
    PyObject *info = id ? PyObject_CallFunctionObjArgs(st->worker_info, name, id, NULL) : NULL;
    Py_XDECREF(id);
    Py_XDECREF(name);
    return info;
}

/* The positional arguments as a tuple; new reference. */
static PyObject *positional(far__py_state *st, PyObject *args)
{
    if (!args || args == Py_None)
        return Py_NewRef(st->empty_tuple);
    if (PyTuple_CheckExact(args))
        return Py_NewRef(args);
    if (PyUnicode_Check(args) || PyBytes_Check(args)) {
        PyErr_Format(PyExc_TypeError, "args is a tuple or list of arguments, not %R", args);
        return NULL;
    }
    PyObject *tuple = PySequence_Tuple(args);
    if (!tuple && PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError, "args is a tuple or list of arguments, not %R", args);
    return tuple;
}

/* The keyword arguments as a dict (new reference) or NULL in *out if there are none. */
static int keywords(PyObject *kwargs, PyObject **out)
{
    *out = NULL;
    if (!kwargs || kwargs == Py_None || (PyDict_CheckExact(kwargs) && PyDict_Size(kwargs) == 0))
        return 0;
    if (!PyMapping_Check(kwargs) || !PyObject_HasAttrString(kwargs, "keys")) {
        PyErr_Format(PyExc_TypeError, "kwargs is a dict, not %R", kwargs);
        return -1;
    }
    PyObject *dict = PyDict_New();
    if (!dict || PyDict_Update(dict, kwargs) < 0) {
        Py_XDECREF(dict);
        return -1;
    }
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (PyUnicode_Check(key))
            continue;
        PyErr_Format(PyExc_TypeError, "the keys of kwargs are strings, not %R", key);
        Py_DECREF(dict);
        return -1;
    }
    *out = dict;
    return 0;
}

/* ---- packing */

static int set_method(far__py_state *st, outgoing *o, PyObject *method)
{
    Py_ssize_t size;
    o->method = method;
    o->method_name = PyUnicode_AsUTF8AndSize(method, &size);
    if (!o->method_name)
        return -1;
    if (size > 0 && size <= 255 && strlen(o->method_name) == (size_t)size &&
        strncmp(o->method_name, "far.", 4) != 0)
        return 0;
    PyErr_Format(PyExc_ValueError,
                 "%R is no name for a function (1 to 255 bytes, not beginning "
                 "with 'far.')",
                 method);
    (void)st;
    return -1;
}

static int pack_function(far__py_state *st, PyObject *func, PyObject *args, PyObject *kwargs,
                         far__py_pack *pack, outgoing *o)
{
    PyObject *method = far__py_method_of(st, func);
    if (!method)
        return -1;
    PyObject *payload;
    PyObject *named = kwargs ? kwargs : Py_None;
    if (PyUnicode_Check(method)) {
        payload = PyTuple_Pack(2, args, named);
    } else {
        pack->by_value = method == Py_False;
        Py_DECREF(method);
        payload = PyTuple_Pack(3, func, args, named);
        method = PyUnicode_FromString("py:value");
    }
    if (method && payload && set_method(st, o, method) == 0)
        o->message = far__py_pickle(st, payload, pack);
    else if (!o->method)
        Py_XDECREF(method);
    Py_XDECREF(payload);
    return o->message ? 0 : -1;
}

static int pack_call(far__py_agent *agent, const call_args *c, outgoing *o)
{
    far__py_state *st = agent->st;
    far__py_pack pack = {
        .what = "a call of", .name = c->func, .copy = c->copy || o->to == far__py_self(agent)->id};
    PyObject *kwargs = NULL;
    PyObject *args = positional(st, c->args);
    int rc = args ? keywords(c->kwargs, &kwargs) : -1;
    if (rc == 0 && PyUnicode_Check(c->func)) {
        rc = set_method(st, o, Py_NewRef(c->func));
        if (rc == 0) {
            o->message = far__py_values_call(st, args, kwargs, &pack);
            rc = o->message ? 0 : -1;
        }
    } else if (rc == 0) {
        rc = pack_function(st, c->func, args, kwargs, &pack, o);
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    return rc;
}

/* The limit runs from entering the call, so what packing took is taken off, if it is worth a word: the
 * limit also stands in the text of the error. */
static void count_packing(outgoing *o, far_duration begun)
{
    if (o->limit <= 0)
        return;
    far_duration took = far__py_now() - begun;
    if (took <= o->limit / 100)
        return;
    o->packing = took;
    o->limit = took < o->limit ? o->limit - took : 1;
}

static void inherit(outgoing *o)
{
    far_duration left = far__py_current_left();
    if (left == FAR_FOREVER)
        return;
    if (left <= 0)
        left = 1;
    if (o->limit <= 0 || left < o->limit)
        o->limit = left;
}

static int prepare(far__py_agent *agent, const call_args *c, outgoing *o)
{
    far_worker worker;
    if (!agent->ref || agent->closed) {
        far__py_raise(agent->st, FAR_ECLOSED, "this agent was shut down");
        return -1;
    }
    if (far__py_limit(agent->st, c->timeout, &far__py_limit_call, &o->limit) < 0)
        return -1;
    if (o->limit == FAR_TIMEOUT_DEFAULT)
        o->limit = far_agent_default_timeout(agent->ref);
    if (agent->inherit_deadline)
        inherit(o);
    far_duration begun = o->limit > 0 ? far__py_now() : 0;
    if (!PyUnicode_Check(c->func) && !PyCallable_Check(c->func)) {
        PyErr_Format(PyExc_TypeError,
                     "func is a callable or the name of an exported function, not %R", c->func);
        return -1;
    }
    if (far__py_worker(agent, c->to, &worker) < 0)
        return -1;
    o->to = worker.id;
    if (pack_call(agent, c, o) < 0) {
        Py_CLEAR(o->method);
        return -1;
    }
    count_packing(o, begun);
    return 0;
}

static void refused(far__py_agent *agent, const outgoing *o, far_status status)
{
    PyObject *text = PyUnicode_FromFormat("a call of '%U' to worker %u was refused: %s", o->method,
                                          (unsigned)o->to, far_status_text(status));
    Py_ssize_t size;
    const char *chars = text ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    if (chars)
        far__py_raise(agent->st, status, chars);
    Py_XDECREF(text);
}

/* ---- calling */

int far__py_wait(far_future *future, far_duration limit)
{
    far_duration end = limit > 0 && limit != FAR_FOREVER ? far__py_now() : 0;
    end = end > FAR_FOREVER - limit ? FAR_FOREVER : end + limit;
    for (;;) {
        far_status status;
        Py_BEGIN_ALLOW_THREADS
        status = far_future_wait(future, limit);
        Py_END_ALLOW_THREADS
        if (status == FAR_OK)
            return 0;
        if (status != FAR_EINTR)
            return 1;
        if (PyErr_CheckSignals() < 0)
            return -1;
        if (limit > 0 && limit != FAR_FOREVER) {
            limit = end - far__py_now();
            limit = limit > 0 ? limit : 0;
        }
    }
}

PyObject *far__py_rpc_sync(far__py_agent *agent, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames)
{
    call_args c;
    outgoing o = {0};
    if (parse("rpc_sync", false, args, nargs, kwnames, &c) < 0 || prepare(agent, &c, &o) < 0)
        return NULL;
    far_future *future = NULL;
    far_status status, waited = FAR_OK;
    Py_BEGIN_ALLOW_THREADS
    status = far_call(agent->ref, o.to, o.method_name, o.message, o.limit, FAR_CALL_NOW, &future);
    if (status == FAR_OK)
        waited = far_future_wait(future, FAR_FOREVER);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (status != FAR_OK)
        refused(agent, &o, status);
    else if (waited != FAR_OK &&
             (PyErr_CheckSignals() < 0 || far__py_wait(future, FAR_FOREVER) < 0))
        (void)far_future_cancel(future);
    else
        result = far__py_result(agent, future, o.packing);
    far_future_release(future);
    Py_DECREF(o.method);
    return result;
}

PyObject *far__py_rpc_async(far__py_agent *agent, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *kwnames)
{
    call_args c;
    outgoing o = {0};
    if (parse("rpc_async", false, args, nargs, kwnames, &c) < 0 || prepare(agent, &c, &o) < 0)
        return NULL;
    far_future *ref = NULL;
    far_status status;
    Py_BEGIN_ALLOW_THREADS
    status = far_call(agent->ref, o.to, o.method_name, o.message, o.limit, 0, &ref);
    Py_END_ALLOW_THREADS
    PyObject *future = NULL;
    if (status != FAR_OK)
        refused(agent, &o, status);
    else
        future = far__py_future_new(agent, ref);
    if (future)
        ((far__py_future *)future)->packing = o.packing;
    Py_DECREF(o.method);
    return future;
}

PyObject *far__py_remote(far__py_agent *agent, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames)
{
    call_args c;
    outgoing o = {0};
    if (parse("remote", true, args, nargs, kwnames, &c) < 0 || prepare(agent, &c, &o) < 0)
        return NULL;
    far_rref *ref = NULL;
    far_status status;
    Py_BEGIN_ALLOW_THREADS
    status = far_remote(agent->ref, o.to, o.method_name, o.message, o.limit, &ref);
    Py_END_ALLOW_THREADS
    PyObject *rref = NULL;
    if (status != FAR_OK)
        refused(agent, &o, status);
    else
        rref = far__py_rref_new(agent, ref);
    Py_DECREF(o.method);
    return rref;
}
