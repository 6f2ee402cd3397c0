"""Ticks at rest: those of a cut that wait where the cut has them, until they are due.

What is guaranteed: **nobody can tell which ticks are at rest.** Outputs, cuts, and the ticks that another worker or
version takes over are the same, whichever of the ticks of a cut a restore leaves there.

A tick of a cut is final, and nothing happens to it before its time (`machines.ticking`). So a restore need not make
it. It has to know when the next one is due, and whose they are:

1. *Those at rest are of the worker's own keys*, and all of them are in the cut that was restored. An incremental cut
   needs nothing of them. A cut that holds everything has those that are at rest when its capture begins
   (`KeptTicks`), whatever becomes of them meanwhile.
2. *They leave in the order of time*, all of one global time together. From then on they are among what is pending:
   the frontier is ahead of the minimal time, so the next cut may still have to hold what has run here.
3. *The least global time that is at rest is known*, and stands at the acker like that of all other ticks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Protocol

from emberflow.engine.cuts.cut import KeptTicks, Scheduled
from emberflow.engine.messages import Moment
from emberflow.values.hashing import HashRange

_place_of = attrgetter("place")


class RestingTicks(Protocol):
    """The ticks of one map that are at rest."""

    @property
    def least(self) -> Moment | None:
        """The least global time that one of them has."""

    def take(self, moment: Moment) -> Sequence[Scheduled]:
        """All of this global time, which is the least or below it. They are not here any more."""

    def all(self) -> Iterator[Scheduled]:
        """All that are here now."""

    def kept(self, moment: Moment) -> KeptTicks:
        """All that are here now, from a moment on, whatever is taken while they are read."""

    def keep_only(self, ranges: Sequence[HashRange]) -> None:
        """Forget all whose hashes are in none of these ranges."""


class TicksInMemory:
    """Ticks that rest in memory: for tests and the simulation.

    >>> tick = Scheduled("ticks", 1, (2, 0), (9, -5, 1), ("ada", False, None))
    >>> resting = TicksInMemory([tick])
    >>> resting.least, resting.take((9, -5)) == [tick], resting.least
    ((9, -5), True, None)
    """

    def __init__(self, ticks: Iterable[Scheduled]) -> None:
        self._ticks = sorted(ticks, key=_place_of)

    @property
    def least(self) -> Moment | None:
        if not self._ticks:
            return None
        place = self._ticks[0].place
        return place[0], place[1]

    def take(self, moment: Moment) -> Sequence[Scheduled]:
        taken = list(takewhile(lambda tick: tick.place[:2] == moment, self._ticks))
        self._ticks = self._ticks[len(taken) :]
        return taken

    def all(self) -> Iterator[Scheduled]:
        return iter(self._ticks)

    def kept(self, moment: Moment) -> KeptTicks:
        ticks = self._ticks
        kept = ticks[bisect_left(ticks, moment, key=_place_of) :]
        return KeptTicks(lambda: iter(kept))

    def keep_only(self, ranges: Sequence[HashRange]) -> None:
        self._ticks = [tick for tick in self._ticks if any(tick.key_hash in own for own in ranges)]
