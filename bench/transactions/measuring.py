"""A burst and then a steady rate, through one live query on local Spark, durable.

First come as many elements as the burst has, so that states are filled, like the tables of a
database, and startup does not count. When the last one is stored, the front emits all elements of
the burst as fast as it is asked for them; the rate is from then to the last output in the sink.
After that the driver writes down when the next elements are due, at a share of that rate. The front
emits each when it is due, and its latency is from then to its output in the sink, a function in the
driver. An element that waits, in the front or anywhere, shows in its latency. Outputs are only
recorded meanwhile; latencies are computed at the end.

Where other machines share the processor, its speed changes from one second to the next, and 80% of
the rate of a fast moment may be more than the machine can do in a slow one. So another burst may
follow: if both agree, the machine was as fast during the steady rate as before, and the latency
really is that of 80% (`Figures.is_calm`).

Each element is a tuple that begins with its number, and gives a fixed number of outputs. Each
output begins with that number, or is the `Rejected` of the element.
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
from transactions import machine

#: The steady rate, as a share of the burst's.
SHARE = 0.8
_NAP_SECONDS = 0.004
_WAIT_SECONDS = 180.0
#: The pause between two phases, in which everything under way is finished.
_QUIET_SECONDS = 1.0
_BATCH = 1_000
#: Two bursts that differ by no more than this share ran at the same machine speed.
_CALM = 0.1


@dataclass(frozen=True)
class Figures:
    """Elements per second in the burst; milliseconds at `SHARE` of that; the replay ratio."""

    rate: float
    mean: float
    p50: float
    p99: float
    replay_ratio: float
    #: The share of processor time at the steady rate that the host gave to other machines.
    stolen: float | None = None
    #: Elements per second in another burst at the end.
    rate_after: float | None = None

    @property
    def is_calm(self) -> bool:
        """Whether the machine was as fast after the steady rate as before."""
        after = self.rate_after
        return after is not None and abs(after - self.rate) <= _CALM * max(after, self.rate)

    @property
    def cells(self) -> str:
        return (
            f"{self.rate:>12,.0f}{self.mean:>10,.1f}{self.p50:>10,.1f}{self.p99:>10,.1f}"
            f"{self.replay_ratio:>10.2f}"
            + (f"{'-':>10}" if self.stolen is None else f"{self.stolen:>10.1%}")
            + (f"{self.rate_after:>12,.0f}" if self.rate_after is not None else "")
        )


HEADS = f"{'a second':>12}{'mean ms':>10}{'p50':>10}{'p99':>10}{'replays':>10}{'stolen':>10}"


class BurstThenSteady:
    """Emits two bursts, the second on a signal, then elements when due, and perhaps a last burst."""

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
        yield from self._until("after")
        yield from self._at_once(last, last + int((self._folder / "after").read_text()))

    def _at_once(self, first: int, last: int) -> Iterator[fronts.Batch]:
        for begin in range(first, last, _BATCH):
            end = min(begin + _BATCH, last)
            yield fronts.Batch(range(begin, end), self._elements[begin:end])

    def _until(self, said: str) -> Iterator[None]:
        while not (self._folder / said).exists():
            time.sleep(_NAP_SECONDS)
            yield None


class _Stored:
    """The outputs that the sinks have stored: how many, when, and how late."""

    def __init__(self, burst: int, outputs: int) -> None:
        self.is_filled = threading.Event()
        self.burst_is_over = threading.Event()
        self._steady_bundles: list[tuple[float, list[Any]]] = []
        self._of_burst = burst * outputs
        self._left = 2 * self._of_burst
        self._steady = 2 * burst
        self.last = 0.0
        self.begin = self.rate_due = 0.0
        #: How many outputs are still missing at the end of the steady rate, and at the end of the
        #: run.
        self.steady_left = self.after_left = 0
        self.steady_is_over, self.all_is_over = threading.Event(), threading.Event()

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
        if self.steady_left > 0:
            self._steady_bundles.append((now, bundle.payloads))
            self.steady_left -= len(bundle.payloads)
            if self.steady_left <= 0:
                self.steady_is_over.set()
            return
        self.after_left -= len(bundle.payloads)
        self.last = now
        if self.after_left <= 0:
            self.all_is_over.set()

    def latencies(self) -> list[float]:
        """In milliseconds, for elements that had a due time, in the order they were stored."""
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
    after: bool = False,
    beside: Callable[[Any], AbstractContextManager[object]] | None = None,
) -> Figures:
    """Run a flow with one front: two bursts, then a steady rate, and perhaps another burst.

    ``burst`` is the number of elements in each; ``after`` asks for the last one.

    There must be enough elements for all phases; the rest is not used. ``beside`` gets the query
    and returns a context manager that is entered while elements come.
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
                wait(query, stored.is_filled)
                time.sleep(_QUIET_SECONDS)
                begin = time.time()
                (folder / "burst").touch()
                wait(query, stored.burst_is_over)
                burst_rate = burst / (stored.last - begin)
                rate = stored.rate_due = SHARE * burst_rate
                spare = len(elements) - (3 if after else 2) * burst
                count = min(spare, int(rate * steady_seconds))
                stored.steady_left = count * outputs
                stored.after_left = burst * outputs if after else 0
                stored.begin = time.time() + _QUIET_SECONDS
                _write(folder / "steady", stored.begin, rate, count)
                while time.time() < stored.begin:
                    time.sleep(_NAP_SECONDS)
                stolen = machine.Stolen()
                wait(query, stored.steady_is_over)
                stolen_share = stolen.share
                rate_after = None
                if after:
                    time.sleep(_QUIET_SECONDS)
                    begin = time.time()
                _write(folder / "after", burst if after else 0)
                if after:
                    wait(query, stored.all_is_over)
                    rate_after = burst / (stored.last - begin)
                assert query.awaitTermination(_WAIT_SECONDS), query.status
        finally:
            query.stop()
        progress = query.lastProgress or {}
    latencies = stored.latencies()
    assert len(latencies) == count * outputs, f"{len(latencies)} of {count}"
    # Without the first tenth, which is the start.
    latencies = sorted(latencies[len(latencies) // 10 :])
    return Figures(
        burst_rate,
        statistics.fmean(latencies),
        latencies[len(latencies) // 2],
        latencies[len(latencies) * 99 // 100],
        progress.get("replayRatio", 1.0),
        stolen_share,
        rate_after,
    )


def _write(path: Path, *told: float) -> None:
    """Write a file atomically: whoever waits for it sees it complete."""
    new = path.with_suffix(".new")
    new.write_text(" ".join(map(str, told)))
    new.rename(path)


def wait(query: Any, event: threading.Event) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not event.wait(0.05):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.status


def row(label: str, figures: Figures) -> None:
    print(f"{f'  {label}':46}{figures.cells}", flush=True)


def head(label: str) -> None:
    print(f"{label:46}{HEADS}", flush=True)
