"""Keys that make much work move to other workers under load: the output is the reference's."""

from __future__ import annotations

from functools import partial
from itertools import count, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import emberflow as ef
from emberflow import fronts, sinks
from emberflow.commands.rescale import rebalance as rebalance_by_name
from emberflow.runners.live.balance import heat, pace
from emberflow.runners.live.query import LiveQuery
from emberflow.values.hashing import key_hash
from emberflow.values.owners import weighted_owners
from tests.effort import SECONDS
from tests.faults.test_kills import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

#: Keys of worker 1, as long as slices are where they begin: worker 0 feeds the front, and has fewer.
KEYS = list(
    islice(
        (key for key in count() if weighted_owners([1, 2]).owner(key_hash(key)) == 1),
        16,
    )
)

LIGHT = -1


#: Few elements, so that it is nearly idle with those that make no work, and busy with those that do.
RATE = 30


def toil(total: int, key: int) -> int:
    """A step that takes some milliseconds, but for one key."""
    return total + key if key == LIGHT else total + sum(range(350_000)) % 2 + key


def same_without_toil(total: int, key: int) -> int:
    return total + key


def toilsome_flow(step: Callable[[int, int], int] = toil) -> ef.Flow:
    flow = ef.Flow("toilsome")
    flow.front("keys").key_by(int).fold(initial=0, combine=step, with_key=True, name="totals").sink(
        "totals"
    )
    return flow


def keys_of(folder: Path) -> Iterator[int]:
    """One key takes all at first, then all keys come in turn, then one that makes no work."""
    for number in takewhile(lambda _: not (folder / "end").exists(), count()):
        if (folder / "rest").exists():
            yield LIGHT
        else:
            yield KEYS[number % len(KEYS)] if (folder / "vary").exists() else KEYS[3]


def given_in_turn(given: list[int]) -> list[int]:
    """What the front gives if it changes over where these keys do."""
    light = given.count(LIGHT)
    hot = next((at for at, key in enumerate(given) if key != KEYS[3]), len(given))
    varied = [KEYS[number % len(KEYS)] for number in range(hot, len(given) - light)]
    return [KEYS[3]] * hot + varied + [LIGHT] * light


class Toiling:
    """A query whose keys all are of one worker of two, until some move."""

    def __init__(self, spark: SparkSession, folder: Path, **options: object) -> None:
        self._folder = folder
        self._kept = sinks.Memory()
        builder = (
            toilsome_flow()
            .live(spark)
            .read(keys=fronts.Iterable(partial(keys_of, folder), rate=RATE))
            .write(totals=self._kept)
            .option("workers", 2)
            .option("checkpointLocation", str(folder / "checkpoint"))
            .option("upgrades", True)
            .queryName(f"toiling {folder.name}")
        )
        for key, value in options.items():
            builder.option(key, value)
        self.query: LiveQuery = builder.start()

    def goes_on_to(self, phase: str) -> None:
        (self._folder / phase).touch()

    def told(self, name: str) -> Any:
        """A part of the last progress."""
        progress = self.query.lastProgress
        return None if progress is None else progress[name]

    def ended(self) -> None:
        """End it, and compare all that it gave with the reference."""
        self.goes_on_to("end")
        assert self.query.awaitTermination(SECONDS), self.query.status
        totals = self._kept.payloads(0)
        given = [key for key, _ in totals]
        assert given == given_in_turn(given)
        assert totals == ef.run(toilsome_flow(same_without_toil), keys=given)["totals"]


def test_keys_that_make_much_work_move_to_the_idle_worker(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that takes all of a worker is told by its name. When it is one among others, these move."""
    monkeypatch.setattr(heat, "_BUSY", 0.02)  # this machine has other work
    toiling = Toiling(spark, tmp_path)
    query = toiling.query
    try:
        until(lambda: toiling.told("hotKeys"), "the hot key")
        (hot,) = toiling.told("hotKeys")
        assert (hot["step"], hot["key"], hot["worker"]) == ("totals", repr(KEYS[3]), 1)
        assert hot["share"] > 0.6
        assert query.rebalance(timeout=SECONDS) == 0, "it would only change places"
        toiling.goes_on_to("vary")
        until(lambda: not toiling.told("hotKeys"), "other keys")
        assert query.name is not None
        moved = 0
        while not moved:  # as the command does
            moved = rebalance_by_name(query.name, seconds=SECONDS)
        assert moved < len(KEYS)
        counts = [341 + moved, 683 - moved]
        until(lambda: toiling.told("slicesPerWorker") == counts, "progress of the new owners")
        assert query.workers == 2
        assert not query.recoveries
        toiling.ended()
    finally:
        query.stop()


def test_the_number_of_workers_follows_the_load(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thresholds that fit a machine that has other work, and without waiting for long."""
    monkeypatch.setattr(pace, "_GROWS_ABOVE", 0.2)
    monkeypatch.setattr(pace, "_SHRUNK_TO", 0.35)
    for name in ("GROWTH_HOLDS_SECONDS", "SHRINKING_HOLDS_SECONDS", "RESTS_SECONDS"):
        monkeypatch.setattr(pace, name, 0.5)
    with pytest.raises(ef.InputError, match="is to have 3 to 4"):
        Toiling(spark, tmp_path, minWorkers=3, maxWorkers=4)
    toiling = Toiling(spark, tmp_path, workers=1, maxWorkers=2)
    query = toiling.query
    try:
        until(lambda: query.workers == 2, "another worker")
        toiling.goes_on_to("rest")
        until(lambda: query.workers == 1, "one worker")
        assert not query.recoveries
        toiling.ended()
    finally:
        query.stop()
