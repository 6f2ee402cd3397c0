"""The contract: every runner gives the reference's output, to the byte, in every partition."""

from __future__ import annotations

from functools import cache

import pytest

import emberflow as ef
from tests.contract.cases import CASES, EXAMPLE_ELEMENTS, EXAMPLES, Case, examples_importable
from tests.contract.outputs import Bytes, by_partition, differences
from tests.contract.runners import PARTITIONS, RUNNERS, asked_of_batch

BY_NAME = {case.name: case for case in CASES}

#: Examples without a flow of their own.
#: The script of the upgrade runs live itself, and its flow is one sum.
NOT_CASES = {"conftest", "demo", "bank_upgrade"}


@cache
def right(name: str) -> Bytes:
    """The reference's output, pickled before anything else could change it."""
    case = BY_NAME[name]
    return by_partition(case.graph, ef.run(case.flow, on_error=case.on_error, **case.elements))


def test_every_example_is_in_the_contract() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} - NOT_CASES == set(EXAMPLE_ELEMENTS)


def test_the_cases_have_output_and_partitions() -> None:
    """Without output the contract would always hold."""
    for case in CASES:
        assert any(right(case.name).values()), case.name
    assert any(partition > 0 for case in CASES for _, partition in right(case.name))
    for sink in ("late", "errors"):
        assert any(right(case.name).get((sink, 0)) for case in CASES)


@pytest.mark.parametrize(
    ("case", "runner"),
    [
        pytest.param(
            case,
            name,
            id=f"{case.name}-{name}",
            marks=[pytest.mark.xdist_group("batch")] if runner.on_spark else [],
        )
        for case in CASES
        for name, runner in RUNNERS.items()
        if runner.takes(case)
    ],
)
def test_the_output_is_that_of_the_reference_to_the_byte(
    case: Case, runner: str, request: pytest.FixtureRequest
) -> None:
    with examples_importable():
        got = RUNNERS[runner].run(case, lambda: request.getfixturevalue("spark"))
        expected = right(case.name)
        asked = {sink for sink, _ in got}
        assert asked
        assert differences(got, {at: is_ for at, is_ in expected.items() if at[0] in asked}) == []


def test_batch_is_asked_for_every_sink_and_at_every_number_of_partitions() -> None:
    for case in CASES:
        asked = [asked_of_batch(case, partitions) for partitions in PARTITIONS]
        assert {name for names in asked for name in names} == set(case.graph.sinks)
    for partitions in PARTITIONS:
        assert sum(bool(asked_of_batch(case, partitions)) for case in CASES) >= len(CASES) // 3


@pytest.mark.parametrize(
    ("got", "complaint"),
    [
        ([1, 2], []),
        ([1, 2.0], ["sink 'out' partition 0, payload 1: got 2.0, expected 2 (2 came, 2 expected)"]),
        ([True, 2], ["payload 0: got True, expected 1"]),
        ([1], ["payload 1: got none, expected 2 (1 came, 2 expected)"]),
        ([2, 1], ["payload 0: got 2, expected 1"]),
    ],
)
def test_what_differs_in_type_or_order_or_number_is_told(
    got: list[object], complaint: list[str]
) -> None:
    flow = ef.Flow("as it is")
    flow.front("numbers").sink("out")
    graph = flow.graph()
    found = differences(by_partition(graph, {"out": got}), by_partition(graph, {"out": [1, 2]}))
    assert len(found) == len(complaint)
    for told, expected in zip(found, complaint, strict=True):
        assert expected in told
