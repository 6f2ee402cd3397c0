"""The external sort after a shuffle: the result is sorted, no matter how much is spilled."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import Any

import numpy as np
import pytest

import emberflow as ef
from emberflow.rows.paths import encoded_path
from emberflow.runners.batch.shuffle import bus, sorting
from emberflow.runners.batch.shuffle.bus import (
    ANYWHERE,
    HASH_BITS,
    HASH_MASK,
    BusRows,
    Spread,
    unchunked,
)
from emberflow.runners.batch.shuffle.sorting import Sorter
from tests.batch.local import batch
from tests.strategies import random_flow

Item = tuple[int, int, bytes, Any]


def doubled(time: int, path: bytes) -> Exception:
    return LookupError(time, path)


def items(random: Random, count: int, depth: int) -> list[Item]:
    """Items with few hashes and times, so that paths decide."""
    made = {
        (
            random.randrange(4),
            random.choice((0, 1, -5, 2**62, -(2**62))),
            encoded_path(random.choice((0, 1, 255, 256, 65_536, -1, 2**40)) for _ in range(length)),
        )
        for _ in range(count)
        for length in (random.randint(1, depth),)
    }
    return [(*place, number) for number, place in enumerate(sorted(made))]


def chunks(of: list[Item], random: Random) -> list[bytes]:
    shuffled = random.sample(of, len(of))
    made = []
    while shuffled:
        part, shuffled = shuffled[:7], shuffled[7:]
        hashes, times, paths, payloads = map(list, zip(*part, strict=True))
        columns = np.array(hashes, np.int64), np.array(times, np.int64)
        made.append(bus.chunk(*columns, paths, "", payloads))
    return made


def ended(sorter: Sorter, given: list[bytes]) -> Any:
    for data in given:
        sorter.add(data)
    return sorter.ended()


def flat(blocks: Any) -> list[Item]:
    return [
        item
        for hashes, times, paths, payloads in blocks
        for item in zip(hashes.tolist(), times.tolist(), paths, payloads, strict=True)
    ]


@pytest.mark.parametrize("depth", [1, 3, 12])  # one word, several, and too long for numbers
@pytest.mark.parametrize("most", [1 << 20, 600, 100])
def test_items_come_out_sorted(monkeypatch: pytest.MonkeyPatch, most: int, depth: int) -> None:
    monkeypatch.setattr(sorting, "_BYTES_MAX", most)
    monkeypatch.setattr(sorting, "_RUNS_MAX", 3)
    monkeypatch.setattr(sorting, "_BLOCK_ITEMS", 4)
    for seed in range(10):
        random = Random(seed)
        sorter = Sorter(doubled)
        for _ in range(2):  # one slice after the other
            expected = items(random, random.choice((0, 1, 5, 200)), depth)
            assert flat(ended(sorter, chunks(expected, random))) == expected, seed


def test_a_place_that_is_there_twice_is_found_wherever_the_two_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sorting, "_BYTES_MAX", 300)
    monkeypatch.setattr(sorting, "_RUNS_MAX", 3)
    monkeypatch.setattr(sorting, "_BLOCK_ITEMS", 4)
    for seed in range(20):
        random = Random(seed)
        made = items(random, 200, 3)
        twice = random.choice(made)
        sorter = Sorter(doubled)
        with pytest.raises(LookupError) as raised:
            flat(ended(sorter, chunks([*made, twice], random)))
        assert raised.value.args == twice[1:3]
        sorter.close()


def test_what_is_put_away_is_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a slice of 40 megabytes two are held: the payloads in memory are counted during the merge."""
    monkeypatch.setattr(sorting, "_BYTES_MAX", 2 << 20)
    sorter = Sorter(doubled)
    path = encoded_path((0,))
    tracemalloc.start()
    try:
        for number in range(400):
            times = np.arange(number, 40_000, 400, dtype=np.int64)
            hashes = np.zeros(len(times), np.int64)
            payloads = [bytes(1_000) + time.to_bytes(4, "big") for time in times.tolist()]
            sorter.add(bus.chunk(hashes, times, [path] * len(times), "", payloads))
        after = 0
        for _, times, _, payloads in sorter.ended():
            assert times.tolist() == list(range(after, after + len(times)))
            assert int.from_bytes(payloads[0][1_000:], "big") == after
            after += len(times)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after == 40_000
    assert most < 20 << 20  # two megabytes sorted, as objects, and a block of each of twenty runs


def test_files_are_gone_however_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "_BYTES_MAX", 200)
    files: list[Any] = []

    class Noted(sorting._Run):
        def __init__(self, blocks: Any) -> None:
            super().__init__(blocks)
            files.append(self._file)

    monkeypatch.setattr(sorting, "_Run", Noted)
    random = Random(3)
    for ending in ("used up", "given up", "closed"):
        sorter = Sorter(doubled)
        for data in chunks(items(random, 200, 3), random):
            sorter.add(data)
        if ending == "used up":
            flat(sorter.ended())
        elif ending == "given up":
            blocks = sorter.ended()
            next(blocks)
            blocks.close()
        else:
            sorter.close()
        assert files
        assert all(file.closed for file in files)


@pytest.mark.parametrize("seed", range(24))
def test_random_flows_that_have_to_put_everything_away_equal_the_reference(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(sorting, "_BYTES_MAX", 150)
    monkeypatch.setattr(sorting, "_RUNS_MAX", 2)
    monkeypatch.setattr(sorting, "_BLOCK_ITEMS", 3)
    monkeypatch.setattr(bus, "_SLICES", 2)
    monkeypatch.setattr(bus, "_ITEMS_MAX", 10)
    bus._lanes.cache_clear()
    flow, elements = random_flow(Random(seed))
    found = batch(flow, elements, partitions=2, seed=seed)
    bus._lanes.cache_clear()
    assert repr(found) == repr(ef.run(flow, **elements))


# --- Rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 2, 7, 200, 1_000])
def test_every_partition_gets_as_many_slices(partitions: int) -> None:
    lanes = Spread(partitions).lanes(3)
    assert len(set(lanes.tolist())) == len(lanes)
    assert set((lanes >> HASH_BITS).tolist()) == {3}
    counts = np.bincount(bus.spark_hash(lanes) % partitions, minlength=partitions)
    assert set(counts.tolist()) == {len(lanes) // partitions}


@pytest.mark.parametrize("most", [1 << 16, 50])
def test_items_of_one_hash_are_in_rows_of_one_lane(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(bus, "_ITEMS_MAX", most)
    random = Random(5)
    out = BusRows(ANYWHERE)
    given: set[Item] = set()
    rows: list[tuple[int, int, bytes, bytes]] = []
    for number in range(30):
        hashes = [random.randrange(2_000) * 1_003_001 & HASH_MASK for _ in range(20)]
        units = [random.choice((0, 4)) for _ in range(20)]
        lanes = [unit << HASH_BITS | hash for unit, hash in zip(units, hashes, strict=True)]
        times = [20 * number + i for i in range(20)]
        paths = [encoded_path((0, i)) for i in range(20)]
        payloads: list[Any] = random.choice(([str(b) for b in lanes], list(lanes), [{1}] * 20))
        out.add(lanes, times, paths, payloads)
        given |= set(zip(lanes, times, paths, map(repr, payloads), strict=True))
        for made in out.full():
            rows += zip(*(column.to_pylist() for column in made.columns), strict=True)
    for made in out.rest():
        rows += zip(*(column.to_pylist() for column in made.columns), strict=True)
    found: set[Item] = set()
    lane_of: dict[int, int] = {}
    for lane, time, path, data in rows:
        items_of = unchunked(data)
        assert (items_of[1][0], items_of[2][0]) == (time, path)
        for hash, at, where, payload in flat([items_of]):
            whole = lane >> HASH_BITS << HASH_BITS | hash
            assert lane_of.setdefault(whole, lane) == lane
            found.add((whole, at, where, repr(payload)))
    assert found == given
