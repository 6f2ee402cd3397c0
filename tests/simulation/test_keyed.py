"""Paths that keep their key, on random flows: the output is the reference's, and a slow range is alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import count, islice
from random import Random
from typing import Any

import pytest

from emberflow.engine.layout import Layout
from emberflow.engine.worker.ranges import owned_nodes, ranges_reaching
from emberflow.errors import StepError
from emberflow.runners.elements import timed_elements
from emberflow.values.hashing import key_hash, owner
from tests.effort import SOAK, tried
from tests.simulation.cases import Case, judged, wrong_by
from tests.simulation.crash_cases import judged_with_crashes
from tests.simulation.failing import with_failures
from tests.simulation.hunt import Break, caught, name_of
from tests.simulation.keyed import diverting, keyed_case, keyed_crash_case, two_stages
from tests.simulation.keyed_mutations import breaks

CASES_OF_A_BREAK = 60
#: What some breaks show in, and the first seed.
CASES = {
    "a_frame_has_the_level_of_its_last_node": (two_stages, 66),
    "the_errors_sink_does_not_wait_for_all": (diverting, 0),
}


def is_of_use(case: Case) -> bool:
    """Whether some partition does not wait for all ranges."""
    owners = case.options.owners(case.options.workers)
    if owners.workers == 1:
        return False
    layout = Layout(case.graph, on_error=case.on_error)
    reaching = ranges_reaching(layout, owned_nodes(layout), owners)
    return any(len(workers) < owners.workers for workers in reaching.values())


def cases_of_use(first: int, draw: Callable[[int], Case] = keyed_case) -> Iterator[Case]:
    return filter(is_of_use, map(draw, count(first)))


def test_the_output_is_the_reference() -> None:
    for seed in range(tried("simulated paths that keep their key")):
        judged(keyed_case(seed))


def test_and_so_it_is_through_crashes_and_moves() -> None:
    for seed in range(tried("paths that keep their key, over crashes")):
        judged_with_crashes(keyed_crash_case(seed))


def test_output_of_other_keys_that_passed_a_failure_is_right() -> None:
    """It is what it would be if the function did not fail: the run may go on behind it."""
    ended = passed = 0
    for case in islice(cases_of_use(500_000), tried("simulated paths that keep their key")):
        seed = case.options.seed
        if case.on_error == "divert":
            continue
        graph = with_failures(case.graph, Random(f"failures {seed}"))
        failing_case = replace(case, graph=graph)
        simulation = failing_case.simulation()
        expected = failure_of(lambda case=failing_case: case.expected)
        failure = failure_of(
            lambda run=simulation.run, case=case: run(timed_elements(case.graph, case.elements))
        )
        assert failure == expected, f"{seed}\n{case}"
        if failure is None:
            continue
        ended += 1
        for name, items in simulation.released.items():
            passed += any(item[0][:2] >= failure[1] for item in items)
            sink = case.graph.sinks[name]
            for partition in range(sink.partitions):
                own = [item[2] for item in items if partition_of(sink, item[2]) == partition]
                mended = [
                    each for each in case.expected[name] if partition_of(sink, each) == partition
                ]
                assert own == mended[: len(own)], f"{seed}\n{case}"
    assert ended > 3
    assert passed or not SOAK


def failure_of(run: Any) -> Any:
    try:
        run()
    except StepError as error:
        return str(error), error.global_time
    return None


def partition_of(sink: Any, payload: Any) -> int:
    return owner(key_hash(sink.key.function(payload)), sink.partitions) if sink.key else 0


@cache
def cases_of_breaks(draw: Callable[[int], Case], first: int) -> list[Case]:
    """Drawn before anything is broken."""
    return [
        replace(case, options=replace(case.options, patience=("always", "adaptive")[number % 2]))
        for number, case in enumerate(islice(cases_of_use(first, draw), CASES_OF_A_BREAK))
    ]


@pytest.mark.parametrize("broken", breaks, ids=name_of)
def test_it_is_caught(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = cases_of_breaks(*CASES.get(broken.__name__, (keyed_case, 0)))
    broken(monkeypatch)
    told = caught(name_of(broken), cases, wrong_by(judged), CASES_OF_A_BREAK)
    assert "nobody noticed" not in told
