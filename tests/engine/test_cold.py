"""Buckets that are out of memory come back many at a time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import emberflow as ef
from emberflow.engine.cuts.cut import Row
from emberflow.engine.layout import Layout
from emberflow.engine.machines.cold import RowsInMemory
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker

KEYS = 200


class Asked(RowsInMemory):
    """A store that counts how often somebody asks it for keys."""

    times = 0

    def take(self, keys: Collection[Any]) -> list[Row]:
        Asked.times += 1
        return super().take(keys)


def test_a_loop_that_goes_item_by_item_asks_once_for_all_that_waits() -> None:
    flow = ef.Flow("loop")
    again = flow.loop()
    numbers = ef.merge(flow.front("in"), again)
    counts = numbers.key_by(lambda n: n).count()
    again.close(
        counts.filter(lambda pair: pair[0] < KEYS and pair[1] == 2).map(lambda pair: KEYS + pair[0])
    )
    counts.sink("out")
    graph = flow.graph()
    worker, acker = Worker(Layout(graph), 0, 1), Acker(workers=1, fronts=[0])
    worker.keep_cold(Asked)
    released: list[Any] = []

    def enter(given: list[int], at: int) -> None:
        front, until = graph.fronts["in"].id, at + len(given)
        elements = [((at + number, 0), n) for number, n in enumerate(given)]
        effects = worker.enter(front, elements, {0: (until, 0)})
        while effects.ack:
            effects = worker.progress(acker.receive(effects.ack))
            released.extend(item[2] for bundle in effects.bundles for item in bundle.items)
        worker.trim()

    known, unknown = list(range(KEYS)), list(range(1_000, 1_000 + KEYS))
    enter(known, 0)
    for _ in range(20):
        worker.evict(KEYS)
    assert worker.cold_keys > KEYS * 9 // 10
    Asked.times = 0
    enter(known + unknown, KEYS)
    # Once for all that waits, and then for each key that the loop begins.
    assert Asked.times <= KEYS + 10
    assert released == ef.run(flow, **{"in": [*known, *known, *unknown]})["out"]
