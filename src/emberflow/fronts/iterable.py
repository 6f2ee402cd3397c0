"""`fronts.Iterable`: elements from a Python iterable, for tests and demonstrations, with a rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Iterable as AnyIterable
from itertools import count, islice
from operator import attrgetter, lt
from typing import Any

from emberflow.errors import InputError
from emberflow.fronts.protocol import Batch, Element
from emberflow.values.event_time import OnLate, event_time
from emberflow.values.item import At, is_time
from emberflow.values.times import DEFAULT_UNIT, Duration, Time, Unit, number_of

#: How long the front sleeps at once, so that it can be stopped.
_NAP_SECONDS = 0.05
#: Elements given at once where there is no rate to keep.
_BATCH = 1_000


class Iterable:
    """The elements of an iterable, or of what a function without arguments returns.

    As with `emberflow.run`, element ``i`` has time ``i``, and ``At`` gives another time. With
    ``arrival=True`` elements get the time of their arrival. ``rate`` is elements a second. With several
    ``partitions`` elements are dealt out to them like cards, and several workers read them side by
    side.

    As with `emberflow.run`, a list is sorted by time. If ``disorder``, ``watermark`` or ``ahead`` is
    given, or if the elements come from a function, they stay as they are, and `docs/event-time.md` tells
    what is late. Datetimes and durations are counted in ``unit``.

    >>> front = Iterable(["a", At(5, "b")])
    >>> list(front.read(0, None))
    [Element(position=0, payload='a', time=0), Element(position=1, payload='b', time=5)]
    >>> list(front.read(0, 0))
    [Element(position=1, payload='b', time=5)]
    >>> [element.payload for element in Iterable("abcde", partitions=2).read(1, None)]
    ['b', 'd']
    """

    def __init__(
        self,
        elements: AnyIterable[Any] | Callable[[], AnyIterable[Any]],
        *,
        rate: float | None = None,
        arrival: bool = False,
        partitions: int = 1,
        disorder: Duration | None = None,
        watermark: Callable[[Any], Time | None] | None = None,
        ahead: Duration | None = None,
        on_late: OnLate = "divert",
        unit: Unit = DEFAULT_UNIT,
    ) -> None:
        if not callable(elements) and not isinstance(elements, AnyIterable):
            raise InputError(f"fronts.Iterable takes an iterable or a function, got {elements!r}.")
        if rate is not None and not rate > 0:
            raise InputError(f"fronts.Iterable(rate=) takes elements a second, got {rate!r}.")
        if not isinstance(partitions, int) or partitions < 1:
            raise InputError(f"fronts.Iterable(partitions=) takes a number, got {partitions!r}.")
        # An iterator can be read only once, and cannot be pickled.
        self._elements = elements if callable(elements) else list(elements)
        self.event_time = event_time(
            "fronts.Iterable",
            disorder=0 if disorder is None else disorder,
            watermark=watermark,
            ahead=ahead,
            on_late=on_late,
            unit=unit,
        )
        self.unit = unit
        if not callable(self._elements):
            self._elements = _with_numbers(self._elements, unit)
        stays = arrival or disorder is not None or self.event_time.waits
        given = self._elements
        if not callable(given) and not stays and At in set(map(type, given)):
            timed = [one if isinstance(one, At) else At(n, one) for n, one in enumerate(given)]
            if all(is_time(one.time) for one in timed):  # reading tells of those that are none
                self._elements = given = sorted(timed, key=attrgetter("time"))
        self.increasing = not callable(given) and not stays and _are_increasing(given)
        self._rate = rate
        self.arrival = arrival
        self.partitions = partitions

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        begin = time.monotonic()
        first = self._first(partition, position)
        numbers = count(first, self.partitions)
        for number, element in zip(numbers, self._from(first), strict=False):
            if self._rate is not None:
                yield from self._wait(begin + (number - first) / self._rate)
            at, payload = (
                (element.time, element.payload) if isinstance(element, At) else (number, element)
            )
            if at.__class__ is not int:
                at = number_of(at, self.unit)
            yield Element(number, payload, None if self.arrival else at)

    def read_batches(self, partition: int, position: Any) -> Iterator[Element | Batch | None]:
        if self._rate is not None or callable(self._elements):
            # A function may give elements slowly: an element must not wait for a full batch.
            yield from self.read(partition, position)
            return
        step = self.partitions
        begin, end = self._first(partition, position), len(self._elements)
        for first in range(begin, end, _BATCH * step):
            payloads = self._elements[first : first + _BATCH * step : step]
            positions = range(first, first + len(payloads) * step, step)
            times: Sequence[Any] = positions
            if At in set(map(type, payloads)):
                given = [
                    (element.time, element.payload)
                    if isinstance(element, At)
                    else (number, element)
                    for number, element in zip(positions, payloads, strict=True)
                ]
                times = [at for at, _ in given]
                payloads = [payload for _, payload in given]
            yield Batch(positions, payloads, None if self.arrival else times)

    def _first(self, partition: int, position: Any) -> int:
        return partition if position is None else position + self.partitions

    def _from(self, first: int) -> Iterator[Any]:
        elements = self._elements() if callable(self._elements) else self._elements
        return islice(iter(elements), first, None, self.partitions)

    def _wait(self, until: float) -> Iterator[None]:
        while (remaining := until - time.monotonic()) > 0:
            time.sleep(min(remaining, _NAP_SECONDS))
            yield None


def _with_numbers(elements: list[Any], unit: Unit) -> list[Any]:
    """Elements with numbers for datetimes. What is no time stays: whoever reads tells of it."""
    if At not in set(map(type, elements)):
        return elements
    return [
        At(number_of(one.time, unit), one.payload)
        if isinstance(one, At) and one.time.__class__ is not int
        else one
        for one in elements
    ]


def _are_increasing(elements: Sequence[Any]) -> bool:
    """Whether elements have times that increase. Where none has one, element ``i`` has time ``i``."""
    if At not in set(map(type, elements)):
        return True
    times: list[Any] = [element.time if isinstance(element, At) else None for element in elements]
    return None not in times and all(map(is_time, times)) and all(map(lt, times, times[1:]))
