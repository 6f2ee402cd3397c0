"""`sinks.Kafka`: records of a topic, with the bundle's global time in a header of its last record.

A partition of the sink is the partition of the topic with the same number. Within it, records are in
the order of the sink. A writer that opens the partition reads its end to learn what is stored.

With transactions, the default, a bundle is stored whole or not at all, a writer that has a successor stores
nothing, and the partitions that a worker holds share transactions: `topics.transactions` says how, and
why that is right. Without, records are stored one after another (`topics.idempotence`).

**Whose header it is.** Others may write to the partition, and may copy headers, forward records, or use
the same header for something else. A position that is not the sink's would make the query drop output, or
store it again. So a header holds the sink's name, the partition, the time, and a digest of these and of
the record that it is on. A record whose header does not agree is somebody else's: the writer goes on
looking, and logs a warning if the header has the sink's name. A copy of a whole record of the sink has an
older time than the newest record, and the greatest time counts of what was read, which is the last
hundred records at least. Without ``secret=`` the digest detects accidents. With it, nobody who lacks the
secret can make a header that counts.

The topic's retention must be longer than the query is ever down: the sink does not have what the broker
has removed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeAlias

from emberflow.dsl.operators.changes import Change
from emberflow.errors import Diverted, InputError, PayloadError, shortened
from emberflow.kafka.client import Cluster
from emberflow.kafka.codecs import CodecLike, codec_of, registered
from emberflow.rows.plain import fields_of, to_json
from emberflow.sinks.protocol import GroupWriter, Writer, refusal
from emberflow.sinks.topics.idempotence import IdempotentWriter
from emberflow.sinks.topics.records import HEADER, OPEN_SECONDS_MAX, Encoded, Headers
from emberflow.sinks.topics.transactions import TransactionalGroup, TransactionalWriter
from emberflow.values.item import GlobalTime

#: The default of librdkafka.
_MESSAGE_BYTES_MAX = 1_000_000
_HEADER_FORMAT = 1
_DIGEST_BYTES = 16

#: A field of the payload, or a function of it.
KeyOf: TypeAlias = str | Callable[[Any], Any]

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

    def open(self, partition: int) -> Writer:
        self._prepare([partition])
        return (TransactionalWriter if self.transactional else IdempotentWriter)(self, partition)

    @property
    def open_group(self) -> Callable[[Sequence[int]], GroupWriter] | None:
        """Opens partitions whose bundles share transactions."""
        return self._open_group if self.transactional else None

    def _open_group(self, partitions: Sequence[int]) -> GroupWriter:
        self._prepare(partitions)
        return TransactionalGroup(self, partitions)

    def _prepare(self, partitions: Sequence[int]) -> None:
        count = self.cluster.partitions_of(self.topic, OPEN_SECONDS_MAX, patient=True)
        if max(partitions) >= count:
            raise InputError(
                f"sinks.Kafka: topic {self.topic!r} has {count} partitions, and the sink has a "
                f"partition {max(partitions)}. Give the topic as many as the sink has in the flow."
            )
        self.register()

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
