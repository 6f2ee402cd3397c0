"""Sinks that store only now and then: nothing is lost or doubled, and there are few files and commits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import sinks
from emberflow.testing import Crash, Pause, Script
from tests.adapters.sinks_under_test import iceberg_config
from tests.adapters.table_readers import (
    delta_commits,
    delta_files,
    iceberg_files,
    iceberg_metadata,
    rows,
)
from tests.effort import SECONDS

WORDS = [f"w{number % 7}" for number in range(60)]
ROW = pa.schema([("word", pa.string()), ("n", pa.int64())])


def word_count() -> ef.Flow:
    """Four sinks: the counts as they change in three places, and as a table."""
    flow = ef.Flow("word count")
    counts = flow.front("words").key_by(lambda word: word).count()
    found = counts.map(lambda pair: {"word": pair[0], "n": pair[1]})
    for copy, name in zip(found.broadcast(4), ("files", "delta", "iceberg", "table"), strict=True):
        copy.sink(name)
    return flow


def test_a_worker_dies_while_output_waits_and_the_next_life_stores_it_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The first life commits half of the output, and dies while the rest waits."""
    half = len(WORDS) // 2
    flag = tmp_path / "committed"
    script = Script(
        [*WORDS[:half], Pause(until=flag), *WORDS[half:-5], Pause(1.0), Crash(), *WORDS[-5:]],
        folder=tmp_path,
    )
    every: dict[str, Any] = {"commit_every": "1 hour"}
    flow = word_count()
    query = (
        flow.live(spark)
        .read(words=script)
        .write(
            files=sinks.Files(tmp_path / "files", **every),
            delta=sinks.Delta(tmp_path / "delta", schema=ROW, **every),
            iceberg=sinks.Iceberg(
                "shop.counts", config=iceberg_config(tmp_path / "iceberg"), schema=ROW, **every
            ),
            table=sinks.Delta(tmp_path / "table", upsert=["word"], **every),
        )
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 100)
        .option("workers", 2)
        .start()
    )
    try:
        while (query.lastProgress or {}).get("unstored") != 4 * half:
            assert not query.awaitTermination(0.05)
        assert sinks.read_files(tmp_path / "files") == []
        query.processAllAvailable()  # although an hour has not passed
        assert len(sinks.read_files(tmp_path / "files")) == half
        flag.touch()
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    expected = ef.run(flow, words=script.elements)
    metadata = iceberg_metadata(tmp_path / "iceberg" / "catalog.db", "shop.counts")
    assert sinks.read_files(tmp_path / "files") == expected["files"]
    assert rows(delta_files(tmp_path / "delta")) == expected["delta"]
    assert rows(iceberg_files(metadata)) == expected["iceberg"]
    latest = {row["word"]: row for row in expected["table"]}
    found = {row["word"]: row for row in rows(delta_files(tmp_path / "table"))}
    assert found == latest
    # One for the first half, one at the end. What waited when the worker died was not stored before.
    assert len(list((tmp_path / "files").rglob("*.jsonl"))) == 2
    assert delta_commits(tmp_path / "delta") == len(metadata["snapshots"]) == 2


def test_a_version_that_takes_over_does_not_wait_for_output_that_waits(
    spark: SparkSession, tmp_path: Path
) -> None:
    def flow(suffix: str) -> ef.Flow:
        made = ef.Flow("words")
        made.front("words").map(lambda word: word + suffix, name="marked").sink("out")
        return made

    query = (
        flow("!")
        .live(spark)
        .read(words=Script(WORDS, ends=False))
        .write(out=sinks.Files(tmp_path / "out", commit_every="1 hour"))
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("workers", 1)
        .start()
    )
    try:
        while (query.lastProgress or {}).get("unstored") != len(WORDS):
            assert not query.awaitTermination(0.05)
        query.upgrade(flow("?"))
        assert sinks.read_files(tmp_path / "out") == [word + "!" for word in WORDS]
    finally:
        query.stop()


def test_a_sink_in_the_driver_holds_nothing(spark: SparkSession) -> None:
    memory: Any = sinks.Memory()
    memory.commit_every = 5
    flow = ef.Flow("words")
    flow.front("words").sink("out")
    with pytest.raises(ef.InputError, match=r"on_driver = True and commit_every"):
        flow.live(spark).write(out=memory)
