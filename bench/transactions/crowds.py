"""Many transactions of one element, on few keys, next to as many elements of one transaction each.

All that one element begets has one global time, and is settled in turns (`engine/turns.py`) where it
does not agree by itself: a way to the driver and back for a turn. The same transactions as elements of
their own are settled by global times. A fifth of them is refused, and what each is told depends on all
before it: as much contention as there can be.
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
#: One of them for a start.
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
    """For a transaction: from when the elements behind the first crowd may come, until all is stored."""
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
    """So many elements at once, and the others when a file is there."""

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
    """Counts what the sinks have: those of the first crowd, and all."""

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
