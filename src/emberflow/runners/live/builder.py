"""``flow.live(spark).read(...).write(...).option(...).start()``"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from emberflow.errors import InputError
from emberflow.flow import Flow
from emberflow.fronts.protocol import Front
from emberflow.graph import Graph
from emberflow.runners.live.coordinator import Coordinator
from emberflow.runners.live.launch import check_cluster, driver_host
from emberflow.runners.live.listening import check_listener
from emberflow.runners.live.plan import Plan
from emberflow.runners.live.query import LiveQuery
from emberflow.runners.live.wire import RunKeys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEFAULTS = {"workers": 2, "credit": 10_000, "batch": 1_000}


class LiveBuilder:
    """Collects what a live query needs. Nothing runs before `start`."""

    def __init__(self, flow: Flow, spark: SparkSession) -> None:
        self._graph = flow.graph()
        self._spark = spark
        self._fronts: dict[str, Front] = {}
        self._sinks: dict[str, Any] = {}
        self._options: dict[str, int] = dict(_DEFAULTS)
        self._name: str | None = None
        self._listeners: list[object] = []

    def read(self, **fronts: Front) -> LiveBuilder:
        """Where each front of the flow gets its elements."""
        self._fronts.update(fronts)
        return self

    def write(self, **sinks: Any) -> LiveBuilder:
        """Where each sink of the flow puts its output."""
        self._sinks.update(sinks)
        return self

    def option(self, key: str, value: object) -> LiveBuilder:
        """``workers``, ``credit`` (elements a front may be ahead), ``batch`` (taken in at once)."""
        if key not in _DEFAULTS:
            raise InputError(f"a live query has no option {key!r}; it has {', '.join(_DEFAULTS)}.")
        try:
            number = int(value)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            number = 0
        if number < 1:
            raise InputError(f"option {key!r} takes an int of at least 1, got {value!r}.")
        self._options[key] = number
        return self

    def queryName(self, name: str) -> LiveBuilder:  # noqa: N802
        self._name = name
        return self

    def listener(self, listener: object) -> LiveBuilder:
        """Who is told how the query is doing: a `LiveQueryListener`, or PySpark's."""
        check_listener(listener)
        self._listeners.append(listener)
        return self

    def start(self) -> LiveQuery:
        """Start the workers and return the handle of the query."""
        _check_names(self._graph, "front", self._graph.fronts, self._fronts, "read")
        _check_names(self._graph, "sink", self._graph.sinks, self._sinks, "write")
        _check_protocol("front", self._fronts, ("partitions", "read"))
        _check_protocol("sink", self._sinks, ("open",))
        for adapter in (*self._fronts.values(), *self._sinks.values()):
            # What cannot be reached is told before anything starts.
            if hasattr(adapter, "check"):
                adapter.check()
        workers = self._options["workers"]
        check_cluster(self._spark, workers)
        keys = RunKeys.made()
        host = driver_host(self._spark)
        incarnation = time.time_ns()
        coordinator = Coordinator(
            self._graph,
            workers=workers,
            incarnation=incarnation,
            keys=keys,
            host=host,
            fronts=self._fronts,
            sinks=self._sinks,
        )
        plan = Plan(
            graph=self._graph,
            workers=workers,
            incarnation=incarnation,
            keys=keys,
            coordinator=coordinator.address,
            fronts=self._fronts,
            sinks={
                name: None if getattr(sink, "on_driver", False) else sink
                for name, sink in self._sinks.items()
            },
            credit=self._options["credit"],
            batch=self._options["batch"],
        )
        return LiveQuery(self._spark, plan, coordinator, self._name, self._listeners)


def _check_names(
    graph: Graph, kind: str, known: Mapping[str, Any], given: Mapping[str, Any], method: str
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


def _check_protocol(kind: str, given: Mapping[str, Any], members: tuple[str, ...]) -> None:
    for name, adapter in given.items():
        missing = [member for member in members if not hasattr(adapter, member)]
        if missing:
            raise InputError(
                f"{kind} {name!r}: {adapter!r} has no {', '.join(missing)}. "
                f"See emberflow.{kind}s for what a {kind} is."
            )
