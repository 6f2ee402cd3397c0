"""The dataflow on one worker: it runs a node, and moves what the node gives to who reads it.

A reader on this worker finds its items in a mailbox, one on another worker in a frame, and a sink
hands them to its barrier. What fails goes to the barrier of failures on worker 0, in its place in the
order: a failure that is taken back was never there. Where errors are diverted, what fails within a
transaction goes to its closer, which undoes the transaction and sends one of the failures on.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TypeAlias

from emberflow.engine.layout import Layout, Machines, Stateful
from emberflow.engine.machines.map import Process
from emberflow.engine.worker.barriers import Barriers
from emberflow.engine.worker.loads import Loads
from emberflow.engine.worker.mailboxes import Mailboxes
from emberflow.engine.worker.outbox import Outbox
from emberflow.engine.worker.routing import Routes
from emberflow.errors import Diverted
from emberflow.graph.transactions import RAISED
from emberflow.values.item import FlatItem

#: Takes a node and the items that are bound for it.
Send: TypeAlias = Callable[[int, list[FlatItem]], None]

#: An item that fails has no images, so its failure may take the place of the first. The malformed
#: records that were in a source ahead of an element have that element's time and child ids below 0:
#: they come first, wherever the element itself fails.
_BEHIND_MALFORMED = 0


def _vote(failed: FlatItem, depth: int) -> FlatItem:
    """What a closer is sent of an item that failed ``depth`` child ids behind its transaction's opening.

    An access votes at the place of its item. If its key function raises for one payload, and after a
    replay not for another, both votes are under way, on two ways. So this one has a place of its own.
    """
    place, mark, error = failed
    return (*place, RAISED), mark, (place[: len(place) - depth], RAISED, None, error, None)


class Dataflow:
    """Runs the nodes of one worker."""

    def __init__(
        self,
        layout: Layout,
        machines: Machines,
        routes: Routes,
        barriers: Barriers,
        mailboxes: Mailboxes,
        outbox: Outbox,
    ) -> None:
        self.layout = layout
        self.machines = machines
        #: By node: how many items have run through it.
        self.items_of = dict.fromkeys([*layout.nodes, layout.failures], 0)
        #: By node, and by its port: how many items it has given.
        self.given_of = {node: [0] * len(layout.readers[node]) for node in layout.nodes}
        #: The node that runs just now, and its items: for those who look on from another thread.
        self.running: tuple[int, list[FlatItem]] | None = None
        #: Samples how much work the slices make, if anybody wants to know.
        self.loads: Loads | None = None
        self._failures = layout.failures
        self._closers = layout.closers
        self._process = machines.process
        #: By node: the machine that runs. Another one may stand in for that of a state (`worker.gathering`).
        self._stateful = dict(machines.stateful)
        self._routes = routes
        self._barriers = barriers
        self._sinks = barriers.by_node
        self._mailboxes = mailboxes
        self._outbox = outbox

    def use(self, node: int, machine: Stateful) -> None:
        """From now on this is the machine of a node."""
        self._stateful[node] = machine

    def process_by(self, node: int, process: Process) -> Process:
        """Run a node by another process. Returns the one that it replaces. Call it before anything runs."""
        before, self._process[node] = self._process[node], process
        return before

    def run(self, node: int, items: list[FlatItem], send: Send | None = None) -> None:
        """Run a node on these items, and send on what it gives."""
        self.items_of[node] += len(items)
        self.running = node, items
        failed: list[FlatItem] = []
        if send is None:
            send = self.send
        if node in self._sinks:
            self._barriers.arrive(node, items, failed)
        else:
            machine = self._stateful.get(node)
            if machine is not None:
                machine.items_since += len(items)
                if machine.cold_keys:
                    machine.fetch(items)
            loads = self.loads
            if loads is None or not loads.is_due(node, len(items)):
                outputs = self._process[node](items, failed)
            else:
                outputs = loads.run(node, self._process[node], machine, items, failed)
            given = self.given_of[node]
            readers = zip(self.layout.readers[node], outputs, strict=True)
            for port, (reader, output) in enumerate(readers):
                if output:
                    given[port] += len(output)
                    send(reader, output)
        if failed:
            self._send_failed(node, failed, send)
        self.running = None

    def _send_failed(self, node: int, failed: list[FlatItem], send: Send) -> None:
        """Send what failed at a node: to the closer of its transaction, or to the barrier of failures."""
        if node in self._closers:
            closer, depth = self._closers[node]
            send(closer, [_vote(item, depth) for item in failed])
        else:
            self.fail(node, failed)

    def fail(self, node: int, failed: list[FlatItem]) -> None:
        """Send what failed at a node to the barrier of failures; as records, if that is an errors sink.

        The place of a failure names the node. A grouping and the step behind it have items at the same
        place, and a replay may take back the failure of one of them after the other one has failed. The
        last child id is below 0, because what a reduction keeps (`machines.map`) may fail behind it.
        """
        diverts = self.layout.diverts
        failures = [
            ((*place, _BEHIND_MALFORMED, ~node), mark, Diverted.of(error) if diverts else error)
            for place, mark, error in failed
        ]
        self.send(self._failures, failures)

    def receive(self, node: int, items: list[FlatItem]) -> None:
        """Items for a node on this worker. Failures run at once: they belong to no unit."""
        if node == self._failures:
            self.run(node, items)
        else:
            self._mailboxes.put(node, items)

    def send(self, reader: int, items: list[FlatItem]) -> None:
        """Move items to a node, wherever it runs."""
        here, elsewhere = self._routes.split(reader, items, self.fail)
        if here:
            if reader == self._failures:
                self.run(reader, here)
            else:
                self._mailboxes.put(reader, here)
        if elsewhere:
            for destination, sent in elsewhere.items():
                self._outbox.post(destination, reader, sent)

    def sender(self, region: Container[int], passing: Container[int], file: Send) -> Send:
        """How a region sends: ``file`` takes what stays in the region, on this worker.

        Nodes of the region that keep nothing and whose input stays on this worker are ``passing``: they
        run at once, so that only what they give is filed.
        """
        split, fail = self._routes.split, self.fail
        put, post = self._mailboxes.put, self._outbox.post
        items_of, given_of = self.items_of, self.given_of
        process, readers_of = self._process, self.layout.readers

        def send(reader: int, output: list[FlatItem]) -> None:
            waiting = [(reader, output)]
            while waiting:
                node, items = waiting.pop()
                if node not in passing:
                    here, elsewhere = split(node, items, fail)
                    if here and node in region:
                        file(node, here)
                    elif here:
                        put(node, here)
                    for destination, own in elsewhere.items():
                        post(destination, node, own)
                    continue
                items_of[node] += len(items)
                self.running = node, items
                failed: list[FlatItem] = []
                given = given_of[node]
                for port, images in enumerate(process[node](items, failed)):
                    if images:
                        given[port] += len(images)
                        waiting.append((readers_of[node][port], images))
                if failed:
                    self._send_failed(node, failed, send)

        return send
