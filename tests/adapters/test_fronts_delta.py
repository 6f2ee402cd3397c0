"""`fronts.Delta`: what every version changes, judged by a table that the test keeps itself."""

from __future__ import annotations

import pickle
import random
import shutil
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import emberflow as ef
from emberflow import testing
from emberflow.commands.adapters import given_fronts
from emberflow.commands.audit import entered
from emberflow.errors import InputError
from emberflow.fronts import Batch, Delta, Idle, Malformed
from tests.adapters.table_readers import delta_files, rows
from tests.effort import SOAK

SCHEMA = pa.schema([("id", pa.int64()), ("shop", pa.string()), ("n", pa.float64())])
FEED = {"delta.enableChangeDataFeed": "true"}
Row = dict[str, Any]


def made(folder: Path, *, schema: pa.Schema = SCHEMA, feed: bool = True) -> str:
    place = str(folder / "table")
    DeltaTable.create(place, schema=schema, configuration=FEED if feed else None)
    return place


def columns(place: str) -> pa.Schema:
    return pa.schema(DeltaTable(place).schema().to_arrow())


def append(place: str, *rows: Row, schema: pa.Schema | None = None) -> None:
    data = pa.Table.from_pylist(list(rows), schema=schema or columns(place))
    write_deltalake(place, data, mode="append", schema_mode="merge" if schema else None)


def merge(place: str, *rows: Row) -> None:
    table = DeltaTable(place)
    source = pa.Table.from_pylist(list(rows), schema=columns(place))
    found = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    found.when_matched_update_all().when_not_matched_insert_all().execute()


class Model:
    """A table, the commits made to it, and what its rows must be at each version."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        self.place = made(folder)
        self.rows: dict[int, Row] = {}
        self.versions: list[dict[int, Row]] = [{}]
        self._schema = SCHEMA
        self._next = 0

    def commit(self, kind: str) -> None:
        getattr(self, kind)()
        version = DeltaTable(self.place).version()
        # A commit that changes nothing may be none, and a table may write its checkpoint besides.
        assert version in (len(self.versions) - 1, len(self.versions))
        if version == len(self.versions):
            self.versions.append({key: dict(row) for key, row in self.rows.items()})

    def _row(self, key: int) -> Row:
        row = {"id": key, "shop": self._dice.choice("xyz"), "n": self._dice.randrange(100) / 2}
        return {**row, **({"more": None} if "more" in self._schema.names else {})}

    def append(self) -> None:
        keys = range(self._next, self._next + self._dice.randrange(1, 6))
        self._next = keys.stop
        rows = [self._row(key) for key in keys]
        self._dice.shuffle(rows)
        append(self.place, *rows)
        self.rows.update({row["id"]: row for row in rows})

    def merge(self) -> None:
        keys = self._dice.sample(range(self._next + 3), min(self._next, 4))
        self._next += 3
        rows = [self._row(key) for key in keys]
        if rows:
            merge(self.place, *rows)
            self.rows.update({row["id"]: row for row in rows})

    def delete(self) -> None:
        shop = self._dice.choice("xyz")
        DeltaTable(self.place).delete(f"shop = '{shop}'")
        self.rows = {key: row for key, row in self.rows.items() if row["shop"] != shop}

    def update(self) -> None:
        DeltaTable(self.place).update({"n": "n + 1"}, predicate="shop = 'x'")
        for row in self.rows.values():
            row["n"] += 1 if row["shop"] == "x" else 0

    def rekey(self) -> None:
        """An update of the key."""
        if self.rows:
            key = self._dice.choice(sorted(self.rows))
            new, self._next = self._next, self._next + 1
            DeltaTable(self.place).update({"id": str(new)}, predicate=f"id = {key}")
            self.rows[new] = {**self.rows.pop(key), "id": new}

    def overwrite(self) -> None:
        rows = [self._row(key) for key in self._dice.sample(range(self._next + 1), 1)]
        self._next += 1
        data = pa.Table.from_pylist(rows, schema=self._schema)
        write_deltalake(self.place, data, mode="overwrite")
        self.rows = {row["id"]: row for row in rows}

    def compact(self) -> None:
        DeltaTable(self.place).optimize.compact()

    def evolve(self) -> None:
        if "more" in self._schema.names:
            return
        self._schema = self._schema.append(pa.field("more", pa.string()))
        for row in self.rows.values():
            row["more"] = None
        key, self._next = self._next, self._next + 1
        self.rows[key] = {"id": key, "shop": "z", "n": 0.0, "more": "new"}
        append(self.place, self.rows[key], schema=self._schema)

    def checkpoint(self) -> None:
        DeltaTable(self.place).create_checkpoint()


KINDS = ("append", "merge", "delete", "update", "rekey", "overwrite", "compact", "checkpoint")


def read(front: Delta, position: Any = None) -> list[tuple[Any, Any, Any]]:
    return [
        entry
        for given in front.read_batches(0, position)
        if isinstance(given, Batch)
        for entry in zip(given.positions, given.payloads, given.times or (), strict=True)
    ]


@pytest.mark.parametrize("seed", range(12 if SOAK else 2))
def test_the_changes_of_each_version_lead_to_its_rows(tmp_path: Path, seed: int) -> None:
    """Every version, whatever made it; and again from every position, when later versions are there."""
    model = Model(tmp_path, seed)
    dice = random.Random(seed)
    commits = ["append", "append", *dice.choices(KINDS, k=14), "compact", "evolve", "merge"]
    earlier: list[Any] = []
    for number, kind in enumerate(commits):
        model.commit(kind)
        if number == 12:
            earlier = read(Delta(model.place, key="id", until_end=True))
    front = Delta(model.place, key="id", time="version", until_end=True)
    given = read(front)
    table: dict[int, Row] = {}
    for version, wanted in enumerate(model.versions):
        own = [(payload, at) for (of, _), payload, at in given if of == version]
        keys = [key for (key, _), _ in own]
        assert len(set(keys)) == len(keys)
        dice.shuffle(own)  # the changes of a version hold in any order
        for (key, row), at in own:
            assert at == version
            table[key] = row
        table = {key: row for key, row in table.items() if row is not None}
        assert {key: _known(row) for key, row in table.items()} == {
            key: _known(row) for key, row in wanted.items()
        }
    assert {row["id"]: _known(row) for row in rows(delta_files(Path(model.place)))} == {
        key: _known(row) for key, row in table.items()
    }
    # What was read before the table got another column, and was compacted, is read again as it was.
    again = read(Delta(model.place, key="id", until_end=True))
    assert again[: len(earlier)] == earlier
    for at in dice.sample(range(len(given)), min(len(given), 8)):
        assert read(front, given[at][0]) == given[at + 1 :]


def _known(row: Row) -> Row:
    """Without a column that a row may be older than."""
    return {name: value for name, value in row.items() if value is not None}


def test_the_contract(tmp_path: Path) -> None:
    place = made(tmp_path)
    append(place, *({"id": n, "shop": "x", "n": float(n)} for n in range(8)))
    merge(place, {"id": 3, "shop": "y", "n": 0.5}, {"id": 9, "shop": "y", "n": 1.0})
    DeltaTable(place).delete("id < 2")
    first: dict[int, Row] = {n: {"id": n, "shop": "x", "n": float(n)} for n in range(8)}
    wanted = [
        *first.items(),
        (3, {"id": 3, "shop": "y", "n": 0.5}),
        (9, {"id": 9, "shop": "y", "n": 1.0}),
        (0, None),
        (1, None),
    ]
    times = [1] * 8 + [2] * 2 + [3] * 2
    every = testing.check_front(
        lambda: Delta(place, key="id", time="version", until_end=True), payloads=wanted, times=times
    )
    assert every == list(testing.FRONT_RULES)
    # It waits for more.
    rules = ("waiting", "resume", "replay", "travel")
    testing.check_front(
        lambda: Delta(place, key="id", time="version", poll_ms=20), payloads=wanted, rules=rules
    )
    slow = Delta(place, key="id", poll_ms=60_000)
    testing.check_front(lambda: slow, payloads=wanted, rules=["waiting"], seconds=1.0)
    assert pickle.loads(pickle.dumps(slow)).place == place


def test_upserts_are_changes(tmp_path: Path) -> None:
    """Straight into a table of the flow, which follows the one that is read."""
    place = made(tmp_path)
    flow = ef.Flow("shops")
    table = ef.changes_from(flow.front("rows"))
    table.group_by(lambda row: row["shop"]).sum(lambda row: row["n"]).latest().sink("sums")
    append(place, {"id": 1, "shop": "x", "n": 1.0}, {"id": 2, "shop": "x", "n": 2.0})
    merge(place, {"id": 2, "shop": "y", "n": 5.0})
    DeltaTable(place).delete("id = 1")
    found = ef.run(flow, rows=Delta(place, key="id", until_end=True))["sums"]
    assert dict(found) == {"x": None, "y": 5.0}


def test_keys_of_several_columns_and_rows_without_keys(tmp_path: Path) -> None:
    place = made(tmp_path)
    added = [{"id": n % 2, "shop": shop, "n": 1.0} for n, shop in enumerate("yxx")]
    append(place, *added)
    by_both = read(Delta(place, key=["shop", "id"], until_end=True))
    assert [payload for _, payload, _ in by_both] == [
        (("x", 0), added[2]),
        (("x", 1), added[1]),
        (("y", 0), added[0]),
    ]
    appended = [payload for _, payload, _ in read(Delta(place, until_end=True))]
    assert appended == sorted(added, key=repr)
    DeltaTable(place).delete("shop = 'y'")
    *_, (_, gone, _) = read(Delta(place, until_end=True))
    assert isinstance(gone, Malformed)
    assert "a row of kind 'delete', and without key= " in gone.problem


def test_what_is_no_key_is_malformed(tmp_path: Path) -> None:
    place = made(tmp_path)
    twice = [{"id": 1, "shop": "x", "n": 1.0}, {"id": 1, "shop": "y", "n": 2.0}]
    append(place, *twice, {"id": None, "shop": "z", "n": 3.0}, {"id": 4, "shop": None, "n": 4.0})
    flow = ef.Flow("rows")
    flow.front("rows").sink("out")
    front = Delta(place, key="id", until_end=True)
    found = ef.run(flow, on_error="divert", rows=front)
    assert found["out"] == [(4, {"id": 4, "shop": None, "n": 4.0})]
    problems = [error.problem for error in found["errors"]]
    assert "neither None nor NaN" in problems[0]
    assert "leaves 2 rows with the key 1" in problems[1]
    with pytest.raises(InputError, match=r"version 1 of .*: the key id of a row is neither None"):
        ef.run(flow, rows=front)


def test_times(tmp_path: Path) -> None:
    """Those of commits, which may go back; of a column, and of rows that are gone; none."""
    place = made(
        tmp_path, schema=pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    )
    for number in (1, 2):
        append(place, {"id": number, "at": datetime(1970, 1, 1, 0, 0, number, tzinfo=UTC)})
    append(place, {"id": 3, "at": None})
    DeltaTable(place).delete("id = 1")
    stamps = [int(each["timestamp"]) for each in reversed(DeltaTable(place).history())][1:]
    by_commit = read(Delta(place, key="id", until_end=True))
    assert [at for _, _, at in by_commit] == stamps
    in_seconds = read(Delta(place, key="id", unit="s", until_end=True))
    assert [at for _, _, at in in_seconds] == [stamp // 1_000 for stamp in stamps]
    by_column = Delta(place, key="id", time="at", disorder="5 seconds", until_end=True)
    assert [at for _, _, at in read(by_column)] == [1_000, 2_000, None, 1_000]
    by_function = Delta(place, key="id", time=lambda row: row["id"], until_end=True)
    assert [at for _, _, at in read(by_function)] == [1, 2, 3, 1]
    flow = ef.Flow("rows")
    flow.front("rows").with_time().map(lambda timed: (timed.time, timed.payload[0])).sink("out")
    found = ef.run(flow, on_error="divert", rows=by_column)
    assert found["out"] == [(1_000, 1), (1_000, 1), (2_000, 2)]
    assert "has the time None (column 'at')" in found["errors"][0].problem
    log = Path(place) / "_delta_log" / f"{3:020d}.json"
    log.write_text(log.read_text().replace(str(stamps[2]), "1000"))  # another clock
    found = ef.run(flow, rows=Delta(place, key="id", until_end=True))
    wanted = [(stamps[0], 1), (stamps[1], 2), (stamps[1], 3), (stamps[3], 1)]
    assert found["out"] == wanted


def test_a_table_with_nothing_new_promises(tmp_path: Path) -> None:
    place = made(tmp_path)
    append(place, {"id": 1, "shop": "x", "n": 1.0})
    front = Delta(place, key="id", idle_ms=0, poll_ms=1)
    reading = front.read_batches(0, None)
    batch = next(given for given in reading if isinstance(given, Batch))
    promise = next(given for given in reading if isinstance(given, Idle))
    assert batch.times is not None
    assert int(promise.until) >= batch.times[0]
    assert all(given is None or isinstance(given, Idle) for given in islice(reading, 5))
    append(place, {"id": 2, "shop": "x", "n": 1.0})
    batch = next(given for given in reading if isinstance(given, Batch))
    assert [key for key, _ in batch.payloads] == [2]


def test_a_table_whose_feed_is_younger_begins_with_its_rows(tmp_path: Path) -> None:
    place = made(tmp_path, feed=False)
    append(place, {"id": 1, "shop": "x", "n": 1.0}, {"id": 2, "shop": "x", "n": 2.0})
    with pytest.raises(InputError, match=r"has no change data feed\. Enable it"):
        Delta(place).check()
    DeltaTable(place).alter.set_table_properties(FEED)
    merge(place, {"id": 2, "shop": "y", "n": 3.0})
    with pytest.raises(InputError, match=r"change data of version 0 of .* snapshot=True"):
        read(Delta(place, key="id", until_end=True))
    front = Delta(place, key="id", begin=2, snapshot=True, until_end=True)
    front.check()
    given = read(front)
    assert [(position, key, row["n"]) for position, (key, row), _ in given] == [
        ((2, 0), 1, 1.0),
        ((2, 1), 2, 2.0),
        ((3, 0), 2, 3.0),
    ]
    assert read(front, (2, 0)) == given[1:]
    assert [at for _, _, at in given] == sorted(at for _, _, at in given)


def test_what_was_removed_is_an_error_and_no_gap(tmp_path: Path) -> None:
    place = made(tmp_path)
    append(place, {"id": 1, "shop": "x", "n": 1.0})
    merge(place, {"id": 1, "shop": "y", "n": 2.0})
    merge(place, {"id": 1, "shop": "z", "n": 3.0})
    first, *_ = read(Delta(place, key="id", until_end=True))
    shutil.rmtree(Path(place) / "_change_data")
    with pytest.raises(InputError, match=r"change data of version 2 .* cannot be read"):
        read(Delta(place, key="id", until_end=True), first[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"time": 3}, r"fronts.Delta\(time=\) takes"),
        ({"key": []}, r"fronts.Delta\(key=\) takes a column"),
        ({"begin": -1}, r"fronts.Delta\(begin=\) takes a version"),
        ({"idle_ms": 5, "time": "n"}, r"fronts.Delta\(idle_ms=\) is for time='timestamp'"),
        ({"disorder": 5}, r"fronts.Delta\(time='timestamp'\) takes no disorder="),
        ({"poll_ms": 0}, r"fronts.Delta\(poll_ms=\) takes milliseconds"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Delta("somewhere", **options)


def test_a_table_that_does_not_fit_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no Delta table at"):
        Delta(tmp_path / "nowhere").check()
    place = made(tmp_path)
    for options in ({"key": "word"}, {"time": "word"}):
        with pytest.raises(InputError, match="has no column 'word'; it has id, shop, n"):
            Delta(place, **options).check()
    with pytest.raises(InputError, match=r"fronts.Delta\(begin=3\): .* is at version 0"):
        Delta(place, begin=3).check()


def test_from_a_command_line_and_for_an_audit(tmp_path: Path) -> None:
    place = made(tmp_path)
    append(place, {"id": 1, "shop": "x", "n": 1.0})
    flow = ef.Flow("rows")
    flow.front("rows").sink("out")
    graph = flow.graph()

    def given(options: str) -> Delta:
        found: Delta = given_fronts(graph, [f"rows=delta:{place}{options}"])["rows"]
        return found

    front = given("?key=id,shop&time=n&begin=1&snapshot=true&until_end=true&unit=us&disorder=3")
    assert (front.key, front.time, front.begin, front.snapshot) == (("id", "shop"), "n", 1, True)
    assert (front.until_end, front.unit, front.event_time.disorder) == (True, "us", 3)
    assert given("?idle_ms=1+second").idle_ms == 1_000
    assert given("").key == ()
    with pytest.raises(InputError, match=r"front 'rows': begin is a number, got 'soon'"):
        given("?begin=soon")
    (element,) = entered(graph, {"rows": given("?key=id&time=version")})
    assert element[2] == (1, {"id": 1, "shop": "x", "n": 1.0})
