"""A history of versions on Spark: the rows of every sink are those of the reference of versions."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import emberflow as ef
from emberflow.engine.cuts.translation import MigrationError
from emberflow.graph.versions import CarryError
from tests.effort import SOAK
from tests.simulation.versioned import VersionCase


def positioned(spark: SparkSession, elements: list[Any], seed: int) -> Any:
    """Numbers with times that may be equal, in any order and any partitions; positions tell the order."""
    given = sorted(elements, key=lambda element: element.time)
    rows = [(each.time, number, each.payload) for number, each in enumerate(given)]
    Random(seed).shuffle(rows)
    df = spark.createDataFrame(rows, "time long, position long, n long").repartition(3)
    return ef.rows(df, time="time", position="position", payload="n", on_late="fail")


def bank(fee: int, *, name: str = "balances", refused: bool = False) -> ef.Flow:
    """Transfers, a window that closes, a reminder, a sink that comes later: state of many kinds."""
    flow = ef.Flow("bank")
    numbers = flow.front("numbers")
    state = flow.state(name, default=20)
    with numbers.transaction(name="transfers") as tx:
        moved = tx.flat_map(lambda n: [(n % 3, -(n % 11) - fee), ((n + 1) % 3, n % 7)])
        moved.key_by(lambda m: m[0]).update(
            state, lambda value, m: value + m[1], check=lambda value: value >= 0
        )
    tx.committed.sink("done")
    if refused:
        tx.rejected.map(lambda r: (r.element, fee)).sink("refused")
    keyed = numbers.key_by(lambda n: n % 3)
    keyed.window(ef.Tumbling(10), emit="close").count(name="windows").map(
        lambda r: (r.key, r.window.end, r.value + fee)
    ).sink("windows")
    timed = numbers.with_time(name="timed")
    later = timed.flat_map(lambda t: [ef.At(t.time + 15, t.payload)], name="later")
    later.key_by(lambda n: n % 2).count(name="reminders").sink("reminders")
    return flow


VERSIONS = ef.Versions(
    bank(0),
    (
        20,
        bank(1, refused=True),
        {"balances": ef.Migrate("balances", lambda key, value: value + key)},
    ),
    (27, bank(2, name="purses", refused=True), {"purses": "balances"}),
)
NUMBERS = [ef.At(time, 7 * time % 23) for time in range(60)]


def times_and_numbers(spark: SparkSession, numbers: list[Any], partitions: int = 3) -> DataFrame:
    rows = [(each.time, each.payload) for each in numbers]
    Random(1).shuffle(rows)
    return spark.createDataFrame(rows, "time long, value long").repartition(partitions)


def assert_equal(expected: dict[str, list[Any]], found: dict[str, DataFrame]) -> None:
    assert set(found) == set(expected)
    for name, df in found.items():
        assert repr(ef.payloads(df)) == repr(expected[name]), name


def test_a_sink_has_the_rows_of_all_versions(spark: SparkSession) -> None:
    """The sink of refusals is new in the second version: it begins there, and so does its sample."""
    found = VERSIONS.batch(spark, partitions=2, numbers=times_and_numbers(spark, NUMBERS))
    expected = ef.run(VERSIONS, numbers=NUMBERS)
    assert set(found) == set(expected)
    for name in ("windows", "refused"):
        rows = found[name].collect()
        in_order = sorted(rows, key=lambda row: (row._time, bytes(row._path)))
        assert [tuple(row)[:-3] for row in in_order] == expected[name] != []
    # It may end at a time: elements from then on are left out, and versions that begin behind it.
    ended = VERSIONS.batch(
        spark, raw=True, partitions=2, until=24, numbers=times_and_numbers(spark, NUMBERS)
    )
    below = [each for each in NUMBERS if each.time < 24]
    assert ef.payloads(ended["done"]) == ef.run(VERSIONS, numbers=below)["done"]


@pytest.mark.parametrize("seed", range(50 if SOAK else 1))
def test_random_versions(spark: SparkSession, seed: int) -> None:
    case = VersionCase.of(seed)
    fronts = {name: positioned(spark, given, seed) for name, given in case.elements.items()}
    found = case.versions.batch(spark, raw=True, partitions=2, **fronts)
    assert_equal(case.expected(), found)


def test_errors_are_those_of_the_reference(spark: SparkSession) -> None:
    def flow(*, second: bool = False, later: str | None = None) -> ef.Flow:
        made = ef.Flow("errors")
        numbers = made.front("numbers")
        if second:
            numbers = ef.merge(numbers, made.front("more"))
        numbers.key_by(lambda n: n % 3).count(name="counts").sink("out")
        if later is not None:
            timed = numbers.with_time(name="timed")
            timed.map(lambda t: ef.At(t.time + 9, t.payload), name=later).sink("later")
        return made

    numbers = times_and_numbers(spark, NUMBERS, 1)
    raising = {"counts": ef.Migrate("counts", lambda key, value: key / 0)}
    cases: list[tuple[ef.Versions, dict[str, Any], str, type[Exception], str]] = [
        (
            ef.Versions(flow(), (5, flow(), raising)),
            {"numbers": numbers},
            "out",
            MigrationError,
            r"migration of step 'counts' raised ZeroDivisionError",
        ),
        (
            ef.Versions(flow(later="later"), (5, flow(later="much later"))),
            {"numbers": numbers},
            "later",
            CarryError,
            r"step 'later' has scheduled items that wait",
        ),
        (
            ef.Versions(flow(second=True), (5, flow())),
            {"numbers": numbers, "more": numbers},
            "out",
            ef.InputError,
            r"front 'more' has an element of the time \d+, at which .* no such front \(from 5 on\)",
        ),
    ]
    for versions, fronts, sink, kind, match in cases:
        with pytest.raises(kind):
            ef.run(versions, **dict.fromkeys(fronts, NUMBERS))
        frame = versions.batch(spark, raw=True, partitions=1, **fronts)[sink]
        with pytest.raises(PythonException) as raised:
            frame.collect()
        failure = ef.failure_of(raised.value)
        assert type(failure) is kind
        with pytest.raises(kind, match=match):
            raise failure


def test_what_does_not_fit_is_refused_before_anything_runs(spark: SparkSession) -> None:
    numbers = times_and_numbers(spark, NUMBERS, 1)
    with pytest.raises(ef.InputError, match="no version of flow 'bank' has a front 'letters'"):
        VERSIONS.batch(spark, numbers=numbers, letters=numbers)
    with pytest.raises(ef.InputError, match=r"backfill\(\) runs one version of a flow"):
        VERSIONS.backfill(spark, until=5, checkpoint="x", numbers=numbers)
