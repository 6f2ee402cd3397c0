"""Kills while most of the state is out of memory: the sink holds exactly the reference's bytes.

Workers die in the middle of an eviction, of a merge, of the copy behind a restore and of a cut (`traps`); and at random
moments, under a flow of all that can be cold. The folder for cold keys is removed with all that is in it, time and
again: no life needs what another one had there.
"""

from __future__ import annotations

import itertools
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
from tests.faults.toll import toll
from tests.faults.traps import PLACES, Traps

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(1_200)

KEYS = 5_000
#: Each of these comes in turn, so nearly all of them are cold. A second has so many elements.
MANY_KEYS, RATE, GIVEN_AT_ONCE = 9_000, 3_000, 500
#: With 400 bytes a row, fewer fit into the memory of two workers.
LEFT_COLD = 6_000
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


def counting(traps: Traps | None = None) -> ef.Flow:
    flow = ef.Flow("many keys")
    counted = flow.front("numbers").key_by(lambda n: n % MANY_KEYS).count()
    if traps is not None:  # each worker has some of the keys
        counted = counted.map(traps)
    counted.map(list).sink("counts")
    return flow


def test_workers_die_in_the_middle_of_what_they_do_with_a_disk(
    spark: SparkSession, tmp_path: Path
) -> None:
    traps, folder = Traps(tmp_path / "traps"), tmp_path / "cold"
    may_end, given = tmp_path / "may end", tmp_path / "given"

    def numbers() -> Iterator[int]:
        """As many as it takes. Whoever reads them again ends behind all that was given before, or there."""
        before = int(given.read_text()) if given.exists() else 0
        for number in itertools.count():
            if number >= before and number % GIVEN_AT_ONCE == 0:
                if may_end.exists():
                    return
                new = tmp_path / "given, perhaps"
                new.write_text(str(number + GIVEN_AT_ONCE))
                new.rename(given)
            yield number

    query = (
        counting(traps)
        .live(spark)
        .read(numbers=fronts.Iterable(numbers, rate=RATE))
        .write(counts=sinks.Files(tmp_path / "counts"))
        .option("workers", 2)
        .option("stateMemory", "1m")
        .option("stateFolder", folder)
        .option("checkpointLocation", tmp_path / "checkpoint")
        .option("checkpointInterval", 150)
        .start()
    )
    try:
        until(
            lambda: (query.lastProgress or {}).get("coldKeys", 0) > LEFT_COLD,
            "so many cold keys that a restore leaves them in the files of the cut",
        )
        for kill, place in enumerate(PLACES):
            traps.arm(place)
            until(lambda: traps.was_deadly(place), f"a worker to die in the middle of: {place}")  # noqa: B023
            toll("worker")
            until(lambda: len(query.recoveries) > kill, "its loss to be noticed", 120)  # noqa: B023
        may_end.touch()
        assert query.awaitTermination(SECONDS)
    finally:
        query.stop()
    expected = ef.run(counting(), numbers=range(int(given.read_text())))["counts"]
    assert sinks.read_files(tmp_path / "counts") == plain(expected)
    assert not list(folder.iterdir())  # nobody who was killed has left a file


def every(is_over: threading.Event) -> Iterator[None]:
    while not is_over.wait(0.3):
        yield
