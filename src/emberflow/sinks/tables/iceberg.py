"""`sinks.Iceberg`: rows of an Iceberg table, and in the same commit the last global time.

Guarantees:

1. *All or nothing.* A bundle is one commit of the catalog. It holds a snapshot with the rows, and the
   bundle's last global time as a property of the table, one for each partition of the sink. So the rows
   and the time become visible together, and a bundle that was committed before a crash is not committed
   again. The time is also in the summary of the snapshot, for people who look at the history; the sink
   does not read it there, because snapshots expire.
2. *One writer.* A commit succeeds only on the snapshot that the writer knows. If it fails, the writer
   loads the table again. If its last time has moved on, another writer has the partition
   (`SinkMovedError`). If it has not, another partition or another program was first, and the writer
   writes its rows again. PyIceberg's own retries are off: they would repeat the commit without that look.
3. *A table follows changes.* With ``upsert``, the commit deletes the rows of all keys of the bundle and
   appends the last payload of each (copy on write).

On a local disk the writer syncs the files of its commit before `store` returns. Expiring snapshots,
removing files of failed commits and making big files of small ones are left to the table's own tools.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import reduce
from types import ModuleType
from typing import TYPE_CHECKING, Any

from emberflow.errors import InputError
from emberflow.extras import need
from emberflow.sinks.tables.description import COMMIT_SECONDS, TableSink
from emberflow.sinks.tables.edits import Edits, Operation, keys_of
from emberflow.sinks.tables.local_files import local_path, sync_files
from emberflow.sinks.tables.writer import ConflictError, TableWriter
from emberflow.values.item import GlobalTime
from emberflow.values.times import Duration

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

#: PyIceberg takes milliseconds for each hundred values of a filter, so a filter of more is a range.
_FILTER_VALUES_MAX = 1_000


class Iceberg(TableSink):
    """Stores payloads as rows of an Iceberg table, by `PyIceberg <https://py.iceberg.apache.org>`_.

    ``table`` is ``"namespace.table"`` of a catalog. ``catalog`` is the catalog's name, and ``config`` its
    properties (``{"type": "sql", "uri": ..., "warehouse": ...}``); without them PyIceberg looks into its
    own configuration, ``.pyiceberg.yaml``. They travel to the workers.

    If there is no table, the sink makes it: with ``schema`` (a `pyarrow.Schema`, a dataclass or a named
    tuple), or with the columns of the first payloads. A field for which the table has no column is an
    error; with ``evolve=True`` the sink adds the column.

    ``upsert=["word"]`` names the columns that identify a row: a payload replaces the row with the same
    values there, and the table follows payloads that are changes (`Changes.sink`). Without it the sink
    appends.

    A live query commits every ``commit_every`` (seconds, or a text such as ``"1 minute"``), or when there
    is much to commit. Two sinks that write to one table need two names, and so does a flow that begins
    anew in the same table.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        config: Mapping[str, str] | None = None,
        schema: Any = None,
        upsert: Sequence[str] = (),
        evolve: bool = False,
        commit_every: float | Duration = COMMIT_SECONDS,
        name: str = "emberflow",
    ) -> None:
        _pyiceberg()
        super().__init__(
            "sinks.Iceberg",
            table,
            schema=schema,
            upsert=upsert,
            evolve=evolve,
            commit_every=commit_every,
            name=name,
        )
        if not all(table.split(".")) or "." not in table:
            raise InputError(f"sinks.Iceberg takes 'namespace.table', got {table!r}.")
        self.catalog = catalog
        self._config = dict(config or {})

    def check(self) -> None:
        """Raises `InputError` if the table cannot be reached or made. Learns its columns."""
        try:
            catalog = self.opened_catalog()
            with contextlib.closing(catalog):
                table = self.table(catalog)
                if table is None and self.schema is not None:
                    table = self.made(catalog, self.schema)
        except Exception as error:  # those of the catalog's own driver
            raise InputError(f"sinks.Iceberg cannot open {self.place!r}: {error}") from error
        if table is not None:
            self.schema = schema_of(table)
            self.check_key(self.schema)

    def open(self, partition: int) -> IcebergWriter:
        return IcebergWriter(self, partition)

    def opened_catalog(self) -> Catalog:
        catalog: Catalog = _pyiceberg().load_catalog(self.catalog, **self._config)
        return catalog

    def table(self, catalog: Catalog) -> Table | None:
        """The table as it is now; None if there is none."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return catalog.load_table(self.place)
        except NoSuchTableError:
            return None

    def made(self, catalog: Catalog, schema: pa.Schema) -> Table:
        """Make the table, unless another writer has made it."""
        catalog.create_namespace_if_not_exists(self.place.rpartition(".")[0])
        catalog.create_table_if_not_exists(self.place, schema=schema)
        return catalog.load_table(self.place)


class IcebergWriter(TableWriter[Iceberg, "Table"]):
    """Commits the bundles of one partition to a catalog."""

    def __init__(self, sink: Iceberg, partition: int) -> None:
        self._catalog: Catalog | None = None
        try:
            super().__init__(sink, partition)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        if self._catalog is not None:
            self._catalog.close()

    def _loaded(self) -> Table | None:
        self._catalog = self._sink.opened_catalog()
        return self._sink.table(self._catalog)

    def _made(self, schema: pa.Schema) -> Table:
        assert self._catalog is not None
        return self._sink.made(self._catalog, schema)

    def _refresh(self, table: Table) -> None:
        table.refresh()

    def _last_in(self, table: Table) -> GlobalTime | None:
        found = table.metadata.properties.get(self._property())
        return None if found is None else GlobalTime(*map(int, found.split(" ")))

    def _property(self) -> str:
        """The property of the table that has the last time of the partition."""
        return f"emberflow.{self._sink.name}.{self._partition}"

    def _commit(self, table: Table, operations: Sequence[Operation], last: GlobalTime) -> None:
        from pyiceberg.exceptions import CommitFailedException

        schema = schema_of(table)
        edits = self._sink.edits(schema, operations)
        noted = {self._property(): f"{last.time} {last.front}"}
        replaced = self._replaced(table, edits) if self._sink.upsert else None
        before = {snapshot.snapshot_id for snapshot in table.snapshots()}
        _without_retries(table)
        try:
            with table.transaction() as transaction:
                rows = edits.put
                if len(rows.schema) > len(schema):
                    with transaction.update_schema() as update:
                        update.union_by_name(rows.schema)
                if replaced is not None:
                    touched, others = replaced
                    transaction.delete(touched, snapshot_properties=noted)
                    rows = _joined(rows, others)
                # Also where there are no rows: only a snapshot shows whether another commit was first.
                transaction.append(rows, snapshot_properties=noted)
                transaction.set_properties(noted)
        except CommitFailedException as error:
            raise ConflictError(str(error)) from error
        _sync(table, before)

    def _replaced(self, table: Table, edits: Edits) -> tuple[BooleanExpression, pa.Table] | None:
        """A filter with all rows of the keys of the edits, and the other rows that it has.

        None if the filter has no rows.
        """
        import pyarrow as pa

        key = self._sink.upsert
        of_key = pa.concat_tables([edits.put.select(key), edits.deleted])
        touched = _filter_of(of_key, key)
        found = table.scan(row_filter=touched).to_arrow()
        if not len(found):
            return None
        keys = set(keys_of(of_key, key))
        others = [own not in keys for own in keys_of(found, key)]
        return touched, found.filter(pa.array(others, pa.bool_()))


def schema_of(table: Table) -> pa.Schema:
    """The columns of a table, as Arrow has them."""
    import pyarrow as pa

    # Without metadata: the numbers of fields in it are not those of a column that is new.
    found = table.schema().as_arrow()
    return pa.schema([field.remove_metadata() for field in found])


def _filter_of(of_key: pa.Table, key: Sequence[str]) -> BooleanExpression:
    """A filter with all rows of these keys, and perhaps others."""
    from pyiceberg import expressions

    made: Any = expressions  # whose annotations are those of its base classes
    parts: list[BooleanExpression] = []
    for name in key:
        values = set(of_key.column(name).to_pylist())
        if len(values) <= _FILTER_VALUES_MAX:
            parts.append(made.In(name, values))
        else:
            parts.append(made.GreaterThanOrEqual(name, min(values)))
            parts.append(made.LessThanOrEqual(name, max(values)))
    return reduce(made.And, parts)


def _joined(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Rows, and behind them others that may lack columns which are new."""
    import pyarrow as pa

    for field in rows.schema:
        if field.name not in others.column_names:
            others = others.append_column(field, pa.nulls(len(others), field.type))
    return pa.concat_tables([rows, others.select(rows.schema.names).cast(rows.schema)])


def _without_retries(table: Table) -> None:
    """Have PyIceberg commit once. Only this copy of the table's properties changes."""
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


def _sync(table: Table, before: set[int]) -> None:
    """Sync the files of a commit, where the table is on a local disk. It had these snapshots before."""
    root = local_path(table.location())
    if root is None:
        return
    new = [snapshot for snapshot in table.snapshots() if snapshot.snapshot_id not in before]
    places = [table.metadata_location]
    for snapshot in new:
        places.append(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                entries = manifest.fetch_manifest_entry(table.io)
                places += [
                    manifest.manifest_path,
                    *(entry.data_file.file_path for entry in entries),
                ]
    sync_files(root, [path for path in map(local_path, places) if path is not None])


def _pyiceberg() -> ModuleType:
    return need("pyiceberg.catalog", "pyarrow", extra="iceberg", what="sinks.Iceberg")
