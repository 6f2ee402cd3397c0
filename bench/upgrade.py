"""Upgrades: how long output stands still while a new version takes over a running count.

A running count with many keys, in state before the clock starts, at a fixed rate. Each element carries the
time at which it was due, so its latency includes all waiting. The same run three times: without an
upgrade, with `query.upgrade`, and with the query stopped and started again with the new version. All
processes are of this machine, and its monotonic clock is the same for all.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from live.session import spark_session
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks

RATE = 20_000
KEYS = (100_000, 1_000_000)
BEFORE_SECONDS, AFTER_SECONDS = 4.0, 8.0
WAYS = ("no upgrade", "upgrade", "stop and start")


class Output(NamedTuple):
    at: float
    due: float


def counted(generation: int) -> ef.Flow:
    flow = ef.Flow("counts")
    keyed = flow.front("events").key_by(lambda event: event[0])
    counts = keyed.fold(
        initial=(0, 0.0), combine=lambda held, e: (held[0] + 1, e[1]), name="counts"
    )
    counts.map(lambda held: (generation, *held)).sink("out")
    return flow


def given(keys: int, rate: int, count: int, begun: Path) -> Iterator[tuple[int, float]]:
    """Every key once, at once; then one event after another, when it is due."""
    for key in range(keys):
        yield key, 0.0
    if not begun.exists():
        begun.write_text(repr(time.monotonic() + 1.0))
    begin = float(begun.read_text())
    for number in range(count):
        due = begin + number / rate
        wait = due - time.monotonic()
        if wait > 0.001:
            time.sleep(wait)
        yield number * 7919 % keys, due


def measured(spark: SparkSession, keys: int, rate: int, way: str) -> dict[str, float]:
    count = int(rate * (BEFORE_SECONDS + AFTER_SECONDS))
    outputs: list[Output] = []
    stored = 0

    def store(bundle: Any) -> None:
        nonlocal stored
        now = time.monotonic()
        stored += len(bundle.payloads)
        outputs.extend(Output(now, due) for _, _, due in bundle.payloads if due)

    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder) / "begun"
        sink = sinks.Callback(store)

        def started(generation: int) -> Any:
            front = fronts.Iterable(lambda: given(keys, rate, count, begun))
            return (
                counted(generation)
                .live(spark)
                .read(events=front)
                .write(out=sink)
                .option("workers", 2)
                .option("checkpointLocation", f"{folder}/checkpoint")
                .start()
            )

        query = started(0)
        try:
            while not outputs or time.monotonic() < outputs[0].due + BEFORE_SECONDS:
                assert query.isActive, query.exception()
                time.sleep(0.01)
            called = time.monotonic()
            if way == "upgrade":
                query.upgrade(counted(1))
            elif way == "stop and start":
                query.stop()
                query = started(1)
            returned = time.monotonic()
            assert query.awaitTermination(300)
        finally:
            query.stop()
    assert stored == keys + count, f"{stored} of {keys + count}"
    near = [output for output in outputs if called - 0.5 <= output.at]
    gaps = [later.at - earlier.at for earlier, later in pairwise(near)]
    resumed = called if way == "no upgrade" else max(called, near[gaps.index(max(gaps))].at)
    around = sorted(
        1_000 * (output.at - output.due) for output in outputs if abs(output.due - resumed) < 0.5
    )
    return {
        "gap": 1_000 * max(gaps),
        "p99": around[int(0.99 * (len(around) - 1))],
        "call": 1_000 * (returned - called),
    }


def main(*, quick: bool = False) -> None:
    rounds = 1 if quick else 3
    with spark_session() as spark:
        for keys in (1_000,) if quick else KEYS:
            print(
                f"{f'running count, {keys:,} keys, {RATE:,} a second':48}{'gap, ms':>12}"
                f"{'p99 around, ms':>16}{'call, ms':>12}"
            )
            found = [{way: measured(spark, keys, RATE, way) for way in WAYS} for _ in range(rounds)]
            for way in WAYS:
                gap, p99, call = (
                    statistics.median(one[way][what] for one in found)
                    for what in ("gap", "p99", "call")
                )
                print(f"  {way:46}{gap:>12,.0f}{p99:>16,.0f}{call:>12,.0f}", flush=True)
