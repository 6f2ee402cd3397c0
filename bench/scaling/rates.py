"""The driver by the rate of elements: asked is that its processor time does not depend on it.

The sink is on the workers. What is left to the driver is to supervise, and whatever the workers tell it.
"""

from __future__ import annotations

import statistics

from live.session import spark_session

from emberflow.work import watched
from scaling import tap
from scaling.running import Window, measured

WORKERS = (2, 4)
RATES = (100.0, 1_000.0, 4_000.0, 16_000.0, 64_000.0, None)
ROUNDS = 3


def main(*, quick: bool) -> None:
    numbers, rates, rounds = (WORKERS[:1], RATES[1:3], 1) if quick else (WORKERS, RATES, ROUNDS)
    print(
        f"{'driver, by elements a second':32}{'a second':>12}{'driver %':>10}{'JVM %':>8}{'workers %':>11}"
        f"{'to driver':>11}{'from it':>9}"
    )
    with spark_session(cores=max(numbers)) as spark:
        measured(spark, max(numbers), 1_000.0, seconds=1.0)  # starts the processes
        for workers in numbers:
            found: dict[float | None, list[Window]] = {rate: [] for rate in rates}
            for _ in watched("rounds", range(rounds), rounds):
                for rate in rates:
                    found[rate].append(measured(spark, workers, rate))
            for rate, own in found.items():
                _row(workers, rate, own)


def _row(workers: int, rate: float | None, own: list[Window]) -> None:
    """Percent of a core, and envelopes a second."""

    def percent(kind: str) -> float:
        return statistics.median(100 * getattr(one.used, kind) / one.seconds for one in own)

    def sent(direction: int) -> float:
        return statistics.median(one.sent[direction].envelopes / one.seconds for one in own)

    told = "as fast as taken" if rate is None else f"{rate:,.0f}"
    print(
        f"  {f'{workers} workers, {told}':30}{statistics.median(one.rate for one in own):>12,.0f}"
        f"{percent('driver'):>10.1f}{percent('jvm'):>8.1f}{percent('workers'):>11.1f}"
        f"{sent(tap.TO_DRIVER):>11,.0f}{sent(tap.FROM_DRIVER):>9,.0f}",
        flush=True,
    )
