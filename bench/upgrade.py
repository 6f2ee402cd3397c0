"""Upgrades: how long output stands still while a new version takes over.

Two flows. A *running count* with many keys, at half of the rate that it sustains on this machine in this run;
and the *inverted index*: documents of 250 words, 50 a second. All keys are in the state before the clock starts.
Each element carries the time at which it was due, so its latency includes all waiting. The same run three times:
without an upgrade, with `query.upgrade`, and with the query stopped and started again with the new version. All
processes are of this machine, and its monotonic clock is the same for all.

*Gap* is the longest time without output around the change, *p99 around* the latency of what was due in the
second around it, *to T* the time from the call to when the first element of the new version was due.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
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
#: Above it, the front's own sleeps and the sink's list would be what is measured.
RATE_MAX = 100_000
DOCUMENTS_A_SECOND, WORDS = 50, 250
BEFORE_SECONDS, AFTER_SECONDS = 4.0, 8.0
WAYS = ("no upgrade", "upgrade", "stop and start")
FIGURES = ("gap", "p99", "to T", "call")


class Output(NamedTuple):
    at: float
    due: float
    generation: int


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
    #: Elements that together have every key once.
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
        lambda: (
            ([f"w{word}" for word in range(begin, min(begin + WORDS, keys))], 0.0)
            for begin in range(0, keys, WORDS)
        ),
    )


def given(case: Case, count: int, begun: Path) -> Iterator[Any]:
    """Every key once, at once; then one element after another, when it is due."""
    yield from case.first()
    if not begun.exists():
        begun.write_text(repr(time.monotonic() + 1.0))
    begin = float(begun.read_text())
    for number in range(count):
        due = begin + number / case.rate
        wait = due - time.monotonic()
        if wait > 0.001:
            time.sleep(wait)
        yield case.element(number, due)


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
    outputs: list[Output] = []

    def store(bundle: Any) -> None:
        now = time.monotonic()
        outputs.extend(Output(now, due, generation) for generation, _, due in bundle.payloads)

    with tempfile.TemporaryDirectory() as folder:
        elements = [(number % keys, 0.0) for number in range(burst)]
        query = started(spark, counted(0), fronts.Iterable(elements), sinks.Callback(store), folder)
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
    half = outputs[len(outputs) // 2 :]
    return len(half) / (half[-1].at - half[0].at)


def measured(spark: SparkSession, case: Case, way: str) -> dict[str, float]:
    count = int(case.rate * (BEFORE_SECONDS + AFTER_SECONDS))
    outputs: list[Output] = []
    stored = 0

    def store(bundle: Any) -> None:
        nonlocal stored
        now = time.monotonic()
        stored += len(bundle.payloads)
        outputs.extend(Output(now, due, version) for version, _, due in bundle.payloads if due)

    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder) / "begun"
        sink = sinks.Callback(store)

        def begin(generation: int) -> Any:
            front = fronts.Iterable(lambda: given(case, count, begun))
            return started(spark, case.flow(generation), front, sink, folder)

        query = begin(0)
        try:
            while not outputs or time.monotonic() < outputs[0].due + BEFORE_SECONDS:
                assert query.isActive, query.exception()
                time.sleep(0.01)
            called = time.monotonic()
            if way == "upgrade":
                query.upgrade(case.flow(1))
            elif way == "stop and start":
                query.stop()
                query = begin(1)
            returned = time.monotonic()
            assert query.awaitTermination(300)
        finally:
            query.stop()
    expected = case.keys + count * case.outputs
    assert stored == expected, f"{stored} of {expected}"
    near = [output for output in outputs if called - 0.5 <= output.at]
    gaps = [later.at - earlier.at for earlier, later in pairwise(near)]
    begins = min((output.due for output in outputs if output.generation), default=called)
    around = sorted(
        1_000 * (output.at - output.due) for output in outputs if abs(output.due - begins) < 0.5
    )
    return {
        "gap": 1_000 * max(gaps),
        "p99": around[int(0.99 * (len(around) - 1))],
        "to T": 1_000 * (begins - called),
        "call": 1_000 * (returned - called),
    }


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
