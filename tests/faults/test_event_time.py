"""Workers are killed while elements wait for earlier ones: the next life decides alike."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.rows.plain import to_json
from tests.effort import FAULTS_ROUND, SOAK
from tests.faults.test_kills import SECONDS, held_back, kill_workers
from tests.spark.test_event_time import AHEAD, DISORDER, flow, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)


def test_late_rows_are_late_in_every_life(spark: SparkSession, tmp_path: Path) -> None:
    kills = 4 if SOAK else 1
    dice = Random(f"event time {FAULTS_ROUND}")
    given = [ef.At(row["at"], row) for row in rows(600 if SOAK else 300, seed=FAULTS_ROUND)]
    all_killed = tmp_path / "all killed"
    rule = {"disorder": DISORDER, "ahead": AHEAD}
    query = (
        flow()
        .live(spark)
        .read(
            rows=fronts.Iterable(
                held_back(given, all_killed), rate=len(given) / (3 * kills), partitions=2, **rule
            )
        )
        .write(
            **{
                name: sinks.Files(tmp_path / name)
                for name in ("counts", "windows", "late", "errors")
            }
        )
        .option("workers", 2)
        .option("onError", "divert")
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 100)
        .start()
    )
    try:
        kill_workers(query, dice, kills)
        all_killed.touch()
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    wanted = ef.run(flow(), rows=fronts.Iterable(given, partitions=2, **rule), on_error="divert")
    assert len(wanted["late"]) > 3
    for name, payloads in wanted.items():
        stored = [json.loads(to_json(payload)) for payload in payloads]
        assert sinks.read_files(tmp_path / name) == stored, name
