"""`sinks.Delta`: rows of a Delta table, and in the same commit the last global time.

Guarantees:

1. *All or nothing.* A bundle is one commit of the table's log. The commit holds the files with its rows
   and two application transactions (`txn`) of the sink's partition: their versions are the time and the
   front of the bundle's last global time. So the rows and the time become visible together, and a bundle
   that was committed before a crash is not committed again.
2. *One writer.* A commit fails if another one of the same application transactions came since this
   writer read them. It then reads them again. If they have moved on, another writer has the partition
   (`SinkMovedError`). If they have not, another partition or another program was first, and the writer
   commits again.
3. *A table follows changes.* With ``upsert``, a bundle is a MERGE by the key, with the last payload of
   each key of the bundle. A MERGE that changes no row is no commit; an empty one then holds the time.

What of a table is stored is what its log has. On an object store a commit is durable when it is
acknowledged. On a local disk the writer syncs the files of its commit before `store` returns.

A commit that failed leaves files behind that the log does not name. ``VACUUM`` removes them, and
``OPTIMIZE`` makes big files of small ones: both are left to the table's own tools.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from emberflow.errors import EmberflowError, InputError
from emberflow.extras import need
from emberflow.sinks.tables.description import COMMIT_SECONDS, TableSink
from emberflow.sinks.tables.edits import Edits, Operation
from emberflow.sinks.tables.local_files import local_path, sync_files
from emberflow.sinks.tables.writer import ConflictError, TableWriter
from emberflow.values.item import GlobalTime
from emberflow.values.times import Duration

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable

#: In the source of a MERGE: whether the row with this key is deleted.
_DELETED = "_emberflow_deleted"
#: Delta's words for a row that a constraint of the table refuses.
_REFUSED = "Invalid data found"


class Delta(TableSink):
    """Stores payloads as rows of a Delta table, by `delta-rs <https://delta-io.github.io/delta-rs>`_.

    ``table`` is a folder, or the URL of an object store that ``storage_options`` say how to reach. If there
    is no table, the sink makes it: with ``schema`` (a `pyarrow.Schema`, a dataclass or a named tuple), or
    with the columns of the first payloads. A field for which the table has no column is an error; with
    ``evolve=True`` the sink adds the column.

    ``upsert=["word"]`` names the columns that identify a row: a payload replaces the row with the same
    values there, and the table follows payloads that are changes (`Changes.sink`). Without it the sink
    appends.

    A live query commits every ``commit_every`` (seconds, or a text such as ``"1 minute"``), or when there
    is much to commit. Two sinks that write to one table need two names, and so does a flow that begins
    anew in the same table.
    """

    def __init__(
        self,
        table: str | os.PathLike[str],
        *,
        schema: Any = None,
        upsert: Sequence[str] = (),
        evolve: bool = False,
        commit_every: float | Duration = COMMIT_SECONDS,
        name: str = "emberflow",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        _deltalake()
        place = os.fspath(table)
        if place and "://" not in place:
            place = str(Path(place).absolute())  # workers may run in another folder
        super().__init__(
            "sinks.Delta",
            place,
            schema=schema,
            upsert=upsert,
            evolve=evolve,
            commit_every=commit_every,
            name=name,
        )
        self._storage_options = dict(storage_options or {})

    def check(self) -> None:
        """Raises `InputError` if the table cannot be reached or made. Learns its columns."""
        try:
            table = self.table()
            if table is None and self.schema is not None:
                table = self.made(self.schema)
        except (_deltalake().exceptions.DeltaError, OSError) as error:
            raise InputError(f"sinks.Delta cannot open {self.place!r}: {error}") from error
        if table is not None:
            self.schema = schema_of(table)
            self.check_key(self.schema)

    def open(self, partition: int) -> DeltaWriter:
        return DeltaWriter(self, partition)

    def table(self) -> DeltaTable | None:
        """The table as it is now; None if there is none."""
        delta = _deltalake()
        try:
            table: DeltaTable = delta.DeltaTable(
                self.place, storage_options=self._storage_options or None
            )
        except delta.exceptions.TableNotFoundError:
            return None
        return table

    def made(self, schema: pa.Schema) -> DeltaTable:
        """Make the table, unless another writer has made it."""
        delta = _deltalake()
        options = self._storage_options or None
        try:
            delta.DeltaTable.create(
                self.place, schema=schema, mode="ignore", storage_options=options
            )
        except delta.exceptions.SchemaMismatchError as error:
            raise InputError(f"sinks.Delta: {self.place!r} has another schema: {error}") from None
        table = self.table()
        if table is None:
            raise EmberflowError(f"sinks.Delta: {self.place!r} was made and is not there.")
        return table


class DeltaWriter(TableWriter[Delta, "DeltaTable"]):
    """Commits the bundles of one partition to the log of a table."""

    def _loaded(self) -> DeltaTable | None:
        return self._sink.table()

    def _made(self, schema: pa.Schema) -> DeltaTable:
        return self._sink.made(schema)

    def _refresh(self, table: DeltaTable) -> None:
        table.update_incremental()

    def _last_in(self, table: DeltaTable) -> GlobalTime | None:
        time, front = map(table.transaction_version, self._transactions())
        return None if time is None or front is None else GlobalTime(time, front)

    def _transactions(self) -> tuple[str, str]:
        """The application transactions of the partition: for the time, and for the front."""
        own = f"{self._sink.name}/{self._partition}"
        return f"{own}/time", f"{own}/front"

    def _commit(self, table: DeltaTable, operations: Sequence[Operation], last: GlobalTime) -> None:
        delta = _deltalake()
        schema = schema_of(table)
        edits = self._sink.edits(schema, operations)
        noted = delta.CommitProperties(
            app_transactions=[
                delta.Transaction(own, version)
                for own, version in zip(self._transactions(), last, strict=True)
            ]
        )
        version = table.version()
        try:
            if self._sink.upsert:
                self._merge(table, edits, noted)
            if table.version() == version:  # it appends, or the merge has changed nothing
                rows = edits.put.slice(0, 0) if self._sink.upsert else edits.put
                wider = len(rows.schema) > len(schema)
                delta.write_deltalake(
                    table,
                    rows,
                    mode="append",
                    schema_mode="merge" if wider else None,
                    commit_properties=noted,
                )
        except delta.exceptions.CommitFailedError as error:
            raise ConflictError(str(error)) from error
        _sync(table)

    def _merge(self, table: DeltaTable, edits: Edits, noted: CommitProperties) -> None:
        values = {f"t.`{name}`": f"s.`{name}`" for name in edits.put.schema.names}
        (
            table.merge(
                _merge_source(edits),
                " AND ".join(f"t.`{name}` = s.`{name}`" for name in self._sink.upsert),
                source_alias="s",
                target_alias="t",
                merge_schema=self._sink.evolve,
                commit_properties=noted,
            )
            .when_matched_delete(f"s.`{_DELETED}`")
            .when_matched_update(values)
            .when_not_matched_insert(values, predicate=f"NOT s.`{_DELETED}`")
            .execute()
        )

    def _is_of_payload(self, error: Exception) -> bool:
        return _REFUSED in str(error)


def _merge_source(edits: Edits) -> pa.Table:
    """All edits as one table, with a column that tells which of them delete."""
    import pyarrow as pa

    put = edits.put.append_column(_DELETED, pa.repeat(False, len(edits.put)))
    # A row that deletes has only its key, whatever the table asks of its columns.
    schema = pa.schema([field.with_nullable(True) for field in put.schema])
    deleted = edits.deleted.append_column(_DELETED, pa.repeat(True, len(edits.deleted)))
    for field in schema:
        if field.name not in deleted.column_names:
            deleted = deleted.append_column(field, pa.nulls(len(deleted), field.type))
    return pa.concat_tables([put.cast(schema), deleted.select(schema.names).cast(schema)])


def schema_of(table: DeltaTable) -> pa.Schema:
    """The columns of a table, as Arrow has them."""
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _sync(table: DeltaTable) -> None:
    """Sync the files of the newest commit, where the table is on a local disk."""
    root = local_path(table.table_uri)
    if root is not None:
        entry = root / "_delta_log" / f"{table.version():020d}.json"
        with open(entry, encoding="utf-8") as lines:
            actions = [json.loads(line) for line in lines]
        added = [root / unquote(action["add"]["path"]) for action in actions if "add" in action]
        sync_files(root, [*added, entry])


def _deltalake() -> ModuleType:
    return need("deltalake", "deltalake.exceptions", "pyarrow", extra="delta", what="sinks.Delta")
