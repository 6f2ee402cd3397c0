"""The lease on a query: how a driver that stands by knows that another one works.

::

    <checkpoint>/leases/000003-0000000042.lease   the driver of incarnation 3 has renewed it 42 times
    <checkpoint>/leases/000003-ended.lease        its query has come to its end, and nobody is to go on

The driver of a query renews the lease every `RENEW_SECONDS`: it writes a file with the next number and
removes the one before. Who stands by looks for it, and takes over when nothing has changed for some
time. **No clocks are compared**: a watch counts its own seconds, from when it last saw a change. While it
cannot look, it counts nothing.

A lease protects nothing. A driver that was only slow or cut off may still work when another one takes
over; what fences it is the incarnation that the other one claims (`cuts.store`). A watch tells which
incarnation it has seen last, and the claim must be *after* that one. So of several drivers that stand by,
one takes over, and the others go on to stand by.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import re
import threading
import time
from collections.abc import Callable

from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.files import (
    LocalLocation,
    Location,
    ObjectLocation,
    location_of,
    write,
)

RENEW_SECONDS = 2.0
#: A driver that stands by takes over when nothing has changed for so long.
LAPSE_SECONDS = 10.0
_JOIN_SECONDS = 5.0
_FOLDER = "leases"
_LEASE = re.compile(r"(\d+)-(\d+|ended)\.lease")
_ENDED = "ended"

_log = logging.getLogger("emberflow")


class Lease(enum.Enum):
    """What a watch sees."""

    HELD = enum.auto()
    #: Nobody has renewed it for long.
    LAPSED = enum.auto()
    #: The query has come to its end, since the watch began.
    ENDED = enum.auto()


class LeaseHolder:
    """Renews the lease, in a thread, from `start` until `end`."""

    def __init__(self, location: str, incarnation: Callable[[], int]) -> None:
        """``incarnation`` tells the newest one of this driver: each of its lives has another one."""
        self._location = location_of(location)
        self._incarnation = incarnation
        self._held: str | None = None
        self._count = 0
        self._newest = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberflow lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def renew(self) -> None:
        """Write the next file, and remove the one before, and those of earlier incarnations."""
        self._count += 1
        self._replace(f"{self._count:010d}")

    def end(self, *, is_over: bool) -> None:
        """Renew it no more. ``is_over``: the query has come to its end, and nobody is to go on.

        If it has not, whoever stands by takes over when the lease lapses.
        """
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        if is_over:
            with contextlib.suppress(
                OSError
            ):  # then somebody finds out that there is nothing to do
                self._replace(_ENDED)

    def _replace(self, mark: str) -> None:
        incarnation = self._incarnation()
        name = f"{incarnation:06d}-{mark}.lease"
        _create(self._location, f"{_FOLDER}/{name}")
        before, self._held = self._held, name
        if incarnation != self._newest:
            self._newest = incarnation
            for other, match in _leases(self._location):
                if int(match[1]) < incarnation:
                    self._location.remove(f"{_FOLDER}/{other}")
        elif before is not None:
            self._location.remove(f"{_FOLDER}/{before}")

    def _run(self) -> None:
        is_told = False
        while True:
            try:
                self.renew()
                is_told = False
            except Exception as error:  # a full disk, for one: the query goes on without
                if not is_told:
                    _log.warning("the lease of the query cannot be renewed: %s", error)
                is_told = True
            if self._ended.wait(RENEW_SECONDS):
                return


class LeaseWatch:
    """Looks at the lease of a query that another driver may hold.

    >>> import tempfile
    >>> folder, now = tempfile.mkdtemp(), [0.0]
    >>> holder = LeaseHolder(folder, lambda: CheckpointStore(folder).incarnation())
    >>> life = CheckpointStore(folder).begin()
    >>> holder.renew()
    >>> watch = LeaseWatch(folder, lapse_seconds=10.0, clock=lambda: now[0])
    >>> watch.look(), watch.incarnation
    (<Lease.HELD: 1>, 1)
    >>> now[0] = 9.0
    >>> holder.renew()
    >>> watch.look()
    <Lease.HELD: 1>
    >>> now[0] = 19.5
    >>> watch.look()
    <Lease.LAPSED: 2>
    """

    def __init__(
        self,
        location: str,
        *,
        lapse_seconds: float = LAPSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._location = location_of(location)
        self._store = CheckpointStore(location)
        self._lapse_seconds = lapse_seconds
        self._clock = clock
        #: The newest incarnation that it has seen. Who takes over claims the one after it.
        self.incarnation = 0
        self._seen: tuple[int, frozenset[str]] | None = None
        self._changed_at = clock()
        self._looked_at = clock()
        #: Whether the query had ended already when the watch began.
        self._was_over = False

    def look(self) -> Lease:
        """What there is now. Where the location cannot be looked at, the lease counts as held."""
        now = self._clock()
        try:
            incarnation = self._store.incarnation()
            # A driver that has a successor may renew its lease until it finds out.
            marks = frozenset(
                match[2] for _, match in _leases(self._location) if int(match[1]) == incarnation
            )
        except OSError as error:
            _log.debug("the lease cannot be looked at: %s", error)
            self._changed_at += now - self._looked_at
            self._looked_at = now
            return Lease.HELD
        self._looked_at = now
        seen = (incarnation, marks)
        if self._seen is None:
            self._was_over = _ENDED in marks
        if seen != self._seen:
            if self._seen is not None:
                self._was_over = False
            self._seen, self._changed_at = seen, now
            self.incarnation = incarnation
        if _ENDED in marks and not self._was_over:
            return Lease.ENDED
        return Lease.LAPSED if now - self._changed_at >= self._lapse_seconds else Lease.HELD


def _leases(location: Location) -> list[tuple[str, re.Match[str]]]:
    found = [(name, _LEASE.fullmatch(name)) for name in location.names(_FOLDER)]
    return [(name, match) for name, match in found if match is not None]


def _create(location: Location, path: str) -> None:
    """An empty file that has a name of its own.

    Who stands by has to see it, and nobody needs it after a loss of power. So on a local disk it is not
    synced: front logs and cuts are, and a sync waits for others.
    """
    if isinstance(location, ObjectLocation):
        location.create(path, b"")
    elif isinstance(location, LocalLocation):
        location.mark(path)
    else:
        write(location, path, b"")
