"""The checkers bite: each way to break the engine is caught, by whom it should be, soon."""

from __future__ import annotations

import re
from functools import partial
from itertools import islice

import pytest

from tests.effort import tried
from tests.simulation.cases import judged, wrong_by
from tests.simulation.hunt import caught, hunted
from tests.simulation.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", hunted(MUTATIONS, lambda mutation: mutation.name))
def test_it_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = mutation.make(monkeypatch)
    told = caught(
        mutation.name, mutation.cases(), partial(wrong_by(judged), **machines), mutation.cases_most
    )
    assert re.search(mutation.caught_by, told), told


def test_their_own_cases_are_right_without_them() -> None:
    for cases in {mutation.cases for mutation in MUTATIONS}:
        for case in islice(cases(), tried("cases of mutations, unbroken")):
            judged(case)
