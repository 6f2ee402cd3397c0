/* Rows of cold keys: from rows to the columns of a block and back, for `_rows.c`. The twins are in
 * `runners.live.cold.encoding`.
 *
 * What is guaranteed: the pickles are those that `pickle.dumps` makes. Any pickle can be read: those of small ints,
 * of None and bools and of short texts are read here, all others by `pickle.loads`.
 */

#ifndef EMBERFLOW_COLD_H
#define EMBERFLOW_COLD_H

enum { COLD_HASHES, COLD_TIMES, COLD_FRONTS, COLD_KEY_SIZES, COLD_ENDS, COLD_RECORDS, COLD_BUFFERS };

#define HASH_DIGIT_BITS 11
#define HASH_DIGITS ((size_t)1 << HASH_DIGIT_BITS)

/* Sort words by their upper halves, stably; `aside` has room for as many. */
static void
sort_by_upper(uint64_t *words, uint64_t *aside, size_t count)
{
    int shift;

    for (shift = 32; shift < 64; shift += HASH_DIGIT_BITS) {
        size_t ends[HASH_DIGITS] = {0}, i;
        for (i = 0; i < count; i++)
            ends[words[i] >> shift & (HASH_DIGITS - 1)]++;
        for (i = 1; i < HASH_DIGITS; i++)
            ends[i] += ends[i - 1];
        for (i = count; i--;)
            aside[--ends[words[i] >> shift & (HASH_DIGITS - 1)]] = words[i];
        memcpy(words, aside, count * sizeof *words);
    }
}

/* The hash of a row that has a global time for its place: 1, or 0 if it is another. */
static int
cold_hash(PyObject *row, int64_t *hash)
{
    int64_t word;
    PyObject *place;

    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != ROW_SIZE
        || !word_of(PyTuple_GET_ITEM(row, ROW_KEY_HASH), hash) || *hash < INT32_MIN
        || *hash > INT32_MAX)
        return 0;
    place = PyTuple_GET_ITEM(row, ROW_PLACE);
    return PyTuple_Check(place) && PyTuple_GET_SIZE(place) == 2
           && word_of(PyTuple_GET_ITEM(place, 0), &word) && word_of(PyTuple_GET_ITEM(place, 1), &word);
}

static int
add_half(Buffer *buffer, int64_t word)
{
    int32_t half = (int32_t)word;
    char *at = more(buffer, sizeof half);

    if (at == NULL)
        return -1;
    memcpy(at, &half, sizeof half);
    return 1;
}

/* Add a row of this hash: 1, 0 if it is not plain, -1 with an exception. */
static int
add_cold(Buffer *buffers, PyObject *row, int64_t hash)
{
    Buffer *records = &buffers[COLD_RECORDS];
    PyObject *place = PyTuple_GET_ITEM(row, ROW_PLACE);
    size_t begin = records->length;
    int64_t time = 0, front = 0;
    int result;

    word_of(PyTuple_GET_ITEM(place, 0), &time);
    word_of(PyTuple_GET_ITEM(place, 1), &front);
    result = add_half(&buffers[COLD_HASHES], hash);
    if (result > 0)
        result = add_word(&buffers[COLD_TIMES], time);
    if (result > 0)
        result = add_word(&buffers[COLD_FRONTS], front);
    if (result > 0)
        result = add_pickle(records, PyTuple_GET_ITEM(row, ROW_KEY));
    if (result > 0)
        result = add_half(&buffers[COLD_KEY_SIZES], (int64_t)(records->length - begin));
    if (result > 0)
        result = add_pickle(records, PyTuple_GET_ITEM(row, ROW_PAYLOAD));
    if (result > 0)
        result = add_word(&buffers[COLD_ENDS], (int64_t)records->length);
    return result;
}

/* cold_buffers(rows) -> (hashes, times, fronts, key sizes, ends, records), or None if some rows are not plain */
static PyObject *
cold_buffers(PyObject *module, PyObject *rows)
{
    static const Parameter parameters[] = {{"rows", A_LIST}};
    Buffer buffers[COLD_BUFFERS] = {{NULL, 0, 0}};
    PyObject *made = NULL;
    uint64_t *order;
    size_t count, i;
    int64_t hash = 0;
    int result = 1;

    if (check_arguments("cold_buffers", parameters, 1, &rows, 1))
        return NULL;
    if (!known_of(module)->row_type)
        return unprepared("cold_buffers");
    count = (size_t)PyList_GET_SIZE(rows);
    if (!count || count > INT32_MAX)
        Py_RETURN_NONE;
    order = PyMem_Malloc(2 * count * sizeof *order);
    if (order == NULL)
        return PyErr_NoMemory();
    for (i = 0; result > 0 && i < count; i++) {
        result = cold_hash(PyList_GET_ITEM(rows, i), &hash);
        order[i] = (uint64_t)(hash - INT32_MIN) << 32 | i;
    }
    if (result > 0)
        sort_by_upper(order, order + count, count);
    for (i = 0; result > 0 && i < count; i++) {
        hash = (int64_t)(order[i] >> 32) + INT32_MIN;
        result = add_cold(buffers, PyList_GET_ITEM(rows, order[i] & UINT32_MAX), hash);
    }
    PyMem_Free(order);
    if (result > 0)
        made = bytes_of(buffers, COLD_BUFFERS);
    else if (!result)
        made = Py_NewRef(Py_None);
    for (i = 0; i < COLD_BUFFERS; i++)
        PyMem_Free(buffers[i].data);
    return made;
}

/* The next three read a pickle of this module's: the value, a new reference; NULL, without an exception if it is
 * another's. */

static PyObject *
int_in(const unsigned char *at, size_t bytes)
{
    uint64_t value = 0;
    size_t i;

    for (i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return PyLong_FromLong((long)value);
}

static PyObject *
scalar_in(const unsigned char *at, size_t length)
{
    switch (at[0]) {
    case 'N':
        return length == 1 ? Py_NewRef(Py_None) : NULL;
    case 0x88:
        return length == 1 ? Py_NewRef(Py_True) : NULL;
    case 0x89:
        return length == 1 ? Py_NewRef(Py_False) : NULL;
    case 'K':
        return length == 2 ? int_in(at + 1, 1) : NULL;
    case 'M':
        return length == 3 ? int_in(at + 1, 2) : NULL;
    case 'J': {
        int32_t value;
        memcpy(&value, at + 1, length == 5 ? sizeof value : 0);
        return length == 5 ? PyLong_FromLong(value) : NULL;
    }
    default:
        return NULL;
    }
}

static PyObject *
plain_in(const unsigned char *at, size_t length)
{
    if (length < 4 || at[0] != 0x80 || at[1] != PROTOCOL || at[length - 1] != '.')
        return NULL;
    if (at[2] != 0x95) /* it has no frame */
        return scalar_in(at + 2, length - 3);
    if (length > HEAD_BYTES + 3 && at[HEAD_BYTES] == 0x8c
        && (size_t)at[HEAD_BYTES + 1] + HEAD_BYTES + 4 == length && at[length - 2] == 0x94)
        return PyUnicode_DecodeUTF8((const char *)at + HEAD_BYTES + 2, at[HEAD_BYTES + 1],
                                    "surrogatepass");
    return scalar_in(at + HEAD_BYTES, length - HEAD_BYTES - 1);
}

/* Read any pickle; NULL with an exception. */
static PyObject *
read_pickle(const char *data, size_t length, PyObject *loads)
{
    PyObject *bytes, *value = plain_in((const unsigned char *)data, length);

    if (value != NULL || PyErr_Occurred())
        return value;
    bytes = PyBytes_FromStringAndSize(data, (Py_ssize_t)length);
    value = bytes == NULL ? NULL : PyObject_CallOneArg(loads, bytes);
    Py_XDECREF(bytes);
    return value;
}

/* The columns of a block, as buffers, and its rows. */

enum { AT_TIMES, AT_FRONTS, AT_KEY_SIZES, AT_ENDS, AT_RECORDS, BLOCK_COLUMNS };

typedef struct {
    Py_buffer columns[BLOCK_COLUMNS];
    int count; /* of the columns that are held */
    Py_ssize_t rows;
} ColdBlock;

static void
release_block(ColdBlock *block)
{
    while (block->count)
        PyBuffer_Release(&block->columns[--block->count]);
}

/* Hold the buffers of a block, which are so many arguments behind each other: 0, or -1 with an exception. */
static int
hold_block(const char *function, PyObject *const *args, ColdBlock *block)
{
    static const Py_ssize_t sizes[] = {8, 8, 4, 8};
    int i;

    block->count = 0;
    for (i = 0; i < BLOCK_COLUMNS; i++) {
        if (PyObject_GetBuffer(args[i], &block->columns[i], PyBUF_SIMPLE)) {
            release_block(block);
            return -1;
        }
        block->count++;
    }
    block->rows = block->columns[AT_TIMES].len / sizes[AT_TIMES];
    for (i = 0; i < AT_RECORDS; i++)
        if (block->columns[i].len != block->rows * sizes[i]) {
            PyErr_Format(PyExc_ValueError, "%s: the columns of a block differ in length", function);
            release_block(block);
            return -1;
        }
    return 0;
}

static inline int64_t
word_at(const ColdBlock *block, int column, Py_ssize_t row)
{
    return ((const int64_t *)block->columns[column].buf)[row];
}

/* Where the record of a row begins, where its key ends, and where it ends: 0, or -1 with an exception if it is not
 * inside the records. */
static int
record_at(const ColdBlock *block, Py_ssize_t row, int64_t bounds[3])
{
    if (row < 0 || row >= block->rows) {
        PyErr_Format(PyExc_IndexError, "row %zd of %zd", row, block->rows);
        return -1;
    }
    bounds[0] = row ? word_at(block, AT_ENDS, row - 1) : 0;
    bounds[1] = bounds[0] + ((const int32_t *)block->columns[AT_KEY_SIZES].buf)[row];
    bounds[2] = word_at(block, AT_ENDS, row);
    if (bounds[0] >= 0 && bounds[0] <= bounds[1] && bounds[1] <= bounds[2]
        && bounds[2] <= block->columns[AT_RECORDS].len)
        return 0;
    PyErr_Format(PyExc_ValueError, "row %zd ends outside of the records", row);
    return -1;
}

/* The key of a row, or its payload; NULL with an exception. */
static PyObject *
read_record(const ColdBlock *block, const int64_t bounds[3], int is_payload, PyObject *loads)
{
    const char *data = block->columns[AT_RECORDS].buf;

    return read_pickle(data + bounds[is_payload], (size_t)(bounds[is_payload + 1] - bounds[is_payload]),
                       loads);
}

/* A row at a position; NULL with an exception. */
static PyObject *
cold_row(PyTypeObject *type, const ColdBlock *block, Py_ssize_t position, PyObject *operation,
         PyObject *hash, PyObject *loads)
{
    PyObject *row, *place;
    int64_t bounds[3];

    if (record_at(block, position, bounds))
        return NULL;
    row = type->tp_alloc(type, ROW_SIZE);
    if (row == NULL)
        return NULL;
    PyTuple_SET_ITEM(row, ROW_OPERATION, Py_NewRef(operation));
    PyTuple_SET_ITEM(row, ROW_KEY_HASH, Py_NewRef(hash));
    place = Py_BuildValue("(LL)", (long long)word_at(block, AT_TIMES, position),
                          (long long)word_at(block, AT_FRONTS, position));
    PyTuple_SET_ITEM(row, ROW_PLACE, place);
    if (place != NULL)
        PyTuple_SET_ITEM(row, ROW_KEY, read_record(block, bounds, 0, loads));
    if (place != NULL && PyTuple_GET_ITEM(row, ROW_KEY) != NULL)
        PyTuple_SET_ITEM(row, ROW_PAYLOAD, read_record(block, bounds, 1, loads));
    if (place == NULL || PyTuple_GET_ITEM(row, ROW_PAYLOAD) == NULL)
        Py_CLEAR(row);
    return row;
}

/* cold_rows(operation, hashes, positions, loads, times, fronts, key sizes, ends, records) -> list of rows */
static PyObject *
cold_rows(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"operation", ANYTHING}, {"hashes", A_LIST},       {"positions", A_LIST},
           {"loads", A_FUNCTION},   {"times", ANYTHING},      {"fronts", ANYTHING},
           {"key_sizes", ANYTHING}, {"ends", ANYTHING},       {"records", ANYTHING}};
    PyTypeObject *type = (PyTypeObject *)known_of(module)->row_type;
    PyObject *hashes, *positions, *found;
    ColdBlock block;
    Py_ssize_t i;

    if (CHECK_ARGUMENTS("cold_rows", parameters))
        return NULL;
    if (type == NULL)
        return unprepared("cold_rows");
    hashes = args[1], positions = args[2];
    if (hold_block("cold_rows", args + 4, &block))
        return NULL;
    found = PyList_New(0);
    for (i = 0; found != NULL && i < PyList_GET_SIZE(positions) && i < PyList_GET_SIZE(hashes); i++) {
        Py_ssize_t position = PyLong_AsSsize_t(PyList_GET_ITEM(positions, i));
        PyObject *row = position == -1 && PyErr_Occurred()
                            ? NULL
                            : cold_row(type, &block, position, args[0], PyList_GET_ITEM(hashes, i), args[3]);
        if (row == NULL || PyList_Append(found, row))
            Py_CLEAR(found);
        Py_XDECREF(row);
    }
    release_block(&block);
    return found;
}

/* The row of a key at or behind a position that has its hash, among those that were not taken: its position, -1 if
 * there is none, -2 with an exception. */
static Py_ssize_t
cold_place(const ColdBlock *block, const int32_t *hashes, const char *taken, Py_ssize_t first,
           PyObject *wanted, PyObject *loads)
{
    Py_ssize_t position;
    int64_t bounds[3];

    if (first < 0 || first >= block->rows) {
        PyErr_Format(PyExc_IndexError, "row %zd of %zd", first, block->rows);
        return -2;
    }
    for (position = first; position < block->rows && hashes[position] == hashes[first]; position++) {
        PyObject *key;
        int same;

        if (taken[position])
            continue;
        key = record_at(block, position, bounds) ? NULL : read_record(block, bounds, 0, loads);
        same = key == NULL ? -1 : PyObject_RichCompareBool(key, wanted, Py_EQ);
        Py_XDECREF(key);
        if (same)
            return same < 0 ? -2 : position;
    }
    return -1;
}

/* cold_places(keys, firsts, hashes, taken, loads, times, fronts, key sizes, ends, records) -> list of ints */
static PyObject *
cold_places(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"keys", A_LIST},        {"firsts", A_LIST},       {"hashes", ANYTHING}, {"taken", ANYTHING},
           {"loads", A_FUNCTION},   {"times", ANYTHING},      {"fronts", ANYTHING},
           {"key_sizes", ANYTHING}, {"ends", ANYTHING},       {"records", ANYTHING}};
    PyObject *keys, *firsts, *found = NULL;
    Py_buffer hashes, taken;
    ColdBlock block;
    Py_ssize_t i;

    if (CHECK_ARGUMENTS("cold_places", parameters))
        return NULL;
    keys = args[0], firsts = args[1];
    if (hold_block("cold_places", args + 5, &block))
        return NULL;
    if (PyObject_GetBuffer(args[2], &hashes, PyBUF_SIMPLE))
        goto without_hashes;
    if (PyObject_GetBuffer(args[3], &taken, PyBUF_SIMPLE))
        goto without_taken;
    if (hashes.len != block.rows * 4 || taken.len != block.rows)
        PyErr_SetString(PyExc_ValueError, "cold_places: the columns of a run differ in length");
    else
        found = PyList_New(0);
    for (i = 0; found != NULL && i < PyList_GET_SIZE(keys) && i < PyList_GET_SIZE(firsts); i++) {
        Py_ssize_t first = PyLong_AsSsize_t(PyList_GET_ITEM(firsts, i));
        PyObject *key = Py_NewRef(PyList_GET_ITEM(keys, i)), *made = NULL;
        Py_ssize_t position = first == -1 && PyErr_Occurred()
                                  ? -2
                                  : cold_place(&block, hashes.buf, taken.buf, first, key, args[4]);
        if (position >= -1)
            made = PyLong_FromSsize_t(position);
        if (made == NULL || PyList_Append(found, made))
            Py_CLEAR(found);
        Py_XDECREF(made);
        Py_DECREF(key);
    }
    PyBuffer_Release(&taken);
without_taken:
    PyBuffer_Release(&hashes);
without_hashes:
    release_block(&block);
    return found;
}

#endif
