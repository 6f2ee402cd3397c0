"""A member of the crew: a worker's process, as it and the driver's `roster` know each other.

The processes that work for a query, of one Spark job, are a *crew*. A process outlives the life that it works in: when
that is lost, the process waits, and the roster sends it the plan of the next life.

What is guaranteed: **a process works in one life at a time.** It asks for a plan only when the loop of
the life before has ended, and takes only a plan of a later life. What that loop may have left behind (a
reader in a slow source, a store under way) can do what a worker of a life that is over can do anywhere:
nothing that counts (`supervisor`).

The member is a thread beside the loop, with a socket of its own. It reports to the roster and to the
process's keeper, and ends the process if the roster says so: then the loop is stuck in a function of the
user, and others wait for it. A process that is suspended sends its keeper nothing, which ends it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from typing import NamedTuple, TypeAlias

import zmq

from emberflow.runners.live.wire.bell import Bell
from emberflow.runners.live.wire.links import UNNUMBERED, received_parts
from emberflow.runners.live.wire.sockets import Wire, WireKeys
from emberflow.runners.live.worker.link import CoordinatorGoneError

#: What stands for the incarnation in messages of the roster and to it: lives begin with 1.
NO_LIFE = 0

# From a process to the roster:
HERE = b"1"  # Here
# The roster to a process:
WORK = b"2"  # (incarnation, plan in bytes, worker): begin this life
WAIT = b"3"  # None: the driver is there, and there is no plan yet
OVER = b"4"  # None: the query is over, or has another crew, or fewer workers
END = b"5"  # None: end yourself at once; another process takes the place
LEAVE = b"6"  # a life that is over: its coordinator may have ended before it knew the process

#: What a keeper tells its process: that their executor is decommissioned.
LEAVING = b"l"

#: How often a process reports, and how often it does while it waits.
_REPORT_SECONDS = 1.0
_WAITING_SECONDS = 0.25
_POLL_MS = 250
#: How often it shows its keeper that it is not suspended.
BEAT_SECONDS = 0.5
#: A process that has not heard the driver for so long while it waits gives up.
_SILENCE_SECONDS_MAX = 20.0
_JOIN_SECONDS = 2.0
#: The exit status of a process that was told to end itself.
TOLD_TO_END = 17


#: Where a worker's process is: the number of its crew, and its place in that. A process keeps its seat; the
#: number of the worker that it is may change from life to life.
Seat: TypeAlias = tuple[int, int]


#: A plan in bytes, and the number of a worker.
Order: TypeAlias = tuple[bytes, int]


class Crew(NamedTuple):
    """The processes that one Spark job has started: how they reach the roster."""

    #: The roster counts its crews.
    number: int
    #: Whether keepers look if their executors are decommissioned: on Spark Connect, where the driver cannot ask.
    looks: bool
    roster: str
    keys: WireKeys


def seats_of(crew: Crew | None, places: int) -> tuple[Seat, ...]:
    """The seats of a Spark job of so many tasks."""
    number = 0 if crew is None else crew.number
    return tuple((number, place) for place in range(places))


class Here(NamedTuple):
    """What a process reports."""

    crew: int
    #: The partition of the Spark job.
    place: int
    #: How many processes its keeper has had before.
    generation: int
    #: The last life that it worked in; 0 for none.
    life: int
    #: Whether its loop has ended, or none has begun.
    is_free: bool
    pid: int
    #: The number of the Spark task that keeps it.
    task: int
    #: Whether its keeper has seen that the executor is decommissioned.
    is_leaving: bool = False

    @property
    def seat(self) -> Seat:
        return self.crew, self.place


class Member:
    """The end of a process. `close` ends the thread."""

    def __init__(
        self,
        crew: Crew,
        place: int,
        generation: int,
        keeper: socket.socket,
        *,
        life: int,
        task: int,
    ) -> None:
        """``life``: it works in this one already; 0 if it waits for a plan."""
        self._crew = crew
        self._place = place
        self._task = task
        self._generation = generation
        self._keeper = keeper
        self._keeper.setblocking(False)
        self._life = life
        self._is_free = life == 0
        self._is_leaving = False
        self._over = 0
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._heard_at = time.monotonic()
        self._bell = Bell()
        self._wire = Wire(crew.keys, NO_LIFE)
        self._socket = self._wire.connected(zmq.DEALER, crew.roster)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberflow member", daemon=True)
        self._thread.start()

    def next_plan(self) -> Order | None:
        """Wait for the plan of the next life, and the number of its worker that this process is to be; None if
        the query is over.

        Raises `CoordinatorGoneError` if the driver is not there any more.
        """
        self._heard_at = time.monotonic()
        self._is_free = True
        self._bell.ring()
        while True:
            try:
                return self._orders.get(timeout=_WAITING_SECONDS)
            except queue.Empty:
                if time.monotonic() - self._heard_at > _SILENCE_SECONDS_MAX:
                    raise CoordinatorGoneError(
                        f"a worker has waited for the next life and not heard the driver "
                        f"for {_SILENCE_SECONDS_MAX:.0f} s"
                    ) from None

    def is_over(self, life: int) -> bool:
        """Whether a life is over, as far as the process has heard."""
        return life <= self._over

    def close(self) -> None:
        self._ended.set()
        self._bell.ring()
        self._thread.join(_JOIN_SECONDS)

    # The thread.

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._bell.fileno(), zmq.POLLIN)
        reported_at = beaten_at = 0.0
        was_free = None
        while not self._ended.is_set():
            now, is_free = time.monotonic(), self._is_free
            every = _WAITING_SECONDS if is_free else _REPORT_SECONDS
            if is_free != was_free or now - reported_at >= every:
                reported_at, was_free = now, is_free
                self._report(is_free)
            if now - beaten_at >= BEAT_SECONDS:
                beaten_at = now
                with contextlib.suppress(OSError):
                    self._keeper.send(b".")
                    self._is_leaving = self._is_leaving or self._keeper.recv(1) == LEAVING
            ready = poller.poll(_POLL_MS)
            self._bell.heard_in(ready)
            while (parts := received_parts(self._socket)) is not None:
                envelope = self._wire.opened(parts)
                if envelope is not None:
                    for kind, body in self._wire.decoded(envelope.content):
                        self._hear(kind, body)
        self._wire.close()
        self._bell.close()

    def _report(self, is_free: bool) -> None:
        here = Here(
            self._crew.number,
            self._place,
            self._generation,
            self._life,
            is_free,
            os.getpid(),
            self._task,
            self._is_leaving,
        )
        message = self._wire.encode(HERE, tuple(here))
        with contextlib.suppress(zmq.Again):  # it reports again
            self._socket.send_multipart(
                self._wire.envelope(self._place, UNNUMBERED, [message]), zmq.NOBLOCK
            )

    def _hear(self, kind: bytes, body: object) -> None:
        self._heard_at = time.monotonic()
        if kind == END:
            os._exit(TOLD_TO_END)
        if kind == OVER and self._is_free:
            self._orders.put(None)
        elif kind == LEAVE:
            assert isinstance(body, int)
            self._over = max(self._over, body)
        elif kind == WORK and self._is_free:
            assert isinstance(body, tuple)
            life, shipped, worker = body
            if life > self._life:  # it may come twice
                self._life, self._is_free = life, False
                self._orders.put((shipped, worker))
