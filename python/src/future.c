/* SPDX-License-Identifier: BSD-3-Clause
 * future: the type Future around a far_future: the result of rpc_async, of then(), or one that its
 * holder completes. Floor: Python. Thread: with the GIL; callbacks come on executor threads. */
#include "farpy.h"

#include <structmember.h>

static far__py_future *self_of(PyObject *object)
{
    return (far__py_future *)object;
}

PyObject *far__py_future_new(far__py_agent *agent, far_future *ref)
{
    far__py_future *self = PyObject_GC_New(far__py_future, agent->st->future_type);
    if (!self) {
        far_future_release(ref);
        return NULL;
    }
    self->st = agent->st;
    self->agent = (far__py_agent *)Py_NewRef((PyObject *)agent);
    self->ref = ref;
    self->value = NULL;
    self->error = NULL;
    self->readers = 0;
    self->settable = false;
    self->claimed = false;
    self->packing = 0;
    self->weakrefs = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

far__py_future *far__py_future_made(far__py_state *st, far__py_agent *agent)
{
    far_future *ref;
    if (!agent->ref || agent->closed) {
        far__py_raise(st, FAR_ECLOSED, "this agent was shut down");
        return NULL;
    }
    far_status status = far_future_create(agent->ref, &ref);
    if (status != FAR_OK) {
        far__py_raise(st, status, NULL);
        return NULL;
    }
    far__py_future *self = (far__py_future *)far__py_future_new(agent, ref);
    if (self)
        self->settable = true;
    return self;
}

/* ---- the result */

PyObject *far__py_result(far__py_agent *agent, far_future *ref, far_duration packing)
{
    far_message *message = far_future_message(ref);
    if (message) {
        PyObject *value = far__py_read_result(agent, message);
        if (!value)
            far__py_unsendable(agent->st, "the result of a call", NULL, "read");
        return value;
    }
    PyObject *error = far__py_failure(agent, ref, packing);
    if (error)
        far__py_put_exception(error);
    return NULL;
}

/* Reads the result for all who ask later. Reading runs foreign code, so several threads may be in here
 * for one future: the first to finish is the one that counts, the last to leave frees the message. */
static void read_once(far__py_future *self)
{
    self->readers++;
    PyObject *value = far__py_result(self->agent, self->ref, self->packing);
    self->readers--;
    if (value) {
        if (self->value || self->error)
            Py_DECREF(value);
        else
            self->value = value;
    } else if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyObject *error = far__py_take_exception();
        if (self->value || self->error)
            Py_XDECREF(error);
        else
            self->error = error;
    }
    if (self->readers == 0 && (self->value || self->error))
        far_message_discard(far_future_take_message(self->ref));
}

PyObject *far__py_future_value(far__py_future *self)
{
    far_status status = far_future_status(self->ref);
    if (status == FAR_EAGAIN) {
        PyErr_SetString(self->st->RpcError, "the call has not ended yet");
        return NULL;
    }
    if (!self->value && !self->error)
        read_once(self);
    if (self->value)
        return Py_NewRef(self->value);
    if (self->error)
        PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
    return NULL;
}

static int wait_limited(far__py_future *self, PyObject *timeout)
{
    far_duration limit;
    if (far__py_limit(self->st, timeout, &far__py_limit_wait, &limit) < 0)
        return -1;
    int rc = far__py_wait(self->ref, limit);
    if (rc == 1) {
        PyErr_Format(self->st->RpcTimeoutError,
                     "waited %S s for a call that has not ended (the call goes on)", timeout);
        return -1;
    }
    return rc;
}

static PyObject *timeout_argument(PyObject *args, PyObject *kwargs, const char *format)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    return PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &timeout) ? timeout : NULL;
}

static PyObject *future_wait(PyObject *object, PyObject *args, PyObject *kwargs)
{
    PyObject *timeout = timeout_argument(args, kwargs, "|O:wait");
    if (!timeout || wait_limited(self_of(object), timeout) < 0)
        return NULL;
    return far__py_future_value(self_of(object));
}

static PyObject *future_exception(PyObject *object, PyObject *args, PyObject *kwargs)
{
    PyObject *timeout = timeout_argument(args, kwargs, "|O:exception");
    if (!timeout || wait_limited(self_of(object), timeout) < 0)
        return NULL;
    PyObject *value = far__py_future_value(self_of(object));
    if (value) {
        Py_DECREF(value);
        Py_RETURN_NONE;
    }
    if (!self_of(object)->error)
        return NULL;
    PyErr_Clear();
    return Py_NewRef(self_of(object)->error);
}

static PyObject *future_value(PyObject *object, PyObject *none)
{
    (void)none;
    return far__py_future_value(self_of(object));
}

static PyObject *future_done(PyObject *object, PyObject *none)
{
    (void)none;
    return PyBool_FromLong(far_future_done(self_of(object)->ref));
}

static PyObject *future_cancelled(PyObject *object, PyObject *none)
{
    (void)none;
    return PyBool_FromLong(far_future_status(self_of(object)->ref) == FAR_ECANCELED);
}

static PyObject *future_cancel(PyObject *object, PyObject *none)
{
    (void)none;
    far_future *ref = self_of(object)->ref;
    bool did;
    Py_BEGIN_ALLOW_THREADS
    did = far_future_cancel(ref);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(did);
}

/* ---- completed by its holder */

static int claim(far__py_future *self)
{
    if (!self->settable) {
        PyErr_SetString(self->st->RpcError,
                        "only a future made by Future() is completed by its holder");
        return -1;
    }
    if (self->claimed || far_future_done(self->ref)) {
        PyErr_SetString(self->st->RpcError, "this future has ended already");
        return -1;
    }
    self->claimed = true;
    return 0;
}

/* `taken`: did the library take the result, or had the future ended meanwhile? */
static PyObject *settled(far__py_future *self, bool taken)
{
    if (taken)
        Py_RETURN_NONE;
    Py_CLEAR(self->value);
    Py_CLEAR(self->error);
    PyErr_SetString(self->st->RpcError, "this future has ended already");
    return NULL;
}

static PyObject *future_set_result(PyObject *object, PyObject *value)
{
    far__py_future *self = self_of(object);
    far_message *message;
    if (claim(self) < 0)
        return NULL;
    far_status status = far_message_create(FAR_ENCODING_RAW, &message);
    if (status != FAR_OK) {
        self->claimed = false;
        return far__py_raise(self->st, status, NULL);
    }
    self->value = Py_NewRef(value);
    return settled(self, far_future_complete(self->ref, message));
}

static PyObject *future_set_exception(PyObject *object, PyObject *given)
{
    far__py_future *self = self_of(object);
    PyObject *error = PyType_Check(given) ? PyObject_CallNoArgs(given) : Py_NewRef(given);
    if (!error)
        return NULL;
    if (!PyObject_TypeCheck(error, (PyTypeObject *)PyExc_BaseException)) {
        PyErr_Format(PyExc_TypeError, "set_exception() takes an exception, not %R", given);
        Py_DECREF(error);
        return NULL;
    }
    if (claim(self) < 0) {
        Py_DECREF(error);
        return NULL;
    }
    self->error = error;
    return settled(self, far_future_fail(self->ref, FAR_EREMOTE, "failed by its holder"));
}

/* ---- callbacks */

typedef struct reaction {
    far__py_future *future, *child; /* child: what then() gave back, or NULL */
    PyObject *fn;
} reaction;

static void reaction_free(reaction *r)
{
    Py_DECREF((PyObject *)r->future);
    Py_XDECREF((PyObject *)r->child);
    Py_DECREF(r->fn);
    PyMem_Free(r);
}

/* Gives the child what the callback returned or raised. */
static void feed_child(reaction *r, PyObject *value)
{
    PyObject *done;
    if (value) {
        done = future_set_result((PyObject *)r->child, value);
    } else {
        PyObject *error = far__py_take_exception();
        done = error ? future_set_exception((PyObject *)r->child, error) : NULL;
        Py_XDECREF(error);
    }
    Py_XDECREF(done);
    PyErr_Clear(); /* the child was cancelled, or its agent is closed: nobody is left to tell */
}

static void react(far_future *ref, void *arg)
{
    (void)ref;
    reaction *r = arg;
    PyGILState_STATE gil = far__py_enter();
    far__py_agent *agent = r->future->agent;
    Py_INCREF((PyObject *)agent);
    agent->inside++;
    PyObject *value = PyObject_CallFunctionObjArgs(r->fn, (PyObject *)r->future, NULL);
    if (r->child)
        feed_child(r, value);
    else if (!value)
        PyErr_WriteUnraisable(r->fn);
    Py_XDECREF(value);
    reaction_free(r);
    agent->inside--;
    Py_DECREF((PyObject *)agent);
    far__py_leave(gil);
}

static int add_reaction(far__py_future *self, PyObject *fn, far__py_future *child)
{
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError, "a callback is a callable, not %R", fn);
        return -1;
    }
    reaction *r = PyMem_Malloc(sizeof *r);
    if (!r) {
        PyErr_NoMemory();
        return -1;
    }
    *r = (reaction){.future = (far__py_future *)Py_NewRef((PyObject *)self),
                    .child = (far__py_future *)Py_XNewRef((PyObject *)child),
                    .fn = Py_NewRef(fn)};
    far_status status;
    Py_BEGIN_ALLOW_THREADS
    status = far_future_on_done(self->ref, react, r, 0);
    Py_END_ALLOW_THREADS
    if (status == FAR_OK)
        return 0;
    reaction_free(r);
    far__py_raise(self->st, status, NULL);
    return -1;
}

static PyObject *future_add_done_callback(PyObject *object, PyObject *fn)
{
    if (add_reaction(self_of(object), fn, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *future_then(PyObject *object, PyObject *fn)
{
    far__py_future *self = self_of(object);
    far__py_future *child = far__py_future_made(self->st, self->agent);
    if (child && add_reaction(self, fn, child) < 0)
        Py_CLEAR(child);
    return (PyObject *)child;
}

/* ---- asyncio */

/* Puts a tag on the agent's service queue once the call has ended; see service.c. */
static PyObject *future_notify(PyObject *object, PyObject *args)
{
    PyObject *loop, *waiter;
    if (!PyArg_ParseTuple(args, "OO:_notify", &loop, &waiter))
        return NULL;
    PyObject *tag = PyTuple_Pack(2, loop, waiter);
    if (!tag)
        return NULL;
    far_status status;
    Py_BEGIN_ALLOW_THREADS
    status = far_future_notify(self_of(object)->ref, tag);
    Py_END_ALLOW_THREADS
    if (status == FAR_OK)
        Py_RETURN_NONE;
    Py_DECREF(tag);
    return far__py_raise(self_of(object)->st, status, NULL);
}

static PyObject *future_await(PyObject *object)
{
    return PyObject_CallFunctionObjArgs(self_of(object)->st->waits, object, NULL);
}

/* ---- the type */

static PyObject *future_reduce(PyObject *object, PyObject *none)
{
    (void)object;
    (void)none;
    PyErr_SetString(PyExc_TypeError,
                    "a Future cannot be pickled: wait for it and send its value (a function that "
                    "returns one is marked by farcall.functions.async_execution)");
    return NULL;
}

static PyObject *future_generic(PyObject *type, PyObject *item)
{
    return Py_GenericAlias(type, item);
}

static PyObject *future_repr(PyObject *object)
{
    far_status status = far_future_status(self_of(object)->ref);
    const char *state = status == FAR_EAGAIN ? "pending"
                        : status == FAR_OK   ? "done"
                                             : far_status_text(status);
    return PyUnicode_FromFormat("<farcall.Future at %p: %s>", (void *)object, state);
}

static int future_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)self_of(object)->agent);
    Py_VISIT(self_of(object)->value);
    Py_VISIT(self_of(object)->error);
    return 0;
}

static int future_clear(PyObject *object)
{
    Py_CLEAR(self_of(object)->value);
    Py_CLEAR(self_of(object)->error);
    return 0;
}

static void future_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    far__py_future *self = self_of(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs)
        PyObject_ClearWeakRefs(object);
    (void)future_clear(object);
    far_future_release(self->ref);
    Py_CLEAR(self->agent);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *future_create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"agent", NULL};
    PyObject *given = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Future", names, &given))
        return NULL;
    far__py_state *st = PyType_GetModuleState(type);
    if (!st)
        return NULL;
    far__py_agent *agent;
    if (given == Py_None) {
        agent = far__py_default_agent(st);
    } else if (PyObject_TypeCheck(given, st->agent_type)) {
        agent = (far__py_agent *)Py_NewRef(given);
    } else {
        PyErr_Format(PyExc_TypeError, "an Agent is needed, not %R", given);
        return NULL;
    }
    PyObject *self = agent ? (PyObject *)far__py_future_made(st, agent) : NULL;
    Py_XDECREF((PyObject *)agent);
    return self;
}

static PyMethodDef future_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))future_wait, METH_VARARGS | METH_KEYWORDS,
     "wait($self, /, timeout=None)\n--\n\nThe result of the call; raises its error. `timeout` "
     "limits "
     "this wait only (0 polls, None is no limit): RpcTimeoutError then, and the call goes on."},
    {"result", (PyCFunction)(void (*)(void))future_wait, METH_VARARGS | METH_KEYWORDS,
     "result($self, /, timeout=None)\n--\n\nThe same as wait()."},
    {"exception", (PyCFunction)(void (*)(void))future_exception, METH_VARARGS | METH_KEYWORDS,
     "exception($self, /, timeout=None)\n--\n\nWaits as wait() does; the error of the call or "
     "None."},
    {"value", future_value, METH_NOARGS,
     "value($self, /)\n--\n\nThe result of a call that has ended; RpcError if it has not."},
    {"done", future_done, METH_NOARGS, "done($self, /)\n--\n\nHas the call ended, well or not?"},
    {"cancelled", future_cancelled, METH_NOARGS,
     "cancelled($self, /)\n--\n\nWas the call cancelled by cancel()?"},
    {"cancel", future_cancel, METH_NOARGS,
     "cancel($self, /)\n--\n\nEnds the call with RpcCancelledError unless it has ended; the worker "
     "is "
     "told. True if it did."},
    {"set_result", future_set_result, METH_O,
     "set_result($self, value, /)\n--\n\nCompletes a future that was made by Future()."},
    {"set_exception", future_set_exception, METH_O,
     "set_exception($self, error, /)\n--\n\nFails a future that was made by Future()."},
    {"add_done_callback", future_add_done_callback, METH_O,
     "add_done_callback($self, callback, /)\n--\n\nCalls callback(self) on a handler thread once "
     "the "
     "call has ended, at once here if it has. What it raises is reported and stops nothing."},
    {"then", future_then, METH_O,
     "then($self, callback, /)\n--\n\nA new future for what callback(self) returns or raises once "
     "this "
     "one has ended, well or not."},
    {"_notify", future_notify, METH_VARARGS, NULL},
    {"__class_getitem__", future_generic, METH_O | METH_CLASS, NULL},
    {"__reduce__", future_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef future_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(far__py_future, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot future_slots[] = {
    {Py_tp_doc,
     "Future(agent=None)\n--\n\nThe result of a call, once it is there. rpc_async() gives "
     "one; Future() makes one that its holder completes."},
    {Py_tp_new, future_create},
    {Py_tp_dealloc, future_dealloc},
    {Py_tp_traverse, future_traverse},
    {Py_tp_clear, future_clear},
    {Py_tp_repr, future_repr},
    {Py_tp_methods, future_methods},
    {Py_tp_members, future_members},
    {Py_am_await, future_await},
    {0, NULL},
};

PyType_Spec far__py_future_spec = {
    .name = "farcall._farcall.Future",
    .basicsize = sizeof(far__py_future),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = future_slots,
};
