"""NEXMark live, beside PySpark Structured Streaming and PyFlink, all on the same events.

    python bench/run.py nexmark [--only throughput] [--only latency] [--query q3] [--quick]

With ``--query``, which may be repeated, a run measures these queries and leaves what is known of others in
`figures_file`, so that a whole table can be made of short runs. The systems of a row are always of one run.

===================  ============================================================================
`throughput`         events a second of each query, and the table of all systems
`latency`            from an event to its output, at a steady rate, and the table
`given_events`       the events: in memory, and as files of JSON Lines for the other systems
`live_queries`       our queries of examples/nexmark, live and exactly once
`spark_sql`          the same queries in the SQL of Spark
`spark_rows`         q15 to q19 with a row for each bid, their state written by hand
`spark_streaming`    runs them in Structured Streaming
`flink_sql`          the same queries in the SQL of Flink
`flink_job`          runs them; a script, for the Python that has PyFlink
`flink_rates`        calls the script
`figures_file`       what was measured: in build/, and printed as tables
`plots`              a PNG under bench/plots/
===================  ============================================================================

The folder has another name than the queries, which are the package ``nexmark`` of examples/.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from live.session import spark_session

from emberflow.work import watched

# The workers of live queries import from the same folders.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


def main(parts: Sequence[str], *, quick: bool, queries: Sequence[str] = ()) -> None:
    with spark_session() as spark:
        for number, part in enumerate(watched("parts", parts, len(parts))):
            if number:
                print()
            import_module(f"nexmark_bench.{part}").main(spark, queries, quick=quick)
