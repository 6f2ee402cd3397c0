"""Copies and comparison of values: what 'the same result' means.

Guarantees:

- `same(a, b)` is true for values that no pure function downstream could tell apart. Containers are
  compared part by part, a `dict` including its order; dataclasses by their compared fields; other
  types by their ``__eq__``; types without one by type and state. So two objects without ``__eq__``
  are the same if they hold the same, and NaN is the same as NaN.
- `fingerprint(a) == fingerprint(b)` only if both have the same type and state throughout. It is
  stricter than `same`: it can recognise equal arguments, but it cannot prove a difference.
- Both raise `NotComparableError` for values that Python cannot look into (a lock, a generator).

A ``set`` is a value without an order. A function that iterates over one and makes a list of it
gives that list an order: there the difference shows, and that function is to blame.

Copies are made with cloudpickle, because they also travel to other processes, which cannot import a
class of ``__main__`` or of a function's body by name.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pickle
import types
import warnings
from enum import Enum
from typing import Any, TypeAlias

import cloudpickle

_ATOMS = frozenset((type(None), bool, int, str, bytes, bytearray, range, type(...)))
_NUMBERS = frozenset((float, complex))
_NAMED = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ModuleType,
)

#: Pairs being compared, kept with the objects: an id is valid only while its object lives.
_Open: TypeAlias = dict[tuple[int, int], tuple[Any, Any]]


class NotComparableError(Exception):
    """A value that cannot be inspected, so it cannot be compared."""


def saved(value: Any) -> bytes:
    """Serialize a value, for this process or another one."""
    data: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return data


def fresh(data: bytes) -> Any:
    """A copy of a saved value that shares nothing with other copies."""
    return pickle.loads(data)


def same(one: Any, other: Any) -> bool:
    """Whether no pure function could tell two values apart.

    >>> same([1, float("nan")], [1, float("nan")]), same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    (True, False)
    """
    try:
        return _same(one, other, {})
    except RecursionError as error:
        raise NotComparableError("nested too deeply") from error


def _same(one: Any, other: Any, open_: _Open) -> bool:
    kind = _class_of(one)
    if one is other:
        return True
    if kind is not _class_of(other):
        return False
    if kind in _ATOMS:
        return bool(one == other)
    if kind in _NUMBERS:
        return repr(one) == repr(other)  # 0.0 and -0.0 differ: they print differently
    pair = (id(one), id(other))
    if pair in open_:
        return True  # a cycle: the other parts decide
    open_[pair] = (one, other)
    if isinstance(one, list | tuple) and kind.__eq__ in (list.__eq__, tuple.__eq__):
        return _all_same(one, other, open_)
    if isinstance(one, dict):
        return _all_same(list(one.items()), list(other.items()), open_)
    if isinstance(one, set | frozenset):
        return one == other or _members(one) == _members(other)
    if _compares_fields(kind):
        fields = [field.name for field in dataclasses.fields(one) if field.compare]
        return all(_same(getattr(one, name), getattr(other, name), open_) for name in fields)
    return _are_equal(one, other) or _same(state_of(one), state_of(other), open_)


def _all_same(some: Any, others: Any, open_: _Open) -> bool:
    return len(some) == len(others) and all(
        _same(one, other, open_) for one, other in zip(some, others, strict=True)
    )


def _are_equal(one: Any, other: Any) -> bool:
    if _class_of(one).__eq__ is object.__eq__:
        return False
    try:
        return bool(one == other)
    except Exception:  # arrays have no single truth value; compare their state
        return False


def _class_of(value: Any) -> Any:
    return type(value)


@functools.cache
def _compares_fields(kind: Any) -> bool:
    """Whether the class uses the ``__eq__`` that `dataclass` generates."""
    code = getattr(kind.__eq__, "__code__", None)
    return dataclasses.is_dataclass(kind) and code is not None and code.co_filename == "<string>"


def fingerprint(value: Any) -> str:
    """A digest of type and state that is the same in every process.

    >>> fingerprint({"a", "b", "c"}) == fingerprint({"c", "b", "a"})
    True
    """
    try:
        return hashlib.sha256(repr(_form(value, ())).encode(errors="replace")).hexdigest()
    except RecursionError as error:
        raise NotComparableError("nested too deeply") from error


def _form(value: Any, path: tuple[int, ...]) -> tuple[Any, ...]:
    kind = type(value)
    if kind in _ATOMS or kind in _NUMBERS:
        return kind.__qualname__, repr(value)
    if id(value) in path:
        return "again", path.index(id(value))
    path = (*path, id(value))
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, list | tuple):
        return name, *(_form(part, path) for part in value)
    if isinstance(value, dict):
        return name, *((_form(key, path), _form(held, path)) for key, held in value.items())
    if isinstance(value, set | frozenset):
        return name, *sorted(repr(_form(part, path)) for part in value)
    return name, _form(state_of(value), path)


def _members(values: Any) -> list[str]:
    return sorted(repr(_form(value, ())) for value in values)


def state_of(value: Any) -> Any:
    """What pickle would need to make the object again, without cached properties."""
    if isinstance(value, _NAMED):
        return getattr(value, "__module__", None), getattr(value, "__qualname__", value.__name__)
    if isinstance(value, Enum):
        return value.name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # itertools deprecates copying
            reduced = value.__reduce_ex__(4)
    except Exception as error:
        raise NotComparableError(f"a {type(value).__qualname__} cannot be copied") from error
    if isinstance(reduced, str):
        return reduced
    make, arguments, *rest = reduced
    state, items, pairs = (*rest, None, None, None)[:3]
    return (
        make,
        arguments,
        _without_caches(type(value), state),
        list(items or ()),
        list(pairs or ()),
    )


def _without_caches(kind: type, state: Any) -> Any:
    if isinstance(state, tuple):  # a pair of __dict__ and slots
        return tuple(_without_caches(kind, part) for part in state)
    if not isinstance(state, dict):
        return state
    return {
        name: held
        for name, held in state.items()
        if not isinstance(getattr(kind, str(name), None), functools.cached_property)
    }
