"""The driver's part of a cut: when it is due, and when it counts.

What is guaranteed: **a cut that counts can be restored from, and nothing is lost then.** A cut counts
when its manifest is written, and that is not before

1. every worker has stored its part, and
2. all output below the cut's moment is stored in the sinks: what a barrier has released and its sink
   does not have is in no cut. The coordinator knows how far output is stored (`progress`).

If the disk takes no writes (it is full, or read-only), the cut is *abandoned*: the committer removes
what was stored of it, rests, and begins another one. Only the recovery would take longer until then.

**The last cut of a version** counts together with the note of the version that takes over, in one manifest.
So there is one moment from which on the new version may let anything out, and one file to wait for. The
committer of the old version *holds* the cut when 1. and 2. are there, and that of the new one commits it when
all workers have taken the state over (`take_over`). If the new version does not come to that, the cut never
counts, and the old one goes on from the cut before.

**Cuts of everything wait until a life has caught up**: for some seconds after a loss or a move of slices, cuts hold
what has changed only, even if a chain is long. A cut of everything then would take from the workers what they
need to catch up, and if one was lost meanwhile, they would go back to before it.

One cut is under way at a time. If it takes longer than the interval, the next one waits. A thread
writes manifests, and removes what no kept cut needs; the coordinator's own thread never waits for a
disk.

`DriverCuts` is the strategy for what depends on the ordering of the query. `CutsByTime` is that of
``ordering="time"``; `live.arrival.driver` has the one of ``ordering="arrival"``.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from emberflow.checkpoint import Manifest
from emberflow.checkpoint.cuts.manifest import compaction_due
from emberflow.checkpoint.cuts.store import CheckpointStore, Life
from emberflow.checkpoint.errors import DamagedCutError
from emberflow.checkpoint.files import is_unwritable
from emberflow.checkpoint.logs.front_log import trim as trim_log
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.engine.progress.accounts import Accounts
from emberflow.engine.progress.acker import Acker
from emberflow.engine.progress.waiting import Resume
from emberflow.graph.description import steps_of
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import CarryPlan
from emberflow.runners.live.driver.chronicle import Cut, now_ms
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.worker.cut_writer import CALM, QUICK, Captured, CutOrder

#: How long the committer rests after a cut that was abandoned.
_ABANDONED_REST_SECONDS = 1.0
#: In a life that goes on from a cut, no cut of everything begins for so long, unless the chain has so many links.
_CATCHING_UP_SECONDS = 10.0
_LINKS_MAX = 100
#: A cut of everything costs about as much as to read half as many rows.
_READ_PER_LIVE_ROW_MAX = 1.5
#: Cuts that those who look on may still ask for. They look twice a second.
_RECENT_MAX = 100

_log = logging.getLogger("emberflow")


class DriverCuts(Protocol):
    """The strategy of a coordinator and of its committer."""

    @property
    def rest_ratio(self) -> float:
        """After a cut the committer rests for so many times as long as the cut took."""

    @property
    def may_abandon(self) -> bool:
        """Whether the next cut has all that a cut has which was never committed."""

    def next_moment(
        self, minimal: Moment, committed: Moment, number: int, *, now: bool
    ) -> Moment | None:
        """The moment of cut ``number``, given the minimal time and the last cut that counts.

        None if there is nothing new to save. ``now`` is for the last cut of a query.
        """

    def announced(self, order: CutOrder) -> tuple[bytes, Any]:
        """The message to all workers with which a cut begins."""

    def paused(self, worker: int) -> None:
        """A worker takes no more elements."""

    def unblocked(self, in_flight: int) -> CutOrder | None:
        """An order that waited for workers to pause and for frames in flight, once it may go out."""

    def is_drained(self, acker: Acker | Accounts) -> bool:
        """Whether nothing more can become final, once all fronts have halted."""

    def may_commit(self, order: CutOrder, settled: Moment) -> bool:
        """Whether a cut that is stored may count, given how far output is stored."""

    def manifest(self, manifest: Manifest) -> Manifest:
        """The manifest as it is written."""

    def log_end(self, cut: Manifest, front: str, partition: int) -> int | None:
        """The cut needs no element below this time from the log of a front; None if unknown."""

    def settled(self, minimal: Moment, settled_of: Collection[Moment]) -> Moment:
        """All output below this is stored, given what each worker says of its own."""

    def last_moment(self, minimal: Moment, committed: Moment) -> Moment:
        """What is settled when nothing is left."""


class CutsByTime:
    """Cuts at the minimal time."""

    #: Where much changes, a cut is under way a third of the time at most, and keys that change often
    #: are saved less often.
    rest_ratio = 2.0
    may_abandon = True

    def next_moment(
        self, minimal: Moment, committed: Moment, number: int, *, now: bool
    ) -> Moment | None:
        is_time = BEFORE_ALL < minimal < AFTER_ALL
        return minimal if is_time and minimal > committed else None

    def announced(self, order: CutOrder) -> tuple[bytes, Any]:
        return protocol.CUT, order

    def paused(self, worker: int) -> None:
        """Fronts are never paused."""

    def unblocked(self, in_flight: int) -> CutOrder | None:
        return None

    def is_drained(self, acker: Acker | Accounts) -> bool:
        return not acker.waits and acker.least_in_flight() is None

    def may_commit(self, order: CutOrder, settled: Moment) -> bool:
        return settled >= order.moment

    def manifest(self, manifest: Manifest) -> Manifest:
        return manifest

    def log_end(self, cut: Manifest, front: str, partition: int) -> int | None:
        return cut.time[0]

    def settled(self, minimal: Moment, settled_of: Collection[Moment]) -> Moment:
        return min(minimal, *settled_of)

    def last_moment(self, minimal: Moment, committed: Moment) -> Moment:
        return minimal


class HeldCut(NamedTuple):
    """A cut that is stored and does not count yet."""

    manifest: Manifest
    #: When it was begun, by this process's clock.
    begun_at: float
    is_whole: bool


class CutCommitter:
    """The cuts of one incarnation."""

    def __init__(
        self,
        graph: Graph,
        location: str,
        life: Life,
        strategy: DriverCuts,
        *,
        workers: int,
        interval_ms: int,
        keep: int,
        logged: Mapping[str, int],
        retaining: Mapping[str, Any] | None = None,
        trims: bool = True,
    ) -> None:
        """``logged`` are the fronts whose logs are trimmed, with the number of partitions.

        ``retaining`` are the fronts that keep their elements themselves: the committer tells them what
        a cut has, and, if it ``trims``, what no cut needs.
        """
        self._location = location
        self._store = CheckpointStore(location)
        self._graph = graph
        self._steps = steps_of(graph)
        self._life = life
        self.strategy = strategy
        self._workers = workers
        #: A cut begins so long after the one before, or later. It may be changed while cuts are made.
        self.interval_seconds = interval_ms / 1_000
        self._keep = keep
        self._logged = dict(logged)
        self._retaining = dict(retaining or {})
        self._trims = trims
        self._number = life.next_cut - 1
        self._base = life.restored
        self._order: CutOrder | None = None
        self._captured: dict[int, Captured] = {}
        self._writing = False
        self._holds = False
        #: The last cut of a version, for the version after it.
        self.held: HeldCut | None = None
        #: Whether cuts are read back as soon as they count, because another version may go on from the next
        #: one; and the parts that were found whole.
        self.reads_back = False
        #: Whether every cut adds to the last one, because others read it already.
        self.only_adds = False
        self.known_whole: set[str] = set()
        self._begun_at = self._since = time.monotonic()
        #: When all parts of the cut under way were stored, and when its manifest was begun.
        self._stored_at: float | None = None
        self._writing_since = 0.0
        self._rests_until = 0.0
        #: For the thread: a manifest to commit, the number of a cut that was abandoned, or the end.
        self._manifests: queue.Queue[Manifest | int | None] = queue.Queue(1)
        self._results: queue.SimpleQueue[Manifest | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emberflow manifests", daemon=True)
        self._thread.start()
        #: For the progress of the query: how many cuts were made, and how long the last one took.
        self.count = 0
        self.last_ms = 0.0
        self.last_bytes = 0
        self.last_rows = 0
        #: The newest cuts of this life.
        self.recent: deque[Cut] = deque(maxlen=_RECENT_MAX)

    @property
    def moment(self) -> Moment:
        """The moment of the last cut that counts."""
        return BEFORE_ALL if self._base is None else self._base.time

    @property
    def is_idle(self) -> bool:
        """Whether no cut is under way, and another one may begin."""
        return self._order is None and not self._manifests.full()

    @property
    def last(self) -> Manifest | None:
        """The last cut that counts."""
        return self._base

    def hold(self) -> None:
        """The cut under way is the last one of this version: hold it when it is stored."""
        self._holds = self._order is not None

    def unhold(self) -> None:
        """This version goes on after all, so the cut is one like others."""
        self._holds = False
        held, self.held = self.held, None
        if held is not None:
            self._write(held.manifest)

    def commit_held(self) -> None:
        """No other version takes over after all. Commit the cut at once: this version has ended."""
        if self.held is not None:
            self._store.commit(self.held.manifest)
            self.held = None

    def due(
        self, minimal: Moment, *, now: bool = False, share: float = CALM, whole: bool = False
    ) -> CutOrder | None:
        """Begin a cut, if it is time and there is something new to save.

        It takes this share of a busy worker's time. If somebody waits for it, it adds to the last one, however
        long the chain is, unless it is to be ``whole``.
        """
        if self._order is not None or self._manifests.full():
            return None
        if not now and time.monotonic() < max(
            self._begun_at + self.interval_seconds, self._rests_until
        ):
            return None
        moment = self.strategy.next_moment(minimal, self.moment, self._number + 1, now=now)
        return None if moment is None else self._begun(moment, share, whole)

    @property
    def is_long(self) -> bool:
        """Whether to make a cut of everything and to read it takes less than to read all up to the last one."""
        base = self._base
        return base is not None and compaction_due(base, rows_per_live_row=_READ_PER_LIVE_ROW_MAX)

    @property
    def _catches_up(self) -> bool:
        """Whether the workers may have to catch up: they have begun from a cut just now."""
        base = self._base
        is_long = base is not None and len({part.cut for part in base.parts}) > _LINKS_MAX
        is_young = time.monotonic() - self._since < _CATCHING_UP_SECONDS
        return self._life.restored is not None and is_young and not is_long

    @property
    def begun_at(self) -> float:
        """When the last cut was begun, whether it counts or not."""
        return self._begun_at

    @property
    def has_own_cut(self) -> bool:
        """Whether the last cut is not that of an earlier version, from which this one has taken over."""
        return self._base is None or self._base.successor is None

    def _begun(self, moment: Moment, share: float, whole: bool) -> CutOrder:
        """Begin the next cut, at this moment: of what changed, unless it should hold everything."""
        base = self._base
        if base is not None and (
            whole
            or base.successor is not None
            or (
                share == CALM
                and not self.only_adds
                and not self._catches_up
                and compaction_due(base)
            )
        ):
            base = None
        self._number += 1
        self._begun_at = time.monotonic()
        self._stored_at = None
        self._captured = {}
        self._order = CutOrder(
            self._number,
            moment,
            BEFORE_ALL if base is None else base.time,
            None if base is None else base.number,
            share,
        )
        return self._order

    def hurry(self) -> bool:
        """Somebody waits for the cut under way. Returns whether the workers have to be told."""
        if self._order is None or self._order.share >= QUICK:
            return False
        self._order = self._order._replace(share=QUICK)
        return True

    def take_over(self, plan: CarryPlan | None, held: HeldCut | None = None) -> Manifest | None:
        """Commit the cut that this life began from, for the version that takes over from it: once more, or,
        if it is ``held``, for the first time. Without a ``plan`` the version is the same, with other owners.

        All workers have restored it, and nothing has been let out yet. Returns a cut that was held.
        """
        assert self._base is not None
        if self._base.successor is not None or (plan is None and held is None):
            return None  # an earlier life of this version has done so, or there is nothing to note
        if held is None:
            self._number += 1
        incarnation = self._life.incarnation
        if plan is None:
            noted = replace(self._base, incarnation=incarnation)
        else:
            noted = self._base.succeeded(
                self._graph, plan, number=self._number, incarnation=incarnation
            )
        self._store.commit(noted)
        self._base = noted
        self._life = self._life._replace(restored=noted)
        if held is None:
            return None
        self._count(noted, held.begun_at, time.monotonic(), is_whole=held.is_whole)
        return noted

    def captured(self, captured: Captured) -> None:
        """A worker has stored its part."""
        if self._order is not None and captured.number == self._order.number:
            self._captured[captured.worker] = captured

    def committed(self, settled: Moment) -> Manifest | None:
        """Go on with the cut under way, given how far output is stored; return it when it counts."""
        order = self._order
        if order is None or self.held is not None:
            return None
        if not self._writing:
            is_stored = len(self._captured) == self._workers
            problems = [one.problem for one in self._captured.values() if one.problem is not None]
            if is_stored and self._stored_at is None:
                self._stored_at = time.monotonic()
            if is_stored and problems:
                self._abandon(order, problems[0])
            elif is_stored and self.strategy.may_commit(order, settled):
                manifest = self.strategy.manifest(self._manifest(order))
                if self._holds:
                    self.held = HeldCut(manifest, self._begun_at, order.base is None)
                else:
                    self._write(manifest)
            return None
        try:
            result = self._results.get_nowait()
        except queue.Empty:
            return None
        if isinstance(result, Exception):
            if not is_unwritable(result) or not self.strategy.may_abandon:
                raise result
            self._abandon(order, result)
            return None
        self._base = result
        self._order = None
        self._writing = False
        ended_at = time.monotonic()
        # The time that the cut waited for sinks is no work.
        waited = self._writing_since - (self._stored_at or self._writing_since)
        self._rests_until = ended_at + self.strategy.rest_ratio * (
            ended_at - self._begun_at - waited
        )
        self._count(result, self._begun_at, ended_at, is_whole=order.base is None)
        return result

    def _write(self, manifest: Manifest) -> None:
        self._writing = True
        self._writing_since = time.monotonic()
        self._manifests.put_nowait(manifest)

    def _count(self, cut: Manifest, begun_at: float, ended_at: float, *, is_whole: bool) -> None:
        own = [part for part in cut.parts if part.cut == cut.number]
        self.count += 1
        self.last_ms = (ended_at - begun_at) * 1_000
        self.last_bytes = sum(part.bytes for part in own)
        self.last_rows = sum(part.rows for part in own)
        self.recent.append(
            Cut(
                at_ms=now_ms(),
                number=cut.number,
                moment=cut.time,
                ms=round(self.last_ms, 3),
                rows=self.last_rows,
                bytes=self.last_bytes,
                is_whole=is_whole,
            )
        )

    def _abandon(self, order: CutOrder, problem: Exception) -> None:
        """Give the cut under way up, and rest before the next one. No worker writes to it any more."""
        _log.warning("cut %d is abandoned, and another one follows: %s", order.number, problem)
        self._order = None
        self._writing = self._holds = False
        self._rests_until = time.monotonic() + _ABANDONED_REST_SECONDS
        self._manifests.put_nowait(order.number)

    def close(self, seconds: float) -> None:
        try:
            self._manifests.put(None, timeout=seconds)
        except queue.Full:  # it hangs on a disk; the thread ends with the process
            return
        self._thread.join(seconds)

    def _manifest(self, order: CutOrder) -> Manifest:
        positions: dict[str, dict[int, Any]] = {}
        promised: dict[str, dict[int, tuple[int, int]]] = {}
        late: dict[str, dict[int, int]] = {}
        parts = []
        for captured in self._captured.values():
            parts += captured.parts
            for (front, partition), position in captured.positions.items():
                if isinstance(position, Resume):
                    promised.setdefault(front, {})[partition] = (position.promised, position.tie)
                    late.setdefault(front, {})[partition] = position.late
                    position = position.position
                positions.setdefault(front, {})[partition] = position
        base = self._base if order.base is not None else None
        return Manifest.of(
            self._graph,
            number=order.number,
            incarnation=self._life.incarnation,
            time=order.moment,
            parts=parts,
            base=base,
            positions=positions,
            promised=promised,
            late=late,
            versions=self._life.restored.versions if self._life.restored else (),
            steps=self._steps,
        )

    # The thread.

    def _run(self) -> None:
        while (given := self._manifests.get()) is not None:
            abandoned = given if isinstance(given, int) else None
            try:
                if isinstance(given, Manifest):
                    self._store.commit(given)
                    if self.reads_back:
                        self._read_back(given)
                    self._results.put(given)
            except Exception as error:
                self._results.put(error)
                if not is_unwritable(error):
                    return
                continue
            try:
                self._tidy(abandoned)
            except Exception as error:
                if not is_unwritable(error):
                    self._results.put(error)
                    return
                _log.warning("what no cut needs is not removed yet: %s", error)

    def _read_back(self, cut: Manifest) -> None:
        # Whoever goes on from a damaged cut reads it again, and is told.
        with contextlib.suppress(DamagedCutError):
            self._store.check_whole(cut, self.known_whole)
            self.known_whole = {part.path for part in cut.parts}

    def _tidy(self, abandoned: int | None) -> None:
        """Remove the cuts, and trim the logs, that nobody can restore from any more."""
        incarnation = self._life.incarnation
        self._store.prune(self._keep, incarnation=incarnation, abandoned=abandoned)
        if abandoned is not None:
            return
        if not self._logged and not self._retaining:
            return
        cuts = sorted(self._store.cuts(again=False), key=lambda cut: cut.time)
        oldest, newest = cuts[0], cuts[-1]
        for front, partitions in self._logged.items():
            for partition in range(partitions):
                end = self.strategy.log_end(oldest, front, partition)
                if end is not None:
                    # The entries of a front with times of its own are promises, not times.
                    known = oldest.promised.get(front, {}).get(partition, (end, 0))
                    trim_log(self._location, front, partition, min(end, known[0]))
        for name, front in self._retaining.items():
            tell_passed(name, front, newest)
            for partition, position in oldest.positions.get(name, {}).items():
                if self._trims:
                    front.trim(partition, position)


def tell_passed(name: str, front: Any, cut: Manifest) -> None:
    """Tell a front that keeps its elements itself up to where a cut has them."""
    for partition, position in cut.positions.get(name, {}).items():
        front.passed(partition, position)
