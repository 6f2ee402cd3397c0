"""The handle of a live query. It behaves like PySpark's StreamingQuery.

Names are PySpark's, in camel case, because it stands in for PySpark's own class.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL
from emberflow.errors import EmberflowError
from emberflow.graph import Graph
from emberflow.runners.live.coordinator import Coordinator
from emberflow.runners.live.launch import run_workers
from emberflow.runners.live.plan import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROGRESS_SECONDS = 0.5
_PROGRESS_KEPT = 100
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.05


class JobFailedError(EmberflowError):
    """The Spark job of the workers failed; Spark's own exception is the ``__cause__``."""


class LiveQuery:
    """A running flow. Made by ``flow.live(spark)...start()``."""

    def __init__(
        self, spark: SparkSession, plan: Plan, coordinator: Coordinator, name: str | None
    ) -> None:
        self.id = str(uuid.uuid4())
        self.runId = str(uuid.uuid4())
        self.name = name
        self._plan = plan
        self._coordinator = coordinator
        self._begin = time.monotonic()
        self._progress: deque[dict[str, Any]] = deque(maxlen=_PROGRESS_KEPT)
        self._released = (0, self._begin)
        coordinator.start()
        self._job = threading.Thread(
            target=self._run_job, args=(spark,), name="emberflow job", daemon=True
        )
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
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        return list(self._progress)

    def exception(self) -> BaseException | None:
        """What the query failed with; None if it did not."""
        return self._coordinator.failure

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait for the end, so many seconds at most; whether it came. Raises what the query did."""
        over = self._coordinator.wait(timeout)
        if over:
            self._job.join(_STOP_SECONDS)
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
            self._coordinator.wait(_STOP_SECONDS)
        self._job.join(_STOP_SECONDS)
        self._watch.join(_STOP_SECONDS)

    def explain(self) -> str:
        from emberflow.drawing import text

        return text(self._plan.graph)

    # Threads.

    def _run_job(self, spark: SparkSession) -> None:
        try:
            run_workers(spark, self._plan)
        except Exception as error:
            # A worker that failed has told its own error; Spark's is only its echo.
            self._coordinator.wait(1.0)
            failure = JobFailedError(f"the Spark job of the workers failed: {error}")
            failure.__cause__ = error
            self._coordinator.fail(failure)

    def _observe(self) -> None:
        while not self._coordinator.wait(_PROGRESS_SECONDS):
            self._progress.append(self._look())
        self._progress.append(self._look())

    def _look(self) -> dict[str, Any]:
        coordinator = self._coordinator
        statistics = [news.statistics for news in coordinator.news.values()]
        released = sum(worker.released for worker in statistics)
        arrived = sum(worker.arrived for worker in statistics)
        now = time.monotonic()
        before, at = self._released
        self._released = (released, now)
        minimal = coordinator.progress.of_all()
        return {
            "id": self.id,
            "runId": self.runId,
            "name": self.name,
            "timestamp": datetime.now(UTC).isoformat(),
            "elements": sum(worker.elements for worker in statistics),
            "released": released,
            "releasedPerSecond": (released - before) / (now - at) if now > at else 0.0,
            "minimalTime": None if minimal in (BEFORE_ALL, AFTER_ALL) else minimal,
            "replayRatio": arrived / released if released else 1.0,
            "latencyMs": _percentiles(coordinator.latencies_ms),
            "loadPerWorker": [worker.items for worker in statistics],
            "bucketItems": sum(worker.bucket_items for worker in statistics),
            "unstored": sum(news.unstored for news in coordinator.news.values()),
        }


def _percentiles(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    if not ordered:
        return {}
    return {
        f"p{percent}": round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 3)
        for percent in (50, 75, 95, 99)
    }
