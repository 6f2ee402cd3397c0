/* How trims and cuts go through many buckets, for `_loops.c` and `_versions.c`. See `trimming.py` and
 * `cut.py`. What a bucket holds is a list of entries in order; an entry is a tuple that begins with its
 * place.
 *
 * Buckets lie far from each other in memory, and most of the time of a trim is spent waiting for it. So
 * these loops take AHEAD buckets at once, step by step: the list, the end of the list, the entry, its
 * place. Each step fetches what the next step needs of all the buckets, and the processor brings it in
 * for all of them together.
 */

#ifndef EMBERFLOW_BUCKETS_H
#define EMBERFLOW_BUCKETS_H

#include "cut_rows.h"
#include "hashing.h"
#include "items.h"
#include "packed.h"

#define AHEAD 16

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

/* Whether this is a tuple of so many that begins with a place. */
static inline int
is_entry(PyObject *entry, Py_ssize_t size)
{
    return PyTuple_CheckExact(entry) && PyTuple_GET_SIZE(entry) >= size && PyTuple_Check(PLACE(entry))
           && PyTuple_GET_SIZE(PLACE(entry));
}

/* The place of an entry; NULL with an exception if it is none. */
static inline PyObject *
place_at(PyObject *entries, Py_ssize_t position)
{
    PyObject *entry = entry_at(entries, position);

    if (is_entry(entry, 1))
        return PLACE(entry);
    PyErr_Format(PyExc_TypeError, "entry %zd of a bucket must be a tuple that begins with a place, got %R",
                 position, entry);
    return NULL;
}

/* Whether the place of an entry is before a moment: 1, 0, or -1 with an exception. */
static inline int
entry_is_before(PyObject *entries, Py_ssize_t position, PyObject *moment)
{
    PyObject *place = place_at(entries, position);
    return place == NULL ? -1 : is_before(place, moment);
}

/* Fetch what one entry of each list leads to; the entries themselves are on their way. */
static inline void
fetch_entries(PyObject *const *entries, int count)
{
    int i;

    for (i = 0; i < count; i++)
        if (entries[i] != NULL && PyTuple_CheckExact(entries[i]) && PyTuple_GET_SIZE(entries[i]))
            FETCH(PLACE(entries[i]));
    for (i = 0; i < count; i++)
        if (entries[i] != NULL && is_entry(entries[i], 1))
            FETCH(PyTuple_GET_ITEM(PLACE(entries[i]), 0));
}

/* Fetch what the last entries of some lists lead to. */
static inline void
fetch_last(PyObject *const *lists, int count)
{
    PyObject *entries[AHEAD];
    int i;

    for (i = 0; i < count; i++)
        FETCH(lists[i]);
    for (i = 0; i < count; i++)
        if (PyList_GET_SIZE(lists[i]))
            FETCH(&PyList_GET_ITEM(lists[i], PyList_GET_SIZE(lists[i]) - 1));
    for (i = 0; i < count; i++) {
        entries[i] = PyList_GET_SIZE(lists[i]) ? last_of(lists[i]) : NULL;
        FETCH(entries[i]);
    }
    fetch_entries(entries, count);
}

/* The same of the first entries, of lists that have been fetched. */
static inline void
fetch_first(PyObject *const *lists, int count)
{
    PyObject *entries[AHEAD];
    int i;

    for (i = 0; i < count; i++) {
        entries[i] = PyList_GET_SIZE(lists[i]) ? entry_at(lists[i], 0) : NULL;
        FETCH(entries[i]);
    }
    fetch_entries(entries, count);
}

/* Take the next lists of entries from a list of buckets that are such lists: how many, AHEAD at most;
 * -1 with an exception if one is no list. */
static inline int
take_lists(PyObject *buckets, Py_ssize_t position, PyObject **lists)
{
    int count = 0, i;

    for (; count < AHEAD && position + count < PyList_GET_SIZE(buckets); count++) {
        lists[count] = PyList_GET_ITEM(buckets, position + count);
        FETCH(lists[count]);
    }
    for (i = 0; i < count; i++)
        if (!PyList_CheckExact(lists[i])) {
            PyErr_Format(PyExc_TypeError, "bucket %zd must be a list of entries, got %.100s",
                         position + i, Py_TYPE(lists[i])->tp_name);
            return -1;
        }
    return count;
}

/* Drop the first entries. */
static inline int
drop_first(PyObject *entries, Py_ssize_t count)
{
    return count ? PyList_SetSlice(entries, 0, count, NULL) : 0;
}

/* How many entries are below a moment; -1 with an exception. */
static inline Py_ssize_t
below(PyObject *entries, PyObject *moment)
{
    Py_ssize_t low = 0, high = PyList_GET_SIZE(entries);
    int before;

    if (!high)
        return 0;
    before = entry_is_before(entries, high - 1, moment); /* mostly all of them are */
    if (before)
        return before < 0 ? -1 : high;
    high--;
    while (low < high) {
        Py_ssize_t middle = (low + high) / 2;
        before = entry_is_before(entries, middle, moment);
        if (before < 0)
            return -1;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Row(operation, hash, key, place, value); None if Python has to hash the key.
 *
 * `tuple.__new__` makes the row, as it does for `Row._make`. It knows all that belongs to a tuple: one of
 * Python 3.14 keeps its hash, and must be told that it has none yet. */
static inline PyObject *
row_of(PyObject *type, PyObject *operation, PyObject *key, PyObject *place, PyObject *value)
{
    PyObject *fields, *given, *hashed, *row;
    uint32_t hash;

    if (!hash_of_composite(key, &hash))
        Py_RETURN_NONE;
    fields = PyTuple_New(ROW_SIZE);
    if (fields == NULL)
        return NULL;
    hashed = PyLong_FromLong((int32_t)hash);
    if (hashed == NULL) {
        Py_DECREF(fields);
        return NULL;
    }
    PyTuple_SET_ITEM(fields, ROW_OPERATION, Py_NewRef(operation));
    PyTuple_SET_ITEM(fields, ROW_KEY_HASH, hashed);
    PyTuple_SET_ITEM(fields, ROW_KEY, Py_NewRef(key));
    PyTuple_SET_ITEM(fields, ROW_PLACE, Py_NewRef(place));
    PyTuple_SET_ITEM(fields, ROW_PAYLOAD, Py_NewRef(value));
    given = PyTuple_New(1);
    if (given == NULL) {
        Py_DECREF(fields);
        return NULL;
    }
    PyTuple_SET_ITEM(given, 0, fields);
    row = PyTuple_Type.tp_new((PyTypeObject *)type, given, NULL);
    Py_DECREF(given);
    return row;
}

/* What a cut finds in many buckets: see `trimming.Looked`. The first four are lists. */
typedef struct {
    PyObject *found, *rows, *going_on, *others;
    Buffer packed;
    Py_ssize_t packed_count;
    int packs; /* whether plain rows are to be packed */
} Looked;

static inline void
forget_looked(Looked *looked)
{
    Py_CLEAR(looked->found);
    Py_CLEAR(looked->rows);
    Py_CLEAR(looked->going_on);
    Py_CLEAR(looked->others);
    PyMem_Free(looked->packed.data);
}

/* 0, or -1 with an exception. */
static inline int
begin_looked(Looked *looked, PyObject *packs)
{
    *looked = (Looked){.packs = packs == Py_True};
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

/* Note the row of a bucket, which is given away, or None if Python has to look at the bucket. -1 with an
 * exception, also if there is no row because it could not be made. */
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

/* Pack the row of a bucket, if rows are to be packed and this one is plain: 1, 0 if not, -1 with an exception. */
static inline int
note_packed(Looked *looked, PyObject *bucket, PyObject *key, long long time, long long front, PyObject *value)
{
    uint32_t hash;
    int result;

    if (!looked->packs || !hash_of_composite(key, &hash))
        return 0;
    result = pack_row(&looked->packed, time, front, hash, key, value);
    if (result > 0) {
        looked->packed_count++;
        result = PyList_Append(looked->found, bucket) ? -1 : 1;
    }
    return result;
}

/* Note the row of a version, which has the global time of its place: 0, or -1 with an exception. */
static inline int
note_version(Looked *looked, PyObject *type, PyObject *operation, PyObject *bucket, PyObject *key,
             PyObject *place, PyObject *value)
{
    PyObject *moment;
    long long time, front;
    int result = moment_in(place, &time, &front) ? 0 : note_packed(looked, bucket, key, time, front, value);

    if (!result) {
        moment = unseen(PyTuple_GetSlice(place, 0, 2));
        result = note_row(looked, bucket,
                          moment == NULL ? NULL : row_of(type, operation, key, moment, value));
        Py_XDECREF(moment);
    }
    return result < 0 ? -1 : 0;
}

/* All of it as a tuple; the lists are given away. */
static inline PyObject *
all_looked(Looked *looked)
{
    PyObject *made = Py_BuildValue("(NNNNy#n)", looked->found, looked->rows, looked->going_on, looked->others,
                                   looked->packed.data == NULL ? "" : looked->packed.data,
                                   (Py_ssize_t)looked->packed.length, looked->packed_count);

    PyMem_Free(looked->packed.data);
    return made;
}

#endif
