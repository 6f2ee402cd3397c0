"""`sinks.Kafka` beyond the contract: headers, ends of logs, torn bundles, and what is wrong."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from emberflow import GlobalTime, sinks
from emberflow import kafka as codecs
from emberflow.errors import EmberflowError, InputError
from emberflow.sinks import PayloadError, SinkMovedError, StoredBundle
from emberflow.sinks.topics.blocks import IDS, Block, overlapping
from emberflow.sinks.topics.idempotence import IdempotentWriter
from emberflow.sinks.topics.records import HEADER
from emberflow.sinks.topics.transactions import BlockWriter
from tests.adapters.kafka_broker import KafkaBroker
from tests.effort import SECONDS, SOAK, shortened


def bundle(last: int, *payloads: Any) -> StoredBundle:
    return StoredBundle("out", 0, GlobalTime(last, 0), list(payloads))


def values(kafka: KafkaBroker, topic: str) -> list[bytes]:
    return [value for _, value in kafka.committed(topic)]


def test_the_last_record_of_a_bundle_carries_its_time(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    sink = sinks.Kafka(kafka.servers, topic, key=lambda word: word[:1], value="text")
    writer = sink.open(0)
    writer.store(StoredBundle("out", 0, GlobalTime(7, -3), ["ash", "ember"]))
    writer.close()
    header = sink.header(0, GlobalTime(7, -3), (b"e", b"ember"))
    assert header.startswith(f"1 {topic} 0 7 -3 ".encode())
    assert kafka.records(topic) == [(b"a", b"ash", None), (b"e", b"ember", [(HEADER, header)])]


@pytest.mark.parametrize("aborted", shortened([100, 1]))
def test_the_end_is_found_behind_aborted_records_and_those_of_others(
    kafka: KafkaBroker, aborted: int
) -> None:
    from confluent_kafka import Producer

    topic = kafka.topic()
    sink = sinks.Kafka(kafka.servers, topic)
    writer = sink.open(0)
    writer.store(bundle(7, 1, 2))
    writer.close()
    other = sinks.Kafka(kafka.servers, topic, name="another").open(0)
    other.store(bundle(99, 3))
    other.close()
    producer = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"x{topic}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for _ in range(aborted):
        producer.produce(
            topic,
            value=b"0",
            partition=0,
            headers=[(HEADER, sink.header(0, GlobalTime(50, 0), (None, b"0")))],
        )
    producer.flush(SECONDS)
    producer.abort_transaction(SECONDS)
    later = sink.open(0)
    assert later.last() == GlobalTime(7, 0)
    later.close()


SECRETS = [None, "hush"]


def foreign(sink: sinks.Kafka) -> dict[str, tuple[bytes | None, bytes | None]]:
    """Records of others, which have no key: value and header."""
    huge = GlobalTime(2**62, 0)
    stranger = sinks.Kafka("broker:1", sink.topic, name="stranger")
    guesser = sinks.Kafka("broker:1", sink.topic, secret="guessed")
    return {
        "not UTF-8": (b"x", b"\xff\xfe \x00"),
        "no text": (b"x", b""),
        "no value": (b"x", None),
        "a tombstone of the topic": (None, b"1"),
        "too few words": (b"x", f"1 {sink.name}".encode()),
        "no numbers": (b"x", f"1 {sink.name} 0 soon 0 {'0' * 32}".encode()),
        "a digest that is none": (b"x", f"1 {sink.name} 0 7 0 \N{SNOWMAN}".encode()),
        "a huge time": (b"x", f"1 {sink.name} 0 {2**62} 0 {'0' * 32}".encode()),
        "a header without a digest": (b"x", f"{sink.name} {2**62} 0".encode()),
        "another sink": (b"x", stranger.header(0, huge, (None, b"x"))),
        "another partition": (b"x", sink.header(1, huge, (None, b"x"))),
        "another secret": (b"x", guesser.header(0, huge, (None, b"x"))),
        "a copy on another value": (b"x", sink.header(0, huge, (None, b"y"))),
        "a copy on a record with a key": (b"x", sink.header(0, huge, (b"", b"x"))),
    }


@pytest.mark.parametrize("secret", SECRETS)
def test_only_headers_of_the_sink_itself_count(secret: str | None) -> None:
    sink = sinks.Kafka("broker:1", "a topic", secret=secret)
    record = (None, b"x")
    own = sink.header(0, GlobalTime(-7, 3), record)
    assert sink.time_in([("other", b"x"), (HEADER, own)], 0, record) == GlobalTime(-7, 3)
    for what, (value, header) in foreign(sink).items():
        assert sink.time_in([(HEADER, header)], 0, (None, value)) is None, what
        assert sink.time_in([(HEADER, header), (HEADER, own)], 0, record) == GlobalTime(-7, 3)
    assert sink.time_in(None, 0, record) is None


def test_records_of_others_neither_move_the_position_nor_keep_a_writer_from_opening(
    kafka: KafkaBroker,
) -> None:
    sink = sinks.Kafka(kafka.servers, kafka.topic())
    writer = sink.open(0)
    writer.store(bundle(1, "a"))
    writer.store(bundle(2, "b"))
    writer.close()
    ((_, first, headers), _) = kafka.records(sink.topic)
    others = [(value, [(HEADER, header)]) for value, header in foreign(sink).values()]
    others.append((first, headers))  # a copy of a whole record
    kafka.produce(
        sink.topic, [value for value, _ in others], headers=lambda number: others[number][1]
    )
    writer = sink.open(0)
    assert writer.last() == GlobalTime(2, 0)
    writer.store(bundle(3, "c"))
    writer.close()
    writer = sink.open(0)
    assert writer.last() == GlobalTime(3, 0)
    writer.close()
    assert values(kafka, sink.topic)[-1] == b'"c"'


def test_without_transactions_a_header_of_others_keeps_no_writer_from_opening(
    kafka: KafkaBroker,
) -> None:
    sink = sinks.Kafka(kafka.servers, kafka.topic(), transactional=False)
    writer = sink.open(0)
    writer.store(bundle(1, "a"))
    writer.close()
    kafka.produce(sink.topic, [b"x"], headers=lambda number: [(HEADER, b"\xff")])
    writer = reopened(sink, 1)
    with pytest.raises(EmberflowError, match="somebody else"):
        writer.store(bundle(2, "b"))
    writer.close()


def in_partition(partition: int, last: int, *payloads: Any) -> StoredBundle:
    return bundle(last, *payloads)._replace(partition=partition)


def block_writers(writer: Any) -> list[BlockWriter]:
    """What a writer of one partition, or of a group, stores with."""
    found: list[BlockWriter] = getattr(writer, "_group", writer)._writers
    return found


@pytest.mark.parametrize("stored", shortened([1, 0, 2]))
def test_an_open_transaction_of_a_writer_that_died_is_aborted(
    kafka: KafkaBroker, stored: int
) -> None:
    """Whichever of its ids the writer was using."""
    topic = kafka.topic()
    sink = sinks.Kafka(kafka.servers, topic)
    dead = sink.open(0)
    for number in range(stored):
        dead.store(bundle(number, number))
    (own,) = block_writers(dead)
    own.begin(own.encoded([bundle(8, "never")]))
    own._producer.flush(SECONDS)
    later = sink.open(0)
    assert later.last() == (GlobalTime(stored - 1, 0) if stored else None)
    later.store(bundle(9, "last"))
    with pytest.raises(SinkMovedError, match="another writer"):
        own.commit([])  # it comes back to life
    assert values(kafka, topic) == [*(b"%d" % number for number in range(stored)), b'"last"']
    dead.close()
    later.close()


#: How partitions were dealt out to workers, and how they are now.
DEALT = [
    ([[0, 1, 2], [3]], [[0], [1, 2, 3]]),
    ([[0, 1], [2, 3]], [[0, 1, 2, 3]]),
    ([[0, 1, 2, 3]], [[0, 1], [2, 3]]),
]


@pytest.mark.parametrize(("before", "now"), shortened(DEALT))
def test_old_writers_of_another_number_of_workers_store_nothing(
    kafka: KafkaBroker, before: list[list[int]], now: list[list[int]]
) -> None:
    """With whichever id they would go on; one has a transaction open, and commits it too late."""
    sink = sinks.Kafka(kafka.servers, kafka.topic(4))
    assert sink.open_group is not None
    wanted: dict[int, list[bytes]] = {partition: [] for partition in range(4)}

    def store(writers: list[Any], last: int) -> None:
        for writer in writers:
            own = [in_partition(one, last, f"{one} {last}") for one in writer.lasts()]
            writer.store(own)
            for one in own:
                wanted[one.partition].append(b'"%d %d"' % (one.partition, last))

    old = []
    for number, partitions in enumerate(before):
        writer = sink.open_group(partitions)
        for last in range(number + 1):  # the next id is another one for each
            store([writer], last)
        old.append(writer)
    for own in block_writers(old[0]):
        own.begin(own.encoded([in_partition(one, 7, "never") for one in own.lasts()]))
        own._producer.flush(SECONDS)
    new = [sink.open_group(partitions) for partitions in now]
    lasts = {one: last for writer in new for one, last in writer.lasts().items()}
    assert lasts == {one: GlobalTime(number, 0) for number, own in enumerate(before) for one in own}
    for own in block_writers(old[0]):
        with pytest.raises(SinkMovedError, match="another writer"):
            own.commit([])
    store(new, 8)
    for writer in old[1:]:
        for own in block_writers(writer):
            with pytest.raises(SinkMovedError, match="another writer"):
                _stored(own, 9)
    store(new, 10)
    # One comes back, and opens its writer once more: then those that work now are refused.
    again = sink.open_group(before[0])
    assert again.lasts() == dict.fromkeys(before[0], GlobalTime(10, 0))
    store([again], 11)
    for writer in new:
        for own in block_writers(writer):
            if set(own.lasts()) & set(before[0]):
                with pytest.raises(SinkMovedError, match="another writer"):
                    _stored(own, 12)
    assert {one: values_of(kafka, sink.topic, one) for one in wanted} == wanted
    for writer in (*old, *new, again):
        writer.close()


def _stored(writer: BlockWriter, last: int) -> None:
    bundles = writer.encoded([in_partition(one, last, "never") for one in writer.lasts()])
    writer.begin(bundles)
    writer.commit(bundles)


def values_of(kafka: KafkaBroker, topic: str, partition: int) -> list[bytes]:
    return [value for _, value in kafka.committed(topic, partition)]


#: The partitions of the rival, and how many ids the first one has taken over: on every run each of them once.
RIVALS = [[0], [0, 1], [0, 1, 2, 3]]
STEPS = [1, 2, 6, 10]
MEETINGS = (
    list(itertools.product(RIVALS, STEPS))
    if SOAK
    else [(RIVALS[number % 3], steps) for number, steps in enumerate(STEPS)]
)


@pytest.mark.parametrize(("rival", "steps"), MEETINGS)
def test_of_writers_that_are_opened_at_the_same_time_one_stores_at_most(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch, rival: list[int], steps: int
) -> None:
    """The rival opens when the first one has taken over so many ids, and has the same to store."""
    sink = sinks.Kafka(kafka.servers, kafka.topic(4))
    assert sink.open_group is not None
    before = sink.open_group([0, 1])
    before.store([in_partition(0, 1, "before")])
    before.close()
    taken: list[Any] = []
    others: list[Any] = []
    lock = threading.Lock()
    take_over = BlockWriter._take_over

    def interrupted(writer: BlockWriter, producer: Any, deadline: float) -> None:
        with lock:  # the ids of one after the other: each is a point in time
            take_over(writer, producer, deadline)
            taken.append(producer)
            if len(taken) == steps:
                with monkeypatch.context() as original:
                    original.setattr(BlockWriter, "_take_over", take_over)
                    assert sink.open_group is not None
                    others.append(sink.open_group(rival))

    monkeypatch.setattr(BlockWriter, "_take_over", interrupted)
    first = sink.open_group([0, 1])
    writers = [first, *others]
    assert len(taken) == IDS * (1 + len(list(overlapping(Block(0, 2)))))
    assert [writer.lasts()[0] for writer in writers] == [GlobalTime(1, 0)] * 2
    stored: dict[int, list[int]] = {}
    refused: set[int] = set()
    for last in (2, 3, 4):
        for number in (1, 0):
            if number not in refused:
                try:
                    writers[number].store([in_partition(0, last, f"next {last}")])
                    stored.setdefault(number, []).append(last)
                except SinkMovedError:
                    refused.add(number)
    assert len(stored) <= 1
    ((_, lasts),) = stored.items() or [(0, [])]
    names = [b'"next %d"' % last for last in lasts]
    assert values_of(kafka, sink.topic, 0) == [b'"before"', *names]
    for writer in writers:
        writer.close()
    later = sink.open(0)
    assert later.last() == GlobalTime(max(lasts, default=1), 0)
    later.close()


def torn(kafka: KafkaBroker, *payloads: str) -> sinks.Kafka:
    """A topic with a whole bundle, and the beginning of another one."""
    sink = sinks.Kafka(kafka.servers, kafka.topic(), value="text", transactional=False)
    writer = sink.open(0)
    writer.store(bundle(1, "a", "b"))
    writer.close()
    kafka.produce(sink.topic, [payload.encode() for payload in payloads])
    return sink


def reopened(sink: sinks.Kafka, last: int) -> IdempotentWriter:
    writer = sink.open(0)
    assert isinstance(writer, IdempotentWriter)
    assert writer.last() == GlobalTime(last, 0)
    return writer


def test_a_torn_bundle_is_completed(kafka: KafkaBroker) -> None:
    sink = torn(kafka, "c", "d")
    writer = reopened(sink, 1)
    writer.store(bundle(2, "c", "d", "e"))
    writer.close()
    reopened(sink, 2).close()
    assert values(kafka, sink.topic) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_torn_bundle_is_completed_by_smaller_ones_and_more_crashes(kafka: KafkaBroker) -> None:
    """What was there of a bundle may be all of several: then no record is left to tell their times."""
    sink = torn(kafka, "c", "d", "e", "f")
    writer = reopened(sink, 1)
    writer.store(bundle(2, "c"))
    writer.close()
    writer = reopened(sink, 2)
    writer.store(bundle(3, "d", "e"))
    writer.store(bundle(4, "f", "g"))
    writer.close()
    writer = reopened(sink, 4)
    writer.store(bundle(5, "h"))
    writer.close()
    reopened(sink, 5).close()
    assert values(kafka, sink.topic) == [bytes([byte]) for byte in b"abcdefgh"]


def test_what_is_torn_and_not_ours_is_told(kafka: KafkaBroker) -> None:
    writer = reopened(torn(kafka, "x"), 1)
    with pytest.raises(EmberflowError, match=r"has at offset 2 the record .*b'x'.*somebody else"):
        writer.store(bundle(2, "c"))
    writer.close()


@pytest.mark.parametrize(
    ("value", "payload", "data"),
    [
        ("bytes", b"\xff", b"\xff"),
        (
            codecs.Avro({"type": "record", "name": "W", "fields": [{"name": "w", "type": "int"}]}),
            {"w": 3},
            b"\x06",
        ),
        (codecs.Protobuf(StringValue), StringValue(value="ash"), b"\n\x03ash"),
    ],
)
def test_codecs(kafka: KafkaBroker, value: Any, payload: Any, data: bytes) -> None:
    topic = kafka.topic()
    writer = sinks.Kafka(kafka.servers, topic, value=value, transactional=False).open(0)
    writer.store(bundle(1, payload))
    with pytest.raises(PayloadError, match="cannot be written to Kafka"):
        writer.store(bundle(2, object()))
    writer.close()
    assert values(kafka, topic) == [data]


def test_a_record_that_is_too_large_is_no_reason_to_try_again(kafka: KafkaBroker) -> None:
    topic = kafka.topic()
    writer = sinks.Kafka(kafka.servers, topic).open(0)
    with pytest.raises(PayloadError, match=r"message\.max\.bytes"):
        writer.store(bundle(1, "x" * 2_000_000))
    writer.close()
    assert values(kafka, topic) == []


@pytest.mark.parametrize("transactional", [True, False])
def test_a_record_that_is_too_large_for_the_topic_is_told(
    kafka: KafkaBroker, transactional: bool
) -> None:
    """The broker says so, of the records or of the whole transaction."""
    topic = kafka.topic(**{"max.message.bytes": "2000"})
    writer = sinks.Kafka(kafka.servers, topic, transactional=transactional).open(0)
    writer.store(bundle(1, "a"))
    with pytest.raises(PayloadError, match=r"could not store a bundle: .*Raise the topic's"):
        writer.store(bundle(2, "b", "x" * 5_000, "c"))
    writer.close()
    if transactional:
        assert values(kafka, topic) == [b'"a"']


def test_a_topic_with_too_few_partitions_is_told(kafka: KafkaBroker) -> None:
    with pytest.raises(InputError, match="has 1 partitions, and the sink has a partition 1"):
        sinks.Kafka(kafka.servers, kafka.topic()).open(1)


def test_a_key_that_is_not_there_is_told(kafka: KafkaBroker) -> None:
    writer = sinks.Kafka(kafka.servers, kafka.topic(), key="word", transactional=False).open(0)
    with pytest.raises(PayloadError, match="no such field"):
        writer.store(bundle(1, {"id": 1}))
    writer.close()


def test_a_topic_that_is_not_there_is_told(kafka: KafkaBroker) -> None:
    with pytest.raises(InputError, match="there is no topic 'nowhere'"):
        sinks.Kafka(kafka.servers, "nowhere").check()
