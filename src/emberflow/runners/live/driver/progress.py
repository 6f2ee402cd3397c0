"""Progress: ``lastProgress``, made of the workers' latest news.

**The worker that reads an element measures its latency, on its own clock**: from passing the gate to
the message that all its output is stored. No other clock sees both. The message is the *settled time*,
which is to sinks what the minimal time is to the engine:

- a worker has settled up to the minimal time of its barriers, or, while one of its sink partitions
  has final items that are not stored, up to the global time of the first of them;
- the query has settled up to the least of its workers' settled times and the minimal time.

An element below that is final, and all its output is in its sinks: at each step only the process that
stored the output claims so. The message goes from the sink's worker to the coordinator and on to the
worker that measures, so measured latencies are two short hops too long, and never too short.

The *lag* of the minimal time is the age of the oldest element that is not final: 0 if all are final,
and growing while something holds the minimal time back: a slow function, a worker without news or a
silent front with times of its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL
from emberflow.runners.live.balance.heat import hot_keys

if TYPE_CHECKING:
    from emberflow.engine.interface import Statistics
    from emberflow.runners.live.driver.coordinator import Coordinator
    from emberflow.runners.live.wire.plan import WorkerNews

_SAMPLES_KEPT = 10_000
_PERCENTS = (50, 75, 95, 99)


class LiveProgress(dict[str, Any]):
    """A progress: a dict whose entries are attributes too, as those of PySpark's are.

    ``keys`` is the exception: it is a method of dict, so the number of keys is ``progress["keys"]``.

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
    """The latest latencies, each with the number of elements that had it. Thread-safe.

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
        """Latencies by percentile; empty without samples."""
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
    """Makes a progress of the news, and of their difference from the previous progress."""

    def __init__(self, **identity: Any) -> None:
        self._identity = identity
        self._at = time.monotonic()
        self._counts = {"elements": 0, "settled": 0, "released": 0}
        self._cpu_seconds: dict[tuple[int, int], float] = {}

    def look(
        self, coordinator: Coordinator, recoveries: int = 0, leaving: Sequence[int] = ()
    ) -> LiveProgress:
        now = time.monotonic()
        seconds = max(now - self._at, 1e-6)
        self._at = now
        news = [own for _, own in sorted(coordinator.news.items())]
        statistics = [own.statistics for own in news]
        counts = {
            "elements": sum(worker.elements for worker in statistics),
            "settled": sum(own.settled for own in news),
            "released": sum(worker.released for worker in statistics),
        }
        # After a recovery workers count from 0 again.
        since = {
            name: count - self._counts[name] if count >= self._counts[name] else count
            for name, count in counts.items()
        }
        self._counts = counts
        minimal = coordinator.progress.of_all()
        load = coordinator.ledger.look()
        arrived, released = sum(worker.arrived for worker in statistics), counts["released"]
        bucket_items = [own.bucket_items for own in news]
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
            minimalTimeLagMs=round(max((own.lag_ms for own in news), default=0.0), 3),
            replayRatio=arrived / released if released else 1.0,
            loadPerWorker=[worker.items for worker in statistics],
            busyPerWorker=[round(share, 3) for share in load.workers],
            slicesPerWorker=[] if coordinator.owners is None else coordinator.owners.counts(),
            hotKeys=[key._asdict() for key in hot_keys(load)],
            cpuPerWorker=[round(self._cpu_since(own) / seconds, 3) for own in news],
            keys=sum(worker.buckets for worker in statistics),
            coldKeys=sum(own.cold_keys for own in news),
            bucketItems=None if None in bucket_items else sum(filter(None, bucket_items)),
            waitedMs=_waited_ms(statistics),
            heldAtBarriers=sum(own.held for own in news),
            waiting=sum(own.waiting for own in news),
            unstored=sum(own.unstored for own in news),
            late=_late(news),
            pids=[own.pid for own in news],
            leaving=list(leaving),
            recoveries=recoveries,
            cuts=_cuts(coordinator),
        )

    def _cpu_since(self, news: WorkerNews) -> float:
        process = (news.worker, news.pid)  # a worker may go on in another one
        before = self._cpu_seconds.get(process, news.cpu_seconds)
        self._cpu_seconds[process] = news.cpu_seconds
        return news.cpu_seconds - before


def _waited_ms(statistics: Sequence[Statistics]) -> dict[str, float]:
    """How long an output has waited on the way and at its barrier, on average."""
    released = sum(worker.released for worker in statistics)
    seconds = {
        "buffers": sum(worker.buffered for worker in statistics),
        "barriers": sum(worker.waited for worker in statistics),
    }
    return {
        where: round(1_000 * waited / released, 3) if released else 0.0
        for where, waited in seconds.items()
    }


def _late(news: Sequence[WorkerNews]) -> dict[str, int]:
    """By front: how many of its elements were late so far, earlier lives included."""
    late: Counter[str] = Counter()
    for own in news:
        late.update(own.late)
    return dict(sorted(late.items()))


def _cuts(coordinator: Coordinator) -> dict[str, Any] | None:
    """The cuts of this life; None without a checkpointLocation."""
    committer = coordinator.committer
    if committer is None:
        return None
    return {
        "count": committer.count,
        "moment": None if committer.moment == BEFORE_ALL else committer.moment,
        "lastMs": round(committer.last_ms, 3),
        "lastRows": committer.last_rows,
        "lastBytes": committer.last_bytes,
    }


def timestamp() -> str:
    """Now, as PySpark writes it: in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
