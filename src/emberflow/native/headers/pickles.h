/* Pickles of plain values, which most keys and payloads are: None, bools, ints of 64 bits, floats, short bytes and
 * ASCII texts, and tuples of such.
 *
 * What is guaranteed: what is pickled here is what `pickle.dumps` gives, to the byte.
 */

#ifndef EMBERFLOW_PICKLES_H
#define EMBERFLOW_PICKLES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
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

/* Bytes, and room for more. */
typedef struct {
    char *data;
    size_t length, room;
} Buffer;

/* Space for so many bytes more; NULL with an exception. */
static inline char *
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

static inline int
add_word(Buffer *buffer, int64_t word)
{
    char *at = more(buffer, sizeof word);
    if (at == NULL)
        return -1;
    memcpy(at, &word, sizeof word);
    return 1;
}

/* Arrow's offsets have 32 bits. */
static inline int
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
static inline int
word_of(PyObject *value, int64_t *word)
{
    int beyond = 0;

    if (!PyLong_CheckExact(value))
        return 0;
    *word = PyLong_AsLongLongAndOverflow(value, &beyond);
    return !beyond;
}

/* The opcodes of an int; how many bytes. */
static inline size_t
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
static inline int
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

static inline int
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

static inline int
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

static inline int
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
static inline int
add_pickle(Buffer *buffer, PyObject *value)
{
    size_t begin = buffer->length, length, i;
    Memo memo;
    char *at = more(buffer, HEAD_BYTES);
    int result;

    if (at == NULL)
        return -1;
    memo.count = 0; /* what it has met is read up to there: to clear all of it would take longer than many pickles */
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

#endif
