"""The search for a case that shows a mutation. Every run has to find one for every mutation.

A mutation that shows in one case of a hundred would cost a hundred runs each time. So a test run begins
with the case that is known to show it, and tries the others only if that one does not. `make soak`
begins with the first, and also hunts those that show only in rare cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, TypeAlias, TypeVar

import pytest

from tests.effort import SOAK

T = TypeVar("T")

#: Breaks something on purpose, from outside, and may return what a test needs to know of it.
Break: TypeAlias = Callable[[pytest.MonkeyPatch], Any]

#: By mutation: the number of the first case that shows it. Left out: 0 to 4.
KNOWN = {
    "bring no accumulator back": 5,
    "commit without all parts": 5,
    "constraints that nobody looks at": 5,
    "count changes from the last cut begun": 5,
    "forget some that a restore leaves cold": 5,
    "forget what is scheduled": 5,
    "lose the accumulator of what was diverted": 5,
    "replay from one too early": 5,
    "replay from one too late": 5,
    "report before it is durable": 5,
    "report before what was restored is acked": 5,
    "restore only the last increment": 5,
    "restore the wrong cut": 5,
    "save the speculated future": 5,
    "save what is scheduled by its own time alone": 5,
    "yield nothing behind what was diverted": 5,
    "an abort that is not taken back": 6,
    "the world does not stop": 6,
    "forget what trims took for a cut": 7,
    "every worker takes all rows of a backfill": 7,
    "hold back without acking": 7,
    "trim what a cut under way needs": 7,
    "cold keys stay with the old owner": 11,
    "a channel is not blocked": 9,
    "capture nothing that is cold": 9,
    "ticks at rest are in no later cut": 10,
    "ticks at rest stay when slices leave": 10,
    "evict what is not final": 9,
    "hold back without telling anyone": 9,
    "positions are told too late": 9,
    "the check that failed last is told": 9,
    "the error that came last is told": 9,
    "a cut that saves what was aborted": 10,
    "forget the fence of logs": 10,
    "output is released before the commit": 10,
    "restore a torn cut": 10,
    "take a frame off that is of the same time": 11,
    "what follows from a turn has none": 11,
    "what is held is overtaken": 11,
    "leave no trace": 12,
    "end too early": 12,
    "let tombstones overtake in a hold": 12,
    "let due ticks fetch nothing": 14,
    "release one too early": 12,
    "ticks of keys that come are in no later cut": 16,
    "ticks of keys that stay are in no later cut": 16,
    "take what comes behind a gap": 20,
    "evict what no cut has": 22,
    "a read before what was restored": 24,
    "the back-edge log is not closed": 25,
    "believe an answer only once": 115,
    "items overtake a marker": 31,
    "the back-edge log is forgotten": 32,
    "heirs take what is not below t": 44,
    "heirs take state twice": 48,
    "heirs take what is noted nowhere as it is": 48,
    "what a leaving worker has scheduled is forgotten": 49,
    "log no promises": 53,
    "heirs forget cold keys of steps that change": 104,
    "heirs make keys of what they did not map": 119,
    "output that is not stored is forgotten": 107,
    "what changed since it was copied is forgotten": 110,
    "changes are forgotten": 112,
    "cold keys are forgotten": 121,
    "ticks that were at rest are not pending": 122,
    "let the accumulator that was kept overtake": 134,
    "trim by the own range": 147,
    "heirs forget cold keys": 327,
}

#: Mutations whose known case is so far along that to draw the cases before it takes seconds.
RARE = {
    "let the accumulator that was kept overtake",
    "trim by the own range",
}


class Breaks(list[Break]):
    """What a test breaks, one by one. As a decorator it adds a function."""

    def __call__(self, make: Break) -> Break:
        self.append(make)
        return make


def name_of(broken: Break) -> str:
    return broken.__name__.replace("_", " ")


def hunted(mutations: Iterable[T], name: Callable[[T], str]) -> list[Any]:
    """A test's parameters: all mutations in a soak, on every run without the rare ones."""
    return [
        pytest.param(mutation, id=name(mutation))
        for mutation in mutations
        if SOAK or name(mutation) not in RARE
    ]


def caught(mutation: str, cases: Iterable[T], wrong: Callable[[T], str | None], most: int) -> str:
    """What the checkers say about a case that shows a mutation, or that none of so many does."""
    known = 0 if SOAK else KNOWN.get(mutation, 0)
    drawn = iter(islice(cases, most))
    put_off = list(islice(drawn, known))
    for number, case in chain(enumerate(drawn, known), enumerate(put_off)):
        if told := wrong(case):
            print(f"{mutation!r} shows in case {number}")  # noqa: T201
            return told
    return f"nobody noticed in {most} cases"
