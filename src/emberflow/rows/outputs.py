"""From payloads to the columns of a sink's DataFrame.

A payload with fields (a named tuple, a dataclass, a plain tuple) is a row with a column for each. Any
other payload is one column ``value``. Behind them are the columns that say where the row is in the
order: ``_time``, ``_front`` and ``_path``. Rows sort by ``_time`` and ``_path``, and ``_path`` begins
with the front. A sink with partitions has its partition in ``_partition``.

The types are given, or found from a sample: the reference runner runs the first rows of every front, in
the driver. That is a small job, and it runs when `Flow.batch` is called. The batch itself runs when its
DataFrames are evaluated. The user has to give types that a sample does not show.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from emberflow.errors import InputError, OutputError, shortened
from emberflow.graph.calls import Balance, balance_of
from emberflow.graph.nodes import Sink
from emberflow.rows.codec import encode_all
from emberflow.rows.paths import front_of, fronts_of
from emberflow.values.hashing import owner
from emberflow.values.persistent import PersistentList

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

#: The one column of a payload without fields, and of a raw payload.
VALUE = "value"
PAYLOAD = "_payload"
TIME, FRONT, PATH, PARTITION = "_time", "_front", "_path", "_partition"


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns of a sink. ``payload`` is None where rows hold payloads as bytes."""

    sink: Sink
    payload: StructType | None
    #: Whether the fields of the payload are columns; otherwise the payload is the only column.
    fields: bool = False

    def schema(self) -> StructType:
        from pyspark.sql import types as sql

        columns = (
            [sql.StructField(PAYLOAD, sql.BinaryType(), False)]
            if self.payload is None
            else list(self.payload.fields)
        )
        columns += [
            sql.StructField(TIME, sql.LongType(), False),
            sql.StructField(FRONT, sql.LongType(), False),
            sql.StructField(PATH, sql.BinaryType(), False),
        ]
        if self.sink.partitions > 1:
            columns.append(sql.StructField(PARTITION, sql.IntegerType(), False))
        return sql.StructType(columns)


class ColumnWriter:
    """Makes Arrow arrays from payloads, on a worker."""

    def __init__(self, columns: SinkColumns) -> None:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        self._pa = pa
        self._sink = columns.sink
        self.schema = to_arrow_schema(columns.schema())
        self._payload = columns.payload
        self._fields = columns.fields
        key = columns.sink.key
        self._balance: Balance | None = None if key is None else balance_of(columns.sink, key)
        self._converters = (
            []
            if columns.payload is None
            else [_to_column(field.dataType) for field in columns.payload.fields]
        )
        self._getters: dict[type, Callable[[Any], Sequence[Any]]] = {}

    def batch(self, times: list[int], paths: list[bytes], payloads: list[Any]) -> pa.RecordBatch:
        arrays = self._payload_arrays(times, paths, payloads)
        fronts = fronts_of(paths)
        arrays += self._place_arrays(times, fronts, paths)
        if self._balance is not None:
            partitions = [
                owner(self._balance(payload, (time, front))[1], self._sink.partitions)
                for time, front, payload in zip(times, fronts, payloads, strict=True)
            ]
            if self._sink.partitions > 1:
                arrays.append(self._pa.array(partitions, self._pa.int32()))
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def takes_columns(self, count: int) -> bool:
        """Whether `batch_of_columns` works for payloads that are tuples of this length."""
        fields = self._payload is not None and self._fields and len(self._payload.fields) == count
        return fields and self._balance is None

    def batch_of_columns(
        self, times: list[int], paths: list[bytes], columns: Sequence[list[Any]]
    ) -> pa.RecordBatch:
        """The same as `batch` for the tuples that these columns make."""
        try:
            arrays = [self._array(number, values) for number, values in enumerate(columns)]
        except Exception:  # `batch` of the tuples raises the error that names a payload
            return self.batch(times, paths, list(zip(*columns, strict=True)))
        arrays += self._place_arrays(times, fronts_of(paths), paths)
        return self._pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _place_arrays(
        self, times: list[int], fronts: list[int], paths: list[bytes]
    ) -> list[pa.Array]:
        pa = self._pa
        one = fronts.count(fronts[0]) == len(fronts)
        return [
            pa.array(times, pa.int64()),
            pa.repeat(fronts[0], len(fronts)) if one else pa.array(fronts, pa.int64()),
            pa.array(paths, pa.binary()),
        ]

    def _payload_arrays(
        self, times: list[int], paths: list[bytes], payloads: list[Any]
    ) -> list[pa.Array]:
        if self._payload is None:
            return [self._pa.array(encode_all(payloads), self._pa.binary())]
        columns = self._columns(times, paths, payloads) if self._fields else [payloads]
        arrays = []
        for number, values in enumerate(columns):
            try:
                arrays.append(self._array(number, values))
            except Exception:
                self._say_misfit(number, times, paths, payloads, values)
                raise
        return arrays

    def _array(self, number: int, values: Sequence[Any]) -> pa.Array:
        convert = self._converters[number]
        converted = values if convert is None else [convert(value) for value in values]
        return self._pa.array(converted, self.schema.field(number).type)

    def _columns(
        self, times: list[int], paths: list[bytes], payloads: list[Any]
    ) -> Sequence[Sequence[Any]]:
        assert self._payload is not None
        count = len(self._payload.fields)
        kinds = set(map(type, payloads))
        rows: list[Sequence[Any]]
        if all(issubclass(kind, tuple) for kind in kinds):
            rows = payloads
        else:
            rows = [
                self._row(payload, place)
                for payload, *place in zip(payloads, times, paths, strict=True)
            ]
        if set(map(len, rows)) != {count}:
            for payload, row, time, path in zip(payloads, rows, times, paths, strict=True):
                if len(row) != count:
                    raise self._misfit(f"a payload of {count} fields", payload, time, path)
        return [[row[number] for row in rows] for number in range(count)]

    def _row(self, payload: Any, place: list[Any]) -> Sequence[Any]:
        assert self._payload is not None
        if isinstance(payload, tuple):
            return payload
        names = self._payload.names
        try:
            if isinstance(payload, Mapping):
                return [payload[name] for name in names]
            return [getattr(payload, name) for name in names]
        except (KeyError, AttributeError):
            raise self._misfit(f"a payload with {', '.join(names)}", payload, *place) from None

    def _say_misfit(
        self,
        number: int,
        times: list[int],
        paths: list[bytes],
        payloads: list[Any],
        values: Sequence[Any],
    ) -> None:
        assert self._payload is not None
        field = self._payload.fields[number]
        convert, kind = self._converters[number], self.schema.field(number).type
        for value, payload, time, path in zip(values, payloads, times, paths, strict=True):
            try:
                self._pa.array([value if convert is None else convert(value)], kind)
            except Exception as error:
                expected = f"column {field.name!r} of type {field.dataType.simpleString()}"
                raise self._misfit(expected, payload, time, path) from error

    def _misfit(self, expected: str, payload: Any, time: int, path: bytes) -> OutputError:
        return OutputError(
            f"sink {self._sink.name!r} expects {expected}, got {shortened(payload)}. Pass "
            f"schema={{{self._sink.name!r}: ...}} to batch(), or raw=True for payloads as they are.",
            step=str(self._sink),
            function="-",
            global_time=(time, front_of(path)),
            payload=payload,
        )


def _to_column(kind: DataType) -> Callable[[Any], Any] | None:
    """The function from a payload's value to Arrow's of this type; None if they are the same."""
    from pyspark.sql import types as sql

    if isinstance(kind, sql.ArrayType):
        of_element = _to_column(kind.elementType)
        if of_element is None:
            return lambda value: None if value is None else list(value)
        return lambda value: None if value is None else [of_element(part) for part in value]
    if isinstance(kind, sql.MapType):
        of_key, of_value = _to_column(kind.keyType), _to_column(kind.valueType)
        return lambda value: (
            None
            if value is None
            else [
                (
                    key if of_key is None else of_key(key),
                    held if of_value is None else of_value(held),
                )
                for key, held in value.items()
            ]
        )
    if isinstance(kind, sql.StructType):
        return _to_struct(kind)
    return None


def _to_struct(kind: StructType) -> Callable[[Any], Any]:
    names = kind.names
    converters = [_to_column(field.dataType) for field in kind.fields]

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            parts: Sequence[Any] = value
        elif isinstance(value, Mapping):
            parts = [value[name] for name in names]
        else:
            parts = [getattr(value, name) for name in names]
        return {
            name: part if of_part is None else of_part(part)
            for name, part, of_part in zip(names, parts, converters, strict=True)
        }

    return convert


# --- Schemas: given, or found by a sample ---------------------------------------------------------


def given_columns(sink: Sink, schema: Any) -> SinkColumns:
    """The columns of a sink whose schema the user gave."""
    from pyspark.sql import types as sql

    if isinstance(schema, type) and _has_fields(schema):
        return SinkColumns(sink, _declared(sink, schema), fields=True)
    if isinstance(schema, str):
        schema = sql.DataType.fromDDL(schema)
    if isinstance(schema, sql.StructType):
        _check_columns(sink, schema)
        return SinkColumns(sink, schema, fields=True)
    if isinstance(schema, sql.DataType):
        return SinkColumns(sink, sql.StructType([sql.StructField(VALUE, schema)]))
    raise InputError(
        f"sink {sink.name!r}: a schema is a StructType, a string such as 'word string, n long', the "
        f"type of a single column such as 'long', a dataclass or a named tuple; got {schema!r}."
    )


def _check_columns(sink: Sink, schema: StructType) -> None:
    taken = {TIME, FRONT, PATH, PARTITION}
    for name in schema.names:
        if name in taken or schema.names.count(name) > 1:
            raise InputError(
                f"sink {sink.name!r}: the column {name!r} is there twice, or is one of Emberflow's "
                f"own ({', '.join(sorted(taken))}). Give it another name."
            )


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _field_names(kind: Any) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind._fields)


def _declared(sink: Sink, kind: type) -> StructType:
    from pyspark.sql import types as sql

    hints = typing.get_type_hints(kind)
    fields = []
    for name in _field_names(kind):
        found = _of_hint(hints.get(name))
        if found is None:
            raise InputError(
                f"sink {sink.name!r}: the field {name!r} of {kind.__qualname__} is declared "
                f"{hints.get(name)!r}, which has no type in Spark. Pass a StructType or a string."
            )
        fields.append(sql.StructField(name, found))
    schema = sql.StructType(fields)
    _check_columns(sink, schema)
    return schema


def _of_hint(hint: Any) -> DataType | None:
    from types import UnionType

    from pyspark.sql import types as sql

    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, UnionType):
        inner = [part for part in arguments if part is not type(None)]
        return _of_hint(inner[0]) if len(inner) == 1 else None
    if origin in (list, tuple, PersistentList):
        if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
            parts = [_of_hint(part) for part in arguments]
            return None if None in parts else _numbered([part for part in parts if part])
        element = _of_hint(arguments[0])
        return None if element is None else sql.ArrayType(element)
    if origin is dict:
        key, value = map(_of_hint, arguments)
        return None if key is None or value is None else sql.MapType(key, value)
    if isinstance(hint, type):
        if hint in _ATOMS:
            return _atom(hint)
        if _has_fields(hint):
            hints = typing.get_type_hints(hint)
            found = [(name, _of_hint(hints.get(name))) for name in _field_names(hint)]
            if all(part is not None for _, part in found):
                return sql.StructType([sql.StructField(n, part) for n, part in found if part])
    return None


_ATOMS: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "long",
    float: "double",
    bytes: "binary",
    decimal.Decimal: "decimal(38,18)",
    datetime.date: "date",
    datetime.datetime: "timestamp",
}


def _atom(kind: type) -> DataType:
    from pyspark.sql import types as sql

    return {
        "string": sql.StringType(),
        "boolean": sql.BooleanType(),
        "long": sql.LongType(),
        "double": sql.DoubleType(),
        "binary": sql.BinaryType(),
        "decimal(38,18)": sql.DecimalType(38, 18),
        "date": sql.DateType(),
        "timestamp": sql.TimestampType(),
    }[_ATOMS[kind]]


def _numbered(parts: list[DataType]) -> StructType:
    from pyspark.sql import types as sql

    return sql.StructType(
        [sql.StructField(f"_{number}", part) for number, part in enumerate(parts, start=1)]
    )


def sampled_columns(sink: Sink, payloads: list[Any]) -> SinkColumns:
    """The columns of a sink that fit these payloads, and others like them."""
    from pyspark.sql import types as sql

    advice = f"Pass schema={{{sink.name!r}: ...}} to batch(), or raw=True for payloads as they are."
    if not payloads:
        raise InputError(
            f"sink {sink.name!r}: the sample gave no output, so its schema is not known. {advice}"
        )
    try:
        found = _merged([_of_value(payload) for payload in payloads])
    except _UnknownError as problem:
        raise InputError(f"sink {sink.name!r}: {problem}. {advice}") from None
    if isinstance(found, sql.StructType):
        _check_columns(sink, found)
        return SinkColumns(sink, found, fields=True)
    return SinkColumns(sink, sql.StructType([sql.StructField(VALUE, found)]))


class _UnknownError(Exception):
    """No type fits; the message says why."""


def _of_value(value: Any) -> DataType:
    from pyspark.sql import types as sql

    kind = type(value)
    if value is None:
        return sql.NullType()
    if kind in _ATOMS:
        if kind is datetime.datetime and value.tzinfo is None:
            return sql.TimestampNTZType()
        return _atom(kind)
    if isinstance(value, list | PersistentList):
        return sql.ArrayType(_merged([_of_value(part) for part in value]))
    if isinstance(value, dict):
        keys, held = map(_of_value, value.keys()), map(_of_value, value.values())
        return sql.MapType(_merged(list(keys)), _merged(list(held)))
    if isinstance(value, sql.Row):
        names = value.__fields__
        return sql.StructType(
            [sql.StructField(n, _of_value(part)) for n, part in zip(names, value, strict=True)]
        )
    if _has_fields(kind):
        names = _field_names(kind)
        parts = attrgetter(*names)(value) if len(names) > 1 else (getattr(value, names[0]),)
        return sql.StructType(
            [sql.StructField(n, _of_value(part)) for n, part in zip(names, parts, strict=True)]
        )
    if kind is tuple:
        return _numbered([_of_value(part) for part in value])
    raise _UnknownError(f"{shortened(value)} is of type {kind.__qualname__}, which Spark has not")


def _merged(kinds: list[DataType]) -> DataType:
    """The one type of all these values."""
    from pyspark.sql import types as sql

    merged: DataType = sql.NullType()
    for kind in kinds:
        merged = _merged_two(merged, kind)
    return merged


def _merged_two(one: DataType, other: DataType) -> DataType:
    from pyspark.sql import types as sql

    if one == other or isinstance(other, sql.NullType):
        return one
    if isinstance(one, sql.NullType):
        return other
    if {type(one), type(other)} == {sql.LongType, sql.DoubleType}:
        return sql.DoubleType()
    if isinstance(one, sql.ArrayType) and isinstance(other, sql.ArrayType):
        return sql.ArrayType(_merged_two(one.elementType, other.elementType))
    if isinstance(one, sql.MapType) and isinstance(other, sql.MapType):
        return sql.MapType(
            _merged_two(one.keyType, other.keyType), _merged_two(one.valueType, other.valueType)
        )
    if isinstance(one, sql.StructType) and isinstance(other, sql.StructType):
        if one.names == other.names:
            return sql.StructType(
                [
                    sql.StructField(left.name, _merged_two(left.dataType, right.dataType))
                    for left, right in zip(one.fields, other.fields, strict=True)
                ]
            )
        # Plain tuples of several lengths are arrays, if their values have one type.
        if _is_numbered(one) and _is_numbered(other):
            return sql.ArrayType(_merged([field.dataType for field in one.fields + other.fields]))
    if isinstance(one, sql.ArrayType) and isinstance(other, sql.StructType) and _is_numbered(other):
        return sql.ArrayType(_merged([one.elementType, *(f.dataType for f in other.fields)]))
    if isinstance(other, sql.ArrayType) and isinstance(one, sql.StructType) and _is_numbered(one):
        return _merged_two(other, one)
    raise _UnknownError(
        f"its payloads have no one type: both {one.simpleString()} and {other.simpleString()}"
    )


def _is_numbered(kind: StructType) -> bool:
    return kind.names == [f"_{number}" for number in range(1, len(kind.names) + 1)]


# --- For other modules that make columns of values (the data source) -----------------------------------


def common_type(values: list[Any]) -> DataType:
    """The one type of all these values. Raises `ValueError`, which says why there is none.

    >>> common_type([1, None, 2.5]).simpleString(), common_type([("a", 1)]).simpleString()
    ('double', 'struct<_1:string,_2:bigint>')
    """
    try:
        return _merged([_of_value(value) for value in values])
    except _UnknownError as problem:
        raise ValueError(str(problem)) from None


def converter_to(kind: DataType) -> Callable[[Any], Any] | None:
    """The function from a value to Arrow's of this type; None if they are the same."""
    return _to_column(kind)
