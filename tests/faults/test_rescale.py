"""Queries that go on with another number of workers under load: the output is the reference's."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.commands.rescale import rescale as rescale_by_name
from emberflow.runners.live import life
from emberflow.runners.live.lives.losses import WorkerLostError
from emberflow.runners.live.processes.member import Seat
from emberflow.runners.live.query import LiveQuery
from tests.effort import FAULTS_ROUND, SECONDS, SOAK
from tests.faults.flows import plain
from tests.faults.test_kills import until
from tests.faults.toll import toll

if TYPE_CHECKING:
    from pyspark import StatusTracker
    from pyspark.sql import SparkSession

COUNTS = 3
#: Enough for rows to be copied ahead.
KEYS = 1_999


@pytest.fixture(autouse=True)
def three_workers_have_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And two have an acker in the driver: rescales go from one to the other and back."""
    monkeypatch.setattr(life, "ACCOUNTS_FROM", 3)


def elastic_flow() -> ef.Flow:
    """Counts, windows that stay open over moves, and sinks with partitions that change hands."""
    flow = ef.Flow("elastic")
    numbers = ef.merge(flow.front("one"), flow.front("two"))
    counts = numbers.key_by(lambda n: n % KEYS).count(name="counts")
    counts.key_by(lambda pair: pair[0]).sink("counts", partitions=COUNTS)
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
    """A query that counts up until it is told to stop. Its workers write files, and the driver the rest."""

    def __init__(self, spark: SparkSession, folder: Path, workers: int, memory: str = "1g") -> None:
        self._may_end = folder / "end"
        self._counts = folder / "counts"
        self.kept = {"windows": sinks.Memory(), "receipts": sinks.Memory()}
        self.query: LiveQuery = (
            elastic_flow()
            .live(spark)
            .read(
                one=fronts.Iterable(partial(numbers_from, 0, self._may_end), rate=1_000),
                two=fronts.Iterable(partial(numbers_from, 1, self._may_end), rate=700),
            )
            .write(counts=sinks.Files(self._counts), **self.kept)
            .option("workers", workers)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .option("checkpointInterval", 300)
            .option("stateMemory", memory)
            .option("upgrades", True)
            .queryName(f"elastic {folder.name}")
            .start()
        )

    def wait_for(self, more: int) -> None:
        """Until so many more receipts are stored."""
        wanted = self._stored() + more

        def are_stored() -> bool:
            assert self.query.isActive, self.query.exception()
            return self._stored() >= wanted

        until(are_stored, f"{more} more receipts: {self.query.status}")

    def _stored(self) -> int:
        return len(self.kept["receipts"].payloads(0))

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
        counts = [each for p in range(COUNTS) for each in sinks.read_files(self._counts, p)]
        assert sorted(counts) == sorted(plain(expected["counts"]))

    def pids(self) -> dict[int, int]:
        """By worker: its process, also of those that are only coming."""
        roster = self.query._lives._crews.roster
        assert roster is not None
        numbers, seen = dict(roster._worker_at), dict(roster._seen)
        return {numbers[seat]: seen[seat].here.pid for seat in numbers.keys() & seen.keys()}


def test_the_number_of_workers_changes_under_load(spark: SparkSession, tmp_path: Path) -> None:
    running = Running(spark, tmp_path, workers=1)
    query = running.query
    try:
        running.wait_for(500)
        query.rescale(workers=3, timeout=SECONDS)
        assert query.workers == 3
        assert len(query.state("accounts").scan()) == 31
        running.wait_for(500)
        assert query.name is not None
        rescale_by_name(query.name, 2, seconds=SECONDS)  # as the command does
        assert query.workers == 2
        assert len(query.state("accounts").scan()) == 31
        until(lambda: running.pids().keys() == {0, 1}, "the process that has left")
        running.wait_for(500)
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


def test_any_worker_can_leave_and_another_takes_its_place_or_its_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As they do when Spark decommissions their executors."""
    running = Running(spark, tmp_path, workers=2)
    query, lives = running.query, running.query._lives
    try:
        running.wait_for(500)
        before = running.pids()
        lives.rescale(2, SECONDS, lives.current.seats[:1])
        until(lambda: len(running.pids()) == 2, "the process that has come")
        replaced = running.pids()
        assert replaced[0] not in before.values()
        assert replaced[1] == before[1]
        running.wait_for(500)
        assert len(query.state("accounts").scan()) == 31
        lives.rescale(1, SECONDS, lives.current.seats[:1])
        assert running.pids() == {0: before[1]}
        running.wait_for(500)
        assert len(query.state("accounts").scan()) == 31
        lives.rescale(2, SECONDS, lives.current.seats)  # nobody stays
        until(lambda: len(running.pids()) == 2, "the processes that have come")
        assert before[1] not in running.pids().values()
        running.wait_for(500)
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
    until(lambda: running_tasks(tracker) >= count, f"{count} tasks")


def running_tasks(tracker: StatusTracker) -> int:
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def test_workers_are_killed_while_their_number_changes(spark: SparkSession, tmp_path: Path) -> None:
    """One that goes on, one that is coming, and one that takes over; in the soak others at any moment."""
    dice = Random(f"rescales under kills {FAULTS_ROUND}")
    running = Running(spark, tmp_path, workers=2, memory="1m")
    query = running.query
    try:
        until(lambda: (query.lastProgress or {}).get("coldKeys", 0) > 100, "keys to be cold")
        rescale_and_kill(running, 3, worker=1, after=0.0)
        running.wait_for(300)
        query.rescale(workers=2, timeout=SECONDS)
        running.wait_for(300)
        rescale_and_kill(running, 3, worker=2, after=0.0)
        running.wait_for(300)
        # The last worker takes the number of the first one, and is killed when it has.
        seats = query._lives.current.seats[:1]
        rescale_and_kill(running, 2, worker=0, after=0.0, is_taking_over=True, leaving=seats)
        for workers in (1, 2, 3, 2, 1, 3, 2, 3) if SOAK else ():
            running.wait_for(300)
            worker = dice.randrange(min(workers, query.workers))
            seats = [seat for seat in query._lives.current.seats if dice.random() < 0.3]
            after = dice.uniform(0.0, 1.0)
            rescale_and_kill(running, workers, worker, after=after, leaving=seats)
        running.wait_for(300)
        assert query.recoveries
        running.ended()
    finally:
        query.stop()


def test_a_rescale_follows_one_that_was_given_up_when_the_life_before_had_ended_for_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes end, and others begin the next life: that one is asked, and nobody before it."""
    running = Running(spark, tmp_path, workers=1)
    query, lives = running.query, running.query._lives
    goes_on, end_jobs = lives._goes_on_in_place, lives._crews.end_jobs

    def given_up() -> bool:
        lives._succession.end(WorkerLostError("a worker that was to be added is lost"))
        return goes_on()

    def ends_jobs() -> None:
        until(lambda: lives.current.successor is not None, "the second rescale")
        time.sleep(0.5)  # it does what it can
        monkeypatch.undo()
        end_jobs()

    try:
        running.wait_for(300)
        monkeypatch.setattr(lives, "_goes_on_in_place", given_up)
        monkeypatch.setattr(lives._crews, "end_jobs", ends_jobs)
        with pytest.raises(WorkerLostError, match="goes on with 1 workers: a worker that was to"):
            query.rescale(workers=2, timeout=SECONDS)
        query.rescale(workers=2, timeout=SECONDS)
        assert query.workers == 2
        running.wait_for(300)
        running.ended()
    finally:
        query.stop()


def rescale_and_kill(
    running: Running,
    workers: int,
    worker: int,
    after: float,
    *,
    is_taking_over: bool = False,
    leaving: Sequence[Seat] = (),
) -> None:
    """Rescale, and kill the process of a worker on the way. The loss of one that is added may undo it."""
    lives = running.query._lives
    query, failures = running.query, list[ef.EmberflowError]()

    def rescale() -> None:
        try:
            lives.rescale(workers, SECONDS, leaving)
        except ef.EmberflowError as error:
            failures.append(error)

    asking = threading.Thread(target=rescale)
    asking.start()
    until(lambda: lives.current.successor is not None, "the rescale")
    until(lambda: worker in running.pids(), "the worker")
    if is_taking_over:
        until(lambda: lives.settings.workers == workers, "the moment at which others take over")
    time.sleep(after)
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pids()[worker], signal.SIGKILL)
        toll("worker")
    asking.join(SECONDS)
    assert not asking.is_alive()
    if failures:
        assert "worker" in str(failures[0])
        query.rescale(workers=workers, timeout=SECONDS)
    assert query.workers == workers
