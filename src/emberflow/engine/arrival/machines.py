"""The stateful machines of ``ordering="arrival"``: they process items as they come.

They sort nothing, speculate about nothing and take nothing back. So there is one state a key and no
versions of it: a grouping keeps the last ``window - 1`` payloads of a key, by arrival, a reduction its
accumulator. The output depends on the order in which items came, which differs on every run.

**Snapshots** are incremental and cost no pause. States are immutable (tuples of payloads, and
accumulators, which are by contract), so a reference saves a state. Each machine writes what it changes
into a second dict as well, and a snapshot takes that dict away: what changed since the last one, as of
this moment, whatever happens to the keys afterwards. Only a full snapshot copies the dict of all keys.

Errors are those of the other ordering, in the same words. But machines raise them at once: no input of
a function is speculative here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, TypeAlias, cast

from emberflow.engine.cuts.cut import Row
from emberflow.engine.cuts.pending import Pending
from emberflow.engine.layout import Layout
from emberflow.engine.machines.map import Process, broadcast_process, map_process, merge_process
from emberflow.engine.machines.reduce import payload_made_by
from emberflow.engine.messages import Moment
from emberflow.errors import InternalError, OutputError
from emberflow.graph.calls import Balance, balance_of, function_error, scheduled_time
from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Map, Merge, Node, Reduction, Sink
from emberflow.values.functions import itself
from emberflow.values.hashing import key_hash
from emberflow.values.item import At, FlatItem, Place

#: By key: the last payloads of a grouping, or the accumulator of a reduction.
States: TypeAlias = dict[Any, Any]


class ArrivalGrouping:
    """A grouping by arrival.

    >>> import emberflow as ef
    >>> flow = ef.Flow("pairs")
    >>> flow.front("numbers").key_by(lambda n: n % 2).group(window=2).sink("out")
    >>> (group,) = [node for node in flow.graph().nodes if isinstance(node, Group)]
    >>> machine = ArrivalGrouping(group)
    >>> items = [((9, 0), 0, 1), ((5, 0), 0, 3), ((6, 0), 0, 2)]
    >>> [payload for _, _, payload in machine.process(items, [])[0]]
    [(1,), (1, 3), (2,)]
    >>> machine.captured(full=False)
    {1: (3,), 0: (2,)}
    """

    def __init__(self, node: Group) -> None:
        self.operation = node.name
        self.buckets: States = {}
        self._changed: States = {}
        self._window = node.window
        self._key: Callable[[Any], Any] = node.key.function
        self._balance = balance_of(node, node.key)

    def process(self, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        output: list[FlatItem] = []
        append, window, key_of = output.append, self._window, self._key
        buckets, changed = self.buckets, self._changed
        for place, mark, payload in items:
            try:
                key = key_of(payload)
                last = (*buckets[key], payload)
            except Exception:  # a key not met before, or a key function that fails
                key, _ = self._balance(payload, (place[0], place[1]))
                last = (*buckets.get(key, ()), payload)
            append((place, mark, last))
            if window > 1:
                buckets[key] = changed[key] = last if len(last) < window else last[1:]
        return [output]

    def captured(self, *, full: bool) -> States:
        """The states that changed since the last call, or all of them: as they are now."""
        changed, self._changed = self._changed, {}
        return dict(self.buckets) if full else changed

    def rows(self, states: States, number: int) -> Iterator[list[Row]]:
        operation = self.operation
        for key, last in states.items():
            hashed = key_hash(key)
            yield [
                Row(operation, hashed, key, (number, 0, position), payload)
                for position, payload in enumerate(last)
            ]

    def restore(self, rows: Iterable[Row]) -> None:
        for row in rows:  # those of a key come in their order
            self.buckets[row.key] = (*self.buckets.get(row.key, ()), row.payload)

    def sizes(self) -> list[int]:
        return [len(last) for last in self.buckets.values()]


class ArrivalReducing:
    """A reduction by arrival. ``keyed`` ones take payloads and give values, others triples."""

    def __init__(self, graph: Graph, reduction: Reduction, balance: Balance, keyed: bool) -> None:
        self.operation = graph.nodes[reduction.group].name
        self.buckets: States = {}
        self._changed: States = {}
        self._combine_node = cast("Map", graph.nodes[reduction.combine])
        self._value_node = (
            None if reduction.value is None else cast("Map", graph.nodes[reduction.value])
        )
        self._balance = balance
        self._first: Callable[[Any], Any] = reduction.first
        self._combine: Callable[[Any, Any], Any] = reduction.combine_function
        self._shown = reduction.shown
        if keyed:
            assert reduction.key is not None
            self._key_of: Callable[[Any], Any] = reduction.key
            self._payload_of: Callable[[Any], Any] = itself
            # First image of the pair map, of the combine map, port 1, first image of the value map.
            self._out: Place = (0, 0, 1, 0)
        else:
            self._key_of, self._payload_of = itemgetter(0), itemgetter(2)
            self._out = (0, 1)
        self._sent = payload_made_by(reduction, keyed)

    def process(self, items: list[FlatItem], failed: list[FlatItem]) -> list[list[FlatItem]]:
        output: list[FlatItem] = []
        append, out, sent = output.append, self._out, self._sent
        buckets, changed = self.buckets, self._changed
        combine, key_of, payload_of = self._combine, self._key_of, self._payload_of
        for item in items:
            place, mark, mapped = item
            try:
                key = key_of(mapped)
                accumulator = combine(buckets[key], payload_of(mapped))
            except Exception:  # a new key, or a function that fails
                key, accumulator = self._accumulate(item)
            if accumulator.__class__ is At:
                self._refuse(accumulator, place)
            buckets[key] = changed[key] = accumulator
            append((place + out, mark, sent(key, accumulator)))
        return [output]

    def _accumulate(self, item: FlatItem) -> tuple[Any, Any]:
        place, _, mapped = item
        moment = (place[0], place[1])
        key, _ = self._balance(mapped, moment)
        payload = self._payload_of(mapped)
        try:
            if key in self.buckets:
                return key, self._combine(self.buckets[key], payload)
            return key, self._first(payload)
        except Exception as error:
            raise function_error(self._combine_node, error, self._shown(payload), moment) from error

    def _refuse(self, accumulator: At[Any], place: Place) -> None:
        if self._value_node is not None:
            scheduled_time(self._value_node, accumulator, (place[0], place[1]))

    def captured(self, *, full: bool) -> States:
        changed, self._changed = self._changed, {}
        return dict(self.buckets) if full else changed

    def rows(self, states: States, number: int) -> Iterator[list[Row]]:
        operation = self.operation
        for key, accumulator in states.items():
            yield [Row(operation, key_hash(key), key, (number, 0), accumulator)]

    def restore(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.buckets[row.key] = row.payload

    def sizes(self) -> list[int]:
        return [1] * len(self.buckets)


class ArrivalMachines:
    """The machines of one worker, by node."""

    def __init__(self, layout: Layout) -> None:
        self.process: dict[int, Process] = {}
        self.stateful: dict[int, ArrivalGrouping | ArrivalReducing] = {}
        graph = layout.graph
        for number in layout.nodes:
            node = graph.nodes[number]
            if number in layout.fused:
                fused = layout.fused[number]
                _, balance = fused.balance(graph)
                self._add(number, ArrivalReducing(graph, fused.reduction, balance, fused.keyed))
            elif isinstance(node, Group):
                self._add(number, ArrivalGrouping(node))
            elif not isinstance(node, Sink):
                self.process[number] = _stateless(node)

    def _add(self, node: int, machine: ArrivalGrouping | ArrivalReducing) -> None:
        self.stateful[node] = machine
        self.process[node] = machine.process


def _stateless(node: Node) -> Process:
    if isinstance(node, Map):
        return map_process(node, _NothingLater(node))
    if isinstance(node, Broadcast):
        return broadcast_process(node)
    if isinstance(node, Front | Merge):
        return merge_process
    raise InternalError(f"the engine does not know {node}")


class _NothingLater(Pending):
    """Refuses what a map schedules: no time ever comes here."""

    __slots__ = ("_node",)

    def __init__(self, node: Map) -> None:
        super().__init__(node.name)
        self._node = node

    def schedule(self, place: Place, mark: int, origin: Moment, payload: Any) -> None:
        raise OutputError(
            "an item cannot be scheduled with ordering='arrival': items are processed as they "
            "come, so no time is ever known to be over. Use the default, ordering='time'; windows "
            "and timers need it.",
            step=str(self._node),
            function=", ".join(map(str, self._node.given)),
            global_time=origin,
            payload=payload,
        )
