"""Keys out of memory: what is put is given back, the bound is kept, and the disk is only a cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.cuts.cut import Row
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, Keys, Scan, WorkerRead
from emberflow.engine.progress.acker import Acker
from emberflow.engine.queries.worker import readable_states
from emberflow.engine.worker.worker import Worker
from emberflow.errors import InputError
from emberflow.runners.live.cold import bound as bound_module
from emberflow.runners.live.cold import runs as runs_module
from emberflow.runners.live.cold.bound import StateBound
from emberflow.runners.live.cold.runs import SortedRuns
from emberflow.runners.live.worker.machine.memory import MemoryWatch
from emberflow.values.hashing import key_hash
from tests.small_disk import SmallDisk, mounted


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "small") as disk:
        yield disk


def row(key: Any, time: int, payload: Any = None) -> Row:
    return Row(
        "count", runs_module.hashes_of([key])[0], key, (time, key_hash(key) % 7 - 3), payload
    )


@pytest.mark.parametrize(
    ("small", "piece", "hashes"), [(1 << 16, 1 << 17, 1 << 32), (40, 32, 1 << 32), (40, 64, 25)]
)
def test_what_is_put_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, piece: int, hashes: int
) -> None:
    """Against a dict: with merges of all kinds, and with many keys of one hash."""
    monkeypatch.setattr(runs_module, "_SMALL_ROWS", small)
    monkeypatch.setattr(runs_module, "_PIECE_ROWS", piece)
    monkeypatch.setattr(
        runs_module,
        "hashes_of",
        lambda keys: [key_hash(key) % hashes if hashes < 99 else key_hash(key) for key in keys],
    )
    random, store, known = Random(small + hashes), SortedRuns(str(tmp_path)), dict[Any, Row]()
    keys: list[Any] = [f"k{n}" if n % 3 else n for n in range(900)]
    for step in range(250):
        what, some = random.random(), random.sample(keys, random.choice((1, 20, 200)))
        if what < 0.5:
            rows = [row(key, step, (key, [step])) for key in some if key not in known]
            assert not store.put(rows)
            known.update((each.key, each) for each in rows)
        elif what < 0.9:
            expected = {key: known.pop(key) for key in some if key in known}
            assert {each.key: each for each in store.take(some)} == expected
        else:
            expected = {key: known[key] for key in some if key in known}
            assert {each.key: each for each in store.find(some)} == expected
            reading, before = store.all(), dict(known)
            for key in [each.key for each in store.take(some)]:
                del known[key]
            assert {each.key: each for each in reading} == before
        assert len(store) == len(known)
        assert not os.listdir(tmp_path), "files have names"
    store.settle(20)
    assert {each.key: each for each in store.all()} == known
    assert store.runs <= 12
    store.end(200)
    assert {each.key for each in store.all()} == {
        k for k, each in known.items() if each.place[0] > 200
    }
    store.close()


def test_what_pickle_does_not_take_stays_in_memory(tmp_path: Path) -> None:
    store = SortedRuns(str(tmp_path))
    rows = [row("a", 1, 5), row("b", 1, lambda: None), row("c", 1, 7)]
    assert store.put(rows) == {1}
    assert store.take(["a", "b", "c"]) in ([rows[0], rows[2]], [rows[2], rows[0]])


def test_a_folder_that_is_gone_and_a_disk_that_is_full(disk: SmallDisk) -> None:
    folder = disk.folder / "cold"
    store = SortedRuns(str(folder))
    rows = [row(f"k{n}", 1, n) for n in range(100)]
    store.put(rows)
    shutil.rmtree(folder)
    assert len(store.find([each.key for each in rows])) == 100
    store.put([row("more", 2)])
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        store.put([row(f"n{n}", 3, "x" * 1_000) for n in range(5_000)])
    assert len(store) == 101
    disk.free()
    assert {each.key for each in store.take(["more", "k7"])} == {"more", "k7"}


def test_a_merge_that_finds_no_room_leaves_the_rows_where_they_are(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "_SMALL_ROWS", 64)
    monkeypatch.setattr(runs_module, "_PIECE_ROWS", 100)
    store = SortedRuns(str(disk.folder))
    rows = [row(f"k{n}", 1, f"{n} " + "x" * 400) for n in range(800)]
    for begin in range(0, 800, 200):  # they take more than half of the disk
        store.put(rows[begin : begin + 200])
    store.settle(20)
    assert store.runs == 4
    keys = [each.key for each in rows]
    assert sorted(store.find(keys)) == sorted(rows)
    left = rows[::4]
    gone = [each for each in rows if each not in left]
    assert sorted(store.take([each.key for each in gone])) == sorted(gone)
    store.put(again := [row("more", 2)])  # and what is left now fits twice
    store.settle(20)
    assert store.runs == 1
    assert sorted(store.find([*keys, "more"])) == sorted([*left, *again])
    store.close()


class Counting:
    """A worker that counts, alone."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        flow = ef.Flow("counting")
        flow.front("in").key_by(lambda key: key).count().sink("out")
        graph = flow.graph()
        self._front = graph.fronts["in"].id
        self.worker, self._acker = Worker(Layout(graph), 0, 1), Acker(workers=1, fronts=[0])
        self.at = 0
        self.released: list[Any] = []
        #: From when on reads need everything.
        self.kept: tuple[int, int] | None = None
        #: What the process seems to have.
        self.resident = 0
        monkeypatch.setattr(bound_module, "resident", lambda: self.resident)
        monkeypatch.setattr(bound_module, "_KEYS_MIN", 100)
        self.bound = StateBound(self.worker, 1 << 20, str(folder))

    def count(self, keys: list[str]) -> None:
        elements = [((self.at + number, 0), key) for number, key in enumerate(keys)]
        self.at += len(keys)
        effects = self.worker.enter(self._front, elements, {0: (self.at, 0)})
        while effects.ack:
            progress = self._acker.receive(effects.ack)
            effects = self.worker.progress(progress._replace(kept=self.kept))
            self.released += [item[2] for bundle in effects.bundles for item in bundle.items]
        self.worker.tidy()


def test_a_worker_keeps_to_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(tmp_path, monkeypatch)
    counting.count([f"k{n}" for n in range(1_000)])
    counting.bound.go_on(1.0)
    assert counting.bound.keys_max is None
    counting.resident = 1 << 20
    counting.bound.go_on(2.0)
    assert counting.bound.keys_max == 900
    for step in range(20):
        counting.count([f"k{n}" for n in range(step * 100, step * 100 + 500)])
        counting.bound.go_on(3.0 + step)
        assert counting.worker.keys_in_memory <= 900 + 500
        assert counting.bound.pressure < 0.95
    assert counting.worker.keys == 2_400
    assert counting.worker.cold_keys >= 1_000
    counts = dict(counting.released)
    expected = dict(ef.run(_flow(), **{"in": _all_keys()})["out"])
    assert counts == expected
    # It goes on growing, so the values do.
    counting.resident += 32 << 20
    counting.bound.go_on(30.0)
    assert counting.bound.keys_max == 810
    # Memory is short; then it is not.
    counting.resident = 1 << 19
    counting.bound.go_on(31.0, pressure=0.9)
    assert counting.bound.keys_max == 810
    counting.bound.go_on(32.0, pressure=0.5)
    assert counting.bound.keys_max == 850
    counting.bound.close()


def test_windows_joins_and_lists_go_to_disk_and_come_back(tmp_path: Path) -> None:
    """Also when it is the end of a window that brings their key back."""
    flow = ef.Flow("kept")
    numbers = flow.front("in")
    by_key = numbers.key_by(lambda n: n % 97)
    by_key.window(ef.Session(150), emit="close").collect().sink("sessions")
    by_key.fold(initial=ef.PersistentList(), combine=lambda known, n: known.append(n)).sink("lists")
    by_key.over(rows=3).sum().sink("over")
    odd = numbers.filter(lambda n: n % 2 == 1).key_by(lambda n: n % 97)
    odd.join(by_key, how="left", within=120).sink("joined")
    graph = flow.graph()
    worker, acker = Worker(Layout(graph), 0, 1), Acker(workers=1, fronts=[0])
    worker.keep_cold(partial(SortedRuns, str(tmp_path)))
    dice = Random(5)
    # Rests in which windows end, of keys that nobody touched since they went.
    times = [at + at // 400 * 200 for at in range(3_000)]
    elements = [((at, 0), dice.randrange(1_000)) for at in times]
    released: dict[str, list[Any]] = {name: [] for name in graph.sinks}
    cold: dict[str, int] = dict.fromkeys(worker.cold_stores(), 0)
    for begin in range(0, len(elements), 25):
        given = elements[begin : begin + 25]
        until = (given[-1][0][0] + 1, 0) if begin + 25 < len(elements) else AFTER_ALL
        effects = worker.enter(graph.fronts["in"].id, given, {0: until})
        while effects.ack:
            effects = worker.progress(acker.receive(effects.ack))
            for bundle in effects.bundles:
                released[bundle.sink] += [item[2] for item in bundle.items]
        worker.trim()
        worker.evict(400)
        for step, store in worker.cold_stores().items():
            cold[step] = max(cold[step], len(store))
    assert min(cold.values()) > 30, cold
    assert released == ef.run(flow, **{"in": [ef.At(moment[0], n) for moment, n in elements]})
    worker.close_cold()


def _flow() -> ef.Flow:
    flow = ef.Flow("counting")
    flow.front("in").key_by(lambda key: key).count().sink("out")
    return flow


def _all_keys() -> list[str]:
    keys = [f"k{n}" for n in range(1_000)]
    for step in range(20):
        keys += [f"k{n}" for n in range(step * 100, step * 100 + 500)]
    return keys


def test_reads_see_cold_keys_and_leave_them_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that come back, or go, while a scan is under way."""
    counting = Counting(tmp_path, monkeypatch)
    keys = [f"k{n}" for n in range(1_000)]
    counting.count(keys + keys[:100])
    worker = counting.worker
    assert worker.evict(2_000) == 500
    name = next(iter(readable_states(worker.layout)))
    now = counting.kept = (counting.at, 0)
    asked = worker.reading.ask(WorkerRead(1, now, ((0, Keys(name, ("k7", "k500", "none"))),)))
    assert asked is not None
    assert asked.rows == [(0, "k7", 2), (0, "k500", 1)]
    assert worker.reading.ask(WorkerRead(2, now, ((0, Scan(name)),))) is None
    assert worker.cold_keys == 500
    rows: list[Any] = []
    for step in range(1_000):
        page = worker.reading.go_on(10)
        if page is not None:
            assert page.problem is None
            rows += page.rows
            if not page.more:
                break
            worker.reading.more(2)
        if step % 10 == 5:  # what comes later is not of that time
            counting.count([f"k{n}" for n in range(step, step + 50)])
            worker.evict(100)
    assert sorted(rows) == sorted((0, key, 1 + (key in keys[:100])) for key in keys)


def test_a_full_disk_slows_the_fronts_and_says_so(
    disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting(disk.folder / "cold", monkeypatch)
    counting.count([f"k{n}" for n in range(200)])
    counting.resident = 1 << 20
    disk.fill()
    counting.bound.go_on(1.0)
    for step in range(1, 4):
        counting.count([f"k{n}" for n in range(step * 200, step * 200 + 200)])
        counting.bound.go_on(1.0 + 2 * step)
    assert counting.worker.keys_in_memory == 800
    assert isinstance(counting.bound.problem, OSError)
    assert "takes no files" in caplog.text
    assert len(caplog.records) == 1
    assert counting.bound.pressure == pytest.approx(0.95)
    watch = MemoryWatch()
    assert watch.most(1_000, 10.0, counting.bound.pressure) <= 1
    disk.free()
    for step in range(10):
        counting.bound.go_on(20.0 + step)
    assert counting.bound.problem is None
    assert counting.bound.pressure == 0.0
    assert watch.most(1_000, 30.0, counting.bound.pressure) > 1
    counting.bound.close()


@pytest.mark.parametrize("value", ["", "4 apples", "12", 1_000, True, "-1g", None])
def test_a_size_that_is_none_is_refused(value: Any) -> None:
    from emberflow.runners.live.builder import _size

    with pytest.raises(InputError, match="stateMemory"):
        _size("stateMemory", value)


def test_sizes_are_as_sparks() -> None:
    from emberflow.runners.live.builder import _size

    given: list[Any] = ["4g", "512m", "1.5GB", 1 << 24, "2048k"]
    assert [_size("stateMemory", value) for value in given] == [
        4 << 30,
        512 << 20,
        3 << 29,
        1 << 24,
        2 << 20,
    ]
