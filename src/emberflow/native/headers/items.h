/* Items as the compiled loops see them: what `_loops.c`, `_versions.c` and `_columns.c` share. */

#ifndef EMBERFLOW_ITEMS_H
#define EMBERFLOW_ITEMS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* Ask the processor to bring in what is at an address, before it is needed. */
#if defined(__GNUC__)
#define FETCH(address) __builtin_prefetch(address)
#else
#define FETCH(address) ((void)(address))
#endif

/* An item is (place, mark, payload). A place is (time, front, child ids...); it may be a named tuple. */
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

/* Whether one place is before another: 1, 0, or -1 with an exception. Mostly their times decide. */
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

/* A number of 64 bits: 0, or -1 without an exception. */
static inline int
number_in(PyObject *given, long long *number)
{
    int beyond = 0;

    if (!PyLong_CheckExact(given))
        return -1;
    *number = PyLong_AsLongLongAndOverflow(given, &beyond);
    return beyond ? -1 : 0;
}

/* The global time of a place: 0, or -1 without an exception. */
static inline int
moment_in(PyObject *place, long long *time, long long *front)
{
    return !PyTuple_Check(place) || PyTuple_GET_SIZE(place) < 2
                   || number_in(PyTuple_GET_ITEM(place, 0), time)
                   || number_in(PyTuple_GET_ITEM(place, 1), front)
               ? -1
               : 0;
}

/* Read an argument that says how long keys live: 0, or -1 with an exception. None is 0, for ever. */
static inline int
expires_argument(const char *function, Py_ssize_t position, PyObject *given, long long *expires)
{
    *expires = given == Py_None ? 0 : PyLong_CheckExact(given) ? PyLong_AsLongLong(given) : -1;
    if (*expires > 0 || given == Py_None)
        return 0;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "%s: argument %zd (`expires`) must be None or an int above 0, got %R",
                     function, position + 1, given);
    return -1;
}

/* Whether what was touched at one place lives until another, which is not before it. No if a time is of a
 * size that C has no number for: then Python decides. */
static inline int
is_alive(PyObject *touched, PyObject *place, long long expires)
{
    PyObject *first = PyTuple_GET_ITEM(touched, 0), *second = PyTuple_GET_ITEM(place, 0);
    int beyond = 0, beyond_too = 0;
    long long from, to;

    if (!PyLong_CheckExact(first) || !PyLong_CheckExact(second))
        return 0;
    from = PyLong_AsLongLongAndOverflow(first, &beyond);
    to = PyLong_AsLongLongAndOverflow(second, &beyond_too);
    /* As unsigned numbers: the difference may be greater than a signed one can be. */
    return !beyond && !beyond_too && (unsigned long long)to - (unsigned long long)from < (unsigned long long)expires;
}

/* After a call that failed: the position at which Python goes on. An exception that no function of a user
 * should raise, such as KeyboardInterrupt, is passed on instead. */
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

/* Hide a new tuple, if there is one, from the garbage collector, where no cycle can go through it. The
 * collector would do the same when it first met the tuple. Doing it now spares the cost of doing it later:
 * the collector's list leads through the tuples made before and after this one, and to take one out means
 * to touch both, wherever they are in memory. That is most of what it costs to free an old tuple. */
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

/* The first numbers of a place, and a suffix behind them. */
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

/* A tuple of members; TUPLE_OF(a, b) is quicker than PyTuple_Pack(2, a, b), which does not know at compile
 * time how many there are. */
static inline PyObject *
tuple_of(PyObject *const *members, Py_ssize_t count)
{
    PyObject *made = PyTuple_New(count);
    Py_ssize_t i;

    if (made == NULL)
        return NULL;
    for (i = 0; i < count; i++)
        PyTuple_SET_ITEM(made, i, Py_NewRef(members[i]));
    return unseen(made);
}

#define TUPLE_OF(...) \
    tuple_of((PyObject *[]){__VA_ARGS__}, Py_ARRAY_LENGTH(((PyObject *[]){__VA_ARGS__})))

static inline PyObject *
item_of(PyObject *place, PyObject *mark, PyObject *payload)
{
    return TUPLE_OF(place, mark, payload);
}

/* (place + child, mark, payload) of an item, with another payload. */
static inline PyObject *
child_of(PyObject *item, PyObject *child, PyObject *payload)
{
    PyObject *place = concatenated(PLACE(item), PyTuple_GET_SIZE(PLACE(item)), child), *made;
    if (place == NULL)
        return NULL;
    made = item_of(place, MARK(item), payload);
    Py_DECREF(place);
    return made;
}

/* Append a new object and give it away. -1 with an exception, also if there is no object because it could
 * not be made. */
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

/* Set the next member of a list that was made long enough, and give it away. -1 if there is none because
 * it could not be made. */
static inline int
set_made(PyObject *list, Py_ssize_t position, PyObject *made)
{
    if (made == NULL)
        return -1;
    PyList_SET_ITEM(list, position, made);
    return 0;
}

#endif
