"""What every front has to keep: the rules of `emberflow.testing`, on all of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from emberflow import testing
from emberflow.fronts import Batch, Element, Front, Iterable
from emberflow.testing import FRONT_RULES
from emberflow.values.item import At
from tests.adapters.fronts_under_test import ALL, KAFKA, REPLAYABLE, FrontCase
from tests.effort import SECONDS

#: Generous: a broker on a busy machine may take its time.


# They ask for the broker by name, which the conftest cannot see: these are marked here.
each_front = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.xdist_group("kafka")] if case in KAFKA else [])
        for case in ALL
    ],
    ids=[case.name for case in ALL],
)


@each_front
def test_a_front_keeps_the_contract(
    case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with case.served(tmp_path, request) as served:
        checked = testing.check_front(
            lambda: served.finite, payloads=served.payloads, times=served.times, seconds=SECONDS
        )
        exempt = set() if case in REPLAYABLE else {"replay", "resume"}
        if not hasattr(served.finite, "read_batches"):
            exempt.add("batches")
        assert set(FRONT_RULES) - set(checked) == exempt


@each_front
def test_a_front_that_waits_for_more_can_be_stopped(
    case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with case.served(tmp_path, request) as served:
        rules = ["elements", "promises", "waiting", "payloads", "times"]
        checked = testing.check_front(
            lambda: served.endless,
            payloads=served.payloads,
            times=served.times,
            rules=rules,
            seconds=SECONDS,
        )
        assert checked == rules


@each_front
def test_positions_rise(case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Ours do, which the contract does not ask for: people read them in logs."""
    with case.served(tmp_path, request) as served:
        positions = [element.position for element in elements(served.finite)]
        assert positions == sorted(set(positions))


def elements(front: Front, position: object = None) -> list[Element]:
    return [element for element in front.read(0, position) if element is not None]


@pytest.mark.parametrize("arrival", [False, True])
def test_batches_hold_the_same_elements_from_any_position(arrival: bool) -> None:
    given = [At(3 * number, number) if number % 7 == 0 else number for number in range(2_500)]
    front = Iterable(given, arrival=arrival)
    for position in (None, 0, 998, 999, 2_498, 2_499):
        found = [
            Element(at, payload, time_)
            for batch in front.read_batches(0, position)
            if isinstance(batch, Batch)
            for at, payload, time_ in zip(
                batch.positions,
                batch.payloads,
                batch.times or [None] * len(batch.payloads),
                strict=True,
            )
        ]
        assert found == elements(front, position)


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_elements_are_dealt_out_to_partitions(partitions: int) -> None:
    front = Iterable(range(2_500), partitions=partitions)
    of_each = {own: list(range(own, 2_500, partitions)) for own in range(partitions)}
    testing.check_front(lambda: front, payloads=of_each, times=of_each, seconds=SECONDS)
