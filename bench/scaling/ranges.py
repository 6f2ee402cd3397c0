"""Latency of the output of keys that are free while those of another worker are slow (early key availability).

The greatest number of each key, from three workers to a sink whose eight partitions are chosen by the key: free
keys are in partitions that worker 1 alone can reach, and slow ones in one of worker 2, which sleeps for each of
their elements. Worker 0 reads the front. The same with a key function that passes the key on by a way that is
not followed (`emberflow.values.proofs`): then all output waits for the slow worker. Latency is from when an
element was due until its output is in the sink, in the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from typing import Any

from live.latency import percentiles
from live.session import spark_session
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.values.hashing import key_hash, owner
from emberflow.work import watched

WORKERS, PARTITIONS = 3, 8
FREE, SLOW = (2, 3), (7,)
#: Elements a second, of free keys and of slow ones; and how long one of the latter takes.
FREE_RATE, SLOW_RATE = 500, 10
SLOW_SECONDS = 0.05
KEYS = 50
WARM_SECONDS, SECONDS = 2.0, 8.0


def _keys(partitions: tuple[int, ...]) -> list[str]:
    found: list[str] = []
    for number in count():
        key = f"key {number}"
        if owner(key_hash(key), PARTITIONS) in partitions:
            found.append(key)
        if len(found) == KEYS:
            break
    return found


class Numbers:
    """``(key, due, seconds that it takes)``, due at a steady rate."""

    partitions = 1
    arrival = True

    def __init__(self, slow_seconds: float, seconds: float) -> None:
        self._slow_seconds, self._seconds = slow_seconds, seconds

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element]:
        free, slow = cycle(_keys(FREE)), cycle(_keys(SLOW))
        begin = time.time()
        for number in range(int(self._seconds * FREE_RATE)):
            due = begin + number / FREE_RATE
            time.sleep(max(0.0, due - time.time()))
            if number % (FREE_RATE // SLOW_RATE):
                yield fronts.Element(number, (next(free), due, 0.0))
            else:
                yield fronts.Element(number, (next(slow), due, self._slow_seconds))


def _latest(held: Any, given: tuple[str, float, float]) -> tuple[float, bool]:
    if given[2]:
        time.sleep(given[2])
    return given[1], bool(held)


def _key(found: tuple[str, Any]) -> str:
    return found[0]


def _key_not_followed(found: tuple[str, Any]) -> str:
    return str(found[0])


def latencies(
    spark: SparkSession, key: Callable[[Any], str], slow_seconds: float, seconds: float
) -> list[float]:
    """Milliseconds, of the elements of free keys."""
    found: list[tuple[float, float]] = []

    def store(bundle: sinks.StoredBundle) -> None:
        if bundle.partition in FREE:
            now = time.time()
            found.extend((due, now - due) for _, (due, _) in bundle.payloads)

    flow = ef.Flow("ranges")
    kept = flow.front("numbers").key_by(lambda given: given[0])
    latest = kept.fold(initial=None, combine=_latest, with_key=True)
    latest.key_by(key).sink("latest", partitions=PARTITIONS)
    query = (
        flow.live(spark)
        .read(numbers=Numbers(slow_seconds, WARM_SECONDS + seconds))
        .write(latest=sinks.Callback(store))
        .option("workers", WORKERS)
        .start()
    )
    try:
        assert query.awaitTermination(120), query.status
    finally:
        query.stop()
    begin = min(due for due, _ in found) + WARM_SECONDS
    return [1_000 * late for due, late in found if due >= begin]


def main(*, quick: bool) -> None:
    seconds = 2.0 if quick else SECONDS
    print(f"{'latency of free keys, ms':44}{'p50':>8}{'p75':>8}{'p95':>8}{'p99':>8}")
    ways: dict[str, tuple[Callable[[Any], str], float]] = {
        "none is slow": (_key, 0.0),
        "another range is slow": (_key, SLOW_SECONDS),
        "another range is slow, the key not followed": (_key_not_followed, SLOW_SECONDS),
    }
    with spark_session(cores=WORKERS) as spark:
        latencies(spark, _key, 0.0, 1.0)  # starts the processes
        for way, (key, slow_seconds) in watched("ways", ways.items(), len(ways)):
            own = percentiles(latencies(spark, key, slow_seconds, seconds))
            print(f"  {way:42}" + "".join(f"{one:>8.1f}" for one in own), flush=True)
