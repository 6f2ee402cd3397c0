/* Rows of a cut as bytes, one behind the other, for `_loops.c` and `_versions.c`, which write them, and `_rows.c`,
 * which makes columns of them. `engine.cuts.packed` reads them in Python, and says what they are for.
 *
 * A record is a head and the pickles of the key and of the payload. Records are not aligned: `memcpy` reads them.
 */

#ifndef EMBERFLOW_PACKED_H
#define EMBERFLOW_PACKED_H

#include "pickles.h"

typedef struct {
    int64_t time, front;
    int32_t hash;
    uint32_t key_bytes, payload_bytes, unused;
} RecordHead;

/* Add a row: 1, 0 if it is not plain, -1 with an exception. Where there is none, nothing is added. */
static inline int
pack_row(Buffer *buffer, long long time, long long front, uint32_t hash, PyObject *key, PyObject *payload)
{
    RecordHead head = {.time = time, .front = front, .hash = (int32_t)hash};
    size_t begin = buffer->length, ahead;
    int result = more(buffer, sizeof head) == NULL ? -1 : 1;

    ahead = buffer->length;
    if (result > 0)
        result = add_pickle(buffer, key);
    head.key_bytes = (uint32_t)(buffer->length - ahead);
    ahead = buffer->length;
    if (result > 0)
        result = add_pickle(buffer, payload);
    head.payload_bytes = (uint32_t)(buffer->length - ahead);
    if (result > 0)
        memcpy(buffer->data + begin, &head, sizeof head);
    else
        buffer->length = begin;
    return result;
}

#endif
