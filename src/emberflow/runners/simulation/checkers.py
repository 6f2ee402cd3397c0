"""Invariants of every run, checked by objects that know more than any machine does.

Checkers see every frame, element and bundle. They share no code with the machines that they check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, TypeAlias

from emberflow.engine.machines.cold import Cooling
from emberflow.engine.messages import BEFORE_ALL, Bundle, Frame, Moment, Progress
from emberflow.engine.worker.ranges import Reached, owned_nodes
from emberflow.engine.worker.routing import barrier_host
from emberflow.engine.worker.worker import Worker
from emberflow.graph.nodes import Graph, Merge, Sink
from emberflow.graph.transactions import Close, State
from emberflow.values.hashing import key_hash, owner
from emberflow.values.item import FlatItem, Place
from emberflow.values.owners import Owners

_Least: TypeAlias = tuple[Place, int] | None
#: The node of a sink, a partition of it, and the worker that hosts that.
_Partition: TypeAlias = tuple[int, int, int]


class CheckError(AssertionError):
    """An invariant of the engine does not hold."""


class MinimalTimeChecker:
    """The minimal time never passes an item that is in flight or will ever enter."""

    def __init__(self, graph: Graph, workers: list[Worker]) -> None:
        self._workers = list(workers)
        self._graph = graph
        self._sinks = {sink.id for sink in graph.sinks.values()} | {len(graph.nodes)}
        self._flying: dict[int, tuple[int, Frame]] = {}
        #: By frame id: the least place in the frame and the node that it is for. The first of the
        #: pair covers items for ordinary nodes, the second items for barriers. Where keys have ranges of their
        #: own, what is for barriers and what these keys concern is told by partition.
        self._leasts: dict[int, tuple[_Least, _Least]] = {}
        self._of_partitions: dict[int, dict[_Partition, _Least]] = {}
        #: The node of failures. Where keys have ranges of their own, failures come from the keys of all workers,
        #: and only the minimal time of all waits for them.
        self._failures = len(graph.nodes)
        self._count = 1
        self._owned: dict[int, frozenset[Reached]] = {}
        self._key_of: dict[int, Callable[[Any], Any]] = {}
        for worker in workers:
            self._learn(worker)
        self._entering: dict[int, list[Moment]] = {}

    def watch(self, worker: Worker) -> None:
        self._workers.append(worker)
        self._learn(worker)

    def _learn(self, worker: Worker) -> None:
        layout, self._count = worker.layout, worker.workers
        if not self._owned and self._count > 1:
            self._owned = owned_nodes(layout)
            for node in self._owned:
                balance = layout.balance_of(node)
                assert balance is not None
                self._key_of[node] = balance[0]

    def will_enter(self, front: int, moments: list[Moment]) -> None:
        self._entering[front] = sorted(moments, reverse=True)

    def entered(self, front: int, moment: Moment) -> None:
        expected = self._entering[front].pop()
        if expected != moment:
            raise CheckError(f"front {front} emitted {moment} instead of {expected}")

    def sent(self, destination: int, frame: Frame) -> None:
        if frame.id in self._flying:
            raise CheckError(f"two frames in flight have the id {frame.id}")
        self._flying[frame.id] = (destination, frame)

    def processed(self, frame: Frame) -> None:
        if self._flying.pop(frame.id, None) is None:
            raise CheckError(f"a frame was processed that nobody here sent: {frame.id}")
        self._leasts.pop(frame.id, None)
        self._of_partitions.pop(frame.id, None)

    def progress(self, progress: Progress) -> None:
        """Check the progress that the acker announces."""
        self._check(progress.anywhere, progress.of_range)
        if progress.within:
            for _, frame in self._in_flight():
                for node, items in frame.parts:
                    if node not in self._sinks and node not in self._owned:
                        self._check_turns(progress.within, node, items)
        if self._owned:
            reaching = self._workers[-1].ranges.reaching
            self._check_partitions(
                lambda sink, partition, host: progress.of_range(
                    host, reaching.get((sink, partition), ())
                ),
                progress.of_all(),
            )

    def at_barriers(self, worker: Worker) -> None:
        """Check a worker's own minimal time: for its own range it may know more than the acker.

        Everything in flight may still get there, except items for other workers' barriers.
        """
        at_own = {worker.index: worker.minimal}
        self._check(worker.minimal, lambda destination: at_own.get(destination, BEFORE_ALL))
        if self._owned:
            until = worker.released_until
            self._check_partitions(
                lambda sink, partition, host: until.get((sink, partition), BEFORE_ALL), BEFORE_ALL
            )

    def _check(self, anywhere: Moment, of_range: Callable[[int], Moment]) -> None:
        for front, moments in self._entering.items():
            if moments and moments[-1] < anywhere:
                raise CheckError(
                    f"the minimal time is {anywhere} and front {front} has still to emit "
                    f"{moments[-1]}"
                )
        for destination, frame in self._in_flight():
            going_on, at_barriers = self._least_of(frame)
            for least, minimal in ((going_on, anywhere), (at_barriers, of_range(destination))):
                self._check_least(least, minimal, destination)

    def _check_partitions(
        self, until_of: Callable[[int, int, int], Moment], of_all: Moment
    ) -> None:
        """Where keys have ranges of their own: check what can reach each partition of each sink."""
        for destination, frame in self._in_flight():
            for (sink, partition, host), least in self._leasts_of_partitions(frame).items():
                until = of_all if sink == self._failures else until_of(sink, partition, host)
                self._check_least(least, until, destination)

    def _check_least(self, least: _Least, minimal: Moment, destination: int) -> None:
        if least is not None and least[0][:2] < minimal:
            raise CheckError(
                f"the minimal time is {minimal} and an item at {least[0]} is still in "
                f"flight to node {least[1]} of worker {destination}"
            )

    def _least_of(self, frame: Frame) -> tuple[_Least, _Least]:
        """Cached by frame: every step looks at every frame in flight."""
        leasts = self._leasts.get(frame.id)
        if leasts is None:
            places: dict[bool, list[tuple[Place, int]]] = {True: [], False: []}
            for node, items in frame.parts:
                is_bound = node in self._sinks
                if not self._owned or not (is_bound or node in self._owned):
                    places[is_bound] += [(place, node) for place, _, _ in items]
            leasts = min(places[False], default=None), min(places[True], default=None)
            self._leasts[frame.id] = leasts
        return leasts

    def _leasts_of_partitions(self, frame: Frame) -> dict[_Partition, _Least]:
        """What of a frame is on its way to a partition, or can reach it by its key: the least place each."""
        leasts = self._of_partitions.get(frame.id)
        if leasts is None:
            leasts = self._of_partitions[frame.id] = {}
            for node, items in frame.parts:
                for place, _, payload in items:
                    for partition in self._partitions_of(node, payload):
                        known = leasts.get(partition)
                        leasts[partition] = min((place, node), known or (place, node))
        return leasts

    def _partitions_of(self, node: int, payload: Any) -> Iterable[_Partition]:
        if node == self._failures:
            return [(node, 0, 0)]
        if node in self._sinks:
            sink = self._graph.nodes[node]
            assert isinstance(sink, Sink)
            hashed = 0
            if sink.key is not None and sink.partitions > 1:
                hashed = key_hash(sink.key.function(payload))
            return self._those_of(sink, (owner(hashed, sink.partitions),))
        if node not in self._owned:
            return ()
        hashed, found = key_hash(self._key_of[node](payload)), list[_Partition]()
        for reached in self._owned[node]:
            sink = self._graph.nodes[reached.sink]
            assert isinstance(sink, Sink)
            by_key = (owner(hashed, sink.partitions),)
            found += self._those_of(sink, by_key if reached.by_key else range(sink.partitions))
        return found

    def _those_of(self, sink: Sink, partitions: Iterable[int]) -> list[_Partition]:
        return [(sink.id, each, barrier_host(sink, each, self._count)) for each in partitions]

    def _in_flight(self) -> list[tuple[int, Frame]]:
        held = [(worker.index, frame) for worker in self._workers for frame in worker.held()]
        return [*self._flying.values(), *held]

    def _check_turns(self, turn: Place, node: int, items: list[FlatItem]) -> None:
        """A closer that goes by turns relies on this: no earlier transaction can change any more."""
        bound_for = self._graph.nodes[node] if node < len(self._graph.nodes) else None
        if isinstance(bound_for, Merge):
            bound_for = self._graph.nodes[self._graph.readers[node][0][0]]
        for place, _, payload in items:
            if isinstance(bound_for, State):
                own = place[: payload[2]]
            elif isinstance(bound_for, Close):
                own = payload[0]
            else:
                own = place
            if own < turn:
                raise CheckError(
                    f"it is the turn of {turn} and an item at {place} of {own} is still in flight "
                    f"to node {node}"
                )

    def finished(self) -> None:
        if self._flying:
            raise CheckError(f"{len(self._flying)} frames never arrived")
        if any(self._entering.values()):
            raise CheckError(f"elements never entered: {self._entering}")


class ReleaseChecker:
    """Barriers release in order, each place once, and a bundle's time is the time of its last item."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Place] = {}

    def released(self, bundle: Bundle) -> None:
        partition = (bundle.sink, bundle.partition)
        last = self._last.get(partition, ())
        for place, _, _ in bundle.items:
            if place <= last:
                raise CheckError(
                    f"sink {bundle.sink!r} partition {bundle.partition} released {place} after "
                    f"{last}"
                )
            if last and place[:2] == last[:2] and last is self._last.get(partition):
                raise CheckError(
                    f"sink {bundle.sink!r} partition {bundle.partition} got the global time "
                    f"{place[:2]} in two bundles"
                )
            last = place
        self._last[partition] = last
        if bundle.last != last[:2]:
            raise CheckError(f"the bundle's last global time is {bundle.last} and not {last[:2]}")


def check_owners(workers: list[Worker], owners: Owners) -> None:
    """What outlives a transaction is at the worker that owns its key, and nowhere else."""
    for worker in workers:
        for node, machine in worker.machines.stateful.items():
            keys: Iterable[Any] = machine.buckets if machine.kept else ()
            left = set(machine.left)  # by a move: they are dropped soon
            cold = machine.cold if isinstance(machine, Cooling) else None
            for key in chain(keys, () if cold is None else (row.key for row in cold.all())):
                owner = owners.owner(key_hash(key))
                if owner != worker.index and key not in left:
                    raise CheckError(
                        f"worker {worker.index} has the bucket of {key!r} at "
                        f"{worker.layout.graph.nodes[node]}, and worker {owner} owns it"
                    )


def check_drained(workers: list[Worker], entries: int) -> None:
    """At the end all tables are empty, and buckets hold no more than they must."""
    if entries:
        raise CheckError(f"the acker still has {entries} global times that are not done")
    for worker in workers:
        if worker.held():
            raise CheckError(f"worker {worker.index} still holds items back")
        worker.trim()
        for node, by_partition in worker.barriers.items():
            for partition, barrier in by_partition.items():
                if barrier.held_items:
                    raise CheckError(
                        f"worker {worker.index}: {barrier.held_items} items are left at the "
                        f"barrier of node {node} partition {partition}"
                    )
        for node, machine in worker.machines.stateful.items():
            longest = max(machine.sizes(), default=0)
            if longest > machine.kept:
                raise CheckError(
                    f"worker {worker.index}: a bucket of {worker.layout.graph.nodes[node]} holds "
                    f"{longest} items, and {machine.kept} are enough"
                )
            if machine.touched or machine.touched_earlier:
                raise CheckError(f"worker {worker.index}: trimmed buckets are noted as touched")


def check_patience(workers: list[Worker], patience: str) -> None:
    """A node that always waits for its frontier computes everything once, in order.

    So a frontier that passes what is still to come shows here, and so does a node that does not wait.
    """
    if patience != "always":
        return
    for worker in workers:
        layout = worker.layout
        for node, machine in worker.machines.stateful.items():
            if machine.replays and not layout.units[layout.rank[node]].is_region:
                raise CheckError(
                    f"worker {worker.index}: {layout.graph.nodes[node]} waited for its frontier and "
                    f"still replayed {machine.replays} items"
                )


def check_partitions(
    graph: Graph, partitions: dict[tuple[str, int], list[Any]], expected: dict[str, list[Any]]
) -> None:
    """Every partition of every sink holds exactly the bytes that the reference has for it."""
    for sink in graph.sinks.values():
        own: list[list[Any]] = [[] for _ in range(sink.partitions)]
        for payload in expected[sink.name]:
            key = sink.key
            own[0 if key is None else owner(key_hash(key.function(payload)), len(own))].append(
                payload
            )
        for partition, wanted in enumerate(own):
            name = f"{sink.name}[{partition}]"
            got = partitions[sink.name, partition]
            check_outputs({name: got}, {name: wanted})
            if repr(got) != repr(wanted):
                raise CheckError(f"{name}: equal outputs that do not look alike")


def check_outputs(outputs: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    """The output equals that of the reference."""
    for sink, payloads in expected.items():
        if outputs[sink] == payloads:
            continue
        for number, (got, wanted) in enumerate(zip(outputs[sink], payloads, strict=False)):
            if got != wanted:
                raise CheckError(
                    f"sink {sink!r}: output {number} is {got!r}, the reference has {wanted!r}"
                )
        raise CheckError(
            f"sink {sink!r}: {len(outputs[sink])} outputs, the reference has {len(payloads)}; "
            f"they agree as far as the shorter goes"
        )
