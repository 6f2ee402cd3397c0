"""The store of a sink partition: what barriers have released and the sink has not stored yet.

The loop hands a bundle to the writer's thread (`emberflow.sinks.writer`) as soon as the barrier has
released it, up to a few bundles; the thread stores all that it has as one. So bundles are small while a
sink is fast and grow when it is slow. When a few are under way, released items wait in the `Store`;
when it holds many, or many bytes, the loop stops reading from the fronts.

A sink may ask for bigger bundles (``commit_every``): each is a file or a commit of a table, and many small
ones are slow to read. Then the store holds output until the first of it is that old, or until it is much.
Exactly-once does not depend on how long output is held. What is held is *not settled*: no cut above it
counts, so a restart computes it again, and the sink's last time says what it has.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from emberflow.engine.messages import AFTER_ALL, Bundle, Moment
from emberflow.sinks.protocol import StoredBundle
from emberflow.sinks.writer import UNDER_WAY_MAX
from emberflow.values.item import FlatItem, GlobalTime
from emberflow.values.sizes import sampled_bytes

#: A bundle with more bytes is stored in several, if it has more than one global time.
BUNDLE_BYTES_MAX = 16 << 20
#: Output is not held any longer when there are so many items, or bytes, of it. Half of what stops the
#: fronts: they go on while the sink stores it.
HELD_MAX = 100_000
HELD_BYTES_MAX = 32 << 20


class Store:
    """A partition of a sink: what is under way to it, and what waits."""

    def __init__(
        self,
        sink: str,
        partition: int,
        *,
        places: bool = False,
        commit_every: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With ``places``, bundles say where each payload is in the order.

        ``commit_every``: for how many seconds output may be held, so that bundles are bigger.
        """
        self.sink = sink
        self.partition = partition
        #: How many items were ever added.
        self.added = 0
        self._places = places
        self._commit_every = commit_every
        self._clock = clock
        # A held bundle is handed over when it has just become big enough, and goes whole.
        self._bytes_max = 2 * HELD_BYTES_MAX if commit_every else BUNDLE_BYTES_MAX
        self._waiting: list[FlatItem] = []
        self._waiting_bytes = 0
        #: When the first item that waits was added.
        self._waiting_since = 0.0
        self._flushes = False
        self._last: GlobalTime | None = None
        #: Of each bundle under way the first global time, its items and about how many bytes they have.
        self._under_way: deque[tuple[Moment, int, int]] = deque()

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
        return len(self._waiting) + sum(count for _, count, _ in self._under_way)

    @property
    def unstored_bytes(self) -> int:
        """About how many bytes are not stored yet."""
        return self._waiting_bytes + sum(size for _, _, size in self._under_way)

    def add(self, bundle: Bundle) -> None:
        self.added += len(bundle.items)
        if not self._waiting and self._commit_every:
            self._waiting_since = self._clock()
        self._waiting += bundle.items
        self._waiting_bytes += sampled_bytes([payload for _, _, payload in bundle.items])
        self._last = bundle.last

    def flush(self, *, for_good: bool = False) -> None:
        """Hold what waits no longer. ``for_good``: hold nothing any more."""
        if for_good:
            self._commit_every = 0.0
        self._flushes = bool(self._waiting)

    def next(self) -> StoredBundle | None:
        """The next bundle, if there is one, it is held no longer, and not too many are under way."""
        if not self._waiting or len(self._under_way) >= UNDER_WAY_MAX or self._is_held():
            return None
        items, last, size = self._next_items()
        place = items[0][0]
        self._under_way.append(((place[0], place[1]), len(items), size))
        payloads = [payload for _, _, payload in items]
        places = [place for place, _, _ in items] if self._places else None
        return StoredBundle(self.sink, self.partition, last, payloads, places)

    def _is_held(self) -> bool:
        return (
            self._commit_every > 0
            and not self._flushes
            and len(self._waiting) < HELD_MAX
            and self._waiting_bytes < HELD_BYTES_MAX
            and self._clock() - self._waiting_since < self._commit_every
        )

    def _next_items(self) -> tuple[list[FlatItem], GlobalTime, int]:
        """All that wait, or the first of them if they have too many bytes for one bundle.

        A bundle ends between two global times: a sink that is opened again says up to which it has all.
        """
        items, size, last = self._waiting, self._waiting_bytes, self._last
        assert last is not None
        end = len(items)
        if size > self._bytes_max:
            end = max(1, end * self._bytes_max // size)
            while end < len(items) and items[end][0][:2] == items[end - 1][0][:2]:
                end += 1
        if end == len(items):
            self._waiting, self._waiting_bytes, self._flushes = [], 0, False
            return items, last, size
        self._waiting = items[end:]
        bytes_taken = size * end // len(items)
        self._waiting_bytes -= bytes_taken
        place = items[end - 1][0]
        return items[:end], GlobalTime(place[0], place[1]), bytes_taken

    def stored(self, bundles: int = 1) -> None:
        """The sink has stored so many more bundles, in the order they came."""
        for _ in range(bundles):
            self._under_way.popleft()
