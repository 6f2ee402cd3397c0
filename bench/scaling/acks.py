"""The driver with an acker, which gets all acks, and with statements of the workers' accounts (`progress.accounts`).

The same query in turns, with each number of workers, at steady rates and as fast as it takes elements: what the
driver's processor does and hears for it, what all processors do, and latency.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from live.session import spark_session

from emberflow.runners.live import life
from emberflow.work import watched
from scaling import tap
from scaling.running import Window, measured

WORKERS = (2, 4, 8, 16)
RATES = (2_000.0, 20_000.0, None)
ROUNDS = 3
SECONDS = 4.0
#: From so many workers on there are accounts.
WAYS = {"acker": 1_000, "accounts": 2}


def main(*, quick: bool) -> None:
    numbers, rates, rounds = (WORKERS[:1], RATES[1:2], 1) if quick else (WORKERS, RATES, ROUNDS)
    print(
        f"{'acks':44}{'a second':>10}{'µs':>8}{'driver %':>10}{'workers %':>11}"
        f"{'to driver':>11}{'bytes':>8}{'peers':>8}{'bytes':>8}{'p50':>8}{'p99':>8}"
    )
    chosen = life.ACCOUNTS_FROM
    with spark_session(cores=max(numbers)) as spark:
        measured(spark, max(numbers), 1_000.0, seconds=1.0)  # starts the processes
        try:
            for workers in watched("numbers of workers", numbers, len(numbers)):
                for rate in rates:
                    found: dict[str, list[Window]] = {way: [] for way in WAYS}
                    for _ in range(rounds):
                        for way, accounts_from in WAYS.items():
                            life.ACCOUNTS_FROM = accounts_from
                            found[way].append(measured(spark, workers, rate, seconds=SECONDS))
                    for way, own in found.items():
                        _row(f"{workers} workers, {way}", rate, own)
        finally:
            life.ACCOUNTS_FROM = chosen


def _row(what: str, rate: float | None, own: list[Window]) -> None:
    """Medians: microseconds an element; percent of a core; envelopes and bytes a second; ms."""

    def median(of: Callable[[Window], float]) -> float:
        return statistics.median(map(of, own))

    def sent(direction: int) -> tuple[float, float]:
        return (
            median(lambda one: one.sent[direction].envelopes / one.seconds),
            median(lambda one: sum(one.sent[direction].bytes.values()) / one.seconds),
        )

    told = "as fast as taken" if rate is None else f"{rate:,.0f}"
    to_driver, to_peers = sent(tap.TO_DRIVER), sent(tap.PEER)
    print(
        f"  {f'{what}, {told}':42}{median(lambda one: one.rate):>10,.0f}"
        f"{median(lambda one: one.us.whole):>8.2f}"
        f"{median(lambda one: 100 * one.used.driver / one.seconds):>10.1f}"
        f"{median(lambda one: 100 * one.used.workers / one.seconds):>11.1f}"
        f"{to_driver[0]:>11,.0f}{_bytes(to_driver[1]):>8}{to_peers[0]:>8,.0f}{_bytes(to_peers[1]):>8}"
        f"{median(lambda one: one.latency_ms.get('p50', 0.0)):>8.1f}"
        f"{median(lambda one: one.latency_ms.get('p99', 0.0)):>8.1f}",
        flush=True,
    )


def _bytes(count: float) -> str:
    return f"{count / 1e6:.1f} M" if count >= 1e6 else f"{count / 1e3:.0f} k"
