"""What a life of a query is made of: its plan, its coordinator and the committer of its cuts.

A life is made of the settings of a version and of the cut that it begins from. The `supervisor` decides
when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.checkpoint.cuts.store import Life
from emberflow.engine.messages import BEFORE_ALL
from emberflow.engine.speculation.patience import DEFAULT_JUDGES, Judges
from emberflow.errors import InputError, OnError
from emberflow.fronts.protocol import Front, front_contract
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import Carry, CarryPlan
from emberflow.runners.diversion import sink_partitions
from emberflow.runners.live.arrival.driver import DriverSnapshots
from emberflow.runners.live.balance.pace import Elasticity
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.driver.cuts import CutCommitter, CutsByTime, DriverCuts, tell_passed
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.wire.log_records import levels
from emberflow.runners.live.wire.plan import Guarantee, Ordering, Plan, Snapshots
from emberflow.runners.live.wire.sockets import WireKeys
from emberflow.sinks.protocol import sink_contract
from emberflow.values.owners import Owners

if TYPE_CHECKING:
    from emberflow.runners.live.driver.cluster import CoordinatorAddress

#: From so many workers on each has an account of what it has sent (`engine.progress.accounts`). Fewer have an acker
#: in the driver, which is one hop less.
ACCOUNTS_FROM = 12
#: See `default_batch`.
_BATCH_MIN, _BATCH_A_WORKER = 1_000, 250


class Settings(NamedTuple):
    """The settings that all lives of a query share."""

    graph: Graph
    fronts: Mapping[str, Front]
    sinks: Mapping[str, Any]
    workers: int
    owners: Owners
    credit: int
    batch: int | None  # None for `default_batch`
    on_error: OnError
    place: CoordinatorAddress
    guarantee: Guarantee
    checkpoint: str | None
    interval_ms: int
    kept: int
    keep_logs: bool
    ordering: Ordering = "time"
    snapshots: Snapshots = "markers"
    #: Where other processes reach the query's bridge, and their token; by default a random one.
    bridge_place: CoordinatorAddress | None = None
    bridge_token: str | None = None
    #: How far reads of state may look back, in the time of the elements.
    history: int = 0
    #: Who decides how far workers compute ahead.
    judges: Judges = DEFAULT_JUDGES
    #: What else than its steps' own names says where a new version has its state from.
    carry: Carry | None = None
    #: Whether other processes of its user may let it go over to another version.
    takes_versions: bool = False
    #: Whether the workers tell what each step does.
    is_observed: bool = False
    #: If this driver takes the query over from another one: the incarnation that it follows.
    follows: int | None = None
    #: How many bytes of state each worker keeps in memory, and where it keeps the rest.
    state_memory: int | None = None
    state_folder: str | None = None
    #: What the query does by itself about its load.
    elasticity: Elasticity = Elasticity()


def committer_of(settings: Settings, life: Life, *, counts: bool = True) -> CutCommitter | None:
    """What commits the cuts of a life; None if there is nowhere to store them.

    Raises if the fronts do not fit the cut to begin from. Fronts that keep their elements themselves are
    told what that cut has, if it ``counts`` already; otherwise they are when the next one does.
    """
    for name, front in settings.fronts.items():
        known = life.restored.positions.get(name) if life.restored is not None else None
        _check_partitions(name, front, known)
    told = {
        name: front
        for name, front in settings.fronts.items()
        if front_contract(front).passed is not None
    }
    if life.restored is not None and counts:
        for name, front in told.items():
            tell_passed(name, front, life.restored)
    if settings.checkpoint is None:
        return None
    return CutCommitter(
        settings.graph,
        settings.checkpoint,
        life,
        _strategy(settings),
        workers=settings.workers,
        interval_ms=settings.interval_ms,
        keep=settings.kept,
        logged={
            name: front.partitions
            for name, front in settings.fronts.items()
            if front_contract(front).chooses and not settings.keep_logs
        },
        retaining=told,
        trims=not settings.keep_logs,
    )


def coordinator_of(
    settings: Settings,
    life: Life,
    carried: CarryPlan | None,
    keys: WireKeys,
    *,
    running: Callable[[], None],
    committer: CutCommitter | None = None,
    inherits: frozenset[str] | None = None,
    prepared: Callable[[BaseException | None], None] = lambda failure: None,
    met: Callable[[], None] | None = None,
    released: Callable[[int, Any], None] = lambda worker, released: None,
    log: QueryLog | None = None,
) -> Coordinator:
    """The coordinator of a life. See there for what the arguments are."""
    return Coordinator(
        settings.graph,
        workers=settings.workers,
        incarnation=life.incarnation,
        keys=keys,
        place=settings.place,
        fronts=settings.fronts,
        sinks=settings.sinks,
        on_error=settings.on_error,
        committer=committer,
        strategy=_strategy(settings) if committer is None else committer.strategy,
        since=BEFORE_ALL if life.restored is None else life.restored.time,
        history=settings.history,
        carried=carried,
        running=running,
        inherits=inherits,
        prepared=prepared,
        met=met,
        released=released,
        log=log,
        owners=settings.owners,
        has_accounts=_has_accounts(settings),
    )


def default_batch(workers: int) -> int:
    """How many elements of a partition a worker takes in at once. It sends each worker a frame with a share of
    them, and what a frame costs does not depend on what is in it: with many workers it takes more."""
    return max(_BATCH_MIN, _BATCH_A_WORKER * workers)


def plan_of(
    settings: Settings,
    life: Life,
    carried: CarryPlan | None,
    keys: WireKeys,
    coordinator: Coordinator,
) -> Plan:
    """What the workers of a life need."""
    return Plan(
        graph=settings.graph,
        workers=settings.workers,
        owners=settings.owners,
        incarnation=life.incarnation,
        keys=keys,
        coordinator=coordinator.address,
        fronts=dict(settings.fronts),
        sinks={
            name: None if sink_contract(sink).on_driver else sink
            for name, sink in settings.sinks.items()
        },
        credit=settings.credit,
        batch=settings.batch or default_batch(settings.workers),
        on_error=settings.on_error,
        guarantee=settings.guarantee,
        checkpoint=settings.checkpoint,
        restored=life.restored,
        carried=carried,
        ordering=settings.ordering,
        snapshots=settings.snapshots,
        judges=settings.judges,
        log_levels=levels(),
        is_observed=settings.is_observed,
        state_memory=settings.state_memory,
        state_folder=settings.state_folder,
        has_accounts=coordinator.has_accounts,
    )


def _has_accounts(settings: Settings) -> bool:
    """Whether each worker has an account of what it has sent, so that the driver need not get all acks."""
    return settings.ordering == "time" and settings.workers >= ACCOUNTS_FROM


def _strategy(settings: Settings) -> DriverCuts:
    if settings.ordering == "time":
        return CutsByTime()
    return DriverSnapshots(
        workers=settings.workers,
        holds_output=settings.guarantee == "exactly-once",
        stops=settings.snapshots == "stop",
    )


def have_same_fronts(before: Settings, after: Settings) -> bool:
    """Whether two versions get the same elements with the same global times."""
    old, new = before.graph, after.graph
    return (old.unit, list(before.fronts)) == (new.unit, list(after.fronts)) and all(
        before.fronts[name] is after.fronts[name]
        and old.fronts[name].index == new.fronts[name].index
        for name in before.fronts
    )


def inherited_sinks(before: Settings, after: Settings) -> frozenset[str] | None:
    """The sinks that a version writes as the one before it did, if it can take over in its processes.

    None if it cannot: it reads other fronts, or other partitions of the order, or it replaces a sink that
    the version before it still writes.
    """
    if not have_same_fronts(before, after):
        return None
    sinks = [dict.fromkeys(before.sinks, 0), dict.fromkeys(after.sinks, 0)]
    for settings, partitions in zip((before, after), sinks, strict=True):
        for name, _ in sink_partitions(settings.graph, settings.on_error):
            partitions[name] += 1
    same = frozenset(before.sinks.keys() & after.sinks.keys())
    if any(
        before.sinks[name] is not after.sinks[name] or sinks[0][name] != sinks[1][name]
        for name in same
    ):
        return None
    return same


def _check_partitions(name: str, front: Front, known: Mapping[int, Any] | None) -> None:
    """Raises `InputError` if a front's partitions do not fit those of the cut to begin from."""
    if known is None or set(known) == set(range(front.partitions)):
        return
    before, now = len(known), front.partitions
    if now < before:
        raise InputError(
            f"front {name!r} has {now} partitions, and had {before} when the last cut was made. A "
            f"source keeps its partitions; for another source take another checkpointLocation."
        )
    if not front_contract(front).chooses:
        raise InputError(
            f"front {name!r} has {now} partitions, and had {before} when the last cut was made. "
            f"The output is already past the times of the elements in the new ones, and no log "
            f"records when they joined. Let the front promise while it is idle (fronts.Kafka: "
            f"idle_ms=), or use times of arrival, or begin anew with another checkpointLocation."
        )
