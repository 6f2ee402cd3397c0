"""Events a second of each query: ours live and exactly once, Structured Streaming, Flink SQL.

All get the same events, of 10,000 a second of event time. Ours are in memory, in two partitions; the others read
files of JSON Lines, because that is what they read fast. Ours are the better of two rounds. Spark's are of three
micro-batches together, behind a first one; Flink's of one run, behind one on a few events.

Of q15 to q19 Spark's SQL gives a row for each group and micro-batch. A second line has Spark with a row for each
bid, as ours and Flink's, see `spark_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence

from nexmark.generator import Event
from nexmark.queries import QUERIES, flow_of
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow.work import watched
from nexmark_bench import figures_file, live_queries, plots, spark_streaming
from nexmark_bench.flink_rates import Flink
from nexmark_bench.given_events import events
from nexmark_bench.spark_rows import ROWS

EVENTS, BATCH, FEW, ROUNDS = 200_000, 50_000, 20_000, 2
BY_ROW = 10_000
QUICK_EVENTS, QUICK_BATCH, QUICK_FEW = 4_000, 2_000, 1_000
#: A job of Flink takes seconds to start, and each query has two.
QUICK_FLINK = ("q0", "q5", "q6")
#: Queries whose rows are all out when the last event is, so that their numbers must agree.
ROWS_THAT_STAY = ("q0", "q1", "q2", "q3", "q10", "q13", "q14", "q20", "q21", "q22")


def main(spark: SparkSession, queries: Sequence[str], *, quick: bool) -> None:
    count, batch, few = (QUICK_EVENTS, QUICK_BATCH, QUICK_FEW) if quick else (EVENTS, BATCH, FEW)
    # In quick mode event time runs faster, so that windows close.
    given = events(count, 100 if quick else 10_000)
    heads = f"{'Emberflow':>12}{'Spark':>12}{'of it':>9}{'Flink':>12}{'of it':>9}"
    print(f"{f'throughput, {count:,} events':26}{heads}")
    asked = figures_file.asked(queries, tuple(QUERIES))
    known: figures_file.Figures = {}
    notes: dict[str, list[str]] = {}
    name = "throughput-quick" if quick else "throughput"
    with Flink(given[:few], given) as flink:
        for query in watched("queries", asked, len(asked)):
            figures, told = _measured(spark, flink, query, given, batch, quick=quick)
            for note in told:
                notes.setdefault(note, []).append(query)
            is_first = not queries and query == asked[0]
            known = figures_file.merged(name, {query: figures}, anew=is_first)
    for note, those in notes.items():
        print(f"  {' '.join(those)}: {note}")
    _summary(known)
    if not quick:
        _write_table(known)
        plots.throughput({query: figures[:3] for query, figures in known.items()})


def _measured(
    spark: SparkSession, flink: Flink, query: str, given: list[Event], batch: int, *, quick: bool
) -> tuple[list[float], list[str]]:
    """The figures of a row, and why some are missing."""
    notes: list[str] = []
    rounds = [live_queries.rate(spark, query, given) for _ in range(1 if quick else ROUNDS)]
    ours = max(one.events_a_second for one in rounds)
    theirs = spark_streaming.rate(spark, query, given, batch)
    if theirs.refusal:
        notes.append(f"Spark: {theirs.refusal}")
    elif query in ROWS_THAT_STAY:
        assert theirs.rows == rounds[0].rows, f"{query}: {theirs.rows} rows, {rounds[0].rows}"
    is_asked = not quick or query in QUICK_FLINK
    of_flink = flink.rate(query) if is_asked else "not asked in quick mode"
    if isinstance(of_flink, str):
        notes.append(f"Flink: {of_flink}")
        of_flink = 0.0
    figures = [ours, theirs.events_a_second, of_flink]
    told = f"{ours:>12,.0f}" + "".join(_beside(ours, other) for other in figures[1:])
    print(f"  {query:24}{told}", flush=True)
    if query in ROWS:
        by_row = _by_row(spark, query, given)
        print(f"    {'with a row for each bid':34}{_beside(ours, by_row)}", flush=True)
        figures.append(by_row)
    return figures, notes


def _by_row(spark: SparkSession, query: str, given: list[Event]) -> float:
    """Events a second of Spark where it gives the rows that we give: so few that fewer events do."""
    some = given[:BY_ROW]
    found = spark_streaming.rate(spark, query, some, len(some) // 2, by_row=True)
    expected = ef.run(flow_of(query), events=[ef.At(one.date_time, one) for one in some])[query]
    assert found.rows == len(expected), f"{query}: {found.rows} rows, {len(expected)}"
    return found.events_a_second


def _beside(ours: float, other: float) -> str:
    return f"{other:>12,.0f}{ours / other:>9.2f}" if other else f"{'none':>12}{'':>9}"


def _summary(known: figures_file.Figures) -> None:
    """Of all queries that were measured, in this run and in earlier ones."""
    print(f"  of {len(known)} queries:")
    figures_file.print_kinds({query: figures[0] for query, figures in known.items()})
    peers = ("ours to Spark", "ours to Flink", "ours to Spark with a row for each bid")
    for number, name in enumerate(peers, 1):
        figures_file.print_ratios(
            {
                query: figures[0] / figures[number]
                for query, figures in known.items()
                if len(figures) > number and figures[number]
            },
            name,
        )


def _write_table(known: figures_file.Figures) -> None:
    rows: list[list[str]] = []
    for query, (ours, spark, flink, *by_row) in known.items():
        told, ratio = figures_file.told, figures_file.ratio
        beside = [told(spark), ratio(ours, spark), told(flink), ratio(ours, flink)]
        rows.append([query, told(ours), *beside])
        rows += [["a row for each bid", "", told(one), ratio(ours, one), "", ""] for one in by_row]
    heads = ["", "Emberflow, events a second", "Spark", "ours to it", "Flink", "ours to it"]
    figures_file.write_table("throughput", heads, rows)
