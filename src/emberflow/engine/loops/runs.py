"""Runs: items that wait, in a few sorted lists. `speculation.hold` says what they are for.

`Runs` is the type to use: the compiled one where it could be built (`native/headers/runs.h`), and otherwise
`PlainRuns`. Both give the same. The compiled one refuses items whose global times it has no numbers for, and
then `PlainRuns` holds all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from heapq import merge
from itertools import chain
from operator import itemgetter
from typing import Protocol

from emberflow import native
from emberflow.engine.messages import Moment
from emberflow.values.item import FlatItem, Place

_place_of = itemgetter(0)

#: More runs than this are merged: each costs a bisection whenever something is taken.
RUNS_MAX = 24


class Runs(Protocol):
    """What both kinds of runs have."""

    def add(self, items: list[FlatItem], /) -> bool:
        """Keep items that are in order, none of which is a tombstone; whether it could. Otherwise nothing has
        changed."""

    def take(self, moment: Moment, /) -> list[FlatItem]:
        """All items below a moment, in order. They are kept no longer."""

    def least(self) -> Moment | None:
        """The least global time."""

    def moments_after(self, moment: Moment, most: int, /) -> list[Moment]:
        """The least global times above this one, in order and so many at the most."""

    def items(self) -> list[FlatItem]:
        """All of them, run by run."""


class PlainRuns:
    """The runs of a hold, as lists.

    >>> runs = PlainRuns()
    >>> runs.add([((1, 0), 0, "a"), ((5, 0), 0, "c")]), runs.add([((3, 1), 0, "b")])
    (True, True)
    >>> runs.moments_after((1, 0), 5), [payload for _, _, payload in runs.take((5, 0))]
    ([(3, 1), (5, 0)], ['a', 'b'])
    """

    __slots__ = ("_runs",)

    def __init__(self, items: list[FlatItem] | None = None) -> None:
        """``items`` are in order, and may have tombstones among them."""
        self._runs: list[list[FlatItem]] = [items] if items else []

    def add(self, items: list[FlatItem], /) -> bool:
        if not items or any(map(is_tombstone, items)):
            return not items
        runs = self._runs
        first = items[0][0]
        best: list[FlatItem] | None = None
        for run in runs:
            last = run[-1][0]
            if last <= first and (best is None or last > best[-1][0]):
                best = run
        if best is not None:
            best += items
            return True
        runs.append(list(items))
        if len(runs) > RUNS_MAX:
            runs.sort(key=len)
            half = len(runs) // 2
            merged = list(chain(*runs[:half]))
            merged.sort(key=_place_of)
            runs[:half] = [merged]
        return True

    def take(self, moment: Moment, /) -> list[FlatItem]:
        taken: list[FlatItem] = []
        for run in self._runs:
            if run[0][0] < moment:
                end = bisect_left(run, moment, key=_place_of)
                taken += run[:end]
                del run[:end]
        self._runs = [run for run in self._runs if run]
        taken.sort(key=_place_of)
        return taken

    def least(self) -> Moment | None:
        if not self._runs:
            return None
        place = min([run[0][0] for run in self._runs])
        return place[0], place[1]

    def moments_after(self, moment: Moment, most: int, /) -> list[Moment]:
        behind = (moment[0], moment[1] + 1)
        found: list[Moment] = []
        rest = [_places(run, bisect_left(run, behind, key=_place_of)) for run in self._runs]
        for place in rest[0] if len(rest) == 1 else merge(*rest):
            if not found or place[:2] != found[-1]:
                if len(found) == most:
                    break
                found.append((place[0], place[1]))
        return found

    def items(self) -> list[FlatItem]:
        return list(chain.from_iterable(self._runs))


def _places(run: list[FlatItem], start: int) -> Iterator[Place]:
    """The places from a position on. Runs are long, and mostly few places are asked for."""
    for position in range(start, len(run)):
        yield run[position][0]


def is_tombstone(item: FlatItem) -> bool:
    return bool(item[1] & 1)


def empty_runs() -> Runs:
    """Runs of the quickest kind that there is."""
    runs: Runs = PlainRuns() if native.loops is None else native.loops.Runs()
    return runs


def runs_of(items: list[FlatItem]) -> Runs:
    """One run of items in order."""
    runs = empty_runs()
    return runs if runs.add(items) else PlainRuns(items)
