"""Live, two workers: the running count of words dealt out to the partitions of one front."""

from __future__ import annotations

import statistics

import engine
from live.counting import counted
from pyspark.sql import SparkSession

from emberflow import fronts

ELEMENTS = 500_000
ROUNDS = 3
PARTITIONS = (1, 2, 4, 8, 16)
ASKED = 0.8


def measured(spark: SparkSession, words: list[str], partitions: int) -> tuple[float, float]:
    """Words a second from the first output to the last, and the replay ratio."""
    front = fronts.Iterable(words, partitions=partitions)
    rate, progress = counted(spark, front, workers=2, count=len(words))
    return rate, progress["replayRatio"]


def main(spark: SparkSession, *, quick: bool) -> None:
    count, rounds = (50_000, 1) if quick else (ELEMENTS, ROUNDS)
    words = engine.zipf_words(count)
    print(
        f"{f'live, 2 workers, running count, {count:,} words':48}{'words/s':>12}"
        f"{'of one':>10}{'asked':>8}{'replays':>10}"
    )
    found: dict[int, list[tuple[float, float]]] = {partitions: [] for partitions in PARTITIONS}
    for _ in range(rounds):
        for partitions in PARTITIONS:
            found[partitions].append(measured(spark, words, partitions))
    one = statistics.median(rate for rate, _ in found[1])
    for partitions, own in found.items():
        rate = statistics.median(rate for rate, _ in own)
        ratio = statistics.median(ratio for _, ratio in own)
        label = f"{partitions} partition{'s' if partitions > 1 else ''}"
        asked = "" if partitions == 1 else f"{ASKED:.1f}"
        print(f"  {label:46}{rate:>12,.0f}{rate / one:>10.2f}{asked:>8}{ratio:>10.2f}", flush=True)
