"""Kafka on Spark: a topic as a DataFrame, silent and new partitions of a live query, the command."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.commands.adapters import given_fronts
from emberflow.commands.audit import audit
from emberflow.dsl.loading import load_flow
from emberflow.errors import InputError
from emberflow.rows.codec import decode
from tests.adapters.kafka_broker import JARS, KafkaBroker
from tests.effort import SECONDS, SOAK, shortened

needs_connector = pytest.mark.skipif(
    not (JARS / "spark" / "installed.sha256").exists(),
    reason="Spark's Kafka connector is not in build/kafka/spark (scripts/ensure-kafka)",
)


def live_elements(front: fronts.Kafka, positions: dict[int, Any] | None = None) -> list[Any]:
    return [
        (element.time, partition, element.payload)
        for partition in range(front.partitions)
        for element in front.read(partition, (positions or {}).get(partition))
        if element is not None
    ]


def numbers_flow() -> ef.Flow:
    flow = ef.Flow("numbers")
    numbers = flow.front("numbers").with_time().map(lambda timed: (timed.time, timed.payload["n"]))
    numbers.key_by(lambda pair: pair[1] % 3).group(window=3).sink("out")
    return flow


def disordered(kafka: KafkaBroker, malformed: int = 0) -> str:
    """A topic whose timestamps and fields repeat and go back; every so many records are malformed."""
    topic = kafka.topic(3)
    for partition in (0, 2):
        values = [
            b"{oops"
            if malformed and number % malformed == 0
            else json.dumps({"n": number, "at": 50 + number // 3 - number % 4}).encode()
            for number in range(100)
        ]
        kafka.produce(
            topic,
            values,
            partition=partition,
            timestamp=lambda number: 1_000 + number // 5 - number % 3,
        )
    return topic


@needs_connector
@pytest.mark.parametrize(
    "options",
    shortened([{"unit": "us", "disorder": 1_000}, {"time": "at"}, {"time": "log"}]),
    ids=str,
)
def test_a_dataframe_of_a_topic_gives_what_the_front_gives(
    spark: SparkSession, kafka: KafkaBroker, options: dict[str, Any]
) -> None:
    """Late records included: the DataFrame has offsets, and the front's own rule."""
    topic, flow = disordered(kafka), numbers_flow()
    front = fronts.Kafka(kafka.servers, topic, idle_ms=None, until_end=True, **options)
    expected = ef.run(flow, numbers=front)
    assert ("late" in expected) == (options.get("time") != "log")
    assert min(map(len, expected.values())) > 10
    # A filter keeps the rule.
    found = flow.batch(spark, raw=True, numbers=front.dataframe(spark).filter("_position >= 0"))
    assert {name: ef.payloads(df) for name, df in found.items()} == expected


@needs_connector
@pytest.mark.parametrize(
    "options", shortened([{"time": "at", "disorder": 2}, {"time": "timestamp"}]), ids=str
)
def test_malformed_records_fail_a_batch_or_are_left_out(
    spark: SparkSession, kafka: KafkaBroker, options: dict[str, Any]
) -> None:
    topic, flow = disordered(kafka, malformed=7), numbers_flow()
    front = fronts.Kafka(kafka.servers, topic, idle_ms=None, until_end=True, **options)
    with pytest.raises(Exception, match="offset 0") as raised:
        ef.payloads(flow.batch(spark, raw=True, numbers=front.dataframe(spark))["out"])
    assert isinstance(ef.failure_of(raised.value), InputError)
    expected = ef.run(flow, on_error="divert", numbers=front)
    assert expected.pop("errors")
    kept = flow.batch(spark, raw=True, numbers=front.dataframe(spark, malformed="drop"))
    assert {name: ef.payloads(df) for name, df in kept.items()} == expected


@needs_connector
def test_a_dataframe_ends_before_offsets_and_the_front_reads_on(
    spark: SparkSession, kafka: KafkaBroker
) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.produce(topic, [b"1"] * 50, partition=partition, timestamp=lambda number: 7)
    front = fronts.Kafka(kafka.servers, topic, idle_ms=None, until_end=True)
    rows = front.dataframe(spark, end={0: 20, 1: 31}).collect()
    positions = {
        partition: max(row._position for row in rows if row._partition == partition)
        for partition in (0, 1)
    }
    assert positions == {0: 19, 1: 30}
    together = [(row.time, row._partition, decode(bytes(row._payload))) for row in rows]
    together += live_elements(front, positions)
    assert sorted(together) == sorted(live_elements(front))


@pytest.mark.parametrize("idle_ms", shortened([50, None]))
def test_a_topic_is_backfilled_and_then_read_on(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, idle_ms: int | None
) -> None:
    """With idle_ms the query notes promises, and its front joins at the cut, not after it."""
    topic = kafka.topic(2)
    for partition in (0, 1):
        values = [str(100 * partition + number).encode() for number in range(40)]
        # The same timestamps in both partitions, some of them twice, and some out of order.
        kafka.produce(
            topic, values, partition=partition, timestamp=lambda n: 1_000 + n - n % 2 - 2 * (n % 5)
        )
    flow = ef.Flow("numbers")
    flow.front("numbers").key_by(lambda n: n % 3).group(window=3).sink("out")

    def front(idle_ms: int | None) -> fronts.Kafka:
        return fronts.Kafka(kafka.servers, topic, idle_ms=idle_ms, until_end=True, disorder=3)

    expected = ef.run(flow, numbers=front(None))
    rows = [
        (element.time, partition, element.position, element.payload)
        for partition in (0, 1)
        for element in front(None).read(partition, None)
        if element is not None
    ]
    written = {"out": sinks.Memory(), "late": sinks.Memory()}
    flow.backfill(
        spark,
        until=1_020,
        checkpoint=tmp_path,
        write=written,
        numbers=ef.rows(
            spark.createDataFrame(rows, "time long, part int, offset long, value long"),
            payload="value",
            partition="part",
            position="offset",
            disorder=3,
        ),
    )
    assert 0 < len(written["out"].payloads()) < len(expected["out"])
    query = (
        flow.live(spark)
        .read(numbers=front(idle_ms))
        .write(**written)
        .option("checkpointLocation", tmp_path)
        .start()
    )
    assert query.awaitTermination(SECONDS), query.status
    assert {name: sink.payloads() for name, sink in written.items()} == expected
    assert expected["late"]


def test_a_dataframe_has_no_times_of_arrival(spark: SparkSession) -> None:
    with pytest.raises(InputError, match="no times of arrival"):
        fronts.Kafka("localhost:9092", "docs", time="arrival").dataframe(spark)


def awaited(found: Any, count: int, query: Any) -> None:
    deadline = time.monotonic() + SECONDS
    while len(found()) < count:
        assert time.monotonic() < deadline, (found(), query.status, query.lastProgress)
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.05)


def test_silent_partitions_hold_nothing_back_and_new_ones_join(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    flow = ef.Flow("numbers")
    flow.front("numbers").sink("out")
    memory = sinks.Memory()
    query = (
        flow.live(spark)
        .read(numbers=fronts.Kafka(kafka.servers, topic, time="log", idle_ms=100))
        .write(out=memory)
        .option("checkpointLocation", tmp_path)
        .start()
    )
    try:
        kafka.produce(topic, [b"1", b"2"])
        awaited(lambda: memory.payloads(0), 2, query)
        kafka.grow(topic, 3)
        # The oldest possible timestamp: the record has to wait its turn, and must not be lost.
        kafka.produce(topic, [b"3"], partition=2, timestamp=lambda number: 1)
        awaited(lambda: memory.payloads(0), 3, query)
        kafka.produce(topic, [b"4"], partition=1)
        awaited(lambda: memory.payloads(0), 4, query)
        assert memory.payloads(0) == [1, 2, 3, 4]
    finally:
        query.stop()


@pytest.mark.parametrize(
    "options", shortened([{"idle_ms": 50}, {"idle_ms": None}, {"time": "arrival"}]), ids=str
)
def test_malformed_records_go_the_way_of_on_error(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, options: dict[str, Any]
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"1", b"{oops", b"2", b"{again"])
    flow = ef.Flow("numbers")
    flow.front("numbers").sink("out")
    memory, errors = sinks.Memory(), sinks.Memory()
    front = fronts.Kafka(kafka.servers, topic, until_end=True, **options)
    builder = flow.live(spark).read(numbers=front).option("checkpointLocation", tmp_path)
    query = builder.write(out=memory, errors=errors).option("onError", "divert").start()
    assert query.awaitTermination(SECONDS)
    assert memory.payloads(0) == [1, 2]
    assert [record.payload for record in errors.payloads(0)] == ["{oops", "{again"]
    failing = flow.live(spark).read(numbers=front).write(out=sinks.Memory()).start()
    with pytest.raises(ef.EmberflowError, match=f"topic {topic!r} partition 0, offset 1: not JSON"):
        failing.awaitTermination(SECONDS)


def test_more_partitions_than_the_last_cut_knows_need_a_front_that_notes(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"1"])
    flow = ef.Flow("numbers")
    flow.front("numbers").sink("out")

    def started() -> Any:
        front = fronts.Kafka(kafka.servers, topic, idle_ms=None)
        builder = flow.live(spark).read(numbers=front).write(out=sinks.Memory())
        return (
            builder.option("checkpointLocation", tmp_path).option("checkpointInterval", 50).start()
        )

    query = started()
    deadline = time.monotonic() + SECONDS
    while not ((query.lastProgress or {}).get("cuts") or {}).get("count"):
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.05)
    query.stop()
    kafka.grow(topic, 2)
    with pytest.raises(InputError, match=r"has 2 partitions, and had 1 .*idle_ms="):
        started()


TIMED = """
import emberflow as ef
flow = ef.Flow("timed")
numbers = flow.front("numbers").with_time().map(lambda timed: [timed.time, timed.payload])
numbers.key_by(lambda pair: pair[1] % 3).sink("out", partitions=3)
"""


@pytest.mark.parametrize("times", shortened(["time=log&idle_ms=50", "time=arrival"]))
def test_an_audit_reads_both_topics_and_the_log_of_the_front(
    spark: SparkSession,
    kafka: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    times: str,
) -> None:
    """The times are choices: a silent partition has promised more than it keeps, or records arrived."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timed_topics.py").write_text(TIMED)
    source, target = kafka.topic(2), kafka.topic(3)
    given = {"numbers": f"kafka://{kafka.servers}/{source}?{times}"}
    graph = load_flow("timed_topics:flow").graph()
    query = (
        load_flow("timed_topics:flow")
        .live(spark)
        .read(**given_fronts(graph, [f"{name}={spec}" for name, spec in given.items()]))
        .write(out=sinks.Kafka(kafka.servers, target))
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("keepFrontLogs", True)
        .start()
    )

    def written() -> list[bytes]:
        return [value for number in range(3) for _, value in kafka.committed(target, number)]

    try:
        for number in range(6):
            # All timestamps are long past, so that each record comes later than was promised.
            kafka.produce(source, [b"%d" % number], partition=number % 2, timestamp=lambda _: 1_000)
            awaited(written, number + 1, query)
    finally:
        query.stop()

    def verdict(front: str) -> Any:
        held = f"out=kafka://{kafka.servers}/{target}"
        return audit("timed_topics:flow", fronts=[f"numbers={front}"], sinks=[held])

    found = verdict(f"log:{tmp_path / 'checkpoint'}?source={given['numbers']}")
    assert found.exactly_once, found.why
    timestamps = verdict(f"kafka://{kafka.servers}/{source}?time=log")
    assert not timestamps.exactly_once  # the promises are in the log alone


FLOW = """
import emberflow as ef
flow = ef.Flow("word count")
words = flow.front("docs").flat_map(lambda doc: doc["text"].split())
words.key_by(lambda word: word).count().sink("counts")
"""


@pytest.mark.skipif(not SOAK, reason="`make soak` has it; every run has the command with files")
def test_the_command_runs_from_topic_to_topic(kafka: KafkaBroker, tmp_path: Path) -> None:
    source, target = kafka.topic(), kafka.topic()
    documents = [{"text": f"the dog {number % 3}"} for number in range(30)]
    kafka.produce(source, [json.dumps(document).encode() for document in documents])
    (tmp_path / "wordy.py").write_text(FLOW)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "emberflow", "run", "wordy:flow", "--workers", "1"),
            *("--front", f"docs=kafka://{kafka.servers}/{source}?until_end=true&idle_ms=none"),
            *("--sink", f"counts=kafka://{kafka.servers}/{target}?kafka.linger.ms=1&name=counts"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    names: dict[str, Any] = {}
    exec(FLOW, names)
    expected = ef.run(names["flow"], docs=documents)["counts"]
    assert [json.loads(value) for _, value in kafka.committed(target)] == [
        list(count) for count in expected
    ]
