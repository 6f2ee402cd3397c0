"""Live on Spark: latency, throughput and overload, compared with other systems.

    python bench/run.py live [--only latency] [--only throughput] [--only overload] [--only stages]

One file per subject:

====================  ===========================================================================
`latency`             the inverted index at a steady rate, and the table of all latencies
`streaming_latency`   the same flow in Structured Streaming
`throughput`          the running count, and the table of all rates with the ratios between them
`streaming_rates`     the same count in Structured Streaming
`bytewax_rates`       the same count in Bytewax, which runs bench/bytewax_count
`overload`            twice the sustainable rate: what throughput, memory and queues do
`stages`              where the time of an element goes, part by part
`memory`              resident memory of processes, by /proc
`session`             the Spark session of all of them
====================  ===========================================================================

All in one run, because the machine's speed varies: compare figures of one run only. What is
measured three times alternates with what it is compared with, and the median counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from emberflow.work import watched
from live.session import spark_session


def main(parts: Sequence[str]) -> None:
    with spark_session() as spark:
        for number, part in enumerate(watched("parts", parts, len(parts))):
            if number:
                print()
            import_module(f"live.{part}").main(spark)
