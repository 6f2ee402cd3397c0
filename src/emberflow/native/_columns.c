/* Items and values by column, compiled. `columns.py` says what for, and reads the same where this module
 * could not be built; tests/engine/test_columns.py holds the two to each other.
 *
 * What is guaranteed: what `pack` made is unpacked as it was. Anything else is refused before any memory
 * is taken for it: the lengths of all columns are compared with the count first, so a count that is wrong
 * costs nothing. Columns are nested DEPTH_MAX deep at most, in both directions, so the recursion ends.
 *
 * While many tuples are made at once the garbage collector is off: it would look at every few hundred of
 * them, and nothing here is garbage. The interpreter's lock is held meanwhile, so nobody can tell.
 */

#include "headers/arguments.h"
#include "headers/items.h"

#define COLUMNS_MAX 64
#define DEPTH_MAX 3
#define WORD ((Py_ssize_t)sizeof(int64_t))

/* A column of ints is their 64-bit words. A column of tuples of one length is a tuple of columns; one of named
 * tuples of one class has the class ahead of them. A column of values of a few classes, of which some are
 * tuples, is a dict of one entry: a byte for each value, which of the classes it has, and a tuple of a column for
 * each class. Any other column is the list of its values. */

#define CLASSES_MAX 8

static PyObject *pack_column_of(PyObject *values, int depth);
static PyObject *unpack_column_of(PyObject *column, Py_ssize_t count);

/* The words of a list of ints that have 64 bits; None if it holds anything else. */
static PyObject *
words_of(PyObject *values)
{
    Py_ssize_t count = PyList_GET_SIZE(values), i;
    PyObject *words;
    int64_t *word;

    for (i = 0; i < count; i++)
        if (!PyLong_CheckExact(PyList_GET_ITEM(values, i)))
            Py_RETURN_NONE;
    words = PyBytes_FromStringAndSize(NULL, count * WORD);
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

/* Whether a class has an attribute of its own: 1, 0, or -1 with an exception. PyDict_GetItemString would
 * hide that there was no memory for the name. */
static int
has_own(PyObject *own, const char *name)
{
    PyObject *key = PyUnicode_InternFromString(name);
    int has = key == NULL ? -1 : PyDict_Contains(own, key);

    Py_XDECREF(key);
    return has;
}

/* Whether a class is one of named tuples that are nothing but their fields, and are pickled as these: 1, 0,
 * or -1 with an exception. */
static int
is_named(PyTypeObject *type)
{
    static const char *const pickled_otherwise[] = {"__reduce__", "__reduce_ex__", "__getstate__"};
    PyObject *own = PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) ? type->tp_dict : NULL;
    size_t i;
    int has;

    if (own == NULL || type->tp_base != &PyTuple_Type || type->tp_dictoffset
        || type->tp_basicsize != PyTuple_Type.tp_basicsize)
        return 0;
    for (i = 0; i < Py_ARRAY_LENGTH(pickled_otherwise); i++) {
        has = has_own(own, pickled_otherwise[i]);
        if (has)
            return has < 0 ? -1 : 0;
    }
    has = has_own(own, "_fields");
    return has == 1 ? has_own(own, "_make") : has;
}

/* The class that is ahead of the columns, borrowed; NULL if they are those of plain tuples. */
static inline PyTypeObject *
class_of(PyObject *columns)
{
    PyObject *first = PyTuple_GET_SIZE(columns) ? PyTuple_GET_ITEM(columns, 0) : NULL;

    return first != NULL && PyType_Check(first) ? (PyTypeObject *)first : NULL;
}

static PyObject *
columns_of_tuples(PyObject *values, int depth)
{
    Py_ssize_t count = PyList_GET_SIZE(values), width, i, column, begin;
    PyTypeObject *type = Py_TYPE(PyList_GET_ITEM(values, 0));
    PyObject *columns;

    width = PyTuple_GET_SIZE(PyList_GET_ITEM(values, 0));
    if (!width || width > COLUMNS_MAX)
        return Py_NewRef(values);
    for (i = 0; i < count; i++) {
        PyObject *value = PyList_GET_ITEM(values, i);
        if (!Py_IS_TYPE(value, type) || PyTuple_GET_SIZE(value) != width)
            return Py_NewRef(values);
    }
    begin = type != &PyTuple_Type;
    columns = PyTuple_New(begin + width);
    if (columns != NULL && begin)
        PyTuple_SET_ITEM(columns, 0, Py_NewRef((PyObject *)type));
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
            PyTuple_SET_ITEM(columns, begin + column, made);
    }
    return columns;
}

/* Whether values of a class can be columns, if they are of one length: 1, 0, or -1 with an exception. */
static inline int
can_be_columns(PyTypeObject *type)
{
    if (type == &PyTuple_Type)
        return 1;
    return PyType_HasFeature(type, Py_TPFLAGS_TUPLE_SUBCLASS) ? is_named(type) : 0;
}

/* Values of several classes; the list of them if that is not worth it. */
static PyObject *
mixed_columns(PyObject *values, int depth)
{
    Py_ssize_t count = PyList_GET_SIZE(values), i;
    PyTypeObject *classes[CLASSES_MAX];
    PyObject *lists[CLASSES_MAX] = {NULL}, *which, *columns = NULL, *mixed = NULL;
    unsigned char *at;
    int known = 0, found = 0, each;

    for (i = 0; i < count; i++) {
        PyTypeObject *type = Py_TYPE(PyList_GET_ITEM(values, i));
        for (each = 0; each < known && classes[each] != type; each++)
            ;
        if (each < known)
            continue;
        if (known == CLASSES_MAX)
            return Py_NewRef(values);
        classes[known++] = type;
        if (!found)
            found = can_be_columns(type);
        if (found < 0)
            return NULL;
    }
    if (known < 2 || !found)
        return Py_NewRef(values);
    which = PyBytes_FromStringAndSize(NULL, count);
    if (which == NULL)
        return NULL;
    at = (unsigned char *)PyBytes_AS_STRING(which);
    for (each = 0; each < known; each++) {
        lists[each] = PyList_New(0);
        if (lists[each] == NULL)
            goto done;
    }
    for (i = 0; i < count; i++) {
        PyObject *value = PyList_GET_ITEM(values, i);
        for (each = 0; classes[each] != Py_TYPE(value); each++)
            ;
        at[i] = (unsigned char)each;
        if (PyList_Append(lists[each], value))
            goto done;
    }
    columns = PyTuple_New(known);
    for (each = 0; columns != NULL && each < known; each++) {
        PyObject *made = pack_column_of(lists[each], depth);
        if (made == NULL)
            Py_CLEAR(columns);
        else
            PyTuple_SET_ITEM(columns, each, made);
    }
    mixed = columns == NULL ? NULL : PyDict_New();
    if (mixed != NULL && PyDict_SetItem(mixed, which, columns))
        Py_CLEAR(mixed);
done:
    for (each = 0; each < known; each++)
        Py_XDECREF(lists[each]);
    Py_XDECREF(columns);
    Py_DECREF(which);
    return mixed;
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
        else if (depth < DEPTH_MAX) {
            int by_column = can_be_columns(Py_TYPE(first));
            if (by_column < 0)
                return NULL;
            if (by_column) {
                PyObject *columns = columns_of_tuples(values, depth);
                if (columns != values)
                    return columns;
                Py_DECREF(columns);
            }
        }
        if (depth < DEPTH_MAX)
            return mixed_columns(values, depth);
    }
    return Py_NewRef(values);
}

/* pack_column(values) -> column */
static PyObject *
pack_column(PyObject *module, PyObject *values)
{
    static const Parameter parameters[] = {{"values", A_LIST}};

    if (check_arguments("pack_column", parameters, 1, &values, 1))
        return NULL;
    return pack_column_of(values, 0);
}

/* -1 with a ValueError if bytes are not the words of so many ints. */
static int
check_words(PyObject *words, Py_ssize_t count)
{
    Py_ssize_t size = PyBytes_GET_SIZE(words);

    if (size % WORD == 0 && size / WORD == count)
        return 0;
    PyErr_Format(PyExc_ValueError, "a column has %zd bytes, which are not %zd words", size, count);
    return -1;
}

/* -1 with a ValueError if there are not as many columns side by side as there may be. */
static int
check_width(Py_ssize_t width, Py_ssize_t count)
{

    if (width > COLUMNS_MAX) {
        PyErr_Format(PyExc_ValueError, "%zd columns are side by side, and %d are the most", width,
                     COLUMNS_MAX);
        return -1;
    }
    if (!width && count) {
        PyErr_Format(PyExc_ValueError, "there are no columns, and %zd values were sent", count);
        return -1;
    }
    return 0;
}

static int check_column(PyObject *column, Py_ssize_t count, int depth);

/* The one entry of a column of several classes, borrowed: 0, or -1 with an exception if there is another. */
static int
parts_of_mixed(PyObject *mixed, PyObject **which, PyObject **columns)
{
    Py_ssize_t position = 0;

    if (PyDict_GET_SIZE(mixed) == 1 && PyDict_Next(mixed, &position, which, columns)
        && PyBytes_CheckExact(*which) && PyTuple_CheckExact(*columns)
        && PyTuple_GET_SIZE(*columns) <= CLASSES_MAX)
        return 0;
    PyErr_Format(PyExc_TypeError, "a column of several classes must be bytes and up to %d columns", CLASSES_MAX);
    return -1;
}

static int
check_mixed(PyObject *mixed, Py_ssize_t count, int depth)
{
    Py_ssize_t counts[CLASSES_MAX] = {0}, i;
    PyObject *which, *columns;

    if (parts_of_mixed(mixed, &which, &columns))
        return -1;
    if (PyBytes_GET_SIZE(which) != count) {
        PyErr_Format(PyExc_ValueError, "a column has %zd values, and %zd were sent", PyBytes_GET_SIZE(which),
                     count);
        return -1;
    }
    for (i = 0; i < count; i++) {
        unsigned char each = (unsigned char)PyBytes_AS_STRING(which)[i];
        if (each >= PyTuple_GET_SIZE(columns)) {
            PyErr_Format(PyExc_ValueError, "a value has class %d of %zd", each, PyTuple_GET_SIZE(columns));
            return -1;
        }
        counts[each]++;
    }
    for (i = 0; i < PyTuple_GET_SIZE(columns); i++) {
        PyObject *column = PyTuple_GET_ITEM(columns, i);
        if (PyDict_CheckExact(column)) {
            PyErr_SetString(PyExc_ValueError, "a column of one class is one of several classes");
            return -1;
        }
        if (check_column(column, counts[i], depth))
            return -1;
    }
    return 0;
}

/* -1 with an exception if this is not a column of so many values. */
static int
check_column(PyObject *column, Py_ssize_t count, int depth)
{
    PyTypeObject *type;
    Py_ssize_t i;

    if (PyBytes_CheckExact(column))
        return check_words(column, count);
    if (PyList_CheckExact(column)) {
        if (PyList_GET_SIZE(column) == count)
            return 0;
        PyErr_Format(PyExc_ValueError, "a column has %zd values, and %zd were sent",
                     PyList_GET_SIZE(column), count);
        return -1;
    }
    if (PyDict_CheckExact(column))
        return check_mixed(column, count, depth);
    if (!PyTuple_CheckExact(column)) {
        PyErr_Format(PyExc_TypeError, "a column must be bytes, a tuple, a dict or a list, got %.100s",
                     Py_TYPE(column)->tp_name);
        return -1;
    }
    if (depth == DEPTH_MAX) {
        PyErr_Format(PyExc_ValueError, "columns are nested more than %d deep", DEPTH_MAX);
        return -1;
    }
    type = class_of(column);
    if (type != NULL) {
        int named = is_named(type);
        if (named == 0)
            PyErr_Format(PyExc_TypeError, "a column must be of plain or named tuples, got %.100s",
                         type->tp_name);
        if (named <= 0)
            return -1;
    }
    if (check_width(PyTuple_GET_SIZE(column) - (type != NULL), count))
        return -1;
    for (i = type != NULL; i < PyTuple_GET_SIZE(column); i++)
        if (check_column(PyTuple_GET_ITEM(column, i), count, depth + 1))
            return -1;
    return 0;
}

static inline PyObject *
int_at(const char *words, Py_ssize_t position)
{
    int64_t word;

    memcpy(&word, words + position * WORD, sizeof word);
    return PyLong_FromLongLong(word);
}

static PyObject *
unpacked_words(PyObject *words, Py_ssize_t count)
{
    PyObject *values = PyList_New(count);
    Py_ssize_t i;

    for (i = 0; values != NULL && i < count; i++) {
        PyObject *value = int_at(PyBytes_AS_STRING(words), i);
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
    PyTypeObject *type = class_of(columns);
    Py_ssize_t begin = type != NULL, width = PyTuple_GET_SIZE(columns) - begin;
    Py_ssize_t unpacked = 0, column, i;
    PyObject *lists[COLUMNS_MAX], *values = NULL;

    for (; unpacked < width; unpacked++) {
        lists[unpacked] = unpack_column_of(PyTuple_GET_ITEM(columns, begin + unpacked), count);
        if (lists[unpacked] == NULL)
            break;
    }
    if (unpacked == width)
        values = PyList_New(count);
    for (i = 0; values != NULL && i < count; i++) {
        PyObject *value = type == NULL ? PyTuple_New(width) : type->tp_alloc(type, width);
        if (value == NULL) {
            Py_CLEAR(values);
            break;
        }
        for (column = 0; column < width; column++)
            PyTuple_SET_ITEM(value, column, Py_NewRef(PyList_GET_ITEM(lists[column], i)));
        PyList_SET_ITEM(values, i, unseen(value));
    }
    while (unpacked > 0)
        Py_DECREF(lists[--unpacked]);
    return values;
}

static PyObject *
unpacked_mixed(PyObject *mixed, Py_ssize_t count)
{
    PyObject *which, *columns, *values = NULL, *lists[CLASSES_MAX];
    Py_ssize_t taken[CLASSES_MAX] = {0}, counts[CLASSES_MAX] = {0}, unpacked = 0, i;

    if (parts_of_mixed(mixed, &which, &columns))
        return NULL;
    for (i = 0; i < count; i++)
        counts[(unsigned char)PyBytes_AS_STRING(which)[i]]++;
    for (; unpacked < PyTuple_GET_SIZE(columns); unpacked++) {
        lists[unpacked] = unpack_column_of(PyTuple_GET_ITEM(columns, unpacked), counts[unpacked]);
        if (lists[unpacked] == NULL)
            break;
    }
    if (unpacked == PyTuple_GET_SIZE(columns))
        values = PyList_New(count);
    for (i = 0; values != NULL && i < count; i++) {
        unsigned char each = (unsigned char)PyBytes_AS_STRING(which)[i];
        PyList_SET_ITEM(values, i, Py_NewRef(PyList_GET_ITEM(lists[each], taken[each]++)));
    }
    while (unpacked > 0)
        Py_DECREF(lists[--unpacked]);
    return values;
}

/* The values of a column that has been checked. */
static PyObject *
unpack_column_of(PyObject *column, Py_ssize_t count)
{
    if (PyDict_CheckExact(column))
        return unpacked_mixed(column, count);
    if (PyBytes_CheckExact(column))
        return unpacked_words(column, count);
    if (PyTuple_CheckExact(column))
        return unpacked_tuples(column, count);
    return Py_NewRef(column);
}

/* unpack_column(column, count) -> values */
static PyObject *
unpack_column(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"column", ANYTHING}, {"count", AN_INT}};
    Py_ssize_t count;
    PyObject *values;
    int collects;

    if (CHECK_ARGUMENTS("unpack_column", parameters))
        return NULL;
    count = natural_argument("unpack_column", 1, "count", args[1]);
    if (count < 0 || check_column(args[0], count, 0))
        return NULL;
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

/* How long each place is, as bytes; NULL without an exception if one is empty or too long. */
static PyObject *
widths_of(PyObject *items, Py_ssize_t *most, int *differ)
{
    Py_ssize_t count = PyList_GET_SIZE(items), row;
    PyObject *widths = PyBytes_FromStringAndSize(NULL, count);

    *most = 0, *differ = 0;
    for (row = 0; widths != NULL && row < count; row++) {
        Py_ssize_t width = PyTuple_GET_SIZE(PLACE(PyList_GET_ITEM(items, row)));
        if (!width || width > COLUMNS_MAX) {
            Py_CLEAR(widths);
            return NULL;
        }
        PyBytes_AS_STRING(widths)[row] = (char)width;
        *differ = *differ || (row && width != *most);
        if (width > *most)
            *most = width;
    }
    return widths;
}

/* The places of items by column, an int where all have the same. Where places differ in length, the columns
 * have zeros behind the shorter ones, and a list with the lengths is ahead of them. None if places hold anything
 * but ints of 64 bits. */
static PyObject *
packed_places(PyObject *items)
{
    Py_ssize_t count = PyList_GET_SIZE(items), width, row, column;
    PyObject *columns = NULL, *widths;
    int64_t *words;
    int differ;

    widths = widths_of(items, &width, &differ);
    if (widths == NULL) {
        if (PyErr_Occurred())
            return NULL;
        Py_RETURN_NONE;
    }
    words = PyMem_Calloc((size_t)(count * width), sizeof(int64_t));
    if (words == NULL) {
        Py_DECREF(widths);
        return PyErr_NoMemory();
    }
    for (row = 0; row < count; row++) {
        PyObject *place = PLACE(PyList_GET_ITEM(items, row));
        int beyond = 0;
        for (column = 0; !beyond && column < PyTuple_GET_SIZE(place); column++) {
            PyObject *number = PyTuple_GET_ITEM(place, column);
            beyond = !PyLong_CheckExact(number);
            if (!beyond)
                words[column * count + row] = PyLong_AsLongLongAndOverflow(number, &beyond);
        }
        if (beyond) {
            PyMem_Free(words);
            Py_DECREF(widths);
            Py_RETURN_NONE;
        }
    }
    columns = PyTuple_New(differ + width);
    if (columns != NULL && differ) {
        PyObject *ahead = PyList_New(1);
        if (ahead == NULL)
            Py_CLEAR(columns);
        else {
            PyList_SET_ITEM(ahead, 0, Py_NewRef(widths));
            PyTuple_SET_ITEM(columns, 0, ahead);
        }
    }
    for (column = 0; columns != NULL && column < width; column++) {
        int64_t *word = words + column * count;
        PyObject *made;
        for (row = 1; row < count && word[row] == word[0]; row++)
            ;
        made = row >= count ? PyLong_FromLongLong(word[0])
                            : PyBytes_FromStringAndSize((char *)word, count * WORD);
        if (made == NULL)
            Py_CLEAR(columns);
        else
            PyTuple_SET_ITEM(columns, differ + column, made);
    }
    PyMem_Free(words);
    Py_DECREF(widths);
    return columns;
}

/* pack(items) -> (count, columns of the places, marks, column of the payloads), or None */
static PyObject *
pack(PyObject *module, PyObject *items)
{
    static const Parameter parameters[] = {{"items", A_LIST}};
    Py_ssize_t count, row;
    PyObject *places, *marks, *payloads, *column;

    if (check_arguments("pack", parameters, 1, &items, 1))
        return NULL;
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

/* The lengths that are ahead of columns of places, borrowed; NULL if all have as many as there are columns. */
static inline PyObject *
widths_ahead(PyObject *columns)
{
    PyObject *first = PyTuple_GET_SIZE(columns) ? PyTuple_GET_ITEM(columns, 0) : NULL;

    return first != NULL && PyList_CheckExact(first) ? first : NULL;
}

/* -1 with an exception if these are not the columns of so many places. */
static int
check_places(PyObject *columns, Py_ssize_t count)
{
    PyObject *ahead = widths_ahead(columns);
    Py_ssize_t width = PyTuple_GET_SIZE(columns) - (ahead != NULL), i;

    if (check_width(width, count))
        return -1;
    if (ahead != NULL) {
        PyObject *widths = PyList_GET_SIZE(ahead) == 1 ? PyList_GET_ITEM(ahead, 0) : NULL;
        if (widths == NULL || !PyBytes_CheckExact(widths)) {
            PyErr_SetString(PyExc_TypeError, "the lengths of places must be bytes in a list");
            return -1;
        }
        if (PyBytes_GET_SIZE(widths) != count) {
            PyErr_Format(PyExc_ValueError, "%zd lengths of places came, and %zd were sent",
                         PyBytes_GET_SIZE(widths), count);
            return -1;
        }
        for (i = 0; i < count; i++)
            if ((unsigned char)PyBytes_AS_STRING(widths)[i] > width) {
                PyErr_Format(PyExc_ValueError, "a place has length %d, and there are %zd columns",
                             (unsigned char)PyBytes_AS_STRING(widths)[i], width);
                return -1;
            }
    }
    for (i = ahead != NULL; i < PyTuple_GET_SIZE(columns); i++) {
        PyObject *column = PyTuple_GET_ITEM(columns, i);
        if (PyBytes_CheckExact(column)) {
            if (check_words(column, count))
                return -1;
        }
        else if (!PyLong_CheckExact(column)) {
            PyErr_Format(PyExc_TypeError, "a column of places must be an int or bytes, got %.100s",
                         Py_TYPE(column)->tp_name);
            return -1;
        }
    }
    return 0;
}

/* -1 with an exception if these are not the marks of so many items. */
static int
check_marks(PyObject *marks, Py_ssize_t count)
{
    if (PyLong_CheckExact(marks))
        return 0;
    if (!PyList_CheckExact(marks)) {
        PyErr_Format(PyExc_TypeError, "marks must be an int or a list, got %.100s",
                     Py_TYPE(marks)->tp_name);
        return -1;
    }
    if (PyList_GET_SIZE(marks) == count)
        return 0;
    PyErr_Format(PyExc_ValueError, "%zd marks came for %zd items", PyList_GET_SIZE(marks), count);
    return -1;
}

/* A place of the columns of places that have been checked. */
static PyObject *
unpacked_place(PyObject *columns, Py_ssize_t row)
{
    PyObject *ahead = widths_ahead(columns), *place;
    Py_ssize_t begin = ahead != NULL, width = PyTuple_GET_SIZE(columns) - begin, i;

    if (ahead != NULL)
        width = (unsigned char)PyBytes_AS_STRING(PyList_GET_ITEM(ahead, 0))[row];
    place = PyTuple_New(width);
    for (i = 0; place != NULL && i < width; i++) {
        PyObject *column = PyTuple_GET_ITEM(columns, begin + i);
        PyObject *number = PyBytes_CheckExact(column) ? int_at(PyBytes_AS_STRING(column), row)
                                                      : Py_NewRef(column);
        if (number == NULL)
            Py_CLEAR(place);
        else
            PyTuple_SET_ITEM(place, i, number);
    }
    return unseen(place);
}

/* The items of columns that have been checked. */
static PyObject *
unpacked_items(Py_ssize_t count, PyObject *columns, PyObject *marks, PyObject *column)
{
    PyObject *payloads = unpack_column_of(column, count);
    PyObject *items = payloads == NULL ? NULL : PyList_New(count);
    Py_ssize_t row;

    for (row = 0; items != NULL && row < count; row++) {
        PyObject *place = unpacked_place(columns, row), *item = NULL;
        if (place != NULL) {
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
    return items;
}

/* unpack(count, columns of the places, marks, column of the payloads) -> items */
static PyObject *
unpack(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {
        {"count", AN_INT},
        {"places", A_TUPLE},
        {"marks", ANYTHING},
        {"payloads", ANYTHING},
    };
    PyObject *items;
    Py_ssize_t count;
    int collects;

    if (CHECK_ARGUMENTS("unpack", parameters))
        return NULL;
    count = natural_argument("unpack", 0, "count", args[0]);
    if (count < 0 || check_places(args[1], count) || check_marks(args[2], count)
        || check_column(args[3], count, 0))
        return NULL;
    collects = PyGC_Disable();
    items = unpacked_items(count, args[1], args[2], args[3]);
    if (collects)
        PyGC_Enable();
    return items;
}

static PyMethodDef methods[] = {
    {"pack", pack, METH_O, NULL},
    {"pack_column", pack_column, METH_O, NULL},
    FAST(unpack_column),
    FAST(unpack),
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_interface},
    EACH_INTERPRETER
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._columns",
    .m_doc = "See emberflow.engine.loops.columns.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__columns(void)
{
    return PyModuleDef_Init(&definition);
}
