"""The feed of one partition of a front: from what the `reader` gives to items of the engine.

Guarantees:

1. *Within the credits.* The worker's loop takes elements from the reader's queue only while the
   front's gate has credits, in elements and in bytes.
2. *Times are checked or given.* Times within a partition are strictly increasing. An element without
   a time gets the time of its arrival.
3. *What this life chooses is durable before anybody relies on it.* The feed notes times of arrival,
   and payloads of a source that cannot be read again, in the front's `journal`. Its report goes no
   further than what a restart would give again (`Feed.report`).
4. *What is malformed has its place.* An element that the front could not decode ends the query once
   all before it is final, or goes to the errors sink (`malformed`).

A front may have times of its own and still promise something while it is idle (`Idle`). The feed then
notes all its elements, as it does with times of arrival. An element whose time is below a promise, or
not above that of the element before it, gets the least free time. A partition that no earlier life
has seen *joins*: the times of its elements begin behind all that earlier lives have let out, and the
feed notes that as well.

From here on elements are columns and then items. There is no object for each element.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import lt
from typing import Any

from emberflow.engine.messages import BEFORE_ALL, Moment
from emberflow.engine.progress.gate import Gate, least_time
from emberflow.errors import EmberflowError, InputError
from emberflow.fronts.protocol import Batch, Front, Idle, Malformed, front_contract
from emberflow.runners.live.wire.bell import no_bell
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.malformed import Aside
from emberflow.runners.live.worker.reader import Beginning, Behind, Reader, Replayed
from emberflow.values.item import TIME_MAX, TIME_MIN, FlatItem

#: Bytes that enter at once. A single element may have more.
TAKEN_BYTES_MAX = 4 << 20
#: Batches whose latency is being measured.
_SAMPLES_MAX = 10_000


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
        journal: Journal | None = None,
        ring: Callable[[], None] = no_bell,
    ) -> None:
        """``ring`` wakes the loop when there is something to take."""
        contract = front_contract(front, f"front {name!r}")
        self.name = name
        self.partition = partition
        self.node = node
        self.index = index
        self.gate = Gate(front=index, credit=credit, credit_bytes=credit_bytes)
        self.reader = Reader(name, contract, partition, index, journal=journal, ring=ring)
        self.aside = Aside(index, step or f"front {name!r}")
        self._diverts = diverts
        #: Position and time of the last element that entered; None before the first.
        self.taken: tuple[Any, int] | None = None
        self._reported: Moment = BEFORE_ALL
        self._journal = journal
        self._replayable = contract.replayable
        #: Whether elements are known to get the time of their arrival.
        self._arrival = contract.arrival is True
        self._promises = contract.promises
        self._least_of_arrival = TIME_MIN
        self._ended = False
        self._halted = False
        #: The error that the query ends with, when all before it is final.
        self._refused: EmberflowError | None = None
        self.settled = 0
        #: Batches that have entered: the last global time, when, and how many elements.
        self._not_final: deque[tuple[Moment, float]] = deque()
        self._not_settled: deque[tuple[Moment, float, int]] = deque()

    def start(self, beginning: Beginning) -> None:
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
        self.reader.start(beginning)

    def halt(self) -> None:
        """Take nothing more from the source, nor from the queue. Promises that were made stay."""
        self.reader.stop()
        self._halted = True

    def join(self, seconds: float) -> None:
        self.reader.join(seconds)
        if self._journal is not None:
            self._journal.close(seconds)

    @property
    def over(self) -> bool:
        """Whether it gives nothing more: its source has ended, or the loop has halted it."""
        return self._ended or self._halted

    @property
    def chose(self) -> bool:
        """Whether only this life knows what it gave: a restart needs a journal to give it again."""
        return self._arrival or self._promises or not self._replayable

    @property
    def waiting(self) -> int:
        """How many elements wait to enter."""
        return 0 if self.over else self.reader.waiting

    def take(self, most: int) -> list[FlatItem]:
        """Elements that may enter now, as items."""
        gate, reader = self.gate, self.reader
        most = min(most, gate.credits) if not self.over else 0
        bytes_left = min(gate.bytes_left, TAKEN_BYTES_MAX)
        now = _now_ms()
        caught_up = reader.caught_up  # ask first: then all that it is about is in the queue
        items: list[FlatItem] = []
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
            batch: Batch = given.batch if is_replayed else given  # type: ignore[union-attr, assignment]
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
            gate.emitted_all(times, batch.positions, reader.last_bytes)
            self.taken = (batch.positions[-1], times[-1])
        reader.tell_space()
        if items:
            self._note_taken((gate.promise[0] - 1, self.index), len(items))
        if self._ended:
            refused, self._refused = self._refused, None
            for at in self.aside.end(gate.promise[0], refused):
                gate.emitted(at)
            gate.finished()
        elif self._arrival and caught_up and not reader.queue and not items and not self._halted:
            gate.idle_until(now)
            if self._journal is not None:
                self._journal.reserve(now)
        return items

    def _promise(self, idle: Idle) -> None:
        if not self._promises:
            raise self.reader.failed(
                InputError("it gave an Idle, and does not say promises = True.")
            )
        self.gate.idle_until(min(idle.until, TIME_MAX))
        if self._journal is not None:
            self._journal.reserve(idle.until, idle.ahead)

    def _raised(self, batch: Batch) -> Batch:
        """A batch with times that are free: not below what was promised, and strictly increasing."""
        times = batch.times
        least = max(self.gate.promise[0], self._least_of_arrival)
        if not times or set(map(type, times)) != {int}:
            return batch  # `_checked` raises the error
        if times[0] >= least and all(map(lt, times, times[1:])):
            return batch
        raised = []
        for at in times:
            least = at if at > least else least
            raised.append(least)
            least += 1
        return batch._replace(times=raised)

    def _checked(self, batch: Batch, now: int) -> tuple[Batch, Sequence[int], bool]:
        """The elements of a batch that enter, their times, and whether each had to be looked at.

        An element without a valid time is put aside, or is the last to enter and ends the query.
        """
        if not batch.payloads:
            return batch, (), False
        if Malformed not in set(map(type, batch.payloads)):
            try:
                times = self._times(batch, now)
            except InputError:
                pass  # `_sorted_out` finds the element that it is about
            else:
                if self.aside.held:
                    self.aside.enter_with(times[0])
                return batch, times, False
        return *self._sorted_out(batch, now), True

    def _sorted_out(self, batch: Batch, now: int) -> tuple[Batch, Sequence[int]]:
        """Look at each element of a batch: those that enter, and their times."""
        positions, payloads, times = [], [], []
        least = self.gate.promise[0]
        given = repeat(None) if batch.times is None else batch.times
        for position, payload, at in zip(batch.positions, batch.payloads, given, strict=False):
            if payload.__class__ is Malformed:
                if not self._diverts:
                    self._refused = self.reader.failed(InputError(payload.problem))
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
        """The elements of a batch as items; malformed elements with a time are put aside."""
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
        """A promise that was not reported yet, as far as a restart would keep it."""
        promise = self.gate.promise
        if self._journal is not None and self.chose:
            promise = self._journal.reportable(promise)
        if promise <= self._reported:
            return {}
        self._reported = promise
        return {self.index: promise}

    @property
    def is_reported(self) -> bool:
        """Whether it has reported all that it let in. Output of the rest is withheld until it has."""
        reached = self.gate.reached
        return reached[0] == BEFORE_ALL[0] or self._reported > reached

    @property
    def owes_report(self) -> bool:
        """Whether a report follows once the journal has what was promised."""
        return self.gate.promise > self._reported

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
        """The error about the first time of a batch that is not valid."""
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
        """Elements below the minimal time are final, and give their credits back."""
        self.gate.minimal_time(moment)
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
