"""Items that a sink refuses: diverted like failures of functions, the same on every runner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import emberflow as ef
from emberflow.errors import RefusedError
from emberflow.graph.drawing import text
from emberflow.graph.nodes import Graph
from emberflow.runners.diversion import refusing
from emberflow.runners.elements import timed_elements
from emberflow.runners.reference import Reference
from emberflow.runners.simulation.crashes.recovery import CrashSimulation
from emberflow.runners.simulation.options import Faults
from emberflow.values.hashing import stable_id
from tests.simulation.cases import judged
from tests.simulation.failing import diverting


def refuses(payload: Any) -> str | None:
    return "it is one of three" if stable_id(repr(payload)) % 3 == 0 else None


def refused_by_all(graph: Graph) -> Graph:
    """The graph, each of whose sinks refuses about a third of its payloads."""
    checked = refusing(graph, dict.fromkeys(graph.sinks, refuses))
    assert checked.fingerprint == graph.fingerprint, "a cut fits both"
    assert text(checked) == text(graph)
    return checked


@pytest.mark.parametrize("chunk", range(2))
def test_random_flows_whose_sinks_refuse_items_equal_the_reference(chunk: int) -> None:
    refused = stored = 0
    for seed in range(chunk, 30, 2):
        case = diverting(seed)
        outputs = judged(replace(case, graph=refused_by_all(case.graph))).outputs
        for name, payloads in outputs.items():
            if name == "errors":
                refused += sum("cannot store a payload" in error.problem for error in payloads)
            else:
                stored += len(payloads)
                assert not any(map(refuses, payloads))
    assert refused > 20
    assert stored > 100


def test_a_refused_item_is_recorded_once_over_crashes() -> None:
    for seed in range(12):
        case = diverting(seed)
        graph = refused_by_all(case.graph)
        elements = list(timed_elements(graph, case.elements))
        reference = Reference(graph, on_error="divert")
        for global_time, front, payload in elements:
            reference.enter(global_time, front, payload)
        reference.finish()
        faults = Faults.drawn(seed, crashes=3)
        simulation = CrashSimulation(graph, case.options, faults, on_error="divert")
        assert simulation.run(elements).outputs == reference.outputs, case.again


def words(partitions: int) -> ef.Flow:
    flow = ef.Flow("words")
    flow.front("words").key_by(len).sink("out", partitions=partitions)
    return flow


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_refused_item_is_a_record_and_without_divert_the_end(partitions: int) -> None:
    def long(word: str) -> str | None:
        return f"{word!r} is too long" if len(word) > 3 else None

    class Checked:
        def graph(self, **on_error: Any) -> Any:
            return refusing(words(partitions).graph(), {"out": long, "other": None})

    flow: Any = Checked()
    given = ["ash", "ember", "oak"]
    outputs = ef.run(flow, on_error="divert", words=given)
    assert outputs["out"] == ["ash", "oak"]
    (record,) = outputs["errors"]
    assert record[:2] == (1, 0)
    assert record.step.startswith("sink 'out' (")
    assert record.problem == "sink 'out' cannot store a payload: 'ember' is too long"
    assert record.payload == "ember"
    with pytest.raises(
        RefusedError, match=r"(?s)cannot store a payload: 'ember' is too long.*time=1"
    ):
        ef.run(flow, words=given)


def test_a_check_that_raises_refuses() -> None:
    graph = refusing(words(1).graph(), {"out": lambda word: word["no"]})

    class Checked:
        def graph(self, **on_error: Any) -> Any:
            return graph

    flow: Any = Checked()
    (record,) = ef.run(flow, on_error="divert", words=["ash"])["errors"]
    assert "cannot store a payload: TypeError" in record.problem
