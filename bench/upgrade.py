"""Upgrades: how long output stands still while a new version takes over.

Two flows. A *running count* with many keys, at half of the rate that it sustains on this machine in this run;
and the *inverted index*: documents of 250 words, 50 a second. All keys are in the state before the clock starts.
Each element carries the time at which it was due, so its latency includes all waiting. The same run three times:
without an upgrade, with `query.upgrade`, and with the query stopped and started again with the new version. The
input goes on until some seconds after the change. All processes are of this machine, and its monotonic clock is
the same for all.

*Gap* is the longest time without output around the change, *p99 around* the latency of what was due in the
second around it, *to T* the time from the call to when the first element of the new version was due.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise, repeat
from pathlib import Path
from typing import Any, NamedTuple

from live.session import spark_session
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.work import watched

COUNT_KEYS = {"keys": 100_000, "million": 1_000_000}
#: Elements that are given at once to find the rate that the count sustains.
BURST = 400_000
#: Above it, the front's own sleeps and the sink's lists would be what is measured.
RATE_MAX = 100_000
DOCUMENTS_A_SECOND, WORDS = 50, 250
BEFORE_SECONDS, AFTER_SECONDS = 4.0, 8.0
#: How the front reads: so many elements at once, and so often it looks what is due and whether it ends.
BATCH = 1_000
NAP_SECONDS, LOOK_SECONDS = 0.001, 0.1
WAYS = ("no upgrade", "upgrade", "stop and start")
FIGURES = ("gap", "p99", "to T", "call")


class Outputs:
    """What the sink was given, by column.

    In arrays: Python's collector would look at a million tuples again and again, for up to a tenth of a second,
    and the driver's threads, in the same process, would wait for it.
    """

    def __init__(self) -> None:
        self.count = 0
        #: Of what was due at a time: when it was given, when it was due, and the version.
        self.at, self.due, self.version = array("d"), array("d"), array("b")

    def store(self, bundle: Any) -> None:
        now = time.monotonic()
        self.count += len(bundle.payloads)
        timed = [(version, due) for version, _, due in bundle.payloads if due]
        if timed:
            versions, dues = zip(*timed, strict=True)
            self.version.extend(versions)
            self.due.extend(dues)
            self.at.extend(repeat(now, len(dues)))


class Case(NamedTuple):
    """A flow, and what it is given."""

    name: str
    flow: Callable[[int], ef.Flow]
    keys: int
    #: Elements a second, and the outputs of each.
    rate: float
    outputs: int
    #: The element with a number, which is due at a time.
    element: Callable[[int, float], Any]
    #: So many elements together have every key once.
    firsts: int
    first: Callable[[], Iterator[Any]]


def counted(generation: int) -> ef.Flow:
    flow = ef.Flow("counts")
    keyed = flow.front("events").key_by(lambda event: event[0])
    counts = keyed.fold(
        initial=(0, 0.0), combine=lambda held, e: (held[0] + 1, e[1]), name="counts"
    )
    counts.map(lambda held: (generation, *held)).sink("out")
    return flow


def indexed(generation: int) -> ef.Flow:
    flow = ef.Flow("index")
    words = flow.front("events").flat_map(lambda doc: [(word, doc[1]) for word in doc[0]])
    counts = words.key_by(lambda word: word[0]).fold(
        initial=(0, 0.0), combine=lambda held, w: (held[0] + 1, w[1]), name="index"
    )
    counts.map(lambda held: (generation, *held)).sink("out")
    return flow


def count_case(keys: int, rate: float) -> Case:
    return Case(
        f"running count, {keys:,} keys, {rate:,.0f} a second",
        counted,
        keys,
        rate,
        1,
        lambda number, due: (number * 7919 % keys, due),
        keys,
        lambda: ((key, 0.0) for key in range(keys)),
    )


def index_case(keys: int) -> Case:
    drawn = random.Random(7)
    pages = [[f"w{drawn.randrange(keys)}" for _ in range(WORDS)] for _ in range(500)]
    return Case(
        f"inverted index, {keys:,} words, {DOCUMENTS_A_SECOND} documents a second",
        indexed,
        keys,
        DOCUMENTS_A_SECOND,
        WORDS,
        lambda number, due: (pages[number % len(pages)], due),
        -(-keys // WORDS),
        lambda: (
            ([f"w{word}" for word in range(begin, min(begin + WORDS, keys))], 0.0)
            for begin in range(0, keys, WORDS)
        ),
    )


class Paced:
    """Every key once, at once; then the elements that are due, until the file that says how many."""

    partitions = 1
    #: Each element has its number for a time.
    arrival = False

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder

    def read(self, partition: int, position: int | None) -> Iterator[fronts.Element]:
        for batch in self.read_batches(partition, position):
            for number, payload in zip(batch.positions, batch.payloads, strict=True):
                yield fronts.Element(number, payload, number)

    def read_batches(self, partition: int, position: int | None) -> Iterator[fronts.Batch]:
        case, number = self.case, 0 if position is None else position + 1
        keys = islice(case.first(), number, None)
        while chunk := list(islice(keys, BATCH)):
            yield batch_of(number, chunk)
            number += len(chunk)
        timed = number - case.firsts
        begun, ends = self.folder / "begun", self.folder / "ends"
        if not begun.exists():
            begun.write_text(repr(time.monotonic() + 1.0))
        begin, looked_at, last = float(begun.read_text()), 0.0, sys.maxsize
        while timed < last:
            now = time.monotonic()
            if now - looked_at > LOOK_SECONDS:
                looked_at, last = now, int(ends.read_text()) if ends.exists() else last
            due = min(int((now - begin) * case.rate) + 1, timed + BATCH, last) if now > begin else 0
            if timed < due:
                elements = [case.element(n, begin + n / case.rate) for n in range(timed, due)]
                yield batch_of(case.firsts + timed, elements)
                timed = due
            else:
                time.sleep(max(NAP_SECONDS, begin + timed / case.rate - now))


def batch_of(number: int, payloads: list[Any]) -> fronts.Batch:
    numbers = range(number, number + len(payloads))
    return fronts.Batch(numbers, payloads, numbers)


def started(spark: SparkSession, flow: ef.Flow, front: Any, sink: Any, folder: str) -> Any:
    return (
        flow.live(spark)
        .read(events=front)
        .write(out=sink)
        .option("workers", 2)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )


def sustained(spark: SparkSession, keys: int, burst: int) -> float:
    """Elements a second of a running count that gets all at once."""
    stored: list[tuple[float, int]] = []
    sink = sinks.Callback(lambda bundle: stored.append((time.monotonic(), len(bundle.payloads))))
    with tempfile.TemporaryDirectory() as folder:
        elements = [(number % keys, 0.0) for number in range(burst)]
        query = started(spark, counted(0), fronts.Iterable(elements), sink, folder)
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
    left, half = burst, []
    for at, each in stored:
        left -= each
        if left < burst // 2:
            half.append((at, each))
    return sum(each for _, each in half[1:]) / (half[-1][0] - half[0][0])


def measured(spark: SparkSession, case: Case, way: str) -> dict[str, float]:
    outputs = Outputs()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sink = sinks.Callback(outputs.store)

        def begin(generation: int) -> Any:
            return started(spark, case.flow(generation), Paced(case, folder), sink, name)

        query = begin(0)
        try:
            while not outputs.at or time.monotonic() < outputs.due[0] + BEFORE_SECONDS:
                assert query.isActive, query.exception()
                time.sleep(0.01)
            called = time.monotonic()
            if way == "upgrade":
                query.upgrade(case.flow(1))
            elif way == "stop and start":
                query.stop()
                query = begin(1)
            returned = time.monotonic()
            elements = ended(case, folder, returned + AFTER_SECONDS)
            assert query.awaitTermination(300)
        finally:
            query.stop()
    expected = case.keys + elements * case.outputs
    assert outputs.count == expected, f"{outputs.count} of {expected}"
    near = [at for at in outputs.at if called - 0.5 <= at]
    begins = min(
        (due for due, version in zip(outputs.due, outputs.version, strict=True) if version),
        default=called,
    )
    around = sorted(
        1_000 * (at - due)
        for at, due in zip(outputs.at, outputs.due, strict=True)
        if abs(due - begins) < 0.5
    )
    return {
        "gap": 1_000 * max(later - earlier for earlier, later in pairwise(near)),
        "p99": around[int(0.99 * (len(around) - 1))],
        "to T": 1_000 * (begins - called),
        "call": 1_000 * (returned - called),
    }


def ended(case: Case, folder: Path, at: float) -> int:
    """Let the input end at a time. Returns how many elements are due by then."""
    elements = int((at - float((folder / "begun").read_text())) * case.rate)
    (folder / "new").write_text(str(elements))
    (folder / "new").rename(folder / "ends")
    return elements


def cases(spark: SparkSession, parts: Sequence[str], quick: bool) -> Iterator[Case]:
    if "index" in parts:
        yield index_case(1_000 if quick else 50_000)
    for keys in [1_000 if quick else COUNT_KEYS[part] for part in parts if part in COUNT_KEYS]:
        rate = sustained(spark, keys, BURST // 40 if quick else BURST + keys)
        print(f"running count, {keys:,} keys: sustains {rate:,.0f} a second")
        yield count_case(keys, min(RATE_MAX, rate / 2))


def main(parts: Sequence[str], *, quick: bool = False) -> None:
    rounds = 1 if quick else 3
    with spark_session() as spark:
        for case in cases(spark, parts, quick):
            print(
                f"{case.name:56}{'gap, ms':>10}{'p99 around, ms':>16}{'to T, ms':>10}{'call, ms':>10}"
            )
            found = [
                {way: measured(spark, case, way) for way in WAYS}
                for _ in watched("rounds", range(rounds), rounds)
            ]
            for way in WAYS:
                gap, p99, to, call = (
                    statistics.median(one[way][figure] for one in found) for figure in FIGURES
                )
                told = f"{gap:>10,.0f}{p99:>16,.0f}{to:>10,.0f}{call:>10,.0f}"
                print(f"  {way:54}{told}", flush=True)
