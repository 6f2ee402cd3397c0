"""The barrier: in order, once, final, and nothing that was taken back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.machines.barrier import Barrier
from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.values.item import Place
from tests.effort import examples
from tests.engine.helpers import Step, batches, scripts


def released_by(barrier: Barrier, minimal: Moment) -> list[tuple[Place, Any]]:
    return [(place, payload) for place, _, payload in barrier.release(minimal)]


rounds_of_arrivals = st.lists(st.tuples(scripts(most=10), st.integers(0, 2)), max_size=6)


@given(rounds_of_arrivals, st.integers(-1, 4))
@settings(max_examples=examples(300), deadline=None)
def test_it_releases_what_is_final_in_order_and_keeps_the_rest(
    rounds: list[tuple[list[Step], int]], delivered: int
) -> None:
    """Rounds of arrivals; behind each the minimal time moves, and nothing below it comes again."""
    barrier, live, released = Barrier((delivered, 0)), {}, []
    minimal, arrived = (0, 0), 0
    for script, further in rounds:
        for batch in batches([step for step in script if step[0][0] >= minimal], live):
            barrier.arrive(batch)
            arrived += len(batch)
        # Two histories of one item are never both final: the later one comes instead of the other.
        for place, mark in sorted(live):
            if mark and (place, 0) in live:
                barrier.arrive([(place, mark | 1, live.pop((place, mark)))])
                arrived += 1
        minimal = (minimal[0] + further, 0)
        out = released_by(barrier, minimal)
        assert all(place < minimal for place, _ in out)
        released += out
        # A bundle never splits a global time: what is released is all there is of it.
        assert released == expected(live, minimal, delivered)
    released += released_by(barrier, AFTER_ALL)
    assert released == expected(live, AFTER_ALL, delivered)
    assert barrier.held_items == 0
    assert (barrier.arrived, barrier.released) == (arrived, len(released))
    assert barrier.released + barrier.tombstones <= barrier.arrived


def expected(live: dict[Any, Any], minimal: Moment, delivered: int) -> list[Any]:
    return [
        (place, payload)
        for (place, _), payload in sorted(live.items())
        if place < minimal and place[:2] > (delivered, 0)
    ]


def test_an_item_at_the_minimal_time_stays() -> None:
    barrier = Barrier()
    barrier.arrive([((4, 0, 9), 0, "before"), ((5, 0), 0, "at"), ((5, 0, 0), 0, "under")])
    assert released_by(barrier, (5, 0)) == [((4, 0, 9), "before")]
    assert released_by(barrier, (5, 1)) == [((5, 0), "at"), ((5, 0, 0), "under")]


def test_another_version_of_one_history_waits_for_its_tombstone_to_pass() -> None:
    """An item, its tombstone, another payload, under one place and mark: the order of arrival."""
    barrier = Barrier()
    barrier.arrive([((1, 0), 0, "old")])
    barrier.arrive([((1, 0), 1, "old"), ((1, 0), 0, "new")])
    assert released_by(barrier, (2, 0)) == [((1, 0), "new")]
    assert (barrier.arrived, barrier.tombstones, barrier.released) == (3, 1, 1)


def test_payloads_are_never_compared() -> None:
    barrier = Barrier()
    for mark in (2, 3, 4):
        barrier.arrive([((1, 0), mark, object())])
    assert len(barrier.release((2, 0))) == 1


def test_a_tombstone_without_an_item_is_told_as_impurity() -> None:
    barrier = Barrier()
    barrier.arrive([((1, 0), 0, "a"), ((1, 0), 3, "a")])
    with pytest.raises(ef.NondeterminismError, match="found no item to take back"):
        barrier.release((2, 0))


def test_time_waited_is_items_times_time() -> None:
    barrier = Barrier()
    barrier.arrive([((1, 0), 0, "a"), ((2, 0), 0, "b")])
    barrier.pass_time(3.0)
    barrier.release((2, 0))
    barrier.pass_time(0.5)
    assert barrier.waited == 6.5
