"""The worker's loop of ``ordering="arrival"``: that of `worker`, around another engine.

What differs:

- An order to cut is an order to inject a marker, at the end of a round, behind all that the round
  took in; the positions of the fronts are those of that moment. The part of the snapshot is captured
  when all tasks here are through with the marker.
- That it is stored is told only when no output of an earlier epoch could be lost: all is released
  and in the sinks (see invariant 4 of `engine.arrival.worker`). Where output is not held
  (``at-least-once``), when all that left ahead of the marker is in the sinks.
- Committed means that the output of the epoch is handed to the stores. What is settled is told as
  the number of a snapshot, and each feed knows up to where its elements belong to it.
- Fronts pause where the world is stopped, and while too much is buffered behind a marker.
- A source that can be read again needs no journal, whatever times it chooses: times mean nothing
  here, and positions are in the snapshot. One that cannot is logged as ever, but nothing waits for
  its log: what was not logged before a crash has led to no output.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, cast

from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.arrival.worker import MarkerWorker
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.layout import Layout
from emberflow.engine.messages import BEFORE_ALL, Bundle, Effects, Moment
from emberflow.engine.worker.worker import Worker
from emberflow.fronts.protocol import front_contract
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.plan import Plan, WorkerNews
from emberflow.runners.live.worker.cut_writer import Captured, CutOrder
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.loop import ROWS_AT_ONCE, WorkerLoop
from emberflow.runners.live.worker.reader import Beginning
from emberflow.values.hashing import hash_ranges

#: Fronts wait while so many items are buffered behind a marker.
_BUFFERED_MAX = 100_000


class ArrivalLoop(WorkerLoop):
    """Runs until the coordinator says that it is over, or something fails."""

    def __init__(self, plan: Plan, index: int) -> None:
        super().__init__(plan, index)
        self._holds_output = plan.guarantee == "exactly-once"
        self._paused = False
        self._order: CutOrder | None = None
        self._positions: dict[tuple[str, int], object] = {}
        #: A part that is stored and not told of.
        self._captured: Captured | None = None
        #: By the number of a snapshot: up to where the elements of each feed belong to it.
        self._taken_at: dict[int, dict[int, Moment]] = {}
        self._committed: Moment = (plan.restored.number, 0) if plan.restored else BEFORE_ALL
        #: Items that were ever added to each store, and how many of them were by the last marker.
        self._added: dict[tuple[str, int], int] = {}
        self._added_by_marker: dict[tuple[str, int], int] = {}

    def _made_worker(self, delivered: dict[tuple[str, int], Moment]) -> Worker:
        plan = self.plan
        self._marked = MarkerWorker(
            Layout(plan.graph),
            self.index,
            plan.workers,
            incarnation=plan.incarnation,
            delivered=delivered,
            restored=plan.restored.number if plan.restored is not None else 0,
            holds_output=self._holds_output,
        )
        # It offers all that the loop asks of a worker.
        return cast("Worker", self._marked)

    def _journal(self, front: str, partition: int, index: int) -> Journal | None:
        if front_contract(self.plan.fronts[front]).replayable:
            return None
        return super()._journal(front, partition, index)

    # Restoring.

    def _restore_from(self, store: CheckpointStore, cut: Manifest, lists: SavedLists) -> None:
        own = hash_ranges(self.plan.workers)[self.index]
        rows = store.rows(cut, own.low, own.high, lists=lists)
        while chunk := [Row._make(row) for row in islice(rows, ROWS_AT_ONCE)]:
            self._marked.restore(chunk)
        # Of all workers: where output lives now is not a matter of hashes.
        saved = [Scheduled._make(row) for row in store.rows(cut, kind=SCHEDULED)]
        self._do([self._marked.restore_in_flight(cut.number, saved)])

    def _begin_fronts(self, last: Moment | None) -> None:
        self._fronts_begun = True
        cut = self.plan.restored
        for feed in self._feeds:
            taken: Any = cut.positions.get(feed.name, {}).get(feed.partition) if cut else None
            if taken is None:
                feed.start(Beginning())
                continue
            position, at = feed.taken = taken
            feed.start(Beginning(position, (at + 1, feed.index)))

    # A round.

    def _do(self, effects: list[Effects], *, reports_follow: bool = False) -> None:
        super()._do(effects, reports_follow=reports_follow)
        for effect in effects:
            self._count(effect.bundles)

    def _count(self, bundles: list[Bundle]) -> None:
        for bundle in bundles:
            key = (bundle.sink, bundle.partition)
            self._added[key] = self._added.get(key, 0) + len(bundle.items)

    def _take_elements(self) -> list[Effects]:
        if self._paused or self._marked.buffered > _BUFFERED_MAX:
            return []
        return super()._take_elements()

    def _hear(self, kind: bytes, body: Any) -> None:
        if kind == protocol.COMMITTED:
            self._paused = False
            self._committed = body
            bundles = self._marked.committed(body[0])
            self._count(bundles)
            for bundle in bundles:
                self._stores[bundle.sink, bundle.partition].add(bundle)
        elif kind == protocol.PAUSE:
            self._paused = True
            self._tell(protocol.PAUSED, self.index)
        elif kind == protocol.SETTLED and self._holds_output:
            self._settled_heard = body
            for number in [number for number in self._taken_at if number <= body[0]]:
                taken_at = self._taken_at.pop(number)
                for feed in self._feeds:
                    feed.settled_below(taken_at[feed.index], self._latencies.append)
        else:
            super()._hear(kind, body)

    def _go_on_with_cut(self, *, loop_is_busy: bool) -> None:
        capturing, worker = self._capturing, self._marked
        if capturing is None:
            return
        if self._cut is not None:
            self._begin_snapshot(self._cut)
            self._cut = None
        if self._order is not None and worker.complete_snapshot() is not None:
            self._added_by_marker = dict(self._added)
            capturing.begin(self._worker, self._order, self._positions)
            self._order = None
        # Never resting: output waits for the snapshot.
        self._captured = capturing.go_on(loop_is_busy=False) or self._captured
        if self._captured is not None and self._is_stored_ahead_of(self._captured.number):
            self._tell(protocol.CAPTURED, self._captured)
            self._captured = None

    def _begin_snapshot(self, order: CutOrder) -> None:
        self._order = order
        self._positions = {
            (feed.name, feed.partition): feed.taken
            for feed in self._feeds
            if feed.taken is not None
        }
        if self._holds_output:
            self._taken_at[order.number] = {
                feed.index: BEFORE_ALL if feed.taken is None else (feed.taken[1] + 1, feed.index)
                for feed in self._feeds
            }
        full = order.since == BEFORE_ALL
        if self.plan.snapshots == "stop":
            self._marked.snapshot_at_once(order.number, full=full)
        else:
            self._do([self._marked.inject(order.number, full=full)])

    def _is_stored_ahead_of(self, number: int) -> bool:
        """Whether the sinks have all output that is not part of snapshot ``number``."""
        if self._marked.owes(number):
            return False
        return all(
            self._added.get(key, 0) - store.unstored >= self._added_by_marker.get(key, 0)
            for key, store in self._stores.items()
        ) and not (self._holds_output and any(store.unstored for store in self._stores.values()))

    # Telling.

    def _settled_here(self) -> Moment:
        if any(store.unstored for store in self._stores.values()):
            return BEFORE_ALL
        return self._committed if self._holds_output else self._worker.minimal

    def _news(self) -> WorkerNews:
        news = super()._news()
        held = self._marked.held_outputs
        return news._replace(held=held, unstored=news.unstored + held)
