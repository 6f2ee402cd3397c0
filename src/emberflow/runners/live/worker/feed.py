"""The feed of one partition of a front: from what the `reader` gives to items of the engine.

Guarantees:

1. *Within the credits.* The worker's loop takes elements from the reader's queue only while the
   front's gate has credits, in elements and in bytes.
2. *Times are given by the rule.* An element without a time gets the time of its arrival. Where elements
   have times of their own, the `Stamper` of the partition gives them their global times, and finds the
   late ones, by the front's rule of event time. Items enter in the order of their global times.
3. *What this life chooses is durable before anybody relies on it.* The feed notes times of arrival,
   and payloads of a source that cannot be read again, in the front's `journal`. Its report goes no
   further than what a restart would give again (`Feed.report`).
4. *What is malformed or late has its place.* An element that the front could not decode ends the query
   once all before it is final, or goes to the errors sink (`malformed`). A late element goes to the late
   sink, or ends the query, or is dropped.

A front may have times of its own and still promise something while it is idle (`Idle`). What comes below
the promise is late. The source does not know the promise, so the feed notes with each record which
promise was in force, and a replay decides alike. A partition that no earlier life has seen *joins*: it
promises all that earlier lives have let out, and the feed notes that as well.

A front that gives times of arrival promises the present while it is idle, since output waits for the promises of
all. It does so at once if somebody waits: a front elsewhere has let in an element or has promised more
(`Progress.wanted`). Otherwise it does so every few milliseconds, so that timers run and a query that has
nothing to do costs next to nothing. A front that is asked promises just what was asked for: if all promised the
present, each promise would ask the others again.

A feed may be told to let in nothing from a time on (`halt_at`). It then halts at that time exactly: the
first record that has it, or a later time, stays in the queue. Another version of the flow may take over
there in the same process, and go on with the same feed (`go_over`).

From here on elements are columns and then items. There is no object for each element.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import le, lt
from typing import Any, Protocol, cast

from emberflow.checkpoint.logs.segments import OwnTime
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.engine.progress.event_time import (
    Attached,
    LateBy,
    Leap,
    Stamper,
    parts_of,
    problem_of,
)
from emberflow.engine.progress.gate import Gate, least_time
from emberflow.engine.progress.waiting import Resume
from emberflow.errors import Diverted, EmberflowError, InputError
from emberflow.fronts.protocol import Batch, Front, Idle, Malformed, front_contract
from emberflow.runners.elements import no_time, with_checked_watermark
from emberflow.runners.live.wire.bell import no_bell
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.malformed import HELD_MAX, Aside
from emberflow.runners.live.worker.reader import Beginning, Behind, Reader, Replayed
from emberflow.values.item import FRONT_MIN, TIE, TIME_MAX, TIME_MIN, FlatItem, Place, is_time
from emberflow.values.times import Unit

#: Bytes that enter at once. A single element may have more.
TAKEN_BYTES_MAX = 4 << 20
#: Bytes of elements that wait for earlier ones. More is an error: the front's disorder is too great.
WAITING_BYTES_MAX = 1 << 30
#: How often an idle front promises the present if nobody waits for it, in the milliseconds of its times.
IDLE_MS = 10
#: Batches whose latency is being measured.
_SAMPLES_MAX = 10_000


class _Gate(Protocol):
    @property
    def reached(self) -> Moment:
        """All that has entered is below this."""


class _Aside(Protocol):
    def take(self) -> Sequence[tuple[Place, Diverted | Exception]]:
        """The malformed records that have entered since the last call."""


class LoopFeed(Protocol):
    """What a loop calls of whatever its elements enter by: a `Feed`, or the feed of a mirror."""

    name: str
    partition: int
    node: int
    late_node: int | None
    index: int
    settled: int

    @property
    def gate(self) -> _Gate: ...
    @property
    def aside(self) -> _Aside: ...
    @property
    def over(self) -> bool: ...
    @property
    def chose(self) -> bool: ...
    @property
    def hurries(self) -> bool: ...
    @property
    def waiting(self) -> int: ...
    @property
    def late(self) -> int: ...
    @property
    def reported(self) -> Moment: ...
    @property
    def is_reported(self) -> bool: ...
    @property
    def owes_report(self) -> bool: ...
    @property
    def lag_ms(self) -> float: ...
    def take(self, most: int) -> list[FlatItem]: ...
    def take_late(self) -> list[FlatItem]: ...
    def report(self) -> dict[int, Moment]: ...
    def ask(self, time: int) -> None: ...
    def minimal_time(self, moment: Moment) -> None: ...
    def halt(self) -> None: ...


class Feed:
    """One partition of a front, as the worker's loop sees it."""

    def __init__(
        self,
        name: str,
        node: int,
        front: Front,
        partition: int,
        index: int,
        credit: int,
        *,
        credit_bytes: int = sys.maxsize,
        step: str = "",
        diverts: bool = False,
        late_node: int | None = None,
        journal: Journal | None = None,
        ring: Callable[[], None] = no_bell,
        unit: Unit | None = None,
    ) -> None:
        """``ring`` wakes the loop when there is something to take.

        ``late_node`` is where late elements enter, if there is a sink for them. ``unit`` is what the flow
        counts in.
        """
        contract = front_contract(front, f"front {name!r}").counted(unit)
        self.name = name
        self.partition = partition
        self.node = node
        self.late_node = late_node
        self.index = index
        self.gate = Gate(front=index, credit=credit, credit_bytes=credit_bytes)
        self.reader = Reader(name, contract, partition, index, journal=journal, ring=ring)
        self.aside = Aside(index, step or f"front {name!r}")
        self._rule = with_checked_watermark(
            contract.event_time, lambda _, error: self.reader.failed(error)
        )
        self._stamper = Stamper(index, self._rule)
        self._diverts = diverts
        #: Late elements that have entered since `take_late`.
        self._late: list[FlatItem] = []
        #: How many late elements are final, and the global times of the others.
        self._late_final = 0
        self._late_open: deque[Place] = deque()
        self.has_begun = False
        #: Position and time of the last element that entered; None before the first.
        self.taken: tuple[Any, int] | None = None
        self._reported: Moment = BEFORE_ALL
        #: Somebody waits for a promise of this time.
        self._wanted = TIME_MIN
        self._journal = journal
        self._replayable = contract.replayable
        #: Whether elements are known to get the time of their arrival.
        self._arrival = contract.arrival is True
        self._promises = contract.promises
        self._increases = contract.increasing
        #: What new elements may not be below. Where times are chosen, earlier lives may have used all
        #: below it; where a front promises, they may have promised it.
        self._floor = TIME_MIN - 1
        #: Below this the cut has all elements, also those that are read again.
        self._begun_at = BEFORE_ALL
        self._waiting_bytes = 0
        #: The position of the last record that was read.
        self._position_read: Any = None
        #: What is malformed behind the last element. It is held once all elements have entered.
        self._behind_all: list[Any] = []
        self._ended = False
        self._halted = False
        #: Nothing of this time or a later one may enter; and whether such an element has come.
        self._bound = TIME_MAX + 1
        self._bound_front = FRONT_MIN
        self._is_held = False
        self._is_paused = False
        #: The error that the query ends with, when all before it is final.
        self._refused: EmberflowError | None = None
        self.settled = 0
        #: Batches that have entered: the last global time, when, and how many elements.
        self._not_final: deque[tuple[Moment, float]] = deque()
        self._not_settled: deque[tuple[Moment, float, int]] = deque()

    def start(self, beginning: Beginning) -> None:
        self.has_begun = True
        self._begun_at = beginning.moment
        self._late_final = beginning.late
        resume = Resume(beginning.position, *(beginning.promised or ()))
        self._stamper = Stamper(self.index, self._rule, resume)
        # Where records wait, those below a cut may come behind others, and are read again to tell what
        # is late. So the cut of a backfill is a promise to the others only: no record is late by it.
        reads_all = beginning.passes_over and self._rule.waits
        if beginning.promised is None and not reads_all:
            if beginning.moment != BEFORE_ALL:
                self._promise_time(least_time(beginning.moment, self.index))
        else:
            # Not the next time: what is left may have the time of the cut, and a greater tie.
            self.gate.promises(beginning.moment)
        if self._journal is not None:
            self._floor = self._journal.floor(self._promises)
            moment, let_out = beginning.moment, beginning.joins_at
            joins = (moment, let_out) != (BEFORE_ALL, BEFORE_ALL) and beginning.promised is None
            if reads_all and let_out < moment:
                joins = False  # nobody but the backfill has let anything out
            if self._journal.is_first and joins:
                self._floor = max(least_time(moment, self.index), let_out[0] + 1)
                self._journal.reserve(self._floor, ahead=0)
                self._promise_time(self._floor)
            if beginning.until is not None:
                self._journal.drop_above(beginning.until)
            self._journal.start()
        resume = self._stamper.begins_at
        self.gate.position = resume if self._rule.waits else resume.position
        self.gate.done = (resume.promised, self.index + resume.tie * TIE)
        self.reader.start(beginning)

    def _promise_time(self, at: int) -> None:
        """Promise all below a time. What comes below it is late."""
        self.gate.idle_until(at)
        self._stamper.raise_to(at)

    def halt(self) -> None:
        """Take nothing more from the source, nor from the queue. Promises that were made stay."""
        self.reader.stop()
        self._halted = True

    def hold(self) -> int:
        """Let in nothing until `halt`, or `halt_at`. Returns the greatest time that has entered."""
        self._is_paused = True
        return self.gate.reached[0]

    def halt_at(self, time: int | None, front: int = FRONT_MIN) -> int:
        """Let in nothing of this time or a later one; None lifts that again.

        It halts at the moment ``(time, front)``, which is below all elements of that time. Returns the
        greatest time that has entered: too late, if it is not below.
        """
        self._bound = TIME_MAX + 1 if time is None else time
        self._bound_front = front
        self._is_held = self._is_paused = False
        return self.gate.reached[0]

    def can_go_over(self, moment: Moment) -> bool:
        """Whether the feed can go on from a moment for another version: nothing behind it has entered,
        the source is still read, and all that earlier lives gave is in the queue."""
        return self.gate.reached <= moment and not self._halted and self.reader.caught_up

    def go_over(self, moment: Moment, node: int, late_node: int | None, step: str) -> None:
        """Go on from a moment for another version of the flow, which has heard nothing from it yet.

        All that has entered is final. The new version has the same fronts, at the same indices.
        """
        self.node, self.late_node = node, late_node
        self.aside.step = step
        self._begun_at = moment
        self._reported = BEFORE_ALL
        self.settled = 0
        self._not_final.clear()
        self._not_settled.clear()
        self.halt_at(None)

    def join(self, seconds: float) -> None:
        self.reader.join(seconds)
        if self._journal is not None:
            self._journal.close(seconds)

    @property
    def over(self) -> bool:
        """Whether it gives nothing more: its source has ended, or the loop has halted it."""
        return self._halted or self._is_held or (self._ended and not self._stamper.waiting)

    @property
    def chose(self) -> bool:
        """Whether only this life knows what it gave: a restart needs a journal to give it again."""
        return self._arrival or self._promises or not self._replayable

    @property
    def hurries(self) -> bool:
        """Whether it promises the present as long as nothing comes, and somebody waits for that."""
        tells_time = self._arrival and not self._ended and not self._halted
        return tells_time and (self._bound <= TIME_MAX or self._reported[0] < self._wanted)

    def ask(self, time: int) -> None:
        """Somebody waits for a promise of this time."""
        if time > self._wanted:
            self._wanted = time

    @property
    def waiting(self) -> int:
        """How many elements wait to enter."""
        if self._halted:
            return 0
        return self._stamper.waiting if self._ended else self.reader.waiting

    @property
    def resume(self) -> Any:
        """Where a life that begins from a cut at the present minimal time goes on.

        A position, and where elements have times of their own a `Resume`.
        """
        position, done = self.gate.position, self.gate.done
        if isinstance(position, Resume):
            return position._replace(late=self._late_final)
        if self._arrival or done is None:
            return position
        return Resume(position, done[0], (done[1] - self.index) // TIE, self._late_final)

    @property
    def late(self) -> int:
        """How many late elements this life and those before it had: diverted, dropped or refused."""
        return self._late_final + len(self._late_open)

    def take(self, most: int) -> list[FlatItem]:
        """Elements that may enter now, as items."""
        if self._is_paused:
            return []
        gate, reader, stamper = self.gate, self.reader, self._stamper
        most = 0 if self._ended or self._halted or self._is_held else min(most, gate.credits)
        bytes_left = min(gate.bytes_left, TAKEN_BYTES_MAX)
        now = _now_ms()
        caught_up = reader.caught_up  # ask first: then all that it is about is in the queue
        items: list[FlatItem] = []
        was_over = self._ended
        while most > 0 and bytes_left > 0 and reader.queue and not self._ended:
            given = reader.take(most, bytes_left)
            bytes_left -= reader.last_bytes
            if given is None:
                self._ended = True
                break
            if given.__class__ is Idle:
                self._promise(given)
                continue
            if given.__class__ is Behind:
                gate.position = given.position  # as if it were final
                continue
            is_replayed = given.__class__ is Replayed
            batch: Batch
            promised: Sequence[int] | None
            batch, promised = given if is_replayed else (given, None)  # type: ignore[misc, assignment]
            if self._promises and not is_replayed:
                stamper.raise_to(self._floor)
            if self._bound <= TIME_MAX and not self._rule.waits:
                below = self._below_bound(batch, now)
                if below < len(batch.payloads):
                    self._is_held = True
                    reader.put_back(cast("Batch | Replayed", given), below)
                    batch, promised = batch.part(0, below), promised and promised[:below]
            most -= max(1, len(batch.payloads))
            if not batch.payloads:
                continue
            self._position_read = batch.positions[-1]
            if batch.times is None and _have_the_place_of_the_next(batch):
                batch = batch._replace(times=[None] * len(batch.payloads))
            if batch.times is None or (is_replayed and promised is None):
                items += self._arrived(batch, now, is_replayed)
            elif self._rule.waits:
                self._wait(batch, promised)
            else:
                items += self._in_order(batch, promised)
            if self._is_held:
                break
        reader.tell_space()
        if self._rule.waits:
            items += self._let_in(was_over)
        if items:
            self._note_taken((gate.reached[0], gate.reached[1] - 1), len(items))
        if self._ended:
            self._end()
        elif self._arrival and caught_up and not reader.queue and not items and not self._halted:
            self._promise_present(now)
        if self._bound <= TIME_MAX:
            self._halt_if_reached()
        return items

    def _promise_present(self, now: int) -> None:
        """Promise what somebody waits for, and from time to time the present.

        A front that is asked promises no more than that. If it promised the present, it would ask others.
        """
        promised = self.gate.promise[0]
        if self._bound > TIME_MAX and now < promised + IDLE_MS:
            if self._wanted <= promised:
                return
            now = min(now, self._wanted)
        self.gate.idle_until(now)
        if self._journal is not None:
            self._journal.reserve(now)

    def _below_bound(self, batch: Batch, now: int) -> int:
        """How many of the first records of a batch get times below the bound.

        In a partition in order, what follows a record of the bound gets no lower time.
        """
        if batch.times is None:
            first = max(now, self.gate.promise[0], self._floor)
            return min(max(0, self._bound - first), len(batch.payloads))
        if self._stamper.promised >= self._bound:
            return 0
        are_beyond = (is_time(at) and at >= self._bound for at in batch.times)
        return next(
            (number for number, beyond in enumerate(are_beyond) if beyond), len(batch.times)
        )

    def _halt_if_reached(self) -> None:
        """Halt if nothing below the bound can come any more, and promise that."""
        stamper, bound = self._stamper, self._bound
        if not self._is_held:
            told = self.gate.promise[0] if self._arrival else stamper.promised
            if self._ended and stamper.waiting:
                told = TIME_MAX  # all that is left waits
            self._is_held = told >= bound and stamper.least_waiting >= bound
        if self._is_held:
            self.gate.promises((bound, self._bound_front))
            if self._journal is not None and self.chose:
                self._journal.reserve(bound, ahead=0)

    def take_late(self) -> list[FlatItem]:
        """The late elements that have entered since the last call, as items."""
        late, self._late = self._late, []
        return late

    def _end(self) -> None:
        """The source has ended, or an element has ended it: enter what is left, and promise all."""
        if self._rule.waits and self._stamper.waiting:
            return  # for credits
        for thing in self._behind_all:
            self.aside.hold(*self._shown(thing))
        self._behind_all = []
        refused, self._refused = self._refused, None
        last = self.gate.reached[0]
        least = last + 1 if last >= TIME_MIN else TIME_MIN - 1
        least = max(least, least_time(self.gate.promise, self.index))
        positions: list[Any] | None = None
        if refused is None:  # a life that begins behind these records does not read them again
            resume = Resume(self._position_read, self._stamper.promised)
            positions = [resume if self._rule.waits else self._position_read]
        for at in self.aside.end(least, refused):
            self.gate.emitted_all([at], positions)
        self.gate.finished()

    def _promise(self, idle: Idle) -> None:
        if not self._promises:
            raise self.reader.failed(
                InputError("it gave an Idle, and does not say promises = True.")
            )
        until, ahead = cast("tuple[int, int]", idle)  # as the contract gives them
        self._stamper.raise_to(until)
        self.gate.promises(self._stamper.promise)
        if self._journal is not None:
            self._journal.reserve(until, ahead)

    # Times of arrival, and times that the journal has of them.

    def _arrived(self, batch: Batch, now: int, is_replayed: bool) -> list[FlatItem]:
        times: Sequence[int]
        if is_replayed:
            assert batch.times is not None
            times = batch.times
        else:
            self._arrival = True
            first = max(now, self.gate.promise[0], self._floor)
            times = range(first, first + len(batch.payloads))
            if self._journal is not None:
                payloads = None if self._replayable else batch.payloads
                self._journal.note(batch.positions, times, payloads)
        places: Iterable[Place] = zip(times, repeat(self.index))
        items = list(zip(places, repeat(0), batch.payloads))
        if Malformed in set(map(type, batch.payloads)):
            items = [item for item in items if not self._is_malformed(item)]
            if self._refused is not None:  # only those before it have entered
                times, batch = times[: len(items)], batch.part(0, len(items))
                if not items:
                    return items
        self._emit(times, None, batch.positions, self.reader.last_bytes)
        self.gate.idle_until(times[-1] + 1)  # times of arrival are unique
        return items

    def _is_malformed(self, item: FlatItem) -> bool:
        payload = item[2]
        if self._refused is not None:
            return True  # nothing behind it enters
        if payload.__class__ is not Malformed:
            return False
        if self._diverts:
            self.aside.enter(item[0], payload.problem, payload.raw)
        else:
            self._refuse(self.reader.failed(InputError(payload.problem)))
        return True

    # Times of their own, in order.

    def _in_order(self, batch: Batch, promised: Sequence[int] | None) -> list[FlatItem]:
        stamper, times = self._stamper, batch.times
        assert times is not None
        are_rising = _are(lt, times)
        if (
            not self.aside.held
            and (are_rising or _are(le, times))
            and times[0] >= stamper.promised
            and times[-1] <= TIME_MAX
            and Malformed not in set(map(type, batch.payloads))
            and (promised is None or all(map(le, promised, times)))
        ):
            self._note(batch, times, promised)
            fronts = stamper.stamp_all(times, are_rising)
            self._emit(times, fronts, batch.positions, self.reader.last_bytes)
            places: Iterable[Place] = zip(times, fronts or repeat(self.index), strict=False)
            return list(zip(places, repeat(0), batch.payloads))
        return self._each_in_order(batch, promised)

    def _each_in_order(self, batch: Batch, promised: Sequence[int] | None) -> list[FlatItem]:
        """The same, where each record has to be looked at."""
        stamper, aside = self._stamper, self.aside
        items: list[FlatItem] = []
        moments: list[Moment] = []
        positions: list[Any] = []
        given: list[int] = []
        for number, (position, payload, at) in enumerate(
            zip(batch.positions, batch.payloads, batch.times or (), strict=True)
        ):
            if promised is not None:
                stamper.raise_to(promised[number])
            problem = self._problem(position, payload, at)
            if problem is not None:
                given.append(stamper.promised)
                if not self._diverts:
                    self._refuse(problem)
                    break
                if payload.__class__ is not Malformed or payload.before_next:
                    aside.hold(*problem)
                    continue
            moment, is_late = stamper.stamp(at)
            if problem is None:
                given.append(moment[0])
            if aside.held:
                aside.enter_with(moment)
            moments.append(moment)
            positions.append(position)
            if problem is not None:
                aside.enter(moment, *problem)
            elif not is_late or self._rule.on_late == "admit":
                items.append((moment, 0, payload))
            elif not self._enter_late(moment, LateBy(at, moment[0], position, payload)):
                break
        self._note(batch, given, promised)
        if moments:
            times, fronts = zip(*moments, strict=True)
            self._emit(times, fronts, positions, self.reader.last_bytes)
        return items

    def _problem(self, position: Any, payload: Any, at: Any) -> Any:
        """What is wrong with a record that has no valid time; None if nothing is.

        An error if it ends the query, else the problem and what to show.
        """
        if payload.__class__ is Malformed:
            if not self._diverts:
                return self.reader.failed(InputError(payload.problem))
            return payload.problem, payload.raw
        if at.__class__ is int and TIME_MIN <= at <= TIME_MAX:
            return None
        if is_time(at):
            return None  # a subclass of int
        problem = no_time(self.name, position, at)
        return (problem, payload) if self._diverts else InputError(problem)

    # Times of their own, out of order.

    def _wait(self, batch: Batch, promised: Sequence[int] | None) -> None:
        stamper, times = self._stamper, batch.times
        assert times is not None
        kinds = set(map(type, batch.payloads))
        if (
            promised is None
            and Malformed not in kinds
            and set(map(type, times)) == {int}
            and min(times) >= TIME_MIN
            and max(times) <= TIME_MAX
        ):
            self._note(batch, [stamper.promised] * len(times), None)
            stamper.add_all(batch.positions, batch.payloads, times)
        else:
            self._wait_each(batch, promised)
        self._waiting_bytes += self.reader.last_bytes
        if self._waiting_bytes > WAITING_BYTES_MAX:
            raise self.reader.failed(
                InputError(
                    f"{self._stamper.waiting:,} elements with {self._waiting_bytes:,} bytes wait for "
                    f"earlier ones, and that is the most. They come from times within "
                    f"disorder={self._rule.disorder}: say less, or use more partitions."
                )
            )

    def _wait_each(self, batch: Batch, promised: Sequence[int] | None) -> None:
        stamper = self._stamper
        before = []
        for number, (position, payload, at) in enumerate(
            zip(batch.positions, batch.payloads, batch.times or (), strict=True)
        ):
            if promised is not None:
                stamper.raise_to(promised[number])
            before.append(stamper.promised)
            problem = self._problem(position, payload, at)
            if problem is None or (self._diverts and _has_its_own_time(payload)):
                stamper.add(position, payload, at)
            elif self._diverts:
                if stamper.attach(problem) > HELD_MAX:
                    raise self.aside.too_many(problem[0])
            else:
                self._refuse(problem)
                break
        self._note(batch, before, promised)

    def _let_in(self, was_over: bool) -> list[FlatItem]:
        """The elements for which nothing has to be waited any more, within the credits."""
        stamper, gate = self._stamper, self.gate
        if self._ended and not was_over:
            self._behind_all = stamper.end()
        items: list[FlatItem] = []
        while (credits := gate.credits) > 0 and not self._halted:
            count = stamper.waiting
            stamped = stamper.take(credits, self._bound)
            if stamped is None:
                break
            size = self._waiting_bytes * len(stamped.times) // count
            self._waiting_bytes -= size
            self._emit(stamped.times, stamped.fronts, stamped.resumes, size)
            entering = stamped.items(self.index)
            if entering[0][0] < self._begun_at:  # read again, and part of the cut
                entering = [item for item in entering if item[0] >= self._begun_at]
                gate.minimal_time(self._begun_at)  # they are final, and give their credits back
            if _SPECIAL & set(map(type, stamped.payloads)):
                entering = self._unwrapped(entering)
            items += entering
            if self._ended and self._refused is not None:
                break
        gate.promises(stamper.promise)
        return items

    def _unwrapped(self, items: list[FlatItem]) -> list[FlatItem]:
        """Without what is late, and what was put aside."""
        entering: list[FlatItem] = []
        for moment, mark, given in items:
            things, late, payload = parts_of(given)
            for thing in things:
                if thing.__class__ is Leap and not self._diverts:
                    self._refuse(InputError(self._shown(thing)[0]))
                    return entering
                self.aside.hold(*self._shown(thing))
            self.aside.enter_with(moment)
            if payload.__class__ is Malformed:
                self.aside.enter(moment, payload.problem, payload.raw)
            elif late is None or self._rule.on_late == "admit":
                entering.append((moment, mark, payload))
            elif not self._enter_late(moment, late):
                break
        return entering

    def _shown(self, thing: Any) -> tuple[str, Any]:
        return problem_of(thing, self.name, self.partition, self._rule.ahead)

    # For both.

    def _enter_late(self, moment: Place, late: LateBy) -> bool:
        """A late element enters as the front says. Returns whether the source goes on."""
        self._late_open.append(moment)  # bounded by the credits
        on_late = self._rule.on_late
        if on_late == "drop":
            return True
        if on_late == "divert" and self.late_node is not None:
            self._late.append((moment, 0, late.record(self.name, self.partition)))
            return True
        told = f"front {self.name!r}: {late.told(self.partition, self._rule.disorder)}"
        if on_late == "divert":
            told += " Late elements are to be diverted: give them a sink, .write(late=...)."
        self._refuse(InputError(told))
        return False

    def _refuse(self, problem: EmberflowError) -> None:
        self._refused = problem
        self._ended = True  # nothing behind it enters

    def _emit(
        self,
        times: Sequence[int],
        fronts: Sequence[int] | None,
        positions: Sequence[Any],
        size: int,
    ) -> None:
        self.gate.emitted_all(times, positions, size, fronts)
        if self._increases and not self._rule.waits:
            self._promise_time(times[-1] + 1)
        last = positions[-1]
        self.taken = (last.position if last.__class__ is Resume else last, times[-1])

    def _note(self, batch: Batch, promised: Sequence[int], replayed: Sequence[int] | None) -> None:
        """Note a promise with each record that was read, if promises may be choices.

        It is one that gives the record its time again: in order, that time itself. Where records wait,
        the promise that was in force when it was read.
        """
        if self._journal is None or replayed is not None:
            return
        if not self._promises and self._replayable:
            return
        count = len(promised)
        payloads = None
        if not self._replayable:
            payloads = list(map(OwnTime, batch.times or (), batch.payloads))[:count]
        self._journal.note(batch.positions[:count], promised, payloads)

    def report(self) -> dict[int, Moment]:
        """A promise that was not reported yet, as far as a restart would keep it."""
        promise = self._bounded_promise()
        if self._journal is not None and self.chose:
            reached = self.gate.reached[0]
            own = (reached + 1, self.index) if self._arrival else self._stamper.own_promise
            promise = self._journal.reportable(promise, own)
        if promise <= self._reported:
            return {}
        self._reported = promise
        return {self.index: promise}

    def _bounded_promise(self) -> Moment:
        """What it can promise. If it is to halt at a moment, no more than that: what was scheduled for a
        later one, also of the same time, is for the version that begins there."""
        promise = self.gate.promise
        return promise if self._bound > TIME_MAX else min(promise, (self._bound, self._bound_front))

    @property
    def reported(self) -> Moment:
        """The last promise that it has reported."""
        return self._reported

    @property
    def is_reported(self) -> bool:
        """Whether it has reported all that it let in. Output of the rest is withheld until it has."""
        reached = self.gate.reached
        return reached[0] == BEFORE_ALL[0] or self._reported > reached

    @property
    def owes_report(self) -> bool:
        """Whether a report follows once the journal has what was promised."""
        return self._bounded_promise() > self._reported

    def minimal_time(self, moment: Moment) -> None:
        """Elements below the minimal time are final, and give their credits back."""
        self.gate.minimal_time(moment)
        while self._late_open and self._late_open[0] < moment:
            self._late_open.popleft()
            self._late_final += 1
        not_final = self._not_final
        while not_final and not_final[0][0] < moment:
            not_final.popleft()

    def settled_below(self, moment: Moment, note: Callable[[tuple[float, int]], None]) -> None:
        """Note the latency of elements whose output is all stored: milliseconds, how many elements."""
        not_settled = self._not_settled
        now = time.monotonic()
        while not_settled and not_settled[0][0] < moment:
            _, taken_at, count = not_settled.popleft()
            self.settled += count
            note(((now - taken_at) * 1_000, count))

    @property
    def lag_ms(self) -> float:
        """How many milliseconds ago the oldest element entered that is not final; 0 if all are."""
        return (time.monotonic() - self._not_final[0][1]) * 1_000 if self._not_final else 0.0

    def _note_taken(self, last: Moment, count: int) -> None:
        now = time.monotonic()
        self._not_final.append((last, now))  # bounded by the credits
        if len(self._not_settled) < _SAMPLES_MAX:
            self._not_settled.append((last, now, count))
        else:  # a sink is stuck: the last sample stands for all that follow
            _, since, before = self._not_settled.pop()
            self._not_settled.append((last, since, before + count))


#: Payloads that the stamper gives and that are no elements of the flow.
_SPECIAL = {Attached, LateBy, Malformed}


def _has_its_own_time(payload: Any) -> bool:
    return payload.__class__ is Malformed and not payload.before_next


def _have_the_place_of_the_next(batch: Batch) -> bool:
    """Whether these have no time because they are malformed, and not because they get one here."""
    return batch.payloads[0].__class__ is Malformed and batch.payloads[0].before_next


def _are(ordered: Callable[[int, int], bool], times: Sequence[int]) -> bool:
    """Whether times are ints, and each is ordered with the next."""
    if times.__class__ is range:
        return ordered(0, times.step)
    return set(map(type, times)) == {int} and all(map(ordered, times, times[1:]))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
