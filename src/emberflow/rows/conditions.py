"""Conditions on the key of a state's row: those that SQL has, as plain data.

A condition is data and no function, because it travels: from the process that plans a read to the
tasks, and to a live query, which does not run the code of its clients.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from emberflow.errors import InputError
from emberflow.values.hashing import key_hash

#: With more keys than this a full scan is not much slower.
KEYS_MAX = 10_000

EQUAL, WITHIN, IS_NULL = "=", "in", "is null"
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    EQUAL: operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "starts with": str.startswith,
    "ends with": str.endswith,
    "contains": operator.contains,
    WITHIN: lambda key, values: key in values,
    IS_NULL: lambda key, _: key is None,
    "is not null": lambda key, _: key is not None,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """``field`` is the name and the index of the field of the key that it tests."""

    operation: str
    value: Any = None
    field: tuple[str, int] | None = None

    def __call__(self, key: Any) -> bool:
        if self.field is not None and key is not None:
            name, number = self.field
            key = key[number] if isinstance(key, tuple) else getattr(key, name)
        # In SQL a comparison with null is unknown, and a filter passes only what is true.
        is_known = key is not None or self.operation == IS_NULL
        return is_known and bool(_OPERATIONS[self.operation](key, self.value))

    def to_plain(self) -> list[Any]:
        """As values that a message can hold.

        >>> Condition("in", frozenset([datetime.date(2026, 3, 4)])).to_plain()
        ['in', [{'date': '2026-03-04'}], None]
        """
        value = self.value
        plain = list(map(_plain, value)) if self.operation == WITHIN else _plain(value)
        return [self.operation, plain, None if self.field is None else list(self.field)]

    @classmethod
    def of_plain(cls, stored: Any) -> Condition:
        """The inverse of `to_plain`. Raises `InputError`."""
        try:
            operation, plain, field = stored
            if operation not in _OPERATIONS:
                raise ValueError(f"operation {operation!r}")
            value = frozenset(map(_value, plain)) if operation == WITHIN else _value(plain)
            if field is None:
                return cls(operation, value)
            name, number = field
            if not isinstance(name, str) or type(number) is not int or name.startswith("__"):
                raise ValueError(f"field {field!r}")
            return cls(operation, value, (name, number))
        except (ValueError, TypeError) as error:
            raise InputError(f"a read has a condition that is none: {error}.") from None


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, datetime.date):
        return {"date": value.isoformat()}
    return value


def _value(plain: Any) -> Any:
    match plain:
        case {"datetime": str(text)}:
            return datetime.datetime.fromisoformat(text)
        case {"date": str(text)}:
            return datetime.date.fromisoformat(text)
        case None | bool() | int() | float() | str() | bytes():
            return plain
    raise ValueError(f"value of type {type(plain).__qualname__}")


def choices(conditions: Iterable[Condition]) -> dict[tuple[str, int] | None, frozenset[Any]]:
    """By field of the key, or None for the whole key: the only values that the conditions allow."""
    found: dict[tuple[str, int] | None, frozenset[Any]] = {}
    for one in conditions:
        if one.operation in (EQUAL, WITHIN):
            own = frozenset([one.value]) if one.operation == EQUAL else one.value
            found[one.field] = found.get(one.field, own) & own
    return found


def only_keys(conditions: Iterable[Condition]) -> tuple[Any, ...] | None:
    """The only keys that can pass, if they have no fields and are few. They still have to pass."""
    found = choices(conditions).get(None)
    return None if found is None or len(found) > KEYS_MAX else tuple(found)


def passes(
    conditions: tuple[Condition, ...], hashes: tuple[int, int] | None, key: Any, value: Any = None
) -> bool:
    """Whether a row matches all conditions, and its key is in the range of hashes."""
    if hashes is not None and not hashes[0] <= key_hash(key) <= hashes[1]:
        return False
    return all(condition(key) for condition in conditions)
