"""The rows of a cut that a restore has left cold: they stay in the files of the cut until they are needed.

What is guaranteed: **a worker is ready before it has read its state.** To restore it reads the hashes of
its keys (`checkpoint.cuts.columns`). When somebody asks for a key, the row group that has it is read, all
its rows become a block on the worker's own disk, and none of them is decoded but the one. Some seconds later
a thread merges all of them into one ordinary run (`runs`), and then the files are not needed any more.

The files of a cut are removed when the next cut that holds everything is committed. That one has read
them all. Where a file system does not keep open files that are removed, and the disk was too full for the
merge, a worker may miss them; then it ends, and its next life begins from a newer cut.
"""

from __future__ import annotations

import pickle
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from emberflow.checkpoint.cuts.columns import ColumnRun
from emberflow.engine.cuts.cut import Row
from emberflow.runners.live.cold.blocks import Block, Run, on_disk
from emberflow.runners.live.cold.encoding import cold_places

if TYPE_CHECKING:
    from emberflow.runners.live.cold.blocks import Numbers

#: Blocks of a run that a merge keeps in memory: it goes through them in order.
_KEPT = 2
#: If so many rows of each group, or more, are looked for at once, those of a group are looked for together.
_SEVERAL = 4


class CutRun(Run):
    """A run of a cut, whose rows are read in groups."""

    def __init__(self, source: ColumnRun, folder: str) -> None:
        import numpy as np

        super().__init__(source.hashes, None)
        self.cut = source.cut
        self._source = source
        self._folder = folder
        self._begins: Numbers = np.array(source.begins, np.int64)
        self._blocks: list[Block | None] = [None] * len(source.begins)
        self._lock = threading.Lock()
        self._passing: OrderedDict[int, Block] = OrderedDict()

    def places_of(self, keys: list[Any], firsts: list[int]) -> list[int]:
        if self._are_few(firsts):
            return [self._place_of(key, first) for key, first in zip(keys, firsts, strict=True)]
        found = [-1] * len(keys)
        gone = self.taken[firsts].tolist()
        # Of a row that was taken nobody needs the group.
        singly = [at for at, is_gone in enumerate(gone) if is_gone]
        left = [at for at, is_gone in enumerate(gone) if not is_gone]
        for number, own in self._by_group([firsts[at] for at in left]):
            block, begin = self._block_of(number), self._source.begins[number]
            end = begin + len(block)
            some, left = left[: len(own)], left[len(own) :]
            hashes, taken = self.hashes[begin:end], self.taken[begin:end]
            wanted, inside = [keys[at] for at in some], [first - begin for first in own]
            places = cold_places(wanted, inside, hashes, taken, pickle.loads, *block.columns)
            for at, place in zip(some, places, strict=True):
                if place >= 0:
                    found[at] = begin + place
                elif end < len(self) and self.hashes[end] == self.hashes[firsts[at]]:
                    singly.append(at)  # the next group goes on with its hash
        for at in singly:
            found[at] = self._place_of(keys[at], firsts[at])
        return found

    def _place_of(self, key: Any, first: int) -> int:
        hashed = self.hashes[first]
        for position in range(first, len(self)):
            if self.hashes[position] != hashed:
                break
            if not self.taken[position]:
                block, inside = self._found_at(position)
                if block.key(inside) == key:
                    return position
        return -1

    def rows_at(self, positions: list[int], operation: str, ended: int) -> list[Row]:
        found: list[Row] = []
        if self._are_few(positions):
            for position in positions:
                block, at = self._found_at(position)
                if block.times[at] > ended:
                    found += block.rows(operation, [int(self.hashes[position])], [at])
            return found
        for number, own in self._by_group(positions):
            block, begin = self._block_of(number), self._source.begins[number]
            alive = [position for position in own if block.times[position - begin] > ended]
            hashes, inside = self.hashes[alive].tolist(), [position - begin for position in alive]
            found += block.rows(operation, hashes, inside)
        return found

    def _are_few(self, positions: list[int]) -> bool:
        """Whether it takes longer to look at groups than at rows."""
        return len(positions) < _SEVERAL * len(self._blocks)

    def _found_at(self, position: int) -> tuple[Block, int]:
        """The block that has a row, and its position there."""
        number = bisect_right(self._source.begins, position) - 1
        return self._block_of(number), position - self._source.begins[number]

    def _by_group(self, positions: list[int]) -> Iterator[tuple[int, list[int]]]:
        """The numbers of the groups that have these rows, and the positions in each: as they come."""
        numbers = self._begins.searchsorted(positions, "right").tolist()
        for behind, own in groupby(zip(numbers, positions, strict=True), itemgetter(0)):
            yield behind - 1, [position for _, position in own]

    def _block_of(self, number: int) -> Block:
        block = self._blocks[number]
        if block is None:
            block = self._blocks[number] = self._read(number)
            with suppress(OSError):  # the disk is full, so it stays in memory
                block = self._blocks[number] = on_disk(block, self._folder)
        return block

    def slices(self, begin: int, end: int) -> Iterator[tuple[Block, int, int]]:
        """What is read for these is dropped again soon: who calls it goes through all of them, once. Other
        threads may look for rows meanwhile."""
        begins = self._source.begins
        for number in range(max(0, bisect_right(begins, begin) - 1), len(begins)):
            if begins[number] >= end:
                return
            block = self._blocks[number] or self._passed(number)
            first = max(begin, begins[number]) - begins[number]
            yield block, first, min(end - begins[number], len(block))

    def _passed(self, number: int) -> Block:
        with self._lock:
            block = self._passing.get(number)
            if block is None:
                block = self._passing[number] = self._read(number)
                while len(self._passing) > _KEPT:
                    self._passing.popitem(last=False)
            return block

    def _read(self, number: int) -> Block:
        return Block.of(*self._source.read(number))
