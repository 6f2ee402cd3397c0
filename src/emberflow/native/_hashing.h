/* `hashing.key_hash` of the commonest keys. */

#ifndef EMBERFLOW_HASHING_H
#define EMBERFLOW_HASHING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>

/* XXH32 with seed 0, after its specification. Keys are short: mostly it is the end of it that runs. */

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

/* `hashing.key_hash`, as an unsigned number, of the commonest keys: 1; 0 for another key. */
static inline int
hash_of_common(PyObject *key, uint32_t *hash)
{
    if (PyUnicode_CheckExact(key)) {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(key, &length);
        if (text == NULL) { /* a lone surrogate */
            PyErr_Clear();
            return 0;
        }
        *hash = xxh32((const unsigned char *)text, (size_t)length);
        return 1;
    }
    if (PyLong_CheckExact(key)) {
        unsigned char encoded[9] = {0x81};
        int beyond = 0, i;
        uint64_t word = (uint64_t)PyLong_AsLongLongAndOverflow(key, &beyond);
        if (beyond)
            return 0;
        for (i = 8; i > 0; i--, word >>= 8)
            encoded[i] = (unsigned char)word;
        *hash = xxh32(encoded, sizeof encoded);
        return 1;
    }
    return 0;
}

#endif
