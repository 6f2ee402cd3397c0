"""Rows to the columns of a block and back, compiled in C (`native`).

What is guaranteed: both give the same columns to the byte, and the same rows. What is compiled takes plain values
(`checkpoint.cuts.parts`), and leaves the others to the twin.
"""

from __future__ import annotations

import pickle
from itertools import accumulate
from operator import itemgetter
from typing import Any, TypeAlias

from emberflow import native
from emberflow.engine.cuts.cut import Row
from emberflow.values.hashing import key_hash

PROTOCOL = 5

#: Sorted by hash: the hashes, times, fronts, sizes of the keys' pickles and ends of the records, as words of 32, 64,
#: 64, 32 and 64 bits, and the records. Numpy makes arrays of them, for whoever has bytes.
Buffers: TypeAlias = tuple[Any, Any, Any, Any, Any, bytes]
#: The columns of a block behind the hashes.
Columns: TypeAlias = tuple[Any, Any, Any, Any, Any]


def _cold_buffers(rows: list[Row]) -> Buffers | None:
    """The columns of rows whose places are global times; None if there is no compiled loop for them."""
    return None


def encoded(rows: list[Row]) -> tuple[Buffers | None, set[int]]:
    """The columns of rows, and the numbers of those that pickle does not take. None if there are no others."""
    buffers = cold_buffers(rows) if rows else None
    return (buffers, set()) if buffers is not None else _encoded(rows)


def _encoded(rows: list[Row]) -> tuple[Buffers | None, set[int]]:
    import numpy as np

    numbered, refused = [], set()
    for number, (_, hashed, key, place, payload) in enumerate(rows):
        try:
            pickles = pickle.dumps(key, PROTOCOL), pickle.dumps(payload, PROTOCOL)
        except Exception:
            refused.add(number)
        else:
            numbered.append((hashed, number, place, *pickles))
    if not numbered:
        return None, refused
    numbered.sort(key=itemgetter(0, 1))
    hashes, _, places, keys, payloads = zip(*numbered, strict=True)
    times, fronts = zip(*places, strict=True)
    records = [key + payload for key, payload in zip(keys, payloads, strict=True)]
    columns = (
        np.array(hashes, np.int32),
        np.array(times, np.int64),
        np.array(fronts, np.int64),
        np.fromiter(map(len, keys), np.int32),
        np.fromiter(accumulate(map(len, records)), np.int64),
        b"".join(records),
    )
    return columns, refused


def _cold_rows(
    operation: str, hashes: list[int], positions: list[int], loads: Any, *columns: Any
) -> list[Row]:
    """The rows at some positions of a block. ``loads`` reads a pickle."""
    times, fronts, key_sizes, ends, records = columns
    found = []
    for hashed, position in zip(hashes, positions, strict=True):
        begin = int(ends[position - 1]) if position else 0
        end = begin + int(key_sizes[position])
        key, payload = loads(records[begin:end]), loads(records[end : int(ends[position])])
        place = (int(times[position]), int(fronts[position]))
        found.append(Row(operation, hashed, key, place, payload))
    return found


def _cold_places(
    keys: list[Any], firsts: list[int], hashes: Any, taken: Any, loads: Any, *columns: Any
) -> list[int]:
    """The position of each key in a run: at or behind the first row of its hash, among those that were not taken; -1
    if it is not there."""
    _, _, key_sizes, ends, records = columns
    found = []
    for wanted, first in zip(keys, firsts, strict=True):
        position, hashed = first, hashes[first]
        while position < len(hashes) and hashes[position] == hashed:
            begin = int(ends[position - 1]) if position else 0
            if not taken[position]:
                key = loads(records[begin : begin + int(key_sizes[position])])
                if key == wanted:
                    break
            position += 1
        is_there = position < len(hashes) and hashes[position] == hashed
        found.append(position if is_there else -1)
    return found


def hashes_of(keys: list[Any]) -> list[int]:
    """The hashes of keys. What is compiled knows those of plain values, and of tuples of such."""
    if native.loops is None:
        return list(map(key_hash, keys))
    hashes = list(map(native.loops.hash_of_composite, keys))
    if None in hashes:
        hashes = [
            key_hash(key) if hashed is None else hashed
            for key, hashed in zip(keys, hashes, strict=True)
        ]
    return hashes


def numbers(words: Any, kind: Any) -> Any:
    """An array of numpy's of what a buffer has."""
    import numpy as np

    return words if isinstance(words, np.ndarray) else np.frombuffer(words, kind)


if native.rows is None:
    cold_buffers, cold_rows, cold_places = _cold_buffers, _cold_rows, _cold_places
else:
    native.rows.prepare(Row)
    cold_buffers = native.rows.cold_buffers
    cold_rows, cold_places = native.rows.cold_rows, native.rows.cold_places
