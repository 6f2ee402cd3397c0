"""Live on Spark: the output is the reference's, and nothing is left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.fronts import Element
from emberflow.runners.live.driver.cluster import ClusterError
from tests.effort import SECONDS


def live(
    spark: SparkSession, flow: ef.Flow, workers: int, elements: dict[str, Any]
) -> dict[str, list[Any]]:
    """The live output of a flow, each sink's partitions one after another."""
    kept = {name: sinks.Memory() for name in flow.graph().sinks}
    query = (
        flow.live(spark)
        .read(**{name: fronts.Iterable(given) for name, given in elements.items()})
        .write(**kept)
        .option("workers", workers)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    partitions = {name: sink.partitions for name, sink in flow.graph().sinks.items()}
    return {
        name: [
            payload
            for partition in range(partitions[name])
            for payload in memory.payloads(partition)
        ]
        for name, memory in kept.items()
    }


def word_count() -> ef.Flow:
    flow = ef.Flow("word count")
    words = flow.front("lines").flat_map(lambda line: line.split())
    words.key_by(lambda word: word).count().sink("counts")
    return flow


LINES = [f"w{number % 7} w{number % 3} w{number % 11}" for number in range(500)]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_output_is_that_of_the_reference_on_any_number_of_workers(
    spark: SparkSession, workers: int
) -> None:
    flow = word_count()
    assert live(spark, flow, workers, {"lines": LINES}) == ef.run(flow, lines=LINES)


def test_a_function_that_raises_ends_the_query_with_the_reference_s_error(
    spark: SparkSession,
) -> None:
    flow = ef.Flow("division")
    flow.front("numbers").map(lambda number: 1 // number, name="inverse").sink("out")
    numbers = [3, 2, 0, 1, 0]
    with pytest.raises(ef.FunctionError) as expected:
        ef.run(flow, numbers=numbers)
    with pytest.raises(ef.FunctionError) as found:
        live(spark, flow, 2, {"numbers": numbers})
    for attribute in ("step", "function", "global_time", "payload", "problem"):
        assert getattr(found.value, attribute) == getattr(expected.value, attribute)


class Broken:
    """A front whose source fails after three elements."""

    partitions = 1

    def read(self, partition: int, position: Any) -> Iterator[Element]:
        for number in range(3):
            yield Element(number, number)
        raise ConnectionResetError("the source is gone")


def test_a_front_that_fails_ends_the_query_and_says_which_one(spark: SparkSession) -> None:
    flow = ef.Flow("broken front")
    flow.front("numbers").sink("out")
    query = flow.live(spark).read(numbers=Broken()).write(out=sinks.Memory()).start()
    with pytest.raises(ef.EmberflowError, match=r"front 'numbers' .*the source is gone"):
        query.awaitTermination(SECONDS)
    assert not query.isActive


def test_a_sink_that_fails_ends_the_query_and_says_which_one(spark: SparkSession) -> None:
    def fail(bundle: sinks.StoredBundle) -> None:
        raise OSError("the disk is full")

    flow = ef.Flow("broken sink")
    flow.front("numbers").sink("out")
    numbers = fronts.Iterable(range(10))
    query = flow.live(spark).read(numbers=numbers).write(out=sinks.Callback(fail)).start()
    with pytest.raises(ef.EmberflowError, match=r"sink 'out' .*the disk is full"):
        query.awaitTermination(SECONDS)


def test_stop_lets_out_what_was_taken_in(spark: SparkSession) -> None:
    flow = word_count()
    counts = sinks.Memory()
    lines = fronts.Iterable(lambda: (LINES[n % 500] for n in range(10**9)), rate=200, arrival=True)
    query = flow.live(spark).read(lines=lines).write(counts=counts).start()
    deadline = time.monotonic() + SECONDS
    while len(counts.payloads()) < 300:
        assert time.monotonic() < deadline
        assert query.exception() is None
        time.sleep(0.05)
    assert query.isActive
    query.stop()
    assert not query.isActive
    assert query.exception() is None
    progress = query.lastProgress
    assert progress is not None
    taken = progress["elements"]
    assert counts.payloads() == ef.run(flow, lines=[LINES[n % 500] for n in range(taken)])["counts"]


def test_it_says_what_is_missing_before_anything_starts(spark: SparkSession) -> None:
    flow = word_count()
    ready = flow.live(spark).read(lines=fronts.Iterable([])).write(counts=sinks.Memory())
    with pytest.raises(ClusterError, match=r"asks for 64 workers.*Spark has 4"):
        ready.option("workers", 64).start()
    with pytest.raises(ef.InputError, match="no option 'wrokers'"):
        ready.option("wrokers", 2)
    with pytest.raises(ef.InputError, match="sink 'counts' is not given"):
        flow.live(spark).read(lines=fronts.Iterable([])).start()
    with pytest.raises(ef.InputError, match="has no front 'line'"):
        flow.live(spark).read(line=fronts.Iterable([])).start()
    with pytest.raises(ef.InputError, match=r"has no partitions, read"):
        flow.live(spark).read(lines=[]).write(counts=sinks.Memory()).start()  # type: ignore[arg-type]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts open files through /proc")
def test_ten_starts_and_stops_leave_no_thread_and_no_socket_behind(spark: SparkSession) -> None:
    flow = word_count()
    live(spark, flow, 2, {"lines": LINES[:5]})  # after this Spark's own threads and files exist
    threads, files = {thread.name for thread in threading.enumerate()}, open_files()
    for _ in range(10):
        live(spark, flow, 2, {"lines": LINES[:5]})
    left = {thread.name for thread in threading.enumerate()} - threads
    assert not {name for name in left if "emberflow" in name}
    assert open_files() <= files + 2


def test_a_sink_that_has_some_of_it_gets_only_the_rest(spark: SparkSession, tmp_path: Path) -> None:
    flow = word_count()

    def run(lines: list[str]) -> None:
        kept = sinks.Files(tmp_path)
        query = flow.live(spark).read(lines=fronts.Iterable(lines)).write(counts=kept).start()
        assert query.awaitTermination(SECONDS)

    run(LINES[:60])
    run(LINES)  # from the start again: the same times and output, nothing twice
    expected = [list(count) for count in ef.run(flow, lines=LINES)["counts"]]
    assert list(sinks.read_files(tmp_path, 0)) == expected


def test_an_error_whose_payload_does_not_travel_is_told_all_the_same(spark: SparkSession) -> None:
    flow = ef.Flow("does not travel")
    flow.front("numbers").map(lambda number: lambda: number).map(lambda made: made + 1).sink("out")
    with pytest.raises(ef.FunctionError, match="raised TypeError"):
        live(spark, flow, 2, {"numbers": [1]})


def test_stop_ends_a_query_that_is_stuck_in_a_function(spark: SparkSession, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def stuck(number: int) -> int:
        begun.touch()
        time.sleep(600)
        return number

    flow = ef.Flow("stuck")
    flow.front("numbers").map(stuck).sink("out")
    query = flow.live(spark).read(numbers=fronts.Iterable([1])).write(out=sinks.Memory()).start()
    while not begun.exists():
        assert query.isActive
        time.sleep(0.05)
    query.stop(timeout=1)
    assert not query.isActive
    assert "did not drain within 1 s" in str(query.exception())


def test_stop_waits_neither_for_open_windows_nor_for_a_front_that_is_behind(
    spark: SparkSession,
) -> None:
    """What is held for them can never become final."""
    flow = ef.Flow("open windows")
    numbers = ef.merge(flow.front("ahead"), flow.front("behind"))
    numbers.key_by(lambda n: n % 3).window(ef.Tumbling(10**6), emit="close").count().sink("counts")
    numbers.sink("numbers")
    query = (
        flow.live(spark)
        .read(
            ahead=fronts.Iterable(lambda: iter(range(10**9)), rate=2_000),
            behind=fronts.Iterable(lambda: iter(range(10**9)), rate=50),
        )
        .write(counts=sinks.Memory(), numbers=(stored := sinks.Memory()))
        .option("workers", 2)
        .start()
    )
    try:
        deadline = time.monotonic() + SECONDS
        while len(stored.payloads()) < 50 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        query.stop()
    assert query.exception() is None, "it drained"
