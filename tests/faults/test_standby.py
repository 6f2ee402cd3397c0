"""Drivers that stand by, as `emberflow run --standby` in processes of their own.

The first driver is killed and the second one goes on, exactly once. In `make soak` the second one is then
stopped, a third one takes over, and the second one finds out when it comes back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import emberflow as ef
from emberflow.dsl.loading import load_flow
from emberflow.sinks import read_files
from tests.effort import SECONDS, SOAK
from tests.faults.toll import toll

FLOW = """
import emberflow as ef

flow = ef.Flow("counted")
numbers = flow.front("numbers").map(lambda row: row["number"])
numbers.key_by(lambda number: number % 3).count().map(list).sink("counts")
"""
ROWS = 20

pytestmark = pytest.mark.timeout(1_200)


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Drivers:
    """Processes that run one query over a folder of numbers that grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "counted.py").write_text(FLOW)
        (folder / "in").mkdir()
        self.numbers = 0
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        log = open(self.log(len(self.started)), "wb")  # noqa: SIM115 - closed at once
        command = [sys.executable, "-m", "emberflow", "run", "counted:flow"]
        arguments = [
            *("--front", "numbers=files:in/?time=at", "--sink", "counts=files:out/"),
            *("--workers", "2", "--checkpoint", "cuts", "--option", "checkpointInterval=200"),
        ]
        with log:
            process = subprocess.Popen(
                [*command, *arguments, *more],
                cwd=self.folder,
                env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def log(self, number: int) -> Path:
        return self.folder / f"driver {number}.log"

    def says(self, number: int, text: str) -> None:
        until(lambda: text in self.log(number).read_text(), f"driver {number} to say {text!r}")

    def at_work(self, standing_by: list[int]) -> int:
        """The one of these that has taken over."""
        (number,) = [one for one in standing_by if TAKING_OVER in self.log(one).read_text()]
        return number

    def grow(self) -> None:
        """More numbers. The last one may stay open: its front could still emit at its time."""
        rows = range(self.numbers, self.numbers + ROWS)
        self.numbers += ROWS
        lines = [json.dumps({"number": number, "at": number + 1}) + "\n" for number in rows]
        temporary = self.folder / "in" / f".{self.numbers:06d}"
        temporary.write_text("".join(lines))
        temporary.rename(self.folder / "in" / f"{self.numbers:06d}.jsonl")
        until(lambda: len(self.stored()) >= self.numbers - 1, f"the output of {self.numbers}")

    def stored(self) -> list[object]:
        out = self.folder / "out"
        return list(read_files(out)) if out.exists() else []

    def expected(self) -> list[list[int]]:
        given = [ef.At(n + 1, {"number": n, "at": n + 1}) for n in range(self.numbers)]
        flow = load_flow(f"{self.folder / 'counted.py'}:flow")
        return [list(count) for count in ef.run(flow, numbers=given)["counts"]]

    def end(self) -> None:
        for process in self.started:
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    break
            process.wait(60)


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path)
    yield drivers
    drivers.end()


TAKING_OVER = "The driver of the query is lost: taking over."


@pytest.mark.early
def test_a_driver_that_stands_by_goes_on_when_the_first_is_killed(drivers: Drivers) -> None:
    """In `make soak` two stand by, and the one that takes over is stopped, and comes back."""
    first = drivers.start()
    drivers.grow()
    standing_by = [1, 2] if SOAK else [1]
    for number in standing_by:
        drivers.start("--standby")
        drivers.says(number, "Standing by.")
    drivers.grow()  # they leave the first one alone
    os.kill(first.pid, signal.SIGKILL)
    toll("driver")
    drivers.grow()
    last = drivers.at_work(standing_by)
    if SOAK:
        last = is_stopped_and_comes_back(drivers, last, 3 - last)
    process = drivers.started[last]
    process.send_signal(signal.SIGTERM)
    until(lambda: process.poll() is not None, "the end of the last driver")
    assert process.returncode == 0, drivers.log(last).read_text()
    assert drivers.stored() == drivers.expected()


def is_stopped_and_comes_back(drivers: Drivers, at_work: int, other: int) -> int:
    """Returns the number of the driver that has taken over meanwhile."""
    process = drivers.started[at_work]
    os.kill(process.pid, signal.SIGSTOP)
    drivers.says(other, TAKING_OVER)
    drivers.grow()
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: process.poll() is not None, "the end of the driver that came back")
    assert process.returncode != 0
    assert "was followed by incarnation" in " ".join(drivers.log(at_work).read_text().split())
    drivers.grow()
    return other
