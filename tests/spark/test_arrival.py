"""``ordering="arrival"`` on Spark: no order is promised, but each element counts exactly once.

The flows have the same output, as a multiset, in every order.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint import UnfitCutError
from emberflow.engine.arrival.outputs import SnapshotGoneError
from emberflow.fronts import Element
from emberflow.runners.live.builder import LiveBuilder
from tests.effort import SECONDS, SOAK, shortened

NUMBERS = list(range(600))
KILLS = 2 if SOAK else 1


def counting() -> ef.Flow:
    """Two keyed steps in series, so that markers have something to align."""
    flow = ef.Flow("count by arrival")
    counted = flow.front("numbers").key_by(lambda number: number % 17).count()
    again = counted.key_by(lambda pair: pair[1] % 5).count()
    again.map(list).sink("counts")
    return flow


def looping() -> ef.Flow:
    flow = ef.Flow("rounds by arrival")
    again = flow.loop()
    entering = flow.front("numbers").map(lambda number: (4, number))
    grouped = ef.merge(entering, again).key_by(lambda pair: pair[0] * 7 + pair[1]).group(window=1)
    turned = grouped.map(lambda last: last[0])
    again.close(turned.flat_map(lambda pair: [(pair[0] - 1, pair[1])] if pair[0] else []))
    turned.key_by(lambda pair: pair[1] % 7).count().map(list).sink("counts")
    return flow


def arrival(spark: SparkSession, flow: ef.Flow, folder: Path, **front: Any) -> LiveBuilder:
    return (
        flow.live(spark)
        .read(numbers=fronts.Iterable(NUMBERS, **front))
        .write(counts=sinks.Files(folder / "out"))
        .option("ordering", "arrival")
        .option("checkpointLocation", folder / "checkpoint")
        .option("checkpointInterval", 100)
    )


def multiset(payloads: list[Any]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(payload) for payload in payloads)


def stored(folder: Path) -> Counter[tuple[Any, ...]]:
    return multiset(sinks.read_files(folder / "out"))


@pytest.mark.parametrize(
    ("flow", "snapshots"),
    shortened(
        [
            pytest.param(looping(), "markers", id="cyclic-markers"),
            pytest.param(counting(), "stop", id="acyclic-stop"),
            pytest.param(looping(), "stop", id="cyclic-stop"),
            pytest.param(counting(), "markers", id="acyclic-markers"),
        ],
        every_run=2,
    ),
)
def test_each_element_counts_once(
    spark: SparkSession, tmp_path: Path, flow: ef.Flow, snapshots: str
) -> None:
    query = arrival(spark, flow, tmp_path, rate=400).option("snapshots", snapshots).start()
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    assert stored(tmp_path) == multiset(ef.run(flow, numbers=NUMBERS)["counts"])
    progress = query.lastProgress
    assert progress is not None
    assert progress["cuts"]["count"] >= 2
    assert progress["latencyMs"]["p50"] > 0


def killing(flow_of: Any, folder: Path) -> ef.Flow:
    """The flow, behind a map that records the processes that its elements pass."""
    pids = folder / "pids"
    pids.mkdir(exist_ok=True)

    def told(number: int) -> int:
        (pids / str(os.getpid())).touch()
        return number

    flow = ef.Flow("killed by arrival")
    numbers = flow.front("numbers").key_by(lambda number: number).map(told)
    flow_of(numbers)
    return flow


def count_twice(numbers: Any) -> None:
    again = numbers.key_by(lambda number: number % 17).count().key_by(lambda pair: pair[1] % 5)
    again.count().map(list).sink("counts")


def go_round(numbers: Any) -> None:
    again = numbers.flow.loop()
    entering = numbers.map(lambda number: (4, number))
    grouped = ef.merge(entering, again).key_by(lambda pair: pair[0] * 7 + pair[1]).group(window=1)
    turned = grouped.map(lambda last: last[0])
    again.close(turned.flat_map(lambda pair: [(pair[0] - 1, pair[1])] if pair[0] else []))
    turned.key_by(lambda pair: pair[1] % 7).count().map(list).sink("counts")


#: Each flow and each kind of snapshot once; `make soak` has all pairs.
KILLED = [("markers", go_round), ("stop", count_twice)]
if SOAK:
    KILLED += [("markers", count_twice), ("stop", go_round)]


@pytest.mark.parametrize(("snapshots", "flow_of"), KILLED)
def test_a_worker_that_is_killed_costs_nothing_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, flow_of: Any, snapshots: str
) -> None:
    flow = killing(flow_of, tmp_path)
    query = arrival(spark, flow, tmp_path, rate=150).option("snapshots", snapshots).start()
    try:
        for _ in range(KILLS):
            kill_one(tmp_path, query)
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    assert len(query.recoveries) >= KILLS
    assert stored(tmp_path) == multiset(ef.run(flow, numbers=NUMBERS)["counts"])


def kill_one(folder: Path, query: Any) -> None:
    """Kill a worker of the present life, once it has worked for a while."""
    lost = len(query.recoveries)
    known = {path.name for path in (folder / "pids").iterdir()} if lost else set()
    before = len(sinks.read_files(folder / "out"))
    deadline = time.monotonic() + SECONDS
    while True:
        assert time.monotonic() < deadline, query.status
        assert query.isActive, query.exception()
        alive = [p.name for p in (folder / "pids").iterdir() if p.name not in known]
        if alive and len(sinks.read_files(folder / "out")) > before + 30:
            break
        time.sleep(0.1)
    os.kill(int(alive[0]), signal.SIGKILL)
    while len(query.recoveries) == lost:
        assert time.monotonic() < deadline
        assert query.isActive, query.exception()
        time.sleep(0.02)


def test_a_query_that_was_stopped_goes_on_with_another_number_of_workers(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = counting()
    first = arrival(spark, flow, tmp_path, rate=300).start()
    deadline = time.monotonic() + SECONDS
    while not stored(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.stop()
    assert first.exception() is None
    part = sum(stored(tmp_path).values())
    assert 0 < part < len(NUMBERS)
    second = arrival(spark, flow, tmp_path).option("workers", 3).start()
    assert second.awaitTermination(SECONDS)
    assert stored(tmp_path) == multiset(ef.run(flow, numbers=NUMBERS)["counts"])


def test_it_does_not_go_on_from_what_does_not_fit(spark: SparkSession, tmp_path: Path) -> None:
    flow = counting()
    query = arrival(spark, flow, tmp_path).start()
    assert query.awaitTermination(SECONDS)
    with pytest.raises(UnfitCutError, match="was taken with ordering='arrival'"):
        arrival(spark, flow, tmp_path).option("ordering", "time").start()
    elsewhere = arrival(spark, flow, tmp_path).option("checkpointLocation", tmp_path / "other")
    with pytest.raises(SnapshotGoneError, match="has the output of snapshot"):
        elsewhere.start().awaitTermination(SECONDS)


def test_at_least_once_lets_output_out_at_once(spark: SparkSession) -> None:
    flow = counting()
    kept = sinks.Memory()
    query = (
        flow.live(spark)
        .read(numbers=fronts.Iterable(NUMBERS))
        .write(counts=kept)
        .option("ordering", "arrival")
        .option("guarantee", "at-least-once")
        .start()
    )
    assert query.awaitTermination(SECONDS)
    assert multiset(kept.payloads()) == multiset(ef.run(flow, numbers=NUMBERS)["counts"])


def test_at_least_once_with_snapshots_goes_on_from_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = killing(count_twice, tmp_path)
    query = arrival(spark, flow, tmp_path, rate=150).option("guarantee", "at-least-once").start()
    try:
        kill_one(tmp_path, query)
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    expected = multiset(ef.run(flow, numbers=NUMBERS)["counts"])
    assert not expected - stored(tmp_path)  # nothing is lost


class Once:
    """A source that gives each number once, to whoever reads: a file holds the next one."""

    partitions = 1
    replayable = False

    def __init__(self, given: Path, count: int) -> None:
        self._given = given
        self._count = count

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        position = -1 if position is None else position
        while (number := self._given.stat().st_size) < self._count:
            with self._given.open("ab") as file:
                file.write(b".")
            position += 1
            yield Element(position, number)
            time.sleep(0.005)


def test_a_source_that_cannot_be_read_again_is_read_from_its_log(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = killing(lambda n: n.key_by(lambda n: n).count().map(list).sink("counts"), tmp_path)
    given = tmp_path / "given"
    given.touch()
    query = (
        arrival(spark, flow, tmp_path)
        .read(numbers=Once(given, 600))
        .option("checkpointInterval", 10**9)  # the whole first life is in the log only
        .start()
    )
    try:
        deadline = time.monotonic() + SECONDS
        while given.stat().st_size < 300:
            assert time.monotonic() < deadline, query.status
            time.sleep(0.02)
        os.kill(int(next((tmp_path / "pids").iterdir()).name), signal.SIGKILL)
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    assert query.recoveries
    found = stored(tmp_path)
    assert set(found.values()) == {1}
    assert {count for _, count in found} == {1}  # no number entered twice
    # Only elements that were not logged yet are lost.
    assert 600 - len(found) < 150


def test_it_says_what_it_cannot_be_combined_with(spark: SparkSession, tmp_path: Path) -> None:
    ready = counting().live(spark).read(numbers=fronts.Iterable([])).write(counts=sinks.Memory())
    ready.option("ordering", "arrival")
    with pytest.raises(ef.InputError, match=r"exactly-once only by snapshots.*checkpointLocation"):
        ready.start()
    ready.option("checkpointLocation", tmp_path)
    with pytest.raises(ef.InputError, match="does not offer guarantee='at-most-once'"):
        ready.option("guarantee", "at-most-once").start()
    with pytest.raises(ef.InputError, match="'ordering' takes one of 'time', 'arrival'"):
        ready.option("ordering", "random")
