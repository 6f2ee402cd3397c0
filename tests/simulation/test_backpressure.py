"""Credits bound the number of elements in the system, and everything drains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.messages import Effects, Frame, Moment, Progress
from emberflow.engine.progress.gate import Gate
from emberflow.engine.worker.worker import Worker
from emberflow.graph.nodes import Graph
from emberflow.runners.elements import timed_elements
from emberflow.runners.simulation import Options, Simulation
from tests.effort import few
from tests.engine.fake_link import on_fake_link


class Observed(Simulation):
    """Records the load after every event of a worker."""

    def __init__(self, graph: Graph, options: Options) -> None:
        simulation = self

        class Watching(Worker):
            def enter(
                self, node: int, elements: Sequence[tuple[Moment, Any]], reports: dict[int, Moment]
            ) -> Effects:
                simulation.emitted += [moment for moment, _ in elements]
                return simulation.observed(super().enter(node, elements, reports))

            def deliver(self, frames: Sequence[Frame]) -> Effects:
                return simulation.observed(super().deliver(frames))

            def progress(self, progress: Progress, frames: Sequence[Frame] = ()) -> Effects:
                return simulation.observed(super().progress(progress, frames))

        self.emitted: list[Moment] = []
        self.open_most = 0
        self.waiting_most = 0
        super().__init__(graph, options, worker=Watching)

    def observed(self, effects: Effects) -> Effects:
        """By the acker's minimal time, which is ahead of the workers', there are even fewer."""
        minimal = self.acker.progress.of_all()
        fronts: dict[int, int] = {}
        for time, front in self.emitted:
            if (time, front) >= minimal:
                fronts[front] = fronts.get(front, 0) + 1
        self.open_most = max(self.open_most, *fronts.values(), 0)
        waiting = sum(
            barrier.held_items
            for host in self.workers
            for partitions in host.worker.barriers.values()
            for barrier in partitions.values()
        )
        self.waiting_most = max(self.waiting_most, waiting)
        return effects


def two_fronts() -> ef.Flow:
    flow = ef.Flow("far ahead")
    merged = ef.merge(flow.front("fast"), flow.front("slow"))
    merged.key_by(lambda n: n % 5).map(lambda n: n).key_by(lambda n: n % 7).sink(
        "out", partitions=3
    )
    return flow


def slow_options(seed: int, credit: int) -> Options:
    return replace(
        Options.drawn(seed, workers=3),
        credit=credit,
        burst_max=1000,
        pause_ticks_max=3,
        skew=100,
        calm_after_ticks=20_000,
    )


@pytest.mark.parametrize("credit", [1, 3, 10])
def test_a_front_far_ahead_waits_in_its_source(credit: int) -> None:
    flow = two_fronts()
    graph = flow.graph()
    elements = {
        "fast": [ef.At(time, time) for time in range(300)],
        "slow": [ef.At(time, time) for time in range(0, 300, 25)],
    }
    expected = ef.run(flow, **elements)
    used = 0
    for seed in range(few(6)):
        simulation = Observed(graph, slow_options(seed, credit))
        assert simulation.run(timed_elements(graph, elements)).outputs == expected
        assert simulation.open_most <= credit
        used = max(used, simulation.open_most)
    assert used == credit


@pytest.mark.parametrize("credit", [1, 3, 10])
def test_no_more_waits_at_barriers_than_there_are_credits(credit: int) -> None:
    """One item per element; barriers learn of the minimal time no later than fronts do."""
    flow = two_fronts()
    graph = flow.graph()
    elements = {"fast": range(200), "slow": [ef.At(time, time) for time in range(0, 200, 25)]}
    for seed in range(few(4)):
        options = replace(slow_options(seed, credit), delay_ticks_max=1, slow_links=0.0)
        simulation = Observed(graph, options)
        simulation.run(timed_elements(graph, elements))
        assert simulation.waiting_most <= 2 * credit


def test_what_waits_at_barriers_does_not_grow_with_the_input() -> None:
    flow = ef.Flow("replays")
    merged = ef.merge(flow.front("fast"), flow.front("slow"))
    merged.key_by(lambda n: n % 3).reduce(first=lambda n: n, combine=lambda a, n: 3 * a + n).sink(
        "out"
    )
    graph = flow.graph()
    most = []
    for length in (100, 400):
        elements = {
            "fast": [ef.At(time, time) for time in range(length)],
            "slow": [ef.At(time, time) for time in range(0, length, 10)],
        }
        simulations = [Observed(graph, slow_options(seed, 4)) for seed in range(3)]
        for simulation in simulations:
            result = simulation.run(timed_elements(graph, elements))
            assert result.outputs == ef.run(flow, **elements)
        most.append(max(simulation.waiting_most for simulation in simulations))
    assert most[1] <= 2 * most[0]


def test_a_front_that_waits_for_another_goes_on_when_that_one_does() -> None:
    """By hand: four credits, then nothing until the other front has promised something."""
    flow = two_fronts()
    link = on_fake_link(flow, 2)
    gate = Gate(front=flow.graph().fronts["fast"].index, credit=4)
    times = iter(range(100))

    def emit_all_that_is_allowed() -> int:
        emitted = 0
        while gate.credits:
            time = next(times)
            gate.emitted((time, 0))
            link.enter("fast", (time, time))
            link.drain()
            gate.minimal_time(link.acker.progress.of_all())
            emitted += 1
        return emitted

    assert emit_all_that_is_allowed() == 4
    link.enter("slow", promise=(2, 1))
    link.drain()
    gate.minimal_time(link.acker.progress.of_all())
    assert gate.credits == 3  # times 0, 1 and 2: the fast front's index is lower
    assert emit_all_that_is_allowed() == 3
    link.finish("slow")
    link.drain()
    gate.minimal_time(link.acker.progress.of_all())
    assert gate.credits == 4
    assert sorted(n for out in link.released.values() for n in out) == list(range(7))
