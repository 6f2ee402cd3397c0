"""What every sink has to keep: the rules of `emberflow.testing`, on all of ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow.parquet
import pytest
from pyiceberg.table import Transaction
from sqlalchemy.orm import Session

from emberflow import GlobalTime, sinks, testing
from emberflow.checkpoint.chains import Chain
from emberflow.sinks import Sink, StoredBundle
from emberflow.sinks.files import FilesWriter
from emberflow.sinks.postgres import PostgresWriter
from emberflow.sinks.tables.delta import DeltaWriter
from emberflow.sinks.topics.transactions import BlockWriter
from emberflow.testing import SINK_RULES, SimulatedCrash
from tests.adapters.sinks_under_test import (
    ALL,
    DELTA,
    FILES,
    ICEBERG,
    KAFKA,
    OBJECTS,
    ON_DRIVER,
    POSTGRES,
    Held,
    SinkCase,
    bundles,
    payload,
)
from tests.effort import SOAK


def crash_instead(*arguments: Any, **named: Any) -> Any:
    raise SimulatedCrash


def half_written(writer: FilesWriter, path: Path, data: bytes) -> None:
    path.write_bytes(data[: len(data) // 2])
    raise SimulatedCrash


def after_half_of_the_rows(
    insert: Callable[..., None], writer: PostgresWriter, cursor: Any, rows: list[Any]
) -> None:
    insert(writer, cursor, rows[: len(rows) // 2])
    raise SimulatedCrash


def on_a_lost_connection(
    insert: Callable[..., None], writer: PostgresWriter, cursor: Any, rows: list[Any]
) -> None:
    insert(writer, cursor, rows)
    with psycopg.connect(cursor.connection.info.dsn) as other:
        process = cursor.connection.info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [process])


def half_produced(
    produce: Callable[..., None],
    writer: BlockWriter,
    partition: int,
    records: list[Any],
    last: GlobalTime,
) -> None:
    produce(writer, partition, records[: len(records) // 2], last)
    writer._producer.flush(10)
    raise SimulatedCrash


def before_the_commit(write: Callable[..., Any]) -> Callable[..., Any]:
    """The rows of a Delta commit are written, and its entry in the log is not."""

    def written(table: Any, rows: Any, **options: Any) -> None:
        folder = Path(table.table_uri.removeprefix("file://"))
        pyarrow.parquet.write_table(rows, folder / "orphan.parquet")
        raise SimulatedCrash

    return written


CRASHES: list[tuple[str, list[SinkCase], Callable[[pytest.MonkeyPatch], None]]] = [
    ("half written", FILES, lambda patch: patch.setattr(FilesWriter, "_write", half_written)),
    ("not synced", FILES, lambda patch: patch.setattr(os, "fsync", crash_instead)),
    ("not renamed", FILES, lambda patch: patch.setattr(os, "rename", crash_instead)),
    ("not recorded", OBJECTS, lambda patch: patch.setattr(Chain, "add", crash_instead)),
    (
        "rows without a commit",
        DELTA[:1],
        lambda patch: patch.setattr(
            deltalake, "write_deltalake", before_the_commit(deltalake.write_deltalake)
        ),
    ),
    (
        "merge not begun",
        DELTA[1:],
        lambda patch: patch.setattr(DeltaWriter, "_merge", crash_instead),
    ),
    (
        "rows without a commit",
        ICEBERG,
        lambda patch: patch.setattr(Transaction, "commit_transaction", crash_instead),
    ),
    (
        "metadata without a commit",
        ICEBERG,
        lambda patch: patch.setattr(Session, "execute", crash_instead),
    ),
    (
        "half of the rows",
        POSTGRES,
        lambda patch: patch.setattr(
            PostgresWriter,
            "_apply",
            lambda writer, cursor, rows, insert=PostgresWriter._apply: after_half_of_the_rows(
                insert, writer, cursor, rows
            ),
        ),
    ),
    (
        "lost connection",
        POSTGRES,
        lambda patch: patch.setattr(
            PostgresWriter,
            "_apply",
            lambda writer, cursor, rows, insert=PostgresWriter._apply: on_a_lost_connection(
                insert, writer, cursor, rows
            ),
        ),
    ),
    (
        "half of the records",
        KAFKA[:1],
        lambda patch: patch.setattr(
            BlockWriter,
            "_produce",
            lambda writer, *given, produce=BlockWriter._produce: half_produced(
                produce, writer, *given
            ),
        ),
    ),
]


def crashes_of(case: SinkCase) -> dict[str, Callable[[], Any]]:
    """The crashes of a case, as `check_sink` takes them."""

    def patched(crash: Callable[[pytest.MonkeyPatch], None]) -> Callable[[], Any]:
        @contextmanager
        def context() -> Iterator[None]:
            with pytest.MonkeyPatch.context() as patch:
                crash(patch)
                yield

        return context

    return {name: patched(crash) for name, cases, crash in CRASHES if case in cases}


def marks_of(case: SinkCase) -> list[pytest.MarkDecorator]:
    # They ask for the server by name, which the conftest cannot see: these are marked here.
    servers = {"postgres": POSTGRES, "kafka": KAFKA, "s3": OBJECTS}
    return [pytest.mark.xdist_group(name) for name, cases in servers.items() if case in cases]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=marks_of(case)) for case in ALL],
    ids=[case.name for case in ALL],
)
def test_a_sink_keeps_the_contract(
    case: SinkCase, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    made: list[Held] = []

    def make_sink() -> Sink:
        made.append(case.made(tmp_path_factory.mktemp("sink"), request))
        return made[-1].sink

    def payloads(sink: Sink, partition: int) -> list[Any]:
        (held,) = (held for held in made if held.sink is sink)
        return held.payloads(partition)

    crashes = crashes_of(case)
    rules = None if SOAK else case.rules
    is_on_driver = case in ON_DRIVER
    checked = testing.check_sink(
        make_sink,
        payloads=payloads,
        payload=payload,
        partitions=case.partitions,
        crashes=crashes,
        rules=rules,
        **({} if is_on_driver else {"unstorable": object()}),
    )
    exempt = {"travel", "fence", "repeat", "payload"} if is_on_driver else set()
    if case.partitions == 1:
        exempt.add("partitions")
    if case not in KAFKA[:1]:
        exempt.add("group")
    if not crashes:
        exempt.add("crash")
    if rules is not None:
        exempt |= set(SINK_RULES) - rules
    assert set(SINK_RULES) - set(checked) == exempt


def test_an_exception_of_a_callback_leaves_the_last_time() -> None:
    def refuse(bundle: StoredBundle) -> None:
        if bundle == bundles()[1]:
            raise ValueError("refused")

    writer = sinks.Callback(refuse).open(0)
    writer.store(bundles()[0])
    with pytest.raises(ValueError, match="refused"):
        writer.store(bundles()[1])
    assert writer.last() == bundles()[0].last
