"""Batch on Spark: every sink's rows are the reference's output, to the byte, in any layout."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import emberflow as ef
from emberflow import fronts
from emberflow.errors import InputError
from emberflow.rows.inputs import Rows
from emberflow.values.item import TIE
from tests.batch.test_transactions import kinds, random_case
from tests.effort import SOAK
from tests.test_examples import EXAMPLES, example


def frame(
    spark: SparkSession, elements: list[Any], schema: str, partitions: int, seed: int = 0
) -> DataFrame:
    """A DataFrame of times and values, in any order and any partitions."""
    rows = [
        (e.time, e.payload) if isinstance(e, ef.At) else (number, e)
        for number, e in enumerate(elements)
    ]
    Random(seed).shuffle(rows)
    flat = [(time, *(p if isinstance(p, tuple) else (p,))) for time, p in rows]
    return spark.createDataFrame(flat, f"time long, {schema}").repartition(partitions)


def assert_equal(expected: dict[str, list[Any]], found: dict[str, DataFrame]) -> None:
    assert list(found) == list(expected)
    for name, df in found.items():
        assert repr(ef.payloads(df)) == repr(expected[name])


def examples() -> dict[str, tuple[ef.Flow, dict[str, list[Any]], dict[str, tuple[Any, str]]]]:
    """The flow, its elements, and the class and columns of each front."""
    clicks, average = example("click_sessions"), example("moving_average")
    index, orders = example("inverted_index"), example("orders")
    grouping, words = example("grouping"), example("word_count")
    order = ("minute long, number long, customer string, product string, pieces long, price long",)
    return {
        "click_sessions": (
            clicks.flow,
            {"clicks": [ef.At(click.minute, click) for click in clicks.CLICKS]},
            {"clicks": (clicks.Click, "minute long, user string, page string")},
        ),
        "moving_average": (
            average.flow,
            {"readings": [ef.At(reading.minute, reading) for reading in average.READINGS]},
            {"readings": (average.Reading, "minute long, sensor string, celsius double")},
        ),
        "inverted_index": (
            index.flow,
            {"docs": list(index.generated_documents(5, 8, 1))},
            {"docs": (index.Document, "id string, version long, text string")},
        ),
        "orders": (
            orders.flow,
            orders.elements(),
            {
                "customers": (orders.Customer, "minute long, name string, city string"),
                "orders": (orders.Order, *order),
                "payments": (orders.Payment, "minute long, order long"),
            },
        ),
        "grouping": (
            grouping.flow,
            {"numbers": grouping.NUMBERS},
            {"numbers": (None, "value long")},
        ),
        "word_count": (words.flow, {"lines": words.LINES}, {"lines": (None, "value string")}),
        **transactional_examples(),
    }


def transactional_examples() -> dict[
    str, tuple[ef.Flow, dict[str, list[Any]], dict[str, tuple[Any, str]]]
]:
    bank, ledger, seats, stock = map(example, ("bank", "ledger", "seats", "stock"))
    return {
        "bank": (
            bank.flow,
            {"orders": bank.ORDERS},
            {"orders": (bank.Order, "kind string, source string, target string, amount long")},
        ),
        "ledger": (
            ledger.flow,
            {"deposits": ledger.DEPOSITS, "transfers": ledger.TRANSFERS},
            {
                "deposits": (ledger.Deposit, "client string, euro long, assets long"),
                "transfers": (
                    ledger.Transfer,
                    "source string, target string, euro long, assets long",
                ),
            },
        ),
        "seats": (
            seats.flow,
            {"requests": seats.REQUESTS + seats.crowd(40)},
            {
                "requests": (
                    lambda row: seats.Request(row.name, tuple(row.seats)),
                    "name string, seats array<string>",
                )
            },
        ),
        "stock": (
            stock.flow,
            {"moves": stock.MOVES, "deliveries": stock.DELIVERIES, "orders": stock.ORDERS},
            {
                "moves": (stock.Move, "item string, warehouse string"),
                "deliveries": (stock.Delivery, "warehouse string, item string, pieces long"),
                "orders": (
                    lambda row: stock.Order(row.number, tuple(stock.Line(*n) for n in row.lines)),
                    "number long, lines array<struct<item: string, pieces: long>>",
                ),
            },
        ),
    }


#: One with windows, one with joins and one with transactions; `make soak` has all.
SOME_EXAMPLES = sorted(examples() if SOAK else {"moving_average", "seats"})


# With columns, as users have them. tests/contract runs all examples in 1, 3 and 8 partitions.
@pytest.mark.parametrize("name", SOME_EXAMPLES)
def test_the_examples_in_batch_equal_the_reference(
    spark: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))  # tasks import from the driver's path
    flow, elements, schemas = examples()[name]
    given = {
        front: ef.rows(frame(spark, elements[front], schema, 2), payload=payload, unique=True)
        for front, (payload, schema) in schemas.items()
    }
    found = flow.batch(spark, raw=True, partitions=2, **given)
    assert_equal(ef.run(flow, **elements), found)


def test_an_example_without_a_test_is_noticed() -> None:
    # The contract test runs the catalogue in batch: its elements are no rows of one kind.
    others = {"conftest", "demo", "bank_upgrade", "catalogue"}
    scripts = {path.stem for path in EXAMPLES.glob("*.py")} - others
    assert scripts == set(examples())


# tests/batch runs hundreds of others without Spark, tests/contract other random flows. Here is one
# for each way in which transactions run.
@pytest.mark.parametrize(("seed", "ways"), [(6, {"by key"}), (7, {"apart"}), (17, {"in order"})])
def test_random_transactions_in_batch_equal_the_reference(
    spark: SparkSession, seed: int, ways: set[str]
) -> None:
    flow, elements = random_case(seed)
    assert set(kinds(flow.graph())) >= ways
    frames = {
        name: ef.rows(frame(spark, given, "value long", 3, seed), unique=True)
        for name, given in elements.items()
    }
    found = flow.batch(spark, raw=True, partitions=3, **frames)
    assert_equal(ef.run(flow, **elements), found)


def test_a_task_holds_the_states_of_one_key_where_transactions_have_one(
    spark: SparkSession,
) -> None:
    """1,000 values of a megabyte in two states that change together, in one task."""

    def megabyte(held: bytes, n: int) -> bytes:
        return held + b"x" if held else bytes(1 << 20)

    def resident(n: int) -> tuple[int, int]:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return n, pages * 4096 >> 20

    flow = ef.Flow("large")
    large, counts = flow.state("large", default=b""), flow.state("counts", default=0)
    with flow.front("numbers").transaction() as tx:
        keyed = tx.key_by(lambda n: n % 1_000)
        keyed.update(large, megabyte)
        keyed.update(counts, lambda count, n: count + 1, check=lambda count: count < 3)
    tx.committed.map(resident).sink("out")
    rows = ef.rows(spark.range(3_000).selectExpr("id as time", "id as value"), unique=True)
    found = flow.batch(spark, schema="n long, resident long", partitions=1, numbers=rows)["out"]
    out = found.collect()
    assert sorted(row.n for row in out) == list(range(2_000))
    assert max(row.resident for row in out) < 700


# --- The DataFrame that comes out -----------------------------------------------------------------


class Count(NamedTuple):
    word: str
    n: int


def word_count() -> ef.Flow:
    flow = ef.Flow("word count")
    words = flow.front("lines").flat_map(lambda line: line.split())
    words.key_by(lambda word: word).count().map(lambda pair: Count(*pair)).sink("counts")
    return flow


LINES = ["the dog", "the cat", "the the"]
COUNTS = [("the", 1), ("dog", 1), ("the", 2), ("cat", 1), ("the", 3), ("the", 4)]


def test_payloads_become_columns_that_spark_can_sort(spark: SparkSession) -> None:
    lines = frame(spark, LINES, "value string", 2)
    (counts,) = word_count().batch(spark, lines=lines).values()  # the schema is inferred
    assert counts.dtypes[:2] == [("word", "string"), ("n", "bigint")]
    assert counts.columns[2:] == ["_time", "_front", "_path"]
    rows = counts.orderBy("_time", "_path").collect()
    assert [(row.word, row.n) for row in rows] == COUNTS
    assert [row._time for row in rows] == [0, 0, 1, 1, 2, 2]
    assert {row._front for row in rows} == {0}


@pytest.mark.parametrize("schema", [Count, {"counts": "word string, n long"}])
def test_a_schema_that_is_given_costs_no_job(spark: SparkSession, schema: Any) -> None:
    context, group = spark.sparkContext, f"schema {schema!r}"
    context.setJobGroup(group, "no job is expected")
    try:
        lines = ef.rows(frame(spark, LINES, "value string", 2), unique=True)
        (counts,) = word_count().batch(spark, schema=schema, lines=lines).values()
        assert not context.statusTracker().getJobIdsForGroup(group)
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
    assert sorted((row.word, row.n) for row in counts.collect()) == sorted(COUNTS)


def test_rows_are_in_order_within_each_partition(spark: SparkSession) -> None:
    lines = ef.rows(frame(spark, LINES * 5, "value string", 2), unique=True)
    (counts,) = word_count().batch(spark, raw=True, partitions=2, lines=lines).values()
    from pyspark.sql.functions import spark_partition_id

    rows = counts.withColumn("partition", spark_partition_id()).collect()
    places = [(row.partition, row._time, bytes(row._path)) for row in rows]
    assert len({partition for partition, _, _ in places}) == 2
    assert places == sorted(places)


def test_a_spark_engineer_recognises_the_plan(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ef.rows(frame(spark, LINES, "value string", 2), unique=True)
    (counts,) = word_count().batch(spark, raw=True, partitions=5, lines=lines).values()
    counts.explain()
    plan = capsys.readouterr().out
    for part in ("MapInArrow", "Exchange hashpartitioning(lane", "Sort [lane"):
        assert part in plan
    assert plan.count("Exchange hashpartitioning(lane") == 1
    assert plan.count("MapInArrow") == 2


def test_a_payload_that_does_not_fit_its_column_is_named(spark: SparkSession) -> None:
    flow = ef.Flow("mixed")
    flow.front("numbers").map(lambda n: n if n < 2 else str(n)).sink("out")
    numbers = ef.rows(frame(spark, [0, 1, 2], "value long", 1), unique=True)
    (out,) = flow.batch(spark, schema="long", numbers=numbers).values()
    with pytest.raises(PythonException) as raised:
        out.collect()
    error = ef.failure_of(raised.value)
    assert isinstance(error, ef.OutputError)
    assert "column 'value' of type bigint, got '2'" in error.problem
    with pytest.raises(ef.InputError, match=r"no one type: both bigint and string"):
        flow.batch(spark, numbers=numbers)


def test_a_sink_with_partitions_tells_them(spark: SparkSession) -> None:
    flow = ef.Flow("partitions")
    flow.front("numbers").key_by(lambda n: n % 5).sink("out", partitions=3)
    numbers = ef.rows(frame(spark, list(range(30)), "value long", 2), unique=True)
    rows = flow.batch(spark, schema="long", numbers=numbers)["out"].collect()
    from emberflow.values.hashing import key_hash, owner

    assert {row.value: row._partition for row in rows} == {
        n: owner(key_hash(n % 5), 3) for n in range(30)
    }


# --- What goes in ---------------------------------------------------------------------------------


def given(spark: SparkSession, rows: Rows | DataFrame) -> list[Any]:
    flow = ef.Flow("as it came")
    flow.front("docs").with_time().sink("out")
    return [(t.time, t.payload) for t in ef.payloads(flow.batch(spark, raw=True, docs=rows)["out"])]


def test_rows_become_payloads_as_collect_gives_them(spark: SparkSession) -> None:
    df = spark.createDataFrame(
        [(1, "a", [1, 2], {"k": b"x"}, ("n", None)), (0, None, None, None, None)],
        "time long, id string, list array<int>, held map<string, binary>, "
        "nested struct<name: string, n: long>",
    )
    expected = sorted(df.collect(), key=lambda row: row.time)
    assert given(spark, df) == [(row.time, row) for row in expected]
    assert repr([row for _, row in given(spark, df)]) == repr(expected)


def test_timestamps_are_times_in_milliseconds_and_payloads_in_utc(spark: SparkSession) -> None:
    df = spark.sql("select timestamp'2026-01-01 00:00:00.123456 UTC' as at, 7 as n")
    ((time, row),) = given(spark, ef.rows(df, time="at"))
    assert time == 1_767_225_600_123
    assert row.at.isoformat() == "2026-01-01T00:00:00.123456+00:00"
    ((time, n),) = given(spark, ef.rows(df, time="at", unit="us", payload="n"))
    assert (time, n) == (1_767_225_600_123_456, 7)
    bare = spark.sql("select timestamp_ntz'1969-12-31 23:59:59.999999' as at, 7 as n")
    assert given(spark, ef.rows(bare, time="at", payload="n")) == [(-1, 7)]


def test_a_function_makes_payloads_of_rows_and_its_error_is_told(spark: SparkSession) -> None:
    df = spark.createDataFrame([(5, 0), (6, 2)], "time long, n long").coalesce(1)
    assert given(spark, ef.rows(df, payload=lambda row: row.n + 1)) == [(5, 1), (6, 3)]
    with pytest.raises(PythonException) as raised:
        given(spark, ef.rows(df, payload=lambda row: 1 // row.n))
    error = ef.failure_of(raised.value)
    assert isinstance(error, ef.FunctionError)
    assert error.global_time == (5, 0)
    assert "Row(time=5, n=0)" in str(error)


def test_rows_of_one_partition_are_numbered_and_of_several_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([(letter,) for letter in "abcd"], "value string")
    assert given(spark, df.coalesce(1)) == list(enumerate("abcd"))
    with pytest.raises(PythonException) as raised:
        given(spark, df.repartition(3))
    error = ef.failure_of(raised.value)
    assert isinstance(error, ef.InputError)
    assert "nothing says which row comes first" in str(error)
    assert "ef.rows(df, time='column')" in str(error)


def test_order_by_numbers_rows_and_a_tie_is_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([("b", 2), ("a", 2), ("c", 1)], "name string, n long").repartition(3)
    rows = ef.rows(df, order_by=["n", "name"], payload="name")
    assert given(spark, rows) == [(0, "c"), (1, "a"), (2, "b")]
    with pytest.raises(PythonException) as raised:
        given(spark, ef.rows(df, order_by="n"))
    assert "two rows have the same n" in str(ef.failure_of(raised.value))


@pytest.mark.parametrize("unique", [False, True])
def test_a_time_that_is_there_twice_is_named(spark: SparkSession, unique: bool) -> None:
    """Also if the user says that times are unique, as soon as the two rows meet."""
    df = spark.createDataFrame([(n % 20, "x") for n in range(21)], "time long, value string")
    lines = ef.rows(df.repartition(3), unique=unique)
    (counts,) = word_count().batch(spark, raw=True, lines=lines).values()
    with pytest.raises(PythonException) as raised:
        counts.collect()
    error = ef.failure_of(raised.value)
    assert isinstance(error, ef.InputError)
    assert "more than one row has the time 0" in str(error)
    assert "ef.rows(df, position=...)" in str(error)


# --- Event time: tests/batch/test_event_time.py tries many more, without Spark ----------------------


def disordered(count: int = 300, seed: int = 0) -> list[ef.At[int]]:
    """Elements that rise, with ties, out of order, some of them late, and one of the far future."""
    random = Random(seed)
    elements, at = [], 1_000
    for number in range(count):
        at += random.choice((0, 0, 1, 3))
        elements.append(ef.At(at - random.choice((0, 0, 0, 2, 5, 30)), number))
    elements.append(ef.At(10**12, count))
    return [*elements, *(ef.At(at + n, count + 1 + n) for n in range(5))]


def windows_flow() -> ef.Flow:
    flow = ef.Flow("windows")
    keyed = flow.front("numbers").key_by(lambda n: n % 3)
    keyed.window(ef.Tumbling(20), emit="close").collect().map(list).sink("closed")
    keyed.group(window=3).sink("groups")
    return flow


def positioned(spark: SparkSession, elements: list[ef.At[int]], partitions: int) -> DataFrame:
    """The same elements as `fronts.Iterable` deals them out, in any order."""
    rows = [
        (each.time, number % partitions, number, each.payload)
        for number, each in enumerate(elements)
    ]
    Random(1).shuffle(rows)
    return spark.createDataFrame(rows, "at long, part int, offset long, value long").repartition(3)


@pytest.mark.parametrize("disorder", [0, 5])
def test_rows_with_positions_equal_the_front_that_has_them(
    spark: SparkSession, disorder: int
) -> None:
    elements, flow = disordered(), windows_flow()
    expected = ef.run(flow, numbers=fronts.Iterable(elements, partitions=2, disorder=disorder))
    assert min(map(len, expected.values())) > 10
    rows = ef.rows(
        positioned(spark, elements, 2),
        time="at",
        partition="part",
        position="offset",
        payload="value",
        disorder=disorder,
    )
    assert_equal(expected, flow.batch(spark, raw=True, numbers=rows))


def test_late_rows_have_columns(spark: SparkSession) -> None:
    """And cost no sample of the output where the other sinks have schemas."""
    flow = ef.Flow("numbers")
    flow.front("numbers").sink("out")
    df = positioned(spark, [ef.At(9, 0), ef.At(9, 1), ef.At(4, 2)], 1)
    rows = ef.rows(df, time="at", position="offset", payload="value")
    outputs = flow.batch(spark, schema="long", numbers=rows)
    found = [tuple(row) for row in outputs["out"].orderBy("_time", "_path").collect()]
    assert [(row[0], *row[1:3]) for row in found] == [(0, 9, 0), (1, 9, TIE)]
    (late,) = outputs["late"].collect()
    assert tuple(late)[:8] == (4, "numbers", 0, 2, 5, 2, 9, 2 * TIE)
    assert outputs["late"].columns[:6] == list(ef.Late._fields)
    named = ef.rows(df, time="at", position="offset", payload=lambda row: {"n": row.value})
    (sampled,) = flow.batch(spark, numbers=named)["late"].collect()
    assert sampled.payload == {"n": 2}
    dropping = ef.rows(df, time="at", position="offset", payload="value", on_late="drop")
    assert list(flow.batch(spark, raw=True, numbers=dropping)) == ["out"]
    admitting = ef.rows(df, time="at", position="offset", payload="value", on_late="admit")
    admitted = flow.batch(spark, schema="long", numbers=admitting)
    found = [tuple(row)[:3] for row in admitted["out"].orderBy("_time", "_path").collect()]
    assert (list(admitted), found) == (["out"], [(0, 9, 0), (1, 9, TIE), (2, 9, 2 * TIE)])


def test_what_rows_with_positions_need_is_told(spark: SparkSession) -> None:
    df = positioned(spark, [ef.At(9, 0)], 1)
    with pytest.raises(InputError, match="together with position="):
        ef.rows(df, time="at", disorder=5)
    with pytest.raises(InputError, match=r"order_by= or position=, not both"):
        ef.rows(df, order_by="at", position="offset")
    flow = ef.Flow("numbers")
    flow.front("numbers").sink("out")
    with pytest.raises(InputError, match="need a time"):
        flow.batch(spark, numbers=ef.rows(df, position="offset"))
    half = df.selectExpr("at", "offset / 2 as half")
    with pytest.raises(InputError, match="position column 'half' is of type double"):
        flow.batch(spark, numbers=ef.rows(half, time="at", position="half"))


def test_a_row_without_a_time_is_refused(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1, "x"), (None, "y")], "time long, value string")
    with pytest.raises(PythonException) as raised:
        given(spark, df)
    assert "'time' has a row of time None" in str(ef.failure_of(raised.value))


class Doc(NamedTuple):
    id: int
    text: str


@pytest.mark.parametrize(
    ("columns", "asked", "complaint"),
    [
        (
            "id long, body string",
            {"payload": Doc},
            r"payload=Doc wants a column 'text', and .*'id'",
        ),
        ("id string, text string", {"payload": Doc}, r"column 'id' is of type string, .* int\b"),
        ("id long, text string", {"time": "ts"}, r"no column 'ts'; it has 'id', 'text'"),
        ("id long, text string", {"time": "text"}, r"time column 'text' is of type string"),
        ("id long, text string", {"order_by": "x"}, r"no column 'x'"),
        ("id long, text string", {"payload": 7}, r"payload= takes a dataclass, .* got 7"),
        ("id long, id long", {}, r"two columns 'id'"),
        ("id long, gone interval day to second", {}, r"column 'gone' .*no payload can hold"),
    ],
)
def test_schemas_are_checked_before_anything_runs(
    spark: SparkSession, columns: str, asked: dict[str, Any], complaint: str
) -> None:
    df = spark.createDataFrame([], columns)
    flow = ef.Flow("docs")
    flow.front("docs").sink("out")
    with pytest.raises(ef.InputError, match=complaint):
        flow.batch(spark, raw=True, docs=ef.rows(df, **asked))["out"]


def test_fronts_and_options_are_checked(spark: SparkSession) -> None:
    flow = word_count()
    df = spark.createDataFrame([], "value string")
    with pytest.raises(ef.InputError, match="no elements for front 'lines'"):
        flow.batch(spark)
    with pytest.raises(ef.InputError, match="has no front 'others'"):
        flow.batch(spark, lines=df, others=df)
    with pytest.raises(ef.InputError, match=r"takes a DataFrame or ef.rows"):
        flow.batch(spark, lines=["a list"])
    with pytest.raises(ef.InputError, match="has no sink 'count'"):
        flow.batch(spark, schema={"count": "long"}, lines=df)
    with pytest.raises(ef.InputError, match="int of at least 1"):
        flow.batch(spark, partitions=0, lines=df)
    with pytest.raises(ef.InputError, match="the sample gave no output"):
        flow.batch(spark, lines=df)


# --- Functions ------------------------------------------------------------------------------------


def failing(first: int, combine: Any) -> ef.Flow:
    flow = ef.Flow("failing")
    flow.front("numbers").map(lambda n: n // first).key_by(lambda n: n % 2).reduce(
        first=lambda n: n, combine=combine, name="total"
    ).sink("out")
    return flow


@pytest.mark.parametrize(
    "flow", [failing(0, lambda held, n: held), failing(1, lambda held, n: held // 0)]
)
def test_an_error_is_that_of_the_reference(spark: SparkSession, flow: ef.Flow) -> None:
    numbers = [3, 1]
    with pytest.raises(ef.FunctionError) as expected:
        ef.run(flow, numbers=numbers)
    rows = ef.rows(frame(spark, numbers, "value long", 1), unique=True)
    with pytest.raises(PythonException) as raised:
        flow.batch(spark, raw=True, numbers=rows)["out"].collect()
    found = ef.failure_of(raised.value)
    assert type(found) is ef.FunctionError
    assert str(found) == str(expected.value)
    assert found.global_time == expected.value.global_time
    assert (found.step, found.function) == (expected.value.step, expected.value.function)


def test_classes_of_a_script_travel_too(spark: SparkSession) -> None:
    class Local(NamedTuple):  # not importable
        n: int
        of: tuple[Any, ...]

    flow = ef.Flow("local")
    locals_ = flow.front("numbers").map(lambda n: Local(n, ()))
    locals_.key_by(lambda made: made.n % 2).group(window=2).map(
        lambda pair: Local(pair[-1].n, pair)
    ).sink("out")
    numbers = list(range(10))
    rows = ef.rows(frame(spark, numbers, "value long", 2), unique=True)
    found = ef.payloads(flow.batch(spark, raw=True, numbers=rows)["out"])
    assert repr(found) == repr(ef.run(flow, numbers=numbers)["out"])
    assert type(found[0]) is Local


def test_a_state_many_times_the_memory_of_a_task_passes(spark: SparkSession) -> None:
    """2,000 accumulators of a megabyte, in one task that never holds more than a few."""

    def megabyte(n: int) -> tuple[int, bytes]:
        return n, bytes(1 << 20)

    def growing(held: tuple[int, bytes], n: int) -> tuple[int, bytes]:
        return n, held[1] + b"x"

    def resident(held: tuple[int, bytes]) -> tuple[int, int, int]:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[1])
        return held[0], len(held[1]), pages * 4096 >> 20

    flow = ef.Flow("large")
    reduced = flow.front("numbers").key_by(lambda n: n % 2_000)
    reduced.reduce(first=megabyte, combine=growing).map(resident).sink("out")
    numbers = spark.range(6_000).selectExpr("id as time", "id as value")
    rows = ef.rows(numbers, unique=True)
    out = flow.batch(spark, schema="n long, bytes long, resident long", partitions=1, numbers=rows)[
        "out"
    ].collect()
    assert sorted(row.n for row in out) == list(range(6_000))
    assert all(row.bytes == (1 << 20) + row.n // 2_000 for row in out)
    # A task holds what one slice makes; all accumulators together are 2,000 megabytes.
    assert max(row.resident for row in out) < 700
