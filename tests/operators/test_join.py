"""Joins against two nested loops over the events of both sides."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from tests.operators.inputs import Event, events, key_of, outputs_of, searching

# Front 0 is the left side, front 1 the right one: at equal times the left comes first.


def pairs_with_the_latest(events: list[Event]) -> list[tuple[Event, Event]]:
    pairs = []
    for place, event in enumerate(events):
        others = [e for e in events[:place] if e.key == event.key and e.front != event.front]
        if others:
            pairs.append((event, others[-1]) if event.front == 0 else (others[-1], event))
    return pairs


def pairs_within(events: list[Event], low: int, high: int) -> list[tuple[Event, Event]]:
    """Each pair at its later event; pairs of one event in the order of the earlier."""
    pairs = []
    for place, event in enumerate(events):
        for other in events[:place]:
            left, right = (event, other) if event.front == 0 else (other, event)
            meet = other.front != event.front and other.key == event.key
            if meet and low <= right.time - left.time <= high:
                pairs.append((left, right))
    return pairs


@searching
@given(events())
def test_join_pairs_each_payload_with_the_latest_of_the_other_side(events: list[Event]) -> None:
    joined = outputs_of(events, lambda left, right: left.key_by(key_of).join(right.key_by(key_of)))
    assert joined == pairs_with_the_latest(events)


@searching
@given(events(), st.tuples(st.integers(-8, 8), st.integers(-8, 8)).map(sorted).map(tuple))
def test_an_interval_join_finds_every_pair_once(
    events: list[Event], within: tuple[int, int]
) -> None:
    joined = outputs_of(
        events,
        lambda left, right: left.key_by(key_of).join(right.key_by(key_of), within=within),
    )
    assert joined == pairs_within(events, *within)


@searching
@given(events(), st.integers(0, 6))
def test_a_span_is_an_interval_to_both_sides(events: list[Event], span: int) -> None:
    joined = outputs_of(
        events,
        lambda left, right: left.key_by(key_of).join(
            right.key_by(key_of), lambda one, other: (other, one), within=span
        ),
    )
    assert joined == [(right, left) for left, right in pairs_within(events, -span, span)]


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
    joined = outputs_of(
        events,
        lambda left, right: left.key_by(lambda e: e.value).join(right.key_by(lambda e: -e.value)),
    )
    turned = [e._replace(key=e.value if e.front == 0 else -e.value) for e in events]
    plain = [(left[:2], right[:2]) for left, right in joined]
    assert plain == [(left[:2], right[:2]) for left, right in pairs_with_the_latest(turned)]


def test_a_stream_joined_with_itself_meets_its_own_payloads() -> None:
    """The left side reads the stream first: a payload's left copy comes before its right copy."""
    flow = ef.Flow("twice")
    letters = flow.front("letters").key_by(lambda letter: None)
    letters.join(letters, lambda left, right: left + right).sink("latest")
    letters.join(letters, lambda left, right: left + right, within=(0, 0)).sink("same time")
    assert ef.run(flow, letters="abc") == {
        "latest": ["aa", "ba", "bb", "cb", "cc"],
        "same time": ["aa", "bb", "cc"],
    }
