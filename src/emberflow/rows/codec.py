"""Payloads as bytes, for the way through Spark's shuffle.

Guarantee: a payload comes out as it went in, with the same types (``1`` is not ``True``), the same
classes, to the last bit. Spark's own types cannot promise that for any value that a user's function may
return. So a payload travels as bytes that only Python reads. There are four encodings, told apart by
the first byte:

- marshal, for values of Python's plain types: several times as fast as pickle. It would take a numpy
  number or a bytearray for bytes, so the encoder first looks at all types within, a batch at once;
- a named tuple of plain values: the name of its class, and its values by marshal;
- pickle, for everything else;
- pickle with class ids. A class that cannot be imported by its name (one of a script, for example)
  reaches the workers by value, with the flow. By value again with each payload it would cost kilobytes
  an item. So a payload has only the id under which cloudpickle knows the class, on the driver and on
  every worker.
"""

from __future__ import annotations

import importlib
import io
import marshal
import pickle
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

import cloudpickle
from cloudpickle import cloudpickle as _tracker

# None of these is a type code of marshal, and a pickle begins with 0x80.
_NAMED: Final = b"\x01"
_CLASS_IDS: Final = b"\x02"
_PICKLE_HEAD: Final = 0x80

#: Without back references: in values as small as payloads they cost more than they save.
_MARSHAL_VERSION: Final = 2

_ATOMS: Final = frozenset((str, int, float, bool, bytes, type(None)))
_CONTAINERS: Final = frozenset((tuple, list, dict))
_DEPTH_MAX: Final = 16


def encode_all(payloads: list[Any]) -> list[bytes]:
    """The bytes of each payload.

    >>> decode_all(encode_all(["a", ("b", True, 1), None]))
    ['a', ('b', True, 1), None]
    """
    kinds = set(map(type, payloads))
    if _are_plain(payloads, kinds):
        return list(map(marshal.dumps, payloads, repeat(_MARSHAL_VERSION)))
    if len(kinds) == 1:
        name = _name_of(next(iter(kinds)))
        if name and _are_plain(list(chain.from_iterable(payloads))):
            return [
                _NAMED + marshal.dumps((name, tuple(payload)), _MARSHAL_VERSION)
                for payload in payloads
            ]
    return list(map(_encode, payloads))


def encode(payload: Any) -> bytes:
    """The bytes of one payload."""
    return encode_all([payload])[0]


class Column(NamedTuple):
    """Payloads that travel together, as a list that marshal takes: far cheaper than one by one."""

    #: Empty for plain values; the name of a class of named tuples; or `_EACH`, for bytes of each.
    kind: str
    values: list[Any]
    #: How many bytes they have, approximately.
    size: int


#: No class has such a name.
_EACH: Final = "*"


def column_of(payloads: list[Any]) -> Column:
    """Payloads as a column."""
    kinds = set(map(type, payloads))
    if kinds == _TEXT:
        return Column("", payloads, sum(map(len, payloads)))
    if _are_plain(payloads, kinds):
        return Column("", payloads, _marshalled_size(payloads))
    if len(kinds) == 1:
        name = _name_of(next(iter(kinds)))
        if name and _are_plain(list(chain.from_iterable(payloads))):
            values = list(map(tuple, payloads))
            return Column(name, values, _marshalled_size(values))
    data = encode_all(payloads)
    return Column(_EACH, data, sum(map(len, data)))


_TEXT: Final = {str}


def _marshalled_size(values: list[Any]) -> int:
    # In pieces: a second copy of all values may not fit into memory.
    return sum(
        len(marshal.dumps(values[start : start + _PIECE], _MARSHAL_VERSION))
        for start in range(0, len(values), _PIECE)
    )


_PIECE: Final = 64


def joined_columns(columns: list[Column]) -> tuple[str, list[Any]]:
    """The kind and the values of all columns. Empties the list, so that memory is free again."""
    kind = columns[0].kind
    if any(column.kind != kind for column in columns):
        kind = _EACH
    values: list[Any] = []
    for column in columns:
        if kind == column.kind:
            values += column.values
        else:
            values += encode_all(decoded_column(column.kind, column.values))
    columns.clear()
    return kind, values


def decoded_column(kind: str, values: list[Any]) -> list[Any]:
    """The payloads of a column."""
    if not kind:
        return values
    if kind == _EACH:
        return decode_all(values)
    made, new = _found(kind), tuple.__new__
    return [new(made, value) for value in values]


def decode_all(data: list[bytes]) -> list[Any]:
    """The payloads of such bytes."""
    try:
        return list(map(marshal.loads, data))
    except ValueError:  # one of them is not by marshal
        return list(map(decode, data))


def decode(data: bytes) -> Any:
    """The payload of such bytes."""
    head = data[0]
    if head == _PICKLE_HEAD:
        return pickle.loads(data)
    if head == _NAMED[0]:
        name, values = marshal.loads(memoryview(data)[1:])
        return tuple.__new__(_found(name), values)
    if head == _CLASS_IDS[0]:
        return _Unpickler(io.BytesIO(memoryview(data)[1:])).load()
    return marshal.loads(data)


def _are_plain(values: Iterable[Any], kinds: set[type] | None = None, depth: int = 0) -> bool:
    """Whether marshal gives back exactly these values: everything in them has a plain type."""
    values = values if isinstance(values, list) else list(values)
    kinds = set(map(type, values)) if kinds is None else kinds
    if kinds <= _ATOMS:
        return True
    if depth > _DEPTH_MAX or not kinds <= _ATOMS | _CONTAINERS:
        return False
    held: list[Any] = []
    for value in values:
        kind = value.__class__
        if kind is tuple or kind is list:
            held += value
        elif kind is dict:
            held += value.keys()
            held += value.values()
    return _are_plain(held, None, depth + 1)


def _encode(payload: Any) -> bytes:
    if _are_plain([payload]):
        return marshal.dumps(payload, _MARSHAL_VERSION)
    name = _name_of(payload.__class__)
    if name and _are_plain(list(payload)):
        return _NAMED + marshal.dumps((name, tuple(payload)), _MARSHAL_VERSION)
    try:
        return pickle.dumps(payload, pickle.HIGHEST_PROTOCOL)
    except Exception:  # a class or a function that cannot be imported by its name
        file = io.BytesIO()
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(payload)
        return _CLASS_IDS + file.getvalue()


_CLASSES_MAX: Final = 4096


@lru_cache(_CLASSES_MAX)
def _name_of(kind: type) -> str:
    """The name of a class of named tuples that any worker can import; empty for other classes."""
    # With a `__reduce__` or attributes of its own an object is more than its values.
    if (
        not issubclass(kind, tuple)
        or not hasattr(kind, "_fields")
        or kind.__reduce_ex__ is not object.__reduce_ex__
        or kind.__reduce__ is not object.__reduce__
        or kind.__dictoffset__
    ):
        return ""
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        return name if _found(name) is kind else ""
    except Exception:
        return ""


@lru_cache(_CLASSES_MAX)
def _found(name: str) -> Any:
    module, _, qualified = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualified.split("."):
        found = getattr(found, part)
    return found


# The classes that cloudpickle has sent or received by value.
_id_of_class = _tracker._DYNAMIC_CLASS_TRACKER_BY_CLASS
_class_of_id = _tracker._DYNAMIC_CLASS_TRACKER_BY_ID


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def persistent_id(self, value: Any) -> Any:
        return _id_of_class.get(value) if isinstance(value, type) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, class_id: Any) -> Any:
        return _class_of_id[class_id]
