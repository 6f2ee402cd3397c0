"""`join_latest` and `enrich`: each payload meets the latest one of the other side.

What is held for a key does not grow: the last payload of each side, or that of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emberflow.dsl.operators.joins.sides import LEFT, RIGHT, Mapped, Step, two_sided
from emberflow.values.functions import UserFunction

if TYPE_CHECKING:
    from emberflow.dsl.streams import KeyedStream, Stream


def join_latest(
    left: KeyedStream[Any, Any],
    right: KeyedStream[Any, Any],
    combine: Callable[[Any, Any], Any],
    *,
    name: str | None,
) -> Stream[Any]:
    """See `KeyedStream.join_latest`."""
    with left.flow._scope("join_latest", name):
        return two_sided(left, right, Latest(combine), UserFunction("combine", combine))


def enrich(
    stream: KeyedStream[Any, Any],
    table: KeyedStream[Any, Any],
    combine: Callable[[Any, Any], Any],
    *,
    of_changes: bool,
    default: Any,
    name: str | None,
) -> Stream[Any]:
    """See `KeyedStream.enrich`. With ``of_changes`` the payloads of the table are changes."""
    operator = "enrich with changes" if of_changes else "enrich"
    with stream.flow._scope("enrich", name, operator=operator):
        step = (EnrichedByChanges if of_changes else Enriched)(combine, default)
        return two_sided(stream, table, step, UserFunction("combine", combine))


class Latest(Step):
    """Holds the last payload of each side, as ``()`` or ``(payload,)``."""

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        self.combine = combine

    def __call__(self, accumulator: tuple[Any, Any], mapped: Mapped) -> Any:
        left, right = accumulator[0]
        side, _, payload = mapped
        if side is LEFT:
            left = (payload,)
        else:
            right = (payload,)
        emitted = (self.combine(left[0], right[0]),) if left and right else ()
        return (left, right), emitted


class Enriched(Step):
    """Holds the last payload of the table, as ``()`` or ``(payload,)``."""

    nothing_held = ()

    def __init__(self, combine: Callable[[Any, Any], Any], default: Any) -> None:
        self.combine = combine
        self.default = default

    def __call__(self, accumulator: tuple[Any, Any], mapped: Mapped) -> Any:
        held = accumulator[0]
        side, _, payload = mapped
        if side is RIGHT:
            return (payload,), ()
        return held, (self.combine(payload, held[0] if held else self.default),)


class EnrichedByChanges(Enriched):
    """The same with a table that is told by its changes."""

    def __call__(self, accumulator: tuple[Any, Any], mapped: Mapped) -> Any:
        side, _, change = mapped
        if side is RIGHT:
            return () if change.after is None else (change.after,), ()
        return super().__call__(accumulator, mapped)
