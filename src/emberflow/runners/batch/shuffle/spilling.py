"""A sort of more than fits in memory: sorted runs in files, merged a block of each at a time.

What is at hand is sorted when it is too much to hold, and written to a file, a *run*; at the end all
runs are merged. So a task needs the memory of what it holds at once and of one block of each run, and
a run is merged with others as soon as there are too many of them. Files are where Spark puts its own,
and have no name: they are gone with the process, however it ends.

What blocks and runs are is for those who sort: items (`sorting`) or rows of a sink (`output_order`).
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO, Generic, Protocol, TypeAlias, TypeVar

B = TypeVar("B")


class Run(Protocol):
    """A file of sorted blocks."""

    def close(self) -> None: ...


R = TypeVar("R", bound=Run)

#: The first and the last place of a block, the block, and the run that the next one comes from.
_Head: TypeAlias = tuple[Any, Any, B, Iterator[B]]


class Spilling(ABC, Generic[B, R]):
    """The runs of a sort that is under way, of which so many are merged at once."""

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        #: Runs by level: those of level ``n`` are made of ``runs_max`` of level ``n - 1``.
        self._levels: list[list[R]] = []

    # What blocks are.

    @abstractmethod
    def _written(self, blocks: Iterator[B]) -> R:
        """A run of these blocks."""

    @abstractmethod
    def _blocks(self, run: R) -> Iterator[B]:
        """The blocks of a run again."""

    @abstractmethod
    def _size(self, block: B) -> int:
        """How many are in a block."""

    @abstractmethod
    def _place(self, block: B, number: int) -> Any:
        """What a block is sorted by, of one in it."""

    @abstractmethod
    def _part(self, block: B, start: int, end: int) -> B:
        """Some of a block, those that follow each other."""

    @abstractmethod
    def _sorted(self, parts: list[B]) -> B:
        """All of some blocks, in order."""

    # Runs.

    def _put_away(self, blocks: Iterator[B], level: int = 0) -> None:
        """Write a run."""
        if level == len(self._levels):
            self._levels.append([])
        runs = self._levels[level]
        runs.append(self._written(blocks))
        if len(runs) == self._runs_max:
            self._put_away(self._merged(list(map(self._blocks, runs))), level + 1)
            for run in runs:
                run.close()
            runs.clear()

    def _with_runs(self, held: Iterator[B]) -> Iterator[B]:
        """What is at hand, in order, with all that was put away."""
        runs = [self._blocks(run) for runs in self._levels for run in runs]
        return self._merged([*runs, held]) if runs else held

    def _drop_runs(self) -> None:
        for runs in self._levels:
            for run in runs:
                run.close()
        self._levels = []

    def _merged(self, runs: list[Iterator[B]]) -> Iterator[B]:
        """The blocks of several runs in order.

        Of each run one block is at hand. What is not beyond the end of any of these blocks may go:
        whatever is still in a file is beyond it. At least one block is used up by that.
        """
        heads: list[_Head[B]] = []
        for run in runs:
            self._next(heads, run)
        while heads:
            bound = min(last for _, last, _, _ in heads)
            parts: list[B] = []
            left: list[_Head[B]] = []
            for head in heads:
                first, last, block, run = head
                if first > bound:  # as most are, where runs follow each other
                    left.append(head)
                elif last == bound:
                    parts.append(block)
                    self._next(left, run)
                else:
                    size = self._size(block)
                    end = bisect_right(range(size), bound, key=partial(self._place, block))
                    parts.append(self._part(block, 0, end))
                    rest = self._part(block, end, size)
                    left.append((self._place(rest, 0), last, rest, run))
            heads = left
            yield self._sorted(parts)

    def _next(self, heads: list[_Head[B]], run: Iterator[B]) -> None:
        block = next(run, None)
        if block is not None:
            last = self._place(block, self._size(block) - 1)
            heads.append((self._place(block, 0), last, block, run))


def nameless_file() -> BinaryIO:
    """A file where Spark puts its own, which is gone with the process however that ends."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    folder = folders[os.getpid() % len(folders)]
    return tempfile.TemporaryFile(dir=folder if os.path.isdir(folder) else None)
