"""Steps of a new version of a live query begin from a backfill on Spark, while workers are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.graph.versions import CarryError
from emberflow.runners.live.query import LiveQuery
from tests.effort import FAULTS_ROUND, SECONDS, SOAK
from tests.faults.test_kills import until
from tests.faults.toll import toll
from tests.spark.test_upgrades import notes, payloads, pids, when

NUMBERS = range(2_400)
ASKED_AT = 600
HELD_AT = 1_500
#: The state of all of these is that of a backfill.
NEW = ("by seven", "windows", "later", "behind later")


def flow_of(*, new: bool) -> ef.Flow:
    """Counts by one key; the new version has steps of other kinds beside them."""
    flow = ef.Flow("begun")
    numbers = flow.front("numbers")
    numbers.key_by(lambda n: n % 5).count(name="by five").sink("by five")
    if new:
        numbers.key_by(lambda n: n % 7).count(name="by seven").sink("by seven")
        closed = numbers.key_by(lambda n: n % 3).window(ef.Tumbling(50), emit="close")
        closed.count(name="windows").sink("windows")
        timed = numbers.with_time(name="timed")
        later = timed.flat_map(lambda t: [ef.At(t.time + 90, t.payload)], name="later")
        later.key_by(lambda n: n % 4).group(window=3, name="behind later").sink("later")
    return flow


def history(spark: SparkSession, end: int) -> Any:
    rows = [(number, number) for number in NUMBERS[:end]]
    return ef.rows(spark.createDataFrame(rows, "time long, value long"), unique=True)


def filled(spark: SparkSession, until: Any, checkpoint: Path) -> dict[str, Any]:
    """Backfill the new version, and what its steps begin with."""
    given = history(spark, (until[0] if isinstance(until, tuple) else until) + 1)
    flow_of(new=True).backfill(
        spark, until=until, checkpoint=checkpoint, partitions=2, raw=True, numbers=given
    )
    return {name: ef.Backfilled(checkpoint) for name in NEW}


def held(folder: Path) -> Callable[[], Iterator[int]]:
    """The numbers: some, some more when somebody has asked for the new version, and the rest at the end."""

    def numbers() -> Iterator[int]:
        for number in NUMBERS:
            while (number >= ASKED_AT and not (folder / "asked").exists()) or (
                number >= HELD_AT and not (folder / "end").exists()
            ):
                time.sleep(0.01)
            yield number

    return numbers


def started(
    spark: SparkSession, folder: Path, kept: dict[str, Any], *, new: bool, **carry: Any
) -> LiveQuery:
    flow = flow_of(new=new)
    kept.update({name: sinks.Memory() for name in flow.graph().sinks if name not in kept})
    return (
        flow.live(spark)
        .read(numbers=fronts.Iterable(held(folder), rate=1_200))
        .write(**{name: kept[name] for name in flow.graph().sinks})
        .carry({name: carry[name] for name in carry})
        .option("workers", 2)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("checkpointInterval", 150)
        .start()
    )


def kill_some(
    query: LiveQuery, dice: Random, seconds: float, count: int, asked: Path | None = None
) -> threading.Thread:
    """Kill workers from now on, one after another; and let the source go on when a version was asked for, and all
    fronts know where they halt: behind that, it would be refused."""

    def is_bounded() -> bool:
        takeover = query._lives.current.coordinator._takeover
        return takeover is not None and takeover.is_bounded

    def kill() -> None:
        deadline = time.monotonic() + SECONDS
        while asked is not None and not is_bounded() and time.monotonic() < deadline:
            time.sleep(0.002)
        for _ in range(count):
            if asked is not None and dice.random() < 0.7:
                asked.touch()
            time.sleep(dice.uniform(0, seconds))
            progress = query.lastProgress
            if progress is not None and progress["pids"]:
                try:
                    os.kill(dice.choice(progress["pids"]), signal.SIGKILL)
                except ProcessLookupError:  # it has been replaced just now
                    continue
                toll("worker")
        if asked is not None:
            asked.touch()

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def expected(moment: tuple[int, int], carry: dict[str, Any]) -> dict[str, list[Any]]:
    versions = ef.Versions(flow_of(new=False), (moment, flow_of(new=True), carry))
    found = ef.run(versions, numbers=NUMBERS)
    whole = ef.run(flow_of(new=True), numbers=NUMBERS)
    assert found["by five"] == whole["by five"]
    for name in ("by seven", "windows", "later"):  # as if they had been there always
        assert 0 < len(found[name]) < len(whole[name])
        assert found[name] == whole[name][-len(found[name]) :]
    return found


@pytest.mark.parametrize("seed", range(4 if SOAK else 1))
def test_steps_begin_from_a_backfill_while_the_query_runs(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """The moment is that of the backfill. A worker is killed around it."""
    dice = Random(f"begun live {FAULTS_ROUND} {seed}")
    carry = filled(spark, 700, tmp_path / "history")
    kept: dict[str, Any] = {}
    query = started(spark, tmp_path, kept, new=False)
    try:
        pids(query)
        with pytest.raises(CarryError, match=r"ends at 700, behind .* takes over at 650, "):
            query.upgrade(flow_of(new=True), at=(650, 0), carry=carry, write=memories(kept))
        with pytest.raises(ef.InputError, match="a shadow begins at a moment just ahead"):
            query.shadow(flow_of(new=True), carry=carry)
        when(query, 300)
        killing = kill_some(query, dice, 0.9, 2 if SOAK else 1, tmp_path / "asked")
        query.upgrade(flow_of(new=True), carry=carry, write=memories(kept), timeout=SECONDS)
        with pytest.raises(ef.InputError, match="last_moment"):
            query.upgrade(flow_of(new=True), carry=carry, timeout=SECONDS)
        killing.join(SECONDS)
        (tmp_path / "end").touch()
        assert query.awaitTermination(SECONDS), query.status
    finally:
        query.stop()
    note = notes(tmp_path)[-1]
    assert note.begins == (700, 0)
    assert [line for line in note.told if line.startswith("backfilled")] == [
        f"backfilled: {name}, from {tmp_path / 'history'}"
        for name in ("by seven", "windows", "behind later", "later")
    ]
    whole = expected((700, 0), carry)
    assert payloads(kept) == whole
    versions = ef.Versions(flow_of(new=False), ((700, 0), flow_of(new=True), carry))
    found = versions.batch(spark, raw=True, partitions=2, numbers=history(spark, len(NUMBERS)))
    for name in found if SOAK else ["windows"]:  # tests/batch has many more, without Spark
        assert ef.payloads(found[name]) == whole[name]


def memories(kept: dict[str, Any]) -> dict[str, Any]:
    """Sinks for what the new version adds."""
    for name in flow_of(new=True).graph().sinks:
        kept.setdefault(name, sinks.Memory())
    return {name: kept[name] for name in kept if name != "by five"}


@pytest.mark.parametrize(
    "seed", range(4 if SOAK else 0) or [pytest.param(0, marks=pytest.mark.skip("in make soak"))]
)
def test_steps_begin_from_a_backfill_across_a_restart(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """The backfill ends where the query was stopped. Workers are killed before and after."""
    dice = Random(f"begun anew {FAULTS_ROUND} {seed}")
    kept: dict[str, Any] = {}
    query = started(spark, tmp_path, kept, new=False)
    try:
        pids(query)
        killing = kill_some(query, dice, 0.3, 1)
        (tmp_path / "asked").touch()
        killing.join(SECONDS)
        # A query that is stopped before it has computed again what its sinks have ends before that.
        until(lambda: len(kept["by five"].payloads(0)) == HELD_AT, "all counts", SECONDS)
    finally:
        query.stop()
    moment = ef.last_moment(tmp_path / "checkpoint")
    early = filled(spark, moment[0] - 10, tmp_path / "early")
    with pytest.raises(ef.EmberflowError, match=rf"Backfill again with until=\(?{moment[0]}\b"):
        started(spark, tmp_path, kept, new=True, **early)
    carry = filled(spark, moment, tmp_path / "history")
    query = started(spark, tmp_path, kept, new=True, **carry)
    try:
        killing = kill_some(query, dice, 0.5, 2)
        (tmp_path / "end").touch()
        assert query.awaitTermination(SECONDS), query.status
        killing.join(SECONDS)
    finally:
        query.stop()
    assert notes(tmp_path)[-1].begins == moment
    assert payloads(kept) == expected(moment, carry)
