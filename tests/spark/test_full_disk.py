"""A live query whose disk is full for a while: it waits, goes on by itself, and its output is right."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import sinks
from emberflow.testing import Pause, Script
from tests.effort import SECONDS, SOAK
from tests.small_disk import SmallDisk, mounted

WORDS = [f"word {number % 23} {'x' * 40}" for number in range(2_000)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "small", kilobytes=4_096) as disk:
        yield disk


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def counting() -> ef.Flow:
    flow = ef.Flow("counting")
    flow.front("words").key_by(str).count().map(list).sink("counts")
    return flow


@pytest.mark.skipif(not SOAK, reason="takes seconds; tests/live/test_full_disk.py has the parts")
@pytest.mark.parametrize(
    ("ordering", "warning"),
    [("time", "is abandoned, and another one follows"), ("arrival", "the next one begins")],
)
def test_a_query_whose_disk_is_full_goes_on_when_there_is_room(
    spark: SparkSession,
    disk: SmallDisk,
    tmp_path: Path,
    ordering: str,
    warning: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    go = tmp_path / "go"
    steps = [*WORDS[:1_000], Pause(until=go), *WORDS[1_000:]]
    # By time the front has a log, and it and the sink wait. By arrival a lost snapshot is a lost life.
    out = (disk.folder if ordering == "time" else tmp_path) / "out"
    query = (
        counting()
        .live(spark)
        .read(words=Script(steps, arrival=ordering == "time"))
        .write(counts=sinks.Files(out))
        .option("ordering", ordering)
        .option("checkpointLocation", disk.folder / "checkpoint")
        .option("checkpointInterval", 100)
        .start()
    )
    try:
        with caplog.at_level(logging.WARNING, "emberflow"):
            wait_for(lambda: (disk.folder / "checkpoint" / "cuts").exists())
            wait_for(lambda: len(sinks.read_files(out)) == 1_000)
            disk.fill()
            go.touch()
            wait_for(lambda: warning in caplog.text)
            assert query.isActive
            disk.free()
            assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    expected = ef.run(counting(), words=WORDS)["counts"]
    stored = sinks.read_files(out)
    if ordering == "time":
        assert stored == expected
        assert query.recoveries == []
    else:
        assert Counter(map(tuple, stored)) == Counter(map(tuple, expected))
        assert query.recoveries


def many_keys() -> ef.Flow:
    flow = ef.Flow("many keys")
    flow.front("numbers").key_by(lambda number: number % 9_000).count().map(list).sink("counts")
    return flow


@pytest.mark.skipif(not SOAK, reason="takes seconds; tests/live/test_cold_state.py has the parts")
def test_a_query_whose_cold_keys_find_no_room_keeps_them_and_goes_on(
    spark: SparkSession, disk: SmallDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"
    query = (
        many_keys()
        .live(spark)
        .read(numbers=Script([*range(15_000), Pause(until=go), *range(15_000, 40_000)]))
        .write(counts=sinks.Files(tmp_path / "out"))
        .option("workers", 2)
        .option("stateMemory", "1m")
        .option("stateFolder", disk.folder / "cold")
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 100)
        .start()
    )
    try:
        with caplog.at_level(logging.WARNING, "emberflow"):
            wait_for(lambda: (query.lastProgress or {}).get("coldKeys", 0) > 1_000)
            disk.fill()
            go.touch()
            wait_for(lambda: "cold keys stay in memory, since" in caplog.text)
            assert query.isActive
            disk.free()
            assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    assert (
        sinks.read_files(tmp_path / "out") == ef.run(many_keys(), numbers=range(40_000))["counts"]
    )
    assert query.recoveries == []
