"""What the methods of `Changes` do to the values of a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emberflow.dsl.operators.changes.change import Change, changed


class Kept:
    """A value for which the predicate holds; None for others."""

    __slots__ = ("predicate",)

    def __init__(self, predicate: Callable[[Any], object]) -> None:
        self.predicate = predicate

    def __call__(self, value: Any) -> Any:
        return value if self.predicate(value) else None


def changed_value(
    change: Change[Any, Any], before: Any, after: Any
) -> tuple[Change[Any, Any], ...]:
    """The change of the same key between other values."""
    return changed(change.key, before, after)


def latest(change: Change[Any, Any]) -> tuple[Any, Any]:
    return change.key, change.after


def with_key(change: Change[Any, Any]) -> Change[Any, Any]:
    key, before, after = change
    return Change(
        key, None if before is None else (key, before), None if after is None else (key, after)
    )
