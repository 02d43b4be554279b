/* SPDX-License-Identifier: BSD-3-Clause
 * errors: far_status and far_failure to the exceptions of farcall/errors.py.
 * Floor: Python. Thread: with the GIL. */
#include "farpy.h"

#include <string.h>

static PyObject *class_of(far__py_state *st, far_status status)
{
    switch (status) {
    case FAR_EINVAL: return PyExc_ValueError;
    case FAR_ENOMEM: return PyExc_MemoryError;
    case FAR_ECLOSED: return st->AgentClosedError;
    case FAR_ENOWORKER: return st->UnknownWorkerError;
    case FAR_ENOMETHOD: return st->UnknownFunctionError;
    case FAR_EVALUE:
    case FAR_ETOOBIG: return st->SerializationError;
    case FAR_EAGAIN: return st->BackpressureError;
    case FAR_ETIMEOUT: return st->RpcTimeoutError;
    case FAR_ECANCELED: return st->RpcCancelledError;
    case FAR_EPEER: return st->WorkerLostError;
    case FAR_EAUTH: return st->AuthenticationError;
    case FAR_EVERSION: return st->VersionError;
    case FAR_EREMOTE: return st->RemoteError;
    case FAR_OK:
    case FAR_EBUSY:
    case FAR_EUNSUPPORTED:
    case FAR_EINTR:
    case FAR_EPROTO:
    case FAR_ESYSTEM: break;
    }
    return st->RpcError;
}

PyObject *far__py_text(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *far__py_raise(far__py_state *st, far_status status, const char *text)
{
    PyObject *shown = far__py_text(text && *text ? text : far_status_text(status));
    if (shown)
        PyErr_SetObject(class_of(st, status), shown);
    Py_XDECREF(shown);
    return NULL;
}

PyObject *far__py_raise_error(far__py_state *st, const far_error *error)
{
    return far__py_raise(st, error->status, error->text);
}

PyObject *far__py_take_exception(void)
{
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback && value)
        PyException_SetTraceback(value, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return value;
}

void far__py_put_exception(PyObject *exception)
{
    PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_DECREF(exception);
}

PyObject *far__py_unsendable(far__py_state *st, const char *what, PyObject *name, const char *verb)
{
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) ||
        PyErr_ExceptionMatches(PyExc_MemoryError) || PyErr_ExceptionMatches(st->RpcError))
        return NULL;
    PyObject *cause = far__py_take_exception();
    PyObject *kind = cause ? PyType_GetName(Py_TYPE(cause)) : NULL;
    PyObject *text = cause ? PyObject_Str(cause) : NULL;
    if (!text) { /* its __str__ is foreign code as well */
        PyErr_Clear();
        text = PyUnicode_FromString("no text");
    }
    if (kind && text && name)
        PyErr_Format(st->SerializationError, "%s %S cannot be %s: %U: %U", what, name, verb, kind,
                     text);
    else if (kind && text)
        PyErr_Format(st->SerializationError, "%s cannot be %s: %U: %U", what, verb, kind, text);
    Py_XDECREF(text);
    Py_XDECREF(kind);
    PyObject *error = far__py_take_exception();
    if (error)
        PyException_SetCause(error, cause);
    else
        Py_XDECREF(cause);
    if (error)
        far__py_put_exception(error);
    return NULL;
}

/* The worker as far as it is still known; new reference. */
static PyObject *failed_worker(far__py_agent *agent, far_worker_id id)
{
    far_worker worker = {.id = id};
    if (far_agent_worker(agent->ref, id, &worker, NULL) != FAR_OK) {
        worker.id = id;
        worker.name[0] = '\0';
    }
    return far__py_worker_info(agent->st, &worker);
}

/* What came out of the handler, its type kept where that is possible. */
static PyObject *remote_error(far__py_agent *agent, const far_failure *failure, PyObject *worker)
{
    far__py_state *st = agent->st;
    PyObject *payload = NULL;
    if (failure->payload && far_message_encoding(failure->payload) == FAR_ENCODING_PICKLE) {
        payload = far__py_unpickle(agent, failure->payload);
        if (!payload && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt))
            return NULL;
        PyErr_Clear(); /* the text is there all the same */
    }
    PyObject *type_name = far__py_text(failure->type_name);
    PyObject *text = far__py_text(failure->text);
    PyObject *traceback = far__py_text(failure->traceback);
    PyObject *error = NULL;
    if (type_name && text && traceback)
        error = PyObject_CallFunctionObjArgs(st->rebuild, worker, payload ? payload : Py_None,
                                             type_name, text, traceback, NULL);
    Py_XDECREF(traceback);
    Py_XDECREF(text);
    Py_XDECREF(type_name);
    Py_XDECREF(payload);
    return error;
}

/* Takes `text`. */
static PyObject *timeout_error(far__py_state *st, PyObject *text, far_duration packing)
{
    PyObject *seconds = PyFloat_FromDouble((double)packing / 1e9);
    PyObject *whole = NULL;
    if (seconds)
        whole = packing > 0 ? PyUnicode_FromFormat("%U (packing the arguments had taken %S s more)",
                                                   text, seconds)
                            : Py_NewRef(text);
    Py_XDECREF(seconds);
    Py_DECREF(text);
    if (!whole)
        return NULL;
    PyObject *error = PyObject_CallFunctionObjArgs(st->RpcTimeoutError, whole, NULL);
    Py_DECREF(whole);
    return error;
}

/* Takes `text`. */
static PyObject *lost_error(far__py_agent *agent, PyObject *text, const far_failure *failure)
{
    PyObject *worker = failed_worker(agent, failure->worker);
    PyObject *error = NULL;
    if (worker)
        error = PyObject_CallFunctionObjArgs(agent->st->lost, text, worker,
                                             failure->may_have_run ? Py_True : Py_False, NULL);
    Py_XDECREF(worker);
    Py_DECREF(text);
    return error;
}

PyObject *far__py_failure(far__py_agent *agent, const far_future *future, far_duration packing)
{
    far_failure failure;
    far_future_failure(future, &failure);
    if (failure.status == FAR_EREMOTE) {
        PyObject *worker = failed_worker(agent, failure.worker);
        PyObject *error = worker ? remote_error(agent, &failure, worker) : NULL;
        Py_XDECREF(worker);
        return error;
    }
    const char *given = failure.text;
    PyObject *text = far__py_text(given && *given ? given : far_status_text(failure.status));
    if (!text)
        return NULL;
    if (failure.status == FAR_ETIMEOUT)
        return timeout_error(agent->st, text, packing);
    if (failure.status == FAR_EPEER || failure.status == FAR_EPROTO)
        return lost_error(agent, text, &failure);
    PyObject *error = PyObject_CallFunctionObjArgs(class_of(agent->st, failure.status), text, NULL);
    Py_DECREF(text);
    return error;
}
