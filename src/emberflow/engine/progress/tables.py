"""Tables: xors by global time or turn, by level, by range. What an acker or an account is made of.

An entry is the xor of the ids of all frames of which this time is the least: each id once when its frame is
sent, and once when it is dealt with. So it is zero when nothing of it is in flight. `progress.acker` says
what the tables are for, and `progress.accounts` how they are split over the workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

from emberflow.engine.messages import AFTER_ALL, FAILED, FAILING, Entries, Moment, TurnXors, Xors
from emberflow.values.item import Place

T = TypeVar("T", bound=Place)

_NONE_FAILING = AFTER_ALL, AFTER_ALL

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

    __slots__ = ("_is_shallow", "_shallow", "_tables")

    def __init__(self) -> None:
        #: The table of level 0, and whether it is the only one.
        self._shallow = AckTable[T]()
        self._is_shallow = True
        self._tables: dict[int, AckTable[T]] = {0: self._shallow}

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    def add(self, level: int, xors: dict[T, int]) -> None:
        table = self._tables.get(level)
        if table is None:
            table = AckTable[T]()
            self._tables = dict(sorted([*self._tables.items(), (level, table)]))
            self._is_shallow = False
        table.add(xors)

    def minima(self) -> Iterator[tuple[int, T | Moment]]:
        """The least of each level that has entries, in the order of the levels."""
        for level, table in self._tables.items():
            minimum = table.minimum()
            if len(table):
                yield level, minimum

    def frontiers(self, least: Moment = AFTER_ALL) -> tuple[T | Moment, ...]:
        """The `frontiers` of these levels and of what is given."""
        if self._is_shallow:  # as mostly, and the acker asks for each ack
            return (min(least, self._shallow.minimum()),)
        return frontiers(self.minima(), least)


def least_of(minima: Iterable[tuple[int, T | Moment]]) -> T | Moment:
    return min((least for _, least in minima), default=AFTER_ALL)


def frontiers(
    minima: Iterable[tuple[int, T | Moment]], least: Moment = AFTER_ALL
) -> tuple[T | Moment, ...]:
    """The least of all levels and of what is given, as the last one; and ahead of it the frontiers by stage, if
    something is held. The levels come in their order."""
    of_all: T | Moment = least
    by_stage: list[T | Moment] = []
    is_held = False
    for level, minimum in minima:
        while 2 * len(by_stage) < level:  # stages whose levels all come before this one
            by_stage.append(of_all)
        of_all = min(of_all, minimum)
        is_held = is_held or bool(level & 1)
    return (*by_stage, of_all) if is_held else (of_all,)


class Tables:
    """All tables: of what may go anywhere, by level; of what is bound for the barriers of each worker, and of
    what concerns the keys of each worker alone, by level; and of failures that end the run."""

    __slots__ = ("anywhere", "failing", "own", "owns", "ranges")

    def __init__(self, workers: int) -> None:
        self.anywhere = Levels[Place]()
        self.ranges = tuple(AckTable[Moment]() for _ in range(workers))
        self.own = tuple(Levels[Moment]() for _ in range(workers))
        #: Whether there has been anything that concerns the keys of one worker alone.
        self.owns = False
        self.failing = {FAILING: AckTable[Place](), FAILED: AckTable[Place]()}

    def __len__(self) -> int:
        """How many global times are not known to be done."""
        count = len(self.anywhere) + sum(map(len, self.failing.values()))
        return count + sum(map(len, self.ranges)) + sum(map(len, self.own))

    def add(self, entries: Entries) -> None:
        for level, by_turn in entries.levels.items():
            if level < 0:
                self.failing[level].add(by_turn)
            else:
                self.anywhere.add(level, by_turn)
        for worker, xors in entries.ranges.items():
            self.ranges[worker].add(xors)
        for worker, by_level in entries.own.items():
            for level, xors in by_level.items():
                self.own[worker].add(level, xors)
            self.owns = True

    def add_shallow(self, anywhere: TurnXors, ranges: dict[int, Xors]) -> None:
        """The same, of level 0 and of ranges alone."""
        if anywhere:
            self.anywhere.add(0, anywhere)
        for worker, xors in ranges.items():
            self.ranges[worker].add(xors)

    def least_failing(self) -> tuple[Moment, Moment]:
        """The least global times of failures that end the run: on their way, and held."""
        coming, held = self.failing[FAILING], self.failing[FAILED]
        if not (coming or held):
            return _NONE_FAILING
        first, last = coming.minimum(), held.minimum()
        return (first[0], first[1]), (last[0], last[1])

    def least(self) -> Place:
        """The least entry of all."""
        minima: list[Place] = [least_of(self.anywhere.minima())]
        minima += [table.minimum() for table in self.failing.values()]
        minima += [least_of(levels.minima()) for levels in self.own]
        minima += [table.minimum() for table in self.ranges]
        return min(minima)
