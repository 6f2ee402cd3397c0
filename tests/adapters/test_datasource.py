"""The two ends of the data source over a real bridge, without Spark around them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from emberflow.datasource import stream_writer as writing
from emberflow.datasource.source import EmberflowSource
from emberflow.errors import InputError
from emberflow.runners.live.driver.cluster import CoordinatorAddress
from emberflow.runners.live.serving import bridge as bridge_module
from emberflow.runners.live.serving.bridge import (
    Bridge,
    BridgeAwayError,
    BridgeClient,
    BridgeRefusedError,
)
from emberflow.runners.live.serving.tokens import new_token
from tests.adapters.structured import SCHEMA, placed_front, placed_sink
from tests.adapters.test_fronts_structured import words
from tests.adapters.test_sinks_structured import Count, bundle


class Query:
    """The part of a live query that the data source talks to."""

    def __init__(self, folder: Path) -> None:
        self.front = placed_front(folder, "word", pending_mb=0.01)
        self.sink = placed_sink(folder, Count)
        self.token = new_token()
        self.start()

    def start(self) -> None:
        services: Any = {
            "front docs": self.front.service(),
            "sink counts": self.sink.service(),
        }
        place = CoordinatorAddress("127.0.0.1", 0, "127.0.0.1")
        self.bridge = Bridge(services, query="index", place=place, token=self.token)

    def restart(self) -> None:
        self.bridge.close()
        self.start()

    def source(self, **options: str) -> EmberflowSource:
        address = {"endpoint": self.bridge.address.endpoint, "token": self.token, "timeout": "5"}
        return EmberflowSource({**address, **options})

    def writer(self) -> Any:
        return self.source(front="docs").streamWriter(SCHEMA, False)

    def reader(self, schema: StructType | None = None, **options: str) -> Any:
        source = self.source(sink="counts", **options)
        return source.streamReader(source.schema() if schema is None else schema)


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Query]:
    query = Query(tmp_path)
    yield query
    query.bridge.close()


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What Spark tells a task about itself, to be set."""
    told = {"partition": 0, "batch": 0}
    monkeypatch.setattr(writing, "_task", lambda: (told["partition"], "stream-1", told["batch"]))
    return told


def record_batches(rows: int) -> list[pa.RecordBatch]:
    return [
        pa.record_batch({"at": pa.array([number]), "word": pa.array([f"{number:>{60}}"])})
        for number in range(rows)
    ]


def staged(query: Query, task: Any, batch: int, rows: int) -> list[Any]:
    """Two tasks, the second one first."""
    messages = []
    for partition in (1, 0):
        task.update(partition=partition, batch=batch)
        messages.append(query.writer().write(iter(record_batches(rows * partition + 1))))
    return messages


def test_parts_go_in_the_order_of_tasks_in_messages_of_a_bounded_size(
    query: Query, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1_000)
    messages = staged(query, task, 0, 40)
    assert [(one.partition, one.rows) for one in messages] == [(1, 41), (0, 1)]
    assert messages[0].bytes > 5_000
    query.writer().commit(messages, 0)
    assert [int(word) for word in words(query.front)] == [0, *range(41)]


def test_a_batch_is_there_once_whoever_restarts(query: Query, task: Any) -> None:
    messages = staged(query, task, 0, 3)
    query.restart()
    query.writer().commit(messages, 0)
    query.restart()
    query.writer().commit(messages, 0)  # Spark did not hear that it was done
    again = staged(query, task, 0, 3)  # and the streaming query was started again
    assert [(one.part, one.rows) for one in again] == [(None, 0), (None, 0)]
    query.writer().commit(again, 0)
    assert [int(word) for word in words(query.front)] == [0, 0, 1, 2, 3]


def test_what_is_aborted_is_gone(query: Query, task: Any) -> None:
    messages = staged(query, task, 0, 3)
    query.writer().abort([*messages, None], 0)
    with pytest.raises(InputError, match="a part of the batch is not here"):
        query.writer().commit(messages, 0)
    assert words(query.front) == []


def test_a_query_that_was_begun_anew_does_not_pass_for_the_old_one(
    query: Query, task: Any, tmp_path: Path
) -> None:
    query.writer().commit(staged(query, task, 0, 3), 0)
    told_that_it_is_here = staged(query, task, 0, 3)
    query.bridge.close()
    new = Query(tmp_path / "another checkpoint")
    try:
        with pytest.raises(BridgeAwayError, match="has lost it"):
            new.writer().commit(told_that_it_is_here, 0)
        assert words(new.front) == []
    finally:
        new.bridge.close()
        query.start()


def test_a_writer_waits_while_the_flow_is_behind(query: Query, task: Any) -> None:
    batch = 0
    with BridgeClient(query.bridge.address) as client:
        while client.ask("front docs", "begin", stream="another", batch=0) == "go":
            query.writer().commit(staged(query, task, batch, 40), batch)
            batch += 1
    positions = [element.position for element in _elements(query)]
    cut = threading.Timer(0.5, lambda: query.front.passed(0, positions[-1]))
    cut.start()
    query.writer().commit(staged(query, task, batch, 1), batch)
    assert not cut.is_alive()
    new = (element for element in query.front.read(0, positions[-1]) if element is not None)
    assert [int(next(new).payload) for _ in range(3)] == [0, 0, 1]


def _elements(query: Query) -> list[Any]:
    found = []
    for element in query.front.read(0, None):
        if element is None:
            return found
        found.append(element)
    return found


def test_rows_are_read_between_offsets_and_dropped_behind(query: Query) -> None:
    sink = query.sink.open(0)
    reader = query.reader()
    start = reader.initialOffset()
    found: list[Any] = []
    for number in range(5):
        sink.store(bundle(number))
        query.restart()
        reader = query.reader()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                found += [(row["word"], row["n"]) for row in batch.to_pylist()]
        reader.commit(end)
        start = end
        assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
        assert reader.partitions(start, start) == []
    assert found == [payload for number in range(5) for payload in bundle(number).payloads]


def test_a_reader_has_nothing_new_while_the_query_is_away(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "_CONNECT_SECONDS_MAX", 0.2)
    query.sink.open(0).store(bundle(0))
    reader = query.reader()
    start = {"0": [-20, 0]}
    query.bridge.close()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    reader.commit(start)
    with pytest.raises(BridgeAwayError, match="nobody answers"):
        reader.initialOffset()
    query.start()


def test_available_now_ends_with_what_was_there(query: Query) -> None:
    sink = query.sink.open(0)
    for number in range(4):
        sink.store(bundle(number))
    reader = query.reader(maxBytesPerTrigger="1")
    reader.prepareForTriggerAvailableNow()
    sink.store(bundle(4))
    offsets = [reader.initialOffset()]
    while not offsets[1:] or offsets[-1] != offsets[-2]:
        offsets.append(reader.latestOffset(offsets[-1], reader.getDefaultReadLimit()))
    assert [offset.get("0") for offset in offsets] == [
        None,
        *([t, 0] for t in (-20, -10, 0, 10, 10)),
    ]


def test_a_reader_takes_the_columns_it_asks_for(query: Query) -> None:
    query.sink.open(0).store(bundle(2))
    schema = StructType([StructField("n", StringType()), StructField("_time", LongType())])
    reader = query.reader(schema)
    (partition,) = reader.partitions({}, {"0": [0, 0]})
    (batch,) = reader.read(partition)
    assert batch.to_pylist() == [{"n": str(n), "_time": 0} for n in range(3)]
    wrong = StructType([StructField("words", StringType())])
    with pytest.raises(
        InputError, match="sink counts has no column 'words'; it has 'word', 'n', '_time'"
    ):
        query.reader(wrong)


@pytest.mark.parametrize(
    ("options", "kind", "error", "problem"),
    [
        (
            {"front": "docs", "token": new_token()},
            "front",
            BridgeRefusedError,
            "refuses this token",
        ),
        ({"front": "docs", "token": "short"}, "front", InputError, "the token is too weak"),
        ({"front": "docs", "token": ""}, "front", InputError, "'endpoint' and 'token' go together"),
        (
            {"front": "dogs"},
            "front",
            InputError,
            "offers no front 'dogs' to Spark; it offers 'docs'",
        ),
        (
            {"sink": "dogs"},
            "sink",
            InputError,
            "offers no sink 'dogs' to Spark; it offers 'counts'",
        ),
        ({}, "front", InputError, r"needs .option\('front', ...\)"),
        ({"front": "docs", "timeout": "soon"}, "front", InputError, "'timeout' takes seconds"),
        ({"sink": "counts", "maxBytesPerTrigger": "-1"}, "sink", InputError, "takes bytes above 0"),
        (
            {"front": "docs", "endpoint": "", "token": ""},
            "front",
            InputError,
            r"needs .option\('query'",
        ),
    ],
)
def test_what_is_wrong_is_told(
    query: Query, options: dict[str, str], kind: str, error: type[Exception], problem: str
) -> None:
    source = query.source(**options)
    asked: dict[str, Any] = {
        "front": lambda: source.streamWriter(SCHEMA, False),
        "sink": lambda: source.streamReader(source.schema()),
    }
    with pytest.raises(error, match=problem):
        asked[kind]()


def test_columns_that_do_not_fit_the_front_are_told(query: Query) -> None:
    source = query.source(front="docs")
    with pytest.raises(InputError, match="wants a column 'word', and the DataFrame has 'text'"):
        source.streamWriter(StructType([StructField("text", StringType())]), False)


def test_complete_mode_is_refused(query: Query) -> None:
    with pytest.raises(InputError, match="a front takes what is new"):
        query.source(front="docs").streamWriter(SCHEMA, True)


def test_spark_finds_it_by_the_name_of_the_module() -> None:
    import pyspark_emberflow

    assert pyspark_emberflow.DefaultSource is EmberflowSource
    assert EmberflowSource.name() == "emberflow"
