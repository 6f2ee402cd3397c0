"""Many transactions of one element on few keys, compared with one transaction per element.

Everything that one element begets has one global time, and is settled in turns
(`engine/speculation/turns.py`) where it does not agree by itself: each turn is a round trip to the
driver. The same transactions as separate elements are settled by global times. A fifth of them is
refused, and the outcome of each depends on all before it: the greatest possible contention.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from transactions.measuring import wait

#: The first number, and how many.
Crowd: TypeAlias = tuple[int, int]

COUNTS = (100, 300, 1_000)
QUICK_COUNTS = (30,)
#: One of them is for warm-up.
ELEMENTS = 4
KEYS = 5
_NAP_SECONDS = 0.002


def main(spark: SparkSession, *, quick: bool) -> None:
    print(f"{'transactions of one element, ms for each of them':50}{'together':>12}{'alone':>12}")
    for count in QUICK_COUNTS if quick else COUNTS:
        together = [(number * 7, count) for number in range(ELEMENTS)]
        alone = [(first + i, 1) for first, _ in together for i in range(count)]
        found = [_milliseconds(spark, given, count) for given in (together, alone)]
        print(f"  {count:<48,}" + "".join(f"{each:>12.2f}" for each in found), flush=True)


def _milliseconds(spark: SparkSession, given: list[Crowd], count: int) -> float:
    """Milliseconds per transaction, from the release of the later elements until all is stored."""
    total = ELEMENTS * count
    stored = _Stored(count, total)
    flow = crowds()
    with tempfile.TemporaryDirectory() as name:
        go = Path(name) / "go"
        query = (
            flow.live(spark)
            .read(crowds=_Given(given, len(given) // ELEMENTS, go))
            .write(**{sink: sinks.Callback(stored.store) for sink in flow.graph().sinks})
            .option("workers", 2)
            .option("checkpointLocation", f"{name}/checkpoint")
            .start()
        )
        try:
            wait(query, stored.first_is_over)
            begin = time.perf_counter()
            go.touch()
            wait(query, stored.all_is_over)
            return (time.perf_counter() - begin) * 1_000 / (total - count)
        finally:
            query.stop()


def crowds() -> ef.Flow:
    flow = ef.Flow("crowds")
    purse = flow.state("purses", default=20)
    numbers = flow.front("crowds").flat_map(lambda crowd: range(crowd[0], crowd[0] + crowd[1]))
    with numbers.transaction() as tx:
        tx.key_by(lambda n: n % KEYS).update(
            purse, lambda value, n: (value * 3 + n) % 50 - 5, check=lambda value: value >= 0
        )
        tx.key_by(lambda n: (n * 5 + 1) % KEYS).update(
            purse, lambda value, n: value - n % 7, check=lambda value: value >= -1
        )
        tx.key_by(lambda n: (n * 11 + 3) % KEYS).update(
            purse, lambda value, n: value + n % 4, check=lambda value: value < 50
        )
    tx.committed.sink("committed")
    tx.rejected.sink("rejected")
    return flow


class _Given:
    """Emits some elements at once, and the others when a file exists."""

    partitions = 1
    arrival = True

    def __init__(self, elements: list[Crowd], first: int, go: Path) -> None:
        self._elements = elements
        self._first = first
        self._go = go

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        raise NotImplementedError("it is read in batches")

    def read_batches(self, partition: int, position: Any) -> Iterator[fronts.Batch | None]:
        yield fronts.Batch(range(self._first), self._elements[: self._first])
        while not self._go.exists():
            time.sleep(_NAP_SECONDS)
            yield None
        rest = self._elements[self._first :]
        yield fronts.Batch(range(self._first, len(self._elements)), rest)


class _Stored:
    """Counts the outputs in the sinks: of the first crowd, and of all."""

    def __init__(self, first: int, total: int) -> None:
        self._first, self._total = first, total
        self._count = 0
        self.first_is_over, self.all_is_over = threading.Event(), threading.Event()

    def store(self, bundle: sinks.StoredBundle) -> None:
        self._count += len(bundle.payloads)
        if self._count >= self._first:
            self.first_is_over.set()
        if self._count >= self._total:
            self.all_is_over.set()
