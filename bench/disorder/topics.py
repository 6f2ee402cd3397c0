"""From Kafka, two workers, exactly once: a topic of four partitions against one of one partition.

A private broker on this machine shares its cores with everything else. The running count of the same
words goes from topic to topic: cuts, a transactional sink, and a consumer that reads committed. Words
are dealt out to the partitions, and a word's timestamp is its place among all words, so that the
partitions of a topic are level.
"""

from __future__ import annotations

import statistics

import engine
import kafka
from pyspark.sql import SparkSession

from tests.adapters.kafka_broker import KafkaBroker, missing

RECORDS = 400_000
ROUNDS = 3
PARTITIONS = (1, 4)
ASKED = 0.8
#: Timestamps count milliseconds, so a hundred words share one.
_WORDS_A_MILLISECOND = 100
_BEGIN_MS = 1_700_000_000_000


def written(broker: KafkaBroker, words: list[str], partitions: int) -> str:
    """A new topic with the words."""
    topic = broker.topic(partitions)
    for partition in range(partitions):
        own = range(partition, len(words), partitions)
        broker.produce(
            topic,
            [words[number].encode() for number in own],
            partition=partition,
            timestamp=lambda number, own=own: _BEGIN_MS + own[number] // _WORDS_A_MILLISECOND,
        )
    return topic


def main(spark: SparkSession, *, quick: bool) -> None:
    problem = missing()
    if problem is not None:
        print(f"from Kafka: no figures, because {problem}")
        return
    count, rounds = (20_000, 1) if quick else (RECORDS, ROUNDS)
    words = engine.zipf_words(count)
    print(
        f"{f'from Kafka, 2 workers, exactly once, {count:,} words':48}{'words/s':>12}{'of one':>10}"
        f"{'asked':>8}"
    )
    broker = KafkaBroker()
    try:
        broker.start()
        topics = {partitions: written(broker, words, partitions) for partitions in PARTITIONS}
        kafka.live_rate(spark, broker, written(broker, words[:1_000], 1), 1_000, unit="us")
        found: dict[int, list[float]] = {partitions: [] for partitions in PARTITIONS}
        for _ in range(rounds):
            for partitions, topic in topics.items():
                rate = kafka.live_rate(spark, broker, topic, count, unit="us")
                found[partitions].append(rate)
    finally:
        broker.stop()
    one = statistics.median(found[1])
    for partitions, own in found.items():
        rate = statistics.median(own)
        label = f"{partitions} partition{'s' if partitions > 1 else ''}"
        asked = "" if partitions == 1 else f"{ASKED:.1f}"
        print(f"  {label:46}{rate:>12,.0f}{rate / one:>10.2f}{asked:>8}", flush=True)
