"""A flow of dataclasses and named tuples, as a user's editor sees it: mypy, strict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.operators.user_code import checked_by_mypy

#: What a user writes. `assert_type` is an error if a type is not exactly that one.
FLOW = """
from dataclasses import dataclass
from typing import Any, NamedTuple, assert_type

import emberflow as ef


@dataclass(frozen=True)
class Bid:
    item: str
    by: str
    price: int


class Totals(NamedTuple):
    total: int
    bidders: int
    winner: str


flow = ef.Flow("bids")
bids: ef.Stream[Bid] = flow.front("bids")
by_item = bids.key_by(lambda bid: bid.item)
assert_type(by_item, ef.KeyedStream[str, Bid])

totals = by_item.aggregate(
    Totals,
    total=ef.sum(lambda bid: bid.price),
    bidders=ef.count_distinct(lambda bid: bid.by, where=lambda bid: bid.price > 3),
    winner=ef.max(lambda bid: bid.by, by=lambda bid: bid.price),
)
assert_type(totals, ef.Stream[tuple[str, Totals]])
assert_type(totals.map(lambda pair: pair[1].winner), ef.Stream[str])

spread = ef.Aggregate[Bid](
    first=lambda bid: (bid.price, bid.price),
    combine=lambda held, bid: (min(held[0], bid.price), max(held[1], bid.price)),
    result=lambda held: held[1] - held[0],
)
untyped = by_item.aggregate(spread=spread, number=ef.count())
assert_type(untyped, ef.Stream[tuple[str, Any]])
untyped.map(lambda pair: pair[1].spread).sink("spreads")

windowed = by_item.window(ef.Tumbling("1 minute"), emit="close")
assert_type(windowed.aggregate(high=ef.max(lambda bid: bid.price)), ef.Stream[ef.WindowResult])
assert_type(windowed.top(3, by=lambda bid: bid.price), ef.Stream[ef.WindowResult])
best = windowed.count().per_window().top(3, by=lambda result: result.value)
assert_type(best, ef.Stream[ef.WindowResult])


class Days:
    def containing(self, time: int) -> list[ef.Window]:
        return [ef.Window(time - time % 24, time - time % 24 + 24)]


by_item.window(Days()).count().sink("by day")
by_item.window(ef.Cumulate("1 minute", "1 hour")).count().sink("growing")

over = by_item.over(last="1 hour").aggregate(
    Totals,
    total=ef.sum(lambda bid: bid.price),
    bidders=ef.count_distinct(lambda bid: bid.by),
    winner=ef.last(lambda bid: bid.by),
)
assert_type(over, ef.Stream[tuple[Bid, Totals]])
assert_type(by_item.over(rows=3).mean(lambda bid: bid.price), ef.Stream[tuple[Bid, Any]])
assert_type(by_item.rank(by=lambda bid: bid.price), ef.Stream[tuple[Bid, int]])
assert_type(by_item.distinct(ttl="1 day"), ef.Stream[Bid])
"""

MISTAKE = """
by_item.aggregate(total=ef.sum(lambda bid: bid.prise))
"""


@pytest.mark.xdist_group("mypy")
def test_a_flow_checks_and_a_mistake_in_it_is_found(tmp_path: Path) -> None:
    line = (FLOW + MISTAKE).count("\n")
    assert checked_by_mypy(tmp_path, right=FLOW, wrong=FLOW + MISTAKE) == [
        f'wrong.py:{line}: error: "Bid" has no attribute "prise"; maybe "price"?  [attr-defined]'
    ]
