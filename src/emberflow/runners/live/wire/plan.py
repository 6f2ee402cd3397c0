"""What a worker has to know: all of it travels in the closure that Spark ships."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.engine.worker.routing import front_host
from emberflow.errors import OnError
from emberflow.fronts.protocol import Front
from emberflow.graph.nodes import Graph
from emberflow.graph.transactions import Close, hears_elements_alone
from emberflow.runners.live.wire.sockets import RunKeys
from emberflow.values.item import front_index
from emberflow.values.shares import Shares, shares_beside_fronts

Guarantee: TypeAlias = Literal["exactly-once", "at-least-once", "at-most-once"]

#: In which order items are processed: that of their global times, or as they come.
Ordering: TypeAlias = Literal["time", "arrival"]
#: How snapshots are taken where items are processed as they come.
Snapshots: TypeAlias = Literal["markers", "stop"]


class Plan(NamedTuple):
    """One life of the workers of a flow."""

    graph: Graph
    workers: int
    incarnation: int
    keys: RunKeys
    coordinator: str
    fronts: dict[str, Front]
    shares: Shares
    sinks: dict[str, Any]  # None for those that live in the driver
    credit: int
    batch: int
    on_error: OnError = "fail"
    guarantee: Guarantee = "exactly-once"
    #: Where cuts and logs are stored, and the cut to begin from.
    checkpoint: str | None = None
    restored: Manifest | None = None
    ordering: Ordering = "time"
    snapshots: Snapshots = "markers"


class WorkerNews(NamedTuple):
    """What a worker tells about itself."""

    worker: int
    statistics: Any
    waiting: int  # elements taken from a source and not yet entered
    unstored: int  # items that are final and not yet stored
    halted: bool  # its fronts take nothing more: ended, or told so
    held: int  # items at barriers, not yet final
    bucket_items: int | None  # in the buckets of all keys; None when there are too many to look at
    settled: int  # elements whose output is all stored
    latencies_ms: list[tuple[float, int]]  # from taken in to stored, and of how many elements
    lag_ms: float  # since when the oldest element that is not final has been in
    cpu_seconds: float  # that its process has used
    pid: int  # of its process, on its executor's machine
    chose: bool  # whether a front here chose times, or cannot be read again


def front_indices(graph: Graph, fronts: Mapping[str, Front]) -> list[int]:
    """Those of all partitions of all fronts."""
    return [
        front_index(node.index, len(graph.fronts), partition)
        for name, node in graph.fronts.items()
        for partition in range(fronts[name].partitions)
    ]


def feeding_workers(graph: Graph, fronts: Mapping[str, Front], workers: int) -> set[int]:
    """The workers that some partition of a front feeds."""
    return {front_host(index, workers) for index in front_indices(graph, fronts)}


def shares_of(graph: Graph, fronts: Mapping[str, Front], workers: int) -> Shares:
    """The shares of the workers, given what they feed."""
    closing = any(
        isinstance(node, Close) and hears_elements_alone(graph, node) for node in graph.nodes
    )
    return shares_beside_fronts(workers, feeding_workers(graph, fronts, workers), closing=closing)
