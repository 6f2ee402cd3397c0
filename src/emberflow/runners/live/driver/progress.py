"""Progress: what ``lastProgress`` tells, made of what the workers told last.

Three clocks could be asked how long an element took; only one of them saw both its beginning and
its end. **Latency is measured by the worker that took the element in, on its own clock**: from the
moment it passed the gate to the moment that worker hears that all it led to is stored. That is
known from *settled times*, which are to sinks what the minimal time is to the engine:

- a worker has settled up to the minimal time of its barriers, or, while a sink partition of its own
  has final items that are not stored, up to the global time of the first of them;
- the query has settled up to the least of its workers' settled times and the minimal time.

An element below that is final, and whatever it led to is in its sink: at each step the claim is
made only by whoever stored it. The word goes from the sink's worker to the coordinator and on to
the worker that waits, so latencies are measured two short hops too long, and never too short.

The *lag* of the minimal time is how long the oldest element that is not final has been in: nought
when all is final, and growing while something holds the minimal time back, be it a slow function, a
worker without news or a front with times of its own that is silent.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL

if TYPE_CHECKING:
    from emberflow.runners.live.driver.coordinator import Coordinator
    from emberflow.runners.live.wire.plan import WorkerNews

_SAMPLES_KEPT = 10_000
_PERCENTS = (50, 75, 95, 99)


class LiveProgress(dict[str, Any]):
    """A progress: a dict whose entries are attributes too, as those of PySpark's are.

    All but one: ``keys`` is what every dict has, so the number of keys is ``progress["keys"]``.

    >>> progress = LiveProgress(numInputRows=3, minimalTime=(7, 0))
    >>> progress["numInputRows"], progress.numInputRows
    (3, 3)
    >>> progress.json
    '{"numInputRows": 3, "minimalTime": [7, 0]}'
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the progress of a live query has no {name!r}; it has {', '.join(self)}"
            ) from None

    @property
    def json(self) -> str:
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:  # noqa: N802
        return json.dumps(self, indent=2)


class Latencies:
    """The latest latencies, each with the number of elements that had it. For two threads.

    >>> latencies = Latencies()
    >>> latencies.percentiles()
    {}
    >>> latencies.note([(2.0, 98), (50.0, 2)])
    >>> latencies.percentiles()
    {'p50': 2.0, 'p75': 2.0, 'p95': 2.0, 'p99': 50.0}
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES_KEPT)

    def note(self, samples: Iterable[tuple[float, int]]) -> None:
        with self._lock:
            self._samples.extend(samples)

    def percentiles(self) -> dict[str, float]:
        """So many of a hundred elements took no longer than this."""
        with self._lock:
            ordered = sorted(self._samples)
        total = sum(count for _, count in ordered)
        found: dict[str, float] = {}
        percents = list(_PERCENTS)
        seen = 0
        for latency, count in ordered:
            seen += count
            while percents and seen * 100 >= percents[0] * total:
                found[f"p{percents.pop(0)}"] = round(latency, 3)
        return found


class Gauge:
    """Makes a progress of the news, and of how they differ from those of the progress before."""

    def __init__(self, **identity: Any) -> None:
        self._identity = identity
        self._at = time.monotonic()
        self._counts = {"elements": 0, "settled": 0, "released": 0}
        self._cpu_seconds: dict[int, float] = {}

    def look(self, coordinator: Coordinator, recoveries: int = 0) -> LiveProgress:
        now = time.monotonic()
        seconds = max(now - self._at, 1e-6)
        self._at = now
        news = [told for _, told in sorted(coordinator.news.items())]
        statistics = [told.statistics for told in news]
        counts = {
            "elements": sum(worker.elements for worker in statistics),
            "settled": sum(told.settled for told in news),
            "released": sum(worker.released for worker in statistics),
        }
        # After a recovery workers count from nought again.
        since = {
            name: count - self._counts[name] if count >= self._counts[name] else count
            for name, count in counts.items()
        }
        self._counts = counts
        minimal = coordinator.progress.of_all()
        arrived, released = sum(worker.arrived for worker in statistics), counts["released"]
        bucket_items = [told.bucket_items for told in news]
        return LiveProgress(
            **self._identity,
            timestamp=timestamp(),
            elements=counts["elements"],
            numInputRows=since["elements"],
            inputRowsPerSecond=since["elements"] / seconds,
            processedRowsPerSecond=since["settled"] / seconds,
            released=released,
            releasedPerSecond=since["released"] / seconds,
            latencyMs=coordinator.latencies.percentiles(),
            minimalTime=None if minimal in (BEFORE_ALL, AFTER_ALL) else minimal,
            minimalTimeLagMs=round(max((told.lag_ms for told in news), default=0.0), 3),
            replayRatio=arrived / released if released else 1.0,
            loadPerWorker=[worker.items for worker in statistics],
            cpuPerWorker=[round(self._cpu_since(told) / seconds, 3) for told in news],
            keys=sum(worker.buckets for worker in statistics),
            bucketItems=None if None in bucket_items else sum(filter(None, bucket_items)),
            heldAtBarriers=sum(told.held for told in news),
            waiting=sum(told.waiting for told in news),
            unstored=sum(told.unstored for told in news),
            pids=[told.pid for told in news],
            recoveries=recoveries,
            cuts=_cuts(coordinator),
        )

    def _cpu_since(self, told: WorkerNews) -> float:
        before = self._cpu_seconds.get(told.worker, told.cpu_seconds)
        self._cpu_seconds[told.worker] = told.cpu_seconds
        return told.cpu_seconds - before


def _cuts(coordinator: Coordinator) -> dict[str, Any] | None:
    """Of the cuts of this life; None where there is no checkpointLocation."""
    committing = coordinator.committing
    if committing is None:
        return None
    return {
        "count": committing.count,
        "moment": None if committing.moment == BEFORE_ALL else committing.moment,
        "lastMs": round(committing.last_ms, 3),
        "lastRows": committing.last_rows,
        "lastBytes": committing.last_bytes,
    }


def timestamp() -> str:
    """Now, as PySpark writes it: in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
