"""A hold: items that wait at a node until its input is complete, kept so that waiting is cheap.

What is guaranteed:

1. *Order.* `take` gives everything below a frontier, sorted by place.
2. *FIFO.* Of one place and one trace, items leave in the order they came: an item, its tombstone,
   the next version.
3. *Nothing twice.* An item whose tombstone arrives while it is held leaves with it: nobody has seen
   either.

**Runs.** Items come in batches that are sorted or nearly so: those of one partition, read in order
and sent by one worker, continue each other. So a hold keeps a few *runs*, sorted lists. A batch that
continues a run is appended to it. Any other begins a run, and when there are many, the shorter half of
them is merged. To take what is below a frontier is a bisection and a slice of each run, and one merge
of what was taken; what stays is not touched. So an item costs about as much for each merge as a sort
of two sorted lists costs, and there are few merges: none while every batch continues a run.

**Tombstones.** Two items of one place may be in two runs, and then the runs do not tell which of them
came first. It does not matter for two items of different traces. It does for an item and its
tombstone. So as soon as a tombstone comes, and for as long as one is held, everything is in one run,
merged stably in the order of arrival. Tombstones are rare here: a node that waits makes none, so they
come only from nodes ahead of it that do not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from itertools import chain
from operator import itemgetter

from emberflow.engine.messages import Moment
from emberflow.values.item import FlatItem, Place

_place_of = itemgetter(0)
_mark_of = itemgetter(1)

#: More runs than this are merged: each costs a bisection whenever something is taken.
_RUNS_MAX = 24


class Hold:
    """Items of one node, in runs.

    >>> hold = Hold()
    >>> hold.add([((1, 0), 0, "a"), ((5, 0), 0, "c")])
    >>> hold.add([((3, 1), 0, "b")])
    >>> [payload for _, _, payload in hold.take((5, 0))], hold.count, hold.least
    (['a', 'b'], 1, (5, 0))
    """

    __slots__ = ("_has_tombstones", "_runs", "count")

    def __init__(self) -> None:
        self._runs: list[list[FlatItem]] = []
        self._has_tombstones = False
        #: How many items are held.
        self.count = 0

    @property
    def least(self) -> Moment | None:
        """The least global time that is held."""
        if not self._runs:
            return None
        place = min([run[0][0] for run in self._runs])
        return place[0], place[1]

    def items(self) -> list[FlatItem]:
        """All that is held, in no particular order."""
        return list(chain.from_iterable(self._runs))

    def add(self, batch: list[FlatItem]) -> None:
        """Hold a batch, which is sorted by place, stably in the order of arrival."""
        runs = self._runs
        marks = set(map(_mark_of, batch))  # they are few, items are many
        if self._has_tombstones or any(mark & 1 for mark in marks):
            self._has_tombstones = True
            merged = list(chain(*runs, batch))
            merged.sort(key=_place_of)
            merged = without_cancelled(merged)
            self._runs = [merged] if merged else []
            self.count = len(merged)
            return
        self.count += len(batch)
        first = batch[0][0]
        best: list[FlatItem] | None = None
        for run in runs:
            last = run[-1][0]
            if last <= first and (best is None or last > best[-1][0]):
                best = run
        if best is not None:
            best += batch
            return
        runs.append(list(batch))
        if len(runs) > _RUNS_MAX:
            runs.sort(key=len)
            half = len(runs) // 2
            merged = list(chain(*runs[:half]))
            merged.sort(key=_place_of)
            runs[:half] = [merged]

    def moments_after(self, moment: Moment, most: int) -> list[Moment]:
        """The least global times above this one, in order and so many at the most."""
        behind = (moment[0], moment[1] + 1)
        found: list[Moment] = []
        rest = [_places(run, bisect_left(run, behind, key=_place_of)) for run in self._runs]
        for place in rest[0] if len(rest) == 1 else merge(*rest):
            if not found or place[:2] != found[-1]:
                if len(found) == most:
                    break
                found.append((place[0], place[1]))
        return found

    def take(self, frontier: Moment) -> list[FlatItem]:
        """Everything below the frontier, in order. It is held no longer."""
        taken: list[FlatItem] = []
        parts = 0
        runs: list[list[FlatItem]] = []
        for run in self._runs:
            if run[-1][0] < frontier:
                taken += run
                parts += 1
                continue
            if run[0][0] < frontier:
                end = bisect_left(run, frontier, key=_place_of)
                taken += run[:end]
                del run[:end]
                parts += 1
            runs.append(run)
        if parts > 1:
            taken.sort(key=_place_of)
        self._runs = runs
        self.count -= len(taken)
        if self._has_tombstones:
            self._has_tombstones = any(item[1] & 1 for run in runs for item in run)
        return taken


def _places(run: list[FlatItem], start: int) -> Iterator[Place]:
    """The places from a position on. Runs are long, and mostly few places are asked for."""
    for position in range(start, len(run)):
        yield run[position][0]


def without_cancelled(items: list[FlatItem]) -> list[FlatItem]:
    """Items in order, without those that are taken back before anyone has seen them.

    A tombstone cancels the last item ahead of it that has its place and trace, unless another
    tombstone of that item is between them.

    >>> item, tombstone, other = ((1, 0), 4, "a"), ((1, 0), 5, "a"), ((1, 0), 6, "b")
    >>> without_cancelled([item, other, tombstone]) == [other]
    True
    >>> without_cancelled([tombstone, item]) == [tombstone, item]
    True
    """
    kept: list[FlatItem] = []
    for item in items:
        place, mark, _ = item
        if mark & 1:
            position = len(kept)
            while position and kept[position - 1][0] == place:
                position -= 1
                found = kept[position][1]
                if found == mark ^ 1:
                    break
                if found == mark:
                    position = -1
                    break
            else:
                position = -1
            if position >= 0:
                del kept[position]
                continue
        kept.append(item)
    return kept
