"""A live query whose name node and data node are killed: it waits, and goes on when they are back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import sinks
from emberflow.checkpoint.files import location_of
from emberflow.testing import Pause, Script
from tests.effort import FAULTS_ROUND, SECONDS, SOAK
from tests.hadoop.minicluster import running_hdfs

WORDS = [f"word {number % 23} {'x' * 40}" for number in range(2_000)]


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"there is still no {what}"
        time.sleep(0.05)


def counting() -> ef.Flow:
    flow = ef.Flow("counting")
    flow.front("words").key_by(str).count().map(list).sink("counts")
    return flow


@pytest.mark.skipif(not SOAK, reason="`make soak` has it: it starts an HDFS twice")
def test_a_query_goes_on_when_its_name_node_is_back(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    go = tmp_path / "go"
    steps = [*WORDS[:1_000], Pause(until=go), *WORDS[1_000:]]
    dice = Random(f"HDFS {FAULTS_ROUND}")
    with running_hdfs() as hdfs:
        # Only the front log knows the times of arrival.
        query = (
            counting()
            .live(spark)
            .read(words=Script(steps, arrival=True))
            .write(counts=sinks.Files(f"{hdfs.url}/out"))
            .option("checkpointLocation", f"{hdfs.url}/checkpoint")
            .option("checkpointInterval", 200)
            .start()
        )
        try:
            with caplog.at_level(logging.WARNING, "emberflow"):
                cuts = location_of(f"{hdfs.url}/checkpoint")
                wait_for(lambda: cuts.names("cuts"), "cut")
                wait_for(lambda: sinks.read_files(f"{hdfs.url}/out"), "output")
                go.touch()
                time.sleep(dice.uniform(0.0, 1.5))  # in the middle of something else in each round
                hdfs.kill()
                wait_for(lambda: "Connection refused" in caplog.text, "word of it")
                assert query.isActive
                hdfs.start()
                assert query.awaitTermination(SECONDS), caplog.text[-5_000:]
        finally:
            query.stop()
        stored = sinks.read_files(f"{hdfs.url}/out")
    assert stored == ef.run(counting(), words=WORDS)["counts"]
