"""What a loop has left of its time, and how much of it goes to work that can wait.

What is guaranteed: **work that can wait takes of what the loop leaves, and little of a loop that leaves nothing.**
A cut is such work, and state that is read before it moves. Output stands still for none of them.

A loop that waits for something to do has time left. Where other processes want the cores as well, all that a loop
does takes longer, so it waits less: the same figure tells what the machine has left. What work that can wait takes
itself counts as left, as far as it is known, or it would hold itself up.

What somebody waits for gets half of the time of a loop at first: mostly that is all it takes, and many such pieces one
after the other may wait for each other. A loop that had nothing left before is behind anyhow, and what somebody
waits for may well be what helps it, such as more workers. Then that gets half of its time until it is done.
"""

from __future__ import annotations

import math
import time

#: What the loop has left is looked at over so long a time, and remembered for so long.
LOOK_SECONDS = 0.05
_MEMORY_SECONDS = 1.0
#: Work that can wait takes so many times as much as the loop has left, since most of it is beside the loop; but
#: no more than this share of its time, and no less if somebody waits for it.
_TIMES = 1.5
MOST = 0.8
LEAST_AWAITED = 0.3
#: No rest is longer.
_REST_SECONDS_MAX = 0.1
#: A loop that has less than this left for some time is behind anyhow.
_BEHIND = 0.02
#: What somebody waits for takes so much of one that was behind before, and of any for so many seconds.
AWAITED_AT_FIRST = 0.5
FIRST_SECONDS = 0.3


class Spare:
    """What one loop has left. The loop tells it; threads beside the loop read it.

    >>> spare = Spare(now=0.0)
    >>> spare.gave(0.03)
    >>> spare.look(0.1)  # of a tenth of a second it has waited for a third
    >>> round(spare.left, 2), round(spare.share(), 2)
    (0.3, 0.45)
    """

    def __init__(self, now: float | None = None) -> None:
        #: The part of its time that the loop had left at the last look, and lately on average.
        self.left = self._lately = 1.0
        self._looked_at = time.monotonic() if now is None else now
        self._given = 0.0

    def gave(self, seconds: float) -> None:
        """The loop has waited so long for something to do, or done what can wait."""
        self._given += seconds

    def look(self, now: float) -> None:
        """Find out what it has left. To be called in each round."""
        seconds = now - self._looked_at
        if seconds >= LOOK_SECONDS:
            self.left = min(1.0, self._given / seconds)
            fades = math.exp(-seconds / _MEMORY_SECONDS)
            self._lately = self._lately * fades + self.left * (1 - fades)
            self._looked_at, self._given = now, 0.0

    @property
    def is_behind(self) -> bool:
        """Whether the loop has had nothing left for some time."""
        return self._lately < _BEHIND

    def share(self) -> float:
        """The share of the loop's time for work that can wait, by what it has left now."""
        return min(MOST, _TIMES * self.left)

    def share_awaited(self, seconds: float, *, behind: bool) -> float:
        """The same if somebody waits for it, and it has gone on for so long. ``behind``: whether the loop was before."""
        is_first = behind or seconds < FIRST_SECONDS
        return max(self.share(), AWAITED_AT_FIRST if is_first else LEAST_AWAITED)


class Rests:
    """Rests of a thread beside the loop, between pieces of work that somebody waits for."""

    def __init__(self, spare: Spare) -> None:
        self._spare = spare
        self._was_behind = spare.is_behind
        self._first = self._begun = time.thread_time()

    def rest(self) -> None:
        """Rest until the thread has had no more than its share since the last rest."""
        now = time.thread_time()
        worked = now - self._begun
        share = self._spare.share_awaited(now - self._first, behind=self._was_behind)
        time.sleep(min(worked * (1 / share - 1), _REST_SECONDS_MAX))
        self._begun = time.thread_time()
