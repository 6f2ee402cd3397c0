"""Rows of cold keys in columns: blocks, the runs that are made of them, and their merge.

A *block* is some rows behind each other, in five arrays::

    times, fronts    64 bits    the global time of each row
    key_sizes        32 bits    how long the pickle of its key is
    ends             64 bits    where its record ends
    records                     the pickle of the key, and that of the payload behind it

These are the pickles that a cut has of a row (`checkpoint.cuts.parts`), so rows go from cuts to blocks
without anybody who decodes them. A *run* is rows sorted by the hash of the key: the hashes, for searches,
and one block or several. A run never changes. Whether a row was taken is a byte beside the run, in
memory. So to take a row costs a search and no write, and who reads all rows keeps these bytes as they were and
goes on undisturbed.

**Files.** What a block has is mapped into memory from files that are unlinked at once, so nothing outlives
the process, and the kernel keeps in its page cache what is used.

**Merges** go by ranges of hashes, in pieces of bounded size (`merged_pieces`), and leave out what was taken
and what has ended. Runs of a cut may have rows of several cuts for a key: the newest one counts.
"""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from emberflow.checkpoint.cuts.arrays import int64s
from emberflow.checkpoint.cuts.rows import RowColumns
from emberflow.checkpoint.ranges import Ranges
from emberflow.engine.cuts.cut import Row
from emberflow.engine.messages import Moment
from emberflow.runners.live.cold.encoding import cold_places, cold_rows

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Numbers = npt.NDArray[np.int64]
    Hashes = npt.NDArray[np.int32]
    Flags = npt.NDArray[np.bool_]

#: Bytes that are copied to a file of a cut at once.
_COLUMNS_BYTES = 16 << 20
_HASHES = 1 << 32
_LEAST_HASH = -(1 << 31)


class Block:
    """Some rows behind each other."""

    __slots__ = ("ends", "fronts", "key_sizes", "records", "times")

    def __init__(
        self, times: Numbers, fronts: Numbers, key_sizes: Hashes, ends: Numbers, records: Any
    ) -> None:
        self.times, self.fronts, self.key_sizes = times, fronts, key_sizes
        self.ends = ends
        self.records = memoryview(records)

    @classmethod
    def of(cls, times: Numbers, fronts: Numbers, keys: pa.Array, payloads: pa.Array) -> Block:
        """``keys`` and ``payloads`` are pickles, arrays of one binary type."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        large = pa.large_binary()
        nothing = pa.scalar(b"", large)
        records = pc.binary_join_element_wise(keys.cast(large), payloads.cast(large), nothing)
        return cls(
            times,
            fronts,
            pc.binary_length(keys).to_numpy().astype(np.int32),
            *_ends_and_data(records),
        )

    def __len__(self) -> int:
        return len(self.times)

    def key(self, position: int) -> Any:
        begin = int(self.ends[position - 1]) if position else 0
        return pickle.loads(self.records[begin : begin + int(self.key_sizes[position])])

    @property
    def columns(self) -> tuple[Any, ...]:
        return self.times, self.fronts, self.key_sizes, self.ends, self.records

    def rows(self, operation: str, hashes: list[int], positions: list[int]) -> list[Row]:
        return cold_rows(operation, hashes, positions, pickle.loads, *self.columns)

    def records_between(self, begin: int, end: int) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        offsets = np.empty(end - begin + 1, np.int64)
        offsets[0] = self.ends[begin - 1] if begin else 0
        offsets[1:] = self.ends[begin:end]
        return pa.Array.from_buffers(
            pa.large_binary(),
            end - begin,
            [None, pa.py_buffer(offsets), pa.py_buffer(self.records)],
        )

    def pickles_between(self, begin: int, end: int) -> tuple[pa.Array, pa.Array]:
        """The pickles of keys, and those of payloads."""
        import numpy as np

        least = int(self.ends[begin - 1]) if begin else 0
        ends, sizes = self.ends[begin:end], self.key_sizes[begin:end].astype(np.int64)
        data = np.frombuffer(self.records, np.uint8)
        begins = np.concatenate(([least], ends[:-1]))
        behind = begins + sizes
        return _gathered(data, begins, sizes), _gathered(data, behind, ends - behind)


class Run:
    """Rows sorted by hash, and which of them were taken."""

    def __init__(self, hashes: Hashes, block: Block | None) -> None:
        import numpy as np

        #: If it has rows of a chain of cuts: the number of the newest one. A greater one is newer.
        self.cut: int | None = None
        self.hashes = hashes
        self.taken: Flags = np.zeros(len(hashes), np.bool_)
        #: How many were not taken.
        self.left = len(hashes)
        self._block = block

    def __len__(self) -> int:
        return len(self.hashes)

    def slices(self, begin: int, end: int) -> Iterator[tuple[Block, int, int]]:
        """The blocks that have these rows, and from where to where."""
        assert self._block is not None
        yield self._block, begin, end

    def first_of(self, hashed: int) -> int:
        """The position of the first row of this hash, or behind it."""
        import numpy as np

        is_behind_all = (
            hashed >= _HASHES + _LEAST_HASH
        )  # which is no hash, so it has no type for it
        return len(self) if is_behind_all else int(np.searchsorted(self.hashes, np.int32(hashed)))

    def search(self, hashes: Hashes) -> tuple[list[int], list[int]]:
        """Of sorted hashes, those that are here: the position in the list, and the first one in the run."""
        import numpy as np

        firsts = np.searchsorted(self.hashes, hashes)
        inside = np.minimum(firsts, len(self.hashes) - 1)
        hits = np.flatnonzero(self.hashes[inside] == hashes)
        return hits.tolist(), firsts[hits].tolist()

    def places_of(self, keys: list[Any], firsts: list[int]) -> list[int]:
        """The positions of the rows of keys that were not taken; -1 for a key that is not here. The rows of its
        hash begin at the first one."""
        assert self._block is not None
        columns = self._block.columns
        return cold_places(keys, firsts, self.hashes, self.taken, pickle.loads, *columns)

    def rows_at(self, positions: list[int], operation: str, ended: int) -> list[Row]:
        """The rows at some positions, but for those that have ended."""
        assert self._block is not None
        times = self._block.times
        alive = [position for position in positions if times[position] > ended]
        return self._block.rows(operation, self.hashes[alive].tolist(), alive)

    def take(self, positions: list[int]) -> None:
        """Take rows, each once."""
        self.taken[positions] = True
        self.left -= len(positions)

    def keep_only(self, ranges: Ranges) -> None:
        """Take all rows whose hashes are in none of these ranges."""
        import numpy as np

        inside = ranges.those(self.hashes)
        if inside is not None:
            self.taken |= ~inside
            self.left = len(self) - int(np.count_nonzero(self.taken))


class Piece(NamedTuple):
    """The rows of a range of hashes, sorted."""

    hashes: Hashes
    block: Block

    def rows(self, operation: str) -> list[Row]:
        return self.block.rows(operation, self.hashes.tolist(), list(range(len(self.hashes))))

    def columns(self, operation: str) -> Iterator[RowColumns]:
        """The same rows as a file of a cut takes them, some at a time if they are large."""
        import numpy as np

        block, begin = self.block, 0
        while begin < len(self.hashes):
            least = int(block.ends[begin - 1]) if begin else 0
            end = int(np.searchsorted(block.ends, least + _COLUMNS_BYTES, "right"))
            end = max(end, begin + 1)
            keys, payloads = block.pickles_between(begin, end)
            hashes, times = self.hashes[begin:end], block.times[begin:end]
            yield RowColumns(operation, hashes, times, block.fronts[begin:end], keys, payloads)
            begin = end

    def only(self, kept: Flags) -> Piece | None:
        """Some of the rows."""
        import numpy as np

        if kept.all():
            return self
        left, block = np.flatnonzero(kept), self.block
        if not len(left):
            return None
        records = block.records_between(0, len(block)).take(int64s(left))
        times, fronts = block.times[left], block.fronts[left]
        return _made(self.hashes[left], times, fronts, block.key_sizes[left], records)

    def between(self, since: Moment, below: Moment) -> Piece | None:
        """The rows of these places."""
        times, fronts = self.block.times, self.block.fronts
        is_below = (times < below[0]) | ((times == below[0]) & (fronts < below[1]))
        return self.only(
            is_below & ((times > since[0]) | ((times == since[0]) & (fronts >= since[1])))
        )


def merged_pieces(
    runs: Sequence[Run],
    taken: Sequence[Flags],
    ended: int,
    rows_at_once: int,
    *,
    newest_counts: bool = False,
) -> Iterator[Piece]:
    """All rows of runs, in order, but for what was taken and what has ended.

    If for each key the ``newest_counts``, the runs are the newest first.
    """
    rows = sum(map(len, runs))
    pieces = max(1, -(-rows // rows_at_once))
    bounds = [_LEAST_HASH + _HASHES * piece // pieces for piece in range(pieces + 1)]
    for low, high in itertools.pairwise(bounds):
        piece = _piece(runs, taken, ended, low, high, newest_counts)
        if piece is not None:
            yield piece


def _piece(
    runs: Sequence[Run],
    taken: Sequence[Flags],
    ended: int,
    low: int,
    high: int,
    newest_counts: bool,
) -> Piece | None:
    import numpy as np
    import pyarrow as pa

    hashes, times, fronts, key_sizes, records = [], [], [], [], []
    for run, gone in zip(runs, taken, strict=True):
        begin, end = run.first_of(low), run.first_of(high)
        is_here = ~gone[begin:end]
        at = begin
        for block, first, last in run.slices(begin, end) if is_here.any() else ():
            own = is_here[at - begin : at - begin + last - first]
            if not newest_counts:
                own = own & (block.times[first:last] > ended)
            chosen = np.flatnonzero(own)
            hashes.append(run.hashes[at : at + last - first][chosen])
            times.append(block.times[first:last][chosen])
            fronts.append(block.fronts[first:last][chosen])
            key_sizes.append(block.key_sizes[first:last][chosen])
            records.append(block.records_between(first, last).take(int64s(chosen)))
            at += last - first
    if not any(map(len, hashes)):
        return None
    hashed = np.concatenate(hashes)
    order = np.argsort(hashed, kind="stable")
    hashed, all_times = hashed[order], np.concatenate(times)[order]
    all_sizes = np.concatenate(key_sizes)[order]
    sorted_records = pa.concat_arrays(records).take(int64s(order))
    piece = _made(hashed, all_times, np.concatenate(fronts)[order], all_sizes, sorted_records)
    return piece.only(_newest(piece) & (all_times > ended)) if newest_counts else piece


def _made(
    hashes: Hashes, times: Numbers, fronts: Numbers, key_sizes: Hashes, records: pa.Array
) -> Piece:
    return Piece(hashes, Block(times, fronts, key_sizes, *_ends_and_data(records)))


def _newest(piece: Piece) -> Flags:
    """Which rows are the first of their key. Rows of one hash are in the order of their runs."""
    import numpy as np

    hashes, block = piece.hashes, piece.block
    kept: Flags = np.ones(len(hashes), np.bool_)
    again = np.flatnonzero(hashes[1:] == hashes[:-1]) + 1
    if not len(again):
        return kept
    # Where all rows of a hash have one key, to the byte, the first one counts.
    firsts = np.flatnonzero(np.diff(again, prepend=-2) != 1)
    is_one = np.logical_and.reduceat(_same_keys(block, again), firsts)
    of_hash = np.diff(firsts, append=len(again))
    kept[again[np.repeat(is_one, of_hash)]] = False
    for first, count in zip(
        again[firsts][~is_one].tolist(), of_hash[~is_one].tolist(), strict=True
    ):
        keys = [block.key(first - 1)]
        for position in range(first, first + count):
            key = block.key(position)
            if key in keys:
                kept[position] = False
            else:
                keys.append(key)
    return kept


def _same_keys(block: Block, positions: Numbers) -> Flags:
    """Whether each of these rows has the key of the row ahead of it, to the byte."""
    import numpy as np

    begins = np.concatenate(([0], block.ends[:-1]))
    here, ahead = begins[positions], begins[positions - 1]
    sizes = block.key_sizes[positions]
    same: Flags = sizes == block.key_sizes[positions - 1]
    data = np.frombuffer(block.records, np.uint8)
    for size in np.unique(sizes[same]).tolist():
        own = np.flatnonzero(same & (sizes == size))
        columns = np.arange(size)
        keys, others = (data[begin[own, None] + columns] for begin in (here, ahead))
        same[own] = (keys == others).all(axis=1)
    return same


def _gathered(data: Any, begins: Numbers, sizes: Numbers) -> pa.Array:
    """Pieces of data, as an array of binaries."""
    import numpy as np
    import pyarrow as pa

    offsets = np.concatenate(([0], np.cumsum(sizes)))
    positions = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], sizes)
    return pa.Array.from_buffers(
        pa.binary(),
        len(sizes),
        [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[positions])],
    )


def _ends_and_data(records: pa.Array) -> tuple[Numbers, memoryview]:
    """Of an array of large binaries that begins where its buffers do."""
    import numpy as np

    count = len(records)
    _, offsets, data = records.buffers()
    ends = np.frombuffer(offsets, np.int64)[1 : count + 1]
    size = int(ends[-1]) if count else 0
    return ends, memoryview(data or b"")[:size]


class RunFiles:
    """The files of a run that is being written. They are unlinked in the end, whatever happens."""

    _COLUMNS = 6

    def __init__(self, folder: str) -> None:
        self._stack = ExitStack()
        self.rows = self._bytes = 0
        os.makedirs(folder, exist_ok=True)
        self._files: list[BinaryIO] = []
        try:
            for _ in range(self._COLUMNS):
                self._files.append(self._stack.enter_context(unnamed_file(folder)))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> RunFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, hashes: Hashes, block: Block) -> None:
        """Add sorted rows behind the others."""
        ends = block.ends + self._bytes
        columns = (hashes, block.times, block.fronts, block.key_sizes, ends, block.records)
        for file, column in zip(self._files, columns, strict=True):
            file.write(memoryview(column).cast("B"))  # type: ignore[arg-type]
        self.rows += len(hashes)
        self._bytes += len(block.records)

    def run(self) -> Run:
        """The run that was written, mapped. The mappings live as long as the run."""
        import numpy as np

        for file in self._files:
            file.flush()
        mapped = [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for file in self._files]
        hashes, key_sizes = (np.frombuffer(mapped[number], np.int32) for number in (0, 3))
        times, fronts, ends = (np.frombuffer(mapped[number], np.int64) for number in (1, 2, 4))
        return Run(hashes, Block(times, fronts, key_sizes, ends, mapped[5]))


def unnamed_file(folder: str) -> BinaryIO:
    """A new file without a name, where the file system can do that; else it is unlinked at once."""
    return cast("BinaryIO", tempfile.TemporaryFile(dir=folder, prefix="emberflow-cold-"))


def on_disk(block: Block, folder: str) -> Block:
    """The same rows, mapped from one file."""
    return _mapped((), block, folder)[1]


def run_on_disk(hashes: Hashes, block: Block, folder: str) -> Run:
    """The run of these rows, which are sorted, mapped from one file."""
    import numpy as np

    mapped, own = _mapped((hashes,), block, folder)
    return Run(np.frombuffer(mapped, np.int32, len(block), 28 * len(block)), own)


def _mapped(more: tuple[Any, ...], block: Block, folder: str) -> tuple[mmap.mmap, Block]:
    """A file with the columns of a block, more columns of 32 bits, and the records."""
    import numpy as np

    columns = (block.times, block.fronts, block.ends, block.key_sizes, *more, block.records)
    os.makedirs(folder, exist_ok=True)
    with unnamed_file(folder) as file:
        for column in columns:
            file.write(memoryview(column).cast("B"))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    count = len(block)
    times, fronts, ends = (
        np.frombuffer(mapped, np.int64, count, number * 8 * count) for number in range(3)
    )
    key_sizes = np.frombuffer(mapped, np.int32, count, 24 * count)
    records = memoryview(mapped)[(28 + 4 * len(more)) * count :]
    return mapped, Block(times, fronts, key_sizes, ends, records)
