/* The rows of a cut as columns, compiled: of plain values and tuples of such, which most are. `tables.py`
 * does the same for all others, and for all where this module could not be built;
 * tests/checkpoint/test_rows.py holds the two to each other.
 *
 * What is guaranteed: what is pickled here is what `pickle.dumps` gives, to the byte.
 *
 * A worker encodes its rows in a thread beside its loop, and the loop waits for the interpreter meanwhile.
 * So it has to be quick, and lets the loop have the interpreter after some rows.
 */

#include "headers/cut_rows.h"
#include "headers/items.h"
#include "headers/packed.h"

#define ROWS_AT_ONCE 128 /* until other threads may have the interpreter: some 50 us */
#define AT_ONCE 16       /* records ahead are fetched */

enum { HASHES, KEY_ENDS, KEYS, TIMES, FRONTS, CHILD_ENDS, CHILD_IDS, PAYLOAD_ENDS, PAYLOADS, BUFFERS };

/* Add a row: 1, 0 if it is not plain, -1 with an exception. */
static int
add_row(Buffer *buffers, PyObject *row, PyObject *operation)
{
    PyObject *place;
    Py_ssize_t i;
    int64_t word;
    int result;

    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != ROW_SIZE
        || PyTuple_GET_ITEM(row, ROW_OPERATION) != operation
        || !word_of(PyTuple_GET_ITEM(row, ROW_KEY_HASH), &word))
        return 0;
    place = PyTuple_GET_ITEM(row, ROW_PLACE);
    if (!PyTuple_Check(place) || PyTuple_GET_SIZE(place) < 2)
        return 0;
    result = add_word(&buffers[HASHES], word);
    for (i = 0; result > 0 && i < PyTuple_GET_SIZE(place); i++) {
        result = word_of(PyTuple_GET_ITEM(place, i), &word);
        if (result > 0)
            result = add_word(&buffers[i == 0 ? TIMES : i == 1 ? FRONTS : CHILD_IDS], word);
    }
    if (result > 0)
        result = add_end(&buffers[CHILD_ENDS], buffers[CHILD_IDS].length / sizeof word);
    if (result > 0)
        result = add_pickle(&buffers[KEYS], PyTuple_GET_ITEM(row, ROW_KEY));
    if (result > 0)
        result = add_end(&buffers[KEY_ENDS], buffers[KEYS].length);
    if (result > 0)
        result = add_pickle(&buffers[PAYLOADS], PyTuple_GET_ITEM(row, ROW_PAYLOAD));
    if (result > 0)
        result = add_end(&buffers[PAYLOAD_ENDS], buffers[PAYLOADS].length);
    return result;
}

/* What the module was told: the type of the rows of a cut, which have the fields that it reads. */
typedef struct {
    PyObject *row_type;
} Known;

static inline Known *
known_of(PyObject *module)
{
    return PyModule_GetState(module);
}

/* prepare(Row) */
static PyObject *
prepare(PyObject *module, PyObject *row)
{
    PyObject *type = row_argument(0, row);

    if (type == NULL)
        return NULL;
    Py_XSETREF(known_of(module)->row_type, type);
    Py_RETURN_NONE;
}

/* The buffers as bytes; NULL with an exception. */
static PyObject *
bytes_of(const Buffer *buffers, int count)
{
    PyObject *made = PyTuple_New(count);
    int i;

    for (i = 0; made != NULL && i < count; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(buffers[i].data, (Py_ssize_t)buffers[i].length);
        if (bytes == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, i, bytes);
    }
    return made;
}

/* row_buffers(rows) -> (hashes, key offsets, keys, times, fronts, child id offsets, child ids,
 * payload offsets, payloads), or None if some rows are not plain or not of one operation */
static PyObject *
row_buffers(PyObject *module, PyObject *rows)
{
    static const Parameter parameters[] = {{"rows", A_LIST}};
    Buffer buffers[BUFFERS] = {{NULL, 0, 0}};
    PyObject *made = NULL, *operation;
    Py_ssize_t i;
    int result;

    if (check_arguments("row_buffers", parameters, 1, &rows, 1))
        return NULL;
    if (!known_of(module)->row_type)
        return unprepared("row_buffers");
    if (!PyList_GET_SIZE(rows) || !PyTuple_Check(PyList_GET_ITEM(rows, 0))
        || PyTuple_GET_SIZE(PyList_GET_ITEM(rows, 0)) != ROW_SIZE)
        Py_RETURN_NONE;
    operation = Py_NewRef(PyTuple_GET_ITEM(PyList_GET_ITEM(rows, 0), ROW_OPERATION));
    result = add_end(&buffers[KEY_ENDS], 0);
    if (result > 0)
        result = add_end(&buffers[CHILD_ENDS], 0);
    if (result > 0)
        result = add_end(&buffers[PAYLOAD_ENDS], 0);
    for (i = 0; result > 0 && i < PyList_GET_SIZE(rows); i++) {
        result = add_row(buffers, PyList_GET_ITEM(rows, i), operation);
        if (result > 0 && i % ROWS_AT_ONCE == ROWS_AT_ONCE - 1) {
            Py_BEGIN_ALLOW_THREADS /* they may change the list: its size is asked each time */
            Py_END_ALLOW_THREADS
        }
    }
    Py_DECREF(operation);
    if (result > 0) {
        made = bytes_of(buffers, BUFFERS);
    }
    else if (!result) {
        made = Py_NewRef(Py_None);
    }
    for (i = 0; i < BUFFERS; i++)
        PyMem_Free(buffers[i].data);
    return made;
}

#include "headers/cold.h"

/* Packed rows (`engine.cuts.packed`) as columns. Both of these let other threads have the interpreter meanwhile: they
 * read nothing but bytes. The twins are in `checkpoint.cuts.parts.packed`. */

typedef struct {
    PyObject *held; /* the chunks, as a tuple */
    uint32_t count;
} Chunks;

static inline const char *
chunk_at(const Chunks *chunks, uint32_t number, size_t *bytes)
{
    PyObject *chunk = PyTuple_GET_ITEM(chunks->held, number);

    *bytes = (size_t)PyBytes_GET_SIZE(chunk);
    return PyBytes_AS_STRING(chunk);
}

/* Read the head of a record: how many bytes the record has, 0 if they are not all there. */
static inline size_t
head_at(const char *data, size_t bytes, size_t offset, RecordHead *head)
{
    size_t whole;

    if (offset > bytes || bytes - offset < sizeof *head)
        return 0;
    memcpy(head, data + offset, sizeof *head);
    whole = sizeof *head + (size_t)head->key_bytes + head->payload_bytes;
    return bytes - offset < whole ? 0 : whole;
}

static int
hold_chunks(const char *function, PyObject *list, Chunks *chunks)
{
    Py_ssize_t i;

    chunks->held = PyList_AsTuple(list);
    if (chunks->held == NULL)
        return -1;
    chunks->count = (uint32_t)PyTuple_GET_SIZE(chunks->held);
    for (i = 0; i < PyTuple_GET_SIZE(chunks->held); i++)
        if (!PyBytes_CheckExact(PyTuple_GET_ITEM(chunks->held, i))
            || PyBytes_GET_SIZE(PyTuple_GET_ITEM(chunks->held, i)) > INT32_MAX
            || PyTuple_GET_SIZE(chunks->held) > INT32_MAX) {
            PyErr_Format(PyExc_TypeError, "%s: argument 1 (`chunks`) must hold bytes at %zd, got %.100s",
                         function, i, Py_TYPE(PyTuple_GET_ITEM(chunks->held, i))->tp_name);
            Py_CLEAR(chunks->held);
            return -1;
        }
    return 0;
}

static PyObject *
damaged(const char *function)
{
    PyErr_Format(PyExc_ValueError, "%s: the chunks are no packed rows", function);
    return NULL;
}

/* Where all records are, by hash, and those of one hash in their order. `words` has room for three numbers each.
 * 0, or -1 if the records are not whole. */
static int
ordered_records(const Chunks *chunks, size_t count, uint64_t *places, uint64_t *words)
{
    size_t row = 0, bytes, offset, whole, i;
    uint64_t *found = words + 2 * count;
    RecordHead head;
    uint32_t number;

    for (number = 0; number < chunks->count; number++) {
        const char *data = chunk_at(chunks, number, &bytes);
        for (offset = 0; offset < bytes; offset += whole, row++) {
            whole = head_at(data, bytes, offset, &head);
            if (!whole || row == count)
                return -1;
            words[row] = (uint64_t)((int64_t)head.hash - INT32_MIN) << 32 | row;
            found[row] = (uint64_t)number << 32 | offset;
        }
    }
    if (row != count)
        return -1;
    sort_by_upper(words, words + count, count);
    for (i = 0; i < count; i++)
        places[i] = found[words[i] & UINT32_MAX];
    return 0;
}

/* packed_order(chunks, count) -> bytes */
static PyObject *
packed_order(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[] = {{"chunks", A_LIST}, {"count", AN_INT}};
    PyObject *order = NULL;
    uint64_t *words;
    Py_ssize_t count;
    Chunks chunks;
    int failed;

    if (CHECK_ARGUMENTS("packed_order", parameters))
        return NULL;
    count = natural_argument("packed_order", 1, "count", args[1]);
    if (count < 0 || hold_chunks("packed_order", args[0], &chunks))
        return NULL;
    words = count > INT32_MAX ? NULL : PyMem_Malloc(3 * (size_t)count * sizeof *words);
    order = words == NULL ? PyErr_NoMemory()
                          : PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof *words);
    if (order != NULL) {
        uint64_t *places = (uint64_t *)PyBytes_AS_STRING(order);
        Py_BEGIN_ALLOW_THREADS
        failed = ordered_records(&chunks, (size_t)count, places, words);
        Py_END_ALLOW_THREADS
        if (failed) {
            Py_CLEAR(order);
            damaged("packed_order");
        }
    }
    PyMem_Free(words);
    Py_DECREF(chunks.held);
    return order;
}

enum { PACKED_HASHES, PACKED_KEY_ENDS, PACKED_KEYS, PACKED_TIMES, PACKED_FRONTS, PACKED_ENDS, PACKED_PAYLOADS,
       PACKED_COLUMNS };

/* The bytes of the keys and of the payloads of some records: 0, or -1 if there are no such records. */
static int
sizes_of(const Chunks *chunks, const uint64_t *places, size_t count, size_t *keys, size_t *payloads)
{
    size_t bytes, i;
    RecordHead head;

    *keys = *payloads = 0;
    for (i = 0; i < count; i++) {
        const char *data;
        if (i + AT_ONCE < count && places[i + AT_ONCE] >> 32 < chunks->count) {
            data = chunk_at(chunks, (uint32_t)(places[i + AT_ONCE] >> 32), &bytes);
            FETCH(data + (places[i + AT_ONCE] & UINT32_MAX));
        }
        if (places[i] >> 32 >= chunks->count)
            return -1;
        data = chunk_at(chunks, (uint32_t)(places[i] >> 32), &bytes);
        if (!head_at(data, bytes, places[i] & UINT32_MAX, &head))
            return -1;
        *keys += head.key_bytes;
        *payloads += head.payload_bytes;
    }
    return *keys > INT32_MAX || *payloads > INT32_MAX ? -1 : 0;
}

static void
fill_columns(const Chunks *chunks, const uint64_t *places, size_t count, char *const *columns)
{
    int64_t *hashes = (int64_t *)columns[PACKED_HASHES], *times = (int64_t *)columns[PACKED_TIMES];
    int64_t *fronts = (int64_t *)columns[PACKED_FRONTS];
    int32_t *key_ends = (int32_t *)columns[PACKED_KEY_ENDS], *ends = (int32_t *)columns[PACKED_ENDS];
    size_t keys = 0, payloads = 0, bytes, i;
    RecordHead head;

    key_ends[0] = ends[0] = 0;
    for (i = 0; i < count; i++) {
        size_t offset = places[i] & UINT32_MAX;
        const char *data = chunk_at(chunks, (uint32_t)(places[i] >> 32), &bytes);
        memcpy(&head, data + offset, sizeof head);
        data += offset + sizeof head;
        hashes[i] = head.hash;
        times[i] = head.time;
        fronts[i] = head.front;
        memcpy(columns[PACKED_KEYS] + keys, data, head.key_bytes);
        memcpy(columns[PACKED_PAYLOADS] + payloads, data + head.key_bytes, head.payload_bytes);
        key_ends[i + 1] = (int32_t)(keys += head.key_bytes);
        ends[i + 1] = (int32_t)(payloads += head.payload_bytes);
    }
}

/* Columns for so many records, as bytes in a tuple, and where they begin; NULL with an exception. */
static PyObject *
new_columns(size_t count, size_t keys, size_t payloads, char **columns)
{
    const size_t sizes[PACKED_COLUMNS] = {8 * count, 4 * (count + 1), keys, 8 * count,
                                          8 * count, 4 * (count + 1), payloads};
    PyObject *made = PyTuple_New(PACKED_COLUMNS);
    int i;

    for (i = 0; made != NULL && i < PACKED_COLUMNS; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizes[i]);
        if (bytes == NULL) {
            Py_CLEAR(made);
        }
        else {
            PyTuple_SET_ITEM(made, i, bytes);
            columns[i] = PyBytes_AS_STRING(bytes);
        }
    }
    return made;
}

/* packed_columns(chunks, order, begin, end)
 * -> (hashes, key offsets, keys, times, fronts, payload offsets, payloads) */
static PyObject *
packed_columns(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const Parameter parameters[]
        = {{"chunks", A_LIST}, {"order", ANYTHING}, {"begin", AN_INT}, {"end", AN_INT}};
    PyObject *made = NULL;
    char *columns[PACKED_COLUMNS];
    Py_ssize_t begin, end;
    size_t keys, payloads, count;
    const uint64_t *places;
    Chunks chunks;
    int failed;

    if (CHECK_ARGUMENTS("packed_columns", parameters))
        return NULL;
    if (!PyBytes_CheckExact(args[1])) {
        wrong_argument("packed_columns", 1, "order", "bytes", args[1]);
        return NULL;
    }
    begin = natural_argument("packed_columns", 2, "begin", args[2]);
    end = begin < 0 ? -1 : natural_argument("packed_columns", 3, "end", args[3]);
    if (end < 0)
        return NULL;
    if (begin > end || end > PyBytes_GET_SIZE(args[1]) / (Py_ssize_t)sizeof *places) {
        PyErr_Format(PyExc_ValueError, "packed_columns: rows %zd to %zd of %zd", begin, end,
                     PyBytes_GET_SIZE(args[1]) / (Py_ssize_t)sizeof *places);
        return NULL;
    }
    if (hold_chunks("packed_columns", args[0], &chunks))
        return NULL;
    places = (const uint64_t *)PyBytes_AS_STRING(args[1]) + begin;
    count = (size_t)(end - begin);
    Py_BEGIN_ALLOW_THREADS
    failed = sizes_of(&chunks, places, count, &keys, &payloads);
    Py_END_ALLOW_THREADS
    if (failed)
        damaged("packed_columns");
    else
        made = new_columns(count, keys, payloads, columns);
    if (made != NULL) {
        Py_BEGIN_ALLOW_THREADS
        fill_columns(&chunks, places, count, columns);
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(chunks.held);
    return made;
}

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_O, NULL},
    {"row_buffers", row_buffers, METH_O, NULL},
    {"cold_buffers", cold_buffers, METH_O, NULL},
    FAST(cold_rows),
    FAST(packed_order),
    FAST(packed_columns),
    FAST(cold_places),
    {NULL, NULL, 0, NULL},
};

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(known_of(module)->row_type);
    return 0;
}

static int
clear(PyObject *module)
{
    Py_CLEAR(known_of(module)->row_type);
    return 0;
}

static void
release(void *module)
{
    clear(module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_interface},
    EACH_INTERPRETER
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "emberflow.native._rows",
    .m_doc = "See emberflow.checkpoint.cuts.parts.",
    .m_size = sizeof(Known),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC
PyInit__rows(void)
{
    return PyModuleDef_Init(&definition);
}
