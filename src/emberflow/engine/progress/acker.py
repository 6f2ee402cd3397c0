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
for that (``Progress.bound``). There is a new progress only where a minimal time has moved.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, TypeVar

from emberflow.engine.messages import (
    AFTER_ALL,
    BEFORE_ALL,
    FAILED,
    FAILING,
    Ack,
    Bound,
    Moment,
    Progress,
)
from emberflow.engine.progress.arrangements import Arrangements
from emberflow.errors import InternalError
from emberflow.values.item import Place

T = TypeVar("T", bound=Place)

#: If a range has more entries, its worker gets only its minimal time.
_ENTRIES_SENT_MAX = 64


class AckTable(Generic[T]):
    """Xors by global time or turn, and the least one whose xor is not zero.

    The heap may have times whose xor is zero by now: they are skipped when they come to its top. It has
    each time once. The end of a window comes and goes with every event of its keys, and would be there
    thousands of times when the window closes.
    """

    __slots__ = ("_heap", "_in_heap", "_xors")

    def __init__(self) -> None:
        self._xors: dict[T, int] = {}
        self._heap: list[T] = []
        self._in_heap: set[T] = set()

    def __len__(self) -> int:
        return len(self._xors)

    def add(self, xors: dict[T, int]) -> None:
        known = self._xors
        for moment, xor in xors.items():
            before = known.get(moment)
            if before is None:
                if xor:
                    known[moment] = xor
                    if moment not in self._in_heap:
                        self._in_heap.add(moment)
                        heappush(self._heap, moment)
            elif before == xor:
                del known[moment]
            else:
                known[moment] = before ^ xor

    def minimum(self) -> T | Moment:
        heap, known = self._heap, self._xors
        while heap and heap[0] not in known:
            self._in_heap.remove(heappop(heap))
        return heap[0] if heap else AFTER_ALL

    def below(self, moment: Moment) -> tuple[tuple[T, int], ...] | None:
        """The entries below a moment, unless there are too many."""
        if self.minimum() >= moment:
            return ()
        if len(self._xors) > _ENTRIES_SENT_MAX:
            return None
        return tuple([entry for entry in self._xors.items() if entry[0] < moment])


class Levels(Generic[T]):
    """Tables by level, in the order of the levels."""

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: dict[int, AckTable[T]] = {0: AckTable[T]()}

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    def add(self, level: int, xors: dict[T, int]) -> None:
        table = self._tables.get(level)
        if table is None:
            table = AckTable[T]()
            self._tables = dict(sorted([*self._tables.items(), (level, table)]))
        table.add(xors)

    def minimum(self) -> T | Moment:
        return min(table.minimum() for table in self._tables.values())

    def frontiers(self, least: Moment = AFTER_ALL) -> tuple[T | Moment, ...]:
        """The least of all and of what is given, as the last one; and ahead of it the frontiers by stage, if
        something is held."""
        of_all: T | Moment = least
        by_stage: list[T | Moment] = []
        is_held = False
        for level, table in self._tables.items():
            while 2 * len(by_stage) < level:  # stages whose levels all come before this one
                by_stage.append(of_all)
            of_all = min(of_all, table.minimum())
            is_held = is_held or bool(level & 1 and len(table))
        return (*by_stage, of_all) if is_held else (of_all,)


class Acker:
    """Takes acks, gives progress.

    >>> acker = Acker(workers=1, fronts=[0])
    >>> acker.receive(Ack(0, {(1, 0): 77}, {}, {0: (5, 0)})).anywhere  # 77 was sent, is in flight
    (1, 0)
    >>> acker.receive(Ack(0, {(1, 0): 77}, {}, {})).anywhere  # and was dealt with
    (5, 0)
    """

    def __init__(self, *, workers: int, fronts: list[int]) -> None:
        self.reports: dict[int, Moment] = dict.fromkeys(fronts, BEFORE_ALL)
        self._levels = Levels[Place]()
        self._ranges = tuple(AckTable[Moment]() for _ in range(workers))
        #: By worker: what concerns its keys alone.
        self._own = tuple(Levels[Moment]() for _ in range(workers))
        self._owns = False
        self._failing = {FAILING: AckTable[Place](), FAILED: AckTable[Place]()}
        self.progress = Progress(BEFORE_ALL, (BEFORE_ALL,) * workers)
        self._arrangements = Arrangements(workers)
        self.acks = 0
        #: By worker: how many of its acks the acker has.
        self._heard = [0] * workers

    @property
    def entries(self) -> int:
        """How many global times are not known to be done."""
        count = len(self._levels) + sum(map(len, self._failing.values()))
        return count + sum(map(len, self._ranges)) + sum(map(len, self._own))

    def least_in_flight(self) -> Place | None:
        """The least entry, if nothing but it holds the minimal time back."""
        minima: list[Place] = [self._levels.minimum()]
        minima += [table.minimum() for table in self._failing.values()]
        minima += [table.minimum() for table in self._own]
        minima += [table.minimum() for table in self._ranges]
        least = min(minima)
        return least if least < min(self.reports.values(), default=AFTER_ALL) else None

    def receive(self, ack: Ack) -> Progress:
        self.acks += 1
        self._heard[ack.worker] = ack.number
        self._levels.add(0, ack.anywhere)
        for level, by_turn in ack.deeper.items():
            if level < 0:
                self._failing[level].add(by_turn)
            else:
                self._levels.add(level, by_turn)
        for worker, xors in ack.ranges.items():
            self._ranges[worker].add(xors)
        for worker, by_level in ack.own.items():
            for level, xors in by_level.items():
                self._own[worker].add(level, xors)
            self._owns = True
        for front, promise in ack.reports.items():
            if promise < self.reports[front]:
                raise InternalError(
                    f"front {front} promised {self.reports[front]} and now {promise}"
                )
            self.reports[front] = promise
        if ack.said:
            self._arrangements.hear(ack.worker, ack.said)
        return self._advance()

    def _advance(self) -> Progress:
        promised = min(self.reports.values(), default=AFTER_ALL)
        turn, frontiers = self._frontiers(promised)
        ranges = tuple([table.minimum() for table in self._ranges])
        before = self.progress
        # A node that holds something does so from a global time on, which is before all its turns.
        is_by_time = bool(frontiers or before.frontiers)
        if turn < (before.anywhere if is_by_time else before.turn):
            raise InternalError(f"the minimal time went back from {before.turn} to {turn}")
        arrangements = self._arrangements.current
        own: tuple[tuple[Moment, ...], ...] = ()
        if self._owns:
            own = tuple([table.frontiers() for table in self._own])
            self._check_own(turn, own)
        coming, held = self._failing[FAILING].minimum(), self._failing[FAILED].minimum()
        failing = (coming[0], coming[1]), (held[0], held[1])
        if (
            turn != before.turn
            or ranges != before.ranges
            or frontiers != before.frontiers
            or arrangements is not before.arrangements
            or own != before.own
            or failing != before.failing
        ):
            anywhere = (turn[0], turn[1])
            bound = map(Bound, self._heard, [table.below(anywhere) for table in self._ranges])
            self.progress = Progress(
                anywhere,
                ranges,
                bound=tuple(bound),
                within=() if turn == anywhere else turn,
                frontiers=frontiers,
                arrangements=arrangements,
                own=own,
                failing=failing,
            )
        return self.progress

    def _check_own(self, turn: Place, own: tuple[tuple[Moment, ...], ...]) -> None:
        """What concerns the keys of a worker alone comes of that, or of what may go anywhere."""
        before = self.progress
        for worker, frontiers in enumerate(own):
            earlier = before.own[worker][-1] if before.own else AFTER_ALL
            least, least_before = min(turn, frontiers[-1]), min(before.anywhere, earlier)
            if least < least_before:
                raise InternalError(
                    f"the minimal time of the keys of worker {worker} went back from {least_before} to "
                    f"{least}"
                )

    def _frontiers(self, promised: Moment) -> tuple[Place, tuple[Place, ...]]:
        """The least turn of all levels, and the frontiers by stage if something is held."""
        frontiers = self._levels.frontiers(promised)
        return frontiers[-1], frontiers if len(frontiers) > 1 else ()
