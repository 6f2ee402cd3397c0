"""The load of all workers and slices of a life, as the driver knows it.

It is that of the last seconds: what is older counts less and less. Each life begins anew, because other
owners have other loads.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import NamedTuple

from emberflow.engine.worker.loads import SliceLoad
from emberflow.runners.live.balance.meter import LoadReport

#: What is as old as this counts about a third of what is new.
MEMORY_SECONDS = 8.0
#: How much of that has to be known before anything is decided by it.
RIPE_SECONDS = 4.0
#: A slice with fewer items than this, by now, is forgotten.
_FORGOTTEN = 1e-3


class Load(NamedTuple):
    """The load of all workers, in processor seconds a second."""

    #: By worker: how much of the time its loop works.
    workers: tuple[float, ...]
    #: By slice: the part of its owner's that it takes with it.
    slices: Mapping[int, float]
    #: By slice: items and replays a second.
    items: Mapping[int, float]
    replays: Mapping[int, float]
    #: Whether it is known well enough to decide by it.
    is_ripe: bool


class _Worker:
    """What is known of one worker. All figures fade alike."""

    def __init__(self) -> None:
        self.elapsed = self.busy = self.fronts = 0.0
        self.slices: dict[int, SliceLoad] = {}

    def hear(self, report: LoadReport) -> None:
        fading = math.exp(-report.elapsed / MEMORY_SECONDS)
        self.elapsed = self.elapsed * fading + report.elapsed
        self.busy = self.busy * fading + report.busy
        self.fronts = self.fronts * fading + report.fronts
        faded = {
            number: SliceLoad(load.items * fading, load.replays * fading, load.seconds * fading)
            for number, load in self.slices.items()
            if load.items > _FORGOTTEN
        }
        for number, load in report.slices.items():
            faded[number] = load.plus(faded.get(number, SliceLoad()))
        self.slices = faded


class Ledger:
    """Hears the reports of the workers of one life. Thread-safe."""

    def __init__(self, workers: int) -> None:
        self._lock = threading.Lock()
        self._workers = [_Worker() for _ in range(workers)]

    def hear(self, worker: int, report: LoadReport) -> None:
        with self._lock:
            self._workers[worker].hear(report)

    def look(self) -> Load:
        slices: dict[int, float] = {}
        items: dict[int, float] = {}
        replays: dict[int, float] = {}
        with self._lock:
            busy = [each.busy / each.elapsed if each.elapsed else 0.0 for each in self._workers]
            for each in self._workers:
                sampled = sum(load.seconds for load in each.slices.values())
                for number, load in each.slices.items():
                    items[number] = load.items / each.elapsed
                    replays[number] = load.replays / each.elapsed
                    if sampled > 0:
                        keyed = max(each.busy - each.fronts, 0.0) / each.elapsed
                        slices[number] = keyed * load.seconds / sampled
            is_ripe = all(each.elapsed >= RIPE_SECONDS for each in self._workers)
        return Load(tuple(busy), slices, items, replays, is_ripe)
