/* What travels by column, compiled. `columns.py` says what for, and reads the same where this module
 * could not be built; tests/engine/test_columns.py holds the two to each other.
 *
 * While many tuples are made at once the garbage collector does not look at them: it would for every
 * few hundred, and nothing here is garbage. The interpreter is not let go of meanwhile, so nobody can
 * tell. */

#include "_items.h"

#define COLUMNS_MAX 64
#define DEPTH_MAX 3

/* A column of ints is their 64-bit words, a column of tuples of one length
 * is a tuple of columns, any other is the list of its values. */

static PyObject *pack_column_of(PyObject *values, int depth);
static PyObject *unpack_column_of(PyObject *column, Py_ssize_t count);

/* The words of a list of ints that fit; None if that is not what it is. */
static PyObject *
words_of(PyObject *values)
{
    Py_ssize_t count = PyList_GET_SIZE(values), i;
    PyObject *words;
    int64_t *word;

    for (i = 0; i < count; i++)
        if (!PyLong_CheckExact(PyList_GET_ITEM(values, i)))
            Py_RETURN_NONE;
    words = PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(int64_t));
    if (words == NULL)
        return NULL;
    word = (int64_t *)PyBytes_AS_STRING(words);
    for (i = 0; i < count; i++) {
        int beyond = 0;
        word[i] = PyLong_AsLongLongAndOverflow(PyList_GET_ITEM(values, i), &beyond);
        if (beyond) {
            Py_DECREF(words);
            Py_RETURN_NONE;
        }
    }
    return words;
}

static PyObject *
columns_of_tuples(PyObject *values, int depth)
{
    Py_ssize_t count = PyList_GET_SIZE(values), width, i, column;
    PyObject *columns;

    width = PyTuple_GET_SIZE(PyList_GET_ITEM(values, 0));
    if (!width || width > COLUMNS_MAX)
        return Py_NewRef(values);
    for (i = 0; i < count; i++) {
        PyObject *value = PyList_GET_ITEM(values, i);
        if (!PyTuple_CheckExact(value) || PyTuple_GET_SIZE(value) != width)
            return Py_NewRef(values);
    }
    columns = PyTuple_New(width);
    for (column = 0; columns != NULL && column < width; column++) {
        PyObject *made = NULL, *list = PyList_New(count);
        if (list != NULL) {
            for (i = 0; i < count; i++)
                PyList_SET_ITEM(list, i,
                                Py_NewRef(PyTuple_GET_ITEM(PyList_GET_ITEM(values, i), column)));
            made = pack_column_of(list, depth + 1);
            Py_DECREF(list);
        }
        if (made == NULL)
            Py_CLEAR(columns);
        else
            PyTuple_SET_ITEM(columns, column, made);
    }
    return columns;
}

static PyObject *
pack_column_of(PyObject *values, int depth)
{
    if (PyList_GET_SIZE(values)) {
        PyObject *first = PyList_GET_ITEM(values, 0);
        if (PyLong_CheckExact(first)) {
            PyObject *words = words_of(values);
            if (words != Py_None)
                return words;
            Py_DECREF(words);
        }
        else if (PyTuple_CheckExact(first) && depth < DEPTH_MAX) {
            return columns_of_tuples(values, depth);
        }
    }
    return Py_NewRef(values);
}

/* pack_column(values) -> column */
static PyObject *
pack_column(PyObject *module, PyObject *values)
{
    if (!PyList_CheckExact(values)) {
        PyErr_SetString(PyExc_TypeError, "pack_column: not a list");
        return NULL;
    }
    return pack_column_of(values, 0);
}

static PyObject *
unpacked_words(PyObject *words, Py_ssize_t count)
{
    const char *from = PyBytes_AS_STRING(words);
    PyObject *values;
    Py_ssize_t i;

    if (PyBytes_GET_SIZE(words) != count * (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "unpack: a column is of another length");
        return NULL;
    }
    values = PyList_New(count);
    for (i = 0; values != NULL && i < count; i++) {
        int64_t word;
        PyObject *value;
        memcpy(&word, from + i * sizeof(int64_t), sizeof(int64_t));
        value = PyLong_FromLongLong(word);
        if (value == NULL)
            Py_CLEAR(values);
        else
            PyList_SET_ITEM(values, i, value);
    }
    return values;
}

static PyObject *
unpacked_tuples(PyObject *columns, Py_ssize_t count)
{
    Py_ssize_t width = PyTuple_GET_SIZE(columns), column, i;
    PyObject *values = PyList_New(count);

    if (values == NULL)
        return NULL;
    for (i = 0; i < count; i++) {
        PyObject *value = PyTuple_New(width);
        if (value == NULL)
            goto failed;
        PyList_SET_ITEM(values, i, value);
    }
    for (column = 0; column < width; column++) {
        PyObject *list = unpack_column_of(PyTuple_GET_ITEM(columns, column), count);
        if (list == NULL)
            goto failed;
        for (i = 0; i < count; i++)
            PyTuple_SET_ITEM(PyList_GET_ITEM(values, i), column,
                             Py_NewRef(PyList_GET_ITEM(list, i)));
        Py_DECREF(list);
    }
    for (i = 0; i < count; i++)
        unseen(PyList_GET_ITEM(values, i));
    return values;

failed:
    Py_DECREF(values);
    return NULL;
}

static PyObject *
unpack_column_of(PyObject *column, Py_ssize_t count)
{
    if (PyBytes_CheckExact(column))
        return unpacked_words(column, count);
    if (PyTuple_CheckExact(column))
        return unpacked_tuples(column, count);
    if (!PyList_CheckExact(column) || PyList_GET_SIZE(column) != count) {
        PyErr_SetString(PyExc_ValueError, "unpack: a column is of another length");
        return NULL;
    }
    return Py_NewRef(column);
}

/* unpack_column(column, count) -> values */
static PyObject *
unpack_column(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t count = nargs == 2 ? PyLong_AsSsize_t(args[1]) : -1;
    PyObject *values;
    int collects;

    if (count < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "unpack_column: takes a column and a count");
        return NULL;
    }
    collects = PyGC_Disable();
    values = unpack_column_of(args[0], count);
    if (collects)
        PyGC_Enable();
    return values;
}

/* The marks of items: one int if they are all the same, else a list. */
static PyObject *
packed_marks(PyObject *items)
{
    Py_ssize_t count = PyList_GET_SIZE(items), i;
    PyObject *first = MARK(PyList_GET_ITEM(items, 0)), *made;

    for (i = 1; i < count; i++) {
        PyObject *mark = MARK(PyList_GET_ITEM(items, i));
        if (mark != first) {
            int same = PyObject_RichCompareBool(mark, first, Py_EQ);
            if (same < 0)
                return NULL;
            if (!same)
                break;
        }
    }
    if (i == count)
        return Py_NewRef(first);
    made = PyList_New(count);
    for (i = 0; made != NULL && i < count; i++)
        PyList_SET_ITEM(made, i, Py_NewRef(MARK(PyList_GET_ITEM(items, i))));
    return made;
}

/* The places of items by column, an int where all have the same; None if they do not fit. */
static PyObject *
packed_places(PyObject *items)
{
    Py_ssize_t count = PyList_GET_SIZE(items), width, row, column;
    PyObject *columns = NULL;
    int64_t *words;

    width = PyTuple_GET_SIZE(PLACE(PyList_GET_ITEM(items, 0)));
    if (!width || width > COLUMNS_MAX)
        Py_RETURN_NONE;
    words = PyMem_New(int64_t, count * width);
    if (words == NULL)
        return PyErr_NoMemory();
    for (row = 0; row < count; row++) {
        PyObject *place = PLACE(PyList_GET_ITEM(items, row));
        int beyond = PyTuple_GET_SIZE(place) != width;
        for (column = 0; !beyond && column < width; column++) {
            PyObject *number = PyTuple_GET_ITEM(place, column);
            beyond = !PyLong_CheckExact(number);
            if (!beyond)
                words[column * count + row] = PyLong_AsLongLongAndOverflow(number, &beyond);
        }
        if (beyond) {
            PyMem_Free(words);
            Py_RETURN_NONE;
        }
    }
    columns = PyTuple_New(width);
    for (column = 0; columns != NULL && column < width; column++) {
        int64_t *word = words + column * count;
        PyObject *made;
        for (row = 1; row < count && word[row] == word[0]; row++)
            ;
        made = row >= count ? PyLong_FromLongLong(word[0])
                            : PyBytes_FromStringAndSize((char *)word, count * sizeof(int64_t));
        if (made == NULL)
            Py_CLEAR(columns);
        else
            PyTuple_SET_ITEM(columns, column, made);
    }
    PyMem_Free(words);
    return columns;
}

/* pack(items) -> (count, columns of the places, marks, column of the payloads), or None */
static PyObject *
pack(PyObject *module, PyObject *items)
{
    Py_ssize_t count, row;
    PyObject *places, *marks, *payloads, *column;

    if (!PyList_CheckExact(items)) {
        PyErr_SetString(PyExc_TypeError, "pack: not a list");
        return NULL;
    }
    count = PyList_GET_SIZE(items);
    if (!count)
        Py_RETURN_NONE;
    for (row = 0; row < count; row++)
        if (!is_item(PyList_GET_ITEM(items, row)))
            Py_RETURN_NONE;
    places = packed_places(items);
    if (places == NULL || places == Py_None)
        return places;
    marks = packed_marks(items);
    payloads = PyList_New(count);
    for (row = 0; payloads != NULL && row < count; row++)
        PyList_SET_ITEM(payloads, row, Py_NewRef(PAYLOAD(PyList_GET_ITEM(items, row))));
    column = payloads == NULL ? NULL : pack_column_of(payloads, 0);
    Py_XDECREF(payloads);
    if (marks == NULL || column == NULL) {
        Py_DECREF(places);
        Py_XDECREF(marks);
        Py_XDECREF(column);
        return NULL;
    }
    return Py_BuildValue("(nNNN)", count, places, marks, column);
}

/* unpack(count, columns of the places, marks, column of the payloads) -> items */
static PyObject *
unpack(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *columns, *marks, *payloads, *items;
    const char *words[COLUMNS_MAX];
    Py_ssize_t count, width, row, column;
    int collects;

    if (nargs != 4 || !PyTuple_CheckExact(args[1]) || PyTuple_GET_SIZE(args[1]) > COLUMNS_MAX) {
        PyErr_SetString(PyExc_TypeError, "unpack: not what pack gives");
        return NULL;
    }
    count = PyLong_AsSsize_t(args[0]);
    if (count < 0 && PyErr_Occurred())
        return NULL;
    columns = args[1], marks = args[2];
    width = PyTuple_GET_SIZE(columns);
    for (column = 0; column < width; column++) {
        PyObject *given = PyTuple_GET_ITEM(columns, column);
        words[column] = NULL;
        if (PyBytes_CheckExact(given)) {
            if (PyBytes_GET_SIZE(given) != count * (Py_ssize_t)sizeof(int64_t)) {
                PyErr_SetString(PyExc_ValueError, "unpack: a column is of another length");
                return NULL;
            }
            words[column] = PyBytes_AS_STRING(given);
        }
    }
    if (PyList_CheckExact(marks) && PyList_GET_SIZE(marks) != count) {
        PyErr_SetString(PyExc_ValueError, "unpack: not a mark for each item");
        return NULL;
    }
    collects = PyGC_Disable();
    payloads = unpack_column_of(args[3], count);
    items = payloads == NULL ? NULL : PyList_New(count);
    for (row = 0; items != NULL && row < count; row++) {
        PyObject *place = PyTuple_New(width), *item = NULL;
        for (column = 0; place != NULL && column < width; column++) {
            PyObject *number;
            if (words[column] == NULL) {
                number = Py_NewRef(PyTuple_GET_ITEM(columns, column));
            }
            else {
                int64_t word;
                memcpy(&word, words[column] + row * sizeof(int64_t), sizeof(int64_t));
                number = PyLong_FromLongLong(word);
            }
            if (number == NULL)
                Py_CLEAR(place);
            else
                PyTuple_SET_ITEM(place, column, number);
        }
        if (place != NULL) {
            unseen(place);
            item = item_of(place, PyList_CheckExact(marks) ? PyList_GET_ITEM(marks, row) : marks,
                           PyList_GET_ITEM(payloads, row));
            Py_DECREF(place);
        }
        if (item == NULL)
            Py_CLEAR(items);
        else
            PyList_SET_ITEM(items, row, item);
    }
    Py_XDECREF(payloads);
    if (collects)
        PyGC_Enable();
    return items;
}

static PyMethodDef methods[] = {
    {"pack", pack, METH_O, NULL},
    {"pack_column", pack_column, METH_O, NULL},
    {"unpack_column", (PyCFunction)(void (*)(void))unpack_column, METH_FASTCALL, NULL},
    {"unpack", (PyCFunction)(void (*)(void))unpack, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._columns",
    .m_doc = "See emberflow.engine.loops.columns.",
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__columns(void)
{
    return PyModuleDef_Init(&definition);
}
