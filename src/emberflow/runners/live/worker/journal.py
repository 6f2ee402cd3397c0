"""The journal of a front: what it chose itself is durable before anybody relies on it.

An element that takes the time of its arrival, and one of a source that cannot be read again, enters
the engine at once. What waits is the front's *report*: it goes no further than what a restart would
give again. Elements are noted in the front's log by the worker's loop; a thread syncs the log again
and again, each time for all that was noted meanwhile. So durability overlaps with processing.

An idle front promises the present, many times a second, and a promise is a choice too. It reserves
a second ahead, once a second, and promises freely within what is reserved. Who restarts begins
behind the reservation, since it cannot know how much of it was promised. A reservation is no leave
to report beyond an element that is not durable yet.

A front with times of its own that promises while it is idle (`fronts.Idle`) is no different: what it
promised may raise the time of an element, so its times are choices like those of arrival.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from emberflow.checkpoint.logs.front_log import Durable, FrontLogWriter
from emberflow.checkpoint.logs.segments import LogEntry
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.runners.live.wire.bell import no_bell

#: How far ahead an idle front reserves, in the milliseconds of its times.
_RESERVED_MS = 1_000
#: How long the thread sleeps when nothing is noted: it is woken up when something is.
_WAIT_SECONDS = 0.2


class Journal:
    """The log of one partition of a front, and the thread that syncs it."""

    def __init__(
        self,
        log: FrontLogWriter,
        name: str,
        index: int,
        *,
        ring: Callable[[], None] = no_bell,
    ) -> None:
        """``ring`` tells who reports that there is more to report."""
        self._log = log
        self._ring = ring
        self._index = index
        self._durable = Durable(0, None, log.time, log.reservation)
        self._noted = 0
        #: Of what is noted and not known to be durable: how many are noted with it, its first time.
        self._pending: deque[tuple[int, int]] = deque()
        self._reserved = log.reservation
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"emberflow journal {name}", daemon=True
        )

    @property
    def least(self) -> int | None:
        """New elements take no time below this: what earlier lives have given or promised."""
        ends = [self._log.reservation, None if self._log.time is None else self._log.time + 1]
        return max((end for end in ends if end is not None), default=None)

    @property
    def is_first(self) -> bool:
        """Whether no life before this one had this partition."""
        return self._log.is_first

    def drop_above(self, shown: Moment) -> None:
        """Give nothing again that earlier lives gave above a global time, now or in any later life.

        A later life may begin from the same cut, when there is output that does without it.
        """
        time, index = shown
        self._log.drop_above(time if self._index <= index else time - 1)

    def is_dropped(self, time: int) -> bool:
        """Whether what was given at a time is not to be given again."""
        return self._log.is_dropped(time)

    def given_before(self, since: Moment) -> Iterator[LogEntry]:
        """What earlier lives gave at or above a global time: where it is in the source, and when."""
        for entry in self._log.entries():
            if (entry[1], self._index) >= since:
                yield entry

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        """End the thread, which syncs what is left."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def note(
        self, positions: Sequence[Any], times: Sequence[int], payloads: Sequence[Any] | None
    ) -> None:
        """Note elements that are about to enter; with payloads if the source cannot replay."""
        self._log.append_columns(positions, times, payloads)
        self._noted += len(times)
        self._pending.append((self._noted, times[0]))
        self._wake.set()

    def reserve(self, now: int, ahead: int = _RESERVED_MS) -> None:
        """The front is idle and would promise the present."""
        if self._reserved is None or now + ahead // 2 > self._reserved:
            self._reserved = now + ahead
            self._log.reserve(self._reserved)
            self._wake.set()

    def reportable(self, promise: Moment) -> Moment:
        """How much of a promise may be reported now. Raises what the disk did."""
        if self._failure is not None:
            raise self._failure
        durable, pending = self._durable, self._pending
        while pending and pending[0][0] <= durable.entries:
            pending.popleft()
        if pending:
            # Whatever is reserved: this element would be given another time.
            return min(promise, (pending[0][1], self._index))
        if promise == AFTER_ALL:
            return promise  # the source has ended, and will again when it is read again
        ends = [durable.reservation, None if durable.time is None else durable.time + 1]
        end = max((end for end in ends if end is not None), default=None)
        return BEFORE_ALL if end is None else min(promise, (end, self._index))

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                if self._wake.wait(_WAIT_SECONDS):
                    self._wake.clear()
                    self._durable = self._log.sync(mark=False)
                    self._ring()
                else:
                    self._log.mark()
            self._log.close()
        except BaseException as error:
            self._failure = error
