"""The gate of a front: credits, and the promise that is reported.

A front may have at most ``credit`` elements at or above the minimal time. When the minimal time
passes them their credits come back. So whatever is in flight, in buckets or at barriers stems from
at most ``credit`` elements of each front: a front far ahead of another waits, with its elements
still in its source, and memory is bounded. It cannot wait for ever: the front that holds the
minimal time back has none of its elements unfinished for long, and its own credits come back as
soon as they are done, since its promise is above them.

Times within a front are strictly increasing; after the element of time t the front promises t + 1,
so output never waits for a next element.
"""

from __future__ import annotations

from collections import deque

from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.errors import InputError


class Gate:
    """Counts what a front has emitted and not yet seen done.

    >>> gate = Gate(front=0, credit=2)
    >>> gate.emitted(3), gate.emitted(4), gate.credits
    (None, None, 0)
    >>> gate.minimal_time((4, 0))
    >>> gate.credits, gate.promise
    (1, (5, 0))
    """

    __slots__ = ("_credit", "_open", "front", "promise")

    def __init__(self, *, front: int, credit: int) -> None:
        if credit < 1:
            raise ValueError(f"a front needs a credit of at least 1, got {credit}")
        self.front = front
        self.promise: Moment = (-(2**63), front)
        self._credit = credit
        self._open: deque[int] = deque()

    @property
    def credits(self) -> int:
        """How many elements may be emitted now."""
        return self._credit - len(self._open)

    def emitted(self, time: int) -> None:
        if (time, self.front) < self.promise:
            raise InputError(
                f"front {self.front} emitted an element of time {time} after it had promised not "
                f"to go below {self.promise[0]}. Times within a front are strictly increasing."
            )
        self._open.append(time)
        self.promise = (time + 1, self.front)

    def emitted_all(self, times: list[int]) -> None:
        """Several at once, which the caller has seen to be in order and not below the promise."""
        self._open.extend(times)
        self.promise = (times[-1] + 1, self.front)

    def idle_until(self, time: int) -> None:
        """The front has nothing now, and will emit nothing below this time."""
        self.promise = max(self.promise, (time, self.front))

    def finished(self) -> None:
        """The front has emitted its last element."""
        self.promise = AFTER_ALL

    def minimal_time(self, moment: Moment) -> None:
        waiting, front = self._open, self.front
        while waiting and (waiting[0], front) < moment:
            waiting.popleft()
