"""Throughput: the running count of a million words by Zipf's law, from a front to a sink.

All systems give the same output, a record with the running count for each word. Each clock starts
with the first output, so that startup does not count:

- *plain loop*: a dict in one process, which keeps its output in a list;
- *live* with one and two workers: one front; the sink is a function in the driver that counts;
- *Bytewax* in its shapes: on each worker a sink that counts;
- *Structured Streaming*, available now over files, one batch each, with fewer of the same words;
  once, because it takes long, and with two sizes of batches: the larger, the better its rate and
  the worse its latency.

The first three alternate for three rounds; medians count.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import engine
from pyspark.sql import SparkSession

from emberflow import fronts
from live import bytewax_rates, streaming_rates
from live.counting import counted

ELEMENTS = 1_000_000
ROUNDS = 3


def live_rate(spark: SparkSession, front: fronts.Front, count: int, workers: int) -> float:
    """Elements per second from the first output to the last."""
    rate, _ = counted(spark, front, workers=workers, count=count)
    return rate


def in_turns(spark: SparkSession, words: list[str]) -> dict[str, float]:
    """The median rates of the plain loop, live and Bytewax."""
    rates: dict[str, list[float]] = {}
    with bytewax_rates.prepared(words) as shapes:
        for _ in range(ROUNDS):
            seconds = engine.timed(engine.plain_count, words)
            rates.setdefault("plain loop", []).append(len(words) / seconds)
            for workers in (1, 2):
                label = f"live, {workers} worker{'s' if workers > 1 else ''}"
                rate = live_rate(spark, fronts.Iterable(words), len(words), workers)
                rates.setdefault(label, []).append(rate)
            for label, run in shapes.items():
                rates.setdefault(f"Bytewax, {label}", []).append(run())
    return {label: statistics.median(rounds) for label, rounds in rates.items()}


def main(spark: SparkSession) -> None:
    print(f"{f'throughput, {ELEMENTS:,} words':52}{'words/s':>12}{'of plain loop':>16}")
    words = engine.zipf_words(ELEMENTS)
    rates = in_turns(spark, words)
    for label, rate in rates.items():
        _row(label, rate, rates)
    for label, rate in streaming_rates.measured(spark, words):
        rates[label] = rate
        _row(label, rate, rates)
    _ratios(rates)


def _row(label: str, rate: float, rates: Mapping[str, float]) -> None:
    print(f"  {label:50}{rate:>12,.0f}{rate / rates['plain loop']:>16.3f}", flush=True)


def _ratios(rates: Mapping[str, float]) -> None:
    print(f"\n{'ratios of live, 2 workers':52}{'is':>12}{'asked':>16}")
    live = rates["live, 2 workers"]
    small, large = streaming_rates.BATCHES

    def best(begin: str, end: str = "") -> float:
        fitting = [
            rate for label, rate in rates.items() if label.startswith(begin) and label.endswith(end)
        ]
        return max(fitting, default=0.0)

    for label, other, asked in (
        ("to the plain loop", rates["plain loop"], ">= 0.1"),
        (f"to the best of PySpark, batches of {small:,}", best("PySpark", f"{small:,}"), ">= 10"),
        (f"to the best of PySpark, batches of {large:,}", best("PySpark", f"{large:,}"), ""),
        ("to the best of Bytewax", best("Bytewax"), "> 1"),
    ):
        ratio = f"{live / other:,.2f}" if other else "no figure"
        print(f"  {label:50}{ratio:>12}{asked:>16}")
