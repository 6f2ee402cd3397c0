"""Records that wait for earlier ones: by their time, and in the order of their source.

`ByTime` gives them back in the order of their times. Records of later times wait in buckets, each for a
span of time, unsorted. When the first bucket is due, it is sorted and becomes the *near* ones. A record
that belongs among them is inserted there. So each record is put into one list and sorted once, together
with a sixty-fourth of all that wait.

`BySource` tells where a reader would have to go on: ahead of the first record, in the order of the source,
that still waits. It keeps the columns of the batches as they came, and looks at each record once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from emberflow.values.item import TIME_MIN

#: Below all times: nothing is promised.
NOTHING = TIME_MIN - 1
#: How many buckets there are, about; and how many at most, before they become wider.
_BUCKETS = 64
_BUCKETS_MAX = 4 * _BUCKETS
#: How many single records make a batch.
_BATCH = 1_024

#: Time and payload.
Timed: TypeAlias = tuple[int, Any]
_time_of = itemgetter(0)


class Resume(NamedTuple):
    """Where a partition goes on: behind a position, with a promise and the tie of the last element.

    ``tie`` is -1 where no element has the time of the promise. ``late`` is how many late records there
    were before; only the feed knows.
    """

    position: Any
    promised: int = NOTHING
    tie: int = -1
    late: int = 0


#: A `Resume` of its fields, in half the time.
_resume: Callable[[tuple[Any, int, int, int]], Resume] = partial(tuple.__new__, Resume)


class ByTime:
    """What waits, to be taken in the order of times; those of equal times as they came.

    >>> waiting = ByTime(span=100)
    >>> waiting.add_all([(7, "a"), (3, "b"), (90, "c"), (3, "d")])
    >>> waiting.take(below=50, most=10)
    [(3, 'b'), (3, 'd'), (7, 'a')]
    >>> waiting.least(), len(waiting)
    (90, 1)
    """

    def __init__(self, span: int) -> None:
        """``span`` is how far times are apart, if that is known."""
        self._width = max(1, span // _BUCKETS)
        self._buckets: defaultdict[int, list[Timed]] = defaultdict(list)
        #: Sorted; all that is below ``_near_end`` is here.
        self._near: list[Timed] = []
        self._near_end = NOTHING
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add_all(self, records: Sequence[Timed]) -> None:
        buckets, width, near_end = self._buckets, self._width, self._near_end
        for record in records:
            time = record[0]
            if time < near_end:
                near = self._near
                near.insert(bisect_right(near, time, key=_time_of), record)
            else:
                buckets[time // width].append(record)
        self._count += len(records)
        if len(buckets) > _BUCKETS_MAX:
            self._widen()

    def _widen(self) -> None:
        """Times are further apart than was known."""
        keys = sorted(self._buckets)
        factor = max(2, (keys[-1] - keys[0]) // _BUCKETS)
        self._width *= factor
        wider: defaultdict[int, list[Timed]] = defaultdict(list)
        for key in keys:
            wider[key // factor] += self._buckets[key]
        self._buckets = wider

    def least(self) -> int:
        """A time that none of them is below. There are some."""
        if self._near:
            return self._near[0][0]
        return max(self._near_end, min(self._buckets) * self._width)

    def take(self, below: int, most: int) -> list[Timed]:
        """The first ones, below a time, about so many. Those of an equal time leave together."""
        taken: list[Timed] = []
        while len(taken) < most:
            near = self._near
            if not near:
                if not self._buckets or self._near_end >= below or not self._open(below):
                    break
                continue
            end = len(near) if near[-1][0] < below else bisect_left(near, below, key=_time_of)
            left = most - len(taken)
            if end > left:
                end = bisect_right(near, near[left - 1][0], key=_time_of)
            if not end:
                break
            taken += near[:end]
            self._near = near[end:]
        self._count -= len(taken)
        return taken

    def _open(self, below: int) -> bool:
        """Sort the first bucket, if some of it may be below a time."""
        key = min(self._buckets)
        if key * self._width >= below:
            return False
        near = self._buckets.pop(key)
        near.sort(key=_time_of)  # stable: equal times stay as they came
        self._near = near
        self._near_end = (key + 1) * self._width
        return True


class _Batch(NamedTuple):
    """Records in the order of the source, and where a reader goes on that begins with the first."""

    before: Resume
    times: Sequence[int]
    positions: Sequence[Any]
    #: The promise before each, and that behind the last.
    promises: Sequence[int]


class BySource:
    """The records that wait, in the order of their source.

    >>> waiting = BySource(Resume(position=None))
    >>> waiting.add_all(times=[10, 30, 20], positions=[0, 1, 2], promises=[0, 5, 25, 25])
    >>> waiting.pass_below(30)
    >>> waiting.begins_at
    Resume(position=0, promised=5, tie=-1, late=0)
    """

    def __init__(self, begin: Resume) -> None:
        self._batches: deque[_Batch] = deque()
        #: How many of the first batch are known to have left.
        self._gone = 0
        #: The last batch, while single records are added to it.
        self._growing: tuple[list[int], list[Any], list[int]] | None = None
        #: Behind the last record that was added.
        self.last = begin

    def add_all(
        self, times: Sequence[int], positions: Sequence[Any], promises: Sequence[int]
    ) -> None:
        """Add records. ``promises`` has one more: the promise before each, and that behind the last."""
        self._batches.append(_Batch(self.last, times, positions, promises))
        self._growing = None
        self.last = _resume((positions[-1], promises[-1], -1, 0))

    def add(self, time: int, position: Any, promised: int) -> None:
        """Add one record, behind which so much is promised."""
        growing = self._growing
        if growing is None or len(growing[0]) >= _BATCH or growing[2][-1] != self.last.promised:
            growing = self._growing = ([], [], [self.last.promised])
            self._batches.append(_Batch(self.last, *growing))
        growing[0].append(time)
        growing[1].append(position)
        growing[2].append(promised)
        self.last = _resume((position, promised, -1, 0))

    def pass_below(self, bound: int) -> None:
        """All below this time have left."""
        batches, gone = self._batches, self._gone
        while batches:
            times = batches[0].times
            count = len(times)
            while gone < count and times[gone] < bound:
                gone += 1
            if gone < count:
                break
            batches.popleft()
            gone = 0
        self._gone = gone
        if not batches:
            self._growing = None

    @property
    def begins_at(self) -> Resume:
        """Ahead of the first that has not left."""
        if not self._batches:
            return self.last
        first, gone = self._batches[0], self._gone
        if not gone:
            return first.before
        return _resume((first.positions[gone - 1], first.promises[gone], -1, 0))
