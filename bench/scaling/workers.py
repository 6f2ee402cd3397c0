"""Processor time, messages and bytes an element, with 1, 2, 4 and 8 workers.

Twice: as fast as the query takes elements, and at a steady rate that no number of workers is busy with. Each
window is a query of its own; rounds alternate, and medians count. All processes share the machine's cores,
so more workers do not give more elements: what can be seen is what an element costs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from live.session import spark_session

from emberflow.work import watched
from scaling import tap
from scaling.running import Window, measured

WORKERS = (1, 2, 4, 8)
ROUNDS = 3
#: Elements a second, over all partitions; None is as many as are taken.
RATES = (None, 20_000.0)
#: Of the processor time an element with 2 workers.
ASKED = 1.5


def median(windows: list[Window], of: Callable[[Window], float]) -> float:
    return statistics.median(map(of, windows))


def main(*, quick: bool) -> None:
    numbers, rounds = (WORKERS[:2], 1) if quick else (WORKERS, ROUNDS)
    found: dict[tuple[float | None, int], list[Window]] = {}
    with spark_session(cores=max(numbers)) as spark:
        measured(spark, max(numbers), 1_000.0, seconds=1.0)  # starts the processes
        for _ in watched("rounds", range(rounds), rounds):
            for rate in RATES:
                for workers in numbers:
                    window = measured(spark, workers, rate)
                    found.setdefault((rate, workers), []).append(window)
    for rate in RATES:
        _table(rate, {workers: found[rate, workers] for workers in numbers})
    for workers in numbers:
        _kinds(workers, found[RATES[-1], workers][0])


def _table(rate: float | None, found: dict[int, list[Window]]) -> None:
    label = "as fast as taken" if rate is None else f"{rate:,.0f} a second"
    print(
        f"{f'running count, {label}':32}{'a second':>12}{'µs':>8}{'driver':>8}{'JVM':>8}{'workers':>9}"
        f"{'of 2':>8}{'asked':>8}{'messages':>10}{'bytes':>8}{'replays':>9}"
    )
    two = median(found[2], lambda window: window.us.whole)
    for workers, own in found.items():
        whole = median(own, lambda window: window.us.whole)
        asked = f"{ASKED:g}" if workers == max(found) else ""
        print(
            f"  {f'{workers} workers':30}{median(own, lambda each: each.rate):>12,.0f}{whole:>8.2f}"
            f"{median(own, lambda each: each.us.driver):>8.2f}"
            f"{median(own, lambda each: each.us.jvm):>8.2f}"
            f"{median(own, lambda each: each.us.workers):>9.2f}"
            f"{whole / two:>8.2f}{asked:>8}{median(own, lambda each: each.messages):>10.3f}"
            f"{median(own, lambda each: each.bytes):>8.1f}"
            f"{median(own, lambda each: each.replay_ratio):>9.2f}",
            flush=True,
        )


def _kinds(workers: int, window: Window) -> None:
    """A line for each direction: envelopes a second, and what is in them."""
    print(f"  {workers} workers at the steady rate, a second:")
    for direction, sent in zip(tap.DIRECTIONS, window.sent, strict=True):
        most = sorted(sent.messages, key=lambda kind: -sent.messages[kind])[:5]
        told = ", ".join(
            f"{sent.messages[kind] / window.seconds:,.0f} {kind} of "
            f"{sent.bytes[kind] / max(1, sent.messages[kind]):,.0f} bytes"
            for kind in most
        )
        print(f"    {direction:18}{sent.envelopes / window.seconds:>8,.0f} envelopes: {told}")
