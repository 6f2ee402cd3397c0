"""Throughput and latency by the number of states, after the FlowDB paper.

In series and in parallel, in one transaction and in separate ones.

In series each access waits for the result of the one before, on which its key could depend.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from transactions import flows, plots
from transactions.measuring import Figures, head, measured, row

STATES = (1, 2, 3, 4, 5)
KEYS = 100_000
BURST = 30_000
QUICK_BURST = 2_000


def main(spark: SparkSession, *, quick: bool) -> None:
    burst = QUICK_BURST if quick else BURST
    lines: dict[str, list[Figures]] = {}
    numbers = STATES[1:2] if quick else STATES
    head(f"by states, {burst:,} elements, {KEYS:,} keys")
    for separate in (False, True):
        for series in (True, False):
            kind = f"{'series' if series else 'parallel'}, {'separate' if separate else 'one'}"
            for states in numbers:
                found = measured(
                    spark,
                    flows.several_states(states, KEYS, series=series, separate=separate),
                    flows.spread_elements(5 * burst, KEYS),
                    burst,
                    outputs=states if separate and not series else 1,
                    steady_seconds=1 if quick else 2,
                )
                lines.setdefault(kind, []).append(found)
                row(f"{states} in {kind}", found)
    plots.rates_and_latencies("states", numbers, lines, "states")
