"""Regions that are gathered on one worker and spread again: outputs, states, reads and cuts stay the same.

Each case has a region that can be gathered and judges that change their minds at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice

import pytest

from emberflow.engine.layout import Layout
from emberflow.engine.messages import AFTER_ALL
from emberflow.engine.worker.gathering import region as region_module
from emberflow.engine.worker.gathering.region import Gathering
from tests.effort import few
from tests.simulation.cases import AnyCase, wrong_by
from tests.simulation.gathering_mutations import breaks
from tests.simulation.hunt import Break, caught, name_of
from tests.simulation.transactional import (
    TransactionCase,
    judged_with_crashes_and_cuts,
    judged_with_states,
    transactions_with_crashes,
    transactions_with_moves,
)

CASES_OF_A_BREAK = 60
#: Where the hunt for a break begins, if not with the first seed: each shows in one case of hundreds.
FIRST = {
    "a_worker_that_does_not_look_what_comes": 1_586,
    "an_item_that_overtakes_another_of_its_place": 1_830,
}


def gatherable(first: int) -> Iterator[int]:
    """The seeds of flows with a region that can be gathered."""
    for seed in count(first):
        if Layout(TransactionCase.of(seed).graph).gatherable:
            yield seed


def fickle(case: AnyCase) -> AnyCase:
    workers = max(2, case.options.workers)
    return replace(case, options=replace(case.options, patience="fickle", workers=workers))


def test_who_computes_a_region_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regions are gathered and spread again, on several workers, while elements come."""
    hosts: list[int | None] = []
    go_over = Gathering._go_over

    def noted(self: Gathering) -> None:
        hosts.append(self._next.host)
        go_over(self)

    monkeypatch.setattr(Gathering, "_go_over", noted)
    for number, seed in enumerate(islice(gatherable(600_000), few(30))):
        # A host that keeps few rows fetches them again and again.
        monkeypatch.setattr(region_module, "_ROWS_KEPT", (0, 3, 16_384)[number % 3])
        judged_with_states(fickle(TransactionCase.out_of_order(seed)))
    assert hosts.count(None) > 2
    assert {None, 0, 1} <= set(hosts)


def test_nor_does_it_through_crashes_and_moves() -> None:
    for number, seed in enumerate(islice(gatherable(610_000), few(20))):
        drawn = transactions_with_moves if number % 2 else transactions_with_crashes
        judged_with_crashes_and_cuts(fickle(drawn(seed)))


@pytest.mark.parametrize("broken", breaks, ids=name_of)
def test_it_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken.__name__ != "a_row_that_wakes_nobody":
        # A host that runs ahead of the rows that it fetches meets what is rare otherwise.
        monkeypatch.setattr(Gathering, "expect", lambda self, node, items: None)
        monkeypatch.setattr(Gathering, "awaited_from", AFTER_ALL)
    broken(monkeypatch)
    seeds = gatherable(FIRST.get(broken.__name__, 0))
    cases = (fickle(TransactionCase.out_of_order(seed)) for seed in seeds)
    told = caught(name_of(broken), cases, wrong_by(judged_with_states), CASES_OF_A_BREAK)
    assert "nobody noticed" not in told
