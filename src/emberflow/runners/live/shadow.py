"""A shadow: a new version of the flow beside the one that works, and how their outputs differ.

Both get the same elements at the same global times from a moment T on, and begin with the same state, so
every difference is one of the versions. Nothing that the new one does reaches a sink.

What is compared is what `emberflow.compare` compares: of each sink, the payloads of each time. A time is
compared when both versions have released all of it. What waits for that is bounded by how far one version
may be ahead of the other (`mirror`).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.errors import EmberflowError
from emberflow.runners.comparison import Comparison, SinkComparison, compared_outputs, joined
from emberflow.runners.live.driver.coordinator import Coordinator
from emberflow.runners.live.mirror import Released


class Compared:
    """What both versions have released, and how much of it was the same. Called by several threads."""

    def __init__(
        self, workers: int, sinks: Iterable[str], key: Callable[[Any], Any] | None
    ) -> None:
        self._key = key
        self._lock = threading.Lock()
        #: What is not compared yet.
        self._old: defaultdict[str, list[tuple[int, Any]]] = defaultdict(list)
        self._new: defaultdict[str, list[tuple[int, Any]]] = defaultdict(list)
        #: By worker: what both versions have released there is here, up to a moment.
        self._released = dict.fromkeys(range(workers), BEFORE_ALL)
        self._found = dict.fromkeys(sinks, SinkComparison(0, 0, 0))
        self._is_running = threading.Event()
        self.begins: Moment | None = None

    def begun(self, moment: Moment) -> None:
        """The new version is to run from this moment on."""
        self.begins = moment

    def running(self) -> None:
        """Its workers have the state, and run."""
        self._is_running.set()

    def wait(self, seconds: float) -> bool:
        return self._is_running.wait(seconds)

    def released(
        self, worker: int, body: tuple[list[Released], list[Released], tuple[Moment, Moment]]
    ) -> None:
        """What both versions have released on a worker."""
        old, new, below = body
        with self._lock:
            for side, given in ((self._old, old), (self._new, new)):
                for sink, outputs in given:
                    side[sink] += [(moment[0], payload) for moment, payload in outputs]
            self._released[worker] = min(below)

    @property
    def until(self) -> Moment:
        """All that both versions have released below this is known."""
        with self._lock:
            return min(self._released.values())

    def comparison(self, until: Moment) -> Comparison:
        """How the outputs differ at all times below a moment."""
        with self._lock:
            for name, found in self._found.items():
                old, new = (_taken(side[name], until) for side in (self._old, self._new))
                self._found[name] = joined(found, compared_outputs(old, new, self._key))
            return Comparison(dict(self._found))


def _taken(outputs: list[tuple[int, Any]], until: Moment) -> list[tuple[int, Any]]:
    """Take what is at times below a moment off a list."""
    below = [output for output in outputs if output[0] < until[0]]
    outputs[:] = [output for output in outputs if output[0] >= until[0]]
    return below


class Shadow:
    """A version that runs beside a query. Made by ``query.shadow(flow)``."""

    def __init__(
        self,
        compared: Compared,
        coordinator: Coordinator,
        upgrade: Callable[[float], None],
        end: Callable[[BaseException], None],
    ) -> None:
        self._compared = compared
        self._coordinator = coordinator
        self._upgrade = upgrade
        self._end = end
        #: What it has found, once it was forgotten.
        self._last: Comparison | None = None

    def __repr__(self) -> str:
        return f"Shadow({'active' if self.isActive else 'over'}, until={self.until})"

    def __str__(self) -> str:
        return str(self.comparison)

    @property
    def isActive(self) -> bool:  # noqa: N802 - as a query's
        return not self._coordinator.wait(0)

    def exception(self) -> BaseException | None:
        """Why it has ended by itself: a function of the new version raised, or the query has ended."""
        return self._coordinator.failure if not self.isActive and self._last is None else None

    @property
    def begins(self) -> Moment | None:
        """The moment from which on both versions run."""
        return self._compared.begins

    @property
    def until(self) -> Moment:
        """All times below this are compared."""
        return self._compared.until

    @property
    def comparison(self) -> Comparison:
        """How the outputs of both versions differ so far. See `emberflow.compare`."""
        return self._compared.comparison(self.until) if self._last is None else self._last

    def forget(self) -> Comparison:
        """End it, and return what it has found. The query goes on as it is."""
        if self._last is None:
            self._last = self.comparison
            self._end(EmberflowError("the shadow was forgotten."))
        return self._last

    def upgrade(self, timeout: float = 120.0) -> None:
        """End it, and let the query go over to its version, as `LiveQuery.upgrade` does."""
        self.forget()
        self._upgrade(timeout)
