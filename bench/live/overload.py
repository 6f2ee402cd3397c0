"""Overload: a front that offers elements at twice the rate that two workers sustain.

First the sustainable rate: the running count of words with arrival times, as fast as they are
taken; once more at the end, because the machine's speed varies. In between, for half a minute, a
front has twice as many due: whenever it is asked it hands over everything that is due, and falls
behind its schedule because it is not asked more often. So the queues up to it fill to their bounds.
The goal: throughput stays at its maximum, and neither queues nor memory grow.

*Queued* is everything that the front has handed over and the sink has not got, wherever it is. The
front, in a worker, writes its count to a file that the driver maps too. *Due* is what the front
should have handed over by its schedule and has not: it grows, and stays at its source.
"""

from __future__ import annotations

import mmap
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import engine
from pyspark.sql import SparkSession

from emberflow import fronts, sinks
from live.memory import Resident, resident
from live.throughput import live_rate

#: The front's words, which it repeats, so that soon all keys are known.
CYCLE = 200_000
SUSTAINABLE = 1_000_000
SECONDS = 30
STEP_SECONDS = 3
FACTOR = 2
#: How many elements the front hands over between two looks at the clock.
BURST = 100
#: So high that the front never waits.
UNPACED = 1e12

_COUNT = struct.Struct("q")


class Offered:
    """A front of words with arrival times, at a rate, for some seconds.

    The int in the file at ``path`` is how many it has handed over, up to a burst.
    """

    partitions = 1

    def __init__(self, words: list[str], path: Path, *, rate: float, count: int) -> None:
        path.write_bytes(bytes(8))
        self.words, self.path, self.rate, self.count = words, path, rate, count

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element]:
        words = cycle(self.words)
        seconds = self.count / self.rate
        with open(self.path, "r+b") as file, mmap.mmap(file.fileno(), 8) as handed:
            begin = time.monotonic()
            for first in range(0, self.count, BURST):
                _COUNT.pack_into(handed, 0, first)
                elapsed = time.monotonic() - begin
                if self.rate < UNPACED:
                    if elapsed > seconds:
                        return
                    ahead = first / self.rate - elapsed
                    if ahead > 0:  # even a sleep of zero would release the interpreter
                        time.sleep(ahead)
                for number in range(first, min(first + BURST, self.count)):
                    yield fronts.Element(number, next(words), None)


class Look(NamedTuple):
    at: float
    stored: int
    queued: int
    due: int
    resident: Resident


def overloaded(spark: SparkSession, words: list[str], path: Path, rate: float) -> list[Look]:
    stored = 0

    def store(bundle: sinks.StoredBundle) -> None:
        nonlocal stored
        stored += len(bundle.payloads)

    query = (
        engine.count_flow()
        .live(spark)
        .read(words=Offered(words, path, rate=rate, count=int(rate * SECONDS)))
        .write(counts=sinks.Callback(store))
        .option("workers", 2)
        .start()
    )
    looks: list[Look] = []
    try:
        while not stored and query.isActive:
            time.sleep(0.01)
        begin = time.monotonic()
        # The samples end before the front does, so that none is of the end of the run.
        while (at := time.monotonic() - begin) < SECONDS - 1 and query.isActive:
            memory = resident()
            got = stored  # read first: what is on its way is counted twice rather than never
            (handed,) = _COUNT.unpack(path.read_bytes())
            looks.append(Look(at, got, handed - got, int(at * rate) - handed, memory))
            time.sleep(max(0.0, begin + len(looks) - time.monotonic()))  # one per second
        assert query.awaitTermination(SECONDS + 60), "what was taken in drains in a moment"
    finally:
        query.stop()
    return looks


def slope(looks: list[Look], of: Callable[[Look], float]) -> float:
    """The growth per minute, by least squares."""
    times, values = [look.at for look in looks], [of(look) for look in looks]
    middle, mean = sum(times) / len(times), sum(values) / len(values)
    above = sum((at - middle) * (value - mean) for at, value in zip(times, values, strict=True))
    below = sum((at - middle) ** 2 for at in times)
    return 60 * above / below


def main(spark: SparkSession) -> None:
    words = engine.zipf_words(CYCLE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "handed over")
        unpaced = Offered(words, path, rate=UNPACED, count=SUSTAINABLE)
        before = live_rate(spark, unpaced, SUSTAINABLE, 2)
        rate = FACTOR * before
        print(
            f"overload: {before:,.0f} a second are sustained, {rate:,.0f} are offered, 2 workers",
            flush=True,
        )
        kept = _report(overloaded(spark, words, path, rate))
        after = live_rate(spark, unpaced, SUSTAINABLE, 2)
        print(
            f"  throughput is {kept / before:.2f} of what was sustained before, and "
            f"{kept / after:.2f} of what was after ({after:,.0f}; asked: 1)"
        )


def _report(looks: list[Look]) -> float:
    """Print the table; return the throughput of its last two thirds."""
    print(
        f"{'  second':18}{'stored/s':>12}{'queued':>12}{'due':>14}"
        f"{'MiB workers':>15}{'driver':>9}{'JVM':>9}"
    )
    for before, look in zip(looks[::STEP_SECONDS], looks[STEP_SECONDS::STEP_SECONDS], strict=False):
        speed = (look.stored - before.stored) / (look.at - before.at)
        workers, driver, jvm = look.resident
        print(
            f"{f'  {before.at:.0f} to {look.at:.0f}':18}{speed:>12,.0f}{look.queued:>12,}"
            f"{look.due:>14,}{workers:>15,.1f}{driver:>9,.1f}{jvm:>9,.1f}"
        )
    # In the first third keys are new, and heaps grow to their size.
    later = looks[len(looks) // 3 :]
    print(
        f"{'  slope, a minute':30}{slope(later, lambda look: look.queued):>+12,.0f}"
        f"{slope(later, lambda look: look.due):>+14,.0f}"
        f"{slope(later, lambda look: look.resident.workers):>+15,.1f}"
        f"{slope(later, lambda look: look.resident.driver):>+9,.1f}"
        f"{slope(later, lambda look: look.resident.jvm):>+9,.1f}"
    )
    kept = (later[-1].stored - later[0].stored) / (later[-1].at - later[0].at)
    growth = slope(later, lambda look: look.resident.workers + look.resident.driver)
    print(
        f"  at most {max(look.queued for look in looks):,} queued; last two thirds: {kept:,.0f} a "
        f"second, workers and driver {growth:+,.1f} MiB a minute, "
        f"{growth / sum(later[-1].resident[:2]):+.1%} (asked: none)"
    )
    return kept
