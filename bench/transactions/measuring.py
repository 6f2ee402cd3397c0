"""A burst and then a steady rate, through one live query on local Spark, durable.

First come as many elements as the burst has, so that states hold what they will, as the tables of a
database do, and starting costs nothing. When the last one is stored, the front gives all elements of
the burst as fast as it is asked for them, and the rate is that from then to the last output in the
sink. After that the driver writes down when the next elements are due, one after another at a share of that rate; the front
gives each when it is due, and its latency is from then to the moment its output is in the sink, a
function in the driver. An element that waits, in the front or anywhere, shows in its latency. What
is stored is only noted meanwhile, and latencies are reckoned when all is over.

Where other machines share the processor, its speed changes from one second to the next, and 80% of what
it did in a fast moment may be more than it does in a slow one. So another burst may follow: when both
agree, the machine was as fast while elements came at the steady rate as it was before, and the latency
is that of 80% indeed (`Figures.is_calm`).

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
from transactions import machine

#: Of the rate of the burst.
SHARE = 0.8
_NAP_SECONDS = 0.004
_WAIT_SECONDS = 180.0
#: Between two phases: all that is under way is done by then.
_QUIET_SECONDS = 1.0
_BATCH = 1_000
#: Two bursts that differ by no more than this were made by a machine of one speed.
_CALM = 0.1


@dataclass(frozen=True)
class Figures:
    """Elements a second in the burst; milliseconds at `SHARE` of that; what was replayed."""

    rate: float
    mean: float
    p50: float
    p99: float
    replay_ratio: float
    #: Of the processor's time at the steady rate, the share that the host gave to other machines.
    stolen: float | None = None
    #: Elements a second in another burst after all that.
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
    """Elements at once, again when the driver has said so, then one after another when due, and as
    many at once as it says then."""

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
        #: How many outputs are to be stored until the steady rate is over, and then all is.
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
    after: bool = False,
    beside: Callable[[Any], AbstractContextManager[object]] | None = None,
) -> Figures:
    """Run a flow of one front: twice ``burst`` elements at once, then more at a steady rate, and, if
    asked for, another burst ``after`` that.

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
    # Without the first tenth: that is the start.
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
    """For who waits until the file is there: it is whole then."""
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
