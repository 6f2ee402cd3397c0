"""Queries that go on with another number of workers under load: the output is the reference's."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from random import Random

import pytest
from pyspark import StatusTracker
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.query import LiveQuery
from tests.effort import FAULTS_ROUND, SECONDS, SOAK
from tests.faults.toll import toll


def elastic_flow() -> ef.Flow:
    """Counts, windows that stay open over moves, and sinks with partitions that change hands."""
    flow = ef.Flow("elastic")
    numbers = ef.merge(flow.front("one"), flow.front("two"))
    counts = numbers.key_by(lambda n: n % 499).count(name="counts")
    counts.key_by(lambda pair: pair[0]).sink("counts", partitions=3)
    closed = numbers.key_by(lambda n: n % 7).window(ef.Tumbling(300), emit="close")
    closed.count(name="windows").map(lambda r: (r.key, r.window.start, r.value)).sink("windows")
    accounts = flow.state("accounts", default=0)
    with numbers.transaction() as tx:
        tx.key_by(lambda n: n % 31).update(accounts, lambda balance, n: balance + n % 5)
    tx.committed.sink("receipts")
    return flow


def numbers_from(first: int, may_end: Path) -> Iterator[int]:
    return takewhile(lambda _: not may_end.exists(), count(first, 2))


class Running:
    """A query that counts up until it is told to stop."""

    def __init__(self, spark: SparkSession, folder: Path, workers: int) -> None:
        self._may_end = folder / "end"
        self.kept = {name: sinks.Memory() for name in elastic_flow().graph().sinks}
        self.query: LiveQuery = (
            elastic_flow()
            .live(spark)
            .read(
                one=fronts.Iterable(partial(numbers_from, 0, self._may_end), rate=1_000),
                two=fronts.Iterable(partial(numbers_from, 1, self._may_end), rate=700),
            )
            .write(**self.kept)
            .option("workers", workers)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .option("checkpointInterval", 300)
            .start()
        )

    def wait_for(self, more: int) -> None:
        """Until so many more counts are stored."""
        deadline = time.monotonic() + SECONDS
        wanted = self._stored() + more
        while self._stored() < wanted:
            assert self.query.isActive, self.query.exception()
            assert time.monotonic() < deadline, self.query.status
            time.sleep(0.05)

    def _stored(self) -> int:
        return sum(len(self.kept["counts"].payloads(each)) for each in range(3))

    def ended(self) -> None:
        """End it, and compare all that it gave with the reference."""
        self._may_end.touch()
        assert self.query.awaitTermination(SECONDS), self.query.status
        receipts = self.kept["receipts"].payloads(0)
        given = [[n for n in receipts if n % 2 == first] for first in range(2)]
        expected = ef.run(elastic_flow(), one=given[0], two=given[1])
        assert given[0] == list(range(0, 2 * len(given[0]), 2))
        assert receipts == expected["receipts"]
        assert self.kept["windows"].payloads(0) == expected["windows"]
        counts = [pair for each in range(3) for pair in self.kept["counts"].payloads(each)]
        assert sorted(counts) == sorted(expected["counts"])


def test_the_number_of_workers_changes_under_load(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path, workers=1)
    query = running.query
    try:
        for workers in (3, 2):
            running.wait_for(1_000)
            query.rescale(workers=workers, timeout=SECONDS)
            assert query.workers == workers
            assert len(query.state("accounts").scan()) == 31
        running.wait_for(1_000)
        with pytest.raises(ef.EmberflowError, match="asks for 50 workers"):
            query.rescale(workers=50)
        with pytest.raises(ef.InputError, match="a number of workers from 1 to 1,024, got 0"):
            query.rescale(workers=0)
        running.wait_for(100)
        assert query.workers == 2
        assert not query.recoveries
        running.ended()
    finally:
        query.stop()


def test_without_free_slots_the_old_number_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has four, and another job takes three of them."""
    is_over = tmp_path / "other job is over"

    def sits(numbers: Iterator[int]) -> Iterator[int]:
        while not is_over.exists():
            time.sleep(0.05)
        yield from numbers

    running = Running(spark, tmp_path, workers=1)
    query = running.query
    other = threading.Thread(
        target=lambda: spark.sparkContext.parallelize(range(3), 3).mapPartitions(sits).count()
    )
    try:
        running.wait_for(100)
        other.start()
        wait_for_tasks(spark, 4)
        with pytest.raises(ef.EmberflowError, match="Are there 3 slots that no other job takes"):
            query.rescale(workers=3, timeout=3)
        running.wait_for(100)
        assert query.workers == 1
        is_over.touch()
        other.join(SECONDS)
        query.rescale(workers=2, timeout=SECONDS)
        running.wait_for(100)
        assert not query.recoveries
        running.ended()
    finally:
        is_over.touch()
        query.stop()


def wait_for_tasks(spark: SparkSession, count: int) -> None:
    tracker = spark.sparkContext.statusTracker()
    deadline = time.monotonic() + SECONDS
    while running_tasks(tracker) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running_tasks(tracker: StatusTracker) -> int:
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def test_workers_are_killed_while_their_number_changes(spark: SparkSession, tmp_path: Path) -> None:
    dice = Random(f"rescales under kills {FAULTS_ROUND}")
    running = Running(spark, tmp_path, workers=2)
    query = running.query
    try:
        for workers in (3, 1, 2, 3, 2, 1) if SOAK else (3, 2):
            running.wait_for(500)
            killing = threading.Thread(target=kill_one, args=(query, dice.uniform(0, 2.0), dice))
            killing.start()
            query.rescale(workers=workers, timeout=SECONDS)
            killing.join(SECONDS)
        running.wait_for(500)
        running.ended()
        assert query.recoveries
    finally:
        query.stop()


def kill_one(query: LiveQuery, after: float, dice: Random) -> None:
    time.sleep(after)
    progress = query.lastProgress
    if progress is not None and progress["pids"]:
        try:
            os.kill(dice.choice(progress["pids"]), signal.SIGKILL)
        except ProcessLookupError:  # it has left, or been replaced just now
            return
        toll("worker")
