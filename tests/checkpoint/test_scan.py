"""A scan returns the rows of a restore, for one step and the wanted keys, and reads less."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

import emberflow as ef
from emberflow.checkpoint import DamagedCutError, Manifest
from emberflow.checkpoint.cuts.parts import writer as writer_module
from emberflow.checkpoint.cuts.scan import Counted, KeyTest, Wanted, split
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.values.hashing import HASH_MAX, HASH_MIN, key_hash
from tests.checkpoint.cases import FILES, STORES, State, Workers, graph, rows_of
from tests.checkpoint.test_cuts import fresh, grown
from tests.effort import SOAK


def scanned(
    store: CheckpointStore, cut: Manifest, wanted: Wanted, test: KeyTest | None = None
) -> list[tuple[Any, tuple[int, ...], Any]]:
    pages = store.pages(cut.parts, wanted, test=test)
    return [
        (key, (time, front, *child_ids), payload)
        for page in pages
        for key, time, front, child_ids, payload in zip(*page, strict=True)
    ]


def by_key(rows: list[tuple[Any, tuple[int, ...], Any]]) -> dict[Any, list[Any]]:
    """Values in their order within a key; ``1`` and ``True`` are distinguished by their ``repr``."""
    found: dict[Any, list[Any]] = {}
    for key, place, payload in rows:
        found.setdefault(key, []).append((repr(key), place, payload))
    return found


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("seed", range(4 if SOAK else 1))
def test_a_scan_agrees_with_a_restore_on_any_chain(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets change, vanish, return, grow lists and share hashes; runs and row groups are small."""
    dice = random.Random(f"scan {kind} {seed}")
    monkeypatch.setattr(writer_module, "_GROUP_ROWS_MAX", dice.choice([1, 2, 7, 16_384]))
    monkeypatch.setattr(
        writer_module.PartWriter.__init__,
        "__kwdefaults__",
        {"run_bytes": dice.choice([200, 64 << 20]), "group_bytes": 2 << 20},
    )
    store = STORES[kind](tmp_path)
    spread = dice.choice([0, 5])
    newest: Manifest | None = None
    state: State = {}
    looked_at = 0
    for _ in range(3 if SOAK else 2):
        life = store.begin()
        workers = Workers(store, life.incarnation, dice.randint(1, 5), spread)
        state = workers.restore(newest) if newest else {}
        for number in range(life.next_cut, life.next_cut + (4 if SOAK else 3)):
            dirty: dict[tuple[str, Any], None] = {}
            for _ in range(dice.randint(1, 25)):
                bucket = (dice.choice(["last", "count"]), dice.choice([*range(12), "a", True]))
                dirty[bucket] = None
                if bucket in state and dice.random() < 0.2:
                    del state[bucket]
                elif bucket in state and dice.random() < 0.6:
                    state[bucket] = [(place, grown(one, dice)) for place, one in state[bucket]]
                else:
                    state.pop(bucket, None)
                    state[bucket] = [
                        ((dice.randint(0, 9), 0, n), fresh(dice)) for n in range(dice.randint(1, 3))
                    ]
            full = newest is None or dice.random() < 0.1
            newest = workers.write(number, state, None if full else list(dirty), newest, dice)
            store.commit(newest)
            rows = list(store.rows(newest))
            for operation in ("last", "count", "none of that name"):
                own = [(row[2], row[3], row[4]) for row in rows if row[0] == operation]
                hashes = {repr(row[2]): row[1] for row in rows}
                looked_at += len(own)
                everything = Wanted(operation, child_ids=True)
                assert by_key(scanned(store, newest, everything)) == by_key(own)

                apart = [
                    row
                    for low, high in split(-5, 5, 3)
                    if spread
                    for row in scanned(store, newest, Wanted(operation, low, high, child_ids=True))
                ]
                if spread:
                    assert by_key(apart) == by_key(own)

                some = set(dice.sample(sorted(hashes.values()), dice.randint(0, len(hashes))))
                few = Wanted(operation, hashes=tuple(sorted(some)), child_ids=True)
                assert by_key(scanned(store, newest, few)) == by_key(
                    [row for row in own if hashes[repr(row[0])] in some]
                )

                odd = scanned(store, newest, everything, lambda key: key != "a" and key % 2 == 1)
                assert by_key(odd) == by_key([r for r in own if r[0] != "a" and r[0] % 2 == 1])
    assert looked_at > 50


def test_what_is_not_wanted_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_GROUP_ROWS_MAX", 100)
    store = CheckpointStore(tmp_path)
    store.begin()
    state: State = {
        (operation, key): [((key, 0), "x" * 50)] for operation in ("a", "b") for key in range(5000)
    }
    rows = rows_of(state)
    part = store.write_part(1, 0, [rows], incarnation=1)
    cut = Manifest.of(graph(), number=1, incarnation=1, time=(9, 0), parts=[part])

    def counted(wanted: Wanted, test: KeyTest | None = None) -> tuple[int, Counted]:
        counts = Counted()
        pages = store.pages(cut.parts, wanted, test=test, counted=counts)
        return sum(len(page.keys) for page in pages), counts

    found, whole = counted(Wanted("b"))
    assert (found, whole.groups, whole.groups_skipped) == (5000, 50, 50)
    assert whole.rows == whole.payloads == 5000

    found, one = counted(Wanted("b", hashes=(key_hash(77),)), lambda key: key == 77)
    assert found == one.payloads == 1
    assert one.groups <= 2
    assert one.bytes < whole.bytes / 20

    found, tested = counted(Wanted("b"), lambda key: key < 10)
    assert (found, tested.rows, tested.payloads) == (10, 5000, 10)

    found, half = counted(Wanted("b", low=0))
    assert found == sum(key_hash(key) >= 0 for key in range(5000))
    assert half.groups <= 27


def test_a_damaged_page_is_found_by_its_checksum(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    rows = rows_of({("last", key): [((key, 0), f"payload {key}")] for key in range(2000)})
    part = store.write_part(1, 0, [rows], incarnation=1)
    assert part is not None
    path = tmp_path / part.path
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DamagedCutError, match=part.path):
        list(store.pages([part], Wanted("last")))


def test_a_cut_that_is_held_is_not_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr("emberflow.checkpoint.cuts.store.time.time", lambda: now)
    store = CheckpointStore(tmp_path)
    assert store.hold(60) is None
    assert not list(tmp_path.iterdir()), "a reader makes no checkpoint where there is none"
    store.begin()
    workers = Workers(store, 1, 2, 0)
    dice = random.Random(1)
    state: State = {("last", key): [((key, 0), key)] for key in range(50)}

    def cut(number: int) -> Manifest:
        made = workers.write(number, state, None, None, dice, time=(number, 0))
        store.commit(made)
        store.prune(1, incarnation=1)
        return made

    cut(1)
    reader = CheckpointStore(tmp_path)
    held = reader.hold(60)
    assert held is not None
    assert held.number == 1
    reader.hold(60)
    assert len(list((tmp_path / "holds").iterdir())) == 1, "not a file for each query"
    cut(2)
    cut(3)
    assert [one.number for one in store.cuts()] == [1, 3]
    assert len(scanned(reader, held, Wanted("last"))) == 50
    assert reader.hold(60, lambda one: one.number < 3) == held

    now += 40
    assert reader.renew(1, 1, 60)
    now += 40
    cut(4)
    assert [one.number for one in store.cuts()] == [1, 4], "it was renewed"
    now += 40
    cut(5)
    assert [one.number for one in store.cuts()] == [5]
    assert not list((tmp_path / "holds").iterdir())
    assert not reader.renew(1, 1, 60)
    with pytest.raises(DamagedCutError):
        scanned(reader, held, Wanted("last"))


def test_a_held_cut_of_a_life_that_is_over_does_not_cost_a_cut_under_way(tmp_path: Path) -> None:
    """Its number may be above that of the newest valid cut."""
    store = CheckpointStore(tmp_path)
    store.begin()
    old = Workers(store, 1, 1, 0)
    dice = random.Random(1)
    state: State = {("last", key): [((key, 0), key)] for key in range(5)}
    first = old.write(1, state, None, None, dice, time=(1, 0))
    store.commit(first)
    for number in range(2, 8):
        store.commit(old.write(number, state, None, None, dice, time=(number, 0)))
    held = store.hold(1000)
    assert held is not None
    assert held.number == 7
    life = store.begin(lambda one: first)
    new = Workers(store, life.incarnation, 1, 0)
    under_way = new.write(2, state, None, None, dice, time=(2, 0))
    store.prune(1, incarnation=life.incarnation)
    store.commit(under_way)
    latest = store.latest()
    assert latest is not None
    assert (latest.number, latest.incarnation) == (2, 2)
    assert len(scanned(store, held, Wanted("last"))) == 5


def test_who_may_not_write_reads_without_a_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    state: State = {("last", 1): [((1, 0), ef.PersistentList([1, 2]))]}
    store.commit(Workers(store, 1, 1, 0).write(1, state, None, None, random.Random(1)))

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr("emberflow.checkpoint.cuts.store.write", refuse)
    held = store.hold(60)
    assert held is not None
    assert store.renew(held.number, held.incarnation, 60)
    assert not (tmp_path / "holds").exists()


def test_ranges_have_no_gaps() -> None:
    ranges = split(HASH_MIN, HASH_MAX, 7)
    assert ranges[0][0] == HASH_MIN
    assert ranges[-1][1] == HASH_MAX
    assert all(high + 1 == low for (_, high), (low, _) in itertools.pairwise(ranges))
    assert split(3, 4, 10) == [(3, 3), (4, 4)]
