"""Connections between workers, and between workers and the driver, are cut under load.

What is on them is lost. The links notice, the next life begins, and the output is the same to the byte.
"""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.runners.live.driver import watchdog
from emberflow.runners.live.driver.watchdog import StalledError
from emberflow.runners.live.query import LiveQuery
from emberflow.runners.live.wire import protocol
from emberflow.runners.live.wire.links import Sender
from emberflow.runners.live.wire.sockets import WireError
from tests.effort import FAULTS_ROUND, SOAK
from tests.faults.connections import cut_one
from tests.faults.flows import check_files, documents, index_flow
from tests.faults.test_kills import running_pids, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)

SECONDS = 400


def cut_a_connection(query: LiveQuery, dice: Random) -> None:
    """Cut connections of the present life until one is noticed, or the life is over."""
    lives = len(query.recoveries)
    until(lambda: running_pids(query), "the workers of the next life")
    time.sleep(dice.uniform(0.0, 0.5))
    pids = running_pids(query)
    if pids is not None and lives == len(query.recoveries):
        port = int(query._lives.coordinator.address.rpartition(":")[2])
        cut_one(pids, port, dice)


def test_connections_are_cut_under_load(spark: SparkSession, tmp_path: Path) -> None:
    cuts = 50 if SOAK else 2
    dice = Random(f"connections {FAULTS_ROUND}")
    count = 4_000 if SOAK else 300
    # A cut takes some seconds, and each life has to get further than the one before.
    seconds = cuts * 15.0
    given = documents(count)

    def started(rate: float | None) -> LiveQuery:
        names = ("counts", "pairs", "windows")
        return (
            index_flow()
            .live(spark)
            .read(documents=fronts.Iterable(given, rate=rate))
            .write(**{name: sinks.Files(tmp_path / name) for name in names})
            .option("workers", 2)
            .option("checkpointLocation", tmp_path / "checkpoint")
            .option("checkpointInterval", 150)
            .start()
        )

    query = started(rate=count / seconds)
    try:
        for cut in range(cuts):
            lives = len(query.recoveries)
            # Nobody misses what was not on a connection, so cut until something was.
            while len(query.recoveries) == lives:
                assert query.isActive, f"it was over after {cut} cuts"
                cut_a_connection(query, dice)
                time.sleep(0.2)
    finally:
        query.stop()
    assert len(query.recoveries) >= cuts
    assert any(isinstance(loss, WireError) for loss in query.recoveries)
    rest = started(rate=None)
    try:
        assert rest.awaitTermination(SECONDS)
    finally:
        rest.stop()
    check_files(tmp_path, ef.run(index_flow(), documents=given))


def test_a_frame_that_vanishes_without_a_trace_is_noticed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection breaks and no number is missing: only the minimal time stands still."""
    monkeypatch.setattr(watchdog, "STALLED_SECONDS", 2.0)
    lost = tmp_path / "lost"

    def lose_a_frame(number: int) -> int:
        if number == 300 and not lost.exists():
            lost.touch()
            send = Sender.send

            def swallow(self: Sender, messages: list[bytes]) -> None:
                if messages[0][:1] == protocol.FRAME:
                    Sender.send = send  # type: ignore[method-assign]
                else:
                    send(self, messages)

            Sender.send = swallow  # type: ignore[method-assign]
        return number

    def flow() -> ef.Flow:
        made = ef.Flow("a frame vanishes")
        numbers = made.front("numbers").map(lose_a_frame)
        numbers.key_by(lambda number: number % 50).count().sink("counts")
        return made

    query = (
        flow()
        .live(spark)
        .read(numbers=fronts.Iterable(range(1_000)))
        .write(counts=sinks.Files(tmp_path / "counts"))
        .option("workers", 2)
        .start()
    )
    try:
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    [loss] = query.recoveries
    assert isinstance(loss, StalledError)
    assert "no worker has anything to do" in str(loss)
    assert list(sinks.read_files(tmp_path / "counts")) == [
        list(count) for count in ef.run(flow(), numbers=range(1_000))["counts"]
    ]
