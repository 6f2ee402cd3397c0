"""Workers are killed while elements wait for earlier ones: the next life decides alike.

Every run kills a worker that reads a list. In `make soak` more are killed, also of queries that read a
topic of several partitions, and batches of a Structured Streaming query. The rows are out of order, with
equal times, late ones, and one of the far future. The sinks must hold what the reference gives for what
the partitions hold, late rows and errors included.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.fronts.protocol import Element
from emberflow.rows.plain import to_json
from emberflow.runners.live.query import LiveQuery
from tests.adapters.kafka_broker import KafkaBroker
from tests.effort import FAULTS_ROUND, SOAK
from tests.faults.test_kills import SECONDS, held_back, kill_workers, killed_worker, until
from tests.spark.test_event_time import AHEAD, DISORDER, flow, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)

RULE: dict[str, Any] = {"disorder": DISORDER, "ahead": AHEAD}
SINKS = ("counts", "windows", "late", "errors")
KILLS = 4
only_in_soak = pytest.mark.skipif(
    not SOAK, reason="`make soak` has it; every run kills a worker that reads a list"
)


def started(spark: SparkSession, folder: Path, front: Any, name: str) -> LiveQuery:
    return (
        flow()
        .live(spark)
        .read(rows=front)
        .write(**{sink: sinks.Files(folder / sink) for sink in SINKS})
        .queryName(name)
        .option("workers", 2)
        .option("onError", "divert")
        .option("checkpointLocation", folder / "checkpoint")
        .option("checkpointInterval", 100)
        .option("checkpointsKept", 10_000)
        .start()
    )


def check(folder: Path, front: Any) -> None:
    wanted = without_end(ef.run(flow(), rows=front, on_error="divert"))
    assert len(wanted["late"]) > 3
    assert wanted["errors"]
    for name, payloads in wanted.items():
        assert stored(folder)[name] == payloads, name


def stored(folder: Path) -> dict[str, list[Any]]:
    return without_end({name: sinks.read_files(folder / name) for name in SINKS})


def without_end(outputs: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """As JSON, without what comes of the rows of `end_rows`."""
    as_json = {name: [json.loads(to_json(one)) for one in given] for name, given in outputs.items()}
    return {
        name: [one for one in given if name in ("late", "errors") or END not in str(one)]
        for name, given in as_json.items()
    }


END = "the end"


def end_rows(count: int) -> list[dict[str, Any]]:
    """Rows far behind all others: once they are read, all others leave. The second confirms the first."""
    at = 2 * count + AHEAD + 10 * DISORDER
    return [{"at": at + number, "word": END, "number": -number} for number in range(2)]


def fed_and_killed(query: LiveQuery, pieces: list[Callable[[], None]], dice: Random) -> None:
    """Kill a worker after each piece of the input but the last, at a random moment."""
    for piece in pieces[:-1]:
        piece()
        lives = len(query.recoveries)
        while not killed_worker(query, dice):
            assert query.isActive, query.exception()
        until(lambda: len(query.recoveries) > lives, "the loss of a worker to be noticed", 120)  # noqa: B023
    pieces[-1]()


def until_stored(query: LiveQuery, folder: Path, front: Callable[[], Any]) -> None:
    """Wait until the sinks hold as much as they should, and all late rows are counted.

    `check` compares what they hold.
    """
    wanted = without_end(ef.run(flow(), rows=front(), on_error="divert"))

    def is_there() -> bool:
        assert query.isActive, query.exception()
        have = stored(folder)
        return all(len(have[name]) >= len(given) for name, given in wanted.items())

    until(is_there, "all output")
    late = {"rows": len(wanted["late"])}
    until(lambda: (query.lastProgress or {}).get("late") == late, "the number of late rows")


@only_in_soak
def test_a_topic_with_workers_killed(
    spark: SparkSession, tmp_path: Path, kafka: KafkaBroker
) -> None:
    dice, partitions = Random(f"event time of a topic {FAULTS_ROUND}"), 3
    topic = kafka.topic(partitions)
    count = 60 * (KILLS + 1)
    given = [rows(count, seed=partition + FAULTS_ROUND) for partition in range(partitions)]

    def produced(number: int) -> Callable[[], None]:
        def produce() -> None:
            for partition, own in enumerate(given):
                # The first partition is a piece ahead of the others.
                first = 60 * number + 60 * (partition == 0 and number > 0)
                piece = own[first : first + 60 * (1 + (partition == 0 and number == 0))]
                piece = piece + (end_rows(count) if number == KILLS else [])
                values = [json.dumps(row).encode() for row in piece]
                kafka.produce(topic, values, partition=partition)

        return produce

    front = fronts.Kafka(kafka.servers, topic, time="at", idle_ms=None, **RULE)
    query = started(spark, tmp_path, front, f"topic {uuid.uuid4()}")
    try:
        fed_and_killed(query, [produced(number) for number in range(KILLS + 1)], dice)
        until_stored(query, tmp_path, lambda: front)
    finally:
        query.stop()
    check(tmp_path, front)
    assert len(query.recoveries) >= KILLS


class Kept:
    """The records that a front of one partition has kept, as a front that ends."""

    partitions = 1
    arrival = False

    def __init__(self, front: Any) -> None:
        self.event_time = front.event_time
        self._records: list[Element] = []
        for element in front.read(0, None):
            if element is None:
                break
            self._records.append(element)

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        yield from self._records


@only_in_soak
def test_batches_of_a_streaming_query_with_workers_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    dice, name = Random(f"event time of batches {FAULTS_ROUND}"), f"batches {uuid.uuid4()}"
    count = 60 * (KILLS + 1)
    given = [*rows(count, seed=FAULTS_ROUND), *end_rows(count)]
    (tmp_path / "in").mkdir()

    def added(number: int) -> Callable[[], None]:
        def add() -> None:
            # Two files: each is a batch, whose rows the front sorts by time.
            first, last = 60 * number, 60 * (number + 1)
            for part, own in enumerate((given[first : first + 30], given[first + 30 : last])):
                write(f"{number}-{part}", own)
            if number == KILLS:
                write("end", given[count:])

        return add

    def write(file: str, own: list[dict[str, Any]]) -> None:
        path = tmp_path / f"{file}.json"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in own))
        path.rename(tmp_path / "in" / path.name)

    front = fronts.Structured(time="at", payload=as_dict, **RULE)
    query = started(spark, tmp_path, front, name)
    writing = (
        spark.readStream.schema("at long, word string, number long")
        .option("maxFilesPerTrigger", "1")
        .json(str(tmp_path / "in"))
        .writeStream.format("emberflow")
        .trigger(processingTime="100 milliseconds")
        .option("query", name)
        .option("front", "rows")
        .option("checkpointLocation", str(tmp_path / "writing"))
        .start()
    )

    def kept() -> Kept:
        node = flow().graph().fronts["rows"]
        return Kept(front.placed(node, str(tmp_path / "checkpoint")))

    try:
        fed_and_killed(query, [added(number) for number in range(KILLS + 1)], dice)
        writing.processAllAvailable()
        until_stored(query, tmp_path, kept)
        found = kept()
    finally:
        writing.stop()
        query.stop()
    check(tmp_path, found)
    assert len(query.recoveries) >= KILLS


def as_dict(row: Any) -> dict[str, Any]:
    return {"at": row.at, "word": row.word, "number": row.number}


def test_late_rows_are_late_in_every_life(spark: SparkSession, tmp_path: Path) -> None:
    kills = 4 if SOAK else 1
    dice = Random(f"event time {FAULTS_ROUND}")
    given = [ef.At(row["at"], row) for row in rows(600 if SOAK else 300, seed=FAULTS_ROUND)]
    all_killed = tmp_path / "all killed"
    front = fronts.Iterable(
        held_back(given, all_killed), rate=len(given) / (3 * kills), partitions=2, **RULE
    )
    query = started(spark, tmp_path, front, f"list {uuid.uuid4()}")
    try:
        kill_workers(query, dice, kills)
        all_killed.touch()
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    check(tmp_path, fronts.Iterable(given, partitions=2, **RULE))
    assert query.lastProgress is not None
    assert query.lastProgress["late"] == {"rows": len(sinks.read_files(tmp_path / "late"))}
