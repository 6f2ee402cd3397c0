"""The handle of a live query. It behaves like PySpark's StreamingQuery.

Names are PySpark's, in camel case, because it takes the place of PySpark's own class.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from emberflow.dsl.flow import Flow
from emberflow.dsl.versions import When, moment_of
from emberflow.errors import EmberflowError, FlowError, InputError, shortened
from emberflow.graph.nodes import Graph
from emberflow.graph.versions import Carry
from emberflow.runners.live.driver.chronicle import History
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.driver.listeners import Listeners
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.driver.progress import Gauge, LiveProgress, timestamp
from emberflow.runners.live.elastic.automatic import Automatic
from emberflow.runners.live.elastic.departures import Departures
from emberflow.runners.live.elastic.rebalance import rebalance
from emberflow.runners.live.life import Settings
from emberflow.runners.live.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from emberflow.runners.live.serving.bridge import Address
from emberflow.runners.live.serving.reads import LiveState, Reads
from emberflow.runners.live.serving.services import OfferedServices
from emberflow.runners.live.shadow import Compared, Shadow
from emberflow.runners.live.supervisor import Supervision
from emberflow.runners.live.web.overview import Overview
from emberflow.runners.notebook import Display, facts_table
from emberflow.runners.questions import Answer, Wanted
from emberflow.sinks.memory import Memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from emberflow.runners.live.web.server import Endpoint, Web

_PROGRESS_SECONDS = 0.5
_PROGRESS_KEPT = 100
_STOP_SECONDS = 60.0
_END_SECONDS = 10.0
_UPGRADE_SECONDS = 120.0
#: By then the supervisor has cancelled a job that does not end, or given it up.
_CANCEL_SECONDS = 45.0
#: An idle query posts its idle event again after this time, as PySpark's do.
_IDLE_SECONDS = 10.0
_LISTENERS_SECONDS = 2.0
_LOG_SECONDS = 1.0
_MOVING = ("elements", "released", "unstored")


class Builder(Protocol):
    """What a query was made by, and what other versions of its flow are made by."""

    def upgraded(
        self, flow: Flow, carry: Carry | None, fronts: Mapping[str, Any], sinks: Mapping[str, Any]
    ) -> Builder: ...

    def settings(self) -> Settings: ...

    def rescaled(self, workers: int) -> None: ...


class LiveQuery:
    """A running flow. Made by ``flow.live(spark)...start()``."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        name: str | None,
        listeners: Sequence[object] = (),
        *,
        web: Web | None = None,
        builder: Builder | None = None,
    ) -> None:
        """``web`` serves the page and reads of state. The query closes it. ``builder`` makes
        other versions."""
        self.id = str(uuid.uuid4())
        self.runId = str(uuid.uuid4())
        self.name = name
        self._tag = f"emberflow-{self.runId}"
        self._graph = settings.graph
        self._builder = builder
        self._web = web
        with contextlib.ExitStack() as opened:
            if web is not None:
                opened.callback(web.close)
            # First, so that a name that is in use is refused before anything starts.
            self._services = OfferedServices.of(settings, name, self.runId)
            opened.callback(self._services.close)
            self._log = QueryLog(name or settings.graph.flow)
            self._lives = Supervision(spark, settings, self._tag, self._log)
            opened.pop_all()  # all have started: `_observe` closes them at the end
        self._reads = Reads(self._lives)
        self._history = History()
        self._overview = Overview(
            identity={"id": self.id, "runId": self.runId, "name": name},
            graph=lambda: self._graph,
            coordinator=lambda: self._coordinator,
            status=lambda: str(self.status["message"]),
            is_active=lambda: self.isActive,
            progress=lambda: self.lastProgress,
            failure=self.exception,
            chronicle=self._lives.chronicle,
            history=self._history,
        )
        self._services.begun(
            self._reads,
            lambda flow, at, carry, seconds: self.upgrade(
                flow, at=at, carry=carry, timeout=seconds
            ),
            lambda workers, seconds: self.rescale(workers, timeout=seconds),
            lambda seconds: self.rebalance(timeout=seconds),
            self._overview.made,
        )
        self._display: Display | None = None
        self._gauge = Gauge(id=self.id, runId=self.runId, name=name)
        self._idle_at = -math.inf
        self._progress: deque[LiveProgress] = deque(maxlen=_PROGRESS_KEPT)
        self._listeners = Listeners(listeners)
        started = QueryStartedEvent(self.id, self.runId, name, timestamp(), frozenset([self._tag]))
        self._listeners.post("onQueryStarted", started)
        stored = settings.checkpoint or "nothing"
        told = f"started: {settings.workers} workers, checkpoint {stored}"
        self._log.event(logging.INFO, "started", 0, told)
        self._lives.start()
        Automatic(
            self._lives,
            settings.elasticity,
            lambda workers, seconds: self.rescale(workers, timeout=seconds),
            self._log,
        ).start()
        Departures(spark, self._lives, self._log).start()
        if web is not None:
            by_time = settings.ordering == "time"
            web.start(self.id, self._overview, self._reads if by_time else None)
        self._watch = threading.Thread(target=self._observe, name="emberflow watch", daemon=True)
        self._watch.start()

    def __repr__(self) -> str:
        return f"LiveQuery({self.name or self.id}, {'active' if self.isActive else 'over'})"

    def _repr_html_(self) -> str:
        """The state of the query now, as a table: what a notebook shows."""
        progress: Mapping[str, Any] = self.lastProgress or {}
        latency = progress.get("latencyMs") or {}
        failure = self.exception()
        return facts_table(
            {
                "query": self.name or self.id,
                "state": self.status["message"] if failure is None else shortened(failure),
                "elements": f"{progress.get('elements', 0):,}",
                "elements a second": f"{progress.get('inputRowsPerSecond', 0):,.0f}",
                "outputs": f"{progress.get('released', 0):,}",
                "latency, ms": ", ".join(f"{name} {ms:,.1f}" for name, ms in latency.items()),
                "lag, ms": f"{progress.get('minimalTimeLagMs', 0):,.0f}",
                "recoveries": len(self.recoveries),
            }
        )

    def _ipython_display_(self) -> None:
        """Show the state in a notebook, and refresh it there until the query is over."""
        if self._display is not None:
            self._display.end()
        self._display = Display(self._repr_html_, lambda: self.isActive)
        self._display.begin()

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def isActive(self) -> bool:  # noqa: N802
        return not self._lives.wait(0)

    @property
    def status(self) -> dict[str, Any]:
        phase = "over" if self._lives.wait(0) else self._coordinator.phase
        return {
            "message": {
                "meeting": "Waiting for the workers to start",
                "prepared": "Taking over from the version before",
                "restoring": "Restoring what was stored",
                "running": "Running",
                "halting": "Letting out what is final",
                "ending": "Storing what is left",
                "over": "Over" if self._lives.wait(0) else "Beginning again",
            }[phase],
            "isDataAvailable": any(n.waiting for n in self._coordinator.news.values()),
            "isTriggerActive": phase == "running",
        }

    @property
    def lastProgress(self) -> LiveProgress | None:  # noqa: N802
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[LiveProgress]:  # noqa: N802
        return list(self._progress)

    def addListener(self, listener: object) -> None:  # noqa: N802
        """Send it all later events of the query. See `emberflow.LiveQueryListener`."""
        self._listeners.add(listener)

    def removeListener(self, listener: object) -> None:  # noqa: N802
        self._listeners.remove(listener)

    @property
    def droppedEvents(self) -> int:  # noqa: N802
        """The number of events that were dropped because listeners were too slow."""
        return self._listeners.dropped

    @property
    def bridge(self) -> Address | None:
        """The endpoint and token for Structured Streaming and SQL; None if it offers neither."""
        return self._services.address

    def exception(self) -> BaseException | None:
        """The error that the query failed with; None if it did not fail."""
        return self._lives.failure if self._lives.wait(0) else None

    @property
    def recoveries(self) -> list[BaseException]:
        """The losses so far, each followed by another life of the workers."""
        return list(self._lives.losses)

    def state(self, name: Any) -> LiveState:
        """A state of the flow, or a reduce by its name: ``query.state("accounts").get("ada")``."""
        return LiveState(self._reads, name)

    def read(
        self,
        wanted: Mapping[str, Wanted],
        *,
        default: bool = True,
        as_of: Any = None,
        ordered: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """One consistent read over several states: ``query.read({"accounts": ["ada"], ...})``.

        Each state gets a list of keys, or an `emberflow.Scan`. The options are those of `LiveState`.
        """
        return self._reads.read(
            wanted, default=default, as_of=as_of, ordered=ordered, timeout=timeout
        )

    @property
    def endpoint(self) -> Endpoint | None:
        """The URL and token for reads over HTTP and for metrics.

        None without ``.option("httpPort", ...)`` and ``.option("uiPort", ...)``.
        """
        return None if self._web is None else self._web.endpoint

    @property
    def ui(self) -> str | None:
        """The address of the page, for a browser; None without ``.option("uiPort", ...)``.

        It works once, so each look at this gives another one.
        """
        return None if self._web is None else self._web.ui

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait for the end, at most ``timeout`` seconds. Returns whether it came; raises the query's
        error if it failed."""
        over = self._lives.wait(timeout)
        if over:
            self._join(_END_SECONDS)
            failure = self.exception()
            if failure is not None:
                raise failure
        return over

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until all that the fronts have now is stored in the sinks."""
        quiet = 0
        while quiet < 3 and not self._lives.wait(0):
            quiet = quiet + 1 if self._coordinator.is_quiet else 0
            if not quiet:
                self._coordinator.flush()  # of sinks that store only now and then
            # Workers send news a few times a second; three quiet looks span more than one of them.
            self._lives.wait(0.2)
        failure = self.exception()
        if failure is not None:
            raise failure

    def upgrade(
        self,
        flow: Flow,
        *,
        at: When | None = None,
        carry: Carry | None = None,
        read: Mapping[str, Any] | None = None,
        write: Mapping[str, Any] | None = None,
        timeout: float = _UPGRADE_SECONDS,
    ) -> None:
        """Go over to another version of the flow: at a time, or without one at a moment just ahead.

        If steps begin from backfills (`emberflow.Backfilled`), it is the moment at which these end, which
        the query must not have reached yet.

        Elements below it go through the old version, those from it on through the new one, and
        each is processed once. State is carried to the steps of the same names; ``carry`` says what else
        happens to it, as in `emberflow.Versions`. ``read`` and ``write`` are fronts and sinks that the
        old version does not have, or that are to be replaced.

        Returns when the new version runs. If it cannot take over (state would be lost, a migration
        raises, a module is missing on a worker), this raises the error, and the old version goes on.
        """
        if self._builder is None:
            raise EmberflowError("this query takes no other version.")
        builder = self._builder.upgraded(flow, carry, read or {}, write or {})
        settings = builder.settings()
        try:
            moment = None if at is None else moment_of(at, settings.graph.unit)
        except FlowError as error:
            raise InputError(f"upgrade(at=) takes a time: {error}") from None
        self._lives.upgrade(settings, moment, timeout)
        self._builder = builder
        self._graph = settings.graph
        self._reads.changed()

    def rescale(self, workers: int, *, timeout: float = _UPGRADE_SECONDS) -> None:
        """Go on with another number of workers, at a moment just ahead, without stopping.

        Keys are cut into slices, and no more of them move between workers than must. The output is the
        same with any number. Added workers take slots, those that leave give theirs back. It takes a
        ``checkpointLocation``.

        Returns when they run. If they cannot (there are no slots, or they do not come in time), this
        raises the error, and the query goes on as it was. See docs/elastic.md.
        """
        self._lives.rescale(workers, timeout)
        if self._builder is not None:
            self._builder.rescaled(workers)

    def rebalance(self, *, timeout: float = _UPGRADE_SECONDS) -> int:
        """Move slices of keys from the busiest workers to the idlest, if it pays, without stopping.

        It goes by the load of the last seconds, and moves few slices at a time: those that help most. The
        output is the same with any owners. It takes a ``checkpointLocation``.

        Returns how many slices have moved; 0 if it would not pay. If they cannot move, this raises the
        error, and the query goes on as it was. See docs/elastic.md.
        """
        return rebalance(self._lives, timeout)

    @property
    def workers(self) -> int:
        """How many workers the query has."""
        return self._lives.settings.workers

    def shadow(
        self,
        flow: Flow,
        *,
        carry: Carry | None = None,
        key: Callable[[Any], Any] | None = None,
        timeout: float = _UPGRADE_SECONDS,
    ) -> Shadow:
        """Run another version beside this one, on the same elements, and compare what both give.

        It begins with the state that this version has at a moment just ahead, carried as by `upgrade`, and
        touches no sink. ``key`` says what differences are counted by. Returns when it runs; ask its
        ``comparison``, and then ``upgrade()`` or ``forget()`` it.
        """
        if self._builder is None:
            raise EmberflowError("this query takes no other version.")
        nowhere = dict.fromkeys(flow.graph().sinks, Memory())
        settings = self._builder.upgraded(flow, carry, {}, nowhere).settings()
        settings = settings._replace(sinks=dict.fromkeys(settings.sinks, Memory()))
        before = self._lives.settings
        compared = Compared(before.workers, {**before.sinks, **settings.sinks}, key)
        coordinator = self._lives.shadow(settings, compared)
        shadow = Shadow(
            compared,
            coordinator,
            lambda seconds: self.upgrade(flow, carry=carry, timeout=seconds),
            self._lives.end_shadow,
        )
        deadline = time.monotonic() + timeout
        while not compared.wait(0.05):
            if coordinator.wait(0) or time.monotonic() > deadline:
                problem = coordinator.failure or EmberflowError(
                    f"the version beside this one has not begun within {timeout:.0f} s."
                )
                self._lives.end_shadow(problem)
                raise problem
        return shadow

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Read no more elements, store all output that is final, and end; after the time limit, end
        anyway."""
        self._lives.stop()
        if not self._lives.wait(timeout):
            self._lives.fail(
                EmberflowError(f"the query did not drain within {timeout:.0f} s and was ended")
            )
            self._lives.wait(_CANCEL_SECONDS)
        self._join(_END_SECONDS)

    def _join(self, seconds: float) -> None:
        self._lives.join(seconds)
        if not self._listeners.is_calling():
            self._watch.join(seconds)

    @property
    def _coordinator(self) -> Coordinator:
        """The coordinator of the current life."""
        return self._lives.coordinator

    def explain(self) -> str:
        from emberflow.graph.drawing import text

        return text(self._graph)

    # Threads.

    def _observe(self) -> None:
        while not self._lives.wait(_PROGRESS_SECONDS):
            self._tell_progress()
        if self._web is not None:
            self._web.close()
        self._tell_progress()
        self._services.close()
        failure = self._lives.failure
        text, kind = (None, None) if failure is None else (str(failure), type(failure).__name__)
        self._log.close(_LOG_SECONDS)
        if failure is None:
            self._log.event(logging.INFO, "ended", 0, "ended: all is stored")
        else:
            self._log.event(logging.ERROR, "ended", 0, f"ended: {kind}: {text}")
        ended = QueryTerminatedEvent(self.id, self.runId, text, kind)
        self._listeners.post("onQueryTerminated", ended)
        self._listeners.close(_LISTENERS_SECONDS)

    def _tell_progress(self) -> None:
        """Record a progress. Listeners get it if something moves, otherwise an idle event."""
        before = self.lastProgress
        progress = self._gauge.look(
            self._coordinator, len(self._lives.losses), self._lives.current.leaving
        )
        self._progress.append(progress)
        if self._web is not None:
            self._history.note(progress, self._coordinator)
        if self._coordinator.phase == "meeting":
            return
        moves = before is None or any(before[name] != progress[name] for name in _MOVING)
        now = time.monotonic()
        if moves or not self._coordinator.is_quiet:
            self._idle_at = -math.inf
            self._listeners.post("onQueryProgress", QueryProgressEvent(progress))
        elif now - self._idle_at >= _IDLE_SECONDS:
            self._idle_at = now
            idle = QueryIdleEvent(self.id, self.runId, progress["timestamp"])
            self._listeners.post("onQueryIdle", idle)
