"""From an event to its output at a steady rate: ours live and exactly once, and Structured Streaming.

Flink's SQL reads no socket and no pipe without further connectors, so it has no figure here. The first quarter
of a run is warm-up and does not count. All queries with state are measured, and of the others q0.
"""

from __future__ import annotations

from collections.abc import Sequence

from nexmark.queries import QUERIES
from pyspark.sql import SparkSession

from emberflow.work import watched
from nexmark_bench import figures_file, live_queries, plots, spark_streaming
from nexmark_bench.given_events import events

RATE = 2_000
SECONDS = 12
#: Windows of ten seconds close every ten seconds.
WINDOW_SECONDS = 22
MEASURED = ("q0", *(query for query in QUERIES if query not in figures_file.KINDS["rows"]))
PERCENTS = (50, 99)


def main(spark: SparkSession, queries: Sequence[str], *, quick: bool) -> None:
    heads = "".join(
        f"{f'{who} p{percent}':>14}" for who in ("ours", "Spark") for percent in PERCENTS
    )
    print(f"{f'latency, ms, {RATE:,} events a second':40}{heads}")
    known: figures_file.Figures = {}
    _warm_up(spark)
    asked = figures_file.asked(queries, ("q0", "q5", "q17") if quick else MEASURED)
    for query in watched("queries", asked, len(asked)):
        is_long = query in figures_file.KINDS["windows"] and not quick
        given = events(RATE * (WINDOW_SECONDS if is_long else SECONDS), RATE)
        ours = _percentiles(live_queries.latencies(spark, query, given))
        latencies, note = spark_streaming.latencies(spark, query, given)
        theirs = _percentiles(latencies)
        figures = [*ours, *theirs]
        told = "".join(f"{figure:>14,.1f}" if figure else f"{'none':>14}" for figure in figures)
        print(f"  {query:38}{told}{f'  {note}' if note else ''}", flush=True)
        name = "latency-quick" if quick else "latency"
        is_first = not queries and query == asked[0]
        known = figures_file.merged(name, {query: figures}, anew=is_first)
    for number, percent in enumerate(PERCENTS):
        of_both = {
            query: figures[number + len(PERCENTS)] / figures[number]
            for query, figures in known.items()
            if figures[number] and figures[number + len(PERCENTS)]
        }
        figures_file.print_ratios(of_both, f"p{percent}, Spark's to ours, {len(of_both)} queries")
    if not quick:
        _write_table(known)
        plots.latency(known)


def _write_table(known: figures_file.Figures) -> None:
    rows = [
        [
            query,
            *(figures_file.told(figure, 1) for figure in figures),
            *(figures_file.ratio(figures[2 + number], figures[number], 0) for number in (0, 1)),
        ]
        for query, figures in known.items()
    ]
    heads = ["", "Emberflow p50", "p99", "Spark p50", "p99", "Spark's to ours, p50", "p99"]
    figures_file.write_table("latency", heads, rows)


def _warm_up(spark: SparkSession) -> None:
    """The first query of a session compiles, and starts processes, for all."""
    few = events(RATE, RATE)
    live_queries.rate(spark, "q0", few)
    spark_streaming.rate(spark, "q0", few, RATE // 2)


def _percentiles(latencies: list[float]) -> list[float]:
    if not latencies:
        return [0.0 for _ in PERCENTS]
    ordered = sorted(latencies)
    return [ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in PERCENTS]
