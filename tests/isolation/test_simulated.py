"""The judge of isolation looks at the simulation: at what it gives, and at what it gives when broken.

It knows the outputs only, and nothing of the reference.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.worker import Worker
from emberflow.errors import EmberflowError
from emberflow.guarantees.isolation import Anomaly, find_anomalies, find_disorder
from emberflow.runners.elements import timed_elements
from emberflow.runners.simulation import CrashSimulation, Faults, Options, Simulation
from tests.isolation.appending import appending_flow, drawn_work, recorded
from tests.simulation import transaction_mutations as broken
from tests.simulation.cases import always_trimming

SEEDS = 40


def drawn(seed: int) -> tuple[ef.Flow, dict[str, list[Any]]]:
    random = Random(f"appending {seed}")
    keys, more_keys = random.choice((2, 3, 5, 20)), random.choice((1, 2, 4))
    elements = drawn_work(random, count=40, keys=keys, more_keys=more_keys, looks=3)
    return appending_flow(keys, more_keys), elements


def judged(elements: dict[str, list[Any]], outputs: dict[str, list[Any]]) -> list[Anomaly]:
    history = recorded(elements, outputs)
    assert history.incomplete == []
    found = find_anomalies(history.transactions, final=history.final)
    return found + find_disorder(history.transactions, final=history.final)


def simulated(seed: int) -> list[Anomaly]:
    flow, elements = drawn(seed)
    graph = flow.graph()
    worker = always_trimming(Worker) if seed % 2 else Worker
    simulation = Simulation(graph, Options.drawn(seed), worker=worker)
    return judged(elements, simulation.run(timed_elements(graph, elements)).outputs)


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_the_simulation_is_serializable(first: int) -> None:
    for seed in range(first, first + 10):
        assert simulated(seed) == [], seed


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_with_crashes_too(first: int) -> None:
    for seed in range(first, first + 10):
        flow, elements = drawn(1_000 + seed)
        graph = flow.graph()
        faults = Faults.drawn(seed, crashes=3)
        run = CrashSimulation(graph, Options.drawn(seed), faults).run
        result = run(list(timed_elements(graph, elements)))
        assert judged(elements, result.outputs) == [], seed


def test_the_histories_are_worth_it() -> None:
    """Transactions are refused by both, follow what they read, and see what others appended."""
    rejected: dict[str, int] = {}
    committed = chased = 0
    for seed in range(10):
        flow, elements = drawn(seed)
        outputs = ef.run(flow, **elements)
        assert judged(elements, outputs) == []
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
    """Without constraints all is in order: they are not a matter of isolation."""
    break_(monkeypatch)
    found: set[str] = set()
    for seed in range(30):
        try:
            found |= {anomaly.kind for anomaly in simulated(seed)}
        except EmberflowError:  # the engine itself noticed
            continue
        if kinds & found:
            break
    assert bool(kinds & found) == bool(kinds), found
