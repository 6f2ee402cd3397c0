"""The worker: the whole graph for one range of 32-bit hashes.

It takes an event (elements of a front, frames of other workers, progress of the acker), lets the
items run through the graph as far as they go on this worker, and returns what is to be done outside:
frames for other workers, one ack, bundles that became final.

Invariants, each of which a test breaks to see it caught:

1. *FIFO.* Items of one place and one trace leave in the order they came, through every queue here:
   an item, its tombstone, another version. Queues are lists that are appended to and sorted only
   stably by place.
2. *One ack.* What an event finished and what it sent are acked in one message, after processing.
   What stays on this worker is neither sent nor acked.
3. *A frame's id counts once a table*, under the least global time that the frame carries for it, or
   the least turn of that. The sender finds it and writes it on the frame, so every id is xored exactly
   twice.
4. *Release below the minimal time only.*

**Bounded speculation.** In a cycle that goes through several workers a correction can beget others
that meet it again on the next round, faster than the true items settle. So each worker spends only
so many replays on its cycles until the minimal time moves. When they are spent it holds back what
is above the minimal time; what is at it goes on, so the minimal time does move. Items that are held
are in flight: they are acked as a frame that the worker sends to itself. Where one element begets many
transactions, the same is done by turns (`turns`, `regions`); but a turn that moves is no reason to
presume again, at the same global time, what came to nothing before.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain
from operator import itemgetter
from typing import Any

from emberflow.engine.cuts.cut import Capture, Row, Scheduled
from emberflow.engine.layout import Layout, Machines, Unit
from emberflow.engine.machines.barrier import Barrier
from emberflow.engine.messages import (
    BEFORE_ALL,
    Ack,
    Bundle,
    Effects,
    Frame,
    Moment,
    Progress,
    TurnXors,
    Xors,
)
from emberflow.engine.progress.receipts import Receipts
from emberflow.engine.queries.worker import StateReader
from emberflow.engine.worker.regions import Cycle
from emberflow.engine.worker.retention import Retention
from emberflow.engine.worker.routing import Route, barrier_host
from emberflow.engine.worker.turns import turns_of
from emberflow.errors import ERRORS_SINK, Diverted, StepError
from emberflow.graph.calls import balance_of
from emberflow.graph.nodes import Sink
from emberflow.values.hashing import owner, stable_id
from emberflow.values.item import FlatItem, GlobalTime, Place
from emberflow.values.shares import Shares, equal_shares

_place_of = itemgetter(0)
_order_of = itemgetter(0, 1)

#: An item that fails has no images, so its failure may take the place of the first. The malformed
#: records that were in a source ahead of an element have that element's time and child ids below 0:
#: they come first, wherever the element itself fails.
_BEHIND_MALFORMED = (0,)

#: Replays in cycles until the minimal time moves.
_REPLAYS_MAX = 64


@dataclass(slots=True)
class Statistics:
    """What a worker has done: plain counters, always on.

    ``waited`` is the time that items spent at barriers, all together, in the unit of the runner.
    """

    items: int = 0
    elements: int = 0
    frames_sent: int = 0
    items_sent: int = 0
    replays: int = 0
    tombstones: int = 0
    arrived: int = 0
    released: int = 0
    waited: float = 0.0
    buckets: int = 0
    bucket_items: int = 0
    bucket_largest: int = 0
    items_of: dict[str, int] = field(default_factory=dict)


class Worker:
    """One worker of ``workers``. ``delivered`` is what each sink partition has from earlier, and
    ``shares`` tell which worker owns which keys: equal ones, by default."""

    def __init__(
        self,
        layout: Layout,
        index: int,
        workers: int,
        *,
        incarnation: int = 0,
        delivered: dict[tuple[str, int], Moment] | None = None,
        shares: Shares | None = None,
    ) -> None:
        self.layout = layout
        self.index = index
        self.workers = workers
        shares = equal_shares(workers) if shares is None else shares
        self.machines = Machines(layout)
        self._process = self.machines.process
        self.reading = StateReader(index, layout, self.machines)
        self.keeping = Retention(index, self.machines, self.reading)
        self._incarnation = incarnation
        self._frames_made = 0
        self._elements = 0
        self._items_sent = 0
        self._items_of = dict.fromkeys([*layout.nodes, layout.failures], 0)
        self._waiting: dict[int, list[list[FlatItem]]] = {}
        self._ready: list[int] = []
        self._outgoing: dict[tuple[int, int], list[FlatItem]] = {}
        self._finished: list[Frame] = []
        self._reports: dict[int, Moment] = {}
        self._receipts = Receipts(index)
        #: Nothing below this can reach the barriers here any more.
        self.minimal: Moment = BEFORE_ALL
        self._minimal_anywhere: Moment = BEFORE_ALL
        self._turn: Place = BEFORE_ALL
        #: What is of this global time is acked by turns.
        self._by_turns_at: Moment = BEFORE_ALL
        self._turns = turns_of(layout.graph)
        self._replays_left = _REPLAYS_MAX
        #: Frames to itself, of items that are held back in cycles.
        self._newly_held: list[Frame] = []
        #: By the rank of the region.
        self._cycles = {
            rank: Cycle(self, unit) for rank, unit in enumerate(layout.units) if unit.is_region
        }
        self._routes = {node: Route(layout, node, shares) for node in self._routed_nodes()}
        self._sink_balances = {
            sink.id: balance_of(sink, sink.key)
            for sink in layout.sinks.values()
            if sink.key is not None
        }
        self.barriers = self._made_barriers(delivered or {})

    def _routed_nodes(self) -> Iterable[int]:
        """Nodes whose input has a key. Stateful ones and sinks see to it themselves if alone."""
        for node in self.layout.nodes:
            alone = self.workers == 1 and (
                node in self.machines.stateful or node in self.layout.sinks
            )
            if not alone and self.layout.balance_of(node) is not None:
                yield node

    def _made_barriers(
        self, delivered: dict[tuple[str, int], Moment]
    ) -> dict[int, dict[int, Barrier]]:
        barriers: dict[int, dict[int, Barrier]] = {}
        for sink in self.layout.graph.sinks.values():
            barriers[sink.id] = {
                partition: Barrier(delivered.get((sink.name, partition), BEFORE_ALL))
                for partition in range(sink.partitions)
                if barrier_host(sink, partition, self.workers) == self.index
            }
        # A flow that diverts nothing may have a sink of that name itself.
        errors = delivered.get((ERRORS_SINK, 0), BEFORE_ALL) if self.layout.diverts else BEFORE_ALL
        barriers[self.layout.failures] = {0: Barrier(errors)} if self.index == 0 else {}
        return barriers

    # Events.

    def enter(
        self,
        node: int,
        elements: Sequence[tuple[Moment, Any]],
        reports: dict[int, Moment],
        malformed: Sequence[tuple[Place, Diverted | Exception]] = (),
    ) -> Effects:
        """Elements of a front, with their global times, and what the front promises after them.

        ``malformed`` is what the front read and could not make elements of: records for the errors
        sink, at places of these global times, or an exception that ends the run when all before it
        is final.
        """
        return self.enter_items(
            node, [(moment, 0, payload) for moment, payload in elements], reports, malformed
        )

    def enter_items(
        self,
        node: int,
        items: list[FlatItem],
        reports: dict[int, Moment],
        malformed: Sequence[tuple[Place, Diverted | Exception]] = (),
    ) -> Effects:
        """The same of elements that are items already: a global time is a place, and 0 its mark."""
        if malformed:
            self._send(self.layout.failures, [(place, 0, record) for place, record in malformed])
        if items:
            self._elements += len(items)
            self._wait(node, items)
        self._reports.update(reports)
        self._run()
        return self._effects()

    def deliver(self, frames: Sequence[Frame]) -> Effects:
        """Frames of other workers, in the order they came."""
        for frame in frames:
            self._finished.append(frame)
            if frame.least is not None and len(frame.least) > 2:
                self._go_by_turns_at((frame.least[0], frame.least[1]))
            for node, items in frame.parts:
                if node == self.layout.failures:  # no unit of the graph: nothing would run it
                    self._run_node(node, items, self._send)
                else:
                    self._wait(node, items)
        self._run()
        return self._effects(releases=True)

    def progress(self, progress: Progress) -> Effects:
        """The minimal time has moved: release what is final. What is not needed any more can be trimmed
        (`tidy`)."""
        self._receipts.told(progress)
        if progress.turn > self._turn:
            self._turn, self._minimal_anywhere = progress.turn, progress.anywhere
            by_turns = self._by_turns_at == progress.anywhere
            self._replays_left = 0 if by_turns else _REPLAYS_MAX
            for rank, cycle in self._cycles.items():
                if cycle.held():
                    heappush(self._ready, rank)
            self._run()
        self.keeping.progress(progress)
        return self._effects(releases=True)

    def tidy(self, *, is_waited_for: bool = False) -> None:
        """Trim what the progress heard last made needless, as far as it is due.

        Nobody waits for that. So it is for a moment when all that somebody waits for is on its way; and
        whoever is waited for again by then can put it off for a while.
        """
        self.keeping.tidy(is_waited_for=is_waited_for)

    def pass_time(self, elapsed: float) -> None:
        """Tell how much time has passed since this was last told, in whatever unit. For statistics."""
        for by_partition in self.barriers.values():
            for barrier in by_partition.values():
                barrier.pass_time(elapsed)

    def trim(self, most: int | None = None) -> None:
        """Trim now, whatever the rhythm says: every bucket, or so many of each machine at most."""
        self.keeping.trim(most)

    # Cuts (see `cut` for what the runner has to see to).

    def begin_cut(self, moment: Moment, since: Moment) -> Capture:
        """Begin a cut at the minimal time of all that this worker has heard last."""
        return self.keeping.begin_cut(moment, since)

    def cut_committed(self, moment: Moment) -> None:
        """The cut at this moment can be restored from, whatever happens."""
        self.keeping.cut_committed(moment)

    def restore(
        self, moment: Moment, rows: Iterable[Row], scheduled: Iterable[Scheduled]
    ) -> Effects:
        """Take over what a cut at this moment holds for this worker, and emit what is scheduled.

        Before anything else happens; it may be called again with more of the same cut.
        """
        flow = self.layout.graph.flow
        for node, items in self.keeping.restore(flow, moment, rows, scheduled):
            (reader,) = self.layout.readers[node]
            self._send(
                reader, sorted([(item.place, 0, item.payload) for item in items], key=_place_of)
            )
        self._run()
        return self._effects()

    # Running the graph.

    def _wait(self, node: int, items: list[FlatItem]) -> None:
        waiting = self._waiting.get(node)
        if waiting is None:
            self._waiting[node] = [items]
            heappush(self._ready, self.layout.rank[node])
        else:
            waiting.append(items)

    def _taken(self, node: int) -> list[FlatItem]:
        """All that waits for a node. What came by several ways is put in order, stably."""
        batches = self._waiting.pop(node, None)
        if batches is None:
            return []
        if len(batches) == 1:
            return batches[0]
        merged = list(chain.from_iterable(batches))
        merged.sort(key=_place_of)
        return merged

    def _run(self) -> None:
        ready, units = self._ready, self.layout.units
        while ready:
            rank = heappop(ready)
            if rank in self._cycles:
                self._cycles[rank].run()
                continue
            (node,) = units[rank].nodes
            items = self._taken(node)
            if items:
                self._run_node(node, items, self._send)

    def _run_node(
        self, node: int, items: list[FlatItem], send: Callable[[int, list[FlatItem]], None]
    ) -> None:
        self._items_of[node] += len(items)
        barriers = self.barriers.get(node)
        if barriers is not None:
            self._arrive(node, barriers, items)
            return
        machine = self.machines.stateful.get(node)
        if machine is not None:
            machine.items_since += len(items)
        failed: list[FlatItem] = []
        outputs = self._process[node](items, failed)
        for reader, output in zip(self.layout.readers[node], outputs, strict=True):
            if output:
                send(reader, output)
        if failed:
            self._fail(failed)

    def _replays_in(self, unit: Unit) -> int:
        stateful = self.machines.stateful
        return sum(stateful[node].replays for node in unit.nodes if node in stateful)

    def held(self) -> list[Frame]:
        """What this worker holds back: in flight, though on no link."""
        return [frame for cycle in self._cycles.values() for frame in cycle.held()]

    # Moving items.

    def _fail(self, failed: list[FlatItem]) -> None:
        """Send what failed to the barrier of failures; as records, if that is an errors sink."""
        if self.layout.diverts:
            failed = [
                (place + _BEHIND_MALFORMED, mark, Diverted.of(error))
                for place, mark, error in failed
            ]
        self._send(self.layout.failures, failed)

    def _send(self, reader: int, items: list[FlatItem]) -> None:
        here, elsewhere = self._split(reader, items)
        if here:
            if reader == self.layout.failures:
                self._run_node(reader, here, self._send)
            else:
                self._wait(reader, here)
        for destination, sent in elsewhere.items():
            self._post(destination, reader, sent)

    def _sender(
        self, region: Container[int], file: Callable[[int, list[FlatItem]], None]
    ) -> Callable[[int, list[FlatItem]], None]:
        """How what a region makes goes on: what stays in it, on this worker, is filed there."""

        def send(reader: int, output: list[FlatItem]) -> None:
            here, elsewhere = self._split(reader, output)
            if here and reader in region:
                file(reader, here)
            elif here:
                self._wait(reader, here)
            for destination, items in elsewhere.items():
                self._post(destination, reader, items)

        return send

    def _split(
        self, reader: int, items: list[FlatItem]
    ) -> tuple[list[FlatItem], dict[int, list[FlatItem]]]:
        """Which of these items stay, and which go to which worker."""
        route = self._routes.get(reader)
        if route is None and self.workers == 1:
            return items, {}
        if reader == self.layout.failures:
            return (items, {}) if self.index == 0 else ([], {0: items})
        if route is not None:
            failed: list[FlatItem] = []
            by_worker = route.spread(items, failed)
            if failed:
                self._fail(failed)
            return by_worker.pop(self.index, []), by_worker
        node = self.layout.graph.nodes[reader]
        if isinstance(node, Sink):
            host = barrier_host(node, 0, self.workers)
            return (items, {}) if host == self.index else ([], {host: items})
        return items, {}

    def _post(self, destination: int, reader: int, items: list[FlatItem]) -> None:
        outgoing = self._outgoing.get((destination, reader))
        if outgoing is None:
            self._outgoing[destination, reader] = list(items)
        else:
            outgoing += items

    def _arrive(self, node: int, barriers: dict[int, Barrier], items: list[FlatItem]) -> None:
        if node == self.layout.failures:
            barriers[0].arrive(items)
            return
        sink = self.layout.graph.nodes[node]
        assert isinstance(sink, Sink)
        if sink.key is None:
            barriers[0].arrive(items)
            return
        balance = self._sink_balances[node]
        arrived: dict[int, list[FlatItem]] = {}
        failed: list[FlatItem] = []
        for item in items:
            place, mark, payload = item
            try:
                _, hashed = balance(payload, (place[0], place[1]))
            except StepError as error:
                failed.append((place, mark, error))
            else:
                arrived.setdefault(owner(hashed, sink.partitions), []).append(item)
        for partition, own in arrived.items():
            barriers[partition].arrive(own)
        if failed:
            self._fail(failed)

    # Effects.

    def _effects(self, *, releases: bool = False) -> Effects:
        anywhere: TurnXors = {}
        ranges: dict[int, Xors] = {}
        for frame in self._finished:
            _xor(frame, self.index, anywhere, ranges)
        self._finished = []
        frames = self._framed()
        for destination, frame in frames:
            _xor(frame, destination, anywhere, ranges)
        for frame in self._newly_held:
            _xor(frame, self.index, anywhere, ranges)
        self._newly_held = []
        number = self._receipts.acked(ranges.get(self.index))
        ack = Ack(self.index, anywhere, ranges, self._reports, number)
        self._reports = {}
        bundles, failure = self._released() if releases else ([], None)
        return Effects(frames, ack, bundles, failure)

    def _framed(self) -> list[tuple[int, Frame]]:
        by_destination: dict[int, list[tuple[int, list[FlatItem]]]] = {}
        for (destination, reader), items in self._outgoing.items():
            by_destination.setdefault(destination, []).append((reader, items))
            self._items_sent += len(items)
        self._outgoing = {}
        frames = []
        for destination, parts in by_destination.items():
            frames.append((destination, self._frame(parts)))
        return frames

    def _frame(self, parts: list[tuple[int, list[FlatItem]]]) -> Frame:
        self._frames_made += 1
        # Only sinks have barriers, and from a sink nothing goes further.
        least: Place | None = _least(items for node, items in parts if node not in self.barriers)
        if least == self._by_turns_at:
            least = self._least_turn(parts)
        return Frame(
            self.index,
            stable_id("frame", self._incarnation, self.index, self._frames_made),
            tuple(parts),
            least,
            _least(items for node, items in parts if node in self.barriers),
        )

    def _go_by_turns_at(self, moment: Moment) -> None:
        """From here on, what is sent of this global time counts under its turn."""
        self._by_turns_at = max(self._by_turns_at, moment)

    def _least_turn(self, parts: list[tuple[int, list[FlatItem]]]) -> Place:
        return min(
            min(map(self._turns[node], items)) for node, items in parts if node not in self.barriers
        )

    def _released(self) -> tuple[list[Bundle], Exception | None]:
        bundles: list[Bundle] = []
        failure: Exception | None = None
        minimal = min(self._minimal_anywhere, self._receipts.least)
        if minimal <= self.minimal:
            return bundles, failure
        self.minimal = minimal
        for node, barriers in self.barriers.items():
            for partition, barrier in barriers.items():
                if not barrier.held_items:
                    continue
                released = barrier.release(minimal)
                if not released:
                    continue
                name = ERRORS_SINK
                if node != self.layout.failures:
                    name = self.layout.graph.nodes[node].name
                elif not self.layout.diverts:
                    failure = released[0][2]
                    continue
                last = released[-1][0]
                bundles.append(Bundle(name, partition, GlobalTime(last[0], last[1]), released))
        return bundles, failure

    # Looking at it.

    def statistics(self, *, sizes_too: bool = True) -> Statistics:
        """Counters of all machines, as of now. Sizes of buckets take a look at every key."""
        held = [
            barrier for by_partition in self.barriers.values() for barrier in by_partition.values()
        ]
        machines = self.machines.stateful.values()
        sizes = [size for machine in machines for size in machine.sizes()] if sizes_too else []
        names = {node.id: node.name for node in self.layout.graph.nodes}
        names[self.layout.failures] = "failures"
        return Statistics(
            items=sum(self._items_of.values()),
            elements=self._elements,
            frames_sent=self._frames_made,
            items_sent=self._items_sent,
            replays=sum(machine.replays for machine in machines),
            tombstones=sum(barrier.tombstones for barrier in held),
            arrived=sum(barrier.arrived for barrier in held),
            released=sum(barrier.released for barrier in held),
            waited=sum(barrier.waited for barrier in held),
            buckets=sum(len(machine.buckets) for machine in machines),
            bucket_items=sum(sizes),
            bucket_largest=max(sizes, default=0),
            items_of={names[node]: count for node, count in self._items_of.items()},
        )


def _least(batches: Iterable[list[FlatItem]]) -> Moment | None:
    """The least global time of these items."""
    least = min((min(map(_place_of, items)) for items in batches), default=None)
    return None if least is None else (least[0], least[1])


def _xor(frame: Frame, destination: int, anywhere: TurnXors, ranges: dict[int, Xors]) -> None:
    """Xor a frame's id into the entries of the least global times that it carries."""
    if frame.least is not None:
        anywhere[frame.least] = anywhere.get(frame.least, 0) ^ frame.id
    if frame.least_bound is not None:
        table = ranges.setdefault(destination, {})
        table[frame.least_bound] = table.get(frame.least_bound, 0) ^ frame.id
