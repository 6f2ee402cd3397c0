"""Two drivers on one location: who is fenced off, which cuts count, and what may be removed."""

from __future__ import annotations

import os
import random
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from emberflow.checkpoint import CheckpointError, FencedError, Manifest
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.files import LocalLocation
from tests.checkpoint.cases import KINDS, STORES, State, Workers, state_of

DICE = random.Random(5)


def state(number: int) -> State:
    return {("last", key): [((number, key), f"{number}")] for key in range(5)}


def write(
    store: CheckpointStore, incarnation: int, number: int, base: Manifest | None = None
) -> Manifest:
    workers = Workers(store, incarnation, 2, 0)
    changed = None if base is None else list(state(number))
    return workers.write(number, state(number), changed, base, DICE, time=(10 * number, 0))


def committed(store: CheckpointStore, incarnation: int, number: int, **options: Any) -> Manifest:
    cut = write(store, incarnation, number, **options)
    store.commit(cut)
    return cut


@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_driver_wins(kind: str, tmp_path: Path) -> None:
    one, other = STORES[kind](tmp_path), STORES[kind](tmp_path)
    assert one.begin() == (1, None)
    first = committed(one, 1, 1)
    assert other.begin() == (2, first)
    late = write(one, 1, 2)
    for forbidden in (
        lambda: one.commit(late),
        lambda: one.prune(1, incarnation=1),
        lambda: one.check_incarnation(1),
    ):
        with pytest.raises(FencedError, match="incarnation 1 was followed by incarnation 2"):
            forbidden()
    second = committed(other, 2, 2)
    assert one.latest() == other.latest() == second
    assert [cut.number for cut in one.cuts()] == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_goes_on_after_itself_and_after_nobody_else(kind: str, tmp_path: Path) -> None:
    one, other = STORES[kind](tmp_path), STORES[kind](tmp_path)
    one.begin()
    assert one.begin(after=1).incarnation == 2
    assert other.begin().incarnation == 3
    who = f"process {os.getpid()} on {socket.gethostname()} began at 20.. UTC"
    with pytest.raises(
        FencedError, match=f"followed by incarnation 3, which {who}".replace("..", ".*")
    ):
        one.begin(after=2)
    assert other.begin(after=3).incarnation == 4, "the refused driver has claimed nothing"


def test_without_a_lock_a_driver_that_claims_beside_its_successor_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see the newest incarnation before either has claimed the next."""
    old, successor = STORES["remote"](tmp_path), STORES["remote"](tmp_path)
    old.begin()
    checked = old.check_incarnation

    def checked_then_overtaken(incarnation: int) -> None:
        checked(incarnation)
        monkeypatch.setattr(old, "check_incarnation", checked)
        assert successor.begin().incarnation == 2
        monkeypatch.setattr(old, "incarnation", lambda: 1)

    monkeypatch.setattr(old, "check_incarnation", checked_then_overtaken)
    with pytest.raises(
        FencedError, match="incarnation 1 was followed by incarnation 2, which process"
    ):
        old.begin(after=1)
    assert successor.begin(after=2).incarnation == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_driver_that_slips_through_the_fence_changes_nothing(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock, a driver may be between reading the incarnations and its rename."""
    slow, fast = STORES[kind](tmp_path), STORES[kind](tmp_path)
    slow.begin()
    first = committed(slow, 1, 1)
    fast.begin()
    monkeypatch.setattr(slow, "check_incarnation", lambda incarnation: None)
    committed(slow, 1, 2)
    committed(slow, 1, 3)
    assert fast.latest() == first
    second = committed(fast, 2, 2)
    assert fast.latest() == second
    assert fast.cuts() == [first, second]
    assert fast.begin() == (3, second)
    committed(slow, 1, 4)
    assert fast.cuts() == [first, second]
    removed = fast.prune(5, incarnation=3)
    assert {name for name in removed if name.startswith("cuts/")} == {
        f"cuts/{number:010d}-000001.json" for number in (2, 3, 4)
    }
    assert fast.latest() == second
    assert state_of(fast.rows(second)) == state(2)


def test_a_life_may_begin_from_an_earlier_cut(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    cuts = [committed(store, 1, number) for number in (1, 2, 3)]
    assert store.as_of((25, 0)) == cuts[1]
    assert store.as_of((20, 0)) == cuts[1]
    assert store.as_of((19, 99)) == cuts[0]
    assert store.as_of((9, 0)) is None
    life = store.begin(lambda store: store.as_of((15, 0)))
    assert life == (2, cuts[0])
    assert store.cuts() == cuts[:1]
    again = committed(store, 2, life.next_cut)
    assert store.cuts() == [cuts[0], again]
    life = store.begin(lambda store: None)  # from nothing
    assert life == (3, None)
    assert store.latest() is None
    assert committed(store, 3, 1) == store.latest()


def test_a_begin_that_crashed_is_no_life(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    first = committed(store, 1, 1)

    def crash(_: CheckpointStore) -> Manifest | None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.begin(crash)
    assert store.latest() == first
    with pytest.raises(FencedError):  # claimed nevertheless
        store.commit(write(store, 1, 2))
    with pytest.raises(CheckpointError, match="has not returned"):
        store.commit(write(store, 2, 2))
    assert store.begin() == (3, first)


def test_who_committed_cuts_does_not_read_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    committed(store, 1, 1)
    store.begin(after=1)
    other = CheckpointStore(tmp_path)
    cuts = [committed(other, 2, 2), *(committed(store, 2, number) for number in (3, 4, 5))]
    read: list[str] = []
    reading = LocalLocation.read
    monkeypatch.setattr(
        LocalLocation, "read", lambda self, path: (read.append(path), reading(self, path))[1]
    )
    store.prune(4, incarnation=2)
    assert store.cuts(again=False) == cuts
    assert {path for path in read if path.startswith("cuts/")} == {"cuts/0000000002-000002.json"}
    store.prune(2, incarnation=2)
    assert store.cuts(again=False) == store.cuts() == cuts[-2:]
    assert all(state_of(store.rows(cut)) == state(cut.number) for cut in cuts[-2:])


@pytest.mark.parametrize("kind", KINDS)
def test_drivers_that_begin_at_once_get_incarnations_of_their_own(
    kind: str, tmp_path: Path
) -> None:
    found: list[int] = []
    begin = threading.Barrier(6)

    def drive() -> None:
        store = STORES[kind](tmp_path)
        begin.wait(10)
        found.append(store.begin().incarnation)

    threads = [threading.Thread(target=drive) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(set(found)) == 6


def test_a_driver_that_claims_a_number_at_the_same_time_takes_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock, two drivers may have seen the same newest number."""
    one, other = STORES["remote"](tmp_path), STORES["remote"](tmp_path)
    seen = [0]
    monkeypatch.setattr(
        other, "incarnation", lambda: seen.pop() if seen else CheckpointStore.incarnation(other)
    )
    assert one.begin().incarnation == 1
    assert other.begin().incarnation == 2
    committed(other, 2, 1)


def test_numbers_go_up(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    committed(store, 1, 2)
    for number in (1, 2):
        with pytest.raises(CheckpointError, match=f"cut {number} comes after cut 2"):
            store.commit(write(store, 1, number))


@pytest.mark.parametrize("kind", KINDS)
def test_pruning_keeps_what_is_needed(kind: str, tmp_path: Path) -> None:
    store = STORES[kind](tmp_path)
    store.begin()
    write(store, 1, 1)  # abandoned by a life that has ended
    store.begin()
    cuts = [committed(store, 2, 2)]
    for number in (3, 4):
        cuts.append(committed(store, 2, number, base=cuts[-1]))
    write(store, 2, 5)  # abandoned
    cuts.append(committed(store, 2, 6))
    cuts.append(committed(store, 2, 7, base=cuts[-1]))
    under_way = write(store, 2, 8)
    for keep in (5, 3, 2, 1):
        store.prune(keep, incarnation=2)
        assert store.cuts() == cuts[-keep:]
        needed = {part.path for cut in (*cuts[-keep:], under_way) for part in cut.parts}
        assert {f"parts/{name}" for name in store._location.names("parts")} == needed
        for cut in store.cuts():
            store.check_whole(cut)
            assert state_of(store.rows(cut)) == state(cut.number)
    store.commit(under_way)
    assert store.latest() == under_way


def test_pruning_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    store.begin()
    committed(store, 2, 1)
    left = [
        "parts/.0000000009-000001-0-bucket-ab.parquet.12345678",
        "parts/.0000000001-000002-0-bucket-ab.parquet.12345678",
        "cuts/.0000000009-000001.json.12345678",
    ]
    growing = tmp_path / "parts/.0000000002-000002-0-bucket-ab.parquet.12345678"
    foreign = tmp_path / "parts/notes.txt"
    for path in (*map(tmp_path.joinpath, left), growing, foreign):
        path.write_bytes(b"half")
    assert sorted(store.prune(1, incarnation=2)) == sorted(left)
    assert growing.exists()
    assert foreign.exists()
    with pytest.raises(ValueError, match="1 or more"):
        store.prune(0, incarnation=2)


def test_a_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each file in turn: sync the content, rename it, sync the folder."""
    events: list[tuple[str, str]] = []
    sync, rename = os.fsync, os.rename

    def spied_sync(descriptor: int) -> None:
        sync(descriptor)
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))

    def spied_rename(old: Path, new: Path) -> None:
        events.append(("rename", str(old)))
        rename(old, new)
        events.append(("renamed", str(new)))

    store = CheckpointStore(tmp_path)
    store.begin()
    committed(store, 1, 1)
    monkeypatch.setattr(os, "fsync", spied_sync)
    monkeypatch.setattr(os, "rename", spied_rename)
    cut = committed(store, 1, 2)
    names = [*(part.path for part in cut.parts), "cuts/0000000002-000001.json"]
    assert len(events) == 4 * len(names)
    for name in names:  # the manifest last
        (first, temporary), (second, renamed), (third, new), (fourth, folder) = events[:4]
        del events[:4]
        assert (first, second, third, fourth) == ("sync", "rename", "renamed", "sync")
        assert temporary == renamed
        assert new == str(tmp_path / name)
        assert folder == str((tmp_path / name).parent)
