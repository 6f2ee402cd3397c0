"""A burst and then a steady rate, through one live query on local Spark, durable.

First come as many elements as the burst has, so that states hold what they will, as the tables of a
database do, and starting costs nothing. When the last one is stored, the front gives all elements of
the burst as fast as it is asked for them, and the rate is that from then to the last output in the
sink. After that the driver writes down when the next elements are due, one after another at a share of that rate; the front
gives each when it is due, and its latency is from then to the moment its output is in the sink, a
function in the driver. An element that waits, in the front or anywhere, shows in its latency. What
is stored is only noted meanwhile, and latencies are reckoned when all is over.

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
#: Between two phases: all that is under way is done by then.
_QUIET_SECONDS = 1.0
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
    """Elements at once, again when the driver has said so, then one after another when due."""

    partitions = 1
    arrival = True

    def __init__(self, elements: list[Any], burst: int, folder: Path) -> None:
        self._elements = elements
        self._burst = burst
        self._folder = folder

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        raise NotImplementedError("it is read in batches")

    def read_batches(self, partition: int, position: Any) -> Iterator[fronts.Batch | None]:
        first = 0 if position is None else position + 1
        yield from self._at_once(first, self._burst)
        yield from self._until("burst")
        yield from self._at_once(max(first, self._burst), 2 * self._burst)
        yield from self._until("steady")
        begin, rate, count = map(float, (self._folder / "steady").read_text().split())
        steady = first = max(first, 2 * self._burst)
        last = first + int(count)
        while first < last:
            end = min(last, steady + int((time.time() - begin) * rate) + 1)
            if end > first:
                yield fronts.Batch(range(first, end), self._elements[first:end])
                first = end
            else:
                time.sleep(_NAP_SECONDS)
                yield None

    def _at_once(self, first: int, last: int) -> Iterator[fronts.Batch]:
        for begin in range(first, last, _BATCH):
            end = min(begin + _BATCH, last)
            yield fronts.Batch(range(begin, end), self._elements[begin:end])

    def _until(self, said: str) -> Iterator[None]:
        while not (self._folder / said).exists():
            time.sleep(_NAP_SECONDS)
            yield None


class _Stored:
    """What the sinks have stored: how much, when, and how late."""

    def __init__(self, burst: int, outputs: int) -> None:
        self.is_filled = threading.Event()
        self.burst_is_over = threading.Event()
        self._steady_bundles: list[tuple[float, list[Any]]] = []
        self._of_burst = burst * outputs
        self._left = 2 * self._of_burst
        self._steady = 2 * burst
        self.last = 0.0
        self.begin = self.rate_due = 0.0

    def store(self, bundle: sinks.StoredBundle) -> None:
        now = time.time()
        if self._left > 0:
            self._left -= len(bundle.payloads)
            self.last = now
            if self._left <= self._of_burst:
                self.is_filled.set()
            if self._left <= 0:
                self.burst_is_over.set()
            return
        self._steady_bundles.append((now, bundle.payloads))

    def latencies(self) -> list[float]:
        """In milliseconds, of what was due, in the order it was stored."""
        found: list[float] = []
        for now, payloads in self._steady_bundles:
            for payload in payloads:
                number = payload.element[0] if isinstance(payload, ef.Rejected) else payload[0]
                due = self.begin + (number - self._steady) / self.rate_due
                found.append((now - due) * 1_000)
        return found


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
    """Run a flow of one front: twice ``burst`` elements at once, then more at a steady rate.

    There must be enough elements for all; what is too many is not used. ``beside`` is given the
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
                _wait(query, stored.is_filled)
                time.sleep(_QUIET_SECONDS)
                begin = time.time()
                (folder / "burst").touch()
                _wait(query, stored.burst_is_over)
                burst_rate = burst / (stored.last - begin)
                rate = stored.rate_due = SHARE * burst_rate
                count = min(len(elements) - 2 * burst, int(rate * steady_seconds))
                stored.begin = time.time() + _QUIET_SECONDS
                new = folder / "steady.new"
                new.write_text(f"{stored.begin} {rate} {count}")
                new.rename(folder / "steady")
                assert query.awaitTermination(_WAIT_SECONDS), query.status
        finally:
            query.stop()
        progress = query.lastProgress or {}
    latencies = stored.latencies()
    assert len(latencies) == count * outputs, f"{len(latencies)} of {count}"
    # Without the first tenth: that is the start.
    latencies = sorted(latencies[len(latencies) // 10 :])
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
