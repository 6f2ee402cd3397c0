"""From a graph to stages: what runs in one pass, and what is shuffled to the next.

A grouping, a fused reduction, a state or a cycle is a *unit*: it needs its items sorted, so there
is a shuffle before it. Everything else (map, broadcast, merge) runs in the pass that made its
input. Each sink has a plan of its own with only the units that lead to it, because a plan is a
DataFrame, and Spark computes each DataFrame separately.

Items between passes are rows of one kind, tagged with the unit that they are for. A *dataset* is
a DataFrame of such rows, with the set of units that they are for. A stage reads datasets, runs some
units on them and forwards rows for other units; each dataset is read once. So where a stream forks
and joins again, both branches are one dataset, not two plans that Spark would compute twice (and
2**n times for n forks in a row). The price is that some rows pass through a shuffle that they did not
need. A flow without forks has no such rows.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from emberflow.dsl.operators.windows.updates import KEEPS_KEY
from emberflow.engine.layout import Layout, Unit
from emberflow.graph.nodes import Front, Graph, Group, Map, Merge, Sink
from emberflow.graph.transactions import State
from emberflow.runners.batch.plan.ordering import Ordering


@dataclass(frozen=True, slots=True)
class Stage:
    """A shuffle of some datasets, and the pass after it that makes the next dataset."""

    datasets: tuple[int, ...]
    units: tuple[int, ...]
    targets: frozenset[int]


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """How the rows of a sink, or of all, are made. Frames are numbered: fronts, then stages."""

    sink: Sink | None
    fronts: tuple[Front, ...]
    #: For each front, the units that its elements go to.
    front_targets: tuple[frozenset[int], ...]
    stages: tuple[Stage, ...]
    #: The datasets whose rows are all for the sink.
    last: tuple[int, ...]


class Units:
    """The units of a graph, and how items get from one unit to the next."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.layout = Layout(graph, fuses_ticks=False)
        self.ordering = Ordering(self.layout)
        self.units = self.ordering.units
        #: By node: the number of its unit, for stateful units.
        self.of_node = {
            node: number
            for number, unit in enumerate(self.units)
            if self._is_stateful(unit)
            for node in unit.nodes
        }

    def _is_stateful(self, unit: Unit) -> bool:
        node = unit.nodes[0]
        return (
            unit.is_region
            or node in self.layout.fused
            or isinstance(self.graph.nodes[node], Group | State)
        )

    @property
    def sink_target(self) -> int:
        """The number that stands for the sink among the numbers of units."""
        return len(self.units)

    @cached_property
    def behind(self) -> dict[int, list[int]]:
        """By node: the nodes that it reads from, with reductions fused."""
        behind: dict[int, list[int]] = {node: [] for node in self.layout.nodes}
        for node, readers in self.ordering.joined.items():
            for reader in readers:
                behind[reader].append(node)
        return behind

    def leading_to(self, sink: Sink | None) -> frozenset[int]:
        """The sink and all nodes that it depends on; all nodes if it is None."""
        if sink is None:
            return frozenset(self.layout.nodes)
        found: set[int] = set()
        stack = [sink.id]
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack.extend(self.behind[node])
        return frozenset(found)

    def targets(self, nodes: tuple[int, ...], needed: frozenset[int]) -> frozenset[int]:
        """The units, or the sink, that the output of these nodes goes to next."""
        found: set[int] = set()
        stack = [reader for node in nodes for reader in self.layout.readers[node]]
        seen: set[int] = set(nodes)
        while stack:
            node = stack.pop()
            if node in seen or node not in needed:
                continue
            seen.add(node)
            if node in self.of_node:
                found.add(self.of_node[node])
            elif isinstance(self.graph.nodes[node], Sink):
                found.add(self.sink_target)
            else:
                stack.extend(self.layout.readers[node])
        return frozenset(found)

    def keyed_node(self, unit: Unit, entry: int) -> int | None:
        """The node whose key partitions a cycle's input; None if a round may change the key.

        A cycle keeps the key if its only stateful node is a reduction of ours and its maps are
        known to leave the key alone.
        """
        if not unit.is_region:
            return unit.nodes[0]
        nodes = [self.graph.nodes[node] for node in unit.nodes]
        stateful = [node for node in unit.nodes if node in self.layout.fused]
        if (
            len(stateful) != 1
            or self.layout.fused[stateful[0]].keyed
            or any(isinstance(node, Group | State) for node in nodes)
            or not all(_keeps_key(node) for node in nodes if isinstance(node, Map))
        ):
            return None
        while entry not in self.layout.fused:
            if not isinstance(self.graph.nodes[entry], Merge):
                return None
            (entry,) = self.layout.readers[entry]
        return entry


def plan_of(units: Units, sink: Sink | None, diverting: Collection[str] = ()) -> SinkPlan:
    """The stages that make the rows of a sink; of all sinks if it is None.

    ``diverting`` are the fronts whose late elements go to the late sink.
    """
    needed = units.leading_to(sink)
    late = units.graph.late_node
    entrances = {
        name: [front.id, *([late] if late is not None and name in diverting else [])]
        for name, front in units.graph.fronts.items()
    }
    fronts = tuple(
        front for name, front in units.graph.fronts.items() if needed.intersection(entrances[name])
    )
    front_targets = tuple(
        units.targets(tuple(needed.intersection(entrances[front.name])), needed) for front in fronts
    )
    waiting = sorted({number for node, number in units.of_node.items() if node in needed})
    reached = {number: units.targets(units.units[number].nodes, needed) for number in waiting}
    datasets = list(front_targets)
    unread = set(range(len(datasets)))
    stages: list[Stage] = []
    while waiting:
        read, run = _next_stage(waiting, reached, datasets, unread)
        passing = frozenset(
            target for dataset in read for target in datasets[dataset] if target not in run
        )
        targets = passing.union(*(reached[number] for number in run))
        stages.append(Stage(tuple(sorted(read)), tuple(sorted(run)), targets))
        datasets.append(targets)
        unread = unread - read | {len(datasets) - 1}
        waiting = [number for number in waiting if number not in run]
    return SinkPlan(sink, fronts, front_targets, tuple(stages), tuple(sorted(unread)))


def _next_stage(
    waiting: list[int],
    reached: dict[int, frozenset[int]],
    datasets: list[frozenset[int]],
    unread: set[int],
) -> tuple[set[int], set[int]]:
    """The datasets that the next stage reads, and the units that it runs on them.

    A unit may run once no waiting unit leads to it. Units are numbered in topological order, so the
    first waiting unit always may. The stage also runs all other such units that its datasets have
    rows for.
    """
    led_to: set[int] = set()
    for number in waiting:  # in topological order
        led_to |= reached[number]
    ready = [number for number in waiting if number not in led_to]
    run, read = {ready[0]}, set[int]()
    while True:
        more = {dataset for dataset in unread if datasets[dataset] & run}
        targets = set[int]().union(*(datasets[dataset] for dataset in more))
        also = {number for number in ready if number in targets} | run
        if more == read and also == run:
            return read, run
        read, run = more, also


def _keeps_key(node: Map) -> bool:
    return any(node.function is known for known in KEEPS_KEY)
