/* What a bucket holds: a list of entries in order, each a tuple that begins with its place. How trims and
 * cuts go through many of them, for `_loops.c` and `_versions.c`. See `trimming.py` and `cut.py`.
 *
 * What waits for memory is done for AHEAD buckets at once, step by step: the list, the end of the list,
 * the entry, its place. Each step asks for what the next one needs of all of them, so they come in
 * together and not one after another.
 */

#ifndef EMBERFLOW_BUCKETS_H
#define EMBERFLOW_BUCKETS_H

#include "_hashing.h"
#include "_items.h"

#define AHEAD 16
#define ROW_SIZE 5

#if defined(__GNUC__)
#define FETCH(address) __builtin_prefetch(address)
#else
#define FETCH(address) ((void)(address))
#endif

static inline PyObject *
entry_at(PyObject *entries, Py_ssize_t position)
{
    return PyList_GET_ITEM(entries, position);
}

static inline PyObject *
last_of(PyObject *entries)
{
    return entry_at(entries, PyList_GET_SIZE(entries) - 1);
}

/* Fetch what the last entries of some lists lead to. */
static inline void
fetch_last(PyObject *const *lists, int count)
{
    int i;

    for (i = 0; i < count; i++)
        FETCH(lists[i]);
    for (i = 0; i < count; i++)
        if (PyList_GET_SIZE(lists[i]))
            FETCH(&PyList_GET_ITEM(lists[i], PyList_GET_SIZE(lists[i]) - 1));
    for (i = 0; i < count; i++)
        if (PyList_GET_SIZE(lists[i]))
            FETCH(last_of(lists[i]));
    for (i = 0; i < count; i++)
        if (PyList_GET_SIZE(lists[i]))
            FETCH(PLACE(last_of(lists[i])));
    for (i = 0; i < count; i++)
        if (PyList_GET_SIZE(lists[i]))
            FETCH(PyTuple_GET_ITEM(PLACE(last_of(lists[i])), 0));
}

/* The same of the first entries, of lists that are there. */
static inline void
fetch_first(PyObject *const *lists, int count)
{
    int i;

    for (i = 0; i < count; i++)
        if (PyList_GET_SIZE(lists[i]))
            FETCH(entry_at(lists[i], 0));
    for (i = 0; i < count; i++)
        if (PyList_GET_SIZE(lists[i]))
            FETCH(PLACE(entry_at(lists[i], 0)));
    for (i = 0; i < count; i++)
        if (PyList_GET_SIZE(lists[i]))
            FETCH(PyTuple_GET_ITEM(PLACE(entry_at(lists[i], 0)), 0));
}

/* How many of these lists, from a position on, are dealt with together; -1 with an exception if one is
 * no list. */
static inline int
some_of(PyObject *lists, Py_ssize_t position)
{
    int count = 0;

    for (; count < AHEAD && position + count < PyList_GET_SIZE(lists); count++)
        if (!PyList_CheckExact(PyList_GET_ITEM(lists, position + count))) {
            PyErr_SetString(PyExc_TypeError, "not a list of entries");
            return -1;
        }
    return count;
}

/* Forget the first so many entries, which takes no memory and gives none back: there will soon be as
 * many again. */
static inline int
drop_first(PyObject *entries, Py_ssize_t count)
{
    PyObject *dropped[AHEAD], **items = ((PyListObject *)entries)->ob_item;
    Py_ssize_t left = PyList_GET_SIZE(entries) - count, i;

    if (count > AHEAD)
        return PyList_SetSlice(entries, 0, count, NULL);
    for (i = 0; i < count; i++)
        dropped[i] = items[i];
    memmove(items, items + count, left * sizeof(PyObject *));
    Py_SET_SIZE(entries, left);
    for (i = 0; i < count; i++)
        Py_DECREF(dropped[i]);
    return 0;
}

/* How many entries are below a moment; -1 with an exception. */
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

/* What a cut finds in many buckets, all lists: see `trimming.Looked`. */
typedef struct {
    PyObject *found, *rows, *going_on, *others;
} Looked;

static inline void
forget_looked(Looked *looked)
{
    Py_CLEAR(looked->found);
    Py_CLEAR(looked->rows);
    Py_CLEAR(looked->going_on);
    Py_CLEAR(looked->others);
}

/* 0, or -1 with an exception. */
static inline int
begin_looked(Looked *looked)
{
    looked->found = PyList_New(0);
    looked->rows = PyList_New(0);
    looked->going_on = PyList_New(0);
    looked->others = PyList_New(0);
    if (looked->found != NULL && looked->rows != NULL && looked->going_on != NULL
        && looked->others != NULL)
        return 0;
    forget_looked(looked);
    return -1;
}

/* Note of a bucket what comes of its row, which is given away, or None if Python has to look at the
 * bucket. -1 with an exception, also if there is no row. */
static inline int
note_row(Looked *looked, PyObject *bucket, PyObject *row)
{
    int failed;

    if (row == NULL)
        return -1;
    failed = row == Py_None
                 ? PyList_Append(looked->others, bucket)
                 : PyList_Append(looked->found, bucket) || PyList_Append(looked->rows, row);
    Py_DECREF(row);
    return failed ? -1 : 0;
}

static inline PyObject *
all_looked(Looked *looked)
{
    return Py_BuildValue("(NNNN)", looked->found, looked->rows, looked->going_on, looked->others);
}

#endif
