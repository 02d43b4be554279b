/* SPDX-License-Identifier: BSD-3-Clause
 * handler: serves calls in Python: finds the function, reads the arguments, calls, answers; and
 * current_call(). Floor: Python. Thread: executor threads, which Python made; one taking of the GIL a
 * call that goes well. */
#include "farpy.h"

#include <string.h>

typedef struct current_object {
    PyObject_HEAD
    far__py_state *st;
    far_incoming *call; /* NULL once it is answered */
    PyObject *caller, *method;
} current_object;

/* The call that a thread is in. */
typedef struct serving {
    far__py_agent *agent;
    far_incoming *call;
    current_object *object; /* made when somebody asks */
    struct serving *outer;
} serving;

static _Thread_local serving *serving_now;

typedef enum phase { PHASE_FIND, PHASE_READ, PHASE_RUN, PHASE_ANSWER } phase;

/* ---- request */

typedef struct request {
    PyObject *func, *args, *kwargs; /* owned; kwargs NULL if none */
    far_encoding encoding;
} request;

static void request_clear(request *r)
{
    Py_CLEAR(r->func);
    Py_CLEAR(r->args);
    Py_CLEAR(r->kwargs);
}

/* Takes ([func,] args, kwargs) apart. */
static int open_payload(far__py_state *st, PyObject *payload, Py_ssize_t size, request *r)
{
    if (!PyTuple_Check(payload) || PyTuple_Size(payload) != size)
        goto err_shape;
    PyObject *args = PyTuple_GetItem(payload, size - 2);
    PyObject *kwargs = PyTuple_GetItem(payload, size - 1);
    if (!PyTuple_Check(args) || (kwargs != Py_None && !PyDict_Check(kwargs)))
        goto err_shape;
    if (size == 3)
        r->func = Py_NewRef(PyTuple_GetItem(payload, 0));
    r->args = Py_NewRef(args);
    r->kwargs = kwargs == Py_None ? NULL : Py_NewRef(kwargs);
    return 0;

err_shape:
    PyErr_SetString(st->SerializationError, "the call does not carry a function's arguments");
    return -1;
}

static int read_request(far__py_state *st, const char *method, far_message *message, phase *at,
                        request *r)
{
    bool by_value = strcmp(method, "py:value") == 0;
    *at = PHASE_FIND;
    if (!by_value) {
        r->func = far__py_function(st, method);
        if (!r->func)
            return -1;
    }
    *at = PHASE_READ;
    r->encoding = far_message_encoding(message);
    PyObject *payload;
    if (r->encoding == FAR_ENCODING_PICKLE)
        payload = far__py_unpickle(st, message);
    else if (r->encoding == FAR_ENCODING_VALUES)
        payload = far__py_values_read_call(st, message);
    else
        payload = far__py_raw_read_call(st, message);
    if (!payload)
        return -1;
    int rc = open_payload(st, payload, by_value ? 3 : 2, r);
    Py_DECREF(payload);
    return rc;
}

/* ---- answer */

static far_message *raw_result(far__py_state *st, PyObject *value)
{
    Py_buffer view;
    far_message *message = NULL;
    if (value == Py_None)
        view = (Py_buffer){.len = 0};
    else if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    far_status status = far_message_create(FAR_ENCODING_RAW, &message);
    if (status == FAR_OK && view.len > 0)
        status = far_message_append(message, view.buf, (size_t)view.len);
    if (value != Py_None)
        PyBuffer_Release(&view);
    if (status == FAR_OK)
        return message;
    far_message_discard(message);
    far__py_raise(st, status, NULL);
    return NULL;
}

static far_message *pack_result(const serving *s, const char *method, far_encoding encoding,
                                PyObject *value)
{
    far__py_state *st = s->agent->st;
    PyObject *name =
        PyUnicode_FromFormat("'%s' at worker '%s'", method, far__py_self(s->agent)->name);
    if (!name)
        return NULL;
    const far__py_pack pack = {.what = "the result of",
                               .name = name,
                               .copy =
                                   far_incoming_caller(s->call)->id == far__py_self(s->agent)->id};
    far_message *message;
    if (encoding == FAR_ENCODING_PICKLE) {
        message = far__py_pickle(st, value, &pack);
    } else if (encoding == FAR_ENCODING_VALUES) {
        message = far__py_values_result(st, value, &pack);
    } else {
        message = raw_result(st, value);
        if (!message)
            far__py_unsendable(st, pack.what, name, "sent");
    }
    Py_DECREF(name);
    return message;
}

static far_status status_of(far__py_state *st, phase at)
{
    if (at == PHASE_FIND && PyErr_ExceptionMatches(st->UnknownFunctionError))
        return FAR_ENOMETHOD;
    if (at == PHASE_ANSWER && PyErr_ExceptionMatches(st->SerializationError))
        return FAR_EVALUE;
    return FAR_EREMOTE;
}

static const char *chars(PyObject *text)
{
    Py_ssize_t size;
    const char *found = text && PyUnicode_Check(text) ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    PyErr_Clear();
    return found ? found : "";
}

/* Answers with the current exception. */
static void fail(serving *s, phase at)
{
    far__py_state *st = s->agent->st;
    far_status status = status_of(st, at);
    PyObject *exception = far__py_take_exception();
    PyObject *parts =
        exception ? PyObject_CallFunctionObjArgs(st->describe, exception, NULL) : NULL;
    if (!parts || !PyTuple_Check(parts) || PyTuple_Size(parts) != 4)
        Py_CLEAR(parts);
    PyErr_Clear();
    far_message *payload = NULL;
    if (parts && status == FAR_EREMOTE && PyBytes_Check(PyTuple_GetItem(parts, 3)))
        payload = far__py_pickled(st, PyTuple_GetItem(parts, 3));
    PyErr_Clear();
    const char *type_name = parts ? chars(PyTuple_GetItem(parts, 0)) : "";
    const char *text = parts ? chars(PyTuple_GetItem(parts, 1)) : "an error without words";
    const char *traceback = parts ? chars(PyTuple_GetItem(parts, 2)) : "";
    Py_BEGIN_ALLOW_THREADS
    far_incoming_fail(s->call, status, type_name, text, traceback, payload);
    Py_END_ALLOW_THREADS
    Py_XDECREF(parts);
    Py_XDECREF(exception);
}

static void detach(serving *s)
{
    serving_now = s->outer;
    if (s->object) {
        s->object->call = NULL;
        Py_CLEAR(s->object);
    }
}

/* The reply, or NULL with an exception set. */
static far_message *run(serving *s, phase *at)
{
    request r = {0};
    const char *method = far_incoming_method(s->call);
    far_message *message = far_incoming_take_message(s->call);
    int rc = read_request(s->agent->st, method, message, at, &r);
    far_message_discard(message);
    far_message *reply = NULL;
    if (rc == 0) {
        *at = PHASE_RUN;
        PyObject *value = PyObject_Call(r.func, r.args, r.kwargs);
        far_encoding encoding = r.encoding;
        request_clear(&r);
        if (value) {
            *at = PHASE_ANSWER;
            reply = pack_result(s, method, encoding, value);
            Py_DECREF(value);
        }
    }
    request_clear(&r);
    return reply;
}

void far__py_serve(far_incoming *call, void *arg)
{
    far__py_agent *agent = arg;
    PyGILState_STATE gil = far__py_enter();
    serving s = {.agent = agent, .call = call, .outer = serving_now};
    phase at = PHASE_FIND;
    serving_now = &s;
    agent->inside++;
    far_message *reply = run(&s, &at);
    detach(&s);
    if (!reply)
        fail(&s, at);
    agent->inside--;
    far__py_leave(gil);
    if (reply)
        far_incoming_reply(call, reply);
}

/* ---- current_call() */

far__py_agent *far__py_serving_agent(void)
{
    return serving_now ? serving_now->agent : NULL;
}

far_duration far__py_current_left(void)
{
    return serving_now ? far_incoming_remaining(serving_now->call) : FAR_FOREVER;
}

PyObject *far__py_current(far__py_state *st)
{
    serving *s = serving_now;
    if (!s) {
        PyErr_SetString(st->RpcError, "this thread serves no call now");
        return NULL;
    }
    if (!s->object) {
        PyObject *caller = far__py_worker_info(st, far_incoming_caller(s->call));
        PyObject *method = caller ? far__py_text(far_incoming_method(s->call)) : NULL;
        current_object *object = method ? PyObject_New(current_object, st->current_type) : NULL;
        if (!object) {
            Py_XDECREF(method);
            Py_XDECREF(caller);
            return NULL;
        }
        object->st = st;
        object->call = s->call;
        object->caller = caller;
        object->method = method;
        s->object = object;
    }
    return Py_NewRef((PyObject *)s->object);
}

static far_incoming *call_of(PyObject *self)
{
    current_object *current = (current_object *)self;
    if (!current->call)
        PyErr_SetString(current->st->RpcError, "this call has been answered");
    return current->call;
}

static PyObject *current_remaining(PyObject *self, PyObject *none)
{
    (void)none;
    far_incoming *call = call_of(self);
    if (!call)
        return NULL;
    far_duration left = far_incoming_remaining(call);
    if (left == FAR_FOREVER)
        Py_RETURN_NONE;
    /* Never 0, which would mean "no limit" to a nested call that is given this. */
    return PyFloat_FromDouble(left > 0 ? (double)left / 1e9 : 1e-9);
}

static PyObject *current_cancelled(PyObject *self, PyObject *none)
{
    (void)none;
    far_incoming *call = call_of(self);
    return call ? PyBool_FromLong(far_incoming_cancelled(call)) : NULL;
}

static PyObject *current_closing(PyObject *self, PyObject *none)
{
    (void)none;
    far_incoming *call = call_of(self);
    return call ? PyBool_FromLong(far_incoming_closing(call)) : NULL;
}

static PyObject *current_caller(PyObject *self, void *closure)
{
    (void)closure;
    return Py_NewRef(((current_object *)self)->caller);
}

static PyObject *current_method(PyObject *self, void *closure)
{
    (void)closure;
    return Py_NewRef(((current_object *)self)->method);
}

static void current_dealloc(PyObject *object)
{
    current_object *self = (current_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    Py_XDECREF(self->caller);
    Py_XDECREF(self->method);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyMethodDef current_methods[] = {
    {"remaining", current_remaining, METH_NOARGS,
     "Seconds left of the caller's limit (never 0: what is over gives 1e-9); None if it gave "
     "none."},
    {"cancelled", current_cancelled, METH_NOARGS,
     "Has the caller given up (cancel, timeout, loss)? An answer would be dropped."},
    {"closing", current_closing, METH_NOARGS,
     "Has every worker asked for shutdown? A service loop should return then."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef current_getset[] = {
    {"caller", current_caller, NULL, "WorkerInfo of the caller.", NULL},
    {"method", current_method, NULL, "The name under which the function was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot current_slots[] = {
    {Py_tp_doc, "The call that a handler serves; see current_call()."},
    {Py_tp_dealloc, current_dealloc},
    {Py_tp_methods, current_methods},
    {Py_tp_getset, current_getset},
    {0, NULL},
};

PyType_Spec far__py_current_spec = {
    .name = "farcall._farcall.CurrentCall",
    .basicsize = sizeof(current_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = current_slots,
};
