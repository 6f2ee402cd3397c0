"""Snapshots by markers, on the driver's side: the strategy of a coordinator with ``ordering="arrival"``.

How it differs from cuts by time (`driver.cuts`):

- A snapshot has a number and no global time: its moment is ``(number, 0)``, and the coordinator
  tells workers to inject the marker of that number. Nothing has to be settled first: the output of its
  epoch is part of the snapshot, and goes to the sinks when it is committed (`engine.arrival.outputs`).
- What is *settled* is therefore told in numbers of snapshots too, where output is held.
- Output and logs of older snapshots are no part of a newer one.
- *Stop the world*: the coordinator pauses the fronts first, and orders the snapshot when nothing is in
  flight. The acker knows that: a worker says that it has paused behind the acks of all it took in, on
  the same link. Fronts go on when the snapshot is committed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.rows import SCHEDULED
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.engine.progress.accounts import Accounts
from emberflow.engine.progress.acker import Acker
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.worker.cut_writer import CutOrder


class DriverSnapshots:
    """Snapshots by markers; where it ``stops`` the world, without any marker."""

    #: Output waits for the next snapshot, so there is no rest between two.
    rest_ratio = 0.0
    #: Output of an epoch is in one snapshot only, so that a lost snapshot is a lost life.
    may_abandon = False

    def __init__(self, *, workers: int, holds_output: bool, stops: bool) -> None:
        self._workers = workers
        self._holds_output = holds_output
        self._stops = stops
        self._minimal_of_last = BEFORE_ALL
        self._paused: set[int] = set()
        #: What is ordered when nothing is in flight.
        self._order: CutOrder | None = None

    def next_moment(
        self, minimal: Moment, committed: Moment, number: int, *, now: bool
    ) -> Moment | None:
        if minimal == self._minimal_of_last and not now:
            return None
        self._minimal_of_last = minimal
        return (number, 0)

    def announced(self, order: CutOrder) -> tuple[bytes, Any]:
        if not self._stops:
            return protocol.CUT, order
        self._order = order
        self._paused = set()
        return protocol.PAUSE, None

    def paused(self, worker: int) -> None:
        self._paused.add(worker)

    def unblocked(self, in_flight: int) -> CutOrder | None:
        if in_flight or len(self._paused) < self._workers:
            return None
        order, self._order = self._order, None
        return order

    def is_drained(self, acker: Acker | Accounts) -> bool:
        return acker.entries == 0

    def may_commit(self, order: CutOrder, settled: Moment) -> bool:
        return True

    def manifest(self, manifest: Manifest) -> Manifest:
        parts = tuple(
            part for part in manifest.parts if part.kind != SCHEDULED or part.cut == manifest.number
        )
        return replace(manifest, parts=parts, ordering="arrival")

    def log_end(self, cut: Manifest, front: str, partition: int) -> int | None:
        taken = cut.positions.get(front, {}).get(partition)
        return None if taken is None else taken[1]

    def settled(self, minimal: Moment, settled_of: Collection[Moment]) -> Moment:
        return min(settled_of) if self._holds_output else min(minimal, *settled_of)

    def last_moment(self, minimal: Moment, committed: Moment) -> Moment:
        return committed if self._holds_output else minimal
