"""Sorts the rows that a task makes for a sink by place.

A pass makes rows key by key, but readers of a partition expect them by time. Spark could sort them
row by row; here they are still columns, which sort at a fraction of the cost. Few rows are held in
memory; more than a task should hold are spilled to runs (`spilling`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from emberflow.rows.outputs import PATH, TIME
from emberflow.runners.batch.shuffle.spilling import Spilling, nameless_file

#: Bytes of columns that are sorted in memory, and rows that are yielded at once.
_BYTES_MAX: Final = 48 << 20
_ROWS: Final = 10_000
#: Rows of a block in a file, at most, and the aimed-at number of bytes.
_BLOCK_ROWS: Final = 4_096
_BLOCK_BYTES: Final = 1 << 18
#: How many files are merged at once.
_FILES_MAX: Final = 64
#: Paths of up to this many bytes are compared as numbers.
_PATH_MAX: Final = 32


class OutputSorter(Spilling[pa.RecordBatch, BinaryIO]):
    """Takes rows of a sink in any order and yields them by place."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(_FILES_MAX)
        self._schema = schema
        self._time, self._path = schema.get_field_index(TIME), schema.get_field_index(PATH)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _BYTES_MAX:
            self._put_away(self._held())

    def ended(self) -> Iterator[pa.RecordBatch]:
        """All rows, in order."""
        try:
            for rows in self._with_runs(self._held()):
                yield from pa.Table.from_batches([rows]).to_batches(max_chunksize=_ROWS)
        finally:
            self.close()

    def close(self) -> None:
        self._drop_runs()
        self._batches, self._bytes = [], 0

    def _held(self) -> Iterator[pa.RecordBatch]:
        """The rows in memory, as one sorted block."""
        batches, self._batches, self._bytes = self._batches, [], 0
        return iter([self._sorted(batches)] if batches else ())

    # The methods that `Spilling` needs.

    def _written(self, blocks: Iterator[pa.RecordBatch]) -> BinaryIO:
        file = nameless_file()
        try:
            with pa.ipc.new_stream(file, self._schema) as writer:
                for block in blocks:
                    aimed = _BLOCK_BYTES * block.num_rows // (block.nbytes + 1)
                    size = max(1, min(_BLOCK_ROWS, aimed))
                    writer.write_table(pa.Table.from_batches([block]), max_chunksize=size)
            file.flush()
        except BaseException:
            file.close()
            raise
        return file

    def _blocks(self, run: BinaryIO) -> Iterator[pa.RecordBatch]:
        run.seek(0)
        with pa.ipc.open_stream(run) as reader:
            yield from reader

    def _size(self, block: pa.RecordBatch) -> int:
        return int(block.num_rows)

    def _place(self, block: pa.RecordBatch, number: int) -> tuple[int, bytes]:
        return block.column(self._time)[number].as_py(), block.column(self._path)[number].as_py()

    def _between(self, block: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
        return block.slice(start, end - start)

    def _sorted(self, blocks: list[pa.RecordBatch]) -> pa.RecordBatch:
        whole = pa.Table.from_batches(blocks, self._schema).combine_chunks().to_batches()[0]
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
        # Padding with zeros does not change the order: see `sorting`.
        words = -(-longest // 8)
        filled = np.zeros((len(paths), 8 * words), np.uint8)
        filled[np.arange(8 * words) < lengths[:, None]] = np.frombuffer(data, np.uint8)[
            ends[0] : ends[-1]
        ]
        numbers = filled.view(">u8").astype(np.uint64)
        columns = [numbers[:, word] for word in reversed(range(words))]
        return pa.array(np.lexsort([*columns, times]))
