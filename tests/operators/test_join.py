"""Joins against two nested loops over the events of both sides.

The order of the events is that of a merge of both sides in the same flow. So it need not be guessed
where payloads of both sides are scheduled for one time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from tests.operators.inputs import Event, events, key_of, outputs_of, searching
from tests.operators.naive import Span, Windows

# Front 0 is the left side, front 1 the right one: at equal times the left comes first.

HOWS = ["inner", "left", "right", "outer", "semi", "anti"]
Build = Callable[[ef.KeyedStream[Any, Event], ef.KeyedStream[Any, Event]], ef.Stream[Any]]


def joined(events: list[Event], step: int, build: Build) -> tuple[list[Event], list[Any]]:
    """The events in order, and the output of a join of the fronts.

    Each event is put off to the next multiple of ``step``, so that many of both sides come at one time.
    """

    def put_off(event: Event) -> ef.At[Event]:
        time = (event.time // step + 1) * step
        return ef.At(time, event._replace(time=time))

    flow = ef.Flow("tested")
    fronts = [flow.front(name) for name in ("first", "second")]
    sides = [front if step == 1 else front.map(put_off) for front in fronts]
    ef.merge(*sides).sink("order")
    build(sides[0].key_by(key_of), sides[1].key_by(key_of)).sink("out")
    first, second = (
        [ef.At(event.time, event) for event in reversed(events) if event.front == front]
        for front in (0, 1)
    )
    outputs = ef.run(flow, first=first, second=second)
    return outputs["order"], outputs["out"]


def by_key(output: list[Any]) -> dict[Any, list[Any]]:
    """The output of each key. Payloads of several keys that end at one time have no order of their own."""
    found: dict[Any, list[Any]] = {}
    for one in output:
        some = one if isinstance(one, Event) else one[0] or one[1]
        found.setdefault(some.key, []).append(one)
    return found


class Told:
    """What a join tells, in the order of time."""

    def __init__(self, how: str) -> None:
        self.how = how
        self._told: list[tuple[Any, Any]] = []

    def in_order(self) -> list[Any]:
        return [output for _, output in sorted(self._told, key=lambda entry: entry[0])]

    def cell(
        self, members: list[tuple[int, Event]], meets: Any, end: Callable[[Event], int], rank: Any
    ) -> None:
        """Join events with their places, each with all that it meets; ``rank`` is of the cell."""
        lefts = [member for member in members if member[1].front == 0]
        rights = [member for member in members if member[1].front == 1]
        for place, left in lefts:
            met = [right for right in rights if meets(left, right[1])]
            if self.how not in ("semi", "anti"):
                for at, right in met:
                    self._pair((left, right), place, at, max(left.time, right.time), rank)
            elif self.how == "semi" and met:
                at, right = met[0]
                self._pair(left, place, at, max(left.time, right.time), rank)
            if self.how in ("left", "outer", "anti") and not met:
                self._alone(left, left if self.how == "anti" else (left, None), place, end, rank)
        for place, right in rights:
            met = [left for left in lefts if meets(left[1], right)]
            if self.how in ("right", "outer") and not met:
                self._alone(right, (None, right), place, end, rank)

    def _pair(self, output: Any, place: int, other: int, time: int, rank: Any) -> None:
        self._told.append(((time, 1, max(place, other), rank, min(place, other)), output))

    def _alone(self, event: Event, output: Any, place: int, end: Any, rank: Any) -> None:
        over = end(event)
        # Before all events of the time at which it ends; at once where it can meet nothing later.
        at = (over, 0, rank, event.front, place) if over > event.time else (event.time, 1, place)
        self._told.append((at, output))


def members_of(events: list[Event]) -> Iterator[list[tuple[int, Event]]]:
    for key in {event.key: None for event in events}:
        yield [(place, event) for place, event in enumerate(events) if event.key == key]


def of_interval(events: list[Event], how: str, low: int, high: int) -> dict[Any, list[Any]]:
    outputs = []
    for members in members_of(events):
        told = Told(how)
        told.cell(
            members,
            lambda left, right: low <= right.time - left.time <= high,
            lambda event: event.time + (high if event.front == 0 else -low) + 1,
            (),
        )
        outputs += told.in_order()
    return by_key(outputs)


def of_windows(events: list[Event], how: str, windows: Windows) -> dict[Any, list[Any]]:
    outputs = []
    for members in members_of(events):
        told = Told(how)
        for span in sorted(windows.spans([event.time for _, event in members])):
            within = [member for member in members if span[0] <= member[1].time < span[1]]
            told.cell(within, lambda left, right: True, ending(span), span)
        outputs += told.in_order()
    return by_key(outputs)


def ending(span: Span) -> Callable[[Event], int]:
    return lambda event: span[1]


def pairs_of_all(events: list[Event]) -> list[tuple[Event, Event]]:
    """Each pair at its later event; pairs of one event in the order of the earlier."""
    return [
        (event, other) if event.front == 0 else (other, event)
        for place, event in enumerate(events)
        for other in events[:place]
        if other.front != event.front and other.key == event.key
    ]


def pairs_with_the_latest(events: list[Event]) -> list[tuple[Event, Event]]:
    pairs = []
    for place, event in enumerate(events):
        others = [e for e in events[:place] if e.key == event.key and e.front != event.front]
        if others:
            pairs.append((event, others[-1]) if event.front == 0 else (others[-1], event))
    return pairs


steps = st.sampled_from([1, 1, 3, 5])
intervals = st.tuples(st.integers(-8, 8), st.integers(-8, 8)).map(sorted).map(tuple)


def test_two_orders_and_then_their_person_are_two_pairs() -> None:
    flow = ef.Flow("orders")
    orders = flow.front("orders").key_by(lambda order: order[0])
    people = flow.front("people").key_by(lambda person: person[0])
    orders.join(people).sink("pairs")
    given = {"orders": [("ada", 1), ("ada", 2)], "people": [ef.At(9, ("ada", "Rome"))]}
    assert ef.run(flow, **given)["pairs"] == [
        (("ada", 1), ("ada", "Rome")),
        (("ada", 2), ("ada", "Rome")),
    ]


@searching
@given(events(), steps)
def test_a_join_finds_every_pair_once_in_order(events: list[Event], step: int) -> None:
    order, out = joined(events, step, lambda left, right: left.join(right))
    assert out == pairs_of_all(order)


@searching
@given(events(), steps)
def test_a_semi_join_tells_each_left_payload_once(events: list[Event], step: int) -> None:
    order, out = joined(events, step, lambda left, right: left.join(right, how="semi"))
    expected = []
    for place, event in enumerate(order):
        before = [other for other in order[:place] if other.key == event.key]
        rights = [other for other in before if other.front == 1]
        if event.front == 0 and rights:
            expected.append(event)
        elif event.front == 1 and not rights:
            expected += [other for other in before if other.front == 0]
    assert out == expected


@pytest.mark.parametrize("how", HOWS)
@searching
@given(events=events(), step=steps, within=intervals)
def test_an_interval_join_is_that_of_nested_loops(
    how: Any, events: list[Event], step: int, within: tuple[int, int]
) -> None:
    order, out = joined(
        events, step, lambda left, right: left.join(right, how=how, within=within, window=None)
    )
    assert by_key(out) == of_interval(order, how, *within)


@searching
@given(events(), intervals)
def test_pairs_within_an_interval_are_in_the_order_of_all_keys(
    events: list[Event], within: tuple[int, int]
) -> None:
    order, out = joined(events, 1, lambda left, right: left.join(right, within=within))
    low, high = within
    assert out == [
        (left, right)
        for left, right in pairs_of_all(order)
        if low <= right.time - left.time <= high
    ]


class Fives:
    """Windows of a user's own, as plain pairs."""

    def containing(self, time: int) -> list[tuple[int, int]]:
        return [(time - time % 5, time - time % 5 + 5)]


windows = st.sampled_from(
    [
        (Fives(), Windows(size=5, slide=5)),
        (ef.Cumulate(2, 6), Windows(size=6, slide=6, step=2)),
        (ef.Tumbling(5, offset=2), Windows(size=5, slide=5, offset=2)),
        (ef.Tumbling(1), Windows(size=1, slide=1)),
        (ef.Sliding(6, slide=2), Windows(size=6, slide=2)),
        (ef.Sliding(2, slide=3), Windows(size=2, slide=3)),
        (ef.Session(3), Windows(gap=3)),
    ]
)


@pytest.mark.parametrize("how", HOWS)
@searching
@given(events=events(), step=steps, windows=windows)
def test_a_join_in_windows_joins_each_of_them(
    how: Any, events: list[Event], step: int, windows: tuple[Any, Windows]
) -> None:
    window, naive = windows
    order, out = joined(
        events, step, lambda left, right: left.join(right, how=how, within=None, window=window)
    )
    assert by_key(out) == of_windows(order, how, naive)


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@searching
@given(events=events())
def test_combine_gets_what_the_pair_would_have(how: Any, events: list[Event]) -> None:
    _, pairs = joined(events, 1, lambda left, right: left.join(right, how=how, within=4))
    _, combined = joined(
        events,
        1,
        lambda left, right: left.join(right, lambda one, two: [two, one], how=how, within=4),
    )
    assert combined == [[right, left] for left, right in pairs]


@searching
@given(events(), st.integers(0, 6))
def test_a_span_is_an_interval_to_both_sides(events: list[Event], span: int) -> None:
    _, short = joined(events, 1, lambda left, right: left.join(right, how="outer", within=span))
    _, long = joined(
        events, 1, lambda left, right: left.join(right, how="outer", within=(-span, span))
    )
    assert short == long


@searching
@given(events())
def test_join_latest_pairs_each_payload_with_the_latest_of_the_other_side(
    events: list[Event],
) -> None:
    order, out = joined(events, 1, lambda left, right: left.join_latest(right))
    assert out == pairs_with_the_latest(order)


@searching
@given(events())
def test_enrich_looks_up_the_latest_row_and_is_silent_about_the_table(events: list[Event]) -> None:
    enriched = outputs_of(
        events,
        lambda stream, table: stream.key_by(key_of).enrich(
            table.key_by(key_of), lambda event, row: (event, row), default="none"
        ),
    )
    expected: list[tuple[Event, Any]] = []
    for place, event in enumerate(events):
        if event.front == 0:
            rows = [e for e in events[:place] if e.front == 1 and e.key == event.key]
            expected.append((event, rows[-1] if rows else "none"))
    assert enriched == expected


@searching
@given(events())
def test_both_sides_may_have_keys_of_their_own(events: list[Event]) -> None:
    pairs = outputs_of(
        events,
        lambda left, right: left.key_by(lambda e: e.value).join(right.key_by(lambda e: -e.value)),
    )
    turned = [e._replace(key=e.value if e.front == 0 else -e.value) for e in events]
    plain = [(left[:2], right[:2]) for left, right in pairs]
    assert plain == [(left[:2], right[:2]) for left, right in pairs_of_all(turned)]


def test_a_stream_joined_with_itself_meets_its_own_payloads() -> None:
    """The left side reads the stream first: a payload's left copy comes before its right copy."""
    flow = ef.Flow("twice")
    letters = flow.front("letters").key_by(lambda letter: None)
    letters.join(letters, lambda left, right: left + right).sink("all")
    letters.join_latest(letters, lambda left, right: left + right).sink("latest")
    letters.join(letters, lambda left, right: left + right, within=(0, 0)).sink("same time")
    assert ef.run(flow, letters="abc") == {
        "all": ["aa", "ba", "ab", "bb", "ca", "cb", "ac", "bc", "cc"],
        "latest": ["aa", "ba", "bb", "cb", "cc"],
        "same time": ["aa", "bb", "cc"],
    }


def test_a_combine_that_raises_loses_its_pair_and_nothing_else() -> None:
    """What a join holds does not depend on the user's function, not even when a tick calls it."""

    def inverse(left: int, right: int | None) -> float:
        return left / (right or 0)

    flow = ef.Flow("inverse")
    left = flow.front("left").key_by(lambda n: None)
    right = flow.front("right").key_by(lambda n: None)
    left.join(right, inverse, how="left", within=(0, 2)).sink("out")
    outputs = ef.run(
        flow,
        left=[ef.At(0, 1), ef.At(5, 8), ef.At(20, 6)],  # the first and the last are alone
        right=[ef.At(6, 0), ef.At(7, 4)],
        on_error="divert",
    )
    assert outputs["out"] == [2.0]
    assert len(outputs["errors"]) == 3


def test_a_cut_of_one_join_does_not_fit_another() -> None:
    """What they hold differs, and the names of the user's steps do not."""

    def fingerprint(how: Any, **bound: Any) -> int:
        flow = ef.Flow("joined")
        left, right = (flow.front(name).key_by(key_of) for name in ("left", "right"))
        left.join(right, how=how, name="join", **bound).sink("out")
        return flow.graph().fingerprint

    bounds: list[dict[str, Any]] = [
        {"within": 1},
        {"window": ef.Tumbling(2)},
        {"window": ef.Session(2)},
    ]
    found = [fingerprint("inner"), fingerprint("semi")]
    found += [fingerprint(how, **bound) for how in HOWS for bound in bounds]
    assert len(set(found)) == len(found)
