"""How long a document takes from produced to consumed: through a query, and through a plain loop.

A client, a process of its own, produces documents at a steady rate, and consumes the change records of the
inverted index. It measures from the moment at which it hands a document to the producer to the moment at
which it has the last record of the document. Between the two is a live query, or a plain loop: one process
that polls, looks words up in a dict, produces, and commits a transaction for each poll. Rate, brokers,
client and settings are the same.

With ``stages`` both note when a document has come how far. All of them run on one machine, so the
monotonic clock is the same for all.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import engine
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow.sinks.topics.transactions import BlockWriter
from tests.adapters.kafka_broker import KafkaBroker

RATE = 50
WORDS = 250
PERCENTS = (50, 75, 95, 99)
#: What a document has behind it, in order. The first is noted by the client, as is the last.
STAGES = ("produced", "polled", "released", "handed over", "acked", "committed", "read")
_SECONDS_MAX = 90
#: Documents whose stages are shown one by one.
_SLOWEST = 20


def index_flow(partitions: int) -> ef.Flow:
    flow = ef.Flow("index")
    postings = flow.front("documents").flat_map(
        lambda document: [(word, document["number"]) for word in document["words"]]
    )
    changes = (
        postings.key_by(lambda posting: posting[0])
        .reduce(
            first=lambda posting: (1, posting),
            combine=lambda held, posting: (held[0] + 1, posting),
        )
        .map(lambda held: [held[1][1], held[1][0], held[0]])
    )
    dealt_out(changes, lambda change: change[1], "changes", partitions)
    return flow


def dealt_out(stream: Any, key: Callable[[Any], Any], sink: str, partitions: int) -> None:
    """Into a sink with so many partitions, by a key."""
    if partitions > 1:
        stream = stream.key_by(key)
    stream.sink(sink, partitions=partitions)


# The client.


def consumer(servers: str, topic: str, partitions: int) -> Any:
    made = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    made.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    return made


def polled(reading: Any, most: int) -> list[Any]:
    """What is there as soon as anything is, without the news of ends."""
    first = reading.poll(0.1)
    given = [] if first is None else [first, *reading.consume(most, 0)]
    return [message for message in given if message.error() is None]


def client(
    told: Connection, servers: str, source: str, target: str, partitions: int, count: int
) -> None:
    """A process that produces documents and consumes their changes; it sends back when it did."""
    words = engine.zipf_words(count * WORDS)
    documents = [
        json.dumps({"number": number, "words": words[number * WORDS :][:WORDS]}).encode()
        for number in range(count)
    ]
    begun, left = [0.0] * count, [WORDS] * count
    taken: dict[int, float] = {}
    deadline = time.monotonic() + count / RATE + _SECONDS_MAX

    def consume() -> None:
        reading = consumer(servers, target, partitions)
        while len(taken) < count and time.monotonic() < deadline:
            for message in polled(reading, 5_000):
                number = json.loads(message.value())[0]
                left[number] -= 1
                if not left[number]:
                    taken[number] = time.monotonic()
        reading.close()

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    producer.list_topics(source)
    told.send("ready")
    told.recv()
    begin = time.monotonic()
    for number, document in enumerate(documents):
        time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
        begun[number] = time.monotonic()
        producer.produce(source, value=document, partition=number % partitions)
        producer.poll(0)
    producer.flush(30)
    thread.join()
    told.send({number: (begun[number], taken[number]) for number in sorted(taken)})


# Notes of when a document has come how far.


class Notes:
    """A folder of files, one of each process, with a line for each stage of each document."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._file: Any = None

    def __reduce__(self) -> Any:
        return Notes, (self._folder,)

    def note(self, stage: str, numbers: set[int]) -> None:
        if self._file is None:
            self._file = open(f"{self._folder}/{os.getpid()}", "a", buffering=1)  # noqa: SIM115
        self._file.write(f"{time.monotonic()} {stage} {' '.join(map(str, numbers))}\n")

    @staticmethod
    def last(folder: str) -> dict[str, dict[int, float]]:
        """By stage and document, when the last part of the document came so far."""
        found: dict[str, dict[int, float]] = {}
        for path in Path(folder).iterdir():
            for line in path.read_text().splitlines():
                at, stage, *numbers = line.split()
                own = found.setdefault(stage.replace("_", " "), {})
                for number in map(int, numbers):
                    own[number] = max(own.get(number, 0.0), float(at))
        return found


class NotedFront(ef.fronts.Kafka):
    """A front that notes when it has read a document."""

    notes_to: Notes

    def read_batches(self, partition: int, position: Any) -> Iterator[Any]:
        for given in super().read_batches(partition, position):
            if isinstance(given, ef.fronts.Batch):
                self.notes_to.note("polled", {payload["number"] for payload in given.payloads})
            yield given


class NotedSink(ef.sinks.Kafka):
    """A sink that notes when its thread is given records of a document, and how far it comes with them."""

    notes_to: Notes

    def _prepare(self, partitions: Any) -> None:
        note_transactions(self.notes_to)
        super()._prepare(partitions)


def note_transactions(notes: Notes) -> None:
    """Have the writers of this process note stages. The flush is what a commit begins with anyway."""
    if getattr(BlockWriter, "notes", None) is not None:
        return
    encoded, begin, commit = BlockWriter.encoded, BlockWriter.begin, BlockWriter.commit

    def noted_encoded(writer: BlockWriter, bundles: Any) -> Any:
        numbers = {payload[0] for bundle in bundles for payload in bundle.payloads}
        writer.numbers = numbers  # type: ignore[attr-defined]
        notes.note("released", numbers)
        return encoded(writer, bundles)

    def noted_begin(writer: BlockWriter, bundles: Any) -> None:
        begin(writer, bundles)
        notes.note("handed_over", writer.numbers)  # type: ignore[attr-defined]

    def noted_commit(writer: BlockWriter, bundles: Any) -> None:
        writer._producer.flush(30)
        notes.note("acked", writer.numbers)  # type: ignore[attr-defined]
        commit(writer, bundles)
        notes.note("committed", writer.numbers)  # type: ignore[attr-defined]

    BlockWriter.encoded = noted_encoded  # type: ignore[method-assign]
    BlockWriter.begin = noted_begin  # type: ignore[method-assign]
    BlockWriter.commit = noted_commit  # type: ignore[method-assign]
    BlockWriter.notes = notes  # type: ignore[attr-defined]


# What is between the two ends.


def plain_loop(
    told: Connection, servers: str, source: str, target: str, partitions: int, notes: Notes | None
) -> None:
    """A process: poll, look up, produce, and commit a transaction for each poll."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": f"plain {target}",
            "linger.ms": 0,
            "socket.nagle.disable": True,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    reading = consumer(servers, source, partitions)
    counts: dict[str, int] = {}
    told.send("ready")
    while not told.poll(0):
        documents = [json.loads(message.value()) for message in polled(reading, 1_000)]
        if not documents:
            continue
        numbers = {document["number"] for document in documents}
        note: Callable[[str, set[int]], None] = notes.note if notes else lambda stage, numbers: None
        note("polled", numbers)
        note("released", numbers)
        producer.begin_transaction()
        for document in documents:
            for word in document["words"]:
                count = counts[word] = counts.get(word, 0) + 1
                value = json.dumps([document["number"], word, count], separators=(",", ":"))
                partition = zlib.crc32(word.encode()) % partitions
                producer.produce(target, value=value.encode(), partition=partition)
        note("handed_over", numbers)
        if notes:
            producer.flush(30)
            note("acked", numbers)
        producer.commit_transaction(30)
        note("committed", numbers)
    reading.close()


class Measured:
    """Milliseconds of each document that counts, and of its stages."""

    def __init__(self, found: dict[int, tuple[float, float]], warm: int, folder: str) -> None:
        counted = {number: ends for number, ends in found.items() if number >= warm}
        self.latencies = [(last - first) * 1_000 for first, last in counted.values()]
        at = Notes.last(folder)
        at["produced"] = {number: first for number, (first, _) in counted.items()}
        at["read"] = {number: last for number, (_, last) in counted.items()}
        self.stages = {
            (before, after): [
                (at[after][number] - at[before][number]) * 1_000
                for number in counted
                if number in at[after] and number in at[before]
            ]
            for before, after in pairwise(STAGES)
            if before in at and after in at
        }
        slowest = sorted(counted, key=lambda number: counted[number][0] - counted[number][1])
        for number in sorted(slowest[:_SLOWEST]) if len(at) > 2 else ():
            ends = [(stage, at[stage].get(number)) for stage in STAGES if stage in at]
            shown = [
                f"{stage} {(when - counted[number][0]) * 1_000:.1f}" for stage, when in ends if when
            ]
            print(
                f"{counted[number][0]:.3f} document {number}: {', '.join(shown)}", file=sys.stderr
            )


class Ends:
    """The client's process, at both ends of what is measured."""

    def __init__(
        self, broker: KafkaBroker, seconds: int, warm: int, partitions: int, stages: bool
    ) -> None:
        self.source, self.target = broker.topic(partitions), broker.topic(partitions)
        self._count, self._warm = (warm + seconds) * RATE, warm * RATE
        self.folder = tempfile.mkdtemp(prefix="emberflow-kafka-")
        self.notes = Notes(self.folder) if stages else None
        given = (broker.servers, self.source, self.target, partitions)
        self._pipe, self._process = begun(client, *given, self._count)

    def measured(self) -> Measured:
        self._pipe.recv()
        self._pipe.send("go")
        found = self._pipe.recv()
        self._process.join()
        wanted = self._count - self._warm
        measured = Measured(found, self._warm, self.folder)
        if len(measured.latencies) < wanted:
            print(f"only {len(measured.latencies)} of {wanted} documents were consumed in time")
        return measured


def begun(target: Callable[..., None], *given: Any) -> tuple[Connection, Any]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=target, args=(theirs, *given))
    process.start()
    return ours, process


def of_the_plain_loop(
    broker: KafkaBroker, seconds: int, warm: int, partitions: int, stages: bool
) -> Measured:
    ends = Ends(broker, seconds, warm, partitions, stages)
    given = (broker.servers, ends.source, ends.target, partitions, ends.notes)
    pipe, process = begun(plain_loop, *given)
    pipe.recv()
    measured = ends.measured()
    pipe.send("end")
    process.join()
    return measured


def of_the_query(
    spark: SparkSession,
    broker: KafkaBroker,
    seconds: int,
    warm: int,
    partitions: int,
    times: str,
    stages: bool,
) -> Measured:
    ends = Ends(broker, seconds, warm, partitions, stages)
    front: Any = NotedFront if stages else ef.fronts.Kafka
    sink: Any = NotedSink if stages else ef.sinks.Kafka
    reads = front(broker.servers, ends.source, time=times, idle_ms=None)
    writes = sink(broker.servers, ends.target)
    if stages:
        reads.notes_to = writes.notes_to = ends.notes
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            index_flow(partitions)
            .live(spark)
            .read(documents=reads)
            .write(changes=writes)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        while query.status["message"] != "Running":
            time.sleep(0.1)
        measured = ends.measured()
        within = (query.lastProgress or {}).get("latencyMs")
        print(
            f"From when a document enters until its changes are stored: {within}", file=sys.stderr
        )
        query.stop()
    return measured


# Tables.


def percentile(found: list[float], percent: int) -> str:
    ordered = sorted(found)
    if not ordered:
        return ""
    return f"{ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]:.1f}"


def percentiles(found: list[float]) -> str:
    return " | ".join(percentile(found, percent) for percent in PERCENTS)


def print_latencies(
    spark: SparkSession,
    broker: KafkaBroker,
    seconds: int,
    warm: int,
    chosen: list[int],
    stages: bool,
) -> None:
    print(f"\nProduced to consumed, {RATE} documents a second (ms)\n")
    print("| partitions | | documents | " + " | ".join(f"p{p}" for p in PERCENTS) + " |")
    print("| --- | --- | --- | " + " | ".join("---" for _ in PERCENTS) + " |", flush=True)
    given = (broker, seconds, warm)
    shown: list[tuple[str, Measured]] = []
    for partitions, times in (
        (1, "timestamp"),
        (1, "arrival"),
        (1, None),
        (4, "arrival"),
        (4, None),
    ):
        if partitions not in chosen:
            continue
        if times is None:
            name, found = "plain loop, transactions", of_the_plain_loop(*given, partitions, stages)
        else:
            name = f"live, times of {times}"
            found = of_the_query(spark, *given, partitions, times, stages)
        print(
            f"| {partitions} | {name} | {len(found.latencies)} | {percentiles(found.latencies)} |",
            flush=True,
        )
        shown.append((f"{partitions} | {name}", found))
    if stages:
        print_stages(shown)


def print_stages(shown: list[tuple[str, Measured]]) -> None:
    steps = list(pairwise(STAGES))
    print("\nUntil it is ... (ms, p50 and p99 of each stage on its own)\n")
    print("| partitions | | " + " | ".join(after for _, after in steps) + " |")
    print("| --- | --- | " + " | ".join("---" for _ in steps) + " |", flush=True)
    for name, found in shown:
        cells = [
            f"{percentile(own, 50)}, {percentile(own, 99)}"
            for own in (found.stages.get(step, []) for step in steps)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
