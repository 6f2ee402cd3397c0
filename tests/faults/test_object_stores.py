"""A live query with its checkpoint, the log of its front and its files on an object store that fails.

The store is killed and started again, answers late, turns requests away, and loses answers. The query
waits where it has to and goes on by itself, and its output is the reference's, to the byte.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.logs.front_log import read_log
from emberflow.runners.live.query import LiveQuery
from tests.adapters.s3_server import (
    PASSED,
    PROBLEMS,
    FaultyS3,
    S3Server,
    all_pass,
)
from tests.effort import FAULTS_ROUND, SOAK
from tests.faults.flows import check_files, documents, index_flow
from tests.faults.test_kills import Program, held_back, kill_workers, killed_worker, until
from tests.faults.toll import toll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)

SECONDS = 400
SINKS = ("counts", "pairs", "windows")


@pytest.fixture
def store(s3: S3Server) -> Iterator[FaultyS3]:
    """What the processes of Spark find where the server was: the server behind what makes faults."""
    before = s3.move()
    proxy = FaultyS3(s3, before)
    yield proxy
    proxy.fate = all_pass
    proxy.close()
    s3.move_back(before)


def started(spark: SparkSession, url: str, front: fronts.Front) -> LiveQuery:
    return (
        index_flow()
        .live(spark)
        .read(documents=front)
        .write(**{name: sinks.Files(f"{url}/{name}") for name in SINKS})
        .option("workers", 2)
        .option("checkpointLocation", f"{url}/checkpoint")
        .option("checkpointInterval", 150)
        .option("checkpointsKept", 10_000)
        .start()
    )


def check(url: str, given: list[tuple[int, list[str]]]) -> None:
    """The times that elements got are in the front's log, and are the reference's too."""
    log = list(read_log(f"{url}/checkpoint", "documents", 0))
    assert [entry[0] for entry in log] == list(range(len(given)))
    elements = [ef.At(time_, given[position]) for position, time_ in log]
    check_files(url, ef.run(index_flow(), documents=elements))


def released(query: LiveQuery) -> int:
    progress = query.lastProgress
    return 0 if progress is None else int(progress["released"])


def more_is_released(query: LiveQuery) -> Callable[[], bool]:
    before, lives = released(query), len(query.recoveries)
    # A life counts from 0.
    return lambda: released(query) > before or len(query.recoveries) > lives


def kill(store: FaultyS3, s3: S3Server, query: LiveQuery, dice: Random) -> None:
    s3.kill()
    toll("object store")
    time.sleep(dice.uniform(0.0, 1.5))
    s3.start()


def slow_down(store: FaultyS3, s3: S3Server, query: LiveQuery, dice: Random) -> None:
    def late(method: str, path: str, headers: dict[str, str]) -> str:
        time.sleep(dice.uniform(0.0, 0.4))
        return PASSED

    store.fate = late
    until(more_is_released(query), "output with a slow store")
    store.fate = all_pass


def turn_away(store: FaultyS3, s3: S3Server, query: LiveQuery, dice: Random) -> None:
    store.fate = lambda *_: dice.choice(PROBLEMS) if dice.random() < 0.3 else PASSED
    until(more_is_released(query), "output with a store that turns away and loses")
    store.fate = all_pass


def test_a_query_outlives_faults_of_the_store(
    spark: SparkSession, tmp_path: Path, s3: S3Server, store: FaultyS3
) -> None:
    dice = Random(f"store {FAULTS_ROUND}")
    faults = [kill, turn_away, slow_down] * (3 if SOAK else 1)
    dice.shuffle(faults)
    given = documents(600 if SOAK else 150)
    all_made = tmp_path / "all made"
    url = s3.new_url("live")
    front = fronts.Iterable(
        held_back(given, all_made), rate=len(given) / (4 * len(faults)), arrival=True
    )
    query = started(spark, url, front)
    try:
        for fault in faults:
            until(lambda: released(query), "output")
            fault(store, s3, query, dice)
            until(more_is_released(query), f"output after {fault.__name__}")
            if SOAK:
                kill_workers(query, dice, 1)
        all_made.touch()
        assert query.awaitTermination(SECONDS), query.status
    finally:
        store.fate = all_pass
        query.stop()
    assert CheckpointStore(f"{url}/checkpoint").latest() is not None
    check(url, given)


@pytest.mark.skipif(
    not SOAK, reason="takes seconds; tests/checkpoint and tests/adapters have the parts"
)
def test_a_worker_that_was_only_stopped_is_fenced_on_a_store(
    spark: SparkSession, s3: S3Server
) -> None:
    given = documents(300)
    url = s3.new_url("live")
    query = started(spark, url, fronts.Iterable(given, rate=100, arrival=True))
    try:
        stopped = killed_worker(query, Random(f"stopped {FAULTS_ROUND}"), signal.SIGSTOP)
        until(lambda: query.recoveries, "the stopped heartbeat to be noticed", 60)
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    check(url, given)


@pytest.mark.early
@pytest.mark.xdist_group("s3")
@pytest.mark.skipif(not SOAK, reason="`make soak` has it; every run kills a driver between topics")
def test_a_driver_on_a_store_is_killed_and_started_again(tmp_path: Path, s3: S3Server) -> None:
    """The next one begins while what the last one started may still live."""
    dice = Random(f"driver on a store {FAULTS_ROUND}")
    count = 400
    url = s3.new_url("live")

    def begun(rate: int) -> Program:
        given = ("local[2]", url, str(count), str(rate))
        return Program("tests.faults.programs", tmp_path, *given)

    programs: list[Program] = []
    try:
        for _ in range(4):
            program = begun(40)
            programs.append(program)
            assert program.line()[:1] == ["running"], (tmp_path / "log").read_text()[-3_000:]
            time.sleep(dice.uniform(0.1, 1.2))
            os.kill(program.process.pid, signal.SIGKILL)
            toll("driver")
            program.process.wait(60)
        program = begun(10_000)
        programs.append(program)
        while (line := program.line()) and line != ["done"]:
            assert line[0] == "running"
        assert line == ["done"], (tmp_path / "log").read_text()[-3_000:]
    finally:
        for program in programs:
            program.end()
    check_files(url, ef.run(index_flow(), documents=documents(count)))
