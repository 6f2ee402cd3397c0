"""An external merge sort: sorted runs in files, merged one block of each at a time.

When a task holds too much, it sorts it and writes it to a file, a *run*; at the end all runs are
merged. When there are too many runs, some are merged earlier. So a task needs memory for what it
holds at once and for one block of each run. The files are where Spark puts its own. They have no
name, so they disappear with the process, however it ends.

Subclasses define blocks and runs: of items (`sorting`) or of rows of a sink (`output_order`).
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

#: The first and last place of a block, the block, and the rest of its run.
_Head: TypeAlias = tuple[Any, Any, B, Iterator[B]]


class Spilling(ABC, Generic[B, R]):
    """The runs of a sort under way, of which at most ``runs_max`` are merged at once."""

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        #: Runs by level: a run of level ``n`` is merged from ``runs_max`` runs of level ``n - 1``.
        self._levels: list[list[R]] = []

    # Defined by subclasses.

    @abstractmethod
    def _written(self, blocks: Iterator[B]) -> R:
        """Write these blocks as a run."""

    @abstractmethod
    def _blocks(self, run: R) -> Iterator[B]:
        """Read the blocks of a run."""

    @abstractmethod
    def _size(self, block: B) -> int:
        """The number of entries in a block."""

    @abstractmethod
    def _place(self, block: B, number: int) -> Any:
        """The sort key of one entry."""

    @abstractmethod
    def _between(self, block: B, start: int, end: int) -> B:
        """Consecutive entries of a block."""

    @abstractmethod
    def _sorted(self, blocks: list[B]) -> B:
        """The entries of all these blocks, sorted, as one block."""

    # Runs.

    def _put_away(self, blocks: Iterator[B], level: int = 0) -> None:
        """Write a run, and merge runs of a level that has become full."""
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
        """Merge what is in memory with all runs."""
        runs = [self._blocks(run) for runs in self._levels for run in runs]
        return self._merged([*runs, held]) if runs else held

    def _drop_runs(self) -> None:
        for runs in self._levels:
            for run in runs:
                run.close()
        self._levels = []

    def _merged(self, runs: list[Iterator[B]]) -> Iterator[B]:
        """Merge several runs.

        One block of each run is in memory. Everything up to the least last entry of these blocks
        may be yielded, because everything still in files comes after it. That uses up at least one
        block.
        """
        heads: list[_Head[B]] = []
        for run in runs:
            self._next(heads, run)
        while heads:
            bound = min(last for _, last, _, _ in heads)
            blocks: list[B] = []
            left: list[_Head[B]] = []
            for head in heads:
                first, last, block, run = head
                if first > bound:  # true for most heads if runs do not overlap
                    left.append(head)
                elif last == bound:
                    blocks.append(block)
                    self._next(left, run)
                else:
                    size = self._size(block)
                    end = bisect_right(range(size), bound, key=partial(self._place, block))
                    blocks.append(self._between(block, 0, end))
                    rest = self._between(block, end, size)
                    left.append((self._place(rest, 0), last, rest, run))
            heads = left
            yield self._sorted(blocks)

    def _next(self, heads: list[_Head[B]], run: Iterator[B]) -> None:
        block = next(run, None)
        if block is not None:
            last = self._place(block, self._size(block) - 1)
            heads.append((self._place(block, 0), last, block, run))


def nameless_file() -> BinaryIO:
    """An unnamed temporary file in Spark's local folder, which disappears with the process."""
    folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    folder = folders[os.getpid() % len(folders)]
    return tempfile.TemporaryFile(dir=folder if os.path.isdir(folder) else None)
