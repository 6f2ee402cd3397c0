"""Throughput and latency by the share of transfers that violate the constraint.

A transfer is presumed to commit until its source refuses. Then the update of the target is taken
back, with everything that others computed from it. This is the cost of speculation.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from transactions import flows, plots
from transactions.measuring import head, measured, row

SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5)
ACCOUNTS = 100_000
BURST = 60_000
QUICK_BURST = 2_000


def main(spark: SparkSession, *, quick: bool) -> None:
    burst = QUICK_BURST if quick else BURST
    shares = SHARES[::3] if quick else SHARES
    head(f"by violations, {burst:,} transfers, {ACCOUNTS:,} accounts")
    line = []
    for share in shares:
        given = flows.transfers(5 * burst, ACCOUNTS, violating=share)
        line.append(measured(spark, flows.bank(), given, burst, steady_seconds=1 if quick else 3))
        row(f"{share:.0%} violate", line[-1])
    percents = [100 * share for share in shares]
    plots.rates_and_latencies("violations", percents, {"transfers": line}, "% that violate")
