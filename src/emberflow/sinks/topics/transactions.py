"""Transactions: each bundle whole or not at all, and several partitions in one.

Guarantees to those who read committed records:

1. *All or nothing.* A bundle is in one transaction. If nobody can know whether that was committed (the
   broker died, the answer was lost), `store` raises. The next writer makes the broker finish or abort
   open transactions (``init_transactions``), and then reads the last committed records.
2. *One writer.* Between what a writer has read at the end of a partition and what it commits there, nobody
   else commits anything there.

A commit costs three requests, whether it has records of one partition or of eight. So the partitions of a
sink that one worker holds share transactions, by `blocks`. A block has two transactional ids and uses
them in turn. The broker answers a commit once it is decided, and marks the records as committed after
that. Until then it refuses the next transaction of the same id, and the library tries again only 20 ms
later. Another id need not wait. A transaction begins only when the one before it is decided, so at most
one is open, and its records are behind those that are decided.

**The rule.** Who *takes over* an id raises its epoch, has the broker finish or abort its transaction and
mark the records; from then on the broker refuses whatever an older holder sends. Opening a writer of block
B means, in this order:

1. take over the ids of B, the first one first;
2. take over both ids of every other block that overlaps B, in the same order, and use them for nothing;
3. read the ends of the partitions of B.

The writer commits with the ids of B alone, and its first transaction has the first one.

**Why nobody comes between.** Say that V has read the end of partition p, that W commits to p after that,
and that V commits to p still later. W's block C has p, so C is B or overlaps it, and V took over all ids of
C before it read. W commits with one of them, so it has taken that one over after V did.

- *C is not B.* If W has taken C's first id after V: V took its own ids before that one, and W takes B's ids
  after it. So W had both ids of B when it committed, and V is refused. If W has taken it before V: then W's
  first commit, which has that id, was before V took it over. So W had taken over C's second id by then, and
  V has taken it after that, before it read: W is refused.
- *C is B.* If W has taken the first id after V: V commits with it no more. Had V committed with it before,
  V had both ids at that time, and W has taken both after that: V is refused. If V had not, its first
  commit would need the first id: refused. If W has taken the first id before V, W is refused as above.

So one of the two is refused, whoever they are: workers of another number of workers, a worker that was cut
off and comes back, or opens its writers again after an error, a second driver, a task of a backfill, a
writer that knows no blocks (its ids are those of blocks of one partition). Nobody has to know how the
partitions were dealt out before, and workers need not wait for each other when they open. Workers of one
life have blocks that are apart: they take over common ids, which none of them uses.

A writer of a version without blocks is not that careful: it takes over the ids of its partition alone. So
end all processes of a query before an older version writes to its topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from emberflow.kafka.client import library
from emberflow.sinks.protocol import StoredBundle
from emberflow.sinks.topics.blocks import IDS, Block, blocks_of, overlapping, transactional_id
from emberflow.sinks.topics.records import ASK_SECONDS, OPEN_SECONDS_MAX, Encoded, read_end
from emberflow.sinks.topics.writer import STORE_SECONDS_MAX, TopicWriter
from emberflow.values.item import GlobalTime

if TYPE_CHECKING:
    from emberflow.sinks.kafka import Kafka

#: Connections, ids and ends that are asked for at the same time. Most of it is waiting.
_AT_ONCE = 16
_TRANSACTION_MS_MAX = 60_000

#: Partitions, their records, and the last global times of these.
_Encoded: TypeAlias = list[tuple[int, list[Encoded], GlobalTime]]


class BlockWriter(TopicWriter):
    """Stores bundles of the partitions of a block in one transaction after another."""

    def __init__(self, sink: Kafka, block: Block) -> None:
        self._block = block
        super().__init__(sink, block.partitions)
        try:
            with self._explained("cannot be opened"):
                self._open(time.monotonic() + OPEN_SECONDS_MAX)
        except BaseException:
            self.close()
            raise

    def _made_producers(self) -> list[Any]:
        return [self._made_producer(self._block, number) for number in range(IDS)]

    def _made_producer(self, block: Block, number: int) -> Any:
        return self._sink.cluster.made(
            library().Producer,
            self._settings(
                transactional_id=transactional_id(self._sink.name, block, number),
                transaction_timeout_ms=_TRANSACTION_MS_MAX,
            ),
        )

    def _open(self, deadline: float) -> None:
        others = {
            block: [self._made_producer(block, number) for number in range(IDS)]
            for block in overlapping(self._block)
        }
        try:
            with ThreadPoolExecutor(_AT_ONCE, "emberflow opening") as pool:
                all_ = [*self._producers, *chain.from_iterable(others.values())]
                list(pool.map(self._connect, all_))
                for producer in self._producers:
                    self._take_over(producer, deadline)
                # Each block in a thread: its first id before the second one.
                list(pool.map(partial(self._shut_out, deadline), others.values()))
                partitions = self._block.partitions
                reading = partial(read_end, self._sink, isolation="read_committed")
                for partition, end in zip(partitions, pool.map(reading, partitions), strict=True):
                    self._lasts[partition] = end.last
        finally:
            for producer in chain.from_iterable(others.values()):
                with suppress(Exception):
                    producer.close(0)

    def _connect(self, producer: Any) -> None:
        """Have a connection before it is needed. The library looks for one only twice a second."""
        with suppress(library().KafkaException):
            producer.list_topics(self._sink.topic, timeout=ASK_SECONDS)

    def _shut_out(self, deadline: float, producers: Sequence[Any]) -> None:
        """Take over the ids of another block, from whoever stores with them."""
        for producer in producers:
            self._take_over(producer, deadline)

    def _take_over(self, producer: Any, deadline: float) -> None:
        while True:
            try:
                producer.init_transactions(ASK_SECONDS)
                return
            except library().KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    @property
    def _on_delivery(self) -> None:
        """The commit tells what has failed, so no record has to."""

    def encoded(self, bundles: Sequence[StoredBundle]) -> _Encoded:
        """What is to be stored of bundles, at most one of each partition."""
        return [
            (bundle.partition, self._records(bundle), bundle.last)
            for bundle in bundles
            if bundle.partition in self._lasts
        ]

    def begin(self, bundles: _Encoded) -> None:
        """Begin a transaction with these."""
        with self._explained("could not store a bundle"):
            self._producer.begin_transaction()
            for partition, records, last in bundles:
                self._produce(partition, records, last)

    def commit(self, bundles: _Encoded) -> None:
        """Commit the transaction with these."""
        with self._explained("could not store a bundle"):
            self._producer.commit_transaction(STORE_SECONDS_MAX)
        self._lasts.update({partition: last for partition, _, last in bundles})
        self._turn = (self._turn + 1) % IDS


class TransactionalGroup:
    """Stores bundles of several partitions, in a transaction for each block."""

    def __init__(self, sink: Kafka, partitions: Iterable[int]) -> None:
        self._writers: list[BlockWriter] = []
        try:
            for block in blocks_of(partitions):
                self._writers.append(BlockWriter(sink, block))
        except BaseException:
            self.close()
            raise

    def lasts(self) -> dict[int, GlobalTime | None]:
        return {partition: last for one in self._writers for partition, last in one.lasts().items()}

    def store(self, bundles: Sequence[StoredBundle]) -> None:
        # All are encoded first: a payload that is refused leaves no transaction behind.
        given = [(one, own) for one in self._writers if (own := one.encoded(bundles))]
        # The library sends the records of all blocks at the same time.
        for writer, own in given:
            writer.begin(own)
        for writer, own in given:
            writer.commit(own)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class TransactionalWriter:
    """Stores the bundles of one partition."""

    def __init__(self, sink: Kafka, partition: int) -> None:
        self._partition = partition
        self._group = TransactionalGroup(sink, [partition])

    def last(self) -> GlobalTime | None:
        return self._group.lasts()[self._partition]

    def store(self, bundle: StoredBundle) -> None:
        self._group.store([bundle])

    def close(self) -> None:
        self._group.close()
