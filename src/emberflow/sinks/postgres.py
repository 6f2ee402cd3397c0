"""`sinks.Postgres`: rows of a table, and in the same transaction the last global time.

Guarantees:

1. *All or nothing.* The rows of a bundle and its last global time are one transaction. If the
   connection breaks during the commit, nobody can know whether it was done. So `store` raises and never
   tries again by itself, and the next writer asks the database.
2. *One writer.* A writer moves the last time on only from the one that it knows. If another writer has
   stored since, this one stores nothing, and the error says so. Otherwise a worker that is dying slowly
   and its successor could both store what follows the same last time.
3. *In order.* A table that is made here without ``upsert`` has a column ``id`` that grows with the order
   within a partition. Its values have gaps after a failed transaction, and differ between runs. The
   order does not.

4. *A table follows changes.* With ``upsert``, payloads that are changes insert, update and delete rows, in
   their order within the same transaction. A table that starts empty holds what the changes say.
5. *What a row cannot hold is known before* (`Postgres.refuses`), as far as the payload and the types of the
   columns tell (`column_types`). The types are those of ``columns=`` or, in a live query, of the table
   when the query starts.

Last times are in the table ``emberflow_bundles(sink, partition, time, front)``, in the schema of the
table itself. Their ``sink`` is the table's name, unless ``name=`` gives another one. Two sinks that
write to one table need two names, and so does a flow that begins anew in the same table.

The writer inserts rows by COPY. Measured against a server with fsync, a bundle of 1 row takes 3.4 ms by
COPY and 3.7 by INSERT, one of 100 takes 4.1 and 5.0, one of 1,000 takes 11 and 24. Upserts cannot be
copied.
"""

from __future__ import annotations

import contextlib
import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from emberflow.dsl.operators.changes import Change
from emberflow.errors import Diverted, EmberflowError, InputError, PayloadError, shortened
from emberflow.extras import need
from emberflow.rows.plain import fields_of, to_json
from emberflow.sinks.column_types import fault
from emberflow.sinks.protocol import SinkMovedError, StoredBundle, refusal
from emberflow.values.item import GlobalTime
from emberflow.values.persistent import PersistentList

if TYPE_CHECKING:
    import psycopg
    from psycopg import sql

BUNDLES = "emberflow_bundles"
_CONNECT_SECONDS_MAX = 5
_LOCK_MS_MAX = 30_000
#: An advisory lock: `CREATE TABLE IF NOT EXISTS` by two workers at once can fail.
_SETUP_LOCK = 0x656D626572666C
_JSON_TYPES = ("json", "jsonb")


class Operation(NamedTuple):
    """Puts a row into the table, or deletes the one that these values identify."""

    deletes: bool
    values: list[Any]


class Postgres:
    """Stores payloads as rows.

    ``table`` may name its schema (``"shop.orders"``). The sink makes tables that are missing:

    - without ``columns``: ``id``, ``partition``, and ``payload`` as ``jsonb``;
    - ``columns={"word": "text", "total": "bigint"}``: each column has the field of that name of a
      payload that is a dict, a dataclass or a named tuple; other fields are left out;
    - ``columns=["word", "total"]``: the same for a table that exists.

    ``upsert=["word"]`` names the columns that identify a row: a payload replaces the row with the
    same values there. So the table holds the last payload of each. If payloads are changes
    (`Changes.sink`), the table follows them: the row of a value that is there no more is deleted. Their
    values are payloads with fields, as above. Without ``upsert`` the sink appends, also changes: as rows
    of key, before and after.

    ``dsn`` is what libpq takes (``"host=db dbname=shop"`` or a URL). It travels to the workers: keep
    passwords out of it, in a ``passfile`` or a ``service`` that the workers can read.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        upsert: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        if not table or table.count(".") > 1 or not all(table.split(".")):
            raise InputError(f"sinks.Postgres takes 'table' or 'schema.table', got {table!r}.")
        if isinstance(columns, str) or isinstance(upsert, str):
            raise InputError("sinks.Postgres takes columns= and upsert= as lists of names.")
        if columns is not None and not columns:
            raise InputError("sinks.Postgres(columns=) names at least one column.")
        strange = [key for key in upsert if key not in (columns or ())]
        if strange:
            raise InputError(
                f"sinks.Postgres(upsert=): {', '.join(map(repr, strange))} must be among columns=."
            )
        _psycopg()
        self._dsn = dsn
        self.table = table
        self.name = name or table
        self.columns = list(columns) if columns is not None else ["partition", "payload"]
        self.types = dict(columns) if isinstance(columns, Mapping) else {}
        self.by_field = columns is not None
        self.upsert = list(upsert)
        #: The types of columns as far as they are known, for `row`.
        self._kinds = {**self.types} if self.by_field else {"payload": "jsonb"}

    def check(self) -> None:
        """Raises `InputError` if the server cannot be reached, or a table that must exist does not."""
        with self.connected() as connection:
            self._check_table(connection)
            self._learn_types(connection)

    def open(self, partition: int) -> PostgresWriter:
        return PostgresWriter(self, partition)

    def connected(self) -> psycopg.Connection[Any]:
        driver = _psycopg()
        self._check_dsn()
        try:
            return driver.connect(  # type: ignore[no-any-return]
                self._dsn, autocommit=True, connect_timeout=_CONNECT_SECONDS_MAX
            )
        except driver.Error as error:
            raise InputError(
                f"sinks.Postgres cannot connect for table {self.table!r}: {error}".rstrip()
            ) from None

    def _check_dsn(self) -> None:
        """Raises `InputError` if libpq would misunderstand the dsn, and show parts of a password."""
        from psycopg.conninfo import conninfo_to_dict

        problem = None
        try:
            parts = conninfo_to_dict(self._dsn)
        except _psycopg().Error:
            problem = "libpq does not understand it"
        else:
            scheme, mark, rest = self._dsn.partition("://")
            hosts = f"{parts.get('host') or ''},{parts.get('hostaddr') or ''}"
            ports = str(parts.get("port") or "").split(",")
            if "@" in hosts or not all(port == "" or port.isdecimal() for port in ports):
                problem = "its host or its port is none"
            elif mark and rest.count("@") > 1 and scheme.startswith("postgres"):
                problem = "it has more than one '@'"
        if problem is not None:
            raise InputError(
                f"sinks.Postgres: the dsn for table {self.table!r} is wrong: {problem}. Write "
                "'host=db dbname=shop' with quotes around values that hold spaces, or a URL in which "
                "the signs /, @, :, #, ? and % of a password are percent-encoded. The dsn is not "
                "shown, because a password may be in it."
            )

    def _check_table(self, connection: psycopg.Connection[Any]) -> None:
        if not self.by_field or self.types:
            return
        query = "SELECT to_regclass(%s) IS NOT NULL"
        row = connection.execute(query, [self.identifier(self.table).as_string()]).fetchone()
        if not row or not row[0]:
            raise InputError(
                f"sinks.Postgres: there is no table {self.table!r}. Make it, or let it be made: "
                "columns={name: type, ...} gives the types that takes."
            )

    def _learn_types(self, connection: psycopg.Connection[Any]) -> None:
        """Note the types of the table's columns, if there is a table."""
        rows = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            [self.identifier(self.table).as_string()],
        ).fetchall()
        for name, kind, not_null in rows:
            self._kinds[name] = f"{kind} NOT NULL" if not_null else kind

    def refuses(self, payload: Any) -> str | None:
        """Why the table cannot hold the payload; None if no reason is known."""
        return refusal(partial(self.operations, 0), payload)

    def operations(self, partition: int, payload: Any) -> list[Operation]:
        """What a payload does to the table. Raises `PayloadError` if the table cannot hold it."""
        if not self.upsert or not isinstance(payload, Change):
            return [Operation(False, self.row(partition, payload))]
        _, before, after = payload
        kept = None if after is None else self.row(partition, after)
        gone = None if before is None else self._key_of(self.row(partition, before))
        operations = []
        # An update whose row is known by other values than before leaves no row behind.
        if gone is not None and (kept is None or self._key_of(kept) != gone):
            operations.append(Operation(True, gone))
        if kept is not None:
            operations.append(Operation(False, kept))
        return operations

    def _key_of(self, row: list[Any]) -> list[Any]:
        """Of a row, what identifies it."""
        values = dict(zip(self.columns, row, strict=True))
        return [values[column] for column in self.upsert]

    def row(self, partition: int, payload: Any) -> list[Any]:
        """The row of a payload. Raises `PayloadError` if the table cannot hold it."""
        if isinstance(payload, Diverted):
            payload = _without_nul(payload)
        row = self._columns_of(partition, payload)
        for column, value in zip(self.columns, row, strict=True):
            problem = fault(value, self._kinds.get(column, ""))
            if problem is not None:
                raise PayloadError(
                    f"sinks.Postgres: column {column!r} of {self.table!r} cannot hold a value: "
                    f"{problem}. The payload: {shortened(payload)}"
                )
        return row

    def _columns_of(self, partition: int, payload: Any) -> list[Any]:
        if not self.by_field:
            return [partition, to_json(payload)]
        fields = fields_of(payload)
        if fields is None:
            raise PayloadError(
                f"sinks.Postgres(columns=) takes dicts, dataclasses and named tuples, got "
                f"{shortened(payload)}."
            )
        missing = [column for column in self.columns if column not in fields]
        if missing and isinstance(payload, Change):
            raise PayloadError(
                f"sinks.Postgres(columns=) got a change, which has the fields key, before and after: "
                f"{shortened(payload)}. For a table that follows the changes of values with these "
                f"columns, name those that identify a row: upsert=[...]"
            )
        if missing:
            raise PayloadError(
                f"a payload has no field {', '.join(map(repr, missing))} for the column of that "
                f"name: {shortened(payload)}"
            )
        return [_adapted(fields[column], self.types.get(column, "")) for column in self.columns]

    def prepare(self, connection: psycopg.Connection[Any]) -> None:
        """Make the tables that are missing."""
        self._check_table(connection)
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SETUP_LOCK])
            connection.execute(
                self.composed(
                    "CREATE TABLE IF NOT EXISTS {bundles} (sink text, partition integer, "
                    "time bigint, front bigint, PRIMARY KEY (sink, partition))"
                )
            )
            definition = self._definition()
            if definition is not None:
                connection.execute(
                    self.composed(
                        "CREATE TABLE IF NOT EXISTS {table} ({definition})", definition=definition
                    )
                )

    def _definition(self) -> sql.Composable | None:
        from psycopg import sql

        identity = sql.SQL("id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
        if not self.by_field:
            rest = sql.SQL("partition integer NOT NULL, payload jsonb NOT NULL")
            return sql.SQL(", ").join([identity, rest])
        if not self.types:
            return None
        # A type is SQL that the user wrote, as in a statement of their own.
        parts: list[sql.Composable] = [
            sql.Identifier(column) + sql.SQL(f" {kind}") for column, kind in self.types.items()
        ]
        if self.upsert:
            keys = sql.SQL(", ").join(map(sql.Identifier, self.upsert))
            parts.append(sql.SQL("PRIMARY KEY ({})").format(keys))
        elif "id" not in self.types:
            parts.insert(0, identity)
        return sql.SQL(", ").join(parts)

    def composed(self, text: str, **parts: sql.Composable) -> sql.Composed:
        """A statement with the names of this sink's tables and columns in it."""
        from psycopg import sql

        schema, dot, _ = self.table.rpartition(".")
        columns = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        return sql.SQL(text).format(
            table=self.identifier(self.table),
            bundles=self.identifier(f"{schema}{dot}{BUNDLES}"),
            columns=columns,
            **parts,
        )

    def identifier(self, name: str) -> sql.Identifier:
        from psycopg import sql

        return sql.Identifier(*name.split("."))


class PostgresWriter:
    """Stores the bundles of one partition over one connection."""

    def __init__(self, sink: Postgres, partition: int) -> None:
        self._sink = sink
        self._key = (sink.name, partition)
        self._last: GlobalTime | None = None
        self._connection = sink.connected()
        try:
            with self._explained("cannot be prepared"):
                sink.prepare(self._connection)
                self._last = self._registered()
        except BaseException:
            self._connection.close()
            raise
        self._move = sink.composed(
            "UPDATE {bundles} SET time = %s, front = %s WHERE sink = %s AND partition = %s "
            "AND time IS NOT DISTINCT FROM %s AND front IS NOT DISTINCT FROM %s"
        )
        self._copy = sink.composed("COPY {table} ({columns}) FROM STDIN")
        self._upsert = _upsert_of(sink)
        self._delete = _delete_of(sink)

    def last(self) -> GlobalTime | None:
        return self._last

    def store(self, bundle: StoredBundle) -> None:
        if self._last is not None and bundle.last <= self._last:
            raise EmberflowError(
                f"sinks.Postgres: {self._key} has stored up to {self._last} and was given a bundle "
                f"that ends at {bundle.last}."
            )
        operations = [
            operation
            for payload in bundle.payloads
            for operation in self._sink.operations(self._key[1], payload)
        ]
        with (
            self._explained("could not store a bundle", bundle.payloads),
            self._connection.transaction(),
            self._connection.cursor() as cursor,
        ):
            self._move_on(cursor, bundle.last)
            self._apply(cursor, operations)
        self._last = bundle.last

    def close(self) -> None:
        self._connection.close()

    def _registered(self) -> GlobalTime | None:
        """The last time. Makes the row that it is in, if there is none."""
        register = self._sink.composed(
            "INSERT INTO {bundles} (sink, partition) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        )
        # The lock waits for a transaction of an older writer that may be about to commit.
        read = self._sink.composed(
            "SELECT time, front FROM {bundles} WHERE sink = %s AND partition = %s FOR UPDATE"
        )
        with self._connection.transaction():
            self._connection.execute(f"SET LOCAL lock_timeout = {_LOCK_MS_MAX}")
            self._connection.execute(register, self._key)
            row = self._connection.execute(read, self._key).fetchone()
        return None if row is None or row[0] is None else GlobalTime(*row)

    def _move_on(self, cursor: psycopg.Cursor[Any], last: GlobalTime) -> None:
        known = self._last or (None, None)
        cursor.execute(self._move, [*last, *self._key, *known])
        if cursor.rowcount != 1:
            raise SinkMovedError(
                f"sinks.Postgres: another writer has stored for {self._key} since this one was "
                "opened. Do two queries write under one name? Then give each its own name=."
            )

    def _apply(self, cursor: psycopg.Cursor[Any], operations: list[Operation]) -> None:
        if self._upsert is None or self._delete is None:
            with cursor.copy(self._copy) as copy:
                for operation in operations:
                    copy.write_row(operation.values)
            return
        # In order, and those of one kind that follow each other at once.
        for deletes, run in groupby(operations, key=attrgetter("deletes")):
            statement = self._delete if deletes else self._upsert
            cursor.executemany(statement, [operation.values for operation in run])

    @contextlib.contextmanager
    def _explained(self, what: str, payloads: Sequence[Any] = ()) -> Iterator[None]:
        driver = _psycopg()
        try:
            yield
        except driver.Error as error:
            culprit = re.search(r"COPY .*, line (\d+)", str(error))
            shown = f" The payload: {shortened(payloads[int(culprit[1]) - 1])}" if culprit else ""
            kinds = (driver.DataError, driver.errors.NotNullViolation, driver.errors.CheckViolation)
            of_payload = bool(payloads) and isinstance(error, kinds)
            raise (PayloadError if of_payload else EmberflowError)(
                f"sinks.Postgres: table {self._sink.table!r} {what}: {str(error).strip()}.{shown}"
            ) from None


def _upsert_of(sink: Postgres) -> sql.Composed | None:
    from psycopg import sql

    if not sink.upsert:
        return None
    changed = [
        sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(column))
        for column in sink.columns
        if column not in sink.upsert
    ]
    return sink.composed(
        "INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT ({keys}) DO {action}",
        values=sql.SQL(", ").join([sql.Placeholder()] * len(sink.columns)),
        keys=sql.SQL(", ").join(map(sql.Identifier, sink.upsert)),
        action=sql.SQL("UPDATE SET ") + sql.SQL(", ").join(changed)
        if changed
        else sql.SQL("NOTHING"),
    )


def _delete_of(sink: Postgres) -> sql.Composed | None:
    from psycopg import sql

    if not sink.upsert:
        return None
    same = [sql.SQL("{} = %s").format(sql.Identifier(column)) for column in sink.upsert]
    return sink.composed("DELETE FROM {table} WHERE {same}", same=sql.SQL(" AND ").join(same))


def _without_nul(diverted: Diverted) -> Diverted:
    """The record without NUL, which no text of PostgreSQL holds: the errors sink stores it always."""
    shown = {
        name: value.replace("\0", "\\x00")
        for name, value in diverted._asdict().items()
        if isinstance(value, str)
    }
    payload = diverted.payload
    if fault(to_json(diverted._replace(**{**shown, "payload": payload})), "jsonb") is not None:
        payload = shortened(payload)
    return diverted._replace(**{**shown, "payload": payload})


def _adapted(value: Any, kind: str) -> Any:
    """A field's value as psycopg takes it: lists become arrays, values with fields become JSON."""
    if kind.strip().lower().startswith(_JSON_TYPES) or fields_of(value) is not None:
        return to_json(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | PersistentList):
        return list(value)
    return value


def _psycopg() -> ModuleType:
    return need("psycopg", extra="postgres", what="sinks.Postgres")
