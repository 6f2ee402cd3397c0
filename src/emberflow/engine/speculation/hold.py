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
them is merged. To take what is below a frontier is a bisection and a slice of each run, and one sort
of what was taken; what stays is not touched. So an item costs about as much for each merge as a sort
of two sorted lists costs, and there are few merges: none while every batch continues a run. Where the
loops are compiled, a run is an array (`loops.runs`), and what waits takes a third of the memory.

**Tombstones.** Two items of one place may be in two runs, and then the runs do not tell which of them
came first. It does not matter for two items of different traces. It does for an item and its
tombstone. So as soon as a tombstone comes, and for as long as one is held, everything is in one run,
merged stably in the order of arrival. Tombstones are rare here: a node that waits makes none, so they
come only from nodes ahead of it that do not.
"""

from __future__ import annotations

from emberflow.engine.loops.items import sort_by_place
from emberflow.engine.loops.runs import PlainRuns, Runs, empty_runs, is_tombstone, runs_of
from emberflow.engine.messages import Moment
from emberflow.values.item import FlatItem


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
        self._runs: Runs = empty_runs()
        self._has_tombstones = False
        #: How many items are held.
        self.count = 0

    @property
    def least(self) -> Moment | None:
        """The least global time that is held."""
        return self._runs.least()

    def items(self) -> list[FlatItem]:
        """All that is held, in no particular order."""
        return self._runs.items()

    def add(self, batch: list[FlatItem]) -> None:
        """Hold a batch, which is sorted by place, stably in the order of arrival."""
        if not self._has_tombstones and self._runs.add(batch):
            self.count += len(batch)
            return
        merged = [*self._runs.items(), *batch]
        sort_by_place(merged)
        merged = without_cancelled(merged)
        self._hold(merged)
        self.count = len(merged)

    def _hold(self, items: list[FlatItem]) -> None:
        """Hold these items, which are in order, as one run."""
        self._has_tombstones = any(map(is_tombstone, items))
        self._runs = PlainRuns(items) if self._has_tombstones else runs_of(items)

    def moments_after(self, moment: Moment, most: int) -> list[Moment]:
        """The least global times above this one, in order and so many at the most."""
        return self._runs.moments_after(moment, most)

    def take(self, frontier: Moment) -> list[FlatItem]:
        """Everything below the frontier, in order. It is held no longer."""
        taken = self._runs.take(frontier)
        self.count -= len(taken)
        if self._has_tombstones:
            self._hold(self._runs.items())
        return taken


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
