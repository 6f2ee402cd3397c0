"""What must hold so that a new version can take over from a cut.

The version takes over at the moment of the cut, ``(time, front)``. What the sinks hold beyond it was made
by the old version, and a restarted query would take it for its own: so they must hold nothing beyond. That
is so after a query was stopped, and mostly not after it was killed. And elements of that very time may be
on both sides of the moment, by the indices of their fronts: so these must stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.errors import UnfitCutError
from emberflow.errors import OnError
from emberflow.graph.nodes import Graph
from emberflow.runners.diversion import sink_partitions
from emberflow.sinks.writer import opened
from emberflow.values.item import FRONT_MIN, front_index


def check_not_ahead(
    cut: Manifest, graph: Graph, sinks: Mapping[str, Any], on_error: OnError
) -> None:
    """Raises `UnfitCutError` if a sink holds output that the old version made behind the cut."""
    before = {step.name for step in cut.steps if step.kind == "sink"}
    for name, partition in sink_partitions(graph, on_error):
        if name in graph.sinks and name not in before:
            continue  # it begins with this version
        writer = opened(sinks[name], name, partition)
        try:
            last = writer.last()
        finally:
            writer.close()
        if last is not None and tuple(last[:2]) >= cut.time:
            raise UnfitCutError(
                f"flow {graph.flow!r} is a new version, and would take over from cut {cut.number} at "
                f"{cut.time}. But sink {name!r} already holds output of the old version up to "
                f"{tuple(last[:2])}: the query was not stopped, it was lost. Start the old version once "
                f"more, and stop it with query.stop(), or let the new one take over while it runs, with "
                f"query.upgrade()."
            )


def check_fronts(cut: Manifest, graph: Graph) -> None:
    """Raises `UnfitCutError` if elements of the time of the cut would change places."""
    if cut.time[1] == FRONT_MIN:
        return  # no element of that time is below it
    before = {step.name: step.details["index"] for step in cut.steps if step.kind == "front"}
    for name, index in before.items():
        front = graph.fronts.get(name)
        if front is None:
            continue
        for partition in cut.positions.get(name, {0: None}):
            was = front_index(index, len(before), partition)
            now = front_index(front.index, len(graph.fronts), partition)
            if was != now:
                raise UnfitCutError(
                    f"flow {graph.flow!r} is a new version, and its front {name!r} ({front.where}) has "
                    f"another place among the fronts: partition {partition} was number {was} and is "
                    f"number {now}. Elements of the time {cut.time[0]}, at which it takes over, would "
                    f"change places. Write the fronts of the old version first and in their order; "
                    f"with several partitions, keep their number."
                )
