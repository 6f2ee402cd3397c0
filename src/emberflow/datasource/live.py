"""The states of a live query, as they are now, or as of a time that it still retains.

A task reads the query through its bridge (`runners.live.serving.state_service`). By default a read is
one piece, as of the time when its task begins: if Spark runs the task again, it reads a consistent
state again, only a later one. Several pieces need a common time, which the user gives by ``asOf``.

The task sends the schema and the conditions on the key along. The query looks up keys that are known;
otherwise its workers test the keys, so that only matching rows travel.

**Nothing that the server sends is unpickled.** Whoever writes the OPTIONS of a read chooses the server.
Schemas come as JSON and rows as Arrow, and both are checked. The bytes of raw rows are unpickled only by
`emberflow.payloads`, if the user calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emberflow.checkpoint.cuts.scan import split
from emberflow.datasource.filters import KeyFilters
from emberflow.datasource.options import SourceOptions
from emberflow.datasource.pages import Piece
from emberflow.errors import InputError
from emberflow.rows.schema_json import struct_of_json, type_of_json
from emberflow.rows.state_columns import StateColumns, arrow_schema
from emberflow.runners.live.serving.bridge import BridgeError
from emberflow.values.hashing import HASH_MAX, HASH_MIN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import types as sql


@dataclass(frozen=True, slots=True)
class LiveView:
    """One state of a live query."""

    name: str
    options: SourceOptions
    #: A time, or a time and a front; None for now.
    as_of: tuple[int, ...] | None

    def schema(self, *, raw: bool) -> sql.StructType:
        return struct_of_json(self._ask("schema", raw=raw))

    def key_type(self) -> sql.DataType | None:
        found = self._ask("key_type")
        return None if found is None else type_of_json(found)

    def key_sample(self) -> Sequence[Any]:
        return ()

    def _ask(self, method: str, **arguments: Any) -> Any:
        options = self.options
        with options.client() as client:
            return client.ask(
                options.service, method, as_of=self.as_of, seconds=options.seconds, **arguments
            )

    def pieces(self, filters: KeyFilters, count: int | None) -> list[Piece]:
        if count is None or count == 1:
            return [LivePiece(self.options, self.as_of)]
        if self.as_of is None:
            raise InputError(
                f"option partitions={count}: the tasks of a read of a live query begin at different "
                f"times. Give .option('asOf', t), so that they read one state; or leave out the option."
            )
        ranges = split(HASH_MIN, HASH_MAX, count)
        return [LivePiece(self.options, self.as_of, own) for own in ranges]


@dataclass(frozen=True, slots=True)
class LivePiece:
    """A state, or a range of hashes of it."""

    options: SourceOptions
    as_of: tuple[int, ...] | None
    hashes: tuple[int, int] | None = None

    def batches(self, columns: StateColumns, filters: KeyFilters) -> Iterator[pa.RecordBatch]:
        service, options = self.options.service, self.options
        with options.client() as client:
            number = client.ask(
                service,
                "open",
                as_of=self.as_of,
                schema=columns.schema.json(),
                raw=columns.raw,
                conditions=[test.to_plain() for test in filters.tests],
                hashes=self.hashes,
                seconds=options.seconds,
            )
            try:
                while (part := client.ask(service, "next", number=number)) is not None:
                    yield from _checked(part, columns)
            except GeneratorExit:
                client.ask(service, "close", number=number)
                raise


def _checked(part: Any, columns: StateColumns) -> Iterator[pa.RecordBatch]:
    """The batches of a part, if they are what was asked for."""
    import pyarrow as pa

    expected = arrow_schema(columns.schema)
    try:
        with pa.ipc.open_stream(part) as stream:
            batches = list(stream)
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, TypeError) as error:
        raise BridgeError(
            f"the server sends rows of state {columns.state!r} that cannot be read: {error}."
        ) from error
    for batch in batches:
        if not batch.schema.equals(expected):
            raise BridgeError(
                f"the server sends rows of state {columns.state!r} with the columns "
                f"{batch.schema.to_string()}, and the read is of {expected.to_string()}."
            )
        yield batch
