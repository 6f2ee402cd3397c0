"""What cuts cost: run time of a fixed input, and latency at a steady rate, by how often and how they are taken.

After the snapshot paper's Figure 6: cuts at a global time, snapshots by markers and with the world stopped, every
100 ms to 3 s, each beside the same ordering without any. The flow has three shuffles, which make channels wait for
markers: words by word, their counts by count, and again by word.

- *Run time* is from the first element read to the last record stored, of an input that is there from the beginning.
- *Latency* is the query's own: from an element's entering to the message that all its output is stored. By arrival
  that is when the snapshot has committed.

In every round each way has its turn; medians of the rounds count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import engine
from figures import drawn
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.work import watched

WORDS, WORDS_QUICK = 1_000_000, 10_000
#: Of the runs that measure latency.
RATE, SECONDS, SECONDS_QUICK = 15_000, 8, 1
INTERVALS_MS = (100, 300, 1_000, 3_000)
ROUNDS = 3

TIME, ARRIVAL = "by time", "by arrival"
ORDERINGS: dict[str, dict[str, Any]] = {TIME: {}, ARRIVAL: {"ordering": "arrival"}}
#: The ordering, and the options.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "by time, cuts": (TIME, {}),
    "by arrival, markers": (ARRIVAL, {"snapshots": "markers"}),
    "by arrival, stop the world": (ARRIVAL, {"snapshots": "stop"}),
}


class Taken(NamedTuple):
    """One run: from the first element read to the last record stored."""

    seconds: float
    cuts: int
    p50: float
    p99: float


#: By the kind, or the ordering for those without, and milliseconds between cuts, or None.
Found: TypeAlias = dict[tuple[str, int | None], list[Taken]]


def shuffling() -> ef.Flow:
    flow = ef.Flow("three shuffles")
    counted = flow.front("words").key_by(lambda word: word).count()
    by_count = counted.key_by(lambda pair: pair[1] % 97).reduce(
        first=lambda pair: (1, pair[0]), combine=lambda held, pair: (held[0] + 1, pair[0])
    )
    by_count.key_by(lambda held: held[1]).count().sink("counts")
    return flow


def taken(
    spark: SparkSession, words: list[str], options: dict[str, Any], rate: float | None
) -> Taken:
    last_at = 0.0
    stored = 0

    def store(bundle: sinks.StoredBundle) -> None:
        nonlocal last_at, stored
        last_at = time.time()
        stored += len(bundle.payloads)

    with tempfile.TemporaryDirectory() as folder:
        begun = Path(folder, "begun")
        builder = (
            shuffling()
            .live(spark)
            .read(words=_Stamped(words, begun, rate))
            .write(counts=sinks.Callback(store))
            .option("workers", 2)
        )
        for key, value in options.items():
            builder.option(key, value)
        if "checkpointInterval" in options:
            builder.option("checkpointLocation", f"{folder}/checkpoint")
        query = builder.start()
        try:
            assert query.awaitTermination(600), query.status
        finally:
            query.stop()
        assert stored == len(words), f"{stored} of {len(words)} records"
        progress = query.lastProgress
        assert progress is not None
        latency, cuts = progress["latencyMs"], progress["cuts"] or {}
        seconds = last_at - float(begun.read_text())
        return Taken(seconds, cuts.get("count", 0), latency["p50"], latency["p99"])


class _Stamped(fronts.Iterable):
    """Records when it was first read."""

    def __init__(self, words: list[str], begun: Path, rate: float | None) -> None:
        super().__init__(words, rate=rate)
        self._begun = begun

    def read_batches(self, partition: int, position: Any) -> Any:
        self._begun.write_text(str(time.time()))
        return super().read_batches(partition, position)


def one_round(
    spark: SparkSession,
    words: list[str],
    rate: float | None,
    intervals: Sequence[int],
    found: Found,
) -> None:
    """Each interval beside those of the other kinds, and beside none."""
    for ordering, options in ORDERINGS.items():
        without = {**options, "guarantee": "at-least-once"} if options else options
        found.setdefault((ordering, None), []).append(taken(spark, words, without, rate))
    for interval in intervals:
        for kind, (ordering, options) in KINDS.items():
            own = {**ORDERINGS[ordering], **options, "checkpointInterval": interval}
            found.setdefault((kind, interval), []).append(taken(spark, words, own, rate))


def median(runs: Sequence[Taken], figure: str) -> float:
    return statistics.median(getattr(run, figure) for run in runs)


def main(spark: SparkSession, *, quick: bool) -> None:
    words = engine.zipf_words(WORDS_QUICK if quick else WORDS)
    intervals = INTERVALS_MS[:1] if quick else INTERVALS_MS
    rounds = 1 if quick else ROUNDS
    few = words[: RATE * (SECONDS_QUICK if quick else SECONDS)]
    fast: Found = {}
    steady: Found = {}
    taken(spark, words, {}, None)  # starts the processes
    for _ in watched("rounds", range(rounds), rounds):
        one_round(spark, words, None, intervals, fast)
        one_round(spark, few, RATE, intervals, steady)
    heads = "".join(f"{f'{interval:,} ms':>16}" for interval in intervals)
    print(f"{f'{len(words):,} words through three shuffles':46}{'none':>16}{heads}")
    for kind, (ordering, _) in KINDS.items():
        none = median(fast[ordering, None], "seconds")
        ratios = [median(fast[kind, each], "seconds") / none for each in intervals]
        cuts = [median(fast[kind, each], "cuts") for each in intervals]
        _row(f"{kind}, run time", f"{none:.2f} s", [f"{ratio:.2f}" for ratio in ratios])
        _row("  cuts made", "", [f"{count:.0f}" for count in cuts])
        p50s, p99s = (
            [median(runs, figure) for runs in [steady[ordering, None]]]
            + [median(steady[kind, each], figure) for each in intervals]
            for figure in ("p50", "p99")
        )
        none_told, *told = [f"{p50:,.1f}; {p99:,.1f}" for p50, p99 in zip(p50s, p99s, strict=True)]
        _row(f"  ms at {RATE:,} a second, p50; p99", none_told, told)
    _plot(intervals, fast, steady)


def _row(label: str, none: str, cells: Sequence[str]) -> None:
    print(f"  {label:44}{none:>16}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def _plot(intervals: Sequence[int], fast: Found, steady: Found) -> None:
    def draw(all_axes: list[Any]) -> None:
        left, right = all_axes
        for number, (kind, (ordering, _)) in enumerate(KINDS.items()):
            color = f"C{number}"
            none = median(fast[ordering, None], "seconds")
            ratios = [median(fast[kind, each], "seconds") / none for each in intervals]
            left.plot(intervals, ratios, "o-", color=color, label=kind)
            for figure, style in (("p50", "o-"), ("p99", "x:")):
                own = [median(steady[kind, each], figure) for each in intervals]
                right.plot(intervals, own, style, color=color, label=f"{kind}, {figure}")
        for figure, style in (("p50", "-"), ("p99", ":")):
            none = median(steady[TIME, None], figure)
            right.axhline(none, color="gray", linestyle=style, label=f"by time, none, {figure}")
        left.axhline(1, color="gray", linewidth=0.8)
        left.set_ylim(bottom=0)
        left.set_ylabel("run time, of that without cuts")
        left.set_title("a fixed input")
        right.set_yscale("log")
        right.set_ylabel("ms from entering to stored")
        right.set_title(f"{RATE:,} elements a second")
        for axes in all_axes:
            axes.set_xscale("log")
            axes.set_xticks(intervals, [f"{each:,}" for each in intervals])
            axes.minorticks_off()
            axes.set_xlabel("ms between cuts")
            axes.legend(fontsize=7)

    drawn("exactly-once-runtime", draw, columns=2, width=11)
