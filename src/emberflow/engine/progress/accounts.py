"""Accounts: the acker, split over the workers by who has sent a frame. No process gets all acks.

What is guaranteed is what the acker guarantees: **the minimal time never passes an item that is in flight or
will ever enter.**

**How.** Each worker has an account of the frames that it has sent or holds: the tables of an acker (`tables`), for
these alone. What it sends it enters itself, at once. Whoever deals with a frame tells its sender (`Dealt`), and
nobody else. What all of them need is the least time of all accounts. So each worker tells the coordinator the least
times of its own, in a `Statement` of a few numbers however many frames there are; the coordinator takes the
least of them and tells all.

**Why that is not enough.** Statements come over different links. Worker 0 sends a frame to worker 1, which deals
with it and sends another one to worker 2. By the next statement of worker 0 the first frame is done. If it comes
before the statement by which worker 1 has the second one in its account, nobody seems to have anything in flight.

**What is missing: the order of causes.** Each worker numbers its acks. A `Dealt` carries the number of the
ack that it belongs to, so what came of the frame is in the sender's account from that number on. A statement tells
the number up to which it goes, and by worker the greatest number it has heard (``heard``). The coordinator takes
statements in as far as they agree: one up to a number that somebody has heard from each worker. What does not
agree yet waits for those that it follows from. Two statements may follow from each other, since each may be
about several acks; so the coordinator looks for the last statements of all workers that agree, and not for one that
can be taken in alone.

**Proof.** The statements that are taken in make a cut through the run, so many acks of each worker, and the cut
has the cause of whatever it has: if it has that a frame was dealt with, then also the ack of whoever did so. So
a frame that was sent within the cut is in its sender's account there, or whoever dealt with it did so within
the cut. And what is sent behind the cut comes of what is in flight at the cut, or of an element that enters
behind it: at or above the least time of the cut in both cases. Of two such cuts the later statements of each worker
make one as well, so there is a last one, and it only grows. So the minimal time does too.

The coordinator has other ways to cause something: it lets fronts begin when all workers have restored, and ends when
all fronts have ended. What a worker states comes ahead of its word for that, on the same link, but may still wait.
So the coordinator does neither while a statement waits (``Accounts.waits``). Whatever else it says follows from a
progress, that is from what it has taken in.

**Barriers.** A frame for a barrier is the last step of its items, and the worker that has the barrier need not
wait until its sender knows and has told. It is told how many frames for barriers each worker had sent it, as of
the cut (``Progress.sent``). Whatever is below the minimal time of what may go anywhere has been sent by then, so
if so many have come, nothing below is on its way there (`receipts`).

**What it costs** is one more hop until the minimal time moves: to the sender of a frame, instead of right to the
coordinator. So few workers have an acker, whose process has time to spare, and many have accounts.
"""

from __future__ import annotations

from collections import deque
from operator import le

from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    Ack,
    Dealt,
    Moment,
    Progress,
    Said,
    Statement,
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
from emberflow.engine.progress.tables import Tables, frontiers
from emberflow.values.item import Place

#: Progress tells no more counts of frames than this. Whoever is not told waits for the minimal time of its barriers.
_COUNTS_SENT_MAX = 4_096


class Account:
    """The account of one worker.

    >>> account = Account(worker=0, workers=2)
    >>> account.receive(Ack(0, {(1, 0): 77}, {}, {0: (5, 0)}))  # it has sent 77
    []
    >>> account.statement().levels
    ((0, (1, 0)),)
    >>> account.hear(
    ...     Dealt(1, 1, Ack(1, {(1, 0): 77}, {}, {}).entries)
    ... )  # and worker 1 has dealt with it
    >>> statement = account.statement()
    >>> statement.levels, statement.heard
    ((), (0, 1))
    """

    def __init__(self, worker: int, workers: int) -> None:
        self._worker = worker
        self._tables = Tables(workers)
        #: How many acks there were, and the last one that somebody else knows of.
        self._acks = 0
        self._known_elsewhere = 0
        self._heard = [0] * workers
        self._reports: dict[int, Moment] = {}
        self._said: dict[int, Said] = {}
        self._sent: dict[int, int] = {}
        self._stated: Statement | None = None

    def receive(self, ack: Ack) -> list[tuple[int, Dealt]]:
        """Enter what an event of this worker has sent and finished. Returns what others have to be told."""
        self._acks += 1
        self._tables.add(ack.entries)
        self._reports.update(ack.reports)
        self._said.update(ack.said)
        if ack.sent:
            self._sent = ack.sent
        if ack.dealt:
            self._known_elsewhere = self._acks
        return [
            (sender, Dealt(self._worker, self._acks, entries))
            for sender, entries in ack.dealt.items()
        ]

    def hear(self, dealt: Dealt) -> None:
        """Another worker has dealt with frames of this one."""
        self._tables.add(dealt.entries)
        # Some are in no hurry, and come later than others.
        self._heard[dealt.worker] = max(self._heard[dealt.worker], dealt.number)

    def statement(self) -> Statement | None:
        """What the coordinator has to know now; None if nothing new matters to it."""
        before, tables = self._stated, self._tables
        now = Statement(
            self._worker,
            self._acks,
            tuple(self._heard),
            self._sent,
            tuple(tables.anywhere.minima()),
            {
                worker: least
                for worker, table in enumerate(tables.ranges)
                if (least := table.minimum()) != AFTER_ALL
            },
            {
                worker: tuple(levels.minima())
                for worker, levels in enumerate(tables.own)
                if len(levels)
            },
            tables.least_failing(),
            self._reports,
            self._said,
            len(tables),
        )
        is_awaited = before is None or self._known_elsewhere > before.number
        if not (is_awaited or self._reports or self._said) and _least(now) == _least(before):
            return None
        self._reports, self._said = {}, {}
        self._stated = now
        return now


def _least(statement: Statement | None) -> tuple[object, ...] | None:
    if statement is None:
        return None
    return statement.levels, statement.ranges, statement.own, statement.failing


class Accounts:
    """The accounts of all workers, as far as statements tell: takes these, gives progress, as an acker does."""

    def __init__(self, *, workers: int, fronts: list[int]) -> None:
        #: What the fronts have promised.
        self.reports: dict[int, Moment] = dict.fromkeys(fronts, BEFORE_ALL)
        self.acks = 0
        self._workers = workers
        self._arrangements = Arrangements(workers)
        nothing = Statement(0, 0, (0,) * workers, {}, (), {}, {}, (AFTER_ALL, AFTER_ALL), {}, {}, 0)
        #: By worker: the last statement that was taken in, and those that wait.
        self._taken = [nothing] * workers
        self._waiting: list[deque[Statement]] = [deque() for _ in range(workers)]
        self._has_come = False
        self._owns = False
        self.progress = Progress(BEFORE_ALL, (BEFORE_ALL,) * workers)

    @property
    def entries(self) -> int:
        """How many global times are not known to be done, in all accounts."""
        return sum(statement.entries for statement in self._taken)

    @property
    def waits(self) -> bool:
        """Whether a statement waits for those that it follows from."""
        return any(self._waiting)

    def least_in_flight(self) -> Place | None:
        """The least entry, if nothing but it holds the minimal time back."""
        minima: list[Place] = [AFTER_ALL]
        for statement in self._taken:
            minima += [least for _, least in statement.levels]
            minima += statement.ranges.values()
            minima += [least for own in statement.own.values() for _, least in own]
            minima += statement.failing
        return held_back_by(min(minima), self.reports)

    def receive(self, statement: Statement) -> None:
        """Note a statement. It counts from the next `settle` on, if it agrees with the others."""
        self.acks += 1
        self._waiting[statement.worker].append(statement)
        self._has_come = True

    def settle(self) -> None:
        """Take in the last statements that agree, and all ahead of them. Others may look at what comes of it from
        other threads."""
        if not self._has_come:
            return
        self._has_come = False
        waiting = {worker: own for worker, own in enumerate(self._waiting) if own}
        #: By worker: how many of those that wait to take, and up to which number that is.
        counts = {worker: len(own) for worker, own in waiting.items()}
        numbers = [statement.number for statement in self._taken]
        for worker, own in waiting.items():
            numbers[worker] = own[-1].number
        agree = False
        while not agree:
            agree = True
            for worker, own in waiting.items():
                while counts[worker] and not _follows(own[counts[worker] - 1], numbers):
                    agree = False  # perhaps with others no more
                    counts[worker] -= 1
                    before = own[counts[worker] - 1] if counts[worker] else self._taken[worker]
                    numbers[worker] = before.number
        for worker, count in counts.items():
            for _ in range(count):
                self._enter(self._waiting[worker].popleft())
        if any(counts.values()):
            self.progress = advanced(self.progress, self._least_times(), self._told)

    def _enter(self, statement: Statement) -> None:
        self._taken[statement.worker] = statement
        self._owns = self._owns or bool(statement.own)
        for front, promise in statement.reports.items():
            noted_promise(self.reports, front, promise)
        if statement.said:
            self._arrangements.hear(statement.worker, statement.said)

    def _least_times(self) -> LeastTimes:
        levels: dict[int, Place] = {}
        ranges: list[Moment] = [AFTER_ALL] * self._workers
        by_range: list[dict[int, Moment]] = [{} for _ in ranges]
        coming = held = AFTER_ALL
        for statement in self._taken:
            for level, least in statement.levels:
                levels[level] = min(least, levels.get(level, AFTER_ALL))
            for worker, moment in statement.ranges.items():
                ranges[worker] = min(moment, ranges[worker])
            for worker, minima in statement.own.items():
                for level, moment in minima:
                    by_range[worker][level] = min(moment, by_range[worker].get(level, AFTER_ALL))
            coming, held = min(coming, statement.failing[0]), min(held, statement.failing[1])
        own: tuple[tuple[Moment, ...], ...] = ()
        if self._owns:
            own = tuple([frontiers(sorted(minima.items())) for minima in by_range])
        return LeastTimes(
            frontiers(sorted(levels.items()), least_promise(self.reports)),
            tuple(ranges),
            own,
            (coming, held),
            self._arrangements.current,
        )

    def _told(self, anywhere: Moment) -> Told:
        sent: dict[int, dict[int, int]] = {}
        for statement in self._taken:
            for receiver, frames in statement.sent.items():
                sent.setdefault(receiver, {})[statement.worker] = frames
        if sum(map(len, sent.values())) > _COUNTS_SENT_MAX:
            sent = {}
        return Told((), sent)


def _follows(statement: Statement, numbers: list[int]) -> bool:
    """Whether all that a statement follows from is there up to these numbers."""
    return all(map(le, statement.heard, numbers))
