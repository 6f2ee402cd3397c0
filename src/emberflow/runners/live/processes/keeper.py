"""The keeper: the process of a Spark task, which keeps a worker's process.

Spark ends all tasks of a barrier stage when one of them fails, and takes seconds to start others. So the
worker is not the process that Spark knows, but a child of it. **When a worker's process dies, Spark does
not notice: the keeper forks another one at once.** The keeper has imported everything, holds no state
and runs no code of users, so it is the warm spare of its worker.

The process that was forked asks the driver's `roster` for a plan, which shows the driver that the one
before it is lost. A child that has nothing to say for long is suspended, and its keeper kills it. A child
whose keeper dies ends too, so nothing outlives the Spark task.

The keeper has one thread and no socket of ZeroMQ, because a fork copies only the thread that forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import platform
import select
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from typing import NamedTuple

from emberflow.errors import EmberflowError
from emberflow.runners.live.arrival.worker import WorkerSnapshots
from emberflow.runners.live.processes.executors import executor_of, is_leaving
from emberflow.runners.live.processes.member import BEAT_SECONDS, LEAVING, Crew, Member, Order
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.worker.cuts import CutsByTime
from emberflow.runners.live.worker.link import CoordinatorGoneError
from emberflow.runners.live.worker.loop import Strategy, serve
from emberflow.runners.live.worker.machine.background import in_background

#: A child that is silent for so many beats is suspended. The driver has given it up by then.
_SILENT_BEATS_MAX = 16
#: If so many children in a row die young, something is wrong with all of them.
_YOUNG_DEATHS_MAX = 10
_YOUNG_SECONDS = 2.0
#: Exit statuses of a child: the query is over, the driver is gone, or its loop raised.
_IS_OVER, _DRIVER_GONE, _FAILED = 0, 3, 4
_PR_SET_PDEATHSIG = 1
#: When the first process of a worker imports what it will need after a loss: the query has begun by then.
_CALM_AFTER_SECONDS = 2.0
#: How often a keeper looks whether its executor is decommissioned.
_LOOK_SECONDS = 1.0


class WorkerDiedError(EmberflowError):
    """The processes of a worker die as soon as they are forked."""


def strategy_of(plan: Plan) -> Strategy:
    return WorkerSnapshots if plan.ordering == "arrival" else CutsByTime


def keep(crew: Crew, order: Order, place: int, task: int, *, is_added: bool = False) -> None:
    """Keep a process for a worker until the query is over. The first one begins with this order; ``task`` is the
    number of the Spark task. If the worker is added, others serve meanwhile, and nobody waits for it yet."""
    if is_added:
        in_background(_warm_up)  # before the fork: so its process need not
    generation = young = 0
    while True:
        begin = time.monotonic()
        first = order if generation == 0 else None
        status = _child_ran(Keeping(crew, place, generation, task), first)
        if status == _IS_OVER:
            return
        if status == _DRIVER_GONE:
            raise CoordinatorGoneError("a worker has not heard the driver for too long")
        young = young + 1 if time.monotonic() - begin < _YOUNG_SECONDS else 0
        if young >= _YOUNG_DEATHS_MAX:
            raise WorkerDiedError(
                f"{young} processes of a worker in a row have died within "
                f"{_YOUNG_SECONDS:.0f} s. The executor's log may say why."
            )
        generation += 1


class Keeping(NamedTuple):
    """Who a child is."""

    crew: Crew
    place: int
    generation: int
    task: int


def _child_ran(who: Keeping, order: Order | None) -> int:
    """Fork a child, wait for its end, and return its exit status."""
    own, childs = socket.socketpair()
    keeper = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python warns of threads that libraries have started, and these prepare for forks (`daemon`).
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = _FAILED
        try:
            own.close()
            _end_with(keeper, childs)
            status = _work(who, order, childs)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)  # never into what Spark would do next
    childs.close()
    try:
        _warm_up()
        return _awaited(child, own, executor_of(keeper) if who.crew.looks else None)
    finally:
        own.close()


def _warm_up() -> None:
    """Import what a process that restores a cut will import, while nobody waits for this one.

    PyArrow imports pandas, if there is one, as soon as it converts a column. That takes some tenths of a second.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("pandas")


def _warm_up_beside() -> None:
    """Do so beside the loop. The first process of a worker was forked before its keeper had: if another worker is
    lost, this one restores too, and all wait for it."""

    def warm_up() -> None:
        time.sleep(_CALM_AFTER_SECONDS)
        _warm_up()

    threading.Thread(target=warm_up, name="emberflow warm-up", daemon=True).start()


def _awaited(child: int, own: socket.socket, executor: int | None) -> int:
    """The exit status of a child, once it has ended. One that is suspended is killed. If the ``executor`` is
    decommissioned, the child is told."""
    silent = 0
    looked_at = time.monotonic()
    try:
        while True:
            if executor is not None and time.monotonic() - looked_at >= _LOOK_SECONDS:
                looked_at = time.monotonic()
                if is_leaving(executor):
                    executor = None
                    with contextlib.suppress(OSError):
                        own.send(LEAVING)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                return os.waitstatus_to_exitcode(status)
            if not select.select([own], [], [], BEAT_SECONDS)[0]:
                # Counted and not timed: this process may have been suspended as well.
                silent += 1
                if silent >= _SILENT_BEATS_MAX:
                    os.kill(child, signal.SIGKILL)
            elif own.recv(1 << 12):
                silent = 0
            else:  # its end is closed: it has died, or is about to
                _, status = os.waitpid(child, 0)
                child = 0
                return os.waitstatus_to_exitcode(status)
    finally:
        if child:  # this task ends in another way
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _end_with(keeper: int, childs: socket.socket) -> None:
    """Let this process end when its keeper does."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it has died meanwhile
            os._exit(_FAILED)
        return

    def watch() -> None:
        while os.getppid() == keeper:
            time.sleep(BEAT_SECONDS)
        os._exit(_FAILED)

    threading.Thread(target=watch, name="emberflow keeper", daemon=True).start()


def _work(who: Keeping, order: Order | None, keeper: socket.socket) -> int:
    """What the child does: one life after another. Returns its exit status."""
    first = None if order is None else _unpacked(order)
    life = 0 if first is None else first[0].incarnation
    member = Member(who.crew, who.place, who.generation, keeper, life=life, task=who.task)

    lives = _Lives(member)
    if who.generation == 0:
        _warm_up_beside()
    try:
        if first is None:
            first = lives.next_plan()
        if first is not None:
            plan, worker = first
            serve(plan, worker, strategy_of(plan), lives)
        return _IS_OVER
    except CoordinatorGoneError:
        return _DRIVER_GONE
    finally:
        member.close()


class _Lives:
    """What the loop asks of the member."""

    def __init__(self, member: Member) -> None:
        self.is_over = member.is_over
        self._member = member

    def next_plan(self) -> tuple[Plan, int] | None:
        order = self._member.next_plan()
        return None if order is None else _unpacked(order)


def _unpacked(order: Order) -> tuple[Plan, int]:
    """A plan, and which worker of it. It came in the closure of a Spark job, or over a link of this run's own
    processes."""
    shipped, worker = order
    return pickle.loads(shipped), worker
