"""The load of all workers and slices of a life, as the driver knows it.

It is that of the last seconds: what is older counts less and less. Each life begins anew, because other
owners have other loads.

The coordinator hears a report between two acks, so that costs as much as the report has slices, and not as much as
are known: instead of all figures the unit fades that they are kept in.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from emberflow.engine.worker.loads import KeyLoad, SliceLoad
from emberflow.runners.live.balance.meter import LoadReport, fading

#: How many seconds have to be known before anything is decided by it.
RIPE_SECONDS = 4.0
#: A slice with fewer items than this, by now, is forgotten; at the latest when the unit is as small as that.
_FORGOTTEN = 1e-3
_UNIT_MIN = 1e-9


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
        self.hot_keys: tuple[KeyLoad, ...] = ()
        #: By slice: items, replays and seconds, in units of so many.
        self._slices: dict[int, list[float]] = {}
        self._unit = 1.0

    def hear(self, report: LoadReport) -> None:
        faded_to = fading(report.elapsed)
        self.hot_keys = report.hot_keys
        self.elapsed = self.elapsed * faded_to + report.elapsed
        self.busy = self.busy * faded_to + report.busy
        self.fronts = self.fronts * faded_to + report.fronts
        self._unit *= faded_to
        if self._unit < _UNIT_MIN:
            self._slices = {number: list(load) for number, load in self.slices().items()}
            self._unit = 1.0
        known, unit = self._slices, self._unit
        for number, (items, replays, seconds) in report.slices.items():
            figures = known.get(number)
            if figures is None:
                known[number] = [items / unit, replays / unit, seconds / unit]
            else:
                figures[0] += items / unit
                figures[1] += replays / unit
                figures[2] += seconds / unit

    def slices(self) -> dict[int, SliceLoad]:
        unit = self._unit
        return {
            number: SliceLoad(items * unit, replays * unit, seconds * unit)
            for number, (items, replays, seconds) in self._slices.items()
            if items * unit > _FORGOTTEN
        }


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
                known = each.slices()
                sampled = sum(load.seconds for load in known.values())
                for number, load in known.items():
                    items[number] = load.items / each.elapsed
                    replays[number] = load.replays / each.elapsed
                    if sampled > 0:
                        slices[number] = own * load.seconds / sampled
            hot_keys = tuple(each.hot_keys for each in self._workers)
            is_ripe = all(each.elapsed >= RIPE_SECONDS for each in self._workers)
        return Load(tuple(busy), slices, items, replays, tuple(keyed), hot_keys, is_ripe)
