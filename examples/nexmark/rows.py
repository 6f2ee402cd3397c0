"""Queries that look at one row at a time: q0, q1, q2, q10, q13, q14, q21, q22."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import emberflow as ef
from nexmark.generator import Bid
from nexmark.views import Events, bids, day_of, hour_of, minute_of

#: Decimals, as the literals of SQL are: floats would round.
EURO_OF_DOLLAR = Decimal("0.908")
SIDE_INPUT = {key: f"value of {key}" for key in range(10_000)}
CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
CHANNEL_ID = re.compile("(&|^)channel_id=([^&]*)")


def q0(events: Events) -> ef.Stream[Any]:
    """Pass through: what reading and writing cost.

    SELECT auction, bidder, price, dateTime, extra FROM bid
    """
    return bids(events).map(lambda b: (b.auction, b.bidder, b.price, b.date_time, b.extra))


def q1(events: Events) -> ef.Stream[Any]:
    """Currency conversion: dollars to euros.

    SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid
    """
    return bids(events).map(
        lambda b: (b.auction, b.bidder, EURO_OF_DOLLAR * b.price, b.date_time, b.extra)
    )


def q2(events: Events) -> ef.Stream[Any]:
    """Selection: the bids for some auctions.

    SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0
    """
    some = bids(events).filter(lambda bid: bid.auction % 123 == 0)
    return some.map(lambda bid: (bid.auction, bid.price))


def q10(events: Events) -> ef.Stream[Any]:
    """Log to files, with the day and the minute that they are partitioned by.

    INSERT INTO files PARTITIONED BY (dt, hm)
    SELECT auction, bidder, price, dateTime, extra,
           DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS dt, DATE_FORMAT(dateTime, 'HH:mm') AS hm
    FROM bid

    The rows are those of the SQL, and `sinks.Files` is their sink. Its files are in the order of the output,
    and it makes no folders by the values of columns: Spark does, when it reads them.
    """
    return bids(events).map(
        lambda b: (
            *(b.auction, b.bidder, b.price, b.date_time, b.extra),
            *(day_of(b.date_time), minute_of(b.date_time)),
        )
    )


def q13(events: Events) -> ef.Stream[Any]:
    """Join with a bounded side input.

    SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
    FROM (SELECT *, PROCTIME() AS p_time FROM bid) B
    JOIN side_input FOR SYSTEM_TIME AS OF B.p_time AS S ON MOD(B.auction, 10000) = S.key

    The side input never changes, so it is a dict that goes to the workers with the function. If it changed
    it would be a front of its own, and `enrich` the join.
    """
    known = bids(events).filter(lambda bid: bid.auction % 10_000 in SIDE_INPUT)
    return known.map(
        lambda b: (b.auction, b.bidder, b.price, b.date_time, SIDE_INPUT[b.auction % 10_000])
    )


def q14(events: Events) -> ef.Stream[Any]:
    """Calculation, with a function of the user's own.

    SELECT auction, bidder, 0.908 * price AS price,
           CASE WHEN HOUR(dateTime) >= 8 AND HOUR(dateTime) <= 18 THEN 'dayTime'
                WHEN HOUR(dateTime) <= 6 OR HOUR(dateTime) >= 20 THEN 'nightTime'
                ELSE 'otherTime' END AS bidTimeType,
           dateTime, extra, count_char(extra, 'c') AS c_counts
    FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """

    def time_type(bid: Bid) -> str:
        hour = hour_of(bid.date_time)
        if 8 <= hour <= 18:
            return "dayTime"
        return "nightTime" if hour <= 6 or hour >= 20 else "otherTime"

    dear = bids(events).filter(lambda bid: 1_000_000 < EURO_OF_DOLLAR * bid.price < 50_000_000)
    return dear.map(
        lambda b: (
            *(b.auction, b.bidder, EURO_OF_DOLLAR * b.price),
            *(time_type(b), b.date_time, b.extra, b.extra.count("c")),
        )
    )


def q21(events: Events) -> ef.Stream[Any]:
    """Add the id of the channel.

    SELECT auction, bidder, price, channel,
           CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
                WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3'
                ELSE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) END AS channel_id
    FROM bid
    WHERE REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2) IS NOT NULL
       OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
    """

    def channel_id(bid: Bid) -> str | None:
        found = CHANNEL_ID.search(bid.url)
        return CHANNEL_IDS.get(bid.channel.lower()) or (found and found[2])

    rows = bids(events).map(lambda b: (b.auction, b.bidder, b.price, b.channel, channel_id(b)))
    return rows.filter(lambda row: row[-1] is not None)


def q22(events: Events) -> ef.Stream[Any]:
    """The folders of the URL.

    SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1,
           SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3
    FROM bid
    """
    return bids(events).map(
        lambda b: (b.auction, b.bidder, b.price, b.channel, *b.url.split("/")[3:6])
    )
