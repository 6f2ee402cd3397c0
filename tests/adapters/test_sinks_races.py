"""Two writers of one partition of `sinks.Files`: whatever the interleaving, nothing is lost or doubled.

An old writer, of a worker that is dying slowly, stores a bundle while its successor opens the partition
and stores the same bundle and another one. The two run as threads of which only one moves at a time: each
stops before every line of the code under test, and the schedule says who goes on. So every point between
two system calls is tried, with the old writer paused there for as long as the schedule likes.
"""

from __future__ import annotations

import fcntl
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow.checkpoint.ownership
import emberflow.sinks.files
from emberflow import GlobalTime, sinks
from emberflow.sinks import SinkMovedError, StoredBundle
from emberflow.sinks.folders.names import name_of
from tests.adapters.synced import synced_inodes
from tests.effort import SECONDS, SOAK

TRACED = {emberflow.sinks.files.__file__, emberflow.checkpoint.ownership.__file__}
_flock = fcntl.flock


class Thread:
    """A function that stops before each traced line until it is told to go on."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self.is_over = False
        self._function = function
        self._may_run, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let the thread run up to its next line."""
        self._may_run.release()
        assert self._has_stopped.acquire(timeout=SECONDS)

    def stop(self) -> None:
        """The thread stops here until the next step."""
        self._has_stopped.release()
        assert self._may_run.acquire(timeout=SECONDS)

    def _run(self) -> None:
        assert self._may_run.acquire(timeout=SECONDS)
        current.thread = self
        sys.settrace(self._entered)
        try:
            self._function()
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)
            self.is_over = True
            self._has_stopped.release()

    def _entered(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in TRACED else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.stop()
        return self._line


current = threading.local()


def waiting_flock(descriptor: int, operation: int) -> None:
    """`flock` of a thread that lets the other one run while the lock is taken."""
    while True:
        try:
            return _flock(descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            current.thread.stop()


def run(threads: list[Thread], schedule: Iterator[int]) -> None:
    """Step through the threads as the schedule says, and in turns when it has ended."""
    turn = 0
    while not all(thread.is_over for thread in threads):
        turn = next(schedule, 1 - turn)
        chosen = threads[turn] if not threads[turn].is_over else threads[1 - turn]
        chosen.step()


def bundle(time: int) -> StoredBundle:
    return StoredBundle("out", 0, GlobalTime(time, 0), [{"time": time}] * 3)


LINES = {time: f'{{"time":{time}}}\n'.encode() * 3 for time in (1, 2)}


def race(schedule: list[int], *, is_open: bool = False) -> None:
    """``is_open``: the successor has opened the partition before the race begins."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        sink = sinks.Files(folder)
        own = Path(folder) / "partition-0000"
        old = sink.open(0)
        opened = sink.open(0) if is_open else None
        first: list[GlobalTime | None] = []

        def succeed() -> None:
            writer = opened or sink.open(0)
            first.append(writer.last())
            for time in (1, 2):
                if writer.last() is None or writer.last() < GlobalTime(time, 0):
                    writer.store(bundle(time))
                # It is whole now, even if the old writer never gets any further.
                assert (own / f"{name_of(GlobalTime(time, 0))}.jsonl").read_bytes() == LINES[time]
            writer.close()

        patched.setattr(fcntl, "flock", waiting_flock)
        predecessor = Thread(lambda: old.store(bundle(1)))
        successor = Thread(succeed)
        run([predecessor, successor], iter(schedule))
        old.close()

        if successor.error is not None:
            raise successor.error
        assert sink.payloads() == [{"time": 1}] * 3 + [{"time": 2}] * 3
        has_stored = first == [GlobalTime(1, 0)]
        assert (predecessor.error is None) == has_stored
        assert has_stored or isinstance(predecessor.error, SinkMovedError)
        left = [path.name for path in Path(folder).rglob("*.temporary")]
        assert left == [], "a writer that may not store cleans up behind itself"


OLD, NEW = 0, 1


@pytest.mark.parametrize("reached", range(3, 24))
def test_an_old_writer_stores_up_to_every_line_when_its_successor_is_at_any(reached: int) -> None:
    for paused_at in range(1, 22, 1 if SOAK else 3):
        race([NEW] * reached + [OLD] * paused_at + [NEW] * 100, is_open=True)


@pytest.mark.parametrize("paused_at", range(0, 30, 1 if SOAK else 3))
def test_an_old_writer_is_paused_at_every_line_while_its_successor_opens(paused_at: int) -> None:
    for resumed_at in range(0, 160, 1 if SOAK else 12):
        race([OLD] * paused_at + [NEW] * resumed_at + [OLD] * 60)


@given(st.lists(st.tuples(st.sampled_from([OLD, NEW]), st.integers(1, 30)), max_size=12))
def test_any_interleaving_of_an_old_writer_and_its_successor(runs: list[tuple[int, int]]) -> None:
    race([who for who, lines in runs for _ in range(lines)])


def test_what_is_stored_survives_a_power_loss_with_the_folders_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry of each new folder is in its parent, so the parent has to be synced."""
    synced = synced_inodes(monkeypatch)
    folder = tmp_path / "a" / "b"
    writer = sinks.Files(folder).open(0)
    writer.store(bundle(1))
    writer.close()
    (file,) = folder.rglob("*.jsonl")
    on_the_way = [file, *file.parents]
    assert {path.stat().st_ino for path in on_the_way[: on_the_way.index(tmp_path) + 1]} <= synced
    # Another worker may have made the folder a moment ago, and been killed before its sync.
    synced.clear()
    sinks.Files(folder).open(1).close()
    assert folder.parent.stat().st_ino in synced
