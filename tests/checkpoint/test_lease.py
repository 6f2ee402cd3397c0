"""The lease on a query: who sees that a driver works, that it is lost, and that its query has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from emberflow.checkpoint import FencedError
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.lease import Lease, LeaseHolder, LeaseWatch
from tests.checkpoint.cases import url_of

LAPSE = 10.0


class Watching:
    """A watch with a clock of its own."""

    def __init__(self, location: str) -> None:
        self.now = 1_000_000.0  # of a machine that has been up for long
        self.watch = LeaseWatch(location, lapse_seconds=LAPSE, clock=lambda: self.now)

    def after(self, seconds: float) -> Lease:
        self.now += seconds
        return self.watch.look()


@pytest.fixture(params=["local", pytest.param("objects", marks=pytest.mark.xdist_group("s3"))])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(tmp_path) if request.param == "objects" else str(tmp_path)


def held(location: str) -> LeaseHolder:
    """The lease of a driver that has begun an incarnation."""
    life = CheckpointStore(location).begin()
    holder = LeaseHolder(location, lambda: life.incarnation)
    holder.renew()
    return holder


def test_a_lease_is_held_as_long_as_it_is_renewed(location: str) -> None:
    holder = held(location)
    standing_by = Watching(location)
    assert standing_by.watch.look() is Lease.HELD
    for _ in range(5):
        assert standing_by.after(LAPSE - 1) is Lease.HELD
        holder.renew()
    assert standing_by.after(LAPSE - 1) is Lease.HELD
    assert standing_by.after(LAPSE - 1) is Lease.HELD  # it saw the last renewal then
    assert standing_by.after(2) is Lease.LAPSED


def test_of_several_that_stand_by_one_takes_over(location: str) -> None:
    held(location)
    two = [Watching(location), Watching(location)]
    for one in two:
        one.watch.look()
        assert one.after(LAPSE) is Lease.LAPSED
    store = CheckpointStore(location)
    assert store.begin(after=two[0].watch.incarnation).incarnation == 2
    with pytest.raises(FencedError):
        store.begin(after=two[1].watch.incarnation)
    assert two[1].watch.look() is Lease.HELD  # by the one that took over


def test_a_driver_that_was_taken_for_lost_does_not_hold_the_lease_of_its_successor(
    location: str,
) -> None:
    old = held(location)
    held(location)  # the successor, which renews it once
    third = Watching(location)
    assert third.watch.look() is Lease.HELD
    for _ in range(4):
        old.renew()  # it does not know yet
        third.now += LAPSE / 4
    assert third.watch.look() is Lease.LAPSED


def test_a_query_that_has_come_to_its_end_has_no_successor(location: str) -> None:
    holder = held(location)
    standing_by = Watching(location)
    assert standing_by.watch.look() is Lease.HELD
    holder.end(is_over=True)
    assert standing_by.after(1) is Lease.ENDED
    assert standing_by.after(LAPSE) is Lease.ENDED
    late = Watching(location)  # nobody runs it, and somebody wants it to run
    assert late.watch.look() is Lease.HELD
    assert late.after(LAPSE) is Lease.LAPSED
    holder = held(location)
    assert late.watch.look() is Lease.HELD
    holder.end(is_over=True)
    assert late.after(1) is Lease.ENDED


def test_a_query_that_fails_may_have_a_successor(location: str) -> None:
    holder = held(location)
    standing_by = Watching(location)
    standing_by.watch.look()
    holder.end(is_over=False)
    assert standing_by.after(LAPSE) is Lease.LAPSED


def test_the_files_of_a_lease_do_not_add_up(location: str) -> None:
    lives: list[int] = []
    holder = LeaseHolder(location, lambda: lives[-1])
    for _ in range(3):
        lives.append(CheckpointStore(location).begin().incarnation)
        for _ in range(3):
            holder.renew()
    folder = CheckpointStore(location)._location
    assert folder.names("leases") == ["000003-0000000009.lease"]


def test_what_cannot_be_looked_at_has_not_lapsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(str(tmp_path))
    standing_by = Watching(str(tmp_path))
    assert standing_by.watch.look() is Lease.HELD

    def unreachable() -> int:
        raise OSError("the network is down")

    with monkeypatch.context() as patch:
        patch.setattr(standing_by.watch._store, "incarnation", unreachable)
        assert standing_by.after(LAPSE) is Lease.HELD
        assert standing_by.after(LAPSE) is Lease.HELD
    assert standing_by.after(LAPSE / 2) is Lease.HELD
    assert standing_by.after(LAPSE / 2) is Lease.LAPSED


def test_a_builder_stands_by_until_the_lease_has_lapsed(tmp_path: Path) -> None:
    flow = ef.Flow("standing by")
    flow.front("words").sink("out")
    spark: Any = None  # it needs Spark only when it starts the query
    with pytest.raises(ef.InputError, match="a driver stands by for the query of a checkpoint"):
        flow.live(spark).stand_by()
    builder = flow.live(spark).option("checkpointLocation", tmp_path)
    holder = held(str(tmp_path))
    assert not builder.stand_by(given_up=lambda: True)
    looks = 0

    def ends_meanwhile() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:
            holder.end(is_over=True)
        return False

    assert not builder.stand_by(given_up=ends_meanwhile, lapse=60.0)
    assert builder.stand_by(lapse=0.1)
    assert builder._follows == 1
