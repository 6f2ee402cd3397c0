"""Where a partition of a topic ends: the last bundle of a sink, and what is behind it.

The end of the log may hold markers, and records of aborted transactions. They take offsets but are not
read as records. So the end is read backwards, in growing steps, until the last committed header is found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from emberflow.errors import EmberflowError
from emberflow.kafka.client import library
from emberflow.values.item import GlobalTime

if TYPE_CHECKING:
    from emberflow.sinks.kafka import Kafka

#: The header of the last record of a bundle.
HEADER = "emberflow"
#: How long to wait for a broker that is starting, or becomes the leader.
OPEN_SECONDS_MAX = 45.0
ASK_SECONDS = 5.0
_POLL_SECONDS = 0.2
#: How many records from the end are read first, and by which factor more if none has a header.
_END_RECORDS = 128
_END_GROWTH = 16
_END_WAIT_MS = 20

#: Key and value, as bytes. A record of somebody else may lack a value.
Encoded: TypeAlias = tuple[bytes | None, bytes | None]
#: The headers of a record.
Headers: TypeAlias = list[tuple[str, bytes | None]] | None


class End(NamedTuple):
    """How a partition ends: the last header, where it is, and the records behind it."""

    last: GlobalTime | None
    offset: int  # of the record with the header; -1 if there is none
    behind: list[tuple[int, Encoded]]  # offsets and records
    next: int  # the offset that a record would get now


def read_end(sink: Kafka, partition: int, isolation: str) -> End:
    """Read a partition backwards until the last header of the sink is found."""
    kafka = library()
    consumer = sink.cluster.consumer(
        isolation_level=isolation,
        # Behind the last record there may be markers alone, and then the end is told after this.
        fetch_wait_max_ms=_END_WAIT_MS,
    )
    tag = kafka.TopicPartition(sink.topic, partition)
    try:
        low, high = _asked_until(
            lambda: consumer.get_watermark_offsets(tag, timeout=ASK_SECONDS), OPEN_SECONDS_MAX
        )
        count = _END_RECORDS
        while True:
            begin = max(low, high - count)
            found = _read_from(consumer, sink, partition, begin, high)
            if found.last is not None or begin <= low:
                return found
            count *= _END_GROWTH
    finally:
        consumer.close()


def _read_from(consumer: Any, sink: Kafka, partition: int, begin: int, high: int) -> End:
    kafka = library()
    end = End(None, -1, [], high)
    behind: list[tuple[int, Encoded]] = []
    if begin >= high:
        return end
    consumer.assign([kafka.TopicPartition(sink.topic, partition, begin)])
    heard_at = time.monotonic()
    while True:
        message = consumer.poll(_POLL_SECONDS)
        if message is None:
            if time.monotonic() - heard_at > OPEN_SECONDS_MAX:
                raise EmberflowError(
                    f"sinks.Kafka: the end of topic {sink.topic!r} partition {partition} could not "
                    f"be read within {OPEN_SECONDS_MAX:.0f} s"
                )
            continue
        heard_at = time.monotonic()
        if message.error() is not None:
            if message.error().code() == kafka.KafkaError._PARTITION_EOF:
                return end._replace(behind=behind)
            if not message.error().retriable():
                raise kafka.KafkaException(message.error())
            continue
        record = (message.key(), message.value())
        last = sink.time_in(message.headers(), partition, record)
        if last is not None and (end.last is None or last > end.last):
            end = End(last, message.offset(), [], high)
            behind = []
        else:
            behind.append((message.offset(), record))
        if message.offset() + 1 >= high:
            return end._replace(behind=behind)


def _asked_until(ask: Callable[[], tuple[int, int]], seconds: float) -> tuple[int, int]:
    """The answer of a broker that may still be starting."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except library().KafkaException:
            if time.monotonic() > deadline:
                raise
