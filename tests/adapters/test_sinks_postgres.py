"""`sinks.Postgres`: tables, columns, upserts, and errors that say what to do."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
import pytest

from emberflow import GlobalTime, PersistentList, sinks
from emberflow.errors import InputError, MissingExtraError
from emberflow.sinks import PayloadError, StoredBundle
from tests.adapters.postgres_server import PostgresServer, free_port
from tests.adapters.sinks_under_test import new_table, rows


class Word(NamedTuple):
    word: str
    total: int


@dataclasses.dataclass(frozen=True)
class Row:
    word: str
    total: int
    more: Any = None


class Colour(enum.Enum):
    RED = "red"


WORDS = {"word": "text", "total": "bigint"}


def store(sink: sinks.Postgres, *payloads: Any, at: int = 1) -> None:
    writer = sink.open(0)
    try:
        writer.store(StoredBundle("out", 0, GlobalTime(at, 0), list(payloads)))
    finally:
        writer.close()


def test_columns_from_dicts_named_tuples_and_dataclasses(postgres: PostgresServer) -> None:
    table = new_table()
    sink = sinks.Postgres(postgres.dsn, table, columns=WORDS)
    store(sink, {"total": 1, "word": "a", "other": 0}, Word("b\t\\N", 2), Row("", 3), Word("é", -4))
    found = rows(postgres.dsn, "SELECT word, total FROM {} ORDER BY id", table)
    assert found == [("a", 1), ("b\t\\N", 2), ("", 3), ("é", -4)]


def test_values_of_many_types(postgres: PostgresServer) -> None:
    table = new_table()
    columns = {
        "day": "date",
        "colour": "text",
        "numbers": "integer[]",
        "list": "jsonb",
        "nested": "JSON",
        "nothing": "text",
        "text": "jsonb",
    }
    sink = sinks.Postgres(postgres.dsn, table, columns=columns)
    day = datetime.date(2024, 2, 29)
    payload = {
        "day": day,
        "colour": Colour.RED,
        "numbers": PersistentList([1, 2]),
        "list": (1, "x"),
        "nested": Row("a", 1, Word("b", 2)),
        "nothing": None,
        "text": "quoted",
    }
    store(sink, payload)
    query = "SELECT day, colour, numbers, list, nested, nothing, text FROM {}"
    nested = {"word": "a", "total": 1, "more": {"word": "b", "total": 2}}
    expected = (day, "red", [1, 2], [1, "x"], nested, None, "quoted")
    assert rows(postgres.dsn, query, table) == [expected]


def test_an_upsert_keeps_the_last_payload_of_a_key(postgres: PostgresServer) -> None:
    table = new_table()
    sink = sinks.Postgres(postgres.dsn, table, columns=WORDS, upsert=["word"])
    store(sink, Word("a", 1), Word("b", 1), Word("a", 2))
    store(sink, Word("b", 5), at=2)
    found = rows(postgres.dsn, "SELECT word, total FROM {} ORDER BY word", table)
    assert found == [("a", 2), ("b", 5)]


def test_an_upsert_of_nothing_but_keys(postgres: PostgresServer) -> None:
    table = new_table()
    sink = sinks.Postgres(postgres.dsn, table, columns={"word": "text"}, upsert=["word"])
    store(sink, Word("a", 1), Word("a", 2))
    assert rows(postgres.dsn, "SELECT word FROM {}", table) == [("a",)]


def test_a_table_that_is_there_in_a_schema_of_its_own(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.dsn) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute('CREATE TABLE shop."or""ders" ("Word" text, total int DEFAULT 7)')
    sink = sinks.Postgres(postgres.dsn, 'shop.or"ders', columns=["Word"])
    sink.check()
    store(sink, {"Word": "a"})
    with psycopg.connect(postgres.dsn) as connection:
        assert connection.execute('SELECT * FROM shop."or""ders"').fetchall() == [("a", 7)]
        last = connection.execute("SELECT * FROM shop.emberflow_bundles").fetchall()
    assert last == [('shop.or"ders', 0, 1, 0)]


def test_two_sinks_of_one_table_have_two_names(postgres: PostgresServer) -> None:
    table = new_table()
    store(sinks.Postgres(postgres.dsn, table, name="one"), 1, at=5)
    store(sinks.Postgres(postgres.dsn, table, name="two"), 2, at=3)
    assert rows(postgres.dsn, "SELECT payload FROM {} ORDER BY id", table) == [(1,), (2,)]


def test_many_writers_open_at_once(postgres: PostgresServer) -> None:
    """`CREATE TABLE IF NOT EXISTS` alone fails when several do it together."""
    table = new_table()
    failures: list[BaseException] = []

    def opened(partition: int) -> None:
        try:
            sinks.Postgres(postgres.dsn, table).open(partition).close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=opened, args=(partition,)) for partition in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_opening_waits_for_a_writer_that_is_about_to_commit(postgres: PostgresServer) -> None:
    """Else it would be told a last time that is overtaken a moment later."""
    sink = sinks.Postgres(postgres.dsn, new_table())
    store(sink, "a", at=1)
    with psycopg.connect(postgres.dsn) as before:
        before.execute("UPDATE emberflow_bundles SET time = 9 WHERE sink = %s", [sink.name])
        threading.Timer(0.2, before.commit).start()
        writer = sink.open(0)
        assert writer.last() == GlobalTime(9, 0)
        writer.close()


@pytest.mark.parametrize(
    ("columns", "payload", "kind", "complaint"),
    [
        (
            WORDS,
            {"word": "a", "total": "x"},
            PayloadError,
            r"column 'total' .*takes whole numbers, got 'x'.*The payload: .*'total': 'x'",
        ),
        (WORDS, {"word": "a"}, PayloadError, r"no field 'total' for .*: \{'word': 'a'\}"),
        (WORDS, "a", PayloadError, r"takes dicts, dataclasses and named tuples, got 'a'"),
        (None, {1, 2}, PayloadError, r"it holds a set"),
        (None, "\0", PayloadError, r"column 'payload' .*takes no NUL.*The payload: '\\x00'"),
    ],
    ids=["type", "missing", "scalar", "set", "zero"],
)
def test_a_payload_that_does_not_fit_is_named(
    postgres: PostgresServer,
    columns: dict[str, str] | None,
    payload: Any,
    kind: type[Exception],
    complaint: str,
) -> None:
    table = new_table()
    sink = sinks.Postgres(postgres.dsn, table, columns=columns)
    with pytest.raises(kind, match=f"(?s){complaint}"):
        store(sink, {"word": "fine", "total": 1}, payload)
    assert rows(postgres.dsn, "SELECT * FROM {}", table) == []
    store(sink, {"word": "fine", "total": 1})


def test_a_server_that_is_not_there_is_an_error_at_once() -> None:
    port = free_port()
    dsn = f"host=127.0.0.1 port={port} user=u password=geheim"
    begin = time.monotonic()
    for attempt in (sinks.Postgres(dsn, "t").check, lambda: sinks.Postgres(dsn, "t").open(0)):
        with pytest.raises(InputError, match=r"(?s)cannot connect for table 't'.*refused") as found:
            attempt()
        assert "geheim" not in str(found.value)
    assert time.monotonic() - begin < 2


def test_a_table_without_types_has_to_be_there(postgres: PostgresServer) -> None:
    with pytest.raises(InputError, match="there is no table 'missing'"):
        sinks.Postgres(postgres.dsn, "missing", columns=["a"]).check()


def test_without_psycopg_the_extra_is_named(without: Callable[[str], None]) -> None:
    without("psycopg")
    with pytest.raises(MissingExtraError, match=r"pip install 'emberflow\[postgres\]'"):
        sinks.Postgres("", "t")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"table": ""}, "takes 'table' or 'schema.table'"),
        ({"table": "a.b.c"}, "takes 'table' or 'schema.table'"),
        ({"table": "t", "columns": "word"}, "lists of names"),
        ({"table": "t", "columns": []}, "at least one"),
        ({"table": "t", "columns": ["a"], "upsert": ["b"]}, "'b' must be among columns="),
        ({"table": "t", "upsert": ["b"]}, "'b' must be among columns="),
    ],
)
def test_early_checks(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        sinks.Postgres("", **options)
