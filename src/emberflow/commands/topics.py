"""What a topic of Kafka holds, for ``emberflow audit``: all that those see who read committed records.

The partition of the topic is that of the sink. Only the last record of a bundle says whose it is, by its
header. So a partition is judged as a whole, and what is certainly not the sink's is an error, with its
offset: a topic that the sink has not written at all, a record with the header of another sink, records
behind the last bundle of a sink with transactions, a header whose time is not behind that of the one
before. Records of others between those of the sink cannot be told apart, and show as output that no input
explains. So do the records of a topic with compaction: it keeps the newest of each key only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from emberflow.errors import InputError, shortened
from emberflow.fronts.kafka import Record
from emberflow.kafka.client import library, told
from emberflow.kafka.codecs import Codec, Protobuf
from emberflow.sinks.kafka import Kafka
from emberflow.sinks.topics.records import HEADER, Encoded
from emberflow.values.item import GlobalTime

#: How long a broker may be silent.
_SILENT_SECONDS_MAX = 30.0
_POLL_SECONDS = 0.5
_BATCH_MAX = 10_000
#: How long the broker waits for more before it tells that a partition ends.
_END_WAIT_MS = 50


class _Found(NamedTuple):
    offset: int
    record: Encoded
    headers: Any


def held_in_topic(sink: str, store: Kafka, partitions: int) -> dict[int, list[Any]]:
    """The payloads of each partition, as `form_in_topic` has them."""
    try:
        store.register()
        count = store.cluster.partitions_of(store.topic)
        if count < partitions:
            raise InputError(
                f"sink {sink!r} has {partitions} partitions in this flow, and topic {store.topic!r} has "
                f"{count}. Was it written by another version of the flow?"
            )
        return {partition: _payloads(sink, store, partition) for partition in range(partitions)}
    except library().KafkaException as error:
        raise InputError(
            f"sink {sink!r}: topic {store.topic!r} could not be read: {told(error)}"
        ) from None


def form_in_topic(store: Kafka) -> Callable[[Any], Any]:
    """What becomes of a payload that is written to a topic and read again."""

    def form(payload: Any) -> Any:
        return _shown(store, store.encoded(payload))

    return form


def _shown(store: Kafka, record: Encoded) -> Any:
    """The value of a record, with its key where records have keys. Raises `ValueError`."""
    key, value = record
    shown = _decoded(store.value, value)
    return shown if key is None else Record(_decoded(store.key_codec, key), shown)


def _decoded(codec: Codec, data: bytes | None) -> Any:
    # Messages can be changed, and so are no payloads that can be compared.
    return data if data is None or isinstance(codec, Protobuf) else codec.decode(data)


def _payloads(sink: str, store: Kafka, partition: int) -> list[Any]:
    payloads = []
    last: GlobalTime | None = None
    behind: int | None = None  # the offset of the first record behind the last header
    for found in _records(sink, store, partition):
        where = f"sink {sink!r}: topic {store.topic!r} partition {partition}, offset {found.offset}"
        at = store.time_in(found.headers, partition, found.record)
        if at is not None:
            if last is not None and at <= last:
                raise InputError(
                    f"{where}: it holds a bundle up to {at} behind one up to {last}. A bundle that is there "
                    f"twice was written by another program, or copied."
                )
            last, behind = at, None
        elif any(name == HEADER for name, _ in found.headers or ()):
            raise InputError(
                f"{where}: the record has a header {HEADER!r} that sink {store.name!r} did not write. What "
                f"several sinks wrote to one partition cannot be judged; and is this its name=, and its "
                f"secret=?"
            )
        elif behind is None:
            behind = found.offset
        try:
            payloads.append(_shown(store, found.record))
        except ValueError as error:
            raise InputError(f"{where}: {error}: {shortened(found.record[1])}") from None
    where = f"sink {sink!r}: topic {store.topic!r} partition {partition}"
    if payloads and last is None:
        raise InputError(
            f"{where} holds {len(payloads)} records, and none has a header of sink {store.name!r}. Did it "
            f"have another name=, or secret=?"
        )
    if behind is not None and store.transactional:
        raise InputError(
            f"{where}, offset {behind}: this record and those behind it have no header of the sink, so they "
            f"are not the sink's. What others wrote to a partition cannot be told from its output."
        )
    return payloads


def _records(sink: str, store: Kafka, partition: int) -> Iterator[_Found]:
    """All records of a partition that are committed now."""
    kafka = library()
    isolation = "read_committed" if store.transactional else "read_uncommitted"
    consumer = store.cluster.consumer(isolation_level=isolation, fetch_wait_max_ms=_END_WAIT_MS)
    try:
        tag = kafka.TopicPartition(store.topic, partition)
        low, high = consumer.get_watermark_offsets(tag, timeout=_SILENT_SECONDS_MAX)
        if low > 0:
            raise InputError(
                f"sink {sink!r}: topic {store.topic!r} partition {partition} begins at offset {low}: what "
                f"was there before has been removed (retention.ms), and cannot be judged."
            )
        consumer.assign([kafka.TopicPartition(store.topic, partition, low)])
        heard_at = time.monotonic()
        while low < high:
            messages = consumer.consume(_BATCH_MAX, _POLL_SECONDS)
            if messages:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > _SILENT_SECONDS_MAX:
                raise InputError(
                    f"sink {sink!r}: topic {store.topic!r} partition {partition} was read up to offset "
                    f"{low} of {high}, and then nothing came for {_SILENT_SECONDS_MAX:.0f} s."
                )
            for message in messages:
                error = message.error()
                if error is None:
                    if message.offset() >= high:
                        return
                    record = (message.key(), message.value())
                    yield _Found(message.offset(), record, message.headers())
                    low = message.offset() + 1
                elif error.code() == kafka.KafkaError._PARTITION_EOF:
                    low = message.offset()  # behind the records, there are only markers
                elif not error.retriable():
                    raise kafka.KafkaException(error)
    finally:
        consumer.close()
