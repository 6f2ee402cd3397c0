"""Cycles that are not fused: items one by one, the least place first.

A cycle has no order of its nodes, but its items have one: whatever an item causes comes after it,
and a grouping may process an item only once all earlier items have been there. So the region takes
the items that enter (sorted by Spark) and those under way in the cycle (in a heap) strictly in the
order of their places. The reference runner does the same, and the argument is the same: the order
of processing is the order of places, so nothing ever has to be taken back.

So all items that can meet have to go through one machine. If the cycle is known to keep its key,
only items with the same key hash can meet, and `Region.end` drops everything between two hashes. If
a round may change the key, any items may meet, and the whole region is one partition with the state
of all its keys in memory. The alternative, one Spark job per round, is worse: an unfused drift of n
elements is a chain of n rounds, and each round may call functions with inputs that never occur in
order.

Transactions that take effect as a whole are regions too (`ordering`): each is one step, which
`transactions` runs from opening to closing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from emberflow.engine.layout import Layout, Unit
from emberflow.errors import EndlessLoopError, InternalError
from emberflow.graph.calls import balance_of, images_of
from emberflow.graph.nodes import Broadcast, Group, Map, Merge
from emberflow.rows.paths import decoded_path, encoded_int, front_of
from emberflow.runners.batch.passes.machines import (
    _ABSENT,
    Ended,
    Kept,
    Keyed,
    KeyState,
    Reducer,
)
from emberflow.runners.batch.passes.steps import Ahead, Scheduling, Step
from emberflow.runners.batch.passes.transactions import Serial
from emberflow.runners.batch.plan.stages import keeper_of
from emberflow.values.item import CHILD_IDS_MAX, At
from emberflow.values.times import has_expired

#: An output of a node: time, path, the node that reads it, payload.
Made: TypeAlias = tuple[int, bytes, int, Any]
_Process: TypeAlias = Callable[[int, bytes, Any], list[Made]]

#: How many items for a step outside of the region are passed on at once.
_HANDED_OVER = 512


class Region(Keyed):
    """A machine for the nodes of a cycle. ``outside`` has the steps that read its output."""

    def __init__(
        self,
        layout: Layout,
        unit: Unit,
        outside: dict[int, Step],
        *,
        ahead: Ahead | None = None,
        ended: Callable[[int], Ended | None] | None = None,
        serial: Serial | None = None,
    ) -> None:
        super().__init__(is_kept=ended is not None)
        self._layout = layout
        self._serial = serial
        self._outside = outside
        self._ahead_of = ahead
        self._ended_of = ended
        #: For each node whose final state is wanted: whom to tell, and the last items of its keys.
        self._kept: list[tuple[Ended, dict[Any, deque[Kept]]]] = []
        #: Take over the state of a key, by operation.
        self._restores: dict[str, Callable[[KeyState], None]] = (
            {} if serial is None else dict.fromkeys(serial.states, serial.restore)
        )
        self._ahead: list[tuple[int, bytes, int, int, Any]] = []
        self._number = 0  # keeps the heap from ever comparing payloads
        self._loops = layout.graph.loop_entries
        #: The last long path, and how many child ids it has.
        self._counted = b"", 0
        self._states: list[dict[Any, Any]] = []
        self._members = frozenset(unit.nodes)
        self._process = {
            node: self._processor(node)
            for node in unit.nodes
            if serial is None or node not in serial.nodes
        }
        if serial is not None:
            self._process |= serial.process
        self._leaving: dict[int, tuple[list[int], list[bytes], list[Any]]] = {
            node: ([], [], []) for node in outside
        }

    def feed(
        self, lanes: list[int], times: list[int], paths: list[bytes], payloads: list[Any]
    ) -> None:
        """Process sorted items; each payload is ``(node where it enters, payload)``."""
        for lane, time, path, (node, payload) in zip(lanes, times, paths, payloads, strict=True):
            if lane != self._lane:
                self._turn_to_lane(lane)
            if self._ahead:
                self._run_until(time, path)
            self._follow(time, path, node, payload)

    def end(self) -> None:
        """No item with this hash follows: process what is under way, then drop all state."""
        self._run_until(None, b"")
        for ended, kept in self._kept:
            for key, last in kept.items():
                ended(key, list(last))
            kept.clear()
        for held in self._states:
            held.clear()
        if self._serial is not None:
            self._serial.end()

    def finish(self) -> None:
        """No item follows at all."""
        self.end_slice()
        for node in self._leaving:
            self._hand_over(node)

    def _restore(self, state: KeyState) -> None:
        self._restores[state[0]](state)

    def _run_until(self, time: int | None, path: bytes) -> None:
        ahead = self._ahead
        while ahead and (time is None or ahead[0][:2] < (time, path)):
            at, at_path, _, node, payload = heapq.heappop(ahead)
            self._follow(at, at_path, node, payload)

    def _follow(self, time: int, path: bytes, node: int, payload: Any) -> None:
        if len(path) > CHILD_IDS_MAX and node in self._loops and self._is_endless(path):
            step = str(self._layout.graph.nodes[node])
            raise EndlessLoopError.of(step, (time, front_of(path)), payload)
        for made_time, made_path, reader, made in self._process[node](time, path, payload):
            if reader in self._members:
                self._number += 1
                heapq.heappush(self._ahead, (made_time, made_path, self._number, reader, made))
            elif reader in self._leaving:
                times, paths, payloads = self._leaving[reader]
                times.append(made_time)
                paths.append(made_path)
                payloads.append(made)
                if len(times) >= _HANDED_OVER:
                    self._hand_over(reader)

    def _is_endless(self, path: bytes) -> bool:
        # A path that goes round a cycle mostly extends the last one: count only its new child ids.
        counted, count = self._counted
        if not counted or not path.startswith(counted):
            counted, count = b"", 0
        count += len(decoded_path(path[len(counted) :]))
        self._counted = path, count
        return count - 1 > CHILD_IDS_MAX

    def _hand_over(self, node: int) -> None:
        times, paths, payloads = self._leaving[node]
        if times:
            self._leaving[node] = ([], [], [])
            self._outside[node](times, paths, payloads)

    def _processor(self, number: int) -> _Process:
        layout = self._layout
        if number in layout.fused:
            return self._reduce(number)
        node = layout.graph.nodes[number]
        readers = layout.readers[number]
        if isinstance(node, Group):
            return self._group(node, readers[0])
        if isinstance(node, Map):
            made = self._map(node, readers[0])
        elif isinstance(node, Broadcast):
            made = self._broadcast(readers)
        elif isinstance(node, Merge):
            reader = readers[0]
            return lambda time, path, payload: [(time, path, reader, payload)]
        else:
            raise InternalError(f"{node} cannot be in a cycle")
        key = node.inputs[0].key
        if key is None:
            return made
        balance = balance_of(node, key)

        def placed(time: int, path: bytes, payload: Any) -> list[Made]:
            balance(payload, (time, front_of(path)))
            return made(time, path, payload)

        return placed

    def _map(self, node: Map, reader: int) -> _Process:
        images, scheduling = images_of(node), Scheduling(node, self._ahead_of)

        def map_(time: int, path: bytes, payload: Any) -> list[Made]:
            made: list[Made] = []
            for child, image in enumerate(images(payload, (time, front_of(path)))):
                if isinstance(image, At):
                    place = scheduling(image, time, path, child)
                    if place is not None:
                        made.append((*place, reader, image.payload))
                else:
                    made.append((time, path + encoded_int(child), reader, image))
            return made

        return map_

    def _broadcast(self, readers: tuple[int, ...]) -> _Process:
        ports = [(encoded_int(port), reader) for port, reader in enumerate(readers)]
        return lambda time, path, payload: [
            (time, path + code, reader, payload) for code, reader in ports
        ]

    def _group(self, node: Group, reader: int) -> _Process:
        held: dict[Any, deque[Any]] = {}
        self._states.append(held)
        balance, window = balance_of(node, node.key), node.window
        keep = self._keeper(node.id, window - 1)

        def restore(state: KeyState) -> None:
            _, key, items = state
            held[key] = deque((payload for _, _, payload in items), maxlen=window)
            if keep is not None:
                for time, path, payload in items:
                    keep(key, (time, path, payload, None))

        self._restores[node.name] = restore

        def group(time: int, path: bytes, payload: Any) -> list[Made]:
            key, _ = balance(payload, (time, front_of(path)))
            last = held.get(key)
            if last is None:
                last = held[key] = deque(maxlen=window)
            last.append(payload)
            if keep is not None:
                keep(key, (time, path, payload, None))
            return [(time, path, reader, tuple(last))]

        return group

    def _keeper(self, node: int, count: int) -> Callable[[Any, Kept], None] | None:
        """Records the last items of each key of a node; None if they are not needed."""
        ended = None if self._ended_of is None or count == 0 else self._ended_of(node)
        if ended is None:
            return None
        kept: dict[Any, deque[Kept]] = {}
        self._kept.append((ended, kept))

        def keep(key: Any, item: Kept) -> None:
            last = kept.get(key)
            if last is None:
                last = kept[key] = deque(maxlen=count)
            last.append(item)

        return keep

    def _reduce(self, number: int) -> _Process:
        layout = self._layout
        reducer = Reducer(layout.graph, layout.fused[number])
        _, balance = layout.fused[number].balance(layout.graph)
        reader = layout.readers[number][0]
        held: dict[Any, Any] = {}
        touched: dict[Any, int] = {}
        self._states += [held, touched]
        keep = self._keeper(number, 1)

        def restore(state: KeyState) -> None:
            _, key, ((time, path, accumulator),) = state
            held[key], touched[key] = accumulator, time
            if keep is not None:
                keep(key, (time, path, None, accumulator))

        self._restores[keeper_of(layout, number)] = restore

        def reduce(time: int, path: bytes, payload: Any) -> list[Made]:
            key, _ = balance(payload, (time, front_of(path)))
            value = reducer.value_of(payload)
            before = held.get(key, _ABSENT)
            if before is not _ABSENT and has_expired(touched[key], reducer.expires, time):
                before = _ABSENT
            try:
                accumulator = (
                    reducer.first(value) if before is _ABSENT else reducer.combine(before, value)
                )
            except Exception as error:
                raise reducer.failure(error, payload, time, path) from error
            if isinstance(accumulator, At):
                reducer.refuse(accumulator, time, path)
            held[key], touched[key] = accumulator, time
            if keep is not None:
                keep(key, (time, path, payload, accumulator))
            return [(time, path + reducer.out, reader, reducer.sent(key, accumulator))]

        return reduce
