"""Schemas that another process sends as JSON.

Spark's own parser is not safe for these: the JSON of a user-defined type names a module that the parser
imports, or holds a class that it unpickles. Emberflow has no use for such types in messages, so
`struct_of_json` refuses them before the parser sees them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from emberflow.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def struct_of_json(text: object) -> StructType:
    """Raises `InputError` if the text is no schema, or one that would run code."""
    from pyspark.sql import types as sql

    found = type_of_json(text)
    if not isinstance(found, sql.StructType):
        raise InputError(f"a schema is a struct, got {found.simpleString()}.")
    return found


def type_of_json(text: object) -> DataType:
    """The same for any type."""
    from pyspark.sql.types import _parse_datatype_json_value

    try:
        value: Any = json.loads(text) if isinstance(text, str) else None
        _check_plain(value)
        return _parse_datatype_json_value(value)
    except InputError:
        raise
    except Exception as error:  # whatever a parser raises that trusts its input
        raise InputError(
            f"another process has sent a schema that cannot be read: "
            f"{type(error).__qualname__}: {error}."
        ) from error


def _check_plain(value: Any) -> None:
    if isinstance(value, dict):
        if value.get("type") == "udt" or "pyClass" in value or "serializedClass" in value:
            raise InputError("another process has sent a schema with a user-defined type.")
        for inner in value.values():
            _check_plain(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_plain(inner)
