"""SQL over the state of real live queries: as of every cut it equals the reference's state."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.checkpoint import DamagedCutWarning, Manifest
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.runners.live.query import LiveQuery
from emberflow.values.hashing import HashRange
from tests.effort import SECONDS

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
NAMES = [f"account {number}" for number in range(12)]


def bank() -> ef.Flow:
    """Two states that change together; reduces, one with tuple keys; a grouping."""
    flow = ef.Flow("bank")
    accounts = flow.state("accounts", default=0)
    sides: ef.State[int] = flow.state("sides", default=0)

    deposits = flow.front("deposits")
    with deposits.transaction(name="deposit") as deposit:
        paid = deposit.output(
            deposit.key_by(lambda d: d[0]).update(accounts, lambda b, d: b + d[1])
        )
    with flow.front("transfers").transaction(name="transfer") as transfer:
        two = transfer.flat_map(lambda t: [(t[0], -t[2]), (t[1], t[2])])
        keyed = two.key_by(lambda side: side[0])
        moved = transfer.output(
            keyed.update(accounts, lambda b, s: b + s[1], check=lambda balance: balance >= 0)
        )
        keyed.update(sides, lambda n, side: n + 1)
    ef.merge(paid, moved).map(lambda pair: (pair[0][0], pair[1])).sink("balances")
    deposits.key_by(lambda d: d[0]).count(name="deposits made").sink("counts")
    by_pair = transfer.committed.key_by(lambda t: (t[0], t[1]))
    by_pair.sum(of=lambda t: t[2], name="moved").map(lambda pair: pair).sink("moved")
    by_range = deposits.key_by(lambda d: HashRange(d[1], d[1] + 1))
    by_range.count(name="ranges").sink("ranges")
    deposits.key_by(lambda d: d[0]).group(window=3, name="last").sink("last")
    return flow


Elements = dict[str, Callable[[], Iterator[Any]]]


def elements(seed: int) -> Elements:
    """The elements of each front, without end and the same each time."""

    def deposits() -> Iterator[Any]:
        draw = Random(seed)
        while True:
            yield draw.choice(NAMES), draw.randint(0, 20)

    def transfers() -> Iterator[Any]:
        draw = Random(-seed)
        while True:
            yield draw.choice(NAMES), draw.choice(NAMES), draw.randint(0, 40)

    return {"deposits": deposits, "transfers": transfers}


def run(spark: SparkSession, location: Path, workers: int, given: Elements) -> None:
    """Run live until there are some cuts; all are kept."""
    flow = bank()
    query = (
        flow.live(spark)
        .read(**{name: fronts.Iterable(each, rate=100) for name, each in given.items()})
        .write(**{name: sinks.Memory() for name in flow.graph().sinks})
        .option("workers", workers)
        .option("checkpointLocation", str(location))
        .option("checkpointInterval", 200)
        .option("checkpointsKept", 1_000)
        .start()
    )
    try:
        wait_for_cuts(query, location, lambda cuts: len([c for c in cuts if c.time[0] > 50]) >= 3)
    finally:
        query.stop()
    assert query.exception() is None


def cuts_of(location: Path) -> list[Manifest]:
    with warnings.catch_warnings():
        # A cut may be pruned between being listed and being read.
        warnings.simplefilter("ignore", DamagedCutWarning)
        return CheckpointStore(location).cuts()


def wait_for_cuts(
    query: LiveQuery, location: Path, enough: Callable[[list[Manifest]], bool]
) -> list[Manifest]:
    deadline = time.monotonic() + SECONDS
    while not enough(cuts := cuts_of(location)):
        assert time.monotonic() < deadline, query.status
        assert query.exception() is None
        time.sleep(0.1)
    return cuts


def reference(given: Elements, cut: Manifest) -> dict[str, dict[Any, Any]]:
    """The state below the time of a cut: the reference's last value of each key."""
    time, front = cut.time
    below = {
        name: list(islice(given[name](), time + (index < front)))
        for index, name in enumerate(("deposits", "transfers"))
    }
    outputs = ef.run(bank(), **below)
    return {
        "accounts": dict(outputs["balances"]),
        "deposits made": dict(outputs["counts"]),
        "moved": dict(outputs["moved"]),
        "ranges": dict(outputs["ranges"]),
    }


def state(spark: SparkSession, location: Path, name: str, **options: Any) -> DataFrame:
    return (
        spark.read.format("emberflow")
        .option("checkpoint", str(location))
        .option("state", name)
        .options(**options)
        .load()
    )


def values(frame: DataFrame) -> dict[Any, Any]:
    rows = frame.collect()
    assert len({row.key for row in rows}) == len(rows)
    return {row.key: row.value for row in rows}


@pytest.fixture(scope="module")
def checkpoint(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = tmp_path_factory.mktemp("checkpoint")
    run(spark, location, 2, elements(2))
    return location


@pytest.mark.parametrize("workers", [2, 3])
def test_a_state_as_of_a_cut_is_the_reference_s(
    spark: SparkSession, tmp_path: Path, workers: int, request: pytest.FixtureRequest
) -> None:
    if workers == 2:
        tmp_path = request.getfixturevalue("checkpoint")
    else:
        run(spark, tmp_path, workers, elements(workers))
    cuts = [cut for cut in CheckpointStore(tmp_path).cuts() if cut.time[0] > 50]
    assert len(cuts) >= 3
    half, newest = cuts[len(cuts) // 2], cuts[-1]

    expected = reference(elements(workers), half)
    assert len(expected["accounts"]) > 5
    as_of = f"{half.time[0]},{half.time[1]}"
    for name in ("accounts", "moved"):
        assert values(state(spark, tmp_path, name, asOf=as_of)) == expected[name]

    expected = reference(elements(workers), newest)
    for name in ("accounts", "deposits made"):
        assert values(state(spark, tmp_path, name)) == expected[name]
    ranges = values(state(spark, tmp_path, "ranges"))
    assert {HashRange(*key): count for key, count in ranges.items()} == expected["ranges"]


def test_sql_with_joins_groups_and_filters(spark: SparkSession, checkpoint: Path) -> None:
    cuts = CheckpointStore(checkpoint).cuts()
    now, before = cuts[-1], next(cut for cut in cuts if cut.time[0] > 50)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW accounts USING emberflow "
        f"OPTIONS (checkpoint '{checkpoint}', state 'accounts')"
    )
    state(
        spark, checkpoint, "accounts", asOf=f"{before.time[0]},{before.time[1]}"
    ).createOrReplaceTempView("earlier")
    state(spark, checkpoint, "moved").createOrReplaceTempView("moved")
    towns = spark.createDataFrame(
        [(name, "oslo" if number % 2 else "rome") for number, name in enumerate(NAMES)],
        "name string, town string",
    )
    towns.createOrReplaceTempView("towns")
    expected, earlier = reference(elements(2), now), reference(elements(2), before)

    by_town = spark.sql(
        "SELECT town, sum(value) AS total, count(*) AS n FROM accounts JOIN towns ON key = name "
        "WHERE key >= 'account 2' GROUP BY town ORDER BY town"
    ).collect()
    wanted: dict[str, list[int]] = {"oslo": [], "rome": []}
    for name, balance in expected["accounts"].items():
        if name >= "account 2":
            wanted["oslo" if NAMES.index(name) % 2 else "rome"].append(balance)
    assert [tuple(row) for row in by_town] == [
        (town, sum(held), len(held)) for town, held in sorted(wanted.items())
    ]

    changed = spark.sql(
        "SELECT a.key, a.value - e.value AS change FROM accounts a JOIN earlier e ON a.key = e.key "
        "WHERE a.value <> e.value"
    ).collect()
    assert dict(map(tuple, changed)) == {
        name: balance - earlier["accounts"][name]
        for name, balance in expected["accounts"].items()
        if name in earlier["accounts"] and balance != earlier["accounts"][name]
    }
    assert changed

    sent = spark.sql("SELECT key._2, value FROM moved WHERE key._1 = 'account 3'").collect()
    assert dict(map(tuple, sent)) == {
        target: amount
        for (source, target), amount in expected["moved"].items()
        if source == "account 3"
    }


#: Whether Spark has nothing left to filter. tests/datasource has many more.
FILTERS = {
    "key = 'account 3'": True,
    "key IN ('account 3', 'account 11', 'nobody')": True,
    "key > 'account 2' AND key LIKE 'account%'": True,
    "key = 'account 3' AND value >= 0": False,
    "key <> 'account 3'": False,
}


def test_filters_on_the_key_are_pushed_down_and_change_nothing(
    spark: SparkSession, checkpoint: Path
) -> None:
    # Pushdown is off by default in Spark: a full scan, and Spark filters.
    assert spark.conf.get(PUSHDOWN) == "false"
    answers = [f"coalesce({each}, false) AS f{number}" for number, each in enumerate(FILTERS)]
    rows = state(spark, checkpoint, "accounts").selectExpr("key", "value", *answers).collect()
    expected = {
        each: {row.key: row.value for row in rows if row[f"f{number}"]}
        for number, each in enumerate(FILTERS)
    }
    assert len(expected["key = 'account 3'"]) == 1

    spark.conf.set(PUSHDOWN, "true")
    try:
        for each, whole in FILTERS.items():
            filtered = state(spark, checkpoint, "accounts", partitions=5, pushdown=True).where(each)
            assert (re.search(r"\bFilter\b", plan(filtered)) is None) is whole, each
            assert values(filtered) == expected[each]
            if each == "key = 'account 3'":
                assert partitions(filtered) == 1
        pairs = state(spark, checkpoint, "moved", partitions=5, pushdown=True)
        one = pairs.where("key._1 = 'account 3' AND key._2 IN ('account 4', 'account 5')")
        assert re.search(r"\bFilter\b", plan(one)) is None
        assert partitions(one) <= 2
        found = values(one)

        # Without the option nothing is pushed down, and one DataFrame serves any number of queries.
        frame = state(spark, checkpoint, "accounts", partitions=5)
        assert partitions(frame) == 5
        assert frame.where("key = 'account 3'").count() == 1
        assert frame.count() == len(rows)
        two = frame.where("key = 'account 2'").union(frame.where("key = 'account 3'"))
        assert sorted(values(two)) == ["account 2", "account 3"]
    finally:
        spark.conf.unset(PUSHDOWN)
    assert found == {
        key: value
        for key, value in values(state(spark, checkpoint, "moved")).items()
        if key[0] == "account 3" and key[1] in ("account 4", "account 5")
    }


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def partitions(frame: DataFrame) -> int:
    return int(frame._jdf.queryExecution().executedPlan().execute().getNumPartitions())


def test_a_grouping_has_a_row_for_each_item_and_raw_gives_python_s_values(
    spark: SparkSession, checkpoint: Path
) -> None:
    cut = CheckpointStore(checkpoint).cuts()[-1]
    below = islice(elements(2)["deposits"](), cut.time[0] + (cut.time[1] > 0))
    last: dict[str, list[Any]] = {}
    for deposit in below:
        last.setdefault(deposit[0], []).append(deposit)
    expected = {name: deposits[-2:] for name, deposits in last.items()}
    rows = state(spark, checkpoint, "last").orderBy("time").collect()
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.key, []).append(tuple(row.value))
    assert found == expected
    pairs = ef.payloads(state(spark, checkpoint, "last", raw=True))
    assert [deposit for _, deposit in pairs] == [tuple(row.value) for row in rows]
    ranges = dict(ef.payloads(state(spark, checkpoint, "ranges", raw="true")))
    assert ranges == reference(elements(2), cut)["ranges"]


def test_errors_reach_the_user(spark: SparkSession, checkpoint: Path) -> None:
    names = "'accounts', 'sides', 'deposits made', 'moved', 'ranges', 'last'"
    with pytest.raises(Exception, match=f"which state\\? Flow 'bank' has {names}"):
        spark.read.format("emberflow").load(str(checkpoint))
    with pytest.raises(Exception, match=r"asOf -1: no cut that old is kept .* There are cut"):
        state(spark, checkpoint, "accounts", asOf=-1)
    cuts = spark.read.format("emberflow").option("list", "cuts").load(str(checkpoint))
    assert [row.number for row in cuts.orderBy("number").collect()] == [
        cut.number for cut in CheckpointStore(checkpoint).cuts()
    ]
    reader = spark.read.format("emberflow").schema("key long, value long")
    narrow = reader.option("state", "accounts").load(str(checkpoint))
    with pytest.raises(Exception, match="the column 'key' is bigint, and the key 'account"):
        narrow.collect()


def test_a_query_that_runs_can_be_read_and_every_read_is_one_moment(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Transfers do not change the sum of all balances, so every cut has the same sum."""
    flow = ef.Flow("transfers")
    accounts = flow.state("accounts", default=100)
    with flow.front("transfers").transaction() as tx:
        sides = tx.flat_map(lambda t: [(t[0], -t[2]), (t[1], t[2])])
        sides.key_by(lambda s: s[0]).update(
            accounts, lambda b, s: b + s[1], check=lambda balance: balance >= 0
        )
    tx.committed.sink("done")

    def transfers() -> Iterator[tuple[int, int, int]]:
        # First touch every account.
        yield from ((number, number + 1, 0) for number in range(0, 200, 2))
        draw = Random(7)
        while True:
            yield draw.randrange(200), draw.randrange(200), draw.randint(1, 150)

    query = (
        flow.live(spark)
        .read(transfers=fronts.Iterable(transfers, rate=400))
        .write(done=sinks.Callback(lambda bundle: None))
        .option("workers", 2)
        .option("checkpointLocation", str(tmp_path))
        .option("checkpointInterval", 100)
        .option("checkpointsKept", 2)
        .start()
    )
    try:
        wait_for_cuts(query, tmp_path, lambda cuts: any(c.time[0] > 150 for c in cuts))
        seen = []
        for _ in range(2):
            frame = state(spark, tmp_path, "accounts", partitions=4)
            frame.createOrReplaceTempView("running")
            (row,) = spark.sql(
                "SELECT count(*), sum(value), min(value), max(time) FROM running"
            ).collect()
            assert tuple(row)[:2] == (200, 200 * 100)
            assert row[2] >= 0
            seen.append(row[3])
            newer = cuts_of(tmp_path)[-1].number + 3
            wait_for_cuts(
                query, tmp_path, lambda cuts, n=newer: bool(cuts) and cuts[-1].number >= n
            )
        assert seen == sorted(set(seen)), "each load sees a newer cut"
    finally:
        query.stop()
    assert query.exception() is None
