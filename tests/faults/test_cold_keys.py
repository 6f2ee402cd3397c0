"""Kills while most of the state is out of memory: the sink holds exactly the reference's bytes.

Workers are killed at random moments, in the middle of cuts, evictions and merges. The folder for cold keys is
removed with all that is in it, time and again: no life needs what another one had there.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from tests.effort import FAULTS_ROUND, SOAK
from tests.faults.flows import plain
from tests.faults.test_kills import SECONDS, held_back, killed_worker, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)

KEYS = 5_000
SINKS = ("counts", "sessions", "lists", "joined", "rejected")


def flow() -> ef.Flow:
    flow = ef.Flow("more keys than fit")
    numbers = flow.front("numbers")
    numbers.key_by(lambda n: f"key {n % KEYS}").count().sink("counts")
    by_key = numbers.key_by(lambda n: n % KEYS)
    closed = by_key.window(ef.Session(KEYS), emit="close").count()
    closed.map(lambda closed: [closed.key, closed.window.end, closed.value]).sink("sessions")
    lists = by_key.fold(initial=ef.PersistentList(), combine=lambda known, n: known.append(n))
    lists.map(list).sink("lists")
    odd = numbers.filter(lambda n: n % 3 == 1).key_by(lambda n: n % KEYS)
    odd.join(by_key, how="left", within=KEYS).map(list).sink("joined")
    totals = flow.state("totals", default=0)
    with flow.front("payments").transaction() as tx:
        tx.key_by(lambda n: n % KEYS).update(
            totals, lambda total, n: total + n, check=lambda total: total < 20 * KEYS
        )
    tx.rejected.map(lambda rejected: rejected.element).sink("rejected")
    return flow


def test_workers_are_killed_while_their_keys_are_cold(spark: SparkSession, tmp_path: Path) -> None:
    kills = 4 if SOAK else 2
    dice = Random(f"cold {FAULTS_ROUND}")
    count = 40_000 if SOAK else 20_000
    given = {
        name: [ef.At(at, dice.randrange(4 * KEYS)) for at in range(count)]
        for name in ("numbers", "payments")
    }
    all_killed, folder = tmp_path / "all killed", tmp_path / "cold"
    rate = count / (4 * kills)
    query = (
        flow()
        .live(spark)
        .read(
            numbers=fronts.Iterable(held_back(given["numbers"], all_killed), rate=rate),
            payments=fronts.Iterable(given["payments"], rate=rate),
        )
        .write(**{name: sinks.Files(tmp_path / name) for name in SINKS})
        .option("workers", 2)
        .option("stateMemory", "1m")
        .option("stateFolder", folder)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 150)
        .start()
    )
    is_over = threading.Event()
    remover = threading.Thread(target=lambda: [shutil.rmtree(folder, True) for _ in every(is_over)])
    remover.start()
    most_cold = 0
    try:
        for kill in range(kills):
            until(lambda: (query.lastProgress or {}).get("coldKeys", 0) > 500, "keys to be cold")
            most_cold = max(most_cold, query.lastProgress["coldKeys"])
            while not killed_worker(query, dice):
                assert query.isActive, "it was over before all were killed"
            until(lambda: len(query.recoveries) > kill, "the loss of a worker to be noticed", 120)  # noqa: B023
        until(lambda: (query.lastProgress or {}).get("coldKeys", 0) > 500, "keys to be cold again")
        all_killed.touch()
        assert query.awaitTermination(SECONDS)
    finally:
        is_over.set()
        query.stop()
        remover.join()
    expected = ef.run(flow(), **given)
    for name in SINKS:
        assert sinks.read_files(f"{tmp_path}/{name}") == plain(expected[name])
    assert most_cold > 500


def every(is_over: threading.Event) -> Iterator[None]:
    while not is_over.wait(0.3):
        yield
