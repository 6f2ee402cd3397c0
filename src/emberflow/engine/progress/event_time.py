"""Event time: from the records of a partition, in the order of their source, to global times in order.

Guarantees:

1. *A function of what the partition holds.* Which record is late, and which global time each has, follows
   from the times of the records before it, and from nothing else. So a replay, a batch run and a run with
   any number of workers decide alike, and nothing has to be logged. One choice remains, the promise of a
   silent partition: `Stamper.raise_to` is told of it, and the caller logs it.
2. *Out in order.* Elements leave in the order of their global times, and never below `Stamper.promise`.
3. *Any cut can be gone on from.* Behind each element that leaves there is a `Resume`: a stamper that
   begins there, reads on behind its position and leaves out what is below the cut gives exactly the rest.

**The rule.** The partition promises the greatest time that it has seen less ``disorder`` (or what
``watermark`` tells of a payload). A record below the promise is *late*: it gets the time of the promise,
for its place in the order, and is told apart from the elements. All others have their own time. Equal
times are told apart by their tie (`values.item`), in the order of the source.

**In order** (no disorder) every record leaves at once, because its global time is the greatest so far.
Otherwise a record waits until the promise has passed its time: then no record can come that belongs before
it. So what leaves is final as far as its own partition is concerned, and the engine has nothing to take
back, however disordered the source is. To wait costs no latency: output of a time cannot leave before all
fronts have promised to be past it.

`waiting` keeps the records that wait.

**Leaps.** A time far in the future would make all later records late. With ``ahead``, a record that is
further than that ahead of the greatest time so far is a leap, and the first record is one as well. A leap
is believed if the record that follows it in the source is not more than ``ahead`` before it. If it is, the
leap is malformed. At the end of the source it is believed: nothing comes that it could make late. A clock
would be simpler to ask, but would answer otherwise on a replay.

**Resume.** The elements that have left are those below the promise at that time, so all of an equal time
leave together. Let p be the first record of the source that has not left. All before p have left, so they
are below what comes next, and have no time in common with it. Hence the position before p and the promise
at p are enough: a stamper that begins there gives the records behind p that have left already, which are
below the cut, and then the others with the same ties as before. In order, the last element itself is the
end of what has left, and the resume tells its time and tie.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, repeat
from operator import lt, sub
from typing import Any, NamedTuple, cast

from emberflow.engine.messages import Moment
from emberflow.engine.progress.waiting import NOTHING, BySource, ByTime, Resume
from emberflow.errors import Late
from emberflow.values.event_time import IN_ORDER, EventTime
from emberflow.values.item import TIE, TIME_MAX, FlatItem, after


class LateBy(NamedTuple):
    """A late record among the payloads of a stamper: its own time, position, and payload."""

    time: int
    promised: int
    position: Any
    payload: Any

    def record(self, front: str, partition: int) -> Late:
        by = self.promised - self.time
        return Late(self.time, front, partition, self.position, by, self.payload)

    def told(self, partition: int, disorder: int) -> str:
        """The error of a late record."""
        return (
            f"the element at position {self.position!r} is late: its time is {self.time}, and "
            f"partition {partition} has promised {self.promised} or later (disorder={disorder}). Say "
            f"how far elements may be out of order with disorder=, or what to do with late ones with "
            f"on_late=."
        )


class Attached(NamedTuple):
    """A payload, and what has no time of its own and has its place just ahead of it."""

    things: tuple[Any, ...]
    payload: Any


class Leap(NamedTuple):
    """A record with a time that was not believed. It is attached to the next one."""

    time: int
    seen: int | None
    position: Any
    payload: Any

    def told(self, front: str, partition: int, ahead: int | None) -> str:
        """The error of a leap."""
        since = "it is the first" if self.seen is None else f"the greatest before it is {self.seen}"
        return (
            f"front {front!r} partition {partition} has a record of time {self.time} at position "
            f"{self.position!r}: {since}, and the record behind it is more than ahead={ahead} before it. "
            f"So its time is not believed."
        )


def parts_of(payload: Any) -> tuple[tuple[Any, ...], LateBy | None, Any]:
    """Take apart what a stamper gives: the things ahead of a record, the record if late, and its payload.

    >>> parts_of(Attached(("malformed",), LateBy(3, 7, 12, "words")))
    (('malformed',), LateBy(time=3, promised=7, position=12, payload='words'), 'words')
    """
    things: tuple[Any, ...] = ()
    if payload.__class__ is Attached:
        things, payload = payload
    if payload.__class__ is LateBy:
        return things, payload, payload.payload
    return things, None, payload


def problem_of(thing: Any, front: str, partition: int, ahead: int | None) -> tuple[str, Any]:
    """What is wrong with a thing that was attached, and what to show of it.

    It is a `Leap`, or the pair itself.
    """
    if isinstance(thing, Leap):
        return thing.told(front, partition, ahead), thing.payload
    problem, payload = thing
    return problem, payload


class Stamped(NamedTuple):
    """Elements in the order of their global times, as columns.

    ``fronts`` is None where all have the plain index. Late ones have a `LateBy` for a payload.
    """

    times: Sequence[int]
    fronts: Sequence[int] | None
    payloads: Sequence[Any]
    resumes: Sequence[Resume]

    def items(self, index: int) -> list[FlatItem]:
        fronts = repeat(index) if self.fronts is None else self.fronts
        return list(
            zip(zip(self.times, fronts, strict=False), repeat(0), self.payloads, strict=False)
        )


class Stamper:
    """One partition of a front.

    >>> stamper = Stamper(0, EventTime(disorder=5))
    >>> for position, time in enumerate([1, 12, 9, 3, 9, 25]):
    ...     stamper.add(position, f"record {position}", time)
    >>> stamped = stamper.take()
    >>> list(zip(stamped.times, [front // TIE for front in stamped.fronts]))
    [(1, 0), (7, 0), (9, 0), (9, 1), (12, 0)]
    >>> stamped.payloads[1]
    LateBy(time=3, promised=7, position=3, payload='record 3')
    >>> stamper.promise
    (20, 0)
    """

    def __init__(
        self, index: int, rule: EventTime = IN_ORDER, resume: Resume | None = None
    ) -> None:
        resume = resume or Resume(None)
        self._index = index
        self._rule = rule
        self._waits = rule.waits
        self._disorder = rule.disorder
        #: Of numbers: whoever makes a stamper has it counted (`runners.elements`).
        self._watermark = cast("Callable[[Any], int | None] | None", rule.watermark)
        #: Nothing below this comes any more.
        self.promised = resume.promised
        #: What the elements alone have promised, without `raise_to`.
        self._own_promise = resume.promised
        self._tie = resume.tie
        self._by_source = BySource(resume)
        self._by_time = ByTime(rule.disorder)
        #: What is ahead of the next record.
        self._attached: list[Any] = []
        #: A leap that waits for the next record: position, payload, time, and what is ahead of it.
        self._leap: tuple[Any, Any, int, list[Any]] | None = None
        self._has_ended = False

    @property
    def begins_at(self) -> Resume:
        """Where a stamper begins that goes on from what has left: ahead of the first that waits."""
        return self._by_source.begins_at

    @property
    def waiting(self) -> int:
        """How many records wait."""
        return len(self._by_time)

    @property
    def least_waiting(self) -> int:
        """A time that no record that waits is below."""
        return self._by_time.least() if self._by_time else TIME_MAX

    @property
    def promise(self) -> Moment:
        """No element that leaves from now on is below this."""
        return self._moment(self.promised)

    @property
    def own_promise(self) -> Moment:
        """As much of the promise as the elements make: a replay of them makes it again."""
        return self._moment(self._own_promise)

    def _moment(self, promised: int) -> Moment:
        if self._by_time:
            promised = min(promised, self._by_time.least())  # it could have left, and was not taken
        if self._waits or self._tie < 0 or promised != self.promised:
            return (promised, self._index)
        return after(promised, self._index + self._tie * TIE)

    def raise_to(self, promised: int) -> None:
        """The partition promises more than its elements do: it is silent."""
        if promised > self.promised:
            self.promised = min(promised, TIME_MAX)
            self._tie = -1
            by_source = self._by_source
            by_source.last = Resume(by_source.last.position, self.promised)

    def stamp(self, time: int) -> tuple[Moment, bool]:
        """The global time of the next record of a partition in order, and whether it is late."""
        if time > self.promised:
            self.promised, self._tie = time, 0
        else:
            self._tie += 1
        self._own_promise = self.promised
        return (self.promised, self._index + self._tie * TIE), time < self.promised

    def stamp_all(self, times: Sequence[int], are_rising: bool) -> list[int] | None:
        """The fronts of the next records of a partition in order; None if all have the plain index.

        Their times do not decrease, and are not below the promise.
        """
        index, last, tie = self._index, self.promised, self._tie
        if are_rising and times[0] > last:
            self.promised = self._own_promise = times[-1]
            self._tie = 0
            return None
        fronts = []
        front = index + tie * TIE
        for time in times:
            if time == last:
                front += TIE
            else:
                last, front = time, index
            fronts.append(front)
        self.promised = self._own_promise = last
        self._tie = (front - index) // TIE
        return fronts

    def attach(self, thing: Any) -> int:
        """Put something without a time ahead of the next record. Returns how many wait for it."""
        self._attached.append(thing)
        return len(self._attached)

    def add(self, position: Any, payload: Any, time: int) -> None:
        """Add the next record of a partition whose records wait."""
        if self._rule.ahead is None:
            self._add(position, payload, time)
            return
        if self._leap is not None:
            is_believed = time >= self._leap[2] - self._rule.ahead - self._disorder
            self._decide_on_leap(is_believed)
        if self.promised == NOTHING or time > self.promised + self._disorder + self._rule.ahead:
            self._leap = (position, payload, time, self._attached)
            self._attached = []
        else:
            self._add(position, payload, time)

    def _decide_on_leap(self, is_believed: bool) -> None:
        assert self._leap is not None
        (position, payload, time, ahead), self._leap = self._leap, None
        behind, self._attached = self._attached, ahead
        if is_believed:
            self._add(position, payload, time)
        else:
            seen = None if self.promised == NOTHING else self.promised + self._disorder
            self._attached.append(Leap(time, seen, position, payload))
        self._attached += behind

    def add_all(
        self, positions: Sequence[Any], payloads: Sequence[Any], times: Sequence[int]
    ) -> None:
        """Add the next records. The hot path: those of which none is late, and none may be a leap."""
        if self._rule.ahead is not None or self._attached:
            for record in zip(positions, payloads, times, strict=True):
                self.add(*record)
            return
        if not times:
            return
        told: Iterable[int]
        if self._watermark is None:
            told = map(sub, times, repeat(self._disorder))
        else:
            told = [NOTHING if at is None else at for at in map(self._watermark, payloads)]
        promises = list(accumulate(told, max, initial=self.promised))
        if any(map(lt, times, promises)):
            for number, record in enumerate(zip(positions, payloads, times, strict=True)):
                self._add(*record, promises[number + 1])
            return
        self._by_source.add_all(times, positions, promises)
        self._by_time.add_all(list(zip(times, payloads, strict=True)))
        self.promised = self._own_promise = promises[-1]

    def _add(self, position: Any, payload: Any, time: int, behind: int | None = None) -> None:
        """Add a record, behind which so much is promised, if that is known."""
        promised = self.promised
        if behind is None:
            told = time - self._disorder if self._watermark is None else self._watermark(payload)
            behind = promised if told is None else max(told, promised)
        if time < promised:
            payload = LateBy(time, promised, position, payload)
            time = promised
        if self._attached:
            payload = Attached(tuple(self._attached), payload)
            self._attached = []
        self._by_source.add(time, position, behind)
        self._by_time.add_all(((time, payload),))
        self.promised = self._own_promise = behind

    def end(self) -> list[Any]:
        """The source has ended: all that waits may leave. Returns what waits for a next record."""
        if self._leap is not None:
            self._decide_on_leap(is_believed=True)
        self._has_ended = True
        left, self._attached = self._attached, []
        return left

    def take(self, most: int = sys.maxsize, below: int = TIME_MAX + 1) -> Stamped | None:
        """The elements that may leave now, about so many, and below a time; None if there are none.

        Elements of equal times leave together.
        """
        bound = min(below, TIME_MAX + 1 if self._has_ended else self.promised)
        leaving = self._by_time.take(bound, most)
        if not leaving:
            return None
        times, payloads = zip(*leaving, strict=True)
        by_source = self._by_source
        resumes = [by_source.begins_at] * len(times)
        by_source.pass_below(times[-1] + 1)
        resumes[-1] = by_source.begins_at
        return Stamped(times, self._fronts(times), payloads, resumes)

    def _fronts(self, times: Sequence[int]) -> list[int] | None:
        """The fronts of times that do not decrease, and are all that there are of each."""
        counts = Counter(times)
        if len(counts) == len(times):
            return None
        index = self._index
        ties = range(index, index + max(counts.values()) * TIE, TIE)
        fronts: list[int] = []
        for count in counts.values():
            fronts += ties[:count]
        return fronts
