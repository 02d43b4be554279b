/* SPDX-License-Identifier: BSD-3-Clause
 * handler: serves calls in Python: finds the function, reads the arguments, calls; and current_call().
 * Floor: Python. Thread: executor threads, which Python made; one taking of the GIL a call that goes
 * well. */
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
    far__py_answer *answer;
    struct serving *outer;
} serving;

static _Thread_local serving *serving_now;
static _Thread_local far__py_agent *loop_of; /* whose event loop this thread runs */

/* ---- request */

typedef struct request {
    PyObject *func, *args, *kwargs; /* owned; kwargs NULL if none */
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

static int read_request(far__py_agent *agent, const char *method, far_message *message,
                        far__py_phase *at, request *r)
{
    far__py_state *st = agent->st;
    bool by_value = strcmp(method, "py:value") == 0;
    *at = FAR__PY_FIND;
    if (!by_value) {
        r->func = far__py_function(st, method);
        if (!r->func)
            return -1;
    }
    *at = FAR__PY_READ;
    far_encoding encoding = far_message_encoding(message);
    PyObject *payload;
    if (encoding == FAR_ENCODING_PICKLE)
        payload = far__py_unpickle(agent, message);
    else if (encoding == FAR_ENCODING_VALUES)
        payload = far__py_values_read_call(st, message);
    else
        payload = far__py_raw_read_call(st, message);
    if (!payload)
        return -1;
    int rc = open_payload(st, payload, by_value ? 3 : 2, r);
    Py_DECREF(payload);
    return rc;
}

/* ---- calls through references */

/* A call of rref.py's invoke(rref, name, args, kwargs) becomes one of the method itself. 1: the value
 * is still being made; -1: an exception is set. */
static int unwrap(far__py_state *st, request *r)
{
    PyObject *rref, *name, *args, *kwargs;
    if (!PyArg_ParseTuple(r->args, "O!UO!O!:invoke", st->rref_type, &rref, &name, &PyTuple_Type,
                          &args, &PyDict_Type, &kwargs))
        return -1;
    void *value = NULL;
    far_status status = far_rref_value(((far__py_rref *)rref)->ref, &value);
    if (status == FAR_EAGAIN)
        return 1;
    if (status != FAR_OK || !value) {
        far__py_rref_refused((far__py_rref *)rref, status != FAR_OK ? status : FAR_EVALUE);
        return -1;
    }
    PyObject *object = Py_NewRef((PyObject *)value);
    PyObject *func = PyObject_GetAttr(object, name);
    if (func && !PyCallable_Check(func)) {
        PyErr_Format(PyExc_TypeError, "%R of a %S is no method", name, (PyObject *)Py_TYPE(object));
        Py_CLEAR(func);
    }
    Py_DECREF(object);
    if (!func)
        return -1;
    request inner = {func, Py_NewRef(args), PyDict_Size(kwargs) > 0 ? Py_NewRef(kwargs) : NULL};
    request_clear(r);
    *r = inner;
    return 0;
}

/* A call that waits, without a thread, for the value of the reference that it goes through. */
typedef struct parked {
    far__py_answer answer; /* holds the agent */
    request request;
} parked;

static void resume(far_future *settled, void *arg);

/* Takes the request, and the answer unless it fails. */
static int park(far__py_answer *a, request *r)
{
    far__py_rref *rref = (far__py_rref *)PyTuple_GetItem(r->args, 0);
    far_future *settled;
    parked *p = PyMem_Malloc(sizeof *p);
    if (!p) {
        PyErr_NoMemory();
        return -1;
    }
    far_status status = far_rref_settled(rref->ref, &settled);
    if (status == FAR_OK) {
        *p = (parked){*a, *r};
        Py_INCREF((PyObject *)a->agent);
        Py_BEGIN_ALLOW_THREADS
        status = far_future_on_done(settled, resume, p, 0);
        far_future_release(settled);
        Py_END_ALLOW_THREADS
        if (status == FAR_OK) {
            *a = (far__py_answer){.agent = a->agent};
            *r = (request){NULL, NULL, NULL};
            return 0;
        }
        Py_DECREF((PyObject *)a->agent);
    }
    PyMem_Free(p);
    far__py_raise(a->agent->st, status, NULL);
    return -1;
}

/* ---- running */

/* Is it marked by functions.async_execution? Looks into the function's dict, where the mark is. */
static int is_async(far__py_state *st, PyObject *func)
{
    PyObject *inner = NULL;
    if ((PyObject *)Py_TYPE(func) == st->method_type) {
        func = inner = PyObject_GetAttr(func, st->str_func);
        if (!inner)
            return -1;
    }
    int marked = 0;
    if ((PyObject *)Py_TYPE(func) == st->function_type) {
        PyObject *dict = PyObject_GenericGetDict(func, NULL);
        marked = dict && PyDict_GetItemWithError(dict, st->str_async) != NULL;
        Py_XDECREF(dict);
    }
    Py_XDECREF(inner);
    return PyErr_Occurred() ? -1 : marked;
}

/* What the function gave back: the result, or what will give it later. The answer may be taken. */
static int take_value(far__py_answer *a, int marked, PyObject *value, far__py_phase *at,
                      far__py_outcome *out)
{
    far__py_state *st = a->agent->st;
    if ((PyObject *)Py_TYPE(value) == st->coroutine_type) {
        int rc = far__py_answer_by_task(a, value);
        if (rc < 0) { /* or Python complains that it was never awaited */
            PyObject *error = far__py_take_exception();
            PyObject *none = PyObject_CallMethod(value, "close", NULL);
            Py_XDECREF(none);
            PyErr_Clear();
            far__py_put_exception(error);
        }
        return rc;
    }
    if (marked && PyObject_TypeCheck(value, st->future_type))
        return far__py_answer_by_future(a, (far__py_future *)value);
    if (marked) {
        PyErr_Format(PyExc_TypeError,
                     "a function marked by async_execution returns a farcall.Future, but '%s' "
                     "returned a %S: %R",
                     far_incoming_method(a->call), (PyObject *)Py_TYPE(value), value);
        return -1;
    }
    *at = FAR__PY_PACK;
    return far__py_answer_pack(a, value, out);
}

/* Runs the function; the request is used up. */
static int run(far__py_answer *a, request *r, far__py_phase *at, far__py_outcome *out)
{
    far__py_state *st = a->agent->st;
    *at = FAR__PY_RUN;
    if (r->func == st->invoke) {
        int waits = unwrap(st, r);
        if (waits != 0)
            return waits < 0 ? -1 : park(a, r);
    }
    int marked = is_async(st, r->func);
    PyObject *value = marked < 0 ? NULL : PyObject_Call(r->func, r->args, r->kwargs);
    request_clear(r);
    if (!value)
        return -1;
    int rc = take_value(a, marked, value, at, out);
    Py_DECREF(value);
    return rc;
}

static int read_and_run(far__py_answer *a, far__py_phase *at, far__py_outcome *out)
{
    request r = {NULL, NULL, NULL};
    far_message *message = far_incoming_take_message(a->call);
    a->encoding = far_message_encoding(message);
    int rc = read_request(a->agent, far_incoming_method(a->call), message, at, &r);
    far_message_discard(message);
    if (rc == 0)
        rc = run(a, &r, at, out);
    request_clear(&r);
    return rc;
}

/* Ends a turn of serving; leaves the GIL, so that it is taken once a call. */
static void finish(far__py_answer *a, int rc, far__py_phase at, const far__py_outcome *outcome,
                   PyGILState_STATE gil)
{
    far_incoming *call = NULL;
    if (rc < 0)
        far__py_answer_fail(a, at);
    else
        call = far__py_answer_detach(a);
    a->agent->inside--;
    far__py_leave(gil);
    if (call)
        far__py_answer_give(call, outcome);
}

void far__py_serve(far_incoming *call, void *arg)
{
    far__py_agent *agent = arg;
    PyGILState_STATE gil = far__py_enter();
    far__py_answer answer = {.agent = agent, .call = call};
    far__py_outcome outcome = {NULL, NULL};
    far__py_phase at = FAR__PY_FIND;
    serving s = {&answer, serving_now};
    serving_now = &s;
    agent->inside++;
    int rc = read_and_run(&answer, &at, &outcome);
    serving_now = s.outer;
    finish(&answer, rc, at, &outcome, gil);
}

/* The value is there, or will never be: the call goes on. On an executor thread, without the GIL. */
static void resume(far_future *settled, void *arg)
{
    (void)settled;
    parked *p = arg;
    PyGILState_STATE gil = far__py_enter();
    far__py_agent *agent = p->answer.agent;
    far__py_answer answer = p->answer;
    far__py_outcome outcome = {NULL, NULL};
    far__py_phase at = FAR__PY_RUN;
    serving s = {&answer, serving_now};
    serving_now = &s;
    agent->inside++;
    int rc = -1;
    if (far_incoming_cancelled(answer.call))
        far__py_raise(agent->st, FAR_ECANCELED, "nobody waits for this call any more");
    else
        rc = run(&answer, &p->request, &at, &outcome);
    request_clear(&p->request);
    PyMem_Free(p);
    serving_now = s.outer;
    finish(&answer, rc, at, &outcome, gil);
    gil = far__py_enter();
    Py_DECREF((PyObject *)agent);
    far__py_leave(gil);
}

void far__py_fetch(far_incoming *call, void *arg)
{
    far__py_agent *agent = arg;
    PyGILState_STATE gil = far__py_enter();
    far__py_answer answer = {.agent = agent, .call = call};
    agent->inside++;
    PyObject *value = far_incoming_kept(call, &answer.encoding);
    far__py_outcome outcome = {NULL, NULL};
    Py_INCREF(value);
    outcome.reply = far__py_answer_fetched(&answer, value);
    Py_DECREF(value);
    finish(&answer, outcome.reply ? 0 : -1, FAR__PY_PACK, &outcome, gil);
}

/* ---- current_call() */

void far__py_mark_loop(far__py_agent *agent)
{
    loop_of = agent;
}

far__py_agent *far__py_serving_agent(void)
{
    return serving_now ? serving_now->answer->agent : loop_of;
}

/* The CurrentCall of the task that runs on this thread, borrowed (its context holds it); NULL: none. */
static current_object *current_of_task(far__py_state *st)
{
    PyObject *current = PyObject_CallFunctionObjArgs(st->task_call, NULL);
    bool found = current && PyObject_TypeCheck(current, st->current_type);
    Py_XDECREF(current);
    PyErr_Clear();
    return found ? (current_object *)current : NULL;
}

far_duration far__py_current_left(void)
{
    if (serving_now)
        return serving_now->answer->call ? far_incoming_remaining(serving_now->answer->call)
                                         : FAR_FOREVER;
    current_object *current = loop_of ? current_of_task(loop_of->st) : NULL;
    return current && current->call ? far_incoming_remaining(current->call) : FAR_FOREVER;
}

PyObject *far__py_current_of(far__py_answer *a)
{
    if (a->current)
        return a->current;
    far__py_state *st = a->agent->st;
    PyObject *caller = far__py_worker_info(st, far_incoming_caller(a->call));
    PyObject *method = caller ? far__py_text(far_incoming_method(a->call)) : NULL;
    current_object *object = method ? PyObject_New(current_object, st->current_type) : NULL;
    if (!object) {
        Py_XDECREF(method);
        Py_XDECREF(caller);
        return NULL;
    }
    object->st = st;
    object->call = a->call;
    object->caller = caller;
    object->method = method;
    a->current = (PyObject *)object;
    return a->current;
}

void far__py_current_answered(PyObject *current)
{
    ((current_object *)current)->call = NULL;
}

PyObject *far__py_current(far__py_state *st)
{
    PyObject *current = NULL;
    if (!serving_now)
        current = (PyObject *)current_of_task(st);
    else if (serving_now->answer->call)
        current = far__py_current_of(serving_now->answer);
    if (!current && !PyErr_Occurred())
        PyErr_SetString(st->RpcError, "this thread serves no call now");
    return Py_XNewRef(current);
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
