"""Kafka: latency of the inverted index from produced to consumed, and topic to topic throughput.

    python bench/kafka.py [--seconds 20] [--warm 60] [--records 200000] [--rounds 3]
                          [--only latency|throughput|transactions] [--partitions 1 4] [--jvm tests]

A private broker, one node on this machine, shares its cores with everything else. Its JVM has the options
that Kafka's own script starts it with, and so compiles as a broker of users does; ``--jvm tests`` takes
the small one of the tests, which has no optimizing compiler. Exactly once
throughout: cuts, a transactional sink, and consumers that read committed. Each table has a row for
topics with one partition and one for topics with four.

- *Latency*: documents of 250 Zipf words at 50 a second. From the moment a document is handed to a
  producer to the moment a consumer has the last of its change records, in all partitions. Producer and
  consumer are a process of their own. The first ``--warm`` seconds do not count: the broker's compiler is
  at work meanwhile, on one of the cores. Documents have the times of their timestamps, or of their arrival. Only the latter with four partitions: by timestamps, a document waits
  for the next one in each of the other partitions, whatever the broker does.
- *Transactions*: the same rate of transactions without a query, four partitions (`kafka_transactions`).
- *Throughput*: the running count of words, from the first record in the output topic to the last, by
  their timestamps. For comparison, a plain loop of confluent-kafka in one process: consume, count in a
  dict, produce; without transactions, and with one per thousand records.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import engine
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kafka_transactions import print_transactions
from live.session import spark_session
from pyspark.sql import SparkSession

import emberflow as ef
from tests.adapters.kafka_broker import KAFKAS_JAVA, TESTS_JAVA, KafkaBroker, missing

RATE = 50
WORDS = 250
PERCENTS = (50, 75, 95, 99)
ROUNDS = 3
PARTITIONS = (1, 4)


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
    if partitions == 1:
        changes.sink("changes")
    else:
        changes.key_by(lambda change: change[1]).sink("changes", partitions=partitions)
    return flow


def count_flow(partitions: int) -> ef.Flow:
    flow = ef.Flow("count")
    counts = flow.front("words").key_by(lambda word: word).count()
    if partitions == 1:
        counts.sink("counts")
    else:
        counts.key_by(lambda pair: pair[0]).sink("counts", partitions=partitions)
    return flow


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


def client(
    told: Connection, servers: str, source: str, target: str, partitions: int, count: int, warm: int
) -> None:
    """A process that produces documents and consumes their changes; it sends back milliseconds."""
    words = engine.zipf_words(count * WORDS)
    documents = [
        json.dumps({"number": number, "words": words[number * WORDS :][:WORDS]}).encode()
        for number in range(count)
    ]
    begun, left = [0.0] * count, [WORDS] * count
    taken: dict[int, float] = {}
    deadline = time.monotonic() + count / RATE + 90

    def consume() -> None:
        reading = consumer(servers, target, partitions)
        while len(taken) < count and time.monotonic() < deadline:
            for message in reading.consume(5_000, 0.002):
                if message.error() is None:
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
    told.send(
        [(taken[number] - begun[number]) * 1_000 for number in sorted(taken) if number >= warm]
    )


def latencies(
    spark: SparkSession, broker: KafkaBroker, seconds: int, warm: int, partitions: int, times: str
) -> list[float]:
    """Milliseconds for each document that counts."""
    source, target = broker.topic(partitions), broker.topic(partitions)
    count = (warm + seconds) * RATE
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=client,
        args=(theirs, broker.servers, source, target, partitions, count, warm * RATE),
    )
    process.start()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            index_flow(partitions)
            .live(spark)
            .read(documents=ef.fronts.Kafka(broker.servers, source, time=times, idle_ms=None))
            .write(changes=ef.sinks.Kafka(broker.servers, target))
            .option("checkpointLocation", checkpoint)
            .start()
        )
        while query.status["message"] != "Running":
            time.sleep(0.1)
        ours.recv()
        ours.send("go")
        found: list[float] = ours.recv()
        process.join()
        within = (query.lastProgress or {}).get("latencyMs")
        print(
            f"From when a document enters until its changes are stored: {within}", file=sys.stderr
        )
        query.stop()
    if len(found) < seconds * RATE:
        print(f"only {len(found)} of {seconds * RATE} documents were consumed in time")
    return found


def written(broker: KafkaBroker, records: int, partitions: int) -> str:
    """A topic with words, dealt out to the partitions."""
    topic = broker.topic(partitions)
    producer = Producer({"bootstrap.servers": broker.servers, "enable.idempotence": True})
    for number, word in enumerate(engine.zipf_words(records)):
        producer.produce(topic, value=word.encode(), partition=number % partitions)
        if number % 50_000 == 49_999:  # the producer holds 100,000 records at most
            producer.flush(60)
    producer.flush(60)
    return topic


def live_rate(
    spark: SparkSession, broker: KafkaBroker, source: str, records: int, partitions: int
) -> float:
    """Records a second, from the first in the output topic to the last, by their timestamps."""
    target = broker.topic(partitions)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            count_flow(partitions)
            .live(spark)
            .read(
                words=ef.fronts.Kafka(
                    broker.servers, source, value="text", idle_ms=None, until_end=True
                )
            )
            .write(counts=ef.sinks.Kafka(broker.servers, target))
            .option("checkpointLocation", checkpoint)
            .start()
        )
        query.awaitTermination(600)
        query.stop()
    times: list[int] = []
    reading = consumer(broker.servers, target, partitions)
    while len(times) < records:
        messages = reading.consume(10_000, 0.2)
        times += [message.timestamp()[1] for message in messages if message.error() is None]
    reading.close()
    return records / ((max(times) - min(times)) / 1_000)


def plain_rate(
    broker: KafkaBroker, source: str, records: int, partitions: int, *, transactions: bool
) -> float:
    target = broker.topic(partitions)
    settings: dict[str, Any] = {"bootstrap.servers": broker.servers, "log_level": 0}
    if transactions:
        settings["transactional.id"] = f"plain {target}"
    producer = Producer({**settings, "enable.idempotence": True})
    if transactions:
        producer.init_transactions(30)
    reading = consumer(broker.servers, source, partitions)
    counts: Counter[str] = Counter()
    begin, done = 0.0, 0
    while done < records:
        messages = reading.consume(1_000, 0.05)
        begin = begin or time.monotonic()
        if transactions:
            producer.begin_transaction()
        for message in messages:
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                continue
            word = message.value().decode()
            counts[word] += 1
            value = json.dumps([word, counts[word]], separators=(",", ":")).encode()
            partition = zlib.crc32(message.value()) % partitions if partitions > 1 else 0
            try:
                producer.produce(target, value=value, partition=partition)
            except BufferError:
                producer.flush(30)
                producer.produce(target, value=value, partition=partition)
            done += 1
        if transactions:
            producer.commit_transaction(30)
        else:
            producer.poll(0)
    producer.flush(30)
    reading.close()
    return records / (time.monotonic() - begin)


def percentiles(found: list[float]) -> str:
    ordered = sorted(found)
    return " | ".join(
        f"{ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]:.1f}"
        for percent in PERCENTS
    )


def print_latencies(
    spark: SparkSession, broker: KafkaBroker, seconds: int, warm: int, chosen: list[int]
) -> None:
    print(f"\nProduced to consumed, {RATE} documents a second (ms)\n")
    print("| partitions | times of | documents | " + " | ".join(f"p{p}" for p in PERCENTS) + " |")
    print("| --- | --- | --- | " + " | ".join("---" for _ in PERCENTS) + " |", flush=True)
    for partitions, times in ((1, "timestamp"), (1, "arrival"), (4, "arrival")):
        if partitions not in chosen:
            continue
        found = latencies(spark, broker, seconds, warm, partitions, times)
        print(f"| {partitions} | {times} | {len(found)} | {percentiles(found)} |", flush=True)


def print_rates(
    spark: SparkSession, broker: KafkaBroker, records: int, rounds: int, chosen: list[int]
) -> None:
    print(f"\nRunning count of {records:,} words, topic to topic, median of {rounds} rounds\n")
    print("| partitions | | records a second | of the plain loop | of it with transactions |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for partitions in chosen:
        source = written(broker, records, partitions)
        rates: dict[str, list[float]] = {}
        for _ in range(rounds):
            given = (broker, source, records, partitions)
            for name, rate in (
                ("live, exactly once", live_rate(spark, *given)),
                ("plain loop", plain_rate(*given, transactions=False)),
                ("plain loop, transactions", plain_rate(*given, transactions=True)),
            ):
                rates.setdefault(name, []).append(rate)
        medians = {name: statistics.median(given) for name, given in rates.items()}
        plain, transactions = medians["plain loop"], medians["plain loop, transactions"]
        for name, median in medians.items():
            print(
                f"| {partitions} | {name} | {median:,.0f} | {median / plain:.2f} | "
                f"{median / transactions:.2f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--warm", type=int, default=60)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", choices=("latency", "throughput", "transactions"))
    parser.add_argument("--partitions", type=int, nargs="+", default=PARTITIONS)
    parser.add_argument("--jvm", choices=("kafka", "tests"), default="kafka")
    arguments = parser.parse_args()
    problem = missing()
    if problem is not None:
        sys.exit(f"The benchmark of Kafka cannot run: {problem}")
    broker = KafkaBroker(KAFKAS_JAVA if arguments.jvm == "kafka" else TESTS_JAVA)
    try:
        broker.start()
        print(f"Load of the machine at the beginning: {os.getloadavg()[0]:.1f}", flush=True)
        if arguments.only in (None, "transactions"):
            print_transactions(broker, arguments.seconds)
        if arguments.only == "transactions":
            return
        with spark_session() as spark:
            if arguments.only != "throughput":
                print_latencies(
                    spark, broker, arguments.seconds, arguments.warm, arguments.partitions
                )
            if arguments.only != "latency":
                print_rates(
                    spark, broker, arguments.records, arguments.rounds, arguments.partitions
                )
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
