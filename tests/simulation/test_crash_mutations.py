"""The simulation with crashes bites: each way to break recovery is caught, by whom it should be."""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
from typing import Any

import pytest

from tests.simulation.cases import WrongError
from tests.simulation.crash_cases import CrashCase, judged_with_crashes
from tests.simulation.crash_mutations import CRASH_MUTATIONS, CrashMutation


@pytest.mark.parametrize("mutation", CRASH_MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_is_caught(mutation: CrashMutation, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = mutation.make(monkeypatch) or {}
    found = map(partial(wrong, **machines), islice(mutation.cases(), mutation.cases_most))
    caught = next(filter(None, found), f"nobody noticed in {mutation.cases_most} cases")
    assert re.search(mutation.caught_by, caught), caught


def wrong(case: CrashCase, **machines: Any) -> str | None:
    try:
        judged_with_crashes(case, **machines)
    except WrongError as error:
        return str(error)
    return None


def test_their_own_cases_are_right_without_them() -> None:
    for cases in {mutation.cases for mutation in CRASH_MUTATIONS}:
        for case in islice(cases(), 10):
            judged_with_crashes(case)
