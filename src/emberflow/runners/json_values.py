"""Keys and values to JSON, and keys from JSON.

=====================  ==================================================
JSON                   Python, as a key that is asked for
=====================  ==================================================
``"ada"``              ``"ada"``
``7``, ``1.5``         ``7``, ``1.5`` (and ``7.0`` is the key ``7``, as everywhere)
``true``, ``null``     ``True`` (the key ``1``, as everywhere), ``None``
``["ada", 7]``         ``("ada", 7)``: a list is a tuple, also inside of another
``{...}``              refused: no key is a dict
=====================  ==================================================

In the query string of a URL a key is JSON too: ``key=7`` is a number and ``key="7"`` a text.
Anything that is not valid JSON is taken as text, so ``key=ada`` needs no quotes.

Values are shown as well as JSON can. Numbers, texts, booleans and None stay as they are. Tuples,
lists and other sequences become lists. A dict whose keys are all texts becomes an object, any other
dict a list of pairs. Sets become lists, sorted by their JSON. A dataclass becomes an object, a date
or time an ISO 8601 text, an enum its value, bytes a hexadecimal text. Infinities, NaN and every
other type (decimals, UUIDs) become the text that ``str`` makes. So some keys can be shown but not
asked for: a key of a type that is not in the table can be read from Python only.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from typing import Any

from emberflow.errors import InputError, shortened
from emberflow.values.persistent import PersistentList


def from_json(value: Any) -> Any:
    """A key from parsed JSON.

    >>> from_json(["ada", [1, None]])
    ('ada', (1, None))
    """
    if isinstance(value, list):
        return tuple(map(from_json, value))
    if isinstance(value, dict):
        raise InputError(
            f"a key is a text, a number, true, false, null or a list of those, got the object "
            f"{shortened(value)}."
        )
    return value


def key_of_text(text: str) -> Any:
    """A key from the query string of a URL.

    >>> [key_of_text(text) for text in ("ada", "7", '"7"', '["ada", 7]', "null")]
    ['ada', 7, '7', ('ada', 7), None]
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
    return from_json(value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def to_json(value: Any) -> Any:
    """A value that ``json.dumps`` accepts.

    >>> to_json({"at": datetime.date(2026, 1, 2), "pairs": ((1, {2}),), "rate": float("inf")})
    {'at': '2026-01-02', 'pairs': [[1, [2]]], 'rate': 'inf'}
    """
    if value is None or (isinstance(value, bool | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_json(own) for key, own in value.items()}
        return [[to_json(key), to_json(own)] for key, own in value.items()]
    if isinstance(value, Set):
        return sorted(map(to_json, value), key=json.dumps)
    if isinstance(value, Sequence | PersistentList):
        return [to_json(own) for own in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return str(value)
