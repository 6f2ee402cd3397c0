"""The load of all workers and slices of a life, as the driver knows it.

It is that of the last seconds: what is older counts less and less. Each life begins anew, because other
owners have other loads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from emberflow.engine.worker.loads import KeyLoad, SliceLoad
from emberflow.runners.live.balance.meter import LoadReport, fading

#: How many seconds have to be known before anything is decided by it.
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
    #: By worker: the part of ``workers`` that it does for keys; and its hottest keys, with their shares of that.
    keyed: tuple[float, ...]
    hot_keys: tuple[tuple[KeyLoad, ...], ...]
    #: Whether it is known well enough to decide by it.
    is_ripe: bool


class _Worker:
    """What is known of one worker. All figures fade alike."""

    def __init__(self) -> None:
        self.elapsed = self.busy = self.fronts = 0.0
        self.slices: dict[int, SliceLoad] = {}
        self.hot_keys: tuple[KeyLoad, ...] = ()

    def hear(self, report: LoadReport) -> None:
        faded_to = fading(report.elapsed)
        self.hot_keys = report.hot_keys
        self.elapsed = self.elapsed * faded_to + report.elapsed
        self.busy = self.busy * faded_to + report.busy
        self.fronts = self.fronts * faded_to + report.fronts
        faded = {
            number: SliceLoad(*(figure * faded_to for figure in load))
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
            keyed = [
                max(each.busy - each.fronts, 0.0) / each.elapsed if each.elapsed else 0.0
                for each in self._workers
            ]
            for each, own in zip(self._workers, keyed, strict=True):
                sampled = sum(load.seconds for load in each.slices.values())
                for number, load in each.slices.items():
                    items[number] = load.items / each.elapsed
                    replays[number] = load.replays / each.elapsed
                    if sampled > 0:
                        slices[number] = own * load.seconds / sampled
            hot_keys = tuple(each.hot_keys for each in self._workers)
            is_ripe = all(each.elapsed >= RIPE_SECONDS for each in self._workers)
        return Load(tuple(busy), slices, items, replays, tuple(keyed), hot_keys, is_ripe)
