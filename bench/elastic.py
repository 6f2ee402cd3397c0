"""Rescales: what output waits for while the number of workers changes, and what is late by it.

A *running count* with many keys, at half of the rate that two workers sustain on this machine in this run. All
keys are in the state before the clock starts. Two workers become four and then two again. The same run three
times: without a change, with `query.rescale`, and with the query stopped and started again with the other
number. Each element carries the time at which it was due, so its latency includes all waiting.

*Gap* is the longest time without output around a change, *p99* the latency of what was due in the second around
the call, *call* the time until `rescale` returned. The plot has the latency second by second.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any

from figures import drawn
from live.session import spark_session
from pyspark.sql import SparkSession
from upgrade import BURST, RATE_MAX, Case, count_case, sustained

from emberflow import fronts, sinks
from emberflow.work import watched

KEYS, KEYS_QUICK = 1_000_000, 100_000
#: The numbers of workers, and for how many seconds each is kept.
NUMBERS, SECONDS_EACH = (2, 4, 2), 12.0
_NAP_SECONDS = 0.001
WAYS = ("no change", "rescale", "stop and start")


class Measured:
    """What the sink was given, in arrays: lists of millions of tuples would keep Python's collector busy."""

    def __init__(self) -> None:
        self.stored = 0
        #: When each output came, and when its element was due.
        self.at, self.due = array("d"), array("d")
        #: When each change was asked for, and when it was made.
        self.changes: list[tuple[float, float]] = []

    def store(self, bundle: Any) -> None:
        now = time.monotonic()
        self.stored += len(bundle.payloads)
        dues = [due for _, _, due in bundle.payloads if due]
        self.due.extend(dues)
        self.at.extend(repeat(now, len(dues)))

    def late_ms(self, begin: float, end: float) -> list[float]:
        """The latencies of what was due in this time, in order."""
        pairs = zip(self.at, self.due, strict=True)
        return sorted(1_000 * (at - due) for at, due in pairs if begin <= due < end)

    def gap_ms(self, change: tuple[float, float]) -> float:
        """The longest time without output that falls between the call and a second after it returned."""
        begin, end = change
        gaps = [
            later - earlier
            for earlier, later in pairwise(self.at)
            if later >= begin and earlier <= end + 1.0
        ]
        return 1_000 * max(gaps)


def given(case: Case, count: int, begun: Path) -> Iterator[Any]:
    """Every key once; then one element after another, when it is due. Whoever reads again goes on in time."""
    yield from case.first()
    if not begun.exists():
        begun.write_text(repr(time.monotonic() + 1.0))
    begin = float(begun.read_text())
    dues = (begin + number / case.rate for number in range(count))
    for number, due in enumerate(dues):
        wait = due - time.monotonic()
        if wait > _NAP_SECONDS:
            time.sleep(wait)
        yield case.element(number, due)


def started(
    spark: SparkSession, case: Case, front: Any, sink: Any, folder: str, workers: int
) -> Any:
    return (
        case.flow(0)
        .live(spark)
        .read(events=front)
        .write(out=sink)
        .option("workers", workers)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )


def measured(spark: SparkSession, case: Case, way: str) -> Measured:
    count = int(case.rate * SECONDS_EACH * len(NUMBERS))
    found = Measured()
    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder) / "begun"
        sink = sinks.Callback(found.store)
        front = fronts.Iterable(lambda: given(case, count, begun))
        query = started(spark, case, front, sink, folder, NUMBERS[0])
        try:
            for number, workers in enumerate(NUMBERS[1:], 1):
                while not found.due or time.monotonic() < found.due[0] + number * SECONDS_EACH:
                    assert query.isActive, query.exception()
                    time.sleep(0.01)
                called = time.monotonic()
                if way == "rescale":
                    query.rescale(workers=workers)
                elif way == "stop and start":
                    query.stop()
                    query = started(spark, case, front, sink, folder, workers)
                found.changes.append((called, time.monotonic()))
            assert query.awaitTermination(300)
        finally:
            query.stop()
    expected = case.keys + count
    assert found.stored == expected, f"{found.stored} of {expected}"
    return found


def report(way: str, found: Sequence[Measured]) -> None:
    """A line for each change: medians over the rounds."""
    for number, (before, after) in enumerate(pairwise(NUMBERS)):
        figures: list[list[float]] = []
        for one in found:
            change = one.changes[number]
            late = one.late_ms(change[0] - 0.5, max(change[1], change[0]) + 0.5)
            p99 = late[int(0.99 * (len(late) - 1))]
            figures.append([one.gap_ms(change), p99, 1_000 * (change[1] - change[0])])
        gap, p99, call = (statistics.median(each) for each in zip(*figures, strict=True))
        told = f"{way}, {before} to {after} workers"
        print(f"  {told:40}{gap:>10,.0f}{p99:>14,.0f}{call:>10,.0f}", flush=True)


def by_second(one: Measured) -> Iterator[tuple[float, float]]:
    """The 99th percentile of what was due in each second."""
    begin = one.due[0]
    for second in range(int(SECONDS_EACH * len(NUMBERS))):
        late = one.late_ms(begin + second, begin + second + 1)
        if late:
            yield second, late[int(0.99 * (len(late) - 1))]


def plot(found: dict[str, list[Measured]]) -> None:
    def draw(axes: list[Any]) -> None:
        for way, rounds in found.items():
            points = list(by_second(rounds[0]))
            axes[0].plot([at for at, _ in points], [ms for _, ms in points], label=way)
        axes[0].set_yscale("log")
        axes[0].set_xlabel("second")
        axes[0].set_ylabel("latency p99, ms")
        axes[0].legend()

    drawn("elastic-latency", draw)


def main(*, quick: bool = False) -> None:
    keys, rounds = (KEYS_QUICK, 1) if quick else (KEYS, 3)
    with spark_session() as spark:
        rate = sustained(spark, keys, BURST // 4 if quick else BURST + keys)
        case = count_case(keys, min(RATE_MAX, rate / 2))
        print(f"two workers sustain {rate:,.0f} a second")
        print(f"{case.name:42}{'gap, ms':>10}{'p99, ms':>14}{'call, ms':>10}")
        found: dict[str, list[Measured]] = {way: [] for way in WAYS}
        for _ in watched("rounds", range(rounds), rounds):
            for way in WAYS:
                found[way].append(measured(spark, case, way))
        for way in WAYS:
            report(way, found[way])
        plot(found)
