"""Accounts of workers in place of an acker: the output is the same, and what breaks them is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import TypeVar

import pytest

from tests.effort import tried
from tests.simulation.account_mutations import breaks
from tests.simulation.cases import Case, judged, wrong_by
from tests.simulation.crash_cases import CrashCase, judged_with_crashes
from tests.simulation.hunt import Break, caught, name_of
from tests.simulation.keyed import keyed_case
from tests.simulation.transactional import TransactionCase, judged_with_states

CASES_OF_A_BREAK = 150

AnyCase = TypeVar("AnyCase", bound=Case)


def with_accounts(case: AnyCase) -> AnyCase:
    """Statements come late, so they overtake each other."""
    return replace(case, options=replace(case.options, accounts=True, statement_ticks_max=30))


def test_the_output_is_the_reference() -> None:
    for seed in range(700_000, 700_000 + tried("simulated flows with accounts")):
        if seed % 4 == 0:
            judged_with_states(with_accounts(TransactionCase.out_of_order(seed)))
        elif seed % 4 == 1:
            judged(with_accounts(keyed_case(seed)))
        else:
            judged(with_accounts(Case.out_of_order(seed)))


def test_and_so_it_is_through_crashes_and_moves() -> None:
    for seed in range(700_000, 700_000 + tried("accounts over crashes")):
        drawn = CrashCase.moving(seed) if seed % 2 else CrashCase.out_of_order(seed)
        judged_with_crashes(with_accounts(drawn))


def cases_of_breaks() -> Iterator[Case]:
    return (with_accounts(Case.of(seed)) for seed in count() if Case.of(seed).options.workers > 2)


@pytest.mark.parametrize("broken", breaks, ids=name_of)
def test_it_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    told = caught(name_of(broken), cases_of_breaks(), wrong_by(judged), CASES_OF_A_BREAK)
    assert "nobody noticed" not in told
