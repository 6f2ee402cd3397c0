"""What a version of a flow takes over from the one before it: ends, as items for its own units.

The plan of the old version has left state and scheduled items (`ends`). They are translated by the code
that translates a cut (`engine.cuts.translation`), each where it is: no shuffle is needed.

- The state of a key becomes an item for the unit that keeps it. Its time is below all that the new version
  processes, so that it is sorted ahead of the items of its key hash; its path only has to be unique.
- A scheduled item goes on from the map that emits it, at its place, as if the map had just scheduled it.

What steps begin with from backfills comes in the same way. Spark distributes *orders*: rows with a number,
each of which stands for a range of key hashes of one backfill, which the task reads from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby, islice
from typing import Any, Final

from emberflow.checkpoint.cuts.backfills import rows_of
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.translation import translated_rows, translated_timers
from emberflow.engine.messages import Moment
from emberflow.graph.versions import CarryPlan
from emberflow.rows.paths import encoded_int, encoded_path
from emberflow.runners.batch.passes.ends import row_of_scheduled, state_rows
from emberflow.runners.batch.passes.machines import KeyState
from emberflow.runners.batch.passes.steps import Ahead, Step
from emberflow.runners.batch.plan.stages import Taken, Units
from emberflow.runners.batch.shuffle.bus import HASH_BITS, HASH_MASK, BusRows, Items
from emberflow.values.hashing import encode_key, hash_ranges, key_hash

#: Longer keys are hashed: sorting is fast for paths of up to 32 bytes.
_KEY_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Takeover:
    """The arguments of the pass that takes over."""

    carry: CarryPlan
    #: What of it is needed.
    taken: Taken
    #: The numbers of the old version's ends.
    state: int
    scheduled: int
    #: Into how many ranges of hashes the cut of each backfill is divided.
    parts: int = 1

    @property
    def orders(self) -> int:
        """How many orders there are."""
        return self.parts * len(self.taken.backfills)


#: The lane of an order. Its number is in the column of times.
ORDER_LANE: Final = -1 << HASH_BITS
#: How many keys of a backfill are put on the bus at once.
_KEYS_AT_ONCE: Final = 512


class Successor:
    """Puts what is taken over on the bus, for the units of the new version."""

    def __init__(
        self,
        given: Takeover,
        units: Units,
        begins: Moment,
        step: Callable[[int], Step],
        ahead: Ahead | None,
        bus: Callable[[], BusRows],
    ) -> None:
        """``step`` gives the step of a node, ``bus`` the rows of the next shuffle."""
        self._given = given
        self._units = units
        self._begins = begins
        self._time = begins[0] - 1
        self._step = step
        self._ahead = ahead
        self._bus = bus
        self._lanes = {
            name: self._lane_of(node)
            for name, node in units.keepers.items()
            if node in given.taken.keepers
        }

    def _lane_of(self, node: int) -> Callable[[Any], int]:
        """From a key to the lane of its state: the one that its items go to."""
        number = self._units.of_node[node]
        target = number << HASH_BITS
        if not self._units.is_spread(self._units.units[number]):
            return lambda key: target
        return lambda key: target | key_hash(key) & HASH_MASK

    def read(self, number: int) -> Iterator[None]:
        """Take what an order says from its backfill. Pauses where rows can leave."""
        parts, taken = self._given.parts, self._given.taken
        backfill = self._given.carry.backfills[taken.backfills[number // parts]]
        own = hash_ranges(parts)[number % parts]
        rows, scheduled = rows_of(backfill, [own])
        states = (
            _state_of(list(bucket))
            for (operation, _), bucket in groupby(rows, key=lambda row: (row.operation, row.key))
            if operation in self._lanes
        )
        while some := list(islice(states, _KEYS_AT_ONCE)):
            self._begin(some)
            yield
        for row in scheduled:
            self._schedule(row)
        yield

    def take(self, target: int, items: Items) -> None:
        """Take over the ends of a chunk."""
        if target == self._given.state:
            self._take_states(items[3])
        elif target == self._given.scheduled:
            self._take_scheduled(items)

    def _take_states(self, states: list[KeyState]) -> None:
        self._begin([own for state in states for own in self._translated(state)])

    def _begin(self, states: list[KeyState]) -> None:
        """Put states of the new version on the bus."""
        lanes = [self._lanes[operation](key) for operation, key, _ in states]
        paths = [_path(self._units.keepers[operation], key) for operation, key, _ in states]
        if lanes:
            self._bus().add(lanes, [self._time] * len(lanes), paths, states)

    def _translated(self, state: KeyState) -> Iterator[KeyState]:
        rows = list(translated_rows(state_rows(state), self._given.carry, self._begins))
        if rows and rows[0].operation in self._lanes:
            yield _state_of(rows)

    def _take_scheduled(self, items: Items) -> None:
        _, times, paths, payloads = items
        rows = map(row_of_scheduled, times.tolist(), paths, payloads)
        for row in translated_timers(rows, self._given.carry):
            self._schedule(row)

    def _schedule(self, row: Scheduled) -> None:
        node = self._units.maps[row.operation]
        if node.id not in self._given.taken.maps:
            return
        place = row.place[0], encoded_path(row.place[1:])
        if self._ahead is None or not self._ahead(node, place, row.origin, row.payload):
            reader = self._units.reader_of_scheduled(node.id)
            assert reader is not None
            self._step(reader)([place[0]], [place[1]], [row.payload])


def _state_of(rows: Sequence[Row]) -> KeyState:
    """The rows of a key as an item."""
    kept = [(row.place[0], encoded_path(row.place[1:]), row.payload) for row in rows]
    return rows[0].operation, rows[0].key, kept


def states_of(
    begins: Moment, hashes: list[int], times: list[int], payloads: Iterable[Any]
) -> Iterator[tuple[int, KeyState]]:
    """The states among sorted items, with their hashes."""
    for hashed, time, payload in zip(hashes, times, payloads, strict=True):
        if time < begins[0]:
            yield hashed, payload


def _path(node: int, key: Any) -> bytes:
    code = encode_key(key)
    if len(code) > _KEY_BYTES:
        code = blake2b(code, digest_size=_KEY_BYTES).digest()
    # Paths that differ only by zeros at the end are the same to a sort.
    return encoded_int(node) + code + b"\x01"
