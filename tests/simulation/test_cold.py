"""Which keys are out of memory, and when they go and come back, changes nothing; and breaks are seen.

In all other tests of the simulation evictions are drawn, too. Here flows have little else than states whose
keys can be cold, workers evict all the time, and crashes come in the middle.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, TypeAlias

import pytest

import emberflow as ef
from emberflow.engine.cuts.cut import KeptRows, Row
from emberflow.engine.machines.cold import Cooling, RowsInMemory
from emberflow.engine.machines.ticking import TickingMachine
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.runners.simulation.judges import Evictions
from emberflow.values.item import FlatItem
from tests.effort import blocks
from tests.simulation.cases import Case
from tests.simulation.crash_cases import CrashCase, judged_with_crashes, wrong
from tests.simulation.hunt import Break, Breaks, caught, name_of
from tests.strategies import Elements

WRONG = (
    r"the reference has|found no item|nobody here sent|released .* after|was restored as of"
    r"|the minimal time"
)


def cold_flow(random: Random, kept: Random) -> tuple[ef.Flow, Elements]:
    """A fold whose keys may expire, a count, and for some seeds a state of transactions, and what keeps more than a
    value for a key: windows, with and without ticks, joins, lists that grow."""
    flow = ef.Flow("cold")
    numbers = flow.front("one")
    keys = random.choice((4, 12, 30))
    numbers.key_by(lambda n: n % keys).fold(
        initial=0,
        combine=lambda total, n: (3 * total + n) % 1009,
        expire_after=random.choice((None, 30, 90)),
    ).key_by(lambda total: total).sink("folded", partitions=2)
    numbers.key_by(lambda n: f"key {n % 7}").count().sink("counts")
    for number, keeping in enumerate(kept.sample(KEEPING, kept.choice((0, 0, 1, 3)))):
        keeping(numbers, keys, kept).sink(f"kept {number}")
    elements: Elements = {"one": elements_of(random)}
    if random.random() < 0.5:
        balances = flow.state("balances", default=5)
        with flow.front("two").transaction() as tx:
            tx.key_by(lambda n: n % keys).update(
                balances, lambda held, n: held + n % 5 - 2, check=lambda held: held >= 0
            )
        tx.rejected.map(lambda rejected: rejected.element).sink("rejected")
        elements["two"] = elements_of(random)
    return flow, elements


Numbers: TypeAlias = ef.Stream[int]


def closed_windows(numbers: Numbers, keys: int, random: Random) -> ef.Stream[Any]:
    spec = random.choice((ef.Tumbling(20), ef.Sliding(30, 10), ef.Session(8), ef.Cumulate(5, 20)))
    return numbers.key_by(lambda n: n % keys).window(spec, emit="close").count()


def windows(numbers: Numbers, keys: int, random: Random) -> ef.Stream[Any]:
    spec = random.choice((ef.Tumbling(20), ef.Session(8), ef.CountWindow(3)))
    return numbers.key_by(lambda n: n % keys).window(spec, emit="update").collect()


def joined(numbers: Numbers, keys: int, random: Random) -> ef.Stream[Any]:
    how: Any = random.choice(("inner", "left", "outer"))
    odd, even = (numbers.filter(lambda n, rest=rest: n % 2 == rest) for rest in (0, 1))
    return odd.key_by(lambda n: n // 2 % keys).join(
        even.key_by(lambda n: n // 2 % keys), how=how, within=random.choice((5, 30))
    )


def enriched(numbers: Numbers, keys: int, random: Random) -> ef.Stream[Any]:
    table = numbers.filter(lambda n: n % 3 == 0).key_by(lambda n: n % keys)
    return numbers.key_by(lambda n: n % keys).join_latest(table)


def changes(numbers: Numbers, keys: int, random: Random) -> ef.Stream[Any]:
    table = numbers.key_by(lambda n: n % keys).max().key_by(lambda pair: pair[0]).changes()
    return table.group_by(lambda pair: pair[1] % 3).count().as_stream()


def lists(numbers: Numbers, keys: int, random: Random) -> ef.Stream[Any]:
    return numbers.key_by(lambda n: n % keys).fold(
        initial=ef.PersistentList(), combine=lambda known, n: known.append(n)
    )


def last_rows(numbers: Numbers, keys: int, random: Random) -> ef.Stream[Any]:
    over = random.choice(({"rows": 3}, {"last": 25}))
    return numbers.key_by(lambda n: n % keys).over(**over).sum()


def seen(numbers: Numbers, keys: int, random: Random) -> ef.Stream[Any]:
    return numbers.key_by(lambda n: n % keys).distinct(ttl=random.choice((10, 60)))


KEEPING = (
    closed_windows,
    closed_windows,
    windows,
    joined,
    enriched,
    changes,
    lists,
    last_rows,
    seen,
)


def elements_of(random: Random) -> list[ef.At[int]]:
    times = sorted(random.sample(range(200), 50))
    return [ef.At(time, random.randrange(1_000)) for time in times]


def case_of(seed: int) -> CrashCase:
    random = Random(f"cold {seed}")
    flow, elements = cold_flow(random, Random(f"kept {seed}"))
    drawn = Case.of(seed)
    made = replace(drawn, name=flow.name, graph=flow.graph(), elements=elements)
    case = CrashCase.from_case(made, seed).with_faults(cut_ticks=random.choice((1, 10, 100)))
    options = replace(case.options, evictions=random.choice((0.3, 1.0)))
    again = f"pytest tests/simulation/test_cold.py, seed {seed}"
    return replace(case, options=options, trims_always=random.random() < 0.5, again=again)


def cases() -> Iterable[CrashCase]:
    return map(case_of, count())


@pytest.mark.parametrize("seeds", blocks("cold keys over crashes", 200), ids=lambda seeds: seeds[0])
def test_nobody_can_tell_which_keys_are_cold(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    done = Counter[str]()
    take, put, kept = RowsInMemory.take, RowsInMemory.put, RowsInMemory.kept
    left = Evictions.left_cold

    def counted_take(self: RowsInMemory, keys: Collection[Any]) -> list[Row]:
        found = take(self, keys)
        done["fetched"] += len(found)
        return found

    def counted_put(self: RowsInMemory, rows: list[Row]) -> Collection[int]:
        assert not {row.key for row in rows} & set(self.rows), "they are here already"
        done["evicted"] += len(rows)
        return put(self, rows)

    def counted_kept(self: RowsInMemory, operation: str, *moments: Moment) -> KeptRows:
        done["captured"] += len(self)
        return kept(self, operation, *moments)

    def counted_left(self: Evictions, rows: list[Row]) -> list[Row]:
        restored = left(self, rows)
        done["left cold"] += len(rows) - len(restored)
        return restored

    monkeypatch.setattr(Evictions, "left_cold", counted_left)
    monkeypatch.setattr(RowsInMemory, "take", counted_take)
    monkeypatch.setattr(RowsInMemory, "put", counted_put)
    monkeypatch.setattr(RowsInMemory, "kept", counted_kept)
    for seed in seeds:
        judged_with_crashes(case_of(seed))
    assert min(done["fetched"], done["evicted"]) > len(seeds), done
    assert done["left cold"], done
    assert done["captured"], done


# --- Breaks ----------------------------------------------------------------------------------------

_evict, _end, _put = Cooling.evict, RowsInMemory.end, RowsInMemory.put
_left_cold, _kept = Evictions.left_cold, RowsInMemory.kept


breaks = Breaks()


@breaks
def evict_what_is_not_final(patch: pytest.MonkeyPatch) -> None:
    def evict(self: Cooling[Any], looks: int, bound: Moment) -> int:
        committed, self._committed = self._committed, None
        went = _evict(self, looks, AFTER_ALL)
        self._committed = committed
        return went

    patch.setattr(Cooling, "evict", evict)


@breaks
def evict_what_no_cut_has(patch: pytest.MonkeyPatch) -> None:
    """It is in the store, and the next cut looks for it in memory."""

    def evict(self: Cooling[Any], looks: int, bound: Moment) -> int:
        committed, self._committed = self._committed, AFTER_ALL
        went = _evict(self, looks, bound)
        self._committed = committed
        return went

    patch.setattr(Cooling, "evict", evict)


@breaks
def lose_some_that_are_evicted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowsInMemory, "put", lambda self, rows: _put(self, rows[1:]))


@breaks
def bring_back_what_was_there_before(patch: pytest.MonkeyPatch) -> None:
    def put(self: RowsInMemory, rows: list[Row]) -> Collection[int]:
        for row in rows:
            self.rows.setdefault(row.key, row)
        return ()

    patch.setattr(RowsInMemory, "take", RowsInMemory.find)
    patch.setattr(RowsInMemory, "put", put)


@breaks
def let_due_ticks_fetch_nothing(patch: pytest.MonkeyPatch) -> None:
    def fetch(self: TickingMachine, items: list[FlatItem]) -> None:
        Cooling.fetch(self, [item for item in items if not item[2][2][1]])

    patch.setattr(TickingMachine, "fetch", fetch)


@breaks
def forget_some_that_a_restore_leaves_cold(patch: pytest.MonkeyPatch) -> None:
    def left_cold(self: Evictions, rows: list[Row]) -> list[Row]:
        restored = _left_cold(self, rows)
        for store in self._worker.cold_stores().values():
            assert isinstance(store, RowsInMemory)
            for key in list(store.rows)[::3]:
                del store.rows[key]
        return restored

    patch.setattr(Evictions, "left_cold", left_cold)


@breaks
def fetch_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cooling, "fetch", lambda self, items: None)


@breaks
def capture_nothing_that_is_cold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowsInMemory, "kept", lambda self, *which: _kept(RowsInMemory(), *which))


@breaks
def end_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowsInMemory, "end", lambda self, time: _end(self, time + 25))


@pytest.mark.parametrize("broken", breaks, ids=name_of)
def test_it_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    told = caught(name_of(broken), cases(), wrong, 150)
    assert re.search(WRONG, told), told
