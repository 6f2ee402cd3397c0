"""All slots are taken: a query that cannot start says so and leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.driver import coordinator
from emberflow.runners.live.driver.coordinator import WorkersMissingError
from tests.effort import SECONDS


class Waiting:
    """A front without elements that does not end."""

    partitions = 1

    def read(self, partition: int, position: Any) -> Iterator[fronts.Element | None]:
        while True:
            time.sleep(0.02)
            yield None


def passing() -> ef.Flow:
    flow = ef.Flow("passing")
    flow.front("numbers").sink("out")
    return flow


def test_a_query_whose_slots_another_one_holds(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = passing().live(spark).read(numbers=Waiting()).write(out=sinks.Memory())
    holding = first.option("workers", 3).start()
    try:
        while holding.status["message"] != "Running":
            assert holding.exception() is None
            time.sleep(0.05)
        monkeypatch.setattr(coordinator, "_MEETING_SECONDS_MAX", 2.0)
        out = sinks.Memory()
        second = passing().live(spark).read(numbers=fronts.Iterable([1])).write(out=out)
        query = second.option("workers", 2).start()
        with pytest.raises(WorkersMissingError, match=r"workers \[0, 1\] of 2 have not come"):
            query.awaitTermination(SECONDS)
        assert not query.isActive, "its job is cancelled, and does not begin when slots are free"
        assert holding.isActive
    finally:
        holding.stop()
    monkeypatch.undo()
    third = passing().live(spark).read(numbers=fronts.Iterable([1])).write(out=out)
    assert third.option("workers", 4).start().awaitTermination(SECONDS)
    assert out.payloads() == [1]
