"""When something that load calls for is done by itself: not at once, and not again at once.

What is guaranteed, whatever the looks are: between two times that `Steady` says yes there are as many seconds
as it rests, and each time the same was called for at every look of the seconds that it holds.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from emberflow.runners.live.balance.plan import Plan

#: A rebalance by itself: when the busiest worker works for so much of its time, a plan would take so much of
#: that from it, and both have been so for some seconds; and then not for a while.
_BUSY = 0.5
_RELIEF = 0.2
REBALANCE_HOLDS_SECONDS = 10.0
RESTS_SECONDS = 30.0


class Elasticity(NamedTuple):
    """What a query does by itself, as its options say."""

    #: Whether slices move from busy workers to idle ones.
    rebalances: bool = False

    @property
    def is_on(self) -> bool:
        return self.rebalances


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

    def rest(self, now: float) -> None:
        """Something was done that changes the load: begin to look when that is long ago."""
        self._wanted, self._rests_until = None, now + self._rests


def calls_for_rebalance(plan: Plan) -> bool:
    """Whether a plan is worth it if nobody asked: the busiest worker is busy, and gets much less so."""
    return plan.before >= _BUSY and plan.relief >= _RELIEF
