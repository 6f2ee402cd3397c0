"""A history of versions on Spark: the rows of every sink are those of the reference of versions."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import emberflow as ef
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
    *[(27, bank(2, name="purses", refused=True), {"purses": "balances"})][: 1 if SOAK else 0],
)
NUMBERS = [ef.At(time, 7 * time % 23) for time in range(60)]


def times_and_numbers(spark: SparkSession) -> DataFrame:
    rows = [(each.time, each.payload) for each in NUMBERS]
    Random(1).shuffle(rows)
    return spark.createDataFrame(rows, "time long, value long").coalesce(1)


def test_a_sink_has_the_rows_of_all_versions(spark: SparkSession) -> None:
    """The sink of refusals is new in the second version: it begins there, and so does its sample."""
    found = VERSIONS.batch(spark, partitions=1, numbers=times_and_numbers(spark))
    expected = ef.run(VERSIONS, numbers=NUMBERS)
    assert set(found) == set(expected)
    for name in list(found) if SOAK else ["refused"]:
        in_order = sorted(found[name].collect(), key=lambda row: (row._time, bytes(row._path)))
        rows = [tuple(row)[:-3] for row in in_order]
        assert [row if len(row) > 1 else row[0] for row in rows] == expected[name] != []


@pytest.mark.skipif(not SOAK, reason="tests/batch has them without Spark")
@pytest.mark.parametrize("seed", range(50))
def test_random_versions(spark: SparkSession, seed: int) -> None:
    case = VersionCase.of(seed)
    fronts = {name: positioned(spark, given, seed) for name, given in case.elements.items()}
    found = case.versions.batch(spark, raw=True, partitions=2, **fronts)
    assert {name: ef.payloads(df) for name, df in found.items()} == case.expected()


def test_elements_that_no_version_takes_fail_the_job(spark: SparkSession) -> None:
    def flow(*names: str) -> ef.Flow:
        made = ef.Flow("merged")
        ef.merge(*map(made.front, names)).sink("out")
        return made

    versions = ef.Versions(flow("one", "two"), (5, flow("one", "three")))
    numbers = times_and_numbers(spark)
    given = {"one": numbers, "two": numbers.filter("time < 7"), "three": numbers.filter("time > 7")}
    frame = versions.batch(spark, raw=True, partitions=1, **given)["out"]
    with pytest.raises(PythonException) as raised:
        frame.collect()
    failure = ef.failure_of(raised.value)
    assert type(failure) is ef.InputError
    assert re.search(
        r"front 'two' has an element of the time [56], at which .* no such front \(from 5 on\)",
        str(failure),
    )


def test_what_does_not_fit_is_refused_before_anything_runs(spark: SparkSession) -> None:
    numbers = times_and_numbers(spark)
    with pytest.raises(ef.InputError, match="no version of flow 'bank' has a front 'letters'"):
        VERSIONS.batch(spark, numbers=numbers, letters=numbers)
    with pytest.raises(ef.InputError, match=r"backfill\(\) runs one version of a flow"):
        VERSIONS.backfill(spark, until=5, checkpoint="x", numbers=numbers)
