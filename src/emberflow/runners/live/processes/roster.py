"""The roster: a thread of the driver that knows which processes work for the query.

It outlives the lives of the workers. It notices when a process takes the place of another one, which is
then lost; and between two lives it gathers the processes that are left, and sends them the next plan.

What is guaranteed: **a plan goes to one process for each worker**, the newest that its keeper has forked.
If another process reports in the place of one that works, or one goes on reporting that it is free while
its life runs, then that life has lost a worker, and whoever runs the lives is told so.

**The number of workers changes** (`live.rescale`). At any time each worker is of one *crew*, that of the Spark
job which keeps it. Workers that are added are of another crew: first they are *coming*, for a life that is
prepared and does not run, and then they work. A worker that leaves is of no crew. Whoever reports and is not
of the crew of its worker is told to end: it has left, it was added in vain, or its crew is an earlier one,
which Spark could not end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import zmq

from emberflow.runners.live.driver.cluster import CoordinatorAddress
from emberflow.runners.live.processes.member import (
    END,
    HERE,
    LEAVE,
    NO_LIFE,
    OVER,
    WAIT,
    WORK,
    Crew,
    Here,
)
from emberflow.runners.live.wire.bell import Bell
from emberflow.runners.live.wire.links import COORDINATOR, UNNUMBERED, received_parts
from emberflow.runners.live.wire.sockets import Wire, WireError, WireKeys

_POLL_MS = 250
#: Of each worker: when a process is forked, the connection of the one before may still be there.
_CONNECTIONS = 4
_JOIN_SECONDS = 5.0
#: By then the driver has heard why a worker has left its life.
_LEFT_SECONDS = 5.0

_log = logging.getLogger("emberflow")


class _Seen(NamedTuple):
    """The newest process of a worker."""

    here: Here
    identity: bytes


class Roster:
    """Its thread starts with the first crew; `close` ends it."""

    def __init__(
        self, keys: WireKeys, place: CoordinatorAddress, workers: int, lost: Callable[[int], None]
    ) -> None:
        """``lost`` is called with the worker whose process is lost, in the thread of the roster.

        ``workers`` is how many there will be at first.
        """
        self._keys = keys
        self._lost = lost
        self._wire = Wire(keys, NO_LIFE)
        try:
            self._socket, own = self._wire.listening(
                zmq.ROUTER, place.listens_on, peers=_CONNECTIONS * workers
            )
        except BaseException:
            self._wire.close()
            raise
        self._address = f"tcp://{place.reached_at}:{own.rpartition(':')[2]}"
        #: Everything below is guarded by this. It is notified when a process reports.
        self._changed = threading.Condition()
        self._numbers = count(1)
        #: By worker: the number of the crew that it is of; and the workers that are to work in a life that
        #: does not run yet.
        self._crew_of: dict[int, int] = {}
        self._coming: set[int] = set()
        self._is_over = False
        self._seen: dict[int, _Seen] = {}
        #: The life that runs, and its plan unless the processes came with it; None between two lives.
        self._life: tuple[int, bytes | None] | None = None
        #: By worker: the generation of the process that works in that life.
        self._working: dict[int, int] = {}
        self._to_end: set[int] = set()
        #: By worker: when its process was seen free first, though its life runs.
        self._left_at: dict[int, float] = {}
        #: The last life that is over. Processes that are not free may not know it yet.
        self._over_life = NO_LIFE
        self._bell = Bell()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberflow roster", daemon=True)

    # What the supervisor calls.

    def begin(self, life: int, workers: int) -> Crew:
        """A new crew of all workers begins with this life: Spark will start its processes."""
        with self._changed:
            self._crew_of, self._seen, self._coming, self._is_over = {}, {}, set(), False
            self._life = (life, None)
            self._working = dict.fromkeys(range(workers), 0)
            self._to_end, self._left_at = set(), {}
            crew = self._crew_with(range(workers))
        if self._thread.ident is None:
            self._thread.start()
        return crew

    def _crew_with(self, workers: range) -> Crew:
        crew = Crew(next(self._numbers), self._address, self._keys)
        self._crew_of.update(dict.fromkeys(workers, crew.number))
        return crew

    def add(self, workers: range) -> Crew:
        """A crew of workers that are added, for a life that is prepared: Spark will start its processes."""
        self._wire.admit(_CONNECTIONS * len(workers))
        with self._changed:
            self._coming = set(workers)
            return self._crew_with(workers)

    def give_up(self, crew: Crew) -> None:
        """The life that these were added for does not run."""
        with self._changed:
            self._remove({worker for worker, of in self._crew_of.items() if of == crew.number})
        self._bell.ring()

    def rescale(self, workers: int) -> None:
        """A life has taken over that has so many workers: those that were coming work, the others leave."""
        with self._changed:
            self._working.update(dict.fromkeys(self._coming, 0))
            self._coming = set()
            self._remove({worker for worker in self._crew_of if worker >= workers})
        self._bell.ring()

    def _remove(self, workers: set[int]) -> None:
        for worker in workers:
            del self._crew_of[worker]
            for known in (self._seen, self._working, self._left_at):
                known.pop(worker, None)
        self._coming -= workers
        self._to_end -= workers

    def pause(self, life: int) -> None:
        """This life is over. Its processes will be free."""
        with self._changed:
            self._life, self._working, self._over_life = None, {}, life
            self._left_at = {}
        self._bell.ring()

    def gathered(self, seconds: float, patience: float, is_alive: Callable[[], bool]) -> bool:
        """Wait until a process of every worker is free, but for those that are coming. Whether all are, in
        time.

        A process that is not free for so long, ``patience``, is told to end itself; its keeper forks
        another one. ``is_alive`` says whether there is a crew at all.
        """
        begin = time.monotonic()
        told: set[int] = set()
        with self._changed:
            while missing := {
                worker
                for worker in self._crew_of.keys() - self._coming
                if worker not in self._seen or not self._seen[worker].here.is_free
            }:
                passed = time.monotonic() - begin
                if passed > seconds or not is_alive():
                    return False
                if passed > patience and missing - told:
                    self._to_end |= missing - told
                    told |= missing
                    self._bell.ring()
                self._changed.wait(0.05)
        return True

    def go_on(self, life: int, shipped: bytes) -> None:
        """The processes that are free begin this life."""
        with self._changed:
            self._life, self._working = (life, shipped), {}
        self._bell.ring()

    def finish(self) -> None:
        """The query is over, or goes on with another crew."""
        with self._changed:
            self._life, self._working, self._is_over = None, {}, True
        self._bell.ring()

    def close(self) -> None:
        self._ended.set()
        if self._thread.ident is None:
            self._wire.close()
            return
        self._bell.ring()
        self._thread.join(_JOIN_SECONDS)

    # The thread.

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fileno(), zmq.POLLIN)
        while not self._ended.is_set():
            ready = poller.poll(_POLL_MS)
            self._bell.heard_in(ready)
            while (received := received_parts(self._socket)) is not None:
                identity, *parts = received
                try:
                    self._take(identity, parts)
                except WireError as error:
                    _log.warning("the driver cannot read what a process reports: %s", error)
            with self._changed:
                self._tell_all()
        self._wire.close()
        self._bell.close()

    def _take(self, identity: bytes, parts: list[bytes]) -> None:
        envelope = self._wire.opened(parts)
        if envelope is None:
            return
        for kind, body in self._wire.decoded(envelope.content):
            if kind == HERE:
                with self._changed:
                    self._hear(_Seen(Here(*body), identity))
                    self._changed.notify_all()

    def _hear(self, seen: _Seen) -> None:
        here = seen.here
        if self._crew_of.get(here.worker) != here.crew:
            self._send_home(seen)
            return
        before = self._seen.get(here.worker)
        if before is not None and before.here.generation > here.generation:
            return  # it has died since
        self._seen[here.worker] = seen
        if here.is_free and not self._is_over:
            self._send(seen, WAIT, None)
        if here.worker in self._coming:
            if here.generation or (here.is_free and self._has_left_for_long(here.worker)):
                self._lost(here.worker)
            return
        if self._life is None:
            return
        at_work = self._working.get(here.worker)
        is_other = at_work is not None and here.generation != at_work
        life, shipped = self._life
        has_left = here.is_free and at_work is not None and (here.life >= life or shipped is None)
        if is_other or (has_left and self._has_left_for_long(here.worker)):
            self._lost(here.worker)
        elif has_left:
            pass  # it has told the driver why, and that says more
        elif here.is_free and at_work is not None:
            self._send(seen, WORK, (life, shipped))  # the connection broke when it was sent first

    def _has_left_for_long(self, worker: int) -> bool:
        now = time.monotonic()
        return now - self._left_at.setdefault(worker, now) >= _LEFT_SECONDS

    def _tell_all(self) -> None:
        """Send what the processes are to know now."""
        for worker in self._to_end & self._seen.keys():
            self._send(self._seen[worker], END, None)
        self._to_end = set()
        for worker, seen in self._seen.items():
            if self._is_over:
                self._send_home(seen)
            elif not seen.here.is_free:
                if seen.here.life <= self._over_life:
                    self._send(seen, LEAVE, self._over_life)
            elif (
                self._life is not None
                and worker not in self._working
                and worker not in self._coming
            ):
                life, shipped = self._life
                if shipped is not None:
                    self._working[worker] = seen.here.generation
                    self._send(seen, WORK, (life, shipped))

    def _send_home(self, seen: _Seen) -> None:
        """Tell a process that its life is over, and to end when it is free."""
        if seen.here.is_free:
            self._send(seen, OVER, None)
        else:
            self._send(seen, LEAVE, max(seen.here.life, self._over_life))

    def _send(self, seen: _Seen, kind: bytes, body: Any) -> None:
        message = self._wire.encode(kind, body)
        parts = self._wire.envelope(COORDINATOR, UNNUMBERED, [message])
        with contextlib.suppress(zmq.ZMQError):  # it has gone, or reports again
            self._socket.send_multipart([seen.identity, *parts], zmq.NOBLOCK)
