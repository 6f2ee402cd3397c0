"""`rank`: the position of each payload among those of its key so far.

Without ``by`` that is how many have come, so a number is all that is held. With ``by`` the ranks of all
payloads are held, sorted, in a persistent map that counts in logarithmic time how many are above one. The
number of the payload is part of the key there, so that equal ranks are several entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emberflow.dsl.operators.reduce import reduce
from emberflow.errors import FlowError
from emberflow.values.functions import UserFunction, caller
from emberflow.values.persistent_map import PersistentMap

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream


def rank(
    stream: KeyedStream[Any, Any], by: Callable[[Any], Any] | None, name: str | None
) -> Stream[Any]:
    """See `KeyedStream.rank`."""
    if by is not None and not callable(by):
        raise FlowError(f"rank(by=) takes a function of the payload, got {by!r} at {caller()}.")
    step = _numbered if by is None else _Ranked(by)
    given = () if by is None else (UserFunction("by", by),)
    first: Any = _first if by is None else step.first  # type: ignore[attr-defined]
    with stream.flow._scope("rank", name):
        ranked = reduce(stream, first, step, with_key=False, name="reduce", given=given)
        return ranked._map(_position, "one", name="position", schedules=False)


# The accumulator is (state, payload, its position).


def _position(accumulator: tuple[Any, Any, int]) -> tuple[Any, int]:
    return accumulator[1], accumulator[2]


def _first(payload: Any) -> Any:
    return None, payload, 1


def _numbered(accumulator: tuple[Any, Any, int], payload: Any) -> Any:
    return None, payload, accumulator[2] + 1


class _Ranked:
    __slots__ = ("by",)

    def __init__(self, by: Callable[[Any], Any]) -> None:
        self.by = by

    def first(self, payload: Any) -> Any:
        return self((PersistentMap(), None, 0), payload)

    def __call__(self, accumulator: tuple[Any, Any, int], payload: Any) -> Any:
        ranks: PersistentMap[tuple[Any, int], None] = accumulator[0]
        # Its number is the greatest so far, so those above have a greater rank.
        entry = (self.by(payload), len(ranks))
        return ranks.set(entry, None), payload, 1 + ranks.count_above(entry)
