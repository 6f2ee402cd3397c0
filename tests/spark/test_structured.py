"""The data source on real Spark: it registers itself, and its errors are clear.

The other end is the bridge of a live query without the query: what a stream is told does not depend
on the flow. `tests/faults/test_structured.py` tests the whole of it, with kills.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from emberflow.runners.live.driver.cluster import CoordinatorAddress
from emberflow.runners.live.serving.addresses import Announcement
from emberflow.runners.live.serving.bridge import Bridge
from emberflow.runners.live.serving.tokens import new_token
from tests.adapters.structured import placed_front, placed_sink
from tests.adapters.test_fronts_structured import words
from tests.adapters.test_sinks_structured import Count, bundle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import DataStreamReader


class Offered:
    def __init__(self, folder: Path) -> None:
        self.name = f"index {uuid.uuid4()}"
        self.front = placed_front(folder, "word")
        self.sink = placed_sink(folder, Count)
        services: Any = {"front docs": self.front.service(), "sink counts": self.sink.service()}
        place = CoordinatorAddress("127.0.0.1", 0, "127.0.0.1")
        self.bridge = Bridge(services, query=self.name, place=place, token=new_token())
        self.told = Announcement(self.name, self.bridge.address, self.name)


@pytest.fixture
def offered(tmp_path: Path) -> Iterator[Offered]:
    offered = Offered(tmp_path / "live")
    yield offered
    offered.told.close()
    offered.bridge.close()


def written(spark: SparkSession, folder: Path, columns: str, options: dict[str, str]) -> str:
    """The error of a stream of four rows in two tasks; empty if it succeeded."""
    (folder / "in").mkdir(exist_ok=True)
    for number in range(2):
        (folder / "in" / f"{number}.json").write_text(
            "".join(f'{{"at": {row}, "word": "{number} {row}"}}\n' for row in range(2))
        )
    rows = spark.readStream.schema(columns).json(str(folder / "in"))
    stream = (
        rows.writeStream.format("emberflow")
        .options(**options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        stream.processAllAvailable()
    except Exception as error:
        return str(error)
    finally:
        stream.stop()
    return ""


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("at long, word string", {"query": "nobody"}, "no live query of the name 'nobody'"),
        ("at long, word string", {"token": new_token()}, "refuses this token"),
        (
            "at long, word string",
            {"front": "dogs"},
            "offers no front 'dogs' to Spark; it offers 'docs'",
        ),
        ("at long", {}, "wants a column 'word', and the DataFrame has 'at'"),
    ],
    ids=["unknown query", "wrong token", "unknown front", "missing column"],
)
def test_a_stream_is_told_what_is_wrong(
    spark: SparkSession,
    tmp_path: Path,
    offered: Offered,
    columns: str,
    options: dict[str, str],
    told: str,
) -> None:
    given = {"query": offered.name, "front": "docs", **options}
    if "token" in options:
        given["endpoint"] = offered.bridge.address.endpoint
    assert told in written(spark, tmp_path, columns, given)
    assert words(offered.front) == []


def test_a_stream_that_is_right_is_taken_in_once(
    spark: SparkSession, tmp_path: Path, offered: Offered
) -> None:
    given = {"query": offered.name, "front": "docs"}
    for _ in range(2):  # the second continues from its checkpoint, and has nothing more to do
        assert written(spark, tmp_path, "at long, word string", given) == ""
        assert sorted(words(offered.front)) == ["0 0", "0 1", "1 0", "1 1"]
    address = offered.bridge.address
    elsewhere = {"endpoint": address.endpoint, "token": address.token, "front": "docs"}
    (tmp_path / "another").mkdir()
    assert written(spark, tmp_path / "another", "at long, word string", elsewhere) == ""
    assert len(words(offered.front)) == 8


def test_a_sink_is_read_with_its_columns_and_not_with_others(
    spark: SparkSession, tmp_path: Path, offered: Offered
) -> None:
    sink = offered.sink.open(0)
    for number in range(4):
        sink.store(bundle(number))

    def reading(name: str) -> DataStreamReader:
        source = spark.readStream.format("emberflow").option("query", offered.name)
        return source.option("sink", name)

    counts = reading("counts").load()
    assert counts.columns == ["word", "n", "_time", "_front", "_path"]
    stream = (
        counts.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert stream.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("_time", "_path").collect()
    assert [(row.word, row.n) for row in found] == [
        payload for number in range(4) for payload in bundle(number).payloads
    ]
    wrong = reading("counts").schema("words string").load()
    stream = wrong.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(Exception, match="has no column 'words'; it has 'word', 'n', '_time'"):
        stream.awaitTermination(120)
    with pytest.raises(Exception, match="offers no sink 'dogs' to Spark; it offers 'counts'"):
        reading("dogs").load()
