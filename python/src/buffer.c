/* SPDX-License-Identifier: BSD-3-Clause
 * buffer: memory of Python's objects as far_buffers to send, and received far_buffers as a Python type
 * with the buffer protocol, so that numpy arrays lie in them. Floor: Python. Thread: with the GIL;
 * free functions take it, so their buffers are never freed on a thread of the library. */
#include "farpy.h"

#include <string.h>

enum { UNLOCK_SIZE = 256 * 1024 }; /* copies from here on let other threads run */

/* ---- sent */

static void unpin(void *arg)
{
    if (far__py_finished())
        return;
    PyGILState_STATE gil = far__py_enter();
    PyBuffer_Release(arg);
    PyMem_Free(arg);
    far__py_leave(gil);
}

static far_buffer *copy_bytes(far__py_state *st, const void *data, size_t size)
{
    far_buffer *buffer = NULL;
    far_status status = far_buffer_alloc(size, &buffer);
    if (status != FAR_OK) {
        far__py_raise(st, status, NULL);
        return NULL;
    }
    if (size >= UNLOCK_SIZE) {
        Py_BEGIN_ALLOW_THREADS
        memcpy(far_buffer_data(buffer), data, size);
        Py_END_ALLOW_THREADS
    } else if (size > 0) {
        memcpy(far_buffer_data(buffer), data, size);
    }
    return buffer;
}

far_buffer *far__py_pin(far__py_state *st, PyObject *object, bool copy)
{
    far_buffer *buffer = NULL;
    Py_buffer *view = PyMem_Malloc(sizeof *view);
    if (!view) {
        PyErr_NoMemory();
        return NULL;
    }
    if (PyObject_GetBuffer(object, view, PyBUF_ANY_CONTIGUOUS) < 0)
        goto err_free_view;
    if (copy || view->len == 0) {
        buffer = copy_bytes(st, view->buf, (size_t)view->len);
        PyBuffer_Release(view);
        PyMem_Free(view);
        return buffer;
    }
    far_status status = far_buffer_wrap(view->buf, (size_t)view->len, unpin, view, 0, &buffer);
    if (status != FAR_OK) {
        far__py_raise(st, status, NULL);
        goto err_release_view;
    }
    return buffer;

err_release_view:
    PyBuffer_Release(view);
err_free_view:
    PyMem_Free(view);
    return NULL;
}

/* ---- received */

typedef struct buffer_object {
    PyObject_HEAD
    far_buffer *ref;
    const char *format; /* NULL: plain bytes */
    Py_ssize_t itemsize;
    int ndim;
    bool guarded;
    Py_ssize_t *dims; /* ndim sizes, then ndim strides */
} buffer_object;

static char nothing[1]; /* where the bytes of an empty buffer are */

PyObject *far__py_buffer_shaped(far__py_state *st, far_buffer *ref, const char *format,
                                Py_ssize_t itemsize, int ndim, const int64_t *shape)
{
    buffer_object *self = PyObject_New(buffer_object, st->buffer_type);
    if (!self)
        return NULL;
    self->ref = NULL;
    self->format = format;
    self->itemsize = itemsize;
    self->ndim = ndim;
    self->guarded = false;
    self->dims = NULL;
    if (ndim > 0) {
        self->dims = PyMem_Malloc(2 * (size_t)ndim * sizeof *self->dims);
        if (!self->dims) {
            Py_DECREF(self);
            return PyErr_NoMemory();
        }
        Py_ssize_t stride = itemsize;
        for (int i = ndim - 1; i >= 0; i--) {
            self->dims[i] = (Py_ssize_t)shape[i];
            self->dims[ndim + i] = stride;
            stride *= (Py_ssize_t)shape[i];
        }
    }
    self->ref = far_buffer_hold(ref);
    return (PyObject *)self;
}

PyObject *far__py_buffer_new(far__py_state *st, far_buffer *ref)
{
    int64_t size = (int64_t)far_buffer_size(ref);
    return far__py_buffer_shaped(st, ref, "B", 1, 1, &size);
}

void far__py_buffer_guard(PyObject *buffer, bool on)
{
    ((buffer_object *)buffer)->guarded = on;
}

static void buffer_dealloc(PyObject *object)
{
    buffer_object *self = (buffer_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    far_buffer *ref = self->ref;
    PyMem_Free(self->dims);
    PyObject_Free(object);
    Py_DECREF(type);
    far_buffer_release(ref);
}

static int buffer_get(PyObject *object, Py_buffer *view, int flags)
{
    buffer_object *self = (buffer_object *)object;
    size_t size = far_buffer_size(self->ref);
    view->buf = size > 0 ? far_buffer_data(self->ref) : nothing;
    view->obj = Py_NewRef(object);
    view->len = (Py_ssize_t)size;
    view->readonly = self->guarded && !(flags & PyBUF_WRITABLE);
    view->itemsize = self->itemsize;
    view->ndim = 1;
    view->format = NULL;
    view->shape = NULL;
    view->strides = NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    if (flags & PyBUF_FORMAT)
        view->format = (char *)(uintptr_t)self->format;
    if (flags & PyBUF_ND) {
        view->ndim = self->ndim;
        view->shape = self->dims;
    }
    if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES && self->ndim > 0)
        view->strides = self->dims + self->ndim;
    return 0;
}

static Py_ssize_t buffer_length(PyObject *object)
{
    return (Py_ssize_t)far_buffer_size(((buffer_object *)object)->ref);
}

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc,
     "Received memory: writable, alive as long as anything uses it. Made by farcall only."},
    {Py_tp_dealloc, buffer_dealloc},
    {Py_bf_getbuffer, buffer_get},
    {Py_sq_length, buffer_length},
    {0, NULL},
};

PyType_Spec far__py_buffer_spec = {
    .name = "farcall._farcall.Buffer",
    .basicsize = sizeof(buffer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = buffer_slots,
};
