"""The way of a running version to its last moment T: when its fronts hold, where they halt.

What is guaranteed: **every front halts at T, or it is told to halt where it is.** T is the time that was
asked for; if elements of it have entered already, the fronts go on and the version stays. If no time was
asked for, T is just ahead.

Output stands still from T until the next version runs, so what can be done before is done before:

1. *Saving.* The last cut, at T, is what the next version begins from. Cuts before it, one right behind the
   other, leave little for the last one to save. The first of them may be under way, and may have to save a
   large state: it takes a larger share of the time from then on. The others hold what has changed meanwhile,
   which is less each time. If slices move, the workers that will have them read what is new in each of
   these cuts before the next one is made, so little changes while they read the last of them. They stop
   when a cut has few rows, or when some in a row had hardly less than the one before them: what changes while one is
   made and read. One alone says little, as a machine may be slow for a second.
2. *Holding.* All fronts let in nothing more, and tell what they have let in.
3. *Halting.* They go on to the time behind the greatest of these. So no front has let in anything at or
   above T, and the next version takes over the readers where they are, in memory. A front that does not
   come to that time soon holds all others up: then all halt where they are, T is the least of these
   moments, and the next version reads what is behind T again.

The last two take a message to the workers and back, each.

Where a time was asked for, nobody can put it off. So the fronts are bounded by it first of all, in every life,
and what has to be made for the next version is made meanwhile: who asks before the time is there in time.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from itertools import pairwise

from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.engine.messages import Moment
from emberflow.runners.live.driver.cuts import CutCommitter
from emberflow.values.item import FRONT_MIN

#: Cuts before the last one: as long as they are large and become smaller, and no more than this.
_CUTS_MAX = 16
_ROWS_FEW = 2_000
_SMALLER = 0.8
#: So many cuts one behind the other that are not smaller.
_NOT_SMALLER_MAX = 3
#: Cuts that are read ahead while others may be made meanwhile.
_READS_MAX = 18
#: How long the fronts that are ahead wait for those that are behind.
_HALTING_SECONDS = 0.3


class Order(enum.Enum):
    """What the coordinator does now, once."""

    WAIT = enum.auto()
    CUT = enum.auto()
    HOLD = enum.auto()
    HALT_AT = enum.auto()
    #: Halt wherever you are.
    HALT = enum.auto()
    GO_ON = enum.auto()


class Standstill:
    """How long no element enters while a version takes over, and where that time goes.

    >>> still = Standstill()
    >>> for name, now in [("", 3.0), ("halt", 3.012), ("halt", 3.02), ("last cut", 3.021)]:
    ...     still.ends(name, now)
    >>> str(still)
    '21 ms (halt 12, last cut 9)'
    """

    def __init__(self) -> None:
        #: By part, in order: when it has ended. The first one is what was ahead of the standstill.
        self._ends: dict[str, float] = {}

    def ends(self, part: str, now: float | None = None) -> None:
        """This part has ended, if it has not before; the first one given is what was ahead."""
        self._ends.setdefault(part, time.monotonic() if now is None else now)

    def __str__(self) -> str:
        took = [
            (name, 1_000 * (end - begin))
            for (_, begin), (name, end) in pairwise(self._ends.items())
        ]
        parts = ", ".join(f"{name} {ms:.0f}" for name, ms in took)
        return f"{sum(ms for _, ms in took):.0f} ms ({parts})"


class Takeover:
    """Asked for orders again and again, from when a version is to be followed by another one."""

    def __init__(
        self,
        workers: int,
        at: Moment | None,
        refuse: Callable[[int], None],
        *,
        in_place: bool | None,
        bring_up: Callable[[Manifest | None, bool], None] | None = None,
    ) -> None:
        """``refuse`` is for whoever gives up: it takes the greatest time that has entered.

        ``bring_up`` lets the workers of the next life read what moves, as of a cut, and is told whether that is
        the one before the last; they have when ``is_brought_up``.

        ``at`` is below all elements of its time. ``in_place`` is None as long as the next version is being
        made.
        """
        self.in_place = in_place
        #: Set if the next version cannot be made: the fronts go on.
        self.is_cancelled = False
        self.refuse = refuse
        #: The moment at which the fronts are to halt.
        self.moment = at
        #: Whether all fronts will halt at that moment.
        self.is_bounded = False
        self.is_asked_for = at is not None
        self.is_brought_up = True
        #: The cut that they have read last.
        self._read: Manifest | None = None
        self._bring_up = bring_up
        #: Whether there is to be no other cut before the last one.
        self.is_last_call = False
        self._reads = 0
        self.standstill = Standstill()
        self._workers = workers
        #: By worker: see `note_bounded`.
        self._bounded: dict[int, tuple[int, Moment]] = {}
        self._cuts = 0
        #: The rows of the last of these cuts that had a good deal less, and how many behind it had hardly less
        #: than it: if each has a little less than the one before, they become smaller all the same.
        self._rows_least = math.inf
        self._not_smaller = 0
        self._is_holding = False
        self._is_halting = False
        self._gives_up_at = 0.0

    @property
    def is_halting(self) -> bool:
        """Whether the fronts have been told a moment."""
        return self._is_halting

    @property
    def waits_for_cuts(self) -> bool:
        """Whether no cut is to begin but those that are ordered here."""
        return self.is_last_call or self._reads >= _READS_MAX

    @property
    def reached(self) -> int:
        """The greatest time that has entered anywhere."""
        return max(reached for reached, _ in self._bounded.values())

    @property
    def _has_passed(self) -> bool:
        """Whether the moment at which the fronts were to halt is over: elements of its time have entered,
        or all fronts have promised so much that what was scheduled for it may be final."""
        assert self.moment is not None
        promised = min(promised for _, promised in self._bounded.values())
        is_promised = self.is_asked_for and promised > self.moment
        return self.reached >= self.moment[0] or is_promised

    def bind(self) -> Moment | None:
        """The moment by which the fronts are bounded before they let anything in; None if there is none."""
        if not self.is_asked_for or self.is_cancelled:
            return None
        self._is_halting = True
        return self.moment

    def note_bounded(self, worker: int, reached: int, promised: Moment) -> None:
        """The fronts of a worker hold, or will halt. They have let in elements up to a time, and let in
        nothing more below a moment."""
        self._bounded[worker] = reached, promised

    def order(self, committer: CutCommitter | None, now: float, all_halted: bool) -> Order:
        if not self.is_asked_for and not self.in_place:
            return Order.HALT
        if not self.is_asked_for and not self._is_holding:
            return self._saved(committer, now)
        if not self._is_halting:
            return self._halting(now)
        return self._halted(now, all_halted)

    def _saved(self, committer: CutCommitter | None, now: float) -> Order:
        """Save what there is; then hold."""
        if committer is not None and not committer.is_idle:
            return Order.WAIT
        if not self.is_brought_up:
            return Order.WAIT
        if committer is not None and not self.is_last_call:
            is_read = self._bring_up is None or self._read is committer.last
            if self._cuts and not is_read:
                self._read_ahead(committer.last)
                return Order.WAIT
            if self._wants_cut(committer):
                self._cuts += 1
                return Order.CUT
        if self._bring_up is not None and not self.is_last_call:
            self.is_last_call = True
            last = None if committer is None else committer.last
            is_read = last is not None and self._read is last
            self._read_ahead(last)
            if not is_read:
                return Order.WAIT
            # There is nothing to read: that this was the last cut, they hear before they are to take over.
        self._is_holding = True
        self.standstill.ends("", now)
        return Order.HOLD

    def _read_ahead(self, cut: Manifest | None) -> None:
        self._read = cut
        if self._bring_up is not None:
            self.is_brought_up = False
            self._reads += 1
            self._bring_up(cut, self.is_last_call)

    def _wants_cut(self, committer: CutCommitter) -> bool:
        if self._cuts == 0:
            return True
        rows = committer.last_rows
        if rows < _SMALLER * self._rows_least:
            self._rows_least, self._not_smaller = rows, 0
        else:
            self._not_smaller += 1
        return self._cuts < _CUTS_MAX and rows > _ROWS_FEW and self._not_smaller < _NOT_SMALLER_MAX

    def _halting(self, now: float) -> Order:
        if not self.is_asked_for:
            if len(self._bounded) < self._workers:
                return Order.WAIT
            self.moment = (self.reached + 1, FRONT_MIN)
            self._gives_up_at = now + _HALTING_SECONDS
        self._is_halting = True
        self._bounded = {}
        return Order.HALT_AT

    def _halted(self, now: float, all_halted: bool) -> Order:
        if all_halted:
            self.standstill.ends("", now)
        all_told = len(self._bounded) == self._workers
        if self.is_cancelled:
            return Order.GO_ON if all_told else Order.WAIT
        if not self.is_bounded and all_told:
            assert self.moment is not None
            if self._has_passed:
                return Order.GO_ON
            self.is_bounded = True
        if not self.is_asked_for and now >= self._gives_up_at and not all_halted:
            return Order.HALT
        return Order.WAIT
