/* SPDX-License-Identifier: BSD-3-Clause
 * limits: timeouts as Python gives them (None, seconds, timedelta) to farcall's nanoseconds.
 * Floor: Python. Thread: with the GIL. */
#include "farpy.h"

#include <math.h>
#include <time.h>

const far__py_limit_kind far__py_limit_call = {FAR_TIMEOUT_DEFAULT, FAR_NO_LIMIT, FAR_NO_LIMIT};
const far__py_limit_kind far__py_limit_wait = {FAR_FOREVER, 0, FAR_FOREVER};
const far__py_limit_kind far__py_limit_plain = {FAR_NO_LIMIT, FAR_NO_LIMIT, FAR_NO_LIMIT};

/* Above this many seconds a duration does not fit; nobody waits 290 years. */
static const double endless_seconds = 9.2e9;

far_duration far__py_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (far_duration)now.tv_sec * FAR_SECOND + now.tv_nsec;
}

static int seconds_of_int(PyObject *number, double *out)
{
    PyObject *integer = PyNumber_Index(number);
    if (!integer)
        return -1;
    int overflow = 0;
    long long value = PyLong_AsLongLongAndOverflow(integer, &overflow);
    Py_DECREF(integer);
    if (overflow) {
        *out = overflow > 0 ? (double)INFINITY : -1.0;
        return 0;
    }
    if (value == -1 && PyErr_Occurred())
        return -1;
    *out = (double)value;
    return 0;
}

static int seconds_of(far__py_state *st, PyObject *limit, double *out)
{
    if (PyFloat_Check(limit)) {
        *out = PyFloat_AsDouble(limit);
        return 0;
    }
    if (!PyBool_Check(limit) && PyIndex_Check(limit))
        return seconds_of_int(limit, out);
    int is_delta = PyObject_IsInstance(limit, st->timedelta);
    if (is_delta < 0)
        return -1;
    if (is_delta) {
        PyObject *seconds = PyObject_CallMethod(limit, "total_seconds", NULL);
        if (!seconds)
            return -1;
        *out = PyFloat_AsDouble(seconds);
        Py_DECREF(seconds);
        return *out == -1.0 && PyErr_Occurred() ? -1 : 0;
    }
    PyErr_Format(PyExc_TypeError,
                 "a timeout is None, seconds (int or float) or a timedelta, not %R of %R", limit,
                 Py_TYPE(limit));
    return -1;
}

int far__py_limit(far__py_state *st, PyObject *limit, const far__py_limit_kind *kind,
                  far_duration *out)
{
    if (!limit || limit == Py_None) {
        *out = kind->none;
        return 0;
    }
    double seconds;
    if (seconds_of(st, limit, &seconds) < 0)
        return -1;
    if (isnan(seconds) || seconds < 0) {
        PyErr_Format(PyExc_ValueError, "a timeout is 0 (no limit) or more, not %R", limit);
        return -1;
    }
    if (seconds == 0) {
        *out = kind->zero;
    } else if (seconds >= endless_seconds) {
        *out = kind->endless;
    } else {
        /* However small, it is a limit: 0 would mean that there is none. */
        far_duration ns = (far_duration)llround(seconds * 1e9);
        *out = ns > 0 ? ns : 1;
    }
    return 0;
}
