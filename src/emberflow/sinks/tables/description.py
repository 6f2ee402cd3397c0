"""`TableSink`: the options that `sinks.Delta` and `sinks.Iceberg` share, and their rows of payloads.

The schema of a table is, in this order: that of the table, if it is there; the one that the sink was
given; that of the payloads of the first bundle (`rows`). A live query learns the schema of a table when
it starts, and can then tell which payloads the table cannot hold (`TableSink.refuses`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from emberflow.errors import InputError
from emberflow.sinks.protocol import StoredBundle, Writer, refusal
from emberflow.sinks.tables.edits import Edits, Operation, edits_of, operations_of
from emberflow.sinks.tables.rows import evolved_schema, found_schema, given_schema
from emberflow.values.times import Duration, seconds

if TYPE_CHECKING:
    import pyarrow as pa

#: How long output waits to be committed together, unless the user says otherwise.
COMMIT_SECONDS = 10.0


class TableSink(ABC):
    """The description of a sink whose output is the rows of a table."""

    def __init__(
        self,
        what: str,
        table: str,
        *,
        schema: Any,
        upsert: Sequence[str],
        evolve: bool,
        commit_every: float | Duration,
        name: str,
    ) -> None:
        """``what`` is the name of the sink for messages."""
        if not table or not isinstance(table, str):
            raise InputError(f"{what} takes the place of a table, got {table!r}.")
        if isinstance(upsert, str):
            raise InputError(f"{what} takes upsert= as a list of names.")
        if not name or not isinstance(name, str):
            raise InputError(f"{what}(name=) takes a text, got {name!r}.")
        self.what = what
        self.place = table
        self.name = name
        self.upsert = list(upsert)
        self.evolve = evolve
        self.commit_every = seconds(commit_every, f"{what}(commit_every=)")
        self.schema = given_schema(schema, f"{what}(schema=)")
        if self.schema is not None:
            self.check_key(self.schema)

    @abstractmethod
    def open(self, partition: int) -> Writer:
        """A writer for a partition."""

    def check_key(self, schema: pa.Schema) -> None:
        """Raises `InputError` if a column of the key is not there, or its values have no order."""
        import pyarrow as pa

        for name in self.upsert:
            if name not in schema.names:
                raise InputError(
                    f"{self.what}(upsert=): {self.place!r} has no column {name!r}; it has "
                    f"{', '.join(map(repr, schema.names))}."
                )
            if pa.types.is_nested(schema.field(name).type):
                raise InputError(
                    f"{self.what}(upsert=): column {name!r} holds lists, maps or rows, which identify "
                    f"no row."
                )

    def refuses(self, payload: Any) -> str | None:
        """Why the table cannot hold the payload; None if no reason is known."""
        return refusal(self._checked, payload)

    def _checked(self, payload: Any) -> None:
        operations = operations_of(payload, self.upsert)
        if self.schema is not None:
            self.edits(self.schema, operations)

    def operations(self, bundle: StoredBundle) -> list[Operation]:
        """What the payloads of a bundle do to the table, in order."""
        return [
            operation
            for payload in bundle.payloads
            for operation in operations_of(payload, self.upsert)
        ]

    def first_schema(self, operations: Sequence[Operation]) -> pa.Schema:
        """The schema of a table that these operations are the first of."""
        if self.schema is not None:
            return self.schema
        schema = found_schema(
            {operation.kind for operation in operations},
            [operation.row for operation in operations],
        )
        self.check_key(schema)
        return schema

    def edits(self, schema: pa.Schema, operations: Sequence[Operation]) -> Edits:
        """What operations do to a table of this schema. Those of a wider one are its new columns."""
        rows = [operation.row for operation in operations if not operation.deletes]
        return edits_of(evolved_schema(schema, rows, evolve=self.evolve), operations, self.upsert)
