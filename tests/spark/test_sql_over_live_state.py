"""SQL over the state of a running query: one consistent state; the workers apply filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import emberflow as ef
from emberflow.runners.live.query import LiveQuery
from tests.effort import shortened
from tests.spark.test_live_queries import (
    ACCOUNTS,
    BEGIN,
    Transfers,
    await_time,
    bank,
    drawn,
)

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
SUM = ACCOUNTS * BEGIN
COUNT = 400


@pytest.fixture(scope="module")
def query(spark: SparkSession) -> Iterator[LiveQuery]:
    builder = bank().live(spark).read(transfers=Transfers(COUNT)).queryName("bank by SQL")
    builder = builder.write(counts=ef.sinks.Memory(), refused=ef.sinks.Memory())
    builder = builder.option("workers", 2).option("credit", 100)  # the fronts may not be far apart
    query = builder.option("historyKept", 100).start()
    try:
        await_time(query, COUNT - 1)
        yield query
    finally:
        query.stop()


def state(spark: SparkSession, name: str, **options: Any) -> DataFrame:
    reader = spark.read.format("emberflow").option("query", "bank by SQL").option("state", name)
    for option, value in options.items():
        reader = reader.option(option, value)
    return reader.load()


def expected() -> dict[int, int]:
    """The balance of every account in a committed transfer."""
    balances: dict[int, int] = {}
    entering = sorted(
        (number, partition, transfer)
        for partition in range(2)
        for number, transfer in enumerate(drawn(partition, COUNT))
    )
    for _, _, (giver, taker, amount) in entering:
        if giver == taker or balances.get(giver, BEGIN) >= amount:
            balances[giver] = balances.get(giver, BEGIN) - amount
            balances[taker] = balances.get(taker, BEGIN) + amount
    return balances


def test_a_state_is_a_table_of_what_it_is_now(spark: SparkSession, query: LiveQuery) -> None:
    accounts = state(spark, "accounts")
    assert accounts.columns == ["key", "value", "time", "front"]
    found = {row.key: row.value for row in accounts.collect()}
    assert found == query.state("accounts").scan()
    assert found == expected()
    assert sum(found.values()) + (ACCOUNTS - len(found)) * BEGIN == SUM


def test_it_joins_with_other_tables(spark: SparkSession, query: LiveQuery) -> None:
    state(spark, "accounts").createOrReplaceTempView("accounts")
    spark.createDataFrame(
        [(1, "ada"), (2, "bob")], "id bigint, owner string"
    ).createOrReplaceTempView("owners")
    rows = spark.sql("select owner, value from accounts join owners on key = id order by owner")
    balances = query.state("accounts").get(1, 2)
    assert [tuple(row) for row in rows.collect()] == [("ada", balances[1]), ("bob", balances[2])]


@pytest.mark.parametrize(
    "condition",
    shortened(
        ["key >= 10 and key < 20 and value > 0", "key in (3, 5, 99)", "key = 7", "key > 40"],
        every_run=2,
    ),
)
def test_filters_on_the_key_go_to_the_workers(
    spark: SparkSession, query: LiveQuery, condition: str
) -> None:
    plain = sorted(map(tuple, state(spark, "accounts").where(condition).collect()))
    spark.conf.set(PUSHDOWN, "true")
    try:
        pushed = state(spark, "accounts", pushdown="true").where(condition)
        assert sorted(map(tuple, pushed.collect())) == plain
        assert plain
    finally:
        spark.conf.unset(PUSHDOWN)


def test_one_key_is_looked_up(spark: SparkSession, query: LiveQuery) -> None:
    (row,) = state(spark, "accounts", key=7).collect()
    assert (row.key, row.value) == (7, query.state("accounts").get(7)[7])


def test_several_states_and_pieces_are_as_of_one_time_if_it_is_said(
    spark: SparkSession, query: LiveQuery
) -> None:
    at = COUNT - 50
    accounts = state(spark, "accounts", asOf=at, partitions=3)
    assert accounts.rdd.getNumPartitions() == 3
    found = {row.key: row.value for row in accounts.collect()}
    assert found == query.state("accounts").scan(as_of=at)
    assert found != query.state("accounts").scan()
    last = {row.key: row.value for row in state(spark, "last", asOf=at).collect()}
    assert {key: tuple(value) for key, value in last.items()} == query.state("last").scan(as_of=at)


def test_raw_rows_are_what_python_reads(spark: SparkSession, query: LiveQuery) -> None:
    raw = state(spark, "last", raw="true")
    assert dict(ef.payloads(raw)) == query.state("last").scan()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"state": "acounts"}, "offers no state 'acounts'.*'accounts', 'last', 'counts'"),
        ({"query": "nobody"}, "no live query of the name 'nobody'"),
        ({"asOf": 10}, "is not kept"),
        ({"asOf": "soon"}, "asOf is a time"),
        ({"partitions": 2}, "asOf"),
        ({"checkpoint": "/tmp/somewhere"}, "given both"),
        ({"list": "states"}, "checkpoint"),
    ],
)
def test_what_cannot_be_read_says_why(
    spark: SparkSession, query: LiveQuery, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(Exception, match=rf"(?s){told}"):
        state(spark, "accounts", timeout=5, **options).collect()
