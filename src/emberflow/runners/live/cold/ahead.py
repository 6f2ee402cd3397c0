"""State of slices that will come to a worker, read while the workers that have them still work.

What is guaranteed: **what was read is the state of a cut, whatever was read before.** A cut that adds to the one
that was read has all its parts, and others: of these the worker reads what is new, and the newest bucket of
a key counts. A cut that does not have all of them is another chain, and is read from its beginning.

So when slices move at T (`live.rescale`), what is left to read is what has changed since the cut before.

1. *State that fits into memory is made at once*: buckets, lists that grow, windows with their ticks
   (`engine.worker.succession`). At T the worker takes all of it as it is.
2. *The rows of steps whose keys can be cold*, where they are many, become a store of cold keys (`runs`). Of what
   changes later the worker reads the hashes alone. The other columns are read when a key is touched first.

A worker whose process serves at the same time takes of the time that this leaves (`machine.spare`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice

from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.ranges import Ranges
from emberflow.engine.cuts.cut import Scheduled
from emberflow.engine.layout import Layout
from emberflow.engine.worker.succession import StateAhead
from emberflow.runners.live.cold.newer import newer_buckets
from emberflow.runners.live.cold.runs import SortedRuns
from emberflow.values.hashing import HashRange

#: So much is made between two rests, or more.
_AT_ONCE = 256


class CopiedAhead:
    """The state of all steps in the ranges of hashes that come to a worker."""

    def __init__(
        self,
        store: CheckpointStore,
        folder: str,
        layout: Layout,
        arriving: Sequence[HashRange],
        own: Sequence[HashRange],
        cold: Collection[str],
    ) -> None:
        """``own`` are all ranges of the worker, by the next table. ``cold`` are the steps whose rows become a
        store."""
        self._store = store
        self._folder = folder
        self._layout = layout
        self._arriving = arriving
        self._own = own
        self._cold = frozenset(cold)
        #: The parts that were read.
        self._read: frozenset[str] = frozenset()
        self._stores: dict[str, SortedRuns] = {}
        self._state = self._nothing()
        #: What the chain has of lists that grow.
        self.lists = SavedLists()

    def _nothing(self) -> StateAhead:
        return StateAhead(self._layout, Ranges(self._arriving).__contains__, self._cold)

    def bring_up(self, cut: Manifest, rest: Callable[[], None] | None = None) -> None:
        """Read what a cut has, and those before had not. ``rest`` is called between two pieces of state."""
        parts = frozenset(part.path for part in cut.parts)
        if parts == self._read:
            return
        if not self._read <= parts:
            self._begin_anew()
        if not self._bring_up_stores(cut):
            self._begin_anew()  # with other steps cold
            self._bring_up_stores(cut)
        self._bring_up_state(cut, rest)
        self._read = parts

    def _begin_anew(self) -> None:
        self.close()
        self._state, self.lists = self._nothing(), SavedLists()
        self._read = frozenset()

    def _bring_up_stores(self, cut: Manifest) -> bool:
        """Returns whether all steps that were cold still can be."""
        if not self._cold:
            return True
        known = self._read
        found = self._store.columns(cut, self._arriving, self._cold, without=known)
        if found.keys() != self._cold:  # some have lists
            self._cold = frozenset(found)
            return False
        for step, runs in found.items():
            if not known:
                self._stores[step] = SortedRuns(self._folder, is_ahead=True)
                self._stores[step].begin_with(step, runs)
            else:
                self._stores[step].add_newer(runs)
        return True

    def _bring_up_state(self, cut: Manifest, rest: Callable[[], None] | None) -> None:
        state, store, known = self._state, self._store, self._read
        parts = store.newer_parts(cut, self._arriving, known)
        buckets = newer_buckets(parts, Ranges(self._arriving), self.lists, self._cold)
        made = 0
        for step, keys, rows in buckets:
            state.replace(cut.time, step, keys, rows)
            made += len(keys)
            if rest is not None and made >= _AT_ONCE:
                rest()
                made = 0
        self.lists.go_on(cut.number)
        scheduled = map(Scheduled._make, store.newer_scheduled(cut, self._own, known))
        while items := list(islice(scheduled, _AT_ONCE)):
            state.schedule(cut.time, items)
            if rest is not None and len(items) == _AT_ONCE:
                rest()

    def settle(self, seconds: float) -> None:
        """Wait until the rows are on the own disk, so long at most."""
        for store in self._stores.values():
            store.settle(seconds)

    def taken(self, cut: Manifest) -> tuple[StateAhead, dict[str, SortedRuns]]:
        """The state as of a cut, and by step the rows of the others. Both are whoever's who calls."""
        self.bring_up(cut)
        stores, self._stores = self._stores, {}
        return self._state, stores

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores = {}
