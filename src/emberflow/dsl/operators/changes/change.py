"""`Change`: how the value of a key changes, and how changes follow from each other.

A stream of changes describes a table with one value for each key. It keeps a rule that everything built
on it relies on: the ``before`` of a change is the ``after`` of the last change of its key, or None. So
whoever holds something made of the values of the table (a sum, a join) can take ``before`` out of it and
put ``after`` in.

**Functions that raise.** A function of values that raises when the errors of a query are diverted must
not break the rule. If the item of a change were simply dropped, the next change would take back what
never was there. So a value for which a function raises counts as not there, before and after alike. A
second map calls the function once more and lets it raise, so that the error is told: it ends the query,
or goes to the errors sink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from emberflow.graph.nodes import Merge
from emberflow.values.functions import UserFunction
from emberflow.values.item import At

if TYPE_CHECKING:
    from emberflow.dsl.streams import Stream

K = TypeVar("K")
V = TypeVar("V")


class Change(NamedTuple, Generic[K, V]):
    """The value of a key has changed. None stands for a value that is not there.

    >>> Change("tea", None, 3).kind, Change("tea", 3, 4).kind, Change("tea", 4, None).kind
    ('insert', 'update', 'delete')
    """

    key: K
    before: V | None
    after: V | None

    @property
    def kind(self) -> Literal["insert", "update", "delete"]:
        if self.before is None:
            return "insert"
        return "delete" if self.after is None else "update"


def changed(key: Any, before: Any, after: Any) -> tuple[Change[Any, Any], ...]:
    """The change from one value to another; none if they are equal."""
    if before is after or before == after:
        return ()
    return (Change(key, before, after),)


def key_of(change: tuple[Any, ...]) -> Any:
    """The first part: of a change and of an upsert the key, of a piece the group."""
    return change[0]


def derived(
    stream: Stream[Any],
    function: Callable[[Any], Any],
    made: Callable[[Change[Any, Any], Any, Any], Any],
    *given: UserFunction,
) -> Stream[Any]:
    """``made(change, function(before), function(after))``, any number of payloads, of each change.

    ``function`` gives None for a value that is not there any more. ``given`` are the user's functions
    that it calls.
    """
    # The check comes first: where an error ends the query, nothing of its element has left.
    checks = stream._map(_Checked(function), "many", *given, name="check", schedules=False)
    makes = stream._map(_Derived(function, made), "many", *given, name="made", schedules=False)
    return stream.flow._add(Merge, "changes", inputs=(checks._input, makes._input))


class _Checked:
    """Calls a function with the new value, and lets it raise. Emits nothing."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, change: Change[Any, Any]) -> tuple[Any, ...]:
        after = change[2]
        if after is not None:
            result = self.function(after)
            if result.__class__ is At:
                return (result,)  # refused, with an error that says who schedules
        return ()


class _Derived:
    """See `derived`."""

    __slots__ = ("function", "made")

    def __init__(
        self, function: Callable[[Any], Any], made: Callable[[Change[Any, Any], Any, Any], Any]
    ) -> None:
        self.function = function
        self.made = made

    def __call__(self, change: Change[Any, Any]) -> Any:
        _, before, after = change
        return self.made(change, self._of(before), self._of(after))

    def _of(self, value: Any) -> Any:
        if value is None:
            return None
        try:
            result = self.function(value)
        except Exception:  # told by the check
            return None
        return None if result.__class__ is At else result
