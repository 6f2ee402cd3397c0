"""The way to the moment at which slices move, where cuts go on meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from emberflow.runners.live.driver.handover import Order, Takeover


class Cuts:
    """A committer whose cuts are made at once; each has as many rows as the one before."""

    is_idle = True
    last_rows = 100_000

    def __init__(self) -> None:
        self.last = object()

    def make(self) -> None:
        self.last = object()


@pytest.mark.parametrize("reads_in_time", [0, 3])
def test_cuts_that_come_while_others_are_read_do_not_put_it_off_for_ever(
    reads_in_time: int,
) -> None:
    """Every cut takes longer to read than the query takes to make another one."""
    cuts, read = Cuts(), list[Any]()
    takeover = Takeover(
        2, None, print, in_place=True, bring_up=lambda cut, is_last: read.append((cut, is_last))
    )
    for _ in range(40):
        order = takeover.order(cuts, now=0.0, all_halted=False)  # type: ignore[arg-type]
        if order is Order.HOLD:
            break
        if order is Order.CUT:
            cuts.make()
        if not takeover.is_brought_up:
            if not takeover.waits_for_cuts and len(read) > reads_in_time:
                cuts.make()
            takeover.is_brought_up = True
    assert order is Order.HOLD
    assert read[-1] == (cuts.last, True), (
        "the cut before the last one is read, and no other follows"
    )


def test_cuts_that_each_have_a_little_less_go_on() -> None:
    """On a busy machine they become smaller slowly, and what is left is read while nothing is let in."""
    cuts, made = Cuts(), list[int]()
    takeover = Takeover(2, None, print, in_place=True, bring_up=lambda cut, is_last: None)
    while takeover.order(cuts, now=0.0, all_halted=False) is not Order.HOLD:  # type: ignore[arg-type]
        if not takeover.is_brought_up:
            takeover.is_brought_up = True
        else:
            cuts.make()
            cuts.last_rows = cuts.last_rows * 9 // 10
            made.append(cuts.last_rows)
    assert made[-1] < 25_000, "as many as there may be"


def test_fronts_hold_as_soon_as_the_last_cut_is_read() -> None:
    """That there will be no other one takes a message, and nobody waits until it has come."""
    cuts, read = Cuts(), list[Any]()
    takeover = Takeover(
        2, None, print, in_place=True, bring_up=lambda cut, is_last: read.append((cut, is_last))
    )
    rows = iter((50_000, 60_000, 20_000, 19_000, 25_000, 18_000))
    while (order := takeover.order(cuts, now=0.0, all_halted=False)) is not Order.HOLD:  # type: ignore[arg-type]
        if order is Order.CUT:
            cuts.make()
            cuts.last_rows = next(rows)
        else:
            takeover.is_brought_up = True  # all have read it
    assert not list(rows), "one that is not smaller may be chance, three are not"
    assert read[-2:] == [(cuts.last, False), (cuts.last, True)]
    assert not takeover.is_brought_up
