"""A driver that takes time, by 1 to 200 workers, over a model of a cluster (`speculation.modelled`).

With an acker it gets all acks. With accounts (`emberflow.engine.progress.accounts`) it gets so many statements a second
and no more. The inverted index of Wikipedia articles at fixed rates, as in `model`: latency from the arrival of a
document to its last change record, and the share of the time that the driver works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from figures import drawn
from speculation import documents, modelled
from speculation.model import DOCUMENTS_MIN, SECONDS

from emberflow.runners.live.life import ACCOUNTS_FROM
from emberflow.work import watched

WORKERS = (2, 5, 10, 20, 50, 100, 200)
RATES = (50, 200)
WAYS = {"acker": False, "accounts": True}
TICKS_MS = (5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000)


class Seen(NamedTuple):
    p50: float
    p99: float
    driver: float


Found: TypeAlias = dict[tuple[int, int, str], Seen]


def main(*, quick: bool) -> None:
    numbers = (2, 3) if quick else WORKERS
    kind, given = documents.given(60 if quick else int(max(RATES) * SECONDS))
    print(f"{modelled.MODEL}; {_charged()}; {kind}")
    found: Found = {}
    heads = "".join(
        f"{f'{rate}/s, {way}: p50':>26}{'p99':>9}{'driver':>8}" for rate in RATES for way in WAYS
    )
    print(f"{'latency, ms, by workers':24}{heads}")
    for workers in watched("workers", numbers, len(numbers)):
        for rate in RATES:
            own = given[: max(DOCUMENTS_MIN, int(SECONDS * rate))]
            for way, accounts in WAYS.items():
                found[workers, rate, way] = _seen(workers, rate, own, accounts=accounts)
        told = [found[workers, rate, way] for rate in RATES for way in WAYS]
        cells = "".join(f"{one.p50:>26.1f}{one.p99:>9.1f}{one.driver:>8.2f}" for one in told)
        print(f"  {workers:<22}{cells}", flush=True)
    if not quick:
        _plot(kind, found)


def _charged() -> str:
    return (
        f"driver: {modelled.MESSAGE_US} µs a message, {modelled.ENTRY_US} µs an entry of an ack, "
        f"{modelled.TELL_US} µs to tell a worker of progress"
    )


def _seen(
    workers: int, rate: float, given: Sequence[documents.Document], *, accounts: bool
) -> Seen:
    cluster = modelled.Cluster(
        documents.index_flow(workers),
        workers,
        documents.WAYS["adaptive"],
        seed=workers,
        accounts=accounts,
        charged=True,
    )
    figures = cluster.run(given, rate)
    return Seen(figures.p50, figures.p99, cluster.driver_us / cluster.now)


def _plot(kind: str, found: Found) -> None:
    places = range(len(WORKERS))

    def draw(all_axes: list[Any]) -> None:
        left, right = all_axes
        for number, rate in enumerate(RATES):
            for way, line in zip(WAYS, ("x:", "o-"), strict=True):
                own = [found[workers, rate, way] for workers in WORKERS]
                label, color = f"{way}, {rate}/s", f"C{number}"
                left.plot(places, [one.p50 for one in own], line, color=color, label=label)
                right.plot(places, [one.driver for one in own], line, color=color, label=label)
        left.set_yscale("log")
        low, high = left.get_ylim()
        shown = [tick for tick in TICKS_MS if low <= tick <= high]
        left.set_yticks(shown, [f"{tick:,}" for tick in shown])
        left.minorticks_off()
        left.set_ylabel("median ms until a document's last change")
        left.set_title("latency, by documents a second")
        right.set_ylim(0, 1.05)
        right.set_ylabel("share of the time that the driver works")
        right.set_title("the driver")
        for axes in all_axes:
            axes.set_xticks(places, [str(workers) for workers in WORKERS])
            axes.set_xlabel("workers")
            axes.legend(fontsize=7)
        left.figure.suptitle(
            f"{kind}; {modelled.MODEL};\n{_charged()}; live queries have accounts from "
            f"{ACCOUNTS_FROM} workers on",
            fontsize=8,
        )

    drawn("scaling-driver", draw, columns=2, width=12)
