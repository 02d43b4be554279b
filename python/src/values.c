/* SPDX-License-Identifier: BSD-3-Clause
 * values: Python objects to the values that every language can read, and back; calls by exported name
 * use them. Floor: Python. Thread: with the GIL. */
#include "farpy.h"

#include <dlpack/dlpack.h>
#include <string.h>

/* Codes of DLPack; 6 is bool there since 0.8. */
enum { CODE_INT = 0, CODE_UINT = 1, CODE_FLOAT = 2, CODE_COMPLEX = 5, CODE_BOOL = 6 };

typedef struct dtype {
    const char *format; /* of the buffer protocol, in native sizes */
    uint8_t code, bits;
} dtype;

static const dtype dtypes[] = {
    {"b", CODE_INT, 8},    {"h", CODE_INT, 16},      {"i", CODE_INT, 32},
    {"q", CODE_INT, 64},   {"l", CODE_INT, 64},      {"B", CODE_UINT, 8},
    {"H", CODE_UINT, 16},  {"I", CODE_UINT, 32},     {"Q", CODE_UINT, 64},
    {"L", CODE_UINT, 64},  {"e", CODE_FLOAT, 16},    {"f", CODE_FLOAT, 32},
    {"d", CODE_FLOAT, 64}, {"Zf", CODE_COMPLEX, 64}, {"Zd", CODE_COMPLEX, 128},
    {"?", CODE_BOOL, 8},
};

/* ---- writing */

typedef struct writer {
    far__py_state *st;
    far_message *message;
    bool copy;
} writer;

static int check(far__py_state *st, far_status status)
{
    if (status == FAR_OK)
        return 0;
    far__py_raise(st, status, NULL);
    return -1;
}

static int put(writer *w, PyObject *object);

static int put_int(writer *w, PyObject *object)
{
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (value == -1 && PyErr_Occurred())
        return -1;
    if (overflow == 0)
        return check(w->st, far_message_put_int(w->message, value));
    if (overflow > 0) {
        unsigned long long large = PyLong_AsUnsignedLongLong(object);
        if (!PyErr_Occurred())
            return check(w->st, far_message_put_uint(w->message, large));
        PyErr_Clear();
    }
    PyErr_SetString(PyExc_OverflowError, "an int that does not fit 64 bits");
    return -1;
}

static int put_string(writer *w, PyObject *object)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(object, &size);
    if (!text)
        return -1;
    return check(w->st, far_message_put_string(w->message, text, (size_t)size));
}

static int put_bytes(writer *w, PyObject *object)
{
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) < 0)
        return -1;
    int rc = check(w->st, far_message_put_bytes(w->message, view.buf, (size_t)view.len));
    PyBuffer_Release(&view);
    return rc;
}

static int put_count(writer *w, Py_ssize_t count, far_status (*put_header)(far_message *, uint32_t))
{
    if (count > (Py_ssize_t)UINT32_MAX) {
        far__py_raise(w->st, FAR_ETOOBIG, NULL);
        return -1;
    }
    return check(w->st, put_header(w->message, (uint32_t)count));
}

static int put_sequence(writer *w, PyObject *object)
{
    Py_ssize_t count = PySequence_Size(object);
    if (count < 0 || put_count(w, count, far_message_put_list) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(object, i);
        int rc = item ? put(w, item) : -1;
        Py_XDECREF(item);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static int put_dict(writer *w, PyObject *object)
{
    Py_ssize_t count = PyDict_Size(object), at = 0, seen = 0;
    PyObject *key, *value;
    if (put_count(w, count, far_message_put_map) < 0)
        return -1;
    while (PyDict_Next(object, &at, &key, &value)) {
        if (++seen > count)
            break;
        Py_INCREF(key);
        Py_INCREF(value);
        int rc = put(w, key) < 0 || put(w, value) < 0 ? -1 : 0;
        Py_DECREF(key);
        Py_DECREF(value);
        if (rc < 0)
            return -1;
    }
    if (seen == count)
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "a dict changed its size while it was read");
    return -1;
}

static int describe(const Py_buffer *view, far_tensor *out)
{
    const char *format = view->format ? view->format : "B";
    if (*format == '<' || *format == '=' || *format == '@')
        format++;
    if (view->ndim > FAR_TENSOR_DIMS_MAX) {
        PyErr_Format(PyExc_TypeError, "an array of %d dimensions, the limit is %d", view->ndim,
                     FAR_TENSOR_DIMS_MAX);
        return -1;
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].format, format) != 0 || view->itemsize * 8 != dtypes[i].bits)
            continue;
        *out = (far_tensor){.dtype_code = dtypes[i].code,
                            .dtype_bits = dtypes[i].bits,
                            .dtype_lanes = 1,
                            .ndim = view->ndim};
        for (int d = 0; d < view->ndim; d++)
            out->shape[d] = view->shape[d];
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "an array whose items are '%s' (%zd bytes)",
                 view->format ? view->format : "?", view->itemsize);
    return -1;
}

static far_buffer *pack_strided(writer *w, Py_buffer *view)
{
    far_buffer *buffer = NULL;
    if (check(w->st, far_buffer_alloc((size_t)view->len, &buffer)) < 0)
        return NULL;
    if (PyBuffer_ToContiguous(far_buffer_data(buffer), view, view->len, 'C') < 0) {
        far_buffer_release(buffer);
        return NULL;
    }
    return buffer;
}

static int put_array(writer *w, PyObject *object)
{
    Py_buffer view;
    far_tensor tensor;
    if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0)
        return -1;
    far_buffer *buffer = NULL;
    if (describe(&view, &tensor) == 0)
        buffer = PyBuffer_IsContiguous(&view, 'C') ? far__py_pin(w->st, object, w->copy)
                                                   : pack_strided(w, &view);
    PyBuffer_Release(&view);
    if (!buffer)
        return -1;
    return check(w->st, far_message_put_buffer(w->message, &tensor, buffer));
}

/* A DLPack producer's deleter may need Python, so it is put behind one that takes the GIL. */
typedef struct owned_tensor {
    DLManagedTensor outer;
    DLManagedTensor *inner;
} owned_tensor;

static void delete_tensor(DLManagedTensor *outer)
{
    owned_tensor *owned = outer->manager_ctx;
    if (far__py_finished())
        return;
    PyGILState_STATE gil = far__py_enter();
    if (owned->inner->deleter)
        owned->inner->deleter(owned->inner);
    PyMem_Free(owned);
    far__py_leave(gil);
}

static int put_dlpack(writer *w, PyObject *object)
{
    PyObject *capsule = PyObject_CallMethod(object, "__dlpack__", NULL);
    if (!capsule)
        return -1;
    DLManagedTensor *inner = PyCapsule_GetPointer(capsule, "dltensor");
    owned_tensor *owned = inner ? PyMem_Malloc(sizeof *owned) : NULL;
    if (!owned) {
        if (inner)
            PyErr_NoMemory();
        Py_DECREF(capsule);
        return -1;
    }
    if (PyCapsule_SetName(capsule, "used_dltensor") < 0) {
        PyMem_Free(owned);
        Py_DECREF(capsule);
        return -1;
    }
    Py_DECREF(capsule);
    owned->inner = inner;
    owned->outer.dl_tensor = inner->dl_tensor;
    owned->outer.manager_ctx = owned;
    owned->outer.deleter = delete_tensor;
    return check(w->st, far_message_put_tensor(w->message, &owned->outer));
}

static int put_other(writer *w, PyObject *object)
{
    bool dlpack = PyObject_HasAttrString(object, "__dlpack__");
    if (!dlpack && PyObject_HasAttrString(object, "dtype") &&
        PyObject_HasAttrString(object, "item")) {
        PyObject *item = PyObject_CallMethod(object, "item", NULL); /* a numpy scalar */
        int rc = item && Py_TYPE(item) != Py_TYPE(object) ? put(w, item) : -1;
        Py_XDECREF(item);
        if (rc == 0 || PyErr_Occurred())
            return rc;
    } else if (!dlpack && PyIndex_Check(object)) {
        PyObject *integer = PyNumber_Index(object);
        int rc = integer ? put_int(w, integer) : -1;
        Py_XDECREF(integer);
        return rc;
    } else if (PyMemoryView_Check(object)) {
        return put_bytes(w, object);
    } else if (PyObject_CheckBuffer(object)) {
        return put_array(w, object);
    } else if (dlpack) {
        return put_dlpack(w, object);
    }
    PyErr_Format(PyExc_TypeError,
                 "a call by exported name carries None, bool, int, float, str, bytes, list, tuple, "
                 "dict and arrays, not %R",
                 Py_TYPE(object));
    return -1;
}

static int put_nested(writer *w, PyObject *object)
{
    if (PyTuple_Check(object) || PyList_Check(object))
        return put_sequence(w, object);
    if (PyDict_Check(object))
        return put_dict(w, object);
    return put_other(w, object);
}

static int put(writer *w, PyObject *object)
{
    if (object == Py_None)
        return check(w->st, far_message_put_nil(w->message));
    if (PyBool_Check(object))
        return check(w->st, far_message_put_bool(w->message, object == Py_True));
    if (PyLong_Check(object))
        return put_int(w, object);
    if (PyFloat_Check(object))
        return check(w->st, far_message_put_float(w->message, PyFloat_AsDouble(object)));
    if (PyUnicode_Check(object))
        return put_string(w, object);
    if (PyBytes_Check(object) || PyByteArray_Check(object))
        return put_bytes(w, object);
    if (Py_EnterRecursiveCall(" while reading values to send"))
        return -1;
    int rc = put_nested(w, object);
    Py_LeaveRecursiveCall();
    return rc;
}

static far_message *finish(writer *w, int rc, const far__py_pack *pack)
{
    if (rc == 0)
        return w->message;
    far_message_discard(w->message);
    far__py_unsendable(w->st, pack->what, pack->name, "sent");
    return NULL;
}

far_message *far__py_values_call(far__py_state *st, PyObject *args, PyObject *kwargs,
                                 const far__py_pack *pack)
{
    writer w = {.st = st, .copy = pack->copy};
    if (check(st, far_message_create(FAR_ENCODING_VALUES, &w.message)) < 0)
        return NULL;
    int rc = put(&w, args);
    if (rc == 0)
        rc = kwargs ? put(&w, kwargs) : check(st, far_message_put_map(w.message, 0));
    return finish(&w, rc, pack);
}

far_message *far__py_values_result(far__py_state *st, PyObject *value, const far__py_pack *pack)
{
    writer w = {.st = st, .copy = pack->copy};
    if (check(st, far_message_create(FAR_ENCODING_VALUES, &w.message)) < 0)
        return NULL;
    return finish(&w, put(&w, value), pack);
}

/* ---- reading */

typedef struct reader {
    far__py_state *st;
    far_message *message;
} reader;

static PyObject *get(const reader *r, const far_value *value);

static PyObject *get_list(const reader *r, const far_value *value)
{
    size_t count = value->as.list.count;
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *item = get(r, &value->as.list.items[i]);
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *get_map(const reader *r, const far_value *value)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < value->as.list.count; i++) {
        PyObject *key = get(r, &value->as.list.items[2 * i]);
        PyObject *item = key ? get(r, &value->as.list.items[2 * i + 1]) : NULL;
        if (!item || PyDict_SetItem(dict, key, item) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(item);
        Py_XDECREF(key);
    }
    return dict;
}

static PyObject *asarray(far__py_state *st)
{
    if (!st->numpy_asarray) {
        PyObject *numpy = PyImport_ImportModule("numpy");
        if (!numpy) {
            if (!PyErr_ExceptionMatches(PyExc_ImportError))
                return NULL;
            PyErr_Clear();
            st->numpy_asarray = Py_NewRef(Py_None);
        } else {
            st->numpy_asarray = PyObject_GetAttrString(numpy, "asarray");
            Py_DECREF(numpy);
        }
    }
    return st->numpy_asarray;
}

static PyObject *get_tensor(const reader *r, const far_value *value)
{
    const far_tensor *tensor = value->as.tensor;
    const dtype *found = NULL;
    for (size_t i = 0; !found && i < sizeof dtypes / sizeof *dtypes; i++) {
        if (dtypes[i].code == tensor->dtype_code && dtypes[i].bits == tensor->dtype_bits)
            found = &dtypes[i];
    }
    if (!found || tensor->dtype_lanes != 1) {
        PyErr_Format(r->st->SerializationError,
                     "a tensor of DLPack type %d, %d bits, %d lanes has no numpy type",
                     tensor->dtype_code, tensor->dtype_bits, tensor->dtype_lanes);
        return NULL;
    }
    far_buffer *held = NULL, *buffer = far_message_segment(r->message, tensor->segment);
    if (!buffer) {
        if (check(r->st, far_buffer_alloc(0, &held)) < 0)
            return NULL;
        buffer = held;
    }
    PyObject *shaped = far__py_buffer_shaped(r->st, buffer, found->format, found->bits / 8,
                                             tensor->ndim, tensor->shape);
    far_buffer_release(held);
    PyObject *wrap = shaped ? asarray(r->st) : NULL;
    PyObject *array = NULL;
    if (wrap)
        array = wrap == Py_None ? PyMemoryView_FromObject(shaped)
                                : PyObject_CallFunctionObjArgs(wrap, shaped, NULL);
    Py_XDECREF(shaped);
    return array;
}

static PyObject *get(const reader *r, const far_value *value)
{
    switch (value->kind) {
    case FAR_NIL: Py_RETURN_NONE;
    case FAR_BOOL: return PyBool_FromLong(value->as.boolean);
    case FAR_INT: return PyLong_FromLongLong(value->as.integer);
    case FAR_UINT: return PyLong_FromUnsignedLongLong(value->as.unsigned_integer);
    case FAR_FLOAT: return PyFloat_FromDouble(value->as.real);
    case FAR_STRING:
        return PyUnicode_DecodeUTF8(value->as.bytes.data, (Py_ssize_t)value->as.bytes.size, NULL);
    case FAR_BYTES:
        return PyBytes_FromStringAndSize(value->as.bytes.data, (Py_ssize_t)value->as.bytes.size);
    case FAR_TENSOR: return get_tensor(r, value);
    case FAR_LIST:
    case FAR_MAP: break;
    }
    if (Py_EnterRecursiveCall(" while reading received values"))
        return NULL;
    PyObject *object = value->kind == FAR_LIST ? get_list(r, value) : get_map(r, value);
    Py_LeaveRecursiveCall();
    return object;
}

PyObject *far__py_values_read_call(far__py_state *st, far_message *message)
{
    const far_value *values;
    size_t count;
    if (check(st, far_message_values(message, &values, &count)) < 0)
        return NULL;
    if (count < 1 || count > 2 || values[0].kind != FAR_LIST ||
        (count == 2 && values[1].kind != FAR_MAP)) {
        PyErr_SetString(st->SerializationError,
                        "a call by name carries a list of positional arguments, then a map of "
                        "keyword arguments");
        return NULL;
    }
    const reader r = {st, message};
    PyObject *list = get(&r, &values[0]);
    PyObject *args = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    PyObject *kwargs = args && count == 2 ? get(&r, &values[1]) : NULL;
    PyObject *pair = NULL;
    if (args && (kwargs || count == 1))
        pair = PyTuple_Pack(2, args, kwargs ? kwargs : Py_None);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    return pair;
}

static PyObject *read_values_result(far__py_state *st, far_message *message)
{
    const far_value *values;
    size_t count;
    if (check(st, far_message_values(message, &values, &count)) < 0)
        return NULL;
    const reader r = {st, message};
    if (count == 1)
        return get(&r, &values[0]);
    if (count == 0)
        Py_RETURN_NONE;
    const far_value all = {.kind = FAR_LIST, .as.list = {values, count}};
    return get(&r, &all);
}

/* The body as bytes, then each segment as writable memory. */
static PyObject *read_raw(far__py_state *st, const far_message *message)
{
    size_t count = far_message_segment_count(message);
    PyObject *parts = PyTuple_New((Py_ssize_t)count + 1);
    if (!parts)
        return NULL;
    PyObject *part = PyBytes_FromStringAndSize(far_message_body(message),
                                               (Py_ssize_t)far_message_body_size(message));
    if (!part || PyTuple_SetItem(parts, 0, part) < 0)
        goto err_drop_parts;
    for (size_t i = 0; i < count; i++) {
        PyObject *buffer = far__py_buffer_new(st, far_message_segment(message, i));
        part = buffer ? PyMemoryView_FromObject(buffer) : NULL;
        Py_XDECREF(buffer);
        if (!part || PyTuple_SetItem(parts, (Py_ssize_t)i + 1, part) < 0)
            goto err_drop_parts;
    }
    return parts;

err_drop_parts:
    Py_DECREF(parts);
    return NULL;
}

PyObject *far__py_raw_read_call(far__py_state *st, far_message *message)
{
    PyObject *args = read_raw(st, message);
    PyObject *pair = args ? PyTuple_Pack(2, args, Py_None) : NULL;
    Py_XDECREF(args);
    return pair;
}

PyObject *far__py_read_result(far__py_agent *agent, far_message *message)
{
    far__py_state *st = agent->st;
    switch (far_message_encoding(message)) {
    case FAR_ENCODING_PICKLE: return far__py_unpickle(agent, message);
    case FAR_ENCODING_VALUES: return read_values_result(st, message);
    case FAR_ENCODING_RAW: break;
    }
    PyObject *parts = read_raw(st, message);
    if (!parts || PyTuple_Size(parts) > 1)
        return parts;
    PyObject *only = Py_NewRef(PyTuple_GetItem(parts, 0));
    Py_DECREF(parts);
    return only;
}
