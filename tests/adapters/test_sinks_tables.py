"""`sinks.Delta` and `sinks.Iceberg`: columns, keys, others who write, and what is stored when."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import emberflow as ef
from emberflow import GlobalTime, sinks
from emberflow.errors import InputError, MissingExtraError
from emberflow.sinks import PayloadError, SinkMovedError, StoredBundle
from emberflow.sinks.tables import iceberg
from tests.adapters.sinks_under_test import iceberg_config
from tests.adapters.synced import synced_inodes
from tests.adapters.table_readers import delta_files, iceberg_files, iceberg_metadata, rows
from tests.adapters.test_sinks_changes import changes_of, prices_of, store, table_of


class Tables(NamedTuple):
    """A kind of table, each time in an empty folder."""

    folder: Path
    kind: str

    def sink(self, **options: Any) -> Any:
        if self.kind == "Delta":
            return sinks.Delta(self.folder / "table", **options)
        return sinks.Iceberg("shop.table", config=iceberg_config(self.folder), **options)

    def rows(self) -> list[dict[str, Any]]:
        if self.kind == "Delta":
            return rows(delta_files(self.folder / "table"))
        return rows(iceberg_files(self.metadata()))

    def metadata(self) -> dict[str, Any]:
        return iceberg_metadata(self.folder / "catalog.db", "shop.table")


@pytest.fixture(params=["Delta", "Iceberg"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    return Tables(tmp_path, request.param)


@pytest.fixture
def delta(tmp_path: Path) -> Tables:
    """For what both kinds share."""
    return Tables(tmp_path, "Delta")


def bundle(time: int, *payloads: Any, partition: int = 0) -> StoredBundle:
    return StoredBundle("out", partition, GlobalTime(time, 0), list(payloads))


def stored(sink: Any, *payloads: Any, time: int = 1) -> None:
    writer = sink.open(0)
    try:
        writer.store(bundle(time, *payloads))
    finally:
        writer.close()


# --- Columns ---------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: int
    y: float | None


@dataclasses.dataclass(frozen=True)
class Event:
    name: str
    at: datetime.datetime
    day: datetime.date
    price: decimal.Decimal
    tags: tuple[str, ...]
    point: Point | None
    counts: dict[str, int]
    raw: bytes
    good: bool


NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
EVENT = Event(
    "ash",
    NOON,
    NOON.date(),
    decimal.Decimal("1.10"),
    ("a", "b"),
    Point(1, None),
    {"k": 2},
    b"r",
    True,
)


def test_the_columns_are_those_of_the_payload_s_type(tables: Tables) -> None:
    """Also where the first payloads do not show it."""
    stored(tables.sink(), dataclasses.replace(EVENT, point=None, tags=()))
    stored(tables.sink(), EVENT, time=2)
    assert tables.rows()[1] == {
        "name": "ash",
        "at": NOON,
        "day": NOON.date(),
        "price": decimal.Decimal("1.10"),
        "tags": ["a", "b"],
        "point": {"x": 1, "y": None},
        "counts": {"k": 2},
        "raw": b"r",
        "good": True,
    }


def test_columns_are_inferred_from_dicts(delta: Tables) -> None:
    stored(delta.sink(), {"word": "ash", "at": NOON, "none": None}, {"word": "ember", "n": 2})
    assert delta.rows() == [
        {"word": "ash", "at": NOON, "n": None},
        {"word": "ember", "at": None, "n": 2},
    ]


def test_single_values_have_a_column(delta: Tables) -> None:
    stored(delta.sink(), 3, 5)
    assert delta.rows() == [{"value": 3}, {"value": 5}]


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ({"word": "ash", "n": "many"}, r"column 'n' of type int64 cannot hold 'many'"),
        ({"word": "ash", "n": 1.5}, r"column 'n' of type int64 cannot hold 1.5"),
        ({"word": "ash", "day": NOON}, r"column 'day' of type date32\[day\] cannot hold"),
        ({"word": None, "n": 1}, r"column 'word' takes no None"),
        ({"word": "ash", "more": 1}, r"no column 'more'; it has 'word', 'n', 'day'.*evolve=True"),
        ({"word": "ash", "n": 2**70}, r"column 'n'"),
        ({"word": "\ud800"}, r"column 'word'"),
        ({}, "no row without a field"),
        ({1: 2}, "name of a column is text, got 1"),
        ("ash", r"takes no None|no column 'value'"),
    ],
    ids=[
        "text",
        "fraction",
        "instant",
        "None",
        "column",
        "big",
        "surrogate",
        "empty",
        "name",
        "single",
    ],
)
def test_what_the_table_cannot_hold_is_known_before_and_never_stored(
    tmp_path: Path, payload: Any, complaint: str
) -> None:
    word = pa.field("word", pa.string(), nullable=False)
    schema = pa.schema([word, ("n", pa.int64()), ("day", pa.date32())])
    sink = sinks.Delta(tmp_path / "table", schema=schema)
    sink.check()
    sinks.Delta(tmp_path / "table").check()
    assert sink.refuses({"word": "ash", "n": None}) is None
    with pytest.raises(PayloadError, match=complaint) as raised:
        stored(sink, {"word": "ember", "n": 1}, payload)
    assert sink.refuses(payload) == str(raised.value)
    assert rows(delta_files(tmp_path / "table")) == []


def test_a_nested_field_without_a_column_is_not_dropped(delta: Tables) -> None:
    sink = delta.sink(schema=Event)
    odd = dataclasses.replace(EVENT, point={"x": 1, "z": 2})  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match=r"column 'point'.*no column for 'z'"):
        stored(sink, odd)


def test_columns_are_added_where_the_sink_may(tables: Tables) -> None:
    """Also by a merge, and by one that otherwise changes nothing."""
    stored(tables.sink(), {"word": "ash"})
    with pytest.raises(PayloadError, match="evolve=True"):
        stored(tables.sink(), {"word": "ash", "n": 1}, time=2)
    stored(tables.sink(evolve=True), {"word": "ember", "n": 1}, time=2)
    assert tables.rows()[1] == {"word": "ember", "n": 1}
    put = tables.sink(evolve=True, upsert=["word"])
    stored(put, {"word": "ash", "n": 2, "m": "x"}, time=3)
    found = sorted(tables.rows(), key=lambda row: str(row["word"]))
    assert [(row["word"], row["n"], row.get("m")) for row in found] == [
        ("ash", 2, "x"),
        ("ember", 1, None),
    ]


# --- Keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [["item"], ["item", "shelf"]], ids=str)
def test_a_table_has_the_rows_that_the_changes_leave(tables: Tables, key: list[str]) -> None:
    random = Random(str(key))
    changes = changes_of(prices_of(random, 18))
    assert {change.kind for change in changes} == {"insert", "update", "delete"}
    sink = tables.sink(upsert=key)
    store(sink, changes, random)
    found = [(row["item"], row["shelf"], row["price"]) for row in tables.rows()]
    assert sorted(found) == table_of(changes)


@pytest.mark.parametrize("filter_values", [1_000, 1], ids=["values", "ranges"])
def test_rows_between_those_that_are_put_stay(
    tables: Tables, filter_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "_FILTER_VALUES_MAX", filter_values)
    sink = tables.sink(upsert=["item", "shelf"])
    places = [(item, shelf) for item in "abc" for shelf in (1, 2, 3)]
    before = {place: dict(zip(("item", "shelf"), place, strict=True), n=0) for place in places}
    stored(sink, *before.values())
    put = {place: before[place] | {"n": 1} for place in [("a", 1), ("c", 3)]}
    stored(sink, *put.values(), time=2)
    found = {(row["item"], row["shelf"]): row for row in tables.rows()}
    assert len(tables.rows()) == len(places)
    assert found == before | put


def test_a_bundle_that_changes_no_row_is_stored_all_the_same(tables: Tables) -> None:
    """Its last time is: otherwise a restart would store it again, and a cut would wait for it."""
    tea = {"word": "tea", "n": 1}
    sink = tables.sink(upsert=["word"])
    stored(sink, ef.Change("tea", None, tea))
    stored(sink, ef.Change("ash", {"word": "ash", "n": 9}, None), time=2)
    stored(
        sink,
        ef.Change("ash", None, tea | {"word": "ash"}),
        ef.Change("ash", tea | {"word": "ash"}, None),
        time=3,
    )
    writer = sink.open(0)
    assert writer.last() == GlobalTime(3, 0)
    writer.close()
    assert tables.rows() == [tea]


def test_a_row_is_deleted_from_a_table_whose_columns_take_no_none(tables: Tables) -> None:
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("word", "kind")])
    sink = tables.sink(upsert=["word"], schema=schema)
    tree, tea = {"word": "ash", "kind": "tree"}, {"word": "tea", "kind": "drink"}
    stored(sink, tree, tea)
    stored(sink, ef.Change("ash", tree, None), time=2)
    assert tables.rows() == [tea]


@pytest.mark.parametrize("key", [None, float("nan")], ids=str)
def test_a_key_equals_itself(delta: Tables, key: Any) -> None:
    sink = delta.sink(upsert=["key"])
    with pytest.raises(PayloadError, match="column 'key' identifies a row, and is"):
        stored(sink, {"key": key, "n": 1})
    assert sink.refuses({"key": key, "n": 1}) is not None


# --- Others who write ------------------------------------------------------------------------------


def test_partitions_and_strangers_commit_between_each_other(tables: Tables) -> None:
    writers = [tables.sink(schema=pa.schema([("n", pa.int64())])).open(number) for number in (0, 1)]
    stranger = tables.sink(name="another flow").open(0)
    for time in range(1, 4):
        for partition, writer in enumerate(writers):
            writer.store(bundle(time, {"n": 10 * time + partition}, partition=partition))
        stranger.store(bundle(time, {"n": -time}))
    for writer in (*writers, stranger):
        assert writer.last() == GlobalTime(3, 0)
        writer.close()
    assert sorted(row["n"] for row in tables.rows()) == [-3, -2, -1, 10, 11, 20, 21, 30, 31]


@pytest.mark.parametrize(
    ("upsert", "payload"),
    [([], {"n": 2}), (["n"], {"n": 2}), (["n"], ef.Change(3, {"n": 3}, None))],
    ids=["append", "upsert", "without effect"],
)
def test_an_old_writer_that_is_first_stops_its_successor_and_nothing_is_doubled(
    tables: Tables, upsert: list[str], payload: Any
) -> None:
    """A worker that was cut off may store before its successor does. Both have the same bundle."""
    sink = tables.sink(upsert=upsert, schema=pa.schema([("n", pa.int64())]))
    stored(sink, {"n": 1})
    old, new = sink.open(0), sink.open(0)
    old.store(bundle(2, payload))
    after = tables.rows()
    with pytest.raises(SinkMovedError, match="Do two queries write under one name"):
        new.store(bundle(2, payload))
    assert tables.rows() == after
    old.close()
    new.close()


def test_the_time_outlives_compaction_and_the_end_of_its_snapshot(tables: Tables) -> None:
    sink = tables.sink()
    for time in (1, 2, 3):
        stored(sink, {"n": time}, time=time)
    if tables.kind == "Delta":
        table = sink.table()
        table.optimize.compact()
        table.vacuum(0, enforce_retention_duration=False, dry_run=False)
        table.create_checkpoint()
        for entry in sorted((tables.folder / "table" / "_delta_log").glob("*.json"))[:-1]:
            entry.unlink()
    else:
        catalog = sink.opened_catalog()
        table = sink.table(catalog)
        table.overwrite(table.scan().to_arrow())
        kept = table.current_snapshot().snapshot_id
        for snapshot in table.snapshots():
            if snapshot.snapshot_id != kept:
                table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
        catalog.close()
        assert len(tables.metadata()["snapshots"]) == 1
    writer = sink.open(0)
    assert writer.last() == GlobalTime(3, 0)
    writer.store(bundle(4, {"n": 4}))
    writer.close()


def test_what_is_stored_on_a_disk_survives_a_power_loss(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = tables.sink(upsert=["n"])
    stored(sink, {"n": 1, "m": 1}, {"n": 2, "m": 1})
    synced = synced_inodes(monkeypatch)
    before = set(tables.folder.rglob("*"))
    stored(sink, {"n": 2, "m": 2}, time=2)  # rewrites a file
    new = {path for path in set(tables.folder.rglob("*")) - before if path.is_file()}
    # What no reader needs: sizes for readers of Spark, and a hint of the newest version.
    new = {path for path in new if path.suffix in {".parquet", ".json", ".avro"}}
    assert len(new) >= 2
    for path in new:
        for one in (path, path.parent):
            assert one.stat().st_ino in synced, one


# --- Options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"upsert": "word"}, "takes upsert= as a list of names"),
        ({"upsert": ["no"], "schema": Point}, r"has no column 'no'; it has 'x', 'y'"),
        ({"upsert": ["tags"], "schema": Event}, "column 'tags' holds lists"),
        ({"schema": "word string"}, "takes a pyarrow.Schema, a dataclass or a named tuple"),
        ({"commit_every": "soon"}, r"commit_every=\) takes seconds"),
        ({"commit_every": -1}, "0 or more, got -1"),
        ({"name": ""}, "takes a text"),
    ],
    ids=str,
)
def test_early_checks(tables: Tables, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        tables.sink(**options)


def test_a_table_that_cannot_be_reached_is_told_before_the_query_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"sinks\.Delta cannot open"):
        sinks.Delta(tmp_path / "file" / "table", schema=Point).check()
    config = {"type": "sql", "uri": f"sqlite:///{tmp_path}/none/x.db", "warehouse": "file:///x"}
    with pytest.raises(InputError, match=r"sinks\.Iceberg cannot open 'shop\.words'"):
        sinks.Iceberg("shop.words", config=config).check()
    with pytest.raises(InputError, match=r"takes 'namespace.table', got 'words'"):
        sinks.Iceberg("words", config=config)


@pytest.mark.parametrize("module", ["deltalake", "pyiceberg.catalog"])
def test_without_the_library_the_sink_says_which_extra(
    module: str, tmp_path: Path, without: Callable[[str], None]
) -> None:
    without(module)
    tables = Tables(tmp_path, "Delta" if module == "deltalake" else "Iceberg")
    with pytest.raises(MissingExtraError, match=rf"emberflow\[{tables.kind.lower()}\]"):
        tables.sink()
