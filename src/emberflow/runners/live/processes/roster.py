"""The roster: a thread of the driver that knows which processes work for the query.

It outlives the lives of the workers. It notices when a process takes the place of another one, which is
then lost; and between two lives it gathers the processes that are left, and sends them the next plan.

What is guaranteed: **a plan goes to one process for each worker**, the newest that its keeper has forked.
If another process reports in the place of one that works, or one goes on reporting that it is free while
its life runs, then that life has lost a worker, and whoever runs the lives is told so.

**Workers come and leave** (`live.rescale`). A process has a *seat*: its crew, that of the Spark job which keeps it,
and its place there. The seat of a process never changes, and nobody else has it, but for those that its keeper
forks when it has died. Which worker is at which seat changes from life to life. Seats that are added are
*coming*, for a life that is prepared and does not run, and then they work. A seat that is left has no worker.
Whoever reports from such a seat is told to end: it has left, it was added in vain, or its crew is an earlier
one, which Spark could not end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
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
    Seat,
    seats_of,
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
        self,
        keys: WireKeys,
        place: CoordinatorAddress,
        workers: int,
        lost: Callable[[Seat], None],
        *,
        looks: bool = False,
    ) -> None:
        """``lost`` is called with the seat whose process is lost, in the thread of the roster.

        ``workers`` is how many there will be at first. ``looks``: see `Crew`.
        """
        self._keys = keys
        self._lost = lost
        self._looks = looks
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
        #: By seat: its worker, in the present life and the next one; and of these, those in a life that does
        #: not run yet.
        self._worker_at: dict[Seat, int] = {}
        self._coming: set[Seat] = set()
        self._is_over = False
        self._seen: dict[Seat, _Seen] = {}
        #: The life that runs, and its plan unless the processes came with it; None between two lives.
        self._life: tuple[int, bytes | None] | None = None
        #: The generation of the process that works in that life.
        self._working: dict[Seat, int] = {}
        self._to_end: set[Seat] = set()
        #: When its process was seen free first, though its life runs.
        self._left_at: dict[Seat, float] = {}
        #: The last life that is over. Processes that are not free may not know it yet.
        self._over_life = NO_LIFE
        self._bell = Bell()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberflow roster", daemon=True)

    # What the supervisor calls.

    def begin(self, life: int, workers: int) -> Crew:
        """A new crew of all workers begins with this life: Spark will start its processes."""
        with self._changed:
            self._worker_at, self._seen, self._coming, self._is_over = {}, {}, set(), False
            self._life = (life, None)
            self._to_end, self._left_at = set(), {}
            crew = self._crew_with(range(workers))
            self._working = dict.fromkeys(self._worker_at, 0)
        if self._thread.ident is None:
            self._thread.start()
        return crew

    def _crew_with(self, workers: Sequence[int]) -> Crew:
        crew = Crew(next(self._numbers), self._looks, self._address, self._keys)
        self._worker_at.update(zip(seats_of(crew, len(workers)), workers, strict=True))
        return crew

    def add(self, workers: Sequence[int]) -> Crew:
        """A crew of workers that are added, for a life that is prepared: Spark will start its processes."""
        self._wire.admit(_CONNECTIONS * len(workers))
        with self._changed:
            crew = self._crew_with(workers)
            self._coming = set(seats_of(crew, len(workers)))
            return crew

    def give_up(self, crew: Crew) -> None:
        """The life that these were added for does not run."""
        with self._changed:
            self._remove({seat for seat in self._worker_at if seat[0] == crew.number})
        self._bell.ring()

    def rescale(self, seats: Sequence[Seat]) -> None:
        """A life has taken over that has its workers at these seats: those that were coming work, others leave."""
        with self._changed:
            self._working.update(dict.fromkeys(self._coming, 0))
            self._coming = set()
            self._remove(self._worker_at.keys() - set(seats))
            self._worker_at = {seat: worker for worker, seat in enumerate(seats)}
        self._bell.ring()

    def _remove(self, seats: set[Seat]) -> None:
        for seat in seats:
            del self._worker_at[seat]
            for known in (self._seen, self._working, self._left_at):
                known.pop(seat, None)
        self._coming -= seats
        self._to_end -= seats

    def working(self) -> dict[Seat, Here]:
        """What the processes that work have reported last."""
        with self._changed:
            return {
                seat: seen.here for seat, seen in self._seen.items() if seat not in self._coming
            }

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
        told: set[Seat] = set()
        with self._changed:
            while missing := {
                seat
                for seat in self._worker_at.keys() - self._coming
                if seat not in self._seen or not self._seen[seat].here.is_free
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
        if here.seat not in self._worker_at:
            self._send_home(seen)
            return
        before = self._seen.get(here.seat)
        if before is not None and before.here.generation > here.generation:
            return  # it has died since
        self._seen[here.seat] = seen
        if here.is_free and not self._is_over:
            self._send(seen, WAIT, None)
        if here.seat in self._coming:
            if here.generation or (here.is_free and self._has_left_for_long(here.seat)):
                self._lost(here.seat)
            return
        if self._life is None:
            return
        at_work = self._working.get(here.seat)
        is_other = at_work is not None and here.generation != at_work
        life, shipped = self._life
        has_left = here.is_free and at_work is not None and (here.life >= life or shipped is None)
        if is_other or (has_left and self._has_left_for_long(here.seat)):
            self._lost(here.seat)
        elif has_left:
            pass  # it has told the driver why, and that says more
        elif here.is_free and at_work is not None:
            # The connection broke when it was sent first.
            self._send(seen, WORK, (life, shipped, self._worker_at[here.seat]))

    def _has_left_for_long(self, seat: Seat) -> bool:
        now = time.monotonic()
        return now - self._left_at.setdefault(seat, now) >= _LEFT_SECONDS

    def _tell_all(self) -> None:
        """Send what the processes are to know now."""
        for seat in self._to_end & self._seen.keys():
            self._send(self._seen[seat], END, None)
        self._to_end = set()
        for seat, seen in self._seen.items():
            if self._is_over:
                self._send_home(seen)
            elif not seen.here.is_free:
                if seen.here.life <= self._over_life:
                    self._send(seen, LEAVE, self._over_life)
            elif self._life is not None and seat not in self._working and seat not in self._coming:
                life, shipped = self._life
                if shipped is not None:
                    self._working[seat] = seen.here.generation
                    self._send(seen, WORK, (life, shipped, self._worker_at[seat]))

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
