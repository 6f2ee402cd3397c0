"""What runs in a Spark task: one pass over the rows of a partition, from Arrow to Arrow.

Rows between passes are chunks of items (`bus`), sorted by slice. The pass sorts one slice at a time
(`sorting`) and feeds it to the machine of its unit, which sees the items of one key after another.

A pass processes its input in portions, small enough that the output of each stays small, and yields
a batch of rows whenever it has enough. A clock helps to choose the size of a portion; the output does
not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from time import thread_time
from typing import Any

import pyarrow as pa

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.errors import InputError, InternalError
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Map, Merge, Sink
from emberflow.graph.transactions import Access, Close, Open, Report, State
from emberflow.graph.versions import CarryPlan
from emberflow.rows.inputs import Checked
from emberflow.rows.outputs import ColumnWriter, SinkColumns
from emberflow.rows.paths import front_of
from emberflow.runners.batch.passes.ends import Ends, dropped_from, with_heirs
from emberflow.runners.batch.passes.lanes import Known, placed_by, spread_lane
from emberflow.runners.batch.passes.machines import (
    Ended,
    GroupMachine,
    ReduceMachine,
    Reducer,
)
from emberflow.runners.batch.passes.regions import Region
from emberflow.runners.batch.passes.stamping import Columns, StampedRows
from emberflow.runners.batch.passes.steps import Step, broadcast_step, map_step, placed_step
from emberflow.runners.batch.passes.takeover import ORDER_LANE, Successor, Takeover, states_of
from emberflow.runners.batch.passes.transactions import Serial, StateMachine, report_step
from emberflow.runners.batch.plan.stages import Units
from emberflow.runners.batch.shuffle.bus import (
    ANYWHERE,
    HASH_BITS,
    HASH_MASK,
    BusRows,
    Items,
    Spread,
    unchunked,
)
from emberflow.runners.batch.shuffle.output_order import OutputSorter
from emberflow.runners.batch.shuffle.sorting import Sorter, doubled_in
from emberflow.runners.interpreter import seldom_collecting

#: Rows and bytes of an Arrow batch of output.
_ROWS_MAX = 10_000
_BYTES_MAX = 16 << 20
#: Items that go through the steps at once. Each may make an accumulator, and accumulators may be
#: large; but large ones take long to make, so the size of a portion is chosen by the time it takes.
_PORTION_MIN, _PORTION_MAX = 16, 2_048
_PORTION_SECONDS = 0.005
#: The aimed-at output of a portion of elements, and the fewest and most elements of a portion.
_ITEMS_AIMED_AT = 8_192
_BYTES_AIMED_AT = 2 << 20
_ELEMENTS_MIN, _ELEMENTS_MAX = 8, 4_096

_OBJECTS_A_COLLECTION = 100_000


@dataclass(frozen=True, slots=True)
class Pass:
    """The arguments of a task; they travel in the closure that Spark ships."""

    graph: Graph
    #: The only sink to compute; None to compute ends (`ends`).
    sink: Sink | None
    #: Without a sink: the nodes whose state and scheduled items are wanted; None for all, and all sinks.
    goals: frozenset[int] | None = None
    #: Units that run in this pass. Rows for other units are forwarded.
    units: tuple[int, ...] = ()
    #: Instead of units: the front whose elements enter here.
    front: Checked | None = None
    #: What is wrong if an element enters, where the version has no such front; with {} for its time.
    refused: str | None = None
    #: Instead of units or a front: what the version before has left.
    takeover: Takeover | None = None
    #: Where a version follows another one: the moment it begins at. What is below is state.
    since: Moment | None = None
    #: The columns of the sink, if all output is for it.
    columns: SinkColumns | None = None
    #: Whether rows of the sink are sorted by place.
    ordered: bool = False
    #: How the next shuffle distributes the rows for other units.
    spread: Spread = ANYWHERE
    #: Elements from this moment on do not enter, and items scheduled for then are not processed.
    until: Moment | None = None
    #: Where another version follows: what it takes over.
    next_carry: CarryPlan | None = None
    #: If all sinks are computed: the sinks whose rows are wanted.
    written: frozenset[str] = frozenset()
    #: And the number of parts of the cut that hold its state.
    parts: int = 1


def run_pass(given: Pass, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a pass in a task."""
    with seldom_collecting(_OBJECTS_A_COLLECTION):
        yield from passed(given, batches)


def passed(
    given: Pass,
    batches: Iterable[pa.RecordBatch],
    ended: Callable[[int], Ended] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The output of a pass. ``ended(node)`` makes a callback for the final state of its keys."""
    runner = Runner(given, ended)
    if given.takeover is not None:
        return runner.takeover_pass(given.takeover, batches)
    if given.front is not None:
        return runner.front_pass(given.front, batches)
    return runner.unit_pass(batches)


def no_doubles(front: Checked, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail if there is a row: each row is a time that occurs twice."""
    for batch in batches:
        for time in batch.column(0).to_pylist():
            raise front.double(time)
    return iter(())


class Runner:
    """One pass under way."""

    def __init__(self, given: Pass, ended: Callable[[int], Ended] | None = None) -> None:
        self.given = given
        self.units = Units(given.graph)
        goals = given.goals if given.sink is None else frozenset({given.sink.id})
        self._needed = self.units.leading_to(goals)
        self._out: _SinkRows | BusRows = (
            BusRows(given.spread)
            if given.columns is None
            else _SinkRows(given.columns, given.ordered)
        )
        self._ended: Callable[[int], Ended | None] | None = ended
        self._ahead = None if given.until is None else dropped_from(given.until)
        self._ends: Ends | None = None
        if given.sink is None:
            assert isinstance(self._out, BusRows)
            assert given.until is not None
            self._ends = Ends(self.units, given.parts, self._out.add, given.goals)
            self._ended, self._ahead = self._ends.ended, self._ends.ahead_of(given.until)
        if self._ahead is not None and given.next_carry is not None:
            self._ahead = with_heirs(self._ahead, given.next_carry)
        self._steps: dict[int, Step] = {}
        self._machines = {number: self._machine(number) for number in given.units}
        self._portion = _PORTION_MIN

    # Rows in, rows out.

    def front_pass(
        self, front: Checked, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        given = self.given
        stamped = None if front.stamps is None else StampedRows(front, given.since, given.until)
        send = self._entrance(front.front.id)
        size = 64
        for batch in batches:
            start = 0
            while start < batch.num_rows:
                rows = batch.slice(start, size)
                start += size
                items, count = self._out.taken, self._out.taken_bytes
                if stamped is None:
                    times, payloads = front.elements(rows)
                    send(*self._within(times, front.paths(rows), payloads))
                else:
                    yield from self._entered(send, *stamped.add(rows))
                items, count = self._out.taken - items, self._out.taken_bytes - count
                aimed = min(
                    size * _ITEMS_AIMED_AT // max(1, items), size * _BYTES_AIMED_AT // max(1, count)
                )
                size = max(_ELEMENTS_MIN, min(_ELEMENTS_MAX, 2 * size, aimed))
                yield from self._out.full()
        if stamped is not None:
            yield from self._entered(send, *stamped.end())
        yield from self._rest()

    def _within(self, times: list[int], paths: list[bytes], payloads: list[Any]) -> Columns:
        """The elements of the pass's interval. Spark has filtered by time: a moment may be within one."""
        since, until = self.given.since or BEFORE_ALL, self.given.until or AFTER_ALL
        if (since[1] > 0 or until[1] > 0) and {since[0], until[0]}.intersection(times):
            found = zip(times, map(front_of, paths), strict=True)
            kept = [since <= moment < until for moment in found]
            columns = (list(compress(column, kept)) for column in (times, paths, payloads))
            return Columns(*columns)
        return Columns(times, paths, payloads)

    def _entrance(self, front: int) -> Step:
        """The step that elements of a front enter by, if this plan needs them."""
        if self.given.refused is not None:
            return _refusing(self.given.refused)
        reader = self.units.layout.readers[front][0]
        return self._step(reader) if reader in self._needed else _nowhere

    def _entered(self, send: Step, elements: Columns, late: Columns) -> Iterator[pa.RecordBatch]:
        """Pass on what has left a stamper, in portions: many elements may have waited for one."""
        late_node = self.given.graph.late_node
        for step, columns in (
            (send, elements),
            (_nowhere if late_node is None else self._entrance(late_node), late),
        ):
            for start in range(0, len(columns.times), _ELEMENTS_MAX):
                step(*columns.between(start, start + _ELEMENTS_MAX))
                yield from self._out.full()

    def takeover_pass(
        self, takeover: Takeover, batches: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        assert self.given.since is not None
        successor = Successor(
            takeover, self.units, self.given.since, self._step, self._ahead, self._bus
        )
        for batch in batches:
            lanes, numbers = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            for lane, number, data in zip(lanes, numbers, batch.column(3), strict=True):
                if lane == ORDER_LANE:
                    for _ in successor.read(number):
                        yield from self._out.full()
                    continue
                successor.take(lane >> HASH_BITS, unchunked(data.as_py()))
                yield from self._out.full()
        yield from self._rest()

    def unit_pass(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sorter, current = Sorter(doubled_in(self.given.graph)), None
        try:
            for batch in batches:
                chunks = batch.column(3)
                passing = 0
                for number, lane in enumerate(batch.column(0).to_pylist()):
                    if lane != current:
                        if current is not None:
                            if lane < current:
                                raise InternalError("the rows of a pass are not sorted")
                            yield from self._slice_of(current >> HASH_BITS, sorter.ended())
                        current = lane
                    if self._passes(lane >> HASH_BITS):
                        passing += 1
                        continue
                    if passing:
                        yield batch.slice(number - passing, passing)
                        passing = 0
                    sorter.add(chunks[number].as_py())
                if passing:
                    yield batch.slice(batch.num_rows - passing)
            if current is not None:
                yield from self._slice_of(current >> HASH_BITS, sorter.ended())
        finally:
            sorter.close()
        for machine in self._machines.values():
            machine.finish()
        yield from self._rest()

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if self._ends is not None:
            self._ends.flush()
        yield from self._out.rest()

    def _passes(self, target: int) -> bool:
        """Whether rows for this unit are forwarded to a later pass."""
        return target not in self._machines and self.given.columns is None

    def _slice_of(self, target: int, blocks: Iterator[Items]) -> Iterator[pa.RecordBatch]:
        machine = self._machines.get(target)
        for hashes, times, paths, payloads in blocks:
            start = 0
            while start < len(paths):
                end, began = start + self._portion, thread_time()
                at, where, given = times[start:end].tolist(), paths[start:end], payloads[start:end]
                if machine is not None:
                    self._feed(machine, hashes[start:end].tolist(), at, where, given)
                elif target == self.units.sink_target and self.given.sink is not None:
                    self._step(self.given.sink.id)(at, where, given)
                else:
                    raise InternalError(f"a row for unit {target} has come to the end of its batch")
                slow = thread_time() - began > _PORTION_SECONDS
                if slow:
                    self._portion = max(_PORTION_MIN, self._portion // 2)
                elif end - start == self._portion:
                    self._portion = min(_PORTION_MAX, self._portion * 2)
                start = end
                yield from self._out.full()
        if machine is not None and self.given.since is not None:
            machine.end_slice()
            yield from self._out.full()

    def _feed(
        self,
        machine: GroupMachine | ReduceMachine | StateMachine | Region,
        hashes: list[int],
        times: list[int],
        paths: list[bytes],
        payloads: list[Any],
    ) -> None:
        """Items to a machine. Those below the beginning of the version are the state of keys."""
        since = self.given.since
        if since is not None and min(times) < since[0]:
            for hashed, state in states_of(since, hashes, times, payloads):
                machine.begin(hashed, state)
            kept = [time >= since[0] for time in times]
            hashes, times = list(compress(hashes, kept)), list(compress(times, kept))
            paths, payloads = list(compress(paths, kept)), list(compress(payloads, kept))
        if times:
            machine.feed(hashes, times, paths, payloads)

    # Steps, built once per pass from the graph.

    def _machine(self, number: int) -> GroupMachine | ReduceMachine | StateMachine | Region:
        layout, graph = self.units.layout, self.given.graph
        unit = self.units.units[number]
        if unit.is_region:
            leaving = {
                reader: self._step(reader)
                for node in unit.nodes
                for reader in layout.readers[node]
                if reader not in unit.nodes and reader in self._needed
            }
            whole = [
                transaction
                for open_, transaction in self.units.ordering.whole.items()
                if open_ in unit.nodes
            ]
            serial = Serial(graph, whole, self._ended) if whole else None
            return Region(
                layout, unit, leaving, serial=serial, ahead=self._ahead, ended=self._ended
            )
        (node,) = unit.nodes
        ended = None if self._ended is None else self._ended(node)
        found = graph.nodes[node]
        if isinstance(found, State):
            return StateMachine(graph, found, self._sends(found), ended)
        reader = layout.readers[node][0]
        send = self._step(reader)
        if node in layout.fused:
            reducer, pairs = Reducer(graph, layout.fused[node]), None
            if isinstance(self._out, _SinkRows) and isinstance(graph.nodes[reader], Sink):
                pairs = self._out.add_columns if self._out.takes_columns(2) else None
            return ReduceMachine(reducer, send, ended, pairs)
        assert isinstance(found, Group)
        return GroupMachine(found, send, ended)

    def _sends(self, state: State) -> list[dict[str, Step]]:
        """For each access of a state: the steps that read its outputs, if this plan needs them."""
        sends: list[dict[str, Step]] = [{} for _ in state.accesses]
        readers = self.units.layout.readers[state.id]
        for (number, what), reader in zip(state.outputs, readers, strict=True):
            if reader in self._needed:
                sends[number][what] = self._step(reader)
        return sends

    def _step(self, number: int) -> Step:
        if number not in self._needed:
            return _nowhere
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = self._made_step(number)
        return step

    def _made_step(self, number: int) -> Step:
        if number in self.units.of_node:
            return self._towards_unit(number)
        node = self.given.graph.nodes[number]
        readers = self.units.layout.readers[number]
        if isinstance(node, Sink):
            return self._towards_sink() if self._ends is None else self._towards_end(node)
        if isinstance(node, Front | Merge | Open):
            return self._step(readers[0])
        if isinstance(node, Access):
            return self._towards_state(node)
        if isinstance(node, Report):
            return self._reported(node)
        if isinstance(node, Map):
            step = map_step(node, self._step(readers[0]), self._ahead)
        elif isinstance(node, Broadcast):
            step = broadcast_step(
                [
                    (port, self._step(reader))
                    for port, reader in enumerate(readers)
                    if reader in self._needed
                ]
            )
        else:
            raise InternalError(f"a batch does not know {node}")
        key = node.inputs[0].key
        return step if key is None else placed_step(balance_of(node, key), step)

    def _towards_sink(self) -> Step:
        out = self._out
        if isinstance(out, _SinkRows):
            return out.add
        target = self.units.sink_target << HASH_BITS

        def to_sink(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
            # Any partition will do; distribute the items, so that no task gets all of them.
            out.add([target | hash(time) & HASH_MASK for time in times], times, paths, payloads)

        return to_sink

    def _reported(self, node: Report) -> Step:
        """Stands for a closer that has nothing to decide."""
        graph, needed = self.given.graph, self._needed
        closes = (each for each in graph.nodes if isinstance(each, Close))
        close = next(each for each in closes if each.transaction == node.transaction)
        readers = enumerate(self.units.layout.readers[close.id])
        sends = {port: self._step(reader) for port, reader in readers if reader in needed}
        return report_step(graph, node, close, sends)

    def _towards_state(self, access: Access) -> Step:
        """To the shuffle before a state: see `transactions.StateMachine`."""
        states = (each for each in self.given.graph.nodes if isinstance(each, State))
        state = next(each for each in states if access.id in each.accesses)
        out = self._bus()
        number = state.accesses.index(access.id)
        several = len(state.accesses) > 1
        key_of, balance = access.by.function, balance_of(access, access.by)
        placed = placed_by(key_of, balance, self.units.of_node[state.id] << HASH_BITS)
        carried = access.carried

        def to_state(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
            owns = [pair[1] for pair in payloads] if carried else payloads
            lanes, _ = placed(times, paths, owns)
            tagged = [(number, payload) for payload in payloads] if several else payloads
            out.add(lanes, times, paths, tagged)

        return to_state

    def _bus(self) -> BusRows:
        if isinstance(self._out, _SinkRows):
            raise InternalError("the last pass of a batch has rows that are not for the sink")
        return self._out

    def _towards_end(self, sink: Sink) -> Step:
        assert self._ends is not None
        return self._ends.sink_step(sink) if sink.name in self.given.written else _nowhere

    def _towards_unit(self, entry: int) -> Step:
        """To the shuffle: every item gets the lane of its key."""
        out = self._bus()
        number = self.units.of_node[entry]
        unit = self.units.units[number]
        target = number << HASH_BITS
        spreading = self.units.ordering.spreading_key(unit, entry)
        if spreading is not None:
            known = Known(target)

            def to_transactions(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
                lanes = [spread_lane(known, spreading, payload) for payload in payloads]
                out.add(lanes, times, paths, [(entry, payload) for payload in payloads])

            return to_transactions

        keyed = self.units.keyed_node(unit, entry)
        if keyed is None:

            def to_region(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
                out.add([target] * len(times), times, paths, [(entry, p) for p in payloads])

            return to_region

        found = self.units.layout.balance_of(keyed)
        assert found is not None
        placed = placed_by(*found, target)
        if unit.is_region:

            def to_keyed_region(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
                lanes, given = placed(times, paths, payloads)
                out.add(lanes, times, paths, [(entry, payload) for payload in given])

            return to_keyed_region

        def to_unit(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
            lanes, given = placed(times, paths, payloads)
            out.add(lanes, times, paths, given)

        return to_unit


def _nowhere(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
    """The step of what is not wanted."""


def _refusing(problem: str) -> Step:
    def refuse(times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        if times:
            raise InputError(problem.replace("{}", str(min(times)), 1))

    return refuse


class _SinkRows:
    """Rows of the sink: every portion becomes columns at once, so that no payload is held for long."""

    def __init__(self, columns: SinkColumns, ordered: bool) -> None:
        self.taken = self.taken_bytes = 0
        self._writer = ColumnWriter(columns)
        self._sorter = OutputSorter(self._writer.schema) if ordered else None
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, times: list[int], paths: list[bytes], payloads: list[Any]) -> None:
        if times:
            self._take(self._writer.batch(times, paths, payloads))

    def takes_columns(self, count: int) -> bool:
        """Whether payloads that are tuples of this many values may be added as columns."""
        return self._writer.takes_columns(count)

    def add_columns(self, times: list[int], paths: list[bytes], *columns: list[Any]) -> None:
        """Like `add` of tuples, without making the tuples."""
        if times:
            self._take(self._writer.batch_of_columns(times, paths, columns))

    def _take(self, batch: pa.RecordBatch) -> None:
        self.taken += batch.num_rows
        self.taken_bytes += batch.nbytes
        if self._sorter is not None:
            self._sorter.add(batch)
            return
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

    def full(self) -> Iterator[pa.RecordBatch]:
        if self._rows >= _ROWS_MAX or self._bytes >= _BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """All rows that are left. If they are sorted, nothing can be added afterwards."""
        if self._sorter is not None:
            yield from self._sorter.ended() if self.taken else ()
        elif self._batches:
            batches, self._batches = self._batches, []
            self._rows = self._bytes = 0
            yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
