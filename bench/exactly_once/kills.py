"""Latency through three kills (SIGKILL) of a Python worker, with a cut each second.

As in the delivery paper's Figure 9. The goal is full recovery in less than 5 s on local Spark.

A query has recovered when a document that was due after the kill, and all later ones until the next
kill, are stored within twice the p99 before the first kill (at least 50 ms more than it).
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from live.latency import RATE, percentiles
from pyspark.sql import SparkSession

from exactly_once import plots
from exactly_once.steady import Run, measured

INTERVAL_MS = 1_000
KILLS = 3
SECONDS_BETWEEN = 15
QUICK_KILLS = 1
QUICK_SECONDS_BETWEEN = 6

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("time, exactly-once", {}),
    ("arrival, markers, exactly-once", {"ordering": "arrival"}),
]


def main(spark: SparkSession, *, quick: bool) -> None:
    kills = QUICK_KILLS if quick else KILLS
    between = QUICK_SECONDS_BETWEEN if quick else SECONDS_BETWEEN

    def kill(run: Run, folder: Path, begin: float) -> None:
        killed: set[int] = set()
        for number in range(kills):
            at = begin + (number + 1) * between
            time.sleep(max(0.0, at - time.time()))
            while (pid := int((folder / "pid").read_text())) in killed:
                time.sleep(0.01)  # the previous life has no successor yet
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            run.kills.append(time.time() - begin)

    print(f"latency through {kills} kills of a worker, {INTERVAL_MS:,} ms between cuts")
    runs: dict[str, Run] = {}
    for kind, options in KINDS:
        with tempfile.TemporaryDirectory() as folder:
            given = {
                **options,
                "checkpointLocation": f"{folder}/checkpoint",
                "checkpointInterval": INTERVAL_MS,
            }
            count = RATE * between * (kills + 1)
            run = runs[kind] = measured(spark, count, Path(folder), given, kill)
        before = [at_ms for at, at_ms in run.latencies if 1 < at < run.kills[0]]
        usual = percentiles(before)[-1]
        seconds = [recovered(run, number, usual) for number in range(kills)]
        told = ", ".join("the end" if one is None else f"{one:.1f} s" for one in seconds)
        print(
            f"  {kind:40} p99 before {usual:8,.1f} ms; {run.recoveries} recoveries; full recovery "
            f"after {told}"
        )
    plots.over_time("kills", {kind: (run.latencies, run.kills) for kind, run in runs.items()})


def recovered(run: Run, number: int, usual_ms: float) -> float | None:
    """Seconds from a kill until latency is back to normal, and stays there."""
    begin = run.kills[number]
    end = run.kills[number + 1] if number + 1 < len(run.kills) else float("inf")
    limit = max(2 * usual_ms, usual_ms + 50)
    slow = [at for at, latency in run.latencies if begin < at < end and latency > limit]
    later = [at for at, _ in run.latencies if max(slow, default=begin) < at < end]
    return min(later) - begin if later else None
