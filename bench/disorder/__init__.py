"""Disorder: what elements from several partitions, late elements and contention cost.

Every part compares with the same work in order, in the same run, because the machine's speed varies.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(parts: Sequence[str], *, quick: bool) -> None:
    from live.session import spark_session

    from disorder import event_time, hot_key, lag, latencies, lateness, ledger, partitions

    if "lateness" in parts:
        lateness.main(quick=quick)
    if "hot_key" in parts:
        hot_key.main(quick=quick)
    if not {"partitions", "event_time", "kafka", "lag", "latency", "ledger"} & set(parts):
        return
    with spark_session() as spark:
        if "partitions" in parts:
            partitions.main(spark, quick=quick)
        if "event_time" in parts:
            event_time.main(spark, quick=quick)
        if "kafka" in parts:
            # Imports what only the benchmarks of Kafka need.
            from disorder import topics

            topics.main(spark, quick=quick)
        if "lag" in parts:
            lag.main(spark, quick=quick)
        if "latency" in parts:
            latencies.main(spark, quick=quick)
        if "ledger" in parts:
            ledger.main(spark, quick=quick)
