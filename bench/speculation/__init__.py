"""Speculation: the experiments of the determinism paper, with three ways to keep the order.

    EMBERFLOW_DATA=folder python bench/run.py speculation [--only live] [--only model] [--quick]

The paper builds an inverted index of Wikipedia articles with word positions, and asks what optimism
costs (replays, by the number of workers and the rate) and what it gains (latency, against a buffer
that waits for its input before it computes). The same here, for

- *optimistic*: every step computes what comes at once and takes back what was wrong, as in the paper;
- *conservative*: every stateful step waits until its input is complete, as a buffer with watermarks;
- *adaptive*: a step waits only while computing at once would be wrong too often. The default.

=============  =====================================================================================
`documents`    the articles, or generated ones where there is no data; the flow; the three ways
`cluster`      live on local Spark, 1, 2 and 4 workers
`model`        the same with 1 to 50 workers over a model
`modelled`     the engine's own workers and acker over a model of clock, processors and links
`plots`        PNGs under bench/plots/
=============  =====================================================================================

A document's latency is from its arrival to its last change record. *Buffers* and *barriers* are how
long a change record waited, on average, at steps that wait and at the barrier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Figures(NamedTuple):
    """One run. Times are milliseconds."""

    replay_ratio: float
    p50: float
    p99: float
    buffers: float
    barriers: float

    @property
    def cells(self) -> str:
        return (
            f"{self.replay_ratio:>10.2f}{self.p50:>10.1f}{self.p99:>10.1f}{self.buffers:>10.1f}"
            f"{self.barriers:>10.1f}"
        )


HEADS = f"{'replays':>10}{'p50 ms':>10}{'p99':>10}{'buffers':>10}{'barriers':>10}"


def main(parts: Sequence[str], *, quick: bool) -> None:
    from speculation import cluster, model

    if "model" in parts:
        model.main(quick=quick)
    if "live" in parts:
        cluster.main(quick=quick)
