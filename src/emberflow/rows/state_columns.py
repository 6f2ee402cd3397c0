"""From a state's keys and values to the columns of a DataFrame.

============  =========================================================================
``key``       its type is that of the keys; a key with parts (a tuple, a dataclass) is a struct
``value``     likewise
``time``      the global time of the update that made the value, and its front
``front``
============  =========================================================================

The types are inferred from a sample of the stored rows, like those of a batch's outputs, or the user
gives them by ``.schema(...)``, which may also leave columns out. Keys and values that have no type in
Spark can be read ``raw``: the column ``_payload`` has the bytes of ``(key, value)``, for
`emberflow.payloads`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import types as sql

from emberflow.checkpoint.cuts.scan import ColumnPage
from emberflow.errors import InputError, OutputError, shortened
from emberflow.rows import outputs
from emberflow.rows.codec import encode_all
from emberflow.rows.paths import encoded_path

if TYPE_CHECKING:
    import pyarrow as pa

KEY, VALUE, TIME, FRONT = "key", "value", "time", "front"
_OF_TIME = (TIME, FRONT, outputs.TIME, outputs.FRONT)
_TYPED = (KEY, VALUE, TIME, FRONT)
_RAW = (KEY, outputs.PAYLOAD, outputs.TIME, outputs.FRONT, outputs.PATH)


class StateColumns(NamedTuple):
    """The columns of a read: of which state, which, and whether rows are bytes."""

    state: str
    schema: sql.StructType
    raw: bool


def key_type(keys: Sequence[Any]) -> sql.DataType | None:
    """The type of these keys; None if they have none in Spark."""
    try:
        return _without_empty(outputs.common_type(list(keys)))
    except ValueError:
        return None


def found_schema(state: str, sample: ColumnPage, *, raw: bool) -> sql.StructType:
    """The columns whose types fit the sampled rows."""
    if raw:
        return _raw_schema(sample)
    if not sample.keys:
        raise InputError(
            f"state {state!r} has no rows yet, so the types of its keys and values are not known. "
            f"Give .schema('key string, value bigint, time bigint, front bigint'), with your types."
        )
    types: dict[str, sql.DataType] = {TIME: sql.LongType(), FRONT: sql.LongType()}
    for name, values in ((KEY, sample.keys), (VALUE, sample.payloads)):
        try:
            types[name] = _without_empty(outputs.common_type(values))
        except ValueError as problem:
            raise InputError(
                f"state {state!r}, column {name!r}: {problem}. Give .schema(...) with a type that "
                f'fits, or .option("raw", True) for bytes that ef.payloads(df) reads.'
            ) from None
    return sql.StructType([sql.StructField(name, types[name]) for name in _TYPED])


def _raw_schema(sample: ColumnPage) -> sql.StructType:
    of_key = (key_type(sample.keys) if sample.keys else None) or sql.BinaryType()
    return sql.StructType(
        [
            sql.StructField(KEY, of_key),
            sql.StructField(outputs.PAYLOAD, sql.BinaryType()),
            sql.StructField(outputs.TIME, sql.LongType()),
            sql.StructField(outputs.FRONT, sql.LongType()),
            sql.StructField(outputs.PATH, sql.BinaryType()),
        ]
    )


def _without_empty(kind: sql.DataType) -> sql.DataType:
    """Empty tuples have no element type: they become sequences of an unknown type."""
    if isinstance(kind, sql.StructType):
        if not kind.fields:
            return sql.ArrayType(sql.NullType())
        return sql.StructType(
            [sql.StructField(field.name, _without_empty(field.dataType)) for field in kind.fields]
        )
    if isinstance(kind, sql.ArrayType):
        return sql.ArrayType(_without_empty(kind.elementType))
    if isinstance(kind, sql.MapType):
        return sql.MapType(_without_empty(kind.keyType), _without_empty(kind.valueType))
    return kind


def check_schema(state: str, schema: sql.StructType, *, raw: bool) -> None:
    """Raises `InputError` if a schema has a column that the state does not have."""
    names = _RAW if raw else _TYPED
    for field in schema.fields:
        if field.name not in names:
            raise InputError(
                f"state {state!r} has no column {field.name!r}. It has "
                f"{', '.join(names)}; a schema may leave some of them out."
            )
        if field.name in _OF_TIME and not isinstance(field.dataType, sql.LongType):
            raise InputError(
                f"state {state!r}: the column {field.name!r} is a bigint, and the schema says "
                f"{field.dataType.simpleString()}."
            )
        if field.name in (outputs.PAYLOAD, outputs.PATH) and not isinstance(
            field.dataType, sql.BinaryType
        ):
            raise InputError(
                f"state {state!r}: the column {field.name!r} is binary, and the schema says "
                f"{field.dataType.simpleString()}."
            )


def arrow_schema(schema: sql.StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


class PageWriter:
    """Converts pages to Arrow batches."""

    def __init__(self, columns: StateColumns) -> None:
        self._state, schema, self._raw = columns
        self._fields = schema.fields
        self._schema = arrow_schema(schema)
        self._converters = [outputs.converter_to(field.dataType) for field in schema.fields]

    def batch(self, page: ColumnPage) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [self._array(number, page) for number in range(len(self._fields))]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _array(self, number: int, page: ColumnPage) -> pa.Array:
        import pyarrow as pa

        name, kind = self._fields[number].name, self._schema.field(number).type
        if name in (TIME, outputs.TIME):
            return pa.array(page.times, kind)
        if name in (FRONT, outputs.FRONT):
            return pa.array(page.fronts, kind)
        if name == outputs.PAYLOAD:
            return pa.array(encode_all(list(zip(page.keys, page.payloads, strict=True))), kind)
        if name == outputs.PATH:
            places = zip(page.fronts, page.child_ids, strict=True)
            return pa.array([encoded_path((front, *rest)) for front, rest in places], kind)
        values = page.keys if name == KEY else page.payloads
        convert = self._converters[number]
        if self._raw and isinstance(self._fields[number].dataType, sql.BinaryType):
            convert = _bytes_of_key
        try:
            return pa.array(values if convert is None else list(map(convert, values)), kind)
        except Exception as error:
            misfit = self._misfit(number, values, page, convert, kind)
            if misfit is None:
                raise
            raise misfit from error

    def _misfit(
        self,
        number: int,
        values: list[Any],
        page: ColumnPage,
        convert: Callable[[Any], Any] | None,
        kind: Any,
    ) -> OutputError | None:
        import pyarrow as pa

        field = self._fields[number]
        for value, key, time, front in zip(values, page.keys, page.times, page.fronts, strict=True):
            try:
                pa.array([value if convert is None else convert(value)], kind)
            except Exception as problem:
                return OutputError(
                    f"state {self._state!r}: the column {field.name!r} is "
                    f"{field.dataType.simpleString()}, and the key {shortened(key)} has "
                    f"{shortened(value)}, which does not fit ({problem}). Give .schema(...) with a "
                    f'type that fits all, or .option("raw", True) for bytes that ef.payloads(df) '
                    f"reads.",
                    step=self._state,
                    function="-",
                    global_time=(time, front),
                    payload=value,
                )
        return None


def _bytes_of_key(key: Any) -> bytes:
    return key if isinstance(key, bytes) else pickle.dumps(key, 5)
