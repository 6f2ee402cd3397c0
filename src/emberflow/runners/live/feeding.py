"""Feeding: a thread that reads a partition of a front, and the gate through which it enters.

The thread puts elements into a queue with a bound and does nothing else; the worker's loop takes
them out when the gate has credits. So a slow source never holds up the loop, and a slow loop holds
up the source. The queue is a deque, whose ends are safe to use from two threads: a lock for each
element would cost more than all the rest of its way.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from emberflow.engine.gate import Gate
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.errors import EmberflowError, InputError
from emberflow.fronts.protocol import Element, Front
from emberflow.item import TIME_MAX

#: Elements between the thread and the loop.
QUEUE_MAX = 4_096
_PUT_SECONDS = 0.1


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
        self._queue: deque[Element | BaseException | None] = deque()
        self._space = threading.Event()
        self._stop = threading.Event()
        self._taken_at: deque[tuple[Moment, float]] = deque()
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
        return 0 if self.over else len(self._queue)

    def _read(self) -> None:
        last: Element | BaseException | None = None
        try:
            for element in self._front.read(self._partition, None):
                if self._stop.is_set():
                    return
                if element is not None and not self._put(element):
                    return
        except Exception as error:
            last = FrontFailedError(
                f"front {self._name!r} partition {self._partition} failed: "
                f"{type(error).__qualname__}: {error}"
            )
            last.__cause__ = error
        self._put(last)

    def _put(self, element: Element | BaseException | None) -> bool:
        waiting = self._queue
        while len(waiting) >= QUEUE_MAX:
            self._space.clear()
            if self._stop.is_set():
                return False
            self._space.wait(_PUT_SECONDS)
        waiting.append(element)
        return True

    def take(self, most: int) -> tuple[list[tuple[Moment, Any]], Moment]:
        """Elements that may enter now, with their global times, and what is promised after them."""
        taken: list[tuple[Moment, Any]] = []
        gate, index, waiting = self.gate, self.index, self._queue
        now = _now_ms()
        least = gate.promise[0]
        for _ in range(min(most, gate.credits, len(waiting)) if not self.over else 0):
            element = waiting.popleft()
            if element is None:
                self._ended = True
                break
            if isinstance(element, BaseException):
                raise element
            _, payload, at = element
            if at is None:
                self._arrival = True
                at = max(now, least)
            elif at.__class__ is not int or at < least or at > TIME_MAX:
                raise self._bad_time(element, least)
            least = at + 1
            taken.append(((at, index), payload))
        if len(waiting) < QUEUE_MAX // 2:
            self._space.set()
        if taken:
            gate.emitted_all([moment[0] for moment, _ in taken])
            self._taken_at.append((taken[-1][0], time.monotonic()))
        if self._ended:
            gate.finished()
        elif self._arrival and not waiting and not taken and not self._halted:
            gate.idle_until(now)
        return taken, gate.promise

    def _bad_time(self, element: Element, least: int) -> InputError:
        return InputError(
            f"front {self._name!r} gave an element of time {element.time!r} at position "
            f"{element.position!r}, and promised {least} or later. Times within a partition are "
            f"ints of 64 bits and strictly increasing."
        )

    def minimal_time(self, moment: Moment, note: Callable[[float], None]) -> None:
        """Credits come back; what has become final is noted with its latency in milliseconds."""
        self.gate.minimal_time(moment)
        taken_at = self._taken_at
        now = time.monotonic()
        while taken_at and (taken_at[0][0] < moment or moment == AFTER_ALL):
            note((now - taken_at.popleft()[1]) * 1_000)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
