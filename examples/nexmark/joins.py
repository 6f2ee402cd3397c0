"""Queries that join streams: q3, q4, q6, q9, q20.

As in SQL, a join without a bound on time keeps both sides for ever.
"""

from __future__ import annotations

from typing import Any

import emberflow as ef
from nexmark.generator import Auction, Bid
from nexmark.views import Events, auctions, bids, people


def bids_in_time(events: Events) -> ef.Stream[tuple[Auction, Bid]]:
    """Each auction with each of its bids that came while it was open.

    SELECT * FROM auction A, bid B
    WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    """
    pairs = auctions(events).key_by(lambda auction: auction.id)
    joined = pairs.join(bids(events).key_by(lambda bid: bid.auction))
    return joined.filter(lambda pair: pair[0].date_time <= pair[1].date_time <= pair[0].expires)


def q3(events: Events) -> ef.Stream[Any]:
    """Who sells in Oregon, Idaho or California in category 10, and what?

    SELECT P.name, P.city, P.state, A.id
    FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
    WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')
    """
    local = people(events).filter(lambda person: person.state in ("OR", "ID", "CA"))
    sold = auctions(events).filter(lambda auction: auction.category == 10)
    return sold.key_by(lambda auction: auction.seller).join(
        local.key_by(lambda person: person.id),
        lambda auction, person: (person.name, person.city, person.state, auction.id),
    )


def q4(events: Events) -> ef.Changes[int, Any]:
    """The average of the highest bids of all auctions of a category: a table that changes.

    SELECT Q.category, AVG(Q.final)
    FROM (SELECT MAX(B.price) AS final, A.category FROM auction A, bid B
          WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
          GROUP BY A.id, A.category) Q
    GROUP BY Q.category

    Averages are floats. Those of Flink are of the type of the column, an integer.
    """
    by_auction = bids_in_time(events).key_by(lambda pair: (pair[0].id, pair[0].category))
    highest = ef.changes_from(by_auction.max(lambda pair: pair[1].price)).with_key()
    return highest.group_by(lambda row: row[0][1]).mean(lambda row: row[1])


def q6(events: Events) -> ef.Stream[Any]:
    """The average price of the last ten auctions of a seller that have closed with a bid.

    SELECT Q.seller, AVG(Q.price)
           OVER (PARTITION BY Q.seller ORDER BY Q.dateTime ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
    FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC) AS rownum
          FROM auction A, bid B
          WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires) Q
    WHERE rownum <= 1

    Flink and Spark refuse this SQL: the highest bid so far changes, and an over-window takes no rows that do.
    Here an auction schedules itself for the time right behind its end. Then its highest bid is final: this is
    the question as the paper asks it, with ten rows and in the order of the closing.
    """
    by_auction = bids_in_time(events).key_by(lambda pair: pair[0].id)
    highest = ef.changes_from(by_auction.max(lambda pair: pair[1].price))
    closed = auctions(events).map(lambda auction: ef.At(auction.expires + 1, auction))
    prices = closed.key_by(lambda auction: auction.id).enrich(
        highest, lambda auction, price: (auction.seller, price)
    )
    sold = prices.filter(lambda sale: sale[1] is not None)
    means = sold.key_by(lambda sale: sale[0]).over(rows=10).mean(lambda sale: sale[1])
    return means.map(lambda pair: (pair[0][0], pair[1]))


def q9(events: Events) -> ef.Changes[int, Any]:
    """The winning bid of each auction, so far: a table that changes.

    SELECT * FROM (
        SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
               ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS rownum
        FROM auction A, bid B
        WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires)
    WHERE rownum <= 1

    Of equal prices the earlier one wins without being asked: bids are in the order of their times.
    """
    best = bids_in_time(events).key_by(lambda pair: pair[0].id)
    return ef.changes_from(
        best.aggregate(
            auction=ef.first(lambda pair: pair[0]),
            bid=ef.max(lambda pair: pair[1], by=lambda pair: pair[1].price),
        )
    )


def q20(events: Events) -> ef.Stream[Any]:
    """Bids with their auctions, of category 10.

    SELECT auction, bidder, price, channel, url, B.dateTime, B.extra,
           itemName, description, initialBid, reserve, A.dateTime, expires, seller, category, A.extra
    FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id
    WHERE A.category = 10
    """
    tens = auctions(events).filter(lambda auction: auction.category == 10)
    return (
        bids(events)
        .key_by(lambda bid: bid.auction)
        .join(tens.key_by(lambda auction: auction.id), lambda bid, auction: (*bid, *auction[1:]))
    )
