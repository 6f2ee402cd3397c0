"""The bank: transfers over 100,000 accounts, uniform, two workers, durable.

The goal: faster than PostgreSQL with synchronous commit off; below 20 ms on average at 80% of the
burst rate.

A burst takes two seconds, and where other machines share the processor, its speed changes by a
third from one second to the next. So there are many short runs, before and after those of the
others, each with another burst at its end. Three medians are reported: of all runs; of those whose
two bursts agree (see `measuring`); and of those in which the host left the processor to this
machine (`machine`).
"""

from __future__ import annotations

import statistics
import time

from pyspark.sql import SparkSession

from transactions import flows, machine, plots, postgres
from transactions.measuring import SHARE, head, measured, row

TRANSFERS = 200_000
QUICK_TRANSFERS = 5_000
ACCOUNTS = 100_000
STEADY_SECONDS = 5
#: How many runs follow those of the others; one precedes them.
MORE_RUNS = 11
#: The largest share of processor time that a machine left alone loses to others.
STOLEN_MAX = 0.01


def main(spark: SparkSession, *, quick: bool) -> None:
    burst = QUICK_TRANSFERS if quick else TRANSFERS
    accounts = ACCOUNTS // 100 if quick else ACCOUNTS
    seconds = 2 if quick else STEADY_SECONDS
    given = flows.transfers(burst * 8, accounts)
    head(f"the bank, {burst:,} transfers, {accounts:,} accounts")
    rates: dict[str, float] = {}
    runs = [measured(spark, flows.bank(), given, burst, steady_seconds=seconds, after=True)]
    row("live, 2 workers, transactions", runs[0])
    without = measured(
        spark, flows.separate_updates(), given, burst, outputs=2, steady_seconds=seconds
    )
    row("live, 2 workers, separate updates", without)
    rates["live, separate updates"] = without.rate
    begin = time.perf_counter()
    flows.plain_loop(given[:burst])
    rates["plain loop over a dict"] = burst / (time.perf_counter() - begin)
    print(f"  {'plain loop over a dict':44}{rates['plain loop over a dict']:>12,.0f}")
    _postgres(rates, burst, accounts, seconds)
    for _ in range(0 if quick else MORE_RUNS):
        runs.append(measured(spark, flows.bank(), given, burst, steady_seconds=seconds, after=True))
        row("live, 2 workers, transactions, once more", runs[-1])
    rate = rates["live, transactions"] = statistics.median(run.rate for run in runs)
    off = rates.get("PostgreSQL, synchronous commit off")
    if off is not None:
        print(f"  median of PostgreSQL, synchronous commit off: {rate / off:.2f} (asked: > 1)")
    slowest, median = machine.evenness(1.0 if quick else 6.0)
    print(
        f"  a loop that counts, on every core, of its fastest: {slowest:.2f} slowest, {median:.2f} median"
    )
    _tell_means("all runs", [run.mean for run in runs])
    _tell_means("whose bursts agree", [run.mean for run in runs if run.is_calm])
    left_alone = [run.mean for run in runs if run.stolen is not None and run.stolen <= STOLEN_MAX]
    _tell_means(f"with no more than {STOLEN_MAX:.0%} stolen", left_alone)
    plots.bars("bank", rates, "transfers a second")


def _tell_means(which: str, means: list[float]) -> None:
    told = "none"
    if means:
        told = f"{statistics.median(means):.1f} ms (asked: < 20), best {min(means):.1f}"
    print(f"  mean at {SHARE:.0%} of the burst, median of {len(means)} {which}: {told}")


def _postgres(rates: dict[str, float], burst: int, accounts: int, seconds: int) -> None:
    with postgres.bank(accounts) as bank:
        if bank is None:
            print("  PostgreSQL: its server or pgbench is not installed (Debian: postgresql)")
            return
        for synchronous in (True, False):
            label = f"PostgreSQL, synchronous commit {'on' if synchronous else 'off'}"
            found = bank.measured(burst, synchronous=synchronous, share=SHARE, seconds=seconds)
            rates[label] = found.rate
            print(f"  {label:44}{found.rate:>12,.0f}{found.mean:>10,.1f}", flush=True)
