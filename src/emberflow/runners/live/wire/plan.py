"""The plan of a life: everything that a worker needs, in the closure that Spark ships to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.engine.speculation.patience import DEFAULT_JUDGES, Judges
from emberflow.engine.worker.routing import front_host
from emberflow.errors import OnError
from emberflow.fronts.protocol import Front, front_contract
from emberflow.graph.nodes import Graph
from emberflow.graph.transactions import Close, hears_elements_alone
from emberflow.graph.versions import CarryPlan
from emberflow.runners.live.balance.meter import LoadReport
from emberflow.runners.live.observation import Observation
from emberflow.runners.live.wire.sockets import WireKeys
from emberflow.values.item import front_index
from emberflow.values.owners import Owners, weighted_owners, weights_beside_fronts

Guarantee: TypeAlias = Literal["exactly-once", "at-least-once", "at-most-once"]

#: The order in which workers process items: that of global times, or that of arrival.
Ordering: TypeAlias = Literal["time", "arrival"]
#: How workers take snapshots with ``ordering="arrival"``.
Snapshots: TypeAlias = Literal["markers", "stop"]


class Plan(NamedTuple):
    """One life of the workers of a flow."""

    graph: Graph
    workers: int
    incarnation: int
    keys: WireKeys
    coordinator: str
    fronts: dict[str, Front]
    owners: Owners
    sinks: dict[str, Any]  # None for those that run in the driver
    credit: int
    batch: int
    on_error: OnError = "fail"
    guarantee: Guarantee = "exactly-once"
    #: Where cuts and logs are stored, and the cut to begin from.
    checkpoint: str | None = None
    restored: Manifest | None = None
    #: If that cut is of an earlier version of the flow: what becomes of its state.
    carried: CarryPlan | None = None
    #: If its workers take over from those of an earlier version, in the same processes: the sinks whose
    #: writers they take over too.
    inherits: frozenset[str] | None = None
    #: If its workers take over from those of the same version with another owner table: that table.
    moved_from: Owners | None = None
    #: Whether its workers run beside those of an earlier version, on the same elements (`mirror`).
    is_mirror: bool = False
    ordering: Ordering = "time"
    snapshots: Snapshots = "markers"
    #: Who decides how far workers compute ahead.
    judges: Judges = DEFAULT_JUDGES
    #: The levels of the driver's loggers, by name.
    log_levels: dict[str, int] = {}  # noqa: RUF012
    #: Whether the workers tell what each step does (`observation`).
    is_observed: bool = False
    #: How many bytes of state each worker keeps in memory, and where it keeps the rest; None for defaults.
    state_memory: int | None = None
    state_folder: str | None = None
    #: Whether each worker has an account of what it has sent, and the driver no acker (`engine.progress.accounts`).
    has_accounts: bool = False


class WorkerNews(NamedTuple):
    """A worker's report about itself."""

    worker: int
    statistics: Any
    waiting: int  # elements read from a source and not yet entered
    unstored: int  # items that are final and not yet stored
    halted: bool  # its fronts read nothing more: they have ended, or were halted
    held: int  # items at barriers, not yet final
    bucket_items: int | None  # in the buckets of all keys; None if there are too many to count
    settled: int  # elements whose output is all stored
    latencies_ms: list[tuple[float, int]]  # from entering to stored, and of how many elements
    lag_ms: float  # age of the oldest element that is not final
    cpu_seconds: float  # that its process has used
    pid: int  # of its process, on its executor's machine
    chose: bool  # whether one of its fronts assigned times, or cannot be read again
    memory: float = 0.0  # the share of its memory that is in use
    cold_keys: int = 0  # whose state is out of its memory
    caught_up: bool = (
        False  # whether it had dealt with all that had come, at some moment since the last
    )
    #: By peer: how many envelopes it sent, and the step that the last frame was bound for.
    sent: dict[int, tuple[int, str]] = {}  # noqa: RUF012
    received: dict[int, int] = {}  # noqa: RUF012
    #: By front: how many elements of its partitions here were late.
    late: dict[str, int] = {}  # noqa: RUF012
    #: What each step does, if the plan asks for it.
    observation: Observation | None = None
    #: What it has done since the last report, and for which slices.
    load: LoadReport | None = None


def front_indices(graph: Graph, fronts: Mapping[str, Front]) -> list[int]:
    """The front indices of all partitions of all fronts."""
    return _indices_of(graph, fronts, graph.fronts)


def telling_fronts(graph: Graph, fronts: Mapping[str, Front]) -> list[int]:
    """The front indices of all partitions of fronts that promise the present while they are idle."""
    telling = [name for name in graph.fronts if front_contract(fronts[name]).arrival is True]
    return _indices_of(graph, fronts, telling)


def _indices_of(graph: Graph, fronts: Mapping[str, Front], names: Iterable[str]) -> list[int]:
    return [
        front_index(graph.fronts[name].index, len(graph.fronts), partition)
        for name in names
        for partition in range(fronts[name].partitions)
    ]


def feeding_workers(graph: Graph, fronts: Mapping[str, Front], workers: int) -> set[int]:
    """The workers that feed a partition of a front."""
    return {front_host(index, workers) for index in front_indices(graph, fronts)}


def owners_of(graph: Graph, fronts: Mapping[str, Front], workers: int) -> Owners:
    """The first owner table: fewer slices for workers that feed fronts."""
    return weighted_owners(weights_of(graph, fronts, workers))


def weights_of(graph: Graph, fronts: Mapping[str, Front], workers: int) -> list[int]:
    """How many slices each worker is to have, in proportion: fewer if it feeds fronts."""
    closing = any(
        isinstance(node, Close) and hears_elements_alone(graph, node) for node in graph.nodes
    )
    return weights_beside_fronts(workers, feeding_workers(graph, fronts, workers), closing=closing)
