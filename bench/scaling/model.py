"""By 1 to 200 workers, over a model of a cluster (`speculation.modelled`): latency, and the run time of a fixed input.

Latency is FlameStream's figure: the inverted index of Wikipedia articles at fixed rates, from the arrival of a
document to its last change record, median and 99th percentile by the number of workers. Run time is the figure of
asynchronous barrier snapshotting: a fixed input, all of which is there from the beginning, without cuts, with cuts, and
with cuts for which the world stands still.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from figures import drawn
from speculation import Figures, documents, modelled
from speculation.model import DOCUMENTS_MIN, SECONDS

from emberflow.work import watched

WORKERS = (1, 2, 5, 10, 20, 50, 100, 200)
RATES = (50, 200)
#: Of the fixed input.
DOCUMENTS = 800
CUT_MS = 100
WAYS: dict[str, dict[str, Any]] = {
    "no cuts": {},
    "cuts": {"cut_us": 1_000 * CUT_MS},
    "cuts, the world stands still": {"cut_us": 1_000 * CUT_MS, "halts": True},
}

TICKS_MS = (5, 10, 20, 50, 100, 200, 500, 1_000)
TICKS_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5)

Latencies: TypeAlias = dict[tuple[int, int], Figures]
#: Seconds, and how many cuts were made.
RunTimes: TypeAlias = dict[tuple[int, str], tuple[float, int]]


def main(*, quick: bool) -> None:
    numbers = (1, 3) if quick else WORKERS
    kind, given = documents.given(60 if quick else DOCUMENTS)
    print(f"{modelled.MODEL}; {kind}")
    latencies, run_times = _latencies(given, numbers), _run_times(given, numbers)
    if not quick:
        _plot(kind, len(given), latencies, run_times)


def _cluster(workers: int) -> modelled.Cluster:
    flow = documents.index_flow(workers)
    return modelled.Cluster(flow, workers, documents.WAYS["adaptive"], seed=workers)


def _latencies(given: Sequence[documents.Document], numbers: Sequence[int]) -> Latencies:
    found: Latencies = {}
    heads = "".join(f"{f'{rate}/s: p50':>14}{'p99':>8}" for rate in RATES)
    print(f"{'latency, ms, by workers':24}{heads}")
    for workers in watched("workers", numbers, len(numbers)):
        for rate in RATES:
            own = given[: max(DOCUMENTS_MIN, int(SECONDS * rate))]
            found[workers, rate] = _cluster(workers).run(own, rate)
        told = [found[workers, rate] for rate in RATES]
        cells = "".join(f"{one.p50:>14.1f}{one.p99:>8.1f}" for one in told)
        print(f"  {workers:<22}{cells}", flush=True)
    return found


def _run_times(given: Sequence[documents.Document], numbers: Sequence[int]) -> RunTimes:
    found: RunTimes = {}
    print(f"{f'run time of {len(given)} documents, s':32}" + "".join(f"{way:>32}" for way in WAYS))
    for workers in watched("workers", numbers, len(numbers)):
        cells = ""
        for way, options in WAYS.items():
            cluster = _cluster(workers)
            found[workers, way] = seconds, cuts = cluster.run_all(given, **options), cluster.cuts
            cells += f"{f'{seconds:.3f}, {cuts} cuts':>32}"
        print(f"  {workers:<30}{cells}", flush=True)
    return found


def _plot(kind: str, documents_given: int, latencies: Latencies, run_times: RunTimes) -> None:
    def draw(all_axes: list[Any]) -> None:
        left, right = all_axes
        places = range(len(WORKERS))
        for number, rate in enumerate(RATES):
            own = [latencies[workers, rate] for workers in WORKERS]
            color = f"C{number}"
            left.plot(places, [one.p50 for one in own], "o-", color=color, label=f"{rate}/s, p50")
            left.plot(places, [one.p99 for one in own], "x:", color=color, label=f"{rate}/s, p99")
        left.set_ylabel("ms from a document's arrival to its last change")
        left.set_title("latency, by documents a second")
        for number, way in enumerate(WAYS):
            seconds = [run_times[workers, way][0] for workers in WORKERS]
            right.plot(places, seconds, f"{'osx'[number]}-", color=f"C{number}", label=way)
        one = run_times[WORKERS[0], "no cuts"][0]
        linear = [one / workers for workers in WORKERS]
        right.plot(places, linear, ":", color="gray", label="linear")
        right.set_ylim(bottom=0.5 * min(seconds for seconds, _ in run_times.values()))
        right.set_ylabel("seconds")
        right.set_title(f"run time of {documents_given} documents, cuts every {CUT_MS} ms")
        for axes, ticks in zip(all_axes, (TICKS_MS, TICKS_SECONDS), strict=True):
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            shown = [tick for tick in ticks if low <= tick <= high]
            axes.set_yticks(shown, [f"{tick:,}" for tick in shown])
            axes.minorticks_off()
            axes.set_xticks(places, [str(workers) for workers in WORKERS])
            axes.set_xlabel("workers")
            axes.legend(fontsize=7)
        left.figure.suptitle(
            f"{kind}; {modelled.MODEL};\ncuts: {modelled.ROW_US} µs a row, "
            f"{modelled.COMMIT_US / 1_000:g} ms to store; {modelled.AHEAD} documents under way on each "
            f"worker of a fixed input; acker and driver take no time",
            fontsize=8,
        )

    drawn("scaling-model", draw, columns=2, width=12)
