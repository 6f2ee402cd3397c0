"""Our queries, live and exactly once: two workers, a checkpoint each second, the sink in the driver.

*Throughput*: the events are in memory, in two partitions. The clock runs from the first read of a partition to
the last bundle that is stored, so it has everything but the start of processes.

*Latency*: each event is due at the moment that its time says, counted from the first read, and enters then. An
output has the time of the event that caused it, or the end of its window. Its latency is from then to when
the driver has stored it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nexmark.generator import BEGIN_MS, Event
from nexmark.queries import QUERIES, flow_of
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks

WORKERS = 2
SECONDS_MAX = 300.0
#: Waits that are shorter would only make the machine busy.
NAP_SECONDS = 0.001


class Rate(NamedTuple):
    events_a_second: float
    rows: int


class InMemory(fronts.Iterable):
    """Events in memory. Notes when a partition is first read."""

    def __init__(self, events: list[Event], begun: Path) -> None:
        elements = [ef.At(event.date_time, event) for event in events]
        super().__init__(elements, partitions=WORKERS)
        self.begun = begun

    def read_batches(self, partition: int, position: Any) -> Iterator[Any]:
        _note(self.begun / str(partition))
        return super().read_batches(partition, position)


class Paced:
    """Events that enter when they are due."""

    partitions = 1

    def __init__(self, events: list[Event], begun: Path) -> None:
        self.events, self.begun = events, begun
        self.event_time = fronts.Iterable([]).event_time

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element]:
        begin = _note(self.begun / str(partition))
        first = 0 if position is None else position + 1
        for number, event in enumerate(self.events[first:], first):
            wait = begin + (event.date_time - BEGIN_MS) / 1_000 - time.time()
            if wait > NAP_SECONDS:
                time.sleep(wait)
            yield fronts.Element(number, event, event.date_time)


def _note(path: Path) -> float:
    """Now, or when this was first called."""
    if not path.exists():
        path.write_text(repr(time.time()))
    return float(path.read_text())


def rate(spark: SparkSession, query: str, events: list[Event]) -> Rate:
    stored: list[tuple[float, int]] = []

    def store(bundle: Any) -> None:
        stored.append((time.time(), len(bundle.payloads)))

    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder, "begun")
        begun.mkdir()
        _run(spark, flow_of(query), InMemory(events, begun), {query: sinks.Callback(store)}, folder)
        begin = min(float(path.read_text()) for path in begun.iterdir())
    last = max((at for at, _ in stored), default=0.0)
    rows = sum(count for _, count in stored)
    return Rate(len(events) / (last - begin) if stored else 0.0, rows)


def latencies(spark: SparkSession, query: str, events: list[Event]) -> list[float]:
    """In milliseconds, of each output but those of the first quarter, in which processes warm up."""
    flow = ef.Flow(f"nexmark {query} with times")
    found = QUERIES[query](flow.front("events"))
    stream = found.as_stream() if isinstance(found, ef.Changes) else found
    stream.with_time().map(lambda timed: timed.time).sink("times")
    stored: list[tuple[float, int]] = []

    def store(bundle: Any) -> None:
        now = time.time()
        stored.extend((now, at) for at in bundle.payloads)

    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder, "begun")
        begun.mkdir()
        _run(spark, flow, Paced(events, begun), {"times": sinks.Callback(store)}, folder)
        begin = float((begun / "0").read_text())
    span = events[-1].date_time - BEGIN_MS
    return [
        (now - begin) * 1_000 - (at - BEGIN_MS)
        for now, at in stored
        # Windows that are open at the end close with it, and not when they are due.
        if span / 4 < at - BEGIN_MS <= span
    ]


def _run(
    spark: SparkSession, flow: ef.Flow, front: Any, outputs: dict[str, Any], folder: str
) -> None:
    query = (
        flow.live(spark)
        .read(events=front)
        .write(**outputs)
        .option("workers", WORKERS)
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS_MAX), f"{flow.name} takes too long: {query.status}"
    finally:
        query.stop()
