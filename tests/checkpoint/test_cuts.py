"""What was stored is read back: any rows, any chain of cuts, any number of workers."""

from __future__ import annotations

import pickle
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.checkpoint import SCHEDULED, DamagedCutError, Manifest, compaction_due, removed
from emberflow.checkpoint.cuts import manifest as manifest_module
from emberflow.checkpoint.cuts import tables
from emberflow.checkpoint.cuts.lists import SavedLists, begins_with
from emberflow.checkpoint.cuts.manifest import ROWS_PER_FILE
from emberflow.checkpoint.cuts.parts import writer as writer_module
from emberflow.checkpoint.cuts.store import CheckpointStore
from emberflow.checkpoint.errors import CheckpointError
from emberflow.values.hashing import HASH_MAX, HASH_MIN, hash_ranges, key_hash
from emberflow.values.item import TIME_MAX, TIME_MIN
from tests.checkpoint.cases import FILES, KINDS, STORES, State, Workers, graph, rows_of, state_of
from tests.effort import examples, few


@dataclass(frozen=True)
class Postings:
    word: str
    found: ef.PersistentList[Any]


KEYS = st.one_of(
    st.sampled_from(["a", "b", 1, True, 1.0, None, ("a", 1), b"a"]),
    st.integers(0, 30),
    st.text(max_size=3),
)
PLACES = st.tuples(
    st.integers(TIME_MIN, TIME_MAX),
    st.integers(-(2**32), 2**31),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
).map(lambda parts: (parts[0], parts[1], *parts[2]))
PAYLOADS = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3).map(tuple),
    st.lists(st.text(max_size=2), max_size=5).map(ef.PersistentList),
    st.lists(st.text(max_size=2), max_size=5).map(lambda n: Postings("x", ef.PersistentList(n))),
)
BUCKETS = st.lists(st.tuples(PLACES, PAYLOADS), min_size=1, max_size=4)
OPERATIONS = st.sampled_from(["last", "count", "ä"])


@pytest.mark.parametrize("kind", FILES)
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    buckets=st.dictionaries(st.tuples(OPERATIONS, KEYS), BUCKETS, max_size=25),
    writers=st.integers(1, 8),
    readers=st.integers(1, 8),
    spread=st.sampled_from([0, 0, 3]),
    seed=st.integers(0, 9),
)
def test_any_rows_come_back_to_any_number_of_workers(
    kind: str, buckets: State, writers: int, readers: int, spread: int, seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = pickle.loads(pickle.dumps(STORES[kind](Path(folder))))
        life = store.begin()
        cut = Workers(store, life.incarnation, writers, spread).write(
            1, buckets, None, None, random.Random(seed), time=(5, 1)
        )
        assert store.latest() is None
        store.commit(cut)
        found = store.latest()
        assert found == cut
        assert Workers(store, 1, readers, spread).restore(found) == buckets


def grown(payload: Any, dice: random.Random) -> Any:
    """The next accumulator: its lists have grown or were replaced."""
    if isinstance(payload, ef.PersistentList):
        return payload.extend(dice.choices("pqr", k=dice.randint(0, 300)))
    if isinstance(payload, Postings):
        return Postings(payload.word, grown(payload.found, dice))
    if isinstance(payload, tuple):
        return tuple(grown(part, dice) for part in payload)
    return payload


def fresh(dice: random.Random) -> Any:
    words: ef.PersistentList[Any] = ef.PersistentList(dice.choices("xyz", k=dice.randint(0, 600)))
    return dice.choice(
        [
            dice.randint(0, 99),
            words,
            (1, words, words),
            Postings("w", words),
            (words, ef.PersistentList([words, "inner"])),
            (words.append("one"), words.append("other")),
        ]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(few(8)))
def test_a_chain_of_cuts_is_the_state_as_of_the_last(
    kind: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets change, vanish and return; cuts are abandoned; incarnations have different workers."""
    dice = random.Random(f"{kind} {seed}")
    monkeypatch.setattr(writer_module, "_GROUP_ROWS_MAX", dice.choice([2, 7, 16_384]))
    store = STORES[kind](tmp_path)
    spread = dice.choice([0, 5])
    state: State = {}
    number = 0
    newest: Manifest | None = None
    committed: State = {}
    for _ in range(4):
        life = store.begin()
        number = life.next_cut - 1
        workers = Workers(store, life.incarnation, dice.randint(1, 8), spread)
        newest = life.restored
        state = workers.restore(newest) if newest else {}
        assert state == committed
        dirty: dict[tuple[str, Any], None] = {}
        for _ in range(dice.randint(0, 6)):
            for _ in range(dice.randint(0, 15)):
                bucket = (dice.choice(["last", "count"]), dice.choice([*range(12), "a", True]))
                dirty[bucket] = None
                if bucket in state and dice.random() < 0.2:
                    del state[bucket]
                elif bucket in state and dice.random() < 0.8:
                    state[bucket] = [(place, grown(one, dice)) for place, one in state[bucket]]
                else:
                    state.pop(bucket, None)  # the key as it is now: 1 or True
                    state[bucket] = [
                        ((dice.randint(0, 9), 0, n), fresh(dice)) for n in range(dice.randint(1, 3))
                    ]
            number += 1
            full = newest is None or dice.random() < 0.1
            cut = workers.write(number, state, None if full else list(dirty), newest, dice)
            # otherwise it is abandoned, and its changes are still to be stored
            if dice.random() < 0.7:
                store.commit(cut)
                newest, committed, dirty = cut, dict(state), {}
            assert store.latest() == newest
            store.prune(dice.randint(1, 3), incarnation=life.incarnation)
        if newest:
            assert state_of(store.rows(newest)) == committed


def test_a_growing_list_costs_a_cut_what_is_new(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    life = store.begin()
    workers = Workers(store, life.incarnation, 1, 0)
    dice = random.Random(1)
    words: ef.PersistentList[str] = ef.PersistentList(
        "".join(dice.choices("abcdefgh", k=8)) for _ in range(100_000)
    )
    state: State = {("last", "a"): [((1, 0), Postings("a", words))]}
    cut = workers.write(1, state, None, None, dice)
    store.commit(cut)
    for number in (2, 3):
        words = words.append("new")
        state["last", "a"] = [((number, 0), (number, Postings("a", words)))]
        cut = workers.write(number, state, list(state), cut, dice)
        store.commit(cut)
        assert cut.parts[-1].bytes < 10_000 < 300_000 < cut.parts[0].bytes
    # The next incarnation continues from it.
    life = store.begin()
    workers = Workers(store, life.incarnation, 3, 0)
    assert workers.restore(cut) == state
    restored = workers.restore(cut)["last", "a"][0][1][1].found
    state["last", "a"] = [((4, 0), Postings("a", restored.append("newest")))]
    after = workers.write(4, state, list(state), cut, dice)
    assert after.parts[-1].bytes < 10_000
    store.commit(after)
    assert Workers(store, 2, 2, 0).restore(after) == state


def test_a_tail_never_goes_on_with_a_cut_that_was_given_up(tmp_path: Path) -> None:
    """Regression: relying on what was *written* made the third cut unreadable."""
    store = CheckpointStore(tmp_path)
    workers = Workers(store, store.begin().incarnation, 1, 0)
    dice = random.Random(1)
    words: ef.PersistentList[int] = ef.PersistentList(range(10))
    state: State = {("last", "a"): [((1, 0), words)]}
    first = workers.write(1, state, None, None, dice)
    store.commit(first)
    state["last", "a"] = [((2, 0), words.append(10))]
    workers.write(2, state, list(state), first, dice)  # and never committed
    state["last", "a"] = [((3, 0), words.append(10).append(11))]
    third = workers.write(3, state, list(state), first, dice)
    store.commit(third)
    assert state_of(store.rows(third)) == state


def test_a_part_that_needs_another_says_so(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    lists = SavedLists()
    words: ef.PersistentList[int] = ef.PersistentList(range(10))
    store.begin()
    one = store.write_part(1, 0, [[("last", 7, "a", (1, 0), words)]], incarnation=1, lists=lists)
    other = store.write_part(
        2, 0, [[("last", 7, "a", (2, 0), words.append(1))]], incarnation=1, lists=lists, base=1
    )
    assert one
    assert other
    alone = Manifest.of(graph(), number=2, incarnation=1, time=(9, 0), parts=[other])
    with pytest.raises(
        DamagedCutError, match=r"continues lists that are stored in cut 1"
    ) as caught:
        list(store.rows(alone))
    assert other.path in str(caught.value)
    third = store.write_part(
        3, 0, [[("last", 7, "a", (3, 0), words.append(1).append(2))]], incarnation=1, lists=lists,
        base=2,
    )  # fmt: skip
    holey = Manifest.of(graph(), number=3, incarnation=1, time=(9, 0), parts=[one, third])
    with pytest.raises(DamagedCutError, match=r"continues lists that are stored in cut 2"):
        list(store.rows(holey))
    table = pq.read_table(tmp_path / other.path)
    with pytest.raises(DamagedCutError, match=r"CheckpointStore.rows"):
        pickle.loads(table["payload"][0].as_py())


def test_begins_with_means_the_same_objects() -> None:
    words: ef.PersistentList[Any] = ef.PersistentList(range(1000, 2000))
    assert begins_with(words.append(1), words)
    assert begins_with(words, words[:255])
    assert begins_with(words[:700].extend("abc"), words[:700])
    assert begins_with(ef.PersistentList(words).append(1), words)  # buffers of its own
    assert not begins_with(words[:700].extend("abc"), words)
    assert not begins_with(words, words.append(1))
    assert not begins_with(ef.PersistentList([1.0, 2]), ef.PersistentList([1]))


def test_scheduled_items_of_all_parts_count_until_the_cut_has_passed_them(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()

    def row(time: int, child: int) -> Any:
        return ("tick", child, (0, 0, child), (time, -7, child), f"{time} {child}")

    one = store.write_part(1, 0, [[row(5, 1), row(9, 2)]], incarnation=1, kind=SCHEDULED)
    other = store.write_part(2, 0, [[row(9, 2), row(12, 1)]], incarnation=1, kind=SCHEDULED)
    base = Manifest.of(graph(), number=1, incarnation=1, time=(5, -7), parts=[one])
    cut = Manifest.of(graph(), number=2, incarnation=1, time=(6, 0), parts=[other], base=base)
    assert list(store.rows(base, kind=SCHEDULED)) == [row(5, 1), row(9, 2)]
    assert list(store.rows(cut, kind=SCHEDULED)) == [row(12, 1), row(9, 2)]
    assert list(store.rows(cut, 2, 2, kind=SCHEDULED)) == [row(9, 2)]
    assert list(store.rows(cut)) == []


def test_a_part_is_read_by_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of a small range reads few rows; a file of many runs is merged."""
    monkeypatch.setattr(
        writer_module.PartWriter.__init__,
        "__kwdefaults__",
        {"run_bytes": 20_000, "group_bytes": 2_000},
    )
    store = CheckpointStore(tmp_path)
    store.begin()
    state: State = {("last", key): [((key, 0), "x" * 20)] * 2 for key in range(5000)}
    rows = rows_of(state)
    dice = random.Random(3)
    part = store.write_part(1, 0, (rows[n : n + 101] for n in range(0, 10_000, 101)), incarnation=1)
    assert part
    cut = Manifest.of(graph(), number=1, incarnation=1, time=(9, 0), parts=[part])
    file = pq.ParquetFile(tmp_path / part.path)
    runs = file.metadata.metadata[b"emberflow.runs"].decode().split(",")
    assert len(runs) > 5
    assert file.num_row_groups == sum(map(int, runs)) > 50
    assert state_of(store.rows(cut)) == state
    looked_at = []
    original = tables._run
    monkeypatch.setattr(
        tables,
        "_run",
        lambda *a: looked_at.append(len(a[3])) or original(*a),  # type: ignore[func-returns-value]
    )
    own = dice.choice(hash_ranges(64))
    found = state_of(store.rows(cut, own.low, own.high))
    assert found == {bucket: rows for bucket, rows in state.items() if key_hash(bucket[1]) in own}
    assert sum(looked_at) < file.num_row_groups / 3


def test_the_format_is_one_that_others_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    rows = [("count", 5, "ada", (7, -3, 2**63 - 1, 0), {"n": 1}), ("last", -9, 8, (8, 0), "x")]
    part = store.write_part(1, 0, [rows], incarnation=1)
    assert part
    table = pq.read_table(tmp_path / part.path)
    assert table.drop_columns(["key", "payload"]).to_pylist() == [
        {
            "operation": "count",
            "key_hash": 5,
            "time": 7,
            "front": -3,
            "child_ids": [2**63 - 1, 0],
            "follows": None,
        },
        {
            "operation": "last",
            "key_hash": -9,
            "time": 8,
            "front": 0,
            "child_ids": [],
            "follows": None,
        },
    ]
    assert [pickle.loads(one.as_py()) for one in table["payload"]] == [{"n": 1}, "x"]
    assert [pickle.loads(one.as_py()) for one in table["key"]] == ["ada", 8]
    assert (part.rows, part.low, part.high) == (2, -9, 5)


@pytest.mark.parametrize("count", [1, 200, 5_000])
def test_small_parts_are_not_compressed_and_large_ones_are(tmp_path: Path, count: int) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    state: State = {("last", key): [((key, 0), "x" * 20)] for key in range(count)}
    part = store.write_part(1, 0, [rows_of(state)], incarnation=1)
    assert part
    group = pq.ParquetFile(tmp_path / part.path).metadata.row_group(0)
    kinds = {group.column(column).compression for column in range(group.num_columns)}
    assert kinds == {"ZSTD" if count == 5_000 else "UNCOMPRESSED"}
    cut = Manifest.of(graph(), number=1, incarnation=1, time=(count, 0), parts=[part])
    assert state_of(store.rows(cut)) == state


def test_a_payload_that_cannot_be_pickled_names_the_step(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    with pytest.raises(CheckpointError, match=r"step 'count': a payload .*\n.*'ada'"):
        store.write_part(1, 0, [[("count", 5, "ada", (7, 0), lambda: 1)]], incarnation=1)
    with pytest.raises(RuntimeError, match="the rows end here"):
        store.write_part(1, 0, failing_chunks(), incarnation=1)
    assert list((tmp_path / "parts").iterdir()) == []
    assert store.write_part(1, 0, [[], []], incarnation=1) is None


def failing_chunks() -> Any:
    yield [("count", 5, "ada", (7, 0), 1)]
    raise RuntimeError("the rows end here")


def test_when_a_full_cut_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "LONG_LINKS_MAX", 20)
    store = CheckpointStore(tmp_path)
    workers = Workers(store, store.begin().incarnation, 2, 0)
    dice = random.Random(1)
    state: State = {("last", key): [((1, 0), 1)] for key in range(40)}
    cut = workers.write(1, state, None, None, dice)
    assert not compaction_due(cut)
    links, due = 1, {40: 0, 10**9: 0}
    while not all(due.values()):
        links += 1
        cut = workers.write(links, state, [("last", 1)], cut, dice)
        assert compaction_due(cut, live_rows=10)
        for live_rows in due:
            if not due[live_rows] and compaction_due(cut, live_rows=live_rows):
                due[live_rows] = links
    # A link is a file, and to open one costs as much as to read many rows.
    assert due == {40: 17, 10**9: 21}
    files = len(cut.parts)
    assert files == 22  # two workers have written the first link
    assert compaction_due(cut, live_rows=files * ROWS_PER_FILE - 1)
    cut = workers.write(1, state, None, None, dice)
    for number in (2, 3):
        cut = workers.write(number, state, list(state)[:25], cut, dice)
    assert compaction_due(cut)


def test_the_ends_of_the_hashes_are_stored(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.begin()
    rows = [("a", HASH_MIN, "low", (TIME_MIN, 0), 1), ("a", HASH_MAX, "high", (TIME_MAX, 0), 2)]
    part = store.write_part(1, "task-3", [rows, [removed("a", 0, "gone")]], incarnation=1)
    cut = Manifest.of(graph(), number=1, incarnation=1, time=(9, 0), parts=[part])
    assert list(store.rows(cut)) == rows
    assert list(store.rows(cut, HASH_MAX, HASH_MAX)) == rows[1:]
