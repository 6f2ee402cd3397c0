"""``ordering="arrival"``: a worker without order, and snapshots by markers. The baseline.

It is what today's engines do. Items are processed as they come, nothing is taken back, no minimal
time is waited for. The state that comes of it depends on the order of arrival, so it cannot be
computed again: after a crash it has to be *restored*, together with the output that it led to. That
is what asynchronous barrier snapshotting is for (Carbone and others, "Lightweight asynchronous
snapshots for distributed dataflows"), and why output has to wait for it.

**Algorithm 1, of acyclic flows.** The runner tells every worker to inject marker ``n`` behind what
its fronts have given. The marker travels along the edges, behind the items that were sent before it.
A task (see `channels` for what that is here) that has the marker on one of its channels *blocks* it:
what comes there is buffered. When the marker is on all of them the task takes its snapshot, sends
the marker on, and unblocks. So its state holds all that came ahead of the marker on any channel and
nothing that came behind it: what is in flight between two tasks belongs to neither snapshot, and
need not be saved.

**Algorithm 2, of cyclic flows.** A task that waited for the marker on a back edge would wait for
itself. So back edges are not aligned. From the moment it sends the marker on, the task logs what
comes on a back edge, while it processes it, until the marker has come round. These items were sent
ahead of the marker and are in no state; the log is part of the snapshot.

**Output waits for the commit.** What comes to a sink between markers ``n - 1`` and ``n`` is the
output of epoch ``n``. It is part of snapshot ``n`` and becomes one bundle, with ``(n, 0)`` for its
last global time, when the runner says that snapshot ``n`` is committed: whoever restores it then
releases the same bundle again, and a sink that has it already says so.

Invariants, each of which a test breaks to see it caught:

1. *A marker is met with empty queues.* Before a marker is dealt with, all that came ahead of it has
   run as far as it goes on this worker. So within a worker a marker needs no queue: it is passed on
   from task to task at once, and what a task unblocks runs after all of them.
2. *FIFO.* What goes to another worker on an edge goes in one list, items and markers as they came.
3. *One snapshot at a time.* The runner injects ``n + 1`` when ``n`` is committed, so it cannot come
   before all tasks of all workers are through with ``n``.
4. *Nothing is committed over output that could be lost.* Snapshot ``n + 1`` does not hold the output
   of epoch ``n``. So a worker says that it has stored its part of ``n + 1`` only when it has
   released epoch ``n`` and the sinks have stored it (`owes`, and the runner's stores).

What follows does not need the minimal time, but its acks tell when nothing is in flight (for the end
of a query, and for the stop-the-world snapshot), and give fronts their credits back. What is
buffered is in flight: it is acked as frames that the worker sends to itself.

**In a cycle** on one worker, what an item leads to goes before the next item. A user's own drifting
state (a loop that brings an accumulator back) still loses updates here, wherever an item overtakes
the accumulator on the way; `reduce` is one machine, and does not.

**Stop the world** (`snapshot_at_once`) is what the paper compares with: the runner halts the fronts,
waits until nothing is in flight, has every worker take its snapshot, and goes on when it is
committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from emberflow.engine.arrival.channels import Channel, Channels, Edge
from emberflow.engine.arrival.machines import ArrivalMachines
from emberflow.engine.arrival.snapshot import Snapshot
from emberflow.engine.cuts.cut import Capture, Row, Scheduled
from emberflow.engine.interface import Statistics
from emberflow.engine.layout import Layout, Unit
from emberflow.engine.messages import (
    BEFORE_ALL,
    Ack,
    Bundle,
    Effects,
    Frame,
    Moment,
    Progress,
    TurnXors,
)
from emberflow.engine.worker.routing import Route, barrier_host
from emberflow.errors import Diverted, EmberflowError, EndlessLoopError, InternalError
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Front
from emberflow.values.hashing import owner, stable_id
from emberflow.values.item import CHILD_IDS_MAX, FlatItem, GlobalTime, Place
from emberflow.values.shares import equal_shares


class SnapshotGoneError(EmberflowError):
    """A sink has output of a snapshot that there is no more to restore."""


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
    ) -> None:
        self.layout = layout
        self.index = index
        self.workers = workers
        self.machines = ArrivalMachines(layout)
        self.channels = Channels(layout, index, workers)
        #: Output waits in none.
        self.barriers: dict[int, dict[int, Any]] = {}
        self._process = self.machines.process
        self._incarnation = incarnation
        self._holds_output = holds_output
        self._delivered = dict(delivered or {})
        if holds_output:
            self._check_delivered(restored)
        self._frames_made = 0
        self._elements = 0
        self._items_sent = 0
        self._released = 0
        self._items_of = dict.fromkeys(layout.nodes, 0)
        self._waiting: dict[int, list[list[FlatItem]]] = {}
        self._ready: list[int] = []
        #: By destination, parts in the order of sending; and the part of an edge that is still open.
        self._outgoing: dict[int, list[tuple[int, list[FlatItem]]]] = {}
        self._open: dict[tuple[int, int], list[FlatItem]] = {}
        self._finished: list[Frame] = []
        self._reports: dict[int, Moment] = {}
        #: The minimal time that was heard last.
        self.minimal: Moment = BEFORE_ALL
        self._routes = {
            node: Route(layout, node, equal_shares(workers))
            for node in layout.nodes
            if layout.balance_of(node) is not None
            and not (workers == 1 and (node in self.machines.stateful or node in layout.sinks))
        }
        self._sink_balances = {
            sink.id: balance_of(sink, sink.key)
            for sink in layout.sinks.values()
            if sink.key is not None
        }
        #: Output of the epoch under way, by node and partition.
        self._outputs: dict[tuple[int, int], list[FlatItem]] = {}
        #: Output of snapshots that are not committed, by their number.
        self._uncommitted: dict[int, dict[tuple[int, int], list[FlatItem]]] = {}
        self._snapshot: Snapshot | None = None
        self._unmarked: dict[int, int] = {}
        self._blocked: dict[Channel, list[list[FlatItem]]] = {}
        self._logging: dict[Channel, list[FlatItem]] = {}
        #: How many items are in ``_blocked``, and the frames to itself that stand for them.
        self.buffered = 0
        self._newly_buffered: list[tuple[int, list[FlatItem]]] = []
        self._buffered_as: list[Frame] = []

    def _check_delivered(self, restored: int) -> None:
        for (sink, partition), last in self._delivered.items():
            if sink in self.layout.graph.sinks and last[0] > restored:
                raise SnapshotGoneError(
                    f"sink {sink!r} partition {partition} has the output of snapshot {last[0]}, and "
                    f"the newest one to begin from is {restored or 'none'}. With "
                    f"ordering='arrival' that output would come out otherwise. Begin with an empty "
                    f"sink, or with the checkpointLocation that it was written from."
                )

    # Events.

    def enter_items(
        self,
        node: int,
        items: list[FlatItem],
        reports: dict[int, Moment],
        malformed: Sequence[tuple[Place, Diverted | Exception]] = (),
    ) -> Effects:
        """Elements of a front, and what the front promises after them.

        ``malformed`` is what the run ends with, if anything: nothing is diverted here.
        """
        for _, problem in malformed:
            assert isinstance(problem, Exception)
            raise problem
        if items:
            self._elements += len(items)
            self._wait(node, items)
        self._reports.update(reports)
        self._run()
        return self._effects()

    def deliver(self, frames: Sequence[Frame]) -> Effects:
        """Frames of other workers, in the order they came.

        A part is ``(edge, items)``, or ``(~edge, [((n, 0), 0, full)])`` for marker ``n``.
        """
        edges = self.channels.edges
        for frame in frames:
            self._finished.append(frame)
            for number, items in frame.parts:
                if number >= 0:
                    edge = edges[number]
                    if self._may_pass(edge, frame.sender, items):
                        self._wait(edge.reader, items)
                else:
                    (((marker, _), _, full),) = items
                    self._meet(marker, full, [(edges[~number], frame.sender)])
        self._run()
        return self._effects()

    def progress(self, progress: Progress) -> Effects:
        """The minimal time has moved, which is nothing to this worker: whoever asks is told of it."""
        self.minimal = progress.of_range(self.index)
        return self._effects()

    def tidy(self, *, is_waited_for: bool = False) -> None:
        """Nothing is kept for what may come late."""

    def inject(self, number: int, *, full: bool) -> Effects:
        """Send marker ``number`` from the fronts here. ``full``: of all states, not of those that
        changed since the snapshot before."""
        self._meet(number, full, [], fronts=True)
        self._run()
        return self._effects()

    def snapshot_at_once(self, number: int, *, full: bool) -> None:
        """Take a snapshot of all tasks. Nothing may be in flight, on any worker."""
        self._run()
        self._begin(number, full)
        for node in self.channels.tasks:
            self._save(node)
        assert self._snapshot is not None
        self._snapshot.left = 0

    def complete_snapshot(self) -> Snapshot | None:
        """The snapshot under way, once all tasks here are through with it."""
        snapshot = self._snapshot
        return snapshot if snapshot is not None and not snapshot.left else None

    def begin_cut(self, moment: Moment, since: Moment) -> Capture:
        """What the complete snapshot of this moment saves. The next one may begin."""
        snapshot = self.complete_snapshot()
        if snapshot is None or snapshot.moment != moment:
            raise InternalError(f"worker {self.index} has no complete snapshot {moment[0]} to save")
        self._snapshot = None
        return Capture(moment, snapshot.saved(self.layout.graph, self.index))

    def owes(self, number: int) -> bool:
        """Whether output of a snapshot before this one waits for its commit."""
        return any(known < number for known in self._uncommitted)

    def committed(self, number: int) -> list[Bundle]:
        """Snapshot ``number`` can be restored, whatever happens: its output goes to the sinks."""
        bundles: list[Bundle] = []
        for known in sorted(known for known in self._uncommitted if known <= number):
            bundles += self._bundled(self._uncommitted.pop(known), known)
        return bundles

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
        outputs: dict[tuple[int, int], list[FlatItem]] = {}
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
        return effects._replace(bundles=effects.bundles + self._bundled(outputs, number))

    # Markers.

    def _begin(self, number: int, full: bool) -> None:
        if self._snapshot is not None and self._snapshot.number == number:
            return
        if self._snapshot is not None:
            raise InternalError(
                f"worker {self.index} met marker {number} while snapshot {self._snapshot.number} "
                f"was under way: one comes after another"
            )
        self._snapshot = Snapshot(number, full=full, tasks=len(self.channels.tasks))
        self._unmarked = {node: len(own) for node, own in self.channels.regular.items()}

    def _meet(
        self, number: int, full: bool, met: list[tuple[Edge, int]], *, fronts: bool = False
    ) -> None:
        """A marker on these channels, and on all that it reaches on this worker from there."""
        self._run()
        self._begin(number, full)
        ahead = deque(met)
        if fronts:
            for node in self.channels.tasks:
                if isinstance(self.layout.graph.nodes[node], Front):
                    self._pass_on(node, ahead)
        while ahead:
            edge, sender = ahead.popleft()
            channel = (edge.number, sender)
            if edge.is_back:
                self._close_log(edge.reader, channel)
                continue
            self._block(channel)
            self._unmarked[edge.reader] -= 1
            if not self._unmarked[edge.reader]:
                self._pass_on(edge.reader, ahead)

    def _block(self, channel: Channel) -> None:
        self._blocked[channel] = []

    def _pass_on(self, node: int, ahead: deque[tuple[Edge, int]]) -> None:
        """The marker is on all regular channels of a task: snapshot, send it on, unblock."""
        snapshot = self._snapshot
        assert snapshot is not None
        self._save(node)
        for edge in self.channels.out[node]:
            for host in self.channels.hosts[edge.reader] if edge.crosses else (self.index,):
                if host == self.index:
                    ahead.append((edge, self.index))
                else:
                    self._post_marker(host, edge, snapshot)
        back = self.channels.back.get(node, ())
        for channel in back:
            self._begin_log(channel, snapshot)
        if not back:
            snapshot.left -= 1
        for channel in self.channels.regular.get(node, ()):
            for items in self._blocked.pop(channel, ()):
                self.buffered -= len(items)
                self._wait(node, items)

    def _save(self, node: int) -> None:
        snapshot = self._snapshot
        assert snapshot is not None
        machine = self.machines.stateful.get(node)
        if machine is not None:
            snapshot.states.append((machine, machine.captured(full=snapshot.full)))
        elif node in self.layout.sinks and self._holds_output:
            held = {key: items for key, items in self._outputs.items() if key[0] == node}
            for key in held:
                del self._outputs[key]
            snapshot.outputs |= held
            self._uncommitted.setdefault(snapshot.number, {}).update(held)

    def _begin_log(self, channel: Channel, snapshot: Snapshot) -> None:
        self._logging[channel] = snapshot.logs[channel] = []

    def _close_log(self, node: int, channel: Channel) -> None:
        del self._logging[channel]
        if not any(channel in self._logging for channel in self.channels.back[node]):
            assert self._snapshot is not None
            self._snapshot.left -= 1

    def _may_pass(self, edge: Edge, sender: int, items: list[FlatItem]) -> bool:
        """Whether what came on a channel is processed now. If not it is buffered."""
        if self._snapshot is None:
            return True
        channel = (edge.number, sender)
        buffer = self._blocked.get(channel)
        if buffer is not None:
            buffer.append(items)
            self.buffered += len(items)
            self._newly_buffered.append((edge.number, items))
            return False
        log = self._logging.get(channel)
        if log is not None:
            log += items
        return True

    # Running the graph.

    def _wait(self, node: int, items: list[FlatItem]) -> None:
        waiting = self._waiting.get(node)
        if waiting is None:
            self._waiting[node] = [items]
            heappush(self._ready, self.layout.rank[node])
        else:
            waiting.append(items)

    def _taken(self, node: int) -> list[FlatItem]:
        batches = self._waiting.pop(node, [])
        return batches[0] if len(batches) == 1 else list(chain.from_iterable(batches))

    def _run(self) -> None:
        ready, units = self._ready, self.layout.units
        while ready:
            unit = units[heappop(ready)]
            if unit.is_region:
                self._run_region(unit)
            else:
                items = self._taken(unit.nodes[0])
                if items:
                    self._run_node(unit.nodes[0], items, self._send)

    def _run_node(
        self, node: int, items: list[FlatItem], send: Callable[[Edge, list[FlatItem]], None]
    ) -> None:
        self._items_of[node] += len(items)
        if node in self.layout.sinks:
            self._arrive(node, items)
            return
        failed: list[FlatItem] = []
        outputs = self._process[node](items, failed)
        if failed:
            raise failed[0][2]
        for edge, output in zip(self.channels.out[node], outputs, strict=True):
            if output:
                send(edge, output)

    def _run_region(self, unit: Unit) -> None:
        """A cycle, item by item; what an item leads to goes before the next one."""
        stack: list[tuple[int, FlatItem]] = []
        nodes = set(unit.nodes)

        def file(node: int, items: list[FlatItem]) -> None:
            stack.extend((node, item) for item in reversed(items))

        def send(edge: Edge, output: list[FlatItem]) -> None:
            here = self._here(edge, output)
            if here and self._may_pass(edge, self.index, here):
                if edge.reader in nodes:
                    file(edge.reader, here)
                else:
                    self._wait(edge.reader, here)

        for node in reversed(unit.nodes):
            file(node, self._taken(node))
        while stack:
            node, item = stack.pop()
            if len(item[0]) - 2 > CHILD_IDS_MAX and node in self.layout.graph.loop_entries:
                raise EndlessLoopError.of(
                    str(self.layout.graph.nodes[node]),
                    GlobalTime(item[0][0], item[0][1]),
                    item[2],
                )
            self._run_node(node, [item], send)

    def _arrive(self, node: int, items: list[FlatItem]) -> None:
        sink = self.layout.sinks[node]
        balance = self._sink_balances.get(node)
        if balance is None:
            self._outputs.setdefault((node, 0), []).extend(items)
            return
        for item in items:
            _, hashed = balance(item[2], (item[0][0], item[0][1]))
            partition = owner(hashed, sink.partitions)
            self._outputs.setdefault((node, partition), []).append(item)

    # Moving items.

    def _send(self, edge: Edge, items: list[FlatItem]) -> None:
        here = self._here(edge, items)
        if here and self._may_pass(edge, self.index, here):
            self._wait(edge.reader, here)

    def _here(self, edge: Edge, items: list[FlatItem]) -> list[FlatItem]:
        """Which of these items stay on this worker. The others are posted."""
        route = self._routes.get(edge.reader)
        if route is not None:
            failed: list[FlatItem] = []
            by_worker = route.spread(items, failed)
            if failed:
                raise failed[0][2]
            here = by_worker.pop(self.index, [])
            for destination, sent in by_worker.items():
                self._post(destination, edge, sent)
            return here
        sink = self.layout.sinks.get(edge.reader)
        if sink is None or self.workers == 1:
            return items
        host = barrier_host(sink, 0, self.workers)
        if host == self.index:
            return items
        self._post(host, edge, items)
        return []

    def _post(self, destination: int, edge: Edge, items: list[FlatItem]) -> None:
        self._items_sent += len(items)
        part = self._open.get((destination, edge.number))
        if part is None:
            part = self._open[destination, edge.number] = []
            self._outgoing.setdefault(destination, []).append((edge.number, part))
        part += items

    def _post_marker(self, destination: int, edge: Edge, snapshot: Snapshot) -> None:
        marker: FlatItem = ((snapshot.number, 0), 0, snapshot.full)
        self._outgoing.setdefault(destination, []).append((~edge.number, [marker]))
        self._open.pop((destination, edge.number), None)  # what follows is behind the marker

    # Effects.

    def _effects(self) -> Effects:
        xors: TurnXors = {}
        for frame in self._finished:
            _xor(frame, xors)
        self._finished = []
        frames = [
            (destination, self._frame(parts)) for destination, parts in self._outgoing.items()
        ]
        self._outgoing, self._open = {}, {}
        for _, frame in frames:
            _xor(frame, xors)
        if self._newly_buffered:
            self._buffered_as.append(self._frame(self._newly_buffered))
            self._newly_buffered = []
            _xor(self._buffered_as[-1], xors)
        if self._buffered_as and not self.buffered:
            for frame in self._buffered_as:
                _xor(frame, xors)
            self._buffered_as = []
        ack = Ack(self.index, xors, {}, self._reports)
        self._reports = {}
        return Effects(frames, ack, [] if self._holds_output else self._at_once(), None)

    def _frame(self, parts: list[tuple[int, list[FlatItem]]]) -> Frame:
        self._frames_made += 1
        least = min(
            (item[0] for number, items in parts if number >= 0 for item in items), default=None
        )
        return Frame(
            self.index,
            stable_id("frame", self._incarnation, self.index, self._frames_made),
            tuple(parts),
            None if least is None else (least[0], least[1]),
            None,
        )

    def _bundled(self, outputs: dict[tuple[int, int], list[FlatItem]], number: int) -> list[Bundle]:
        """Output of a snapshot as bundles, without what the sinks have."""
        bundles = []
        last = GlobalTime(number, 0)
        for (node, partition), items in outputs.items():
            sink = self.layout.sinks[node].name
            if items and self._delivered.get((sink, partition), (0, 0)) < last:
                self._released += len(items)
                bundles.append(Bundle(sink, partition, last, items))
        return bundles

    def _at_once(self) -> list[Bundle]:
        """What came to sinks where nothing is held: each bundle is above what the sink has."""
        bundles = []
        for (node, partition), items in self._outputs.items():
            sink = self.layout.sinks[node].name
            last = GlobalTime(self._delivered.get((sink, partition), (0, 0))[0] + 1, 0)
            self._delivered[sink, partition] = last
            self._released += len(items)
            bundles.append(Bundle(sink, partition, last, items))
        self._outputs = {}
        return bundles

    # Looking at it.

    @property
    def held_outputs(self) -> int:
        """Items that wait for a snapshot to be committed."""
        return sum(map(len, self._outputs.values())) + sum(
            len(items) for held in self._uncommitted.values() for items in held.values()
        )

    def statistics(self, *, sizes_too: bool = True) -> Statistics:
        """Counters of all machines, as of now."""
        machines = self.machines.stateful.values()
        sizes = [size for machine in machines for size in machine.sizes()] if sizes_too else []
        names = {node.id: node.name for node in self.layout.graph.nodes}
        return Statistics(
            items=sum(self._items_of.values()),
            elements=self._elements,
            frames_sent=self._frames_made,
            items_sent=self._items_sent,
            arrived=self._released,  # nothing is replayed: for each one released, one has come
            released=self._released,
            buckets=sum(len(machine.buckets) for machine in machines),
            bucket_items=sum(sizes),
            bucket_largest=max(sizes, default=0),
            items_of={names[node]: count for node, count in self._items_of.items()},
        )


def _xor(frame: Frame, xors: TurnXors) -> None:
    if frame.least is not None:
        xors[frame.least] = xors.get(frame.least, 0) ^ frame.id
