"""The handle of a live query. It behaves like PySpark's StreamingQuery.

Names are PySpark's, in camel case, because it stands in for PySpark's own class.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from emberflow.errors import EmberflowError
from emberflow.graph import Graph
from emberflow.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)
from emberflow.runners.live.coordinator import Coordinator
from emberflow.runners.live.launch import cancel_workers, run_workers
from emberflow.runners.live.listening import Listeners
from emberflow.runners.live.plan import Plan
from emberflow.runners.live.progress import Gauge, LiveProgress, timestamp

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS_SECONDS = 0.5
_PROGRESS_KEPT = 100
_STOP_SECONDS = 60.0
_END_SECONDS = 10.0
#: A query that stays idle says so again after this time, as PySpark's do.
_IDLE_SECONDS = 10.0
_LISTENERS_SECONDS = 2.0
_MOVING = ("elements", "released", "unstored")


class JobFailedError(EmberflowError):
    """The Spark job of the workers failed; Spark's own exception is the ``__cause__``."""


class LiveQuery:
    """A running flow. Made by ``flow.live(spark)...start()``."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        coordinator: Coordinator,
        name: str | None,
        listeners: Sequence[object] = (),
    ) -> None:
        self.id = str(uuid.uuid4())
        self.runId = str(uuid.uuid4())
        self.name = name
        self._spark = spark
        self._tag = f"emberflow-{self.runId}"
        self._plan = plan
        self._coordinator = coordinator
        self._gauge = Gauge(id=self.id, runId=self.runId, name=name)
        self._idle_at = -math.inf
        self._progress: deque[LiveProgress] = deque(maxlen=_PROGRESS_KEPT)
        self._listeners = Listeners(listeners)
        started = QueryStartedEvent(self.id, self.runId, name, timestamp(), frozenset([self._tag]))
        self._listeners.post("onQueryStarted", started)
        coordinator.start()
        self._job = threading.Thread(target=self._run_job, name="emberflow job", daemon=True)
        self._job.start()
        self._watch = threading.Thread(target=self._observe, name="emberflow watch", daemon=True)
        self._watch.start()

    def __repr__(self) -> str:
        return f"LiveQuery({self.name or self.id}, {'active' if self.isActive else 'over'})"

    @property
    def graph(self) -> Graph:
        return self._plan.graph

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._job.is_alive() or not self._coordinator.wait(0)

    @property
    def status(self) -> dict[str, Any]:
        phase = self._coordinator.phase
        return {
            "message": {
                "meeting": "Waiting for the workers to start",
                "running": "Running",
                "halting": "Letting out what is final",
                "ending": "Storing what is left",
                "over": "Over",
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
        """Have it told how the query is doing from now on. See `emberflow.LiveQueryListener`."""
        self._listeners.add(listener)

    def removeListener(self, listener: object) -> None:  # noqa: N802
        self._listeners.remove(listener)

    @property
    def droppedEvents(self) -> int:  # noqa: N802
        """Events that listeners were too slow to hear."""
        return self._listeners.dropped

    def exception(self) -> BaseException | None:
        """What the query failed with; None if it did not."""
        return self._coordinator.failure

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait for the end, so many seconds at most; whether it came. Raises what the query did."""
        over = self._coordinator.wait(timeout)
        if over:
            self._join(_STOP_SECONDS)
            failure = self.exception()
            if failure is not None:
                raise failure
        return over

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until all that the fronts have now is stored in the sinks."""
        quiet = 0
        while quiet < 3 and not self._coordinator.wait(0):
            quiet = quiet + 1 if self._coordinator.is_quiet else 0
            # News come a few times a second; three quiet looks span more than one of them.
            self._coordinator.wait(0.2)
        failure = self.exception()
        if failure is not None:
            raise failure

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """Take nothing more in, let out what is final, and end; after the time limit, end anyway."""
        self._coordinator.stop()
        if not self._coordinator.wait(timeout):
            self._coordinator.fail(
                EmberflowError(f"the query did not drain within {timeout:.0f} s and was ended")
            )
            self._coordinator.wait(_END_SECONDS)
        self._join(_END_SECONDS)

    def _join(self, seconds: float) -> None:
        self._job.join(seconds)
        if self._job.is_alive():  # a worker that is stuck in a user's function hears nothing
            cancel_workers(self._spark, self._tag)
            self._job.join(_END_SECONDS)
        if not self._listeners.is_calling():
            self._watch.join(_END_SECONDS)

    def explain(self) -> str:
        from emberflow.drawing import text

        return text(self._plan.graph)

    # Threads.

    def _run_job(self) -> None:
        try:
            run_workers(self._spark, self._plan, self._tag)
        except Exception as error:
            # A worker that failed has told its own error; Spark's is only its echo.
            self._coordinator.wait(1.0)
            failure = JobFailedError(f"the Spark job of the workers failed: {_told(error)}")
            failure.__cause__ = error
            self._coordinator.fail(failure)

    def _observe(self) -> None:
        while not self._coordinator.wait(_PROGRESS_SECONDS):
            self._tell_progress()
        self._tell_progress()
        failure = self._coordinator.failure
        text, kind = (None, None) if failure is None else (str(failure), type(failure).__name__)
        ended = QueryTerminatedEvent(self.id, self.runId, text, kind)
        self._listeners.post("onQueryTerminated", ended)
        self._listeners.close(_LISTENERS_SECONDS)

    def _tell_progress(self) -> None:
        """Note how things stand. Listeners hear of it if something moves, else that nothing does."""
        before = self.lastProgress
        progress = self._gauge.look(self._coordinator)
        self._progress.append(progress)
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


def _told(error: Exception) -> str:
    """The lines of Spark's error that are about us, without the stack of the JVM."""
    lines = [line for line in str(error).splitlines() if not line.lstrip().startswith("at ")]
    return "\n".join(lines[:20])
