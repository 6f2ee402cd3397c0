"""Queries of windows: q5, q7, q8, q11, q12.

A window contains its start and not its end, and its results come when it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import emberflow as ef
from nexmark.views import Events, auctions, bids, people

T = TypeVar("T")

PERIOD_MS = 10_000


def leaders(by: Callable[[T], Any]) -> ef.Aggregate[T]:
    """An aggregate of our own: all payloads with the greatest ``by``, as ``RANK() <= 1`` in SQL."""

    def combine(held: tuple[T, ...], payload: T) -> tuple[T, ...]:
        best, this = by(held[0]), by(payload)
        if this > best:
            return (payload,)
        return (*held, payload) if this == best else held

    return ef.Aggregate(first=lambda payload: (payload,), combine=combine)


def q5(events: Events) -> ef.Stream[Any]:
    """Hot items: the auctions with the most bids of the last ten seconds, every two seconds.

    SELECT AuctionBids.auction, AuctionBids.num
    FROM (SELECT auction, COUNT(*) AS num, window_start AS starttime, window_end AS endtime
          FROM TABLE(HOP(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
          GROUP BY auction, window_start, window_end) AS AuctionBids
    JOIN (SELECT MAX(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
          FROM (the same) AS CountBids
          GROUP BY CountBids.starttime, CountBids.endtime) AS MaxBids
    ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
       AND AuctionBids.num >= MaxBids.maxn
    """
    by_auction = bids(events).key_by(lambda bid: bid.auction)
    counts = by_auction.window(ef.Sliding("10 s", "2 s"), emit="close").count()
    hottest = counts.per_window().aggregate(auctions=leaders(lambda count: count.value))
    return hottest.flat_map(lambda one: [(hot.key, hot.value) for hot in one.value.auctions])


def q7(events: Events) -> ef.Stream[Any]:
    """The highest bids of each ten seconds.

    SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra
    FROM bid B
    JOIN (SELECT MAX(price) AS maxprice, window_end AS dateTime
          FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
          GROUP BY window_start, window_end) B1
    ON B.price = B1.maxprice
    WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL '10' SECOND AND B1.dateTime

    The SQL also lists a bid of the next window if it comes just at the end of this one and has just its
    highest price. Here that bid is only in its own window.
    """
    windows = bids(events).key_by(lambda bid: None).window(ef.Tumbling("10 s"), emit="close")
    highest = windows.aggregate(bids=leaders(lambda bid: bid.price))
    return highest.flat_map(
        lambda one: [(b.auction, b.bidder, b.price, b.date_time, b.extra) for b in one.value.bids]
    )


def q8(events: Events) -> ef.Stream[Any]:
    """New users who have opened an auction in the ten seconds in which they came.

    SELECT P.id, P.name, P.starttime
    FROM (SELECT id, name, window_start AS starttime, window_end AS endtime
          FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
          GROUP BY id, name, window_start, window_end) P
    JOIN (SELECT seller, window_start AS starttime, window_end AS endtime
          FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(dateTime), INTERVAL '10' SECOND))
          GROUP BY seller, window_start, window_end) A
    ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime

    Such a person is told as soon as that is known, not at the end of the window.
    """
    new = people(events).key_by(lambda person: person.id)
    sellers = auctions(events).key_by(lambda auction: auction.seller)
    found = new.join(sellers, how="semi", window=ef.Tumbling("10 s"))
    return found.map(lambda one: (one.id, one.name, one.date_time - one.date_time % PERIOD_MS))


def q11(events: Events) -> ef.Stream[Any]:
    """How many bids did a user make in each session?

    SELECT B.bidder, COUNT(*) AS bid_count,
           SESSION_START(B.dateTime, INTERVAL '10' SECOND) AS starttime,
           SESSION_END(B.dateTime, INTERVAL '10' SECOND) AS endtime
    FROM bid B
    GROUP BY B.bidder, SESSION(B.dateTime, INTERVAL '10' SECOND)

    A bid just ten seconds behind another one begins a new session. In Flink it is of the same one.
    """
    by_bidder = bids(events).key_by(lambda bid: bid.bidder)
    sessions = by_bidder.window(ef.Session("10 s"), emit="close").count()
    return sessions.map(lambda session: (session.key, session.value, *session.window))


def q12(events: Events) -> ef.Stream[Any]:
    """How many bids did a user make in each ten seconds of processing time?

    SELECT bidder, COUNT(*) AS bid_count, window_start AS starttime, window_end AS endtime
    FROM TABLE(TUMBLE(TABLE B, DESCRIPTOR(p_time), INTERVAL '10' SECOND))
    GROUP BY bidder, window_start, window_end
    with B AS (SELECT *, PROCTIME() AS p_time FROM bid)

    Which time an event has is up to the front. One that says ``arrival=True`` gives it that of its arrival,
    which is processing time, and remembers it: a replay has the same windows. Others give it its event time.
    """
    by_bidder = bids(events).key_by(lambda bid: bid.bidder)
    counts = by_bidder.window(ef.Tumbling("10 s"), emit="close").count()
    return counts.map(lambda one: (one.key, one.value, *one.window))
