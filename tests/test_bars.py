"""Long work has a bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import emberflow as ef
from emberflow.commands.bars import Bars, bars
from emberflow.guarantees import judge
from emberflow.work import watched, watching
from tests.effort import SOAK


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
