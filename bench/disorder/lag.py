"""Live, two workers: one partition of four is minutes of event time behind the others, then level.

Times are microseconds. A partition has an element every 200 of them. The first partition begins at 0,
the three others where its lag ends. So until it has caught up, only its elements can become final. The
others read on until their credits are used, and then wait with the rest still in their source.

The rate while it catches up is that of the elements below the lag's end; the rate when level is that of
the rest. Memory is what the workers have in the end over what they have at the first output: it must
not depend on how long the lag is.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import engine
from live.memory import resident
from pyspark.sql import SparkSession

from emberflow import fronts, sinks

PARTITIONS = 4
MINUTES = (1, 3)
ROUNDS = 3
ASKED = 0.8
_STEP_US = 200
_MINUTE_US = 60_000_000
#: Elements of each partition from where they are level.
_LEVEL = 125_000
_BATCH = 1_000
_LOOK_SECONDS = 0.05


class Lagging:
    """Words of four partitions, the first of which begins ``lag`` elements before the others."""

    partitions = PARTITIONS

    def __init__(self, words: Sequence[str], lag: int, level: int) -> None:
        self._words = words
        self._lag = lag
        self._level = level

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        raise NotImplementedError("it is read in batches")

    def read_batches(self, partition: int, position: Any) -> Iterator[fronts.Batch | None]:
        words, end = self._words, self._lag + self._level
        for first in range(0 if partition == 0 else self._lag, end, _BATCH):
            numbers = range(first, min(first + _BATCH, end))
            payloads = [words[(number * PARTITIONS + partition) % len(words)] for number in numbers]
            times = range(numbers.start * _STEP_US, numbers.stop * _STEP_US, _STEP_US)
            yield fronts.Batch(numbers, payloads, times)


class Figures(NamedTuple):
    """Words a second while one partition catches up, and when level; MiB that the workers grew by."""

    behind: float
    level: float
    grown: float


def measured(spark: SparkSession, words: list[str], lag: int, level: int) -> Figures:
    seen: list[tuple[float, int]] = []
    memory: list[float] = []
    over = threading.Event()

    def store(bundle: sinks.StoredBundle) -> None:
        seen.append((time.perf_counter(), len(bundle.payloads)))

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            if seen:
                memory.append(resident().workers)

    query = (
        engine.count_flow()
        .live(spark)
        .read(words=Lagging(words, lag, level))
        .write(counts=sinks.Callback(store))
        .option("workers", 2)
        .start()
    )
    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert query.awaitTermination(300)
    finally:
        over.set()
        looking.join()
        query.stop()
    assert sum(count for _, count in seen) == lag + PARTITIONS * level
    stored, caught_up, stored_then = 0, 0.0, 0
    for at, count in seen:
        stored += count
        if stored >= lag:
            caught_up, stored_then = at, stored
            break
    (begin, first), end = seen[0], seen[-1][0]
    return Figures(
        (stored_then - first) / (caught_up - begin),
        (lag + PARTITIONS * level - stored_then) / (end - caught_up),
        max(memory) - memory[0],
    )


def main(spark: SparkSession, *, quick: bool) -> None:
    level, rounds = (10_000, 1) if quick else (_LEVEL, ROUNDS)
    words = engine.zipf_words(200_000)
    print(
        f"{'live, 2 workers, one of 4 partitions behind':44}{'behind, /s':>12}{'level, /s':>12}"
        f"{'ratio':>8}{'asked':>8}{'workers grow by':>18}"
    )
    for minutes in MINUTES:
        lag = minutes * _MINUTE_US // _STEP_US // (20 if quick else 1)
        found = [measured(spark, words, lag, level) for _ in range(rounds)]
        behind, flush, grown = (statistics.median(own) for own in zip(*found, strict=True))
        label = f"by {minutes} minute{'s' if minutes > 1 else ''}, {lag:,} elements"
        print(
            f"  {label:42}{behind:>12,.0f}{flush:>12,.0f}{behind / flush:>8.2f}{ASKED:>8.1f}"
            f"{grown:>14,.0f} MiB",
            flush=True,
        )
