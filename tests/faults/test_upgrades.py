"""Ten versions take over in a row while workers are killed: the output is that of the reference's versions."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.runners.live.query import LiveQuery
from tests.effort import FAULTS_ROUND, SECONDS, SOAK
from tests.faults import upgraded_program
from tests.faults.flows import plain
from tests.faults.test_kills import Program
from tests.faults.toll import toll
from tests.spark.test_upgrades import begin_of

VERSIONS = 10


def version(generation: int) -> ef.Flow:
    """Names change with every third generation, so state is renamed; windows stay open over upgrades."""
    flow = ef.Flow("versions")
    numbers = flow.front("numbers")
    keyed = numbers.key_by(lambda n: n % 50)
    totals = keyed.fold(
        initial=0, combine=lambda total, n: total + n + generation, name=name_of(generation)
    )
    totals.map(lambda total: (generation, total)).sink("totals")
    closed = keyed.window(ef.Tumbling(2_000), emit="close").count(name="windows")
    closed.map(lambda r: (generation, r.key, r.window.start, r.value)).sink("windows")
    return flow


def name_of(generation: int) -> str:
    return f"totals {generation // 3}"


def carry(generation: int) -> dict[str, Any]:
    old, new = name_of(generation - 1), name_of(generation)
    return {} if old == new else {new: old}


@pytest.mark.skipif(
    not SOAK, reason="`make soak` has it; every run kills once among three upgrades"
)
def test_ten_versions_take_over_under_kills(spark: SparkSession, tmp_path: Path) -> None:
    dice = Random(f"upgrades under kills {FAULTS_ROUND}")
    may_end = tmp_path / "end"

    def numbers() -> Iterator[int]:
        return takewhile(lambda _: not may_end.exists(), count())

    kept = {name: sinks.Memory() for name in version(0).graph().sinks}
    query = (
        version(0)
        .live(spark)
        .read(numbers=fronts.Iterable(numbers, rate=1_000))
        .write(**kept)
        .option("workers", 2)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("checkpointInterval", 200)
        .start()
    )
    try:
        for generation in range(1, VERSIONS + 1):
            wait_for_workers(query)
            killing = threading.Thread(target=kill_one, args=(query, dice.uniform(0, 1.5), dice))
            killing.start()
            time.sleep(dice.uniform(0, 1.0))
            query.upgrade(version(generation), carry=carry(generation), timeout=SECONDS)
            killing.join(SECONDS)
        wait_for_workers(query)
        may_end.touch()
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    cut = CheckpointStore(tmp_path / "checkpoint").latest()
    assert cut is not None
    begins = [begin_of(note) for note in cut.versions[1:]]
    assert len(begins) == VERSIONS
    versions = ef.Versions(
        version(0),
        *((at, version(number), carry(number)) for number, at in enumerate(begins, 1)),
    )
    given = range(len(kept["totals"].payloads(0)))
    expected = ef.run(versions, numbers=given)
    assert {name: memory.payloads(0) for name, memory in kept.items()} == expected
    assert len(query.recoveries) >= VERSIONS // 2


@pytest.mark.early
@pytest.mark.timeout(1_800)
@pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts a JVM for each version")
def test_the_driver_is_killed_while_a_version_takes_over(tmp_path: Path) -> None:
    """The program is started again with the version that had asked, and is told if the next one serves."""
    dice = Random(f"drivers of versions {FAULTS_ROUND}")
    programs: list[Program] = []
    generation = 0

    def start(rate: int, *options: str) -> Program:
        nonlocal generation
        for _ in range(2):
            arguments = (str(tmp_path), str(generation), str(rate), *options)
            program = Program("tests.faults.upgraded_program", tmp_path, *arguments)
            programs.append(program)
            line = program.line()
            if line != ["refused"]:
                break
            generation += 1
        assert line == ["running"], (tmp_path / "log").read_text()[-3_000:]
        return program

    try:
        for _ in range(6):
            program = start(1_000)
            time.sleep(dice.uniform(0.0, 1.5))
            os.kill(program.process.pid, signal.SIGKILL)
            toll("driver")
            program.process.wait(60)
        program = start(100_000, "--last")
        assert program.line() == ["done"], (tmp_path / "log").read_text()[-3_000:]
    finally:
        for program in programs:
            program.end()
    cut = CheckpointStore(tmp_path / "checkpoint").latest()
    assert cut is not None
    begins = [begin_of(note) for note in cut.versions[1:]]
    assert len(begins) == generation > 0
    later = [
        (at, upgraded_program.version(number), upgraded_program.carry(number))
        for number, at in enumerate(begins, 1)
    ]
    versions = ef.Versions(upgraded_program.version(0), *later)
    expected = ef.run(versions, numbers=upgraded_program.NUMBERS)
    assert sinks.read_files(tmp_path / "totals") == plain(expected["totals"])


def wait_for_workers(query: LiveQuery) -> None:
    deadline = time.monotonic() + SECONDS
    while (progress := query.lastProgress) is None or len(progress["pids"]) < 2:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill_one(query: LiveQuery, after: float, dice: Random) -> None:
    time.sleep(after)
    progress = query.lastProgress
    if progress is not None and progress["pids"]:
        with contextlib.suppress(ProcessLookupError):  # it has been replaced just now
            os.kill(dice.choice(progress["pids"]), signal.SIGKILL)
            toll("worker")
