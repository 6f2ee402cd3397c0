"""Rows of slices that will come to a worker, read while the workers that have them still work.

What is guaranteed: **the stores have the rows of a cut, whatever was read before.** A cut that adds to the one
that was read has all its parts, and others: of these the worker opens what is new, and the newest row of
a key counts (`runs`). A cut that does not have all of them is another chain, and is read from its beginning.

So when slices move at T (`live.rescale`), what is left to read is what has changed since the cut before, and of
that the hashes alone. The other rows are fetched when they are touched. Only steps whose keys can be cold are
copied ahead. Those with few rows are not: they are in memory as soon as their hashes would be.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.runners.live.cold.runs import SortedRuns
from emberflow.values.hashing import HashRange


class CopiedAhead:
    """The rows of some steps, in some ranges of hashes."""

    def __init__(
        self,
        store: CheckpointStore,
        folder: str,
        ranges: Sequence[HashRange],
        steps: Collection[str],
    ) -> None:
        self._store = store
        self._folder = folder
        self._ranges = ranges
        self._steps = steps
        #: The parts that were read.
        self._read: frozenset[str] = frozenset()
        self._stores: dict[str, SortedRuns] = {}

    def bring_up(self, cut: Manifest) -> None:
        """Read what a cut has, and those before had not."""
        parts = frozenset(part.path for part in cut.parts)
        if not self._read <= parts or not self._read:
            self.close()
            for step, runs in self._store.columns(cut, self._ranges, self._steps).items():
                self._stores[step] = SortedRuns(self._folder, is_ahead=True)
                self._stores[step].begin_with(step, runs)
        elif not self._stores:
            pass  # all steps have lists
        elif self._read != parts:
            newer = self._store.columns(cut, self._ranges, self._stores, without=self._read)
            for step in self._stores.keys() - newer.keys():  # it has lists now
                self._stores.pop(step).close()
            for step, runs in newer.items():
                self._stores[step].add_newer(runs)
        self._read = parts

    def settle(self, seconds: float) -> None:
        """Wait until the rows are on the own disk, so long at most."""
        for store in self._stores.values():
            store.settle(seconds)

    def taken(self, cut: Manifest) -> dict[str, SortedRuns]:
        """By step: the rows as of a cut. They are whoever's who calls."""
        self.bring_up(cut)
        stores, self._stores = self._stores, {}
        return stores

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores = {}
