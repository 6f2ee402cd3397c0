"""The coordinator's part of ``ordering="arrival"``: when a snapshot is taken, and when it counts.

As cuts are (`driver.cuts`), with these differences:

- A snapshot has a number and no global time: its moment is ``(number, 0)``, and the coordinator
  tells workers to inject the marker of that number. Nothing has to be settled first: what its epoch
  gave is part of the snapshot, and goes to the sinks when it is committed (`engine.arrival.worker`).
- What is *settled* is therefore told in numbers of snapshots too, where output is held.
- Output and logs of older snapshots are no part of a newer one.
- *Stop the world*: fronts are halted first, and the snapshot is asked for when nothing is in flight,
  which the acker knows: a worker says that it has paused behind the acks of all it took in, on the
  same link. They go on when the snapshot is committed.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.checkpoint.logs.front_log import trim as trim_log
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.driver.cuts import Committing
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.worker.cut_writer import CutOrder


class Snapshotting(Committing):
    """The snapshots of one incarnation."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self._minimal_of_last = BEFORE_ALL
        super().__init__(*given, **named)

    def due(self, minimal: Moment, *, now: bool = False) -> CutOrder | None:
        """What to ask the workers for, if it is time and something has moved since the last one."""
        if self._order is not None:
            return None
        if not now and (
            minimal == self._minimal_of_last or time.monotonic() - self._begun_at < self._interval
        ):
            return None
        self._minimal_of_last = minimal
        return self._ordered((self._number + 1, 0))

    def _manifest(self, order: CutOrder) -> Manifest:
        manifest = super()._manifest(order)
        parts = tuple(
            part for part in manifest.parts if part.kind != SCHEDULED or part.cut == manifest.number
        )
        return replace(manifest, parts=parts, ordering="arrival")

    def _tidy(self) -> None:
        self._store.prune(self._keep, incarnation=self._life.incarnation)
        oldest = min(self._store.cuts(), key=lambda cut: cut.number)
        for front, partitions in self._logged.items():
            for partition in range(partitions):
                taken = oldest.positions.get(front, {}).get(partition)
                if taken is not None:
                    trim_log(self._location, front, partition, taken[1])


class ArrivalCoordinator(Coordinator):
    """A coordinator of workers that process items as they come."""

    def __init__(self, *given: Any, holds_output: bool, stops: bool, **named: Any) -> None:
        self._holds_output = holds_output
        self._stops = stops
        self._paused: set[int] = set()
        #: What is asked for when nothing is in flight.
        self._order: CutOrder | None = None
        super().__init__(*given, **named)

    def _hear(self, identity: bytes, kind: bytes, body: Any) -> None:
        if kind == protocol.PAUSED:
            self._paused.add(body)
        else:
            super()._hear(identity, kind, body)

    def _cut(self, *, now: bool = False) -> None:
        if self.committing is None:
            return
        manifest = self.committing.committed(AFTER_ALL)
        if manifest is not None:
            self._tell_all(protocol.COMMITTED, manifest.time)
        order = self.committing.due(self._acker.progress.of_all(), now=now)
        if order is not None and self._stops:
            self._order = order
            self._paused = set()
            self._tell_all(protocol.PAUSE, None)
        elif order is not None:
            self._tell_all(protocol.CUT, order)
        if (
            self._order is not None
            and len(self._paused) == self._workers
            and self._acker.entries == 0
        ):
            self._tell_all(protocol.CUT, self._order)
            self._order = None

    def _settled_now(self) -> Moment:
        return min(self._settled_of.values()) if self._holds_output else super()._settled_now()

    def _last_moment(self) -> Moment:
        if self._holds_output and self.committing is not None:
            return self.committing.moment
        return super()._last_moment()
