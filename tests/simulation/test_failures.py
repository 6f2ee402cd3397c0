"""Functions that raise: the error is the reference's, and speculation alone causes none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import emberflow as ef
from emberflow.engine.worker import regions as cycles_module
from emberflow.runners import reference as reference_module
from emberflow.runners.elements import timed_elements
from emberflow.runners.simulation import Options, Simulation
from tests.effort import few, tried
from tests.simulation.cases import Case
from tests.simulation.failing import with_failing_transactions, with_failures
from tests.simulation.transactional import TransactionCase

# --- Errors that the reference meets ---------------------------------------------------------------


def told(error: ef.StepError) -> tuple[Any, ...]:
    """All fields of an error."""
    return (
        type(error),
        error.step,
        error.function,
        tuple(error.global_time),
        repr(error.payload),
        str(error),
        repr(error.__cause__),
    )


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except ef.StepError as error:
        return told(error)


@pytest.mark.parametrize("chunk", range(2))
def test_the_error_is_the_one_of_the_reference(chunk: int) -> None:
    raised = passed = 0
    seeds = range(chunk, tried("simulated flows with failing functions"), 2)
    for seed in seeds:
        case = Case.of(100_000 + seed)
        random = Random(f"failures {seed}")
        failing_case = replace(case, graph=with_failures(case.graph, random))
        expected = outcome(lambda case=failing_case: case.expected)
        got = outcome(lambda case=failing_case: case.run().outputs)
        assert got == expected, f"failures {seed}\n{case}"
        raised += isinstance(expected, tuple)
        passed += isinstance(expected, dict)
    assert raised > len(seeds) / 4
    assert passed > len(seeds) / 12


@pytest.mark.parametrize("chunk", range(2))
def test_the_error_of_a_transaction_is_the_one_of_the_reference(chunk: int) -> None:
    """Without one, decisions, outputs and states are as if no function had ever failed."""
    raised = passed = 0
    for seed in range(chunk, 60, 2):
        case = TransactionCase.of(100_000 + seed)
        graph = with_failing_transactions(case.graph, Random(f"failures {seed}"))
        failing_case = replace(case, graph=graph)
        expected = outcome(lambda case=failing_case: (case.expected, case.expected_states))
        got = outcome(lambda case=failing_case: (case.run().outputs, case.run().states))
        assert got == expected, f"failures {seed}\n{case}"
        raised += len(expected) > 2
        passed += len(expected) == 2
    assert raised > 5
    assert passed > 5


def test_no_output_passes_the_failure_that_ends_the_run() -> None:
    """Otherwise it would be in the sinks when the function is mended and the run goes on from a cut."""
    ended = left = 0
    seeds = few(45)
    for seed in range(seeds):
        case: Case = TransactionCase.of(seed) if seed % 3 == 0 else Case.of(100_000 + seed)
        fails = with_failing_transactions if seed % 3 == 0 else with_failures
        graph = fails(case.graph, Random(f"failures {seed}"))
        simulation = replace(case, graph=graph).simulation()
        failure = outcome(lambda run=simulation.run, case=case: run(elements_of(case)))
        if isinstance(failure, tuple):
            released = [item[0] for items in simulation.released.values() for item in items]
            assert all(place[:2] < failure[3] for place in released), f"failures {seed}\n{case}"
            ended += 1
            left += bool(released)
    assert ended > seeds / 3
    assert left > seeds / 6


def elements_of(case: Case) -> Any:
    return timed_elements(case.graph, case.elements)


def test_an_error_of_a_flow_is_the_same_from_run_and_simulate() -> None:
    flow = ef.Flow("errors")
    numbers = flow.front("numbers").key_by(lambda n: n % 2)
    numbers.reduce(first=lambda n: n, combine=lambda total, n: total // (n - 7)).sink("out")
    elements = [5, 2, 3, 7, 9, 7, 4]
    with pytest.raises(ef.FunctionError) as expected:
        ef.run(flow, numbers=elements)
    assert expected.value.global_time == (3, 0)
    for seed in range(20):
        with pytest.raises(ef.FunctionError) as raised:
            ef.simulate(flow, seed=seed, numbers=elements)
        assert told(raised.value) == told(expected.value)


@pytest.mark.parametrize("with_key", [True, False])
@pytest.mark.parametrize("culprit", ["first", "combine"])
def test_a_reduce_that_schedules_is_told_as_by_the_reference(culprit: str, with_key: bool) -> None:
    """Only maps schedule. In order or late, the first item that tries is in the error.

    In a pair with its key, an `At` is a value like any other.
    """
    flow = ef.Flow("scheduling reduce")
    keyed = ef.merge(flow.front("one"), flow.front("two")).key_by(lambda n: n % 2)
    keyed.reduce(
        first=lambda n: ef.At(50, n) if culprit == "first" and n % 2 else n,
        combine=lambda total, n: ef.At(50, n) if culprit == "combine" and n == 7 else total + n,
        with_key=with_key,
    ).sink("out")
    elements = {"one": [2, 4, 7, 9], "two": [6, 3, 8, 7]}
    expected = outcome(lambda: ef.run(flow, **elements))
    assert with_key or expected[0] is ef.OutputError
    for seed in range(15):
        got = outcome(lambda seed=seed: ef.simulate(flow, seed=seed, **elements).outputs)
        assert got == expected


# --- Errors that only speculation meets ------------------------------------------------------------


def consecutive(numbers: tuple[int, ...]) -> int:
    """Raises if a number is missing in between."""
    for before, after in pairwise(numbers):
        if after != before + 3:
            raise ValueError(f"{before} and then {after}")
    return numbers[-1]


def key(number: int) -> int:
    return number % 3


def starts(number: int) -> int:
    if number > 2:
        raise ValueError(f"{number} comes first")
    return number


def in_reduce(stream: ef.Stream[int]) -> ef.Stream[Any]:
    return stream.key_by(key).reduce(first=starts, combine=lambda a, n: consecutive((a, n)))


def in_map(stream: ef.Stream[int]) -> ef.Stream[Any]:
    return stream.key_by(key).group(window=2).map(consecutive)


def in_flat_map(stream: ef.Stream[int]) -> ef.Stream[Any]:
    return stream.key_by(key).group(window=3).flat_map(lambda ns: [*ns, consecutive(ns)])


def in_key(stream: ef.Stream[int]) -> ef.Stream[Any]:
    return stream.key_by(key).group(window=2).key_by(consecutive).group(window=2)


def in_schedule(stream: ef.Stream[int]) -> ef.Stream[Any]:
    """Schedules three consecutive numbers for later, others for the past, which raises."""
    tuples = stream.key_by(key).group(window=2).with_time()
    return tuples.map(lambda t: ef.At(t.time + 10 - 3 * (t.payload[-1] - t.payload[0]), t.payload))


def behind_a_failure(stream: ef.Stream[int]) -> ef.Stream[Any]:
    """An accumulator that fails has no effects either."""
    return in_map(in_reduce(stream)).key_by(lambda _: 0).reduce(first=lambda n: n, combine=max)


@pytest.mark.parametrize(
    "step", [in_reduce, in_map, in_flat_map, in_key, in_schedule, behind_a_failure]
)
@pytest.mark.parametrize("fused", [True, False])
def test_what_only_speculation_meets_is_no_error(
    step: Callable[[ef.Stream[int]], ef.Stream[Any]], fused: bool
) -> None:
    """In order the functions never raise. Out of order they do, and that must be taken back."""
    flow = ef.Flow("in order")
    fronts = [flow.front(f"front-{number}") for number in range(3)]
    step(ef.merge(*fronts)).sink("out")
    graph = flow.graph()
    elements = {
        f"front-{number}": [ef.At(time, time) for time in range(48) if time * 5 % 7 % 3 == number]
        for number in range(3)
    }
    expected = ef.run(flow, **elements)
    taken_back = 0
    for seed in range(few(8)):
        simulation = Simulation(
            graph if fused else replace(graph, reductions=()), Options.drawn(seed)
        )
        assert simulation.run(timed_elements(graph, elements)).outputs == expected
        failures = simulation.workers[0].worker.barriers[len(graph.nodes)][0]
        taken_back += failures.tombstones
        assert failures.arrived == 2 * failures.tombstones
    assert taken_back


@pytest.mark.parametrize("later", [False, True])
def test_an_endless_loop_is_told_as_by_the_reference(
    monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """At once, and with scheduled rounds, which end only by time."""
    for module in (cycles_module, reference_module):
        monkeypatch.setattr(module, "CHILD_IDS_MAX", 40)
    flow = ef.Flow("endless")
    again = flow.loop()
    tuples = ef.merge(flow.front("in"), again).key_by(lambda n: n % 3).group(window=1)
    back, out = tuples.map(lambda ns: ns[0] + 1).broadcast(2)
    if later:
        timed = back.with_time().filter(lambda t: t.time < 60)
        again.close(timed.map(lambda t: ef.At(t.time + 1, t.payload)))
    else:
        again.close(back.filter(lambda n: n % 10 or n < 20))
    out.sink("out")
    elements = {"in": [15, 18, 20, 25, 3]}
    expected = outcome(lambda: ef.run(flow, **elements))
    assert later or expected[0] is ef.EndlessLoopError
    for seed in range(15):
        got = outcome(lambda seed=seed: ef.simulate(flow, seed=seed, **elements).outputs)
        assert got == expected


def test_a_loop_that_is_endless_in_speculation_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes round until nothing is missing, which in order is at once."""
    for module in (cycles_module, reference_module):
        monkeypatch.setattr(module, "CHILD_IDS_MAX", 40)
    flow = ef.Flow("round and round")
    fronts = [flow.front(f"front-{number}") for number in range(2)]
    again = flow.loop()
    tuples = ef.merge(*fronts, again).key_by(lambda n: n % 2).group(window=2)
    ready, missing = tuples.broadcast(2)
    again.close(missing.filter(lambda ns: ns[-1] - ns[0] not in (0, 2)).map(lambda ns: ns[-1]))
    ready.filter(lambda ns: ns[-1] - ns[0] in (0, 2)).sink("out")
    elements = {
        f"front-{number}": [ef.At(time, time) for time in range(12) if time // 2 % 2 == number]
        for number in range(2)
    }
    expected = ef.run(flow, **elements)
    for seed in range(10):
        assert ef.simulate(flow, seed=seed, **elements).outputs == expected
