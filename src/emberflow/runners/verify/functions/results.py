"""Values that are copied, compared and recognised: what 'the same result' means.

Guarantees:

- `same(a, b)` is true for values that no pure function downstream could tell apart. Containers are
  compared part by part, a `dict` with its order; dataclasses by the fields that they compare;
  whatever else defines an equality, by it; and what has none, by its type and state. So two objects
  without ``__eq__`` are the same if they hold the same, and NaN is the same as NaN.
- `fingerprint(a) == fingerprint(b)` only if the two have the same type and state throughout. It is
  stricter than `same`: good for finding the same arguments again, never for telling a difference.
- Both raise `NotComparableError` where Python gives no way to look inside (a lock, a generator).

A ``set`` is a value without an order. Who goes through one in the order of its hashes makes a list
of it, and that list has an order: this is where the difference shows, and who is to blame for it.

Copies are made with cloudpickle, because they also go to other processes, where a class of
``__main__`` or of a function's body cannot be looked up by its name.
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

#: Pairs that are being compared, with the objects: an id is good only while its object lives.
_Open: TypeAlias = dict[tuple[int, int], tuple[Any, Any]]


class NotComparableError(Exception):
    """A value that cannot be looked into, so that nothing can be said of it."""


def saved(value: Any) -> bytes:
    """A value as bytes, for this process or another one."""
    data: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return data


def fresh(data: bytes) -> Any:
    """A copy of what was saved, with nothing in common with any other copy."""
    return pickle.loads(data)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same for all that a pure function could do with them.

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
        return repr(one) == repr(other)  # 0.0 is not -0.0: they print differently
    pair = (id(one), id(other))
    if pair in open_:
        return True  # a cycle: the rest decides
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
    except Exception:  # an array has no single truth; its state tells
        return False


def _class_of(value: Any) -> Any:
    return type(value)


@functools.cache
def _compares_fields(kind: Any) -> bool:
    """Whether the equality of a class is the one that `dataclass` makes."""
    code = getattr(kind.__eq__, "__code__", None)
    return dataclasses.is_dataclass(kind) and code is not None and code.co_filename == "<string>"


def fingerprint(value: Any) -> str:
    """A digest of type and state: the same in every process for what it can look into.

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
    """What makes an object: how it would be made again, without what it only caches."""
    if isinstance(value, _NAMED):
        return getattr(value, "__module__", None), getattr(value, "__qualname__", value.__name__)
    if isinstance(value, Enum):
        return value.name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # itertools: to be copied is deprecated
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
    if isinstance(state, tuple):  # of the __dict__ and the slots
        return tuple(_without_caches(kind, part) for part in state)
    if not isinstance(state, dict):
        return state
    return {
        name: held
        for name, held in state.items()
        if not isinstance(getattr(kind, str(name), None), functools.cached_property)
    }
