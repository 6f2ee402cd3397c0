"""Live, one worker: rows out of order within one partition, of the same rows in order.

50,000 rows a second of event time; a fifth of them come up to five seconds too late. The front waits for
five seconds of event time, and the engine gets the rows in order.
"""

from __future__ import annotations

import statistics
from random import Random

import engine
from live.counting import counted
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts

ELEMENTS = 500_000
ROUNDS = 3
ROWS_A_MS = 50
DISORDER_MS = 5_000
LATE_SHARE = 0.2
ASKED = 0.7


def rows(count: int) -> list[ef.At]:
    dice = Random(5)
    words = engine.zipf_words(count)
    found = []
    for number, word in enumerate(words):
        at = number // ROWS_A_MS
        if dice.random() < LATE_SHARE:
            at -= dice.randrange(DISORDER_MS)
        found.append(ef.At(at, word))
    return found


def measured(spark: SparkSession, given: list[ef.At], disorder: int) -> float:
    """Rows a second from the first output to the last."""
    front = fronts.Iterable(given, disorder=disorder, on_late="fail")
    rate, _ = counted(spark, front, workers=1, count=len(given))
    return rate


def main(spark: SparkSession, *, quick: bool) -> None:
    count, rounds = (50_000, 1) if quick else (ELEMENTS, ROUNDS)
    disordered = rows(count)
    ordered = sorted(disordered, key=lambda row: row.time)
    print(
        f"{f'live, 1 worker, running count, {count:,} rows':48}{'rows/s':>12}"
        f"{'of ordered':>12}{'asked':>8}"
    )
    found: dict[str, list[float]] = {"in order": [], "20% late by up to 5 s, disorder=5 s": []}
    for _ in range(rounds):
        for own, given, disorder in zip(
            found.values(), (ordered, disordered), (0, DISORDER_MS), strict=True
        ):
            own.append(measured(spark, given, disorder))
    medians = {label: statistics.median(own) for label, own in found.items()}
    for label, rate in medians.items():
        asked = "" if label == "in order" else f"{ASKED:.1f}"
        ratio = rate / medians["in order"]
        print(f"  {label:46}{rate:>12,.0f}{ratio:>12.2f}{asked:>8}", flush=True)
