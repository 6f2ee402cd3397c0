"""The progress that a live query reports while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.fronts import Element
from tests.effort import SECONDS

STORING_SECONDS = 0.3


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {SECONDS} s"
        time.sleep(0.05)


def counting() -> ef.Flow:
    flow = ef.Flow("counting")
    flow.front("numbers").key_by(lambda number: number % 3).count().sink("counts")
    return flow


def test_latency_ends_when_the_output_is_stored(spark: SparkSession) -> None:
    def store(bundle: sinks.StoredBundle) -> None:
        time.sleep(STORING_SECONDS)

    query = (
        counting()
        .live(spark)
        .read(numbers=fronts.Iterable(range(200)))
        .write(counts=sinks.Callback(store))
        .start()
    )
    assert query.awaitTermination(SECONDS)
    progress = query.lastProgress
    assert progress is not None
    # Final output waits for the sink, and no element is settled before its output is stored.
    assert progress.latencyMs["p50"] >= 1_000 * STORING_SECONDS
    assert progress.elements == progress.released == 200
    assert sum(each["numInputRows"] for each in query.recentProgress) == 200
    assert (progress["keys"], progress.unstored, progress.waiting) == (3, 0, 0)
    assert (progress.heldAtBarriers, progress.minimalTimeLagMs) == (0, 0)
    assert progress.bucketItems >= 3
    assert len(progress.loadPerWorker) == len(progress.cpuPerWorker) == 2


def test_every_element_is_measured_also_the_last_one(spark: SparkSession) -> None:
    numbers = fronts.Iterable([1])
    query = counting().live(spark).read(numbers=numbers).write(counts=sinks.Memory()).start()
    assert query.awaitTermination(SECONDS)
    progress = query.lastProgress
    assert progress is not None
    assert progress.latencyMs["p99"] > 0


class Silent:
    """A front with times of its own and no elements: all other fronts wait for it."""

    partitions = 1
    increasing = True

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        yield Element(0, 0, 0)
        while True:
            time.sleep(0.02)
            yield None


def test_the_lag_grows_while_a_front_holds_the_minimal_time_back(spark: SparkSession) -> None:
    flow = ef.Flow("held back")
    ef.merge(flow.front("silent"), flow.front("numbers")).sink("out")
    out = sinks.Memory()
    numbers = fronts.Iterable([ef.At(time, time) for time in (10, 20, 30)])
    query = flow.live(spark).read(silent=Silent(), numbers=numbers).write(out=out).start()
    try:
        wait_until(lambda: query.lastProgress and query.lastProgress.minimalTimeLagMs > 400)
        progress = query.lastProgress
        assert progress is not None
        assert progress.minimalTime == (1, 0)
        assert progress.heldAtBarriers == 3
        assert out.payloads() == [0]
    finally:
        query.stop()
