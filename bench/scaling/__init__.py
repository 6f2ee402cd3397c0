"""Scaling, as far as two cores can show it: what an element costs by the number of workers.

    python bench/run.py scaling [--only workers] [--only rates] [--only sampling]
                                [--only ranges] [--only acks] [--only driver] [--only model] [--quick]

===========  ====================================================================================
`workers`    processor time, messages and bytes an element, with 1, 2, 4 and 8 workers
`rates`      processor time of the driver, by the rate of elements
`sampling`   what it costs to sample the loads of slices, in turns within a run
`ranges`     latency of free keys while those of another worker are slow
`acks`       what the driver does, and latency, with an acker in it and with accounts of the workers
`driver`     latency, and what the driver does, by 2 to 200 workers, over a model of a cluster whose
             driver takes time
`model`      latency, and the run time of a fixed input, by 1 to 200 workers, over a model of a
             cluster
`running`    the query of most of these: its front, its sink, and what is counted meanwhile
`tap`        counts the messages of a process
===========  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from emberflow.work import watched


def main(parts: Sequence[str], *, quick: bool) -> None:
    for number, part in enumerate(watched("parts", parts, len(parts))):
        if number:
            print()
        import_module(f"scaling.{part}").main(quick=quick)
