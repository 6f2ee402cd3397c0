"""Fronts with times of their own that promise while idle, and partitions that join later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emberflow.checkpoint.logs.front_log import FrontLogWriter, read_log
from emberflow.engine.messages import AFTER_ALL, BEFORE_ALL, Moment
from emberflow.errors import Late
from emberflow.fronts import Batch, Element, FrontGrewError, Idle
from emberflow.fronts.protocol import front_contract
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.reader import Beginning, FrontFailedError
from emberflow.values.event_time import EventTime
from emberflow.values.item import TIE, FlatItem
from tests.effort import SECONDS

INDEX = 3


class Given:
    """A front that emits the given elements, from after a position."""

    partitions = 1
    arrival = False
    promises = True
    event_time = EventTime(on_late="admit")

    def __init__(self, *given: Any) -> None:
        self.given = given

    def read(self, partition: int, position: Any) -> Iterator[Any]:
        for read in self.given:
            if isinstance(read, Exception):
                raise read
            while read is ...:  # for ever
                time.sleep(0.01)
                yield None
            if not isinstance(read, Element) or position is None or read.position > position:
                yield read


def fed(folder: Path, incarnation: int, *given: Any, beginning: Beginning | None = None) -> Feed:
    log = FrontLogWriter(folder, "numbers", 0, incarnation)
    journal = Journal(log, "numbers 0", INDEX)
    feed = Feed("numbers", 0, Given(*given), 0, INDEX, 100, journal=journal)
    feed.start(beginning or Beginning())
    if ... not in given:
        feed.reader.thread.join(SECONDS)
    return feed


def drained(feed: Feed) -> list[FlatItem]:
    """Everything that enters, once all of it is durable."""
    found: list[FlatItem] = []
    deadline = time.monotonic() + SECONDS
    while feed.waiting or feed.reader.queue:
        found += feed.take(2)
        assert time.monotonic() < deadline
    return found


def reported(feed: Feed, moment: Moment, most: int = 0) -> None:
    """Wait until a moment is reported: then whatever covers it is durable."""
    deadline = time.monotonic() + SECONDS
    feed.take(most)
    while feed.report().get(INDEX) != moment:
        if not feed.gate.promise >= moment:
            feed.take(most)
        assert time.monotonic() < deadline, feed.gate.promise
        time.sleep(0.01)


def times(items: list[FlatItem]) -> list[int]:
    return [place[0] for place, _, _ in items]


def test_an_element_below_what_was_promised_is_late(tmp_path: Path) -> None:
    front = Given(Element(0, "a", 5), Idle(50), Element(1, "b", 7), Element(2, "c", 50))
    front.event_time = EventTime()
    feed = Feed("numbers", 0, front, 0, INDEX, 100, late_node=7)
    feed.start(Beginning())
    feed.reader.thread.join(SECONDS)
    assert [(place, payload) for place, _, payload in drained(feed)] == [
        ((5, INDEX), "a"),
        ((50, INDEX + TIE), "c"),
    ]
    assert feed.take_late() == [((50, INDEX), 0, Late(7, "numbers", 0, 1, 43, "b"))]


def test_an_element_below_what_was_promised_is_kept_where_the_order_is_that_of_the_source(
    tmp_path: Path,
) -> None:
    given = [Element(0, "a", 5), Idle(50), Element(1, "b", 7), Batch([2, 3], ["c", "d"], [50, 90])]
    feed = fed(tmp_path, 1, *given)
    assert times(drained(feed)) == [5, 50, 50, 90]
    feed.join(SECONDS)


def test_times_that_go_back_are_raised_there(tmp_path: Path) -> None:
    feed = fed(tmp_path, 1, Batch([0, 1, 2], ["a", "b", "c"], [5, 5, 3]))
    assert [place for place, _, _ in drained(feed)] == [(5, INDEX + tie * TIE) for tie in range(3)]
    feed.join(SECONDS)


def test_a_promise_is_reported_when_it_is_durable(tmp_path: Path) -> None:
    feed = fed(tmp_path, 1, Element(0, "a", 5), Idle(50, 10), ...)
    reported(feed, (5, INDEX + TIE), most=1)
    reported(feed, (50, INDEX), most=1)
    feed.join(SECONDS)
    following = FrontLogWriter(tmp_path, "numbers", 0, 2)
    assert following.reservation == 60
    following.close()


def test_a_replay_gives_the_times_that_were_chosen_and_nothing_new_below_the_promise(
    tmp_path: Path,
) -> None:
    first = fed(tmp_path, 1, Element(0, "a", 5), Idle(50, 0), Element(1, "b", 7), Idle(100, 0))
    assert times(drained(first)) == [5, 50]
    reported(first, AFTER_ALL)
    first.join(SECONDS)
    assert list(read_log(tmp_path, "numbers", 0)) == [(0, 5), (1, 50)]
    # The next life finds no promise, and one more element.
    again = [Element(0, "a", 5), Element(1, "b", 7), Element(2, "c", 60), Element(3, "d", 200)]
    following = fed(tmp_path, 2, *again)
    assert times(drained(following)) == [5, 50, 100, 200]
    following.join(SECONDS)
    # A life that starts from a cut does the same with the rest.
    last = fed(tmp_path, 3, *again, beginning=Beginning(0, (20, 0), promised=(5, 0)))
    assert times(drained(last)) == [50, 100, 200]
    last.join(SECONDS)


def test_what_one_life_dropped_no_later_life_gives_again_from_the_same_cut(tmp_path: Path) -> None:
    elements = [Element(number, number, 10 * number) for number in range(8)]
    for life, (shown, entered) in enumerate(
        [
            # The sinks have the output of time 10, and the second life continues without 20 and 30.
            (None, [0, 10, 20, 30]),
            ((10, INDEX), [0, 10, 40, 50]),
            ((40, INDEX - 1), [0, 10, 60, 70]),  # another front's output of the same time
            ((70, INDEX), [0, 10, 60, 70]),
        ],
        start=1,
    ):
        known = elements[: min(8, 2 + 2 * life)]
        feed = fed(tmp_path, life, *known, beginning=Beginning(None, BEFORE_ALL, shown))
        assert times(drained(feed)) == entered
        reported(feed, AFTER_ALL)
        feed.join(SECONDS)
    assert [time for _, time in read_log(tmp_path, "numbers", 0)] == list(range(0, 80, 10))


def test_a_partition_that_joins_comes_behind_all_that_was_let_out(tmp_path: Path) -> None:
    joining = Beginning(None, (70, 0), None, (80, 2))
    feed = fed(tmp_path, 2, Element(0, "a", 5), Element(1, "b", 95), beginning=joining)
    assert times(drained(feed)) == [81, 95]
    feed.join(SECONDS)
    # It has joined, and joins only once.
    following = fed(
        tmp_path,
        3,
        *[Element(0, "a", 5), Element(1, "b", 95), Element(2, "c", 96)],
        beginning=Beginning(None, (70, 0), None, (95, 3)),
    )
    assert times(drained(following)) == [81, 95, 96]
    following.join(SECONDS)


def test_a_front_that_does_not_say_that_it_promises_may_not() -> None:
    front = Given(Idle(5))
    front.promises = False
    feed = Feed("numbers", 0, front, 0, INDEX, 10)
    feed.start(Beginning())
    feed.reader.thread.join(SECONDS)
    with pytest.raises(FrontFailedError, match="does not say promises"):
        feed.take(1)


def test_growth_is_no_failure_of_the_front(tmp_path: Path) -> None:
    feed = fed(tmp_path, 1, FrontGrewError("there are 3 partitions now"))
    with pytest.raises(FrontGrewError, match="3 partitions"):
        feed.take(1)
    feed.join(SECONDS)


def test_who_promises_chooses() -> None:
    assert front_contract(Given()).chooses
    plain = Given()
    plain.promises = False
    assert not front_contract(plain).chooses
    assert BEFORE_ALL < AFTER_ALL


def test_a_time_that_is_none_is_told(tmp_path: Path) -> None:
    feed = fed(tmp_path, 1, Element(0, "a", "soon"))  # type: ignore[arg-type]
    assert feed.take(1) == []
    ((_, problem),) = feed.aside.take()
    assert "gave an element of time 'soon'" in str(problem)
    feed.join(SECONDS)
