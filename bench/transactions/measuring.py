"""A burst and then a steady rate, through one live query on local Spark, durable.

The front gives all elements of the burst as fast as it is asked for them. The rate is that from the
moment it is read first to the last output in the sink; starting costs nothing. When the last one is stored, the driver
writes down when the next elements are due, one after another at a share of that rate; the front
gives each when it is due, and its latency is from then to the moment its output is in the sink, a
function in the driver. An element that waits, in the front or anywhere, shows in its latency.

Each element is a tuple that begins with its number, and gives a fixed number of outputs, each of which
begins with that number, or is the `Rejected` of it.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks

#: Of the rate of the burst.
SHARE = 0.8
_NAP_SECONDS = 0.001
_WAIT_SECONDS = 180.0
_BATCH = 1_000


@dataclass(frozen=True)
class Figures:
    """Elements a second in the burst; milliseconds at `SHARE` of that; what was replayed."""

    rate: float
    mean: float
    p50: float
    p99: float
    replay_ratio: float

    @property
    def cells(self) -> str:
        return (
            f"{self.rate:>12,.0f}{self.mean:>10,.1f}{self.p50:>10,.1f}{self.p99:>10,.1f}"
            f"{self.replay_ratio:>10.2f}"
        )


HEADS = f"{'a second':>12}{'mean ms':>10}{'p50':>10}{'p99':>10}{'replays':>10}"


class BurstThenSteady:
    """Elements at once, then, when the driver has said so, one after another when they are due."""

    partitions = 1
    arrival = True

    def __init__(self, elements: list[Any], burst: int, folder: Path) -> None:
        self._elements = elements
        self._burst = burst
        self._begun = folder / "begun"
        self._steady = folder / "steady"

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        raise NotImplementedError("it is read in batches")

    def read_batches(self, partition: int, position: Any) -> Iterator[fronts.Batch | None]:
        self._begun.write_text(str(time.time()))
        first = 0 if position is None else position + 1
        while first < self._burst:
            end = min(first + _BATCH, self._burst)
            yield fronts.Batch(range(first, end), self._elements[first:end])
            first = end
        while not self._steady.exists():
            time.sleep(_NAP_SECONDS)
            yield None
        begin, rate, count = map(float, self._steady.read_text().split())
        last = self._burst + int(count)
        while first < last:
            end = min(last, self._burst + int((time.time() - begin) * rate) + 1)
            if end > first:
                yield fronts.Batch(range(first, end), self._elements[first:end])
                first = end
            else:
                time.sleep(_NAP_SECONDS)
                yield None


class _Stored:
    """What the sinks have stored: how much, when, and how late."""

    def __init__(self, burst: int, outputs: int) -> None:
        self.burst_is_over = threading.Event()
        self.latencies: list[float] = []
        self._left = burst * outputs
        self._burst = burst
        self.last = 0.0
        self.begin = self.rate_due = 0.0

    def store(self, bundle: sinks.StoredBundle) -> None:
        now = time.time()
        if self._left > 0:
            self._left -= len(bundle.payloads)
            self.last = now
            if self._left <= 0:
                self.burst_is_over.set()
            return
        for payload in bundle.payloads:
            number = payload.element[0] if isinstance(payload, ef.Rejected) else payload[0]
            due = self.begin + (number - self._burst) / self.rate_due
            self.latencies.append((now - due) * 1_000)


def measured(
    spark: SparkSession,
    flow: ef.Flow,
    elements: Sequence[Any],
    burst: int,
    *,
    outputs: int = 1,
    workers: int = 2,
    steady_seconds: float = 5.0,
    beside: Callable[[Any], AbstractContextManager[object]] | None = None,
) -> Figures:
    """Run a flow of one front: ``burst`` elements at once, then more at a steady rate.

    There must be enough elements for both; what is too many is not used. ``beside`` is given the
    query, and what it returns is entered while elements come.
    """
    stored = _Stored(burst, outputs)
    (front,) = flow.graph().fronts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = BurstThenSteady(list(elements), burst, folder)
        written = {sink: sinks.Callback(stored.store) for sink in flow.graph().sinks}
        query = (
            flow.live(spark)
            .read(**{front: source})
            .write(**written)
            .option("workers", workers)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        try:
            with nullcontext() if beside is None else beside(query):
                _wait(query, stored.burst_is_over)
                burst_rate = burst / (stored.last - float((folder / "begun").read_text()))
                rate = stored.rate_due = SHARE * burst_rate
                count = min(len(elements) - burst, int(rate * steady_seconds))
                stored.begin = time.time() + 0.3  # all is quiet by then
                new = folder / "steady.new"
                new.write_text(f"{stored.begin} {rate} {count}")
                new.rename(folder / "steady")
                assert query.awaitTermination(_WAIT_SECONDS), query.status
        finally:
            query.stop()
        progress = query.lastProgress or {}
    assert len(stored.latencies) == count * outputs, f"{len(stored.latencies)} of {count}"
    # Without the first tenth: that is the start.
    latencies = sorted(stored.latencies[len(stored.latencies) // 10 :])
    return Figures(
        burst_rate,
        statistics.fmean(latencies),
        latencies[len(latencies) // 2],
        latencies[len(latencies) * 99 // 100],
        progress.get("replayRatio", 1.0),
    )


def _wait(query: Any, event: threading.Event) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not event.wait(0.05):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.status


def row(label: str, figures: Figures) -> None:
    print(f"{f'  {label}':46}{figures.cells}", flush=True)


def head(label: str) -> None:
    print(f"{label:46}{HEADS}", flush=True)
