"""What a query does when Spark decommissions executors: how many workers go on, and when they come back."""

from __future__ import annotations

import logging
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from emberflow.errors import EmberflowError, InputError
from emberflow.runners.live.balance.pace import Elasticity
from emberflow.runners.live.driver.coordinator import WorkersMissingError
from emberflow.runners.live.driver.log import QueryLog
from emberflow.runners.live.elastic import departures
from emberflow.runners.live.elastic.departures import Departures
from emberflow.runners.live.processes.executors import executor_of, is_leaving
from emberflow.runners.live.processes.member import Seat
from emberflow.runners.live.supervisor import Supervision

SECONDS = 60.0


class Lives:
    """Stands in for the supervision of a query whose executors have a slot each."""

    def __init__(self, workers: int, slots: int) -> None:
        self.seats: list[Seat] = [(1, place) for place in range(workers)]
        self.slots = slots
        #: How many slots other jobs hold.
        self.taken = 0
        self.gone: set[Seat] = set()
        self.rescales: list[tuple[int, set[Seat]]] = []
        self.refuses: EmberflowError | None = None
        self.asked = 0
        self.is_over = False
        self.elasticity = Elasticity()
        self.current = SimpleNamespace(leaving=())
        self.coordinator = SimpleNamespace(phase="running")
        self.processes = dict[Any, Any]()

    @property
    def settings(self) -> Any:
        self.current.seats = tuple(self.seats)
        return SimpleNamespace(workers=len(self.seats), elasticity=self.elasticity)

    def wait(self, seconds: float) -> bool:
        time.sleep(0.001)
        self.current.seats = tuple(self.seats)
        return self.is_over

    def rescale(self, workers: int, seconds: float, leaving: Collection[Seat] = ()) -> None:
        self.asked += 1
        if self.refuses is not None:
            raise self.refuses
        self.rescales.append((workers, set(leaving)))
        staying = [seat for seat in self.seats if seat not in leaving][:workers]
        added = workers - len(staying)
        if added > self.slots - self.taken - len(staying):
            raise WorkersMissingError("they have not come")
        crew = 2 + len(self.rescales)
        self.seats = staying + [(crew, place) for place in range(added)]

    def decommission(self, *seats: Seat) -> None:
        self.slots -= len(seats)
        self.gone |= set(seats)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Begins the thread of a query's departures."""
    made: list[Lives] = []
    monkeypatch.setattr(departures, "_RETURN_HOLDS_SECONDS", 0.0)
    monkeypatch.setattr(departures, "_RETURN_RESTS_SECONDS", 0.0)
    monkeypatch.setattr(departures, "is_in_one_process", lambda spark: False)
    monkeypatch.setattr(departures, "slots_of", lambda lives: lives.slots)
    monkeypatch.setattr(
        departures, "Executors", lambda lives: SimpleNamespace(leaving=lambda _: lives.gone)
    )

    def begin(workers: int, slots: int) -> Lives:
        lives = Lives(workers, slots)
        made.append(lives)
        Departures(cast(Any, lives), cast(Supervision, lives), QueryLog("departures")).start()
        return lives

    yield begin
    for lives in made:
        lives.is_over = True


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_others_take_the_places_if_there_are_slots(begun: Any) -> None:
    lives = begun(workers=3, slots=5)
    lives.decommission((1, 0), (1, 2))
    until(lambda: bool(lives.rescales))
    until(lambda: lives.current.leaving == ())
    assert lives.rescales == [(3, {(1, 0), (1, 2)})]
    assert len(lives.seats) == 3


def test_fewer_go_on_without_slots_and_come_back_with_them(begun: Any) -> None:
    lives = begun(workers=3, slots=4)
    lives.decommission((1, 0), (1, 1))
    until(lambda: len(lives.seats) == 2)
    lives.decommission(lives.seats[0])
    until(lambda: len(lives.seats) == 1)
    lives.slots += 1
    time.sleep(0.05)
    assert [workers for workers, _ in lives.rescales] == [2, 1]
    lives.slots += 1
    until(lambda: len(lives.seats) == 3)
    assert lives.rescales[-1] == (3, set())


def test_the_others_do_without_them_if_other_jobs_hold_the_slots(begun: Any) -> None:
    lives = begun(workers=2, slots=3)
    lives.taken = 1
    lives.decommission((1, 1))
    until(lambda: len(lives.seats) == 1)
    assert [workers for workers, _ in lives.rescales[:2]] == [2, 1]
    lives.taken = 0
    until(lambda: len(lives.seats) == 2)


def test_the_load_decides_about_the_number_where_it_may(begun: Any) -> None:
    lives = begun(workers=2, slots=2)
    lives.elasticity = Elasticity(workers=(1, 4))
    lives.decommission((1, 1))
    until(lambda: len(lives.seats) == 1)
    lives.slots += 3
    time.sleep(0.05)
    assert len(lives.seats) == 1


def test_who_cannot_leave_is_told_and_leaves_when_another_executor_comes(
    begun: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "emberflow")
    lives = begun(workers=1, slots=1)
    lives.decommission((1, 0))
    until(lambda: "no other executor has a slot" in caplog.text)
    assert lives.current.leaving == (0,)
    assert not lives.rescales
    lives.slots += 1
    until(lambda: lives.seats == [(3, 0)])
    assert caplog.text.count("no other executor has a slot") == 1


@pytest.mark.parametrize("error", [InputError("it cannot be read again"), EmberflowError("busy")])
def test_what_cannot_be_now_is_tried_again(
    error: EmberflowError, begun: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "emberflow")
    lives = begun(workers=2, slots=3)
    lives.refuses = error
    lives.decommission((1, 0))
    until(lambda: lives.asked > 3)
    lives.refuses = None
    until(lambda: bool(lives.rescales) and lives.current.leaving == ())
    assert caplog.text.count(str(error)) == 1


@pytest.mark.skipif(platform.system() != "Linux", reason="it looks into /proc")
def test_a_process_sees_that_its_executor_is_decommissioned(tmp_path: Path) -> None:
    """By the name of a thread, of the first of its ancestors that is a JVM."""
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    executor = subprocess.Popen(
        [java, "-c", EXECUTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    assert executor.stdin is not None
    assert executor.stdout is not None
    process = int(executor.stdout.readline())
    try:
        assert executor_of(process) == executor.pid
        assert not is_leaving(executor.pid)
        executor.stdin.write("go\n")
        executor.stdin.flush()
        until(lambda: is_leaving(executor.pid))
        executor.kill()
        executor.wait(SECONDS)
        assert executor_of(process) is None
        assert not is_leaving(executor.pid)
    finally:
        executor.kill()
        os.kill(process, signal.SIGKILL)
        executor.communicate()


#: Starts a process, and a thread called as Spark calls it when somebody writes a line.
EXECUTOR = """
import ctypes, subprocess, sys, threading, time

child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.readline()

def waits():
    ctypes.CDLL(None).prctl(15, b"wait-for-blocks-to-migrate", 0, 0, 0)
    time.sleep(60)

threading.Thread(target=waits).start()
"""
