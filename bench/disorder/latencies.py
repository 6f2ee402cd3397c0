"""Live, two workers: the inverted index at 50 documents a second, from four partitions and from one.

Documents get the time of their arrival. Latency is from the moment a document is taken in to the moment
the last of its change records is in the sink.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from live import latency
from pyspark.sql import SparkSession

from emberflow import fronts, sinks

ROUNDS = 3
PARTITIONS = (1, 4)
PERCENTS = (50, 99)


class Documents:
    """Deals out documents to its partitions at a steady rate, and stamps each when it is taken in."""

    arrival = True

    def __init__(self, given: list[list[str]], partitions: int) -> None:
        self.given = given
        self.partitions = partitions

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        begin = time.time()
        for number in range(partition, len(self.given), self.partitions):
            while (left := begin + number / latency.RATE - time.time()) > 0:
                time.sleep(min(left, 0.01))
                yield None
            payload = (number, time.time(), self.given[number])
            yield fronts.Element(number, payload, None)


def measured(spark: SparkSession, given: list[list[str]], partitions: int) -> list[float]:
    """Milliseconds for each document, without the first tenth."""
    left = [latency.WORDS] * len(given)
    found: list[float] = []

    def store(bundle: sinks.StoredBundle) -> None:
        now = time.time()
        for number, at, _, _ in bundle.payloads:
            left[number] -= 1
            if not left[number]:
                found.append((now - at) * 1_000)

    query = (
        latency.index_flow()
        .live(spark)
        .read(documents=Documents(given, partitions))
        .write(changes=sinks.Callback(store))
        .option("workers", 2)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    assert len(found) == len(given)
    return sorted(found[len(found) // 10 :])


def main(spark: SparkSession, *, quick: bool) -> None:
    given = latency.documents(100 if quick else latency.DOCUMENTS)
    print(
        f"{'live, 2 workers, inverted index, 50 documents/s, ms':52}{'p50':>8}{'p99':>8}{'asked':>16}"
    )
    rounds: dict[int, list[list[float]]] = {partitions: [] for partitions in PARTITIONS}
    measured(spark, given[:50], 1)  # starts the processes
    for _ in range(1 if quick else ROUNDS):
        for partitions in PARTITIONS:
            rounds[partitions].append(measured(spark, given, partitions))
    for partitions, own in rounds.items():
        p50, p99 = (
            statistics.median(one[len(one) * percent // 100] for one in own) for percent in PERCENTS
        )
        label = f"{partitions} partition{'s' if partitions > 1 else ''}"
        asked = "" if partitions == 1 else "1.3 times, < 20"
        print(f"  {label:50}{p50:>8.1f}{p99:>8.1f}{asked:>16}", flush=True)
