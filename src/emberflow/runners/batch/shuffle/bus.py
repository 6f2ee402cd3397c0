"""Rows between passes: many items each, because a row costs Spark more than an item costs Python.

Spark takes microseconds to move a row from Arrow through a shuffle and a sort back to Arrow, and a
flow has an item for each word. So a row is a *chunk*: items for one unit whose key hashes fall into
one *slice*. Spark needs to know only the slice: it distributes rows by it and puts the rows of one
slice together. `sorting` sorts the items of a slice after the shuffle. ::

    lane      the unit that the items are for, and the slice's number: Spark hashes and sorts by it
    time      the time of the first item
    path      the rest of its place (`emberflow.rows.paths`)
    payload   the items: their hashes and times as arrays, their paths and payloads as lists

Guarantees: all items of a unit whose keys have the same hash are in rows of one lane. A row has
items of one unit only, so a pass can forward rows for other units without looking into them.

There are many slices, so that each is a small part of a task's items and usually fits in memory.
Their numbers are chosen so that Spark's hash gives every partition equally many. If Spark hashed
differently, partitions would be less even, and nothing else would change.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from emberflow.rows.codec import Column, column_of, decoded_column, joined_columns

BUS_SCHEMA: Final = "lane long, time long, path binary, payload binary"
_BUS: Final = pa.schema(
    [
        pa.field("lane", pa.int64()),
        pa.field("time", pa.int64()),
        pa.field("path", pa.binary()),
        pa.field("payload", pa.binary()),
    ]
)

HASH_BITS: Final = 32
HASH_MASK: Final = (1 << HASH_BITS) - 1

#: Items, or bytes of payloads, that are collected before they are split into chunks. A row
#: gets its share of them: one slice of many.
_ITEMS_MAX: Final = 1 << 16
_BYTES_MAX: Final = 8 << 20
#: The aimed-at size of a chunk. Spark moves thousands of rows at once, so rows must stay small.
_CHUNK_BYTES: Final = 1 << 16
_CHUNK_ITEMS: Final = 1 << 12

#: Slices in all, if there are fewer partitions than this.
_SLICES: Final = 512

_MARSHAL_VERSION: Final = 4
#: The marshal version that does not look for repeated objects: paths are short, so it costs more
#: than it saves.
_WITHOUT_REFERENCES: Final = 2

Integers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
#: Key hashes, times, paths and payloads of some items.
Items: TypeAlias = tuple[Integers, Integers, list[bytes], list[Any]]


@dataclass(frozen=True, slots=True)
class Spread:
    """How many partitions the next shuffle has, as far as is known here."""

    partitions: int = 1
    #: Targets from this number on are not units but the ends of a backfill (`ends`). Their lanes
    #: stay as they are, because the last shuffle has to tell them apart.
    ends_from: int | None = None

    def lanes(self, target: int) -> Integers:
        """The lanes of a unit, one for each slice."""
        return _lanes(target, self.partitions)

    def slices(self, lanes: Integers) -> tuple[Integers, Integers]:
        """The slice of each (unit number, key hash), and the lane of each slice."""
        ends = self._ends(lanes)
        if ends is None or not ends.any():
            return self._slices_of_units(lanes)
        found, number = np.unique(lanes[ends], return_inverse=True)
        if ends.all():
            return number, found
        slices = np.empty(len(lanes), np.int64)
        slices[~ends], table = self._slices_of_units(lanes[~ends])
        slices[ends] = len(table) + number
        return slices, np.concatenate((table, found))

    def hashes(self, lanes: Integers) -> Integers:
        """What the items of a lane are sorted by, before their places. Ends have no keys: 0."""
        ends = self._ends(lanes)
        hashes = lanes & HASH_MASK
        return hashes if ends is None else np.where(ends, 0, hashes)

    def _ends(self, lanes: Integers) -> Any:
        return None if self.ends_from is None else lanes >> HASH_BITS >= self.ends_from

    def _slices_of_units(self, lanes: Integers) -> tuple[Integers, Integers]:
        targets, hashes = lanes >> HASH_BITS, lanes & HASH_MASK
        first = int(targets[0])
        if (targets == first).all():
            found = self.lanes(first)
            return hashes % len(found), found
        units, number = np.unique(targets, return_inverse=True)
        tables = [self.lanes(int(unit)) for unit in units]
        return number * len(tables[0]) + hashes % len(tables[0]), np.concatenate(tables)


ANYWHERE: Final = Spread()


@lru_cache(64)
def _lanes(target: int, partitions: int) -> Integers:
    each = max(1, _SLICES // partitions)
    found: list[Integers] = []
    lacking = np.full(partitions, each)
    start, step = 0, 2 * partitions * each
    while lacking.any():
        if start > HASH_MASK - step:  # Spark's hash is not what this expects: use any numbers
            return (target << HASH_BITS) + np.arange(partitions * each, dtype=np.int64)
        numbers = (target << HASH_BITS) + np.arange(start, start + step, dtype=np.int64)
        start += step
        where = spark_hash(numbers) % partitions
        by_partition = np.argsort(where, kind="stable")
        counts = np.bincount(where, minlength=partitions)
        begins = np.cumsum(counts) - counts
        for partition in np.flatnonzero(lacking):
            begin, count = begins[partition], min(counts[partition], lacking[partition])
            found.append(numbers[by_partition[begin : begin + count]])
            lacking[partition] -= count
    return np.sort(np.concatenate(found))


def spark_hash(numbers: Integers) -> Integers:
    """Spark's ``hash`` of a column of longs: Murmur3 with seed 42."""
    halves = numbers.astype(np.int64).view(np.uint64)
    mixed = np.full(len(numbers), 42, np.uint32)
    for half in (halves & np.uint64(HASH_MASK), halves >> np.uint64(HASH_BITS)):
        part = half.astype(np.uint32) * np.uint32(0xCC9E2D51)
        part = (part << np.uint32(15)) | (part >> np.uint32(17))
        mixed ^= part * np.uint32(0x1B873593)
        mixed = (mixed << np.uint32(13)) | (mixed >> np.uint32(19))
        mixed = mixed * np.uint32(5) + np.uint32(0xE6546B64)
    mixed ^= np.uint32(8)  # the length of a long
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed.view(np.int32).astype(np.int64)


# --- Chunks ---------------------------------------------------------------------------------------


def chunk(
    hashes: Integers, times: Integers, paths: list[bytes], kind: str, payloads: list[Any]
) -> bytes:
    """Items, serialized as the payload of a row."""
    return marshal.dumps(
        (
            hashes.astype(np.uint32).tobytes(),
            times.tobytes(),
            marshal.dumps(paths, _WITHOUT_REFERENCES),
            kind,
            payloads,
        ),
        _MARSHAL_VERSION,
    )


def unchunked(data: bytes) -> Items:
    """The items of a chunk."""
    hashes, times, paths, kind, payloads = marshal.loads(data)
    return (
        np.frombuffer(hashes, np.uint32).astype(np.int64),
        np.frombuffer(times, np.int64),
        marshal.loads(paths),
        decoded_column(kind, payloads),
    )


class BusRows:
    """Collects items and makes rows for the next shuffle."""

    def __init__(self, spread: Spread) -> None:
        #: Items, and their approximate bytes, that were added so far.
        self.taken = self.taken_bytes = 0
        self._spread = spread
        self._clear()

    def _clear(self) -> None:
        self._lanes: list[Integers] = []
        self._times: list[Integers] = []
        self._paths: list[bytes] = []
        self._columns: list[Column] = []
        self._items = self._bytes = 0

    def add(
        self,
        lanes: Sequence[int],
        times: list[int],
        paths: list[bytes],
        payloads: list[Any],
    ) -> None:
        """Add items. A lane is a unit's number and a key's hash."""
        if not times:
            return
        column = column_of(payloads)
        self.taken += len(times)
        self._items += len(times)
        self._bytes += column.size
        self.taken_bytes += column.size
        self._lanes.append(np.array(lanes, np.int64))
        self._times.append(np.array(times, np.int64))
        self._paths += paths
        self._columns.append(column)

    def full(self) -> Iterator[pa.RecordBatch]:
        if self._items >= _ITEMS_MAX or self._bytes >= _BYTES_MAX:
            yield self._rows()

    def rest(self) -> Iterator[pa.RecordBatch]:
        if self._items:
            yield self._rows()

    def _rows(self) -> pa.RecordBatch:
        lanes, times = np.concatenate(self._lanes), np.concatenate(self._times)
        paths, columns = self._paths, self._columns
        per_item = self._bytes // self._items + 1
        self._clear()
        slices, lane_of = self._spread.slices(lanes)
        if len(lane_of) <= 1 << 16:
            slices = slices.astype(np.uint16)  # numpy sorts these by radix
        order = np.argsort(slices, kind="stable")
        slices, hashes, times = slices[order], self._spread.hashes(lanes[order]), times[order]
        numbers = order.tolist()
        kind, payloads = joined_columns(columns)
        payloads, paths = _picked(payloads, numbers), _picked(paths, numbers)
        starts = _starts(slices, max(1, min(_CHUNK_ITEMS, _CHUNK_BYTES // per_item)))
        first_paths = [paths[start] for start in starts]
        chunks: list[bytes] = []
        # From the end, and deleted there: then the objects of a chunk have one reference each, and
        # marshal does not look for them among those already written.
        end = len(numbers)
        for start in reversed(starts):
            some, them = paths[start:], payloads[start:]
            del paths[start:], payloads[start:]
            chunks.append(chunk(hashes[start:end], times[start:end], some, kind, them))
            end = start
        chunks.reverse()
        return _batch_of(lane_of[slices[starts]], times[starts], first_paths, chunks)


def _batch_of(*columns: Any) -> pa.RecordBatch:
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _BUS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_BUS)


def _picked(values: list[Any], numbers: list[int]) -> list[Any]:
    return list(itemgetter(*numbers)(values)) if len(numbers) > 1 else values


def _starts(slices: Any, most: int) -> list[int]:
    """Where chunks begin: with every slice, and after this many items within a slice."""
    begins = np.flatnonzero(np.concatenate(([True], slices[1:] != slices[:-1])))
    lengths = np.diff(np.append(begins, len(slices)))
    if lengths.max() <= most:
        return begins.tolist()
    return [
        start
        for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)
        for start in range(begin, begin + length, most)
    ]
