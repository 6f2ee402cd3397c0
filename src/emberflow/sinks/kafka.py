"""`sinks.Kafka`: records of a topic, with the bundle's global time in a header of its last record.

A partition of the sink is the partition of the topic with the same number. Within it, records are in
the order of the sink. A writer that opens the partition reads its end to learn what is stored.

**Transactional** (the default). Guarantees to those who read committed records:

1. *All or nothing.* A bundle is a transaction. If nobody can know whether it was committed (the broker
   died, the answer was lost), `store` raises. The next writer first makes the broker finish or abort
   open transactions (``init_transactions``), and then reads the last committed record.
2. *One writer.* The transactional ids are those of the sink and the partition. Opening a writer raises
   their epochs, and the broker refuses whatever an older writer still sends.

A writer has several transactional ids and uses them in turn. The broker answers a commit once it is
decided, and marks the records as committed after that. Until then it refuses the next transaction of the
same id, and the library tries again only 20 ms later. Another id need not wait. Why this is safe:

- A transaction begins only when the one before it is decided. So at most one is open, and its records
  are behind those that are decided.
- Opening a writer takes over the ids in turn, which ends what is open, and only then reads the last
  record. After that no older writer commits anything: it holds none of the ids any more.
- A writer stores its first bundle with the first id. So if two writers are opened at the same time, the
  one that has lost the first id stores nothing, although it may hold another id. The other one is
  refused at that id. Both then end, and the next writer finds what was stored.

The end of the log may hold markers, and records of aborted transactions. They take offsets but are not
read as records. So the writer reads the end backwards, in growing steps, until it finds the last
committed header.

**Whose header it is.** Others may write to the partition, and may copy headers, forward records, or use
the same header for something else. A position that is not the sink's would make the query drop output, or
store it again. So a header holds the sink's name, the partition, the time, and a digest of these and of
the record that it is on. A record whose header does not agree is somebody else's: the writer goes on
looking, and logs a warning if the header has the sink's name. A copy of a whole record of the sink has an
older time than the newest record, and the greatest time counts of what was read, which is the last
hundred records at least. Without ``secret=`` the digest detects accidents. With it, nobody who lacks the secret can make a header that counts.

**Idempotent** (``transactional=False``): faster, and everybody sees a record at once. The broker has
each record once, and in order. What is different:

1. *A bundle may be torn.* A writer that dies while it writes leaves the first records of a bundle,
   without the header. These records are right, only incomplete: they are the first of what follows the
   last header in the order of the sink, whoever computes it, and however it is cut into bundles. So the
   next writer counts them, compares them byte by byte with what it is given first, and writes only the
   rest. If all records of a bundle are there already, no record is left to carry the header. Then the
   writer commits the time as the metadata of an offset, in a group that is named after the sink.
2. *No fence.* Before a writer stores, it looks whether the partition ends where it left it, and refuses
   if not. Another writer may come between the look and the records. Where a worker may be cut off and
   live on, use transactions.
3. *The partition belongs to the sink.* Others may write to other partitions. With transactions they may
   write to this one as well.

The topic's retention must be longer than the query is ever down: the sink does not have what the broker
has removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias

from emberflow.dsl.operators.changes import Change
from emberflow.errors import Diverted, EmberflowError, InputError, PayloadError, shortened
from emberflow.kafka.client import Cluster, library, told
from emberflow.kafka.codecs import CodecLike, codec_of, registered
from emberflow.rows.plain import fields_of, to_json
from emberflow.sinks.protocol import SinkMovedError, StoredBundle, refusal
from emberflow.values.item import GlobalTime

HEADER = "emberflow"
#: The default of librdkafka.
_MESSAGE_BYTES_MAX = 1_000_000
_HEADER_FORMAT = 1
_DIGEST_BYTES = 16
#: How long to wait for a broker that is starting, or becomes the leader.
_OPEN_SECONDS_MAX = 45.0
_STORE_SECONDS_MAX = 30.0
_ASK_SECONDS = 5.0
_POLL_SECONDS = 0.2
#: Transactional ids of a writer, used in turn.
_IDS = 2
#: How many records from the end are read first, and by which factor more if none has a header.
_END_RECORDS = 128
_END_GROWTH = 16
_END_WAIT_MS = 20

#: A field of the payload, or a function of it.
KeyOf: TypeAlias = str | Callable[[Any], Any]
#: Key and value, as bytes. A record of somebody else may lack a value.
Encoded: TypeAlias = tuple[bytes | None, bytes | None]
#: The headers of a record.
Headers: TypeAlias = list[tuple[str, bytes | None]] | None

_log = logging.getLogger("emberflow")


class Kafka:
    """Writes payloads as records.

    ``value`` is the codec of records: ``"json"``, ``"text"``, ``"bytes"``, `kafka.Avro` or
    `kafka.Protobuf`, which may have a schema registry. ``key`` is a field of the payload, or a function of it, and ``key_codec`` is its
    codec; without it records have no key.

    ``upsert=True`` is for changes (`Changes.sink`) and a topic with compaction: the record of a change has
    its key, by ``key_codec``, and the value after it, by ``value``; without one it has no value, and so is
    a tombstone of the topic. Without ``upsert`` a change is a record like all others, of key, before and
    after.

    ``name``, by default that of the topic, tells the writers of a topic apart: it is in the
    transactional ids and in the headers. Two queries that write to one topic need two names. A flow
    that begins anew in the same topic needs a new one. ``secret`` keeps others who may write to the
    topic from forging a header of the sink. It stays the same as long as the name does: the sink does
    not know headers that were made with another one.

    The topic must exist, with at least as many partitions as the sink has in the flow. ``config`` is
    for librdkafka, and travels to the workers, with the credentials that are in it.
    """

    #: A broker that restarts takes longer than a broken connection.
    retry_seconds = 60.0

    def __init__(
        self,
        servers: str,
        topic: str,
        *,
        value: CodecLike = "json",
        key: KeyOf | None = None,
        key_codec: CodecLike = "text",
        upsert: bool = False,
        transactional: bool = True,
        name: str | None = None,
        secret: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if not topic:
            raise InputError("sinks.Kafka takes the name of a topic, got none.")
        if key is not None and not isinstance(key, str) and not callable(key):
            raise InputError(
                f"sinks.Kafka(key=) takes a field of the payload or a function of it, got {key!r}."
            )
        if upsert and key is not None:
            raise InputError(
                "sinks.Kafka(upsert=True) takes the key of a record from the change: leave key= out."
            )
        self.cluster = Cluster(servers, config, "sinks.Kafka")
        self.topic = topic
        self.value = codec_of(value, "sinks.Kafka(value=)")
        self.key = key
        self.key_codec = codec_of(key_codec, "sinks.Kafka(key_codec=)")
        self.upsert = upsert
        self.transactional = transactional
        self.name = name or topic
        self._bytes_max = int((config or {}).get("message.max.bytes", _MESSAGE_BYTES_MAX))
        self._digest_key = hashlib.blake2b((secret or "").encode()).digest()

    def check(self) -> None:
        """Raises `InputError` if no broker answers, the broker refuses the client, or has no such topic."""
        self.cluster.partitions_of(self.topic)
        self.register()

    def register(self) -> None:
        """Give codecs with a registry the ids of their schemas. The driver does it, in `check`."""
        self.value = registered(self.value, f"{self.topic}-value")
        if self.key is not None or self.upsert:
            self.key_codec = registered(self.key_codec, f"{self.topic}-key")

    def open(self, partition: int) -> TransactionalWriter | IdempotentWriter:
        count = self.cluster.partitions_of(self.topic, _OPEN_SECONDS_MAX, patient=True)
        if partition >= count:
            raise InputError(
                f"sinks.Kafka: topic {self.topic!r} has {count} partitions, and the sink has a "
                f"partition {partition}. Give the topic as many as the sink has in the flow."
            )
        self.register()
        return (TransactionalWriter if self.transactional else IdempotentWriter)(self, partition)

    def encoded(self, payload: Any) -> Encoded:
        """The record of a payload."""
        if isinstance(payload, Diverted):
            payload = self._fitting(payload)
        key, value = self._upsert_of(payload) if self.upsert else self._record_of(payload)
        size = len(key or b"") + len(value or b"")
        if size > self._bytes_max:
            raise PayloadError(
                f"sinks.Kafka: the record has {size:,} bytes, and "
                f"message.max.bytes is {self._bytes_max:,}. Raise it, and the topic's "
                f"max.message.bytes: config={{'message.max.bytes': ...}}. The payload: "
                f"{shortened(payload)}"
            )
        return key, value

    def encoded_all(self, payloads: list[Any]) -> list[Encoded]:
        """The records of payloads."""
        if self.key is None and not self.upsert and Diverted not in set(map(type, payloads)):
            values = list(map(self.value.encode, payloads))
            if max(map(len, values), default=0) <= self._bytes_max:
                return list(zip(repeat(None), values))
        return list(map(self.encoded, payloads))

    def _record_of(self, payload: Any) -> Encoded:
        return None if self.key is None else self._encoded_key(payload), self.value.encode(payload)

    def _upsert_of(self, change: Any) -> Encoded:
        if not isinstance(change, Change):
            raise PayloadError(
                f"sinks.Kafka(upsert=True) takes changes: end the flow with .changes() ... .sink(), got "
                f"{shortened(change)}"
            )
        if change.key is None:
            raise PayloadError(
                f"sinks.Kafka(upsert=True): a topic with compaction takes no record without a key: "
                f"{shortened(change)}"
            )
        value = None if change.after is None else self.value.encode(change.after)
        return self.key_codec.encode(change.key), value

    def _encoded_key(self, payload: Any) -> bytes | None:
        assert self.key is not None
        try:
            key = self.key(payload) if callable(self.key) else _field(payload, self.key)
        except PayloadError:
            raise
        except Exception as error:
            raise PayloadError(
                f"sinks.Kafka(key=) raised {type(error).__qualname__}: {error}. The payload: "
                f"{shortened(payload)}"
            ) from error
        return None if key is None else self.key_codec.encode(key)

    def _fitting(self, diverted: Diverted) -> Diverted:
        """A record of the errors sink is always written: one that is too large without its payload."""
        size = len(to_json(diverted).encode())
        return (
            diverted
            if size <= self._bytes_max // 2
            else diverted._replace(payload=shortened(diverted.payload))
        )

    def refuses(self, payload: Any) -> str | None:
        """Why the payload cannot be a record; None if it can."""
        return refusal(self.encoded, payload)

    def header(self, partition: int, last: GlobalTime, record: Encoded) -> bytes:
        """The header of the last record of a bundle."""
        told = f"{_HEADER_FORMAT} {self.name} {partition} {last.time} {last.front}"
        return f"{told} {self._digest(told, record)}".encode()

    def time_in(self, headers: Headers, partition: int, record: Encoded) -> GlobalTime | None:
        """The global time in the headers of a record; None if the sink has not written it there."""
        for key, value in headers or []:
            if key == HEADER and value is not None:
                told, _, digest = value.decode("utf-8", "replace").rpartition(" ")
                if told.startswith(f"{_HEADER_FORMAT} {self.name} {partition} ") and (
                    hmac.compare_digest(digest.encode(), self._digest(told, record).encode())
                ):
                    time_, front = told.split(" ")[-2:]
                    return GlobalTime(int(time_), int(front))
                if f" {self.name} " in told:
                    _log.warning(
                        "sinks.Kafka: topic %r partition %d has a record with a header of %r that this "
                        "sink did not write, and ignores: %s",
                        self.topic,
                        partition,
                        self.name,
                        shortened(value),
                    )
        return None

    def _digest(self, told: str, record: Encoded) -> str:
        hashed = hashlib.blake2b(key=self._digest_key, digest_size=_DIGEST_BYTES)
        for part in (told.encode("utf-8", "replace"), *record):
            # With their lengths, so that no two records run together to the same bytes.
            hashed.update(b"-" if part is None else b"%d " % len(part) + part)
        return hashed.hexdigest()


def _field(payload: Any, name: str) -> Any:
    fields = fields_of(payload)
    if fields is None or name not in fields:
        raise PayloadError(
            f"sinks.Kafka(key={name!r}): a payload has no such field: {shortened(payload)}"
        )
    return fields[name]


class End(NamedTuple):
    """How a partition ends: the last header, where it is, and the records behind it."""

    last: GlobalTime | None
    offset: int  # of the record with the header; -1 if there is none
    behind: list[tuple[int, Encoded]]  # offsets and records
    next: int  # the offset that a record would get now


class _Writer(ABC):
    """What both writers share."""

    def __init__(self, sink: Kafka, partition: int) -> None:
        self._sink = sink
        self._partition = partition
        self._last: GlobalTime | None = None
        self._failures: list[Any] = []
        self._producers = self._made_producers()
        #: The number of the producer that stores the next bundle.
        self._turn = 0

    @property
    def _producer(self) -> Any:
        return self._producers[self._turn]

    @abstractmethod
    def _made_producers(self) -> list[Any]:
        """Producers with the settings of this kind of writer."""

    def _settings(self, **own: Any) -> dict[str, Any]:
        return self._sink.cluster.settings(
            # A bundle is all there is to send, so the library must not wait for more.
            linger_ms=0,
            enable_idempotence=True,
            **own,
        )

    def last(self) -> GlobalTime | None:
        return self._last

    def close(self) -> None:
        # Records that are still on their way belong to a store that has failed.
        for producer in self._producers:
            with contextlib.suppress(Exception):
                producer.purge()
                producer.close(0)

    def _records(self, bundle: StoredBundle) -> list[Encoded]:
        if self._last is not None and bundle.last <= self._last:
            raise EmberflowError(
                f"sinks.Kafka: {self._place} has stored up to {self._last} and was given a bundle "
                f"that ends at {bundle.last}."
            )
        return self._sink.encoded_all(bundle.payloads)

    def _produce(self, records: list[Encoded], last: GlobalTime) -> None:
        """Give all records to the library, the last one with the header."""
        self._failures = []
        produce, topic, partition = self._producer.produce, self._sink.topic, self._partition
        hear = self._on_delivery
        for key, value in records[:-1]:
            try:
                produce(topic, value, key, partition, hear)
            except BufferError:
                self._hand_over(key, value, None)
        key, value = records[-1]
        header = self._sink.header(partition, last, (key, value))
        self._hand_over(key, value, [(HEADER, header)])

    def _hand_over(self, key: bytes | None, value: bytes | None, headers: Any) -> None:
        deadline = time.monotonic() + _STORE_SECONDS_MAX
        while True:
            try:
                self._producer.produce(
                    self._sink.topic,
                    value=value,
                    key=key,
                    partition=self._partition,
                    headers=headers,
                    on_delivery=self._on_delivery,
                )
                return
            except BufferError:  # the library's queue is full
                if time.monotonic() > deadline:
                    raise EmberflowError(
                        f"sinks.Kafka: {self._place} has taken no record for "
                        f"{_STORE_SECONDS_MAX:.0f} s"
                    ) from None
                self._producer.poll(_POLL_SECONDS)

    @property
    def _on_delivery(self) -> Callable[[Any, Any], None] | None:
        """What hears of each record. The library takes Python's lock for each call of it."""
        return self._delivered

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.append(error)

    @property
    def _place(self) -> str:
        return f"topic {self._sink.topic!r} partition {self._partition}"

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        kafka = library()
        try:
            yield
        except kafka.KafkaException as error:
            # The error of the first record says more than that of the transaction.
            reasons = [*self._failures, error.args[0]]
            codes = {reason.code() for reason in reasons if hasattr(reason, "code")}
            words = "; ".join(dict.fromkeys(map(_words, reasons)))
            errors = kafka.KafkaError
            if codes & {errors._FENCED, errors.PRODUCER_FENCED, errors.INVALID_PRODUCER_EPOCH}:
                raise SinkMovedError(
                    f"sinks.Kafka: another writer was opened for {self._place} of {self._sink.name!r} "
                    f"since this one was ({words}). Do two queries write under one name? Then give "
                    f"each its own name=."
                ) from None
            if errors.MSG_SIZE_TOO_LARGE in codes:
                raise PayloadError(
                    f"sinks.Kafka: {self._place} {what}: {words}. Raise the topic's "
                    f"max.message.bytes and config={{'message.max.bytes': ...}}."
                ) from None
            raise EmberflowError(f"sinks.Kafka: {self._place} {what}: {words}") from None


class TransactionalWriter(_Writer):
    """Stores a bundle as a transaction; see the top of this file."""

    def __init__(self, sink: Kafka, partition: int) -> None:
        super().__init__(sink, partition)
        try:
            with self._explained("cannot be opened"):
                deadline = time.monotonic() + _OPEN_SECONDS_MAX
                for producer in self._producers:
                    self._take_over(producer, deadline)
                self._last = read_end(sink, partition, "read_committed").last
        except BaseException:
            self.close()
            raise

    def _made_producers(self) -> list[Any]:
        sink = self._sink
        return [
            sink.cluster.made(
                library().Producer,
                self._settings(
                    transactional_id=transactional_id(sink.name, self._partition, number),
                    transaction_timeout_ms=60_000,
                ),
            )
            for number in range(_IDS)
        ]

    def _take_over(self, producer: Any, deadline: float) -> None:
        """Fence older writers off an id, and have the broker finish or abort its transaction."""
        while True:
            try:
                producer.init_transactions(_ASK_SECONDS)
                return
            except library().KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    @property
    def _on_delivery(self) -> None:
        """The commit tells what has failed, so no record has to."""

    def store(self, bundle: StoredBundle) -> None:
        records = self._records(bundle)
        producer = self._producer
        with self._explained("could not store a bundle"):
            producer.begin_transaction()
            self._produce(records, bundle.last)
            producer.commit_transaction(_STORE_SECONDS_MAX)
        self._last = bundle.last
        self._turn = (self._turn + 1) % _IDS


def transactional_id(name: str, partition: int, number: int) -> str:
    """The id of a sink's partition with this number. The first is that of writers that had only one."""
    own = f"emberflow {name} {partition}"
    return own if number == 0 else f"{own}/{number}"


class IdempotentWriter(_Writer):
    """Stores records one by one, and completes a torn bundle; see the top of this file."""

    def __init__(self, sink: Kafka, partition: int) -> None:
        super().__init__(sink, partition)
        #: The records of a torn bundle: the first of what comes next.
        self._torn: list[tuple[int, Encoded]] = []
        self._next = 0
        try:
            self._looking = sink.cluster.consumer(
                group_id=f"emberflow-{sink.name}", isolation_level="read_uncommitted"
            )
            with self._explained("cannot be opened"):
                self._read_end()
        except BaseException:
            self.close()
            raise

    def _made_producers(self) -> list[Any]:
        seconds = int(_STORE_SECONDS_MAX)
        return [
            self._sink.cluster.made(
                library().Producer, self._settings(acks="all", message_timeout_ms=seconds * 1_000)
            )
        ]

    def _read_end(self) -> None:
        end = read_end(self._sink, self._partition, "read_uncommitted")
        self._last, self._torn, self._next = end.last, end.behind, end.next
        (mark,) = self._looking.committed([self._tag()], timeout=_OPEN_SECONDS_MAX)
        if mark.offset > end.offset + 1 and mark.metadata:
            headers = [(HEADER, mark.metadata.encode())]
            last = self._sink.time_in(headers, self._partition, _marked(mark.offset))
            if last is not None:
                self._last = last
                self._torn = [record for record in end.behind if record[0] >= mark.offset]

    def store(self, bundle: StoredBundle) -> None:
        records = self._records(bundle)
        with self._explained("could not store a bundle"):
            self._check_end()
            there = self._torn[: len(records)]
            for (offset, found), record in zip(there, records, strict=False):
                if found != record:
                    raise EmberflowError(
                        f"sinks.Kafka: {self._place} has at offset {offset} the record "
                        f"{shortened(found)}, and what follows {self._last} is "
                        f"{shortened(record)}. Does somebody else write to it?"
                    )
            rest = records[len(there) :]
            if rest:
                self._produce(rest, bundle.last)
                self._flush()
                self._next += len(rest)
            else:
                self._mark(there[-1][0] + 1, bundle.last)
            self._torn = self._torn[len(there) :]
        self._last = bundle.last

    def close(self) -> None:
        super().close()
        with contextlib.suppress(Exception):
            self._looking.close()

    def _check_end(self) -> None:
        ends = self._looking.get_watermark_offsets(self._tag(), timeout=_ASK_SECONDS)
        if ends[1] != self._next:
            raise SinkMovedError(
                f"sinks.Kafka: another writer has stored in {self._place}: it ends at offset "
                f"{ends[1]}, and this one left it at {self._next}. Without transactions a "
                f"partition belongs to one sink."
            )

    def _flush(self) -> None:
        left = self._producer.flush(_STORE_SECONDS_MAX)
        if self._failures:
            raise library().KafkaException(self._failures[0])
        if left:
            raise EmberflowError(
                f"sinks.Kafka: {self._place}: {left} records were not acknowledged within "
                f"{_STORE_SECONDS_MAX:.0f} s"
            )

    def _mark(self, offset: int, last: GlobalTime) -> None:
        """Note that all before an offset is stored, where no record can carry the header."""
        header = self._sink.header(self._partition, last, _marked(offset))
        place = library().TopicPartition(self._sink.topic, self._partition, offset, header.decode())
        self._looking.commit(offsets=[place], asynchronous=False)

    def _tag(self) -> Any:
        return library().TopicPartition(self._sink.topic, self._partition)


def _marked(offset: int) -> Encoded:
    """What the digest of a time covers that is noted beside an offset, and on no record."""
    return None, b"%d" % offset


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
            lambda: consumer.get_watermark_offsets(tag, timeout=_ASK_SECONDS), _OPEN_SECONDS_MAX
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
            if time.monotonic() - heard_at > _OPEN_SECONDS_MAX:
                raise EmberflowError(
                    f"sinks.Kafka: the end of topic {sink.topic!r} partition {partition} could not "
                    f"be read within {_OPEN_SECONDS_MAX:.0f} s"
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


def _words(reason: Any) -> str:
    return str(reason.str()) if hasattr(reason, "str") else told(Exception(reason))
