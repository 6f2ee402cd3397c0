"""Rows of a cut as bytes, one behind the other.

What is guaranteed: the rows that they are read as are equal to those that were packed, and look the same.

A cut of a million changed keys would make a million rows, with a place and a hash each, only for a thread to
pickle them later. So a compiled loop that looks at buckets for a capture writes plain rows as bytes at once: those
whose keys and payloads `native/headers/pickles.h` can pickle, and whose places are global times. All others are
rows as ever. Without compiled loops all are.

The writer of a file sorts packed rows and makes columns of them, without the interpreter
(`checkpoint.cuts.packed`).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator

from emberflow.engine.cuts.cut import Row

#: Ahead of the pickles of the key and of the payload: time, front, hash, the sizes of both, and nothing.
#: `native/headers/packed.h` has the same.
HEAD = struct.Struct("=qqiII4x")


class PackedRows:
    """Rows of one operation, one of each key: `KeptRows`, which are in memory."""

    __slots__ = ("data", "looks", "operation")

    def __init__(self, operation: str, data: bytes, count: int) -> None:
        self.operation = operation
        self.data = data
        #: Each row is of another bucket.
        self.looks = count

    def __len__(self) -> int:
        return self.looks

    def __iter__(self) -> Iterator[Row]:
        data, begin = self.data, 0
        while begin < len(data):
            time, front, key_hash, key_bytes, payload_bytes = HEAD.unpack_from(data, begin)
            middle = begin + HEAD.size + key_bytes
            key = pickle.loads(data[begin + HEAD.size : middle])
            begin = middle + payload_bytes
            payload = pickle.loads(data[middle:begin])
            yield Row(self.operation, key_hash, key, (time, front), payload)

    def as_written(self) -> Iterable[PackedRows]:
        return [self]
