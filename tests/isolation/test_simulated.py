"""The judge of isolation looks at the simulation: at what it gives, and at what it gives when broken.

It knows the outputs only, and nothing of the reference. ``python -m tests.simulation.soak --histories``
for as many seeds as you want.
"""

from __future__ import annotations

import pytest

import emberflow as ef
from emberflow.errors import EmberflowError
from tests.isolation.simulated import anomalies, drawn, judge_histories, simulated
from tests.simulation import transaction_mutations as broken

CHUNK = 8


@pytest.mark.parametrize("first", range(0, 24, CHUNK))
def test_the_simulation_is_serializable(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judge_histories(seed, crashes=False)


@pytest.mark.parametrize("first", range(1_000, 1_016, CHUNK))
def test_with_crashes_too(first: int) -> None:
    for seed in range(first, first + CHUNK):
        judge_histories(seed, crashes=True)


def test_the_histories_are_worth_it() -> None:
    """Transactions are refused by both, follow what they read, and see what others appended."""
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
    """But for constraints: that they hold is no matter of isolation."""
    break_(monkeypatch)
    found: set[str] = set()
    for seed in range(20 if kinds else 5):
        try:
            found |= {anomaly.kind for anomaly in simulated(seed)}
        except (EmberflowError, AssertionError):  # the engine noticed, or the history is not whole
            continue
        if kinds & found:
            break
    assert bool(kinds & found) == bool(kinds), found
