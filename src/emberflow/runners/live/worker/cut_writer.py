"""The cut writer: the loop captures its part of a cut between rounds, and a thread stores it.

What is guaranteed: **a cut makes nothing else wait long.** The loop visits a limited number of buckets
in a round and hands the rows to the thread through a bounded queue. When the queue is full, the capture
waits and everything else goes on. The thread pickles, sorts, writes and syncs. While there is anything
else to do, both take only a share of the time, and never more than some milliseconds in one go. The share
is small: a cut is in no hurry. While the loop is idle neither of them rests, and none at all if everybody
waits. `engine.cuts.cut` says what is captured, and why that is enough.

The share is larger where somebody waits for the cut, also for one that is under way already; and for a cut of
many rows, which would take long otherwise. Both take of the time that the loop has left (`spare`).

If the disk takes no writes (it is full, or read-only), the writer abandons the cut and says so. A cut
that is never committed changes nothing: the next one holds all that changed since the last one that was.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple, cast

from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import PartInfo
from emberflow.checkpoint.cuts.rows import SCHEDULED, Chunk
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.files import is_unwritable
from emberflow.engine.cuts.cut import Capture, Content, KeptRows, KeptTicks, Row, Scheduled
from emberflow.engine.cuts.packed import PackedRows
from emberflow.engine.interface import EngineWorker
from emberflow.engine.messages import Moment
from emberflow.runners.live.worker.machine.spare import LEAST_AWAITED, Spare

#: Buckets that the loop visits in a round.
_BUCKETS_A_ROUND = 1_024
#: The share of a busy worker's time that a cut takes: of the loop's, to capture, and of the thread's.
CALM = 0.05
#: The least share if somebody waits for the cut, and output must not: mostly it takes more (`spare`). And the share
#: if everybody waits for it.
QUICK = LEAST_AWAITED
AT_ONCE = 1.0
#: After this time a cut that is not done is one of many rows.
_LARGE_AFTER_SECONDS = 0.15
#: Rows that the thread encodes at once: three times as fast as those of one round.
_ROWS_AT_ONCE = 2_000
#: What most chunks have.
_ONLY_ROWS = frozenset((Row,))
#: Chunks between the loop and the thread.
_CHUNKS_MAX = 32
_REST_SECONDS_MAX = 0.1
#: A loop that waits, waits for a millisecond or longer. A rest that is much shorter is none.
_WAIT_SECONDS_MIN = 0.0003
#: The loop is busy for so long after it last had something to do.
_BUSY_SECONDS = 0.1


class CutOrder(NamedTuple):
    """An order of the coordinator: a cut at a moment, of what changed since the cut ``base``."""

    number: int
    moment: Moment
    since: Moment
    base: int | None
    share: float = CALM


class Captured(NamedTuple):
    """What a worker has stored of a cut."""

    worker: int
    number: int
    parts: list[PartInfo]
    #: Of each partition of a front that it feeds: the position of the last element below the cut.
    positions: dict[tuple[str, int], object]
    #: Why the cut is abandoned: the disk took no writes, and the worker has not stored its part.
    problem: OSError | None = None


class CutWriter:
    """The cuts of one worker, one at a time."""

    def __init__(self, store: CheckpointStore, worker: int, incarnation: int, spare: Spare) -> None:
        self.lists = SavedLists()
        self._spare = spare
        self._store = store
        self._worker = worker
        self._incarnation = incarnation
        self._capture: Capture | None = None
        #: From `begin` until `go_on` has told what was stored.
        self.is_under_way = False
        #: The share that was ordered; and if somebody waits for the cut, whether the loop was behind before.
        self._share = CALM
        self._was_behind = False
        #: When it was begun, and when it was first known that somebody waits for it.
        self._begun_at = self._awaited_at = 0.0
        self._rests_until = 0.0
        #: When the loop last had something to do; how much CPU time the thread had used at its last rest.
        self._busy_at = 0.0
        self._rested_at = 0.0
        self._positions: dict[tuple[str, int], object] = {}
        self._orders: queue.Queue[CutOrder] = queue.Queue(1)
        self._chunks: queue.Queue[list[Content] | None] = queue.Queue(_CHUNKS_MAX)
        self._results: queue.SimpleQueue[Captured | Exception] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberflow cuts", daemon=True)
        self._thread.start()

    def begin(
        self, engine: EngineWorker, order: CutOrder, positions: Mapping[tuple[str, int], object]
    ) -> None:
        """Begin a cut: the engine has just heard of the progress to its moment."""
        self._capture = engine.begin_cut(order.moment, order.since)
        self._share = order.share
        self._was_behind = self._spare.is_behind
        self._begun_at = self._awaited_at = time.monotonic()
        self._positions = dict(positions)
        self.is_under_way = True
        self._orders.put_nowait(order)  # the coordinator orders one cut at a time

    def hurry(self) -> None:
        """Somebody waits for the cut under way, if there is one."""
        if self._share < QUICK:
            self._share, self._awaited_at = QUICK, time.monotonic()
            self._was_behind = self._spare.is_behind

    def go_on(self, *, loop_is_busy: bool) -> Captured | None:
        """Capture a bit more of the cut under way, if any; return, once, what was stored of it."""
        begin = time.monotonic()
        if loop_is_busy:
            self._busy_at = begin
        if self.is_busy:
            assert self._capture is not None
            rows = self._capture.next(_BUCKETS_A_ROUND)
            if rows is None:
                self._capture = None
            if rows is None or rows:
                self._chunks.put_nowait(rows)
            end = time.monotonic()
            self._spare.gave(end - begin)
            self._rests_until = end + (end - begin) * (1 / self.share - 1)
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return None
        if isinstance(result, Exception):
            raise result
        self.is_under_way = False
        return result._replace(positions=self._positions)

    @property
    def is_busy(self) -> bool:
        """Whether the loop can capture more now."""
        return (
            self._capture is not None
            and not self._chunks.full()
            and (not self._may_rest() or time.monotonic() >= self._rests_until - _WAIT_SECONDS_MIN)
        )

    @property
    def share(self) -> float:
        """The share of the time that the cut under way takes of a loop that is busy."""
        share = self._share
        if share >= AT_ONCE:
            return share
        if share >= QUICK:
            seconds = time.monotonic() - self._awaited_at
            return self._spare.share_awaited(seconds, behind=self._was_behind)
        is_large = time.monotonic() - self._begun_at >= _LARGE_AFTER_SECONDS
        return max(share, self._spare.share()) if is_large else share

    def _may_rest(self) -> bool:
        return self._share < AT_ONCE and time.monotonic() - self._busy_at < _BUSY_SECONDS

    def close(self, seconds: float) -> None:
        self._ended.set()
        self._thread.join(seconds)

    # The thread.

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                order = self._orders.get(timeout=0.1)
            except queue.Empty:
                continue
            try:
                self._results.put(self._captured(order))
            except _Ended:
                return
            except Exception as error:
                self._results.put(error)
                return

    def _captured(self, order: CutOrder) -> Captured:
        scheduled: list[Scheduled] = []
        resting: list[KeptTicks] = []
        rows = self._rows(scheduled, resting)
        try:
            parts = self._stored(order, rows, scheduled, resting)
            return Captured(self._worker, order.number, parts, {})
        except OSError as error:
            if not is_unwritable(error):
                raise
            for _ in rows:  # the loop completes its capture, and must not wait for this thread
                pass
            return Captured(self._worker, order.number, [], {}, error)

    def _stored(
        self,
        order: CutOrder,
        rows: Iterator[Chunk],
        scheduled: list[Scheduled],
        resting: list[KeptTicks],
    ) -> list[PartInfo]:
        """Store the rows, and then the scheduled items that were found among them."""
        store, incarnation = self._store, self._incarnation
        self._rested_at = time.thread_time()
        parts = [
            store.write_part(
                order.number,
                self._worker,
                rows,
                incarnation=incarnation,
                base=order.base,
                lists=self.lists,
                pause=self._rest,
            )
        ]
        if scheduled or resting:
            parts.append(
                store.write_part(
                    order.number,
                    self._worker,
                    chain([scheduled], self._at_rest(resting)),
                    incarnation=incarnation,
                    kind=SCHEDULED,
                    base=order.base,
                    pause=self._rest,
                )
            )
        return [part for part in parts if part is not None]

    def _at_rest(self, resting: list[KeptTicks]) -> Iterator[Chunk]:
        """Scheduled items that the worker has left where it found them, many at once."""
        ticks = chain.from_iterable(resting)
        while some := list(islice(ticks, _ROWS_AT_ONCE)):
            if self._ended.is_set():
                raise _Ended
            yield some
            self._rest()

    def _rows(self, scheduled: list[Scheduled], resting: list[KeptTicks]) -> Iterator[Chunk]:
        """Rows of buckets as the loop captures them, many at once; scheduled items are set apart. What the
        worker has out of memory is read here, and copied as it is."""
        rows: list[Row] = []
        kept: list[KeptRows] = []
        while True:
            self._rest()
            try:
                chunk = self._chunks.get(timeout=0.1)
            except queue.Empty:
                if self._ended.is_set():
                    raise _Ended from None
                continue
            if chunk is not None and _ONLY_ROWS.issuperset(map(type, chunk)):
                rows += cast("list[Row]", chunk)
            elif chunk is not None:
                for each in chunk:
                    if isinstance(each, Row):
                        rows.append(each)
                    elif isinstance(each, Scheduled):
                        scheduled.append(each)
                    elif isinstance(each, PackedRows):
                        yield each
                    elif isinstance(each, KeptTicks):
                        resting.append(each)
                    else:
                        kept.append(each)
            if rows and (chunk is None or len(rows) >= _ROWS_AT_ONCE):
                yield rows
                rows = []
            if chunk is None:
                for written in chain.from_iterable(each.as_written() for each in kept):
                    if self._ended.is_set():
                        raise _Ended
                    yield written
                    self._rest()
                return

    def _rest(self) -> None:
        """Sleep between two pieces of work, so that a busy loop gets most of the time."""
        if self._may_rest():
            worked = time.thread_time() - self._rested_at
            self._ended.wait(min(worked * (1 / self.share - 1), _REST_SECONDS_MAX))
        self._rested_at = time.thread_time()


class _Ended(Exception):  # noqa: N818 - no error: the worker ends in the middle of a cut
    pass
