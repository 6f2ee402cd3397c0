"""Changes in groups: what a change does to each group, and aggregates of that.

A change is one *piece* or two: ``(group, key, before, after)``. A value that stays in its group is replaced
there. One that moves is taken out of a group by one piece and put into another by the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emberflow.dsl.operators.changes.aggregates import Aggregate, Step, again, piece_of
from emberflow.dsl.operators.changes.change import Change, changed, derived, key_of
from emberflow.dsl.operators.reduce import reduce
from emberflow.graph.nodes import Merge
from emberflow.values.functions import UserFunction, itself

if TYPE_CHECKING:
    from emberflow.dsl.streams import Stream


def pieces(
    stream: Stream[Change[Any, Any]],
    group: Callable[[Any], Any],
    of: Callable[[Any], Any] | None = None,
    lift: Callable[[Any], Any] = itself,
) -> Stream[tuple[Any, ...]]:
    """The pieces of each change, with ``lift(of(value))`` for a value."""
    given = [UserFunction("group", group)]
    if of is not None:
        given.append(UserFunction("of", of))
    return derived(stream, _Member(group, of, lift), _pieces_of, *given)


def aggregated(
    stream: Stream[Change[Any, Any]],
    group: Callable[[Any], Any],
    of: Callable[[Any], Any] | None,
    aggregate: Aggregate,
) -> Stream[Change[Any, Any]]:
    """The changes of the aggregate of each group."""
    step = Step(aggregate)
    reduced = reduce(
        pieces(stream, group, of, aggregate.lift).key_by(key_of),
        step.first,
        step,
        with_key=True,
        name="reduce",
        given=aggregate.given,
    )
    if not aggregate.may_raise:
        return reduced._map(_result, "many", *aggregate.given, name="change", schedules=False)
    # The check comes first, as in `derived`.
    checks = reduced._map(
        _Raising(aggregate),
        "many",
        *aggregate.given,
        name="raised",
        schedules=False,
        shown=lambda group: piece_of(group[1]),
    )
    results = reduced._map(_result, "many", *aggregate.given, name="change", schedules=False)
    return stream.flow._add(Merge, "results", inputs=(checks._input, results._input))


class _Raising:
    """Lets raise what the step has noted. Emits nothing."""

    __slots__ = ("aggregate",)

    def __init__(self, aggregate: Aggregate) -> None:
        self.aggregate = aggregate

    def __call__(self, group: tuple[Any, Any]) -> tuple[Any, ...]:
        again(self.aggregate, group[1])
        return ()


class _Member:
    """From a value to its group and what is aggregated of it; None if it takes no part."""

    __slots__ = ("group", "lift", "of")

    def __init__(
        self,
        group: Callable[[Any], Any],
        of: Callable[[Any], Any] | None,
        lift: Callable[[Any], Any],
    ) -> None:
        self.group = group
        self.of = of
        self.lift = lift

    def __call__(self, value: Any) -> tuple[Any, Any] | None:
        selected = value if self.of is None else self.of(value)
        return None if selected is None else (self.group(value), self.lift(selected))


def _pieces_of(
    change: Change[Any, Any], before: tuple[Any, Any] | None, after: tuple[Any, Any] | None
) -> list[tuple[Any, ...]]:
    key = change.key
    if before is not None and after is not None and before[0] == after[0]:
        return [(after[0], key, before[1], after[1])]
    found: list[tuple[Any, ...]] = []
    if before is not None:
        found.append((before[0], key, before[1], None))
    if after is not None:
        found.append((after[0], key, None, after[1]))
    return found


def _result(group: tuple[Any, Any]) -> tuple[Change[Any, Any], ...]:
    key, accumulator = group
    return changed(key, accumulator[2], accumulator[3])
