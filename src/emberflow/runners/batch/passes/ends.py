"""What a batch up to T leaves, as rows: the output of sinks, state, and scheduled items.

A batch up to a moment T has three results: output below T for the sinks, the state of every key as
of T, and the items that were scheduled from below T for later. A backfill hands them over to a live query.
A history that spans versions of a flow needs the last two for the version that begins at T, and only those
of some nodes (``goals``). All three are items on the bus like
any others, but for *ends* instead of units. So later stages forward them untouched, a task that
Spark runs again makes the same rows again, and only the pass after the last shuffle (`handover`)
writes anything outside of Spark.

==========  ==========================  ================================================  ==============
end         lower half of lane          payload                                           place
==========  ==========================  ================================================  ==============
state       range of the key's hash     operation, key, its items                         node, and key
scheduled   range of the place's hash   operation, origin, payload                        the item's
a sink      partition, and spread       the payload                                       the item's
==========  ==========================  ================================================  ==============

Each lane is a slice of its own (`bus.Spread`), so it decides where its items go at the end. All
items of a key are packed into one, because they are stored together; its place only has to be
unique.

All items for one sink partition have to reach one task at the end, but not before: until then they
are *spread* over several lanes. The last shuffle goes by *slot*: a sink partition, or a range of
hashes.

**T** of a backfill until a time is ``(time, 0)``. Below it are the elements of earlier times, and the
items scheduled for that very time, because scheduled items come before elements. A live query whose fronts
have all promised ``time`` is at the same moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from emberflow.engine.cuts.cut import Row, Scheduled, scheduled_row
from emberflow.engine.messages import Moment
from emberflow.errors import FlowError
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Map, Sink
from emberflow.graph.versions import CarryPlan
from emberflow.rows.paths import decoded_path, front_of
from emberflow.runners.batch.passes.machines import Ended, Kept, KeyState
from emberflow.runners.batch.passes.steps import Ahead, Step
from emberflow.runners.batch.plan.stages import Units, keeper_of
from emberflow.runners.batch.shuffle.bus import HASH_BITS, HASH_MASK
from emberflow.values.hashing import HASH_MIN, encode_key, key_hash, owner

#: A sink partition is spread over 2**SPREAD_BITS lanes. More would make the bus's rows too small.
SPREAD_BITS = 6
_SPREAD_MASK = (1 << SPREAD_BITS) - 1
_PARTITIONS_MAX = 1 << HASH_BITS - SPREAD_BITS
#: How many ends are collected before they are put on the bus.
_AT_ONCE = 512
#: Odd, and unrelated to any pattern that times may have.
_FACTOR = 0x9E3779B97F4A7C15

#: Adds ``(lanes, times, paths, payloads)`` to the bus.
_Add: TypeAlias = Callable[[list[int], list[int], list[bytes], list[Any]], None]


class EndTargets:
    """The numbers of the ends, which follow those of the units."""

    def __init__(self, units: Units) -> None:
        self.state = units.sink_target
        self.scheduled = units.sink_target + 1
        self.sinks = {
            units.sink_target + 2 + number: sink
            for number, sink in enumerate(units.graph.sinks.values())
        }
        self.of_sink = {sink.name: target for target, sink in self.sinks.items()}

    def slot_of(self, lane: int) -> int:
        """The number that the last shuffle partitions by."""
        target, low = lane >> HASH_BITS, lane & HASH_MASK
        return target << HASH_BITS | (low >> SPREAD_BITS if target in self.sinks else low)


class Ends:
    """Puts the ends of a pass on the bus. ``parts`` is the number of ranges of hashes.

    ``goals`` are the nodes whose state and scheduled items are wanted; None for those of all.
    """

    def __init__(
        self, units: Units, parts: int, add: _Add, goals: frozenset[int] | None = None
    ) -> None:
        self._units = units
        self._goals = goals
        self._targets = EndTargets(units)
        self._parts = parts
        self._add = add
        self._clear()

    def _clear(self) -> None:
        self._lanes: list[int] = []
        self._times: list[int] = []
        self._paths: list[bytes] = []
        self._payloads: list[Any] = []

    def flush(self) -> None:
        """Put the collected ends on the bus."""
        if self._lanes:
            self._add(self._lanes, self._times, self._paths, self._payloads)
            self._clear()

    def _add_one(self, target: int, hashed: int, time: int, path: bytes, payload: Any) -> None:
        # Hashes are signed: shift them to count from 0.
        self._lanes.append(target << HASH_BITS | (hashed - HASH_MIN) * self._parts >> HASH_BITS)
        self._times.append(time)
        self._paths.append(path)
        self._payloads.append(payload)
        if len(self._lanes) >= _AT_ONCE:
            self.flush()

    def ended(self, node: int) -> Ended | None:
        """A callback for the final state of each key of a node; None if it is not wanted."""
        if not self._wants(node):
            return None
        operation = keeper_of(self._units.layout, node)
        held = 3 if node in self._units.layout.fused else 2
        target, add = self._targets.state, self._add_one

        def ended(key: Any, kept: list[Kept]) -> None:
            if kept:
                items = [(item[0], item[1], item[held]) for item in kept]
                add(target, key_hash(key), node, encode_key(key), (operation, key, items))

        return ended

    def _wants(self, node: int) -> bool:
        return self._goals is None or node in self._goals

    def ahead_of(self, until: Moment) -> Ahead:
        """A callback that takes the items scheduled for this moment or later."""
        target, add = self._targets.scheduled, self._add_one

        def ahead(
            node: Map, place: tuple[int, bytes], origin: tuple[int, int], payload: Any
        ) -> bool:
            time, path = place
            if (time, front_of(path)) < until:
                return False
            if self._wants(node.id):
                hashed = key_hash((time, *decoded_path(path)))
                add(target, hashed, time, path, (node.name, origin, payload))
            return True

        return ahead

    def sink_step(self, sink: Sink) -> Step:
        """The step of a sink: sends each item to its partition."""
        target, add = self._targets.of_sink[sink.name] << HASH_BITS, self._add
        balance = None if sink.key is None else balance_of(sink, sink.key)
        if sink.partitions > _PARTITIONS_MAX:
            raise FlowError(
                f"{sink} has {sink.partitions} partitions; a backfill takes up to {_PARTITIONS_MAX}."
            )

        def to_sink(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
            lanes = [target | time * _FACTOR >> 40 & _SPREAD_MASK for time in times]
            if balance is not None:
                rows = zip(lanes, times, paths, payloads, strict=True)
                lanes = [
                    lane
                    | owner(balance(payload, (time, front_of(path)))[1], sink.partitions)
                    << SPREAD_BITS
                    for lane, time, path, payload in rows
                ]
            add(lanes, times, paths, payloads)

        return to_sink


def dropped_from(until: Moment) -> Ahead:
    """A callback that drops items scheduled for this moment or later, for runs that need output only."""
    return lambda node, place, origin, payload: (place[0], front_of(place[1])) >= until


def with_heirs(ahead: Ahead, carry: CarryPlan) -> Ahead:
    """The same, for a version that another one follows: whoever schedules for later has an heir."""

    def checked(node: Map, place: tuple[int, bytes], origin: tuple[int, int], payload: Any) -> bool:
        is_later = ahead(node, place, origin, payload)
        if is_later:
            carry.timer(node.name)
        return is_later

    return checked


def state_rows(payload: KeyState) -> list[Row]:
    """The rows of a cut for one item of state."""
    operation, key, items = payload
    hashed = key_hash(key)
    return [
        Row(operation, hashed, key, (time, *decoded_path(path)), held) for time, path, held in items
    ]


def row_of_scheduled(time: int, path: bytes, payload: tuple[str, Moment, Any]) -> Scheduled:
    """The row of a cut for one scheduled item."""
    operation, origin, held = payload
    return scheduled_row(operation, origin, (time, *decoded_path(path)), held)
