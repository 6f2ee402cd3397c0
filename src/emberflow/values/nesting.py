"""Values that are nested too deeply for pickle: they travel flat, and arrive as they were.

Pickle walks into a value by recursion, and gives up on JSON that is nested 500 levels deep. Such a record
is valid, and Python's JSON reader has made it. `Flat` has no recursion on either side: it lists what is
within lists, tuples and dicts, behind the values that they hold, and the reader puts them together again.
"""

from __future__ import annotations

import pickle
from typing import Any

#: Levels that a message adds around a payload, and frames that the stack may be deeper there: with room.
_LEVELS_AROUND = 40

#: How many of the values before it a container holds; None for a value that is no container.
_Step = tuple[type | None, Any]


class Flat:
    """Pickled, it is the value itself, by a way without recursion.

    >>> deep: list = []
    >>> for _ in range(5_000):
    ...     deep = [deep]
    >>> loaded = pickle.loads(pickle.dumps(Flat(deep)))
    >>> pickle.loads(pickle.dumps(Flat({"a": [(1, "b"), {}]})))
    {'a': [(1, 'b'), {}]}
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __reduce__(self) -> Any:
        return _put_together, (_steps(self._value),)


def can_be_pickled(payload: Any) -> bool:
    """Whether pickle takes a payload, also within a message."""
    nested = payload
    for _ in range(_LEVELS_AROUND):
        nested = [nested]
    try:
        pickle.dumps(nested)
    except Exception:  # pickling an arbitrary payload can raise anything
        return False
    return True


def is_nested_deeper(value: Any, levels: int) -> bool:
    """Whether lists, tuples and dicts are nested more than so many levels deep in a value.

    >>> is_nested_deeper([{"a": ()}], 3), is_nested_deeper([{"a": ()}], 2)
    (False, True)
    """
    layer = [value]
    for _ in range(levels + 1):
        held = [each for each in layer if isinstance(each, list | tuple | dict)]
        if not held:
            return False
        layer = [
            inner for each in held for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return True


def _steps(value: Any) -> list[_Step]:
    """How to make the value: what it holds comes before it."""
    steps: list[_Step] = []
    # Those to visit, and those to add when all that they hold has been added.
    waiting: list[tuple[Any, bool]] = [(value, False)]
    open_ids: set[int] = set()
    while waiting:
        current, is_visited = waiting.pop()
        kind = current.__class__
        if kind not in (list, tuple, dict):
            steps.append((None, current))
        elif is_visited:
            open_ids.remove(id(current))
            steps.append((kind, list(current) if kind is dict else len(current)))
        elif id(current) in open_ids:
            raise ValueError("a value that holds itself cannot travel")
        else:
            open_ids.add(id(current))
            waiting.append((current, True))
            held = current.values() if kind is dict else current
            waiting += [(each, False) for each in reversed(list(held))]
    return steps


def _put_together(steps: list[_Step]) -> Any:
    made: list[Any] = []
    for kind, held in steps:
        if kind is None:
            made.append(held)
            continue
        count = len(held) if kind is dict else held
        values = made[len(made) - count :]
        del made[len(made) - count :]
        made.append(dict(zip(held, values, strict=True)) if kind is dict else kind(values))
    return made[0]
