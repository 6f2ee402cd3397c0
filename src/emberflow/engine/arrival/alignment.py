"""Alignment: how a marker passes through the tasks of one worker, and what waits for it.

What is guaranteed: **a snapshot holds, of each task, what came ahead of the marker on every channel of
the task, and nothing that came behind it.**

**Algorithm 1, of acyclic flows.** The marker travels along the edges, behind the items that were sent
before it. A task (`channels` says what that is here) that has the marker on one of its channels
*blocks* that channel: what comes there is buffered. When the marker is on all of them, the task takes
its snapshot, sends the marker on, and unblocks. What is in flight between two tasks belongs to neither
snapshot, and need not be saved.

**Algorithm 2, of cyclic flows.** A task that waited for the marker on a back edge would wait for
itself. So back edges are not aligned. From the moment it sends the marker on, the task logs what comes
on a back edge, while it processes it, until the marker has come round. These items were sent ahead of
the marker and are in no state; the log is part of the snapshot.

Two conditions are the caller's to keep:

1. *A marker is met with empty mailboxes.* Before `meet`, the worker runs all that came ahead of the
   marker. So within a worker a marker needs no queue: it passes from task to task at once, and what a
   task unblocks runs after all of them.
2. *One snapshot at a time.* The runner injects ``n + 1`` when ``n`` is committed, so it cannot come
   before all tasks of all workers are through with ``n``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from emberflow.engine.arrival.channels import Channel, Channels, Edge
from emberflow.engine.arrival.machines import ArrivalMachines
from emberflow.engine.arrival.outbox import MarkerOutbox
from emberflow.engine.arrival.outputs import EpochOutputs
from emberflow.engine.arrival.snapshot import Snapshot
from emberflow.engine.layout import Layout
from emberflow.engine.worker.mailboxes import Mailboxes
from emberflow.errors import InternalError
from emberflow.graph.nodes import Front
from emberflow.values.item import FlatItem


class Alignment:
    """The markers of one worker."""

    def __init__(
        self,
        layout: Layout,
        index: int,
        channels: Channels,
        machines: ArrivalMachines,
        outputs: EpochOutputs,
        mailboxes: Mailboxes,
        outbox: MarkerOutbox,
    ) -> None:
        self._index = index
        self._channels = channels
        self._machines = machines
        self._outputs = outputs
        self._mailboxes = mailboxes
        self._outbox = outbox
        self._sinks = layout.sinks
        self._fronts = [
            node for node in channels.tasks if isinstance(layout.graph.nodes[node], Front)
        ]
        #: The snapshot under way.
        self.snapshot: Snapshot | None = None
        #: Items that wait behind a marker.
        self.buffered = 0
        #: By task: on how many of its regular channels the marker has not come yet.
        self._unmarked: dict[int, int] = {}
        self._blocked: dict[Channel, list[list[FlatItem]]] = {}
        self._logging: dict[Channel, list[FlatItem]] = {}

    def complete(self) -> Snapshot | None:
        """The snapshot under way, once all tasks here are through with it."""
        snapshot = self.snapshot
        return snapshot if snapshot is not None and not snapshot.left else None

    def inject(self, number: int, *, full: bool) -> None:
        """Send marker ``number`` from the fronts here."""
        self._begin(number, full)
        ahead: deque[tuple[Edge, int]] = deque()
        for node in self._fronts:
            self._pass_on(node, ahead)
        self._follow(ahead)

    def meet(self, number: int, edge: Edge, sender: int, *, full: bool) -> None:
        """Marker ``number`` has come from another worker on this edge."""
        self._begin(number, full)
        self._follow(deque([(edge, sender)]))

    def save_all(self, number: int, *, full: bool) -> None:
        """Take the snapshot of all tasks at once. Nothing may be in flight, on any worker."""
        snapshot = self._begin(number, full)
        for node in self._channels.tasks:
            self._save(node, snapshot)
        snapshot.left = 0

    def may_pass(self, edge: Edge, sender: int, items: list[FlatItem]) -> bool:
        """Whether what came on a channel is processed now. If not it is buffered."""
        if self.snapshot is None:
            return True
        channel = (edge.number, sender)
        buffer = self._blocked.get(channel)
        if buffer is not None:
            buffer.append(items)
            self.buffered += len(items)
            self._outbox.buffer(edge, items)
            return False
        log = self._logging.get(channel)
        if log is not None:
            log += items
        return True

    # A marker on its way.

    def _begin(self, number: int, full: bool) -> Snapshot:
        snapshot = self.snapshot
        if snapshot is None:
            snapshot = self.snapshot = Snapshot(number, full=full, tasks=len(self._channels.tasks))
            self._unmarked = {node: len(own) for node, own in self._channels.regular.items()}
        elif snapshot.number != number:
            raise InternalError(
                f"worker {self._index} met marker {number} while snapshot {snapshot.number} was "
                f"under way: one comes after another"
            )
        return snapshot

    def _follow(self, ahead: deque[tuple[Edge, int]]) -> None:
        """A marker on these channels, and on all that it reaches on this worker from there."""
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

    def _pass_on(self, node: int, ahead: deque[tuple[Edge, int]]) -> None:
        """The marker is on all regular channels of a task: snapshot, send it on, unblock."""
        snapshot, channels = self.snapshot, self._channels
        assert snapshot is not None
        self._save(node, snapshot)
        for edge in channels.out[node]:
            for host in channels.hosts[edge.reader] if edge.crosses else (self._index,):
                if host == self._index:
                    ahead.append((edge, self._index))
                else:
                    self._outbox.post_marker(host, edge, snapshot.number, full=snapshot.full)
        back = channels.back.get(node, ())
        for channel in back:
            self._begin_log(channel, snapshot)
        if not back:
            snapshot.left -= 1
        self._unblock(node, channels.regular.get(node, ()))

    def _save(self, node: int, snapshot: Snapshot) -> None:
        machine = self._machines.stateful.get(node)
        if machine is not None:
            snapshot.states.append((machine, machine.captured(full=snapshot.full)))
        elif node in self._sinks:
            snapshot.outputs |= self._outputs.end_epoch(node, snapshot.number)

    def _block(self, channel: Channel) -> None:
        self._blocked[channel] = []

    def _unblock(self, node: int, channels: Iterable[Channel]) -> None:
        for channel in channels:
            for items in self._blocked.pop(channel, ()):
                self.buffered -= len(items)
                self._mailboxes.put(node, items)

    def _begin_log(self, channel: Channel, snapshot: Snapshot) -> None:
        self._logging[channel] = snapshot.logs[channel] = []

    def _close_log(self, node: int, channel: Channel) -> None:
        del self._logging[channel]
        if not any(channel in self._logging for channel in self._channels.back[node]):
            assert self.snapshot is not None
            self.snapshot.left -= 1
