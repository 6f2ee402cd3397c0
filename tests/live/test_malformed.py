"""Malformed records: their places depend only on the content of the source."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import emberflow as ef
from emberflow.engine.messages import AFTER_ALL
from emberflow.fronts import Element, Malformed
from emberflow.runners.live.worker import malformed as malformed_module
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.reader import Beginning, FrontFailedError
from emberflow.values.item import Place
from tests.effort import SECONDS, examples


class Source:
    """Elements at the times 0, 3, 6, ...; ``bad`` ones between, and ``back`` with a time that is none."""

    partitions = 1

    def __init__(self, records: list[str], *, before_next: bool = True) -> None:
        self.records = records
        self.before_next = before_next

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        at = 0
        for number, record in enumerate(self.records):
            if record == "good":
                yield Element(number, f"good {number}", at)
                at += 3
            elif record == "back":
                yield Element(number, f"back {number}", "soon")  # type: ignore[arg-type]
            else:
                malformed = Malformed(f"raw {number}", f"problem {number}", self.before_next)
                yield Element(number, malformed)


def expected(records: list[str]) -> tuple[list[tuple[Place, Any]], list[tuple[Place, str]]]:
    """The specification: elements at their times; before each, counted down, the malformed records."""
    elements: list[tuple[Place, Any]] = []
    malformed: list[tuple[Place, str]] = []
    waiting: list[str] = []
    at = 0

    def enter(time: int) -> None:
        for number, raw in enumerate(waiting):
            malformed.append(((time, 7, number - len(waiting)), raw))
        waiting.clear()

    for number, record in enumerate(records):
        if record == "good":
            enter(at)
            elements.append(((at, 7), f"good {number}"))
            at += 3
        else:
            waiting.append(f"raw {number}" if record == "bad" else f"back {number}")
    enter(at - 2 if elements else 0)
    return elements, malformed


def taken(feed: Feed, sizes: Iterator[int]) -> tuple[list[Any], list[Any]]:
    """Everything that a feed gives, in portions of these sizes."""
    elements: list[Any] = []
    malformed: list[Any] = []
    until = time.monotonic() + SECONDS
    while feed.gate.promise != AFTER_ALL:
        assert time.monotonic() < until
        before = feed.gate.promise
        found = [(place, payload) for place, _, payload in feed.take(next(sizes))]
        promise = feed.gate.promise
        records = feed.aside.take()
        # They enter with the previous promise, and not below it.
        assert all(place[:2] >= before for place, _ in records)
        assert promise == AFTER_ALL or all(place[:2] < promise for place, _ in records)
        assert not records or found or promise > before
        elements += found
        malformed += records
        feed.minimal_time(promise)
    return elements, malformed


@given(
    st.lists(st.sampled_from(["good", "bad", "back"]), max_size=12),
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
)
@settings(max_examples=examples(60), deadline=None)
def test_places_do_not_depend_on_how_the_source_is_cut(
    records: list[str], sizes: list[int]
) -> None:
    # An old time is one only after a newer element.
    if "back" in records and "good" not in records[: records.index("back")]:
        records = ["good", *records]
    feed = Feed("numbers", 0, Source(records), 0, 7, 3, diverts=True)
    feed.start(Beginning())
    again = (size for _ in iter(int, 1) for size in sizes)
    elements, malformed = taken(feed, again)
    feed.join(SECONDS)
    wanted_elements, wanted = expected(records)
    assert elements == wanted_elements
    assert [(place, record.payload) for place, record in malformed] == wanted
    for place, record in malformed:
        assert (record.time, record.front) == place[:2]
        assert (record.step, record.function) == ("front 'numbers'", "-")
        number = record.payload.split()[1]
        assert record.problem in (f"problem {number}",) or f"position {number}" in record.problem


class Arriving(Source):
    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        for element in super().read(partition, position):
            if element is not None:
                yield element._replace(time=None)


def test_where_elements_have_their_arrival_times_malformed_ones_have_theirs() -> None:
    source = Arriving(["good", "bad", "bad", "good", "bad"], before_next=False)
    feed = Feed("numbers", 0, source, 0, 7, 100, diverts=True)
    feed.start(Beginning())
    elements, malformed = taken(feed, iter(lambda: 2, 0))
    feed.join(SECONDS)
    places = {payload: place for place, payload in elements}
    places.update({record.payload: place for place, record in malformed})
    in_order = ["good 0", "raw 1", "raw 2", "good 3", "raw 4"]
    assert sorted(places, key=lambda payload: places[payload]) == in_order
    assert len({place[0] for place in places.values()}) == 5


@pytest.mark.parametrize("first", [["good"], []])
def test_one_that_arrives_ends_the_query_behind_what_was_promised(first: list[str]) -> None:
    feed = Feed("numbers", 0, Arriving([*first, "bad"], before_next=False), 0, 7, 100)
    feed.gate.idle_until(promised := 10**15)  # the front was idle
    feed.start(Beginning())
    elements, failures = taken(feed, iter(lambda: 100, 0))
    feed.join(SECONDS)
    assert [place[0] for place, _ in elements] == [promised] * len(first)
    ((place, _),) = failures
    assert place[0] == promised + len(first)


@pytest.mark.parametrize("most", [1, 2, 100])
def test_unless_they_are_diverted_the_first_one_ends_the_query_in_its_turn(most: int) -> None:
    feed = Feed("numbers", 0, Source(["good", "good", "bad", "good", "bad"]), 0, 7, 100)
    feed.start(Beginning())
    elements, failures = taken(feed, iter(lambda: most, 0))
    feed.join(SECONDS)
    assert [payload for _, payload in elements] == ["good 0", "good 1"]
    ((place, failure),) = failures
    assert elements[-1][0] < place
    assert type(failure) is FrontFailedError
    assert str(failure) == "front 'numbers' partition 0 failed: InputError: problem 2"
    assert type(failure.__cause__) is ef.InputError


def test_a_source_of_nothing_but_malformed_records_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait for the next element, so their number must be bounded."""
    monkeypatch.setattr(malformed_module, "HELD_MAX", 5)
    feed = Feed("numbers", 0, Source(["bad"] * 9), 0, 7, 100, diverts=True)
    feed.start(Beginning())
    with pytest.raises(ef.InputError, match=r"gave 5 malformed records in a row.*problem 5"):
        taken(feed, iter(lambda: 2, 0))
    feed.join(SECONDS)
