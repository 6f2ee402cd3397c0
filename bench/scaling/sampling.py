"""What it costs to sample the loads of slices (`emberflow.engine.worker.loads`), in turns within a run.

- *The engine alone*: one worker in one process, no network. It samples in every other turn of a hundred batches, with a
  report for each, which is what a worker with 400,000 elements a second has between two of its news.
- *Live*: two workers that take elements as fast as they can. Each samples in every other turn of a second, and notes
  for each turn how many items its engine ran and how much processor time its loop took.

Each turn with samples is compared with those before and behind it, so a machine that changes its speed slowly changes
nothing; the median of these ratios counts.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import engine
from live.session import spark_session

from emberflow.engine.worker.loads import Loads
from emberflow.engine.worker.worker import Worker
from emberflow.runners.live.balance.meter import LoadReport, Meter
from emberflow.runners.live.worker import loop
from scaling.running import measured

WORKERS = 2
SECONDS, SECONDS_QUICK = 90.0, 20.0
#: News in a turn of a live worker: some four come a second.
NEWS = 4
#: Of the engine alone.
BATCHES, TURNS, TURNS_QUICK = 100, 80, 16


class Turns(Meter):
    """A meter that rests every other turn."""

    def __init__(self, engine: Worker, folder: Path) -> None:
        super().__init__(engine)
        self._engine: Any = engine
        self._sampling = self._loads
        self._told = folder / f"{os.getpid()}.turns"
        self._is_on = True
        self._news = 0
        self._begun_at = time.thread_time()
        self._items = 0

    def begin_fronts(self) -> None:
        if self._is_on:
            super().begin_fronts()

    def end_fronts(self) -> None:
        if self._is_on:
            super().end_fronts()

    def report(self) -> LoadReport:
        self._news += 1
        if self._news % NEWS:
            return super().report()
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


def ratios(turns: Sequence[tuple[bool, float]]) -> list[float]:
    """The cost of each turn with samples, to that of the two turns around it."""
    found = []
    for (_, before), (on, cost), (_, behind) in zip(turns, turns[1:], turns[2:], strict=False):
        if on:
            found.append(2 * cost / (before + behind))
    return found


def turns_in(path: Path) -> list[tuple[bool, float]]:
    """Processor time an item of the turns of a live worker. The first ones are the start, the last is cut short."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(on == "1", float(took) / max(1, int(items))) for on, items, took in lines[3:-1]]


def alone(turns: int) -> list[tuple[bool, float]]:
    """Processor time an element of the turns of an engine."""
    words = engine.zipf_words(engine.BATCH * BATCHES)
    run = engine.Run(engine.count_flow())
    worker: Any = run.worker
    loads: Loads = worker.weigh(time.thread_time)
    found = []
    for turn in range(turns):
        is_on = turn % 2 == 1
        worker._dataflow.loads = loads if is_on else None
        first = turn * len(words)
        elements = [((first + number, 0), word) for number, word in enumerate(words)]
        took = run.feed(elements, ends=False)
        if is_on:
            begun = time.perf_counter()
            loads.report()
            loads.hot_keys(0.9)
            took += time.perf_counter() - begun
        run.output.clear()
        found.append((is_on, took / len(words)))
    return found[4:]  # by then most keys are known


def main(*, quick: bool) -> None:
    print(
        f"{'sampling the loads of slices, cost to without':48}{'turns':>8}{'median':>10}{'middle half':>16}"
    )
    _row("the engine alone", ratios(alone(TURNS_QUICK if quick else TURNS)))
    with spark_session() as spark, tempfile.TemporaryDirectory() as name:
        window = measured(
            spark,
            WORKERS,
            None,
            seconds=SECONDS_QUICK if quick else SECONDS,
            begun=partial(take_turns, Path(name)),
        )
        found = [ratio for path in Path(name).glob("*.turns") for ratio in ratios(turns_in(path))]
    _row(f"live, {window.rate:,.0f} elements a second", found)


def _row(label: str, found: list[float]) -> None:
    low, middle, high = statistics.quantiles(found, n=4)
    print(f"  {label:46}{len(found):>8}{middle:>10.3f}{f'{low:.3f} to {high:.3f}':>16}", flush=True)
