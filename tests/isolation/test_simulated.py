"""The isolation checker judges the simulation, both intact and broken.

It sees only the outputs, not the reference. More seeds: ``python -m tests.simulation.soak
--histories``.
"""

from __future__ import annotations

import pytest

import emberflow as ef
from emberflow.errors import EmberflowError
from tests.effort import few
from tests.isolation.simulated import anomalies, drawn, judge_histories, simulated
from tests.simulation import transaction_mutations as broken

CHUNK = 8


@pytest.mark.parametrize("first", range(0, few(24), CHUNK))
def test_the_simulation_is_serializable(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judge_histories(seed, crashes=False)


@pytest.mark.parametrize("first", range(1_000, 1_000 + few(24), CHUNK))
def test_with_crashes_too(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judge_histories(seed, crashes=True)


def test_the_histories_are_worth_it() -> None:
    """Both kinds of refusal occur, chases follow what they read, and reads see others' appends."""
    rejected: dict[str, int] = {}
    committed = chased = 0
    for seed in range(10):
        flow, elements = drawn(seed)
        outputs = ef.run(flow, **elements)
        assert anomalies(elements, outputs) == []
        committed += len(outputs["committed"])
        for _, check, _ in outputs["rejected"]:
            rejected[check] = rejected.get(check, 0) + 1
        chased += sum(line[2] == "chase" and line[4] > 0 for line in outputs["seen"])
    assert set(rejected) == {"fits", "adds up"}
    assert all(10 < count < committed for count in rejected.values())
    assert chased > 20


@pytest.mark.parametrize(
    ("break_", "kinds"),
    [
        (broken.an_abort_that_is_not_sent, {"G1a"}),
        (broken.an_abort_for_one_voter_only, {"G1a"}),
        (broken.a_read_of_an_uncommitted_version, {"G1a"}),
        (broken.an_abort_that_is_not_taken_back, {"lost append", "lost update", "G-single"}),
        (broken.a_last_version_that_was_aborted, {"G1a"}),
        (broken.a_late_voter_that_hears_nothing, {"G1a"}),
        (broken.constraints_that_nobody_looks_at, set()),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_is_broken_shows(
    monkeypatch: pytest.MonkeyPatch, break_: broken.Break, kinds: set[str]
) -> None:
    """Except constraints, which are not a matter of isolation."""
    break_(monkeypatch)
    found: set[str] = set()
    for seed in range(20 if kinds else 5):
        try:
            found |= {anomaly.kind for anomaly in simulated(seed)}
        except (EmberflowError, AssertionError):  # the engine noticed, or the history is incomplete
            continue
        if kinds & found:
            break
    assert bool(kinds & found) == bool(kinds), found
