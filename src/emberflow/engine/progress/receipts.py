"""Receipts: what a worker has received for its own barriers, before the acker has heard of it.

What is guaranteed is what the acker guarantees: **nothing below `least` and the minimal time of
'anywhere' can reach the barriers here any more.**

Why: a frame that is bound for a barrier is the last step of its items. The worker that holds the barrier
is the first to know that it was dealt with. To wait for the acker would be a round trip for every
output.

How: with the minimal time the acker sends a worker the entries of its range below that, and how many of
its acks the acker had heard by then. The worker takes off what it has acked since. What is below the
minimal time of 'anywhere' has been sent to where it is bound, and its sender acked that in the message
that finished its cause. So the acker's entries below it are of frames that are on their way here, or
that were dealt with here in acks that the acker has not heard: the same xors, when it hears them, take
them off. A frame whose sender the acker has not heard is at or above that minimal time, where it holds
up nothing: the acker names no entry for it, and the worker makes none.
"""

from __future__ import annotations

from collections import deque

from emberflow.engine.messages import AFTER_ALL, Moment, Progress, Xors


class Receipts:
    """The receipts of one worker.

    >>> from emberflow.engine.messages import Bound
    >>> receipts = Receipts(worker=0)
    >>> receipts.progress(
    ...     Progress((9, 0), ((4, 0),), bound=(Bound(heard=0, entries=(((4, 0), 77),)),))
    ... )
    >>> receipts.least  # a frame of the time 4 is on its way here
    (4, 0)
    >>> receipts.acked({(4, 0): 77})  # and was dealt with, in this worker's first ack
    1
    >>> receipts.least == AFTER_ALL
    True
    """

    __slots__ = ("_acks", "_open", "_unheard", "_worker", "least")

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._acks = 0
        #: Acks of the own range that the acker has not heard, by their number.
        self._unheard: deque[tuple[int, Xors]] = deque()
        #: The acker's entries of the last progress, less what was acked since.
        self._open: Xors = {}
        #: Nothing below this and 'anywhere' is on its way to the barriers here.
        self.least: Moment = AFTER_ALL

    def acked(self, own_range: Xors | None) -> int:
        """Number the next ack, given what it says of the own range."""
        self._acks += 1
        if own_range:
            self._unheard.append((self._acks, own_range))
            if self._open:
                _take_off(self._open, own_range)
                self.least = min(self._open, default=AFTER_ALL)
        return self._acks

    def progress(self, progress: Progress) -> None:
        """Take the entries of the acker, less what it had not heard when it sent them."""
        heard, entries = progress.bound[self._worker] if progress.bound else (0, None)
        unheard = self._unheard
        while unheard and unheard[0][0] <= heard:
            unheard.popleft()
        if entries is None:
            self._open, self.least = {}, progress.ranges[self._worker]
            return
        self._open = dict(entries)
        if self._open:
            for _, xors in unheard:
                _take_off(self._open, xors)
        self.least = min(self._open, default=AFTER_ALL)


def _take_off(table: Xors, xors: Xors) -> None:
    """Xor into the entries that exist: other frames hold up nothing."""
    for moment, xor in xors.items():
        before = table.get(moment)
        if before == xor:
            del table[moment]
        elif before is not None:
            table[moment] = before ^ xor
