"""Kafka: latency of the inverted index from produced to consumed, and topic to topic throughput.

    python bench/kafka.py [--seconds 20] [--records 200000]

A private broker, one node on this machine, shares its cores with everything else. Exactly once
throughout: cuts, a transactional sink, and consumers that read committed.

- *Latency*: documents of 250 Zipf words at 50 a second. From the moment a document is handed to a
  producer to the moment a consumer has the last of its change records. The first fifth does not
  count.
- *Throughput*: the running count of words, one partition each, from the first record in the output
  topic to the last, by their timestamps. For comparison, a plain loop of confluent-kafka in one
  process: consume, count in a dict, produce; without transactions, and with one per thousand
  records.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import engine
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from live.session import spark_session
from pyspark.sql import SparkSession

import emberflow as ef
from tests.adapters.kafka_broker import KafkaBroker, missing

RATE = 50
WORDS = 250
PERCENTS = (50, 75, 95, 99)
ROUNDS = 3


def index_flow() -> ef.Flow:
    flow = ef.Flow("index")
    postings = flow.front("documents").flat_map(
        lambda document: [(word, document["number"]) for word in document["words"]]
    )
    postings.key_by(lambda posting: posting[0]).reduce(
        first=lambda posting: (1, posting),
        combine=lambda held, posting: (held[0] + 1, posting),
    ).map(lambda held: [held[1][1], held[1][0], held[0]]).sink("changes")
    return flow


def count_flow() -> ef.Flow:
    flow = ef.Flow("count")
    flow.front("words").key_by(lambda word: word).count().sink("counts")
    return flow


def consumer(broker: KafkaBroker, topic: str) -> Any:
    made = Consumer(
        {
            "bootstrap.servers": broker.servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    made.assign([TopicPartition(topic, 0, 0)])
    return made


def latencies(spark: SparkSession, broker: KafkaBroker, seconds: int) -> list[float]:
    """Milliseconds for each document that counts."""
    source, target = broker.topic(), broker.topic()
    count = seconds * RATE
    words = engine.zipf_words(count * WORDS)
    begun, left = [0.0] * count, [WORDS] * count
    taken: dict[int, float] = {}
    over = threading.Event()

    def consume() -> None:
        reading = consumer(broker, target)
        while len(taken) < count and not over.is_set():
            for message in reading.consume(5_000, 0.002):
                if message.error() is None:
                    number = json.loads(message.value())[0]
                    left[number] -= 1
                    if not left[number]:
                        taken[number] = time.monotonic()
        reading.close()

    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            index_flow()
            .live(spark)
            .read(documents=ef.fronts.Kafka(broker.servers, source, idle_ms=None))
            .write(changes=ef.sinks.Kafka(broker.servers, target))
            .option("checkpointLocation", checkpoint)
            .start()
        )
        thread = threading.Thread(target=consume, daemon=True)
        thread.start()
        while query.status["message"] != "Running":
            time.sleep(0.1)
        producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
        begin = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begin + number / RATE - time.monotonic()))
            own = words[number * WORDS : (number + 1) * WORDS]
            begun[number] = time.monotonic()
            producer.produce(
                source, value=json.dumps({"number": number, "words": own}).encode(), partition=0
            )
            producer.poll(0)
        producer.flush(30)
        thread.join(60)
        over.set()
        query.stop()
    found = [(taken[number] - begun[number]) * 1_000 for number in taken if number >= count // 5]
    if len(taken) < count:
        print(f"only {len(taken)} of {count} documents were consumed in time")
    return found


def written(broker: KafkaBroker, records: int) -> str:
    topic = broker.topic()
    broker.produce(topic, [word.encode() for word in engine.zipf_words(records)])
    return topic


def live_rate(
    spark: SparkSession,
    broker: KafkaBroker,
    source: str,
    records: int,
    *,
    unit: str = "ms",
) -> float:
    """Records a second, from the first in the output topic to the last, by their timestamps."""
    target = broker.topic()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            count_flow()
            .live(spark)
            .read(
                words=ef.fronts.Kafka(
                    broker.servers, source, value="text", unit=unit, idle_ms=None, until_end=True
                )
            )
            .write(counts=ef.sinks.Kafka(broker.servers, target))
            .option("checkpointLocation", checkpoint)
            .start()
        )
        query.awaitTermination(600)
        query.stop()
    first, last, count = None, 0, 0
    reading = consumer(broker, target)
    while count < records:
        for message in reading.consume(10_000, 0.2):
            if message.error() is None:
                count += 1
                last = message.timestamp()[1]
                first = last if first is None else first
    reading.close()
    return records / ((last - (first or 0)) / 1_000)


def plain_rate(broker: KafkaBroker, source: str, records: int, transactions: bool) -> float:
    target = broker.topic()
    settings: dict[str, Any] = {"bootstrap.servers": broker.servers, "log_level": 0}
    if transactions:
        settings["transactional.id"] = f"plain {target}"
    producer = Producer({**settings, "enable.idempotence": True})
    if transactions:
        producer.init_transactions(30)
    reading = consumer(broker, source)
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
            try:
                producer.produce(target, value=value, partition=0)
            except BufferError:
                producer.flush(30)
                producer.produce(target, value=value, partition=0)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    problem = missing()
    if problem is not None:
        sys.exit(f"The benchmark of Kafka cannot run: {problem}")
    broker = KafkaBroker()
    try:
        broker.start()
        with spark_session() as spark:
            found = latencies(spark, broker, arguments.seconds)
            print(f"\nProduced to consumed, {RATE} documents a second, {len(found)} of them (ms)\n")
            print("| " + " | ".join(f"p{percent}" for percent in PERCENTS) + " |")
            print("| " + " | ".join("---" for _ in PERCENTS) + " |")
            print(f"| {percentiles(found)} |", flush=True)
            source = written(broker, arguments.records)
            rates: dict[str, list[float]] = {}
            for _ in range(arguments.rounds):
                for name, rate in (
                    (
                        "live, exactly once",
                        lambda: live_rate(spark, broker, source, arguments.records),
                    ),
                    ("plain loop", lambda: plain_rate(broker, source, arguments.records, False)),
                    (
                        "plain loop, transactions",
                        lambda: plain_rate(broker, source, arguments.records, True),
                    ),
                ):
                    rates.setdefault(name, []).append(rate())
        print(f"\nRunning count of {arguments.records:,} words, topic to topic, median of rounds\n")
        print("| | records a second | of the plain loop |\n| --- | --- | --- |")
        limit = statistics.median(rates["plain loop"])
        for name, given in rates.items():
            median = statistics.median(given)
            print(f"| {name} | {median:,.0f} | {median / limit:.2f} |")
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
