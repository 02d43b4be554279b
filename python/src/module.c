/* SPDX-License-Identifier: BSD-3-Clause
 * module: farcall._farcall itself: its state, its functions, and the guard around taking the GIL.
 * Floor: Python. Thread: with the GIL, unless said otherwise. */
#include "farpy.h"

#include <stdatomic.h>
#include <unistd.h>

static struct PyModuleDef definition;

far__py_state *far__py_state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* ---- the GIL */

static atomic_bool finished;

bool far__py_finished(void)
{
    return atomic_load_explicit(&finished, memory_order_relaxed);
}

void far__py_finish(void)
{
    atomic_store(&finished, true);
}

static _Thread_local const void *works_for; /* compared only */

void far__py_mark_thread(const far__py_agent *agent)
{
    works_for = agent;
}

PyGILState_STATE far__py_enter(void)
{
    /* The interpreter goes down: a thread of ours that comes now would find nothing it could use. */
    while (works_for && far__py_finished())
        pause();
    return PyGILState_Ensure();
}

void far__py_leave(PyGILState_STATE gil)
{
    PyGILState_Release(gil);
}

/* ---- the default agent */

far__py_agent *far__py_default_agent(far__py_state *st)
{
    PyObject *agent = st->default_agent ? st->default_agent : (PyObject *)far__py_serving_agent();
    if (agent)
        return (far__py_agent *)Py_NewRef(agent);
    if (st->no_agent)
        PyErr_SetObject(st->AgentClosedError, st->no_agent);
    else
        PyErr_SetString(st->NotInitializedError, "farcall is not initialised: call init_rpc first");
    return NULL;
}

static PyObject *set_default(PyObject *module, PyObject *args)
{
    far__py_state *st = far__py_state_of(module);
    PyObject *agent, *why;
    if (!PyArg_ParseTuple(args, "OO:_set_default", &agent, &why))
        return NULL;
    if (agent != Py_None && !PyObject_TypeCheck(agent, st->agent_type)) {
        PyErr_Format(PyExc_TypeError, "an Agent is needed, not %R", agent);
        return NULL;
    }
    PyObject *old_agent = st->default_agent, *old_why = st->no_agent;
    st->default_agent = agent == Py_None ? NULL : Py_NewRef(agent);
    st->no_agent = why == Py_None ? NULL : Py_NewRef(why);
    Py_XDECREF(old_agent);
    Py_XDECREF(old_why);
    Py_RETURN_NONE;
}

static PyObject *get_default(PyObject *module, PyObject *none)
{
    (void)none;
    return (PyObject *)far__py_default_agent(far__py_state_of(module));
}

typedef PyObject *(*rpc_function)(far__py_agent *, PyObject *const *, Py_ssize_t, PyObject *);

static PyObject *on_default(PyObject *module, rpc_function rpc, PyObject *const *args,
                            Py_ssize_t nargs, PyObject *kwnames)
{
    far__py_agent *agent = far__py_default_agent(far__py_state_of(module));
    PyObject *result = agent ? rpc(agent, args, nargs, kwnames) : NULL;
    Py_XDECREF((PyObject *)agent);
    return result;
}

static PyObject *rpc_sync(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *kwnames)
{
    return on_default(module, far__py_rpc_sync, args, nargs, kwnames);
}

static PyObject *rpc_async(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames)
{
    return on_default(module, far__py_rpc_async, args, nargs, kwnames);
}

static PyObject *remote(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames)
{
    return on_default(module, far__py_remote, args, nargs, kwnames);
}

/* ---- the rest */

static PyObject *current_call(PyObject *module, PyObject *none)
{
    (void)none;
    return far__py_current(far__py_state_of(module));
}

static PyObject *serving(PyObject *module, PyObject *agent)
{
    (void)module;
    /* A coroutine is served by the thread of the event loop. */
    return PyBool_FromLong(works_for == agent || (PyObject *)far__py_serving_agent() == agent);
}

static PyObject *read_rref(PyObject *module, PyObject *index)
{
    return far__py_read_rref(far__py_state_of(module), index);
}

static PyObject *wait_all(PyObject *module, PyObject *args)
{
    return far__py_wait_all(far__py_state_of(module), args);
}

static PyObject *collect_all(PyObject *module, PyObject *futures)
{
    return far__py_collect_all(far__py_state_of(module), futures);
}

static PyObject *seconds(PyObject *module, PyObject *timeout)
{
    far_duration limit;
    if (far__py_limit(far__py_state_of(module), timeout, &far__py_limit_plain, &limit) < 0)
        return NULL;
    return PyFloat_FromDouble((double)limit / 1e9);
}

static PyObject *memory_live(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return PyLong_FromSize_t(far_memory_live());
}

static PyObject *version(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    return PyUnicode_FromString(far_version());
}

static PyObject *finish(PyObject *module, PyObject *none)
{
    (void)module;
    (void)none;
    far__py_finish();
    Py_RETURN_NONE;
}

static PyObject *exports(PyObject *module, PyObject *none)
{
    (void)none;
    return Py_NewRef(far__py_state_of(module)->exports);
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef functions[] = {
    {"rpc_sync", FASTCALL(rpc_sync), METH_FASTCALL | METH_KEYWORDS,
     "rpc_sync(to, func, args=None, kwargs=None, timeout=None, *, copy=False)\n--\n\n"
     "Calls func(*args, **kwargs) on another worker and returns what it returns.\n\n"
     "to: the worker's name, its id or a WorkerInfo; this worker itself is allowed.\n"
     "func: any callable that pickles, or the name under which the worker exports a function.\n"
     "timeout: seconds (int, float) or a timedelta, from now to the reply; None: the default, see\n"
     "set_rpc_timeout; 0: no limit. When it runs out, RpcTimeoutError.\n"
     "What the function raises is raised here, with its type, and .remote_worker says where."},
    {"rpc_async", FASTCALL(rpc_async), METH_FASTCALL | METH_KEYWORDS,
     "rpc_async(to, func, args=None, kwargs=None, timeout=None, *, copy=False)\n--\n\n"
     "The same as rpc_sync, but returns a Future at once.\n\n"
     "Arrays among the arguments are sent from where they lie: do not change them before the "
     "future\n"
     "has completed, or say copy=True."},
    {"remote", FASTCALL(remote), METH_FASTCALL | METH_KEYWORDS,
     "remote(to, func, args=None, kwargs=None, timeout=None, *, copy=True)\n--\n\n"
     "Calls func(*args, **kwargs) on another worker, or this one, and leaves the result there;\n"
     "returns an RRef to it at once.\n\n"
     "timeout: how long the function may take there. What it raises, or that its time was up, is\n"
     "raised at each later use of the RRef.\n"
     "Arrays among the arguments are copied before this returns. With copy=False they are sent "
     "from\n"
     "where they lie: leave them alone until confirmed_by_owner() or a use of the RRef has "
     "returned."},
    {"current_call", current_call, METH_NOARGS,
     "current_call()\n--\n\nInside a handler: the call that this thread or task serves (.caller, "
     ".method, "
     ".remaining(), .cancelled(), .closing())."},
    {"collect_all", collect_all, METH_O,
     "collect_all(futures, /)\n--\n\nA Future of the list of `futures`, done when all of them have "
     "ended, well or not."},
    {"_rref", read_rref, METH_O, NULL},
    {"_wait_all", wait_all, METH_VARARGS, NULL},
    {"_set_default", set_default, METH_VARARGS, NULL},
    {"_get_default", get_default, METH_NOARGS, NULL},
    {"_exports", exports, METH_NOARGS, NULL},
    {"_serving", serving, METH_O, NULL},
    {"_seconds", seconds, METH_O, NULL},
    {"_finish", finish, METH_NOARGS, NULL},
    {"memory_live", memory_live, METH_NOARGS,
     "memory_live()\n--\n\nAllocations of the C library that are alive in this process."},
    {"version", version, METH_NOARGS, "version()\n--\n\nThe version of the C library."},
    {NULL, NULL, 0, NULL},
};

/* ---- state */

typedef struct import {
    const char *module, *name;
    size_t offset; /* of the field in far__py_state */
} import;

static const import imports[] = {
#define ERROR_IMPORT(name) {"farcall.errors", #name, offsetof(far__py_state, name)},
    FAR__PY_ERROR_MAP(ERROR_IMPORT)
#undef ERROR_IMPORT
        {"farcall.errors", "_lost", offsetof(far__py_state, lost)},
    {"farcall._remote", "describe", offsetof(far__py_state, describe)},
    {"farcall._remote", "rebuild", offsetof(far__py_state, rebuild)},
    {"farcall._names", "place_of", offsetof(far__py_state, place_of)},
    {"farcall._names", "resolve", offsetof(far__py_state, resolve)},
    {"farcall._names", "dumps_by_value", offsetof(far__py_state, dumps_by_value)},
    {"farcall._names", "METHOD_DESCRIPTOR", offsetof(far__py_state, method_descriptor)},
    {"farcall._names", "FUNCTION", offsetof(far__py_state, function_type)},
    {"farcall._aio", "waits", offsetof(far__py_state, waits)},
    {"farcall._aio", "task_call", offsetof(far__py_state, task_call)},
    {"farcall._rref", "invoke", offsetof(far__py_state, invoke)},
    {"farcall._rref", "Proxy", offsetof(far__py_state, proxy)},
    {"types", "MethodType", offsetof(far__py_state, method_type)},
    {"types", "CoroutineType", offsetof(far__py_state, coroutine_type)},
    {"farcall._workers", "WorkerInfo", offsetof(far__py_state, worker_info)},
    {"pickle", "dumps", offsetof(far__py_state, dumps)},
    {"pickle", "loads", offsetof(far__py_state, loads)},
    {"datetime", "timedelta", offsetof(far__py_state, timedelta)},
};

static PyObject **field(far__py_state *st, size_t offset)
{
    return (PyObject **)(void *)((char *)st + offset);
}

static int import_all(far__py_state *st)
{
    for (size_t i = 0; i < sizeof imports / sizeof *imports; i++) {
        PyObject *module = PyImport_ImportModule(imports[i].module);
        PyObject *object = module ? PyObject_GetAttrString(module, imports[i].name) : NULL;
        Py_XDECREF(module);
        if (!object)
            return -1;
        *field(st, imports[i].offset) = object;
    }
    PyObject *names = PyImport_ImportModule("farcall._names");
    PyObject *console = names ? PyObject_GetAttrString(names, "CONSOLE") : NULL;
    Py_XDECREF(names);
    if (!console)
        return -1;
    st->console = console == Py_True;
    Py_DECREF(console);
    return 0;
}

static int make_constants(far__py_state *st)
{
    st->exports = PyDict_New();
    st->sent = PyDict_New();
    st->resolved = PyDict_New();
    st->str_id = PyUnicode_InternFromString("id");
    st->str_buffers = PyUnicode_InternFromString("buffers");
    st->str_buffer_callback = PyUnicode_InternFromString("buffer_callback");
    st->str_protocol = PyUnicode_InternFromString("protocol");
    st->str_async = PyUnicode_InternFromString("_farcall_async");
    st->str_func = PyUnicode_InternFromString("__func__");
    st->protocol = PyLong_FromLong(5);
    st->empty_tuple = PyTuple_New(0);
    return st->exports && st->sent && st->resolved && st->str_id && st->str_buffers &&
                   st->str_buffer_callback && st->str_protocol && st->str_async && st->str_func &&
                   st->protocol && st->empty_tuple
               ? 0
               : -1;
}

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **out)
{
    *out = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *out ? PyModule_AddType(module, *out) : -1;
}

static int module_exec(PyObject *module)
{
    far__py_state *st = far__py_state_of(module);
    if (make_constants(st) < 0 || import_all(st) < 0)
        return -1;
    if (add_type(module, &far__py_buffer_spec, &st->buffer_type) < 0 ||
        add_type(module, &far__py_current_spec, &st->current_type) < 0 ||
        add_type(module, &far__py_future_spec, &st->future_type) < 0 ||
        add_type(module, &far__py_answer_spec, &st->answer_type) < 0 ||
        add_type(module, &far__py_rref_spec, &st->rref_type) < 0 ||
        add_type(module, &far__py_agent_spec, &st->agent_type) < 0)
        return -1;
    st->read_rref = PyObject_GetAttrString(module, "_rref");
    return st->read_rref ? 0 : -1;
}

/* Every PyObject * of the state, once. */
#define STATE_MAP(X)                                                                               \
    FAR__PY_ERROR_MAP(X)                                                                           \
    X(default_agent)                                                                               \
    X(no_agent)                                                                                    \
    X(exports)                                                                                     \
    X(sent)                                                                                        \
    X(resolved)                                                                                    \
    X(dumps)                                                                                       \
    X(loads)                                                                                       \
    X(dumps_by_value)                                                                              \
    X(place_of)                                                                                    \
    X(resolve)                                                                                     \
    X(describe)                                                                                    \
    X(rebuild)                                                                                     \
    X(lost)                                                                                        \
    X(waits)                                                                                       \
    X(task_call)                                                                                   \
    X(invoke)                                                                                      \
    X(proxy)                                                                                       \
    X(read_rref)                                                                                   \
    X(worker_info)                                                                                 \
    X(timedelta)                                                                                   \
    X(method_descriptor)                                                                           \
    X(function_type)                                                                               \
    X(method_type)                                                                                 \
    X(coroutine_type)                                                                              \
    X(numpy_asarray)                                                                               \
    X(str_id)                                                                                      \
    X(str_buffers)                                                                                 \
    X(str_buffer_callback)                                                                         \
    X(str_protocol)                                                                                \
    X(str_async)                                                                                   \
    X(str_func)                                                                                    \
    X(protocol)                                                                                    \
    X(empty_tuple)                                                                                 \
    X(agent_type)                                                                                  \
    X(future_type)                                                                                 \
    X(buffer_type)                                                                                 \
    X(current_type)                                                                                \
    X(rref_type)                                                                                   \
    X(answer_type)

static const size_t objects[] = {
#define OBJECT_OFFSET(name) offsetof(far__py_state, name),
    STATE_MAP(OBJECT_OFFSET)
#undef OBJECT_OFFSET
};

enum { OBJECT_COUNT = sizeof objects / sizeof *objects };

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    far__py_state *st = far__py_state_of(module);
    for (size_t i = 0; i < OBJECT_COUNT; i++)
        Py_VISIT(*field(st, objects[i]));
    return 0;
}

static int module_clear(PyObject *module)
{
    far__py_state *st = far__py_state_of(module);
    for (size_t i = 0; i < OBJECT_COUNT; i++)
        Py_CLEAR(*field(st, objects[i]));
    return 0;
}

static void module_free(void *module)
{
    (void)module_clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "farcall._farcall",
    .m_doc = "The part of farcall that is written in C, above farcall.h. Use the package farcall.",
    .m_size = sizeof(far__py_state),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__farcall(void);

PyMODINIT_FUNC PyInit__farcall(void)
{
    return PyModuleDef_Init(&definition);
}
