"""The barrier: holds output until the minimal time passes it, then releases it in order.

What is guaranteed: what a barrier releases is in the order of places, contains no item that was
ever taken back, and is final.

- *Final*: it releases only what is below the minimal time. Nothing below the minimal time is in flight,
  so neither another item nor a tombstone for one of these can still come.
- *In order, once*: each release is sorted, and the minimal times of releases ascend, so the whole is
  sorted. Nothing at or below ``delivered``, the last global time that the sink has from an earlier life,
  is released again.

The barrier keeps arrivals as they come and sorts them at the next release. Output is nearly sorted, and
Python's sort is linear on that. What must stay is filed into ``held``, which is sorted, so the part of it
that is ready is a prefix.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort_right
from operator import itemgetter

from emberflow.engine.loops.items import sort_by_place
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import NondeterminismError
from emberflow.values.item import FlatItem, Place

_place_of = itemgetter(0)
_mark_of = itemgetter(1)


def _moment_of(item: FlatItem) -> Moment:
    return item[0][0], item[0][1]


#: To file items one by one is quicker than to sort all if so many times more are held than are filed.
_FEW = 16


class Barrier:
    """One partition of a sink.

    >>> barrier = Barrier()
    >>> barrier.arrive([((2, 0), 0, "b"), ((1, 0), 0, "wrong"), ((1, 0), 1, "wrong")])
    >>> barrier.arrive([((1, 0), 0, "a")])
    >>> barrier.release((2, 0))
    [((1, 0), 0, 'a')]
    >>> barrier.held_items, barrier.arrived, barrier.released
    (1, 4, 1)
    """

    __slots__ = ("_arrivals", "_held", "arrived", "delivered", "released", "tombstones", "waited")

    def __init__(self, delivered: Moment = BEFORE_ALL) -> None:
        self.delivered = delivered
        self.arrived = 0
        self.released = 0
        self.tombstones = 0
        self.waited = 0.0
        self._arrivals: list[FlatItem] = []
        self._held: list[FlatItem] = []

    @property
    def held_items(self) -> int:
        return len(self._arrivals) + len(self._held)

    def arrive(self, items: list[FlatItem]) -> None:
        self.arrived += len(items)
        self._arrivals.extend(items)

    def pass_time(self, elapsed: float) -> None:
        """Count the time that the items now here have waited since the last call (Little's law)."""
        self.waited += elapsed * self.held_items

    @property
    def least(self) -> Moment | None:
        """The least global time that is held and not taken back, as far as is known."""
        if self._arrivals:
            held = sorted(self._held + self._arrivals, key=_place_of)
            self._held, self._arrivals = self._without_tombstones(held), []
        return _moment_of(self._held[0]) if self._held else None

    def release(self, minimal: Moment) -> list[FlatItem]:
        """All that is final below the minimal time, in order."""
        arrivals, held = self._arrivals, self._held
        ready: list[FlatItem] = []
        if held and held[0][0] < minimal:
            split = bisect_left(held, minimal, key=_place_of)
            ready = held[:split]
            del held[:split]
        if arrivals:
            sort_by_place(arrivals)  # stable: a tombstone stays behind its item
            split = bisect_left(arrivals, minimal, key=_place_of)
            if ready:
                ready += arrivals[:split]
                sort_by_place(ready)
            else:
                ready = arrivals[:split]
            self._file(arrivals[split:])
            self._arrivals = []
        return self._final(ready) if ready else []

    def _file(self, items: list[FlatItem]) -> None:
        held = self._held
        if len(items) * _FEW < len(held):
            for item in items:
                insort_right(held, item, key=_place_of)
        else:
            held += items
            sort_by_place(held)

    def _final(self, ready: list[FlatItem]) -> list[FlatItem]:
        # The traces are few, however many items there are.
        if any(mark & 1 for mark in set(map(_mark_of, ready))):
            ready = self._without_tombstones(ready)
        if self.delivered != BEFORE_ALL and ready:
            # What the sink has from an earlier life is a prefix, which ends with a whole global time.
            ready = ready[bisect_right(ready, self.delivered, key=_moment_of) :]
        self.released += len(ready)
        return ready

    def _without_tombstones(self, ready: list[FlatItem]) -> list[FlatItem]:
        """The items that no tombstone took back. Both are sorted, so an item is next to its tombstone."""
        kept: list[FlatItem] = []
        tombstones = 0
        for item in ready:
            mark = item[1]
            if not mark & 1:
                kept.append(item)
                continue
            tombstones += 1
            place, mark = item[0], mark ^ 1
            # Between them there may be another history of the same item, under its own mark.
            for number in range(len(kept) - 1, -1, -1):
                other = kept[number]
                if other[0] == place and other[1] == mark:
                    del kept[number]
                    break
                if other[0] < place:
                    raise lost_tombstone(place)
            else:
                raise lost_tombstone(place)
        self.tombstones += tombstones
        return kept


def lost_tombstone(place: Place, step: str = "a sink") -> NondeterminismError:
    return NondeterminismError(
        f"{step}: a tombstone at {place} found no item to take back: a function before it gave "
        f"another result when it was called again. emberflow.verify(flow, ...) finds it."
    )
