"""``flow.live(spark).read(...).write(...).option(...).start()``"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeGuard, cast, get_args

from emberflow.checkpoint.lease import LAPSE_SECONDS, Lease, LeaseWatch
from emberflow.dsl.flow import Flow
from emberflow.engine.speculation.patience import DEFAULT_JUDGES, Judges
from emberflow.errors import ERRORS_SINK, LATE_SINK, InputError
from emberflow.extras import need
from emberflow.fronts.protocol import Front, FrontContract, front_contract
from emberflow.graph.nodes import Graph, Group, with_late_sink, with_unit
from emberflow.graph.versions import Carry, checked_carry
from emberflow.runners.diversion import checked_on_error, known_sinks, refusing
from emberflow.runners.live.balance.pace import Elasticity
from emberflow.runners.live.driver.cluster import (
    CoordinatorAddress,
    check_cluster,
    coordinator_address,
)
from emberflow.runners.live.driver.listeners import check_listener
from emberflow.runners.live.life import Settings
from emberflow.runners.live.query import LiveQuery
from emberflow.runners.live.serving.tokens import checked_token
from emberflow.runners.live.wire.plan import Guarantee, Ordering, Snapshots, owners_of
from emberflow.sinks.protocol import SinkContract, sink_contract
from emberflow.values.owners import SLICES, equal_owners
from emberflow.values.times import (
    DEFAULT_UNIT,
    Duration,
    TimeError,
    Unit,
    checked_duration,
    counted_duration,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from emberflow.runners.live.web.server import Web


#: How often a driver that stands by looks at the lease.
_LOOK_SECONDS = 0.5
_WEB_MODULES = ("starlette", "uvicorn", "prometheus_client")


class LiveBuilder:
    """Collects the fronts, sinks and options of a live query. Nothing runs before `start`."""

    def __init__(self, flow: Flow, spark: SparkSession) -> None:
        self._flow = flow
        self._graph = flow.graph()
        self._spark = spark
        self._fronts: dict[str, Front] = {}
        self._sinks: dict[str, Any] = {}
        self._options: dict[str, Any] = {key: default for key, (default, _) in _OPTIONS.items()}
        self._name: str | None = None
        self._listeners: list[object] = []
        self._judges = DEFAULT_JUDGES
        self._carry: Carry | None = None
        #: The incarnation that it follows, if it stood by.
        self._follows: int | None = None

    def read(self, **fronts: Front) -> LiveBuilder:
        """The source of each front of the flow."""
        for name, front in fronts.items():
            front_contract(front, f"front {name!r}").counted(self._graph.unit)
        self._fronts.update(fronts)
        return self

    def write(self, **sinks: Any) -> LiveBuilder:
        """The target of each sink of the flow. ``errors=`` gets diverted errors."""
        for name, sink in sinks.items():
            sink_contract(sink, f"sink {name!r}")
        self._sinks.update(sinks)
        return self

    def option(self, key: str, value: object) -> LiveBuilder:
        """Set ``workers``, ``credit`` (elements that a front may be ahead of the minimal time),
        ``batch`` (elements that a worker reads at once), or one of these:

        ``checkpointLocation`` is where the query stores cuts and logs; a restarted query continues from
        there. ``checkpointInterval`` is the time between cuts, in milliseconds or as a duration (``"1 second"``),
        ``checkpointsKept`` the number of cuts to keep. ``keepFrontLogs`` keeps the logs of fronts, which
        are otherwise trimmed with the cuts that need them. ``guarantee`` is ``exactly-once``,
        ``at-least-once`` or ``at-most-once``. ``coordinatorHost`` is where workers reach this process, if
        the session's host is wrong.

        ``bridgeHost`` and ``bridgeToken`` are the address and the token by which Spark on other
        machines reaches structured fronts and sinks, and the states of a query that has a name.

        ``upgrades`` lets other processes of this user make the query go over to another version of its
        flow, with ``emberflow upgrade``; ``emberflow run`` sets it.

        ``onError`` is ``"fail"`` or ``"divert"``: then elements that a step or a front cannot process
        go to ``.write(errors=...)``, and the query continues.

        ``ordering`` is ``"time"`` or ``"arrival"``: then workers process items as they arrive, and
        output waits for a snapshot. ``snapshots`` says how to take it: ``"markers"`` or ``"stop"``.

        ``historyKept`` is how far ``as_of=`` may look back in reads of state, in the time of the elements
        or as a duration; 0 for not at all. ``httpPort`` serves reads over HTTP: a port, or 0 for a free one.
        ``httpHost`` is the address that it listens on; by default only this machine can reach it.
        ``httpToken`` is the token of programs that read states or metrics; by default a new one.

        ``stateMemory`` is how much of its state each worker keeps in memory, as ``"4g"``; cold keys beyond
        that are on its own disk, in ``stateFolder``. By default state may take half of the memory that
        the machine or the container has, and the folder is that of Spark's temporary files.

        ``maxWorkers`` lets the number of workers follow the load, from ``minWorkers``, or one, up to that.
        ``rebalance`` lets keys move from busy workers to idle ones by themselves: see docs/elastic.md.

        ``uiPort`` serves the page that shows the query, at ``query.ui``: a port, or 0 for a free one.
        """
        if key not in _OPTIONS:
            raise InputError(f"a live query has no option {key!r}; it has {', '.join(_OPTIONS)}.")
        _, made_of = _OPTIONS[key]
        self._options[key] = made_of(key, value)
        checked_on_error(self._graph, self._options["onError"], "option 'onError'")
        return self

    def queryName(self, name: str) -> LiveBuilder:  # noqa: N802
        self._name = name
        return self

    def listener(self, listener: object) -> LiveBuilder:
        """Add a listener for the events of the query: a `LiveQueryListener`, or PySpark's."""
        check_listener(listener)
        self._listeners.append(listener)
        return self

    def _judged_by(self, judges: Judges) -> LiveBuilder:
        """For experiments: let others than the engine decide how far workers compute ahead. No output
        depends on it."""
        self._judges = judges
        return self

    def _bridge_place(self, place: CoordinatorAddress) -> CoordinatorAddress:
        wanted = self._options["bridgeHost"]
        return (
            place._replace(port=0) if wanted is None else coordinator_address(self._spark, wanted)
        )

    def _checking_graph(self, sinks: Mapping[str, Any]) -> Graph:
        """The flow's graph; where errors are diverted, items that their sink refuses fail in it."""
        if self._options["onError"] != "divert":
            return self._graph
        return refusing(
            self._graph, {name: sink_contract(sink).refuses for name, sink in sinks.items()}
        )

    def carry(self, carry: Carry) -> LiveBuilder:
        """Where the steps of a new version have their state from, if the checkpoint is of an earlier one.

        ``{"new name": "old name"}``, or `emberflow.Migrate`, `emberflow.Backfilled` or `emberflow.Drop` for
        a name. Steps that keep their names need not be said: see docs/upgrades.md.
        """
        self._carry = checked_carry(carry)
        return self

    def stand_by(
        self, *, given_up: Callable[[], bool] = lambda: False, lapse: float = LAPSE_SECONDS
    ) -> bool:
        """Wait until no other driver runs the query. Returns whether this one is to: then call `start`.

        The driver of a query renews a lease in the ``checkpointLocation``, which this needs. When it has
        not done so for ``lapse`` seconds, it is taken for lost. Returns False when its query has come to
        its end, and when ``given_up`` says so. If `start` then raises `FencedError`, another driver that
        stood by was faster: stand by again.
        """
        checkpoint = self._options["checkpointLocation"]
        if checkpoint is None:
            raise InputError(
                "a driver stands by for the query of a checkpoint: set "
                ".option('checkpointLocation', ...) to that of the query."
            )
        watch = LeaseWatch(checkpoint, lapse_seconds=lapse)
        has_lapsed = False
        while not given_up():
            lease = watch.look()
            if lease is Lease.ENDED:
                return False
            if lease is Lease.LAPSED and has_lapsed:
                self._follows = watch.incarnation
                return True
            has_lapsed = lease is Lease.LAPSED
            # Of several that stand by, one should be the first.
            time.sleep(random.uniform(0, 2 * _LOOK_SECONDS) if has_lapsed else _LOOK_SECONDS)
        return False

    def start(self) -> LiveQuery:
        """Start the workers and return the handle of the query."""
        settings = self.settings()._replace(follows=self._follows)
        bounds = settings.elasticity.workers
        if bounds is not None and not bounds[0] <= settings.workers <= bounds[1]:
            raise InputError(
                f"a query begins with {settings.workers} workers (option 'workers'), and is to have {bounds[0]} "
                f"to {bounds[1]} ('minWorkers' to 'maxWorkers')."
            )
        return LiveQuery(
            self._spark, settings, self._name, self._listeners, web=self._web(), builder=self
        )

    def _web(self) -> Web | None:
        """What serves the page and reads of state, if there is to be any."""
        http_port, ui_port = self._options["httpPort"], self._options["uiPort"]
        if http_port is None and ui_port is None:
            return None
        option = "uiPort" if http_port is None else "httpPort"
        need(*_WEB_MODULES, extra="spark", what=f"the option {option!r}")
        from emberflow.runners.live.web.server import Web

        return Web(
            self._options["httpHost"],
            http_port=http_port,
            ui_port=ui_port,
            token=self._options["httpToken"],
        )

    def upgraded(
        self, flow: Flow, carry: Carry | None, fronts: Mapping[str, Any], sinks: Mapping[str, Any]
    ) -> LiveBuilder:
        """The builder of another version of the flow.

        Fronts and sinks that it has in common with this one are read and written as before.
        """
        graph = flow.graph()
        other = LiveBuilder(flow, self._spark)
        other._options, other._judges = self._options, self._judges
        known = {ERRORS_SINK, LATE_SINK, *graph.sinks}
        other.read(**{name: one for name, one in self._fronts.items() if name in graph.fronts})
        other.write(**{name: one for name, one in self._sinks.items() if name in known})
        other.read(**fronts).write(**sinks)
        if carry is not None:
            other.carry(carry)
        return other

    def rescaled(self, workers: int) -> None:
        """Other versions have this number of workers too."""
        self._options["workers"] = workers

    def settings(self) -> Settings:
        """What the lives of the query share, after all of it has been checked."""
        self._graph = self._flow.graph(on_error=self._options["onError"])
        _check_names(self._graph, "front", self._graph.fronts, self._fronts, "read")
        if LATE_SINK in self._sinks and LATE_SINK not in self._graph.sinks:
            self._graph = with_late_sink(self._graph)
        sinks = known_sinks(
            self._graph,
            self._options["onError"],
            self._sinks,
            give=".write(errors=...)",
            divert=".option('onError', 'divert')",
        )
        _check_names(self._graph, "sink", sinks, self._sinks, "write")
        contracts = {name: front_contract(front) for name, front in self._fronts.items()}
        self._graph = with_unit(self._graph, (one.own_unit for one in contracts.values()))
        sink_contracts = {name: sink_contract(sink) for name, sink in self._sinks.items()}
        _check_ordering(self._graph, self._options, {**contracts, **sink_contracts})
        checkpoint = self._options["checkpointLocation"]
        fronts: dict[str, Front] = {
            name: one.placed(self._graph.fronts[name], checkpoint) if one.placed else one.front
            for name, one in contracts.items()
        }
        placed_sinks = {
            # The errors sink is no node of the graph.
            name: one.placed(self._graph.sinks.get(name), checkpoint) if one.placed else one.sink
            for name, one in sink_contracts.items()
        }
        # An unreachable service is an error before anything starts.
        for name, front in fronts.items():
            contract = front_contract(front, f"front {name!r}")
            contract.check()
            contract.check_partitions()
        for sink in placed_sinks.values():
            sink_contract(sink).check()
        workers = self._options["workers"]
        check_cluster(self._spark, workers)
        place = coordinator_address(self._spark, self._options["coordinatorHost"])
        return Settings(
            graph=self._checking_graph(placed_sinks),
            fronts=fronts,
            sinks=placed_sinks,
            workers=workers,
            owners=(
                owners_of(self._graph, fronts, workers)
                if self._options["ordering"] == "time"
                else equal_owners(workers)
            ),
            credit=self._options["credit"] or _default_credit(fronts, workers, self._options),
            batch=self._options["batch"],
            on_error=self._options["onError"],
            place=place,
            guarantee=self._options["guarantee"],
            checkpoint=checkpoint,
            interval_ms=self._options["checkpointInterval"],
            kept=self._options["checkpointsKept"],
            keep_logs=self._options["keepFrontLogs"],
            ordering=self._options["ordering"],
            snapshots=self._options["snapshots"],
            bridge_place=self._bridge_place(place),
            bridge_token=self._options["bridgeToken"],
            history=_counted(
                "historyKept", self._options["historyKept"], self._graph.unit or DEFAULT_UNIT
            ),
            judges=self._judges,
            carry=self._carry,
            takes_versions=self._options["upgrades"],
            state_memory=self._options["stateMemory"],
            state_folder=self._options["stateFolder"],
            elasticity=_elasticity(self._options, place),
            is_observed=self._options["upgrades"]
            or self._options["httpPort"] is not None
            or self._options["uiPort"] is not None,
        )


#: How many elements each of several fronts may be ahead: another one may hold the minimal time back.
_CREDIT = 20_000
#: The credit of a single partition of a single front, times the number of workers plus one: then only
#: the work itself holds the minimal time back, and more elements in flight would only wait longer.
_CREDIT_ALONE = 1_000


def _default_credit(fronts: Mapping[str, Any], workers: int, options: Mapping[str, Any]) -> int:
    alone = sum(front.partitions for front in fronts.values()) == 1
    if alone and options["ordering"] == "time":
        return _CREDIT_ALONE * (workers + 1)
    return _CREDIT


def _elasticity(options: Mapping[str, Any], place: CoordinatorAddress) -> Elasticity:
    least, most = options["minWorkers"], options["maxWorkers"]
    if most is None and least is not None:
        raise InputError(
            "the option 'minWorkers' is for a number of workers that follows the load: set 'maxWorkers' too."
        )
    bounds = None if most is None else (least or 1, most)
    elasticity = Elasticity(options["rebalance"], bounds)
    key = "maxWorkers" if bounds is not None else "rebalance"
    if elasticity.is_on and (
        options["checkpointLocation"] is None or options["ordering"] != "time"
    ):
        raise InputError(
            f"keys move between workers at a cut by time: with the option {key!r}, set "
            f".option('checkpointLocation', ...), and leave ordering at 'time'."
        )
    if elasticity.is_on and place.port:
        raise InputError(
            f"the workers of the next owners of keys meet at another port: with the option {key!r}, name "
            f"no port in .option('coordinatorHost', ...)."
        )
    return elasticity


def _counted(key: str, duration: Duration, unit: Unit) -> int:
    try:
        return counted_duration(duration, unit)
    except TimeError as error:
        raise InputError(f"option {key!r}: {error}") from None


def _is_duration(value: object) -> TypeGuard[timedelta | str]:
    """Whether it has a unit of its own. A number may be a text."""
    is_text = isinstance(value, str) and not value.strip().isdecimal()
    return is_text or isinstance(value, timedelta)


def _milliseconds(key: str, value: object) -> int:
    return _number(key, _counted(key, value, "ms") if _is_duration(value) else value)


def _history(key: str, value: object) -> int | timedelta:
    """A number, or a duration. Fronts may have a say in what it is counted in."""
    if not _is_duration(value):
        return _number_up_to(2**62)(key, value)
    _number_up_to(2**62)(key, _counted(key, value, "us"))
    return cast(timedelta, checked_duration(value))


def _number(key: str, value: object) -> int:
    try:
        number: int = int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise InputError(f"option {key!r} takes an int of at least 1, got {value!r}.")
    return number


def _workers(key: str, value: object) -> int:
    number = _number(key, value)
    if number > SLICES:
        raise InputError(f"option {key!r} takes at most {SLICES:,} workers, got {value!r}.")
    return number


def _number_up_to(most: int) -> Callable[[str, object], int]:
    def number(key: str, value: object) -> int:
        text = str(value)
        if isinstance(value, bool) or not text.isdecimal() or int(text) > most:
            raise InputError(f"option {key!r} takes an int from 0 to {most:,}, got {value!r}.")
        return int(text)

    return number


def _text(key: str, value: object) -> str:
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise InputError(f"option {key!r} takes a text, got {value!r}.")
    return str(value)


def _yes_or_no(key: str, value: object) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise InputError(f"option {key!r} takes true or false, got {value!r}.")
    return str(value).lower() == "true"


def _location(key: str, value: object) -> str:
    """A URI, or a path, made absolute: workers may have another working directory."""
    text = _text(key, value)
    return text if "://" in text else os.path.abspath(text)


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)


def _size(key: str, value: object) -> int:
    """A number of bytes, or a text like those of Spark's options: '512m', '4g'."""
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    found = (
        0.0 if match is None else float(match[1]) * 1024 ** " kmgt".index(match[2].lower() or " ")
    )
    if found < 1 << 20:
        raise InputError(
            f"option {key!r} takes a number of bytes, or a text like '512m' or '4g', of 1 MB at least; "
            f"got {value!r}."
        )
    return int(found)


def _one_of(kinds: Any) -> Callable[[str, object], str]:
    def chosen(key: str, value: object) -> str:
        if value not in get_args(kinds):
            known = ", ".join(map(repr, get_args(kinds)))
            raise InputError(f"option {key!r} takes one of {known}, got {value!r}.")
        return str(value)

    return chosen


#: The default of each option, and the function that checks and converts a value.
_OPTIONS: dict[str, tuple[Any, Callable[[str, object], Any]]] = {
    "workers": (2, _workers),
    "credit": (None, _number),  # see `_default_credit`
    "batch": (None, _number),  # see `life.default_batch`
    "onError": ("fail", lambda key, value: value),  # checked with the flow
    "coordinatorHost": (None, _text),
    "bridgeHost": (None, _text),
    "bridgeToken": (None, lambda key, value: checked_token(value)),
    "checkpointLocation": (None, _location),
    "checkpointInterval": (1_000, _milliseconds),
    "checkpointsKept": (3, _number),
    "keepFrontLogs": (False, _yes_or_no),
    "guarantee": ("exactly-once", _one_of(Guarantee)),
    "ordering": ("time", _one_of(Ordering)),
    "snapshots": ("markers", _one_of(Snapshots)),
    "historyKept": (0, _history),
    "upgrades": (False, _yes_or_no),
    "httpPort": (None, _number_up_to(65_535)),
    "httpHost": ("127.0.0.1", _text),
    "httpToken": (None, lambda key, value: checked_token(value)),
    "uiPort": (None, _number_up_to(65_535)),
    "stateMemory": (None, _size),
    "stateFolder": (None, _location),
    "rebalance": (False, _yes_or_no),
    "minWorkers": (None, _workers),
    "maxWorkers": (None, _workers),
}


def _check_ordering(
    graph: Graph,
    options: Mapping[str, Any],
    contracts: Mapping[str, FrontContract | SinkContract],
) -> None:
    """Raises `InputError` for options and adapters that ``ordering="arrival"`` does not support."""
    if options["ordering"] != "arrival":
        return
    if options["guarantee"] == "exactly-once" and options["checkpointLocation"] is None:
        raise InputError(
            "ordering='arrival' is exactly-once only by snapshots: nothing can be computed again. "
            "Set .option('checkpointLocation', ...), or .option('guarantee', 'at-least-once')."
        )
    if options["guarantee"] == "at-most-once":
        raise InputError(
            "ordering='arrival' does not offer guarantee='at-most-once': use 'exactly-once' or "
            "'at-least-once'."
        )
    if options["onError"] != "fail":
        raise InputError("ordering='arrival' does not divert errors: leave onError at 'fail'.")
    for name, contract in contracts.items():
        if contract.placed is not None:
            raise InputError(
                f"ordering='arrival' gives output no order that lasts, so {name!r} cannot be read or "
                f"written by Structured Streaming: leave out ordering='arrival'."
            )
    if options["httpPort"] is not None or options["historyKept"]:
        raise InputError(
            "ordering='arrival' has no times that state could be read as of: leave out 'httpPort' "
            "and 'historyKept'."
        )
    if options["stateMemory"] is not None:
        raise InputError(
            "ordering='arrival' keeps all state in memory: leave out 'stateMemory', or ordering='arrival'."
        )
    for node in graph.nodes:
        if isinstance(node, Group) and node.expires is not None:
            raise InputError(
                f"flow {graph.flow!r}: {node} has keys that expire by time, and ordering='arrival' knows "
                f"none: leave out expire_after= or ordering='arrival'."
            )
    if any(node.kind == "state" for node in graph.nodes):
        raise InputError(
            f"flow {graph.flow!r} has transactions, and their order is that of time: leave out "
            f"ordering='arrival'."
        )


def _check_names(
    graph: Graph, kind: str, known: Collection[str], given: Collection[str], method: str
) -> None:
    names = ", ".join(map(repr, known))
    for name in given:
        if name not in known:
            raise InputError(f"flow {graph.flow!r} has no {kind} {name!r}; it has {names}.")
    for name in known:
        if name not in given:
            raise InputError(
                f"flow {graph.flow!r}: {kind} {name!r} is not given. Call .{method}({name}=...)."
            )
