"""The order of metas: it is total, equals that of plain tuples, and puts an output after its input."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.values.item import (
    TIME_MAX,
    TIME_MIN,
    hopped,
    is_time,
    scheduled_child_ids,
    scheduling_front,
)
from tests.effort import examples

# Few values, so that metas often agree in their first parts.
times = st.integers(-2, 2)
child_ids = st.lists(st.integers(0, 2), max_size=3).map(tuple)
global_times = st.tuples(times, st.integers(-1, 1))
metas = st.tuples(global_times, child_ids, st.integers(0, 2), st.booleans())
names = st.text("ab/-2", min_size=1, max_size=4)


def named(meta: Any) -> ef.Meta:
    return ef.Meta(ef.GlobalTime(*meta[0]), *meta[1:])


def compared(one: Any, other: Any) -> int:
    """-1, 0 or 1, as the design defines it: global time, then child ids, then trace."""

    def longer(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        for x, y in zip(a, b, strict=False):
            if x != y:
                return -1 if x < y else 1
        return (len(a) > len(b)) - (len(a) < len(b))

    parts = zip(one[:2], other[:2], strict=True)
    decided = [order for a, b in parts if (order := longer(a, b))]
    by_trace = (one[2] > other[2]) - (one[2] < other[2])
    return decided[0] if decided else by_trace


@settings(max_examples=examples(200), deadline=None)
@given(metas, metas, metas)
def test_metas_are_totally_ordered_by_global_time_child_ids_and_trace(
    a: Any, b: Any, c: Any
) -> None:
    for one, other in ((a, b), (b, c), (a, c)):
        order = compared(one, other)
        # Named and plain tuples compare alike, also with each other.
        for left in (one, named(one)):
            for right in (other, named(other)):
                assert (left == right) == (one == other)
                assert [left < right, left == right, left > right].count(True) == 1
                if order:
                    assert (left < right) == (order < 0)
                elif one != other:  # an item and its tombstone: neighbours, the item first
                    assert (left < right) == (one[3] < other[3])
    first, second, third = sorted([a, b, c])
    assert first <= second <= third
    assert first <= third
    assert hash(named(a)) == hash(a)


@settings(max_examples=examples(100), deadline=None)
@given(global_times, global_times)
def test_global_times_compare_by_time_and_then_by_front(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    expected = one[0] < other[0] or (one[0] == other[0] and one[1] < other[1])
    assert (ef.GlobalTime(*one) < ef.GlobalTime(*other)) == expected
    assert (ef.GlobalTime(*one) < other) == expected


@settings(max_examples=examples(200), deadline=None)
@given(metas, metas, child_ids.filter(bool), st.integers(0, 2))
def test_an_output_follows_its_input_and_precedes_the_next_item(
    item: Any, other: Any, appended: tuple[int, ...], trace: int
) -> None:
    """`appended` are the child ids that any number of maps and broadcasts add to the item's."""
    output = (item[0], item[1] + appended, trace, False)
    assert item < output
    descends = other[0] == item[0] and other[1][: len(item[1])] == item[1]
    if item < other and not descends:
        assert output < other
    if other < item:
        assert other < output


@settings(max_examples=examples(50), deadline=None)
@given(metas, st.lists(child_ids, min_size=2, max_size=4))
def test_all_of_one_output_comes_before_the_next_output(
    item: Any, descendants: list[tuple[int, ...]]
) -> None:
    """The accumulator of a word comes before the next word of the same line."""
    places = [(item[0], (*item[1], child, *below)) for child, below in enumerate(descendants)]
    assert places == sorted(places)


# --- The flat form of the hot path ----------------------------------------------------------------


def flat(meta: Any) -> Any:
    (time, front), ids, trace, tombstone = meta
    return (time, front, *ids), trace << 1 | tombstone


@settings(max_examples=examples(100), deadline=None)
@given(metas, metas)
def test_flat_items_have_the_order_and_the_parts_of_the_named_ones(one: Any, other: Any) -> None:
    assert (flat(one) < flat(other)) == (one < other)
    assert ef.Item.of((*flat(one), "payload")) == (one, "payload")
    # A global time is a place before all its items and after all items of earlier times.
    assert one[0] <= flat(one)[0]
    assert (flat(one)[0] < other[0]) == (one[0] < other[0])


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(0, 2**64 - 1), st.lists(st.integers(1, 2**64 - 1), max_size=4))
def test_the_tombstone_of_an_item_has_its_trace_however_far_they_went(
    trace: int, hops: list[int]
) -> None:
    item, its_tombstone = trace << 1, trace << 1 | 1
    for hop in hops:
        item, its_tombstone = hopped(item, hop), hopped(its_tombstone, hop)
    assert item + 1 == its_tombstone
    assert item % 2 == 0
    assert 0 <= item < 2**65


# --- Scheduled items ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    global_time: tuple[int, int]
    child_ids: tuple[int, ...]

    @property
    def order(self) -> Any:
        return self.global_time, self.child_ids


def all_that_elements_cause(random: Random) -> list[tuple[Place, Place | None]]:
    """Items with their origins: each emits and schedules items through a few operations, at random."""
    fronts = [scheduling_front(name) for name in ("echo", "window/ticks")]
    made: list[tuple[Place, Place | None]] = []
    stack: list[tuple[Place, Place | None]] = [
        (Place((time, front), ()), None) for time in range(4) for front in range(2)
    ]
    while stack and len(made) < 300:
        item, cause = stack.pop(random.randrange(len(stack)))
        made.append((item, cause))
        front = random.choice(fronts)
        for child in range(random.randint(0, 3)):
            if random.random() < 0.5:
                ids = scheduled_child_ids(item.global_time, item.child_ids, child)
                later = item.global_time[0] + random.randint(1, 3)
                stack.append((Place((later, front), ids), item))
            else:
                stack.append((Place(item.global_time, (*item.child_ids, child)), item))
    return made


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_no_two_items_have_one_place_however_they_were_scheduled(seed: int) -> None:
    made = all_that_elements_cause(Random(seed))
    assert len({item for item, _ in made}) == len(made)
    for item, cause in made:
        assert cause is None or cause.order < item.order


@settings(max_examples=examples(100), deadline=None)
@given(global_times, child_ids, st.integers(0, 2), global_times, child_ids, st.integers(0, 2))
def test_different_origins_or_children_schedule_different_child_ids(
    time: Any, ids: Any, child: int, other_time: Any, other_ids: Any, other_child: int
) -> None:
    def on_front(global_time: tuple[int, int]) -> tuple[int, int]:
        return global_time[0], abs(global_time[1])

    one = (on_front(time), ids, child)
    other = (on_front(other_time), other_ids, other_child)
    assert (scheduled_child_ids(*one) == scheduled_child_ids(*other)) == (one == other)


def test_a_timer_that_renews_itself_does_not_carry_its_history_with_it() -> None:
    front = scheduling_front("timer")
    ids = scheduled_child_ids((3, 0), (1,), 0)
    assert ids == (3, 0, 1, 0)
    seen = {ids}
    for time in range(9, 900, 10):
        ids = scheduled_child_ids((time, front), (*ids, 5), 2)
        assert ids[:2] == (3, 0), "the element it all began with stays first in the order"
        assert len(ids) == 4
        assert ids[2] > 2**61, "no child id is taken for a digest"
        seen.add(ids)
    assert len(seen) == 91


def test_two_versions_of_a_timer_of_different_times_never_share_a_place() -> None:
    """Otherwise a tombstone of one could take back the other: they are not on one FIFO path."""
    front = scheduling_front("timer")
    ids = scheduled_child_ids((3, 0), (1,), 0)
    assert scheduled_child_ids((9, front), ids, 0) != scheduled_child_ids((10, front), ids, 0)


@settings(max_examples=examples(50), deadline=None)
@given(names, names, times, st.integers(0, 3))
def test_scheduled_items_come_before_the_elements_of_their_time(
    operation: str, other: str, time: int, front: int
) -> None:
    reserved = scheduling_front(operation)
    assert -(2**32) <= reserved < 0
    assert (scheduling_front(other) == reserved) == (operation == other)
    scheduled = ef.Meta(ef.GlobalTime(time, reserved), (TIME_MAX, 9), 0, False)
    assert scheduled < ef.Meta(ef.GlobalTime(time, front), (), 0, False)
    assert scheduled > ef.Meta(ef.GlobalTime(time - 1, front), (9, 9), 9, True)


def test_a_scheduling_front_never_changes() -> None:
    """Stored cuts hold scheduled items under these numbers."""
    assert scheduling_front("window/ticks") == -1565266047
    assert scheduling_front("flat_map") == -2395047188


@pytest.mark.parametrize("time", [0, -1, TIME_MIN, TIME_MAX])
def test_what_is_a_time(time: int) -> None:
    assert is_time(time)


@pytest.mark.parametrize("value", [TIME_MIN - 1, TIME_MAX + 1, True, 1.0, "1", None])
def test_what_is_no_time(value: object) -> None:
    assert not is_time(value)
