"""From the columns of a DataFrame to payloads.

By default a payload is a `Row`, as `DataFrame.collect` gives it. It can also be an object of a class (its
fields are columns), one column by name, or the result of a function of the row. A DataFrame whose one
column besides the time is called ``value`` gives bare values. Timestamps are datetimes in UTC, never in
the time zone of the process, which is not part of the input.

The driver chooses a reader once, by the schema (`reader_of`). Tasks call it with columns of Arrow.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberflow.errors import FunctionError, InputError
from emberflow.graph.nodes import Front
from emberflow.rows.codec import decode_all
from emberflow.values.functions import UserFunction, blamed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

#: A column of this name is the payload itself, if it is the only one.
BARE = "value"

#: The column of payloads as bytes.
RAW = "_payload"


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes payloads from Arrow columns. ``make`` gets an iterator for each column."""

    front: Front
    columns: tuple[str, ...]
    converters: tuple[Callable[[Any], Any] | None, ...]
    kind: Literal["row", "bare", "class", "keywords", "function", "bytes"]
    made_of: Any = None

    def payloads(self, times: list[int], columns: list[pa.Array]) -> list[Any]:
        values = [
            _values(column) if convert is None else [convert(value) for value in _values(column)]
            for column, convert in zip(columns, self.converters, strict=True)
        ]
        if self.kind == "bare":
            return values[0]
        if self.kind == "bytes":
            return decode_all(values[0])
        if self.kind == "class":
            return list(map(self.made_of, *values)) if values else [self.made_of() for _ in times]
        if self.kind == "keywords":
            make, names = self.made_of, self.columns
            return [make(**dict(zip(names, one, strict=True))) for one in zip(*values, strict=True)]
        from pyspark.sql import Row

        row = Row(*self.columns)
        made = [row(*one) for one in zip(*values, strict=True)]
        return made if self.kind == "row" else list(self._called(times, made))

    def _called(self, times: list[int], made: list[Any]) -> Iterator[Any]:
        function = self.made_of
        for time, row in zip(times, made, strict=True):
            try:
                yield function(row)
            except Exception as error:
                raise FunctionError(
                    f"the payload function of front {self.front.name!r} raised "
                    f"{type(error).__qualname__}: {error}",
                    step=str(self.front),
                    function=blamed(error, (UserFunction("payload", function),)),
                    global_time=(time, self.front.index),
                    payload=row,
                ) from error


def _values(column: pa.Array) -> list[Any]:
    return column.to_pylist()  # type: ignore[no-any-return]


def reader_of(front: Front, schema: StructType, payload: Any, time: str | None) -> Reader:
    def reader(columns: list[str], kind: Any, made_of: Any, hints: dict[str, Any]) -> Reader:
        for name in columns:
            if name not in schema.names:
                asked = name_of(made_of) if made_of is not None else f"payload={payload!r}"
                raise InputError(
                    f"front {front.name!r}: {asked} wants a column {name!r}, and the DataFrame has "
                    f"{', '.join(map(repr, schema.names))}. Rename or add the column."
                )
        converters = tuple(
            _converter(front, name, schema[name].dataType, hints.get(name)) for name in columns
        )
        return Reader(front, tuple(columns), converters, kind, made_of)

    if payload is None and RAW in schema.names and schema[RAW].dataType.typeName() == "binary":
        return reader([RAW], "bytes", None, {})
    if payload is None:
        besides = [name for name in schema.names if name != time]
        bare = besides == [BARE]
        return reader(besides if bare else schema.names, "bare" if bare else "row", None, {})
    if isinstance(payload, str):
        return reader([payload], "bare", None, {})
    if isinstance(payload, type) and dataclasses.is_dataclass(payload):
        fields = [field for field in dataclasses.fields(payload) if field.init]
        given = [
            field
            for field in fields
            if field.name in schema.names
            or (
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING
            )
        ]
        names = [field.name for field in given]
        positional = given == fields and not any(field.kw_only for field in fields)
        return reader(names, "class" if positional else "keywords", payload, _hints(payload))
    if isinstance(payload, type) and issubclass(payload, tuple) and hasattr(payload, "_fields"):
        defaults = getattr(payload, "_field_defaults", {})
        names = [name for name in payload._fields if name in schema.names or name not in defaults]
        kind = "class" if names == list(payload._fields) else "keywords"
        return reader(names, kind, payload, _hints(payload))
    if callable(payload):
        return reader(schema.names, "function", payload, {})
    raise InputError(
        f"front {front.name!r}: payload= takes a dataclass, a named tuple, the name of a column or "
        f"a function of the row, got {payload!r}."
    )


def name_of(made_of: Any) -> str:
    return f"payload={getattr(made_of, '__qualname__', made_of)}"


def _hints(payload: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(payload)
    except Exception:  # an annotation that only a type checker can resolve
        return {}


def _converter(front: Front, name: str, kind: DataType, hint: Any) -> Callable[[Any], Any] | None:
    """The function from Arrow's value of this type to the payload's; None if they are the same."""
    from pyspark.sql import types as sql

    expected = _expected(hint)
    if expected is not None and not isinstance(kind, _accepted(expected)):
        raise InputError(
            f"front {front.name!r}: column {name!r} is of type {kind.simpleString()}, and the "
            f"payload's field is declared {getattr(hint, '__name__', hint)}. Cast the column, or "
            f"change the field."
        )
    simple = (
        sql.StringType,
        sql.IntegralType,
        sql.FractionalType,
        sql.BooleanType,
        sql.DateType,
        sql.TimestampNTZType,
        sql.NullType,
    )
    if isinstance(kind, simple):
        return None
    if isinstance(kind, sql.BinaryType):
        return _bytes
    if isinstance(kind, sql.TimestampType):
        return _in_utc
    if isinstance(kind, sql.ArrayType):
        of_element = _converter(front, name, kind.elementType, None)
        sequence: Any = tuple if expected is tuple else list
        if of_element is None:
            return (
                None if sequence is list else lambda value: None if value is None else tuple(value)
            )
        return lambda value: None if value is None else sequence(map(of_element, value))
    if isinstance(kind, sql.MapType):
        of_key = _converter(front, name, kind.keyType, None) or _itself
        of_value = _converter(front, name, kind.valueType, None) or _itself
        return lambda value: (
            None if value is None else {of_key(key): of_value(held) for key, held in value}
        )
    if isinstance(kind, sql.StructType):
        row = sql.Row(*kind.names)
        parts = [(f.name, _converter(front, f"{name}.{f.name}", f.dataType, None)) for f in kind]
        return lambda value: (
            None
            if value is None
            else row(*(value[n] if c is None else c(value[n]) for n, c in parts))
        )
    raise InputError(
        f"front {front.name!r}: column {name!r} is of type {kind.simpleString()}, which no payload "
        f"can hold. Cast it, or select the other columns."
    )


def _itself(value: Any) -> Any:
    return value


def _bytes(value: Any) -> Any:
    return None if value is None else bytes(value)


def _in_utc(value: datetime.datetime | None) -> datetime.datetime | None:
    return None if value is None else value.astimezone(datetime.UTC)


def _expected(hint: Any) -> type | None:
    """The class that a field is declared as, if a column can be checked against it."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return _expected(inner[0]) if len(inner) == 1 else None
    found = origin or hint
    return found if isinstance(found, type) and found in _ACCEPTED else None


_ACCEPTED: dict[type, tuple[str, ...]] = {
    str: ("StringType",),
    int: ("IntegralType",),
    float: ("FloatType", "DoubleType"),
    bool: ("BooleanType",),
    bytes: ("BinaryType",),
    decimal.Decimal: ("DecimalType",),
    datetime.datetime: ("TimestampType", "TimestampNTZType"),
    datetime.date: ("DateType",),
    list: ("ArrayType",),
    tuple: ("ArrayType",),
    dict: ("MapType",),
}


def _accepted(expected: type) -> tuple[type, ...]:
    from pyspark.sql import types as sql

    return tuple(getattr(sql, name) for name in _ACCEPTED[expected])
