"""What a worker's loop does differently, by the ordering of the query: cuts, and what hangs on them.

`WorkerCuts` is the strategy that a loop is given. It makes the engine worker, restores it, begins cuts
and says what their commit releases. `CutsByTime` is that of ``ordering="time"``; `live.arrival.worker`
has the one of ``ordering="arrival"``. The loop itself is the same for both.

By time, a cut is taken at the minimal time (`engine.cuts.cut`): the worker captures its part from the
end of the round on in which it heard the order. Output does not wait for cuts, so a commit releases
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

from emberflow.checkpoint.cuts.backfills import all_rows, rows_of
from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.rows import BUCKET, SCHEDULED
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.ranges import Ranges
from emberflow.engine.cuts.cut import Row, Scheduled
from emberflow.engine.cuts.translation import translated_rows, translated_timers
from emberflow.engine.interface import EngineWorker
from emberflow.engine.layout import Layout
from emberflow.engine.machines.cold import RowsInMemory
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Bundle, Effects, Moment
from emberflow.engine.queries.worker import StateReader
from emberflow.engine.worker.succession import kept_rows, kept_timers, moving, succeed
from emberflow.engine.worker.worker import Worker
from emberflow.runners.live.cold.ahead import CopiedAhead
from emberflow.runners.live.cold.bound import default_folder, default_limit
from emberflow.runners.live.cold.runs import SortedRuns
from emberflow.runners.live.cold.ticks import divided_ticks
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.worker.cut_writer import Captured, CutOrder, CutWriter
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.machine.memory import available
from emberflow.runners.live.worker.reader import Beginning
from emberflow.runners.live.worker.store import Store
from emberflow.values.hashing import HashRange

#: Rows of a cut that are restored at once.
ROWS_AT_ONCE = 2_000

#: With so many rows for each worker, a restore leaves keys cold. Fewer are in memory in a tenth of a second, where
#: nobody has to fetch them.
_LEFT_COLD_FROM = 10_000
#: With fewer rows that come to a worker, slices that move are not read ahead.
COPIED_FROM = 200
#: So many bytes a row may take, if the bound for state is so small that fewer do not fit.
_ROW_BYTES = 400
#: If what comes to a worker takes this share of its bound for state or more, keys that can be cold are.
_COPIED_SHARE = 0.4

#: By sink and partition: the last global time that the sink has.
Delivered = dict[tuple[str, int], Moment]
#: What the steps of a version begin with on this worker from backfills.
Begun = tuple[list[Row], list[Scheduled]]


def begun_of(plan: Plan, index: int) -> Begun:
    """Read that, before the version takes over: nobody waits for it yet."""
    if plan.carried is None:
        return [], []
    return all_rows(plan.carried, plan.owners.ranges(index))


def _rows_a_worker(cut: Manifest, plan: Plan) -> int:
    return sum(part.rows for part in cut.parts if part.kind == BUCKET) // plan.workers


def _restored_rows_max(plan: Plan) -> int:
    if plan.state_memory is None:
        return _LEFT_COLD_FROM
    return min(_LEFT_COLD_FROM, plan.state_memory // _ROW_BYTES)


def arriving_at(plan: Plan, index: int) -> list[HashRange]:
    """The hashes that come to a worker when slices move."""
    assert plan.moved_from is not None
    if index >= plan.moved_from.workers:
        return plan.owners.ranges(index)
    return plan.owners.arriving(plan.moved_from, index)


def copied_ahead(
    plan: Plan, index: int, store: CheckpointStore, cut: Manifest
) -> CopiedAhead | None:
    """What a worker will read ahead, from this cut on; None if it is too little to be worth it."""
    ranges = arriving_at(plan, index)
    share = sum(own.high - own.low + 1 for own in ranges) / (1 << 32)
    rows = share * sum(part.rows for part in cut.parts)
    if rows < COPIED_FROM:
        return None
    layout = Layout(plan.graph, on_error=plan.on_error)
    limit = plan.state_memory or default_limit(available(), plan.workers)
    cold: Collection[str] = ()
    if rows * _ROW_BYTES > _COPIED_SHARE * limit:
        worker = Worker(layout, index, plan.workers, owners=plan.owners)
        worker.keep_cold(RowsInMemory)
        cold = worker.cold_stores().keys()
    folder = plan.state_folder or default_folder()
    return CopiedAhead(store, folder, layout, ranges, plan.owners.ranges(index), cold)


class WorkerCuts(Protocol):
    """The strategy of one worker's loop."""

    @property
    def engine(self) -> EngineWorker: ...

    @property
    def reader(self) -> StateReader | None:
        """What answers reads of state; None if they are not offered."""

    @property
    def takes_elements(self) -> bool:
        """Whether the engine has room for more elements."""

    @property
    def unreleased(self) -> int:
        """Items that are processed and wait only for a commit."""

    def journals(self, front: str) -> bool:
        """Whether what this front chooses has to be noted in its journal."""

    def restored(
        self, store: CheckpointStore, cut: Manifest, lists: SavedLists
    ) -> Iterator[Effects]:
        """Restore this worker's part of a cut, a piece at a time."""

    def inherited(self, old: EngineWorker, moment: Moment, begun: Begun) -> Effects:
        """Take over the state of the version before, as of a moment, from its engine in this process, and
        what steps begin with from backfills."""

    def moved(
        self,
        store: CheckpointStore,
        cut: Manifest,
        lists: SavedLists,
        old: EngineWorker | None,
        ahead: CopiedAhead | None,
    ) -> Iterator[Effects]:
        """Take over the slices of this worker by another owner table, a piece at a time: from its engine
        in this process, if there is one, from what was copied ahead, and from the cut."""

    def beginning(self, feed: Feed, last: Moment | None) -> Beginning:
        """Where a feed begins. ``last`` is the greatest global time that any sink has."""

    def begin(self, order: CutOrder, feeds: Sequence[Feed], writer: CutWriter) -> list[Effects]:
        """Begin a cut at the end of a round, behind all that the round took in."""

    def go_on(
        self, stores: Collection[Store], writer: CutWriter, *, loop_is_busy: bool
    ) -> Captured | None:
        """Go on with the cut under way, if any. Return the part when it may be counted."""

    def committed(self, moment: Moment) -> list[Bundle]:
        """The cut at this moment can be restored from: what its commit releases."""

    def settled_elements(
        self, settled: Moment, feeds: Sequence[Feed]
    ) -> Iterable[tuple[Feed, Moment]]:
        """By feed: below which moment its elements are settled, when the query is up to here."""

    def settled_output(self, stores: Collection[Store]) -> Moment:
        """Up to where all output of this worker is stored."""


class CutsByTime:
    """Cuts at the minimal time, of a worker that orders items by their global times."""

    takes_elements = True
    unreleased = 0

    def __init__(self, plan: Plan, index: int, delivered: Delivered) -> None:
        self._plan = plan
        self._index = index
        self.engine = Worker(
            Layout(plan.graph, on_error=plan.on_error),
            index,
            plan.workers,
            incarnation=plan.incarnation,
            delivered=delivered,
            owners=plan.owners,
            judges=plan.judges,
            splits=plan.has_accounts,
        )

    @property
    def reader(self) -> StateReader:
        return self.engine.reading

    def journals(self, front: str) -> bool:
        return True

    def restored(
        self, store: CheckpointStore, cut: Manifest, lists: SavedLists
    ) -> Iterator[Effects]:
        own, carried = self._plan.owners.ranges(self._index), self._plan.carried
        left_cold: Collection[str] = ()
        scheduled: Iterator[Scheduled] | None = None
        if _rows_a_worker(cut, self._plan) >= _restored_rows_max(self._plan):
            left_cold = self._left_cold(store, cut, own)
            if carried is None:
                scheduled = self._left_at_rest(store, cut, own)
            yield self.engine.restore(
                cut.time, [], []
            )  # it knows what has expired before it begins
        rows: Iterator[Row] = store.rows_in(cut, own, lists=lists, left_out=left_cold)
        if scheduled is None:
            scheduled = map(Scheduled._make, store.rows_in(cut, own, kind=SCHEDULED))
        if carried is not None:  # the cut is of an earlier version of the flow
            begun = [rows_of(backfill, own) for backfill in carried.backfills]
            rows = chain(translated_rows(rows, carried, cut.time), *(one for one, _ in begun))
            scheduled = chain(translated_timers(scheduled, carried), *(due for _, due in begun))
        yield from self._pieces(cut.time, rows, scheduled)

    def _left_cold(
        self, store: CheckpointStore, cut: Manifest, own: Sequence[HashRange]
    ) -> Collection[str]:
        """Leave the rows of a cut in its files, for the steps whose keys can be cold. Returns these steps, by
        the names that the cut has for them."""
        stores, carried = self.engine.cold_stores(), self._plan.carried
        heirs = {step: step for step in stores} if carried is None else carried.unchanged
        found = store.columns(cut, own, [step for step, heir in heirs.items() if heir in stores])
        for step, runs in found.items():
            cold = stores[heirs[step]]
            assert isinstance(cold, SortedRuns)
            cold.begin_with(heirs[step], runs)
            expires = None if carried is None else carried.carried[step].expires
            if expires is not None:  # what was over for the old version is not carried
                cold.end(cut.time[0] - expires)
        return found

    def _left_at_rest(
        self, store: CheckpointStore, cut: Manifest, own: Sequence[HashRange]
    ) -> Iterator[Scheduled]:
        """Leave the ticks of a cut as they are until they are due. Returns what else it has scheduled."""
        resting, others = divided_ticks(store.scheduled(cut, own), self.engine.resting_steps())
        for step, ticks in resting.items():
            self.engine.rest(step, ticks)
        return others

    def inherited(self, old: EngineWorker, moment: Moment, begun: Begun) -> Effects:
        assert isinstance(old, Worker)
        assert self._plan.carried is not None
        return succeed(old, self.engine, moment, self._plan.carried, *begun)

    def moved(
        self,
        store: CheckpointStore,
        cut: Manifest,
        lists: SavedLists,
        old: EngineWorker | None,
        ahead: CopiedAhead | None,
    ) -> Iterator[Effects]:
        owners, before = self._plan.owners, self._plan.moved_from
        assert before is not None
        engine, shrinks = self.engine, owners.workers < before.workers
        taken = None if ahead is None else ahead.taken(cut)
        rows: Iterator[Row] = iter(())
        if old is not None:
            assert isinstance(old, Worker)
            rows = kept_rows(old, engine, cut.time, owners)
        scheduled: Iterator[Scheduled] = iter(())
        if taken is not None:
            assert ahead is not None
            state, copied = taken
            stores = engine.cold_stores()
            for step, copy in copied.items():
                cold = stores[step]
                assert isinstance(cold, SortedRuns)
                cold.adopt(copy)
            state.hand_over(engine, cut.time)
            lists.begin_restore(cut.number)
            lists.adopt(ahead.lists)
            if shrinks:
                scheduled = state.others(cut.time)
        else:
            arriving = arriving_at(self._plan, self._index)
            rows = chain(rows, store.rows_in(cut, arriving, lists=lists))
            ranges = owners.ranges(self._index) if shrinks else arriving
            found = map(Scheduled._make, store.rows_in(cut, ranges, kind=SCHEDULED))
            inside = Ranges(arriving)
            scheduled = moving(found, engine.layout, inside.__contains__, others_too=shrinks)
        if old is not None and not shrinks:
            scheduled = chain(kept_timers(old, cut.time), scheduled)
        # The engine has to know the cut even if no rows follow.
        yield engine.restore(cut.time, [], [])
        yield from self._pieces(cut.time, rows, scheduled)

    def _pieces(
        self, moment: Moment, rows: Iterator[Row], scheduled: Iterator[Scheduled]
    ) -> Iterator[Effects]:
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            yield self.engine.restore(moment, chunk, [])
        while items := list(islice(scheduled, ROWS_AT_ONCE)):
            yield self.engine.restore(moment, [], items)

    def beginning(self, feed: Feed, last: Moment | None) -> Beginning:
        plan, cut = self._plan, self._plan.restored
        position = cut.positions.get(feed.name, {}).get(feed.partition) if cut else None
        moment = cut.time if cut else BEFORE_ALL
        stored = BEFORE_ALL if last is None else last
        # The first incarnation has nobody before it: there is nothing to join.
        joins_at = BEFORE_ALL if plan.incarnation == 1 else stored
        until = stored if plan.guarantee == "at-most-once" else None
        # Every cut of a live query names all its fronts. A cut that does not is that of a backfill,
        # which had all elements below it, and was not told where in the source they end.
        # A front that a new version adds begins at the cut; what it has below that is late.
        is_new = plan.carried is not None
        passes_over = cut is not None and not is_new and feed.name not in cut.positions
        promised = cut.promised.get(feed.name, {}).get(feed.partition) if cut else None
        late = cut.late.get(feed.name, {}).get(feed.partition, 0) if cut else 0
        return Beginning(position, moment, until, joins_at, passes_over, promised, late)

    def begin(self, order: CutOrder, feeds: Sequence[Feed], writer: CutWriter) -> list[Effects]:
        resumes = {(feed.name, feed.partition): feed.resume for feed in feeds}
        writer.begin(self.engine, order, resumes)
        return []

    def go_on(
        self, stores: Collection[Store], writer: CutWriter, *, loop_is_busy: bool
    ) -> Captured | None:
        return writer.go_on(loop_is_busy=loop_is_busy)

    def committed(self, moment: Moment) -> list[Bundle]:
        self.engine.cut_committed(moment)
        return []

    def settled_elements(
        self, settled: Moment, feeds: Sequence[Feed]
    ) -> Iterable[tuple[Feed, Moment]]:
        return [(feed, settled) for feed in feeds]

    def settled_output(self, stores: Collection[Store]) -> Moment:
        """The minimal time of the barriers here, or the first global time that is not stored."""
        if not stores:
            return AFTER_ALL
        return min([self.engine.minimal, *[store.settled for store in stores]])
