"""Aggregates of values that change: each can take out a value that it has taken in.

An `Aggregate` has functions that put the value of a row in and take it out again, and one that gives the
result. What each holds for a group, with n values in it:

====================  =====================================  ==============================
aggregate             holds                                  a change costs
====================  =====================================  ==============================
count, sum, mean      a few numbers                          the same, however many there are
min, max              how often each value occurs, sorted    log n
count_distinct        how often each value occurs            log n
collect               all values                             n, for the tuple that it gives
fold with inverse     what the user's functions make         what they cost
fold without          all values                             n calls of combine
====================  =====================================  ==============================

**Functions that raise.** When the errors of a query are diverted, a value that cannot be put in counts as not
there (`change`): of a minimum one that cannot be compared, of a fold one on which ``combine`` raises. The step
must not raise itself, because a reduction skips an element whose step raises: what the same element takes out
would stay in, and the next change would take out what never came in. So the step remembers the rows that are
left out, and notes the call that raised. A map behind it makes the same call again and lets it raise (`again`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

from emberflow.dsl.operators.changes.totals import Total
from emberflow.errors import shortened
from emberflow.values.functions import UserFunction, itself
from emberflow.values.hashing import encode_key
from emberflow.values.persistent_map import PersistentMap


@dataclass(frozen=True, slots=True)
class Aggregate:
    """``put(held, row's key, value)`` and ``take`` are inverse; ``result(held, how many values)``."""

    nothing: Any
    put: Callable[[Any, Any, Any], Any]
    take: Callable[[Any, Any, Any], Any]
    result: Callable[[Any, int], Any]
    #: Another value in the place of one that is taken out; otherwise it is taken out and put in.
    replace: Callable[[Any, Any, Any], Any] | None = None
    #: Makes the value that is put in and taken out, and raises if there is none.
    lift: Callable[[Any], Any] = itself
    given: tuple[UserFunction, ...] = ()
    #: How to tell it from others of the same name, for people.
    form: str = ""
    #: Whether ``put``, ``take`` or ``result`` may raise.
    may_raise: bool = True
    #: The result if ``result`` raises; None stands for no result.
    otherwise: Callable[[Any, int], Any] | None = None


#: A call that raised: which function of the aggregate, and its arguments.
_Call: TypeAlias = tuple[str, tuple[Any, ...]]

_NO_KEYS: PersistentMap[bytes, None] = PersistentMap()


class Step:
    """Accumulators ``(how many, held, result before, result)`` of pieces ``(group, key, before, after)``.

    If rows are left out, or something has just raised, the encodings of the keys of these rows come behind it,
    and ``(piece, calls that raised)``.
    """

    __slots__ = ("aggregate",)

    def __init__(self, aggregate: Aggregate) -> None:
        self.aggregate = aggregate

    def first(self, piece: tuple[Any, Any, Any, Any]) -> Any:
        return self((0, self.aggregate.nothing, None, None), piece)

    def __call__(self, accumulator: Any, piece: tuple[Any, Any, Any, Any]) -> Any:
        if len(accumulator) == 4:
            try:
                return self._plainly(accumulator, piece)
            except Exception:
                pass
        return self._carefully(accumulator, piece)

    def _plainly(self, accumulator: Any, piece: tuple[Any, Any, Any, Any]) -> Any:
        count, held, _, result = accumulator
        _, key, before, after = piece
        aggregate = self.aggregate
        if before is not None and after is not None and aggregate.replace is not None:
            held = aggregate.replace(held, key, after)
        else:
            if before is not None:
                held = aggregate.take(held, key, before)
                count -= 1
            if after is not None:
                held = aggregate.put(held, key, after)
                count += 1
        if not count:
            return 0, aggregate.nothing, result, None
        return count, held, result, aggregate.result(held, count)

    def _carefully(self, accumulator: Any, piece: tuple[Any, Any, Any, Any]) -> Any:
        """The same where something raises, or rows are left out."""
        count, held, _, result = accumulator[:4]
        left_out = accumulator[4] if len(accumulator) > 4 else _NO_KEYS
        _, key, before, after = piece
        aggregate, code = self.aggregate, encode_key(key)
        raised: list[_Call] = []

        def tried(function: str, *arguments: Any) -> tuple[Any, bool]:
            try:
                return getattr(aggregate, function)(*arguments), True
            except Exception:
                raised.append((function, arguments))
                return None, False

        was_in = before is not None and code not in left_out
        left_out = left_out.remove(code)
        if was_in and after is not None and aggregate.replace is not None:
            held = aggregate.replace(held, key, after)
        else:
            if was_in:
                other, is_taken = tried("take", held, key, before)
                held = other if is_taken else held
                count -= 1
            if not count:
                held = aggregate.nothing
            if after is not None:
                other, is_put = tried("put", held, key, after)
                if is_put:
                    held, count = other, count + 1
                else:
                    left_out = left_out.set(code, None)
        now = None
        if count:
            now, is_known = tried("result", held, count)
            if not is_known and aggregate.otherwise is not None:
                now = aggregate.otherwise(held, count)
        made = (count, held, result, now)
        return (*made, left_out, (piece, tuple(raised))) if left_out or raised else made


def again(aggregate: Aggregate, accumulator: Any) -> None:
    """Call what raised when the accumulator was made: it raises again."""
    if len(accumulator) > 4:
        for function, arguments in accumulator[5][1]:
            getattr(aggregate, function)(*arguments)


def piece_of(accumulator: Any) -> Any:
    """The piece on which something raised."""
    return accumulator[5][0] if len(accumulator) > 4 else accumulator


def count() -> Aggregate:
    return Aggregate(None, _same, _same, lambda held, count: count, may_raise=False)


def _same(held: Any, key: Any, value: Any) -> Any:
    return held


def total() -> Aggregate:
    return Aggregate(Total(), _plus, _minus, lambda held, count: held.value(), lift=_number)


def mean() -> Aggregate:
    return Aggregate(Total(), _plus, _minus, lambda held, count: held.mean(), lift=_number)


def _number(value: Any) -> Any:
    if not hasattr(value, "__add__") or not hasattr(value, "__sub__"):
        raise TypeError(f"a sum takes what can be added and subtracted, got {shortened(value)}")
    return value


def _plus(held: Total, key: Any, number: Any) -> Total:
    return held.plus(number)


def _minus(held: Total, key: Any, number: Any) -> Total:
    return held.plus(number, -1)


def least() -> Aggregate:
    return Aggregate(
        PersistentMap(), _counted, _uncounted, lambda held, count: held.first(), lift=_ordered
    )


def greatest() -> Aggregate:
    return Aggregate(
        PersistentMap(), _counted, _uncounted, lambda held, count: held.last(), lift=_ordered
    )


def _ordered(value: Any) -> Any:
    if value != value:
        raise ValueError(f"min and max take values that have an order, got {shortened(value)}")
    return value


def _counted(held: PersistentMap[Any, int], key: Any, value: Any) -> PersistentMap[Any, int]:
    return held.set(value, (held.get(value) or 0) + 1)


def _uncounted(held: PersistentMap[Any, int], key: Any, value: Any) -> PersistentMap[Any, int]:
    left = (held.get(value) or 0) - 1
    return held.set(value, left) if left > 0 else held.remove(value)


class Distinct(NamedTuple):
    """How often each value occurs, by its encoding, and how many there are."""

    counts: PersistentMap[bytes, int]
    size: int


def count_distinct() -> Aggregate:
    return Aggregate(
        Distinct(PersistentMap(), 0),
        _with_value,
        _without_value,
        lambda held, count: held.size,
        lift=encode_key,
        may_raise=False,
    )


def _with_value(held: Distinct, key: Any, value: bytes) -> Distinct:
    before = held.counts.get(value) or 0
    return Distinct(held.counts.set(value, before + 1), held.size + (not before))


def _without_value(held: Distinct, key: Any, value: bytes) -> Distinct:
    counts = _uncounted(held.counts, key, value)
    return Distinct(counts, held.size - (counts.get(value) is None))


class Rows(NamedTuple):
    """Values in the order in which their rows came into the group."""

    entered: int
    #: The number of a row, by the encoding of its key.
    numbers: PersistentMap[bytes, int]
    values: PersistentMap[int, Any]

    def with_row(self, key: Any, value: Any) -> Rows:
        """With a row, or with another value of it."""
        encoded = encode_key(key)
        number = self.numbers.get(encoded)
        if number is not None:
            return self._replace(values=self.values.set(number, value))
        return Rows(
            self.entered + 1,
            self.numbers.set(encoded, self.entered),
            self.values.set(self.entered, value),
        )

    def without_row(self, key: Any) -> Rows:
        encoded = encode_key(key)
        number = self.numbers.get(encoded)
        if number is None:
            return self
        return self._replace(
            numbers=self.numbers.remove(encoded), values=self.values.remove(number)
        )

    def in_order(self) -> list[Any]:
        return list(self.values.values())


_NO_ROWS = Rows(0, PersistentMap(), PersistentMap())


def collect() -> Aggregate:
    return _of_rows(lambda rows, count: tuple(rows.in_order()), may_raise=False)


def _of_rows(result: Callable[[Rows, int], Any], **more: Any) -> Aggregate:
    return Aggregate(
        _NO_ROWS,
        put=_with_row,
        take=_without_row,
        result=result,
        replace=_with_row,
        **more,
    )


def _with_row(rows: Rows, key: Any, value: Any) -> Rows:
    return rows.with_row(key, value)


def _without_row(rows: Rows, key: Any, value: Any) -> Rows:
    return rows.without_row(key)


def folded(
    initial: Any, combine: Callable[[Any, Any], Any], inverse: Callable[[Any, Any], Any] | None
) -> Aggregate:
    given = (UserFunction("combine", combine),)
    if inverse is None:

        def combined(held: Any, value: Any) -> Any:
            try:
                return combine(held, value)
            except Exception:
                return held

        return _of_rows(
            lambda rows, count: reduce(combine, rows.in_order(), initial),
            otherwise=lambda rows, count: reduce(combined, rows.in_order(), initial),
            given=given,
        )
    takes_out = inverse
    return Aggregate(
        initial,
        put=lambda held, key, value: combine(held, value),
        take=lambda held, key, value: takes_out(held, value),
        result=lambda held, count: held,
        given=(*given, UserFunction("inverse", inverse)),
        form=" with an inverse",
    )
