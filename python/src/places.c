/* SPDX-License-Identifier: BSD-3-Clause
 * places: functions and their names on the wire. A place is the tuple (dict of the module, first name,
 * further names or None, method name) that names.py makes; it is walked anew at every use, so a
 * function that was replaced meanwhile is never called by mistake. Floor: Python. Thread: with the GIL. */
#include "farpy.h"

#include <string.h>

enum { CACHE_MAX = 8192 }; /* entries; a cache that is full starts anew */

/* What is at a place now; new reference, NULL without an error if there is nothing. */
static PyObject *walk(PyObject *place)
{
    PyObject *object =
        PyDict_GetItemWithError(PyTuple_GetItem(place, 0), PyTuple_GetItem(place, 1));
    PyObject *rest = PyTuple_GetItem(place, 2);
    if (!object)
        return NULL;
    Py_INCREF(object);
    if (rest == Py_None)
        return object;
    for (Py_ssize_t i = 0; object && i < PyTuple_Size(rest); i++) {
        PyObject *next = PyObject_GetAttr(object, PyTuple_GetItem(rest, i));
        Py_DECREF(object);
        object = next;
    }
    if (!object && PyErr_ExceptionMatches(PyExc_AttributeError))
        PyErr_Clear();
    return object;
}

static int remember(PyObject *cache, PyObject *key, PyObject *place)
{
    if (PyDict_Size(cache) >= CACHE_MAX)
        PyDict_Clear(cache);
    return PyDict_SetItem(cache, key, place);
}

/* Kinds whose equality is identity, so that they can be keys without surprises. */
static bool is_key(const far__py_state *st, PyObject *func)
{
    PyObject *type = (PyObject *)Py_TYPE(func);
    return type == st->function_type || type == (PyObject *)&PyCFunction_Type ||
           type == (PyObject *)&PyType_Type || type == st->method_descriptor;
}

PyObject *far__py_method_of(far__py_state *st, PyObject *func)
{
    bool key = is_key(st, func);
    PyObject *place = key ? PyDict_GetItemWithError(st->sent, func) : NULL;
    if (place) {
        Py_INCREF(place);
        PyObject *found = walk(place);
        PyObject *method = found == func ? Py_NewRef(PyTuple_GetItem(place, 3)) : NULL;
        Py_XDECREF(found);
        Py_DECREF(place);
        if (method)
            return method;
    }
    if (PyErr_Occurred())
        return NULL;
    place = PyObject_CallFunctionObjArgs(st->place_of, func, NULL);
    if (!place || !PyTuple_Check(place))
        return place;
    PyObject *method = NULL;
    if (!key || remember(st->sent, func, place) == 0)
        method = Py_NewRef(PyTuple_GetItem(place, 3));
    Py_DECREF(place);
    return method;
}

static PyObject *importable(far__py_state *st, PyObject *name)
{
    PyObject *place = PyDict_GetItemWithError(st->resolved, name);
    if (place) {
        Py_INCREF(place);
        PyObject *found = walk(place);
        Py_DECREF(place);
        if (found)
            return found;
    }
    if (PyErr_Occurred())
        return NULL;
    PyObject *pair = PyObject_CallFunctionObjArgs(st->resolve, name, NULL);
    if (!pair)
        return NULL;
    PyObject *func = Py_NewRef(PyTuple_GetItem(pair, 0));
    place = PyTuple_GetItem(pair, 1);
    if (place != Py_None && remember(st->resolved, name, place) < 0)
        Py_CLEAR(func);
    Py_DECREF(pair);
    return func;
}

PyObject *far__py_function(far__py_state *st, const char *method)
{
    PyObject *name = far__py_text(method);
    if (!name)
        return NULL;
    PyObject *func = NULL;
    if (strncmp(method, "py:", 3) == 0) {
        func = importable(st, name);
    } else {
        func = PyDict_GetItemWithError(st->exports, name);
        Py_XINCREF(func);
        if (!func && !PyErr_Occurred())
            PyErr_Format(st->UnknownFunctionError,
                         "the worker that was called exports no function '%U'; "
                         "farcall.export('%U') there does that",
                         name, name);
    }
    Py_DECREF(name);
    return func;
}
