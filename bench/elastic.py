"""Elasticity: what is late while workers come and go, a hot range moves, and a worker is killed.

A *running count* with many keys, at half of the rate that two workers sustain on this machine in this run. All
keys are in the state before the clock starts. Then, at fixed seconds: two workers become four, and two
again; a range of hashes that one worker has becomes hot (half of all elements), and moves; a worker is killed.

The same once more by stop and start: the query is stopped and started again with the other number, where a
range moves nothing is done, and after a kill all processes start again (a fixed port of the coordinator has
that effect).

*Sustained* is a rate at which what waits does not grow: the same query, with all keys in its state and its cuts
at their default interval, gets so many elements a second for `HELD_SECONDS`, whatever it does, and
of what was due in the last third 99 % are stored within `HELD_MS`. An element is due at its own time, so one that
waits in front of the query counts as late. The first rate that is tried is what comes out while there is always
more to take; the others differ by a tenth of that, up or down, until the greatest one that is sustained is known.

Each element carries the time at which it was due, so its latency includes all waiting. A run fails if one
output is lost, doubled or out of order: each key has to be counted from 1 to the number of its elements.

*p99* and *most* are of what was due from half a second before the call, or the kill, until half a second after it
was over. *Gap* is the longest time without output meanwhile. *Over* is when `rescale` or `rebalance` has
returned, the new query runs, or after a kill all that is due is stored within twice the p99 of the calm
seconds (at least 50 ms more than it) from then on. The plot has the latency second by second.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from itertools import count, repeat
from pathlib import Path
from typing import Any, NamedTuple

from figures import drawn
from live.session import spark_session
from live.waiting import free_port, until
from pyspark.sql import SparkSession
from upgrade import Case, Paced, ended

import emberflow as ef
from emberflow import sinks
from emberflow.values.hashing import key_hash, owner
from emberflow.values.owners import SLICES
from emberflow.work import watched

KEYS, KEYS_QUICK = 1_000_000, 100_000
WORKERS, MORE = 2, 4
#: The slices that become hot. The second of two workers has them, and no front.
HOT = range(900, 964)
#: The share of elements that are for keys of these slices.
HOT_SHARE = 0.5
#: A rate is tried for so long, and its latencies are those of the last third.
HELD_SECONDS, HELD_SECONDS_QUICK = 30.0, 9.0
HELD_MS, HELD_SHARE = 1_000.0, 0.99
#: More than can be taken, for how long it is given, and by which part of what then comes out the rates that are
#: tried differ.
FLOOD, FLOOD_SECONDS, STEP = 1_000_000.0, 15.0, 0.1
#: If something takes so long that the next one would follow it sooner, that one waits.
PAUSE_SECONDS = 6.0
#: How long a recovery is looked for, and how long each round goes on after the kill.
AFTER_KILL_SECONDS = 12.0
_SETTLED_MS = 50.0
ELASTIC, STOPPED = "elastic", "stop and start"


class Event(NamedTuple):
    """What happens at a second."""

    second: float
    what: str


EVENTS = (
    Event(12.0, "2 to 4 workers"),
    Event(30.0, "4 to 2 workers"),
    Event(48.0, "a range becomes hot"),
    Event(54.0, "the hot range moves"),
    Event(66.0, "a worker is killed"),
)
BECOMES_HOT = EVENTS[2].second


class Measured:
    """What the sink was given, in arrays: lists of millions of tuples would keep Python's collector busy."""

    def __init__(self) -> None:
        #: Of each output: when it came, when its element was due, its key, and its count.
        self.at, self.due = array("d"), array("d")
        self.key, self.count = array("q"), array("q")
        #: When each event began, and when it was over.
        self.events: dict[str, tuple[float, float]] = {}

    def store(self, bundle: Any) -> None:
        now = time.monotonic()
        counts, keys, dues = zip(*bundle.payloads, strict=True)
        self.count.extend(counts)
        self.key.extend(keys)
        self.due.extend(dues)
        self.at.extend(repeat(now, len(dues)))

    @property
    def begin(self) -> float:
        return next((due for due in self.due if due), 0.0)

    def check(self, elements: int) -> None:
        """Raise unless each key was counted from 1 on, in order, and all elements are there."""
        import numpy as np

        keys, counts = np.frombuffer(self.key, np.int64), np.frombuffer(self.count, np.int64)
        assert len(keys) == elements, f"{len(keys)} outputs of {elements}"
        order = np.argsort(keys, kind="stable")
        sorted_keys, in_order = keys[order], counts[order]
        begins = np.flatnonzero(np.diff(sorted_keys, prepend=-1))
        expected = np.arange(len(keys)) - np.repeat(begins, np.diff(begins, append=len(keys))) + 1
        wrong = np.flatnonzero(in_order != expected)
        assert not len(wrong), f"key {sorted_keys[wrong[0]]} was counted {in_order[wrong[0]]}"

    def late_ms(self, begin: float, end: float) -> Any:
        """The latencies of what was due in this time, in order."""
        import numpy as np

        at, due = np.frombuffer(self.at), np.frombuffer(self.due)
        chosen = (due >= begin) & (due < end)
        return np.sort(1_000 * (at[chosen] - due[chosen]))

    def came(self, begin: float, end: float) -> int:
        """How many outputs came between these times."""
        import numpy as np

        at = np.frombuffer(self.at)
        return int(((at >= begin) & (at < end)).sum())

    def gap_ms(self, begin: float, end: float) -> float:
        """The longest time without output that falls between these times."""
        import numpy as np

        at = np.frombuffer(self.at)
        near = at[(at >= begin - 1.0) & (at <= end + 1.0)]
        falls_between = (near[1:] >= begin) & (near[:-1] <= end)
        gaps = np.diff(near)[falls_between]
        return 1_000 * float(gaps.max()) if len(gaps) else 0.0

    def recovered(self, killed: float) -> float:
        """When all that is due is stored in time again."""
        import numpy as np

        usual = self.p99(killed - 5.0, killed - 0.1)
        limit = max(2 * usual, usual + _SETTLED_MS)
        at, due = np.frombuffer(self.at), np.frombuffer(self.due)
        behind = (due > killed - 0.1) & (due < killed + AFTER_KILL_SECONDS)
        slow = at[behind & (1_000 * (at - due) > limit)]
        return float(slow.max()) if len(slow) else killed

    def p99(self, begin: float, end: float) -> float:
        late = self.late_ms(begin, end)
        return float(late[int(0.99 * (len(late) - 1))]) if len(late) else 0.0


def counted() -> ef.Flow:
    flow = ef.Flow("counts")
    keyed = flow.front("events").key_by(lambda event: event[0])
    keyed.fold(
        initial=(0, 0, 0.0),
        combine=lambda held, event: (held[0] + 1, event[0], event[1]),
        name="counts",
    ).sink("out")
    return flow


def case_of(keys: int, rate: float, *, hot: bool = True) -> Case:
    """``hot``: whether a range becomes hot."""
    busy = [key for key in range(keys) if hot and owner(key_hash(key), SLICES) in HOT]
    hot_from = int(BECOMES_HOT * rate)
    every = round(1 / HOT_SHARE)

    def element(number: int, due: float) -> Any:
        if busy and number >= hot_from and number % every == 0:
            return busy[number * 7919 % len(busy)], due
        return number * 7919 % keys, due

    name = f"running count, {keys:,} keys, {rate:,.0f} a second"
    return Case(
        name,
        lambda generation: counted(),
        keys,
        rate,
        1,
        element,
        keys,
        lambda: ((key, 0.0) for key in range(keys)),
    )


class Running:
    """A query, and what is done to it."""

    def __init__(
        self, spark: SparkSession, case: Case, folder: str, found: Measured, way: str
    ) -> None:
        self._spark, self._case, self._folder, self._way = spark, case, folder, way
        self._sink = sinks.Callback(found.store)
        self.query = self._started(WORKERS)

    def _started(self, workers: int) -> Any:
        builder = (
            self._case.flow(0)
            .live(self._spark)
            .read(events=Paced(self._case, Path(self._folder)))
            .write(out=self._sink)
            .option("workers", workers)
            .option("checkpointLocation", f"{self._folder}/checkpoint")
        )
        if self._way == STOPPED:
            builder.option("coordinatorHost", f"127.0.0.1:{free_port()}")
        return builder.start()

    def do(self, what: str) -> None:
        if what == "the hot range moves":
            if self._way == ELASTIC:
                self.query.rebalance()
        elif what == "a worker is killed":
            self._kill()
        elif what != "a range becomes hot":
            workers = MORE if what.endswith(f"{MORE} workers") else WORKERS
            if self._way == ELASTIC:
                self.query.rescale(workers=workers)
            else:
                self.query.stop()
                self.query = self._started(workers)

    def _kill(self) -> None:
        progress = self.query.lastProgress
        assert progress is not None
        recoveries = self.query.recoveries
        os.kill(progress["pids"][-1], signal.SIGKILL)
        until(lambda: self.query.recoveries > recoveries, self.query)
        until(lambda: self.query.status["message"] == "Running", self.query)


def tried(spark: SparkSession, keys: int, rate: float, seconds: float) -> tuple[float, float]:
    """Of so many elements a second for so long: how many came out a second in the last third, and which share of
    those that were due then came out in time. What waits at the end is given up."""
    case, found = case_of(keys, rate, hot=False), Measured()
    with tempfile.TemporaryDirectory() as folder:
        running = Running(spark, case, folder, found, ELASTIC)
        try:
            begin = begun(running, folder)
            end = begin + seconds
            until(lambda: time.monotonic() >= end + HELD_MS / 1_000, running.query)
        finally:
            running.query.stop()
    late, last = found.late_ms(end - seconds / 3, end), seconds / 3
    in_time = float((late <= HELD_MS).sum()) / (rate * last)
    return found.came(end - last, end) / last, in_time


def sustained(spark: SparkSession, keys: int, seconds: float) -> float:
    """Elements a second that two workers sustain."""
    most, _ = tried(spark, keys, FLOOD, FLOOD_SECONDS)
    print(f"two workers take {most:,.0f} a second if there are always more")

    def holds(rate: float) -> bool:
        came, in_time = tried(spark, keys, rate, seconds)
        told = f"{rate:>12,.0f} a second for {seconds:.0f} s: {came:,.0f} came out, {in_time:.1%} in time"
        print(told, flush=True)
        return in_time >= HELD_SHARE

    steps = round(1 / STEP)
    if not holds(most):
        lower = (most * step / steps for step in range(steps - 1, 0, -1))
        return next(rate for rate in lower if holds(rate))
    higher = (most * step / steps for step in count(steps + 1))
    return next(rate for rate in higher if not holds(rate)) - most / steps


def begun(running: Running, folder: str) -> float:
    """When the first element is due, as soon as all keys are in the state."""
    until(lambda: (Path(folder) / "begun").exists(), running.query)
    time.sleep(0.1)  # it is written
    return float((Path(folder) / "begun").read_text())


def measured(spark: SparkSession, case: Case, way: str) -> Measured:
    found = Measured()
    with tempfile.TemporaryDirectory() as folder:
        running = Running(spark, case, folder, found, way)
        try:
            begin = begun(running, folder)
            called = over = begin
            for second, what in EVENTS:
                at = max(begin + second, over + PAUSE_SECONDS)
                until(lambda at=at: time.monotonic() >= at, running.query)  # type: ignore[misc]
                called = time.monotonic()
                running.do(what)
                over = time.monotonic()
                found.events[what] = called, over
            until(lambda: time.monotonic() >= called + AFTER_KILL_SECONDS, running.query)
            elements = ended(case, Path(folder), time.monotonic() + 0.5)
            assert running.query.awaitTermination(300)
        finally:
            running.query.stop()
    found.check(case.keys + elements)
    killed = found.events["a worker is killed"][0]
    found.events["a worker is killed"] = killed, found.recovered(killed)
    return found


def figures_of(found: Measured, what: str) -> tuple[float, float, float, float]:
    """Of an event: its gap, p99 and most, and when it was over."""
    begin, end = found.events[what]
    late = found.late_ms(begin - 0.5, end + 0.5)
    most = float(late[-1]) if len(late) else 0.0
    p99 = found.p99(begin - 0.5, end + 0.5)
    return found.gap_ms(begin, end + 0.5), p99, most, 1_000 * (end - begin)


def report(way: str, found: Sequence[Measured]) -> None:
    """A line for each event: medians over the rounds."""
    calm = [one.p99(one.begin + 6.0, one.begin + EVENTS[0].second - 1.0) for one in found]
    print(f"  {way + ', calm':44}{'':>10}{statistics.median(calm):>10,.0f}")
    for _, what in EVENTS:
        if what == "a range becomes hot" or (what == "the hot range moves" and way == STOPPED):
            continue
        rounds = [figures_of(one, what) for one in found]
        told = "".join(f"{statistics.median(each):>10,.0f}" for each in zip(*rounds, strict=True))
        print(f"  {f'{way}, {what}':44}{told}", flush=True)


def by_second(one: Measured) -> Iterator[tuple[float, float]]:
    """The 99th percentile of what was due in each second."""
    begin, end = one.begin, max(one.due)
    for second in range(int(end - begin)):
        p99 = one.p99(begin + second, begin + second + 1)
        if p99:
            yield second, p99


def plot(name: str, found: dict[str, list[Measured]]) -> None:
    def draw(all_axes: list[Any]) -> None:
        most = max(ms for rounds in found.values() for _, ms in by_second(rounds[0]))
        for axes, (way, rounds) in zip(all_axes, found.items(), strict=True):
            one = rounds[0]
            for shown in rounds:
                points = list(by_second(shown))
                seconds, latencies = [at for at, _ in points], [ms for _, ms in points]
                axes.step(
                    seconds,
                    latencies,
                    where="post",
                    linewidth=1.6 if shown is one else 0.6,
                    color="tab:blue" if way == ELASTIC else "tab:orange",
                )
            for what, (begin, end) in one.events.items():
                if way == STOPPED and "range" in what:
                    continue
                axes.axvspan(begin - one.begin, end - one.begin, color="0.85", zorder=0)
                axes.axvline(begin - one.begin, color="0.4", linewidth=0.8)
                axes.text(begin - one.begin + 0.4, 1.15 * most, what, fontsize=8, va="bottom")
            axes.axhline(100, color="0.6", linewidth=0.8, linestyle=":")
            axes.set_yscale("log")
            axes.set_ylim(1, 4 * most)
            axes.set_ylabel("p99 of each second, ms")
            axes.set_title(f"{way}: {name}", fontsize=10)
        all_axes[-1].set_xlabel("second; grey: until it is over; dotted: 100 ms")

    drawn("elastic-latency", draw, rows=len(found), width=11)


def main(*, quick: bool = False) -> None:
    keys = KEYS_QUICK if quick else KEYS
    rounds = {ELASTIC: 1 if quick else 3, STOPPED: 1}
    with spark_session() as spark:
        rate = sustained(spark, keys, HELD_SECONDS_QUICK if quick else HELD_SECONDS)
        print(f"two workers sustain {rate:,.0f} a second, and get half of that")
        case = case_of(keys, rate / 2)
        heads = "".join(f"{head:>10}" for head in ("gap, ms", "p99, ms", "most, ms", "over, ms"))
        print(f"{case.name:46}{heads}")
        found: dict[str, list[Measured]] = {}
        turns = [way for way, count in rounds.items() for _ in range(count)]
        for way in watched("rounds", turns, len(turns)):
            found.setdefault(way, []).append(measured(spark, case, way))
        for way, own in found.items():
            report(way, own)
        plot(case.name, found)
