"""Map and broadcast: a batch is its items, and what happens to a tombstone happens to its item."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.machines.map import broadcast_process, map_process
from emberflow.graph.nodes import Broadcast, Map
from emberflow.values.item import FlatItem, scheduled_child_ids
from tests.effort import examples
from tests.engine.helpers import PLACES, shown


def generated(number: int) -> Any:
    yield number
    if number == 3:
        raise ValueError("half way")
    yield -number


def kinds(number: int) -> Any:
    """All that a flat_map may return, and some that it may not."""
    return [
        [],
        [number, "second"],
        (number,),
        generated(number),
        range(300),
        [number, ef.At(50, "later"), ef.At(60, "much later"), "now"],
        {number},
        [ef.At(0, "too late")],
    ][number]


def one(number: int) -> Any:
    if number == 1:
        return ef.At(99, "scheduled")
    return 10 // (number - 4)


def timed(number: ef.Timed[int]) -> Any:
    return ef.At(number.time + 1, number.payload) if number.payload % 3 == 0 else number


#: Streams to streams, and what their last map is to be tried with.
STEPS: dict[str, Callable[[ef.Stream[Any]], ef.Stream[Any]]] = {
    "one to one": lambda stream: stream.map(one),
    "one to many": lambda stream: stream.flat_map(kinds),
    "keep": lambda stream: stream.filter(lambda number: 10 // (number - 4) > 2),
    "with time": lambda stream: stream.with_time(),
    "by time": lambda stream: stream.map(timed),
}

items = st.lists(
    st.tuples(st.sampled_from(PLACES), st.sampled_from([0, 1, 6, 7]), st.integers(0, 7)),
    max_size=8,
)


def map_of(step: str) -> Map:
    flow = ef.Flow("map")
    STEPS[step](flow.front("in")).sink("out")
    (node,) = (node for node in flow.graph().nodes if isinstance(node, Map))
    return node


def processed(node: Map, batch: list[FlatItem]) -> tuple[list[FlatItem], list[FlatItem]]:
    failed: list[FlatItem] = []
    (output,) = map_process(node)(batch, failed)
    return output, [(place, mark, shown(error)) for place, mark, error in failed]


@pytest.mark.parametrize("step", STEPS)
@given(items)
@settings(max_examples=examples(150), deadline=None)
def test_a_batch_is_its_items(step: str, batch: list[FlatItem]) -> None:
    """One after another or together, failures or not: the same, in the order they came."""
    node = map_of(step)
    if step == "by time":
        batch = [(place, mark, ef.Timed(place[0], n)) for place, mark, n in batch]
    single = [processed(node, [item]) for item in batch]
    assert processed(node, batch) == (
        [item for output, _ in single for item in output],
        [item for _, failed in single for item in failed],
    )


@pytest.mark.parametrize("step", STEPS)
@given(items)
@settings(max_examples=examples(100), deadline=None)
def test_a_tombstone_has_the_images_and_the_failure_of_its_item(
    step: str, batch: list[FlatItem]
) -> None:
    node = map_of(step)
    if step == "by time":
        batch = [(place, mark, ef.Timed(place[0], n)) for place, mark, n in batch]
    taken_back = [(place, mark ^ 1, payload) for place, mark, payload in batch]
    assert processed(node, taken_back) == tuple(
        [(place, mark ^ 1, payload) for place, mark, payload in items]
        for items in processed(node, batch)
    )


def test_images_follow_their_item_and_scheduled_ones_have_their_own_time() -> None:
    node = map_of("one to many")
    output, failed = processed(node, [((4, 0, 7), 6, 1), ((4, 0, 8), 0, 5)])
    front = node.scheduling_front
    assert not failed
    assert output == [
        ((4, 0, 7, 0), 6, 1),
        ((4, 0, 7, 1), 6, "second"),
        ((4, 0, 8, 0), 0, 5),
        ((50, front, *scheduled_child_ids((4, 0), (8,), 1)), 0, "later"),
        ((60, front, *scheduled_child_ids((4, 0), (8,), 2)), 0, "much later"),
        ((4, 0, 8, 3), 0, "now"),
    ]
    assert front < 0


def test_an_item_that_fails_half_way_has_only_a_failure_for_its_image() -> None:
    output, failed = processed(map_of("one to many"), [((1, 0), 2, 3), ((2, 0), 2, 1)])
    assert [item[:2] for item in failed] == [((1, 0), 2)]
    assert "half way" in failed[0][2]
    assert [item[0] for item in output] == [(2, 0, 0), (2, 0, 1)]


@pytest.mark.parametrize(
    ("number", "error"),
    [(3, ef.FunctionError), (6, ef.OutputError), (7, ef.OutputError)],
    ids=["raised", "a set", "scheduled for the past"],
)
def test_failures_are_the_errors_of_the_reference_runner(
    number: int, error: type[ef.StepError]
) -> None:
    flow = ef.Flow("map")
    flow.front("in").flat_map(kinds).sink("out")
    (node,) = (node for node in flow.graph().nodes if isinstance(node, Map))
    failed: list[FlatItem] = []
    map_process(node)([((5, 0), 0, number)], failed)
    with pytest.raises(error) as raised:
        ef.run(flow, **{"in": [ef.At(5, number)]})
    assert str(failed[0][2]) == str(raised.value)
    assert type(failed[0][2]) is error
    assert repr(failed[0][2].__cause__) == repr(raised.value.__cause__)


def test_a_broadcast_gives_each_port_all_items_with_the_port_as_child_id() -> None:
    flow = ef.Flow("broadcast")
    for number, copy in enumerate(flow.front("in").broadcast(3)):
        copy.sink(f"out-{number}")
    (node,) = (node for node in flow.graph().nodes if isinstance(node, Broadcast))
    batch = [((1, 0), 4, "a"), ((2, 0, 5), 5, "b")]
    assert broadcast_process(node)(batch, []) == [
        [((1, 0, port), 4, "a"), ((2, 0, 5, port), 5, "b")] for port in range(3)
    ]
