"""The journal of a front: what the front chose itself is durable before anybody relies on it.

An element that gets the time of its arrival, or comes from a source that cannot be read again, enters
the engine at once. Only the front's *report* waits: it goes no further than what a restart would give
again. The worker's loop notes elements in the front's log. A thread syncs the log again and again, each
time for all that was noted meanwhile. So durability overlaps with processing.

An idle front promises the present, many times a second, and a promise is a choice as well. The journal
reserves a second ahead, once a second, and the front promises freely within the reservation. A restart
begins behind the reservation, because it cannot know how much of it was promised. A reservation does
not allow a report beyond an element that is not durable yet.

While the disk takes no writes (it is full, or read-only), the thread tries again and the front reports
nothing more. So the query stands still when the elements in flight are used up, and goes on when there
is room.

The same holds for a front with times of its own that promises while it is idle (`fronts.Idle`): what
comes below a promise is late. Its entries are the promises that were in force when each record was read.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from emberflow.checkpoint.files import is_unwritable
from emberflow.checkpoint.logs.front_log import Durable, FrontLogWriter
from emberflow.checkpoint.logs.segments import LogEntry
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.runners.live.wire.bell import no_bell
from emberflow.values.item import TIME_MIN

#: How far ahead an idle front reserves, in the milliseconds of its times.
_RESERVED_MS = 1_000
#: How long the thread sleeps when nothing is noted. A note wakes it.
_WAIT_SECONDS = 0.2
#: How long the thread waits before it tries again to write to a disk that takes no writes.
_RETRY_SECONDS = 0.5

_log = logging.getLogger("emberflow")


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
        """``ring`` wakes the loop when there is more to report."""
        self._log = log
        self._name = name
        self._ring = ring
        self._index = index
        self._durable = Durable(0, None, log.time, log.reservation)
        self._noted = 0
        #: For each note that is not known to be durable: elements noted up to it, and its first time.
        self._pending: deque[tuple[int, int]] = deque()
        self._reserved = log.reservation
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._is_stuck = False
        self._thread = threading.Thread(
            target=self._run, name=f"emberflow journal {name}", daemon=True
        )

    def floor(self, promises: bool) -> int:
        """What a new element may not be below: all that earlier lives gave, or promised.

        The entries of a front that promises are promises. Those up to the last entry are given again
        with the records, so only what was promised after it counts.
        """
        ends = [TIME_MIN - 1 if self._log.reservation is None else self._log.reservation]
        if not promises and self._log.time is not None:
            ends.append(self._log.time + 1)
        return max(ends)

    @property
    def is_first(self) -> bool:
        """Whether no earlier life had this partition."""
        return self._log.is_first

    def drop_above(self, shown: Moment) -> None:
        """Drop for good what earlier lives gave above a global time.

        For good, because a later life may begin from the same cut, after output without it is stored.
        """
        time, index = shown
        self._log.drop_above(time if self._index <= index else time - 1)

    def is_dropped(self, time: int) -> bool:
        """Whether the element of a time was dropped."""
        return self._log.is_dropped(time)

    def given_before(self, position: Any, since: Moment) -> Iterator[LogEntry]:
        """The log entries of earlier lives behind a position; without one, at or above a global time.

        The log is in the order of the source. So if it does not have the position any more, all of it
        is behind it.
        """
        if position is None:
            for entry in self._log.entries():
                if (entry[1], self._index) >= since:
                    yield entry
            return
        entries = self._log.entries()
        if not any(entry[0] == position for entry in entries):
            entries = self._log.entries()
        yield from entries  # in the other case, those behind it

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        """End the thread. It syncs the rest of the log first."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def note(
        self, positions: Sequence[Any], times: Sequence[int], payloads: Sequence[Any] | None
    ) -> None:
        """Note elements that are about to enter, with payloads if the source cannot be read again."""
        self._log.append_columns(positions, times, payloads)
        self._noted += len(times)
        self._pending.append((self._noted, times[0]))
        self._wake.set()

    def reserve(self, now: int, ahead: int = _RESERVED_MS) -> None:
        """Reserve times from now on: the front is idle and is about to promise the present."""
        if self._reserved is None or now + ahead // 2 > self._reserved:
            self._reserved = now + ahead
            self._log.reserve(self._reserved)
            self._wake.set()

    def reportable(self, promise: Moment, own: Moment) -> Moment:
        """How much of a promise may be reported now. Raises the error of the disk, if there was one.

        ``own`` is as much of it as the elements make: a replay of what is durable makes it again.
        """
        if self._failure is not None:
            raise self._failure
        durable, pending = self._durable, self._pending
        while pending and pending[0][0] <= durable.entries:
            pending.popleft()
        if pending:
            # Even within a reservation: a restart would give this element another time.
            return min(promise, (pending[0][1], self._index))
        if promise == AFTER_ALL:
            return promise  # the source has ended, and a restart would read to its end again
        if durable.reservation is not None:
            own = max(own, (durable.reservation, self._index))
        return min(promise, own)

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                if self._wake.wait(_WAIT_SECONDS):
                    self._wake.clear()
                    self._sync()
                else:
                    with self._trying():
                        self._log.mark()
            self._log.close()
        except BaseException as error:
            self._failure = error

    def _sync(self) -> None:
        is_synced = False
        while not is_synced and not self._ended.is_set():
            with self._trying():
                self._durable = self._log.sync(mark=False)
                is_synced = True
        self._ring()

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """Wait a moment if the disk takes no writes now. Say so once, and again when it does."""
        try:
            yield
        except OSError as error:
            if not is_unwritable(error):
                raise
            if not self._is_stuck:
                _log.warning("the log of front %s waits for the disk: %s", self._name, error)
            self._is_stuck = True
            self._ended.wait(_RETRY_SECONDS)
        else:
            if self._is_stuck:
                _log.warning("the log of front %s is written again", self._name)
            self._is_stuck = False
