"""Long work has a bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

import emberflow as ef
from emberflow.guarantees import judge
from emberflow.runners.bars.stages import StageWatch, stages_told
from emberflow.runners.bars.terminal import Bars, bars
from emberflow.work import watched, watching
from tests.effort import SECONDS, SOAK


def shout() -> ef.Flow:
    flow = ef.Flow("shout")
    flow.front("words").map(str.upper).sink("loud")
    return flow


class Counted:
    def __init__(self) -> None:
        self.done: dict[str, int] = {}
        self.totals: dict[str, int] = {}

    def begin(self, what: str, total: int):  # type: ignore[no-untyped-def]
        self.totals[what] = total

        def one() -> None:
            self.done[what] = self.done.get(what, 0) + 1

        return one


def test_an_audit_tells_how_much_is_left() -> None:
    elements = [(ef.GlobalTime(0, 0), "words", "a"), (ef.GlobalTime(1, 0), "words", "b")]
    counted = Counted()
    with watching(counted):
        assert judge(shout(), elements, {"loud": {0: ["A", "B"]}}).exactly_once
    assert counted.totals == counted.done == {"elements": 2}


@pytest.mark.skipif(not SOAK, reason="make soak runs it: it starts processes")
def test_verify_tells_how_much_is_left() -> None:
    counted = Counted()
    with watching(counted):
        ef.verify(shout(), words=["a"], seeds=4)
    assert counted.totals == counted.done == {"simulations": 4}


def test_batch_tells_how_much_is_left_of_each_stage(spark: SparkSession, tmp_path: Path) -> None:
    """The last task goes on only when the others have been told of."""
    told = tmp_path / "told"

    class Told(Counted):
        def begin(self, what: str, total: int):  # type: ignore[no-untyped-def]
            told.touch()
            return super().begin(what, total)

    def waits(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            deadline = time.monotonic() + SECONDS
            while batch.column(0)[0].as_py() == 5 and not told.exists():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield batch

    counted = Told()
    with stages_told(counted):
        assert spark.range(0, 6, 1, 6).mapInArrow(waits, "id long").count() == 6
    assert 6 in counted.totals.values()


def test_a_stage_that_is_given_up_is_over_and_one_that_is_not_done_is_not_told_of() -> None:
    counted = Counted()
    watch = StageWatch(counted)
    stages = {1: Stage(4, 0), 2: Stage(1, 1), 3: Stage(3, 1)}
    watch.look(Tracker(stages))
    assert (counted.totals, counted.done) == ({"stage 3 of Spark": 3}, {"stage 3 of Spark": 1})
    watch.look(Tracker({1: Stage(4, 0)}))
    assert counted.done == {"stage 3 of Spark": 3}


class Stage(NamedTuple):
    numTasks: int  # noqa: N815 - as Spark's
    numCompletedTasks: int  # noqa: N815


class Tracker(NamedTuple):
    stages: dict[int, Stage]

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return list(self.stages)

    def getStageInfo(self, stage: int) -> Stage:  # noqa: N802
        return self.stages[stage]


def test_a_terminal_sees_a_bar_and_a_pipe_nothing() -> None:
    terminal, pipe = io.StringIO(), io.StringIO()
    for output, is_terminal in ((terminal, True), (pipe, False)):
        console = Console(file=output, force_terminal=is_terminal, width=120)
        with bars(console):
            list(watched("seeds", range(3), 3))
    assert "3/3" in terminal.getvalue()
    assert "seeds" in terminal.getvalue()
    assert pipe.getvalue() == ""


def test_work_outside_of_a_block_is_not_watched() -> None:
    shown = Bars(Console(file=io.StringIO()))
    with shown.shown():
        pass
    numbers = range(3)
    assert watched("seeds", numbers, 3) is numbers
