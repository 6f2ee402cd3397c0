"""The aggregates that Emberflow has: `ef.count`, `ef.sum` and so on.

Each is a function that returns an `Aggregate`. ``of`` selects what to aggregate of a payload, by default
the payload itself, and ``where`` the payloads. Without any payload a count is 0, a collection is empty, and
everything else is None, as in SQL.

Three of them are named like builtins, which this module therefore does not use.
"""

from __future__ import annotations

from bisect import insort_right
from collections.abc import Callable
from typing import Any, TypeVar

from emberflow.dsl.operators.aggregates.aggregate import Aggregate, Parts
from emberflow.errors import FlowError
from emberflow.values.functions import UserFunction, caller, field_advice, itself
from emberflow.values.hashing import encode_key
from emberflow.values.persistent import PersistentList
from emberflow.values.persistent_map import PersistentMap

T = TypeVar("T")

__all__ = [
    "collect",
    "count",
    "count_distinct",
    "distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "one_more",
    "sum",
    "top",
]


def count(*, where: Callable[[T], object] | None = None) -> Aggregate[T]:
    """How many payloads.

    >>> import emberflow as ef
    >>> flow = ef.Flow("counts")
    >>> bids = flow.front("bids").key_by(lambda bid: "all")
    >>> bids.aggregate(all=ef.count(), high=ef.count(where=lambda bid: bid > 5)).sink("counts")
    >>> ef.run(flow, bids=[3, 8])
    {'counts': [('all', Aggregates(all=1, high=0)), ('all', Aggregates(all=2, high=1))]}
    """
    counted: Aggregate[T] = Aggregate(
        first=_one,
        combine=one_more,
        merge=_plus,
        given=(),
        parts=Parts((), _one, one_more, written="{held} + 1", never_fails=True, looks=False),
    )
    return _where(counted, where, 0)


def _one(payload: Any) -> int:
    return 1


def one_more(count: int, payload: Any) -> int:
    """Count. A runner that recognizes this function can add a number instead of calling it."""
    return count + 1


def sum(
    of: Callable[[T], Any] | None = None, *, where: Callable[[T], object] | None = None
) -> Aggregate[T]:
    """The sum of the payloads, or of ``of(payload)``."""
    return _where(_selecting(of, _plus), where)


def min(
    of: Callable[[T], Any] | None = None,
    *,
    by: Callable[[T], Any] | None = None,
    where: Callable[[T], object] | None = None,
) -> Aggregate[T]:
    """The least. With ``by``, that of the payload for which ``by(payload)`` is least; the earlier of equals."""
    kept = _selecting(of, _least) if by is None else _ranked(of, by, _least_first)
    return _where(kept, where)


def max(
    of: Callable[[T], Any] | None = None,
    *,
    by: Callable[[T], Any] | None = None,
    where: Callable[[T], object] | None = None,
) -> Aggregate[T]:
    """The greatest. With ``by``, that of the payload for which ``by(payload)`` is greatest; the earlier of
    equals.

    >>> import emberflow as ef
    >>> flow = ef.Flow("winners")
    >>> bids = flow.front("bids").key_by(lambda bid: "lamp")
    >>> bids.aggregate(
    ...     price=ef.max(lambda bid: bid[1]),
    ...     winner=ef.max(lambda bid: bid[0], by=lambda bid: bid[1]),
    ... ).sink("winners")
    >>> ef.run(flow, bids=[("ada", 5), ("bob", 9)])["winners"][-1]
    ('lamp', Aggregates(price=9, winner='bob'))
    """
    kept = _selecting(of, _greatest) if by is None else _ranked(of, by, _greatest_first)
    return _where(kept, where)


def mean(
    of: Callable[[T], Any] | None = None, *, where: Callable[[T], object] | None = None
) -> Aggregate[T]:
    """The arithmetic mean."""
    select, given = _selector(of)
    meaning: Aggregate[T] = Aggregate(
        first=lambda payload: (select(payload), 1),
        combine=lambda held, payload: (held[0] + select(payload), held[1] + 1),
        result=lambda held: held[0] / held[1],
        merge=lambda held, later: (held[0] + later[0], held[1] + later[1]),
        given=given,
        parts=Parts(
            (select,), _with_one, _with_one_more, written="({held}[0] + {value}, {held}[1] + 1)"
        ),
    )
    return _where(meaning, where)


def _with_one(value: Any) -> tuple[Any, int]:
    return value, 1


def _with_one_more(held: tuple[Any, int], value: Any) -> tuple[Any, int]:
    return held[0] + value, held[1] + 1


def first(
    of: Callable[[T], Any] | None = None, *, where: Callable[[T], object] | None = None
) -> Aggregate[T]:
    """The first payload, or ``of`` it."""
    return _where(_selecting(of, _earlier, reads_all=False), where)


def last(
    of: Callable[[T], Any] | None = None, *, where: Callable[[T], object] | None = None
) -> Aggregate[T]:
    """The last payload, or ``of`` it."""
    return _where(_selecting(of, _later), where)


def collect(
    of: Callable[[T], Any] | None = None, *, where: Callable[[T], object] | None = None
) -> Aggregate[T]:
    """All payloads, or ``of`` all, as a tuple, in order.

    A payload is added in constant time. The tuple is made for each output: at the end of a window once,
    otherwise for each payload.
    """
    select, given = _selector(of)
    # Each payload makes a version of the accumulator; a tuple would be copied for each.
    collected: Aggregate[T] = Aggregate(
        first=lambda payload: PersistentList((select(payload),)),
        combine=lambda held, payload: held.append(select(payload)),
        result=tuple,
        given=given,
    )
    return _where(collected, where, ())


def count_distinct(
    of: Callable[[T], Any] | None = None, *, where: Callable[[T], object] | None = None
) -> Aggregate[T]:
    """How many different payloads, or values of ``of(payload)``. Exact: all of them are kept.

    What is told apart must have one canonical form, as keys do. It then takes logarithmic time to find it.
    """
    select, given = _selector(of)
    counted: Aggregate[T] = Aggregate(
        first=lambda payload: _alone(encode_key(select(payload))),
        combine=lambda held, payload: _with(held, encode_key(select(payload))),
        result=len,
        given=given,
        parts=Parts(
            (select, encode_key),
            _alone,
            _with,
            written="{held}.including({value}, None)",
            never_fails=True,
        ),
    )
    return _where(counted, where, 0)


_NO_CODES: PersistentMap[bytes, None] = PersistentMap()


def _alone(code: bytes) -> PersistentMap[bytes, None]:
    return _NO_CODES.set(code, None)


def _with(held: PersistentMap[bytes, None], code: bytes) -> PersistentMap[bytes, None]:
    return held.including(code, None)


def distinct(
    of: Callable[[T], Any] | None = None, *, where: Callable[[T], object] | None = None
) -> Aggregate[T]:
    """The different payloads, or values of ``of(payload)``, as a tuple, in the order of their first ones."""
    select, given = _selector(of)

    def combine(held: tuple[Any, Any], payload: Any) -> tuple[Any, Any]:
        value = select(payload)
        code = encode_key(value)
        known, values = held
        return held if code in known else (known.set(code, None), values.append(value))

    nothing: tuple[Any, Any] = (PersistentMap(), PersistentList())
    told_apart: Aggregate[T] = Aggregate(
        first=lambda payload: combine(nothing, payload),
        combine=combine,
        result=lambda held: tuple(held[1]),
        given=given,
    )
    return _where(told_apart, where, ())


def top(
    n: int,
    *,
    by: Callable[[T], Any] | None = None,
    where: Callable[[T], object] | None = None,
) -> Aggregate[T]:
    """The ``n`` greatest payloads as a tuple, the greatest first; the earlier of equals first."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise FlowError(f"top() takes n as an int of at least 1, got {n!r} at {caller()}.")
    rank, given = _selector(by, "by")

    def combine(held: tuple[Any, ...], payload: Any) -> tuple[Any, ...]:
        if len(held) == n and not rank(held[-1]) < rank(payload):
            return held
        # Behind its equals, so that the earlier of them stays first.
        ordered = list(held)
        insort_right(ordered, payload, key=lambda value: _Descending(rank(value)))
        return tuple(ordered[:n])

    def merge(held: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        # The sort is stable, so the earlier of equals stays first.
        ordered = sorted((*held, *later), key=lambda value: _Descending(rank(value)))
        return tuple(ordered[:n])

    leading: Aggregate[T] = Aggregate(
        first=lambda payload: (payload,), combine=combine, merge=merge, given=given
    )
    return _where(leading, where, ())


class _Descending:
    """Reverses the order of a rank of any type."""

    __slots__ = ("rank",)

    def __init__(self, rank: Any) -> None:
        self.rank = rank

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.rank < self.rank)


# --- Of two values, one -------------------------------------------------------------------------


def _plus(held: Any, value: Any) -> Any:
    return held + value


def _least(held: Any, value: Any) -> Any:
    return value if value < held else held


def _greatest(held: Any, value: Any) -> Any:
    return value if value > held else held


def _least_first(held: Any, value: Any) -> Any:
    return value if value[0] < held[0] else held


def _greatest_first(held: Any, value: Any) -> Any:
    return value if value[0] > held[0] else held


def _earlier(held: Any, value: Any) -> Any:
    return held


def _later(held: Any, value: Any) -> Any:
    return value


_WRITTEN: dict[Callable[[Any, Any], Any], str] = {
    _plus: "{held} + {value}",
    _least: "{value} if {value} < {held} else {held}",
    _greatest: "{value} if {value} > {held} else {held}",
    _later: "{value}",
}


def _selecting(
    of: Callable[[T], Any] | None, of_two: Callable[[Any, Any], Any], *, reads_all: bool = True
) -> Aggregate[T]:
    """An aggregate whose accumulator is one of the values, or made of two: combining is merging."""
    select, given = _selector(of)

    def combine(held: Any, payload: Any) -> Any:
        return of_two(held, select(payload))

    return Aggregate(
        first=select,
        combine=combine if reads_all else of_two,
        merge=of_two,
        given=given,
        parts=Parts((select,), itself, of_two, written=_WRITTEN[of_two]) if reads_all else None,
    )


def _ranked(
    of: Callable[[T], Any] | None, by: Callable[[T], Any], of_two: Callable[[Any, Any], Any]
) -> Aggregate[T]:
    """The accumulator is ``(rank, value)``."""
    select, selecting = _selector(of)
    rank, ranking = _selector(by, "by")

    def ranked(payload: Any) -> tuple[Any, Any]:
        return rank(payload), select(payload)

    return Aggregate(
        first=ranked,
        combine=lambda held, payload: of_two(held, ranked(payload)),
        result=lambda held: held[1],
        merge=of_two,
        given=(*selecting, *ranking),
    )


def _selector(
    of: Callable[[Any], Any] | None, role: str = "of"
) -> tuple[Callable[[Any], Any], tuple[UserFunction, ...]]:
    if of is None:
        return itself, ()
    if not callable(of):
        raise FlowError(
            f"{role}= takes a function of the payload, got {of!r} at {caller()}.{field_advice(of)}"
        )
    return of, (UserFunction(role, of),)


def _where(
    aggregate: Aggregate[T], where: Callable[[T], object] | None, otherwise: Any = None
) -> Aggregate[T]:
    return aggregate if where is None else aggregate.where(where, otherwise=otherwise)
