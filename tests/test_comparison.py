"""`ef.compare`: the same elements, two versions, an exact diff."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from pyspark.sql import SparkSession

import emberflow as ef


def counted(modulus: int, *, more: bool = False) -> ef.Flow:
    flow = ef.Flow("counted")
    numbers = flow.front("numbers")
    numbers.key_by(lambda n: n % modulus).count(name="counts").sink("counts")
    numbers.map(lambda n: n * 2).sink("same")
    if more:
        numbers.filter(lambda n: n > 90).sink("large")
    return flow


def test_what_only_one_version_gives_is_counted_and_shown() -> None:
    numbers = [Random(7).randint(0, 99) for _ in range(60)]
    found = ef.compare(counted(3), counted(4, more=True), numbers=numbers, key=lambda pair: pair[0])
    outputs = [
        Counter(enumerate(ef.run(counted(modulus), numbers=numbers)["counts"]))
        for modulus in (3, 4)
    ]
    counts = found.sinks["counts"]
    assert (counts.same, counts.only_old, counts.only_new) == (
        (outputs[0] & outputs[1]).total(),
        (outputs[0] - outputs[1]).total(),
        (outputs[1] - outputs[0]).total(),
    )
    assert found.differs
    assert [each.time for each in counts.first] == sorted(each.time for each in counts.first)
    assert len(counts.first) == 10
    assert counts.by_key is not None
    assert (
        sum(old + new for old, new in counts.by_key.values()) == counts.only_old + counts.only_new
    )
    assert (found.sinks["same"].differs, found.sinks["same"].same) == (False, 60)
    large = found.sinks["large"]
    assert (large.only_old, large.only_new) == (0, sum(number > 90 for number in numbers))


def test_equal_versions_do_not_differ() -> None:
    found = ef.compare(counted(3), counted(3), numbers=range(20))
    assert not found.differs
    assert str(found) == "counts: 20 the same\nsame: 20 the same"


def test_what_an_upgrade_changes() -> None:
    """Below its time nothing does."""
    versions = ef.Versions(counted(3), (10, counted(4)))
    found = ef.compare(counted(3), versions, numbers=range(20)).sinks["counts"]
    assert min(each.time for each in found.first) >= 10


def test_spark_finds_the_same(spark: SparkSession) -> None:
    numbers = [Random(5).randint(0, 99) for _ in range(80)]
    frame = spark.createDataFrame(list(enumerate(numbers)), "time long, n long")
    rows: Any = ef.rows(frame, time="time", payload=lambda row: row.n)
    given = (counted(3), ef.Versions(counted(3), (20, counted(4, more=True))))
    by_spark = ef.compare(*given, spark, numbers=rows, key=str)
    in_memory = ef.compare(*given, numbers=numbers, key=str)
    for name, own in in_memory.sinks.items():
        other = by_spark.sinks[name]
        assert (other.same, other.only_old, other.only_new) == (
            own.same,
            own.only_old,
            own.only_new,
        )
        assert other.by_key == own.by_key
        assert [each.time for each in other.first] == [each.time for each in own.first]
