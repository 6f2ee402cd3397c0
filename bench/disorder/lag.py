"""Live, two workers: one partition of four gets minutes of event time behind the others, then level.

Times are microseconds. A partition has an element every 200 of them. All four begin level, which warms
the workers: a key's first element costs more than its next. Then the three others go on where the lag
of the first ends. So until it has caught up, only its elements can become final. The others read on
until their credits are used, and then wait with the rest still in their source.

The rate while it catches up is that of the elements below the lag's end. The rate when level is that of
the second half of the rest: what the others had read ahead was computed while the first caught up, so
it would make the level part look faster than it is. Memory is what the workers have in the end over what they have at the first output: it must
not depend on how long the lag is.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import engine
from live.memory import resident
from pyspark.sql import SparkSession

from emberflow import fronts, sinks

PARTITIONS = 4
MINUTES = (1, 3)
ROUNDS = 5
ASKED = 0.8
_STEP_US = 200
_MINUTE_US = 60_000_000
#: Elements of each partition from where they are level.
_LEVEL = 250_000
#: Elements of each partition before the others go ahead.
_WARM = 50_000
_BATCH = 1_000
_LOOK_SECONDS = 0.05


class Lagging:
    """Words of four partitions; after some, the first has ``lag`` elements that the others have not."""

    partitions = PARTITIONS

    def __init__(self, words: Sequence[str], warm: int, lag: int, level: int) -> None:
        self._words = words
        self._warm = warm
        self._lag = lag
        self._level = level

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        raise NotImplementedError("it is read in batches")

    def read_batches(self, partition: int, position: Any) -> Iterator[fronts.Batch | None]:
        words, level = self._words, self._warm + self._lag
        for begin, end in (
            (0, self._warm),
            (self._warm if partition == 0 else level, level + self._level),
        ):
            for first in range(begin, end, _BATCH):
                numbers = range(first, min(first + _BATCH, end))
                payloads = [words[(n * PARTITIONS + partition) % len(words)] for n in numbers]
                times = range(numbers.start * _STEP_US, numbers.stop * _STEP_US, _STEP_US)
                yield fronts.Batch(numbers, payloads, times)


class Figures(NamedTuple):
    """Words a second while one partition catches up, and when level; MiB that the workers grew by."""

    behind: float
    level: float
    grown: float


def measured(spark: SparkSession, words: list[str], warm: int, lag: int, level: int) -> Figures:
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
        .read(words=Lagging(words, warm, lag, level))
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
    apart = PARTITIONS * warm
    caught_up = apart + lag
    settled, total = caught_up + PARTITIONS * level // 2, caught_up + PARTITIONS * level
    assert sum(count for _, count in seen) == total
    return Figures(
        _rate(seen, apart, caught_up),
        _rate(seen, settled, total),
        max(memory) - memory[0],
    )


def _rate(seen: Sequence[tuple[float, int]], begin: int, end: int) -> float:
    """Words a second from when ``begin`` words were stored until ``end`` were."""
    moments = list(zip((at for at, _ in seen), accumulate(count for _, count in seen), strict=True))
    first = next(moment for moment in moments if moment[1] >= begin)
    last = next(moment for moment in moments if moment[1] >= end)
    return (last[1] - first[1]) / (last[0] - first[0])


def main(spark: SparkSession, *, quick: bool) -> None:
    warm, level, rounds = (1_000, 10_000, 1) if quick else (_WARM, _LEVEL, ROUNDS)
    words = engine.zipf_words(200_000)
    print(
        f"{'live, 2 workers, one of 4 partitions behind':44}{'behind, /s':>12}{'level, /s':>12}"
        f"{'ratio':>8}{'asked':>8}{'workers grow by':>18}"
    )
    for minutes in MINUTES:
        lag = minutes * _MINUTE_US // _STEP_US // (20 if quick else 1)
        found = [measured(spark, words, warm, lag, level) for _ in range(rounds)]
        behind, flush, grown = (statistics.median(own) for own in zip(*found, strict=True))
        label = f"by {minutes} minute{'s' if minutes > 1 else ''}, {lag:,} elements"
        print(
            f"  {label:42}{behind:>12,.0f}{flush:>12,.0f}{behind / flush:>8.2f}{ASKED:>8.1f}"
            f"{grown:>14,.0f} MiB",
            flush=True,
        )
