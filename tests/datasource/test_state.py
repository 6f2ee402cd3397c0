"""Reads of state as Spark's processes do them, but in this process: types, filters, rows read."""

from __future__ import annotations

import datetime
import pickle
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import pytest
from pyspark.sql import datasource as spark
from pyspark.sql import types as sql
from pyspark.sql.datasource import DataSource, DataSourceReader

import emberflow as ef
from emberflow.checkpoint import CheckpointError, Manifest
from emberflow.checkpoint.cuts.parts import writer as writer_module
from emberflow.checkpoint.cuts.scan import Counted
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.datasource import stored
from emberflow.datasource.source import EmberflowSource
from emberflow.datasource.state import StatePartition, state_reader, state_schema
from emberflow.rows.codec import decode
from emberflow.values.hashing import key_hash, owner

UTC = datetime.UTC


def flow() -> ef.Flow:
    flow = ef.Flow("shop")
    accounts: ef.State[Any] = flow.state("accounts", default=0)
    with flow.front("orders").transaction() as tx:
        tx.key_by(str).update(accounts, lambda held, order: order)
    tx.committed.sink("done")
    words = flow.front("words")
    words.key_by(str).count().sink("counts")
    words.key_by(str).group(window=3, name="last three").sink("groups")
    words.key_by(str).reduce(first=str, combine=lambda a, b: a, name="kept").sink("kept")
    return flow


def write(
    location: Path,
    values: dict[Any, Any],
    *,
    operation: str = "accounts",
    number: int = 1,
    workers: int = 2,
    base: Manifest | None = None,
) -> Manifest:
    store = CheckpointStore(location)
    if number == 1:
        store.begin()
    rows = [
        (operation, key_hash(key), key, (10 * number, 0, place), value)
        for place, (key, value) in enumerate(values.items())
    ]
    parts = [
        store.write_part(
            number,
            worker,
            [[row for row in rows if owner(row[1], workers) == worker]],
            incarnation=1,
            base=base.number if base else None,
        )
        for worker in range(workers)
    ]
    cut = Manifest.of(
        flow().graph(),
        number=number,
        incarnation=1,
        time=(100 * number, 1),
        parts=parts,
        base=base,
    )
    store.commit(cut)
    return cut


def options(location: Path, **more: Any) -> dict[str, str]:
    given = {"checkpoint": str(location), "state": "accounts", "pushdown": True, **more}
    return {name: str(value) for name, value in given.items()}


def read(
    given: dict[str, str],
    filters: Iterable[spark.Filter] = (),
    schema: sql.StructType | None = None,
    *,
    left: int | None = 0,
) -> list[dict[str, Any]]:
    """All rows, in the steps that Spark takes: plan, pickle, unpickle, read."""
    schema = schema or state_schema(given)
    reader = state_reader(given, schema)
    remaining = list(reader.pushFilters(list(filters)))
    if left is not None:
        assert len(remaining) == left
    sent: DataSourceReader = cloudpickle.loads(cloudpickle.dumps(reader))
    partitions = cloudpickle.loads(cloudpickle.dumps(reader.partitions()))
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        for batch in sent.read(partition):
            rows += batch.to_pylist()
    return rows


def found(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted(row["key"] for row in rows)


class Pair(NamedTuple):
    word: str
    number: int


@dataclass(frozen=True)
class Place:
    town: str
    house: int
    note: str = field(default="", compare=False)


class Colour(Enum):
    RED = 1


# --- Columns --------------------------------------------------------------------------------------


def test_key_value_time_and_front(tmp_path: Path) -> None:
    write(tmp_path, {"ada": 3, "bob": 4})
    given = options(tmp_path)
    assert state_schema(given).simpleString() == (
        "struct<key:string,value:bigint,time:bigint,front:bigint>"
    )
    assert sorted(read(given), key=str) == [
        {"key": "ada", "value": 3, "time": 10, "front": 0},
        {"key": "bob", "value": 4, "time": 10, "front": 0},
    ]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            ("a", 1),
            Pair("x", 2),
            "key:struct<_1:string,_2:bigint>,value:struct<word:string,number:",
        ),
        (
            Place("oslo", 4),
            [1, 2],
            "key:struct<town:string,house:bigint,note:string>,value:array<b",
        ),
        (datetime.date(2026, 1, 2), {"a": 1.5}, "key:date,value:map<string,double>"),
        (b"ab", ef.PersistentList(["x"]), "key:binary,value:array<string>"),
        (None, (), "key:void,value:array<void>"),
        (
            datetime.datetime(2026, 1, 2, tzinfo=UTC),
            datetime.datetime(2026, 1, 2),
            "key:timestamp,value:timestamp_ntz",
        ),
    ],
    ids=str,
)
def test_types_are_those_of_the_values(tmp_path: Path, key: Any, value: Any, expected: str) -> None:
    write(tmp_path, {key: value})
    assert expected in state_schema(options(tmp_path)).simpleString()
    (row,) = read(options(tmp_path))
    assert (row["time"], row["front"]) == (10, 0)


def test_a_given_schema_picks_columns_and_types(tmp_path: Path) -> None:
    write(tmp_path, {("a", 1): 3})
    schema = sql.StructType(
        [
            sql.StructField("value", sql.DoubleType()),
            sql.StructField(
                "key",
                sql.StructType(
                    [
                        sql.StructField("word", sql.StringType()),
                        sql.StructField("n", sql.LongType()),
                    ]
                ),
            ),
        ]
    )
    assert read(options(tmp_path), schema=schema) == [{"value": 3.0, "key": {"word": "a", "n": 1}}]
    for column, problem in (
        (
            sql.StructField("worth", sql.LongType()),
            "has no column 'worth'. It has key, value, time",
        ),
        (
            sql.StructField("time", sql.StringType()),
            "'time' is a bigint, and the schema says string",
        ),
    ):
        with pytest.raises(ef.InputError, match=problem):
            read(options(tmp_path), schema=sql.StructType([column]))


def test_what_spark_has_no_type_for_says_so_and_can_be_had_raw(tmp_path: Path) -> None:
    values = {"a": Colour.RED, "b": (1, Colour.RED), "c": None}
    write(tmp_path, values)
    with pytest.raises(ef.InputError, match=r"state 'accounts', column 'value': .*Colour.*\"raw\""):
        state_schema(options(tmp_path))
    raw = options(tmp_path, raw=True)
    assert state_schema(raw).names == ["key", "_payload", "_time", "_front", "_path"]
    rows = read(raw, [spark.In(("key",), ("a", "b", "z"))])
    assert {row["key"]: decode(row["_payload"]) for row in rows} == {
        "a": ("a", Colour.RED),
        "b": ("b", (1, Colour.RED)),
    }
    everything = sorted(read(raw), key=lambda row: (row["_time"], row["_path"]))
    assert [decode(row["_payload"]) for row in everything] == list(values.items())


def test_a_key_without_a_type_is_bytes_when_raw(tmp_path: Path) -> None:
    write(tmp_path, {Colour.RED: 1})
    with pytest.raises(ef.InputError, match="column 'key'"):
        state_schema(options(tmp_path))
    (row,) = read(options(tmp_path, raw=True))
    assert pickle.loads(row["key"]) is Colour.RED
    assert decode(row["_payload"]) == (Colour.RED, 1)


def test_a_value_that_does_not_fit_is_named(tmp_path: Path) -> None:
    values: dict[Any, Any] = dict.fromkeys((f"k{n}" for n in range(3000)), 1)
    # The sample takes the least hashes.
    late = max(values, key=key_hash)
    values[late] = "many"
    write(tmp_path, values)
    with pytest.raises(ef.OutputError) as raised:
        read(options(tmp_path))
    assert f"'value' is bigint, and the key {late!r} has 'many'" in str(raised.value)
    assert raised.value.global_time == (10, 0)


# --- Which state, which cut -----------------------------------------------------------------------


def test_states_are_listed_by_the_names_that_users_know(tmp_path: Path) -> None:
    write(tmp_path, {"ada": 3}, operation="count/reduce/group")
    with pytest.raises(
        ef.InputError,
        match="which state\\? Flow 'shop' has 'accounts', 'count', 'last three', 'kept'",
    ):
        state_schema({"checkpoint": str(tmp_path)})
    with pytest.raises(ef.InputError, match=r"there is no state 'acounts'\. Flow 'shop' has"):
        state_schema(options(tmp_path, state="acounts"))
    with pytest.raises(ef.InputError, match="state 'accounts' has no rows yet"):
        state_schema(options(tmp_path))
    for name in ("count", "count/reduce/group"):
        assert found(read(options(tmp_path, state=name))) == ["ada"]
    listed = options(tmp_path, list="states")
    reader = state_reader(listed, state_schema(listed))
    assert list(reader.read(reader.partitions()[0])) == [
        ("accounts", "accounts"),
        ("count", "count/reduce/group"),
        ("last three", "last three"),
        ("kept", "kept/group"),
    ]


def test_the_newest_cut_or_one_that_is_not_above_a_time(tmp_path: Path) -> None:
    first = write(tmp_path, {"ada": 1, "bob": 1})
    second = write(tmp_path, {"ada": 2}, number=2, base=first)
    write(tmp_path, {"bob": 3, "eve": 3}, number=3, base=second, workers=3)

    def values(**more: Any) -> dict[str, int]:
        rows = read(options(tmp_path, **more))
        return {row["key"]: row["value"] for row in rows}

    assert values() == {"ada": 2, "bob": 3, "eve": 3}
    assert values(asOf=250) == values(asOf=200) == values(asOf="200,1") == {"ada": 2, "bob": 1}
    assert values(asOf="200,0") == values(asOf=100) == {"ada": 1, "bob": 1}
    kept = "cut 1 at 100,1; cut 2 at 200,1; cut 3 at 300,1"
    with pytest.raises(ef.InputError, match=f"asOf 99: no cut that old is kept .*{kept}"):
        values(asOf=99)
    with pytest.raises(ef.InputError, match="asOf is a time"):
        values(asOf="yesterday")
    listed = options(tmp_path, list="cuts")
    reader = state_reader(listed, state_schema(listed))
    assert [row[:4] for row in reader.read(reader.partitions()[0])] == [
        (1, 100, 1, 1),
        (2, 200, 1, 1),
        (3, 300, 1, 1),
    ]


def test_options_are_checked(tmp_path: Path) -> None:
    for given, problem in (
        ({}, r"needs \.option\(\"query\", name\).*\.option\(\"checkpoint\", path\)"),
        ({"checkpoint": str(tmp_path)}, "has no cut. Is it the checkpointLocation"),
        (options(tmp_path, sate="x"), "no option 'sate'. There are checkpoint"),
        (options(tmp_path, raw="perhaps"), "raw is true or false"),
        (options(tmp_path, partitions=0), "partitions is a number from 1 on"),
        (options(tmp_path, holdSeconds="-1"), "holdSeconds is a number of seconds"),
        (options(tmp_path, list="tables"), "one of states, cuts"),
    ):
        with pytest.raises(ef.InputError, match=problem):
            state_schema(given)
    assert not list(tmp_path.iterdir())


def test_a_cut_that_is_pruned_while_it_is_read_is_held_or_missed(tmp_path: Path) -> None:
    values = {f"k{n}": n for n in range(100)}
    write(tmp_path, values)
    given = options(tmp_path)
    schema = state_schema(given)
    held = state_reader(given, schema)
    partitions = held.partitions()
    write(tmp_path, {"other": 1}, number=2)
    store = CheckpointStore(tmp_path)
    store.prune(1, incarnation=1)
    assert sum(batch.num_rows for part in partitions for batch in held.read(part)) == 100

    for name in (tmp_path / "holds").iterdir():
        name.unlink()
    careless = state_reader(options(tmp_path, holdSeconds=0, asOf=150), schema)
    partitions = careless.partitions()
    reading = careless.read(partitions[0])
    next(reading)
    store.prune(1, incarnation=1)
    with pytest.raises(
        CheckpointError, match=r"cut 1 was removed before it was read.*load\(\) again"
    ):
        list(careless.read(partitions[0]))


# --- Filters --------------------------------------------------------------------------------------

KEY = ("key",)


def test_a_filter_on_the_key_skips_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_GROUP_ROWS_MAX", 100)
    monkeypatch.setattr(stored, "_ROWS_A_PIECE", 1000)
    values = {f"k{n}": n for n in range(10_000)}
    first = write(tmp_path, values)
    write(tmp_path, {f"k{n}": -n for n in range(0, 10_000, 10)}, number=2, base=first)
    given = options(tmp_path)

    def counted(*filters: spark.Filter) -> tuple[int, int, Counted]:
        reader = state_reader(given, state_schema(given))
        assert list(reader.pushFilters(list(filters))) == []
        partitions = reader.partitions()
        counts, rows = Counted(), 0
        for partition in partitions:
            assert isinstance(partition, StatePartition)
            assert isinstance(partition.piece, stored.StoredPiece)
            pages = partition.piece.pages(partition.filters, child_ids=False, counted=counts)
            rows += sum(len(page.keys) for page in pages)
        return len(partitions), rows, counts

    pieces, rows, whole = counted()
    assert (pieces, rows) == (11, 10_000)
    pieces, rows, one = counted(spark.IsNotNull(KEY), spark.EqualTo(KEY, "k70"))
    assert (pieces, rows, one.payloads) == (1, 1, 1)
    assert one.rows <= 200  # a row group of each cut
    pieces, rows, few = counted(spark.In(KEY, ("k1", "k2", "no such key", None)))
    assert (pieces, rows, few.payloads) == (1, 2, 2)
    assert few.groups <= 6 < whole.groups / 10
    pieces, rows, some = counted(spark.GreaterThan(KEY, "k99"), spark.LessThan(KEY, "k992"))
    assert (pieces, rows, some.payloads) == (11, 22, 22)
    assert some.rows == whole.rows


def test_filters_are_answered_as_sql_would(tmp_path: Path) -> None:
    keys = ["", "a", "ab", "b", "é", "z", "\U0001f600", None]
    write(tmp_path, dict.fromkeys(keys, 1))
    given = options(tmp_path)
    texts = [key for key in keys if key is not None]
    for taken, expected in (
        (spark.EqualTo(KEY, "ab"), ["ab"]),
        (spark.In(KEY, ("ab", None, "q")), ["ab"]),
        (spark.GreaterThan(KEY, "b"), [key for key in texts if key > "b"]),
        (spark.GreaterThanOrEqual(KEY, "é"), ["é", "\U0001f600"]),
        (spark.LessThan(KEY, "b"), ["", "a", "ab"]),
        (spark.LessThanOrEqual(KEY, "b"), ["", "a", "ab", "b"]),
        (spark.StringStartsWith(KEY, "a"), ["a", "ab"]),
        (spark.StringEndsWith(KEY, "b"), ["ab", "b"]),
        (spark.StringContains(KEY, "b"), ["ab", "b"]),
        (spark.IsNotNull(KEY), texts),
    ):
        assert found(read(given, [taken])) == sorted(expected), taken
    assert [row["key"] for row in read(given, [spark.IsNull(KEY)])] == [None]
    left: list[spark.Filter] = [
        spark.Not(spark.EqualTo(KEY, "a")),
        spark.EqualNullSafe(KEY, None),
        spark.EqualTo(("value",), 1),
        spark.EqualTo(("time",), 1),
        spark.EqualTo(KEY, 1),
    ]
    assert len(read(given, left, left=len(left))) == len(keys)


DAY = datetime.date(2026, 3, 4)
NOON = datetime.datetime(2026, 3, 4, 12)
OSLO = datetime.timezone(datetime.timedelta(hours=1))


@pytest.mark.parametrize(
    ("keys", "value", "expected"),
    [
        ([1, 2, 3], 2, [2]),
        ([1.5, 2, -0.0], 2.0, [2]),
        ([1.5, 2, -0.0], 0.0, [0.0]),
        ([True, False], True, [True]),
        ([b"a", b"\xff"], b"\xff", [b"\xff"]),
        ([DAY, DAY.replace(day=5)], DAY, [DAY]),
        ([NOON, NOON.replace(hour=1)], NOON, [NOON]),
        (
            [NOON.replace(tzinfo=OSLO), NOON.replace(tzinfo=UTC)],
            NOON.replace(tzinfo=UTC, hour=11),
            [NOON.replace(tzinfo=OSLO)],
        ),
    ],
    ids=str,
)
def test_equality_of_each_type_that_is_taken(
    tmp_path: Path, keys: list[Any], value: Any, expected: list[Any]
) -> None:
    write(tmp_path, dict.fromkeys(keys, 1))
    assert found(read(options(tmp_path), [spark.EqualTo(KEY, value)])) == expected
    assert found(read(options(tmp_path), [spark.GreaterThanOrEqual(KEY, value)])) == sorted(
        key for key in keys if key >= value
    )


def test_parts_of_a_key_are_filtered_and_all_together_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_GROUP_ROWS_MAX", 10)
    classes: dict[str, Any] = {"tuple": lambda *parts: parts, "named": Pair, "dataclass": Place}
    for name, make in classes.items():
        location = tmp_path / name
        write(location, {make(word, n): n for word in ("a", "b", "c") for n in range(100)})
        given = options(location)
        first, second = state_schema(given)["key"].dataType.names[:2]
        word, number = ("key", first), ("key", second)
        both: list[spark.Filter] = [spark.EqualTo(word, "b"), spark.In(number, (7, 9))]
        assert sorted(row["value"] for row in read(given, both)) == [7, 9]
        assert len(read(given, [spark.EqualTo(word, "b"), spark.LessThan(number, 5)])) == 5
        assert len(read(given, [spark.StringStartsWith(word, "c")])) == 100
        reader = state_reader(given, state_schema(given))
        assert list(reader.pushFilters(both)) == []
        (partition,) = reader.partitions()
        assert isinstance(partition, StatePartition)
        assert isinstance(partition.piece, stored.StoredPiece)
        hashes = partition.piece.wanted.hashes
        assert hashes == tuple(sorted(key_hash(make("b", n)) for n in (7, 9)))


def test_a_schema_that_says_another_type_is_followed_without_filters(tmp_path: Path) -> None:
    """For Spark the key is then a different value from the one that was hashed."""
    write(tmp_path, {0.1: 1, 2.5: 2})
    schema = sql.StructType([sql.StructField("key", sql.FloatType())])
    assert len(read(options(tmp_path), [spark.EqualTo(KEY, 2.5)], schema, left=1)) == 2
    found = state_schema(options(tmp_path))
    assert len(read(options(tmp_path), [spark.GreaterThan(KEY, float("nan"))], found, left=1)) == 2


def test_without_pushdown_spark_is_not_offered_any(tmp_path: Path) -> None:
    """Spark would reuse the partitions of a filter for the next query on the same DataFrame."""
    write(tmp_path, {"a": 1, "b": 2})
    given = options(tmp_path, pushdown=False)
    assert len(read(given, [spark.EqualTo(KEY, "a")], left=1)) == 2
    assert state_reader(given, state_schema(given)).pushFilters.__func__ is (
        DataSourceReader.pushFilters
    )


@pytest.mark.parametrize(
    ("keys", "text", "expected"),
    [
        (["a", "b"], "b", ["b"]),
        ([1, 20], "20", [20]),
        ([DAY], "2026-03-04", [DAY]),
        (["a"], "", []),
    ],
    ids=str,
)
def test_one_key_by_an_option(tmp_path: Path, keys: list[Any], text: str, expected: Any) -> None:
    write(tmp_path, dict.fromkeys(keys, 1))
    for pushdown in (False, True):
        given = options(tmp_path, key=text, pushdown=pushdown)
        assert found(read(given)) == expected
    reader = state_reader(given, state_schema(given))
    assert len(reader.partitions()) <= 1


def test_a_key_by_an_option_and_filters_both_count(tmp_path: Path) -> None:
    write(tmp_path, {"a": 1, "b": 2})
    given = options(tmp_path, key="a")
    assert found(read(given, [spark.In(KEY, ("a", "b"))])) == ["a"]
    assert read(given, [spark.EqualTo(KEY, "b")]) == []
    assert read(given, [spark.GreaterThan(KEY, "a")]) == []


def test_a_key_that_is_none_of_this_state_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "numbers", {1: 1})
    with pytest.raises(ef.InputError, match=r"takes a bigint.*got 'one'"):
        read(options(tmp_path / "numbers", key="one"))
    write(tmp_path / "pairs", {(1, 2): 1})
    with pytest.raises(ef.InputError, match="these are struct<_1:bigint,_2:bigint>"):
        read(options(tmp_path / "pairs", key="1"))


def test_random_filters_agree_with_a_scan(tmp_path: Path) -> None:
    dice = random.Random(5)
    keys = [dice.randint(-50, 50) for _ in range(200)]
    write(tmp_path, dict.fromkeys(keys, 1))
    for _ in range(40):
        filters: list[spark.Filter] = []
        expected = set(keys)
        for _ in range(dice.randint(1, 3)):
            bound = dice.randint(-50, 50)
            some = tuple(dice.choices(range(-50, 50), k=20))
            one, passes = dice.choice(
                [
                    (spark.LessThan(KEY, bound), {key for key in keys if key < bound}),
                    (spark.GreaterThanOrEqual(KEY, bound), {key for key in keys if key >= bound}),
                    (spark.In(KEY, some), set(keys) & set(some)),
                ]
            )
            filters.append(one)
            expected &= passes
        assert found(read(options(tmp_path), filters)) == sorted(expected), filters


def test_spark_finds_the_source_by_its_module() -> None:
    import pyspark_emberflow

    assert issubclass(pyspark_emberflow.DefaultSource, DataSource)
    assert pyspark_emberflow.DefaultSource is EmberflowSource
    assert EmberflowSource.name() == "emberflow"
