"""Latency: the inverted index at 50 documents a second of 250 Zipf words.

Latency is from the moment a document is taken in to the moment the last of its change records is in
the sink, which is a function in the driver in all systems. The live query runs on two workers,
three times. The first tenth of its documents, and the first quarter of Structured Streaming's, are
warm-up and do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import engine
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from live import streaming_latency

RATE = 50
WORDS = 250
ROUNDS = 3
DOCUMENTS = 500
PERCENTS = (50, 75, 95, 99)


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


def documents(count: int) -> list[list[str]]:
    words = engine.zipf_words(count * WORDS)
    return [words[number * WORDS : (number + 1) * WORDS] for number in range(count)]


class Documents:
    """A front that stamps each document when it is taken in, at a steady rate."""

    partitions = 1

    def __init__(self, given: list[list[str]]) -> None:
        self.given = given

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element]:
        begin = time.time()
        for number, words in enumerate(self.given):
            time.sleep(max(0.0, begin + number / RATE - time.time()))
            yield fronts.Element(number, (number, time.time(), words), number)


def live_latencies(spark: SparkSession) -> tuple[list[float], float]:
    """Milliseconds for each document, and the replay ratio."""
    given = documents(DOCUMENTS)
    left = [WORDS] * DOCUMENTS
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
    try:
        assert query.awaitTermination(120), "the documents take ten seconds"
    finally:
        query.stop()
    assert len(latencies) == DOCUMENTS, f"{len(latencies)} of {DOCUMENTS} documents are whole"
    progress = query.lastProgress or {}
    return latencies[DOCUMENTS // 10 :], progress.get("replayRatio", 1.0)


def percentiles(latencies: list[float]) -> list[float]:
    ordered = sorted(latencies)
    return [ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in PERCENTS]


def row(label: str, figures: list[float]) -> None:
    print(f"{label:52}" + "".join(f"{figure:>10,.1f}" for figure in figures), flush=True)


def main(spark: SparkSession) -> None:
    heads = "".join(f"{f'p{percent} ms':>10}" for percent in PERCENTS)
    print(f"{f'latency, {RATE} documents a second of {WORDS} words':52}{heads}")
    rounds = []
    for number in range(ROUNDS):
        latencies, ratio = live_latencies(spark)
        rounds.append(percentiles(latencies))
        row(f"  live, 2 workers, run {number + 1}, replay ratio {ratio:.2f}", rounds[-1])
    live = [statistics.median(figures) for figures in zip(*rounds, strict=True)]
    row(f"  live, median of {ROUNDS} (asked: p50 < 10, p99 < 50)", live)

    plain = streaming_latency.measured(spark, documents(RATE * 15), RATE, stateful=False)
    row("  Structured Streaming, plain micro-batch, no state", percentiles(plain.latencies))
    _with_state(spark, live)


def _with_state(spark: SparkSession, live: list[float]) -> None:
    """transformWithState at the rate, halved until it keeps up."""
    rate: float = RATE
    for _ in range(3):
        run = streaming_latency.measured(spark, documents(int(rate * 40)), rate, stateful=True)
        label = "  Structured Streaming, transformWithState"
        if rate != RATE:
            label += f", {rate:g}/s"
        if run.latencies:
            figures = percentiles(run.latencies)
            row(label, figures)
            print(f"    {run.story}; its p50 is {figures[0] / live[0]:,.0f} times live's")
        else:
            print(f"{label}: {run.story}")
        if run.kept_up:
            return
        rate /= 2
    print(
        f"    it kept up with none of these; the next to try would be {rate:g} documents a second"
    )
