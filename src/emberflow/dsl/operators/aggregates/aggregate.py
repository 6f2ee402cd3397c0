"""An aggregate: pure functions that make one value of many payloads, one payload at a time.

`KeyedStream` runs it over all payloads of a key, as a `reduce`; windows run it over the payloads of a
window. It is the same object in both, and `several` makes one aggregate of many, so whatever can be
aggregated alone can be aggregated together.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from emberflow.dsl.operators.reduce import reduce
from emberflow.errors import FlowError
from emberflow.values.functions import UserFunction, caller, itself

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream

T = TypeVar("T")
A = TypeVar("A")
T_contra = TypeVar("T_contra", contravariant=True)


class _Empty(Enum):
    """The accumulator of an aggregate that has taken no payload yet. An enum stays itself in a pickle."""

    EMPTY = "empty"


EMPTY = _Empty.EMPTY


class Parts(NamedTuple):
    """What an aggregate is made of: of which payloads, of what of them, and what is done with that.

    `several` calls a function that aggregates have in common once for each payload.
    """

    #: What the steps take of a payload: functions, one after the other.
    select: tuple[Callable[[Any], Any], ...]
    begin: Callable[[Any], Any]
    step: Callable[[Any, Any], Any]
    #: Which payloads; None for all.
    holds: Callable[[Any], object] | None = None
    #: If not all: the result of those, and what it is without any.
    result: Callable[[Any], Any] | None = None
    otherwise: Any = None
    #: The step as an expression of ``{held}`` and ``{value}``, if that is quicker than a call.
    written: str | None = None
    #: Whether ``begin`` and ``step`` never raise. Then nobody has to be shown the payload.
    never_fails: bool = False
    #: Whether the steps look at the value at all. A count does not.
    looks: bool = True


class Projected(NamedTuple):
    """An aggregate in two stages: what it needs of a payload, and an aggregate of that.

    The first is computed where the payload is, before it travels to the worker of its key: by many workers
    although a key has one, and with less to send.
    """

    project: Callable[[Any], Any]
    first: Callable[[Any], Any]
    combine: Callable[[Any, Any], Any]


class Aggregate(Generic[T_contra]):
    """How payloads become one value: ``first(payload)`` starts an accumulator, ``combine(accumulator,
    payload)`` makes the next one, and ``result(accumulator)``, if given, the value.

    Accumulators are values: ``combine`` returns a new one and leaves the old one as it was. If two
    accumulators can be merged, the one of the earlier payloads first, ``merge`` makes windows with
    `KeyedStream.over` quick.

    >>> import emberflow as ef
    >>> spread = ef.Aggregate(
    ...     first=lambda n: (n, n),
    ...     combine=lambda held, n: (min(held[0], n), max(held[1], n)),
    ...     result=lambda held: held[1] - held[0],
    ... )
    >>> flow = ef.Flow("spread")
    >>> numbers = flow.front("numbers").key_by(lambda n: "all")
    >>> numbers.aggregate(spread=spread, count=ef.count()).sink("out")
    >>> for result in ef.run(flow, numbers=[4, 9, 2])["out"]:
    ...     print(result)
    ('all', Aggregates(spread=0, count=1))
    ('all', Aggregates(spread=5, count=2))
    ('all', Aggregates(spread=7, count=3))
    """

    __slots__ = ("combine", "first", "given", "merge", "parts", "projected", "result")

    def __init__(
        self,
        *,
        first: Callable[[T_contra], A],
        combine: Callable[[A, T_contra], A],
        result: Callable[[A], Any] | None = None,
        merge: Callable[[A, A], A] | None = None,
        given: tuple[UserFunction, ...] | None = None,
        parts: Parts | None = None,
        projected: Projected | None = None,
    ) -> None:
        """``given`` are the user's functions, if the others are not they but call them. ``parts``, and
        ``projected``, do what ``first`` and ``combine`` do."""
        functions = {"first": first, "combine": combine, "result": result, "merge": merge}
        for role, function in functions.items():
            is_left_out = function is None and role in ("result", "merge")
            if not is_left_out and not callable(function):
                raise FlowError(
                    f"Aggregate({role}=) takes a function, got {function!r} at {caller()}."
                )
        self.first: Callable[[Any], Any] = first
        self.combine: Callable[[Any, Any], Any] = combine
        self.result: Callable[[Any], Any] | None = result
        self.merge: Callable[[Any, Any], Any] | None = merge
        self.parts = Parts((), first, combine) if parts is None else parts
        self.projected = projected
        self.given = (
            tuple(UserFunction(role, own) for role, own in functions.items() if own is not None)
            if given is None
            else given
        )

    def __repr__(self) -> str:
        return f"Aggregate({', '.join(map(str, self.given))})"

    def where(self, predicate: Callable[[T], object], *, otherwise: Any = None) -> Aggregate[T]:
        """The same over those payloads only for which the predicate holds; ``otherwise`` if there are none.

        >>> import emberflow as ef
        >>> flow = ef.Flow("longest")
        >>> words = flow.front("words").key_by(lambda word: None)
        >>> longest = ef.Aggregate(
        ...     first=lambda word: word, combine=lambda held, word: max(held, word, key=len)
        ... )
        >>> words.aggregate(of_b=longest.where(lambda word: word[0] == "b")).sink("out")
        >>> [of_b for _, (of_b,) in ef.run(flow, words=["ash", "bee", "birch"])["out"]]
        [None, 'bee', 'birch']
        """
        if not callable(predicate):
            raise FlowError(
                f"where= takes a function of the payload, got {predicate!r}, {caller()}."
            )
        begin, combine, result, merge = self.first, self.combine, self.result or itself, self.merge
        parts = None
        if self.parts.holds is None:
            parts = self.parts._replace(holds=predicate, result=self.result, otherwise=otherwise)

        def first(payload: Any) -> Any:
            return begin(payload) if predicate(payload) else EMPTY

        def combined(held: Any, payload: Any) -> Any:
            if not predicate(payload):
                return held
            return begin(payload) if held is EMPTY else combine(held, payload)

        def merged(held: Any, later: Any) -> Any:
            if held is EMPTY:
                return later
            return held if later is EMPTY else merge(held, later)  # type: ignore[misc]

        return Aggregate(
            first=first,
            combine=combined,
            result=lambda held: otherwise if held is EMPTY else result(held),
            merge=None if merge is None else merged,
            given=(*self.given, UserFunction("where", predicate)),
            parts=parts,
        )


def aggregate(
    stream: KeyedStream[Any, Any],
    aggregate: Aggregate[Any],
    label: str,
    name: str | None,
    expires: int | None = None,
) -> Stream[tuple[Any, Any]]:
    """``(key, result so far)`` for each payload."""
    result, projected = aggregate.result, aggregate.projected
    with stream.flow._scope(label, name):
        reduced = reduce(
            stream,
            aggregate.first if projected is None else projected.first,
            aggregate.combine if projected is None else projected.combine,
            with_key=True,
            name="reduce",
            given=aggregate.given,
            project=None if projected is None else projected.project,
            expires=expires,
        )
        if result is None:
            return reduced
        return reduced._map(
            lambda pair: (pair[0], result(pair[1])), "one", *aggregate.given, name="result"
        )
