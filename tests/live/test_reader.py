"""A front that continues from a backfill without a position skips the elements below the cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from emberflow.checkpoint.logs.front_log import FrontLogWriter
from emberflow.engine.messages import BEFORE_ALL
from emberflow.errors import InputError
from emberflow.fronts import Batch, Element, Idle, Malformed
from emberflow.runners.live.worker.feed import Feed
from emberflow.runners.live.worker.journal import Journal
from emberflow.runners.live.worker.reader import Beginning
from emberflow.values.event_time import EventTime
from emberflow.values.item import FlatItem
from tests.effort import SECONDS

INDEX = 3
FROM_TEN = Beginning(None, (10, 0), passes_over=True)
BAD = Malformed("?", "no element", before_next=True)


class Given:
    partitions = 1
    arrival = False

    def __init__(self, *given: Any, promises: bool = False) -> None:
        self.given, self.promises = given, promises

    def read(self, partition: int, position: Any) -> Any:
        return iter(self.given)


def fed(front: Given, beginning: Beginning = FROM_TEN, **rest: Any) -> Feed:
    feed = Feed("numbers", 0, front, 0, INDEX, 100, **rest)
    feed.start(beginning)
    feed.reader.thread.join(SECONDS)
    return feed


def entered(items: list[FlatItem]) -> list[tuple[int, Any]]:
    return [(place[0], payload) for place, _, payload in items]


def refused(feed: Feed) -> str:
    """The error that ends the query."""
    ((_, problem),) = feed.aside.take()
    assert isinstance(problem, InputError)
    return str(problem)


ONE_BY_ONE = [Element(n, f"p{n}", 4 * n) for n in range(5)]
AT_ONCE = [
    Batch(range(2), ("p0", "p1"), (0, 4)),
    Batch((), (), ()),
    Batch(range(2, 5), ("p2", "p3", "p4"), (8, 12, 16)),
]


@pytest.mark.parametrize("given", [ONE_BY_ONE, AT_ONCE])
def test_what_is_below_the_cut_is_passed_over(given: list[Any]) -> None:
    feed = fed(Given(*given))
    assert entered(feed.take(100)) == [(12, "p3"), (16, "p4")]
    assert feed.gate.position == 2
    feed.minimal_time((13, 0))
    assert feed.gate.position == 3
    assert feed.waiting == 0


def test_where_all_is_below_the_position_is_kept_for_the_next_cut() -> None:
    feed = fed(Given(*ONE_BY_ONE), Beginning(None, (50, 0), passes_over=True))
    assert feed.take(100) == []
    assert feed.gate.position == 4
    assert feed.over


def test_an_element_at_the_cut_is_not_below_it() -> None:
    feed = fed(Given(Element(0, "a", 9), Element(1, "b", 10)))
    assert entered(feed.take(100)) == [(10, "b")]


def test_only_what_comes_first_is_passed_over() -> None:
    feed = fed(Given(Element(0, "a", 12), Element(1, "b", 9)))
    assert entered(feed.take(100)) == [(12, "a")]
    assert "promised 12 or later" in refused(feed)


def test_a_cut_that_names_the_front_passes_nothing_over() -> None:
    feed = fed(Given(*ONE_BY_ONE), Beginning(None, (10, 0)))
    assert feed.take(100) == []
    assert "promised 10 or later" in refused(feed)


def test_elements_without_times_are_new() -> None:
    front = Given(Element(0, "a"), Element(1, "b"))
    front.arrival = True
    assert [payload for _, payload in entered(fed(front).take(100))] == ["a", "b"]


def test_what_is_malformed_goes_the_way_of_what_follows_it() -> None:
    given = Given(
        Element(0, BAD), Element(1, "a", 5), Element(2, BAD), Element(3, BAD), Element(4, "b", 15)
    )
    feed = fed(given, diverts=True)
    assert entered(feed.take(100)) == [(15, "b")]
    assert len(feed.aside.take()) == 2
    # The elements behind it were skipped, and so were the malformed ones: nothing fails.
    assert entered(fed(Given(*given.given[:2])).take(100)) == []


def test_a_front_that_promises_gives_the_same_in_its_next_life(tmp_path: Path) -> None:
    front = Given(*ONE_BY_ONE[:4], Idle(20), Element(4, "late", 16), promises=True)
    front.event_time = EventTime(on_late="admit")
    lives = []
    for incarnation in (2, 3):
        log = FrontLogWriter(tmp_path, "numbers", 0, incarnation)
        feed = fed(front, FROM_TEN._replace(joins_at=(7, 0)), journal=Journal(log, "it", INDEX))
        lives.append(entered(feed.take(100)))
        feed.join(SECONDS)
    # The element at the cut keeps its time: no output at or above it was released.
    assert lives == [[(12, "p3"), (20, "late")]] * 2


def test_nothing_joins_in_the_first_life(tmp_path: Path) -> None:
    log = FrontLogWriter(tmp_path, "numbers", 0, 1)
    feed = fed(
        Given(Element(0, "a", -5), promises=True),
        Beginning(None, BEFORE_ALL),
        journal=Journal(log, "it", INDEX),
    )
    assert entered(feed.take(100)) == [(-5, "a")]
    feed.join(SECONDS)
