"""What cuts add to latency: in one query, times with cuts and times without take turns.

    python bench/cuts.py --only documents [--interval 50 --interval 500] [--pairs 12]

The inverted index, 50 documents of 250 words a second, two workers, a checkpoint location, and one input that goes
on and on. A *pair* is some seconds with cuts at an interval and some seconds without any, one right behind the
other. Asked: cuts add less than 10 ms to the 99th percentile, at each interval.

**Why turns.** Between two queries that run one behind the other the machine changes more than cuts change anything:
other programs, the clock of the processor, where Spark put what. Within a pair these are mostly the same. What a
pair is worth is the difference of its two percentiles, and the *median* of many such differences is not moved by a
storm that hits fewer than half of them. The quartiles say how much one may believe it. Which of the two comes first
changes from pair to pair, so that a machine that becomes slower adds to neither.

**What counts.** A time with cuts begins when one cut has been committed since they were let in: that first one holds
what changed while there were none, which is no cut of this interval. A time without cuts begins when the last one
is over. A document belongs to the time in which it was due, and its latency ends when its last record is in the
sink, a function in the driver.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from exactly_once.steady import SteadyDocuments
from live.latency import RATE, WORDS, documents, index_flow
from pyspark.sql import SparkSession

from emberflow import fronts, sinks

INTERVALS_MS = (50, 100, 500, 1_000, 3_000)
PAIRS = 12
#: How long each time of a pair is; that with cuts holds so many intervals at least.
SECONDS, INTERVALS_MIN = 4.0, 2
#: Documents that come again and again: with their numbers they are always new.
DOCUMENTS = 1_000
WARM_SECONDS = 8.0
_NAP_SECONDS = 0.005
_WAIT_SECONDS = 120.0
#: Behind the last cut, until what it has left behind is done.
_AFTER_SECONDS = 0.3
_NEVER = float("inf")


class Recurring(SteadyDocuments):
    """Document ``n`` has the words of document ``n % len(given)``. They come until nobody reads any more."""

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        while not self._begin.exists():
            time.sleep(_NAP_SECONDS)
            yield None
        begin = float(self._begin.read_text())
        number = 0 if position is None else position + 1
        while True:
            due = begin + number / RATE
            while (left := due - time.time()) > 0:
                time.sleep(min(left, 0.05))
                yield None
            words = self._given[number % len(self._given)]
            yield fronts.Element(number, (number, due, words), number)
            number += 1


class Span(NamedTuple):
    """A time of the run: its interval, or None without cuts, and how many cuts it had."""

    interval_ms: int | None
    begin: float
    end: float
    cuts: int


class Pair(NamedTuple):
    """The latencies of both times of a pair, in milliseconds, in order; and the cuts a second."""

    with_cuts: list[float]
    without: list[float]
    rate: float


class Latencies:
    """By document: when it was due, and how late its last record was stored."""

    def __init__(self) -> None:
        self.of: list[tuple[float, float]] = []
        self._left: dict[int, int] = {}

    def store(self, bundle: sinks.StoredBundle) -> None:
        now = time.time()
        left = self._left
        for number, due, _, _ in bundle.payloads:
            still = left.get(number, WORDS) - 1
            if still:
                left[number] = still
            else:
                left.pop(number, None)
                self.of.append((due, (now - due) * 1_000))

    def within(self, span: Span) -> list[float]:
        return sorted(late for due, late in self.of if span.begin <= due < span.end)


def measured(
    spark: SparkSession, intervals_ms: tuple[int, ...], pairs: int
) -> Iterator[tuple[int, list[Pair]]]:
    """The pairs of each interval, one interval behind the other."""
    latencies = Latencies()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query = (
            index_flow()
            .live(spark)
            .read(documents=Recurring(documents(DOCUMENTS), folder))
            .write(changes=sinks.Callback(latencies.store))
            .option("workers", 2)
            .option("checkpointLocation", f"{name}/checkpoint")
            .option("checkpointInterval", intervals_ms[0])
            .start()
        )
        try:
            _wait_until(lambda: query.status["message"] == "Running", query)
            written = folder / "begin.new"
            written.write_text(str(time.time() + 0.2))
            written.rename(folder / "begin")
            time.sleep(WARM_SECONDS)
            for interval_ms in intervals_ms:
                spans = []
                for number in range(pairs):
                    order = [interval_ms, None] if number % 2 else [None, interval_ms]
                    spans.append([_span(query, interval_ms, each) for each in order])
                time.sleep(1.0)  # the last documents
                yield interval_ms, [_pair(both, latencies) for both in spans]
        finally:
            query.stop()


def _pair(both: list[Span], latencies: Latencies) -> Pair:
    without, cut = sorted(both, key=lambda span: span.cuts)
    assert without.interval_ms is None, both
    assert without.cuts == 0 < cut.cuts, both
    rate = cut.cuts / (cut.end - cut.begin)
    return Pair(latencies.within(cut), latencies.within(without), rate)


def _span(query: Any, interval_ms: int, own_ms: int | None) -> Span:
    """Let cuts in at an interval, or none, and wait as long as that takes."""
    committer = query._coordinator.committer
    committer.interval_seconds = _NEVER if own_ms is None else own_ms / 1_000
    if own_ms is None:
        _wait_until(lambda: committer.is_idle, query)
        time.sleep(_AFTER_SECONDS)
    else:
        count = committer.count
        _wait_until(lambda: committer.count > count, query)
    begin, count = time.time(), committer.count
    time.sleep(max(SECONDS, INTERVALS_MIN * interval_ms / 1_000))
    return Span(own_ms, begin, time.time(), committer.count - count)


def _wait_until(condition: Any, query: Any) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.status
        time.sleep(_NAP_SECONDS)


def percentile(ordered: list[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def main(
    spark: SparkSession, intervals_ms: tuple[int, ...] = INTERVALS_MS, pairs: int = PAIRS
) -> None:
    print(
        f"{RATE} documents a second, {pairs} pairs at each interval, milliseconds\n"
        f"{'interval':>10}{'cuts/s':>8}{'p50 with':>10}{'without':>9}"
        f"{'p99 with':>10}{'without':>9}   p99 more with cuts: median (quartiles)"
    )
    for interval_ms, own in measured(spark, intervals_ms, pairs):
        figures = [
            statistics.median(percentile(latencies, percent) for latencies in side)
            for percent in (50, 99)
            for side in ([pair.with_cuts for pair in own], [pair.without for pair in own])
        ]
        more = sorted(percentile(pair.with_cuts, 99) - percentile(pair.without, 99) for pair in own)
        rate = statistics.median(pair.rate for pair in own)
        quarter = len(more) // 4
        print(
            f"{interval_ms:>10,}{rate:>8.1f}{figures[0]:>10.1f}{figures[1]:>9.1f}"
            f"{figures[2]:>10.1f}{figures[3]:>9.1f}   {statistics.median(more):>+8.1f} "
            f"({more[quarter]:+.1f} to {more[-1 - quarter]:+.1f})",
            flush=True,
        )
