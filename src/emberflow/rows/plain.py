"""Plain values: how a payload is written as JSON, and which fields it has as a row.

Guarantees:

1. *Equal payloads are written as equal bytes.* Fields keep their order. A value without an order of its
   own (a set) is refused rather than written in the order of its hashes.
2. *Nothing is written that others cannot read.* JSON has no NaN, no infinity and no bytes. They are
   refused, and the error shows the payload. Only the conversions that a reader expects are made.

====================================================  ============================================
payload                                               JSON
====================================================  ============================================
``None``, ``bool``, ``int``, ``str``, finite float    as they are
dict; its keys are ``str`` or ``int``                 object
dataclass, named tuple                                object of its fields
list, tuple, `PersistentList`                         array
``date``, ``datetime``, ``time``                      ISO 8601 text
``Decimal``, ``UUID``, ``Path``                       text
``Enum``                                              its value
====================================================  ============================================

3. *A record of the errors sink is always written.* It shows a payload that caused an error, and that
   payload may be anything. If it has no JSON, its shortened ``repr`` is written. As a row, the record
   always has its payload as text, because payloads of several steps do not fit one column type.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import uuid
from typing import Any

from emberflow.errors import Diverted, EmberflowError, shortened
from emberflow.values.persistent import PersistentList

_AS_TEXT = (decimal.Decimal, uuid.UUID, pathlib.PurePath)
_AS_ISO = (datetime.date, datetime.time)


class PayloadError(EmberflowError):
    """A sink cannot store a payload. The query ends: to try again would not help."""


class _RefusedError(Exception):
    """A value has no JSON; the message says which and why."""


def to_json(payload: Any) -> str:
    """A payload as one line of JSON.

    >>> to_json({"day": datetime.date(2024, 2, 29), "words": ("ash", "ember")})
    '{"day":"2024-02-29","words":["ash","ember"]}'
    """
    try:
        return json.dumps(_plain(payload), ensure_ascii=False, separators=(",", ":"))
    except _RefusedError as problem:
        raise PayloadError(
            f"a payload cannot be written as JSON: {problem}. The payload: {shortened(payload)}. "
            "Map it to dicts, lists, text and numbers before the sink."
        ) from None
    except RecursionError:
        raise PayloadError(
            f"a payload is nested too deeply to be written as JSON: {shortened(payload)}"
        ) from None


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is int or kind is bool:
        return value
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _RefusedError(f"JSON has no {value!r}")
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, dict):
        return {_key(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Diverted):
        return {**value._asdict(), "payload": _shown(value.payload)}
    fields = fields_of(value)
    if fields is not None:
        return {name: _plain(entry) for name, entry in fields.items()}
    if isinstance(value, list | tuple | PersistentList):
        return [_plain(entry) for entry in value]
    if isinstance(value, _AS_ISO):
        return value.isoformat()
    if isinstance(value, _AS_TEXT):
        return str(value)
    raise _RefusedError(f"it holds a {kind.__qualname__}, {shortened(value)}")


def _shown(payload: Any) -> Any:
    """The payload of a diverted record: as plain values, or its shortened ``repr``."""
    try:
        return _plain(payload)
    except (_RefusedError, RecursionError):
        return shortened(payload)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key))
    raise _RefusedError(f"a key is a {type(key).__qualname__}, {shortened(key)}")


def fields_of(payload: Any) -> dict[str, Any] | None:
    """The fields of a dict, a dataclass or a named tuple, in order; None if it has no fields.

    >>> fields_of({"word": "ash"}), fields_of("ash")
    ({'word': 'ash'}, None)
    """
    if isinstance(payload, Diverted):
        text = json.dumps(_shown(payload.payload), ensure_ascii=False, separators=(",", ":"))
        return {**payload._asdict(), "payload": text}
    if isinstance(payload, dict):
        return payload
    if isinstance(payload, tuple) and hasattr(payload, "_fields"):
        return dict(zip(payload._fields, payload, strict=True))
    if dataclasses.is_dataclass(payload) and not isinstance(payload, type):
        # `asdict` would copy everything inside.
        return {f.name: getattr(payload, f.name) for f in dataclasses.fields(payload)}
    return None
