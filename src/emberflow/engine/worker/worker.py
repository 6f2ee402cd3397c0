"""The worker: the whole graph for one range of 32-bit hashes.

A worker takes an event (elements of a front, frames of other workers, progress of the acker), runs the
items through the graph as far as they go on this worker, and returns what the runner has to do: send
frames to other workers, send one ack, store the bundles that became final.

Invariants, each of which a test breaks to see it caught:

1. *FIFO.* Items of one place and one trace leave in the order they came, through every queue here:
   an item, its tombstone, another version. Queues are lists that are appended to and sorted only
   stably by place (`mailboxes`, `regions`).
2. *One ack.* What an event finished and what it sent are acked in one message, after processing.
   What stays on this worker is neither sent nor acked (`outbox`).
3. *A frame's id counts once a table*, so every id is xored exactly twice (`outbox`).
4. *Release below the minimal time only* (`barriers`).
5. *Speculation is bounded*: a worker spends only so many replays on its cycles until the minimal time
   moves, then it holds back what is above the minimal time (`budget`, `regions`). Items that are held
   are in flight: they are acked as a frame that the worker sends to itself.

The parts of a worker are objects of their own. This class makes them, turns events into calls of them,
and gathers what they give.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import itemgetter
from typing import Any

from emberflow.engine.cuts.cut import Capture, Row, Scheduled
from emberflow.engine.cuts.resting import RestingTicks
from emberflow.engine.interface import BarrierStatistics, NodeStatistics, Statistics
from emberflow.engine.layout import Layout, Machines
from emberflow.engine.machines.barrier import Barrier
from emberflow.engine.machines.cold import ColdRows, ColdStores
from emberflow.engine.messages import (
    BEFORE_ALL,
    FAILED,
    Bundle,
    Effects,
    Frame,
    Moment,
    Progress,
)
from emberflow.engine.progress.receipts import CountedReceipts, Receipts, ReceivedFrames
from emberflow.engine.queries.worker import StateReader
from emberflow.engine.speculation.budget import Budget
from emberflow.engine.speculation.patience import DEFAULT_JUDGES, Judges, Patience
from emberflow.engine.speculation.turns import TurnOf, turns_of
from emberflow.engine.worker.barriers import Barriers
from emberflow.engine.worker.dataflow import Dataflow
from emberflow.engine.worker.gathering.region import Gathering
from emberflow.engine.worker.loads import Loads
from emberflow.engine.worker.mailboxes import Mailboxes
from emberflow.engine.worker.outbox import Outbox
from emberflow.engine.worker.ranges import Ranges
from emberflow.engine.worker.regions import Cycle
from emberflow.engine.worker.retention import Retention
from emberflow.engine.worker.routing import Routes
from emberflow.errors import Diverted
from emberflow.values.item import FlatItem, Place
from emberflow.values.owners import Owners, equal_owners

_place_of = itemgetter(0)


class Worker:
    """One worker of ``workers``. ``delivered`` is what each sink partition has from earlier, and
    ``owners`` tell which worker owns which keys: all own equally many, by default. ``splits``: each worker has an
    account of what it has sent, and there is no acker (`progress.accounts`)."""

    def __init__(
        self,
        layout: Layout,
        index: int,
        workers: int,
        *,
        incarnation: int = 0,
        delivered: dict[tuple[str, int], Moment] | None = None,
        owners: Owners | None = None,
        judges: Judges = DEFAULT_JUDGES,
        splits: bool = False,
    ) -> None:
        self.layout = layout
        self.index = index
        self.workers = workers
        self.machines = Machines(layout)
        self.reading = StateReader(index, layout, self.machines)
        self.retention = Retention(index, self.machines, self.reading)
        #: Sends frames that leave before their event is over, if the runner wants any (`outbox`).
        self.ahead: Callable[[list[tuple[int, Frame]]], None] | None = None
        #: Nothing below this can reach the barriers here any more, but for what concerns the keys of a worker
        #: alone.
        self.minimal: Moment = BEFORE_ALL
        #: The progress that was heard last.
        self._progress = Progress(BEFORE_ALL, (BEFORE_ALL,) * workers)
        #: No failure below this can come or be taken back any more, if failures end the run.
        self._failing: Moment = BEFORE_ALL
        #: What stands at the acker for failures that are held.
        self._failures_held: Frame | None = None
        self._elements = 0
        owners = equal_owners(workers) if owners is None else owners
        self._owners = owners
        routes = Routes(layout, index, workers, owners, self.machines.stateful)
        #: Which nodes' items concern the keys of a worker alone, and which barriers these can reach.
        self.ranges = Ranges(layout, owners)
        self._barriers = Barriers(layout, routes, delivered or {})
        self._receipts: ReceivedFrames = CountedReceipts(index) if splits else Receipts(index)
        rows_nodes = sum(len(region.rows) for region in layout.gatherable)
        turns: list[TurnOf] = [*turns_of(layout.graph), *[_place_of] * (1 + rows_nodes)]
        #: By the rank of the region.
        self._budgets = {
            rank: Budget(turns, layout.stage[unit.nodes[0]])
            for rank, unit in enumerate(layout.units)
            if unit.is_region
        }
        self._mailboxes = Mailboxes(layout, by_place=True)
        self._outbox = Outbox(
            index,
            incarnation,
            self._budgets.values(),
            turns,
            self._receipts,
            # A failure that ends the run holds back all output: see `barriers`.
            self._barriers.by_node.keys() - (set() if layout.diverts else {layout.failures}),
            layout.stage,
            self.ranges.nodes,
            None if layout.diverts else layout.failures,
            splits=splits,
        )
        self._dataflow = Dataflow(
            layout, self.machines, routes, self._barriers, self._mailboxes, self._outbox
        )
        #: By the rank of the region.
        self._cycles = {
            rank: Cycle(layout.units[rank], self._dataflow, self._mailboxes, self._outbox, budget)
            for rank, budget in self._budgets.items()
        }
        self._regions = {rank: cycle.run for rank, cycle in self._cycles.items()}
        self._patience = Patience(
            layout,
            self.machines.stateful,
            self._dataflow.run,
            self._outbox.post,
            self._outbox.hold_frame,
            self._outbox.finish,
            self._dataflow.items_of,
            judges,
            self.ranges.nodes,
            index,
            is_alone=workers == 1,
        )
        #: By the rank of the region.
        self._gatherings = {
            region.rank: Gathering(
                region,
                self._patience.windows(region.opens),
                self._dataflow,
                self._cycles[region.rank],
                routes,
                self._outbox,
                judges.gathering(),
            )
            for region in layout.gatherable
            if workers > 1
        }
        #: By the node that rows are bound for: the region, and the state.
        self._rows_of = {
            rows_node: (gathering, state)
            for gathering in self._gatherings.values()
            for state, rows_node in gathering.region.rows.items()
        }

    # Events.

    def enter(
        self,
        node: int,
        elements: Sequence[tuple[Moment, Any]],
        reports: dict[int, Moment],
        malformed: Sequence[tuple[Place, Diverted | Exception]] = (),
    ) -> Effects:
        """Take in elements of a front with their global times, and what the front promises after them.

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
        """The same for elements that are items already: a global time is a place, and 0 its mark."""
        if malformed:
            failures = [(place, 0, record) for place, record in malformed]
            self._dataflow.send(self.layout.failures, failures)
        if items:
            self._elements += len(items)
            self._mailboxes.put(node, items)
        self._outbox.reports.update(reports)
        self._run()
        return self._effects()

    def deliver(self, frames: Sequence[Frame]) -> Effects:
        """Take in frames of other workers, in the order they came."""
        self._receive(frames)
        self._run()
        return self._effects(releases=True)

    def progress(self, progress: Progress, frames: Sequence[Frame] = ()) -> Effects:
        """The minimal time has moved: release what is final. `tidy` trims what became obsolete.

        ``frames`` came at the same time. To take in both at once gives fewer frames than one after the
        other: what came and what need not wait any longer leave together.
        """
        self._receive(frames)
        self._receipts.progress(progress)
        self._progress = progress
        self._outbox.forget_below(progress.anywhere)
        self._failing = min(
            progress.anywhere, progress.failing[0], *(own[-1] for own in progress.own)
        )
        for rank, budget in self._budgets.items():
            if budget.progress(progress) and self._cycles[rank].held():
                self._mailboxes.wake(rank)
        for rank, arrangement in progress.arrangements:
            self._gatherings[rank].hear(arrangement, progress.anywhere)
        self._patience.progress(progress)
        for gathering in self._gatherings.values():
            gathering.progress(self._patience.frontier(gathering.stage))
        self._run()
        self.retention.progress(progress)
        return self._effects(releases=True)

    @property
    def is_untidy(self) -> bool:
        """Whether `tidy` has anything to do."""
        return self.retention.is_untidy

    def tidy(self, *, is_waited_for: bool = False) -> None:
        """Trim what the last progress made obsolete, as far as it is due.

        Nobody waits for that. So the runner calls this when all that somebody waits for is on its way;
        a worker that is waited for again by then can put it off for a while.
        """
        self.retention.tidy(is_waited_for=is_waited_for)

    def pass_time(self, elapsed: float) -> None:
        """Add up how long items wait: so much time has passed since the last call."""
        self._barriers.pass_time(elapsed)
        self._patience.pass_time(elapsed)

    def trim(self, most: int | None = None) -> None:
        """Trim now, whether or not it is due: every bucket, or so many of each machine at most."""
        self.retention.trim(most)

    # Buckets out of memory (`machines.cold`).

    def keep_cold(self, stores: ColdStores) -> None:
        """Let this worker evict buckets; ``stores`` makes the store of a machine."""
        self.retention.keep_cold(stores)

    def evict(self, looks: int) -> int:
        """Look at so many buckets in memory, and evict some of those that nobody touched for a while.

        Nobody waits for that. Returns how many went.
        """
        return self.retention.evict(looks)

    def cold_stores(self) -> dict[str, ColdRows]:
        """By operation: where keys can be cold. Before `restore`, the rows of a cut may be put there
        instead of being given to it."""
        return self.retention.cold_stores()

    def resting_steps(self) -> Collection[str]:
        """The maps whose ticks can be at rest (`cuts.resting`)."""
        return {machine.pending.operation for machine in self.machines.ticking.values()}

    def rest(self, operation: str, ticks: RestingTicks) -> None:
        """Leave ticks of own keys that a cut has of a map at rest, instead of giving them to `restore`, which is
        called behind this."""
        for machine in self.machines.ticking.values():
            if machine.pending.operation == operation:
                machine.rest(ticks)

    def close_cold(self) -> None:
        """Nothing is processed any more: close the stores."""
        self.retention.close_cold()

    # Cuts (`cuts.cut` says what the runner has to see to).

    def begin_cut(self, moment: Moment, since: Moment) -> Capture:
        """Begin a cut at the minimal time of all that this worker has heard last."""
        return self.retention.begin_cut(moment, since)

    def cut_committed(self, moment: Moment) -> None:
        """The cut at this moment can be restored from, whatever happens."""
        self.retention.cut_committed(moment)

    def restore(
        self, moment: Moment, rows: Iterable[Row], scheduled: Iterable[Scheduled]
    ) -> Effects:
        """Take over what a cut at this moment holds for this worker, and emit what is scheduled.

        Before anything else happens; it may be called again with more of the same cut.
        """
        flow = self.layout.graph.flow
        for node, items in self.retention.restore(flow, moment, rows, scheduled, self.owns):
            scheduled_items = [(item.place, 0, item.payload) for item in items]
            self._dataflow.send(
                self.layout.reader_of_scheduled(node), sorted(scheduled_items, key=_place_of)
            )
        self._run()
        return self._effects()

    def owns(self, hashed: int) -> bool:
        """Whether the keys of a hash are this worker's."""
        return self._owners.owner(hashed) == self.index

    def _receive(self, frames: Sequence[Frame]) -> None:
        receive = self._dataflow.receive
        self._outbox.finish(frames)
        self._receipts.came(frames)
        for frame in frames:
            if frame.least is not None and len(frame.least) > 2:
                self._go_by_turns(frame)
            for node, items in frame.parts:
                if node in self._rows_of:
                    gathering, state = self._rows_of[node]
                    gathering.receive(state, items)
                    continue
                for gathering in self._gatherings.values():
                    gathering.look_at(node, items)
                receive(node, items)

    def _go_by_turns(self, frame: Frame) -> None:
        """Another worker goes by turns in the regions that a frame is for, so this one does too."""
        assert frame.least is not None
        self._outbox.go_by_turns((frame.least[0], frame.least[1]))
        rank_of = self.layout.rank
        for node, _ in frame.parts:
            budget = self._budgets.get(rank_of.get(node, -1))
            if budget is not None:
                budget.go_by_turns((frame.least[0], frame.least[1]))

    # What comes of an event.

    def _run(self) -> None:
        if self.ahead is None or self._budgets:
            self._mailboxes.run(self._patience.run, self._regions)
        else:
            self._mailboxes.run(self._run_behind, self._regions)

    def _run_behind(self, node: int, items: list[FlatItem]) -> None:
        """Run a node; if it is a stateful one, which may take long, behind what others wait for."""
        if node in self.machines.stateful:
            frames = self._outbox.ahead()
            if frames:
                assert self.ahead is not None
                self.ahead(frames)
        self._patience.run(node, items)

    def _effects(self, *, releases: bool = False) -> Effects:
        self._patience.settle(self._outbox.hold)
        for gathering in self._gatherings.values():
            gathering.settle()
        failure = self._failure()
        frames, ack = self._outbox.emptied()
        return Effects(frames, ack, self._released() if releases else [], failure)

    def _released(self) -> list[Bundle]:
        progress = self._progress
        minimal = min(progress.ahead_of_barriers(), self._receipts.least)
        if not progress.own:
            if minimal <= self.minimal:
                return []
            self.minimal = minimal
            return self._barriers.release(minimal)
        self.minimal = max(minimal, self.minimal)
        return self._barriers.release_by_range(
            minimal, [own[-1] for own in progress.own], self.ranges.reaching, progress.of_all()
        )

    def _failure(self) -> Exception | None:
        """The failure that ends the run, once that is certain. Until then it is held."""
        barrier, frame = self._barriers.endings, self._failures_held
        if barrier is None or not (barrier.held_items or frame):
            return None
        least = barrier.least
        if least is not None and least < self._failing:
            failure: Exception = barrier.release(self._failing)[0][2]
            return failure
        if frame is None or frame.least != least:
            if frame is not None:
                self._outbox.finish([frame])
            self._failures_held = None
            if least is not None:
                self._failures_held = self._outbox.hold_frame(FAILED, least)
                self._outbox.hold(self._failures_held)
        return None

    # Looking at it.

    def weigh(self, clock: Callable[[], float]) -> Loads:
        """Sample how much work the slices make here, from now on. ``clock`` tells the time that it has worked."""
        self._dataflow.loads = loads = Loads(self.layout, clock)
        return loads

    @property
    def barriers(self) -> dict[int, dict[int, Barrier]]:
        """By node and partition."""
        return self._barriers.by_node

    @property
    def released_until(self) -> dict[tuple[int, int], Moment]:
        """Where keys have ranges of their own: below which time all is released, by node and partition."""
        return self._barriers.until

    @property
    def keys(self) -> int:
        return self.keys_in_memory + self.cold_keys

    @property
    def keys_in_memory(self) -> int:
        return sum(len(machine.buckets) for machine in self.machines.stateful.values())

    @property
    def cold_keys(self) -> int:
        return sum(machine.cold_keys for machine in self.machines.stateful.values())

    @property
    def held_items(self) -> int:
        return self._barriers.held_items

    def held(self) -> list[Frame]:
        """What this worker holds back: in flight, though on no link."""
        cycles = [frame for cycle in self._cycles.values() for frame in cycle.held()]
        gathered = [frame for own in self._gatherings.values() for frame in own.held()]
        return cycles + gathered + self._patience.held()

    def statistics(self, *, sizes_too: bool = True) -> Statistics:
        """Counters of all machines, as of now. ``sizes_too`` visits every bucket."""
        barriers = self._barriers.all()
        machines = self.machines.stateful.values()
        sizes = [size for machine in machines for size in machine.sizes()] if sizes_too else []
        names = {node.id: node.name for node in self.layout.graph.nodes}
        names[self.layout.failures] = "failures"
        items_of = self._dataflow.items_of
        return Statistics(
            items=sum(items_of.values()),
            elements=self._elements,
            frames_sent=self._outbox.frames_made,
            items_sent=self._outbox.items_sent,
            replays=sum(machine.replays for machine in machines)
            + sum(gathering.replays for gathering in self._gatherings.values()),
            tombstones=sum(barrier.tombstones for barrier in barriers),
            arrived=sum(barrier.arrived for barrier in barriers),
            released=sum(barrier.released for barrier in barriers),
            waited=sum(barrier.waited for barrier in barriers),
            buffered=self._patience.buffered,
            buckets=self.keys,
            bucket_items=sum(sizes) + self.cold_keys,  # a cold key has one
            bucket_largest=max(sizes, default=0),
            items_of={names[node]: count for node, count in items_of.items()},
        )

    def node_statistics(self) -> dict[int, NodeStatistics]:
        """The counters of each node that runs here."""
        dataflow, held = self._dataflow, self._patience.held_at()
        found = {}
        for node in self.layout.nodes:
            machine = self.machines.stateful.get(node)
            found[node] = NodeStatistics(
                dataflow.items_of[node],
                tuple(dataflow.given_of[node]),
                0 if machine is None else machine.replays,
                0 if machine is None else len(machine.buckets) + machine.cold_keys,
                held.get(node, 0),
            )
        return found

    def barrier_statistics(self) -> dict[tuple[str, int], BarrierStatistics]:
        """The counters of each barrier of a sink here."""
        return {
            (sink.name, partition): BarrierStatistics(
                barrier.held_items, barrier.arrived, barrier.released, barrier.tombstones
            )
            for sink in self.layout.graph.sinks.values()
            for partition, barrier in self.barriers[sink.id].items()
        }

    @property
    def running(self) -> tuple[int, list[FlatItem]] | None:
        """The node that runs just now, and its items. Other threads may look at it."""
        return self._dataflow.running
