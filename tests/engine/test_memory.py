"""What a worker holds is in proportion to its keys and to what is above the minimal time."""

from __future__ import annotations

import emberflow as ef
from emberflow.engine.acker import Acker
from emberflow.engine.program import Layout
from emberflow.engine.worker import Worker

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


def test_a_trim_keeps_up_with_many_items_between_two_progresses() -> None:
    """It looks at some buckets only, and must not fall behind those that are touched."""
    keys, rounds = 4_000, 20
    flow = ef.Flow("many keys")
    accounts = flow.state("accounts", default=0)
    one, two, three = flow.front("numbers").broadcast(3)
    one.key_by(lambda n: n % keys).count().sink("counts")
    two.key_by(lambda n: n % keys).group(window=2).sink("pairs")
    with three.transaction() as tx:
        for shift in (0, 1):
            tx.key_by(lambda n, shift=shift: (n + shift) % keys).update(
                accounts, lambda value, n: value + n, check=lambda value: value >= 0
            )
    tx.committed.sink("done")
    graph = flow.graph()
    worker, acker = Worker(Layout(graph), 0, 1), Acker(workers=1, fronts=[0])
    front = graph.fronts["numbers"].id
    for number in range(0, rounds * keys, keys):
        elements = [((time, 0), time) for time in range(number, number + keys)]
        effects = worker.enter(front, elements, {0: (number + keys, 0)})
        worker.progress(acker.receive(effects.ack))
        worker.tidy()
    for machine in worker.machines.stateful.values():
        assert sum(machine.sizes()) <= 4 * keys, machine.operation
