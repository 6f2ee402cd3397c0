"""The sinks that the contract is checked on: how each is made, and how to see what it holds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql

from emberflow import GlobalTime, sinks
from emberflow.sinks import Sink, StoredBundle
from emberflow.testing import SINK_RULES
from tests.adapters.kafka_broker import KafkaBroker
from tests.adapters.postgres_server import PostgresServer
from tests.adapters.s3_server import S3Server
from tests.adapters.table_readers import delta_files, iceberg_files, iceberg_metadata
from tests.adapters.table_readers import rows as rows_of

COLUMNS = {"key": "integer", "word": "text"}


class Word(NamedTuple):
    """The columns of tables."""

    key: int
    word: str


_numbers = itertools.count()


def payload(number: int) -> dict[str, Any]:
    return {"key": number, "word": f"wörd\t{number}\\ \N{SNOWMAN}"}


def bundles(partition: int = 0) -> list[StoredBundle]:
    """Of 1 to 5 payloads, with times below and above 0, and fronts of scheduled items."""
    numbers = itertools.count()
    times = [(-(2**40), 0), (-3, -(2**32)), (-3, 2), (0, 0), (9, 1), (10, 0), (2**62, 0)]
    return [
        StoredBundle(
            "out",
            partition,
            GlobalTime(*time),
            [payload(next(numbers)) for _ in range(size % 5 + 1)],
        )
        for size, time in enumerate(times)
    ]


class Held(NamedTuple):
    """A sink, and what it holds now."""

    sink: Sink
    payloads: Callable[[int], list[Any]]


class SinkCase(NamedTuple):
    name: str
    made: Callable[[Path, pytest.FixtureRequest], Held]
    partitions: int = 2
    #: The rules that every run checks, if not all: the others are those of a case like it. A soak has all.
    rules: frozenset[str] | None = None


def _memory(folder: Path, request: pytest.FixtureRequest) -> Held:
    memory = sinks.Memory()
    return Held(memory, memory.payloads)


def _callback(folder: Path, request: pytest.FixtureRequest) -> Held:
    found: dict[int, list[Any]] = {}
    callback = sinks.Callback(
        lambda bundle: found.setdefault(bundle.partition, []).extend(bundle.payloads)
    )
    return Held(callback, lambda partition: found.get(partition, []))


def _files(format: str) -> Callable[[Path, pytest.FixtureRequest], Held]:
    def made(folder: Path, request: pytest.FixtureRequest) -> Held:
        return Held(
            sinks.Files(folder, format=format),
            lambda partition: sinks.read_files(folder, partition),
        )

    return made


def _objects(format: str) -> Callable[[Path, pytest.FixtureRequest], Held]:
    def made(folder: Path, request: pytest.FixtureRequest) -> Held:
        server: S3Server = request.getfixturevalue("s3")
        url = server.new_url("sink")
        return Held(
            sinks.Files(url, format=format), lambda partition: sinks.read_files(url, partition)
        )

    return made


def rows(dsn: str, statement: str, table: str, *arguments: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        composed = sql.SQL(statement).format(sql.Identifier(table))  # type: ignore[arg-type]
        return connection.execute(composed, arguments).fetchall()


def new_table() -> str:
    return f"table_{next(_numbers)}"


def _postgres_json(folder: Path, request: pytest.FixtureRequest) -> Held:
    server: PostgresServer = request.getfixturevalue("postgres")
    table = new_table()

    def payloads(partition: int) -> list[Any]:
        query = "SELECT payload FROM {} WHERE partition = %s ORDER BY id"
        return [row[0] for row in rows(server.dsn, query, table, partition)]

    return Held(sinks.Postgres(server.dsn, table), payloads)


def _postgres_columns(upsert: list[str]) -> Callable[[Path, pytest.FixtureRequest], Held]:
    def made(folder: Path, request: pytest.FixtureRequest) -> Held:
        server: PostgresServer = request.getfixturevalue("postgres")
        table = new_table()
        order = "key" if upsert else "id"

        def payloads(partition: int) -> list[Any]:
            found = rows(server.dsn, f"SELECT key, word FROM {{}} ORDER BY {order}", table)
            return [{"key": key, "word": word} for key, word in found]

        # Over the socket, so that both ways are taken.
        sink = sinks.Postgres(server.socket_dsn, table, columns=COLUMNS, upsert=upsert)
        return Held(sink, payloads)

    return made


def _kafka(transactional: bool) -> Callable[[Path, pytest.FixtureRequest], Held]:
    def made(folder: Path, request: pytest.FixtureRequest) -> Held:
        broker: KafkaBroker = request.getfixturevalue("kafka")
        topic = broker.topic(2)

        def payloads(partition: int) -> list[Any]:
            return [json.loads(value) for _, value in broker.committed(topic, partition)]

        sink = sinks.Kafka(broker.servers, topic, transactional=transactional)
        return Held(sink, payloads)

    return made


def _delta(upsert: list[str]) -> Callable[[Path, pytest.FixtureRequest], Held]:
    def made(folder: Path, request: pytest.FixtureRequest) -> Held:
        table = folder / "table"

        def payloads(partition: int) -> list[Any]:
            return _in_order(rows_of(delta_files(table), partition), upsert)

        return Held(sinks.Delta(table, schema=Word, upsert=upsert), payloads)

    return made


def iceberg_config(folder: Path) -> dict[str, str]:
    """A catalog of its own, in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder / 'catalog.db'}",
        "warehouse": f"file://{folder}",
    }


def _iceberg(upsert: list[str]) -> Callable[[Path, pytest.FixtureRequest], Held]:
    def made(folder: Path, request: pytest.FixtureRequest) -> Held:
        sink = sinks.Iceberg(
            "shop.words", config=iceberg_config(folder), schema=Word, upsert=upsert
        )

        def payloads(partition: int) -> list[Any]:
            metadata = iceberg_metadata(folder / "catalog.db", "shop.words")
            return _in_order(rows_of(iceberg_files(metadata), partition), upsert)

        return Held(sink, payloads)

    return made


def _in_order(found: list[Any], upsert: list[str]) -> list[Any]:
    """A table with keys has no order of its own."""
    return sorted(found, key=lambda row: [row[name] for name in upsert]) if upsert else found


FILES = [SinkCase("Files jsonl", _files("jsonl")), SinkCase("Files parquet", _files("parquet"))]
OBJECTS = [
    SinkCase("Files on S3", _objects("jsonl")),
    SinkCase("Files on S3 parquet", _objects("parquet"), rules=frozenset(("order", "crash"))),
]
POSTGRES = [
    SinkCase("Postgres json", _postgres_json),
    SinkCase("Postgres columns", _postgres_columns([]), partitions=1),
    SinkCase("Postgres upsert", _postgres_columns(["key"]), partitions=1),
]
#: Partitions and pickling are the same with transactions and without.
_OWN = frozenset(SINK_RULES) - {"partitions", "travel", "group", "crash"}
KAFKA = [
    SinkCase("Kafka transactional", _kafka(True)),
    SinkCase("Kafka idempotent", _kafka(False), rules=_OWN),
]
#: `test_sinks_tables` has more of what a table holds, and of who may write to it.
_CRASH = frozenset(("crash",))
_BRIEF = frozenset(SINK_RULES) - {"partitions", "resume", "repeat"}
DELTA = [
    SinkCase("Delta", _delta([])),
    SinkCase("Delta upsert", _delta(["key"]), partitions=1, rules=_CRASH),
]
ICEBERG = [
    SinkCase("Iceberg", _iceberg([]), rules=_BRIEF),
    SinkCase("Iceberg upsert", _iceberg(["key"]), partitions=1, rules=_CRASH),
]
ON_DRIVER = [SinkCase("Memory", _memory), SinkCase("Callback", _callback)]
ALL = [*ON_DRIVER, *FILES, *OBJECTS, *DELTA, *ICEBERG, *POSTGRES, *KAFKA]
