"""`fronts.Kafka` beyond the contract: times, codecs, promises, growth and what is wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from emberflow import fronts
from emberflow import kafka as codecs
from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.errors import InputError, MissingExtraError
from emberflow.fronts import Batch, Element, FrontGrewError, Idle, Malformed
from emberflow.fronts import kafka as front_module
from emberflow.fronts.kafka import Record
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.reader import Beginning
from tests.adapters.java_server import free_port
from tests.adapters.kafka_broker import PASSWORD, USER, KafkaBroker
from tests.effort import SECONDS

SCHEMA = {"type": "record", "name": "W", "fields": [{"name": "word", "type": "string"}]}


def elements(front: fronts.Kafka, partition: int = 0, position: Any = None) -> list[Element]:
    return [element for element in front.read(partition, position) if element is not None]


def test_partitions_are_read_apart_each_with_times_of_its_own(kafka: KafkaBroker) -> None:
    topic = kafka.topic(3)
    kafka.produce(topic, [b"a", b"b"], partition=0, timestamp=lambda number: 7)
    kafka.produce(topic, [b"c"], partition=2, timestamp=lambda number: 7)
    front = fronts.Kafka(kafka.servers, topic, value="text", idle_ms=None, until_end=True)
    assert front.partitions == 3
    assert elements(front, 0) == [Element(0, "a", 7), Element(1, "b", 7)]
    assert elements(front, 1) == []
    assert elements(front, 2) == [Element(0, "c", 7)]


def test_timestamps_can_be_counted_in_microseconds(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b", b"c"], timestamp=lambda number: 7 + number // 2)
    front = fronts.Kafka(
        kafka.servers, topic, value="text", unit="us", idle_ms=None, until_end=True
    )
    assert [element.time for element in elements(front)] == [7_000, 7_000, 8_000]


def test_only_what_is_committed_is_read_also_when_the_topic_ends_in_markers(
    kafka: KafkaBroker,
) -> None:
    from confluent_kafka import Producer

    topic = kafka.topic()
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": topic})
    producer.init_transactions(SECONDS)
    for number, commits in enumerate([True, False, True, False]):
        producer.begin_transaction()
        producer.produce(topic, value=str(number).encode(), partition=0, timestamp=number + 1)
        producer.flush(SECONDS)
        (producer.commit_transaction if commits else producer.abort_transaction)(SECONDS)
    front = fronts.Kafka(kafka.servers, topic, idle_ms=None, until_end=True)
    assert [element.payload for element in elements(front)] == [0, 2]


@pytest.mark.parametrize(
    ("value", "data", "payload"),
    [
        ("json", b'{"word": "ash"}', {"word": "ash"}),
        ("text", "äsh".encode(), "äsh"),
        ("bytes", b"\xff", b"\xff"),
        (codecs.Avro(SCHEMA), b"\x06ash", {"word": "ash"}),
        (codecs.Avro(json.dumps(SCHEMA), schema_id=7), b"\0\0\0\0\7\x06ash", {"word": "ash"}),
        (codecs.Protobuf(StringValue), b"\n\x03ash", StringValue(value="ash")),
    ],
)
def test_codecs(kafka: KafkaBroker, value: Any, data: bytes, payload: Any) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [data, None])
    front = fronts.Kafka(kafka.servers, topic, value=value, idle_ms=None, until_end=True)
    assert [element.payload for element in elements(front)] == [payload, None]


@pytest.mark.parametrize(
    ("value", "data", "problem"),
    [
        ("json", b"{oops", "not JSON"),
        ("json", b"\xff", "not JSON"),
        ("text", b"\xff", "not UTF-8"),
        (codecs.Avro(SCHEMA), b"\x06as", "not Avro"),
        (codecs.Avro(SCHEMA), b"\x06ashes", "2 bytes are left over"),
        (codecs.Avro(SCHEMA, schema_id=7), b"\0\0\0\0\x08\x06ash", "not of schema 7"),
        (codecs.Protobuf(StringValue), b"\xff", "not a StringValue"),
    ],
)
def test_a_malformed_record_keeps_its_place(
    kafka: KafkaBroker, value: Any, data: bytes, problem: str
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [data], timestamp=lambda number: 5)
    front = fronts.Kafka(kafka.servers, topic, value=value, idle_ms=None, until_end=True)
    (element,) = elements(front)
    assert (element.position, element.time) == (0, 5)
    assert isinstance(element.payload, Malformed)
    assert problem in element.payload.problem
    assert f"topic {topic!r} partition 0, offset 0" in element.payload.problem


def test_keys_and_times_out_of_payloads(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    given = [b'{"at": 5}', b'{"at": "x"}', b"{}", b'{"at": 9}', b'{"at": 9}']
    kafka.produce(topic, given, key=lambda number: b"key" if number else None)
    front = fronts.Kafka(kafka.servers, topic, key="text", time="at", until_end=True)
    found = elements(front)
    assert [element.time for element in found] == [5, None, None, 9, 9]
    assert found[0].payload == Record(None, {"at": 5})
    assert found[3].payload == Record("key", {"at": 9})
    assert "has the time 'x' (field 'at')" in found[1].payload.problem
    assert "has no time (field 'at'" in found[2].payload.problem


def awaited(reading: Any, kind: type[Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    for given in reading:
        if isinstance(given, kind):
            return given
        assert time.monotonic() < deadline
    raise AssertionError("it has ended")


def test_a_silent_partition_promises_the_present_less_what_records_may_take(
    kafka: KafkaBroker,
) -> None:
    topic = kafka.topic()
    front = fronts.Kafka(kafka.servers, topic, idle_ms=200)
    assert front.promises
    reading = front.read_batches(0, None)
    before = time.time_ns() // 1_000_000
    idle = awaited(reading, Idle)
    assert before - 200 <= idle.until <= time.time_ns() // 1_000_000 - 200
    kafka.produce(topic, [b"1"], timestamp=lambda number: 5)
    assert awaited(reading, Batch) == Batch([0], [1], [5])
    assert awaited(reading, Idle).until > idle.until
    reading.close()


def test_what_was_removed_is_no_gap(kafka: KafkaBroker) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    topic = kafka.topic()
    kafka.produce(topic, [b"1", b"2", b"3"])
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    for done in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        done.result(SECONDS)
    front = fronts.Kafka(kafka.servers, topic, idle_ms=None, until_end=True)
    assert [element.payload for element in elements(front)] == [3]
    with pytest.raises(InputError, match=r"offset 1: it is not there"):
        elements(front, 0, 0)


@pytest.mark.parametrize("idle_ms", [100, None])
def test_new_partitions_are_noticed(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, idle_ms: float | None
) -> None:
    monkeypatch.setattr(front_module, "_GROWTH_SECONDS", 0.1)
    topic = kafka.topic()
    front = fronts.Kafka(kafka.servers, topic, idle_ms=idle_ms)
    assert front.partitions == 1
    reading = front.read_batches(0, None)
    next(reading)
    kafka.grow(topic, 3)
    with pytest.raises(FrontGrewError if idle_ms else InputError, match="has 3 partitions now"):
        awaited(reading, str)
    front.look_again()
    assert front.partitions == 3


def test_a_broker_that_is_away_is_told(kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = f"127.0.0.1:{free_port()}"
    cluster = fronts.Kafka(servers, "docs").cluster
    with pytest.raises(InputError, match=f"no broker at {servers} has answered.*refused"):
        cluster.partitions_of("docs", 1)


def test_a_topic_that_is_not_there_is_told(kafka: KafkaBroker) -> None:
    with pytest.raises(InputError, match="there is no topic 'nowhere'"):
        fronts.Kafka(kafka.servers, "nowhere").check()


def secret(kafka: KafkaBroker, password: str) -> fronts.Kafka:
    config = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }
    topic = kafka.topic()
    return fronts.Kafka(kafka.secret_servers, topic, config=config, until_end=True)


def test_credentials_pass_through(kafka: KafkaBroker) -> None:
    front = secret(kafka, PASSWORD)
    front.check()
    kafka.produce(front.topic, [b"1"])
    assert [element.payload for element in elements(front)] == [1]


def test_a_wrong_credential_is_told(kafka: KafkaBroker) -> None:
    with pytest.raises(InputError, match="refuses the credentials") as told:
        secret(kafka, "byron").check()
    assert "byron" not in str(told.value)


def test_settings_that_there_are_not_are_told(kafka: KafkaBroker) -> None:
    with pytest.raises(InputError, match=r"settings are refused.*no\.such"):
        fronts.Kafka(kafka.servers, "docs", config={"no.such": 1}).check()


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda: fronts.Kafka("localhost", "docs"), "takes the brokers as 'host:port'"),
        (lambda: fronts.Kafka("localhost:9092", ""), "the name of a topic"),
        (lambda: fronts.Kafka("a:1", "docs", value="xml"), r"value=\) takes 'json'"),
        (lambda: fronts.Kafka("a:1", "docs", time=7), "'timestamp', 'log', 'arrival'"),  # type: ignore[arg-type]
        (
            lambda: fronts.Kafka("a:1", "docs", disorder=-1),
            r"disorder=\) takes how far times may go",
        ),
        (lambda: fronts.Kafka("a:1", "docs", on_late="hide"), r"on_late=\) takes one of 'divert'"),  # type: ignore[arg-type]
        (lambda: fronts.Kafka("a:1", "docs", time="log", disorder=5), "order is that of the log"),
        (lambda: fronts.Kafka("a:1", "docs", unit="s"), "'ms' or 'us'"),
        (lambda: fronts.Kafka("a:1", "docs", idle_ms=-1), "milliseconds or None"),
        (lambda: codecs.Avro("{oops"), "cannot be parsed"),
        (lambda: codecs.Protobuf(str), "a class that protoc made"),
    ],
)
def test_mistakes_are_told_at_once(made: Callable[[], Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        made()


def test_without_the_library_it_says_what_to_install(without: Callable[[str], None]) -> None:
    without("confluent_kafka")
    with pytest.raises(MissingExtraError, match=r"emberflow\[kafka\]"):
        fronts.Kafka("localhost:9092", "docs")


@pytest.mark.parametrize("idle_ms", [None, 50])
def test_a_front_that_goes_on_from_a_backfill_passes_over_what_that_had(
    kafka: KafkaBroker, tmp_path: Path, idle_ms: float | None
) -> None:
    """With idle_ms times are noted, and the partition joins: at the cut, and not behind it."""
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b", b"c", b"d"], timestamp=lambda number: 1_000 + number // 2)
    front = fronts.Kafka(kafka.servers, topic, value="text", idle_ms=idle_ms, until_end=True)
    assert [element.time for element in elements(front)] == [1_000, 1_000, 1_001, 1_001]
    journal = None
    if idle_ms is not None:
        journal = Journal(FrontLogWriter(tmp_path, "words", 0, 2), "words 0", 0)
    feed = Feed("words", 0, front, 0, 0, 100, journal=journal)
    feed.start(Beginning(None, (1_001, 0), passes_over=True))
    feed.reader.thread.join(SECONDS)
    assert [(place[0], payload) for place, _, payload in feed.take(100)] == [
        (1_001, "c"),
        (1_001, "d"),
    ]
    assert feed.gate.position == 1
    feed.join(SECONDS)
