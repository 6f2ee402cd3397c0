"""`sinks.Structured`: what is stored stays until it is acknowledged, and is read once and in order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from emberflow import GlobalTime, sinks
from emberflow.errors import InputError
from emberflow.sinks import PayloadError, SinkMovedError, StoredBundle
from emberflow.sinks.structured import OutboxService
from tests.adapters.structured import graph, outbox, placed_sink
from tests.adapters.test_fronts_structured import Died, dying


class Count(NamedTuple):
    word: str
    n: int


def bundle(number: int, partition: int = 0) -> StoredBundle:
    """Of 1 to 3 counts, at times that go up from below 0."""
    time = 10 * number - 20
    places = [(time, 0, child) for child in range(number % 3 + 1)]
    payloads: list[Any] = [Count(f"word {number}", child) for _, _, child in places]
    return StoredBundle("counts", partition, GlobalTime(time, 0), payloads, places)


def rows(bundles: Iterator[StoredBundle] | list[StoredBundle]) -> list[tuple[Any, ...]]:
    return [
        (*payload, place[0])
        for one in bundles
        for payload, place in zip(one.payloads, one.places or [], strict=True)
    ]


def read(
    service: OutboxService, start: Any, end: Any, partition: int = 0, bytes_max: int = 1 << 20
) -> list[tuple[Any, ...]]:
    """The rows between two offsets, as a task asks for them."""
    after, more, found = start.get(str(partition)), True, []
    while more:
        asked = {"partition": partition, "after": after, "until": end[str(partition)]}
        bundles, after = service.serve("read", {**asked, "bytes_max": bytes_max})
        for one in bundles:
            with pa.ipc.open_stream(one) as stream:
                table = stream.read_all().to_pylist()
                found += [(row["word"], row["n"], row["_time"]) for row in table]
        more = after is not None
    return found


def latest(service: OutboxService, start: Any, bytes_max: int | None = None) -> Any:
    return service.serve("latest", {"start": start, "bytes_max": bytes_max})


@pytest.fixture
def sink(tmp_path: Path) -> sinks.Structured:
    return placed_sink(tmp_path, Count)


def test_all_that_is_stored_is_read_in_order(sink: sinks.Structured) -> None:
    service = outbox(sink)
    assert latest(service, {}) == {}
    writer = sink.open(0)
    for number in range(10):
        writer.store(bundle(number))
    writer.close()
    end = latest(service, {})
    assert end == {"0": [70, 0]}
    for bytes_max in (1, 3_000, 1 << 20):
        assert read(service, {}, end, bytes_max=bytes_max) == rows(map(bundle, range(10)))
    middle = {"0": [20, 0]}
    assert read(service, middle, end) == rows(map(bundle, range(5, 10)))
    assert read(service, {}, middle) == rows(map(bundle, range(5)))


def test_a_batch_takes_only_so_much(sink: sinks.Structured) -> None:
    service = outbox(sink)
    writer = sink.open(0)
    for number in range(10):
        writer.store(bundle(number))
    offsets: list[Any] = [{}]
    while not offsets[1:] or offsets[-1] != offsets[-2]:
        offsets.append(latest(service, offsets[-1], 1))
    assert len(offsets) == 12
    parts = [read(service, start, end) for start, end in pairwise(offsets[:11])]
    assert [row for part in parts for row in part] == rows(map(bundle, range(10)))
    writer.close()


def test_what_is_acknowledged_goes_and_the_last_time_stays(
    sink: sinks.Structured, tmp_path: Path
) -> None:
    service = outbox(sink)
    for number in range(10):
        # Both sides are new each time, as after a restart.
        writer = sink.open(0)
        assert writer.last() == (None if number == 0 else bundle(number - 1).last)
        writer.store(bundle(number))
        writer.close()
        service = outbox(sink)
        start = service.serve("initial", {})
        end = latest(service, start)
        assert read(service, start, end) == rows([bundle(number)])
        assert read(service, start, end) == rows(
            [bundle(number)]
        )  # the reader died, and reads again
        service.serve("acknowledge", {"end": end})
        service.serve("acknowledge", {"end": end})
        assert latest(service, end) == end
    folder = tmp_path / "structured/sinks-counts/partition-0000"
    assert len([name for name in os.listdir(folder) if name.endswith("arrow")]) == 1


def test_the_driver_dies_while_it_notes_what_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    died = 0
    for name in ("fsync", "rename", "unlink"):
        for number in range(8):
            sink = placed_sink(tmp_path / f"{name} {number}", Count)
            writer = sink.open(0)
            for each in range(6):
                writer.store(bundle(each))
            writer.close()
            service = outbox(sink)
            middle = {"0": list(bundle(2).last)}
            with monkeypatch.context() as patched:
                module = Path if name == "unlink" else os
                patched.setattr(module, name, dying(getattr(module, name), number))
                try:
                    service.serve("acknowledge", {"end": middle})
                except Died:
                    died += 1
            again = outbox(sink)
            begin = again.serve("initial", {})
            assert begin in ({}, middle)
            # The reader has noted itself that it is done with this, and goes on from there.
            assert read(again, middle, latest(again, middle)) == rows(map(bundle, range(3, 6)))
            again.serve("acknowledge", {"end": middle})
            assert again.serve("initial", {}) == middle
            assert sink.open(0).last() == bundle(5).last
    assert died > 3


def test_a_second_reader_is_told(sink: sinks.Structured) -> None:
    service = outbox(sink)
    writer = sink.open(0)
    for number in range(4):
        writer.store(bundle(number))
    writer.close()
    service.serve("acknowledge", {"end": {"0": list(bundle(2).last)}})
    behind = {"0": list(bundle(0).last)}
    with pytest.raises(InputError, match=r"acknowledged up to \(0, 0\) by another streaming query"):
        latest(service, behind)
    with pytest.raises(InputError, match="A sink has one reader"):
        read(service, behind, {"0": list(bundle(3).last)})


def test_partitions_have_offsets_of_their_own(tmp_path: Path) -> None:
    sink = placed_sink(tmp_path, Count, partitions=3)
    service = outbox(sink)
    for partition, count in ((2, 2), (0, 5)):
        writer = sink.open(partition)
        for number in range(count):
            writer.store(bundle(number, partition))
        writer.close()
    end = latest(service, {})
    assert json.dumps(end) == '{"0": [20, 0], "2": [-10, 0]}'
    service.serve("acknowledge", {"end": {"2": [-10, 0]}})
    assert service.serve("initial", {}) == {"2": [-10, 0]}
    assert read(service, {}, end, 0) == rows(map(bundle, range(5)))
    assert "_partition" in StructType.fromJson(json.loads(service.serve("schema", {}))).names


def test_columns_are_those_of_batch(sink: sinks.Structured, tmp_path: Path) -> None:
    given = StructType.fromJson(json.loads(outbox(sink).serve("schema", {})))
    assert given.names == ["word", "n", "_time", "_front", "_path"]
    sampled = placed_sink(tmp_path / "sampled")
    with pytest.raises(InputError, match="has stored nothing yet, so its columns are not known"):
        outbox(sampled).serve("schema", {})
    sampled.open(0).store(bundle(1))
    assert StructType.fromJson(json.loads(outbox(sampled).serve("schema", {}))) == given


def test_a_payload_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    schema = StructType([StructField("word", StringType()), StructField("n", LongType())])
    writer = placed_sink(tmp_path, schema).open(0)
    with pytest.raises(PayloadError, match=r"expects column 'n' of type bigint, got \('a', 'b'\)"):
        writer.store(StoredBundle("counts", 0, GlobalTime(1, 0), [("a", "b")], [(1, 0)]))
    writer.store(bundle(3))
    writer.close()


def test_a_writer_that_was_followed_is_refused(sink: sinks.Structured) -> None:
    before = sink.open(0)
    before.store(bundle(0))
    after = sink.open(0)
    with pytest.raises(SinkMovedError):
        before.store(bundle(1))
    after.store(bundle(1))
    assert read(outbox(sink), {}, latest(outbox(sink), {})) == rows(map(bundle, range(2)))


def test_the_errors_sink_is_another_one(tmp_path: Path) -> None:
    assert "errors" not in graph().sinks
    with pytest.raises(InputError, match=r"take sinks\.Files"):
        sinks.Structured().placed(None, str(tmp_path))
