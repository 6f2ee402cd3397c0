"""The store of a sink partition: what barriers have released and the sink has not stored yet.

The loop hands a bundle to the writer's thread (`emberflow.sinks.writer`) as soon as the barrier has
released it, up to a few bundles; the thread stores all that it has as one. So bundles are small while a
sink is fast and grow when it is slow. When a few are under way, released items wait in the `Store`;
when it holds many, the loop stops reading from the fronts.
"""

from __future__ import annotations

from collections import deque

from emberflow.engine.messages import AFTER_ALL, Bundle, Moment
from emberflow.sinks.protocol import StoredBundle
from emberflow.sinks.writer import UNDER_WAY_MAX
from emberflow.values.item import FlatItem, GlobalTime


class Store:
    """A partition of a sink: what is under way to it, and what waits."""

    def __init__(self, sink: str, partition: int, *, places: bool = False) -> None:
        """With ``places``, bundles say where each payload is in the order."""
        self.sink = sink
        self.partition = partition
        #: How many items were ever added.
        self.added = 0
        self._places = places
        self._waiting: list[FlatItem] = []
        self._last: GlobalTime | None = None
        #: Of each bundle under way the first global time, and how much it holds.
        self._under_way: deque[tuple[Moment, int]] = deque()

    @property
    def is_under_way(self) -> bool:
        return bool(self._under_way)

    @property
    def settled(self) -> Moment:
        """All that was added below this is stored."""
        if self._under_way:
            return self._under_way[0][0]
        if self._waiting:
            place = self._waiting[0][0]
            return place[0], place[1]
        return AFTER_ALL

    @property
    def unstored(self) -> int:
        return len(self._waiting) + sum(count for _, count in self._under_way)

    def add(self, bundle: Bundle) -> None:
        self.added += len(bundle.items)
        self._waiting += bundle.items
        self._last = bundle.last

    def next(self) -> StoredBundle | None:
        """The next bundle, if there is one and not too many are under way."""
        if not self._waiting or len(self._under_way) >= UNDER_WAY_MAX:
            return None
        items, self._waiting = self._waiting, []
        place = items[0][0]
        self._under_way.append(((place[0], place[1]), len(items)))
        assert self._last is not None
        payloads = [payload for _, _, payload in items]
        places = [place for place, _, _ in items] if self._places else None
        return StoredBundle(self.sink, self.partition, self._last, payloads, places)

    def stored(self, bundles: int = 1) -> None:
        """The sink has stored so many more bundles, in the order they came."""
        for _ in range(bundles):
            self._under_way.popleft()
