"""When something that load calls for is done by itself: not at once, and not again at once.

What is guaranteed, whatever the looks are: between two times that `Steady` says yes there are as many seconds
as it rests, and each time the same was called for at every look of the seconds that it holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import ceil, floor
from typing import NamedTuple

from emberflow.runners.live.balance.plan import Plan

#: A rebalance by itself: when the busiest worker works for so much of its time, a plan would take so much of
#: that from it, and both have been so for some seconds; and then not for a while.
_BUSY = 0.5
_RELIEF = 0.2
REBALANCE_HOLDS_SECONDS = 10.0
RESTS_SECONDS = 30.0
#: More workers, if all work for more than this part of their time on average, and have for some seconds: so
#: many that they would for the part below. Fewer, if those that stay would for less than the last one.
_GROWS_ABOVE = 0.8
_GROWN_TO = 0.6
_SHRUNK_TO = 0.5
GROWTH_HOLDS_SECONDS = 10.0
SHRINKING_HOLDS_SECONDS = 60.0
#: Each time in a row that something could not be done, the rest is twice as long, up to so many times.
_RESTS_MAX = 32


class Elasticity(NamedTuple):
    """What a query does by itself, as its options say."""

    #: Whether slices move from busy workers to idle ones.
    rebalances: bool = False
    #: How many workers it has at least and at the most, if their number follows the load.
    workers: tuple[int, int] | None = None

    @property
    def is_on(self) -> bool:
        return self.rebalances or self.workers is not None


def wanted_workers(busy: Sequence[float], least: int, most: int) -> int:
    """How many workers the load calls for, by the part of its time that each of them works.

    What it calls for is stable: as many workers share the same load, and it calls for no others.

    >>> [wanted_workers([each, each], 1, 8) for each in (0.1, 0.2, 0.4, 0.7, 0.9)]
    [1, 1, 2, 2, 3]
    """
    now, total = len(busy), sum(busy)
    wanted = now
    if total > _GROWS_ABOVE * now:
        wanted = max(now + 1, ceil(total / _GROWN_TO))
    elif total < _SHRUNK_TO * (now - 1):
        wanted = max(1, floor(total / _SHRUNK_TO) + 1)
    return max(least, min(wanted, most))


class Steady:
    """Hysteresis: tells when something has been called for long enough, and the last time is long ago."""

    def __init__(self, holds: float, rests: float) -> None:
        self._holds = holds
        self._rests = rests
        self._wanted: Hashable | None = None
        self._since = 0.0
        self._rests_until: float | None = None

    def look(self, now: float, wanted: Hashable | None) -> bool:
        """Whether to do now what load calls for at this look; None if it calls for nothing.

        >>> steady = Steady(holds=10, rests=30)
        >>> [steady.look(now, "more") for now in (0, 5, 10, 15, 40, 45, 50)]
        [False, False, True, False, False, False, True]
        """
        if self._rests_until is not None and now < self._rests_until:
            return False
        if wanted is None or wanted != self._wanted:
            self._wanted, self._since = wanted, now
        if wanted is None or now - self._since < self._holds:
            return False
        self.rest(now)
        return True

    def rest(self, now: float, *, failures: int = 0) -> None:
        """Something was done that changes the load: begin to look when that is long ago. If it could not be done,
        so many times in a row, later."""
        self._wanted = None
        self._rests_until = now + self._rests * min(2**failures, _RESTS_MAX)


def calls_for_rebalance(plan: Plan) -> bool:
    """Whether a plan is worth it if nobody asked: the busiest worker is busy, and gets much less so."""
    return plan.before >= _BUSY and plan.relief >= _RELIEF
