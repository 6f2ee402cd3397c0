"""Plain values: how a payload is written as JSON, and which fields it has as a row.

Guarantees:

1. *Equal payloads are written as equal bytes.* Fields keep their order. A value without an order of its
   own (a set) is refused rather than written in the order of its hashes.
2. *Nothing is written that others cannot read.* JSON has no NaN, no infinity and no bytes, and UTF-8 no
   lone surrogates. They are refused, and the error shows the payload. Only the conversions that a reader
   expects are made.
3. *Whether a payload is refused depends on the payload alone.* Values are nested up to `NESTED_MAX`
   levels deep. Python's own limit would depend on how deep the stack happens to be.

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

4. *A record of the errors sink is always written.* It shows a payload that caused an error, and that
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
from collections.abc import Callable
from typing import Any

from emberflow.errors import Diverted, PayloadError, shortened
from emberflow.values.persistent import PersistentList

#: How deep lists, dicts and rows may be nested in a payload. A level takes up to three frames of Python's
#: stack, which has room for 1,000.
NESTED_MAX = 200

#: Kinds of values that are written as they are, and have nothing within.
_LEAVES = frozenset({type(None), bool, int, str})
#: The kind of most keys of an object.
_TEXT = frozenset({str})
_LISTS = (list, tuple, PersistentList)
_AS_TEXT = (decimal.Decimal, uuid.UUID, pathlib.PurePath)
_AS_ISO = (datetime.date, datetime.time)


class _RefusedError(Exception):
    """A value has no JSON; the message says which and why."""


class _TooDeepError(_RefusedError):
    """A value is nested too deeply."""


#: Shows a payload whose ``repr`` may not fit Python's stack either.
_DEEP = f"<{{}} nested more than {NESTED_MAX} levels deep>"


def to_json(payload: Any) -> str:
    """A payload as one line of JSON.

    >>> to_json({"day": datetime.date(2024, 2, 29), "words": ("ash", "ember")})
    '{"day":"2024-02-29","words":["ash","ember"]}'
    """
    try:
        return _written(_plain(payload))
    except _TooDeepError:
        raise PayloadError(
            f"a payload is nested too deeply to be written as JSON, which is more than {NESTED_MAX} "
            f"levels: {_DEEP.format(type(payload).__qualname__)}"
        ) from None
    except _RefusedError as problem:
        raise PayloadError(
            f"a payload cannot be written as JSON: {problem}. The payload: {shortened(payload)}. "
            "Map it to dicts, lists, text and numbers before the sink."
        ) from None


def _made_encoder() -> Callable[[Any], str]:
    """What writes plain values. `json.dumps` makes an encoder for each value, which takes longer than to
    write a small one."""
    own = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return own.encode
    # Values within values have been looked at, so there are no circles and no NaN.
    encode = make(
        None, own.default, json.encoder.encode_basestring, None, ":", ",", False, False, True
    )
    return lambda plain: "".join(encode(plain, 0))


_encode = _made_encoder()


def _written(plain: Any) -> str:
    try:
        text = _encode(plain)
    except ValueError as error:  # an int with too many digits
        raise _RefusedError(str(error)) from None
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _RefusedError(
                f"it holds the lone surrogate {text[error.start]!r}, which UTF-8 does not have"
            ) from None
    return text


def _plain(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if kind in _LEAVES:
        return value
    # The common case, before all others: a list or an object of such values, and of nothing else.
    if depth < NESTED_MAX:
        if kind is tuple or kind is list:
            if _LEAVES.issuperset(map(type, value)):
                return value
        elif (
            kind is dict
            and _LEAVES.issuperset(map(type, value.values()))
            and _TEXT.issuperset(map(type, value))
        ):
            return value
    if isinstance(value, enum.Enum):
        return _plain(value.value, depth)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _RefusedError(f"JSON has no {value!r}")
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, Diverted):
        return {**_clean_fields(value), "payload": _shown(value.payload)}
    if depth >= NESTED_MAX and _has_values_within(value):
        raise _TooDeepError
    below = depth + 1
    if isinstance(value, dict):
        return {_key(key): _plain(entry, below) for key, entry in value.items()}
    fields = fields_of(value)
    if fields is not None:
        return {name: _plain(entry, below) for name, entry in fields.items()}
    if isinstance(value, _LISTS):
        return [_plain(entry, below) for entry in value]
    if isinstance(value, _AS_ISO):
        return value.isoformat()
    if isinstance(value, _AS_TEXT):
        return str(value)
    raise _RefusedError(f"it holds a {kind.__qualname__}, {shortened(value)}")


def _has_values_within(value: Any) -> bool:
    return isinstance(value, _LISTS) or fields_of(value) is not None


def _shown(payload: Any) -> Any:
    """The payload of a diverted record: as plain values, or its shortened ``repr``."""
    try:
        plain = _plain(payload)
        _written(plain)
    except _TooDeepError:
        return _DEEP.format(type(payload).__qualname__)
    except _RefusedError:
        return _clean(shortened(payload))
    return plain


def _clean(text: str) -> str:
    """A text that UTF-8 has, with an escape for each lone surrogate."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _clean_fields(diverted: Diverted) -> dict[str, Any]:
    """The fields of a record but for the payload. A message of a user's exception may be any text."""
    return {
        name: _clean(value) if isinstance(value, str) else value
        for name, value in diverted._asdict().items()
    }


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
        return {**_clean_fields(payload), "payload": _written(_shown(payload.payload))}
    if isinstance(payload, dict):
        return payload
    if isinstance(payload, tuple) and hasattr(payload, "_fields"):
        return dict(zip(payload._fields, payload, strict=True))
    if dataclasses.is_dataclass(payload) and not isinstance(payload, type):
        # `asdict` would copy everything inside.
        return {f.name: getattr(payload, f.name) for f in dataclasses.fields(payload)}
    return None
