"""Which values a column of PostgreSQL takes, as far as the value and the column's type alone tell.

Guarantees: a value that `fault` finds fault with is refused by the server as well. What it finds none with
may be refused all the same: by a type that is not listed here, by a constraint, by a trigger.

The checks are for what one record of a stream can hold by accident, and the server notices only in the
middle of a bundle: NUL and lone surrogates in a text, a text that is too long, a number that is too large,
a missing value.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable
from typing import Any

from emberflow.errors import shortened

_TYPE = re.compile(
    r"\s*(smallint|int2|integer|int4|int8|int|bigint|real|float4|double precision|float8"
    r"|numeric|decimal|varchar|character varying|character|char|jsonb|boolean|bool)\b"
    r"\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?\s*(\[)?",
    re.IGNORECASE,
)
_NOT_NULL = re.compile(r"\b(not\s+null|primary\s+key)\b", re.IGNORECASE)
#: An escaped NUL in a JSON text, not behind a backslash that is itself escaped.
_JSON_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

_INTEGER_BITS = {
    **dict.fromkeys(("smallint", "int2"), 16),
    **dict.fromkeys(("integer", "int4", "int"), 32),
    **dict.fromkeys(("bigint", "int8"), 64),
}
#: What rounds to more than the greatest 32-bit float, and to less than the least.
_REAL_MAX = 2.0**128 - 2.0**103
_REAL_MIN = 2.0**-150
#: The least 64-bit float; what is below it is 0.
_DOUBLE_MIN = 5e-324


def fault(value: Any, kind: str) -> str | None:
    """Why a column of this type, in SQL, cannot hold a value; None if no reason is known.

    >>> fault(2**31, "integer NOT NULL")
    'it takes whole numbers of 32 bits, got 2147483648'
    >>> fault("a\\0b", "text")
    "it takes no NUL, got 'a\\\\x00b'"
    """
    if value is None:
        return "it takes no NULL" if _NOT_NULL.search(kind) else None
    found = _text_fault(value)
    match = _TYPE.match(kind)
    if found is not None or match is None or match[4]:
        return found
    name = match[1].lower()
    if name in _INTEGER_BITS:
        return _integer_fault(value, _INTEGER_BITS[name])
    check = _CHECKS.get(name)
    first, second = (None if group is None else int(group) for group in match.group(2, 3))
    return None if check is None else check(value, first, second or 0)


def _text_fault(value: Any) -> str | None:
    if isinstance(value, str):
        if "\0" in value:
            return f"it takes no NUL, got {_short(value)}"
        if not value.isascii():
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                return f"it takes no lone surrogate, got {_short(value)}"
    elif isinstance(value, list):
        return next(filter(None, map(_text_fault, value)), None)
    return None


def _integer_fault(value: Any, bits: int) -> str | None:
    given = value
    if isinstance(value, str):
        try:
            given = int(value)
        except ValueError:
            given = None
    if isinstance(given, bool) or not isinstance(given, int):
        return f"it takes whole numbers, got {_short(value)}"
    if not -(1 << bits - 1) <= given < 1 << bits - 1:
        return f"it takes whole numbers of {bits} bits, got {_short(value)}"
    return None


def _float_fault(value: Any, most: float, least: float) -> str | None:
    if isinstance(value, str):
        return None  # there are many ways to write one
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        return f"it takes numbers, got {_short(value)}"
    given = decimal.Decimal(value)  # exact, whatever its size
    if not given.is_finite():
        return None
    size = abs(float(given))
    if size >= most or (size < least and given != 0):
        return f"it takes numbers from {least:.2g} to {most:.2g}, got {_short(value)}"
    return None


def _numeric_fault(value: Any, precision: int | None, scale: int) -> str | None:
    try:
        if isinstance(value, bool):
            raise ValueError
        given = decimal.Decimal(value if isinstance(value, int) else str(value))
    except (ValueError, decimal.InvalidOperation):
        return f"it takes numbers, got {_short(value)}"
    if precision is None or given.is_nan():
        return None
    # Compared before it is rounded, as 9.995 is to 10.00.
    limit = decimal.Decimal(10) ** (precision - scale) - decimal.Decimal(5).scaleb(-scale - 1)
    if abs(given) >= limit:
        return f"it takes {precision} digits, {scale} of them behind the point, got {_short(value)}"
    return None


def _length_fault(value: Any, length: int | None, _: int) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)  # as it is written
    if length is None or not isinstance(value, str):
        return None
    if len(value) > length and len(value.rstrip(" ")) > length:
        return f"it takes {length} characters, got {len(value)}: {_short(value)}"
    return None


def _jsonb_fault(value: Any, _: int | None, __: int) -> str | None:
    if isinstance(value, str) and _JSON_NUL.search(value):
        return f"it takes no NUL, got {_short(value)}"
    return None


def _boolean_fault(value: Any, _: int | None, __: int) -> str | None:
    is_boolean = isinstance(value, bool | str) or (isinstance(value, int) and value in (0, 1))
    return None if is_boolean else f"it takes true or false, got {_short(value)}"


def _short(value: Any) -> str:
    return shortened(value, 80)


_Check = Callable[[Any, int | None, int], str | None]
_CHECKS: dict[str, _Check] = {
    **dict.fromkeys(
        ("real", "float4"), lambda value, _, __: _float_fault(value, _REAL_MAX, _REAL_MIN)
    ),
    **dict.fromkeys(
        ("double precision", "float8"),
        lambda value, _, __: _float_fault(value, math.inf, _DOUBLE_MIN),
    ),
    **dict.fromkeys(("numeric", "decimal"), _numeric_fault),
    **dict.fromkeys(("varchar", "character varying", "character", "char"), _length_fault),
    **dict.fromkeys(("boolean", "bool"), _boolean_fault),
    "jsonb": _jsonb_fault,
}
