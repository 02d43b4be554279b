/* SPDX-License-Identifier: BSD-3-Clause
 * serialize: pickle protocol 5 to far_message and back; large buffers travel out of band as segments,
 * from where they lie and into memory that stays. Floor: Python. Thread: with the GIL. */
#include "farpy.h"

#include <string.h>

enum {
    SIMPLE_DEPTH = 3,  /* of containers looked into to see that no buffer can be inside */
    SIMPLE_ITEMS = 64, /* and items looked at; a larger call takes the general way */
    IN_BAND_MAX = 256, /* buffers up to this size cost less inside the pickle */
};

/* ---- is a buffer_callback needed? */

static bool simple(PyObject *object, int depth, int *left);

static bool simple_items(PyObject *items, Py_ssize_t count, int depth, int *left,
                         PyObject *(*get)(PyObject *, Py_ssize_t))
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!simple(get(items, i), depth - 1, left))
            return false;
    }
    return true;
}

static bool simple(PyObject *object, int depth, int *left)
{
    PyTypeObject *type = Py_TYPE(object);
    if (--*left < 0)
        return false;
    if (object == Py_None || type == &PyLong_Type || type == &PyUnicode_Type ||
        type == &PyFloat_Type || type == &PyBool_Type || type == &PyBytes_Type)
        return true;
    if (depth == 0)
        return false;
    if (type == &PyTuple_Type)
        return simple_items(object, PyTuple_Size(object), depth, left, PyTuple_GetItem);
    if (type == &PyList_Type)
        return simple_items(object, PyList_Size(object), depth, left, PyList_GetItem);
    if (type == &PyDict_Type) {
        PyObject *key, *value;
        Py_ssize_t at = 0;
        while (PyDict_Next(object, &at, &key, &value)) {
            if (!simple(key, depth - 1, left) || !simple(value, depth - 1, left))
                return false;
        }
        return true;
    }
    return false;
}

/* ---- writing */

/* The message that this thread pickles for. References go into it while the pickle is made. */
typedef struct packing {
    far__py_state *st;
    far_message *message; /* NULL until something needs it */
    bool refused;         /* a reference could not be added, so another pickler will not help */
} packing;

static _Thread_local packing *packing_now;

int far__py_pack_rref(far__py_rref *rref, size_t *index)
{
    packing *p = packing_now;
    if (!p) {
        PyErr_SetString(PyExc_TypeError,
                        "an RRef is pickled only as an argument or result of a call: elsewhere its "
                        "value would not know of the copy");
        return -1;
    }
    far_status status = FAR_OK;
    if (!p->message)
        status = far_message_create(FAR_ENCODING_PICKLE, &p->message);
    if (status == FAR_OK)
        status = far_message_add_rref(p->message, rref->ref, index);
    if (status == FAR_OK)
        return 0;
    p->refused = true;
    far__py_rref_refused(rref, status);
    return -1;
}

static void packing_restart(packing *p)
{
    far_message_discard(p->message);
    p->message = NULL;
}

static void drop_bytes(void *arg)
{
    if (far__py_finished())
        return;
    PyGILState_STATE gil = far__py_enter();
    Py_DECREF((PyObject *)arg);
    far__py_leave(gil);
}

static far_status set_body(far_message *message, PyObject *bytes, char *data, size_t size)
{
    if (size <= FAR__PY_COPY_MAX)
        return far_message_append(message, data, size);
    far_buffer *buffer;
    far_status status = far_buffer_wrap(data, size, drop_bytes, Py_NewRef(bytes), 0, &buffer);
    if (status != FAR_OK) {
        Py_DECREF(bytes);
        return status;
    }
    return far_message_set_body(message, buffer);
}

/* Puts the pickle into `message`, or a new one for NULL; takes it. */
static far_message *put_pickle(far__py_state *st, far_message *message, PyObject *bytes)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(bytes, &data, &size) < 0)
        goto err_discard;
    far_status status = FAR_OK;
    if (!message)
        status = far_message_create(FAR_ENCODING_PICKLE, &message);
    if (status == FAR_OK)
        status = set_body(message, bytes, data, (size_t)size);
    if (status == FAR_OK)
        return message;
    far__py_raise(st, status, NULL);

err_discard:
    far_message_discard(message);
    return NULL;
}

far_message *far__py_pickled(far__py_state *st, PyObject *bytes)
{
    return put_pickle(st, NULL, bytes);
}

/* pickle's buffer_callback: true keeps the bytes inside the pickle. `self` is the list of the others. */
static PyObject *take_buffer(PyObject *self, PyObject *buffer)
{
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_ANY_CONTIGUOUS) < 0)
        return NULL;
    bool small = view.len == 0 || (view.len <= IN_BAND_MAX && !view.readonly);
    PyBuffer_Release(&view);
    if (small)
        Py_RETURN_TRUE;
    if (PyList_Append(self, buffer) < 0)
        return NULL;
    Py_RETURN_FALSE;
}

static PyMethodDef take_buffer_def = {"take_buffer", take_buffer, METH_O, NULL};

static PyObject *dump_general(far__py_state *st, PyObject *object, PyObject *callback)
{
    PyObject *args = PyTuple_Pack(1, object);
    PyObject *kwargs = PyDict_New();
    PyObject *bytes = NULL;
    if (args && kwargs && PyDict_SetItem(kwargs, st->str_protocol, st->protocol) == 0 &&
        PyDict_SetItem(kwargs, st->str_buffer_callback, callback) == 0)
        bytes = PyObject_Call(st->dumps, args, kwargs);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    return bytes;
}

/* What plain pickle refuses may go by value; its own complaint stays if that fails as well. */
static PyObject *dump_refused(packing *p, PyObject *object, PyObject *callback, PyObject *buffers)
{
    far__py_state *st = p->st;
    if (p->refused || !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    packing_restart(p);
    PyObject *refusal = far__py_take_exception();
    if (!refusal || PyList_SetSlice(buffers, 0, PyList_Size(buffers), NULL) < 0) {
        Py_XDECREF(refusal);
        return NULL;
    }
    PyObject *bytes =
        PyObject_CallFunctionObjArgs(st->dumps_by_value, object, callback, refusal, NULL);
    Py_DECREF(refusal);
    return bytes;
}

static far_message *add_segments(far__py_state *st, far_message *message, PyObject *buffers,
                                 bool copy)
{
    Py_ssize_t count = PyList_Size(buffers);
    for (Py_ssize_t i = 0; i < count; i++) {
        far_buffer *buffer = far__py_pin(st, PyList_GetItem(buffers, i), copy);
        if (!buffer)
            goto err_discard;
        far_status status = far_message_add_segment(message, buffer, NULL);
        if (status != FAR_OK) {
            far__py_raise(st, status, NULL);
            goto err_discard;
        }
    }
    return message;

err_discard:
    far_message_discard(message);
    return NULL;
}

static PyObject *dump(packing *p, PyObject *object, bool by_value, PyObject *callback,
                      PyObject *buffers)
{
    far__py_state *st = p->st;
    packing *outer = packing_now;
    PyObject *bytes;
    packing_now = p;
    if (by_value || st->console) {
        bytes = PyObject_CallFunctionObjArgs(st->dumps_by_value, object, callback, Py_None, NULL);
    } else {
        bytes = dump_general(st, object, callback);
        if (!bytes)
            bytes = dump_refused(p, object, callback, buffers);
    }
    packing_now = outer;
    return bytes;
}

static far_message *pickle_general(far__py_state *st, PyObject *object, const far__py_pack *pack)
{
    packing p = {.st = st};
    far_message *message = NULL;
    PyObject *bytes = NULL;
    PyObject *buffers = PyList_New(0);
    PyObject *callback = buffers ? PyCFunction_NewEx(&take_buffer_def, buffers, NULL) : NULL;
    if (callback)
        bytes = dump(&p, object, pack->by_value, callback, buffers);
    if (bytes)
        message = put_pickle(st, p.message, bytes);
    else
        packing_restart(&p);
    if (message)
        message = add_segments(st, message, buffers, pack->copy);
    Py_XDECREF(bytes);
    Py_XDECREF(callback);
    Py_XDECREF(buffers);
    if (!message && !p.refused)
        far__py_unsendable(st, pack->what, pack->name, "sent");
    return message;
}

far_message *far__py_pickle(far__py_state *st, PyObject *object, const far__py_pack *pack)
{
    int left = SIMPLE_ITEMS;
    if (pack->by_value || !simple(object, SIMPLE_DEPTH, &left))
        return pickle_general(st, object, pack);
    PyObject *args = PyTuple_Pack(2, object, st->protocol);
    PyObject *bytes = args ? PyObject_Call(st->dumps, args, NULL) : NULL;
    Py_XDECREF(args);
    far_message *message = bytes ? far__py_pickled(st, bytes) : NULL;
    Py_XDECREF(bytes);
    if (!message)
        far__py_unsendable(st, pack->what, pack->name, "sent");
    return message;
}

/* ---- reading */

/* The message that this thread unpickles. */
typedef struct reading {
    far__py_agent *agent;
    far_message *message;
    PyObject *made; /* index -> RRef; NULL: none was asked for yet */
} reading;

static _Thread_local reading *reading_now;

static PyObject *make_rref(reading *r, PyObject *number)
{
    size_t index = PyLong_AsSize_t(number);
    if (index == (size_t)-1 && PyErr_Occurred())
        return NULL;
    far_rref *ref;
    far_status status = far_message_rref(r->message, index, &ref);
    if (status == FAR_OK)
        return far__py_rref_new(r->agent, ref);
    if (status != FAR_EINVAL)
        return far__py_raise(r->agent->st, status, NULL);
    PyErr_Format(r->agent->st->SerializationError, "the message has no reference %zu", index);
    return NULL;
}

PyObject *far__py_read_rref(far__py_state *st, PyObject *index)
{
    reading *r = reading_now;
    if (!r) {
        PyErr_SetString(st->SerializationError,
                        "an RRef can be unpickled only out of the call that brought it");
        return NULL;
    }
    if (!r->made)
        r->made = PyDict_New();
    PyObject *rref = r->made ? PyDict_GetItemWithError(r->made, index) : NULL;
    if (rref)
        return Py_NewRef(rref);
    rref = PyErr_Occurred() ? NULL : make_rref(r, index);
    if (rref && PyDict_SetItem(r->made, index, rref) < 0)
        Py_CLEAR(rref);
    return rref;
}

/* Pickle wraps what was read-only at the sender by asking the buffer for a plain view. What arrives is
 * the receiver's own and writable, so those views answer that they are read-only already and pickle
 * leaves the buffer as it is. Only needed where the pickle has that pair of opcodes. */
static bool has_read_only(const unsigned char *body, size_t size)
{
    static const unsigned char next_buffer = 0x97, readonly_buffer = 0x98;
    for (const unsigned char *at = body, *end = body + size; at + 1 < end; at++) {
        at = memchr(at, next_buffer, (size_t)(end - at) - 1);
        if (!at)
            return false;
        if (at[1] == readonly_buffer)
            return true;
    }
    return false;
}

static void guard_all(PyObject *buffers, bool on)
{
    for (Py_ssize_t i = 0; i < PyList_Size(buffers); i++)
        far__py_buffer_guard(PyList_GetItem(buffers, i), on);
}

static PyObject *received_buffers(far__py_state *st, const far_message *message, size_t count)
{
    PyObject *buffers = PyList_New((Py_ssize_t)count);
    if (!buffers)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        PyObject *buffer = far__py_buffer_new(st, far_message_segment(message, i));
        if (!buffer || PyList_SetItem(buffers, (Py_ssize_t)i, buffer) < 0) {
            Py_DECREF(buffers);
            return NULL;
        }
    }
    return buffers;
}

static PyObject *load_general(far__py_state *st, const far_message *message, PyObject *args,
                              size_t count)
{
    PyObject *object = NULL;
    PyObject *buffers = received_buffers(st, message, count);
    PyObject *kwargs = buffers ? PyDict_New() : NULL;
    if (kwargs && PyDict_SetItem(kwargs, st->str_buffers, buffers) == 0) {
        bool guard = has_read_only(far_message_body(message), far_message_body_size(message));
        if (guard)
            guard_all(buffers, true);
        object = PyObject_Call(st->loads, args, kwargs);
        if (guard)
            guard_all(buffers, false);
    }
    Py_XDECREF(kwargs);
    Py_XDECREF(buffers);
    return object;
}

PyObject *far__py_unpickle(far__py_agent *agent, far_message *message)
{
    far__py_state *st = agent->st;
    const char *body = far_message_body(message);
    Py_ssize_t size = (Py_ssize_t)far_message_body_size(message);
    PyObject *data = size <= FAR__PY_COPY_MAX || !body
                         ? PyBytes_FromStringAndSize(size > 0 ? body : "", size)
                         : PyMemoryView_FromMemory((char *)(uintptr_t)body, size, PyBUF_READ);
    PyObject *args = data ? PyTuple_Pack(1, data) : NULL;
    Py_XDECREF(data);
    if (!args)
        return NULL;
    size_t count = far_message_segment_count(message);
    reading r = {.agent = agent, .message = message};
    reading *outer = reading_now;
    reading_now = &r;
    PyObject *object =
        count == 0 ? PyObject_Call(st->loads, args, NULL) : load_general(st, message, args, count);
    reading_now = outer;
    Py_XDECREF(r.made);
    Py_DECREF(args);
    return object;
}
