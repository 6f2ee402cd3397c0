"""Feeding: a thread that reads a partition of a front, and the gate through which it enters.

The thread puts what it reads into a queue with a bound and does nothing else; the worker's loop
takes it out when the gate has credits. So a slow source never holds up the loop, and a slow loop
holds up the source. The queue is a deque, whose ends are safe to use from two threads: a lock for
each element would cost more than all the rest of its way. From here on elements are columns, and
then items; there is no object for each.

**Going on.** A feed is told where to begin: behind a position, at a global time. What earlier lives
of the query chose for this front (times of arrival; all of it, if the source cannot be read again)
is in its `journal` and comes first, under the times it had. What is chosen now is noted there, and
the report is held back until it is durable (`report`).

A front may have times of its own and still promise something while it is idle (`Idle`). Then its
elements are noted like those that arrive, and one whose time is below what was promised, or not above
that of the element before it, gets the least that is free. A partition that no earlier life has seen
*joins*: its elements get times behind all that was let out before, and that, too, is noted.

A cut that a backfill made may not know where a front goes on (``Beginning.passes_over``). Then the
source is read from its beginning, and elements with times below the cut are passed over, up to the
first that is not: the backfill had them. Of those only the position of the last one is handed over.

What a front could not make an element of is seen to here, in its turn: it ends the query, once all
before it is final, or is put aside (`malformed`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, repeat, takewhile
from operator import lt
from typing import Any, NamedTuple, TypeAlias

from emberflow.checkpoint.logs.segments import LogEntry
from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.engine.progress.gate import Gate, least_time
from emberflow.errors import EmberflowError, InputError
from emberflow.fronts.protocol import Batch, Element, Front, FrontGrewError, Idle, Malformed
from emberflow.runners.live.wire.bell import no_bell
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.malformed import Aside
from emberflow.values.item import TIME_MAX, TIME_MIN, FlatItem

#: Elements between the thread and the loop.
QUEUE_MAX = 4_096
_PUT_SECONDS = 0.1
#: Batches whose latency is being measured.
_SAMPLES_MAX = 10_000

#: Elements of a journal given again at once.
_REPLAYED_AT_ONCE = 1_000
#: Of a batch that is longer so many are put into the queue at once: else each take would copy all that
#: it leaves there, and a front that has fallen behind would fall behind further.
_PIECE_MAX = 1_000


class Replayed(NamedTuple):
    """What the journal has already: times are given again, and nothing is noted."""

    batch: Batch


class Behind(NamedTuple):
    """Elements that were passed over: where the last of them is."""

    position: Any


#: What the thread hands over; None when the source has ended.
Read: TypeAlias = Element | Batch | Replayed | Behind | Idle | BaseException | None


class Beginning(NamedTuple):
    """Where a feed begins: behind a position, with times not below a moment.

    What the journal has above ``until`` is dropped for good (at most once). A partition that
    earlier lives did not know gives nothing up to ``joins_at``: sinks have output of that time.
    ``passes_over`` says that the source has elements below the moment, and they are not to be given.
    """

    position: Any = None
    moment: Moment = BEFORE_ALL
    until: Moment | None = None
    joins_at: Moment = BEFORE_ALL
    passes_over: bool = False


class FrontFailedError(EmberflowError):
    """A front raised while it was read; the original exception is the ``__cause__``."""


class ReplayError(EmberflowError):
    """A source did not give again what it gave before."""


class Feed:
    """One partition of a front."""

    def __init__(
        self,
        name: str,
        node: int,
        front: Front,
        partition: int,
        index: int,
        credit: int,
        *,
        step: str = "",
        diverts: bool = False,
        journal: Journal | None = None,
        ring: Callable[[], None] = no_bell,
    ) -> None:
        """``ring`` tells the loop that there is something to take."""
        self.name = name
        self.partition = partition
        self.node = node
        self.index = index
        self.gate = Gate(front=index, credit=credit)
        self.aside = Aside(index, step or f"front {name!r}")
        self._diverts = diverts
        #: Position and time of the last element that was taken in; None before the first.
        self.taken: tuple[Any, int] | None = None
        self._reported: Moment = BEFORE_ALL
        self._journal = journal
        self._replayable = getattr(front, "replayable", True)
        self._beginning = Beginning()
        self._ended = False
        self._halted = False
        #: What the query ends with, when all before it is final.
        self._refused: EmberflowError | None = None
        self._front = front
        self._arrival = bool(getattr(front, "arrival", False))
        self._promises = bool(getattr(front, "promises", False))
        self._least_of_arrival = TIME_MIN
        #: Whether all that the journal has is in the queue; until then the present is no promise.
        self._caught_up = journal is None
        self._queue: deque[Read] = deque()
        #: Elements put by the thread and taken by the loop: each counter has one who writes it.
        self._put_count = 0
        self._taken_count = 0
        self._space = threading.Event()
        self._ring = ring
        self._stop = threading.Event()
        self.settled = 0
        #: Batches that were taken in: the last global time, when, and how many elements.
        self._not_final: deque[tuple[Moment, float]] = deque()
        self._not_settled: deque[tuple[Moment, float, int]] = deque()
        self._thread = threading.Thread(
            target=self._read, name=f"emberflow front {name} {partition}", daemon=True
        )

    def start(self, beginning: Beginning) -> None:
        self._beginning = beginning
        self.gate.position = beginning.position
        if beginning.moment != BEFORE_ALL:
            self.gate.idle_until(least_time(beginning.moment, self.index))
        if self._journal is not None:
            if self._journal.least is not None:
                self._least_of_arrival = self._journal.least
            moment, let_out = beginning.moment, beginning.joins_at
            if self._journal.is_first and (moment, let_out) != (BEFORE_ALL, BEFORE_ALL):
                self._least_of_arrival = max(least_time(moment, self.index), let_out[0] + 1)
                self._journal.reserve(self._least_of_arrival, ahead=0)
                self.gate.idle_until(self._least_of_arrival)
            if beginning.until is not None:
                self._journal.drop_above(beginning.until)
            self._journal.start()
        self._thread.start()

    def halt(self) -> None:
        """Take nothing more from the source, nor from the queue. What was promised stays."""
        self._stop.set()
        self._halted = True

    def join(self, seconds: float) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._journal is not None:
            self._journal.close(seconds)

    @property
    def over(self) -> bool:
        """Whether it gives nothing more: its source has ended, or it was told to halt."""
        return self._ended or self._halted

    @property
    def chose(self) -> bool:
        """Whether only this life knows what it gave: a restart needs a journal to give it again."""
        return self._arrival or self._promises or not self._replayable

    @property
    def waiting(self) -> int:
        return 0 if self.over else self._put_count - self._taken_count

    def _read(self) -> None:
        last: BaseException | None = None
        try:
            for given in self._given():
                if self._stop.is_set():
                    return
                for piece in _pieces(given):
                    if not self._put(piece):
                        return
        except FrontGrewError as grown:
            last = grown
        except Exception as error:
            last = self._failed(error)
        self._put(last)

    def _failed(self, error: Exception) -> FrontFailedError:
        failure = FrontFailedError(
            f"front {self.name!r} partition {self.partition} failed: "
            f"{type(error).__qualname__}: {error}"
        )
        failure.__cause__ = error
        return failure

    def _reading(self, position: Any) -> Iterator[Element | Batch | Behind | Idle | None]:
        """What the source has behind a position, and not below a cut that had it."""
        read = getattr(self._front, "read_batches", self._front.read)
        reading: Iterator[Element | Batch | Idle | None] = read(self.partition, position)
        if not self._beginning.passes_over or position is not None:
            return reading
        return _not_below(reading, least_time(self._beginning.moment, self.index))

    def _given(self) -> Iterator[Element | Batch | Replayed | Behind | Idle | None]:
        """What the journal has, under the times that it had, and then what the source has."""
        position, moment = self._beginning.position, self._beginning.moment
        journal = self._journal
        if journal is None:
            yield from self._reading(position)
            return
        before = journal.given_before(moment)
        if not self._replayable:
            while entries := list(islice(before, _REPLAYED_AT_ONCE)):
                position = entries[-1][0]
                kept = [entry for entry in entries if not journal.is_dropped(entry[1])]
                if kept:
                    positions, times, payloads = zip(*kept, strict=True)
                    yield Replayed(Batch(positions, payloads, times))
            reading = self._reading(position)
        else:
            reading = self._reading(position)
            yield from self._with_times_of(journal, before, reading)
        yield None  # what came before is in the queue when the next one is asked for
        self._caught_up = True
        yield from reading

    def _with_times_of(
        self,
        journal: Journal,
        before: Iterator[LogEntry],
        reading: Iterator[Element | Batch | Behind | Idle | None],
    ) -> Iterator[Element | Batch | Replayed | Behind | None]:
        """The source's elements with the times that the journal has, as many as it has."""
        entries = list(islice(before, _REPLAYED_AT_ONCE))
        while entries:
            given = next(reading, ...)
            if given is None or given is ... or isinstance(given, Idle):
                if given is ...:
                    raise ReplayError(
                        f"front {self.name!r} partition {self.partition} has ended, and gave an "
                        f"element at position {entries[0][0]!r} before. A source is needed until "
                        f"all that it held is part of a cut."
                    )
                yield None
                continue
            if isinstance(given, Behind):
                yield given
                continue
            batch: Batch = (
                given
                if isinstance(given, Batch)
                else Batch((given.position,), (given.payload,), None)
            )
            while len(entries) < len(batch.payloads) and (
                more := list(islice(before, _REPLAYED_AT_ONCE))
            ):
                entries += more
            count = min(len(entries), len(batch.payloads))
            again, entries = entries[:count], entries[count:]
            for entry, found in zip(again, batch.positions, strict=False):
                if entry[0] != found:
                    raise ReplayError(
                        f"front {self.name!r} partition {self.partition} gave an element at "
                        f"position {entry[0]!r} before, and has one at {found!r} now. What a source "
                        f"has given must stay as it is until it is part of a cut."
                    )
            kept = [
                (position, payload, at)
                for (_, at), position, payload in zip(
                    again, batch.positions, batch.payloads, strict=False
                )
                if not journal.is_dropped(at)
            ]
            if kept:
                yield Replayed(Batch(*zip(*kept, strict=True)))
            if count < len(batch.payloads):
                yield batch.part(count, len(batch.payloads))
            if not entries:
                entries = list(islice(before, _REPLAYED_AT_ONCE))

    def _put(self, given: Read) -> bool:
        while self._put_count - self._taken_count >= QUEUE_MAX:
            self._space.clear()
            if self._stop.is_set():
                return False
            self._space.wait(_PUT_SECONDS)
        # Counted first, so that 'nothing waits' is never said of what is here.
        self._put_count += _size(given)
        self._queue.append(given)
        self._ring()
        return True

    def take(self, most: int) -> list[FlatItem]:
        """Elements that may enter now, as items."""
        gate = self.gate
        most = min(most, gate.credits) if not self.over else 0
        now = _now_ms()
        caught_up = self._caught_up  # asked first: then whatever it is about is in the queue
        items: list[FlatItem] = []
        while most > 0 and self._queue and not self._ended:
            if self._queue[0].__class__ is Idle:
                self._promise(self._queue.popleft())  # type: ignore[arg-type]
                continue
            if self._queue[0].__class__ is Behind:
                # As if it had been taken in and were final.
                gate.position = self._queue.popleft().position  # type: ignore[union-attr]
                self._taken_count += 1
                continue
            batch, is_replayed = self._next(most)
            if batch is None:
                self._ended = True
                break
            most -= max(1, len(batch.payloads))
            if self._promises and not is_replayed:
                batch = self._raised(batch)
            batch, times, is_sorted_out = self._checked(batch, now)
            if self._refused is not None:
                self._ended = True  # nothing behind it enters
            if not times:
                continue
            if self._journal is not None and not is_replayed:
                self._note(self._journal, batch, times)
            items += self._entering(batch, times, is_sorted_out)
            gate.emitted_all(times, batch.positions)
            self.taken = (batch.positions[-1], times[-1])
        if self._put_count - self._taken_count < QUEUE_MAX // 2:
            self._space.set()
        if items:
            self._note_taken((gate.promise[0] - 1, self.index), len(items))
        if self._ended:
            refused, self._refused = self._refused, None
            for at in self.aside.end(gate.promise[0], refused):
                gate.emitted(at)
            gate.finished()
        elif self._arrival and caught_up and not self._queue and not items and not self._halted:
            gate.idle_until(now)
            if self._journal is not None:
                self._journal.reserve(now)
        return items

    def _promise(self, idle: Idle) -> None:
        self._taken_count += 1
        if not self._promises:
            raise self._failed(InputError("it gave an Idle, and does not say promises = True."))
        self.gate.idle_until(min(idle.until, TIME_MAX))
        if self._journal is not None:
            self._journal.reserve(idle.until, idle.ahead)

    def _raised(self, batch: Batch) -> Batch:
        """A batch with times that are free: not below what was promised, and strictly increasing."""
        times = batch.times
        least = max(self.gate.promise[0], self._least_of_arrival)
        if not times or set(map(type, times)) != {int}:
            return batch  # what is no time is told by who checks them
        if times[0] >= least and all(map(lt, times, times[1:])):
            return batch
        raised = []
        for at in times:
            least = at if at > least else least
            raised.append(least)
            least += 1
        return batch._replace(times=raised)

    def _checked(self, batch: Batch, now: int) -> tuple[Batch, Sequence[int], bool]:
        """What enters of a batch, its times, and whether it had to be sorted out for that.

        What has no time is put aside, or is the last that enters, and ends the query.
        """
        if not batch.payloads:
            return batch, (), False
        if Malformed not in set(map(type, batch.payloads)):
            try:
                times = self._times(batch, now)
            except InputError:
                pass  # told of the one that it is about
            else:
                if self.aside.held:
                    self.aside.enter_with(times[0])
                return batch, times, False
        return *self._sorted_out(batch, now), True

    def _sorted_out(self, batch: Batch, now: int) -> tuple[Batch, Sequence[int]]:
        """The same, element by element."""
        positions, payloads, times = [], [], []
        least = self.gate.promise[0]
        given = repeat(None) if batch.times is None else batch.times
        for position, payload, at in zip(batch.positions, batch.payloads, given, strict=False):
            if payload.__class__ is Malformed:
                if not self._diverts:
                    self._refused = self._failed(InputError(payload.problem))
                    break
                if payload.before_next:
                    self.aside.hold(payload.problem, payload.raw)
                    continue
            if at is None:
                self._arrival = True
                at = max(now, least, self._least_of_arrival)
            elif at.__class__ is not int or not least <= at <= TIME_MAX:
                bad_time = self._bad_time(Batch((position,), (payload,), (at,)), least)
                if not self._diverts:
                    self._refused = bad_time
                    break
                self.aside.hold(str(bad_time), payload)
                continue
            if self.aside.held:
                self.aside.enter_with(at)
            least = at + 1
            positions.append(position)
            payloads.append(payload)
            times.append(at)
        return Batch(positions, payloads, None if batch.times is None else times), times

    def _entering(
        self, batch: Batch, times: Sequence[int], is_sorted_out: bool
    ) -> Iterator[FlatItem]:
        """The elements of a batch as items; what is malformed and has a time enters aside."""
        items = zip(zip(times, repeat(self.index)), repeat(0), batch.payloads)
        if not is_sorted_out:
            return items
        for at, payload in zip(times, batch.payloads, strict=True):
            if payload.__class__ is Malformed:
                self.aside.enter(at, payload.problem, payload.raw)
        return (item for item in items if item[2].__class__ is not Malformed)

    def _note(self, journal: Journal, batch: Batch, times: Sequence[int]) -> None:
        if not self._replayable:
            journal.note(batch.positions, times, batch.payloads)
        elif self._promises or batch.times is None:
            journal.note(batch.positions, times, None)

    def report(self) -> dict[int, Moment]:
        """What is promised and was not reported yet, as far as a restart would keep to it."""
        promise = self.gate.promise
        if self._journal is not None and self.chose:
            promise = self._journal.reportable(promise)
        if promise <= self._reported:
            return {}
        self._reported = promise
        return {self.index: promise}

    @property
    def owes_report(self) -> bool:
        """Whether a report will follow, when the journal has what was promised."""
        return self.gate.promise > self._reported

    def _next(self, most: int) -> tuple[Batch | None, bool]:
        """At most so many elements from the head of the queue, and whether the journal has them.

        None when the source has ended.
        """
        waiting = self._queue
        given = waiting.popleft()
        is_replayed = given.__class__ is Replayed
        if is_replayed or given.__class__ is Batch:
            batch: Batch = given.batch if is_replayed else given  # type: ignore[union-attr, assignment]
            if len(batch.payloads) > most:
                rest = batch.part(most, len(batch.payloads))
                waiting.appendleft(Replayed(rest) if is_replayed else rest)
                batch = batch.part(0, most)
            self._taken_count += len(batch.payloads)
            return batch, is_replayed
        self._taken_count += 1
        if given is None:
            return None, False
        if isinstance(given, BaseException):
            raise given
        # Elements that come one by one and are alike are a batch as well.
        elements: list[Element] = [given]  # type: ignore[list-item]
        untimed = elements[0].time is None
        while len(elements) < most and waiting:
            ahead = waiting[0]
            if ahead.__class__ is not Element or (ahead.time is None) is not untimed:
                break
            elements.append(waiting.popleft())  # type: ignore[arg-type]
        self._taken_count += len(elements) - 1
        positions, payloads, times = zip(*elements, strict=True)
        return Batch(positions, payloads, None if untimed else times), False

    def _times(self, batch: Batch, now: int) -> Sequence[int]:
        """The times of a batch: given and checked, or those of arrival."""
        least = self.gate.promise[0]
        times = batch.times
        if times is None:
            first = max(now, least, self._least_of_arrival)
            self._arrival = True
            return range(first, first + len(batch.payloads))
        rising = (
            times.step > 0
            if times.__class__ is range
            else set(map(type, times)) == {int} and all(map(lt, times, times[1:]))
        )
        if not rising or times[0] < least or times[-1] > TIME_MAX:
            raise self._bad_time(batch, least)
        return times

    def _bad_time(self, batch: Batch, least: int) -> InputError:
        """About the first time of a batch that cannot be."""
        assert batch.times is not None
        wrong = 0
        for at in batch.times:
            if at.__class__ is not int or not least <= at <= TIME_MAX:
                break
            least = at + 1
            wrong += 1
        return InputError(
            f"front {self.name!r} gave an element of time {batch.times[wrong]!r} at position "
            f"{batch.positions[wrong]!r}, and promised {least} or later. Times within a partition "
            f"are ints of 64 bits and strictly increasing."
        )

    def minimal_time(self, moment: Moment) -> None:
        """What has become final gives its credits back."""
        self.gate.minimal_time(moment)
        not_final = self._not_final
        while not_final and not_final[0][0] < moment:
            not_final.popleft()

    def settled_below(self, moment: Moment, note: Callable[[tuple[float, int]], None]) -> None:
        """What led only to output that is stored is noted: milliseconds, and how many elements."""
        not_settled = self._not_settled
        now = time.monotonic()
        while not_settled and not_settled[0][0] < moment:
            _, taken_at, count = not_settled.popleft()
            self.settled += count
            note(((now - taken_at) * 1_000, count))

    @property
    def lag_ms(self) -> float:
        """How long the oldest element that is not final has been in; 0 if all are."""
        return (time.monotonic() - self._not_final[0][1]) * 1_000 if self._not_final else 0.0

    def _note_taken(self, last: Moment, count: int) -> None:
        now = time.monotonic()
        self._not_final.append((last, now))  # credits bound it
        if len(self._not_settled) < _SAMPLES_MAX:
            self._not_settled.append((last, now, count))
        else:  # a sink has long been stuck: the last sample stands for all that come
            _, since, before = self._not_settled.pop()
            self._not_settled.append((last, since, before + count))


def _not_below(
    reading: Iterator[Element | Batch | Idle | None], least: int
) -> Iterator[Element | Batch | Behind | Idle | None]:
    """What is read, without the elements of lower times that it begins with.

    What is malformed and has no time goes the way of the element that follows it.
    """
    behind: Behind | None = None
    malformed: list[Element] = []
    for number, given in enumerate(reading):
        begin = 0
        if isinstance(given, Element):
            if given.time is None and isinstance(given.payload, Malformed):
                malformed.append(given)
                if len(malformed) >= QUEUE_MAX:  # rather told than held without a bound
                    yield from malformed
                    malformed = []
                continue
            passed_over = _is_below(given.time, least)
        elif isinstance(given, Batch) and given.payloads:
            begin = sum(1 for _ in takewhile(lambda at: _is_below(at, least), given.times or ()))
            passed_over = begin == len(given.payloads)
        else:
            if behind is not None:
                yield behind
                behind = None
            yield None if isinstance(given, Batch) else given
            continue
        if passed_over:
            malformed = []
            behind = Behind(given.position if isinstance(given, Element) else given.positions[-1])
            if number % _REPLAYED_AT_ONCE == 0:
                yield None  # so that the thread can see that it is to stop
            continue
        if begin and isinstance(given, Batch):
            behind, malformed = Behind(given.positions[begin - 1]), []
            given = given.part(begin, len(given.payloads))
        if behind is not None:
            yield behind
        yield from malformed
        yield given
        yield from reading
        return
    if behind is not None:
        yield behind
    yield from malformed


def _pieces(given: Read) -> Iterator[Read]:
    """What was read, if anything, in pieces that are not too long.

    >>> [list(piece.positions) for piece in _pieces(Batch(range(2_500), [None] * 2_500))][-1][-1]
    2499
    >>> [len(piece.payloads) for piece in _pieces(Batch(range(2_500), [None] * 2_500))]
    [1000, 1000, 500]
    """
    if given.__class__ is Batch and len(given.payloads) > _PIECE_MAX:
        batch: Batch = given
        count = len(batch.payloads)
        for begin in range(0, count, _PIECE_MAX):
            yield batch.part(begin, min(begin + _PIECE_MAX, count))
    elif given is not None:
        yield given


def _is_below(time: Any, least: int) -> bool:
    return time.__class__ is int and time < least


def _size(given: Read) -> int:
    if given.__class__ is Batch:
        return len(given.payloads)
    return len(given.batch.payloads) if given.__class__ is Replayed else 1


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
