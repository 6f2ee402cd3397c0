"""Seconds until a query has recovered from the loss of one of three workers, with 100,000 keys.

By turns: the other processes stay, and the keeper of the lost one forks another; and the Spark job is ended
and started again, as it was before there were keepers (a fixed port of the coordinator has that effect).

A query has recovered when everything that was due after the kill, and all that comes later, is stored
within twice the p99 before the kill (at least 50 ms more than it). Elements are due at fixed times, so
those that came meanwhile count.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from array import array
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

from live.latency import percentiles
from live.waiting import free_port, until
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks

KEYS, QUICK_KEYS = 100_000, 5_000
RATE = 5_000
WORKERS = 3
ROUNDS, QUICK_ROUNDS = 5, 1
INTERVAL_MS = 1_000
_SETTLE_SECONDS = 3.0
_SECONDS_AFTER = 6.0
_WAIT_SECONDS = 120.0


class Numbers:
    """Each key once; then, from ``begin`` on, elements that are due at a steady rate."""

    partitions = 1
    arrival = False

    def __init__(self, keys: int, folder: Path) -> None:
        self._keys = keys
        self._begin, self._end = folder / "begin", folder / "end"

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        number = 0 if position is None else position + 1
        for first in range(number, self._keys):
            yield fronts.Element(first, (first, 0.0), first)
        number = max(number, self._keys)
        while not self._begin.exists():
            time.sleep(0.01)
            yield None
        begin = float(self._begin.read_text())
        while not self._end.exists():
            due = begin + (number - self._keys) / RATE
            while (left := due - time.time()) > 0:
                time.sleep(min(left, 0.02))
                yield None
            yield fronts.Element(number, (number * 7_919 % self._keys, due), number)
            number += 1


def counting() -> ef.Flow:
    flow = ef.Flow("100,000 keys")
    flow.front("numbers").key_by(lambda given: given[0]).reduce(
        first=lambda given: (given[0], 1, given[1]),
        combine=lambda held, given: (held[0], held[1] + 1, given[1]),
    ).sink("counts")
    return flow


def recovered(spark: SparkSession, keys: int, folder: Path, options: dict[str, Any]) -> float:
    """Seconds from the kill to full recovery."""
    # In arrays: Python's collector would look at a million tuples again and again, for up to a tenth of a
    # second, and the driver's threads, in the same process, would wait for it.
    dues, stored_at = array("d"), array("d")

    def store(bundle: sinks.StoredBundle) -> None:
        now = time.time()
        own = [due for _, _, due in bundle.payloads if due]
        dues.extend(own)
        stored_at.extend(repeat(now, len(own)))

    builder = (
        counting()
        .live(spark)
        .read(numbers=Numbers(keys, folder))
        .write(counts=sinks.Callback(store))
        .option("workers", WORKERS)
        .option("checkpointLocation", folder / "checkpoint")
        .option("checkpointInterval", INTERVAL_MS)
    )
    for key, value in options.items():
        builder.option(key, value)
    query = builder.start()
    try:
        until(lambda: ((query.lastProgress or {}).get("released") or 0) >= keys, query)
        time.sleep(_SETTLE_SECONDS)  # a cut that has them all
        begin = time.time() + 0.2
        (folder / "begin.new").write_text(str(begin))
        (folder / "begin.new").rename(folder / "begin")
        time.sleep(_SETTLE_SECONDS)
        progress = query.lastProgress
        assert progress is not None
        killed_at = time.time()
        os.kill(progress["pids"][0], signal.SIGKILL)
        until(lambda: query.recoveries and query.status["message"] == "Running", query)
        time.sleep(_SECONDS_AFTER)
        (folder / "end").touch()
        assert query.awaitTermination(_WAIT_SECONDS), query.status
    finally:
        query.stop()
    late = [(due, at - due) for due, at in zip(dues, stored_at, strict=True)]
    before = [latency for due, latency in late if begin + 0.5 < due < killed_at - 0.1]
    usual = percentiles(before)[-1]
    limit = max(2 * usual, usual + 0.05)
    slow = [due + latency for due, latency in late if due > killed_at - 0.1 and latency > limit]
    return max(slow, default=killed_at) - killed_at


def main(spark: SparkSession, *, quick: bool) -> None:
    keys, rounds = (QUICK_KEYS, QUICK_ROUNDS) if quick else (KEYS, ROUNDS)
    print(
        f"seconds to full recovery, 1 of {WORKERS} workers killed, {keys:,} keys, {RATE:,} elements/s"
    )
    taken: dict[str, list[float]] = {"the others stay": [], "all start again": []}
    for _ in range(rounds):
        for kind, seconds in taken.items():
            options: dict[str, Any] = {}
            if kind == "all start again":
                options["coordinatorHost"] = f"127.0.0.1:{free_port()}"
            with tempfile.TemporaryDirectory() as folder:
                seconds.append(recovered(spark, keys, Path(folder), options))
    for kind, seconds in taken.items():
        told = ", ".join(f"{one:.2f}" for one in seconds)
        print(f"  {kind:20} median {statistics.median(seconds):.2f} s ({told})", flush=True)
