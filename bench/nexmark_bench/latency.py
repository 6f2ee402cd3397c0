"""From an event to its output at a steady rate: ours live and exactly once, and Structured Streaming.

Flink's SQL reads no socket and no pipe without further connectors, so it has no figure here. The first quarter
of a run is warm-up and does not count.
"""

from __future__ import annotations

from nexmark.queries import QUERIES
from pyspark.sql import SparkSession

from emberflow.work import watched
from nexmark_bench import live_queries, plots, spark_streaming
from nexmark_bench.given_events import events

RATE = 2_000
#: Long enough for windows of ten seconds, which close every ten seconds.
SECONDS = 30
QUICK_SECONDS = 12
PERCENTS = (50, 99)


def main(spark: SparkSession, *, quick: bool) -> None:
    given = events(RATE * (QUICK_SECONDS if quick else SECONDS), RATE)
    heads = "".join(
        f"{f'{who} p{percent}':>14}" for who in ("ours", "Spark") for percent in PERCENTS
    )
    print(f"{f'latency, ms, {RATE:,} events a second':40}{heads}")
    found: dict[str, list[float]] = {}
    asked = ("q0", "q5", "q17") if quick else tuple(QUERIES)
    for query in watched("queries", asked, len(asked)):
        ours = _percentiles(live_queries.latencies(spark, query, given))
        latencies, note = spark_streaming.latencies(spark, query, given)
        theirs = _percentiles(latencies)
        found[query] = [*ours, *theirs]
        told = "".join(
            f"{figure:>14,.1f}" if figure else f"{'none':>14}" for figure in found[query]
        )
        print(f"  {query:38}{told}{f'  {note}' if note else ''}", flush=True)
    plots.latency(found)


def _percentiles(latencies: list[float]) -> list[float]:
    if not latencies:
        return [0.0 for _ in PERCENTS]
    ordered = sorted(latencies)
    return [ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in PERCENTS]
