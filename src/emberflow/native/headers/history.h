/* The versions of a key of a reduction, in few bytes, for `_loops.c`. `machines.reduce` says what versions
 * are; what else it does with them is written for a list.
 *
 * What is guaranteed: to Python a history is a list of versions. Of most keys there is one, which is final:
 * nothing can change it any more. Of such a version a cut and a read need the key, the accumulator and the
 * global time, and so that is all that is kept: 48 bytes, in place of a list, a version, a place, a time and
 * a payload, which are 300. Python sees it as ((time, front), 0, Restored(key), accumulator), which is what a
 * restored version looks like.
 *
 * The history has its key, the same object that the dict of all histories has. A version is kept in short
 * only if its own key looks the same: both are of the same of a few types, and equal. The loops that know the
 * key of a version say so. Of others it is not known, and a trim asks the key function.
 *
 * `held` is a list of versions; or, of a history that `is_short`, the accumulator of its only version. When
 * the next version comes, the accumulator goes ahead of it in a list, as it is: such a history `has_short`.
 * Whatever else Python does makes a version of it first (`expanded`).
 */

#ifndef EMBERFLOW_HISTORY_H
#define EMBERFLOW_HISTORY_H

#include "buckets.h"

/* A version of a reduction is (place, mark, mapped item, accumulator). */
#define MAPPED(version) PyTuple_GET_ITEM(version, 2)
#define ACCUMULATOR(version) PyTuple_GET_ITEM(version, 3)
#define VERSION_SIZE 4

typedef struct {
    PyObject_HEAD
    PyObject *held;
    PyObject *key;
    long long time;
    /* The front is one of 61 bits, so that the history has 48 bytes. */
    long long front : 61;
    unsigned long long is_short : 1;
    unsigned long long has_short : 1;
    unsigned long long is_unknown : 1; /* whether the keys of all versions look like `key` */
} History;

#define FRONT_BEYOND ((long long)1 << 60)

/* Whether equal keys of this type look the same. */
static inline int
is_plain(PyObject *key)
{
    return PyUnicode_CheckExact(key) || PyLong_CheckExact(key) || PyBytes_CheckExact(key);
}

static inline int
looks_like(PyObject *one, PyObject *other)
{
    return Py_TYPE(one) == Py_TYPE(other) && is_plain(one);
}

static inline Py_ssize_t
history_size(const History *history)
{
    return history->is_short ? 1 : PyList_GET_SIZE(history->held);
}

/* (time, front) */
static inline PyObject *
short_place(const History *history)
{
    PyObject *time = PyLong_FromLongLong(history->time), *front = PyLong_FromLongLong(history->front);
    PyObject *place = time == NULL || front == NULL ? NULL : TUPLE_OF(time, front);

    Py_XDECREF(time);
    Py_XDECREF(front);
    return place;
}

/* The short version as a tuple; its accumulator is given. */
static inline PyObject *
short_version(const History *history, PyObject *accumulator, PyObject *restored)
{
    PyObject *place = short_place(history), *mark, *mapped, *made = NULL;

    mark = place == NULL ? NULL : PyLong_FromLong(0);
    mapped = mark == NULL ? NULL : PyObject_CallOneArg(restored, history->key);
    if (mapped != NULL)
        made = TUPLE_OF(place, mark, mapped, accumulator);
    Py_XDECREF(place);
    Py_XDECREF(mark);
    Py_XDECREF(mapped);
    return made;
}

/* Let `held` be a list of nothing but versions: 0, or -1 with an exception. */
static inline int
expanded(History *history, PyObject *restored)
{
    PyObject *version, *list;

    if (!history->is_short && !history->has_short)
        return 0;
    version = short_version(
        history, history->is_short ? history->held : PyList_GET_ITEM(history->held, 0), restored);
    if (version == NULL)
        return -1;
    if (history->has_short) {
        if (PyList_SetItem(history->held, 0, version))
            return -1;
        history->has_short = 0;
        return 0;
    }
    list = PyList_New(1);
    if (list == NULL) {
        Py_DECREF(version);
        return -1;
    }
    PyList_SET_ITEM(list, 0, version);
    Py_SETREF(history->held, list);
    history->is_short = 0;
    return 0;
}

/* Whether the first version is before a moment: 1, 0, or -1 with an exception. There is one. */
static inline int
first_is_before(const History *history, PyObject *moment)
{
    PyObject *place;
    long long time, front;
    int before;

    if (!history->is_short && !history->has_short)
        return entry_is_before(history->held, 0, moment);
    if (!moment_in(moment, &time, &front) && PyTuple_GET_SIZE(moment) == 2)
        return history->time != time ? history->time < time : history->front < front;
    place = short_place(history);
    before = place == NULL ? -1 : is_before(place, moment);
    Py_XDECREF(place);
    return before;
}

/* The key of a version, a new reference; NULL if there is none, with an exception that is not one. */
static inline PyObject *
key_of_version(PyObject *version, PyObject *key_of, PyObject *restored, PyObject *name)
{
    PyObject *mapped = MAPPED(version);

    return (PyObject *)Py_TYPE(mapped) == restored ? PyObject_GetAttr(mapped, name)
                                                   : PyObject_CallOneArg(key_of, mapped);
}

/* Keep of a history its last version only, in short if it can be: 0, or -1 with an exception. */
static inline int
settle(History *history, PyObject *key_of, PyObject *absent, PyObject *restored, PyObject *name)
{
    PyObject *list = history->held, *last;
    Py_ssize_t size;
    long long time, front;

    if (history->is_short)
        return 0;
    size = PyList_GET_SIZE(list);
    if (history->has_short && size < 2)
        return 0; /* not so as long as Python leaves it alone */
    last = PyList_GET_ITEM(list, size - 1);
    if (is_entry(last, VERSION_SIZE) && history->is_unknown && key_of != Py_None && is_plain(history->key)) {
        PyObject *key;
        Py_INCREF(last);
        key = key_of_version(last, key_of, restored, name);
        Py_DECREF(last);
        if (key == NULL && !PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_Clear();
        history->is_unknown = key == NULL || !looks_like(key, history->key);
        Py_XDECREF(key);
    }
    if (history->is_unknown || !is_entry(last, VERSION_SIZE)
        || (PyObject *)Py_TYPE(ACCUMULATOR(last)) == absent || moment_in(PLACE(last), &time, &front)
        || front >= FRONT_BEYOND || front < -FRONT_BEYOND) {
        history->has_short = 0;
        return drop_first(list, size - 1);
    }
    history->time = time;
    history->front = front;
    history->held = Py_NewRef(ACCUMULATOR(last));
    history->is_short = 1;
    history->has_short = 0;
    Py_DECREF(list);
    return 0;
}

/* Add a version behind the others: 0, or -1 with an exception. The version is given away. */
static inline int
history_append(History *history, PyObject *version)
{
    PyObject *list;

    if (version == NULL)
        return -1;
    if (!history->is_short)
        return append_made(history->held, version);
    list = PyList_New(2);
    if (list == NULL) {
        Py_DECREF(version);
        return -1;
    }
    PyList_SET_ITEM(list, 0, history->held);
    PyList_SET_ITEM(list, 1, version);
    history->held = list;
    history->is_short = 0;
    history->has_short = 1;
    return 0;
}

#endif
