"""The acker: which global times are still under way, known from xors alone.

What is guaranteed: **the minimal time never passes an item that is in flight or will ever enter.**

The table maps a global time to the xor of the ids of all frames of which it is the least: each id once
when the sender acks that it sent the frame, and once when the receiver acks that it dealt with it. (The
papers ack every item under its own time. All items of a frame are sent at once and acked at once, so
the entries above its least one could never be the minimum.)

Why it holds: a frame in flight leaves its entry non-zero if the acker has the sender's ack. If it has
not, then it has not the sender's ack of the frame's cause either (that is the same message), so an
entry at or below is non-zero by the same argument one step earlier; or, where the cause was an element,
the report of its front has not come. Ids are 64-bit and never 0; that different ids in flight cancel is
as likely as a bit error.

A front's report promises that it will not emit below a time. The minimal time is the least of all
reports and all non-zero entries. There are several tables: 'anywhere', and one for each worker with
the frames that are bound for its barriers and can go nowhere else. A barrier looks at 'anywhere'
and its own (early key availability), so that one slow range does not hold back the output of all.

So it is with frames that concern the keys of one worker alone (`worker.ranges`): they have tables of their
own for each worker. A barrier looks at those that can reach it, and a node at those of its own worker. The
minimal time of such a table and 'anywhere' together never goes back, because what is in it comes of what was
in it, or of what could go anywhere. If something went elsewhere, it would (`_check_own`).

**Failures** that end the run have tables too, since they come of frames in any table, and hold back all
output: those on their way to worker 0, which takes them, and those that it holds. A failure is certain when
nothing below it is under way but failures that are held. Where keys have their own ranges, output of other
ranges may have passed a failure before it was known. It is right: nothing that follows from the failed item
could have been in it.

All this holds for *turns* too, which are finer (`turns`). An entry is a turn where a worker goes by
turns, and otherwise the global time, which is the least turn of its element.

**Frontiers.** Frames have a *level*. What is on its way to a node of stage s has the level 2s: it may
reach every node of this stage and of later ones. What a node of stage s holds back has the level
2s + 1: it can only reach later stages (`speculation.patience`). The frontier of a stage is the least of
all reports and of the entries of all levels up to 2s: nothing below it will arrive at this stage any
more, by the argument above. The minimal time is the frontier of the last stage with all that is held.
The acker sends frontiers only while something is held: nobody else needs them.

A worker may know more of its own range than the acker: `receipts` says why, and what the acker sends it
for that (``Progress.bound``).

One process has the acker, and gets all acks. Where workers are many, each has an account of what it has
sent instead, and nobody gets all acks (`accounts`).
"""

from __future__ import annotations

from emberflow.engine.messages import (
    BEFORE_ALL,
    Ack,
    Bound,
    Moment,
    Progress,
)
from emberflow.engine.progress.arrangements import Arrangements
from emberflow.engine.progress.minimal_time import (
    LeastTimes,
    Told,
    advanced,
    held_back_by,
    least_promise,
    noted_promise,
)
from emberflow.engine.progress.tables import Tables
from emberflow.values.item import Place


class Acker:
    """Takes acks, gives progress.

    >>> acker = Acker(workers=1, fronts=[0])
    >>> acker.receive(Ack(0, {(1, 0): 77}, {}, {0: (5, 0)})).anywhere  # 77 was sent, is in flight
    (1, 0)
    >>> acker.receive(Ack(0, {(1, 0): 77}, {}, {})).anywhere  # and was dealt with
    (5, 0)
    """

    #: Whether something that has come waits for something else: never.
    waits = False

    def __init__(self, *, workers: int, fronts: list[int]) -> None:
        self.reports: dict[int, Moment] = dict.fromkeys(fronts, BEFORE_ALL)
        self._tables = Tables(workers)
        self.progress = Progress(BEFORE_ALL, (BEFORE_ALL,) * workers)
        self._arrangements = Arrangements(workers)
        self.acks = 0
        #: By worker: how many of its acks the acker has.
        self._heard = [0] * workers

    @property
    def entries(self) -> int:
        """How many global times are not known to be done."""
        return len(self._tables)

    def least_in_flight(self) -> Place | None:
        """The least entry, if nothing but it holds the minimal time back."""
        return held_back_by(self._tables.least(), self.reports)

    def receive(self, ack: Ack) -> Progress:
        self.acks += 1
        self._heard[ack.worker] = ack.number
        if ack.deeper or ack.own:
            self._tables.add(ack.entries)
        else:
            self._tables.add_shallow(ack.anywhere, ack.ranges)
        for front, promise in ack.reports.items():
            noted_promise(self.reports, front, promise)
        if ack.said:
            self._arrangements.hear(ack.worker, ack.said)
        self.progress = advanced(self.progress, self._least_times(), self._told)
        return self.progress

    def settle(self) -> None:
        """What was received counts already (`accounts`)."""

    def _least_times(self) -> LeastTimes:
        tables = self._tables
        own: tuple[tuple[Moment, ...], ...] = ()
        if tables.owns:
            own = tuple([levels.frontiers() for levels in tables.own])
        return LeastTimes(
            tables.anywhere.frontiers(least_promise(self.reports)),
            tuple([table.minimum() for table in tables.ranges]),
            own,
            tables.least_failing(),
            self._arrangements.current,
        )

    def _told(self, anywhere: Moment) -> Told:
        tables = self._tables.ranges
        bound = map(Bound, self._heard, [table.below(anywhere) for table in tables])
        return Told(tuple(bound), {})
