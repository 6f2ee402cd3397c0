"""Rows out of order, with equal times, late ones and one of the far future: live is the reference.

The reference reads the same fronts by the same rule; what it gives is tested in `tests/test_reference`
and, by brute force, in `tests/engine/test_event_time`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from tests.adapters.kafka_broker import KafkaBroker
from tests.effort import SECONDS
from tests.test_examples import EXAMPLES, example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DISORDER, AHEAD = 40, 10_000


def flow(window: Any = 25) -> ef.Flow:
    flow = ef.Flow("windows of words")
    rows = flow.front("rows").key_by(lambda row: row["word"])
    a, b = rows.broadcast(2)
    a.key_by(lambda row: row["word"]).count().sink("counts")
    b.key_by(lambda row: row["word"]).window(ef.Tumbling(window), emit="close").count().sink(
        "windows"
    )
    return flow


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    dice = Random(seed)
    found = []
    for number in range(count):
        at = 2 * number - dice.randrange(DISORDER + 5) // 3 * 3  # some are too late, many are equal
        if dice.random() < 0.03:
            at -= 300
        found.append({"at": at, "word": dice.choice("abc"), "number": number})
    found[count // 2]["at"] = 10**15
    return found


def ran(
    spark: SparkSession, folder: Path, front: Any, workers: int, window: Any = 25
) -> dict[str, list[Any]]:
    kept = {name: sinks.Memory() for name in ("counts", "windows", "late", "errors")}
    query = (
        flow(window)
        .live(spark)
        .read(rows=front)
        .write(**kept)
        .option("workers", workers)
        .option("onError", "divert")
        .option("checkpointLocation", folder)
        .option("checkpointInterval", 50)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    found = {name: sink.payloads(0) for name, sink in kept.items()}
    assert query.lastProgress is not None
    assert query.lastProgress["late"] == {"rows": len(found["late"])}
    return found


def check(found: dict[str, list[Any]], front: Any, leaps: int = 1) -> None:
    wanted = ef.run(flow(), rows=front, on_error="divert")
    assert found == wanted
    assert len(wanted["late"]) > 3
    assert len(wanted["errors"]) == leaps
    assert len(wanted["windows"]) > 10


@pytest.mark.parametrize(("partitions", "workers"), [(1, 1), (3, 2)])
def test_a_list(spark: SparkSession, tmp_path: Path, partitions: int, workers: int) -> None:
    given = [ef.At(row["at"], row) for row in rows(300, seed=partitions)]
    front = fronts.Iterable(given, partitions=partitions, disorder=DISORDER, ahead=AHEAD)
    check(ran(spark, tmp_path, front, workers), front)


def test_files(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        lines = rows(300, seed=5)[100 * number : 100 * number + 100]
        (folder / f"{number}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in lines))
    front = fronts.Files(folder, time="at", disorder=DISORDER, ahead=AHEAD, until_end=True)
    check(ran(spark, tmp_path / "checkpoint", front, 2), front)


def test_a_topic(spark: SparkSession, tmp_path: Path, kafka: KafkaBroker) -> None:
    topic = kafka.topic(2)
    for partition in range(2):
        values = [json.dumps(row).encode() for row in rows(200, partition)]
        kafka.produce(topic, values, partition=partition)
    front = fronts.Kafka(
        kafka.servers, topic, time="at", disorder=DISORDER, ahead=AHEAD, until_end=True
    )
    check(ran(spark, tmp_path, front, 2), front, leaps=2)


def instant(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def test_datetimes_and_durations_live(spark: SparkSession, tmp_path: Path) -> None:
    given = rows(300, seed=7)
    given[150]["at"] = 10**12  # a far future that a datetime has
    said = fronts.Iterable(
        [ef.At(instant(row["at"]), row) for row in given],
        disorder=timedelta(milliseconds=DISORDER),
        ahead="10 seconds",
    )
    numbers = fronts.Iterable(
        [ef.At(row["at"], row) for row in given], disorder=DISORDER, ahead=AHEAD
    )
    check(ran(spark, tmp_path, said, 2, window="25 ms"), numbers)


def test_timestamps_and_durations_in_batch(spark: SparkSession) -> None:
    given = [row for row in rows(100, seed=8) if row["at"] < 10**9]
    numbers = fronts.Iterable([ef.At(row["at"], row["word"]) for row in given], disorder=DISORDER)
    flow = ef.Flow("words with their times")
    flow.front("words").with_time().sink("times")
    wanted = ef.run(flow, words=numbers)
    assert wanted["late"]
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")  # which nothing depends on
    try:
        df = spark.createDataFrame(
            [
                (n, instant(row["at"]).replace(tzinfo=None), row["word"])
                for n, row in enumerate(given)
            ],
            "number long, at timestamp_ntz, word string",
        )
        read = ef.rows(df, time="at", position="number", payload="word", disorder="40 ms")
        found = flow.batch(spark, words=read, raw=True)
        assert {name: ef.payloads(each) for name, each in found.items()} == wanted
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_the_clicks_of_the_example_run_live_as_they_come(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # workers import from the driver's path
    sessions = example("click_sessions")
    assert sessions.live(spark) == ef.run(sessions.flow, clicks=sessions.front())["visits"]
