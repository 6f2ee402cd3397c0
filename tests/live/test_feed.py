"""What enters a live query: the elements of a front, in order, within its credits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberflow.engine.messages import AFTER_ALL, Moment
from emberflow.errors import InputError
from emberflow.fronts import Batch, Element
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.reader import Beginning, FrontFailedError
from emberflow.values.event_time import EventTime
from emberflow.values.item import FRONT_MIN, TIE, FlatItem
from tests.effort import SECONDS, examples

CREDIT = 7


class Given:
    """A front that emits the given elements."""

    partitions = 1

    def __init__(self, *given: Element | Batch | Exception | None) -> None:
        self.given = given

    def read(self, partition: int, position: Any) -> Iterator[Element | None]:
        raise AssertionError("batches are preferred")

    def read_batches(self, partition: int, position: Any) -> Iterator[Element | Batch | None]:
        for read in self.given:
            if isinstance(read, Exception):
                raise read
            yield read


def fed(*given: Element | Batch | Exception | None) -> Feed:
    feed = Feed("numbers", 0, Given(*given), 0, 3, CREDIT)
    feed.start(Beginning())
    feed.reader.thread.join(SECONDS)
    return feed


def drained(feed: Feed, most: int) -> list[FlatItem]:
    """All elements of a feed, in rounds; the credits are returned after each round."""
    found: list[FlatItem] = []
    promise: Moment = feed.gate.promise
    while promise != AFTER_ALL:
        before = len(found)
        found += feed.take(most)
        promise = feed.report().get(3, promise)
        assert len(found) - before <= min(most, CREDIT)
        assert all(place < promise for place, _, _ in found)
        feed.minimal_time(promise)
    assert feed.over
    assert feed.waiting == 0
    return found


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), max_size=12),
    st.integers(1, 9),
)
@settings(deadline=None)
def test_elements_and_batches_enter_alike(sizes: list[tuple[int, int]], most: int) -> None:
    """Each draw is a step of time and a size: 0 is nothing for now, 1 an element, more a batch."""
    given: list[Element | Batch | None] = []
    expected: list[FlatItem] = []
    at = 0
    for step, size in sizes:
        times = range(at + step, at + step + size * step, step)
        at += size * step
        expected += [((time, 3), 0, -time) for time in times]
        payloads = [-time for time in times]
        if size == 0:
            given.append(None)
        elif size == 1:
            given.append(Element("here", payloads[0], times[0]))
        else:
            given.append(Batch(times, payloads, times if step % 2 else list(times)))
    assert drained(fed(*given), most) == expected


def test_elements_without_a_time_take_that_of_their_arrival_each_its_own() -> None:
    found = drained(fed(Element(0, "a"), Batch([1, 2], ["b", "c"]), Element(3, "d")), 3)
    assert [payload for _, _, payload in found] == ["a", "b", "c", "d"]
    places = [place for place, _, _ in found]
    assert places == sorted(set(places))
    assert places[0][0] > 1_700_000_000_000


@pytest.mark.parametrize(
    ("times", "problem"),
    [
        ([2, 1], "the element at position 'third' is late: its time is 1"),
        (range(5, 3, -1), "the element at position 'third' is late: its time is 4"),
        ([1, True], "gave an element of time True at position 'third'"),
        ([1, 2.0], "gave an element of time 2.0 at position 'third'"),
        ([1, 2**63], f"gave an element of time {2**63} at position 'third'"),
    ],
)
def test_a_time_that_cannot_be_is_named_with_its_position(times: Any, problem: str) -> None:
    feed = fed(Element("first", "x", 0), Batch(["second", "third"], ["y", "z"], times))
    assert [payload for _, _, payload in drained(feed, 5)] == ["x", "y"]
    ((place, failure),) = feed.aside.take()
    assert place > (times[0], 3)
    with pytest.raises(InputError, match=f"front 'numbers':? {problem}"):
        raise failure


def test_what_waits_enters_within_the_credits_also_when_the_source_has_ended() -> None:
    """It is not over before: the workers would end, and with them what has not entered."""
    times = [number ^ 7 for number in range(64)]
    front = Given(*[Element(number, at, at) for number, at in enumerate(times)])
    front.event_time = EventTime(disorder=20)
    feed = Feed("numbers", 0, front, 0, 3, 10)
    feed.start(Beginning())
    feed.reader.thread.join(SECONDS)
    found: list[int] = []
    while not feed.over:
        found += [payload for _, _, payload in feed.take(5)]
        assert feed.gate.credits >= 0
        feed.minimal_time(feed.gate.promise)
    assert found == sorted(times)
    assert feed.gate.promise == AFTER_ALL


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.integers(0, 12),
    st.integers(1, 7),
    st.data(),
)
@settings(max_examples=examples(150))
def test_a_life_that_begins_from_any_cut_gives_the_rest(
    times: list[int], disorder: int, most: int, data: st.DataObject
) -> None:
    def begun(beginning: Beginning) -> tuple[list[FlatItem], list[FlatItem], Feed]:
        position = -1 if beginning.position is None else beginning.position
        front = Given(*[Element(n, f"row {n}", at) for n, at in enumerate(times) if n > position])
        front.event_time = EventTime(disorder)
        feed = Feed("rows", 0, front, 0, 3, 1_000, late_node=9)
        feed.start(beginning)
        feed.reader.thread.join(SECONDS)
        found: list[FlatItem] = []
        while not feed.over:
            promised = feed.gate.promise
            taken = feed.take(most)
            assert all(place >= promised for place, _, _ in taken)
            found += taken
        return found, feed.take_late(), feed

    items, late, feed = begun(Beginning())
    everything = sorted(place for place, _, _ in items + late)
    assert len(everything) == len(times)
    time, front = data.draw(st.sampled_from(everything))
    cut = data.draw(st.sampled_from([(time, front), (time, front + 1), (time, 2)]))
    feed.minimal_time(cut)
    resume = feed.resume
    beginning = Beginning(resume.position, cut, promised=(resume.promised, resume.tie))
    items_again, late_again, _ = begun(beginning)
    assert items_again == [item for item in items if item[0] >= cut]
    assert late_again == [item for item in late if item[0] >= cut]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=40),
    st.integers(0, 12),
    st.integers(0, 32),
    st.integers(1, 7),
    st.booleans(),
)
@settings(max_examples=examples(200), deadline=None)
def test_a_feed_halts_at_a_time_exactly_and_goes_on_when_it_may(
    times: list[int], disorder: int, bound: int, most: int, in_batches: bool
) -> None:
    def begun() -> Feed:
        rows = [Element(n, f"row {n}", at) for n, at in enumerate(times)]
        batch = Batch(range(len(times)), [row.payload for row in rows], times)
        front = Given(batch) if in_batches else Given(*rows)
        front.event_time = EventTime(disorder)
        feed = Feed("rows", 0, front, 0, 3, 1_000, late_node=9)
        feed.start(Beginning())
        feed.reader.thread.join(SECONDS)
        return feed

    def taken(feed: Feed) -> list[FlatItem]:
        found: list[FlatItem] = []
        while not feed.over:
            found += feed.take(most)
        return found + feed.take_late()

    everything = sorted(taken(begun()))
    feed = begun()
    feed.halt_at(bound)
    below = taken(feed)
    assert sorted(below) == [item for item in everything if item[0][0] < bound]
    assert feed.gate.promise >= (bound, FRONT_MIN) or len(below) == len(everything)
    feed.halt_at(None)
    assert sorted(below + taken(feed)) == everything
    assert feed.gate.promise == AFTER_ALL


def test_equal_times_are_told_apart_by_their_order() -> None:
    feed = fed(Element(0, "a", 5), Batch([1, 2, 3], ["b", "c", "d"], [5, 5, 6]))
    assert [(place, payload) for place, _, payload in drained(feed, 2)] == [
        ((5, 3), "a"),
        ((5, 3 + TIE), "b"),
        ((5, 3 + 2 * TIE), "c"),
        ((6, 3), "d"),
    ]


def test_what_is_no_element_is_told() -> None:
    feed = fed(Element(0, "a", 0), (1, "b", 1))  # type: ignore[arg-type]
    assert [payload for _, _, payload in feed.take(1)] == ["a"]
    with pytest.raises(FrontFailedError, match=r"it gave \(1, 'b', 1\). A front gives an Element"):
        feed.take(5)


def test_what_came_before_a_failure_of_the_source_still_enters() -> None:
    feed = fed(Batch([0, 1], ["a", "b"], [0, 1]), OSError("unplugged"))
    assert [payload for _, _, payload in feed.take(2)] == ["a", "b"]
    with pytest.raises(FrontFailedError, match="unplugged"):
        feed.take(5)


@pytest.mark.parametrize(
    ("disorder", "expected"),
    [
        (0, [(1, "1"), (12, "12"), (12, "3"), (25, "25"), (25, "2")]),
        (10, [(1, "1"), (3, "3"), (12, "12"), (15, "2"), (25, "25")]),
    ],
)
def test_a_late_element_that_is_admitted_enters_at_the_promise(
    disorder: int, expected: list[tuple[int, str]]
) -> None:
    front = Given(*[Element(n, str(at), at) for n, at in enumerate((1, 12, 3, 25, 2))])
    front.event_time = EventTime(disorder, on_late="admit")
    feed = Feed("numbers", 0, front, 0, 3, CREDIT)
    feed.start(Beginning())
    feed.reader.thread.join(SECONDS)
    assert [(place[0], payload) for place, _, payload in drained(feed, 5)] == expected
    assert feed.aside.take() == []
