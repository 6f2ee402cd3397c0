"""``ordering="arrival"``: a worker without order, and snapshots by markers. The baseline.

It is what today's engines do. A worker processes items as they come, takes nothing back and waits for no
minimal time. The state that comes of it depends on the order of arrival, so nobody can compute it
again: after a crash it has to be *restored*, together with the output that it led to. That is what
asynchronous barrier snapshotting is for (Carbone and others, "Lightweight asynchronous snapshots for
distributed dataflows"), and why output has to wait for it.

The runner tells every worker to inject marker ``n`` behind what its fronts have given. `alignment` says
how the marker passes through a worker, `snapshot` what is saved, `outputs` when output leaves.

Invariants, each of which a test breaks to see it caught:

1. *A marker is met with empty mailboxes*: the worker runs what came ahead of it first (`alignment`).
2. *FIFO*: items and markers leave on an edge in the order they came (`outbox`).
3. *One snapshot at a time* (`alignment`).
4. *Nothing is committed over output that could be lost.* Snapshot ``n + 1`` does not hold the output
   of epoch ``n``. So a worker says that it has stored its part of ``n + 1`` only when it has
   released epoch ``n`` and the sinks have stored it (`owes`, and the runner's stores).

The worker does not need the minimal time, but its acks tell when nothing is in flight (for the end of a
query, and for the stop-the-world snapshot), and give fronts their credits back.

**In a cycle** on one worker, what an item leads to goes before the next item. A user's own drifting
state (a loop that brings an accumulator back) still loses updates here, wherever an item overtakes
the accumulator on the way; `reduce` is one machine, and does not.

**Stop the world** (`snapshot_at_once`) is what the paper compares with: the runner halts the fronts,
waits until nothing is in flight, has every worker take its snapshot, and goes on when it is
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from emberflow.engine.arrival.alignment import Alignment
from emberflow.engine.arrival.channels import Channels, Edge
from emberflow.engine.arrival.machines import ArrivalMachines
from emberflow.engine.arrival.outbox import MarkerOutbox
from emberflow.engine.arrival.outputs import EpochOutputs, Outputs
from emberflow.engine.arrival.snapshot import Snapshot
from emberflow.engine.cuts.cut import Capture, Row, Scheduled
from emberflow.engine.interface import BarrierStatistics, NodeStatistics, Statistics
from emberflow.engine.layout import Layout, Unit
from emberflow.engine.messages import BEFORE_ALL, Bundle, Effects, Frame, Moment, Progress
from emberflow.engine.worker.mailboxes import Mailboxes
from emberflow.engine.worker.routing import Routes, barrier_host
from emberflow.errors import Diverted, EndlessLoopError, InternalError
from emberflow.values.hashing import owner
from emberflow.values.item import CHILD_IDS_MAX, FlatItem, GlobalTime, Place
from emberflow.values.owners import Owners, equal_owners


class MarkerWorker:
    """One worker of ``workers``, by arrival.

    ``restored`` is the number of the snapshot that it begins from, 0 for none; ``delivered`` what
    each sink partition has from earlier. Without ``holds_output`` nothing waits for a snapshot: what
    comes to a sink leaves at once, and may come again after a crash.
    """

    def __init__(
        self,
        layout: Layout,
        index: int,
        workers: int,
        *,
        incarnation: int = 0,
        delivered: dict[tuple[str, int], Moment] | None = None,
        restored: int = 0,
        holds_output: bool = True,
        owners: Owners | None = None,
    ) -> None:
        self.layout = layout
        self.index = index
        self.workers = workers
        self.machines = ArrivalMachines(layout)
        self.channels = Channels(layout, index, workers)
        #: The minimal time that was heard last.
        self.minimal: Moment = BEFORE_ALL
        self._elements = 0
        self._waited = 0.0
        self._items_of = dict.fromkeys(layout.nodes, 0)
        self._outputs = EpochOutputs(layout, delivered or {}, holds=holds_output)
        self._outputs.check_restored(restored)
        owners = equal_owners(workers) if owners is None else owners
        self._routes = Routes(layout, index, workers, owners, self.machines.stateful)
        self._mailboxes = Mailboxes(layout, by_place=False)
        self._outbox = MarkerOutbox(index, incarnation)
        self._alignment = Alignment(
            layout,
            index,
            self.channels,
            self.machines,
            self._outputs,
            self._mailboxes,
            self._outbox,
        )
        self._regions = {
            rank: partial(self._run_region, unit)
            for rank, unit in enumerate(layout.units)
            if unit.is_region
        }

    # Events.

    def enter_items(
        self,
        node: int,
        items: list[FlatItem],
        reports: dict[int, Moment],
        malformed: Sequence[tuple[Place, Diverted | Exception]] = (),
    ) -> Effects:
        """Take in elements of a front, and what the front promises after them.

        ``malformed`` is what the run ends with, if anything: nothing is diverted here.
        """
        for _, problem in malformed:
            assert isinstance(problem, Exception)
            raise problem
        if items:
            self._elements += len(items)
            self._mailboxes.put(node, items)
        self._outbox.reports.update(reports)
        self._run()
        return self._effects()

    def deliver(self, frames: Sequence[Frame]) -> Effects:
        """Take in frames of other workers, in the order they came (`outbox` says what is in them)."""
        edges = self.channels.edges
        self._outbox.finish(frames)
        for frame in frames:
            for number, items in frame.parts:
                if number >= 0:
                    edge = edges[number]
                    if self._alignment.may_pass(edge, frame.sender, items):
                        self._mailboxes.put(edge.reader, items)
                else:
                    (((marker, _), _, full),) = items
                    self._run_ahead()
                    self._alignment.meet(marker, edges[~number], frame.sender, full=full)
        self._run()
        return self._effects()

    def progress(self, progress: Progress, frames: Sequence[Frame] = ()) -> Effects:
        """Note the minimal time for whoever asks; this worker does not wait for it."""
        self.minimal = progress.of_range(self.index)
        return self.deliver(frames) if frames else self._effects()

    @property
    def is_untidy(self) -> bool:
        return False

    def tidy(self, *, is_waited_for: bool = False) -> None:
        """There is nothing to trim: no item comes late here."""

    # Snapshots.

    def inject(self, number: int, *, full: bool) -> Effects:
        """Send marker ``number`` from the fronts here. ``full``: of all states, not of those that
        changed since the snapshot before."""
        self._run_ahead()
        self._alignment.inject(number, full=full)
        self._run()
        return self._effects()

    def snapshot_at_once(self, number: int, *, full: bool) -> None:
        """Take a snapshot of all tasks. Nothing may be in flight, on any worker."""
        self._run_ahead()
        self._alignment.save_all(number, full=full)

    def complete_snapshot(self) -> Snapshot | None:
        """The snapshot under way, once all tasks here are through with it."""
        return self._alignment.complete()

    def begin_cut(self, moment: Moment, since: Moment) -> Capture:
        """What the complete snapshot of this moment saves. The next one may begin."""
        snapshot = self._alignment.complete()
        if snapshot is None or snapshot.moment != moment:
            raise InternalError(f"worker {self.index} has no complete snapshot {moment[0]} to save")
        self._alignment.snapshot = None
        return Capture(moment, snapshot.saved(self.layout.graph, self.index))

    def owes(self, number: int) -> bool:
        """Whether output of a snapshot before this one waits for its commit."""
        return self._outputs.owes(number)

    def committed(self, number: int) -> list[Bundle]:
        """Snapshot ``number`` can be restored, whatever happens: its output goes to the sinks."""
        return self._outputs.committed(number)

    # Restoring: before anything else happens.

    def restore(self, rows: Iterable[Row]) -> None:
        """Take over states of this worker's range. May be called again with more of them."""
        rows_of: dict[str, list[Row]] = {}
        for row in rows:
            rows_of.setdefault(row.operation, []).append(row)
        for machine in self.machines.stateful.values():
            machine.restore(rows_of.pop(machine.operation, []))
        if rows_of:
            raise InternalError(
                f"the snapshot holds the state of operations that the flow "
                f"{self.layout.graph.flow!r} does not have: {sorted(rows_of)}"
            )

    def restore_in_flight(self, number: int, saved: Iterable[Scheduled]) -> Effects:
        """Release the output of snapshot ``number`` that lives here, and go on with logged items.

        ``saved`` is of all workers: there may be another number of them than before.
        """
        outputs: Outputs = {}
        for row in sorted(saved, key=lambda row: row.place):
            node, partition = row.origin
            if node >= 0:
                sink = self.layout.sinks[node]
                if barrier_host(sink, partition, self.workers) == self.index:
                    outputs.setdefault((node, partition), []).extend(
                        ((number, 0), 0, payload) for payload in row.payload
                    )
            elif owner(row.key_hash, self.workers) == self.index:
                self._send(self.channels.edges[~node], row.payload)
        self._run()
        effects = self._effects()
        return effects._replace(bundles=effects.bundles + self._outputs.bundled(outputs, number))

    # Running the graph.

    def _run(self) -> None:
        self._mailboxes.run(self._run_node, self._regions)

    def _run_ahead(self) -> None:
        """Run what came ahead of a marker, so that the marker is met with empty mailboxes."""
        self._run()

    def _run_node(
        self,
        node: int,
        items: list[FlatItem],
        send: Callable[[Edge, list[FlatItem]], None] | None = None,
    ) -> None:
        self._items_of[node] += len(items)
        failed: list[FlatItem] = []
        if node in self.layout.sinks:
            by_partition = self._routes.by_partition(node, items, failed)
            for partition, own in by_partition.items():
                self._outputs.add(node, partition, own)
            if failed:
                _raise_first(node, failed)
            return
        outputs = self.machines.process[node](items, failed)
        if failed:
            _raise_first(node, failed)
        if send is None:
            send = self._send
        for edge, output in zip(self.channels.out[node], outputs, strict=True):
            if output:
                send(edge, output)

    def _run_region(self, unit: Unit) -> None:
        """Run a cycle item by item; what an item leads to goes before the next one."""
        stack: list[tuple[int, FlatItem]] = []
        nodes = set(unit.nodes)

        def file(node: int, items: list[FlatItem]) -> None:
            stack.extend((node, item) for item in reversed(items))

        def send(edge: Edge, output: list[FlatItem]) -> None:
            here = self._here(edge, output)
            if here and self._alignment.may_pass(edge, self.index, here):
                if edge.reader in nodes:
                    file(edge.reader, here)
                else:
                    self._mailboxes.put(edge.reader, here)

        for node in reversed(unit.nodes):
            file(node, self._mailboxes.take(node))
        while stack:
            node, item = stack.pop()
            if len(item[0]) - 2 > CHILD_IDS_MAX and node in self.layout.graph.loop_entries:
                raise EndlessLoopError.of(
                    str(self.layout.graph.nodes[node]),
                    GlobalTime(item[0][0], item[0][1]),
                    item[2],
                )
            self._run_node(node, [item], send)

    def _send(self, edge: Edge, items: list[FlatItem]) -> None:
        here = self._here(edge, items)
        if here and self._alignment.may_pass(edge, self.index, here):
            self._mailboxes.put(edge.reader, here)

    def _here(self, edge: Edge, items: list[FlatItem]) -> list[FlatItem]:
        """Which of these items stay on this worker. The others are posted."""
        here, elsewhere = self._routes.split(edge.reader, items, _raise_first)
        for destination, sent in elsewhere.items():
            self._outbox.post(destination, edge, sent)
        return here

    def _effects(self) -> Effects:
        frames, ack = self._outbox.emptied(self._alignment.buffered)
        return Effects(frames, ack, self._outputs.leaving(), None)

    # Looking at it.

    @property
    def buffered(self) -> int:
        """Items that wait behind a marker."""
        return self._alignment.buffered

    @property
    def keys(self) -> int:
        return sum(len(machine.buckets) for machine in self.machines.stateful.values())

    @property
    def held_items(self) -> int:
        return self._outputs.held_items

    def pass_time(self, elapsed: float) -> None:
        """Count the time that output has waited for its commit since the last call (Little's law)."""
        self._waited += elapsed * self.held_items

    def statistics(self, *, sizes_too: bool = True) -> Statistics:
        """Counters of all machines, as of now."""
        machines = self.machines.stateful.values()
        sizes = [size for machine in machines for size in machine.sizes()] if sizes_too else []
        names = {node.id: node.name for node in self.layout.graph.nodes}
        released = self._outputs.released
        return Statistics(
            items=sum(self._items_of.values()),
            elements=self._elements,
            frames_sent=self._outbox.frames_made,
            items_sent=self._outbox.items_sent,
            arrived=released,  # nothing is replayed: for each one released, one has come
            released=released,
            waited=self._waited,
            buckets=self.keys,
            bucket_items=sum(sizes),
            bucket_largest=max(sizes, default=0),
            items_of={names[node]: count for node, count in self._items_of.items()},
        )

    def node_statistics(self) -> dict[int, NodeStatistics]:
        """The counters of each node that runs here."""
        stateful = self.machines.stateful
        return {
            node: NodeStatistics(items, keys=len(stateful[node].buckets) if node in stateful else 0)
            for node, items in self._items_of.items()
        }

    def barrier_statistics(self) -> dict[tuple[str, int], BarrierStatistics]:
        """There are no barriers: output waits for its commit."""
        return {}

    @property
    def running(self) -> tuple[int, list[FlatItem]] | None:
        """Nobody looks on here."""
        return None


def _raise_first(node: int, failed: list[FlatItem]) -> None:
    """End the run with the first failure: what a function is shown here is no guess."""
    raise failed[0][2]
