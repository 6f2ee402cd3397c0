"""Throughput and latency by the number of accounts: the fewer, the more transfers conflict."""

from __future__ import annotations

from pyspark.sql import SparkSession

from transactions import flows, plots
from transactions.measuring import head, measured, row

KEYS = (10, 100, 1_000, 10_000, 100_000)
BURST = 60_000
QUICK_BURST = 2_000


def main(spark: SparkSession, *, quick: bool) -> None:
    burst = QUICK_BURST if quick else BURST
    numbers = KEYS[1:3] if quick else KEYS
    head(f"by accounts, {burst:,} transfers")
    line = []
    for keys in numbers:
        given = flows.transfers(5 * burst, keys)
        line.append(measured(spark, flows.bank(), given, burst, steady_seconds=1 if quick else 3))
        row(f"{keys:,} accounts", line[-1])
    plots.rates_and_latencies("keys", numbers, {"transfers": line}, "accounts", log=True)
