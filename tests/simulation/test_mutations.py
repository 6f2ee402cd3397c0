"""The checkers bite: each way to break the engine is caught, by whom it should be, soon."""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
from typing import Any

import pytest

from tests.simulation.cases import Case, WrongError, judged
from tests.simulation.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_is_caught(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = mutation.make(monkeypatch)
    found = map(partial(wrong, **machines), islice(mutation.cases(), mutation.cases_most))
    caught = next(filter(None, found), f"nobody noticed in {mutation.cases_most} cases")
    assert re.search(mutation.caught_by, caught), caught


def wrong(case: Case, **machines: Any) -> str | None:
    try:
        judged(case, **machines)
    except WrongError as error:
        return str(error)
    return None


def test_their_own_cases_are_right_without_them() -> None:
    for cases in {mutation.cases for mutation in MUTATIONS}:
        for case in islice(cases(), 30):
            judged(case)
