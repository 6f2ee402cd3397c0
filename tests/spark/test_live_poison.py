"""Valid records that cannot be stored, or that pickle does not take: a live query goes on beside them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.diversion import refusing
from tests.adapters.postgres_server import PostgresServer, running_server
from tests.adapters.sinks_under_test import rows
from tests.effort import SECONDS


def nested(levels: int) -> Any:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


#: By number of the record.
POISON = {
    3: {"word": "a\ud800b", "total": 1},
    10: {"word": "a\0b", "total": 1},
    17: {"word": "ash", "total": 2**31},
    20: {"word": "ash", "total": 1, "more": nested(500)},
    21: {"word": "ash", "total": 1, "more": nested(900)},
    30: {"word": None, "total": 1},
}
RECORDS = [
    {"at": n, **POISON.get(n, {"word": f"w{n % 5}", "total": n, "more": None})}
    for n in range(1, 41)
]


def flow() -> ef.Flow:
    """Each record goes to both sinks; with two workers, items travel to the sinks and to the key."""
    flow = ef.Flow("poisoned")
    records = flow.front("records")
    records.sink("files")
    keyed = records.key_by(lambda record: record["total"])
    # The last record of each key is its state.
    kept = keyed.reduce(first=lambda record: record, combine=lambda _, record: record)
    kept.key_by(lambda record: record["total"] % 2).sink("table", partitions=2)
    return flow


class Refusing:
    """A flow whose sinks are known, for the reference."""

    def __init__(self, given: dict[str, Any]) -> None:
        refuses = {name: sink.refuses for name, sink in given.items() if name != "errors"}
        self._graph = refusing(flow().graph(), refuses)

    def graph(self, **on_error: Any) -> Any:
        return self._graph


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running_server() as running:
        yield running


def written(folder: Path, *chosen: int) -> fronts.Files:
    folder.mkdir()
    lines = [json.dumps(r) + "\n" for r in RECORDS if not chosen or r["at"] in chosen]
    (folder / "1.jsonl").write_text("".join(lines))
    return fronts.Files(folder, time="at", until_end=True)


def given(tmp_path: Path, server: PostgresServer, table: str) -> dict[str, Any]:
    columns = {"at": "bigint", "word": "text NOT NULL", "total": "integer"}
    return {
        "files": sinks.Files(tmp_path / "out"),
        "table": sinks.Postgres(server.dsn, table, columns=columns),
        "errors": sinks.Files(tmp_path / "errors"),
    }


def fields(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["at"], record["word"], record["total"]


@pytest.mark.parametrize(("workers", "kill"), [(1, False), (2, False), (2, True)])
def test_what_a_sink_refuses_goes_to_the_errors_sink_in_order(
    spark: SparkSession, tmp_path: Path, server: PostgresServer, workers: int, kill: bool
) -> None:
    kept = given(tmp_path, server, f"poison_{workers}_{kill}".lower())
    elements = [ef.At(record["at"], record) for record in RECORDS]
    expected = ef.run(Refusing(kept), on_error="divert", records=elements)  # type: ignore[arg-type]
    built = flow().live(spark).read(records=written(tmp_path / "in")).write(**kept)
    built.option("workers", workers).option("onError", "divert").option("batch", 3)
    built.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = built.option("checkpointInterval", 20).start()
    try:
        if kill:
            deadline = time.monotonic() + SECONDS
            while query.isActive and time.monotonic() < deadline:
                progress = query.lastProgress
                if progress is not None and progress["pids"]:
                    with contextlib.suppress(ProcessLookupError):  # it has ended just now
                        os.kill(progress["pids"][0], signal.SIGKILL)
                        break
                time.sleep(0.005)
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    stored = sinks.read_files(tmp_path / "errors")
    assert [(error["time"], error["step"], error["problem"]) for error in stored] == [
        (error.time, error.step, error.problem) for error in expected["errors"]
    ]
    assert {error["time"] for error in stored} == set(POISON)
    out = sinks.read_files(tmp_path / "out")
    assert out == expected["files"]
    assert {record["at"] for record in out} == {r["at"] for r in RECORDS} - {3, 20, 21}
    found = rows(server.dsn, "SELECT at, word, total FROM {} ORDER BY at", kept["table"].table)
    assert found == sorted(map(fields, expected["table"]))
    # What is too deep for JSON fits this table, which has no column for it.
    assert {at for at, _, _ in found} == {r["at"] for r in RECORDS} - {3, 10, 17, 30}


@pytest.mark.parametrize(
    ("number", "told"),
    [(3, "lone surrogate"), (20, "nested too deeply")],
)
def test_without_divert_the_query_ends_at_once_and_names_the_payload(
    spark: SparkSession, tmp_path: Path, number: int, told: str
) -> None:
    single = ef.Flow("single")
    single.front("records").key_by(lambda record: record["at"]).sink("out", partitions=2)
    out = sinks.Files(tmp_path / "out")
    front = written(tmp_path / "in", 1, 2, number)
    query = single.live(spark).read(records=front).write(out=out).option("workers", 2).start()
    with pytest.raises(ef.EmberflowError, match=told) as raised:
        query.awaitTermination(SECONDS)
    assert "tried again" not in str(raised.value)
