"""What a bundle does to a table: rows to append, or rows by key to put and to delete.

Guarantee: a table to which the edits of all bundles are applied in order holds what a table holds that
follows the payloads one by one. So it is enough to know the last payload of each key of a bundle, and a
commit touches a key once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.dsl.operators.changes import Change
from emberflow.errors import PayloadError, shortened
from emberflow.sinks.tables.rows import Row, arrow_rows, row_of

if TYPE_CHECKING:
    import pyarrow as pa

Key = tuple[Any, ...]


class Operation(NamedTuple):
    """Puts a row into the table, or deletes the row with its key."""

    deletes: bool
    row: Row
    #: Of the value that the row was.
    kind: type


class Edits(NamedTuple):
    """Rows that are put, and the keys of rows that are deleted. No key is in both."""

    put: pa.Table
    deleted: pa.Table


def operations_of(payload: Any, key: Sequence[str]) -> list[Operation]:
    """What a payload does to a table whose rows are known by ``key``; without a key it appends a row."""
    if not key or not isinstance(payload, Change):
        return [Operation(False, _keyed(row_of(payload), key, payload), type(payload))]
    _, before, after = payload
    gone = None if before is None else _keyed(row_of(before), key, payload)
    kept = None if after is None else _keyed(row_of(after), key, payload)
    operations = []
    # An update whose row is known by another key than before leaves no row behind.
    if gone is not None and (kept is None or any(gone[name] != kept[name] for name in key)):
        operations.append(Operation(True, gone, type(before)))
    if kept is not None:
        operations.append(Operation(False, kept, type(after)))
    return operations


def _keyed(row: Row, key: Sequence[str], payload: Any) -> Row:
    """The row. Raises `PayloadError` if it has no value for a column of its key that equals itself."""
    for name in key:
        value = row.get(name)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise PayloadError(
                f"column {name!r} identifies a row, and is {value!r} here: {shortened(payload)}"
            )
    return row


def edits_of(schema: pa.Schema, operations: Sequence[Operation], key: Sequence[str]) -> Edits:
    """The edits of operations in order: the last of each key counts."""
    import pyarrow as pa

    of_key = pa.schema([schema.field(name) for name in key])
    if not key:
        return Edits(arrow_rows(schema, [row for _, row, _ in operations]), of_key.empty_table())
    # All rows are converted, also those that do not count: a bundle is refused for any of its payloads.
    put = arrow_rows(schema, [row for deletes, row, _ in operations if not deletes])
    touched = arrow_rows(of_key, [row for _, row, _ in operations])
    last = {own: number for number, own in enumerate(keys_of(touched, key))}
    numbers = sorted(last.values())
    puts_before = list(accumulate((not deletes for deletes, _, _ in operations), initial=0))
    kept = [puts_before[number] for number in numbers if not operations[number].deletes]
    deleted = [number for number in numbers if operations[number].deletes]
    return Edits(put.take(pa.array(kept, pa.int64())), touched.take(pa.array(deleted, pa.int64())))


def keys_of(table: pa.Table, key: Sequence[str]) -> list[Key]:
    """The key of each row, as plain values of Python."""
    return list(zip(*(table.column(name).to_pylist() for name in key), strict=True))
