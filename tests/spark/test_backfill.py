"""Backfill on Spark, then live from its checkpoint: together they equal one run, to the byte."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint import UnfitCutError
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.errors import InputError
from emberflow.fronts import Element, Idle
from emberflow.runners.reference import Reference
from emberflow.values.event_time import EventTime
from emberflow.values.item import GlobalTime, front_index
from tests.contract.outputs import Bytes, as_bytes, by_partition, differences
from tests.contract.runners import in_order
from tests.effort import SECONDS, SOAK, shortened
from tests.faults.flows import documents, index_flow
from tests.faults.test_kills import check_files
from tests.spark.test_batch import (
    EXAMPLES,
    SOME_EXAMPLES,
    disordered,
    examples,
    frame,
    positioned,
    windows_flow,
)
from tests.strategies import random_flows_together


def gone_live(
    spark: SparkSession,
    flow: ef.Flow,
    read: dict[str, Any],
    written: dict[str, Any],
    checkpoint: Path,
    workers: int = 2,
) -> None:
    """Run a live query from a checkpoint until its fronts end."""
    query = (
        flow.live(spark)
        .read(**read)
        .write(**written)
        .option("workers", workers)
        .option("checkpointLocation", checkpoint)
        .option("keepFrontLogs", True)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()


def listed(elements: dict[str, list[Any]]) -> dict[str, Any]:
    return {name: fronts.Iterable(in_order(given)) for name, given in elements.items()}


def held(flow: ef.Flow, written: dict[str, sinks.Memory]) -> Bytes:
    return {
        (name, partition): [as_bytes(payload) for payload in written[name].payloads(partition)]
        for name, sink in flow.graph().sinks.items()
        for partition in range(sink.partitions)
    }


def count_of(outputs: Bytes) -> int:
    return sum(map(len, outputs.values()))


# --- Handover -------------------------------------------------------------------------------------


def test_random_flows_handed_over(spark: SparkSession, tmp_path: Path) -> None:
    """tests/batch/test_backfill.py tries a hundred others, at random times, without Spark."""
    flow, elements = random_flows_together([Random(seed) for seed in range(2 if SOAK else 1)])
    given = {
        name: ef.rows(frame(spark, one, "value long", 2), unique=True)
        for name, one in elements.items()
    }
    written = {name: sinks.Memory() for name in flow.graph().sinks}
    left = flow.backfill(spark, until=5, checkpoint=tmp_path, write=written, **given)
    assert left == {}
    before = count_of(held(flow, written))
    gone_live(spark, flow, listed(elements), written, tmp_path)
    assert (
        differences(held(flow, written), by_partition(flow.graph(), ef.run(flow, **elements))) == []
    )
    assert 0 < before < count_of(held(flow, written))


@pytest.mark.parametrize("name", SOME_EXAMPLES)
def test_the_examples_handed_over(
    spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    flow, elements, schemas = examples()[name]
    times = sorted(
        one.time if isinstance(one, ef.At) else number
        for given in elements.values()
        for number, one in enumerate(given)
    )
    given = {
        front: ef.rows(frame(spark, elements[front], schema, 2), payload=payload, unique=True)
        for front, (payload, schema) in schemas.items()
    }
    written = {sink: sinks.Memory() for sink in flow.graph().sinks}
    until = times[2 * len(times) // 3]
    flow.backfill(spark, until=until, checkpoint=tmp_path, write=written, partitions=2, **given)
    before = count_of(held(flow, written))
    gone_live(spark, flow, listed(elements), written, tmp_path)
    assert (
        differences(held(flow, written), by_partition(flow.graph(), ef.run(flow, **elements))) == []
    )
    assert before > 0


DOCUMENTS = documents(60)
SINKS = ("counts", "pairs", "windows")


def as_rows(spark: SparkSession) -> ef.runners.batch.Rows:
    """Documents and, below them, times: the layout of a folder of history."""
    df = spark.createDataFrame(
        [(number, *document) for number, document in enumerate(DOCUMENTS)],
        "time long, number long, words array<string>",
    )
    return ef.rows(df.repartition(3), payload=document_of)


def document_of(row: Any) -> tuple[int, list[str]]:
    return row.number, list(row.words)


def files(folder: Path) -> dict[str, sinks.Files]:
    return {name: sinks.Files(folder / name) for name in SINKS}


class Deadly(sinks.Files):
    """Kills its process once, after it has stored something and before it answers."""

    def open(self, partition: int) -> Any:
        writer = super().open(partition)
        store = writer.store

        def deadly(bundle: Any) -> None:
            store(bundle)
            if not (self.folder / "killed").exists():
                (self.folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)

        writer.store = deadly  # type: ignore[method-assign]
        return writer


def test_a_killed_backfill_is_repeated_and_any_number_of_workers_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, until = index_flow(), 40
    written = {**files(tmp_path), "windows": Deadly(tmp_path / "windows")}
    checkpoint = tmp_path / "checkpoint"

    def backfill() -> None:
        flow.backfill(
            spark,
            until=until,
            checkpoint=checkpoint,
            write=written,
            partitions=2,
            documents=as_rows(spark),
        )

    with pytest.raises(Exception, match=r"crashed|Python worker"):  # whatever Spark makes of it
        backfill()
    assert (tmp_path / "windows" / "killed").exists()
    store = CheckpointStore(checkpoint)
    assert store.latest() is None
    assert sinks.read_files(tmp_path / "windows")
    # The next attempt finishes its work, and dies just before its commit.
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "commit", lost)
        with pytest.raises(OSError, match="lost"):
            backfill()
    stored = {name: sinks.read_files(tmp_path / name) for name in SINKS}
    assert all(stored.values())
    backfill()
    backfill()  # there is nothing left to do
    assert stored == {name: sinks.read_files(tmp_path / name) for name in SINKS}
    cut = store.latest()
    assert cut is not None
    assert cut.time == (until, 0)
    # The leftovers of earlier attempts are gone.
    assert {part.path for part in cut.parts} == {
        f"parts/{path.name}" for path in (checkpoint / "parts").iterdir()
    }
    expected = ef.run(flow, documents=DOCUMENTS)
    for workers in (1, 2, 4) if SOAK else (1, 4):
        folder = tmp_path / f"{workers} workers"
        shutil.copytree(checkpoint, folder / "checkpoint")
        for name in SINKS:
            shutil.copytree(tmp_path / name, folder / name)
        read = {"documents": fronts.Iterable(DOCUMENTS)}
        gone_live(spark, flow, read, files(folder), folder / "checkpoint", workers)
        check_files(folder, expected)


def lost(store: Any, manifest: Any) -> None:
    raise OSError("lost")


# --- Sources with partitions, and where fronts go on ----------------------------------------------


class Parted:
    """Two partitions with the same times in both; it notes the positions where it is read."""

    partitions = 2
    arrival = False

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def read(self, partition: int, position: Any) -> Any:
        (self.notes / f"{partition} {position}").touch()
        for number in range(0 if position is None else position + 1, 12):
            yield Element(number, *parted(partition, number))


def parted(partition: int, number: int) -> tuple[int, int]:
    """Payload and time."""
    return 100 * partition + number, 3 * number


def parted_flow() -> ef.Flow:
    flow = ef.Flow("parted")
    other = flow.front("other")
    numbers = flow.front("numbers").with_time().map(lambda timed: tuple(timed))
    keyed = ef.merge(numbers, other.map(lambda n: (n, n))).key_by(lambda pair: pair[1] % 3)
    keyed.group(window=4).sink("groups")
    keyed.window(ef.Tumbling(7), emit="close").collect().map(list).sink("windows")
    return flow


@pytest.mark.parametrize(
    "positions", shortened([{"numbers": {0: 5, 1: 5}, "other": 17}, None]), ids=bool
)
def test_the_partitions_of_a_source_go_on_where_the_backfill_ended(
    spark: SparkSession, tmp_path: Path, positions: dict[str, Any] | None
) -> None:
    flow, until = parted_flow(), 18
    graph = flow.graph()
    others = list(range(30))
    rows = [
        (partition, *reversed(parted(partition, number)))
        for partition in range(2)
        for number in range(12)
    ]
    df = spark.createDataFrame(rows, "part int, at long, value long").repartition(3)
    written = {name: sinks.Memory() for name in graph.sinks}
    left = flow.backfill(
        spark,
        until=until,
        checkpoint=tmp_path / "checkpoint",
        write={"groups": written["groups"]},
        positions=positions,
        raw=True,
        numbers=ef.rows(df, time="at", payload="value", partition="part"),
        other=spark.createDataFrame([(n, n) for n in others], "time long, value long"),
    )
    assert list(left) == ["windows"]
    windows_before = ef.payloads(left["windows"])
    read = {"numbers": Parted(tmp_path), "other": fronts.Iterable(others)}
    gone_live(spark, flow, read, written, tmp_path / "checkpoint")
    asked = {"5"} if positions else {"None"}
    assert {path.name.split()[1] for path in tmp_path.iterdir() if path.is_file()} == asked
    reference = Reference(graph)
    entering = [
        (GlobalTime(time, front_index(graph.fronts["numbers"].index, 2, part)), "numbers", value)
        for part, time, value in rows
    ] + [(GlobalTime(n, graph.fronts["other"].index), "other", n) for n in others]
    for at, front, payload in sorted(entering):
        reference.enter(at, graph.fronts[front], payload)
    reference.finish()
    assert repr(written["groups"].payloads()) == repr(reference.outputs["groups"])
    # The DataFrame has the output below the time, and live continues after it.
    assert 0 < len(windows_before) < len(reference.outputs["windows"])
    together = windows_before + written["windows"].payloads()
    assert repr(together) == repr(reference.outputs["windows"])


def test_ties_and_late_rows_at_the_cut_are_handed_over(spark: SparkSession, tmp_path: Path) -> None:
    """tests/batch/test_event_time.py tries many others, without Spark."""
    flow, elements = windows_flow(), disordered()
    expected = ef.run(flow, numbers=fronts.Iterable(elements, partitions=2, disorder=5))
    times = [each.time for each in elements]
    until = next(at for at in times[150:] if times.count(at) > 2)
    assert min(times[times.index(until) + 1 :]) < until
    rows = ef.rows(
        positioned(spark, elements, 2),
        time="at",
        partition="part",
        position="offset",
        payload="value",
        disorder=5,
    )
    written = {name: sinks.Memory() for name in expected}
    assert (
        flow.backfill(
            spark, until=until, checkpoint=tmp_path, write=written, partitions=2, numbers=rows
        )
        == {}
    )
    before = {name: len(sink.payloads()) for name, sink in written.items()}
    read = {"numbers": fronts.Iterable(elements, partitions=2, disorder=5)}
    gone_live(spark, flow, read, written, tmp_path)
    for name, payloads in expected.items():
        assert repr(written[name].payloads()) == repr(payloads)
        assert 0 < before[name] < len(payloads)


def test_positions_of_a_front_with_a_watermark_are_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = positioned(spark, disordered(), 1)
    rows = ef.rows(df, time="at", position="offset", payload="value", ahead=50)
    with pytest.raises(InputError, match="Leave its positions out"):
        windows_flow().backfill(
            spark,
            until=5,
            checkpoint=tmp_path,
            write={},
            raw=True,
            positions={"numbers": 3},
            numbers=rows,
        )


def test_what_cannot_be_backfilled_is_told_first(spark: SparkSession, tmp_path: Path) -> None:
    flow = ef.Flow("doubles")
    flow.front("numbers").map(lambda n: 2 * n).sink("out")
    df = spark.createDataFrame([(n, n) for n in range(5)], "time long, value long")

    def backfill(flow: ef.Flow = flow, **changed: Any) -> Any:
        given = {"until": 3, "checkpoint": tmp_path / "it", "numbers": df, "raw": True}
        return flow.backfill(spark, **{**given, **changed})

    memory = sinks.Memory()
    for changed, complaint in [
        ({"until": "3"}, r"backfill\(until=\) takes a time"),
        ({"until": 3.0}, r"backfill\(until=\) takes a time"),
        ({"checkpoint": 7}, "takes a path or a URI, got 7"),
        ({"write": {"in": memory}}, "has no sink 'in'; it has 'out'"),
        ({"write": {"out": "folder"}}, r"has no open\."),
        ({"positions": {"letters": 1}}, "has no front 'letters'"),
        ({"positions": {"numbers": {1: 5}}}, r"partitions \[1\]. Give one for each"),
        ({"numbers": ef.rows(df, partition="part")}, "has no column 'part'"),
        ({"letters": df}, "has no front 'letters'"),
    ]:
        with pytest.raises(InputError, match=complaint):
            backfill(**changed)
    named = ef.Flow("named")
    named.front("until").sink("out")
    with pytest.raises(InputError, match=r"a parameter of backfill\(\)"):
        backfill(named)
    assert not (tmp_path / "it").exists()

    left = backfill()
    assert ef.payloads(left["out"]) == [0, 2, 4]
    with pytest.raises(InputError, match=r"has a cut at \(3, 0\)"):
        backfill(until=4)
    other = ef.Flow("triples")
    other.front("numbers").map(lambda n: 3 * n).key_by(str).count().sink("out")
    with pytest.raises(UnfitCutError, match="does not fit cut 1"):
        backfill(other)
    memory.open(0).store(sinks.StoredBundle("out", 0, GlobalTime(3, 0), [6]))
    with pytest.raises(InputError, match=r"has output up to \(3, 0\)"):
        backfill(checkpoint=tmp_path / "other", write={"out": memory})
    FrontLogWriter(tmp_path / "live", "numbers", 0, 1).close()
    with pytest.raises(InputError, match="has the logs of a live query"):
        backfill(checkpoint=tmp_path / "live")


def test_rows_that_are_numbered_end_at_a_time_too(spark: SparkSession) -> None:
    flow = ef.Flow("as it is")
    flow.front("letters").map(str.upper).sink("out")
    one = spark.createDataFrame([(letter,) for letter in "abcde"], "value string").coalesce(1)
    spread = one.repartition(3)
    for given, until in ((one, 3), (ef.rows(spread, order_by="value", payload="value"), 2)):
        found = flow.batch(spark, letters=given, until=until, raw=True)
        assert ef.payloads(found["out"]) == ["A", "B", "C"][:until]
    # Rows that cannot be numbered are reported, even if they would be left out.
    with pytest.raises(Exception, match="rows in several partitions and no time column"):
        ef.payloads(flow.batch(spark, letters=spread, until=1, raw=True)["out"])


def test_an_error_of_a_function_is_the_reference_s(spark: SparkSession, tmp_path: Path) -> None:
    flow = ef.Flow("fails")
    flow.front("numbers").map(lambda n: 1 // (n - 2)).sink("out")
    df = spark.createDataFrame([(n, n) for n in range(5)], "time long, value long")
    with pytest.raises(ef.FunctionError, match="ZeroDivisionError"):
        flow.backfill(
            spark, until=4, checkpoint=tmp_path, write={"out": sinks.Memory()}, numbers=df
        )
    assert CheckpointStore(tmp_path).latest() is None


# --- What went in ---------------------------------------------------------------------------------


class Once:
    """Two partitions that cannot be read again, with times of arrival."""

    partitions = 2
    replayable = False
    arrival = True

    def read(self, partition: int, position: Any) -> Any:
        for number in range(0 if position is None else position + 1, 20):
            yield Element(number, (partition, number))


def audited_flow() -> ef.Flow:
    flow = ef.Flow("audited")
    pairs = flow.front("pairs").map(lambda pair: (pair[0], pair[1] % 3))
    pairs.key_by(lambda pair: pair[1]).group(window=3).sink("groups")
    pairs.key_by(lambda pair: pair).count().sink("counts")
    return flow


@pytest.mark.parametrize("kind", shortened(["payloads in the log", "payloads in the source"]))
def test_a_batch_over_the_log_of_a_front_gives_what_live_gave(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    flow = audited_flow()
    source: Any = Once()
    if kind == "payloads in the source":
        source = fronts.Iterable([(0, n) for n in range(40)], arrival=True)
    written = {name: sinks.Memory() for name in flow.graph().sinks}
    gone_live(spark, flow, {"pairs": source}, written, tmp_path)
    log = ef.front_log(
        spark, tmp_path, "pairs", source=None if source.__class__ is Once else source
    )
    assert log.columns == ["time", "_partition", "_payload"]
    assert log.count() == 40
    found = flow.batch(spark, pairs=log, raw=True)
    for name, df in found.items():
        assert repr(ef.payloads(df)) == repr(written[name].payloads())
    if source.__class__ is not Once:
        with pytest.raises(InputError, match=r"no payloads.*Pass it"):
            ef.front_log(spark, tmp_path, "pairs")
        other = fronts.Iterable([(0, n) for n in range(7)], arrival=True)
        with pytest.raises(Exception, match="it has ended"):
            ef.front_log(spark, tmp_path, "pairs", source=other).count()
    with pytest.raises(InputError, match="has no log of a front 'others'"):
        ef.front_log(spark, tmp_path, "others")


class Silent:
    """Two partitions out of order, with ties, that are silent for a while and promise something."""

    partitions, arrival, promises = 2, False, True
    event_time = EventTime(disorder=5)

    def __init__(self, replayable: bool) -> None:
        self.replayable = replayable

    def read(self, partition: int, position: Any) -> Any:
        for given in self.read_batches(partition, position):
            if isinstance(given, Element):
                yield given

    def read_batches(self, partition: int, position: Any) -> Any:
        for number in range(0 if position is None else position + 1, 60):
            if number == 30:  # what comes up to 200 is late, and the source does not know it
                yield Idle(200)
            yield Element(number, (partition, number), 100 + 2 * number - number % 8 // 3 * 4)


@pytest.mark.parametrize("replayable", shortened([False, True]))
def test_a_batch_over_a_log_of_promises_finds_late_what_live_found_late(
    spark: SparkSession, tmp_path: Path, replayable: bool
) -> None:
    flow, source = audited_flow(), Silent(replayable)
    written = {name: sinks.Memory() for name in ("groups", "counts", "late")}
    gone_live(spark, flow, {"pairs": source}, written, tmp_path)
    log = ef.front_log(spark, tmp_path, "pairs", source=source)
    found = flow.batch(spark, pairs=log, raw=True)
    assert list(found) == list(written)
    for name, df in found.items():
        assert repr(ef.payloads(df)) == repr(written[name].payloads())
    late = {record.position for record in written["late"].payloads()}
    by_records = {each.position for each in ef.run(flow, pairs=source)["late"]}
    assert by_records < late  # and some are late by the promise alone
