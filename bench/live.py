"""Live on Spark: latency and throughput, next to a micro-batch of Spark's and a plain loop.

    python bench/live.py [--elements 1000000] [--documents 500]

- *Latency*: documents of 250 Zipf words at 50 a second through word, count and change record, two
  workers; from the moment the front takes a document in to the moment its last record is in the
  sink. Beside it, Structured Streaming: as many words through a plain micro-batch without state, a
  row waiting for half the batch before its own and then for its own.
- *Throughput*: a running count by key, Zipf(1.1) over 50,000 words, from a front to a sink on two
  workers, against a plain dict loop in one process.

All in one run, because machines are fast and slow by turns; medians of three where it says so.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import engine
import pandas as pd
from pyspark.sql import DataFrame, SparkSession

import emberflow as ef
from emberflow import fronts, sinks

RATE = 50
WORDS = 250
ROUNDS = 3


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return (
        SparkSession.builder.master("local[4]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "FATAL")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def index_flow() -> ef.Flow:
    flow = ef.Flow("index")
    documents = flow.front("documents")
    postings = documents.flat_map(
        lambda document: [(word, document[0], document[1]) for word in document[2]]
    )
    postings.key_by(lambda posting: posting[0]).reduce(
        first=lambda posting: (1, posting),
        combine=lambda held, posting: (held[0] + 1, posting),
    ).map(lambda held: (held[1][1], held[1][2], held[1][0], held[0])).sink("changes")
    return flow


def documents(count: int) -> list[tuple[int, list[str]]]:
    words = engine.zipf_words(count * WORDS)
    return [(number, words[number * WORDS : (number + 1) * WORDS]) for number in range(count)]


class Documents:
    """A front that stamps each document when it is taken in, at a steady rate."""

    partitions = 1

    def __init__(self, given: list[tuple[int, list[str]]]) -> None:
        self.given = given

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element]:
        begin = time.time()
        for number, words in self.given:
            time.sleep(max(0.0, begin + number / RATE - time.time()))
            yield fronts.Element(number, (number, time.time(), words), number)


def live_latencies(spark: SparkSession, count: int) -> tuple[list[float], dict[str, Any]]:
    given = documents(count)
    left = dict.fromkeys(range(count), WORDS)
    latencies: list[float] = []

    def store(bundle: sinks.StoredBundle) -> None:
        now = time.time()
        for number, at, _, _ in bundle.payloads:
            left[number] -= 1
            if not left[number]:
                latencies.append((now - at) * 1_000)

    query = (
        index_flow()
        .live(spark)
        .read(documents=Documents(given))
        .write(changes=sinks.Callback(store))
        .option("workers", 2)
        .start()
    )
    query.awaitTermination(600)
    query.stop()
    assert len(latencies) == count
    return latencies[count // 10 :], query.lastProgress or {}


def micro_batch_latencies(spark: SparkSession, seconds: int) -> list[float]:
    rows = spark.readStream.format("rate").option("rowsPerSecond", RATE).load()

    def split(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            # About Zipf's law, by its inverse: a list of words would be too long for Spark's plan.
            stamped = [
                (f"word-{int(50_000 ** ((value * WORDS + number) * 7919 % 9973 / 9973))}", at)
                for value, at in zip(frame["value"], frame["timestamp"], strict=True)
                for number in range(WORDS)
            ]
            yield pd.DataFrame(stamped, columns=["word", "at"])

    words: DataFrame = rows.mapInPandas(split, "word string, at timestamp")
    latencies: list[float] = []

    def store(batch: DataFrame, number: int) -> None:
        batch.write.format("noop").mode("overwrite").save()

    with tempfile.TemporaryDirectory() as folder:
        query = (
            words.writeStream.outputMode("update")
            .foreachBatch(store)
            .option("checkpointLocation", folder)
            .start()
        )
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and query.isActive:
            time.sleep(0.5)
        for progress in query.recentProgress:
            if progress.numInputRows and progress.batchId > 1:
                # A row waits for the batch before its own, half of one on average, and then its own.
                duration = float(progress.durationMs["triggerExecution"])
                latencies += [duration * 1.5] * max(1, int(progress.numInputRows))
        query.stop()
    return latencies


def live_rate(spark: SparkSession, words: list[str], workers: int) -> float:
    seen: list[tuple[float, int]] = []

    def store(bundle: sinks.StoredBundle) -> None:
        seen.append((time.perf_counter(), len(bundle.payloads)))

    query = (
        engine.count_flow()
        .live(spark)
        .read(words=fronts.Iterable(words))
        .write(counts=sinks.Callback(store))
        .option("workers", workers)
        .start()
    )
    query.awaitTermination(600)
    query.stop()
    assert sum(count for _, count in seen) == len(words)
    return (len(words) - seen[0][1]) / (seen[-1][0] - seen[0][0])


def percentiles(latencies: list[float]) -> str:
    ordered = sorted(latencies)
    return "".join(
        f"{ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]:>10.1f}"
        for percent in (50, 75, 95, 99)
    )


def main(elements: int = 1_000_000, count: int = 500) -> None:
    spark = session()
    try:
        print(
            f"{f'latency, {RATE} documents a second':44}{'p50':>10}{'p75':>10}{'p95':>10}{'p99':>10}"
        )
        for number in range(ROUNDS):
            latencies, progress = live_latencies(spark, count)
            ratio = progress.get("replayRatio", 1.0)
            label = f"  live, run {number + 1} (replay ratio {ratio:.2f})"
            print(f"{label:44}{percentiles(latencies)}  ms")
        print(
            f"{'  plain micro-batch, no state':44}{percentiles(micro_batch_latencies(spark, 20))}  ms"
        )

        words = engine.zipf_words(elements)
        plain = len(words) / engine.timed(engine.plain_count, words)
        print(f"\n{f'throughput, {elements:,} elements':44}{'elements/s':>12}{'of plain loop':>16}")
        print(f"{'  plain Python dict loop':44}{plain:>12,.0f}{1:>16.3f}")
        for workers in (1, 2):
            rate = statistics.median(live_rate(spark, words, workers) for _ in range(ROUNDS))
            label = f"  live, {workers} workers, median of {ROUNDS}"
            print(f"{label:44}{rate:>12,.0f}{rate / plain:>16.3f}")
    finally:
        spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--documents", type=int, default=500)
    arguments = parser.parse_args()
    main(arguments.elements, arguments.documents)
