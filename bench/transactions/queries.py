"""Transfers beside consistent reads of 5 accounts each: throughput and latency of both.

Threads of the driver read, each at its share of the rate, one read after another. A thread that is
late makes up for at most one second; the rate that was reached is reported too.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from emberflow.runners.live.query import LiveQuery
from transactions import flows, plots
from transactions.measuring import head, measured, row

RATES = (0, 10, 100, 1_000, 5_000)
KEYS_READ = 5
ACCOUNTS = 100_000
BURST = 60_000
QUICK_BURST = 2_000
#: The highest rate of one thread, in reads per second.
_OF_A_THREAD = 50
#: A thread makes up for at most this much delay.
_BEHIND_SECONDS_MAX = 1.0
_JOIN_SECONDS = 30.0
_READY_SECONDS = 60.0


class Readers:
    """Threads that read, and how long each read took."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.milliseconds: list[float] = []
        self.seconds = 0.0
        self.problem: Exception | None = None

    @contextmanager
    def reading(self, query: Any) -> Iterator[None]:
        count = -(-self.rate // _OF_A_THREAD)
        over = threading.Event()
        deadline = time.monotonic() + _READY_SECONDS
        while query.status["message"] != "Running" and time.monotonic() < deadline:
            time.sleep(0.01)
        threads = [
            threading.Thread(target=self._read, args=(query, self.rate / count, number, over))
            for number in range(count)
        ]
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(_JOIN_SECONDS)
            self.seconds = time.monotonic() - begin

    def _read(self, query: Any, rate: float, seed: int, over: threading.Event) -> None:
        random, due = Random(seed), time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            keys = [int(random.random() * ACCOUNTS) for _ in range(KEYS_READ)]
            begin = time.perf_counter()
            try:
                query.read({"accounts": keys})
            except Exception as error:
                if query.isActive:
                    self.problem = error
                return
            self.milliseconds.append((time.perf_counter() - begin) * 1_000)
            due = max(due + 1 / rate, time.monotonic() - _BEHIND_SECONDS_MAX)


def main(spark: SparkSession, *, quick: bool) -> None:
    if not hasattr(LiveQuery, "read"):
        print("by queries: left out, a live query has no read() yet")
        return
    burst = QUICK_BURST if quick else BURST
    given = flows.transfers(5 * burst, ACCOUNTS)
    head(f"by queries of {KEYS_READ} keys, {burst:,} transfers")
    line = []
    rates = RATES[::3] if quick else RATES
    for rate in rates:
        readers = Readers(rate)
        beside = readers.reading if rate else None
        run = partial(measured, steady_seconds=1 if quick else 5, beside=beside)
        line.append(run(spark, flows.bank(), given, burst))
        row(f"{rate:,} queries a second", line[-1])
        if readers.problem is not None:
            raise readers.problem
        if readers.milliseconds:
            reached = len(readers.milliseconds) / readers.seconds
            mean = statistics.fmean(readers.milliseconds)
            print(f"    {reached:,.0f} queries a second were answered, in {mean:.1f} ms on average")
    plots.rates_and_latencies("queries", rates, {"transfers": line}, "queries a second")
