"""The barrier: holds output until the minimal time passes it, then releases it in order.

What is guaranteed: what a barrier releases is in the order of places, contains no item that was
ever taken back, and is final.

- *Final*: it releases only below the minimal time, and nothing below the minimal time is in flight;
  so neither another item nor a tombstone for one of these can still come.
- *In order, once*: releases go by ascending minimal times, each sorted, so the whole is sorted.
  Nothing at or below ``delivered``, the last global time that the sink has from an earlier life,
  goes out again.

Arrivals are kept as they come. They are sorted when they may go (Python's sort is linear on what is
nearly sorted, and output is), what must stay is filed into ``held``, which is sorted; its ready
part is a prefix.
"""

from __future__ import annotations

from bisect import bisect_left, insort_right
from operator import itemgetter
from typing import Any

from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import NondeterminismError
from emberflow.item import FlatItem, Place

_place_of = itemgetter(0)

#: Filing one by one beats sorting all while this many times more are held than are filed.
_FEW = 16


class Barrier:
    """One partition of a sink.

    >>> barrier = Barrier()
    >>> barrier.arrive([((2, 0), 0, "b"), ((1, 0), 0, "wrong"), ((1, 0), 1, "wrong")])
    >>> barrier.arrive([((1, 0), 0, "a")])
    >>> barrier.release((2, 0))
    [((1, 0), 'a')]
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
        """Tell how long the items now here have waited since this was last told (Little's law)."""
        self.waited += elapsed * self.held_items

    def release(self, minimal: Moment) -> list[tuple[Place, Any]]:
        """All that is final below the minimal time, in order."""
        arrivals, held = self._arrivals, self._held
        ready: list[FlatItem] = []
        if held and held[0][0] < minimal:
            split = bisect_left(held, minimal, key=_place_of)
            ready = held[:split]
            del held[:split]
        if arrivals:
            arrivals.sort(key=_place_of)  # stable: a tombstone stays behind its item
            split = bisect_left(arrivals, minimal, key=_place_of)
            if ready:
                ready += arrivals[:split]
                ready.sort(key=_place_of)
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
            held.sort(key=_place_of)

    def _final(self, ready: list[FlatItem]) -> list[tuple[Place, Any]]:
        if any(item[1] & 1 for item in ready):
            ready = self._without_tombstones(ready)
        final = [(place, payload) for place, _, payload in ready]
        # What a sink has from an earlier life is a prefix: this is sorted.
        delivered = self.delivered
        fresh = 0
        while fresh < len(final) and final[fresh][0][:2] <= delivered:
            fresh += 1
        if fresh:
            final = final[fresh:]
        self.released += len(final)
        return final

    def _without_tombstones(self, ready: list[FlatItem]) -> list[FlatItem]:
        kept: dict[tuple[Place, int], FlatItem] = {}
        for item in ready:
            place, mark, _ = item
            if mark & 1:
                self.tombstones += 1
                if kept.pop((place, mark ^ 1), None) is None:
                    raise NondeterminismError(
                        f"a tombstone at {place} found no item to take back: a function before "
                        f"this sink gave another result when it was called again. "
                        f"emberflow.verify(flow, ...) finds it."
                    )
            else:
                kept[place, mark] = item
        return sorted(kept.values(), key=_place_of)
