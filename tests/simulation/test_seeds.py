"""Random flows on random clusters, each against the reference: 200 seeds on every run.

For more seeds, ``make soak``. A failing seed shows how to reproduce it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice

import pytest

from emberflow.engine.messages import Effects, Frame
from emberflow.engine.speculation import budget as budget_module
from emberflow.engine.worker.worker import Worker
from tests.effort import few, tried
from tests.simulation.cases import Case, judged

SEEDS = tried("simulated flows")
CHUNK = 25


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_the_output_is_the_reference(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judged(Case.out_of_order(seed))


class Holding(Worker):
    """Counts how often it holds items back after an event."""

    times = 0

    def deliver(self, frames: Sequence[Frame]) -> Effects:
        effects = super().deliver(frames)
        Holding.times += bool(self.held())
        return effects


@pytest.mark.parametrize("replays_max", [0, 1, 7])
def test_however_little_a_cycle_may_speculate(
    monkeypatch: pytest.MonkeyPatch, replays_max: int
) -> None:
    """With few replays to spend, cycles hold back most of the time: what is held is not lost."""
    monkeypatch.setattr(budget_module, "_REPLAYS_MAX", replays_max)
    monkeypatch.setattr(Holding, "times", 0)
    for case in islice(with_loops(10_000 * (replays_max + 1)), few(25)):
        judged(case, worker=Holding)
    assert Holding.times > few(25)


def with_loops(first: int) -> Iterator[Case]:
    for seed in count(first):
        case = Case.of(seed)
        loops = {"loop", "two_loops", "drift_by_hand"} & set(case.name.split())
        if loops and case.options.workers > 1:
            yield case
