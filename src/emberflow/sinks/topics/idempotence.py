"""Records without transactions: faster, and everybody sees a record at once.

The broker has each record once, and in order. What is different from transactions:

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
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from emberflow.errors import EmberflowError, shortened
from emberflow.kafka.client import library
from emberflow.sinks.protocol import SinkMovedError, StoredBundle
from emberflow.sinks.topics.records import ASK_SECONDS, HEADER, OPEN_SECONDS_MAX, Encoded, read_end
from emberflow.sinks.topics.writer import STORE_SECONDS_MAX, TopicWriter
from emberflow.values.item import GlobalTime

if TYPE_CHECKING:
    from emberflow.sinks.kafka import Kafka


class IdempotentWriter(TopicWriter):
    """Stores records one by one, and completes a torn bundle."""

    def __init__(self, sink: Kafka, partition: int) -> None:
        super().__init__(sink, [partition])
        self._partition = partition
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

    def last(self) -> GlobalTime | None:
        return self._lasts[self._partition]

    def _made_producers(self) -> list[Any]:
        seconds = int(STORE_SECONDS_MAX)
        return [
            self._sink.cluster.made(
                library().Producer, self._settings(acks="all", message_timeout_ms=seconds * 1_000)
            )
        ]

    def _read_end(self) -> None:
        end = read_end(self._sink, self._partition, "read_uncommitted")
        self._lasts[self._partition], self._torn, self._next = end.last, end.behind, end.next
        (mark,) = self._looking.committed([self._tag()], timeout=OPEN_SECONDS_MAX)
        if mark.offset > end.offset + 1 and mark.metadata:
            headers = [(HEADER, mark.metadata.encode())]
            last = self._sink.time_in(headers, self._partition, _marked(mark.offset))
            if last is not None:
                self._lasts[self._partition] = last
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
                        f"{shortened(found)}, and what follows {self.last()} is "
                        f"{shortened(record)}. Does somebody else write to it?"
                    )
            rest = records[len(there) :]
            if rest:
                self._failures = []
                self._produce(self._partition, rest, bundle.last)
                self._flush()
                self._next += len(rest)
            else:
                self._mark(there[-1][0] + 1, bundle.last)
            self._torn = self._torn[len(there) :]
        self._lasts[self._partition] = bundle.last

    def close(self) -> None:
        super().close()
        with contextlib.suppress(Exception):
            self._looking.close()

    def _check_end(self) -> None:
        ends = self._looking.get_watermark_offsets(self._tag(), timeout=ASK_SECONDS)
        if ends[1] != self._next:
            raise SinkMovedError(
                f"sinks.Kafka: another writer has stored in {self._place}: it ends at offset "
                f"{ends[1]}, and this one left it at {self._next}. Without transactions a "
                f"partition belongs to one sink."
            )

    def _flush(self) -> None:
        left = self._producer.flush(STORE_SECONDS_MAX)
        if self._failures:
            raise library().KafkaException(self._failures[0])
        if left:
            raise EmberflowError(
                f"sinks.Kafka: {self._place}: {left} records were not acknowledged within "
                f"{STORE_SECONDS_MAX:.0f} s"
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
