"""Histories of list-append transactions that the simulation makes, with and without crashes."""

from __future__ import annotations

from random import Random
from typing import Any

import emberflow as ef
from emberflow.engine.worker.worker import Worker
from emberflow.guarantees.isolation import Anomaly, find_anomalies, find_disorder
from emberflow.runners.elements import timed_elements
from emberflow.runners.simulation import CrashSimulation, Faults, Options, Simulation
from tests.isolation.appending import appending_flow, drawn_work, recorded
from tests.simulation.cases import WrongError, always_trimming


def drawn(seed: int) -> tuple[ef.Flow, dict[str, list[Any]]]:
    """The flow of a seed, with 2 to 20 keys, and its elements."""
    random = Random(f"appending {seed}")
    keys, more_keys = random.choice((2, 3, 5, 20)), random.choice((1, 2, 4))
    elements = drawn_work(random, count=40, keys=keys, more_keys=more_keys, looks=3)
    return appending_flow(keys, more_keys), elements


def anomalies(elements: dict[str, list[Any]], outputs: dict[str, list[Any]]) -> list[Anomaly]:
    """The anomalies of the history that the outputs show, which has to be complete."""
    history = recorded(elements, outputs)
    assert history.incomplete == []
    found = find_anomalies(history.transactions, final=history.final)
    return found + find_disorder(history.transactions, final=history.final)


def simulated(seed: int) -> list[Anomaly]:
    """The anomalies of the history of a seed."""
    flow, elements = drawn(seed)
    graph = flow.graph()
    worker = always_trimming(Worker) if seed % 2 else Worker
    simulation = Simulation(graph, Options.drawn(seed), worker=worker)
    return anomalies(elements, simulation.run(timed_elements(graph, elements)).outputs)


def simulated_with_crashes(seed: int) -> list[Anomaly]:
    """The same, with workers, drivers and sinks that die."""
    flow, elements = drawn(seed)
    graph = flow.graph()
    simulation = CrashSimulation(graph, Options.drawn(seed), Faults.drawn(seed, crashes=3))
    return anomalies(elements, simulation.run(list(timed_elements(graph, elements))).outputs)


def judge_histories(seed: int, *, crashes: bool) -> None:
    """Raise `WrongError` unless the history of a seed is serializable, in order and complete."""
    again = f"python -m tests.simulation.soak --histories{' --crashes' * crashes} --from {seed} --seeds 1"
    try:
        found = simulated_with_crashes(seed) if crashes else simulated(seed)
    except Exception as error:
        raise WrongError(f"{type(error).__name__}: {error}\n  again: {again}") from error
    if found:
        raise WrongError("\n".join([*map(str, found), f"  again: {again}"]))
