"""Run time of a fixed input: asynchronous cuts, markers and stop-the-world at several intervals.

Each is compared with the same ordering without any. After the snapshot paper's Figure 6.

The flow has three shuffles, which make channels wait for markers: words by word, their counts by
count, and again by word. The time is from the first element read to the last record stored.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import engine
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from exactly_once import plots

WORDS = 300_000
QUICK_WORDS = 10_000
INTERVALS_MS = (100, 250, 500, 1_000, 3_000)

KINDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("time, cuts", {}, {}),
    (
        "arrival, markers",
        {"ordering": "arrival", "guarantee": "at-least-once"},
        {"ordering": "arrival", "snapshots": "markers"},
    ),
    ("arrival, stop the world", {}, {"ordering": "arrival", "snapshots": "stop"}),
]


def shuffling() -> ef.Flow:
    flow = ef.Flow("three shuffles")
    counted = flow.front("words").key_by(lambda word: word).count()
    by_count = counted.key_by(lambda pair: pair[1] % 97).reduce(
        first=lambda pair: (1, pair[0]), combine=lambda held, pair: (held[0] + 1, pair[0])
    )
    by_count.key_by(lambda held: held[1]).count().sink("counts")
    return flow


def seconds(spark: SparkSession, words: list[str], options: dict[str, Any]) -> tuple[float, int]:
    """How long it took, and how many cuts were made."""
    last_at = 0.0
    stored = 0

    def store(bundle: sinks.StoredBundle) -> None:
        nonlocal last_at, stored
        last_at = time.time()
        stored += len(bundle.payloads)

    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder, "begun")
        builder = (
            shuffling()
            .live(spark)
            .read(words=_Stamped(words, begun))
            .write(counts=sinks.Callback(store))
            .option("workers", 2)
        )
        for key, value in options.items():
            builder.option(key, value)
        if "checkpointInterval" in options:
            builder.option("checkpointLocation", f"{folder}/checkpoint")
        query = builder.start()
        try:
            assert query.awaitTermination(600), query.status
        finally:
            query.stop()
        assert stored == len(words), f"{stored} of {len(words)} records"
        cuts = (query.lastProgress or {}).get("cuts") or {}
        return last_at - float(begun.read_text()), cuts.get("count", 0)


class _Stamped(fronts.Iterable):
    """Records when it was first read."""

    def __init__(self, words: list[str], begun: Path) -> None:
        super().__init__(words)
        self._begun = begun

    def read_batches(self, partition: int, position: Any) -> Any:
        self._begun.write_text(str(time.time()))
        return super().read_batches(partition, position)


def main(spark: SparkSession, *, quick: bool) -> None:
    words = engine.zipf_words(QUICK_WORDS if quick else WORDS)
    intervals = INTERVALS_MS[1:2] if quick else INTERVALS_MS
    print(f"{f'run time of {len(words):,} words through three shuffles':52}", end="")
    print(f"{'none s':>10}" + "".join(f"{f'{interval:,} ms':>10}" for interval in intervals))
    curves: dict[str, list[float]] = {}
    none = 0.0
    for kind, without, options in KINDS:
        if not kind.endswith("stop the world"):  # its ordering was measured just before
            none, _ = seconds(spark, words, without)
        told = [
            seconds(spark, words, {**options, "checkpointInterval": interval})
            for interval in intervals
        ]
        curves[kind] = [took / none for took, _ in told]
        shown = "".join(f"{took / none:>9.2f}x" for took, _ in told)
        print(f"  {kind:50}{none:>10.2f}{shown}", flush=True)
        print(f"  {'  cuts made':50}{'':10}" + "".join(f"{cuts:>10}" for _, cuts in told))
    plots.curves(
        "runtime", list(intervals), curves, "ms between cuts", "run time, of that without cuts"
    )
