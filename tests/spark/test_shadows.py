"""A new version beside the one that works: an exact diff of what both give, and no sink is touched."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.query import LiveQuery
from emberflow.runners.live.shadow import Shadow
from tests.effort import SECONDS
from tests.spark.test_upgrades import ended, pids, when

#: The generation whose functions raise.
FAILS = 9


def bank(generation: int) -> ef.Flow:
    """State of several kinds. The second generation differs for one account, and in a sum."""
    flow = ef.Flow("bank")
    numbers = flow.front("numbers")
    keyed = numbers.key_by(lambda n: n % 5)
    sums = keyed.fold(
        initial=0, combine=lambda sum_, n: sum_ + n + (generation and n % 5 == 3), name="sums"
    )
    sums.sink("sums")
    keyed.window(ef.Tumbling(50), emit="close").count(name="windows").sink("windows")
    purses = flow.state("purses", default=10)
    with numbers.transaction(name="spend") as tx:
        spent = tx.map(lambda n: (n % 5, (n % 7) - 4))
        spent.key_by(lambda s: s[0]).update(
            purses, lambda value, s: value + s[1], check=lambda value: value >= 0
        )
    tx.committed.map(lambda n: n + (n % 100 == 0) * generation // (generation != FAILS)).sink(
        "spent"
    )
    tx.rejected.map(lambda r: r.element).sink("refused")
    return flow


def until_there_is(may_end: Path) -> Callable[[], Iterator[int]]:
    """Numbers until there is a file that says so. They end when there is another one."""

    def numbers() -> Iterator[int]:
        number = 0
        for number in takewhile(lambda _: not may_stop(may_end).exists(), count()):
            yield number
        told(may_end).write_text(f"{number + 1}.")
        while not may_end.exists():
            time.sleep(0.01)

    return numbers


def may_stop(may_end: Path) -> Path:
    return may_end.with_name("stop")


def told(may_end: Path) -> Path:
    """It has the number of numbers that there were."""
    return may_end.with_name("given")


def stopped(folder: Path) -> int:
    """Let no more numbers come, and return how many there were."""
    may_stop(folder / "end").touch()
    deadline = time.monotonic() + SECONDS
    while not (path := told(folder / "end")).exists() or not path.read_text().endswith("."):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(path.read_text()[:-1])


def started(spark: SparkSession, folder: Path, kept: dict[str, Any]) -> LiveQuery:
    kept.update({name: sinks.Memory() for name in bank(0).graph().sinks})
    return (
        bank(0)
        .live(spark)
        .read(numbers=fronts.Iterable(until_there_is(folder / "end"), rate=1_000))
        .write(**kept)
        .option("workers", 2)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("checkpointInterval", 200)
        .start()
    )


def wait_until(shadow: Shadow, at: int) -> None:
    deadline = time.monotonic() + SECONDS
    while shadow.until[0] < at:
        assert shadow.isActive, shadow.exception()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_shadow_tells_exactly_how_two_versions_differ(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {}
    query = started(spark, tmp_path, kept)
    try:
        when(query, 300)
        processes = pids(query)
        same = query.shadow(bank(0), timeout=SECONDS)
        assert same.begins is not None
        wait_until(same, same.begins[0] + 300)
        found = same.forget()
        assert not found.differs, str(found)
        assert min(found.sinks[name].same for name in ("sums", "spent", "windows", "refused")) > 0
        assert not same.isActive
        shadow = query.shadow(bank(1), key=str, timeout=SECONDS)
        with pytest.raises(ef.EmberflowError, match="runs beside already"):
            query.shadow(bank(1))
        assert shadow.begins is not None
        begins = shadow.begins[0] + (shadow.begins[1] > 0)
        wait_until(shadow, begins + 500)
        # The last number is compared when it is over, and it is that when all have ended.
        wait_until(shadow, stopped(tmp_path) - 1)
        ended(query, tmp_path)
        assert pids(query) == processes
    finally:
        query.stop()
    given = range(len(kept["sums"].payloads(0)))
    one_version = ef.run(bank(0), numbers=given)
    assert {name: memory.payloads(0) for name, memory in kept.items()} == one_version
    versions = ef.Versions(bank(0), (begins, bank(1)))
    expected = ef.compare(bank(0), versions, key=str, numbers=given)
    assert shadow.until > (given[-1], 0)
    got = shadow.comparison
    assert set(got.sinks) == set(expected.sinks)
    for name, sink in expected.sinks.items():
        own = got.sinks[name]
        told = (own.only_old, own.only_new, own.first, own.by_key)
        assert told == (sink.only_old, sink.only_new, sink.first, sink.by_key), name
    assert expected.sinks["sums"].only_new > 10
    assert expected.sinks["spent"].only_new > 2


def test_a_shadow_that_fails_harms_nobody_and_one_that_is_right_takes_over(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept: dict[str, Any] = {}
    query = started(spark, tmp_path, kept)
    try:
        when(query, 200)
        shadow = query.shadow(bank(FAILS), timeout=SECONDS)
        deadline = time.monotonic() + SECONDS
        while shadow.isActive:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert isinstance(shadow.exception(), ef.FunctionError)
        shadow.forget()
        wrong = ef.Migrate("sums", lambda key, value: value / 0)
        with pytest.raises(ef.EmberflowError, match="migration of step 'sums' raised"):
            query.shadow(bank(1), carry={"sums": wrong}, timeout=SECONDS)
        shadow = query.shadow(bank(1), timeout=SECONDS)
        assert shadow.begins is not None
        wait_until(shadow, shadow.begins[0] + 200)
        shadow.upgrade(timeout=SECONDS)
        stopped(tmp_path)
        ended(query, tmp_path)
        assert query.recoveries == []
    finally:
        query.stop()
    given = range(len(kept["sums"].payloads(0)))
    assert len(kept["spent"].payloads(0)) == len(ef.run(bank(0), numbers=given)["spent"])
    assert any(n % 100 == 1 for n in kept["spent"].payloads(0))
