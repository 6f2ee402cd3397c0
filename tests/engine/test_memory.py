"""What a worker holds is in proportion to its keys and to what is above the minimal time."""

from __future__ import annotations

from typing import Any

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.machines.trimming import PUT_OFF_MAX
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker

BATCH = 100


def test_a_few_busy_keys_do_not_pile_up_versions() -> None:
    """A trim that waited for many touched *buckets* never came where there are three."""
    flow = ef.Flow("three keys")
    numbers = flow.front("numbers")
    numbers.key_by(lambda number: number % 3).count().sink("counts")
    numbers.key_by(lambda number: number % 3).group(window=4).sink("tuples")
    graph = flow.graph()
    worker, acker = Worker(Layout(graph), 0, 1), Acker(workers=1, fronts=[0])
    largest = []
    for start in range(0, 20_000, BATCH):
        elements = [((number, 0), number) for number in range(start, start + BATCH)]
        effects = worker.enter(graph.fronts["numbers"].id, elements, {0: (start + BATCH, 0)})
        worker.progress(acker.receive(effects.ack))
        worker.tidy()
        largest.append(worker.statistics().bucket_largest)
    assert max(largest) < 1_000, "twice the items between two trims, and no more"


KEYS, ROUNDS = 4_000, 20


class TrimmingWorker:
    """A worker with states, reduces and groupings of many keys, that trims as it goes."""

    def __init__(self) -> None:
        flow = ef.Flow("many keys")
        accounts = flow.state("accounts", default=0)
        one, two, three = flow.front("numbers").broadcast(3)
        one.key_by(lambda n: n % KEYS).count().sink("counts")
        two.key_by(lambda n: n % KEYS).group(window=2).sink("pairs")
        with three.transaction() as tx:
            for shift in (0, 1):
                tx.key_by(lambda n, shift=shift: (n + shift) % KEYS).update(
                    accounts, lambda value, n: value + n, check=lambda value: value >= 0
                )
        tx.committed.sink("done")
        graph = flow.graph()
        self._front = graph.fronts["numbers"].id
        self._worker, self._acker = Worker(Layout(graph), 0, 1), Acker(workers=1, fronts=[0])
        self._time = 0

    def enter(self, count: int, *, is_waited_for: bool = False) -> None:
        elements = [((time, 0), time) for time in range(self._time, self._time + count)]
        self._time += count
        effects = self._worker.enter(self._front, elements, {0: (self._time, 0)})
        self._worker.progress(self._acker.receive(effects.ack))
        self._worker.tidy(is_waited_for=is_waited_for)

    @property
    def machines(self) -> list[Any]:
        return [*self._worker.machines.stateful.values()]


def test_a_trim_keeps_up_with_many_items_between_two_progresses() -> None:
    """It looks at some buckets only, and must not fall behind those that are touched."""
    worker = TrimmingWorker()
    for _ in range(ROUNDS):
        worker.enter(KEYS)
    for machine in worker.machines:
        assert sum(machine.sizes()) <= 4 * KEYS, machine.operation


def test_while_the_worker_is_waited_for_trims_are_put_off_but_not_for_long() -> None:
    """And made up for when it is not, while as much comes as before."""
    worker = TrimmingWorker()
    most = [0] * len(worker.machines)
    for _ in range(2 * ROUNDS):
        worker.enter(KEYS, is_waited_for=True)
        most = [max(one, sum(m.sizes())) for one, m in zip(most, worker.machines, strict=True)]
    assert all(PUT_OFF_MAX / 2 < one <= PUT_OFF_MAX + 6 * KEYS for one in most), most
    for _ in range(ROUNDS):
        worker.enter(KEYS)
    for machine in worker.machines:
        assert sum(machine.sizes()) <= 4 * KEYS, machine.operation


def test_when_hardly_anything_comes_nothing_is_left_to_look_at() -> None:
    """Every cut would look at it, and find that it has not changed."""
    worker = TrimmingWorker()
    for _ in range(ROUNDS):
        worker.enter(KEYS)
    for _ in range(30):
        worker.enter(1)
    for machine in worker.machines:
        assert len(machine.touched) + len(machine.touched_earlier) < 100, machine.operation
        assert sum(machine.sizes()) <= machine.kept * KEYS + 100, machine.operation
