"""A worker takes over in memory what another one has computed beyond T: the output is that of the reference."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.checkpoint.cuts.backfills import planned
from emberflow.engine.layout import Layout
from emberflow.engine.machines.cold import RowsInMemory
from emberflow.engine.machines.group import GroupMachine
from emberflow.engine.machines.reduce import ReduceMachine
from emberflow.engine.machines.state import AccessMachine
from emberflow.engine.machines.trimming import Trimmed
from emberflow.engine.messages import BEFORE_ALL, Effects, Moment
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.succession import move, succeed
from emberflow.engine.worker.worker import Worker
from emberflow.graph.description import steps_of
from emberflow.values.owners import equal_owners
from tests.effort import few
from tests.engine.helpers import unpacked

TIMES = 60
MACHINES = (ReduceMachine, GroupMachine, AccessMachine)


def stateful(generation: int) -> ef.Flow:
    """A step for each machine that hands its buckets over. Some accesses fail their check."""
    flow = ef.Flow("stateful")
    numbers = flow.front("numbers")
    keyed = numbers.key_by(lambda n: n % 4)
    sums = keyed.fold(initial=0, combine=lambda a, n: 3 * a % 1009 + n + generation, name="sums")
    sums.sink("sums")
    keyed.group(window=3, name="last").map(lambda last: (generation, *last)).sink("last")
    purses = flow.state("purses", default=5)
    with numbers.transaction(name="spend") as tx:
        spent = tx.map(lambda n: (n % 3, n % 7 - 3 - generation))
        spent.key_by(lambda s: s[0]).update(
            purses, lambda value, s: value + s[1], check=lambda value: value >= 0
        )
    tx.committed.sink("spent")
    tx.rejected.map(lambda r: r.element).sink("refused")
    return flow


class Alone:
    """One worker with its acker, and what it has released."""

    def __init__(self, layout: Layout, moment: Moment) -> None:
        self.layout = layout
        self.worker = Worker(layout, 0, 1)
        self.acker = Acker(workers=1, fronts=[0])
        self.released: dict[str, list[Any]] = {name: [] for name in layout.graph.sinks}
        self.moment = moment

    def enter(self, numbers: list[int], promise: int) -> None:
        """Numbers are their own times."""
        node = self.layout.graph.fronts["numbers"].id
        elements = [((number, 0), number) for number in numbers]
        self.take(self.worker.enter(node, elements, {0: (promise, 0)}))

    def take(self, effects: Effects) -> None:
        while effects.ack:
            self._note(effects)
            before = self.acker.progress
            if self.acker.receive(effects.ack) == before:
                return
            effects = self.worker.progress(self.acker.progress)
            self.worker.trim()
        self._note(effects)

    def _note(self, effects: Effects) -> None:
        for bundle in effects.bundles:
            self.released[bundle.sink] += [payload for _, _, payload in bundle.items]

    def cut(self, since: Moment) -> Moment:
        moment = self.acker.progress.of_all()
        capture = self.worker.begin_cut(moment, since)
        while capture.next(2) is not None:
            pass
        return moment


def judged(seed: int) -> Counter[type]:
    """Fails if the output is not that of the reference. Returns which machines handed over their buckets."""
    dice = Random(f"succession {seed}")
    at = dice.randint(5, TIMES - 5)
    numbers = sorted(dice.sample(range(TIMES), dice.randint(10, TIMES)))
    layouts = [Layout(stateful(generation).graph()) for generation in (0, 1)]
    old = Alone(layouts[0], BEFORE_ALL)
    since, promised = BEFORE_ALL, 0
    while promised < at:
        before, promised = promised, min(at, promised + dice.randint(1, 20))
        # Some are ahead of the promise, and perhaps beyond T. Those come again.
        due = [n for n in numbers if before <= n < promised]
        dice.shuffle(due)
        old.enter(due, promised)
        if dice.random() < 0.7:
            since = old.cut(since)
            if dice.random() < 0.7:
                old.worker.cut_committed(since)
    ahead = [n for n in numbers if n >= at and dice.random() < 0.5]
    dice.shuffle(ahead)
    old.enter(ahead, at)
    handed: Counter[type] = Counter()
    new = Alone(layouts[1], (at, 0))
    with pytest.MonkeyPatch.context() as patched:
        for kind in MACHINES:
            patched.setattr(kind, "inherit", counting(kind, handed))
        carried = planned(steps_of(layouts[0].graph), layouts[1].graph, None)
        new.take(succeed(old.worker, new.worker, (at, 0), carried))
    new.enter([n for n in numbers if n >= at], TIMES)
    versions = ef.Versions(stateful(0), (at, stateful(1)))
    expected = ef.run(versions, numbers=[ef.At(n, n) for n in numbers])
    found = {name: old.released[name] + new.released[name] for name in expected}
    assert found == expected, seed
    return handed


def counting(kind: type[Trimmed[Any]], handed: Counter[type]) -> Any:
    true = kind.inherit

    def inherit(machine: Any, other: object, moment: Moment, *, is_same: bool = False) -> bool:
        taken = true(machine, other, moment, is_same=is_same)
        handed[kind] += taken
        return taken

    return inherit


def test_buckets_are_handed_over_as_they_are_below_t() -> None:
    seeds = few(90)
    handed = sum((judged(seed) for seed in range(seeds)), Counter[type]())
    assert handed == dict.fromkeys(MACHINES, seeds)


@pytest.mark.parametrize("kind", MACHINES)
def test_a_bucket_that_nobody_looks_at_is_noticed(
    kind: type[Trimmed[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "those_at", lambda machine, moment: [])
    with pytest.raises((AssertionError, ef.EmberflowError)):
        all(judged(seed) for seed in range(50))


def test_a_cut_behind_a_move_has_what_went_cold_when_one_before_it_was_given_up() -> None:
    """No rows come to this worker, so the move alone tells its machines which cut the next one adds to."""
    layout = Layout(stateful(0).graph())
    old = Alone(layout, BEFORE_ALL)
    old.enter(list(range(20)), 20)
    moment = old.cut(BEFORE_ALL)
    new = Alone(layout, moment)
    new.worker.keep_cold(RowsInMemory)
    owners = equal_owners(1)
    new.take(move(old.worker, new.worker, moment, owners, [], [], keeps_scheduled=True))
    new.enter(list(range(20, 40)), 40)
    new.enter([], 50)
    for _ in range(5):
        new.worker.evict(100)
    assert new.cut(moment) == (50, 0)  # given up
    capture = new.worker.begin_cut((50, 0), moment)
    changed = []
    while (rows := capture.next(100)) is not None:
        changed += unpacked(rows)
    sums = {row.key: row.payload for row in changed if row.operation == "sums/group"}
    expected: dict[int, int] = {}
    for number in range(40):
        expected[number % 4] = 3 * expected.get(number % 4, 0) % 1009 + number
    assert sums == expected
