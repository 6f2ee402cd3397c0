"""Feeding: a thread that reads a partition of a front, and the gate through which it enters.

The thread puts what it reads into a queue with a bound and does nothing else; the worker's loop
takes it out when the gate has credits. So a slow source never holds up the loop, and a slow loop
holds up the source. The queue is a deque, whose ends are safe to use from two threads: a lock for
each element would cost more than all the rest of its way. From here on elements are columns, and
then items; there is no object for each.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import lt
from typing import TypeAlias

from emberflow.engine.gate import Gate
from emberflow.engine.messages import Moment
from emberflow.errors import EmberflowError, InputError
from emberflow.fronts.protocol import Batch, Element, Front
from emberflow.item import TIME_MAX, FlatItem

#: Elements between the thread and the loop.
QUEUE_MAX = 4_096
_PUT_SECONDS = 0.1
#: Batches whose latency is being measured.
_SAMPLES_MAX = 10_000

#: What the thread hands over; None when the source has ended.
Read: TypeAlias = Element | Batch | BaseException | None


class FrontFailedError(EmberflowError):
    """A front raised while it was read; the original exception is the ``__cause__``."""


class Feed:
    """One partition of a front."""

    def __init__(
        self, name: str, node: int, front: Front, partition: int, index: int, credit: int
    ) -> None:
        self.node = node
        self.index = index
        self.gate = Gate(front=index, credit=credit)
        self._ended = False
        self._halted = False
        self._name = name
        self._front = front
        self._partition = partition
        self._arrival = False
        self._queue: deque[Read] = deque()
        #: Elements put by the thread and taken by the loop: each counter has one who writes it.
        self._put_count = 0
        self._taken_count = 0
        self._space = threading.Event()
        self._stop = threading.Event()
        self.settled = 0
        #: Batches that were taken in: the last global time, when, and how many elements.
        self._not_final: deque[tuple[Moment, float]] = deque()
        self._not_settled: deque[tuple[Moment, float, int]] = deque()
        self._thread = threading.Thread(
            target=self._read, name=f"emberflow front {name} {partition}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def halt(self) -> None:
        """Take nothing more from the source, nor from the queue. What was promised stays."""
        self._stop.set()
        self._halted = True

    def join(self, seconds: float) -> None:
        self._stop.set()
        self._thread.join(seconds)

    @property
    def over(self) -> bool:
        """Whether it gives nothing more: its source has ended, or it was told to halt."""
        return self._ended or self._halted

    @property
    def waiting(self) -> int:
        return 0 if self.over else self._put_count - self._taken_count

    def _read(self) -> None:
        last: BaseException | None = None
        read = getattr(self._front, "read_batches", self._front.read)
        try:
            for given in read(self._partition, None):
                if self._stop.is_set():
                    return
                if given is not None and not self._put(given):
                    return
        except Exception as error:
            last = FrontFailedError(
                f"front {self._name!r} partition {self._partition} failed: "
                f"{type(error).__qualname__}: {error}"
            )
            last.__cause__ = error
        self._put(last)

    def _put(self, given: Read) -> bool:
        while self._put_count - self._taken_count >= QUEUE_MAX:
            self._space.clear()
            if self._stop.is_set():
                return False
            self._space.wait(_PUT_SECONDS)
        # Counted first, so that 'nothing waits' is never said of what is here.
        self._put_count += len(given.payloads) if given.__class__ is Batch else 1
        self._queue.append(given)
        return True

    def take(self, most: int) -> tuple[list[FlatItem], Moment]:
        """Elements that may enter now, as items, and what is promised after them."""
        gate = self.gate
        most = min(most, gate.credits) if not self.over else 0
        now = _now_ms()
        items: list[FlatItem] = []
        while most > 0 and self._queue and not self._ended:
            batch = self._next(most)
            if batch is None:
                self._ended = True
                break
            taken = len(batch.payloads)
            if taken:
                times = self._times(batch, now)
                items += zip(zip(times, repeat(self.index)), repeat(0), batch.payloads)
                gate.emitted_all(times)
                most -= taken
        if self._put_count - self._taken_count < QUEUE_MAX // 2:
            self._space.set()
        if items:
            self._note_taken((gate.promise[0] - 1, self.index), len(items))
        if self._ended:
            gate.finished()
        elif self._arrival and not self._queue and not items and not self._halted:
            gate.idle_until(now)
        return items, gate.promise

    def _next(self, most: int) -> Batch | None:
        """At most so many elements from the head of the queue; None when the source has ended."""
        waiting = self._queue
        given = waiting.popleft()
        if given.__class__ is Batch:
            batch: Batch = given
            if len(batch.payloads) > most:
                waiting.appendleft(batch.part(most, len(batch.payloads)))
                batch = batch.part(0, most)
            self._taken_count += len(batch.payloads)
            return batch
        self._taken_count += 1
        if given is None:
            return None
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
        return Batch(positions, payloads, None if untimed else times)

    def _times(self, batch: Batch, now: int) -> Sequence[int]:
        """The times of a batch: given and checked, or those of arrival."""
        least = self.gate.promise[0]
        times = batch.times
        if times is None:
            self._arrival = True
            first = max(now, least)
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
            f"front {self._name!r} gave an element of time {batch.times[wrong]!r} at position "
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


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
