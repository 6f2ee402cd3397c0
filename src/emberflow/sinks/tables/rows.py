"""Payloads as Arrow rows of a table: its columns, and what does not fit them.

Guarantees:

1. *Nothing is lost silently.* A field without a column, a value that its column's type cannot hold, and a
   None in a column that takes none raise `PayloadError`, which shows the payload.
2. *The columns do not depend on the data where the payload has a type.* The columns of a dataclass or a
   named tuple follow from its annotations. Those of dicts are inferred from the payloads of the first
   bundle, which differs from run to run: give such a sink its schema.

A payload without fields is a row with the one column ``value``. A field that a payload does not have is
null, and a field that is None needs no column.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emberflow.errors import InputError, PayloadError, shortened
from emberflow.rows.plain import fields_of
from emberflow.values.persistent import PersistentList

if TYPE_CHECKING:
    import pyarrow as pa

#: The one column of payloads without fields.
VALUE = "value"

Row = Mapping[str, Any]


def row_of(payload: Any) -> Row:
    """The fields of a payload. Raises `PayloadError` if it has a name that no column can have."""
    fields = fields_of(payload)
    if fields is None:
        return {VALUE: payload}
    if not fields:
        raise PayloadError(f"a table has no row without a field: {shortened(payload)}")
    for name in fields:
        if not isinstance(name, str) or not name:
            raise PayloadError(f"the name of a column is text, got {shortened(name)}.")
    return fields


# --- Columns ---------------------------------------------------------------------------------------


def given_schema(schema: Any, where: str) -> pa.Schema | None:
    """The schema that a user gave: Arrow's own, a dataclass or a named tuple. Raises `InputError`."""
    import pyarrow as pa

    if schema is None or isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, type) and _has_fields(schema):
        return _declared(schema, where)
    raise InputError(
        f"{where} takes a pyarrow.Schema, a dataclass or a named tuple, got {shortened(schema)}."
    )


def found_schema(kinds: set[type], rows: Sequence[Row]) -> pa.Schema:
    """The schema of rows that were values of these types: by the type, or by what is in them."""
    import pyarrow as pa

    if len(kinds) == 1 and _has_fields(kind := next(iter(kinds))):
        try:
            return _declared(kind, kind.__qualname__)
        except InputError:  # its annotations say too little, and its values may say more
            pass
    names = dict.fromkeys(name for row in rows for name in row)
    fields = [(name, _inferred(name, [row.get(name) for row in rows])) for name in names]
    known = [(name, found) for name, found in fields if not pa.types.is_null(found)]
    if not known:
        raise PayloadError(
            f"the columns of {shortened(dict(rows[0]))} are not known: all is None. Give schema=."
        )
    return pa.schema(known)


def evolved_schema(schema: pa.Schema, rows: Sequence[Row], *, evolve: bool) -> pa.Schema:
    """The schema, with a column for each new field. Raises `PayloadError` unless it may ``evolve``."""
    import pyarrow as pa

    known = set(schema.names)
    new: dict[str, Row] = {}
    for row in rows:
        for name, value in row.items():
            if name not in known and value is not None:
                new.setdefault(name, row)
    if not new:
        return schema
    if not evolve:
        name, row = next(iter(new.items()))
        raise PayloadError(
            f"the table has no column {name!r}; it has {', '.join(map(repr, schema.names))}. With "
            f"evolve=True the sink adds columns. The payload: {shortened(dict(row))}"
        )
    fields = [pa.field(name, _inferred(name, [row.get(name) for row in rows])) for name in new]
    return pa.schema([*schema, *fields])


def _inferred(name: str, values: list[Any]) -> pa.DataType:
    import pyarrow as pa

    try:
        found = pa.array([_plain(value) for value in values]).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PayloadError(f"column {name!r} has no type that fits: {error}") from None
    # Tables have instants in UTC. A datetime without a zone is in UTC.
    return pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(found) else found


def _plain(value: Any) -> Any:
    """A value as Arrow infers types from: rows as dicts, sequences as lists."""
    if isinstance(value, enum.Enum):
        return _plain(value.value)
    fields = fields_of(value)
    if fields is not None:
        return {name: _plain(part) for name, part in fields.items()}
    if isinstance(value, list | tuple | PersistentList):
        return [_plain(part) for part in value]
    return value


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _declared(kind: type, where: str) -> pa.Schema:
    import pyarrow as pa

    try:
        return pa.schema(list(_of_class(kind)))
    except (TypeError, NameError) as error:
        raise InputError(
            f"{where}: the annotations of {kind.__qualname__} are no columns: {error}. "
            f"Give a pyarrow.Schema."
        ) from None


def _of_class(kind: Any) -> list[pa.Field]:
    import pyarrow as pa

    hints = typing.get_type_hints(kind)
    names = (
        [field.name for field in dataclasses.fields(kind)]
        if dataclasses.is_dataclass(kind)
        else list(kind._fields)
    )
    return [pa.field(name, _of_hint(hints.get(name, Any))) for name in names]


def _of_hint(hint: Any) -> pa.DataType:
    """Arrow's type of an annotation. Raises TypeError if there is none."""
    import pyarrow as pa

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in arguments if part is not type(None)]
        if len(inner) == 1:
            return _of_hint(inner[0])
    elif origin in (list, PersistentList) or (origin is tuple and arguments[1:] == (...,)):
        return pa.list_(_of_hint(arguments[0]))
    elif origin is dict:
        return pa.map_(_of_hint(arguments[0]), _of_hint(arguments[1]))
    elif isinstance(hint, type):
        atoms = {
            str: pa.string(),
            bool: pa.bool_(),
            int: pa.int64(),
            float: pa.float64(),
            bytes: pa.binary(),
            decimal.Decimal: pa.decimal128(38, 18),
            datetime.date: pa.date32(),
            datetime.datetime: pa.timestamp("us", tz="UTC"),
        }
        if hint in atoms:
            return atoms[hint]
        if _has_fields(hint):
            return pa.struct(_of_class(hint))
    raise TypeError(f"{hint!r} has no type of a column")


# --- Values ----------------------------------------------------------------------------------------


def arrow_rows(schema: pa.Schema, rows: Sequence[Row]) -> pa.Table:
    """Rows as a table of this schema. Raises `PayloadError` for a value that does not fit."""
    import pyarrow as pa

    arrays = [_array(field, rows) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(field: pa.Field, rows: Sequence[Row]) -> pa.Array:
    import pyarrow as pa

    convert = _converter(field.type)
    for row in [] if field.nullable else rows:
        if row.get(field.name) is None:
            raise PayloadError(
                f"column {field.name!r} takes no None. The payload: {shortened(dict(row))}"
            )
    errors = (pa.ArrowException, TypeError, ValueError, OverflowError, RecursionError)
    try:
        values = [row.get(field.name) for row in rows]
        return pa.array(values if convert is None else map(convert, values), field.type)
    except errors:
        for row in rows:
            value = row.get(field.name)
            try:
                pa.array([value if convert is None else convert(value)], field.type)
            except errors as error:
                raise PayloadError(
                    f"column {field.name!r} of type {field.type} cannot hold {shortened(value)}: "
                    f"{error}. The payload: {shortened(dict(row))}"
                ) from None
        raise


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The function from a payload's value to what Arrow takes; None if they are the same."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return _struct_converter(kind)
    if pa.types.is_map(kind):
        of_key, of_item = _converter(kind.key_type), _converter(kind.item_type)

        def to_map(value: Any) -> Any:
            if value is None:
                return None
            return [
                (of_key(key) if of_key else key, of_item(item) if of_item else item)
                for key, item in dict(value).items()
            ]

        return to_map
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of_part = _converter(kind.value_type)

        def to_list(value: Any) -> Any:
            if value is None:
                return None
            if not isinstance(value, list | tuple | PersistentList):
                raise TypeError("it is no list")
            return [of_part(part) if of_part else part for part in value]

        return to_list
    if pa.types.is_integer(kind):
        return _whole
    return _day if pa.types.is_date(kind) else None


def _whole(value: Any) -> Any:
    """A whole number. Arrow would cut off its fraction."""
    if isinstance(value, float | decimal.Decimal) and value % 1 != 0:
        raise TypeError("it is no whole number")
    return value


def _day(value: Any) -> Any:
    """A day. Arrow would cut off the hour of an instant."""
    if isinstance(value, datetime.datetime):
        raise TypeError("it is an instant, and no day")
    return value


def _struct_converter(kind: pa.StructType) -> Callable[[Any], Any]:
    parts = {field.name: _converter(field.type) for field in kind}

    def to_struct(value: Any) -> Any:
        if value is None:
            return None
        fields = fields_of(value)
        if fields is None:
            raise TypeError("it has no fields")
        strange = [name for name in fields if name not in parts and fields[name] is not None]
        if strange:
            raise TypeError(f"there is no column for {', '.join(map(repr, strange))} in it")
        return {
            name: fields.get(name) if convert is None else convert(fields.get(name))
            for name, convert in parts.items()
        }

    return to_struct
