/* The buckets that a capture has still to look at, and those that it has seen, for `_loops.c`. The twins are in
 * `engine.cuts.noted`, which says what both guarantee.
 *
 * A cut of a million changed keys looks at a million addresses. Mostly the time goes into waiting for memory, so
 * each bucket is looked up once, and the objects in between are few.
 */

#ifndef EMBERFLOW_NOTED_H
#define EMBERFLOW_NOTED_H

#include "arguments.h"
#include <stdint.h>

/* In which set an address is: the greater of two of its digits. */
#define SETS 64
#define DIGIT_AT(address, shift) ((address) >> (shift) & (SETS - 1))

static inline Py_ssize_t
set_of(uintptr_t address)
{
    uintptr_t low = DIGIT_AT(address, 6), high = DIGIT_AT(address, 12);
    return (Py_ssize_t)(low > high ? low : high);
}

/* The number of an object, as `id` gives it, goes into the set for its address: 1 if it was not there, 0 if it
 * was, -1 with an exception. */
static inline int
add_seen(PyObject *sets, PyObject *object)
{
    PyObject *number = PyLong_FromVoidPtr(object), *set;
    Py_ssize_t before;
    int failed;

    if (number == NULL)
        return -1;
    set = PyList_GET_ITEM(sets, set_of((uintptr_t)object));
    before = PySet_GET_SIZE(set);
    failed = PySet_Add(set, number);
    Py_DECREF(number);
    return failed ? -1 : PySet_GET_SIZE(set) > before;
}

/* fresh(objects, sets) -> list */
static PyObject *
fresh(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"objects", A_LIST}, {"sets", A_LIST}};
    PyObject *objects, *sets, *found;
    Py_ssize_t i;

    if (CHECK_ARGUMENTS("fresh", parameters)
        || check_members("fresh", 1, "sets", args[1], A_SET))
        return NULL;
    objects = args[0], sets = args[1];
    if (PyList_GET_SIZE(sets) != SETS) {
        PyErr_Format(PyExc_ValueError, "fresh: argument 2 (`sets`) must have %d sets, got %zd", SETS,
                     PyList_GET_SIZE(sets));
        return NULL;
    }
    found = PyList_New(0);
    for (i = 0; found != NULL && i < PyList_GET_SIZE(objects); i++) {
        int is_new = add_seen(sets, PyList_GET_ITEM(objects, i));
        if (is_new < 0 || (is_new && PyList_Append(found, PyList_GET_ITEM(objects, i))))
            Py_CLEAR(found);
    }
    return found;
}

/* popped(values, most) -> list */
static PyObject *
popped(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"values", A_DICT}, {"most", AN_INT}};
    PyObject *values, *found, *name;
    Py_ssize_t left;

    if (CHECK_ARGUMENTS("popped", parameters))
        return NULL;
    values = args[0];
    left = natural_argument("popped", 1, "most", args[1]);
    if (left < 0)
        return NULL;
    name = PyUnicode_InternFromString("popitem");
    found = name == NULL ? NULL : PyList_New(0);
    for (; found != NULL && left && PyDict_GET_SIZE(values); left--) {
        PyObject *item = PyObject_CallMethodNoArgs(values, name);
        if (item == NULL || PyList_Append(found, PyTuple_GET_ITEM(item, 1)))
            Py_CLEAR(found);
        Py_XDECREF(item);
    }
    Py_XDECREF(name);
    return found;
}

#endif
