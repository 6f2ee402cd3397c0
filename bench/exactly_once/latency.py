"""Latency by guarantee, ordering and interval.

The inverted index at 50 documents of 250 words a second, two workers. Latency is from the moment a
document is due to its last change record in the sink, a function in the driver.

The goal: exactly-once adds less than 10 ms to no guarantee, and does not depend on the interval. By
arrival, output waits for the snapshot, so the interval shows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from live.latency import PERCENTS, RATE, WORDS, percentiles, row
from pyspark.sql import SparkSession

from exactly_once import plots
from exactly_once.steady import measured

INTERVALS_MS = (50, 500, 1_000)
SECONDS = 15
QUICK_SECONDS = 2

#: Label, options, and whether cuts are taken.
KINDS: list[tuple[str, dict[str, Any], bool]] = [
    ("time, no checkpoint", {}, False),
    ("time, at-least-once", {"guarantee": "at-least-once"}, True),
    ("time, exactly-once", {}, True),
    ("arrival, no checkpoint", {"ordering": "arrival", "guarantee": "at-least-once"}, False),
    ("arrival, markers, exactly-once", {"ordering": "arrival"}, True),
]


def main(spark: SparkSession, *, quick: bool) -> None:
    heads = "".join(f"{f'p{percent} ms':>10}" for percent in PERCENTS)
    print(f"{f'latency, {RATE} documents a second of {WORDS} words':52}{heads}")
    count = RATE * (QUICK_SECONDS if quick else SECONDS)
    figures: dict[str, list[float]] = {}
    for kind, options, cuts in KINDS:
        for interval in (INTERVALS_MS[-1:] if quick else INTERVALS_MS) if cuts else (None,):
            label = kind if interval is None else f"{kind}, {interval:,} ms"
            with tempfile.TemporaryDirectory() as folder:
                given = dict(options)
                if interval is not None:
                    given["checkpointLocation"] = f"{folder}/checkpoint"
                    given["checkpointInterval"] = interval
                run = measured(spark, count, Path(folder), given)
            figures[label] = percentiles(run.milliseconds)
            row(f"  {label}", figures[label])
    plots.bars("latency", figures, [f"p{percent}" for percent in PERCENTS], "ms")
