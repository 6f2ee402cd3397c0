"""Rows to a part, which is one Parquet file (`cuts.tables` has its columns, and reads it).

Rows come in chunks and are encoded at once. When many are encoded, the writer sorts them and
writes them as a *run*; the file goes on with another. A run is a number of row groups, recorded in the
file's metadata (``emberflow.runs``); a bucket never spans two runs. So a part of any size is written and
read in constant memory, and Arrow sorts, compresses and writes without the GIL. It does so piece by
piece, with a pause between two pieces if the caller wishes: a cut must not keep the processor from others
for a tenth of a second. Packed rows (`parts.packed`) are columns when they are sorted, and have runs of their
own.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from emberflow import native
from emberflow.checkpoint.cuts.arrays import binaries, int64s, ints, lists_of_ints, strings
from emberflow.checkpoint.cuts.lists import PROTOCOL, PayloadPickler, SavedLists
from emberflow.checkpoint.cuts.parts.packed import packed_columns, packed_order
from emberflow.checkpoint.cuts.rows import Chunk, PackedRows, Row, RowColumns, Writable
from emberflow.checkpoint.cuts.tables import CHILD_IDS, RUNS, SCHEMA
from emberflow.checkpoint.errors import CheckpointError
from emberflow.errors import shortened

_RUN_BYTES = 64 << 20
_GROUP_BYTES = 2 << 20
_GROUP_ROWS_MAX = 16_384
_FILE_BUFFER_BYTES = 1 << 20
#: A part of so many bytes is not compressed: the compressor of each column would take as long as all
#: else, again and again, where cuts are small and follow each other closely.
_SMALL_BYTES = 64 << 10
#: Row groups of packed rows that are written in one go: that takes some 20 ms, for nearly all of which the
#: interpreter is free.
_GROUPS_AT_ONCE = 4

#: Values of these types hold no lists, and pickle takes every one of them.
_PLAIN = frozenset((int, float, str, bytes, bool, type(None)))


def _row_buffers(rows: list[Writable]) -> tuple[bytes, ...] | None:
    """The buffers of Arrow's columns, if rows are plain and there is a compiled loop for them."""
    return None


if native.rows is None:
    row_buffers = _row_buffers
else:
    native.rows.prepare(Row)
    row_buffers = native.rows.row_buffers


class Summary(NamedTuple):
    """What was written: the number of rows, and the least and the greatest hash among them."""

    rows: int
    low: int
    high: int


class _Target:
    """The file of a part, until it is abandoned."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.is_abandoned = False

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes if self.is_abandoned else int(self._file.write(data))

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        if not self.is_abandoned:
            self._file.flush()

    def close(self) -> None:
        """Nothing: the file is the caller's to close."""


class PartWriter:
    """Writes chunks of rows to a file. The rows of a bucket come one behind the other."""

    def __init__(
        self,
        file: Any,
        lists: SavedLists,
        *,
        run_bytes: int = _RUN_BYTES,
        group_bytes: int = _GROUP_BYTES,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """``pause`` is called between two pieces of work."""
        self._lists = lists
        self._pause = pause
        self._run_bytes, self._group_bytes = run_bytes, group_bytes
        # Arrow writes dozens of times for a row group. Each time it would wait for the interpreter.
        self._target = _Target(file)
        self._file = pa.BufferedOutputStream(pa.PythonFile(self._target, "w"), _FILE_BUFFER_BYTES)
        #: From the first run on.
        self._writer: pq.ParquetWriter | None = None
        self._pickler = PayloadPickler()
        self._batches: list[pa.RecordBatch] = []
        self._batched_bytes = 0
        #: Packed rows by step, and how many bytes they have.
        self._packed: dict[str, list[PackedRows]] = {}
        self._packed_bytes = 0
        self._runs: list[int] = []
        self._rows, self._low, self._high = 0, 2**31, -(2**31) - 1
        # The bucket whose rows are coming.
        self._operation: str | None = None
        self._key: Any = None
        self._key_data = b""
        self._follows: int | None = None

    def _opened(self) -> pq.ParquetWriter:
        if self._writer is None:
            is_small = self._batched_bytes + self._packed_bytes <= _SMALL_BYTES
            self._writer = pq.ParquetWriter(
                self._file,
                SCHEMA,
                compression="none" if is_small else "zstd",
                use_dictionary=["operation"],
                write_statistics=["operation", "key_hash", "time"],
                write_page_checksum=True,
            )
        return self._writer

    def add(self, chunk: Chunk) -> None:
        if not chunk:
            return
        if isinstance(chunk, PackedRows):
            if not self._lists.may_have(chunk.operation):
                self._add_packed(chunk)
                return
            chunk = list(chunk)  # a bucket that had lists, and has none any more
        if self._batched_bytes >= self._run_bytes and (
            isinstance(chunk, RowColumns) or not self._is_current(chunk[0])
        ):
            self._write_run()
        columns = (
            self._encoded_columns(chunk)
            if isinstance(chunk, RowColumns)
            else self._compiled_columns(chunk) or self._plain_columns(chunk) or self._columns(chunk)
        )
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        self._batches.append(batch)
        self._batched_bytes += batch.nbytes
        self._count(batch)

    def _count(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        hashes = pc.min_max(batch.column(1))
        self._low = min(self._low, hashes["min"].as_py())
        self._high = max(self._high, hashes["max"].as_py())

    def _add_packed(self, chunk: PackedRows) -> None:
        self._packed.setdefault(chunk.operation, []).append(chunk)
        self._packed_bytes += len(chunk.data)
        if self._packed_bytes >= self._run_bytes:
            self._write_packed()

    def _write_packed(self) -> None:
        """Write a run of the packed rows of each step. Each row is a bucket."""
        writer = self._opened()
        packed, self._packed, self._packed_bytes = self._packed, {}, 0
        for operation, chunks in packed.items():
            data = [chunk.data for chunk in chunks]
            rows = sum(map(len, chunks))
            self._pause()
            order = packed_order(data, rows)
            each = self._rows_of_a_group(rows, sum(map(len, data)))
            for begin in range(0, rows, _GROUPS_AT_ONCE * each):
                self._pause()
                end = min(begin + _GROUPS_AT_ONCE * each, rows)
                buffers = list(map(pa.py_buffer, packed_columns(data, order, begin, end)))
                columns = _of_buffers(operation, buffers, _no_child_ids(end - begin))
                batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
                self._count(batch)
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=each)
            self._runs.append(-(-rows // each))

    def _rows_of_a_group(self, rows: int, data_bytes: int) -> int:
        return max(1, min(_GROUP_ROWS_MAX, rows * self._group_bytes // max(1, data_bytes)))

    def _encoded_columns(self, chunk: RowColumns) -> list[pa.Array]:
        """The columns of rows that have been encoded before."""
        self._end_bucket()
        self._operation, self._key, self._follows = None, None, None
        self._pickler.begin_bucket(())
        count = len(chunk.keys)
        hashes, times, fronts = map(int64s, (chunk.hashes, chunk.times, chunk.fronts))
        child_ids = _no_child_ids(count)
        return _of_one_step(
            chunk.operation, hashes, chunk.keys, times, fronts, child_ids, chunk.payloads
        )

    def _compiled_columns(self, chunk: Sequence[Writable]) -> list[pa.Array] | None:
        """The columns of a chunk of plain values, if there is a compiled loop for them."""
        if self._has_lists() or not isinstance(chunk, list):
            return None
        made = row_buffers(chunk)
        if made is None:
            return None
        count, buffers = len(chunk), list(map(pa.py_buffer, made))
        child_ends, ids = buffers[5:7]
        numbers = pa.Array.from_buffers(pa.int64(), ids.size // 8, [None, ids])
        child_ids = pa.Array.from_buffers(CHILD_IDS, count, [None, child_ends], children=[numbers])
        operation, _, key, _, _ = chunk[-1]
        self._operation, self._key, self._follows = operation, key, None
        self._key_data = pickle.dumps(key, PROTOCOL)
        return _of_buffers(operation, [*buffers[:5], *buffers[7:]], child_ids)

    def _has_lists(self) -> bool:
        """Whether these buckets or the one before may have lists, which have to be begun or ended."""
        return bool(self._pickler.found) or not self._lists.is_empty

    def _plain_columns(self, chunk: Sequence[Writable]) -> list[pa.Array] | None:
        """The columns of a chunk of plain values, as most are; None if some are not."""
        operations, hashes, keys, places, payloads = zip(*chunk, strict=True)
        if self._has_lists() or not (
            _PLAIN.issuperset(map(type, keys))
            and _PLAIN.issuperset(map(type, payloads))
            and all(places)
        ):
            return None
        dumps = pickle.dumps
        key_data = [dumps(key, PROTOCOL) for key in keys]
        self._operation, self._key, self._follows = operations[-1], keys[-1], None
        self._key_data = key_data[-1]
        return [
            strings(operations),
            ints(hashes),
            binaries(key_data),
            ints([place[0] for place in places]),
            ints([place[1] for place in places]),
            lists_of_ints([place[2:] for place in places]),
            binaries([dumps(payload, PROTOCOL) for payload in payloads]),
            pa.nulls(len(chunk), pa.int64()),
        ]

    def _columns(self, chunk: Sequence[Writable]) -> list[pa.Array]:
        columns: list[list[Any]] = [[] for _ in SCHEMA]
        operations, hashes, keys, times, fronts, child_ids, payloads, follows = columns
        for row in chunk:
            operation, key_hash, key, place, _ = row
            if not self._is_current(row):
                self._begin_bucket(operation, key)
            elif key is not self._key:  # True may follow 1: one key, and each written as it is
                self._take_key(operation, key)
            operations.append(operation)
            hashes.append(key_hash)
            keys.append(self._key_data)
            if place:
                data, continues = self._pickled(row)
                times.append(place[0])
                fronts.append(place[1])
                child_ids.append(place[2:])
                payloads.append(data)
                follows.append(self._follows if continues else None)
            else:
                for column in (times, fronts, child_ids, payloads, follows):
                    column.append(None)
        return [
            strings(operations),
            ints(hashes),
            binaries(keys),
            ints(times),
            ints(fronts),
            lists_of_ints(child_ids),
            binaries(payloads),
            ints(follows),
        ]

    def finish(self) -> Summary:
        self._end_bucket()
        if self._batches:
            self._write_run()
        if self._packed:
            self._write_packed()
        writer = self._opened()
        writer.add_key_value_metadata({RUNS: ",".join(map(str, self._runs)).encode()})
        writer.close()
        self._file.detach()  # the file itself is the caller's to close
        return Summary(self._rows, self._low, self._high)

    def abandon(self) -> None:
        """Close the file, whose content is of no use. Never raises."""
        # Arrow has bytes left to write, and the file may be closed or full.
        self._target.is_abandoned = True
        with suppress(Exception):
            if self._writer is not None:
                self._writer.close()
        with suppress(Exception):
            self._file.detach()

    def _is_current(self, row: Writable) -> bool:
        key = self._key
        return row[0] == self._operation and (row[2] is key or bool(row[2] == key))

    def _begin_bucket(self, operation: str, key: Any) -> None:
        self._end_bucket()
        self._take_key(operation, key)
        stored = self._lists.stored(operation, key)
        self._follows, known = stored or (None, ())
        self._pickler.begin_bucket(known)

    def _take_key(self, operation: str, key: Any) -> None:
        self._operation, self._key = operation, key
        try:
            self._key_data = pickle.dumps(key, PROTOCOL)
        except Exception as error:
            raise _unpicklable("key", operation, key, key, error) from error

    def _end_bucket(self) -> None:
        if self._operation is not None:
            self._lists.wrote(self._operation, self._key, self._pickler.found)

    def _pickled(self, row: Writable) -> tuple[bytes, bool]:
        try:
            return self._pickler.pickled(row[4])
        except Exception as error:
            raise _unpicklable("payload", row[0], row[2], row[4], error) from error

    def _write_run(self) -> None:
        writer = self._opened()
        # In one piece each: otherwise each `take` would make one of all of them.
        table = pa.Table.from_batches(self._batches).combine_chunks()
        self._batches = []
        rows = table.num_rows
        order = _order_of(table)
        each = self._rows_of_a_group(rows, self._batched_bytes)
        groups = 0
        for start in range(0, rows, each):
            self._pause()
            writer.write_table(table.take(order.slice(start, each)), row_group_size=each)
            groups += 1
        self._pause()
        self._runs.append(groups)
        self._batched_bytes = 0


def _of_one_step(operation: str, *columns: pa.Array) -> list[pa.Array]:
    """All columns of rows of one step, none of which continues lists. ``columns`` lack the first and the last."""
    count = len(columns[0])
    return [pa.repeat(strings([operation])[0], count), *columns, pa.nulls(count, pa.int64())]


def _of_buffers(
    operation: str, buffers: Sequence[pa.Buffer], child_ids: pa.Array
) -> list[pa.Array]:
    """The same, of what compiled loops have made."""
    hashes, key_ends, keys, times, fronts, payload_ends, payloads = buffers
    count = len(child_ids)
    return _of_one_step(
        operation,
        pa.Array.from_buffers(pa.int64(), count, [None, hashes]),
        pa.Array.from_buffers(pa.binary(), count, [None, key_ends, keys]),
        pa.Array.from_buffers(pa.int64(), count, [None, times]),
        pa.Array.from_buffers(pa.int64(), count, [None, fronts]),
        child_ids,
        pa.Array.from_buffers(pa.binary(), count, [None, payload_ends, payloads]),
    )


def _no_child_ids(count: int) -> pa.Array:
    offsets = pa.py_buffer(bytes(4 * (count + 1)))
    return pa.Array.from_buffers(CHILD_IDS, count, [None, offsets], children=[ints([])])


def _order_of(table: pa.Table) -> pa.Array:
    """The positions of the rows, by operation and then by hash; rows that share both stay in order.

    The rank of the operation and the hash, which has 32 bits and a sign, make one number: Arrow sorts it
    four times as fast as two columns and a third one that keeps their order.

    >>> rows = {"operation": ["b", "a", "b", "b"], "key_hash": [5, 7, -5, 5]}
    >>> _order_of(pa.table(rows)).to_pylist()
    [1, 2, 0, 3]
    """
    operations = table["operation"].combine_chunks().dictionary_encode()
    names = operations.dictionary.to_pylist()
    places = {name: place << 32 for place, name in enumerate(sorted(names))}
    of_operations = ints([places[name] for name in names])
    hashes = table["key_hash"].combine_chunks()
    return pc.array_sort_indices(pc.add(of_operations.take(operations.indices), hashes))


def _unpicklable(
    what: str, operation: str, key: Any, value: Any, error: Exception
) -> CheckpointError:
    return CheckpointError(
        f"step {operation!r}: a {what} cannot be stored in a cut, since pickle refuses it: "
        f"{type(error).__name__}: {error}\n"
        f"  key:   {shortened(key)}\n"
        f"  {what + ':':<8} {shortened(value)}\n"
        f"Use values that pickle takes: of classes and functions that a module defines by name."
    )
