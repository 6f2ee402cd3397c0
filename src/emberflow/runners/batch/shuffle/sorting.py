"""Sorts the items of a slice by (key hash, place), however many there are.

The chunks of a slice arrive in any order. They are held as bytes and sorted when the slice ends. If
they are more than a task should hold, they are spilled to runs (`spilling`). So a task needs
`_BYTES_MAX` and the memory to merge `_RUNS_MAX` blocks, whether a slice has many keys or the whole
history of one.

Two items with the same key and place would have no defined order, and so neither would the output.
That happens only if the input has a time twice and no positions, and it is an error.

**Paths as numbers.** numpy sorts numbers fast. Padding paths with zeros to whole words does not
change their order: two paths that become equal would differ by zero bytes at the end, but the code
of an int never begins with a zero (`emberflow.rows.paths`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np

from emberflow.errors import InputError
from emberflow.graph.nodes import Graph
from emberflow.rows.codec import column_of
from emberflow.rows.paths import decoded_path
from emberflow.runners.batch.shuffle.bus import (
    HASH_BITS,
    HASH_MASK,
    Integers,
    Items,
    chunk,
    unchunked,
)
from emberflow.runners.batch.shuffle.spilling import Spilling, nameless_file

#: Bytes of chunks that are held in memory. As objects they take several times as much.
_BYTES_MAX: Final = 8 << 20
#: Items of a block of a run, at most, and the aimed-at number of bytes.
_BLOCK_ITEMS: Final = 2_048
_BLOCK_BYTES: Final = 1 << 17
#: Items of the first block, which shows how large items are.
_SAMPLED: Final = 16
#: How many runs are merged at once.
_RUNS_MAX: Final = 64

_HASH_BITS: Final = np.uint64(HASH_BITS)

#: Paths of up to this many bytes are compared as numbers.
_PATH_MAX: Final = 32


#: Makes the error for two items at the same ``(time, path)``.
Doubled: TypeAlias = Callable[[int, bytes], Exception]


def doubled_in(graph: Graph) -> Doubled:
    """Makes the error for an element that is there twice."""

    def doubled(time: int, path: bytes) -> InputError:
        front, *ids = decoded_path(path)
        if front < 0:  # a scheduled item: name the element that it comes from
            time, front = ids[0], ids[1]
        names = [name for name, known in graph.fronts.items() if known.index == front]
        return InputError(
            f"front {names[0] if names else front!r}: more than one row has the time {time}, and "
            f"nothing says which comes first. Name the column that says where a row is in its source: "
            f"ef.rows(df, position=...)."
        )

    return doubled


class Sorter(Spilling[Items, "_Run"]):
    """Takes the chunks of one slice after another and yields the items of each in order."""

    def __init__(self, doubled: Doubled) -> None:
        super().__init__(_RUNS_MAX)
        self._doubled = doubled
        self._chunks: list[bytes] = []
        self._bytes = 0

    def add(self, data: bytes) -> None:
        """Add a chunk of the present slice."""
        self._chunks.append(data)
        self._bytes += len(data)
        if self._bytes >= _BYTES_MAX:
            self._put_away(self._held())

    def ended(self) -> Iterator[Items]:
        """The slice is complete: its items, sorted."""
        try:
            yield from self._with_runs(self._held())
        finally:
            self.close()

    def close(self) -> None:
        """Drop everything held or spilled."""
        self._drop_runs()
        self._chunks, self._bytes = [], 0

    def _held(self) -> Iterator[Items]:
        """The chunks in memory, as one sorted block."""
        chunks, self._chunks, self._bytes = self._chunks, [], 0
        return iter([_in_order(map(unchunked, chunks), self._doubled)] if chunks else ())

    # The methods that `Spilling` needs.

    def _written(self, blocks: Iterator[Items]) -> _Run:
        return _Run(blocks)

    def _blocks(self, run: _Run) -> Iterator[Items]:
        return run.blocks()

    def _size(self, block: Items) -> int:
        return len(block[2])

    def _place(self, block: Items, number: int) -> tuple[int, int, bytes]:
        return int(block[0][number]), int(block[1][number]), block[2][number]

    def _between(self, block: Items, start: int, end: int) -> Items:
        hashes, times, paths, payloads = block
        return hashes[start:end], times[start:end], paths[start:end], payloads[start:end]

    def _sorted(self, blocks: list[Items]) -> Items:
        return _in_order(blocks, self._doubled)


def _in_order(blocks: Iterable[Items], doubled: Doubled) -> Items:
    all_hashes: list[Integers] = []
    all_times: list[Integers] = []
    paths: list[bytes] = []
    payloads: list[Any] = []
    for some_hashes, some_times, some_paths, some_payloads in blocks:
        all_hashes.append(some_hashes)
        all_times.append(some_times)
        paths += some_paths
        payloads += some_payloads
    hashes, times = np.concatenate(all_hashes), np.concatenate(all_times)
    if len(paths) == 1:
        return hashes, times, paths, payloads
    order, twice = _order(hashes, times, paths)
    numbers = order.tolist()
    if len(twice):
        raise doubled(int(times[order[twice[0]]]), paths[numbers[twice[0]]])
    pick = itemgetter(*numbers)
    return hashes[order], times[order], list(pick(paths)), list(pick(payloads))


def _order(hashes: Integers, times: Integers, paths: list[bytes]) -> tuple[Integers, Integers]:
    """The order of the items, and the positions in it where an item has the same place as the next."""
    longest = max(map(len, paths))
    if longest > _PATH_MAX:
        places = list(zip(hashes.tolist(), times.tolist(), paths, strict=True))
        order = sorted(range(len(paths)), key=places.__getitem__)
        twice = [n for n, (i, j) in enumerate(pairwise(order)) if places[i] == places[j]]
        return np.array(order, np.int64), np.array(twice, np.int64)
    words = -(-longest // 8)
    numbers = np.array(paths, f"S{8 * words}").view(">u8").reshape(-1, words).astype(np.uint64)
    # The last column is the primary key of lexsort.
    columns: list[Any] = [numbers[:, word] for word in reversed(range(words))]
    least = times.min()
    if int(times.max()) - int(least) <= HASH_MASK:  # hash and time fit in one number
        columns.append(hashes.astype(np.uint64) << _HASH_BITS | (times - least).astype(np.uint64))
    else:
        columns += [times, hashes]
    in_order = np.lexsort(columns)
    same = np.ones(len(paths) - 1, np.bool_)
    for column in columns:
        ordered = column[in_order]
        same &= ordered[1:] == ordered[:-1]
    return in_order, np.flatnonzero(same)


class _Run:
    """Sorted items in a file, block by block."""

    def __init__(self, blocks: Iterator[Items]) -> None:
        self._file = nameless_file()
        self._ends: list[int] = []
        try:
            for hashes, times, paths, payloads in blocks:
                start, size = 0, min(_SAMPLED, _BLOCK_ITEMS)
                while start < len(paths):
                    end = start + size
                    kind, values, count = column_of(payloads[start:end])
                    self._file.write(
                        chunk(hashes[start:end], times[start:end], paths[start:end], kind, values)
                    )
                    self._ends.append(self._file.tell())
                    start = end
                    # Size the next block by the bytes per item of this one.
                    size = max(1, min(_BLOCK_ITEMS, len(values) * _BLOCK_BYTES // max(1, count)))
            self._file.flush()
        except BaseException:
            self.close()
            raise

    def blocks(self) -> Iterator[Items]:
        start = 0
        for end in self._ends:
            self._file.seek(start)
            yield unchunked(self._file.read(end - start))
            start = end

    def close(self) -> None:
        self._file.close()
