"""Kafka: latency of the inverted index from produced to consumed, and topic to topic throughput.

    python bench/kafka.py [--seconds 20] [--warm 60] [--records 200000] [--rounds 3]
                          [--only latency|throughput|transactions] [--partitions 1 4] [--jvm tests]
                          [--stages]

A private broker, one node on this machine, shares its cores with everything else. Its JVM has the options
that Kafka's own script starts it with, and so compiles as a broker of users does; ``--jvm tests`` takes
the small one of the tests, which has no optimizing compiler. Exactly once
throughout: cuts, a transactional sink, and consumers that read committed. Each table has a row for
topics with one partition and one for topics with four.

- *Latency* (`kafka_latency`): documents of 250 Zipf words at 50 a second, through the inverted index. From
  the moment a document is handed to a producer to the moment a consumer has the last of its change
  records, in all partitions. The first ``--warm`` seconds do not count: the broker's compiler is at work
  meanwhile, on one of the cores. Documents have the times of their timestamps, or of their arrival. Only
  the latter with four partitions: by timestamps, a document waits for the next one in each of the other
  partitions, whatever the broker does. For comparison, a plain loop in one process with a transaction for
  each poll. ``--stages`` shows where the time goes.
- *Transactions*: the same rate of transactions without a query, four partitions (`kafka_transactions`).
- *Throughput*: the running count of words, from the first record in the output topic to the last, by
  their timestamps. For comparison, a plain loop of confluent-kafka in one process: consume, count in a
  dict, produce; without transactions, and with one per thousand records.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import engine
from confluent_kafka import KafkaError, Producer
from kafka_latency import consumer, dealt_out, print_latencies
from kafka_transactions import print_transactions
from live.session import spark_session
from pyspark.sql import SparkSession

import emberflow as ef
from tests.adapters.kafka_broker import KAFKAS_JAVA, TESTS_JAVA, KafkaBroker, missing

ROUNDS = 3
PARTITIONS = (1, 4)


def count_flow(partitions: int) -> ef.Flow:
    flow = ef.Flow("count")
    counts = flow.front("words").key_by(lambda word: word).count()
    dealt_out(counts, lambda pair: pair[0], "counts", partitions)
    return flow


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
    spark: SparkSession,
    broker: KafkaBroker,
    source: str,
    records: int,
    partitions: int = 1,
    unit: Literal["ms", "us"] = "ms",
) -> float:
    """Records a second, from the first in the output topic to the last, by their timestamps."""
    target = broker.topic(partitions)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            count_flow(partitions)
            .live(spark)
            .read(
                words=ef.fronts.Kafka(
                    broker.servers, source, value="text", idle_ms=None, until_end=True, unit=unit
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
    parser.add_argument("--stages", action="store_true", help="show where latency goes")
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
                    spark,
                    broker,
                    arguments.seconds,
                    arguments.warm,
                    arguments.partitions,
                    arguments.stages,
                )
            if arguments.only != "latency":
                print_rates(
                    spark, broker, arguments.records, arguments.rounds, arguments.partitions
                )
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
