"""A node that becomes patient: what it has computed too early costs once, not with every late item."""

from __future__ import annotations

import emberflow as ef
from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.engine.progress.acker import Acker
from emberflow.engine.worker.worker import Worker

KEYS = 10
EARLY = 2_000
LATE, BATCH = 2_000, 100


class Run:
    """The running count of numbers by their last digit, on one worker with two fronts."""

    def __init__(self) -> None:
        flow = ef.Flow("count")
        numbers = ef.merge(flow.front("ahead"), flow.front("behind"))
        numbers.key_by(lambda number: number % KEYS).count().sink("counts")
        graph = flow.graph()
        self.worker = Worker(Layout(graph), 0, 1)
        self.fronts = list(graph.fronts.values())
        self.acker = Acker(workers=1, fronts=[front.index for front in self.fronts])
        self.output: list[tuple[int, int]] = []

    def enter(self, number: int, times: range, promise: Moment) -> None:
        front = self.fronts[number]
        elements = [((time, front.index), time) for time in times]
        effects = self.worker.enter(front.id, elements, {front.index: promise})
        while effects.ack:
            effects = self.worker.progress(self.acker.receive(effects.ack))
            for bundle in effects.bundles:
                self.output += [payload for _, _, payload in bundle.items]


def test_what_comes_below_all_that_was_computed_early_is_computed_once() -> None:
    run = Run()
    run.enter(0, range(LATE, LATE + EARLY), AFTER_ALL)
    for begin in range(0, LATE, BATCH):
        times = range(begin, begin + BATCH)
        run.enter(1, times, (times.stop, 1) if times.stop < LATE else AFTER_ALL)
    assert run.output == [(number % KEYS, number // KEYS + 1) for number in range(LATE + EARLY)], (
        "as if all had come in order"
    )
    # The first batch meets all that was early. Without patience each of the others would, too.
    assert run.worker.statistics().replays <= EARLY + LATE
