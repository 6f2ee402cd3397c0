"""What `emberflow audit` reads of a topic that `sinks.Kafka` has written, and of one that a front reads."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

import emberflow as ef
from emberflow import kafka as codecs
from emberflow import sinks
from emberflow.commands.audit import audit, held_by
from emberflow.errors import InputError
from emberflow.guarantees import Guarantee, Verdict, judge
from emberflow.sinks import StoredBundle
from emberflow.values.hashing import key_hash, owner
from tests.adapters.kafka_broker import KafkaBroker

SECONDS = 30

SHOP = """
import emberflow as ef

flow = ef.Flow("numbers")
flow.front("numbers").key_by(lambda n: n % 3).group(window=2).sink("out")

spread = ef.Flow("spread")
numbers = spread.front("numbers").with_time().map(lambda timed: [timed.time, timed.payload])
numbers.key_by(lambda pair: pair[1] % 3).sink("out", partitions=3)
"""


def flow_of_values(partitions: int = 1) -> ef.Flow:
    flow = ef.Flow("values")
    values = flow.front("values")
    if partitions == 1:
        values.sink("values")
    else:
        values.key_by(str).sink("values", partitions=partitions)
    return flow


def stored(sink: sinks.Kafka, *payloads: Any, begin: int = 0) -> sinks.Kafka:
    """Bundles of two payloads each."""
    writer = sink.open(0)
    for at in range(0, len(payloads), 2):
        last = ef.GlobalTime(begin + at, 0)
        writer.store(StoredBundle("values", 0, last, list(payloads[at : at + 2])))
    writer.close()
    return sink


def judged(sink: sinks.Kafka, values: list[Any], partitions: int = 1) -> Verdict:
    flow = flow_of_values(partitions)
    held = held_by(flow.graph().sinks["values"], sink)
    return judge(flow, {"values": values}, {"values": held.payloads}, forms={"values": held.form})


VALUES: list[Any] = [{"zeta": 1, "deep": {"z": (1, 2.0)}}, "text", None, [True, 0.1], 7]


@pytest.mark.parametrize("transactional", [True, False])
def test_what_a_topic_holds_is_compared(kafka: KafkaBroker, transactional: bool) -> None:
    sink = stored(sinks.Kafka(kafka.servers, kafka.topic(), transactional=transactional), *VALUES)
    assert judged(sink, VALUES).exactly_once
    assert judged(sink, [*VALUES, 8]).guarantee is Guarantee.AT_MOST_ONCE
    assert judged(sink, VALUES[:-1]).guarantee is Guarantee.INCONSISTENT
    stored(sink, VALUES[-1], begin=50)  # a query that restarted and did not ask what was stored
    assert judged(sink, VALUES).guarantee is Guarantee.AT_LEAST_ONCE


def test_only_committed_records_are_judged(kafka: KafkaBroker) -> None:
    from confluent_kafka import Producer

    sink = stored(sinks.Kafka(kafka.servers, kafka.topic()), *VALUES)
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": sink.topic})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(sink.topic, value=b"1", partition=0)
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)
    stored(sink, 8, begin=50)
    assert judged(sink, [*VALUES, 8]).exactly_once


def test_records_with_keys_and_other_codecs(kafka: KafkaBroker) -> None:
    rows = [{"word": "ash", "n": 1}, {"word": "elm", "n": 2}]
    keyed = stored(sinks.Kafka(kafka.servers, kafka.topic(), key="word"), *rows)
    assert judged(keyed, rows).exactly_once
    # The same values under other keys are another output.
    other = sinks.Kafka(kafka.servers, keyed.topic, key=lambda row: "elm")
    assert judged(other, rows).guarantee is Guarantee.INCONSISTENT
    messages = [StringValue(value="ash"), StringValue(value="elm")]
    sink = sinks.Kafka(kafka.servers, kafka.topic(), value=codecs.Protobuf(StringValue))
    stored(sink, *messages)
    assert held_by(flow_of_values().graph().sinks["values"], sink).payloads == {
        0: [message.SerializeToString() for message in messages]
    }


def test_what_others_wrote_is_told(kafka: KafkaBroker) -> None:
    sink = sinks.Kafka(kafka.servers, kafka.topic())
    kafka.produce(sink.topic, [b"1"])
    with pytest.raises(InputError, match=r"holds 1 records, and none has a header of sink"):
        judged(sink, [1])
    stored(sink, 2)
    assert judged(sink, [1, 2]).exactly_once  # nothing shows whose the first one is
    kafka.produce(sink.topic, [b"3"])
    with pytest.raises(InputError, match=r"offset 3: this record and those behind it have no head"):
        judged(sink, [1, 2, 3])
    stored(sinks.Kafka(kafka.servers, sink.topic, name="another"), 4)
    with pytest.raises(InputError, match=r"that sink '.*' did not write. What several sinks wrote"):
        judged(sink, [1, 2, 3, 4])


def test_a_bundle_that_was_copied_is_told(kafka: KafkaBroker) -> None:
    sink = stored(sinks.Kafka(kafka.servers, kafka.topic()), 1)
    ((_, value, headers),) = kafka.records(sink.topic)
    kafka.produce(sink.topic, [value], headers=lambda number: headers)
    with pytest.raises(InputError, match=r"offset 2: it holds a bundle up to .* behind one up to"):
        judged(sink, [1, 1])


def test_what_is_not_there_any_more_or_cannot_be_read_is_told(kafka: KafkaBroker) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    sink = stored(sinks.Kafka(kafka.servers, kafka.topic(), value="text"), "{", "}")
    with pytest.raises(InputError, match=r"offset 0: not JSON .*: b'{'"):
        judged(sinks.Kafka(kafka.servers, sink.topic), [])
    with pytest.raises(InputError, match=r"has 2 partitions in this flow, and topic .* has 1"):
        judged(sink, [], partitions=2)
    admin = AdminClient({"bootstrap.servers": kafka.servers})
    for removed in admin.delete_records([TopicPartition(sink.topic, 0, 1)]).values():
        removed.result(SECONDS)
    with pytest.raises(InputError, match=r"begins at offset 1: .* has been removed"):
        judged(sink, ["{", "}"])


def test_a_topic_is_read_again_as_a_front_reads_it(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several partitions, timestamps that go back, and a record that is none."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kafka_shop.py").write_text(SHOP)
    source, target = kafka.topic(2), kafka.topic(3)
    for partition in (0, 1):
        values = [json.dumps(10 * partition + n).encode() for n in range(8)] + [b"{oops"]
        kafka.produce(
            source, values, partition=partition, timestamp=lambda n: 1_000 + n - 2 * (n % 2)
        )
    front = ef.fronts.Kafka(kafka.servers, source, idle_ms=None, until_end=True, disorder=2)
    shop = import_module("kafka_shop")
    given = ef.run(shop.spread, on_error="divert", numbers=front)["out"]
    writers = [sinks.Kafka(kafka.servers, target).open(partition) for partition in range(3)]
    for number, payload in enumerate(given):
        partition = owner(key_hash(payload[1] % 3), 3)
        bundle = StoredBundle("out", partition, ef.GlobalTime(number, 0), [payload])
        writers[partition].store(bundle)
    for writer in writers:
        writer.close()

    def verdict(front: str) -> Verdict:
        held = f"out=kafka://{kafka.servers}/{target}"
        return audit("kafka_shop:spread", fronts=[f"numbers={front}"], sinks=[held])

    told = f"kafka://{kafka.servers}/{source}"
    assert verdict(f"{told}?disorder=2").exactly_once
    assert not verdict(f"{told}?time=log").exactly_once
    with pytest.raises(InputError, match=r"numbers=log:CHECKPOINT\?source=kafka:"):
        verdict(f"{told}?time=arrival")
    with pytest.raises(InputError, match="socket: cannot be read again"):
        verdict("socket:localhost:1")
