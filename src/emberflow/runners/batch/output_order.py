"""The rows that a task makes for a sink, in the order of their places.

A pass makes rows key by key, and whoever reads a partition wants them by time. Spark could sort them,
row by row; here they are columns still, and a sort of columns costs a fraction of it. Rows are kept
while they are few. What is more than a task should hold is sorted and written to a file, and at the
end all files are merged, a block of each at a time, as in `sorting`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
import pyarrow as pa

from emberflow.runners.batch.outputs import PATH, TIME
from emberflow.runners.batch.sorting import nameless_file

#: Bytes of columns that are sorted in memory, and of what is yielded at once.
_BYTES_MAX: Final = 48 << 20
_ROWS: Final = 10_000
#: Rows of a block of a file, and how many bytes of them there should be at most.
_BLOCK_ROWS: Final = 4_096
_BLOCK_BYTES: Final = 1 << 18
#: Files that are merged at once.
_FILES_MAX: Final = 64
#: Paths of up to so many bytes are compared as numbers.
_PATH_MAX: Final = 32

_Blocks: TypeAlias = Iterator[pa.RecordBatch]


class OutputSorter:
    """Takes rows of a sink in any order, and gives them in that of their places."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._time, self._path = schema.get_field_index(TIME), schema.get_field_index(PATH)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        #: Files by level: those of level ``n`` are made of `_FILES_MAX` of level ``n - 1``.
        self._levels: list[list[BinaryIO]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _BYTES_MAX:
            self._put_away(iter((self._held(),)), 0)

    def ended(self) -> _Blocks:
        """All rows, in order."""
        try:
            held = iter((self._held(),)) if self._batches else iter(())
            files = [file for level in self._levels for file in level]
            for rows in self._merged([*map(_blocks, files), held]) if files else held:
                yield from pa.Table.from_batches([rows]).to_batches(max_chunksize=_ROWS)
        finally:
            self.close()

    def close(self) -> None:
        for level in self._levels:
            for file in level:
                file.close()
        self._levels, self._batches, self._bytes = [], [], 0

    def _held(self) -> pa.RecordBatch:
        batches, self._batches, self._bytes = self._batches, [], 0
        return self._sorted(batches)

    def _sorted(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        whole = pa.Table.from_batches(batches, self._schema).combine_chunks().to_batches()[0]
        return whole.take(self._order(whole))

    def _order(self, rows: pa.RecordBatch) -> Any:
        times, paths = rows.column(self._time).to_numpy(), rows.column(self._path)
        _, offsets, data = paths.buffers()
        ends = np.frombuffer(offsets, np.int32)[paths.offset : paths.offset + len(paths) + 1]
        lengths = np.diff(ends)
        longest = int(lengths.max())
        if longest > _PATH_MAX:
            places = list(zip(times.tolist(), paths.to_pylist(), strict=True))
            return pa.array(sorted(range(len(places)), key=places.__getitem__), pa.int64())
        # Filled up with zeros they compare as before: see `sorting`.
        words = -(-longest // 8)
        filled = np.zeros((len(paths), 8 * words), np.uint8)
        filled[np.arange(8 * words) < lengths[:, None]] = np.frombuffer(data, np.uint8)[
            ends[0] : ends[-1]
        ]
        numbers = filled.view(">u8").astype(np.uint64)
        columns = [numbers[:, word] for word in reversed(range(words))]
        return pa.array(np.lexsort([*columns, times]))

    def _put_away(self, blocks: _Blocks, level: int) -> None:
        if level == len(self._levels):
            self._levels.append([])
        files = self._levels[level]
        files.append(_written(blocks, self._schema))
        if len(files) == _FILES_MAX:
            self._put_away(self._merged([_blocks(file) for file in files]), level + 1)
            for file in files:
                file.close()
            files.clear()

    def _merged(self, runs: list[_Blocks]) -> _Blocks:
        """As in `sorting`: what is not beyond the end of any block at hand may go."""
        heads = [(block, run) for run in runs if (block := next(run, None)) is not None]
        while heads:
            bound = min(self._place(block, block.num_rows - 1) for block, _ in heads)
            parts: list[pa.RecordBatch] = []
            left: list[tuple[pa.RecordBatch, _Blocks]] = []
            for block, run in heads:
                rows = block.num_rows
                end = bisect_right(range(rows), bound, key=partial(self._place, block))
                if end:
                    parts.append(block.slice(0, end))
                rest = block.slice(end) if end < rows else next(run, None)
                if rest is not None:
                    left.append((rest, run))
            heads = left
            yield self._sorted(parts)

    def _place(self, block: pa.RecordBatch, row: int) -> tuple[int, bytes]:
        return block.column(self._time)[row].as_py(), block.column(self._path)[row].as_py()


def _written(blocks: _Blocks, schema: pa.Schema) -> BinaryIO:
    file = nameless_file()
    try:
        with pa.ipc.new_stream(file, schema) as writer:
            for block in blocks:
                size = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES * block.num_rows // (block.nbytes + 1)))
                writer.write_table(pa.Table.from_batches([block]), max_chunksize=size)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _blocks(file: BinaryIO) -> _Blocks:
    file.seek(0)
    with pa.ipc.open_stream(file) as reader:
        yield from reader
