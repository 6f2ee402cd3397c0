/* Items as the compiled loops see them: what `_loops.c` and `_versions.c` share. */

#ifndef EMBERFLOW_ITEMS_H
#define EMBERFLOW_ITEMS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* An item is (place, mark, payload), a place is (time, front, child ids...), perhaps a named tuple. */
#define PLACE(item) PyTuple_GET_ITEM(item, 0)
#define MARK(item) PyTuple_GET_ITEM(item, 1)
#define PAYLOAD(item) PyTuple_GET_ITEM(item, 2)

static inline int
is_item(PyObject *item)
{
    return PyTuple_CheckExact(item) && PyTuple_GET_SIZE(item) == 3
           && PyTuple_Check(PLACE(item)) && PyLong_CheckExact(MARK(item));
}

static inline int
is_tombstone(PyObject *item)
{
    return (int)(PyLong_AsUnsignedLongLongMask(MARK(item)) & 1);
}

/* Whether one place is before another: 1, 0, or -1 with an exception. Times mostly decide it. */
static inline int
is_before(PyObject *one, PyObject *other)
{
    if (PyTuple_Check(one) && PyTuple_Check(other) && PyTuple_GET_SIZE(one)
        && PyTuple_GET_SIZE(other)) {
        PyObject *first = PyTuple_GET_ITEM(one, 0), *second = PyTuple_GET_ITEM(other, 0);
        if (first != second && PyLong_CheckExact(first) && PyLong_CheckExact(second)) {
            int beyond = 0, beyond_too = 0;
            long long a = PyLong_AsLongLongAndOverflow(first, &beyond);
            long long b = PyLong_AsLongLongAndOverflow(second, &beyond_too);
            if (!beyond && !beyond_too && a != b)
                return a < b;
        }
    }
    return PyObject_RichCompareBool(one, other, Py_LT);
}

/* After a call that failed: the position for Python to go on at, or the exception if it is none of
 * the user's. */
static inline PyObject *
stopped_at(Py_ssize_t position)
{
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyErr_Clear();
    }
    return PyLong_FromSsize_t(position);
}

/* Take a new tuple, if there is one, out of the garbage collector's sight where no cycle can go through
 * it, as the collector would itself when it first met it. Later that would mean to touch the tuples made
 * before and after it, wherever they are in memory: most of what it costs to let go of an old one. */
static inline PyObject *
unseen(PyObject *tuple)
{
    Py_ssize_t i;

    if (tuple == NULL)
        return NULL;
    for (i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *each = PyTuple_GET_ITEM(tuple, i);
        if (PyObject_IS_GC(each) && (!PyTuple_CheckExact(each) || PyObject_GC_IsTracked(each)))
            return tuple;
    }
    if (PyTuple_GET_SIZE(tuple))
        PyObject_GC_UnTrack(tuple);
    return tuple;
}

/* The first so many numbers of a place, and others behind them. */
static inline PyObject *
concatenated(PyObject *place, Py_ssize_t ahead, PyObject *suffix)
{
    Py_ssize_t behind = PyTuple_GET_SIZE(suffix), i;
    PyObject *made = PyTuple_New(ahead + behind);
    if (made == NULL)
        return NULL;
    for (i = 0; i < ahead; i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef(PyTuple_GET_ITEM(place, i)));
    for (i = 0; i < behind; i++)
        PyTuple_SET_ITEM(made, ahead + i, Py_NewRef(PyTuple_GET_ITEM(suffix, i)));
    return unseen(made);
}

static inline PyObject *
item_of(PyObject *place, PyObject *mark, PyObject *payload)
{
    PyObject *made = PyTuple_New(3);
    if (made == NULL)
        return NULL;
    PyTuple_SET_ITEM(made, 0, Py_NewRef(place));
    PyTuple_SET_ITEM(made, 1, Py_NewRef(mark));
    PyTuple_SET_ITEM(made, 2, Py_NewRef(payload));
    return unseen(made);
}

/* Append what is given away; -1 if it cannot be, or was not made. */
static inline int
append_made(PyObject *list, PyObject *made)
{
    int result;
    if (made == NULL)
        return -1;
    result = PyList_Append(list, made);
    Py_DECREF(made);
    return result;
}

#endif
