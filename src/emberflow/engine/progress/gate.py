"""The gate of a front: credits, and the promise that the front reports.

What is guaranteed: **a front has at most ``credit`` elements at or above the minimal time**, and where
their sizes are given, no further one once they have ``credit_bytes``. So whatever is in flight, in
buckets or at barriers stems from at most ``credit`` elements of each front: a front far ahead of another
waits, with its elements still in its source, and memory is bounded. When the minimal time passes
elements, their credits come back. A front cannot wait for ever: the one that holds the minimal time back
has none of its elements unfinished for long, and its own credits come back as soon as they are done,
since its promise is above them.

Elements enter in the order of their global times. After an element the front promises all but later
elements of the same time, so output never waits for a next element.

The gate may be given the positions of elements in their source. Then it tells the position of the last
one that is done: a restored run reads on behind it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.errors import InputError
from emberflow.values.item import after


class Gate:
    """Counts the elements that a front has emitted and that are not done yet.

    >>> from emberflow.values.item import TIE
    >>> gate = Gate(front=0, credit=2)
    >>> gate.emitted((3, 0)), gate.emitted((4, 0)), gate.credits
    (None, None, 0)
    >>> gate.minimal_time((4, 0))
    >>> gate.credits, gate.promise == (4, TIE), gate.reached
    (1, True, (4, 1))
    """

    __slots__ = (
        "_credit",
        "_credit_bytes",
        "_open",
        "_open_bytes",
        "_open_count",
        "done",
        "front",
        "position",
        "promise",
        "reached",
    )

    def __init__(self, *, front: int, credit: int, credit_bytes: int = sys.maxsize) -> None:
        if credit < 1:
            raise ValueError(f"a front needs a credit of at least 1, got {credit}")
        self.front = front
        self.promise: Moment = (-(2**63), front)
        #: The least moment above all that was emitted.
        self.reached: Moment = self.promise
        self._credit = credit
        self._credit_bytes = credit_bytes
        #: The position of the last element below the minimal time, if positions are given.
        self.position: Any = None
        #: The global time of that element.
        self.done: Moment | None = None
        #: Times, ties, positions and bytes of elements that are not done yet, in the batches in which
        #: they came. Where all elements are the first of their times, there are no fronts.
        self._open: deque[tuple[Sequence[int], Sequence[int] | None, Sequence[Any] | None, int]] = (
            deque()
        )
        self._open_count = 0
        self._open_bytes = 0

    @property
    def credits(self) -> int:
        """How many elements may be emitted now."""
        if self._open_bytes >= self._credit_bytes:
            return 0
        return self._credit - self._open_count

    @property
    def ahead(self) -> int:
        """How many elements have been emitted and are not below the minimal time."""
        return self._open_count

    @property
    def bytes_left(self) -> int:
        """How many bytes they may have together. A single element may have more."""
        return self._credit_bytes - self._open_bytes

    def emitted(self, moment: Moment) -> None:
        if moment < self.promise:
            raise InputError(
                f"front {self.front} emitted an element at {moment} after it had promised not "
                f"to go below {self.promise}. Elements of a front enter in the order of their times."
            )
        self.emitted_all((moment[0],), fronts=(moment[1],))

    def emitted_all(
        self,
        times: Sequence[int],
        positions: Sequence[Any] | None = None,
        size: int = 0,
        fronts: Sequence[int] | None = None,
    ) -> None:
        """Several at once, of so many bytes in all; ``fronts`` where some have ties.

        The caller has checked that they are in order and not below the promise.
        """
        self._open.append((times, fronts, positions, size))
        self._open_count += len(times)
        self._open_bytes += size
        last, front = times[-1], self.front if fronts is None else fronts[-1]
        self.promise = max(self.promise, after(last, front))
        self.reached = (last, front + 1)

    def idle_until(self, time: int) -> None:
        """The front has nothing now, and will emit nothing below this time."""
        self.promise = max(self.promise, (time, self.front))

    def promises(self, moment: Moment) -> None:
        """The front will emit nothing below this moment."""
        self.promise = max(self.promise, moment)

    def finished(self) -> None:
        """The front has emitted its last element."""
        self.promise = AFTER_ALL

    def minimal_time(self, moment: Moment) -> None:
        waiting = self._open
        least = least_time(moment, self.front)
        while waiting:
            times, fronts, positions, size = waiting[0]
            if fronts is None:
                done = len(times) if times[-1] < least else bisect_left(times, least)
            else:
                done = bisect_left(
                    range(len(times)), moment, key=lambda at: (times[at], fronts[at])
                )
            if not done:
                return
            waiting.popleft()
            size_done = size * done // len(times)
            self._open_count -= done
            self._open_bytes -= size_done
            self.done = (times[done - 1], self.front if fronts is None else fronts[done - 1])
            if positions is not None:
                self.position = positions[done - 1]
            if done < len(times):
                rest = (
                    times[done:],
                    fronts and fronts[done:],
                    positions and positions[done:],
                    size - size_done,
                )
                waiting.appendleft(rest)
                return


def least_time(moment: Moment, front: int) -> int:
    """The least time at which the first element of a partition is not below a moment.

    >>> from emberflow.values.item import TIE
    >>> least_time((7, 1), 1), least_time((7, 1), 0), least_time((7, TIE), 1)
    (7, 8, 8)
    """
    return moment[0] + 1 if front < moment[1] else moment[0]
