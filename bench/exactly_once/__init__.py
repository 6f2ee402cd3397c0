"""What exactly-once costs: cuts at a global time compared with marker snapshots, in one engine.

    python bench/run.py exactly_once [--only latency] [--only kills] [--only lost] [--only runtime] [--only cuts]

One file per subject:

===========  ====================================================================================
`latency`    the inverted index at a steady rate, by guarantee, ordering and interval
`kills`      the same through three kills of a worker: latency over time, seconds to recover
`lost`       one of three workers killed, with 100,000 keys: seconds to recover, beside a restart of all
`runtime`    a fixed input with cuts, markers and stop-the-world, against none (the snapshot
             paper's Figure 6)
`cuts`       bytes and milliseconds of a cut, by the size of the state and the share that changed
`steady`     the documents, when they are due, and when their last record was stored
`plots`      PNGs under bench/plots/
===========  ====================================================================================

All in one run, because the machine's speed varies. ``--quick`` makes everything small: to check
that it runs, not to measure.
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
            import_module(f"exactly_once.{part}").main(spark, quick=quick)
