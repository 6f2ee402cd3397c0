"""The chronicle of a query: what happened to it, and the figures of its last ten minutes.

What is guaranteed: it is small, whatever happens. The newest `EVENTS_MAX` events and `CUTS_MAX` cuts are
kept, and one row of figures a second for `ROWS_MAX` seconds. Rows are kept only where somebody may look
(`History`); noting an event costs nothing that matters.

Events carry the time of the driver's clock, in milliseconds since 1970. It is only shown: nothing is
decided by it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from emberflow.engine.messages import Moment
from emberflow.runners.live.observation import ASIDE_MAX, Aside

if TYPE_CHECKING:
    from emberflow.runners.live.driver.coordinator import Coordinator

EVENTS_MAX = 500
CUTS_MAX = 600
ROWS_MAX = 600
ROW_SECONDS = 1.0

EventKind: TypeAlias = Literal[
    "begun",
    "running",
    "lost",
    "upgrading",
    "upgraded",
    "rescaling",
    "rescaled",
    "kept",
    "shadow",
    "stopping",
    "ended",
    "failed",
]


class Event(NamedTuple):
    at_ms: int
    kind: EventKind
    #: The life of the workers in which it happened.
    life: int
    text: str


class Cut(NamedTuple):
    """A cut that counts."""

    at_ms: int
    number: int
    moment: Moment
    #: Of the cut alone: how long it took, and what it added to the one before it.
    ms: float
    rows: int
    bytes: int
    #: Whether it holds everything, or only what changed.
    is_whole: bool = False


class Row(NamedTuple):
    """The figures of one second."""

    at_ms: int
    elements: float
    settled: float
    released: float
    p50: float | None
    p99: float | None
    lag_ms: float
    waiting: int
    held: int
    unstored: int
    cpu: float
    memory: float
    resident_bytes: int


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Chronicle:
    """The events of a query. Any thread may note one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=EVENTS_MAX)
        self.begun_ms = now_ms()

    def note(self, kind: EventKind, life: int, text: str = "") -> None:
        """``text`` is shortened to its first line."""
        event = Event(now_ms(), kind, life, text.partition("\n")[0][:500])
        with self._lock:
            self._events.append(event)

    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)


class History:
    """The figures of the last ten minutes, a row a second. One thread notes, any may look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: deque[Row] = deque(maxlen=ROWS_MAX)
        self._cuts: deque[Cut] = deque(maxlen=CUTS_MAX)
        self._aside: deque[Aside] = deque(maxlen=ASIDE_MAX)
        self._noted_at = time.monotonic()
        self._before = {"elements": 0, "released": 0, "settled": 0}

    def rows(self, since_ms: int = 0) -> list[Row]:
        with self._lock:
            return [row for row in self._rows if row.at_ms > since_ms]

    def cuts(self) -> list[Cut]:
        with self._lock:
            return list(self._cuts)

    def aside(self) -> list[Aside]:
        """The newest records that were diverted or late, the oldest of them first."""
        with self._lock:
            return list(self._aside)

    def note(self, progress: Mapping[str, Any], coordinator: Coordinator) -> None:
        """Add a row, if a second has passed since the last one."""
        now = time.monotonic()
        seconds = now - self._noted_at
        if seconds < 0.9 * ROW_SECONDS:
            return
        self._noted_at = now
        news = list(coordinator.news.values())
        counts = {
            "elements": progress["elements"],
            "released": progress["released"],
            "settled": sum(own.settled for own in news),
        }
        # After a recovery workers count from 0 again.
        rates = {
            name: (count - self._before[name] if count >= self._before[name] else count) / seconds
            for name, count in counts.items()
        }
        self._before = counts
        row = Row(
            at_ms=now_ms(),
            elements=round(rates["elements"], 1),
            settled=round(rates["settled"], 1),
            released=round(rates["released"], 1),
            p50=progress["latencyMs"].get("p50"),
            p99=progress["latencyMs"].get("p99"),
            lag_ms=progress["minimalTimeLagMs"],
            waiting=progress["waiting"],
            held=progress["heldAtBarriers"],
            unstored=progress["unstored"],
            cpu=round(sum(progress["cpuPerWorker"]), 3),
            memory=round(max((own.memory for own in news), default=0.0), 3),
            resident_bytes=sum(
                own.observation.resident_bytes for own in news if own.observation is not None
            ),
        )
        with self._lock:
            self._rows.append(row)
            self._note_cuts(coordinator)
            while coordinator.aside:
                self._aside.append(coordinator.aside.popleft())

    def _note_cuts(self, coordinator: Coordinator) -> None:
        committer = coordinator.committer
        if committer is not None:
            last = self._cuts[-1].number if self._cuts else -1
            self._cuts += [cut for cut in list(committer.recent) if cut.number > last]
