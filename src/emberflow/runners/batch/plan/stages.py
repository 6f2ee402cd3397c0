"""From a graph to stages: what runs in one pass, and what goes through a shuffle to the next.

A grouping, a fused reduction, a state or a cycle is a *unit*: it needs its items sorted, so a shuffle
stands before it. Everything else (map, broadcast, merge) runs in the pass that made its input. Each
sink has a plan of its own, of the units that lead to it and nothing else: the plan is a DataFrame,
and a DataFrame is computed for whoever asks.

Items between passes are rows of one kind, tagged with the unit they are for. A *frame* is a
DataFrame of such rows and the set of units they are for. A stage takes frames, runs some units on
them and lets rows for other units pass; each frame is read once. Where a stream forks and joins
again, the two branches are therefore one frame, not two plans that Spark would compute twice (and
2**n times, for n forks one after another); the price is that rows may pass a shuffle that they did
not need. A flow without forks has no such rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from emberflow.dsl.operators.windows import KEEPS_KEY
from emberflow.engine.layout import Layout, Unit
from emberflow.graph.nodes import Front, Graph, Group, Map, Merge, Sink
from emberflow.graph.transactions import State
from emberflow.runners.batch.plan.ordering import Ordering


@dataclass(frozen=True, slots=True)
class Stage:
    """A shuffle of some frames and a pass behind it that makes the next frame."""

    frames: tuple[int, ...]
    units: tuple[int, ...]
    targets: frozenset[int]


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """How the rows of a sink are made, or of all. Frames are numbered: the fronts', then the stages'."""

    sink: Sink | None
    fronts: tuple[Front, ...]
    #: The units that what enters by each of these fronts goes to.
    front_targets: tuple[frozenset[int], ...]
    stages: tuple[Stage, ...]
    #: The frames whose rows are all for the sink.
    last: tuple[int, ...]


class Units:
    """What of a graph needs its items sorted, and how items get from one to the next."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.layout = Layout(graph)
        self.ordering = Ordering(self.layout)
        self.units = self.ordering.units
        #: By node: the number of the unit that it belongs to, for units that keep anything.
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
        """Stands for the sink among the numbers of units."""
        return len(self.units)

    @cached_property
    def behind(self) -> dict[int, list[int]]:
        """By node: those that it depends on, with reductions fused."""
        behind: dict[int, list[int]] = {node: [] for node in self.layout.nodes}
        for node, readers in self.ordering.joined.items():
            for reader in readers:
                behind[reader].append(node)
        return behind

    def leading_to(self, sink: Sink | None) -> frozenset[int]:
        """All nodes that a sink depends on, and the sink; all nodes, if it is None."""
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
        """The units, or the sink, that items of these nodes go to next."""
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
        """The node whose key spreads what enters a cycle here; None if a round may change the key.

        It is known to keep it where the one thing in the cycle that keeps state is a reduction of
        ours, and what brings items back is known to leave their key alone.
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


def plan_of(units: Units, sink: Sink | None) -> SinkPlan:
    """The stages that make the rows of a sink; of all there is, if it is None."""
    needed = units.leading_to(sink)
    fronts = tuple(front for front in units.graph.fronts.values() if front.id in needed)
    front_targets = tuple(units.targets((front.id,), needed) for front in fronts)
    waiting = sorted({number for node, number in units.of_node.items() if node in needed})
    reached = {number: units.targets(units.units[number].nodes, needed) for number in waiting}
    frames = list(front_targets)
    unread = set(range(len(frames)))
    stages: list[Stage] = []
    while waiting:
        read, run = _next_stage(waiting, reached, frames, unread)
        passing = frozenset(
            target for frame in read for target in frames[frame] if target not in run
        )
        targets = passing.union(*(reached[number] for number in run))
        stages.append(Stage(tuple(sorted(read)), tuple(sorted(run)), targets))
        frames.append(targets)
        unread = unread - read | {len(frames) - 1}
        waiting = [number for number in waiting if number not in run]
    return SinkPlan(sink, fronts, front_targets, tuple(stages), tuple(sorted(unread)))


def _next_stage(
    waiting: list[int],
    reached: dict[int, frozenset[int]],
    frames: list[frozenset[int]],
    unread: set[int],
) -> tuple[set[int], set[int]]:
    """Which frames the next stage reads, and which units run on them.

    A unit may run once no other unit that waits leads to it. Units are numbered in topological
    order, so the first that waits always may; with it, all others that its frames have rows for.
    """
    led_to: set[int] = set()
    for number in waiting:  # in topological order, so what is led to is known in time
        led_to |= reached[number]
    ready = [number for number in waiting if number not in led_to]
    run, read = {ready[0]}, set[int]()
    while True:
        more = {frame for frame in unread if frames[frame] & run}
        targets = set[int]().union(*(frames[frame] for frame in more))
        also = {number for number in ready if number in targets} | run
        if more == read and also == run:
            return read, run
        read, run = more, also


def _keeps_key(node: Map) -> bool:
    return any(node.function is known for known in KEEPS_KEY)
