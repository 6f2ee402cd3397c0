"""What each guarantee means when workers are killed, judged by the paper's definitions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow import fronts, guarantees, sinks
from emberflow.checkpoint.logs.front_log import read_log
from emberflow.commands.audit import audit
from tests.effort import SOAK
from tests.faults.test_kills import SECONDS, held_back, kill_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

KILLS = 2
NUMBERS = list(range(300 if SOAK else 120))
RATE = len(NUMBERS) / 3


def parted() -> ef.Flow:
    """Without state: an element processed twice looks as if it had entered twice."""
    flow = ef.Flow("parted")
    flow.front("numbers").flat_map(lambda number: [[number, "a"], [number, "b"]]).sink("out")
    return flow


def counted() -> ef.Flow:
    flow = ef.Flow("counted")
    numbers = flow.front("numbers").key_by(lambda number: number % 3)
    numbers.count().map(list).sink("out")
    return flow


def all_killed(folder: Path) -> Path:
    """The file that says so: until it is there, the last number is not given."""
    return folder / "all killed"


def arriving(folder: Path) -> fronts.Iterable:
    return fronts.Iterable(held_back(NUMBERS, all_killed(folder)), rate=RATE, arrival=True)


def killed(
    spark: SparkSession,
    flow: ef.Flow,
    folder: Path,
    front: fronts.Front,
    guarantee: str,
    interval: int = 300,
) -> list[Any]:
    """The content of the sink after a run with kills."""
    dice = Random(4)
    query = (
        flow.live(spark)
        .read(numbers=front)
        .write(out=sinks.Files(folder / "out"))
        .option("workers", 2)
        .option("guarantee", guarantee)
        .option("checkpointLocation", folder / "checkpoint")
        .option("checkpointInterval", interval)
        .option("keepFrontLogs", True)
        .start()
    )
    try:
        kill_workers(query, dice, KILLS)
        all_killed(folder).touch()
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    return sinks.read_files(folder / "out")


def logged(folder: Path, given: Sequence[Any]) -> list[ef.At[Any]]:
    return [
        ef.At(time, given[position])
        for position, time in read_log(folder / "checkpoint", "numbers", 0)
    ]


def test_at_least_once_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    held = killed(spark, parted(), tmp_path, arriving(tmp_path), "at-least-once")
    verdict = guarantees.judge(parted(), {"numbers": NUMBERS}, {"out": held}, KILLS)
    assert verdict.at_least_once, verdict


@pytest.mark.skipif(
    not SOAK, reason="`make soak` has it; every run kills under the other guarantees"
)
def test_at_most_once_repeats_nothing_and_loses_elements_whole(
    spark: SparkSession, tmp_path: Path
) -> None:
    # No cut between the kills: what was lost at the first stays lost when the second begins there.
    held = killed(spark, counted(), tmp_path, arriving(tmp_path), "at-most-once", interval=60_000)
    entered = logged(tmp_path, NUMBERS)
    assert len(entered) == len(NUMBERS)
    verdict = guarantees.judge(counted(), {"numbers": entered}, {"out": held}, KILLS)
    assert verdict.at_most_once, verdict


def test_exactly_once_is_what_an_audit_of_logs_and_files_finds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("".join(f"{number}\n" for number in NUMBERS))
    front = Slowly(tmp_path / "in", until_end=True)
    killed(spark, counted(), tmp_path, front, "exactly-once")
    (tmp_path / "counted_shop.py").write_text(
        "from tests.faults.test_guarantees import counted\nflow = counted()\n"
    )
    monkeypatch.chdir(tmp_path)
    verdict = audit(
        "counted_shop:flow",
        fronts=[f"numbers=log:{tmp_path}/checkpoint?source=files:{tmp_path}/in"],
        sinks=[f"out=files:{tmp_path}/out"],
    )
    assert verdict.guarantee == "exactly-once", verdict


class Slowly(fronts.Files):
    """So that there is something left to kill; the last line only when all are killed."""

    def read(self, partition: int, position: Any) -> Any:
        for element in super().read(partition, position):
            time.sleep(1 / RATE)
            deadline = time.monotonic() + SECONDS
            while (
                element is not None
                and element.payload == NUMBERS[-1]
                and not all_killed(self.folder.parent).exists()
                and time.monotonic() < deadline
            ):
                time.sleep(0.01)
            yield element
