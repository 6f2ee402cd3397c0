/* `hashing.key_hash` of the commonest keys: texts, ints of 64 bits; and of other plain values, and tuples of such,
 * whose encodings are short. */

#ifndef EMBERFLOW_HASHING_H
#define EMBERFLOW_HASHING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* XXH32 with seed 0, after its specification. Most keys are shorter than the 16 bytes that its main loop
 * takes at once, so mostly only the end of it runs. */

#define PRIME_1 2654435761U
#define PRIME_2 2246822519U
#define PRIME_3 3266489917U
#define PRIME_4 668265263U
#define PRIME_5 374761393U

static inline uint32_t
rotated(uint32_t word, int bits)
{
    return word << bits | word >> (32 - bits);
}

static inline uint32_t
little_endian(const unsigned char *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16
           | (uint32_t)from[3] << 24;
}

static inline uint32_t
xxh32(const unsigned char *from, size_t length)
{
    const unsigned char *end = from + length;
    uint32_t hash = PRIME_5;

    if (length >= 16) {
        uint32_t lane[4] = {PRIME_1 + PRIME_2, PRIME_2, 0, 0U - PRIME_1};
        int i;
        for (; end - from >= 16; from += 16)
            for (i = 0; i < 4; i++)
                lane[i] = rotated(lane[i] + little_endian(from + 4 * i) * PRIME_2, 13) * PRIME_1;
        hash = rotated(lane[0], 1) + rotated(lane[1], 7) + rotated(lane[2], 12)
               + rotated(lane[3], 18);
    }
    hash += (uint32_t)length;
    for (; end - from >= 4; from += 4)
        hash = rotated(hash + little_endian(from) * PRIME_3, 17) * PRIME_4;
    for (; from < end; from++)
        hash = rotated(hash + *from * PRIME_5, 11) * PRIME_1;
    hash = (hash ^ hash >> 15) * PRIME_2;
    hash = (hash ^ hash >> 13) * PRIME_3;
    return hash ^ hash >> 16;
}

/* Texts of up to so many bytes of UTF-8 are encoded on the stack. */
#define TEXT_BYTES 512

/* The UTF-8 of a text that is not ASCII: how many bytes, or -1 if it has a lone surrogate. There is room
 * for them: at most 2, 3 or 4 bytes a character, by the kind of the text. */
static inline Py_ssize_t
encode_utf8(PyObject *text, unsigned char *bytes)
{
    Py_ssize_t length = PyUnicode_GET_LENGTH(text), i;
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    unsigned char *at = bytes;

    for (i = 0; i < length; i++) {
        Py_UCS4 point = PyUnicode_READ(kind, data, i);
        if (point < 0x80) {
            *at++ = (unsigned char)point;
        }
        else if (point < 0x800) {
            *at++ = (unsigned char)(0xC0 | point >> 6);
            *at++ = (unsigned char)(0x80 | (point & 0x3F));
        }
        else if (point < 0x10000) {
            if (point >= 0xD800 && point < 0xE000)
                return -1;
            *at++ = (unsigned char)(0xE0 | point >> 12);
            *at++ = (unsigned char)(0x80 | (point >> 6 & 0x3F));
            *at++ = (unsigned char)(0x80 | (point & 0x3F));
        }
        else {
            *at++ = (unsigned char)(0xF0 | point >> 18);
            *at++ = (unsigned char)(0x80 | (point >> 12 & 0x3F));
            *at++ = (unsigned char)(0x80 | (point >> 6 & 0x3F));
            *at++ = (unsigned char)(0x80 | (point & 0x3F));
        }
    }
    return at - bytes;
}

/* The hash of a text: 1; 0 if Python has to hash it, since it has a lone surrogate or memory is short.
 *
 * PyUnicode_AsUTF8AndSize would do, but it leaves the UTF-8 with the text for as long as that lives: more
 * than a hundred bytes a key. */
static inline int
hash_of_text(PyObject *text, uint32_t *hash)
{
    unsigned char on_stack[TEXT_BYTES], *bytes = on_stack;
    Py_ssize_t length, each;

#if PY_VERSION_HEX < 0x030C0000
    if (PyUnicode_READY(text) < 0) { /* only short memory can make it fail */
        PyErr_Clear();
        return 0;
    }
#endif
    length = PyUnicode_GET_LENGTH(text);
    if (PyUnicode_IS_ASCII(text)) {
        *hash = xxh32(PyUnicode_1BYTE_DATA(text), (size_t)length);
        return 1;
    }
    each = PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND   ? 2
           : PyUnicode_KIND(text) == PyUnicode_2BYTE_KIND ? 3
                                                          : 4;
    if (length > TEXT_BYTES / each)
        bytes = length > PY_SSIZE_T_MAX / each ? NULL : PyMem_Malloc((size_t)(length * each));
    if (bytes == NULL)
        return 0;
    length = encode_utf8(text, bytes);
    if (length >= 0)
        *hash = xxh32(bytes, (size_t)length);
    if (bytes != on_stack)
        PyMem_Free(bytes);
    return length >= 0;
}

#define INT_BYTES 9

/* Encode an int of 64 bits: 1; 0 if it is greater. */
static inline int
encode_int(PyObject *number, unsigned char *bytes)
{
    int beyond = 0, i;
    uint64_t word = (uint64_t)PyLong_AsLongLongAndOverflow(number, &beyond);

    if (beyond)
        return 0;
    bytes[0] = 0x81;
    for (i = INT_BYTES - 1; i > 0; i--, word >>= 8)
        bytes[i] = (unsigned char)word;
    return 1;
}

/* `hashing.key_hash`, as an unsigned number, of the commonest keys: 1; 0 for any other key. There is
 * never an exception. */
static inline int
hash_of_common(PyObject *key, uint32_t *hash)
{
    if (PyUnicode_CheckExact(key))
        return hash_of_text(key, hash);
    if (PyLong_CheckExact(key)) {
        unsigned char encoded[INT_BYTES];
        if (!encode_int(key, encoded))
            return 0;
        *hash = xxh32(encoded, sizeof encoded);
        return 1;
    }
    return 0;
}

/* Encodings of up to so many bytes are made on the stack, of tuples in tuples of so many levels. */
#define ENCODED_BYTES 512
#define LEVELS_MAX 8

typedef struct {
    unsigned char bytes[ENCODED_BYTES];
    size_t length;
} Encoding;

/* Room for so many bytes more; NULL if there is not so much. */
static inline unsigned char *
room_in(Encoding *encoding, size_t bytes)
{
    unsigned char *begin = encoding->bytes + encoding->length;

    if (bytes > sizeof encoding->bytes - encoding->length)
        return NULL;
    encoding->length += bytes;
    return begin;
}

/* The next four add the encoding of a value: 1; 0 if Python has to do it. */

static inline int
encode_text_part(Encoding *encoding, PyObject *text)
{
    Py_ssize_t length, written;
    size_t most;
    unsigned char *at;

#if PY_VERSION_HEX < 0x030C0000
    if (PyUnicode_READY(text) < 0) {
        PyErr_Clear();
        return 0;
    }
#endif
    length = PyUnicode_GET_LENGTH(text);
    if (PyUnicode_IS_ASCII(text)) {
        at = room_in(encoding, (size_t)length);
        if (at != NULL)
            memcpy(at, PyUnicode_1BYTE_DATA(text), (size_t)length);
        return at != NULL;
    }
    if (length > ENCODED_BYTES)
        return 0;
    most = (size_t)length
           * (PyUnicode_KIND(text) == PyUnicode_1BYTE_KIND   ? 2
              : PyUnicode_KIND(text) == PyUnicode_2BYTE_KIND ? 3
                                                             : 4);
    at = room_in(encoding, most);
    written = at == NULL ? -1 : encode_utf8(text, at);
    if (written < 0)
        return 0;
    encoding->length -= most - (size_t)written;
    return 1;
}

static inline int
encode_int_part(Encoding *encoding, PyObject *number)
{
    unsigned char *at = room_in(encoding, INT_BYTES);
    return at != NULL && encode_int(number, at);
}

/* A float that equals an int is encoded as that. What is no number equals nothing: Python refuses it. */
static inline int
encode_float_part(Encoding *encoding, PyObject *number)
{
    double value = PyFloat_AS_DOUBLE(number);
    unsigned char *at;
    uint64_t word;
    int fits, i;

    if (value != value)
        return 0;
    at = room_in(encoding, INT_BYTES);
    if (at == NULL)
        return 0;
    fits = value >= -9223372036854775808.0 && value < 9223372036854775808.0;
    if (fits && value == (double)(int64_t)value) {
        word = (uint64_t)(int64_t)value;
        at[0] = 0x81;
    }
    else if (fits || value - value != 0) { /* it has a fraction, or is infinite */
        memcpy(&word, &value, sizeof word);
        at[0] = 0x83;
    }
    else {
        return 0;
    }
    for (i = INT_BYTES - 1; i > 0; i--, word >>= 8)
        at[i] = (unsigned char)word;
    return 1;
}

static inline int
encode_plain(Encoding *encoding, PyObject *value, int level)
{
    unsigned char *at;
    Py_ssize_t i;

    if (PyUnicode_CheckExact(value))
        return encode_text_part(encoding, value);
    if (PyLong_CheckExact(value) || PyBool_Check(value))
        return encode_int_part(encoding, value);
    if (PyFloat_CheckExact(value))
        return encode_float_part(encoding, value);
    if (value == Py_None || PyBytes_CheckExact(value)) {
        size_t length = value == Py_None ? 0 : (size_t)PyBytes_GET_SIZE(value);
        at = length < ENCODED_BYTES ? room_in(encoding, 1 + length) : NULL;
        if (at == NULL)
            return 0;
        at[0] = value == Py_None ? 0x80 : 0x84;
        if (length)
            memcpy(at + 1, PyBytes_AS_STRING(value), length);
        return 1;
    }
    if (!PyTuple_CheckExact(value) || level == LEVELS_MAX)
        return 0;
    at = room_in(encoding, 1);
    if (at == NULL)
        return 0;
    at[0] = 0x85;
    for (i = 0; i < PyTuple_GET_SIZE(value); i++) {
        size_t begin = encoding->length, length, byte;
        if (room_in(encoding, 1) == NULL || !encode_plain(encoding, PyTuple_GET_ITEM(value, i), level + 1))
            return 0;
        length = encoding->length - begin - 1;
        at = encoding->bytes + begin;
        if (length < 255) {
            at[0] = (unsigned char)length;
            continue;
        }
        /* Its length takes nine bytes. */
        if (room_in(encoding, 8) == NULL)
            return 0;
        memmove(at + 9, at + 1, length);
        at[0] = 0xff;
        for (byte = 8; byte > 0; byte--)
            at[byte] = (unsigned char)(length >> 8 * (8 - byte));
    }
    return 1;
}

/* The same of floats, bytes, bools, None and tuples of plain values, too, in so far as their encoding is short. */
static inline int
hash_of_composite(PyObject *key, uint32_t *hash)
{
    Encoding encoding;

    if (PyUnicode_CheckExact(key) || PyLong_CheckExact(key))
        return hash_of_common(key, hash);
    encoding.length = 0;
    if (!encode_plain(&encoding, key, 0))
        return 0;
    *hash = xxh32(encoding.bytes, encoding.length);
    return 1;
}

#endif
