/* SPDX-License-Identifier: BSD-3-Clause
 * service: what the service thread and the executor threads of an agent run. Floor: Python. Thread:
 * threads that Python made; they wait in C without the GIL. */
#include "farpy.h"

/* Every thread that works for an agent keeps it, so C may borrow it as an argument. */

static void start_thread(PyObject *agent)
{
    PyObject *none = PyObject_CallMethod(agent, "_start_thread", NULL);
    if (!none)
        PyErr_WriteUnraisable(agent);
    Py_XDECREF(none);
}

/* The tag is (event loop, asyncio future); it was held for this. */
static void wake_waiter(PyObject *agent, PyObject *tag)
{
    PyObject *loop = PyTuple_GetItem(tag, 0);
    PyObject *wake = PyObject_GetAttrString(agent, "_wake");
    PyObject *handle = wake ? PyObject_CallMethod(loop, "call_soon_threadsafe", "OO", wake,
                                                  PyTuple_GetItem(tag, 1))
                            : NULL;
    /* RuntimeError: that loop is closed, so nobody waits any more. */
    if (!handle && PyErr_ExceptionMatches(PyExc_RuntimeError))
        PyErr_Clear();
    else if (!handle)
        PyErr_WriteUnraisable(agent);
    Py_XDECREF(handle);
    Py_XDECREF(wake);
    Py_DECREF(tag);
}

static _Thread_local far__py_agent *service_of; /* whose service thread this is */

far__py_agent *far__py_service_agent(void)
{
    return service_of;
}

PyObject *far__py_service_run(PyObject *self, PyObject *none)
{
    far__py_agent *agent = (far__py_agent *)self;
    (void)none;
    if (!agent->ref)
        return far__py_raise(agent->st, FAR_ECLOSED, NULL);
    service_of = agent;
    for (;;) {
        far_event event;
        far_status status;
        Py_BEGIN_ALLOW_THREADS
        status = far_service_next(agent->ref, &event);
        Py_END_ALLOW_THREADS
        if (status == FAR_EINTR)
            continue;
        if (status != FAR_OK)
            return far__py_raise(agent->st, status, NULL);
        switch (event.kind) {
        case FAR_EVENT_START_THREAD: start_thread(self); break;
        case FAR_EVENT_RELEASE: event.fn(event.arg); break;
        case FAR_EVENT_FUTURE_DONE: wake_waiter(self, event.arg); break;
        case FAR_EVENT_STOP: Py_RETURN_NONE;
        }
    }
}

PyObject *far__py_executor_run(PyObject *self, PyObject *none)
{
    far__py_agent *agent = (far__py_agent *)self;
    (void)none;
    far_status status;
    if (!agent->ref)
        return far__py_raise(agent->st, FAR_ECLOSED, NULL);
    far__py_mark_thread(agent);
    Py_BEGIN_ALLOW_THREADS
    status = far_executor_enter(agent->ref);
    Py_END_ALLOW_THREADS
    if (status != FAR_OK && status != FAR_ECLOSED)
        return far__py_raise(agent->st, status, NULL);
    Py_RETURN_NONE;
}
