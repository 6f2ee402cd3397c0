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

from emberflow.dsl.operators import KEEPS_KEY
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
class Plan:
    """How the rows of a sink, or of other goals, are made.

    Datasets are numbered: fronts, then what the version before has left, if that is needed, then stages.
    """

    fronts: tuple[Front, ...]
    #: For each front, the units that its elements go to.
    front_targets: tuple[frozenset[int], ...]
    #: The units that state and scheduled items of the version before go to; None if there are none.
    taken_targets: frozenset[int] | None
    stages: tuple[Stage, ...]
    #: The datasets whose rows are all for the goals.
    last: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a version takes over from the one before it and from backfills, as far as its goals need it."""

    #: The nodes that begin with state, and the maps that have scheduled items.
    keepers: frozenset[int]
    maps: frozenset[int]
    #: Which of the plan's backfills have some of it.
    backfills: tuple[int, ...] = ()


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
        #: By the name that a cut has for its state: the node with that state.
        self.keepers = {
            keeper_of(self.layout, node): node
            for node in self.of_node
            if node in self.layout.fused or isinstance(graph.nodes[node], Group | State)
        }
        #: The maps by name.
        self.maps = {node.name: node for node in graph.nodes if isinstance(node, Map)}

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

    def leading_to(self, goals: frozenset[int] | None) -> frozenset[int]:
        """These nodes and all nodes that they depend on; all nodes if it is None."""
        if goals is None:
            return frozenset(self.layout.nodes)
        found: set[int] = set()
        stack = [*goals]
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

    def may_schedule(self, node: int) -> bool:
        """Whether a map may schedule items. A filter cannot, nor can a map within a reduction."""
        found = self.graph.nodes[node]
        return isinstance(found, Map) and found.mode != "keep" and node in self.layout.readers

    def reader_of_scheduled(self, node: int) -> int | None:
        """The node that gets what a map has scheduled; None for a map within a reduction."""
        readers = self.layout.readers.get(node)
        return None if readers is None else readers[0]

    def is_spread(self, unit: Unit) -> bool:
        """Whether items go to a unit by their keys. Otherwise one task has all of them."""
        if not unit.is_region:
            return True
        entries = [node for node in unit.nodes if not set(self.behind[node]).issubset(unit.nodes)]
        return all(
            self.ordering.spreading_key(unit, entry) is not None
            or self.keyed_node(unit, entry) is not None
            for entry in entries
        )


def keeper_of(layout: Layout, node: int) -> str:
    """The name under which a cut has the state of a node.

    A reduction's state is its accumulator, saved under the name of the grouping of its cycle.
    """
    fused = layout.fused.get(node)
    return layout.graph.nodes[node if fused is None else fused.reduction.group].name


def plan_of(
    units: Units,
    goals: frozenset[int] | None,
    diverting: Collection[str] = (),
    taken: Taken | None = None,
) -> Plan:
    """The stages that lead to some nodes: to a sink, or to nodes whose state is wanted; to all if None.

    ``diverting`` are the fronts whose late elements go to the late sink.
    """
    needed = units.leading_to(goals)
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
    taken_targets: frozenset[int] | None = None
    if taken is not None:
        taken_targets = frozenset(units.of_node[node] for node in taken.keepers)
        taken_targets = taken_targets.union(
            *(units.targets((node,), needed) for node in taken.maps)
        )
        datasets.append(taken_targets)
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
    last = tuple(sorted(unread))
    return Plan(fronts, front_targets, taken_targets, tuple(stages), last)


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
