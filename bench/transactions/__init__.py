"""Transactions: the bank, compared with PostgreSQL, and the experiments of the FlowDB paper.

    python bench/run.py transactions [--only bank] [--only states] ... [--quick]

One file per subject:

==============  ====================================================================================
`bank`          transfers a second in a burst, and latency at 80% of that: ours, PostgreSQL's with
                synchronous commit on and off, the same without transactions, a plain loop
`states`        1 to 5 states, in series and in parallel, in one transaction and in separate ones
`keys`          10 to 100,000 accounts
`workers`       1, 2 and 4 workers
`queries`       10 to 5,000 consistent reads of 5 accounts a second, beside the transfers
`violations`    0 to 50% of transfers violate the constraint
`crowds`        many transactions of one element on few keys, next to an element each
`stages`        where the processor's time of a transfer goes, part by part; no Spark
`flows`         the flows and their elements
`measuring`     a burst, and then a steady rate, through one live query
`postgres`      the same bank in a private PostgreSQL
`plots`         PNGs under bench/plots/
==============  ====================================================================================

All in one run, because the machine's speed varies. Durable throughout: the front assigns arrival
times, which are in its log before it reports them, and there is a cut every second. ``--quick``
makes everything small: to check that it runs, not to measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from live.session import spark_session

from emberflow.work import watched


def main(parts: Sequence[str], *, quick: bool) -> None:
    with spark_session() as spark:
        for number, part in enumerate(watched("parts", parts, len(parts))):
            if number:
                print()
            import_module(f"transactions.{part}").main(spark, quick=quick)
