/* SPDX-License-Identifier: BSD-3-Clause
 * answer: how calls served here end: a value to a reply or to a kept value, an exception to an error;
 * now, or once a future or a task of the event loop has ended. Floor: Python. Thread: with the GIL,
 * unless said otherwise; executor threads and the thread of the event loop. */
#include "farpy.h"

/* ---- packing */

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

static far_message *pack_value(const far__py_answer *a, far_encoding encoding, const char *what,
                               PyObject *name, PyObject *value)
{
    far__py_state *st = a->agent->st;
    bool to_self = far_incoming_caller(a->call)->id == far__py_self(a->agent)->id;
    const far__py_pack pack = {.what = what, .name = name, .copy = to_self};
    if (encoding == FAR_ENCODING_PICKLE)
        return far__py_pickle(st, value, &pack);
    if (encoding == FAR_ENCODING_VALUES)
        return far__py_values_result(st, value, &pack);
    far_message *message = raw_result(st, value);
    if (!message)
        far__py_unsendable(st, pack.what, name, "sent");
    return message;
}

int far__py_answer_pack(const far__py_answer *a, PyObject *value, far__py_outcome *out)
{
    *out = (far__py_outcome){NULL, NULL};
    if (far_incoming_is_remote(a->call)) {
        out->kept = Py_NewRef(value);
        return 0;
    }
    PyObject *name = PyUnicode_FromFormat("'%s' at worker '%s'", far_incoming_method(a->call),
                                          far__py_self(a->agent)->name);
    if (!name)
        return -1;
    out->reply = pack_value(a, a->encoding, "the result of", name, value);
    Py_DECREF(name);
    return out->reply ? 0 : -1;
}

far_message *far__py_answer_fetched(const far__py_answer *a, PyObject *value)
{
    static const char what[] = "the value of";
    PyObject *name =
        PyUnicode_FromFormat("a reference to worker '%s'", far__py_self(a->agent)->name);
    if (!name)
        return NULL;
    far_message *message = pack_value(a, a->encoding, what, name, value);
    /* What values cannot say goes as a pickle, which the caller can tell by its encoding. */
    if (!message && a->encoding != FAR_ENCODING_PICKLE && PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear();
        message = pack_value(a, FAR_ENCODING_PICKLE, what, name, value);
    }
    Py_DECREF(name);
    return message;
}

/* ---- answering */

far_incoming *far__py_answer_detach(far__py_answer *a)
{
    far_incoming *call = a->call;
    a->call = NULL;
    if (a->current) {
        far__py_current_answered(a->current);
        Py_CLEAR(a->current);
    }
    return call;
}

void far__py_answer_give(far_incoming *call, const far__py_outcome *outcome)
{
    if (outcome->kept)
        far_incoming_keep(call, outcome->kept, far__py_drop_value);
    else
        far_incoming_reply(call, outcome->reply);
}

static far_status status_of(far__py_state *st, far__py_phase at)
{
    if (at == FAR__PY_FIND && PyErr_ExceptionMatches(st->UnknownFunctionError))
        return FAR_ENOMETHOD;
    if (at == FAR__PY_PACK && PyErr_ExceptionMatches(st->SerializationError))
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

void far__py_answer_fail(far__py_answer *a, far__py_phase at)
{
    far__py_state *st = a->agent->st;
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
    far_incoming *call = far__py_answer_detach(a);
    Py_BEGIN_ALLOW_THREADS
    far_incoming_fail(call, status, type_name, text, traceback, payload);
    Py_END_ALLOW_THREADS
    Py_XDECREF(parts);
    Py_XDECREF(exception);
}

/* Answers with `value`, or with the current exception for NULL. */
static void answer_now(far__py_answer *a, PyObject *value)
{
    far__py_outcome outcome;
    if (!value) {
        far__py_answer_fail(a, FAR__PY_RUN);
        return;
    }
    if (far__py_answer_pack(a, value, &outcome) < 0) {
        far__py_answer_fail(a, FAR__PY_PACK);
        return;
    }
    far_incoming *call = far__py_answer_detach(a);
    Py_BEGIN_ALLOW_THREADS
    far__py_answer_give(call, &outcome);
    Py_END_ALLOW_THREADS
}

/* ---- by a future */

typedef struct far__py_later {
    far__py_answer answer; /* holds the agent */
    far__py_future *future;
    struct far__py_later *prev, *next; /* in the agent's list */
} later;

static void later_free(later *l)
{
    far__py_agent *agent = l->answer.agent;
    if (l->prev)
        l->prev->next = l->next;
    else
        agent->laters = l->next;
    if (l->next)
        l->next->prev = l->prev;
    Py_DECREF((PyObject *)l->future);
    PyMem_Free(l);
    Py_DECREF((PyObject *)agent);
}

/* On an executor thread without the GIL. */
static void future_ended(far_future *ref, void *arg)
{
    (void)ref;
    later *l = arg;
    PyGILState_STATE gil = far__py_enter();
    far__py_agent *agent = l->answer.agent;
    agent->inside++;
    PyObject *value = far__py_future_value(l->future);
    answer_now(&l->answer, value);
    Py_XDECREF(value);
    agent->inside--;
    later_free(l);
    far__py_leave(gil);
}

int far__py_answer_by_future(far__py_answer *a, far__py_future *future)
{
    far__py_agent *agent = a->agent;
    later *l = PyMem_Malloc(sizeof *l);
    if (!l) {
        PyErr_NoMemory();
        return -1;
    }
    *l = (later){.answer = *a, .future = future, .next = agent->laters};
    Py_INCREF((PyObject *)future);
    Py_INCREF((PyObject *)agent);
    if (l->next)
        l->next->prev = l;
    agent->laters = l;
    *a = (far__py_answer){.agent = agent};
    far_status status;
    Py_BEGIN_ALLOW_THREADS
    status = far_future_on_done(future->ref, future_ended, l, 0);
    Py_END_ALLOW_THREADS
    if (status == FAR_OK)
        return 0;
    *a = l->answer;
    later_free(l);
    far__py_raise(agent->st, status, NULL);
    return -1;
}

void far__py_laters_cancel(far__py_agent *agent)
{
    /* The end of each takes it off the list, here or on another thread. */
    later *l = agent->laters;
    size_t count = 0;
    for (; l; l = l->next)
        count++;
    far_future **refs = count > 0 ? PyMem_Malloc(count * sizeof(far_future *)) : NULL;
    if (!refs)
        return;
    size_t i = 0;
    for (l = agent->laters; l; l = l->next)
        refs[i++] = far_future_hold(l->future->ref);
    Py_BEGIN_ALLOW_THREADS
    for (i = 0; i < count; i++) {
        (void)far_future_cancel(refs[i]);
        far_future_release(refs[i]);
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(refs);
}

/* ---- by a task */

/* Answers when it is called with the task, which has ended; with an error if it never is. */
typedef struct answer_object {
    PyObject_HEAD
    far__py_answer answer; /* holds the agent */
} answer_object;

int far__py_answer_by_task(far__py_answer *a, PyObject *coroutine)
{
    far__py_agent *agent = a->agent;
    PyObject *current = far__py_current_of(a);
    answer_object *object = current ? PyObject_New(answer_object, agent->st->answer_type) : NULL;
    if (!object)
        return -1;
    object->answer = *a;
    Py_INCREF((PyObject *)agent);
    *a = (far__py_answer){.agent = agent};
    PyObject *done = PyObject_CallMethod((PyObject *)agent, "_spawn", "OOO", coroutine,
                                         (PyObject *)object, current);
    if (!done) {
        *a = object->answer;
        object->answer.call = NULL;
        object->answer.current = NULL;
    }
    Py_DECREF((PyObject *)object);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *answer_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    far__py_answer *a = &((answer_object *)object)->answer;
    PyObject *task;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O:answer", &task))
        return NULL;
    if (!a->call)
        Py_RETURN_NONE;
    PyObject *value = PyObject_CallMethod(task, "result", NULL);
    answer_now(a, value);
    Py_XDECREF(value);
    Py_RETURN_NONE;
}

static void answer_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    far__py_answer *a = &((answer_object *)object)->answer;
    if (a->call) {
        PyObject *error = far__py_take_exception(); /* of whoever drops this */
        far__py_raise(a->agent->st, FAR_ECLOSED, "the event loop of the worker was stopped");
        far__py_answer_fail(a, FAR__PY_RUN);
        if (error)
            far__py_put_exception(error);
    }
    Py_XDECREF(a->current);
    Py_DECREF((PyObject *)a->agent);
    PyObject_Free(object);
    Py_DECREF(type);
}

static PyType_Slot answer_slots[] = {
    {Py_tp_doc, "Answers a call with what a task has ended with."},
    {Py_tp_dealloc, answer_dealloc},
    {Py_tp_call, answer_call},
    {0, NULL},
};

PyType_Spec far__py_answer_spec = {
    .name = "farcall._farcall.Answer",
    .basicsize = sizeof(answer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = answer_slots,
};
