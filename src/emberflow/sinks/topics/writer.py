"""What both writers of a topic share: encoding, handing records to the library, and its errors in words."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from emberflow.errors import EmberflowError, PayloadError
from emberflow.kafka.client import library, told
from emberflow.sinks.protocol import SinkMovedError, StoredBundle
from emberflow.sinks.topics.records import HEADER, Encoded
from emberflow.values.item import GlobalTime

if TYPE_CHECKING:
    from emberflow.sinks.kafka import Kafka

STORE_SECONDS_MAX = 30.0
_POLL_SECONDS = 0.2


class TopicWriter(ABC):
    """Stores in some partitions of a topic."""

    def __init__(self, sink: Kafka, partitions: Sequence[int]) -> None:
        self._sink = sink
        #: What each partition has.
        self._lasts: dict[int, GlobalTime | None] = dict.fromkeys(partitions)
        self._failures: list[Any] = []
        self._producers = self._made_producers()
        #: The number of the producer that stores next.
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

    def lasts(self) -> dict[int, GlobalTime | None]:
        return dict(self._lasts)

    def close(self) -> None:
        # Records that are still on their way belong to a store that has failed.
        for producer in self._producers:
            with contextlib.suppress(Exception):
                producer.purge()
                producer.close(0)

    def _records(self, bundle: StoredBundle) -> list[Encoded]:
        last = self._lasts[bundle.partition]
        if last is not None and bundle.last <= last:
            raise EmberflowError(
                f"sinks.Kafka: {self._place} has stored up to {last} in partition {bundle.partition} and "
                f"was given a bundle that ends at {bundle.last}."
            )
        return self._sink.encoded_all(bundle.payloads)

    def _produce(self, partition: int, records: list[Encoded], last: GlobalTime) -> None:
        """Give all records to the library, the last one with the header."""
        produce, topic = self._producer.produce, self._sink.topic
        hear = self._on_delivery
        for key, value in records[:-1]:
            try:
                produce(topic, value, key, partition, hear)
            except BufferError:
                self._hand_over(partition, key, value, None)
        key, value = records[-1]
        header = self._sink.header(partition, last, (key, value))
        self._hand_over(partition, key, value, [(HEADER, header)])

    def _hand_over(
        self, partition: int, key: bytes | None, value: bytes | None, headers: Any
    ) -> None:
        deadline = time.monotonic() + STORE_SECONDS_MAX
        while True:
            try:
                self._producer.produce(
                    self._sink.topic,
                    value=value,
                    key=key,
                    partition=partition,
                    headers=headers,
                    on_delivery=self._on_delivery,
                )
                return
            except BufferError:  # the library's queue is full
                if time.monotonic() > deadline:
                    raise EmberflowError(
                        f"sinks.Kafka: {self._place} has taken no record for "
                        f"{STORE_SECONDS_MAX:.0f} s"
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
        numbers = list(self._lasts)
        named = f"partition {numbers[0]}" if len(numbers) == 1 else f"partitions {numbers}"
        return f"topic {self._sink.topic!r} {named}"

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


def _words(reason: Any) -> str:
    return str(reason.str()) if hasattr(reason, "str") else told(Exception(reason))
