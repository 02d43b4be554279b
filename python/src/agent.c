/* SPDX-License-Identifier: BSD-3-Clause
 * agent: the base type of farcall.Agent: one worker of a job. Waiting that Ctrl-C must end, and starting
 * threads, are in agent.py. Floor: Python. Thread: with the GIL, released around what can block. */
#include "farpy.h"

#include <structmember.h>

static far__py_agent *self_of(PyObject *object)
{
    return (far__py_agent *)object;
}

/* NULL with an error unless the agent can be used. */
static far_agent *open_ref(PyObject *object)
{
    far__py_agent *self = self_of(object);
    if (self->ref && !self->closed)
        return self->ref;
    far__py_raise(self->st, FAR_ECLOSED, "this agent was shut down");
    return NULL;
}

const far_worker *far__py_self(far__py_agent *self)
{
    if (!self->joined && self->ref)
        self->joined = far_agent_self(self->ref, &self->self) == FAR_OK;
    return &self->self;
}

/* ---- creation */

typedef struct given {
    PyObject *rpc_timeout, *init_timeout, *lost_grace;
    Py_buffer secret;
    int inherit_deadline, log_level;
    unsigned long long message_size_max;
} given;

static int fill_options(far__py_agent *self, far_options *options, given *g)
{
    if (far__py_limit(self->st, g->rpc_timeout, &far__py_limit_plain, &options->default_timeout) <
        0)
        return -1;
    if (g->init_timeout != Py_None &&
        far__py_limit(self->st, g->init_timeout, &far__py_limit_plain, &options->init_timeout) < 0)
        return -1;
    if (g->lost_grace != Py_None &&
        far__py_limit(self->st, g->lost_grace, &far__py_limit_plain, &options->lost_grace) < 0)
        return -1;
    if (g->secret.buf) {
        options->secret = g->secret.buf;
        options->secret_size = (size_t)g->secret.len;
    }
    options->message_size_max = g->message_size_max;
    options->log_level = (far_log_level)g->log_level;
    options->foreign_threads = true;
    options->fallback = far__py_serve;
    options->fallback_arg = self;
    options->fetch = far__py_fetch;
    options->fetch_arg = self;
    self->inherit_deadline = g->inherit_deadline != 0;
    return 0;
}

static int agent_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name",
                            "rank",
                            "world_size",
                            "init_method",
                            "secret",
                            "bind_address",
                            "transports",
                            "init_timeout",
                            "rpc_timeout",
                            "lost_grace",
                            "threads",
                            "threads_max",
                            "message_size_max",
                            "log_level",
                            "inherit_deadline",
                            NULL};
    far__py_agent *self = self_of(object);
    far_options options;
    far_options_init(&options);
    long long rank = -1, world_size = -1;
    given g = {.rpc_timeout = Py_None, .init_timeout = Py_None, .lost_grace = Py_None};
    if (self->ref) {
        PyErr_SetString(PyExc_RuntimeError, "an Agent is initialised once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "s$LLzz*zIOOOIIKip:Agent", names, &options.name, &rank, &world_size,
            &options.init_method, &g.secret, &options.bind_address, &options.transports,
            &g.init_timeout, &g.rpc_timeout, &g.lost_grace, &options.threads, &options.threads_max,
            &g.message_size_max, &g.log_level, &g.inherit_deadline))
        return -1;
    options.rank = rank;
    options.world_size = world_size;
    far_error error = {FAR_OK, ""};
    int rc = fill_options(self, &options, &g);
    if (rc == 0 && far_agent_create(&options, &self->ref, &error) != FAR_OK) {
        far__py_raise_error(self->st, &error);
        rc = -1;
    }
    if (g.secret.buf)
        PyBuffer_Release(&g.secret);
    return rc;
}

static PyObject *agent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    far__py_agent *self = (far__py_agent *)alloc(type, 0);
    if (!self)
        return NULL;
    PyObject *module = PyImport_ImportModule("farcall._farcall");
    self->st = module ? far__py_state_of(module) : NULL;
    Py_XDECREF(module);
    if (!self->st)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* ---- joining and leaving; these block */

static PyObject *agent_join(PyObject *object, PyObject *none)
{
    far__py_agent *self = self_of(object);
    far_agent *ref = open_ref(object);
    far_error error = {FAR_OK, ""};
    (void)none;
    if (!ref)
        return NULL;
    far_status status;
    Py_BEGIN_ALLOW_THREADS
    status = far_agent_join(ref, &error);
    Py_END_ALLOW_THREADS
    if (status != FAR_OK) {
        self->closed = true;
        error.status = status;
        return far__py_raise_error(self->st, &error);
    }
    (void)far__py_self(self);
    Py_RETURN_NONE;
}

static PyObject *agent_shutdown(PyObject *object, PyObject *timeout)
{
    far__py_agent *self = self_of(object);
    far_agent *ref = open_ref(object);
    far_error error = {FAR_OK, ""};
    far_duration limit;
    if (!ref || far__py_limit(self->st, timeout, &far__py_limit_plain, &limit) < 0)
        return NULL;
    far_status status;
    Py_BEGIN_ALLOW_THREADS
    status = far_agent_shutdown(ref, limit, &error);
    Py_END_ALLOW_THREADS
    if (status != FAR_ETIMEOUT)
        self->closed = true;
    if (status == FAR_OK)
        Py_RETURN_NONE;
    error.status = status;
    return far__py_raise_error(self->st, &error);
}

static PyObject *agent_close(PyObject *object, PyObject *none)
{
    far__py_agent *self = self_of(object);
    (void)none;
    self->closed = true;
    if (self->ref) {
        Py_BEGIN_ALLOW_THREADS
        far_agent_close(self->ref);
        Py_END_ALLOW_THREADS
    }
    far__py_laters_cancel(self);
    Py_RETURN_NONE;
}

/* In a forked child: the library's locks may be anybody's, so nothing of it is asked any more. */
static PyObject *agent_forked(PyObject *object, PyObject *none)
{
    (void)none;
    self_of(object)->closed = true;
    Py_RETURN_NONE;
}

/* ---- calls */

static PyObject *agent_rpc_sync(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                                PyObject *kwnames)
{
    return far__py_rpc_sync(self_of(object), args, nargs, kwnames);
}

static PyObject *agent_rpc_async(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames)
{
    return far__py_rpc_async(self_of(object), args, nargs, kwnames);
}

static PyObject *agent_remote(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                              PyObject *kwnames)
{
    return far__py_remote(self_of(object), args, nargs, kwnames);
}

static PyObject *agent_set_rpc_timeout(PyObject *object, PyObject *timeout)
{
    far_agent *ref = open_ref(object);
    far_duration limit;
    if (!ref || far__py_limit(self_of(object)->st, timeout, &far__py_limit_plain, &limit) < 0)
        return NULL;
    far_agent_set_default_timeout(ref, limit);
    Py_RETURN_NONE;
}

static PyObject *agent_get_rpc_timeout(PyObject *object, PyObject *none)
{
    far_agent *ref = open_ref(object);
    (void)none;
    return ref ? PyFloat_FromDouble((double)far_agent_default_timeout(ref) / 1e9) : NULL;
}

/* ---- who */

static PyObject *agent_get_worker_info(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", NULL};
    PyObject *to = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:get_worker_info", names, &to) ||
        !open_ref(object))
        return NULL;
    far__py_agent *self = self_of(object);
    far_worker worker = *far__py_self(self);
    if (to != Py_None && far__py_worker(self, to, &worker) < 0)
        return NULL;
    return far__py_worker_info(self->st, &worker);
}

static PyObject *agent_get_worker_infos(PyObject *object, PyObject *none)
{
    far_agent *ref = open_ref(object);
    far__py_state *st = self_of(object)->st;
    far_worker *workers = NULL;
    size_t capacity = 0, count = 64;
    far_status status = FAR_OK;
    (void)none;
    while (ref && status == FAR_OK && count > capacity) {
        PyMem_Free(workers);
        capacity = count;
        workers = PyMem_Calloc(capacity, sizeof *workers);
        if (!workers)
            return PyErr_NoMemory();
        status = far_agent_workers(ref, workers, capacity, &count);
    }
    PyObject *infos = NULL;
    if (ref && status != FAR_OK)
        far__py_raise(st, status, NULL);
    else if (ref)
        infos = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; infos && i < count; i++) {
        PyObject *info = far__py_worker_info(st, &workers[i]);
        if (!info || PyList_SetItem(infos, (Py_ssize_t)i, info) < 0)
            Py_CLEAR(infos);
    }
    PyMem_Free(workers);
    return infos;
}

static PyObject *agent_metrics(PyObject *object, PyObject *none)
{
    far_agent *ref = self_of(object)->ref;
    (void)none;
    PyObject *metrics = PyDict_New();
    if (!metrics)
        return NULL;
    far_counters counters = {0};
    if (ref)
        far_agent_counters(ref, &counters);
    int rc = 0;
#define METRIC(name, text)                                                                         \
    if (rc == 0) {                                                                                 \
        PyObject *number = PyLong_FromUnsignedLongLong(counters.name);                             \
        rc = number ? PyDict_SetItemString(metrics, #name, number) : -1;                           \
        Py_XDECREF(number);                                                                        \
    }
    FAR_COUNTER_MAP(METRIC)
#undef METRIC
    if (rc < 0)
        Py_CLEAR(metrics);
    return metrics;
}

static PyObject *agent_rrefs(PyObject *object, PyObject *none)
{
    (void)none;
    return far__py_rrefs(self_of(object));
}

static PyObject *agent_rrefs_held(PyObject *object, PyObject *none)
{
    (void)none;
    return far__py_rrefs_held(self_of(object));
}

static PyObject *agent_mark_loop(PyObject *object, PyObject *none)
{
    (void)none;
    far__py_mark_loop(self_of(object));
    Py_RETURN_NONE;
}

static PyObject *agent_name(PyObject *object, void *closure)
{
    (void)closure;
    return far__py_text(far__py_self(self_of(object))->name);
}

static PyObject *agent_id(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLong(far__py_self(self_of(object))->id);
}

static PyObject *agent_closed(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(self_of(object)->closed || !self_of(object)->ref);
}

static PyObject *agent_inside(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(self_of(object)->inside);
}

/* ---- the type */

static int agent_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static void agent_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    far__py_agent *self = self_of(object);
    far_agent *ref = self->ref;
    PyObject_GC_UnTrack(object);
    if (self->weakrefs)
        PyObject_ClearWeakRefs(object);
    self->ref = NULL;
    if (ref) {
        Py_BEGIN_ALLOW_THREADS
        far_agent_release(ref);
        Py_END_ALLOW_THREADS
    }
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

#define FASTCALL(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef agent_methods[] = {
    {"rpc_sync", FASTCALL(agent_rpc_sync), METH_FASTCALL | METH_KEYWORDS,
     "rpc_sync($self, to, func, args=None, kwargs=None, timeout=None, *, copy=False)\n--\n\nCalls "
     "func "
     "on worker `to` and waits for its result; see farcall.rpc_sync."},
    {"rpc_async", FASTCALL(agent_rpc_async), METH_FASTCALL | METH_KEYWORDS,
     "rpc_async($self, to, func, args=None, kwargs=None, timeout=None, *, copy=False)\n--\n\nCalls "
     "func on worker `to`, gives a Future; see farcall.rpc_async."},
    {"remote", FASTCALL(agent_remote), METH_FASTCALL | METH_KEYWORDS,
     "remote($self, to, func, args=None, kwargs=None, timeout=None, *, copy=True)\n--\n\nCalls "
     "func on worker `to` and leaves the result there, gives an RRef; see farcall.remote."},
    {"get_worker_info", FASTCALL(agent_get_worker_info), METH_VARARGS | METH_KEYWORDS,
     "get_worker_info($self, /, name=None)\n--\n\nWho has this name or id; None: this worker."},
    {"get_worker_infos", agent_get_worker_infos, METH_NOARGS,
     "get_worker_infos($self, /)\n--\n\nAll workers of the job, in order of their ids."},
    {"set_rpc_timeout", agent_set_rpc_timeout, METH_O,
     "set_rpc_timeout($self, timeout, /)\n--\n\nWhat timeout=None means for calls made from now "
     "on."},
    {"get_rpc_timeout", agent_get_rpc_timeout, METH_NOARGS,
     "get_rpc_timeout($self, /)\n--\n\nSeconds that timeout=None means; 0.0 is no limit."},
    {"metrics", agent_metrics, METH_NOARGS,
     "metrics($self, /)\n--\n\nCounters of this worker since it was made, by name."},
    {"_rrefs", agent_rrefs, METH_NOARGS, NULL},
    {"_rrefs_held", agent_rrefs_held, METH_NOARGS, NULL},
    {"_mark_loop", agent_mark_loop, METH_NOARGS, NULL},
    {"_forked", agent_forked, METH_NOARGS, NULL},
    {"_join", agent_join, METH_NOARGS, NULL},
    {"_shutdown", agent_shutdown, METH_O, NULL},
    {"_close", agent_close, METH_NOARGS, NULL},
    {"_service", far__py_service_run, METH_NOARGS, NULL},
    {"_executor", far__py_executor_run, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef agent_getset[] = {
    {"name", agent_name, NULL, "The name of this worker.", NULL},
    {"id", agent_id, NULL, "The id of this worker.", NULL},
    {"closed", agent_closed, NULL, "Has this agent left its job?", NULL},
    {"_inside", agent_inside, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef agent_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(far__py_agent, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot agent_slots[] = {
    {Py_tp_doc, "The part of farcall.Agent that is written in C."},
    {Py_tp_new, agent_new},
    {Py_tp_init, agent_init},
    {Py_tp_dealloc, agent_dealloc},
    {Py_tp_traverse, agent_traverse},
    {Py_tp_methods, agent_methods},
    {Py_tp_getset, agent_getset},
    {Py_tp_members, agent_members},
    {0, NULL},
};

PyType_Spec far__py_agent_spec = {
    .name = "farcall._farcall.Agent",
    .basicsize = sizeof(far__py_agent),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = agent_slots,
};
