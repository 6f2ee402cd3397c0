"""Two live queries that think they are the one: the newer goes on, and the older ends and says why."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint.errors import FencedError
from emberflow.runners.live.query import LiveQuery
from emberflow.sinks import SinkMovedError
from tests.effort import SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES = 40


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


def flow() -> ef.Flow:
    flow = ef.Flow("counted")
    numbers = flow.front("numbers").map(lambda row: row["number"])
    numbers.key_by(lambda number: number % 3).count().map(list).sink("counts")
    return flow


class Two:
    """A folder of elements that grows, and queries that read it and write to one sink."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.input = folder / "in"
        self.input.mkdir()
        self.sink = sinks.Files(folder / "out")
        self.numbers = 0

    def grow(self) -> None:
        rows = range(self.numbers, self.numbers + 5)
        self.numbers += 5
        lines = [json.dumps({"number": number, "at": number + 1}) + "\n" for number in rows]
        temporary = self.input / f".{self.numbers:06d}"
        temporary.write_text("".join(lines))
        temporary.rename(self.input / f"{self.numbers:06d}.jsonl")

    def started(self, checkpoint: Path | None) -> LiveQuery:
        front = fronts.Files(self.input, time="at")
        built = flow().live(self.spark).read(numbers=front).write(counts=self.sink)
        # No cut before the end: the driver must not need one to find out.
        built.option("workers", 1).option("checkpointInterval", 3_600_000)
        if checkpoint is not None:
            built.option("checkpointLocation", str(checkpoint))
        return built.start()

    def expected(self) -> list[list[int]]:
        given = [ef.At(n + 1, {"number": n, "at": n + 1}) for n in range(self.numbers)]
        return [list(count) for count in ef.run(flow(), numbers=given)["counts"]]

    def stored(self) -> int:
        return len(self.sink.payloads())

    def check(self) -> None:
        """All that went in comes out, once, in order."""
        until(lambda: self.stored() >= self.numbers - 1, "the output of all but the last element")
        expected = self.expected()
        assert self.sink.payloads() == expected[: self.stored()]


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_a_driver_whose_checkpoint_another_one_has_claimed_ends(
    spark: SparkSession, tmp_path: Path, busy: bool
) -> None:
    two = Two(spark, tmp_path)
    two.grow()
    old = two.started(tmp_path / "checkpoint")
    until(two.stored, "the first output of the old driver")
    successor = two.started(tmp_path / "checkpoint")
    try:
        if busy:
            for _ in range(FILES):
                two.grow()
                time.sleep(0.05)
        until(lambda: not old.isActive, "the end of the old driver")
        error = old.exception()
        assert isinstance(error, FencedError)
        who = f"process {os.getpid()} on {socket.gethostname()} began at "
        assert f"incarnation 1 was followed by incarnation 2, which {who}" in str(error)
        assert old.recoveries == []
        two.grow()
        two.check()
        assert successor.isActive
        assert successor.recoveries == []
    finally:
        old.stop()
        successor.stop()


def test_without_a_common_checkpoint_two_queries_do_not_take_a_sink_from_each_other_for_ever(
    spark: SparkSession, tmp_path: Path
) -> None:
    two = Two(spark, tmp_path)
    two.grow()
    queries = [two.started(None)]
    until(two.stored, "the first output of the first query")
    queries.append(two.started(None))

    def one_has_ended() -> bool:
        two.grow()
        return not all(query.isActive for query in queries)

    try:
        until(one_has_ended, "the end of one of the two")
        (ended,) = [query for query in queries if not query.isActive]
        error = ended.exception()
        assert isinstance(error, SinkMovedError)
        assert any("another query writes to them" in note for note in error.__notes__)
        two.check()
        assert [query.isActive for query in queries].count(True) == 1
    finally:
        for query in queries:
            query.stop()
