"""Running aggregates, and `distinct`, against the whole history of each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emberflow as ef
from tests.operators.inputs import (
    Event,
    events,
    histories,
    keyed_outputs_of,
    outputs_of,
    searching,
    value_of,
)

Keyed = ef.KeyedStream[Any, Event]

AGGREGATES: dict[str, tuple[Callable[[Keyed], ef.Stream[Any]], Callable[[list[int]], Any]]] = {
    "count": (lambda stream: stream.count(), len),
    "sum": (lambda stream: stream.sum(of=value_of), sum),
    "min": (lambda stream: stream.min(of=value_of), min),
    "max": (lambda stream: stream.max(of=value_of), max),
    "mean": (lambda stream: stream.mean(of=value_of), lambda values: sum(values) / len(values)),
}


@pytest.mark.parametrize("name", AGGREGATES)
@searching
@given(events=events())
def test_an_aggregate_is_a_function_of_the_history(name: str, events: list[Event]) -> None:
    aggregate, function = AGGREGATES[name]
    expected = [(event.key, function(history)) for event, history in histories(events)]
    assert keyed_outputs_of(events, aggregate) == expected


@searching
@given(events())
def test_aggregates_take_the_payload_itself_where_nothing_is_selected(events: list[Event]) -> None:
    def together(first: ef.Stream[Event], second: ef.Stream[Event]) -> ef.Stream[Any]:
        numbers = ef.merge(first, second).map(value_of).key_by(lambda n: n % 2)
        return ef.merge(numbers.sum(), numbers.min(), numbers.max(), numbers.mean(), numbers.top(2))

    expected: list[Any] = []
    for place, event in enumerate(events):
        odd = event.value % 2
        values = [e.value for e in events[: place + 1] if e.value % 2 == odd]
        aggregates = (sum(values), min(values), max(values), sum(values) / len(values))
        leading = tuple(sorted(values, reverse=True)[:2])
        expected += [(odd, result) for result in (*aggregates, leading)]
    assert outputs_of(events, together) == expected


@searching
@given(events(), st.integers(1, 4), st.integers(1, 3))
def test_top_holds_the_greatest_and_of_equals_the_earlier(
    events: list[Event], n: int, modulus: int
) -> None:
    def rank(event: Event) -> int:
        return event.value % modulus

    expected = [
        (event.key, tuple(sorted(so_far, key=lambda e: -rank(e))[:n]))
        for place, event in enumerate(events)
        for so_far in [[e for e in events[: place + 1] if e.key == event.key]]
    ]
    assert keyed_outputs_of(events, lambda stream: stream.top(n, by=rank)) == expected


@searching
@given(events())
def test_distinct_keeps_the_first_of_each_key_and_of_equal_payloads(events: list[Event]) -> None:
    first_of_key = [
        event
        for place, event in enumerate(events)
        if all(event.key != earlier.key for earlier in events[:place])
    ]
    assert keyed_outputs_of(events, lambda stream: stream.distinct()) == first_of_key
    pairs = [(event.key, event.value) for event in events]
    first_of_equals = [pair for place, pair in enumerate(pairs) if pair not in pairs[:place]]
    plain = outputs_of(
        events, lambda *fronts: ef.merge(*fronts).map(lambda e: (e.key, e.value)).distinct()
    )
    assert repr(plain) == repr(first_of_equals)
