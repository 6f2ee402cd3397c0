"""Queries that aggregate by key, or keep the best or last rows of a key: q15 to q19.

The aggregates are running: each bid gives the row of its group anew, as an engine of SQL updates it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import emberflow as ef
from nexmark.generator import Bid
from nexmark.views import Events, bids, day_of, minute_of

LEVELS: dict[str, Callable[[Bid], bool]] = {
    "rank1": lambda bid: bid.price < 10_000,
    "rank2": lambda bid: 10_000 <= bid.price < 1_000_000,
    "rank3": lambda bid: bid.price >= 1_000_000,
}


def by_level(what: str, aggregate: Callable[..., ef.Aggregate[Bid]]) -> dict[str, Any]:
    """An aggregate of all bids, and of those of each level of price: total_bids, rank1_bids ...

    COUNT(*) AS total_bids, COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids, ...
    """
    levels = {f"{level}_{what}": aggregate(where=holds) for level, holds in LEVELS.items()}
    return {f"total_{what}": aggregate(), **levels}


def statistics() -> dict[str, Any]:
    """How many bids, bidders and auctions, by levels of price."""
    return (
        by_level("bids", ef.count)
        | by_level("bidders", partial(ef.count_distinct, lambda bid: bid.bidder))
        | by_level("auctions", partial(ef.count_distinct, lambda bid: bid.auction))
    )


def q15(events: Events) -> ef.Stream[Any]:
    """Statistics of each day: how many users bid, at which level of price?

    SELECT DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS day,
           COUNT(*) AS total_bids,
           COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
           COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
           COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
           COUNT(DISTINCT bidder) AS total_bidders, ... the same three filters,
           COUNT(DISTINCT auction) AS total_auctions, ... the same three filters
    FROM bid GROUP BY DATE_FORMAT(dateTime, 'yyyy-MM-dd')
    """
    by_day = bids(events).key_by(lambda bid: day_of(bid.date_time))
    return by_day.aggregate(**statistics()).map(lambda row: (row[0], *row[1]))


def q16(events: Events) -> ef.Stream[Any]:
    """The same for each channel and day.

    SELECT channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS day,
           MAX(DATE_FORMAT(dateTime, 'HH:mm')) AS minute, ... as in q15
    FROM bid GROUP BY channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd')
    """
    by_channel = bids(events).key_by(lambda bid: (bid.channel, day_of(bid.date_time)))
    rows = by_channel.aggregate(minute=ef.max(lambda bid: minute_of(bid.date_time)), **statistics())
    return rows.map(lambda row: (*row[0], *row[1]))


def q17(events: Events) -> ef.Stream[Any]:
    """Statistics of the prices of each auction and day.

    SELECT auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS day, COUNT(*) AS total_bids,
           COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids, ... as in q15,
           MIN(price) AS min_price, MAX(price) AS max_price, AVG(price) AS avg_price,
           SUM(price) AS sum_price
    FROM bid GROUP BY auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd')

    Averages are floats, as in q4.
    """
    by_auction = bids(events).key_by(lambda bid: (bid.auction, day_of(bid.date_time)))
    rows = by_auction.aggregate(
        **by_level("bids", ef.count),
        min_price=ef.min(lambda bid: bid.price),
        max_price=ef.max(lambda bid: bid.price),
        avg_price=ef.mean(lambda bid: bid.price),
        sum_price=ef.sum(lambda bid: bid.price),
    )
    return rows.map(lambda row: (*row[0], *row[1]))


def q18(events: Events) -> ef.Changes[tuple[int, int], Bid]:
    """The last bid of a bidder for an auction: a table that changes.

    SELECT auction, bidder, price, channel, url, dateTime, extra
    FROM (SELECT *, ROW_NUMBER()
                    OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS rank_number
          FROM bid)
    WHERE rank_number <= 1
    """
    return bids(events).key_by(lambda bid: (bid.bidder, bid.auction)).changes()


def q19(events: Events) -> ef.Changes[int, tuple[Bid, ...]]:
    """The ten highest bids of each auction: a table that changes.

    SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number
                   FROM bid)
    WHERE rank_number <= 10

    The ten are one value, in the order of their ranks. In SQL they are ten rows, and a bid that gets among
    them moves those behind it.
    """
    return ef.changes_from(
        bids(events).key_by(lambda bid: bid.auction).top(10, by=lambda bid: bid.price)
    )
