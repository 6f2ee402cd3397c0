"""The baseline by arrival: whatever crashes, output and states count each element once."""

from __future__ import annotations

from itertools import count

import pytest

from emberflow.engine.arrival.outputs import SnapshotGoneError
from tests.effort import tried
from tests.simulation.hunt import caught
from tests.simulation.marked import Case, WrongError, judged
from tests.simulation.marker_mutations import MUTATIONS, Mutation

SEEDS = tried("simulated snapshots by markers")
CASES_MOST = 400


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_each_element_counts_once(first: int) -> None:
    crashes = logged = snapshots = 0
    for seed in range(first, first + 50):
        disk = judged(Case.of(seed))
        crashes += disk.crashes
        logged += disk.logged
        snapshots += len(disk.committed)
    assert crashes > 20
    assert logged > 8
    assert snapshots > 80


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_one_is_caught(mutation: Mutation) -> None:
    def wrong(case: Case) -> str | None:
        try:
            judged(case, mutation.hosts)
        except (WrongError, SnapshotGoneError) as error:
            return type(error).__name__
        return None

    told = caught(mutation.name, map(mutation.cases, count()), wrong, CASES_MOST)
    assert told in ("WrongError", "SnapshotGoneError"), told
