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
#include <stdint.h>
#include <string.h>

#define PROTOCOL 5
#define FRAME_MIN 4
#define FRAME_MAX 32768 /* far from the size at which pickle begins a second frame */
#define HEAD_BYTES 11 /* of a pickle with a frame */
#define SHORT_MAX 255
#define MEMO_MAX 64
#define MEMBERS_MAX 64
#define DEPTH_MAX 4
#define ROWS_AT_ONCE 128 /* until other threads may have the interpreter: some 50 us */

/* Bytes, and room for more. */
typedef struct {
    char *data;
    size_t length, room;
} Buffer;

enum { HASHES, KEY_ENDS, KEYS, TIMES, FRONTS, CHILD_ENDS, CHILD_IDS, PAYLOAD_ENDS, PAYLOADS, BUFFERS };

/* Space for so many bytes more; NULL with an exception. */
static char *
more(Buffer *buffer, size_t bytes)
{
    char *begin;

    if (buffer->length + bytes > buffer->room) {
        size_t room = 2 * (buffer->length + bytes) + 1024;
        char *data = PyMem_Realloc(buffer->data, room);
        if (data == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        buffer->data = data;
        buffer->room = room;
    }
    begin = buffer->data + buffer->length;
    buffer->length += bytes;
    return begin;
}

static int
add_word(Buffer *buffer, int64_t word)
{
    char *at = more(buffer, sizeof word);
    if (at == NULL)
        return -1;
    memcpy(at, &word, sizeof word);
    return 1;
}

/* Arrow's offsets have 32 bits. */
static int
add_end(Buffer *ends, size_t end)
{
    int32_t offset = (int32_t)end;
    char *at;

    if (end > INT32_MAX)
        return 0;
    at = more(ends, sizeof offset);
    if (at == NULL)
        return -1;
    memcpy(at, &offset, sizeof offset);
    return 1;
}

/* An int as a word: 1, or 0 if it is none or does not fit. */
static int
word_of(PyObject *value, int64_t *word)
{
    int beyond = 0;

    if (!PyLong_CheckExact(value))
        return 0;
    *word = PyLong_AsLongLongAndOverflow(value, &beyond);
    return !beyond;
}

/* The opcodes of an int; how many bytes. */
static size_t
int_opcodes(int64_t value, unsigned char *body)
{
    size_t bytes, i;

    if (value >= 0 && value <= 0xffff) {
        bytes = value <= 0xff ? 1 : 2;
        body[0] = bytes == 1 ? 'K' : 'M';
    }
    else if (value >= INT32_MIN && value <= INT32_MAX) {
        bytes = 4;
        body[0] = 'J';
    }
    else {
        /* As few bytes as leave the sign as it is. */
        for (bytes = 5; bytes < 8; bytes++)
            if (value >> (8 * bytes - 1) == 0 || value >> (8 * bytes - 1) == -1)
                break;
        body[0] = 0x8a;
        body[1] = (unsigned char)bytes;
        body++;
    }
    for (i = 0; i < bytes; i++)
        body[1 + i] = (unsigned char)((uint64_t)value >> (8 * i));
    return bytes + (value >= INT32_MIN && value <= INT32_MAX ? 1 : 2);
}

/* What pickle has met in a value, in order. Where it meets the same object again, it writes its number. */
typedef struct {
    PyObject *met[MEMO_MAX];
    int count;
} Memo;

/* Put what was just added into the memo: 1, 0 if it is full, -1 with an exception. */
static int
memoize(Buffer *buffer, PyObject *value, Memo *memo)
{
    char *at;

    if (memo->count == MEMO_MAX)
        return 0;
    memo->met[memo->count++] = value;
    at = more(buffer, 1);
    if (at == NULL)
        return -1;
    at[0] = (char)0x94;
    return 1;
}

/* The next three add the opcodes of a value: 1, 0 if it is not plain, -1 with an exception. */

static int
add_scalar(Buffer *buffer, PyObject *value)
{
    unsigned char body[16];
    size_t length, i;
    int64_t word;
    char *at;

    if (value == Py_None || PyBool_Check(value)) {
        body[0] = value == Py_None ? 'N' : value == Py_True ? 0x88 : 0x89;
        length = 1;
    }
    else if (PyLong_CheckExact(value)) {
        if (!word_of(value, &word))
            return 0;
        length = int_opcodes(word, body);
    }
    else if (PyFloat_CheckExact(value)) {
        double number = PyFloat_AS_DOUBLE(value);
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        body[0] = 'G';
        for (i = 0; i < 8; i++)
            body[1 + i] = (unsigned char)(bits >> (56 - 8 * i));
        length = 9;
    }
    else {
        return 0;
    }
    at = more(buffer, length);
    if (at == NULL)
        return -1;
    memcpy(at, body, length);
    return 1;
}

static int
add_text(Buffer *buffer, PyObject *value, Memo *memo)
{
    Py_ssize_t size;
    const char *data;
    char *at;

    if (PyBytes_CheckExact(value)) {
        data = PyBytes_AS_STRING(value);
        size = PyBytes_GET_SIZE(value);
    }
    else {
#if PY_VERSION_HEX < 0x030C0000
        if (PyUnicode_READY(value) < 0)
            return -1;
#endif
        if (!PyUnicode_IS_ASCII(value)) /* a text that cannot be encoded is not ASCII either */
            return 0;
        data = (const char *)PyUnicode_1BYTE_DATA(value);
        size = PyUnicode_GET_LENGTH(value);
    }
    if (size > SHORT_MAX)
        return 0;
    at = more(buffer, 2 + size);
    if (at == NULL)
        return -1;
    at[0] = (char)(PyBytes_CheckExact(value) ? 'C' : 0x8c);
    at[1] = (char)size;
    memcpy(at + 2, data, size);
    return memoize(buffer, value, memo);
}

static int
add_opcodes(Buffer *buffer, PyObject *value, Memo *memo, int depth)
{
    Py_ssize_t size, i;
    char *at;
    int result = 1;

    if (PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) || PyTuple_CheckExact(value)) {
        for (i = 0; i < memo->count; i++)
            if (memo->met[i] == value) {
                at = more(buffer, 2);
                if (at == NULL)
                    return -1;
                at[0] = 'h';
                at[1] = (char)i;
                return 1;
            }
    }
    if (PyUnicode_CheckExact(value) || PyBytes_CheckExact(value))
        return add_text(buffer, value, memo);
    if (!PyTuple_CheckExact(value))
        return add_scalar(buffer, value);
    size = PyTuple_GET_SIZE(value);
    if (size > MEMBERS_MAX || depth == DEPTH_MAX)
        return 0;
    if (size > 3) {
        at = more(buffer, 1);
        if (at == NULL)
            return -1;
        at[0] = '(';
    }
    for (i = 0; result > 0 && i < size; i++)
        result = add_opcodes(buffer, PyTuple_GET_ITEM(value, i), memo, depth + 1);
    if (result <= 0)
        return result;
    at = more(buffer, 1);
    if (at == NULL)
        return -1;
    at[0] = (char)(size == 0 ? ')' : size > 3 ? 't' : 0x84 + size); /* 0x85 is a tuple of one */
    return size ? memoize(buffer, value, memo) : 1;
}

/* Add the pickle of a value: 1, 0 if it is not plain, -1 with an exception. */
static int
add_pickle(Buffer *buffer, PyObject *value)
{
    size_t begin = buffer->length, length, i;
    Memo memo = {.count = 0};
    char *at = more(buffer, HEAD_BYTES);
    int result;

    if (at == NULL)
        return -1;
    result = add_opcodes(buffer, value, &memo, 0);
    if (result <= 0)
        return result;
    at = more(buffer, 1);
    if (at == NULL)
        return -1;
    at[0] = '.';
    length = buffer->length - begin - HEAD_BYTES;
    if (length > FRAME_MAX)
        return 0;
    at = buffer->data + begin;
    at[0] = (char)0x80;
    at[1] = PROTOCOL;
    if (length < FRAME_MIN) { /* it has no frame */
        memmove(at + 2, at + HEAD_BYTES, length);
        buffer->length -= HEAD_BYTES - 2;
        return 1;
    }
    at[2] = (char)0x95;
    for (i = 0; i < 8; i++)
        at[3 + i] = (char)((uint64_t)length >> (8 * i));
    return 1;
}

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

static PyMethodDef methods[] = {
    {"prepare", prepare, METH_O, NULL},
    {"row_buffers", row_buffers, METH_O, NULL},
    {"cold_buffers", cold_buffers, METH_O, NULL},
    FAST(cold_rows),
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
    .m_doc = "See emberflow.checkpoint.cuts.tables.",
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
