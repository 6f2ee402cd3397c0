"""Windows that end with each payload: the last rows of its key, or those of the last so much time.

What is guaranteed: each payload leaves once, at its own time, with the aggregate of the payloads of its key
from so many rows, or so much time, before it up to itself.

How it is kept. To take the oldest payload out of an accumulator again would need an inverse, which most
aggregates do not have. If accumulators can be merged, a payload costs the same time, amortised, however
many are in the window (`_Merging`)::

    old    [a+b+c, b+c, c]   what is behind each of the older payloads: the first that still counts is at `begin`
    new    [d, e]            the payloads since
    held   d+e               their accumulator

The aggregate of the window is that of ``old[begin]`` and ``held``. A payload that leaves moves ``begin``. When
nothing of ``old`` is left, ``new`` becomes ``old``: each payload is merged once then. If accumulators cannot be
merged, all payloads of the window are combined again for each payload (`_Folding`).

The split between ``old`` and ``new`` follows from the payloads of the key alone. So sums of floats, which
depend on how they are grouped, are the same on every run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from emberflow.dsl.operators.aggregates.aggregate import Aggregate
from emberflow.dsl.operators.aggregates.several import several
from emberflow.dsl.operators.reduce import drift, keyed_map
from emberflow.dsl.operators.windows.windowed import Windowed
from emberflow.errors import FlowError
from emberflow.values.functions import caller
from emberflow.values.persistent import PersistentList
from emberflow.values.times import Duration, TimeError

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")

_Row: TypeAlias = tuple[int, Any]
_time_of = itemgetter(0)


class OverStream(Windowed[K, T, tuple[T, Any]]):
    """The last rows or the last time of each key, at each payload. See `KeyedStream.over`."""

    def __init__(self, stream: KeyedStream[K, T], rows: int | None, last: int | None) -> None:
        super().__init__(stream)
        self._rows = rows
        self._last = last

    @overload  # type: ignore[override] # more exact
    def aggregate(
        self, into: type[R], /, *, name: str | None = None, **aggregates: Aggregate[T]
    ) -> Stream[tuple[T, R]]: ...
    @overload
    def aggregate(
        self, into: None = None, /, *, name: str | None = None, **aggregates: Aggregate[T]
    ) -> Stream[tuple[T, Any]]: ...
    def aggregate(
        self, into: type | None = None, /, *, name: str | None = None, **aggregates: Aggregate[T]
    ) -> Stream[tuple[T, Any]]:
        """Several aggregates at once: ``(payload, a named tuple)``. See `KeyedStream.aggregate`."""
        return self._aggregate(several(into, aggregates, name), name)

    def _aggregate(self, aggregation: Aggregate[T], name: str | None) -> Stream[tuple[T, Any]]:
        stream = self._stream
        kind = _Folding if aggregation.merge is None else _Merging
        step = kind(aggregation, self._rows, self._last)
        given = aggregation.given
        with stream.flow._scope("over", name):
            mapped = keyed_map(stream, _Timed(stream._key.function), timed=True, name="time")
            accumulators = drift(
                mapped,
                step.first,
                step,
                key=stream._key.given,
                given=given,
                shown=itemgetter(1),
            )
            results = _Results(aggregation)
            return accumulators._map(
                results, "one", *given, name=step.results_name, schedules=False
            )


def over(
    stream: KeyedStream[Any, Any], rows: int | None, last: Duration | None
) -> OverStream[Any, Any]:
    """See `KeyedStream.over`."""
    if (rows is None) == (last is None):
        raise FlowError(
            f"over() at {caller()} takes rows=, how many payloads, or last=, how much time: one of them."
        )
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
        raise FlowError(f"over(rows=) takes an int of at least 1, got {rows!r} at {caller()}.")
    counted = None
    if last is not None:
        try:
            counted = stream.flow._counted(last)
        except TimeError as error:
            raise FlowError(f"over(last=): {error} ({caller()})") from None
        if counted < 0:
            raise FlowError(
                f"over(last=) takes a duration of at least 0, got {last!r} at {caller()}."
            )
    return OverStream(stream, rows, counted)


class _Timed:
    """Payload to mapped item: ``(key, False, (time, payload))``."""

    __slots__ = ("key",)

    def __init__(self, key: Callable[[Any], Any]) -> None:
        self.key = key

    def __call__(self, time: int, payload: Any) -> tuple[Any, bool, _Row]:
        return self.key(payload), False, (time, payload)


class _Results:
    """Accumulator to the payload and its aggregate."""

    __slots__ = ("result",)

    def __init__(self, aggregation: Aggregate[Any]) -> None:
        self.result = aggregation.result

    def __call__(self, accumulator: tuple[Any, bool, Any]) -> tuple[Any, Any]:
        _, payload, held = accumulator[2]
        return payload, held if self.result is None else self.result(held)


class _Step:
    """From ``(state, payload, its aggregate)`` and the next row to the next of these."""

    nothing: Any
    results_name: str

    def __init__(self, aggregation: Aggregate[Any], rows: int | None, last: int | None) -> None:
        self.begin_with = aggregation.first
        self.combine = aggregation.combine
        self.merge: Any = aggregation.merge
        self.rows = rows
        self.last = last

    def first(self, row: _Row) -> Any:
        return self((self.nothing, None, None), row)

    def __call__(self, accumulator: tuple[Any, Any, Any], row: _Row) -> Any:
        raise AssertionError("every step defines __call__")


class _Merging(_Step):
    """For accumulators that can be merged. The state is ``(old, begin, new, held)``, see above."""

    nothing: Any = ((), 0, PersistentList(), None)
    results_name = "merged"

    def __call__(self, accumulator: tuple[Any, Any, Any], row: _Row) -> Any:
        old, begin, new, held = accumulator[0]
        time, payload = row
        if self.rows is not None:
            if len(old) - begin + len(new) == self.rows:
                if begin < len(old):
                    begin += 1
                else:
                    old, begin, new = self._aged(new, 1), 0, PersistentList()
        else:
            least = time - self.last  # type: ignore[operator]
            begin = bisect_left(old, least, lo=begin, key=_time_of)
            if begin == len(old) and new and new[0][0] < least:
                past = bisect_left(new, least, key=_time_of)
                old, begin, new = self._aged(new, past), 0, PersistentList()
        held = self.combine(held, payload) if new else self.begin_with(payload)
        state = (old, begin, new.append(row), held)
        return state, payload, self.merge(old[begin][1], held) if begin < len(old) else held

    def _aged(self, rows: PersistentList[_Row], past: int) -> tuple[_Row, ...]:
        """The aggregate from each row on, without those that are past, and the time of the row."""
        aged: list[_Row] = []
        for number in range(len(rows) - 1, past - 1, -1):
            time, payload = rows[number]
            alone = self.begin_with(payload)
            aged.append((time, self.merge(alone, aged[-1][1]) if aged else alone))
        return tuple(reversed(aged))


class _Folding(_Step):
    """For other accumulators. The state is the rows and where those begin that count.

    The list is copied only when half of it is past.
    """

    nothing: Any = (PersistentList(), 0)
    results_name = "folded"

    def __call__(self, accumulator: tuple[Any, Any, Any], row: _Row) -> Any:
        rows, begin = accumulator[0]
        if self.rows is not None:
            begin = max(begin, len(rows) + 1 - self.rows)
        else:
            begin = bisect_left(rows, row[0] - self.last, lo=begin, key=_time_of)  # type: ignore[operator]
        if begin and 2 * begin >= len(rows):
            rows, begin = rows[begin:], 0
        rows = rows.append(row)
        (_, payload), *others = rows.tail(begin).elements
        held = self.begin_with(payload)
        for _, payload in others:
            held = self.combine(held, payload)
        return (rows, begin), row[1], held
