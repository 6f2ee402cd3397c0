"""A lost worker is one lost worker: the processes of the others stay, and the output is exact.

Each test really kills processes: one of three; the same one again and again; two at once; one while the
recovery from another loss is under way; one beside a process that hangs; and at last the keeper of a
worker, which Spark notices, so that everything begins anew.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.engine.messages import BEFORE_ALL
from emberflow.runners.live import life
from emberflow.runners.live.lives import crews
from emberflow.runners.live.processes.launch import JobFailedError
from emberflow.runners.live.query import LiveQuery
from tests.faults.flows import check_files, documents, index_flow
from tests.faults.test_kills import SECONDS, held_back, until
from tests.faults.toll import toll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)


@pytest.fixture(autouse=True)
def all_have_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many workers have; those of `test_kills` have an acker in the driver."""
    monkeypatch.setattr(life, "ACCOUNTS_FROM", 2)


def pids_after(query: LiveQuery, losses: int, workers: int) -> list[int]:
    """The processes of the life after so many losses, by worker, once it has got further than any before:
    a query that is lost at the same place again and again gives up."""
    pids: list[int] = []
    lives = query._lives

    def are_there() -> bool:
        nonlocal pids
        progress = query.lastProgress
        assert query.isActive, "it is over before all were killed"
        if progress is None or progress["recoveries"] < losses or not progress["elements"]:
            return False
        pids = progress["pids"]
        further = max(lives._losses.lost_at, default=BEFORE_ALL)
        return len(pids) == workers and lives.coordinator.progress.of_all() > further

    until(are_there, "the workers of the next life")
    return pids


def paced(given: list[Any], ends: Path) -> Callable[[], Iterator[Any]]:
    """The elements, slowly; and all that is left at once when there is a file, but the last not before."""

    def elements() -> Iterator[Any]:
        for element in held_back(given, ends)():
            if not ends.exists():
                time.sleep(0.05)
            yield element

    return elements


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        toll("worker")


def keeper_of(pid: int) -> int:
    """The process that has forked a worker's process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def kept(before: list[int], after: list[int]) -> list[int]:
    """The workers whose processes have stayed."""
    return [worker for worker, pid in enumerate(after) if pid == before[worker]]


def test_the_other_workers_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However busy the machine is: nobody is taken for stuck.
    monkeypatch.setattr(crews, "_PATIENCE_SECONDS", SECONDS)
    monkeypatch.setattr(crews, "_GATHER_SECONDS", SECONDS)
    given, all_killed = documents(400), tmp_path / "all killed"
    query = (
        index_flow()
        .live(spark)
        .read(documents=fronts.Iterable(paced(given, all_killed)))
        .write(**{name: sinks.Files(tmp_path / name) for name in ("counts", "pairs", "windows")})
        .option("workers", 3)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 150)
        .start()
    )

    def lost(losses: int) -> None:
        until(lambda: len(query.recoveries) >= losses, "the loss to be noticed", 120)

    try:
        first = pids_after(query, 0, 3)
        kill(first[1])
        lost(1)
        second = pids_after(query, 1, 3)
        assert kept(first, second) == [0, 2]
        for losses in (2, 3):  # the same worker, again and again
            kill(second[1])
            lost(losses)
            before, second = second, pids_after(query, losses, 3)
            assert kept(before, second) == [0, 2]
        kill(second[0], second[2])
        lost(4)
        third = pids_after(query, len(query.recoveries), 3)
        assert kept(second, third) == [1]
        kill(third[2])
        lost(len(query.recoveries) + 1)
        kill(third[0])  # while the others are about to begin again: one recovery may do for both
        until(lambda: third[0] not in pids_after(query, 0, 3), "a process in the place of the last")
        fourth = pids_after(query, len(query.recoveries), 3)
        assert kept(third, fourth) == [1]
        assert fourth[1] == second[1] != first[1]  # through three lives
        assert not any(isinstance(loss, JobFailedError) for loss in query.recoveries)

        losses = len(query.recoveries)
        kill(keeper_of(fourth[0]))  # Spark notices this one
        lost(losses + 1)
        fifth = pids_after(query, len(query.recoveries), 3)
        assert kept(fourth, fifth) == []
        until(lambda: not any(map(_is_there, fourth)), "the end of processes without a keeper", 60)
        all_killed.touch()
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    check_files(tmp_path, ef.run(index_flow(), documents=given))


def _is_there(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_survivor_that_hangs_is_replaced_as_well(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in a function that does not return, so it hears nothing."""
    monkeypatch.setattr(crews, "_GATHER_SECONDS", SECONDS)
    hangs, may_hang = tmp_path / "hangs", tmp_path / "may hang"
    flow = ef.Flow("hanging")

    def look(number: int) -> int:
        if number == 40 and not hangs.exists():
            hangs.write_text(str(os.getpid()))
            time.sleep(SECONDS)
        return number

    looked = flow.front("numbers").map(look)
    looked.key_by(lambda number: number % 7).count().map(list).sink("out")
    query = (
        flow.live(spark)
        .read(numbers=fronts.Iterable(held_back(range(100), may_hang, last=60)))
        .write(out=sinks.Files(tmp_path / "out"))
        .option("workers", 2)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .start()
    )
    try:
        before = pids_after(query, 0, 2)
        may_hang.touch()
        until(lambda: hangs.exists() and hangs.read_text(), "a worker to hang")
        stuck = int(hangs.read_text())
        keepers = [keeper_of(pid) for pid in before]
        kill(*(pid for pid in before if pid != stuck))
        until(lambda: query.recoveries, "the loss to be noticed", 120)
        assert query.awaitTermination(SECONDS)
        after = _last_pids(query)
        assert kept(before, after) == []
        assert keepers == [keeper for keeper in keepers if _is_there(keeper)]  # the same Spark job
        assert not any(isinstance(loss, JobFailedError) for loss in query.recoveries)
    finally:
        query.stop()
    assert sinks.read_files(tmp_path / "out") == [
        list(counted) for counted in ef.run(flow, numbers=range(100))["out"]
    ]


def _last_pids(query: LiveQuery) -> Any:
    assert query.lastProgress is not None
    return query.lastProgress["pids"]
