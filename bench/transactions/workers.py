"""Throughput and latency by the number of workers, of transfers over 100,000 accounts.

One front feeds one worker, and the number of cores is fixed: with more workers than cores the
figures show only what the additional workers cost.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from transactions import flows, plots
from transactions.measuring import head, measured, row

WORKERS = (1, 2, 4)
ACCOUNTS = 100_000
BURST = 60_000
QUICK_BURST = 2_000


def main(spark: SparkSession, *, quick: bool) -> None:
    burst = QUICK_BURST if quick else BURST
    given = flows.transfers(5 * burst, ACCOUNTS)
    head(f"by workers, {burst:,} transfers, {ACCOUNTS:,} accounts")
    line = []
    for workers in WORKERS:
        line.append(
            measured(
                spark,
                flows.bank(),
                given,
                burst,
                workers=workers,
                steady_seconds=1 if quick else 3,
            )
        )
        row(f"{workers} worker{'s' if workers > 1 else ''}", line[-1])
    plots.rates_and_latencies("workers", WORKERS, {"transfers": line}, "workers")
