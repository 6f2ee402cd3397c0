"""Snapshots by markers, on the worker's side: the strategy of a loop with ``ordering="arrival"``.

What is guaranteed: **a part of a snapshot counts as stored only when no output of an earlier epoch can
be lost**: all of it is released and in the sinks (invariant 4 of `engine.arrival.worker`). Where output
is not held (``at-least-once``), when all that left ahead of the marker is in the sinks.

How it differs from cuts by time:

- An order to cut is an order to inject a marker, at the end of a round, behind all that the round
  took in; the positions of the fronts are those of that moment. The worker captures its part when all
  tasks here are through with the marker.
- A commit hands the output of the epoch to the stores. What is settled is told as the number of a
  snapshot, and the strategy knows up to where the elements of each feed belong to it.
- Fronts wait while too much is buffered behind a marker.
- A source that can be read again needs no journal, whatever times it chooses: times mean nothing
  here, and positions are in the snapshot. A source that cannot is logged as ever, but nothing waits for
  its log: what was not logged before a crash has led to no output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.engine.arrival.worker import MarkerWorker
from emberflow.engine.cuts.cut import Scheduled
from emberflow.engine.interface import EngineWorker
from emberflow.engine.layout import Layout
from emberflow.engine.messages import BEFORE_ALL, Bundle, Effects, Moment
from emberflow.errors import InternalError
from emberflow.fronts.protocol import front_contract
from emberflow.runners.live.cold.ahead import CopiedAhead
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.worker.cut_writer import Captured, CutOrder, CutWriter
from emberflow.runners.live.worker.cuts import ROWS_AT_ONCE, Begun, Delivered
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.reader import Beginning
from emberflow.runners.live.worker.store import Store

#: Fronts wait while so many items are buffered behind a marker.
_BUFFERED_MAX = 100_000


class WorkerSnapshots:
    """Snapshots by markers, of a worker that processes items as they arrive."""

    #: State by arrival is no state as of a moment: nobody can read it.
    reader = None

    def __init__(self, plan: Plan, index: int, delivered: Delivered) -> None:
        self._plan = plan
        self._index = index
        self._holds_output = plan.guarantee == "exactly-once"
        self.engine = MarkerWorker(
            Layout(plan.graph, fuses_ticks=False),
            index,
            plan.workers,
            owners=plan.owners,
            incarnation=plan.incarnation,
            delivered=delivered,
            restored=plan.restored.number if plan.restored is not None else 0,
            holds_output=self._holds_output,
        )
        #: The snapshot whose marker is under way here, and the positions of the fronts at its marker.
        self._order: CutOrder | None = None
        self._positions: dict[tuple[str, int], object] = {}
        #: A part that is stored and not reported yet.
        self._captured: Captured | None = None
        #: By the number of a snapshot: up to where the elements of each feed belong to it.
        self._taken_at: dict[int, dict[int, Moment]] = {}
        self._committed: Moment = (plan.restored.number, 0) if plan.restored else BEFORE_ALL
        #: How many items each store had been given when the last snapshot was complete.
        self._added_by_marker: dict[Store, int] = {}

    @property
    def takes_elements(self) -> bool:
        return self.engine.buffered <= _BUFFERED_MAX

    @property
    def unreleased(self) -> int:
        return self.engine.held_items

    def journals(self, front: str) -> bool:
        return not front_contract(self._plan.fronts[front]).replayable

    # Restoring.

    def restored(
        self, store: CheckpointStore, cut: Manifest, lists: SavedLists
    ) -> Iterator[Effects]:
        rows = store.rows_in(cut, self._plan.owners.ranges(self._index), lists=lists)
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            self.engine.restore(chunk)
        # Of all workers: where output lives now is not a matter of hashes.
        saved = [Scheduled._make(row) for row in store.rows(cut, kind=SCHEDULED)]
        yield self.engine.restore_in_flight(cut.number, saved)

    def inherited(self, old: EngineWorker, moment: Moment, begun: Begun) -> Effects:
        raise InternalError("versions take over by time, not by arrival")

    def moved(
        self,
        store: CheckpointStore,
        cut: Manifest,
        lists: SavedLists,
        old: EngineWorker | None,
        ahead: CopiedAhead | None,
    ) -> Iterator[Effects]:
        raise InternalError("slices move by time, not by arrival")

    def beginning(self, feed: Feed, last: Moment | None) -> Beginning:
        cut = self._plan.restored
        taken: Any = cut.positions.get(feed.name, {}).get(feed.partition) if cut else None
        if taken is None:
            return Beginning()
        position, at = feed.taken = taken
        return Beginning(position, (at + 1, feed.index))

    # A snapshot.

    def begin(self, order: CutOrder, feeds: Sequence[Feed], writer: CutWriter) -> list[Effects]:
        self._order = order
        self._positions = {
            (feed.name, feed.partition): feed.taken for feed in feeds if feed.taken is not None
        }
        if self._holds_output:
            self._taken_at[order.number] = {
                feed.index: BEFORE_ALL if feed.taken is None else (feed.taken[1] + 1, feed.index)
                for feed in feeds
            }
        full = order.since == BEFORE_ALL
        if self._plan.snapshots == "stop":
            self.engine.snapshot_at_once(order.number, full=full)
            return []
        return [self.engine.inject(order.number, full=full)]

    def go_on(
        self, stores: Collection[Store], writer: CutWriter, *, loop_is_busy: bool
    ) -> Captured | None:
        if self._order is not None and self.engine.complete_snapshot() is not None:
            self._added_by_marker = {store: store.added for store in stores}
            writer.begin(self.engine, self._order, self._positions)
            self._order = None
        # The writer never rests: output waits for the snapshot.
        self._captured = writer.go_on(loop_is_busy=False) or self._captured
        captured = self._captured
        if captured is not None and captured.problem is not None:
            # The next snapshot would not have what this one took out of its epoch: begin another life.
            raise captured.problem
        if captured is None or not self._is_stored_ahead_of(captured.number, stores):
            return None
        self._captured = None
        return captured

    def _is_stored_ahead_of(self, number: int, stores: Collection[Store]) -> bool:
        """Whether the sinks have all output that is not part of snapshot ``number``."""
        if self.engine.owes(number):
            return False
        return all(
            store.added - store.unstored >= self._added_by_marker.get(store, 0) for store in stores
        ) and not (self._holds_output and any(store.unstored for store in stores))

    def committed(self, moment: Moment) -> list[Bundle]:
        self._committed = moment
        return self.engine.committed(moment[0])

    # What is settled.

    def settled_elements(
        self, settled: Moment, feeds: Sequence[Feed]
    ) -> Iterable[tuple[Feed, Moment]]:
        if not self._holds_output:
            return [(feed, settled) for feed in feeds]
        return [
            (feed, taken_at[feed.index])
            for number in [number for number in self._taken_at if number <= settled[0]]
            for taken_at in [self._taken_at.pop(number)]
            for feed in feeds
        ]

    def settled_output(self, stores: Collection[Store]) -> Moment:
        if any(store.unstored for store in stores):
            return BEFORE_ALL
        return self._committed if self._holds_output else self.engine.minimal
