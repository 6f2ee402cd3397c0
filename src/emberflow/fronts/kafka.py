"""`fronts.Kafka`: the records of a topic. A partition of the topic is a partition of the front.

Guarantees:

1. *Partitions are assigned, not balanced.* A reader is assigned its partition and keeps it. There is no
   consumer group, and the front commits nothing to the broker. The query's cuts have the position.
2. *A record has the same global time on every read.* Timestamps in a partition may be equal, and may go
   back by ``disorder``. What is later than that is late. With ``time="log"`` nothing is: the order is that
   of the log, and a record with a timestamp below that of an earlier one gets the time of that one.
3. *A silent partition holds nothing back* (``idle_ms``). A partition at its end promises the present
   less ``idle_ms``. The promise is a choice and no function of the topic. So the query notes it, and a
   replay decides alike. A record that comes with a timestamp below a promise is late. The front promises
   only when the broker has just said that the partition ends where the reader is.
4. *Only committed records are read* (``isolation.level``, unless it is set otherwise). So the output of
   another exactly-once system is read once.
5. *A record that cannot be decoded is `Malformed`* and has its place: the time of its timestamp, or that
   of the next record where times come from payloads. A record that was removed from the topic before it
   was read is an error, not a gap.
6. *New partitions are noticed*, by the reader of partition 0, and lead to the next life of the query:
   the partitions of one life are fixed. The next life reads the new ones. Their elements get times
   behind all that was let out, and the log has that. Where nothing is noted (``idle_ms=None`` with
   times of its own) there is no sound place for the new elements. Then the query ends with an error
   that says what to do.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from emberflow.errors import InputError, shortened
from emberflow.fronts.protocol import Batch, Element, FrontGrewError, Idle, Malformed
from emberflow.kafka.client import Cluster, library
from emberflow.kafka.codecs import CodecLike, check_registry, codec_of
from emberflow.values.event_time import OnLate, event_time
from emberflow.values.functions import described
from emberflow.values.times import (
    DEFAULT_UNIT,
    PER_MILLISECOND,
    Duration,
    Time,
    TimeError,
    Unit,
    counted_time,
    milliseconds,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: ``"timestamp"``, ``"log"``, ``"arrival"``, a field of the payload, or a function of it.
TimeOf: TypeAlias = str | Callable[[Any], Time]

#: Values of ``time`` for which the time of a record is its timestamp.
_STAMPED = ("timestamp", "log")
_POLL_SECONDS = 0.1
_ASK_SECONDS = 0.5
_BATCH_MAX = 1_000
#: For how long a broker may say that a known topic does not exist.
_UNKNOWN_SECONDS_MAX = 30.0
#: How often the reader of partition 0 asks for the number of partitions.
_GROWTH_SECONDS = 5.0
#: The default of ``idle_ms`` where times are those of timestamps.
_IDLE_MS = 1_000
_DEFAULT = object()


class Record(NamedTuple):
    """A payload with its key, where ``key=`` is given."""

    key: Any
    value: Any


class Kafka:
    """Reads a topic.

    ``value`` is the codec of records: ``"json"``, ``"text"``, ``"bytes"``, `kafka.Avro` or
    `kafka.Protobuf`. With ``key``, a codec for keys, a payload is a `Record` of key and value; without
    it, the value. A value or key that a record does not have is None.

    ``time`` is ``"timestamp"`` (that of the record), ``"log"`` (the same, raised to that of the record
    before it where it goes back), ``"arrival"``, a field of the payload or a function of it. ``disorder``
    is how far times may go back within a partition, and ``on_late`` what happens to a record that is
    later: `docs/event-time.md` explains both, ``watermark`` and ``ahead``. ``unit="us"`` counts timestamps,
    datetimes and durations in microseconds. ``idle_ms`` is how long records may take from their timestamp
    until they can be read. With None the front never promises, and the query notes nothing. It is None by
    default for fields and functions. If it is given for them, their times must be those of the clock, in
    ``unit``.

    The front reads the topic from its beginning, or from the offsets in ``begin`` (``{partition:
    offset}``). With ``until_end=True`` it ends where the topic ends when reading begins.

    ``config`` is for librdkafka: ``{"security.protocol": "SASL_SSL", "sasl.username": ...}``. It
    travels to the workers, with the credentials that are in it.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        value: CodecLike = "json",
        key: CodecLike | None = None,
        time: TimeOf = "timestamp",
        unit: Unit = DEFAULT_UNIT,
        idle_ms: float | Duration | None = _DEFAULT,  # type: ignore[assignment]
        begin: Mapping[int, int] | None = None,
        until_end: bool = False,
        config: Mapping[str, Any] | None = None,
        disorder: Duration = 0,
        watermark: Callable[[Any], Time | None] | None = None,
        ahead: Duration | None = None,
        on_late: OnLate = "divert",
    ) -> None:
        if not topic:
            raise InputError("fronts.Kafka takes the name of a topic, got none.")
        if not isinstance(time, str) and not callable(time):
            raise InputError(
                f"fronts.Kafka(time=) takes 'timestamp', 'log', 'arrival', the name of a field or a "
                f"function of the payload, got {time!r}."
            )
        if unit not in PER_MILLISECOND:
            raise InputError(f"fronts.Kafka(unit=) takes 'ms' or 'us', got {unit!r}.")
        if idle_ms is _DEFAULT:
            idle_ms = _IDLE_MS if time in _STAMPED else None
        if idle_ms is not None:
            idle_ms = milliseconds(idle_ms, "fronts.Kafka(idle_ms=)")
        if idle_ms is not None and not idle_ms >= 0:
            raise InputError(f"fronts.Kafka(idle_ms=) takes milliseconds or None, got {idle_ms!r}.")
        self.cluster = Cluster(servers, config, "fronts.Kafka")
        self.topic = topic
        self.value = codec_of(value, "fronts.Kafka(value=)")
        self.key = None if key is None else codec_of(key, "fronts.Kafka(key=)")
        self.time = time
        self.arrival = time == "arrival"
        if time == "log" and (disorder or watermark is not None or ahead is not None):
            raise InputError(
                "fronts.Kafka(time='log') takes no disorder=, watermark= or ahead=: the order is that of "
                "the log. Say time='timestamp'."
            )
        self.event_time = event_time(
            "fronts.Kafka",
            disorder=disorder,
            watermark=watermark,
            ahead=ahead,
            on_late=on_late,
            unit=unit,
        )
        self.unit = unit
        if time == "log":
            self.event_time = self.event_time._replace(on_late="admit")
        self.scale = PER_MILLISECOND[unit]
        self.idle_ms = None if self.arrival else idle_ms
        self.promises = self.idle_ms is not None
        self.begin = dict(begin or {})
        self.until_end = until_end
        self._partitions: int | None = None

    def check(self) -> None:
        """Raises `InputError` if no broker answers, the broker refuses the client, or has no such topic."""
        self.look_again()
        for codec in (self.value, self.key):
            check_registry(codec)

    def look_again(self) -> None:
        """Ask the broker how many partitions the topic has now."""
        self._partitions = self.cluster.partitions_of(self.topic)

    @property
    def partitions(self) -> int:
        if self._partitions is None:
            self.look_again()
        assert self._partitions is not None
        return self._partitions

    @property
    def notes(self) -> bool:
        """Whether the query notes the times of all elements."""
        return self.arrival or self.promises

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        for given in self.read_batches(partition, position):
            if isinstance(given, Batch):
                times: Iterable[int | None] = repeat(None) if given.times is None else given.times
                yield from map(Element, given.positions, given.payloads, times)
            else:
                yield None

    def read_batches(self, partition: int, position: Any) -> Iterator[Batch | Idle | None]:
        reading = _Reading(self, partition, position)
        try:
            yield from reading.batches()
        finally:
            reading.close()

    def payload(self, key: bytes | None, value: bytes | None) -> Any:
        """The payload of a record. Raises `ValueError`."""
        decoded = None if value is None else self.value.decode(value)
        if self.key is None:
            return decoded
        return Record(None if key is None else self.key.decode(key), decoded)

    def time_of(self, payload: Any) -> int:
        """The time that a payload holds, for a field or a function. Raises `ValueError`."""
        source: Any = payload.value if isinstance(payload, Record) else payload
        try:
            at = self.time(payload) if callable(self.time) else _field(source, self.time)
        except Exception as error:
            raise ValueError(
                f"has no time ({self.time_described()}: {type(error).__qualname__}: {error})"
            ) from None
        try:
            return counted_time(at, self.unit)
        except TimeError as error:
            raise ValueError(
                f"has the time {shortened(at)} ({self.time_described()}). {error}"
            ) from None

    def malformed(
        self, partition: int, offset: int, value: bytes | None, error: ValueError
    ) -> Malformed:
        """The payload of a record that `payload` or `time_of` refused."""
        raw = b"" if value is None else value
        before_next = not self.arrival and self.time not in _STAMPED
        where = f"fronts.Kafka: topic {self.topic!r} partition {partition}, offset {offset}"
        return Malformed(
            raw.decode("utf-8", "backslashreplace"),
            f"{where}: {error}: {shortened(raw)}",
            before_next,
        )

    def time_described(self) -> str:
        return f"given by {described(self.time)}" if callable(self.time) else f"field {self.time!r}"

    @property
    def is_stamped(self) -> bool:
        """Whether the time of a record is its timestamp."""
        return self.time in _STAMPED

    def dataframe(
        self,
        spark: SparkSession,
        *,
        end: Mapping[int, int] | None = None,
        malformed: Literal["fail", "drop"] = "fail",
    ) -> DataFrame:
        """The records of this front as a DataFrame: see `emberflow.fronts.kafka_dataframe`."""
        from emberflow.fronts.kafka_dataframe import dataframe

        return dataframe(spark, self, end=end, malformed=malformed)


def _field(payload: Any, name: str) -> Any:
    try:
        return payload[name]
    except TypeError:
        return getattr(payload, name)  # a message of Protobuf


class _Reading:
    """One pass through a partition."""

    def __init__(self, front: Kafka, partition: int, position: Any) -> None:
        self._front = front
        self._partition = partition
        if position is None:
            begin = front.begin.get(partition)
            self._next = library().OFFSET_BEGINNING if begin is None else begin
        else:
            self._next = position + 1
        #: Where the partition ends, if the broker has said so and nothing has come since.
        self._ends_at: int | None = None
        self._stops_at: int | None = None
        self._asked_at = 0.0
        self._looked_at = clock.monotonic()
        self._refusals: list[Any] = []
        #: Since when the broker says that the topic does not exist. One that is starting may do so.
        self._unknown_since: float | None = None
        self._consumer = front.cluster.consumer(
            isolation_level="read_committed",
            # The library fetches ahead. Bound what it holds, and let it go on soon after it was full.
            queued_min_messages=20_000,
            queued_max_messages_kbytes=16_384,
            fetch_queue_backoff_ms=10,
            fetch_wait_max_ms=100,
            reconnect_backoff_max_ms=1_000,
            error_cb=self._hear,
        )

    def close(self) -> None:
        self._consumer.close()

    def _hear(self, error: Any) -> None:
        errors = library().KafkaError
        if error.fatal() or error.code() in (
            errors._AUTHENTICATION,
            errors.SASL_AUTHENTICATION_FAILED,
            errors.TOPIC_AUTHORIZATION_FAILED,
        ):
            self._refusals.append(error)  # the library tries again after all other errors

    def batches(self) -> Iterator[Batch | Idle | None]:
        front, consumer = self._front, self._consumer
        place = library().TopicPartition(front.topic, self._partition, self._next)
        while front.until_end and self._stops_at is None:
            ends = self._ends()
            if ends is None:
                yield None
                continue
            self._stops_at = ends[1]
            if max(ends[0], self._next) >= ends[1]:
                return
        consumer.assign([place])
        while True:
            first = consumer.poll(_POLL_SECONDS)
            messages = [] if first is None else [first, *consumer.consume(_BATCH_MAX, 0)]
            batch = self._batch(messages)
            if batch is not None:
                yield batch
            if self._refusals:
                raise InputError(f"{self._where(None)}: {self._refusals[0].str()}")
            if self._stops_at is not None and self._passed() >= self._stops_at:
                return
            self._look_for_growth()
            if batch is None:
                yield self._promise()

    def _passed(self) -> int:
        return self._next if self._ends_at is None else max(self._next, self._ends_at)

    def _ends(self) -> tuple[int, int] | None:
        """The first offset and the one behind the last; None if no broker answers now."""
        kafka = library()
        place = kafka.TopicPartition(self._front.topic, self._partition)
        try:
            ends: tuple[int, int] | None = self._consumer.get_watermark_offsets(
                place, timeout=_ASK_SECONDS
            )
        except kafka.KafkaException:
            return None
        return ends

    def _batch(self, messages: list[Any]) -> Batch | None:
        """Messages as a batch; None if none of them is a record."""
        front = self._front
        decode, with_key = front.value.decode, front.key is not None
        is_timestamp, is_arrival, scale = front.time in _STAMPED, front.arrival, front.scale
        stops_at = self._stops_at
        offsets: list[int] = []
        payloads: list[Any] = []
        times: list[Any] = []  # None for a record that is malformed, and so has none
        for message in messages:
            if message.error() is not None:
                self._hear_of(message)
                continue
            offset, value = message.offset(), message.value()
            if stops_at is not None and offset >= stops_at:
                self._ends_at = stops_at
                break
            try:
                if with_key:
                    payload = front.payload(message.key(), value)
                else:
                    payload = None if value is None else decode(value)
                at = None if is_timestamp or is_arrival else front.time_of(payload)
            except ValueError as error:
                payload = front.malformed(self._partition, offset, value, error)
                at = None
            if is_timestamp:
                at = message.timestamp()[1] * scale
            times.append(at)
            offsets.append(offset)
            payloads.append(payload)
        if not offsets:
            return None
        self._next = offsets[-1] + 1
        self._unknown_since = None
        if self._ends_at is not None and self._ends_at < self._next:
            self._ends_at = None  # the broker said so before these records were there
        return Batch(offsets, payloads, None if is_arrival else times)

    def _hear_of(self, message: Any) -> None:
        """Handle a message that is no record: the end of the partition, or an error."""
        error, errors = message.error(), library().KafkaError
        if error.code() == errors._PARTITION_EOF:
            self._ends_at = message.offset()
            self._unknown_since = None
            return
        if error.code() in (errors._AUTO_OFFSET_RESET, errors.OFFSET_OUT_OF_RANGE):
            raise InputError(
                f"{self._where(self._next)}: it is not there ({error.str()}). Was it removed by "
                f"the topic's retention before it was read, or is this another topic of that name? "
                f"Records are needed until what they led to is part of a cut."
            )
        missing = (errors.UNKNOWN_TOPIC_OR_PART, errors._UNKNOWN_TOPIC, errors._UNKNOWN_PARTITION)
        if error.code() in missing:
            now = clock.monotonic()
            self._unknown_since = self._unknown_since or now
            if now - self._unknown_since < _UNKNOWN_SECONDS_MAX:
                return
        elif error.code() != errors.TOPIC_AUTHORIZATION_FAILED and not error.fatal():
            return  # the library tries again by itself
        raise InputError(f"{self._where(None)}: {error.str()}")

    def _promise(self) -> Idle | None:
        """A promise, if the front can make one now that nothing has come for a moment."""
        front = self._front
        now = clock.monotonic()
        if front.idle_ms is None or self._ends_at is None:
            return None
        if now - self._asked_at < _POLL_SECONDS / 2:
            return None
        self._asked_at = now
        asked_ms = clock.time_ns() // 1_000_000
        ends = self._ends()
        if ends is None or ends[1] > self._ends_at:
            return None
        return Idle(int(asked_ms - front.idle_ms) * front.scale, 1_000 * front.scale)

    def _look_for_growth(self) -> None:
        front, now = self._front, clock.monotonic()
        if self._partition != 0 or front.until_end or now - self._looked_at < _GROWTH_SECONDS:
            return
        self._looked_at = now
        try:
            found = self._consumer.list_topics(front.topic, timeout=_ASK_SECONDS).topics[
                front.topic
            ]
        except library().KafkaException:
            return  # the broker is away: ask again later
        count = len(found.partitions)
        if found.error is not None or count <= front.partitions:
            return
        grown = (
            f"topic {front.topic!r} has {count} partitions now, and had {front.partitions} when "
            f"this query began to read it."
        )
        if front.notes:
            raise FrontGrewError(f"{grown} The next life reads them all.")
        raise InputError(
            f"{grown} With idle_ms=None nothing notes where the new ones join. Start the query "
            f"again with idle_ms=, or anew with another checkpointLocation."
        )

    def _where(self, offset: int | None) -> str:
        at = "" if offset is None else f", offset {'begin' if offset < 0 else offset}"
        return f"fronts.Kafka: topic {self._front.topic!r} partition {self._partition}{at}"
