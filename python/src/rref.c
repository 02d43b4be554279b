/* SPDX-License-Identifier: BSD-3-Clause
 * rref: the type RRef: a reference to a value that lives at some worker, its owner. Floor: Python.
 * Thread: with the GIL, released around every wait. Values are dropped on executor threads, the service
 * thread or a thread that drops an RRef. */
#include "farpy.h"

#include <stdlib.h>
#include <structmember.h>

static far__py_rref *self_of(PyObject *object)
{
    return (far__py_rref *)object;
}

PyObject *far__py_rref_new(far__py_agent *agent, far_rref *ref)
{
    far__py_rref *self = PyObject_New(far__py_rref, agent->st->rref_type);
    if (!self) {
        far_rref_release(ref);
        return NULL;
    }
    self->st = agent->st;
    self->agent = (far__py_agent *)Py_NewRef((PyObject *)agent);
    self->ref = ref;
    self->weakrefs = NULL;
    self->prev = NULL;
    self->next = agent->rrefs;
    if (self->next)
        self->next->prev = self;
    agent->rrefs = self;
    return (PyObject *)self;
}

/* ---- values kept here */

static void drop_later(far_future *future, void *value)
{
    (void)future;
    if (far__py_finished())
        return;
    PyGILState_STATE gil = far__py_enter();
    Py_DECREF((PyObject *)value);
    far__py_leave(gil);
}

/* Has an executor thread drop the value; false if that cannot be. */
static bool hand_over(far__py_agent *agent, PyObject *value)
{
    far_future *future;
    far_message *message;
    if (agent->closed || far_message_create(FAR_ENCODING_RAW, &message) != FAR_OK)
        return false;
    if (far_future_create(agent->ref, &future) != FAR_OK) {
        far_message_discard(message);
        return false;
    }
    bool taken = far_future_on_done(future, drop_later, value, 0) == FAR_OK;
    (void)far_future_complete(future, message);
    far_future_release(future);
    return taken;
}

/* Its end surely runs no code of a user's. */
static bool ends_quietly(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    return value == Py_None || type == &PyLong_Type || type == &PyFloat_Type ||
           type == &PyBool_Type || type == &PyUnicode_Type || type == &PyBytes_Type;
}

void far__py_drop_value(void *value)
{
    if (far__py_finished())
        return;
    PyGILState_STATE gil = far__py_enter();
    /* The service thread must not wait, and a finaliser may: for a call, for a lock. */
    far__py_agent *agent = far__py_service_agent();
    if (!agent || ends_quietly(value) || !hand_over(agent, value))
        Py_DECREF((PyObject *)value);
    far__py_leave(gil);
}

/* ---- errors */

PyObject *far__py_rref_refused(far__py_rref *self, far_status status)
{
    far__py_state *st = self->st;
    if (status == FAR_EINVAL)
        return far__py_raise(st, status, "a reference of another agent");
    if (status == FAR_ENOMEM || status == FAR_ECLOSED)
        return far__py_raise(st, status, NULL);
    /* What the creation failed with is in the future, in full. */
    far_future *settled;
    if (far_rref_settled(self->ref, &settled) != FAR_OK)
        return far__py_raise(st, status, NULL);
    far_status ended = far_future_status(settled);
    PyObject *error = NULL;
    if (ended == FAR_OK || ended == FAR_EAGAIN)
        far__py_raise(st, status, NULL);
    else
        error = far__py_failure(self->agent, settled, 0);
    if (error)
        far__py_put_exception(error);
    far_future_release(settled);
    return NULL;
}

/* 0 if the agent can be used. */
static int check_open(far__py_rref *self)
{
    if (self->agent->ref && !self->agent->closed)
        return 0;
    far__py_raise(self->st, FAR_ECLOSED, "the agent of this reference was shut down");
    return -1;
}

/* ---- the value */

/* `timeout` of a use, the agent's default taken in. */
static int limit_of(far__py_rref *self, PyObject *timeout, far_duration *limit)
{
    if (check_open(self) < 0 || far__py_limit(self->st, timeout, &far__py_limit_call, limit) < 0)
        return -1;
    if (*limit == FAR_TIMEOUT_DEFAULT)
        *limit = far_agent_default_timeout(self->agent->ref);
    return 0;
}

static PyObject *fetch(far__py_rref *self, far_duration limit)
{
    far_future *future;
    far_status status, waited = FAR_OK;
    Py_BEGIN_ALLOW_THREADS
    status = far_rref_fetch(self->ref, FAR_ENCODING_PICKLE, limit, FAR_CALL_NOW, &future);
    if (status == FAR_OK)
        waited = far_future_wait(future, FAR_FOREVER);
    Py_END_ALLOW_THREADS
    if (status != FAR_OK)
        return far__py_rref_refused(self, status);
    PyObject *result = NULL;
    if (waited != FAR_OK && (PyErr_CheckSignals() < 0 || far__py_wait(future, FAR_FOREVER) < 0))
        (void)far_future_cancel(future);
    else
        result = far__py_result(self->agent, future, 0);
    far_future_release(future);
    return result;
}

/* Waits until it is known whether the value of this worker exists. */
static int settle(far__py_rref *self, far_duration limit)
{
    far_future *settled;
    far_status status = far_rref_settled(self->ref, &settled);
    if (status != FAR_OK) {
        far__py_raise(self->st, status, NULL);
        return -1;
    }
    int rc = far__py_wait(settled, limit == FAR_NO_LIMIT ? FAR_FOREVER : limit);
    far_future_release(settled);
    if (rc != 1)
        return rc;
    PyObject *seconds = PyFloat_FromDouble((double)limit / 1e9);
    if (seconds)
        PyErr_Format(self->st->RpcTimeoutError,
                     "waited %S s for the value of a reference, which is still being made here",
                     seconds);
    Py_XDECREF(seconds);
    return -1;
}

static PyObject *own_value(far__py_rref *self, far_duration limit)
{
    void *value = NULL;
    far_status status = far_rref_value(self->ref, &value);
    if (status == FAR_EAGAIN) {
        if (settle(self, limit) < 0)
            return NULL;
        status = far_rref_value(self->ref, &value);
    }
    if (status != FAR_OK)
        return far__py_rref_refused(self, status);
    return value ? Py_NewRef((PyObject *)value) : fetch(self, limit);
}

static PyObject *timeout_argument(PyObject *args, PyObject *kwargs, const char *format)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    return PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &timeout) ? timeout : NULL;
}

static PyObject *rref_to_here(PyObject *object, PyObject *args, PyObject *kwargs)
{
    far__py_rref *self = self_of(object);
    far_duration limit;
    PyObject *timeout = timeout_argument(args, kwargs, "|O:to_here");
    if (!timeout || limit_of(self, timeout, &limit) < 0)
        return NULL;
    return far_rref_is_owner(self->ref) ? own_value(self, limit) : fetch(self, limit);
}

static PyObject *rref_local_value(PyObject *object, PyObject *args, PyObject *kwargs)
{
    far__py_rref *self = self_of(object);
    far_duration limit;
    PyObject *timeout = timeout_argument(args, kwargs, "|O:local_value");
    if (!timeout || limit_of(self, timeout, &limit) < 0)
        return NULL;
    if (far_rref_is_owner(self->ref))
        return own_value(self, limit);
    far_worker owner;
    far_rref_owner(self->ref, &owner);
    PyErr_Format(self->st->RpcError,
                 "the value lives at worker %u '%s', not here ('%s'): to_here() brings a copy",
                 (unsigned)owner.id, owner.name, far__py_self(self->agent)->name);
    return NULL;
}

/* ---- questions */

static PyObject *rref_owner(PyObject *object, PyObject *none)
{
    (void)none;
    far_worker owner;
    far_rref_owner(self_of(object)->ref, &owner);
    return far__py_worker_info(self_of(object)->st, &owner);
}

static PyObject *rref_owner_name(PyObject *object, PyObject *none)
{
    (void)none;
    far_worker owner;
    far_rref_owner(self_of(object)->ref, &owner);
    return far__py_text(owner.name);
}

static PyObject *rref_is_owner(PyObject *object, PyObject *none)
{
    (void)none;
    return PyBool_FromLong(far_rref_is_owner(self_of(object)->ref));
}

static PyObject *rref_confirmed(PyObject *object, PyObject *none)
{
    (void)none;
    return PyBool_FromLong(far_rref_confirmed(self_of(object)->ref));
}

/* Raises what the creation failed with, if that is known. */
static PyObject *rref_check(PyObject *object, PyObject *none)
{
    far_future *settled;
    (void)none;
    far_status status = far_rref_settled(self_of(object)->ref, &settled);
    if (status != FAR_OK)
        return far__py_raise(self_of(object)->st, status, NULL);
    status = far_future_status(settled);
    far_future_release(settled);
    if (status != FAR_OK && status != FAR_EAGAIN)
        return far__py_rref_refused(self_of(object), status);
    Py_RETURN_NONE;
}

static PyObject *rref_compare(PyObject *object, PyObject *other, int op)
{
    if ((op != Py_EQ && op != Py_NE) || Py_TYPE(other) != Py_TYPE(object))
        Py_RETURN_NOTIMPLEMENTED;
    bool same = far_rref_same(self_of(object)->ref, self_of(other)->ref);
    return PyBool_FromLong(same == (op == Py_EQ));
}

static Py_hash_t rref_hash(PyObject *object)
{
    Py_hash_t hash = (Py_hash_t)far_rref_hash(self_of(object)->ref);
    return hash == -1 ? -2 : hash;
}

static PyObject *describe(far__py_rref *self)
{
    char text[256];
    far_rref_describe(self->ref, text, sizeof text);
    return far__py_text(text);
}

static PyObject *rref_repr(PyObject *object)
{
    PyObject *text = describe(self_of(object));
    PyObject *repr = text ? PyUnicode_FromFormat("<farcall.RRef: %U>", text) : NULL;
    Py_XDECREF(text);
    return repr;
}

/* ---- proxies */

static PyObject *proxy(PyObject *object, PyObject *args, PyObject *kwargs, const char *kind,
                       const char *format)
{
    far__py_rref *self = self_of(object);
    far_duration limit;
    PyObject *timeout = timeout_argument(args, kwargs, format);
    if (!timeout || limit_of(self, timeout, &limit) < 0)
        return NULL;
    PyObject *call = PyObject_GetAttrString((PyObject *)self->agent, kind);
    PyObject *made =
        call ? PyObject_CallFunctionObjArgs(self->st->proxy, object, call, timeout, NULL) : NULL;
    Py_XDECREF(call);
    return made;
}

static PyObject *rref_rpc_sync(PyObject *object, PyObject *args, PyObject *kwargs)
{
    return proxy(object, args, kwargs, "rpc_sync", "|O:rpc_sync");
}

static PyObject *rref_rpc_async(PyObject *object, PyObject *args, PyObject *kwargs)
{
    return proxy(object, args, kwargs, "rpc_async", "|O:rpc_async");
}

static PyObject *rref_remote(PyObject *object, PyObject *args, PyObject *kwargs)
{
    return proxy(object, args, kwargs, "remote", "|O:remote");
}

/* ---- pickling */

static PyObject *rref_reduce(PyObject *object, PyObject *protocol)
{
    size_t index;
    (void)protocol;
    if (far__py_pack_rref(self_of(object), &index) < 0)
        return NULL;
    return Py_BuildValue("O(n)", self_of(object)->st->read_rref, (Py_ssize_t)index);
}

/* ---- lists */

typedef struct entry {
    far_worker_id owner;
    bool is_owner, held;
    const char *state;
    far_worker_id *holders;
    size_t holder_count;
} entry;

/* The list is made in C first: Python's memory may not be touched under the lock of the library, since
 * that can end objects which need the lock. */
typedef struct listing {
    entry *entries;
    size_t count, room;
    bool failed;
} listing;

static void list_one(const far_rref_info *info, void *arg)
{
    listing *l = arg;
    if (l->count == l->room) {
        size_t room = l->room > 0 ? 2 * l->room : 64;
        entry *more = realloc(l->entries, room * sizeof *more);
        if (!more) {
            l->failed = true;
            return;
        }
        l->entries = more;
        l->room = room;
    }
    entry *e = &l->entries[l->count];
    *e = (entry){
        .owner = info->owner, .is_owner = info->is_owner, .held = info->held, .state = info->state};
    if (info->holder_count > 0) {
        e->holders = malloc(info->holder_count * sizeof *e->holders);
        if (!e->holders) {
            l->failed = true;
            return;
        }
        e->holder_count = info->holder_count;
        for (size_t i = 0; i < info->holder_count; i++)
            e->holders[i] = info->holders[i];
    }
    l->count++;
}

static PyObject *show_entry(const entry *e)
{
    PyObject *holders = PyList_New((Py_ssize_t)e->holder_count);
    for (size_t i = 0; holders && i < e->holder_count; i++) {
        PyObject *id = PyLong_FromUnsignedLong(e->holders[i]);
        if (!id || PyList_SetItem(holders, (Py_ssize_t)i, id) < 0)
            Py_CLEAR(holders);
    }
    if (!holders)
        return NULL;
    return Py_BuildValue("{s:k,s:O,s:O,s:s,s:N}", "owner", (unsigned long)e->owner, "is_owner",
                         e->is_owner ? Py_True : Py_False, "held", e->held ? Py_True : Py_False,
                         "state", e->state, "holders", holders);
}

PyObject *far__py_rrefs(far__py_agent *agent)
{
    listing l = {NULL, 0, 0, false};
    if (agent->ref)
        far_agent_rrefs(agent->ref, list_one, &l);
    PyObject *list = l.failed ? PyErr_NoMemory() : PyList_New(0);
    for (size_t i = 0; list && i < l.count; i++) {
        PyObject *shown = show_entry(&l.entries[i]);
        if (!shown || PyList_Append(list, shown) < 0)
            Py_CLEAR(list);
        Py_XDECREF(shown);
    }
    for (size_t i = 0; i < l.count; i++)
        free(l.entries[i].holders);
    free(l.entries);
    return list;
}

PyObject *far__py_rrefs_held(far__py_agent *agent)
{
    PyObject *alive = PyList_New(0); /* making text may end some of them: so hold them first */
    for (far__py_rref *r = agent->rrefs; alive && r; r = r->next) {
        if (PyList_Append(alive, (PyObject *)r) < 0)
            Py_CLEAR(alive);
    }
    PyObject *held = alive ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; held && i < PyList_Size(alive); i++) {
        PyObject *text = describe(self_of(PyList_GetItem(alive, i)));
        if (!text || PyList_Append(held, text) < 0)
            Py_CLEAR(held);
        Py_XDECREF(text);
    }
    Py_XDECREF(alive);
    return held;
}

/* ---- the type */

static PyObject *rref_create(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"value", "agent", NULL};
    PyObject *value, *given = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O:RRef", names, &value, &given))
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
    if (!agent)
        return NULL;
    far_rref *ref;
    far_status status = FAR_ECLOSED;
    if (agent->ref && !agent->closed)
        status = far_rref_create(agent->ref, Py_NewRef(value), far__py_drop_value, &ref);
    PyObject *self = NULL;
    if (status == FAR_OK) {
        self = far__py_rref_new(agent, ref);
    } else {
        if (agent->ref && !agent->closed)
            Py_DECREF(value);
        far__py_raise(st, status, NULL);
    }
    Py_DECREF((PyObject *)agent);
    return self;
}

static void rref_dealloc(PyObject *object)
{
    far__py_rref *self = self_of(object);
    PyTypeObject *type = Py_TYPE(object);
    far__py_agent *agent = self->agent;
    far_rref *ref = self->ref;
    if (self->weakrefs)
        PyObject_ClearWeakRefs(object);
    if (self->prev)
        self->prev->next = self->next;
    else
        agent->rrefs = self->next;
    if (self->next)
        self->next->prev = self->prev;
    PyObject_Free(object);
    Py_DECREF(type);
    far_rref_release(ref); /* may end the value, in here */
    Py_DECREF((PyObject *)agent);
}

static PyObject *rref_generic(PyObject *type, PyObject *item)
{
    return Py_GenericAlias(type, item);
}

static PyObject *rref_agent(PyObject *object, void *closure)
{
    (void)closure;
    return Py_NewRef((PyObject *)self_of(object)->agent);
}

static PyObject *rref_owner_id(PyObject *object, void *closure)
{
    (void)closure;
    far_worker owner;
    far_rref_owner(self_of(object)->ref, &owner);
    return PyLong_FromUnsignedLong(owner.id);
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef rref_methods[] = {
    {"to_here", KEYWORDS(rref_to_here),
     "to_here($self, /, timeout=None)\n--\n\nThe value: a copy of it, or at its owner the very "
     "object. Waits while it is being made, at most `timeout` (as in rpc_sync); raises what the "
     "function that was to make it has raised."},
    {"local_value", KEYWORDS(rref_local_value),
     "local_value($self, /, timeout=None)\n--\n\nThe very object, at its owner; RpcError "
     "elsewhere. Waits while it is being made, at most `timeout`."},
    {"owner", rref_owner, METH_NOARGS, "owner($self, /)\n--\n\nWorkerInfo of where the value is."},
    {"owner_name", rref_owner_name, METH_NOARGS,
     "owner_name($self, /)\n--\n\nThe name of the worker where the value is."},
    {"is_owner", rref_is_owner, METH_NOARGS, "is_owner($self, /)\n--\n\nIs the value here?"},
    {"confirmed_by_owner", rref_confirmed, METH_NOARGS,
     "confirmed_by_owner($self, /)\n--\n\nHas the owner said that it knows this reference?"},
    {"rpc_sync", KEYWORDS(rref_rpc_sync),
     "rpc_sync($self, /, timeout=None)\n--\n\nrref.rpc_sync().method(*args, **kwargs) calls the "
     "method of the value where it lives and waits for the result; as farcall.rpc_sync."},
    {"rpc_async", KEYWORDS(rref_rpc_async),
     "rpc_async($self, /, timeout=None)\n--\n\nThe same, but the method gives a Future at once."},
    {"remote", KEYWORDS(rref_remote),
     "remote($self, /, timeout=None)\n--\n\nThe same, but the method gives an RRef to its result, "
     "which stays there."},
    {"_check", rref_check, METH_NOARGS, NULL},
    {"__class_getitem__", rref_generic, METH_O | METH_CLASS, NULL},
    {"__reduce_ex__", rref_reduce, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef rref_getset[] = {
    {"_agent", rref_agent, NULL, NULL, NULL},
    {"_owner_id", rref_owner_id, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef rref_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(far__py_rref, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot rref_slots[] = {
    {Py_tp_doc,
     "RRef(value, *, agent=None)\n--\n\nA reference to a value that lives at a worker, its owner. "
     "remote() gives one; RRef(value) makes one to a value of this worker. References are passed "
     "in "
     "arguments and results of calls; the value is freed when none is left anywhere."},
    {Py_tp_new, rref_create},
    {Py_tp_dealloc, rref_dealloc},
    {Py_tp_repr, rref_repr},
    {Py_tp_hash, rref_hash},
    {Py_tp_richcompare, rref_compare},
    {Py_tp_methods, rref_methods},
    {Py_tp_getset, rref_getset},
    {Py_tp_members, rref_members},
    {0, NULL},
};

PyType_Spec far__py_rref_spec = {
    .name = "farcall._farcall.RRef",
    .basicsize = sizeof(far__py_rref),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rref_slots,
};
