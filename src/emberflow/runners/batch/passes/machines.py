"""Grouping and reduction over sorted items, one key hash at a time.

A pass gets items sorted by (key hash, place). So when the hash changes, no item with the old hash
follows, and the machine drops everything that it kept for it. A grouping holds ``window - 1``
payloads of a key and a reduction its accumulator, no matter how many keys there are or how long
their histories. A dict tells different keys with the same hash apart.

If ``ended`` is given, the machine calls it with the final state of each key, for the version of the flow
that follows, or for a backfill to hand over.

A key may *begin* with the state that the version before has left. Its rows are sorted ahead of the items
of their hash, so the machine is given them first (`Keyed.begin`). They wait until the first item of their
hash comes. Where none comes, the state is final as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from emberflow.dsl.operators.aggregates.catalogue import one_more
from emberflow.engine.layout import Fused
from emberflow.errors import InternalError
from emberflow.graph.calls import function_error, scheduled_time
from emberflow.graph.nodes import Graph, Group, Map
from emberflow.rows.paths import encoded_path, front_of
from emberflow.runners.batch.passes.steps import Step
from emberflow.values.functions import itself
from emberflow.values.item import At
from emberflow.values.times import has_expired

#: An item of a key's final state: time, path, payload, and the accumulator of a reduction. For a
#: state, the payload is the value.
Kept: TypeAlias = tuple[int, bytes, Any, Any]
#: Called with ``(key, its final state)``.
Ended: TypeAlias = Callable[[Any, list[Kept]], None]

#: A key's final state as it travels: the name of the operation, the key, and time, path and value of each
#: item.
KeyState: TypeAlias = tuple[str, Any, list[tuple[int, bytes, Any]]]

#: Takes ``(times, paths, keys, accumulators)``: a step that takes pairs as two lists.
Pairs: TypeAlias = Callable[[list[int], list[bytes], list[Any], list[Any]], None]

_ABSENT: Any = object()
_TEXT = {str}


class Keyed:
    """A machine that holds the state of one key hash at a time."""

    def __init__(self, *, is_kept: bool) -> None:
        """``is_kept``: whether the final state of a key is wanted."""
        self._lane: int | None = None
        self._is_kept = is_kept
        #: What later hashes begin with, in their order.
        self._begun: deque[tuple[int, KeyState]] = deque()

    def begin(self, lane: int, state: KeyState) -> None:
        """Let a key begin with this state. Called in the order of hashes, before the items of the hash."""
        self._begun.append((lane, state))

    def end_slice(self) -> None:
        """No item of any hash that was met follows."""
        if self._begun:
            self._turn_to_lane(self._begun[-1][0])
        self.end()
        self._lane = None

    def end(self) -> None:
        """No item with this hash follows."""
        raise NotImplementedError

    def _restore(self, state: KeyState) -> None:
        """Take over the state of a key with this hash."""
        raise NotImplementedError

    def _turn_to_lane(self, lane: int) -> None:
        """Drop all old keys, and take over what those of another hash begin with."""
        self.end()
        begun = self._begun
        while begun and begun[0][0] <= lane:
            at, state = begun.popleft()
            if at < lane and not self._is_kept:
                continue
            if at != self._lane:
                self.end()
                self._lane = at
            self._restore(state)
        if self._lane != lane:
            self.end()
            self._lane = lane


class GroupMachine(Keyed):
    """Emits the last ``window`` payloads of the key for each item."""

    def __init__(self, node: Group, send: Step, ended: Ended | None = None) -> None:
        super().__init__(is_kept=ended is not None)
        self._key = node.key.function
        self._window = node.window
        self._send = send
        self._ended = ended
        self._held: dict[Any, deque[Any]] = {}
        self._places: dict[Any, deque[tuple[int, bytes]]] = {}

    def feed(
        self, lanes: list[int], times: list[int], paths: list[bytes], payloads: list[Any]
    ) -> None:
        key_of, window, held, keeping = self._key, self._window, self._held, self._ended
        current = self._lane
        tuples: list[tuple[Any, ...]] = []
        append = tuples.append
        for number, (lane, payload) in enumerate(zip(lanes, payloads, strict=True)):
            if lane != current:
                self._turn_to_lane(lane)
                current = lane
            key = key_of(payload)
            last = held.get(key)
            if last is None:
                last = held[key] = deque(maxlen=window)
            last.append(payload)
            append(tuple(last))
            if keeping is not None:
                places = self._places.setdefault(key, deque(maxlen=window - 1))
                places.append((times[number], paths[number]))
        self._send(times, paths, tuples)

    def _restore(self, state: KeyState) -> None:
        _, key, items = state
        self._held[key] = deque((payload for _, _, payload in items), maxlen=self._window)
        if self._ended is not None:
            places = ((time, path) for time, path, _ in items)
            self._places[key] = deque(places, maxlen=self._window - 1)

    def end(self) -> None:
        if self._ended is not None:
            for key, places in self._places.items():
                payloads = list(self._held[key])[len(self._held[key]) - len(places) :]
                self._ended(
                    key,
                    [
                        (time, path, payload, None)
                        for (time, path), payload in zip(places, payloads, strict=True)
                    ],
                )
            self._places.clear()
        self._held.clear()

    finish = Keyed.end_slice


class Reducer:
    """A fused reduction for a single item: its functions, places and errors."""

    def __init__(self, graph: Graph, fused: Fused) -> None:
        reduction = fused.reduction
        self.keyed, self.with_key = fused.keyed, reduction.with_key
        self.first, self.combine = reduction.first, reduction.combine_function
        #: Whether accumulators just count up: then no function has to be called.
        self.counts = reduction.combine_function is one_more
        group = graph.nodes[reduction.group]
        assert isinstance(group, Group)
        self.expires = group.expires
        self._shown = reduction.shown
        self._combine_node = graph.nodes[reduction.combine]
        self._value_node = None if reduction.value is None else graph.nodes[reduction.value]
        # Child ids: first image of the pair map and of the combine map, port 1 of the broadcast,
        # value map.
        self.out = encoded_path((0, 0, 1, 0) if fused.keyed else (0, 1))
        self.key_of: Callable[[Any], Any]
        self.value_of: Callable[[Any], Any]
        if fused.keyed:
            assert reduction.key is not None
            self.key_of, self.value_of = reduction.key, itself
        else:
            self.key_of, self.value_of = _first, _third

    def sent(self, key: Any, accumulator: Any) -> Any:
        if not self.keyed:
            return key, True, accumulator
        return (key, accumulator) if self.with_key else accumulator

    def failure(self, error: Exception, payload: Any, time: int, path: bytes) -> Exception:
        """The error to raise when ``first`` or ``combine`` raised."""
        assert isinstance(self._combine_node, Map)
        shown = self._shown(self.value_of(payload))
        return function_error(self._combine_node, error, shown, (time, front_of(path)))

    def refuse(self, accumulator: At[Any], time: int, path: bytes) -> None:
        """Raise: an accumulator cannot be scheduled. For triples, a later map raises."""
        if self.keyed:
            assert isinstance(self._value_node, Map)
            scheduled_time(self._value_node, accumulator, (time, front_of(path)))
            raise InternalError(f"{self._value_node} scheduled an accumulator")


class ReduceMachine(Keyed):
    """Emits the accumulator of the key after each item."""

    def __init__(
        self,
        reducer: Reducer,
        send: Step,
        ended: Ended | None = None,
        pairs: Pairs | None = None,
    ) -> None:
        super().__init__(is_kept=ended is not None)
        self._reducer = reducer
        self._send = send
        self._send_pairs = pairs if reducer.keyed and reducer.with_key else None
        self._ended = ended
        #: The present key and its accumulator; then those of other keys with the same hash.
        self._key: Any = _ABSENT
        self._accumulator: Any = None
        self._held: dict[Any, Any] = {}
        self._last: dict[Any, tuple[int, bytes, Any]] = {}
        #: When each key with this hash was last met, if keys expire.
        self._touched: dict[Any, int] = {}

    def feed(
        self, lanes: list[int], times: list[int], paths: list[bytes], payloads: list[Any]
    ) -> None:
        reducer = self._reducer
        keys: list[Any] = []
        accumulators: list[Any] = []
        if reducer.expires is not None:
            self._reduce_expiring(lanes, payloads, times, paths, keys, accumulators)
        elif self._ended is None:
            self._reduce(lanes, payloads, times, paths, keys, accumulators)
        else:
            for part in _runs(lanes):
                at, where, given = times[part], paths[part], payloads[part]
                self._reduce(lanes[part], given, at, where, keys, accumulators)
                last = zip(at, where, given, strict=True)
                self._last.update(zip(keys[part], last, strict=True))
        if At in set(map(type, accumulators)):
            for accumulator, time, path in zip(accumulators, times, paths, strict=True):
                if isinstance(accumulator, At):
                    reducer.refuse(accumulator, time, path)
        out = reducer.out
        paths = [path + out for path in paths]
        if self._send_pairs is not None:
            return self._send_pairs(times, paths, keys, accumulators)
        sent: list[Any] = accumulators
        if not reducer.keyed:
            sent = [(key, True, held) for key, held in zip(keys, accumulators, strict=True)]
        elif reducer.with_key:
            sent = list(zip(keys, accumulators, strict=True))
        return self._send(times, paths, sent)

    def _reduce(
        self,
        lanes: list[int],
        payloads: list[Any],
        times: list[int],
        paths: list[bytes],
        keys: list[Any],
        accumulators: list[Any],
    ) -> None:
        """Append the key and the accumulator of each item to the lists."""
        reducer = self._reducer
        first, combine, counts = reducer.first, reducer.combine, reducer.counts
        values = payloads if reducer.keyed else [payload[2] for payload in payloads]
        lane_now, key_now, accumulator = self._lane, self._key, self._accumulator
        append, done = accumulators.append, len(keys)
        try:
            for start, end, key in _stretches(lanes, payloads, reducer.key_of, keys):
                lane = lanes[start]
                if lane == lane_now and key == key_now:
                    accumulator = combine(accumulator, values[start])
                else:
                    self._key, self._accumulator = key_now, accumulator
                    before, value = self._turn_to(lane, key), values[start]
                    lane_now, key_now = lane, key
                    accumulator = first(value) if before is _ABSENT else combine(before, value)
                append(accumulator)
                if end - start == 1:
                    continue
                if counts:
                    accumulators += range(accumulator + 1, accumulator + end - start)
                else:
                    rest = accumulate(values[start + 1 : end], combine, initial=accumulator)
                    next(rest)
                    accumulators += rest  # if it raises, the earlier ones are in the list
                accumulator = accumulators[-1]
        except Exception as error:
            number = len(accumulators) - done
            raise reducer.failure(error, payloads[number], times[number], paths[number]) from error
        self._lane, self._key, self._accumulator = lane_now, key_now, accumulator

    def _reduce_expiring(
        self,
        lanes: list[int],
        payloads: list[Any],
        times: list[int],
        paths: list[bytes],
        keys: list[Any],
        accumulators: list[Any],
    ) -> None:
        """The same, one by one, of keys that expire."""
        reducer, held, touched = self._reducer, self._held, self._touched
        for lane, time, path, payload in zip(lanes, times, paths, payloads, strict=True):
            if lane != self._lane:
                self._turn_to_lane(lane)
            key, value = reducer.key_of(payload), reducer.value_of(payload)
            try:
                if key not in held or has_expired(touched[key], reducer.expires, time):
                    accumulator = reducer.first(value)
                else:
                    accumulator = reducer.combine(held[key], value)
            except Exception as error:
                raise reducer.failure(error, payload, time, path) from error
            held[key], touched[key] = accumulator, time
            keys.append(key)
            accumulators.append(accumulator)
            if self._ended is not None:
                self._last[key] = (time, path, payload)

    def _turn_to(self, lane: int, key: Any) -> Any:
        """Switch to another key and return its accumulator. If the hash changes, drop all old keys."""
        if lane != self._lane:
            self._turn_to_lane(lane)
        else:
            self._held[self._key] = self._accumulator
        return self._held.pop(key, _ABSENT) if self._held else _ABSENT

    def _restore(self, state: KeyState) -> None:
        _, key, ((time, path, accumulator),) = state
        self._held[key] = accumulator
        self._touched[key] = time
        if self._ended is not None:
            self._last[key] = (time, path, None)

    def end(self) -> None:
        if self._ended is not None and self._last:
            if self._key is not _ABSENT:
                self._held[self._key] = self._accumulator
            for key, (time, path, payload) in self._last.items():
                self._ended(key, [(time, path, payload, self._held[key])])
            self._last.clear()
        self._key, self._accumulator = _ABSENT, None
        self._held.clear()
        self._touched.clear()

    finish = Keyed.end_slice


def _runs(lanes: list[int]) -> Iterator[slice]:
    """The stretches of equal lanes."""
    start = 0
    for end in _ends(lanes):
        yield slice(start, end)
        start = end


def _stretches(
    lanes: list[int], payloads: list[Any], key_of: Callable[[Any], Any], keys: list[Any]
) -> Iterator[tuple[int, int, Any]]:
    """Start, end and key of each stretch with one lane and key. Appends every item's key."""
    texts = set(map(type, payloads)) == _TEXT
    start = 0
    for end in _ends(lanes):
        length = end - start
        key = key_of(payloads[start])
        if length == 1:
            keys.append(key)
            yield start, end, key
        elif texts and payloads[start:end].count(payloads[start]) == length:
            # A function cannot tell equal texts apart, so they have the same key.
            keys += [key] * length
            yield start, end, key
        else:
            here = [key, *map(key_of, payloads[start + 1 : end])]
            keys += here
            if here.count(key) == length:
                yield start, end, key
            else:  # different keys with the same hash alternate
                for number, key in enumerate(here, start):
                    yield number, number + 1, key
        start = end


def _ends(lanes: list[int]) -> list[int]:
    column = np.array(lanes, np.int64)
    ends: list[int] = (np.flatnonzero(column[1:] != column[:-1]) + 1).tolist()
    if lanes:
        ends.append(len(lanes))
    return ends


def _first(triple: tuple[Any, bool, Any]) -> Any:
    return triple[0]


def _third(triple: tuple[Any, bool, Any]) -> Any:
    return triple[2]
