"""`join` and `enrich`: two keyed streams that share buckets and accumulators.

Payloads get a side, are merged and then reduced together. The total order tells which payload came
first, so there is no 'late' side and no buffer to tune. The accumulator is ``(held, emitted)``: the
payloads that later ones may pair with, and the output of the last payload, which a map behind the
cycle emits. ``held`` is:

- for a join without ``within``: the last payload of each side, as ``()`` or ``(payload,)``;
- for an interval join: the payloads of each side that a later one can still pair with, as a list and
  where it begins. Payloads come in the order of time, so every step moves the beginning past those that
  are too old for the newest. The list is copied only when half of it is past, so a payload costs no more
  than the pairs that it makes;
- for `enrich`: the last payload of the table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from emberflow.dsl.operators.reduce import drift, keyed_map
from emberflow.errors import FlowError
from emberflow.graph.nodes import Merge
from emberflow.values.functions import UserFunction, caller
from emberflow.values.persistent import PersistentList
from emberflow.values.times import Duration, TimeError

if TYPE_CHECKING:
    from emberflow.dsl.flow import Flow
    from emberflow.dsl.streams import KeyedStream, Stream

_LEFT, _RIGHT = False, True


def join(
    left: KeyedStream[Any, Any],
    right: KeyedStream[Any, Any],
    combine: Callable[[Any, Any], Any],
    *,
    within: Duration | tuple[Duration, Duration] | None,
    name: str | None,
) -> Stream[Any]:
    """See `KeyedStream.join`."""
    if not callable(combine):
        raise FlowError(f"join() takes a function of both payloads, got {combine!r} at {caller()}.")
    step = Latest(combine) if within is None else Interval(combine, *_interval(within, left.flow))
    with left.flow._scope("join", name):
        return _two_sided(left, right, step, UserFunction("combine", combine))


def enrich(
    stream: KeyedStream[Any, Any],
    table: KeyedStream[Any, Any],
    combine: Callable[[Any, Any], Any],
    *,
    default: Any,
    name: str | None,
) -> Stream[Any]:
    """See `KeyedStream.enrich`."""
    with stream.flow._scope("enrich", name):
        return _two_sided(
            stream, table, Enriched(combine, default), UserFunction("combine", combine)
        )


def _two_sided(
    left: KeyedStream[Any, Any], right: KeyedStream[Any, Any], step: _Step, given: UserFunction
) -> Stream[Any]:
    flow = left.flow
    sides = [
        keyed_map(stream, _Side(stream._key.function, side), timed=True, name=name)
        for stream, side, name in ((left, _LEFT, "left"), (right, _RIGHT, "right"))
    ]
    merged = flow._add(Merge, "sides", inputs=tuple(side._input for side in sides))
    both = UserFunction("key", left._key.given.given)
    accumulators = drift(merged, step.first, step, key=both, given=(given,), shown=itemgetter(2))
    return accumulators._map(_emitted, "many", given, name="pairs", schedules=False)


class _Side:
    """Payload to mapped item of one side: ``(key, False, (side, time, payload))``."""

    __slots__ = ("key", "side")

    def __init__(self, key: Callable[[Any], Any], side: bool) -> None:
        self.key = key
        self.side = side

    def __call__(self, time: int, payload: Any) -> tuple[Any, bool, Any]:
        return self.key(payload), False, (self.side, time, payload)


class _Step:
    """From ``(held, emitted)`` and the next payload of a side to the next ``(held, emitted)``."""

    nothing_held: Any = ((), ())

    def first(self, mapped: tuple[bool, int, Any]) -> Any:
        return self((self.nothing_held, ()), mapped)

    def __call__(self, accumulator: tuple[Any, Any], mapped: tuple[bool, int, Any]) -> Any:
        raise AssertionError("every step defines __call__")


class Latest(_Step):
    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self.combine = combine

    def __call__(self, accumulator: tuple[Any, Any], mapped: tuple[bool, int, Any]) -> Any:
        left, right = accumulator[0]
        side, _, payload = mapped
        if side == _LEFT:
            left = (payload,)
        else:
            right = (payload,)
        emitted = (self.combine(left[0], right[0]),) if left and right else ()
        return (left, right), emitted


class Interval(_Step):
    nothing_held: tuple[_Held, _Held] = ((PersistentList(), 0), (PersistentList(), 0))

    def __init__(self, combine: Callable[[Any, Any], Any], low: int, high: int) -> None:
        self.combine = combine
        self.low = low
        self.high = high

    def __call__(self, accumulator: tuple[Any, Any], mapped: tuple[bool, int, Any]) -> Any:
        combine, low, high = self.combine, self.low, self.high
        left, right = accumulator[0]
        side, time, payload = mapped
        # A future right payload has at least this time, and pairs with left ones of time - high and
        # later; a future left payload pairs with right ones of time + low and later.
        left = _since(left, time - high)
        right = _since(right, time + low)
        if side == _LEFT:
            emitted = tuple(combine(payload, r) for r in _up_to(right, time + high))
            left = (left[0].append((time, payload)), left[1]) if high >= 0 else left
        else:
            emitted = tuple(combine(l_, payload) for l_ in _up_to(left, time - low))
            right = (right[0].append((time, payload)), right[1]) if low <= 0 else right
        return (left, right), emitted


class Enriched(_Step):
    nothing_held = ()

    def __init__(self, combine: Callable[[Any, Any], Any], default: Any) -> None:
        self.combine = combine
        self.default = default

    def __call__(self, accumulator: tuple[Any, Any], mapped: tuple[bool, int, Any]) -> Any:
        held = accumulator[0]
        side, _, payload = mapped
        if side == _RIGHT:
            return (payload,), ()
        return held, (self.combine(payload, held[0] if held else self.default),)


_time_of = itemgetter(0)


#: Times and payloads in order, and where those begin that count.
_Held: TypeAlias = tuple[PersistentList[tuple[int, Any]], int]


def _since(held: _Held, time: int) -> _Held:
    """Without those before a time."""
    payloads, begin = held
    if begin == len(payloads) or payloads[begin][0] >= time:
        return held
    begin = bisect_left(payloads, time, lo=begin, key=_time_of)
    if 2 * begin < len(payloads):
        return payloads, begin
    return payloads[begin:], 0


def _up_to(held: _Held, time: int) -> list[Any]:
    """The payloads up to a time."""
    payloads, begin = held
    end = len(payloads)
    if begin == end or payloads[begin][0] > time:
        return []
    if payloads[end - 1][0] > time:
        end = bisect_right(payloads, time, lo=begin, key=_time_of)
    return [payload for _, payload in payloads[begin:end]]


def _emitted(accumulator: tuple[Any, bool, Any]) -> tuple[Any, ...]:
    emitted: tuple[Any, ...] = accumulator[2][1]
    return emitted


def _interval(within: Any, flow: Flow) -> tuple[int, int]:
    try:
        if isinstance(within, tuple) and len(within) == 2:
            low, high = (flow._counted(end) for end in within)
        else:
            high = flow._counted(within)
            low = -high
    except TimeError as error:
        raise FlowError(
            f"join(within=) takes a duration, or a pair (low, high) of them, got {within!r} at {caller()}. "
            f"{error}"
        ) from None
    if low <= high:
        return low, high
    raise FlowError(
        f"join(within=) takes a duration of at least 0 or a pair (low, high) with low <= high, "
        f"got {within!r} at {caller()}."
    )
