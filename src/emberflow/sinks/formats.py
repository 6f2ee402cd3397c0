"""Formats: the payloads of a bundle as the bytes of one file, and back.

**JSON Lines**: each payload is a line, as `emberflow.rows.plain` says. Read back, payloads are plain
JSON values, not the classes they were.

**Parquet**: each payload is a row. Dicts, dataclasses and named tuples have a column for each field, in
the order in which fields first appear; a column is empty where a payload does not have the field. All
other payloads are one column ``value``. The schema is inferred for each bundle. So a bundle in which a
field is always ``None`` has a column of type null, and a reader of many files must allow for that
(Spark: ``mergeSchema``). A bundle cannot mix rows and single values.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from emberflow.errors import PayloadError, shortened
from emberflow.extras import need
from emberflow.rows.plain import fields_of, to_json
from emberflow.values.nesting import is_nested_deeper

FORMATS = ("jsonl", "parquet")

#: Readers take schemas of 100 levels, with the root and the value itself.
_PARQUET_LEVELS_MAX = 98

#: Marks a file whose payloads are single values, so that a row ``{"value": 1}`` stays one.
_SINGLE = {b"emberflow": b"single values"}


def encoded(format: str, payloads: Sequence[Any]) -> bytes:
    """The bytes of a file.

    >>> encoded("jsonl", [{"word": "ash"}, 2])
    b'{"word":"ash"}\\n2\\n'
    """
    if format == "parquet":
        return _to_parquet(payloads)
    return "".join([to_json(payload) + "\n" for payload in payloads]).encode("utf-8")


def check(format: str, payload: Any) -> None:
    """Raises `PayloadError` if no file could hold the payload, whatever else is in it."""
    if format != "parquet":
        to_json(payload)
        return
    for name, values in _columns([payload])[0].items():
        _column(pyarrow(), name, values)


def decoded(format: str, data: bytes) -> list[Any]:
    """The payloads of a file.

    >>> decoded("jsonl", b'{"word":"ash"}\\n2\\n')
    [{'word': 'ash'}, 2]
    """
    if format == "parquet":
        return _from_parquet(data)
    return [json.loads(line) for line in data.decode("utf-8").split("\n")[:-1]]


def pyarrow() -> ModuleType:
    """PyArrow, with its Parquet. Raises `MissingExtraError`."""
    return need("pyarrow", "pyarrow.parquet", extra="spark", what="the format 'parquet'")


def _to_parquet(payloads: Sequence[Any]) -> bytes:
    arrow = pyarrow()
    columns, single = _columns(payloads)
    table = arrow.table({name: _column(arrow, name, values) for name, values in columns.items()})
    if single:
        table = table.replace_schema_metadata(_SINGLE)
    file = io.BytesIO()
    arrow.parquet.write_table(table, file)
    return file.getvalue()


def _columns(payloads: Sequence[Any]) -> tuple[dict[Any, list[Any]], bool]:
    """The columns of payloads, and whether they are single values."""
    rows = [fields_of(payload) for payload in payloads]
    single = bool(rows) and rows[0] is None
    for payload, row in zip(payloads, rows, strict=True):
        if (row is None) != single:
            raise PayloadError(
                "a bundle mixes payloads with fields and without, and Parquet has one schema a "
                f"file: {shortened(payloads[0])} and {shortened(payload)}."
            )
        if row is not None and not row:
            raise PayloadError(f"Parquet has no row without a field: {shortened(payload)}")
    if single:
        return {"value": list(payloads)}, True
    known = [row for row in rows if row is not None]
    names = dict.fromkeys(name for row in known for name in row)
    return {name: [row.get(name) for row in known] for name in names}, False


def _column(arrow: ModuleType, name: Any, values: list[Any]) -> Any:
    if not isinstance(name, str) or not _is_utf8(name):
        raise PayloadError(f"the name of a Parquet column is text, got {shortened(name)}.")
    # Arrow walks into values by recursion without a limit, and writes what it then cannot read.
    if any(is_nested_deeper(value, _PARQUET_LEVELS_MAX) for value in values):
        raise _too_deep(name)
    try:
        column = arrow.array(values)
        if _levels(arrow, column.type) > _PARQUET_LEVELS_MAX:
            raise _too_deep(name)
        return column
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise PayloadError(
            f"column {name!r} cannot be written as Parquet: {error}. "
            f"The first that does not fit: {shortened(_misfit(arrow, values))}"
        ) from None


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _too_deep(name: str) -> PayloadError:
    return PayloadError(f"a value of column {name!r} is nested too deeply to be read from Parquet.")


def _levels(arrow: ModuleType, kind: Any) -> int:
    """How many levels of Parquet's schema a type has: two for a list, one for a row."""
    if arrow.types.is_list(kind):
        return 2 + _levels(arrow, kind.value_type)
    if arrow.types.is_struct(kind):
        return 1 + max(
            (_levels(arrow, kind.field(i).type) for i in range(kind.num_fields)), default=0
        )
    return 0


def _misfit(arrow: ModuleType, values: list[Any]) -> Any:
    """The first value that does not fit the type of those before it."""
    fit, not_fit = 0, len(values)
    while not_fit - fit > 1:
        middle = (fit + not_fit) // 2
        try:
            arrow.array(values[:middle])
            fit = middle
        except (arrow.ArrowException, TypeError, ValueError, OverflowError):
            not_fit = middle
    return values[not_fit - 1]


def _from_parquet(data: bytes) -> list[Any]:
    table = pyarrow().parquet.read_table(io.BytesIO(data))
    if (table.schema.metadata or {}).get(b"emberflow") == _SINGLE[b"emberflow"]:
        return table.column("value").to_pylist()  # type: ignore[no-any-return]
    return table.to_pylist()  # type: ignore[no-any-return]
