"""What every sink has to keep."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import psycopg
import pytest

from emberflow import GlobalTime, sinks
from emberflow.errors import EmberflowError
from emberflow.sinks import Sink, StoredBundle
from emberflow.sinks.files import FilesWriter
from emberflow.sinks.kafka import TransactionalWriter
from emberflow.sinks.postgres import PostgresWriter
from tests.adapters.sinks_under_test import (
    ALL,
    FILES,
    KAFKA,
    LASTING,
    POSTGRES,
    Held,
    SinkCase,
    bundles,
)


@pytest.fixture
def held(request: pytest.FixtureRequest, tmp_path: Path) -> Held:
    case: SinkCase = request.param
    return case.made(tmp_path, request)


def marks_of(case: SinkCase) -> list[pytest.MarkDecorator]:
    # `held` asks for the server by name, which the conftest cannot see: these are marked here.
    servers = {"postgres": POSTGRES, "kafka": KAFKA}
    return [pytest.mark.xdist_group(name) for name, cases in servers.items() if case in cases]


def each(cases: list[SinkCase]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "held",
        [pytest.param(case, marks=marks_of(case)) for case in cases],
        ids=[case.name for case in cases],
        indirect=True,
    )


def payloads_of(stored: list[StoredBundle]) -> list[Any]:
    return [payload for bundle in stored for payload in bundle.payloads]


@each(ALL)
def test_all_that_is_stored_is_there_in_order(held: Held) -> None:
    writer = held.sink.open(0)
    assert writer.last() is None
    stored: list[StoredBundle] = []
    for bundle in bundles():
        writer.store(bundle)
        stored.append(bundle)
        assert writer.last() == bundle.last
        assert held.payloads(0) == payloads_of(stored)
    writer.close()


@each(LASTING)
def test_a_writer_opened_later_goes_on(held: Held) -> None:
    for bundle in bundles():
        writer = held.sink.open(0)
        writer.store(bundle)
        writer.close()
        later = held.sink.open(0)
        assert later.last() == bundle.last
        later.close()
    assert held.payloads(0) == payloads_of(bundles())


@each([case for case in ALL if case.name not in ("Postgres columns", "Postgres upsert")])
def test_partitions_are_apart(held: Held) -> None:
    writers = [held.sink.open(partition) for partition in (0, 1)]
    first, second, *_ = bundles(1)
    writers[1].store(first)
    assert writers[0].last() is None
    assert held.payloads(0) == []
    writers[0].store(second._replace(partition=0))
    assert [writer.last() for writer in writers] == [second.last, first.last]
    assert held.payloads(0) == second.payloads
    assert held.payloads(1) == first.payloads
    for writer in writers:
        writer.close()


@each([*FILES, *POSTGRES, *KAFKA])
def test_travels_to_a_worker(held: Held) -> None:
    there: Sink = cloudpickle.loads(cloudpickle.dumps(held.sink))
    writer = there.open(0)
    writer.store(bundles()[0])
    writer.close()
    assert held.payloads(0) == bundles()[0].payloads


@each([*FILES, *POSTGRES, *KAFKA])
def test_an_older_writer_can_store_nothing_more(held: Held) -> None:
    """A worker that is dying slowly must not store beside the one that has taken over."""
    first, second, third, *_ = bundles()
    old = held.sink.open(0)
    old.store(first)
    new = held.sink.open(0)
    assert new.last() == first.last
    new.store(third)
    with pytest.raises(EmberflowError, match="another writer"):
        old.store(second._replace(last=bundles()[4].last))
    assert held.payloads(0) == payloads_of([first, third])
    old.close()
    new.close()


@each([*FILES, *POSTGRES, *KAFKA])
def test_a_bundle_is_stored_once(held: Held) -> None:
    first, second, *_ = bundles()
    writer = held.sink.open(0)
    writer.store(second)
    for bundle in (second, first):
        with pytest.raises(EmberflowError, match=re.escape(f"ends at {bundle.last}")):
            writer.store(bundle)
    assert held.payloads(0) == second.payloads
    writer.close()


class CrashError(BaseException):
    """Not an `Exception`: nothing may catch it on the way."""


def crash_instead(*arguments: Any, **named: Any) -> Any:
    raise CrashError


def half_written(writer: FilesWriter, path: Path, data: bytes) -> None:
    path.write_bytes(data[: len(data) // 2])
    raise CrashError


def after_half_of_the_rows(
    insert: Callable[..., None], writer: PostgresWriter, cursor: Any, rows: list[Any]
) -> None:
    insert(writer, cursor, rows[: len(rows) // 2])
    raise CrashError


def on_a_lost_connection(
    insert: Callable[..., None], writer: PostgresWriter, cursor: Any, rows: list[Any]
) -> None:
    insert(writer, cursor, rows)
    with psycopg.connect(cursor.connection.info.dsn) as other:
        process = cursor.connection.info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [process])


def half_produced(
    produce: Callable[..., None], writer: TransactionalWriter, records: list[Any], last: GlobalTime
) -> None:
    produce(writer, records[: len(records) // 2], last)
    writer._producer.flush(10)
    raise CrashError


CRASHES: list[tuple[str, list[SinkCase], Callable[[pytest.MonkeyPatch], None]]] = [
    ("half written", FILES, lambda patch: patch.setattr(FilesWriter, "_write", half_written)),
    ("not synced", FILES, lambda patch: patch.setattr(os, "fsync", crash_instead)),
    ("not renamed", FILES, lambda patch: patch.setattr(os, "rename", crash_instead)),
    (
        "half of the rows",
        POSTGRES,
        lambda patch: patch.setattr(
            PostgresWriter,
            "_insert",
            lambda writer, cursor, rows, insert=PostgresWriter._insert: after_half_of_the_rows(
                insert, writer, cursor, rows
            ),
        ),
    ),
    (
        "lost connection",
        POSTGRES,
        lambda patch: patch.setattr(
            PostgresWriter,
            "_insert",
            lambda writer, cursor, rows, insert=PostgresWriter._insert: on_a_lost_connection(
                insert, writer, cursor, rows
            ),
        ),
    ),
    (
        "half of the records",
        KAFKA[:1],
        lambda patch: patch.setattr(
            TransactionalWriter,
            "_produce",
            lambda writer, records, last, produce=TransactionalWriter._produce: half_produced(
                produce, writer, records, last
            ),
        ),
    ),
]


@pytest.mark.parametrize(
    ("held", "crash"),
    [
        pytest.param(
            case,
            crash,
            id=f"{case.name}, {name}",
            marks=marks_of(case),
        )
        for name, cases, crash in CRASHES
        for case in cases
    ],
    indirect=["held"],
)
def test_a_crash_leaves_all_or_nothing(
    held: Held, crash: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third, *_ = bundles()
    writer = held.sink.open(0)
    writer.store(first)
    with monkeypatch.context() as patch:
        crash(patch)
        with pytest.raises((CrashError, EmberflowError)):
            writer.store(third)
        assert writer.last() == first.last
        assert held.payloads(0) == first.payloads
    writer.close()
    later = held.sink.open(0)
    assert later.last() == first.last
    later.store(second)
    later.store(third)
    later.close()
    assert held.payloads(0) == payloads_of([first, second, third])


def test_an_exception_of_a_callback_leaves_the_last_time() -> None:
    def refuse(bundle: StoredBundle) -> None:
        if bundle == bundles()[1]:
            raise ValueError("refused")

    writer = sinks.Callback(refuse).open(0)
    writer.store(bundles()[0])
    with pytest.raises(ValueError, match="refused"):
        writer.store(bundles()[1])
    assert writer.last() == bundles()[0].last
