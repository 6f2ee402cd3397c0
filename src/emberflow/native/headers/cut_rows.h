/* The layout of a row of a cut, as C sees it. `engine.cuts.cut.Row` is the definition: whoever makes or
 * reads rows in C is told that type once, by `prepare`, and refuses it if its fields are not these. */

#ifndef EMBERFLOW_CUT_ROWS_H
#define EMBERFLOW_CUT_ROWS_H

#include "arguments.h"

enum { ROW_OPERATION, ROW_KEY_HASH, ROW_KEY, ROW_PLACE, ROW_PAYLOAD, ROW_SIZE };

/* Whether the fields of a named tuple are these: 1, 0, or -1 with an exception. */
static inline int
has_row_fields(PyObject *type)
{
    static const char *const names[ROW_SIZE] = {"operation", "key_hash", "key", "place", "payload"};
    PyObject *name, *fields;
    int same, i;

    if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type))
        return 0;
    name = PyUnicode_InternFromString("_fields");
    fields = name == NULL ? NULL : PyObject_GetAttr(type, name);
    Py_XDECREF(name);
    if (fields == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    same = PyTuple_Check(fields) && PyTuple_GET_SIZE(fields) == ROW_SIZE;
    for (i = 0; same && i < ROW_SIZE; i++)
        same = PyUnicode_Check(PyTuple_GET_ITEM(fields, i))
               && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(fields, i), names[i]) == 0;
    Py_DECREF(fields);
    return same;
}

/* The type of rows, a new reference, if it is an argument of `prepare`; NULL with an exception. */
static inline PyObject *
row_argument(Py_ssize_t position, PyObject *type)
{
    int same = has_row_fields(type);

    if (same > 0)
        return Py_NewRef(type);
    if (same == 0)
        PyErr_Format(PyExc_TypeError,
                     "prepare: argument %zd (`row`) must be a named tuple of the fields operation, "
                     "key_hash, key, place and payload, got %R",
                     position + 1, type);
    return NULL;
}

/* What a function says that needs what `prepare` is told, and was called before it. */
static inline PyObject *
unprepared(const char *function)
{
    PyErr_Format(PyExc_RuntimeError, "%s: prepare() comes first", function);
    return NULL;
}

#endif
