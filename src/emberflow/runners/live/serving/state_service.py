"""Reads of state by other processes: a service of the bridge for each state.

A scan of a large state does not fit into one message. So a reader opens a scan, requests one part of it
after another, and closes it; every part is as of the same time, because the workers retain that state
for it (`serving.reads.Pages`). If the keys are known, they are looked up instead.

Bounds: the number of open scans is limited; a scan without requests for its time limit is closed; a
part fits into a message of the bridge.
"""

from __future__ import annotations

import itertools
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import cloudpickle

from emberflow.errors import InputError
from emberflow.runners.live.serving.bridge import CHUNK_BYTES, MESSAGE_BYTES_MAX
from emberflow.runners.live.serving.reads import LiveState, Pages, Reads
from emberflow.values.item import GlobalTime

_SCANS_MAX = 16
_SECONDS_MAX = 600.0


class StateReads:
    """The open scans of all states. ``reads`` is set later, because the bridge begins first."""

    def __init__(self) -> None:
        self.reads: Reads | None = None
        self._scans: dict[int, _Scan] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def opened(
        self, state: str, as_of: Any, keys: bytes | None, where: bytes | None, seconds: float
    ) -> tuple[int, tuple[int, int]]:
        """The number of a new scan, and the global time that it is as of."""
        if self.reads is None:
            raise InputError("the live query has not begun yet: ask again.")
        seconds = min(seconds, _SECONDS_MAX)
        live = LiveState(self.reads, state)
        with self._lock:
            self._close_idle()
            if len(self._scans) >= _SCANS_MAX:
                raise InputError(
                    f"{_SCANS_MAX} reads of the live query's states are in progress, which is the "
                    f"limit. Read again when some are done."
                )
            number = next(self._numbers)
            scan = self._scans[number] = _Scan(seconds)
        try:
            scan.begin(live, as_of, keys, where)
        except BaseException:
            self.close_one(number)
            raise
        return number, (scan.as_of.time, scan.as_of.front)

    def next(self, number: int) -> bytes | None:
        """The next part of a scan: pickled rows, or None at its end."""
        with self._lock:
            scan = self._scans.get(number)
        if scan is None:
            raise InputError("this read was closed, because its reader was silent for too long.")
        part = scan.next()
        if part is None:
            self.close_one(number)
        return part

    def close_one(self, number: int) -> None:
        with self._lock:
            scan = self._scans.pop(number, None)
        if scan is not None:
            scan.close()

    def close(self) -> None:
        with self._lock:
            scans, self._scans = list(self._scans.values()), {}
        for scan in scans:
            scan.close()

    def _close_idle(self) -> None:
        for number, scan in list(self._scans.items()):
            if scan.is_idle:
                del self._scans[number]
                scan.close()


class StateService:
    """The service of one state."""

    def __init__(self, all_reads: StateReads, state: str) -> None:
        self._all = all_reads
        self._state = state

    def serve(self, method: str, arguments: dict[str, Any]) -> Any:
        if method == "open":
            return self._all.opened(self._state, **arguments)
        if method == "next":
            return self._all.next(**arguments)
        if method == "close":
            return self._all.close_one(**arguments)
        raise InputError(f"a state cannot be asked to {method}.")

    def close(self) -> None:
        self._all.close()


class _Scan:
    """Rows as of one time, part by part. Only one thread at a time may use it."""

    def __init__(self, seconds: float) -> None:
        self.as_of = GlobalTime(0, 0)
        self._seconds = seconds
        self._asked_at = time.monotonic()
        self._pages: Pages | None = None
        self._parts: Iterator[bytes] = iter(())
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return time.monotonic() - self._asked_at > self._seconds

    def begin(self, state: LiveState, as_of: Any, keys: bytes | None, where: bytes | None) -> None:
        if keys is not None:
            wanted = pickle.loads(keys)
            answer = state.get(*wanted, default=False, as_of=as_of, timeout=self._seconds)
            self.as_of = answer.as_of
            self._parts = _parts(list(answer.items()))
            return
        predicate = None if where is None else pickle.loads(where)
        self._pages = state.pages(where=predicate, as_of=as_of, timeout=self._seconds)
        self.as_of = self._pages.as_of
        self._parts = (part for rows in self._pages for part in _parts(rows))

    def next(self) -> bytes | None:
        with self._lock:
            self._asked_at = time.monotonic()
            return next(self._parts, None)

    def close(self) -> None:
        if self._pages is not None:
            self._pages.close()


def _parts(rows: list[tuple[Any, Any]]) -> Iterator[bytes]:
    """Rows as bytes, in parts that are small enough. Pickled by value if necessary: the script of the
    query may define a value's class."""
    if not rows:
        return
    part = bytes(cloudpickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
    if len(part) <= CHUNK_BYTES or len(rows) == 1:
        if len(part) > MESSAGE_BYTES_MAX // 2:
            raise InputError(
                f"the value of the key {rows[0][0]!r} takes {len(part):,} bytes, more than can be "
                f"read at once."
            )
        yield part
        return
    middle = len(rows) // 2
    yield from _parts(rows[:middle])
    yield from _parts(rows[middle:])
