"""What it costs to sample the loads of slices (`emberflow.engine.worker.loads`), in turns within a run.

A live query takes elements as fast as it can. Each worker samples in every other turn of a quarter of a
second, which is the time from one of its news to the next, and notes for each turn how many items its engine
ran and how much processor time its loop took. Each turn with samples is compared with the turns before and
behind it, so a machine that changes its speed slowly changes nothing.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from live.session import spark_session

from emberflow.engine.worker.worker import Worker
from emberflow.runners.live.balance.meter import LoadReport, Meter
from emberflow.runners.live.worker import loop
from scaling.running import measured

WORKERS = 2
SECONDS, SECONDS_QUICK = 60.0, 5.0


class Turns(Meter):
    """A meter that rests every other turn."""

    def __init__(self, engine: Worker, folder: Path) -> None:
        super().__init__(engine)
        self._engine: Any = engine
        self._sampling = self._loads
        self._told = folder / f"{os.getpid()}.turns"
        self._is_on = True
        self._begun_at = time.thread_time()
        self._items = 0

    def begin_fronts(self) -> None:
        if self._is_on:
            super().begin_fronts()

    def end_fronts(self) -> None:
        if self._is_on:
            super().end_fronts()

    def report(self) -> LoadReport:
        now, items = time.thread_time(), self._engine.statistics(sizes_too=False).items
        with open(self._told, "a") as file:
            file.write(f"{int(self._is_on)} {items - self._items} {now - self._begun_at}\n")
        report = super().report()
        self._is_on = not self._is_on
        self._engine._dataflow.loads = self._sampling if self._is_on else None
        self._items, self._begun_at = items, time.thread_time()
        return report


def take_turns(folder: Path) -> None:
    """Let the loops of this process have such a meter. Called before the loop begins."""
    made: Any = partial(Turns, folder=folder)
    loop.Meter = made


def ratios(path: Path) -> list[float]:
    """Processor time an item of each turn with samples, to that of the two turns around it."""
    turns = [line.split() for line in path.read_text().splitlines()]
    # The first turns are the start, and the last one is cut short.
    costs = [(int(on), float(took) / max(1, int(items))) for on, items, took in turns[8:-1]]
    found = []
    for (_, before), ((on, cost), (_, behind)) in zip(costs, pairwise(costs[1:]), strict=False):
        if on:
            found.append(2 * cost / (before + behind))
    return found


def main(*, quick: bool) -> None:
    with spark_session() as spark, tempfile.TemporaryDirectory() as name:
        window = measured(
            spark,
            WORKERS,
            None,
            seconds=SECONDS_QUICK if quick else SECONDS,
            begun=partial(take_turns, Path(name)),
        )
        found = sorted(ratio for path in Path(name).glob("*.turns") for ratio in ratios(path))
    print(f"{'sampling the loads of slices':44}{'to without':>12}{'turns':>8}{'a second':>12}")
    for label, value in (
        ("median of turns", statistics.median(found)),
        ("a quarter is below", found[len(found) // 4]),
        ("a quarter is above", found[3 * len(found) // 4]),
    ):
        print(f"  {label:42}{value:>12.3f}{len(found):>8}{window.rate:>12,.0f}")
