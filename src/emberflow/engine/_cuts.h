/* What cuts take from buckets: what `_loops.c` and `_versions.c` share. See `cut.py`. */

#ifndef EMBERFLOW_CUTS_H
#define EMBERFLOW_CUTS_H

#include "_hashing.h"
#include "_items.h"

#define ROW_SIZE 5

/* How many entries of a list, which are in order and begin with their place, are below a moment; -1 with
 * an exception. */
static inline Py_ssize_t
below(PyObject *entries, PyObject *moment)
{
    Py_ssize_t low = 0, high = PyList_GET_SIZE(entries);
    int before;

    if (!high)
        return 0;
    before = is_before(PLACE(PyList_GET_ITEM(entries, high - 1)), moment); /* mostly */
    if (before)
        return before < 0 ? -1 : high;
    high--;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        before = is_before(PLACE(PyList_GET_ITEM(entries, middle)), moment);
        if (before < 0)
            return -1;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Whether the type is `cut.Row`, or another tuple of as many fields. */
static inline int
is_row_type(PyObject *type)
{
    return PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type);
}

/* Row(operation, hash, key, place, value); None if the key is not common. */
static inline PyObject *
row_of(PyTypeObject *type, PyObject *operation, PyObject *key, PyObject *place, PyObject *value)
{
    PyObject *row, *hashed;
    uint32_t hash;

    if (!hash_of_common(key, &hash))
        Py_RETURN_NONE;
    hashed = PyLong_FromLong((int32_t)hash);
    row = hashed == NULL ? NULL : type->tp_alloc(type, ROW_SIZE);
    if (row == NULL) {
        Py_XDECREF(hashed);
        return NULL;
    }
    PyTuple_SET_ITEM(row, 0, Py_NewRef(operation));
    PyTuple_SET_ITEM(row, 1, hashed);
    PyTuple_SET_ITEM(row, 2, Py_NewRef(key));
    PyTuple_SET_ITEM(row, 3, Py_NewRef(place));
    PyTuple_SET_ITEM(row, 4, Py_NewRef(value));
    return row;
}

#endif
