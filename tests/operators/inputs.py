"""Random elements for operators: events on two fronts, at any times, with keys of any type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

import emberflow as ef
from tests.effort import examples

#: For all tests against an oracle. No deadline: other work may slow a run down.
searching = settings(max_examples=examples(60), deadline=None)

# `True`, `1` and `1.0` are one key.
KEYS = ["a", "b", 1, True, 1.0, 2.5, None, ("a", 1), b"a"]


class Event(NamedTuple):
    """An element: its global time, a key and a value."""

    time: int
    front: int
    key: Any
    value: int


def events(*, at_most: int = 14) -> st.SearchStrategy[list[Event]]:
    """Sorted by global time; times are unique and may be negative."""
    global_times = st.tuples(st.integers(-9, 12), st.integers(0, 1))
    keys_and_values = st.tuples(st.sampled_from(KEYS), st.integers(-3, 3))
    return st.dictionaries(global_times, keys_and_values, max_size=at_most).map(
        lambda drawn: sorted(
            (Event(*global_time, *rest) for global_time, rest in drawn.items()),
            key=lambda event: event[:2],
        )
    )


def outputs_of(
    events: list[Event], build: Callable[[ef.Stream[Event], ef.Stream[Event]], ef.Stream[Any]]
) -> list[Any]:
    """The output of a flow with two fronts, whose elements are listed in reverse."""
    flow = ef.Flow("tested")
    build(flow.front("first"), flow.front("second")).sink("out")
    first, second = (
        [ef.At(event.time, event) for event in reversed(events) if event.front == front]
        for front in (0, 1)
    )
    return ef.run(flow, first=first, second=second)["out"]


def keyed_outputs_of(
    events: list[Event], build: Callable[[ef.KeyedStream[Any, Event]], ef.Stream[Any]]
) -> list[Any]:
    """The same with both fronts merged and keyed."""
    return outputs_of(events, lambda *fronts: build(ef.merge(*fronts).key_by(key_of)))


def key_of(event: Event) -> Any:
    return event.key


def value_of(event: Event) -> int:
    return event.value


def histories(events: list[Event]) -> list[tuple[Event, list[int]]]:
    """Each event with the values of its key so far, found by searching all earlier events."""
    return [
        (event, [e.value for e in events[: place + 1] if e.key == event.key])
        for place, event in enumerate(events)
    ]
