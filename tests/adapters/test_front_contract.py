"""What every front has to keep."""

from __future__ import annotations

import time
from pathlib import Path

import cloudpickle
import pytest

from emberflow.fronts import Batch, Element, Front, Iterable
from emberflow.values.item import At
from tests.adapters.fronts_under_test import ALL, KAFKA, REPLAYABLE, FrontCase


def each(cases: list[FrontCase]) -> pytest.MarkDecorator:
    # They ask for the broker by name, which the conftest cannot see: these are marked here.
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, marks=[pytest.mark.xdist_group("kafka")] if case in KAFKA else [])
            for case in cases
        ],
        ids=[case.name for case in cases],
    )


each_front = each(ALL)
each_replayable = each(REPLAYABLE)


def elements(front: Front, position: object = None) -> list[Element]:
    return [element for element in front.read(0, position) if element is not None]


@each_front
def test_gives_all_in_order_with_their_times(
    case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with case.served(tmp_path, request) as served:
        found = elements(served.finite)
        assert [element.payload for element in found] == served.payloads
        assert [element.time for element in found] == served.times


@each_replayable
def test_gives_the_same_again(
    case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with case.served(tmp_path, request) as served:
        assert elements(served.finite) == elements(served.finite)


@each_replayable
def test_gives_exactly_the_rest_from_any_position(
    case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with case.served(tmp_path, request) as served:
        everything = elements(served.finite)
        for number, element in enumerate(everything):
            assert elements(served.finite, element.position) == everything[number + 1 :]


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
    for partition in range(partitions):
        own = list(front.read(partition, None))
        assert [element.time for element in own] == list(range(partition, 2_500, partitions))
        for rest in (0, 1, 700):
            position = own[rest].position
            assert list(front.read(partition, position)) == own[rest + 1 :]
            given = list(front.read_batches(partition, position))
            assert (
                [at for batch in given for at in batch.times]
                == [  # type: ignore[union-attr]
                    element.time for element in own[rest + 1 :]
                ]
            )


@each_front
def test_positions_are_told_apart(
    case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with case.served(tmp_path, request) as served:
        positions = [element.position for element in elements(served.finite)]
        assert positions == sorted(set(positions))


@each_front
def test_can_be_stopped_at_any_moment(
    case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """While it waits it gives None often enough, and to close it takes no time."""
    with case.served(tmp_path, request) as served:
        reading = served.endless.read(0, None)
        given, longest = 0, 0.0
        until, at_last = time.monotonic() + 0.3, time.monotonic() + 30
        # One that connects to a server first needs longer to give anything.
        while time.monotonic() < (until if given >= len(served.payloads) else at_last):
            begin = time.monotonic()
            element = next(reading, None)
            longest = max(longest, time.monotonic() - begin)
            given += element is not None
        begin = time.monotonic()
        reading.close()  # type: ignore[attr-defined]
        assert time.monotonic() - begin < 1
        assert longest < 1
        assert given == len(served.payloads)


@each_front
def test_travels_to_a_worker(
    case: FrontCase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with case.served(tmp_path, request) as served:
        there = cloudpickle.loads(cloudpickle.dumps(served.finite))
        assert [element.payload for element in elements(there)] == served.payloads
        assert there.partitions == 1
