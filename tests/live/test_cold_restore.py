"""A restore that leaves rows in the files of the cut gives the rows that one that reads them all gives."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.checkpoint import Row
from emberflow.checkpoint.cuts.lists import SavedLists
from emberflow.checkpoint.cuts.manifest import Manifest
from emberflow.checkpoint.cuts.parts import writer as writer_module
from emberflow.checkpoint.cuts.rows import SCHEDULED, PackedRows
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.errors import DamagedCutError
from emberflow.engine.cuts.cut import Scheduled
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker
from emberflow.graph.versions import carry_plan
from emberflow.runners.live.cold import ahead as ahead_module
from emberflow.runners.live.cold import blocks as blocks_module
from emberflow.runners.live.cold import newer as newer_module
from emberflow.runners.live.cold import restored as restored_module
from emberflow.runners.live.cold import runs as runs_module
from emberflow.runners.live.cold.ahead import CopiedAhead
from emberflow.runners.live.cold.runs import SortedRuns
from emberflow.runners.live.wire.plan import Plan
from emberflow.runners.live.worker.cut_writer import CutOrder, CutWriter
from emberflow.runners.live.worker.cuts import CutsByTime
from emberflow.runners.live.worker.machine.spare import Spare
from emberflow.values.hashing import ALL_HASHES, HashRange, hash_ranges
from emberflow.values.owners import equal_owners
from emberflow.values.persistent import PersistentList
from tests.checkpoint.cases import State, Workers, graph, hash_of
from tests.effort import few
from tests.small_disk import SmallDisk, mounted

#: Equal keys that are pickled in several ways, and keys of all kinds.
KEYS: list[Any] = [*(f"key {n}" for n in range(300)), *range(60), True, 1.0, None, ("a", 1), b"a"]
STEPS = ("count", "sum", "window")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "small") as disk:
        yield disk


def chain_of_cuts(
    store: CheckpointStore,
    random: Random,
    spread: int,
    cuts: int = 4,
    *,
    growing: Collection[str] = (),
) -> tuple[Manifest, State]:
    """A full cut and some incremental ones, in which rows change and buckets are no more. Rows of steps that are
    ``growing`` have lists."""
    workers = Workers(store, store.begin().incarnation, random.choice((1, 3)), spread)
    state: State = {}
    cut: Manifest | None = None
    times = itertools.count(1)
    for number in range(1, 1 + cuts):
        changed = []
        for step in STEPS:
            for key in random.sample(
                KEYS, len(KEYS) if number == 1 else random.choice((0, 5, 100))
            ):
                changed.append((step, key))
                before = state.pop((step, key), None)  # an equal key is replaced
                payload: Any = (step, key, number)
                if step in growing and random.random() < 0.9:
                    older = before[0][1] if before else None
                    grows = older.__class__ is PersistentList and random.random() < 0.8
                    payload = (older if grows else PersistentList([key])).append(number)
                if random.random() < 0.9:
                    state[step, key] = [((next(times), random.randrange(-5, 5)), payload)]
        changed = list(dict.fromkeys(changed))
        cut = workers.write(
            number, state, None if number == 1 else changed, cut, random, (10**6, 0)
        )
        store.commit(cut)
    assert cut is not None
    return cut, state


def rows_by_key(store: CheckpointStore, cut: Manifest, own: list[HashRange]) -> dict[str, Any]:
    known: dict[str, dict[Any, Row]] = {step: {} for step in STEPS}
    for row in store.rows_in(cut, own):
        known[row.operation][row.key] = row
    return known


def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Against a dict of what a whole restore reads, while keys are taken, put and merged."""
    random = Random(seed)
    spread = random.choice((0, 0, 40))
    sizes = random.choice(((2_000, 500), (64 << 20, 2 << 20), (64 << 20, 300)))
    monkeypatch.setattr(
        writer_module.PartWriter.__init__,
        "__kwdefaults__",
        {"run_bytes": sizes[0], "group_bytes": sizes[1], "pause": lambda: None},
    )
    monkeypatch.setattr(
        runs_module, "hashes_of", lambda keys: [hash_of(key, spread) for key in keys]
    )
    monkeypatch.setattr(runs_module, "_AFTER_RESTORE_SECONDS", random.choice((0.0, 0.01)))
    monkeypatch.setattr(runs_module, "_TAKEN_AT_ONCE", random.choice((1, 1_000)))
    monkeypatch.setattr(restored_module, "_SEVERAL", random.choice((0, 4)))
    monkeypatch.setattr(runs_module, "_PIECE_ROWS", random.choice((64, 1_000)))
    monkeypatch.setattr(runs_module, "_READ_ROWS", random.choice((64, 1_000)))
    is_merged = random.random() < 0.5
    if not is_merged:
        monkeypatch.setattr(SortedRuns, "_merge_cut", lambda self: None)
    store = CheckpointStore(tmp_path / "checkpoint")
    cut, _ = chain_of_cuts(store, random, spread)
    all_ranges = [*hash_ranges(7)]
    own = random.choice((list(ALL_HASHES), all_ranges[::2], all_ranges[:1]))
    expected = rows_by_key(store, cut, own)
    left_cold = STEPS[:2]
    opened = store.columns(cut, own, left_cold)
    assert set(opened) == set(left_cold)
    rest = list(store.rows_in(cut, own, left_out=left_cold))
    assert {row.key: row for row in rest} == expected["window"]
    assert {row.operation for row in rest} <= {"window"}
    for step in left_cold:
        (tmp_path / "cold").mkdir(exist_ok=True)
        cold, known = SortedRuns(str(tmp_path / "cold")), dict(expected[step])
        cold.begin_with(step, opened[step])
        assert len(cold) >= len(known)
        for number in range(30):
            what, some = random.random(), random.sample(KEYS, random.choice((1, 5, 100)))
            some = list(dict.fromkeys(some))
            if what < 0.4:
                rows = [
                    Row(step, hash_of(key, spread), key, (2_000_000 + number, 0), number)
                    for key in some
                    if key not in known
                ]
                assert not cold.put(rows)
                known.update((row.key, row) for row in rows)
            elif what < 0.45:
                kept = random.choice((all_ranges[:6], all_ranges[1:]))
                cold.keep_only(kept)
                known = {
                    key: row for key, row in known.items() if any(row.key_hash in of for of in kept)
                }
            elif what < 0.8:
                found = {key: known.pop(key) for key in some if key in known}
                assert {row.key: row for row in cold.take(some)} == found
            else:
                found = {key: known[key] for key in some if key in known}
                assert {row.key: row for row in cold.find(some)} == found
                reading, before = cold.all(), dict(known)
                for row in cold.take(some):
                    del known[row.key]
                read = list(reading)
                assert len(read) == len(before)
                assert {row.key: row for row in read} == before
            assert (len(cold) > 0) >= (len(known) > 0)
            if is_merged and number == 15:
                cold.settle(20)
                assert len(cold) == len(known)
            assert not os.listdir(tmp_path / "cold") if known else True
        cold.end(300)
        assert {row.key for row in cold.all()} == {
            key for key, row in known.items() if row.place[0] > 300
        }
        cold.close()


@pytest.mark.parametrize("seed", range(few(24)))
def test_rows_that_stay_in_files_are_those_of_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    check(tmp_path, monkeypatch, seed)


def check_copies(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """What was read from earlier cuts, and is brought up to the last one, against what a restore reads."""
    random = Random(seed)
    spread = random.choice((0, 0, 40))
    monkeypatch.setattr(
        runs_module, "hashes_of", lambda keys: [hash_of(key, spread) for key in keys]
    )
    monkeypatch.setattr(runs_module, "_AFTER_RESTORE_SECONDS", random.choice((0.0, 0.01)))
    monkeypatch.setattr(ahead_module, "_AT_ONCE", random.choice((3, 256)))
    monkeypatch.setattr(newer_module, "_BATCH_ROWS", random.choice((1, 2, 7, 1_024)))
    store = CheckpointStore(folder / "checkpoint")
    growing = random.choice(((), STEPS[2:], STEPS[1:]))
    chain_of_cuts(store, random, spread, cuts=5, growing=growing)
    cuts = store.cuts()
    last = random.choice(cuts[3:])  # which is another chain for whoever has read a newer one
    before, behind = list(hash_ranges(7)[:4]), list(hash_ranges(7)[4:])
    flow = ef.Flow("copied")
    for step in STEPS:
        flow.front(f"of {step}").key_by(str).group(window=2, name=step).sink(f"out of {step}")
    layout, all_cold = Layout(flow.graph()), STEPS[: random.choice((0, 2, 2, 3))]
    ahead = CopiedAhead(store, str(folder / "cold"), layout, behind, behind, all_cold)
    for cut in cuts:
        if random.random() < 0.5:
            ahead.bring_up(cut)
            if random.random() < 0.7:
                ahead.settle(20)
    state, taken = ahead.taken(last)
    assert set(taken) == set(all_cold) - set(growing)
    lists = SavedLists()
    rows = list(store.rows_in(last, behind, lists=lists))
    worker = Worker(layout, 0, 1)
    state.hand_over(worker, last.time)
    made = {
        (machine.operation, row.key): row
        for machine in worker.machines.stateful.values()
        for row in machine.rows_at(last.time)
    }
    assert {identity: row[3:] for identity, row in made.items()} == {
        (row.operation, row.key): row[3:] for row in rows if row.operation not in taken
    }
    assert {repr(key) for _, key in made} == {
        repr(row.key) for row in rows if row.operation not in taken
    }
    assert known_lists(ahead.lists) == known_lists(lists)
    own = rows_by_key(store, last, before)
    for step in taken:
        cold = SortedRuns(str(folder / "cold"))
        cold.begin_with(step, store.columns(last, before, [step])[step])
        known = {**own[step], **rows_by_key(store, last, behind)[step]}
        cold.adopt(taken[step])
        for _ in range(10):
            some = random.sample(KEYS, 50)
            found = {key: known.pop(key) for key in dict.fromkeys(some) if key in known}
            assert {row.key: row for row in cold.take(some)} == found
        assert {row.key: row for row in cold.all()} == known
        cold.settle(20)
        assert {row.key: row for row in cold.take(KEYS)} == known
        assert not cold.take(KEYS)


def known_lists(lists: SavedLists) -> list[Any]:
    """What the next cut may continue: by bucket the cut that has the lists, and the lists."""
    found = [
        (repr(bucket), cut, [list(each) for each in known])
        for bucket, (cut, known) in lists._stored.items()
    ]
    return sorted(found)


@pytest.mark.parametrize("seed", range(few(12)))
def test_rows_that_are_copied_ahead_are_those_of_the_last_cut(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_copies(tmp_path, monkeypatch, seed)


def leave_what_older_cuts_have(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SortedRuns, "_take_older", lambda self, found: None)


def let_older_rows_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(blocks_module, "_newest", lambda piece: piece.hashes == piece.hashes)


@pytest.mark.parametrize("broken", [leave_what_older_cuts_have, let_older_rows_count])
def test_it_is_caught(
    broken: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)

    def check_all() -> None:
        for seed in range(6):
            check(tmp_path / str(seed), monkeypatch, seed)

    with pytest.raises((AssertionError, KeyError)):
        check_all()


def filled(
    store: CheckpointStore, keys: int, payload: Callable[[int], Any] = lambda n: 1
) -> Manifest:
    life = store.begin()
    rows = [Row("count", hash_of(f"k{n}", 0), f"k{n}", (n, 0), payload(n)) for n in range(keys)]
    part = store.write_part(1, 0, [rows], incarnation=life.incarnation)
    cut = Manifest.of(graph(), number=1, incarnation=1, time=(keys, 0), parts=[part])
    store.commit(cut)
    return cut


def test_a_disk_that_is_full_keeps_rows_in_memory(disk: SmallDisk, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    cut = filled(store, 2_000)
    disk.fill()
    cold = SortedRuns(str(disk.folder / "cold"))
    cold.begin_with("count", store.columns(cut, ALL_HASHES, ["count"])["count"])
    cold.settle(20)
    assert {row.key for row in cold.take(["k1", "k1999", "none"])} == {"k1", "k1999"}
    assert len(cold) == len(list(cold.all())) == 1_998
    disk.free()
    cold.put([Row("count", hash_of("k1", 0), "k1", (9_999, 0), 7)])  # and merges, now that it can
    cold.settle(20)
    assert cold.runs == 2
    assert [row.payload for row in cold.take(["k1", "k2", "k1999"])] in ([7, 1], [1, 7])
    cold.close()


def test_damage_is_told_by_whoever_needs_the_rows(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    cut = filled(store, 2_000, lambda n: Random(n).randbytes(3_000))
    opened = store.columns(cut, ALL_HASHES, ["count"])["count"]
    path = tmp_path / cut.parts[0].path
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    cold = SortedRuns(str(tmp_path / "cold"))
    cold.begin_with("count", opened)
    cold.settle(20)
    with pytest.raises(DamagedCutError):
        cold.take([f"k{n}" for n in range(2_000)])
    cold.close()


def test_lists_are_restored_with_the_chain_that_they_continue(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    cut = filled(store, 5, lambda n: PersistentList([1, 2, 3]))
    assert store.columns(cut, ALL_HASHES, ["count"]) == {}


def cut_of(worker: Worker, store: CheckpointStore, number: int, moment: Moment) -> Manifest:
    """A cut of a worker that holds everything, committed."""
    incarnation = store.incarnation()
    writer = CutWriter(store, 0, incarnation, Spare())
    try:
        writer.begin(worker, CutOrder(number, moment, BEFORE_ALL, None), {})
        while (captured := writer.go_on(loop_is_busy=False)) is None:
            pass
    finally:
        writer.close(10)
    graph = worker.layout.graph
    cut = Manifest.of(
        graph, number=number, incarnation=incarnation, time=moment, parts=captured.parts
    )
    store.commit(cut)
    return cut


def test_a_new_version_leaves_the_keys_of_unchanged_steps_in_files(tmp_path: Path) -> None:
    """Their state is what it is when all of it is read: renamed, without what has expired for the old version."""

    def versioned(name: str, lives: int, total: Callable[[int, int], int]) -> ef.Flow:
        flow = ef.Flow("versioned")
        keyed = flow.front("in").key_by(lambda n: n % 500)
        keyed.count(name=name).sink("counts")
        keyed.fold(initial=0, combine=total, name="totals", expire_after=lives).sink("totals")
        keyed.window(ef.Session(600), emit="close").count(name="sessions").sink("sessions")
        keyed.fold(initial=0, combine=total, name="migrated").sink("migrated")
        return flow

    store = CheckpointStore(tmp_path / "checkpoint")
    store.begin()
    before = Layout(versioned("old", 300, lambda total, n: total + n).graph())
    worker, acker = Worker(before, 0, 1), Acker(workers=1, fronts=[0])
    elements = [((at, 0), at * 7) for at in range(1_000)]
    effects = worker.enter(before.graph.fronts["in"].id, elements, {0: (1_000, 0)})
    while effects.ack:
        effects = worker.progress(acker.receive(effects.ack))
    first = cut_of(worker, store, 1, (1_000, 0))
    incarnation = store.incarnation()
    cut = Manifest.of(
        before.graph, number=2, incarnation=incarnation, time=(1_200, 0), parts=[], base=first
    )
    store.commit(cut)  # nothing has changed since the first one, but for what has expired
    graph = versioned("new", 900, lambda total, n: total - n).graph()
    carry = {"new": "old", "migrated": ef.Migrate("migrated", lambda key, total: -total)}
    plan = Plan(
        graph, 1, 2, None, "", {}, equal_owners(1), {}, 100, 100,  # type: ignore[arg-type]
        carried=carry_plan(cut.steps, graph, carry),
    )  # fmt: skip
    restored, cold_keys = [], []
    for state_memory in (None, 400):
        cuts = CutsByTime(plan._replace(state_memory=state_memory), 0, {})
        cuts.engine.keep_cold(partial(SortedRuns, str(tmp_path / "cold")))
        for _ in cuts.restored(store, cut, SavedLists()):
            pass
        machines = cuts.engine.machines.stateful.values()
        cold_keys.append(
            {machine.operation.split("/")[0]: machine.cold_keys for machine in machines}
        )
        rows = [row for machine in machines for row in machine.rows_at(cut.time)]
        restored.append(sorted(rows, key=repr))
        cuts.engine.close_cold()
    assert cold_keys[0] == {"new": 0, "totals": 0, "sessions": 0, "migrated": 0}
    assert cold_keys[1] == {"new": 500, "totals": 299, "sessions": 500, "migrated": 0}
    assert restored[0] == restored[1]
    assert Counter(row.operation.split("/")[0] for row in restored[0])["totals"] == 99


def test_ticks_at_rest_are_those_of_the_cut(tmp_path: Path) -> None:
    """What closes, what later cuts hold and what stays when slices leave is as if all had been read."""
    flow = ef.Flow("resting")
    keyed = flow.front("in").key_by(lambda n: n % 300)
    keyed.window(ef.Session(500), emit="close").count().sink("sessions")
    keyed.window(ef.Tumbling(400), emit="close").sum().sink("sums")
    layout = Layout(flow.graph())
    front, store = layout.graph.fronts["in"].id, CheckpointStore(tmp_path / "checkpoint")
    store.begin()

    def go_on(worker: Worker, acker: Acker, begin: int, end: int, until: Moment) -> list[Any]:
        elements = [((at, 0), at * 7) for at in range(begin, end)]
        effects, given = worker.enter(front, elements, {0: until}), []
        while effects.ack:
            effects = worker.progress(acker.receive(effects.ack))
            given += [(bundle.sink, item) for bundle in effects.bundles for item in bundle.items]
        return given

    worker, acker = Worker(layout, 0, 1), Acker(workers=1, fronts=[0])
    go_on(worker, acker, 0, 1_000, (1_000, 0))
    first = cut_of(worker, store, 1, (1_000, 0))
    again = map(Scheduled._make, store.rows_in(first, ALL_HASHES, kind=SCHEDULED))
    part = store.write_part(
        2, 0, [list(again)[::2]], incarnation=store.incarnation(), kind=SCHEDULED, base=1
    )  # some are in two parts of the chain
    cut = Manifest.of(
        layout.graph, number=2, incarnation=store.incarnation(), time=(1_000, 0), parts=[part], base=first
    )  # fmt: skip
    store.commit(cut)
    plan = Plan(
        layout.graph, 1, 2, None, "", {}, equal_owners(1), {}, 100, 100,  # type: ignore[arg-type]
    )  # fmt: skip
    found = []
    for number, state_memory in enumerate((None, 400)):
        cuts = CutsByTime(plan._replace(state_memory=state_memory), 0, {})
        worker, acker = cuts.engine, Acker(workers=1, fronts=[0])
        worker.keep_cold(partial(SortedRuns, str(tmp_path / "cold")))
        acks = [effects.ack for effects in cuts.restored(store, cut, SavedLists())]
        for ack in acks:
            if ack:
                acker.receive(ack)
        resting = [machine.pending.resting for machine in worker.machines.ticking.values()]
        assert [ticks is None for ticks in resting] == [state_memory is None] * 2
        waiting = [
            sorted(pending.waiting_at(cut.time)) for pending in worker.machines.all_pending()
        ]
        given = go_on(worker, acker, 1_000, 1_150, (1_150, 0))
        later = cut_of(worker, store, 3 + number, (1_150, 0))
        kept = sorted(store.rows_in(later, ALL_HASHES, kind=SCHEDULED))
        given += go_on(worker, acker, 1_150, 1_700, (1_700, 0))
        halves = equal_owners(2)
        for machine in worker.machines.ticking.values():
            machine.leave_behind(halves, 1)
        left = [sorted(machine.ticks.all()) for machine in worker.machines.ticking.values()]
        given += go_on(worker, acker, 1_700, 1_700, AFTER_ALL)
        found.append((waiting, given, kept, sorted(store.rows_in(later, ALL_HASHES)), left))
        worker.close_cold()
    for whole, at_rest in zip(*found, strict=True):
        assert whole
        assert whole == at_rest


def test_what_is_on_disk_is_copied_to_a_cut_and_not_encoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the life that evicted it, and in one that was restored and left it in the files of the cut."""
    encoded = 0

    def counting_of(make: Any) -> Any:
        def made(self: Any, chunk: Any) -> Any:
            nonlocal encoded
            columns = make(self, chunk)
            is_packed = isinstance(chunk, PackedRows)
            encoded += len(chunk) if is_packed or columns is not None else 0
            return columns

        return made

    for name in ("_add_packed", "_compiled_columns", "_plain_columns", "_columns"):
        monkeypatch.setattr(
            writer_module.PartWriter, name, counting_of(getattr(writer_module.PartWriter, name))
        )
    flow = ef.Flow("counting")
    flow.front("in").key_by(lambda key: key).count(name="count").sink("out")
    layout, folder = Layout(flow.graph()), str(tmp_path / "cold")
    store = CheckpointStore(tmp_path / "checkpoint")
    store.begin()
    worker, acker = Worker(layout, 0, 1), Acker(workers=1, fronts=[0])
    worker.keep_cold(partial(SortedRuns, folder))
    front = layout.graph.fronts["in"].id
    keys = [f"k{n}" for n in range(1_000)]
    effects = worker.enter(front, [((n, 0), key) for n, key in enumerate(keys)], {0: (1_000, 0)})
    while effects.ack:
        effects = worker.progress(acker.receive(effects.ack))
    worker.trim()
    assert worker.evict(1_000) == 500
    first = cut_of(worker, store, 1, (1_000, 0))
    assert encoded == 500
    (step,) = worker.cold_stores()
    assert {(row.key, row.payload) for row in store.rows(first)} == {(key, 1) for key in keys}
    worker.close_cold()

    encoded = 0
    again = Worker(layout, 0, 1)
    again.keep_cold(partial(SortedRuns, folder))
    (cold,) = again.cold_stores().values()
    assert isinstance(cold, SortedRuns)
    cold.begin_with(step, store.columns(first, ALL_HASHES, [step])[step])
    again.restore((1_000, 0), [], [])
    acker = Acker(workers=1, fronts=[0])
    effects = again.enter(front, [((1_000 + n, 0), f"k{n}") for n in range(10)], {0: (2_000, 0)})
    while effects.ack:
        effects = again.progress(acker.receive(effects.ack))
    assert again.keys_in_memory == 10
    second = cut_of(again, store, 2, (2_000, 0))
    assert encoded == 10
    assert list(store.rows(second)) == [
        row._replace(payload=2, place=(1_000 + keys.index(row.key), 0))
        if row.key in keys[:10]
        else row
        for row in store.rows(first)
    ]
    again.close_cold()
