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
from collections.abc import Iterable
from typing import Protocol

from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Frame, Moment, Progress, Xors


class ReceivedFrames(Protocol):
    """What a worker knows of its own barriers."""

    #: Nothing below this and 'anywhere' is on its way to the barriers here.
    least: Moment

    def came(self, frames: Iterable[Frame]) -> None:
        """These frames are dealt with in the event that is under way."""

    def acked(self, own_range: Xors | None) -> int:
        """Number the next ack, given what it says of the own range."""

    def progress(self, progress: Progress) -> None:
        """Take what a progress tells of this worker's barriers."""


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

    def came(self, frames: Iterable[Frame]) -> None:
        """Their ack says what they were."""

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


class CountedReceipts:
    """The receipts of one worker, by number.

    >>> receipts = CountedReceipts(worker=0)
    >>> receipts.progress(Progress((9, 0), ((4, 0), (4, 0)), sent={0: {1: 2}}))
    >>> receipts.least  # worker 1 has sent two frames
    (4, 0)
    >>> receipts.came([Frame(1, 77, (), None, (4, 0)), Frame(1, 78, (), None, (5, 0))])
    >>> receipts.least == AFTER_ALL
    True
    """

    __slots__ = ("_awaited", "_came", "_otherwise", "_worker", "least")

    def __init__(self, worker: int) -> None:
        self._worker = worker
        #: By sender: how many frames for barriers have come.
        self._came: dict[int, int] = {}
        #: By sender: how many have to come until nothing is on its way; None if that is not known.
        self._awaited: dict[int, int] | None = None
        #: What is certain until then.
        self._otherwise: Moment = BEFORE_ALL
        self.least: Moment = BEFORE_ALL

    def came(self, frames: Iterable[Frame]) -> None:
        came = self._came
        for frame in frames:
            if frame.least_bound is not None:
                came[frame.sender] = came.get(frame.sender, 0) + 1
        self._look()

    def acked(self, own_range: Xors | None) -> int:
        """The account numbers its acks itself."""
        return 0

    def progress(self, progress: Progress) -> None:
        self._otherwise = progress.ranges[self._worker]
        self._awaited = progress.sent.get(self._worker)
        self._look()

    def _look(self) -> None:
        self.least = self._otherwise
        if self._awaited is not None:
            came = self._came
            if all(came.get(sender, 0) >= count for sender, count in self._awaited.items()):
                self.least = AFTER_ALL


def _take_off(table: Xors, xors: Xors) -> None:
    """Xor into the entries that exist: other frames hold up nothing."""
    for moment, xor in xors.items():
        before = table.get(moment)
        if before == xor:
            del table[moment]
        elif before is not None:
            table[moment] = before ^ xor
