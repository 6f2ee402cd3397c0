"""Live on local Spark: the index by the number of workers, the rate, and the way to keep the order.

Each worker has a partition of the front. Documents are dealt out to them and get the time of their
arrival. All workers, the driver and Spark share the cores of one machine. The ways take turns, for
`ROUNDS` rounds; percentiles are of the latencies of all rounds, all else is their mean.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from live.session import spark_session
from pyspark.sql import SparkSession

from emberflow import fronts, sinks
from speculation import HEADS, Figures, documents, plots

WORKERS = (1, 2, 4)
RATES = (50, 100, 200)
SECONDS = 4
ROUNDS = 2
_DOCUMENTS_MIN = 80


class Run(NamedTuple):
    """One run. Times are milliseconds."""

    replay_ratio: float
    latencies: list[float]
    buffers: float
    barriers: float


class Documents:
    """Deals out documents to its partitions at a steady rate."""

    arrival = True

    def __init__(self, given: list[documents.Document], partitions: int, rate: float) -> None:
        self.partitions = partitions
        self._given = given
        self._rate = rate

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        begin = time.time()
        for number in range(partition, len(self._given), self.partitions):
            while (left := begin + number / self._rate - time.time()) > 0:
                time.sleep(min(left, 0.01))
                yield None
            document = self._given[number]
            yield fronts.Element(number, (number, time.time(), document), None)


def measured(
    spark: SparkSession, given: list[documents.Document], workers: int, rate: float, way: str
) -> Run:
    left = [len(document) for document in given]
    latencies: dict[int, float] = {}

    def store(bundle: sinks.StoredBundle) -> None:
        now = time.time()
        for number, at, _, _, _ in bundle.payloads:
            left[number] -= 1
            if not left[number]:
                latencies[number] = (now - at) * 1_000

    query = (
        documents.index_flow(workers)
        .live(spark)
        .read(documents=Documents(given, workers, rate))
        .write(changes=sinks.Callback(store))
        .option("workers", workers)
        ._judged_by(documents.WAYS[way])
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    assert not any(left)
    progress = query.lastProgress
    assert progress is not None
    waited = progress["waitedMs"]
    # The first tenth is the start.
    counted = [latencies[number] for number in range(len(given) // 10, len(given))]
    return Run(progress["replayRatio"], counted, waited["buffers"], waited["barriers"])


def together(runs: list[Run]) -> Figures:
    latencies = [latency for run in runs for latency in run.latencies]
    replay_ratio, buffers, barriers = (
        statistics.mean(getattr(run, figure) for run in runs)
        for figure in ("replay_ratio", "buffers", "barriers")
    )
    return Figures(replay_ratio, *documents.percentiles(latencies), buffers, barriers)


def main(*, quick: bool) -> None:
    most = 20 if quick else max(_DOCUMENTS_MIN, SECONDS * max(RATES))
    kind, given = documents.given(most)
    rates, workers = ((25,), (1, 2)) if quick else (RATES, WORKERS)
    found: plots.Found = {}
    machine = f"live on one machine with {os.cpu_count()} cores"
    print(f"{machine}; {kind}")
    print(f"{'workers, documents a second, way':40}{HEADS}")
    with spark_session() as spark:
        measured(spark, given[:20], max(workers), 25, "adaptive")  # starts the processes
        for count in workers:
            for rate in rates:
                own = given[: max(_DOCUMENTS_MIN, SECONDS * rate)]
                runs: dict[str, list[Run]] = {way: [] for way in documents.WAYS}
                for _ in range(1 if quick else ROUNDS):
                    for way in documents.WAYS:
                        runs[way].append(measured(spark, own, count, rate, way))
                for way in documents.WAYS:
                    figures = found[count, rate, way] = together(runs[way])
                    print(f"  {f'{count}, {rate}, {way}':38}{figures.cells}", flush=True)
    if not quick:
        plots.drawn_all("live", found, f"{kind}; {machine}", latency_workers=workers)
