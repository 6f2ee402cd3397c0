"""The layout of a graph for a worker: which nodes run as one, in which order, and where items go.

- **Fusion.** The nodes of a reduction run as one machine. Where the reduction is a plain `reduce`,
  the maps that pair payloads with their keys and take the values out again are part of it: no machine
  makes triples, and payloads cross the network as they are. Where a reduction sends itself ticks, the
  loop that brings them back is part of the machine too (`machines.ticking`).
- **Units.** Nodes run in topological order, each with all that has come for it, so that a grouping
  sees the items of a batch together and in order, whichever way they took. A cycle that is not fused
  has no such order: its nodes form a *region* (`worker.regions`), which runs item by item, the least
  place first, until nothing is left in it. That is the order of the reference runner. So on one worker
  and with input in order nothing is replayed, but for what a batch has behind an item that it schedules.
- **Routes.** An input with a key is a hop: its items go to the worker that owns the key's hash. A
  sink is a hop to the worker that holds the barrier of the partition. All else stays on its worker.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from emberflow.engine.cuts.pending import Pending, PendingTicks
from emberflow.engine.machines.closer import CloserMachine
from emberflow.engine.machines.group import GroupMachine
from emberflow.engine.machines.map import (
    Process,
    broadcast_process,
    keeping_broadcast_process,
    map_process,
    merge_process,
)
from emberflow.engine.machines.protocol import access_process, report_process
from emberflow.engine.machines.reduce import ReduceMachine
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.machines.ticking import TickingMachine
from emberflow.errors import InternalError, OnError
from emberflow.graph.calls import Balance, balance_of, pair_balance_of
from emberflow.graph.nodes import Broadcast, Front, Graph, Group, Map, Merge, Node, Reduction, Sink
from emberflow.graph.transactions import (
    Access,
    Close,
    Open,
    Report,
    State,
    check_diverting,
    closers_of,
    depth_of,
)

#: A machine that keeps something between batches.
Stateful: TypeAlias = GroupMachine | ReduceMachine | AccessMachine | CloserMachine


@dataclass(frozen=True, slots=True)
class Unit:
    """What runs at once: one node, or a region of nodes that a cycle goes through."""

    nodes: tuple[int, ...]
    is_region: bool


@dataclass(frozen=True, slots=True)
class Gatherable:
    """A region whose transactions one worker may compute (`worker.gathering`)."""

    rank: int
    #: The nodes through which alone items get into it. Elements can be held there.
    opens: tuple[int, ...]
    #: By state: the node that its rows are bound for on their way between workers. No graph has it.
    rows: dict[int, int]


class Layout:
    """What follows from the graph alone. It is the same on every worker."""

    def __init__(
        self, graph: Graph, *, on_error: OnError = "fail", fuses_ticks: bool = True
    ) -> None:
        """``fuses_ticks``: who runs the machines tells them of frontiers (`speculation.patience`)."""
        self.graph = graph
        #: Whether failures are output of the errors sink; otherwise the first one ends the run.
        self.diverts = on_error == "divert"
        #: By node within a transaction, where an error undoes all of it: the closer that the error goes to,
        #: and how much longer than the transaction's identity the places at the node are.
        self.closers: dict[int, tuple[int, int]] = {}
        if self.diverts:
            check_diverting(graph)
            self.closers = {
                node: (close.id, depth_of(graph, graph.nodes[node]))
                for node, close in closers_of(graph).items()
            }
        #: The node of failures, which is not in the graph.
        self.failures = len(graph.nodes)
        self.sinks = {sink.id: sink for sink in graph.sinks.values()}
        found = [Fused.of(graph, reduction) for reduction in graph.reductions]
        self._lay_out([fused for fused in found if fused is not None])
        if fuses_ticks:
            cycles = {unit.nodes for unit in self.units if unit.is_region}
            loops = [TickingLoop.with_ticks(graph, fused, cycles) for fused in self.fused.values()]
            self._lay_out(loops)
        self.rank = {node: rank for rank, unit in enumerate(self.units) for node in unit.nodes}
        #: By node: how many units that may hold something are ahead of it at the most.
        self.stage = self._stages()
        # Failures have a stage behind all others, and so have rows on their way between workers.
        self.stage[self.failures] = max(self.stage.values()) + 1
        self.gatherable = list(_gatherable(self))
        for region in self.gatherable:
            self.stage |= dict.fromkeys(region.rows.values(), self.stage[self.failures])

    def _lay_out(self, reductions: Sequence[Fused]) -> None:
        """Which nodes run as one, and in which order."""
        #: By the node where items enter: the reductions that run as one machine.
        self.fused = {fused.entry: fused for fused in reductions}
        absorbed = {node for fused in reductions for node in fused.nodes - {fused.entry}}
        self.nodes = [node.id for node in self.graph.nodes if node.id not in absorbed]
        #: ``readers[node][port]``: the node that reads it.
        self.readers = {node: self._readers_of(node) for node in self.nodes}
        self.units = units_of(self.nodes, self.readers)

    def _stages(self) -> dict[int, int]:
        stage = dict.fromkeys(self.nodes, 0)
        for unit in self.units:
            own = max(stage[node] for node in unit.nodes)
            # Elements may wait where transactions open.
            is_stateful = unit.is_region or any(
                self._is_stateful(node) or isinstance(self.graph.nodes[node], Open)
                for node in unit.nodes
            )
            for node in unit.nodes:
                stage[node] = own
            for reader in {reader for node in unit.nodes for reader in self.readers[node]}:
                if reader not in unit.nodes:
                    stage[reader] = max(stage[reader], own + is_stateful)
        return stage

    def _is_stateful(self, node: int) -> bool:
        return node in self.fused or isinstance(self.graph.nodes[node], Group | State | Close)

    def _readers_of(self, node: int) -> tuple[int, ...]:
        readers = self.graph.readers
        if node in self.fused:
            fused = self.fused[node]
            return (readers[fused.exit][fused.exit_port][0],)
        return tuple(reader for reader, _ in readers[node])

    def reader_of_scheduled(self, node: int) -> int:
        """The node that gets what a map has scheduled. The map may be part of a machine."""
        for entry, fused in self.fused.items():
            if isinstance(fused, TickingLoop) and fused.ticks == node:
                return entry
        (reader,) = self.readers[node]
        return reader

    @property
    def ticking(self) -> set[str]:
        """The maps of ticks that wait in the machine of their reduction."""
        loops = (fused for fused in self.fused.values() if isinstance(fused, TickingLoop))
        return {self.graph.nodes[loop.ticks].name for loop in loops}

    def balance_of(self, node: int) -> tuple[Callable[[Any], Any], Balance] | None:
        """The key function of a node's input, raw and with its errors told; None if unkeyed."""
        if node in self.fused:
            return self.fused[node].balance(self.graph)
        inputs = self.graph.nodes[node].inputs
        key = inputs[0].key if len(inputs) == 1 else None
        return None if key is None else (key.function, balance_of(self.graph.nodes[node], key))


def _gatherable(layout: Layout) -> Iterator[Gatherable]:
    """The regions that consist of transactions alone."""
    nodes = layout.graph.nodes
    taken: set[int] = set()
    number = layout.failures
    for rank, unit in enumerate(layout.units):
        inside = [nodes[node] for node in unit.nodes]
        states = [node for node in inside if isinstance(node, State)]
        if (
            not unit.is_region
            or not states
            or any(node in layout.fused for node in unit.nodes)
            or any(isinstance(node, Group) for node in inside)
            or any(isinstance(node, Map) and node.schedules for node in inside)
        ):
            continue
        opens = _ways_in(layout, unit)
        if opens and not opens & taken:
            taken |= opens
            rows = {state.id: number + 1 + index for index, state in enumerate(states)}
            number += len(rows)
            yield Gatherable(rank, tuple(sorted(opens)), rows)


def _ways_in(layout: Layout, unit: Unit) -> set[int]:
    """The nodes outside of a region where transactions open, if all that enters it comes through these,
    past nodes that keep nothing. Otherwise none."""
    ahead: dict[int, list[int]] = {}
    for node, readers in layout.readers.items():
        for reader in readers:
            ahead.setdefault(reader, []).append(node)
    found: set[int] = set()
    seen = set(unit.nodes)
    waiting = [before for node in unit.nodes for before in ahead.get(node, ())]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if layout.units[layout.rank[node]].is_region:
            return set()
        if isinstance(layout.graph.nodes[node], Open):
            found.add(node)
        elif node not in ahead or layout._is_stateful(node) or layout.balance_of(node) is not None:
            return set()
        else:
            waiting += ahead[node]
    return found


def units_of(nodes: Iterable[int], readers: Mapping[int, Sequence[int]]) -> list[Unit]:
    """Strongly connected components in topological order (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    units: list[Unit] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, 0)]
        while work:
            node, next_reader = work.pop()
            if next_reader == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            ahead = readers[node]
            if next_reader < len(ahead):
                work.append((node, next_reader + 1))
                reader = ahead[next_reader]
                if reader not in index:
                    work.append((reader, 0))
                elif reader in on_stack:
                    low[node] = min(low[node], index[reader])
                continue
            for reader in ahead:
                if reader in on_stack:
                    low[node] = min(low[node], low[reader])
            if low[node] == index[node]:
                members: list[int] = []
                while not members or members[-1] != node:
                    members.append(stack.pop())
                    on_stack.remove(members[-1])
                cyclic = len(members) > 1 or node in ahead
                units.append(Unit(tuple(sorted(members)), cyclic))
    units.reverse()
    return units


@dataclass(frozen=True, slots=True)
class Fused:
    """A reduction that runs as one machine in the place of several nodes."""

    reduction: Reduction
    #: Whether the maps around the cycle are part of it: then items are payloads, not triples.
    keyed: bool

    @classmethod
    def of(cls, graph: Graph, reduction: Reduction) -> Fused | None:
        """None where the cycle is not just what `dsl.operators.reduce` built: it has other nodes in it."""
        readers = graph.readers
        whole = (
            readers[reduction.merge] == ((reduction.group, 0),)
            and readers[reduction.group] == ((reduction.combine, 0),)
            and readers[reduction.combine] == ((reduction.broadcast, 0),)
            and readers[reduction.broadcast][0] == (reduction.merge, 1)
            and len(graph.nodes[reduction.merge].inputs) == 2
        )
        if not whole:
            return None
        keyed = (
            reduction.pair is not None
            and reduction.value is not None
            and readers[reduction.pair] == ((reduction.merge, 0),)
            and readers[reduction.broadcast][1] == (reduction.value, 0)
        )
        return cls(reduction, keyed)

    @property
    def entry(self) -> int:
        pair = self.reduction.pair
        return pair if self.keyed and pair is not None else self.reduction.merge

    @property
    def exit(self) -> int:
        value = self.reduction.value
        return value if self.keyed and value is not None else self.reduction.broadcast

    @property
    def exit_port(self) -> int:
        return 0 if self.keyed else 1

    @property
    def nodes(self) -> set[int]:
        cycle = self.reduction
        return {cycle.merge, cycle.group, cycle.combine, cycle.broadcast, self.entry, self.exit}

    def balance(self, graph: Graph) -> tuple[Callable[[Any], Any], Balance]:
        group = graph.nodes[self.reduction.group]
        assert isinstance(group, Group)
        if not self.keyed:
            return group.key.function, balance_of(group, group.key)
        pair = graph.nodes[self.entry]
        key = self.reduction.key
        assert isinstance(pair, Map)
        assert key is not None
        return key, pair_balance_of(pair, group, key)


@dataclass(frozen=True, slots=True)
class TickingLoop(Fused):
    """A reduction with the loop of its ticks: the merge where they come in, the map that makes them, and
    the broadcast between the two."""

    outer: int
    fan_out: int
    ticks: int
    #: The ports of the broadcast: to the map of ticks, and out.
    ports: tuple[int, int]

    @staticmethod
    def with_ticks(graph: Graph, fused: Fused, cycles: Container[tuple[int, ...]]) -> Fused:
        """A reduction with the loop of its ticks, if it has one that is a cycle of its own."""
        reduction, readers = fused.reduction, graph.readers
        if reduction.ticks is None or fused.keyed:
            return fused
        outer = graph.nodes[reduction.merge].inputs[0].node
        back = graph.nodes[reduction.ticks].inputs[0]
        cycle = tuple(sorted((outer, reduction.merge, back.node, reduction.ticks)))
        fan_out = graph.nodes[back.node]
        whole = (
            cycle in cycles
            and isinstance(fan_out, Broadcast)
            and fan_out.copies == 2
            and readers[reduction.broadcast][1][0] == back.node
        )
        if not whole:
            return fused
        return TickingLoop(
            reduction, False, outer, back.node, reduction.ticks, (back.port, 1 - back.port)
        )

    @property
    def entry(self) -> int:
        return self.outer

    @property
    def exit(self) -> int:
        return self.fan_out

    @property
    def exit_port(self) -> int:
        return self.ports[1]

    @property
    def nodes(self) -> set[int]:
        cycle = self.reduction
        inner = {cycle.merge, cycle.group, cycle.combine, cycle.broadcast}
        return inner | {self.outer, self.fan_out, self.ticks}


class Machines:
    """The machines of one worker, by node."""

    def __init__(self, layout: Layout) -> None:
        self.process: dict[int, Process] = {}
        self.stateful: dict[int, Stateful] = {}
        #: What maps have scheduled and sent.
        self.pending: dict[int, Pending] = {}
        #: By the map of its ticks: a machine in which they wait.
        self.ticking: dict[int, TickingMachine] = {}
        for node in layout.nodes:
            if node in layout.fused:
                fused = layout.fused[node]
                self._add(node, self._fused(layout, fused))
            elif not isinstance(layout.graph.nodes[node], Sink):
                self._add_operation(layout, layout.graph.nodes[node])

    def all_pending(self) -> list[Pending]:
        """All that is scheduled here, and what it knows of ticks."""
        return [*self.pending.values(), *(machine.pending for machine in self.ticking.values())]

    def _fused(self, layout: Layout, fused: Fused) -> ReduceMachine:
        graph, reduction, diverts = layout.graph, fused.reduction, layout.diverts
        _, balance = fused.balance(graph)
        if not isinstance(fused, TickingLoop):
            return ReduceMachine(graph, reduction, balance, fused.keyed, diverts=diverts)
        name = graph.nodes[fused.ticks].name
        self.pending[fused.ticks] = Pending(name)
        machine = self.ticking[fused.ticks] = TickingMachine(
            graph, reduction, balance, fused.ports, PendingTicks(name), diverts=diverts
        )
        return machine

    def _add(self, node: int, machine: Stateful) -> None:
        self.stateful[node] = machine
        self.process[node] = machine.process

    def _add_operation(self, layout: Layout, node: Node) -> None:
        graph = layout.graph
        if isinstance(node, Group):
            self._add(node.id, GroupMachine(node))
        elif isinstance(node, Map):
            pending = Pending(node.name)
            self.process[node.id] = map_process(node, pending, diverts=layout.diverts)
            if node.schedules:
                self.pending[node.id] = pending
        elif isinstance(node, Broadcast):
            keeps = layout.diverts and graph.is_of_accumulators(node)
            made = keeping_broadcast_process if keeps else broadcast_process
            self.process[node.id] = made(node)
        elif isinstance(node, Front | Merge | Open):
            self.process[node.id] = merge_process
        elif isinstance(node, Access):
            self.process[node.id] = access_process(graph, node)
        elif isinstance(node, Report):
            self.process[node.id] = report_process(graph, node)
        elif isinstance(node, State):
            self._add(node.id, AccessMachine(graph, node, diverts=layout.diverts))
        elif isinstance(node, Close):
            self._add(node.id, CloserMachine(graph, node, diverts=layout.diverts))
        else:
            raise InternalError(f"the engine does not know {node}")
