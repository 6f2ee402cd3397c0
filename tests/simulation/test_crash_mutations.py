"""The simulation with crashes bites: each way to break recovery is caught, by whom it should be."""

from __future__ import annotations

import re
from functools import partial
from itertools import islice

import pytest

from tests.effort import tried
from tests.simulation.crash_cases import judged_with_crashes, wrong
from tests.simulation.crash_mutations import CRASH_MUTATIONS, CrashMutation
from tests.simulation.hunt import caught, hunted


@pytest.mark.parametrize("mutation", hunted(CRASH_MUTATIONS, lambda mutation: mutation.name))
def test_it_is_caught(mutation: CrashMutation, monkeypatch: pytest.MonkeyPatch) -> None:
    machines = mutation.make(monkeypatch) or {}
    told = caught(mutation.name, mutation.cases(), partial(wrong, **machines), mutation.cases_most)
    assert re.search(mutation.caught_by, told), told


def test_their_own_cases_are_right_without_them() -> None:
    for cases in {mutation.cases for mutation in CRASH_MUTATIONS}:
        for case in islice(cases(), tried("cases of mutations of recovery, unbroken")):
            judged_with_crashes(case)
