"""Aggregations by key: `count`, `sum`, `min`, `max`, `mean` and `top`.

An `Aggregation` is three pure functions. `aggregate` runs it over all payloads of a key as a
`reduce`; windows run it over the payloads of a window.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberflow.dsl.operators.reduce import reduce
from emberflow.errors import FlowError
from emberflow.values.functions import UserFunction, caller, itself

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream


@dataclass(frozen=True, slots=True)
class Aggregation:
    """``first(payload)``, ``combine(accumulator, payload)``, ``result(accumulator)``."""

    first: Callable[[Any], Any]
    combine: Callable[[Any, Any], Any]
    result: Callable[[Any], Any] | None = None
    given: tuple[UserFunction, ...] = ()


def aggregate(
    stream: KeyedStream[Any, Any], aggregation: Aggregation, label: str, name: str | None
) -> Stream[tuple[Any, Any]]:
    """``(key, result so far)`` for each payload."""
    result = aggregation.result
    with stream.flow._scope(label, name):
        reduced = reduce(
            stream,
            aggregation.first,
            aggregation.combine,
            with_key=True,
            name="reduce",
            given=aggregation.given,
        )
        if result is None:
            return reduced
        return reduced._map(
            lambda pair: (pair[0], result(pair[1])), "one", *aggregation.given, name="result"
        )


def counting() -> Aggregation:
    return Aggregation(_one, one_more)


def _one(payload: Any) -> int:
    return 1


def one_more(count: int, payload: Any) -> int:
    """Count. A runner that recognizes this function can add a number instead of calling it."""
    return count + 1


def summing(of: Callable[[Any], Any] | None) -> Aggregation:
    return _selecting(of, lambda total, value: total + value)


def least(of: Callable[[Any], Any] | None) -> Aggregation:
    return _selecting(of, lambda held, value: value if value < held else held)


def greatest(of: Callable[[Any], Any] | None) -> Aggregation:
    return _selecting(of, lambda held, value: value if value > held else held)


def averaging(of: Callable[[Any], Any] | None) -> Aggregation:
    select, given = _selector(of)
    return Aggregation(
        lambda payload: (select(payload), 1),
        lambda held, payload: (held[0] + select(payload), held[1] + 1),
        lambda held: held[0] / held[1],
        given,
    )


def leading(n: int, by: Callable[[Any], Any] | None) -> Aggregation:
    """The ``n`` greatest, greatest first; the earlier of equal ones first."""
    rank, given = _selector(by, "by")

    def combine(held: tuple[Any, ...], payload: Any) -> tuple[Any, ...]:
        if len(held) == n and not rank(held[-1]) < rank(payload):
            return held
        # Behind its equals, so that the earlier of them stays first.
        ordered = list(held)
        insort_right(ordered, payload, key=lambda value: _Descending(rank(value)))
        return tuple(ordered[:n])

    return Aggregation(lambda payload: (payload,), combine, None, given)


class _Descending:
    """Reverses the order of a rank of any type."""

    __slots__ = ("rank",)

    def __init__(self, rank: Any) -> None:
        self.rank = rank

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.rank < self.rank)


def _selecting(of: Callable[[Any], Any] | None, combine: Callable[[Any, Any], Any]) -> Aggregation:
    select, given = _selector(of)
    return Aggregation(select, lambda held, payload: combine(held, select(payload)), None, given)


def _selector(
    of: Callable[[Any], Any] | None, role: str = "of"
) -> tuple[Callable[[Any], Any], tuple[UserFunction, ...]]:
    if of is None:
        return itself, ()
    if not callable(of):
        raise FlowError(f"{role}= takes a function of the payload, got {of!r} at {caller()}.")
    return of, (UserFunction(role, of),)
