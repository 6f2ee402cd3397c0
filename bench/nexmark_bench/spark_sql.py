"""The queries in Spark's SQL, with the output mode that gives the same rows.

Spark says no to some of them as streams, with an error that the benchmark prints. Some are written otherwise
than NEXMark's SQL, because Spark knows no COUNT(DISTINCT) and no ROW_NUMBER() of streams:

- q15 and q16 count with sets, ``size(collect_set(...))``, which is exact;
- q9, q18 and q19 are aggregates, ``max_by``, of one row or of ten.

In mode ``update`` a batch gives the new row of each group that changed in it, where Emberflow and Flink give
one for each event. q12 takes the event time, as ours.

Rows that come when a window ends tell that in a column ``end``.
"""

from __future__ import annotations

_LEVELS = {
    "total": "true",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}


def _counts() -> str:
    return ", ".join(
        f"count_if({holds}) AS {level}_bids" if level != "total" else "count(*) AS total_bids"
        for level, holds in _LEVELS.items()
    )


def _distinct(column: str) -> str:
    return ", ".join(
        f"size(collect_set({column}) FILTER (WHERE {holds})) AS {level}_{column}s"
        for level, holds in _LEVELS.items()
    )


_DAY = "date_format(dateTime, 'yyyy-MM-dd')"
_STATISTICS = f"{_counts()}, {_distinct('bidder')}, {_distinct('auction')}"
_IN_TIME = (
    "auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires"
)
_CHANNEL_ID = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
_COUNTS = """
    SELECT window(dateTime, '10 seconds', '2 seconds') AS window, auction, count(*) AS num
    FROM bid GROUP BY window(dateTime, '10 seconds', '2 seconds'), auction
"""

SQL = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id
        FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"""
        SELECT category, avg(final)
        FROM (SELECT max(B.price) AS final, A.category FROM {_IN_TIME} GROUP BY A.id, A.category)
        GROUP BY category
    """,
    "q5": f"""
        SELECT hot.auction, hot.num, window.end
        FROM (SELECT explode(filter(all, a -> a.num = array_max(all).num)) AS hot, window
              FROM (SELECT window, collect_list(struct(num, auction)) AS all
                    FROM ({_COUNTS}) GROUP BY window))
    """,
    "q6": f"""
        SELECT seller, avg(price) OVER
               (PARTITION BY seller ORDER BY dateTime ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
        FROM (SELECT A.seller, B.price, B.dateTime,
                     row_number() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC) AS rownum
              FROM {_IN_TIME})
        WHERE rownum <= 1
    """,
    "q7": """
        SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra, M.last AS end
        FROM bid B
        JOIN (SELECT maxprice, window_time(window) AS last
              FROM (SELECT window(dateTime, '10 seconds') AS window, max(price) AS maxprice
                    FROM bid GROUP BY window(dateTime, '10 seconds'))) M
        ON B.price = M.maxprice AND B.dateTime BETWEEN M.last - INTERVAL 10 SECONDS AND M.last
    """,
    "q8": """
        SELECT P.id, P.name, P.window.start
        FROM (SELECT id, name, window(dateTime, '10 seconds') AS window
              FROM person GROUP BY id, name, window(dateTime, '10 seconds')) P
        JOIN (SELECT seller, window(dateTime, '10 seconds') AS window
              FROM auction GROUP BY seller, window(dateTime, '10 seconds')) A
        ON P.id = A.seller AND P.window = A.window
    """,
    "q9": f"""
        SELECT A.id, max_by(struct(A.*, B.bidder, B.price, B.dateTime AS bidTime,
                                   B.extra AS bidExtra), B.price)
        FROM {_IN_TIME} GROUP BY A.id
    """,
    "q10": f"""
        SELECT auction, bidder, price, dateTime, extra, {_DAY} AS dt,
               date_format(dateTime, 'HH:mm') AS hm
        FROM bid
    """,
    "q11": """
        SELECT bidder, count(*) AS bid_count, session_window.start, session_window.end
        FROM bid GROUP BY bidder, session_window(dateTime, '10 seconds')
    """,
    "q12": """
        SELECT bidder, count(*) AS bid_count, window.start, window.end
        FROM bid GROUP BY bidder, window(dateTime, '10 seconds')
    """,
    "q13": """
        SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
        FROM bid B JOIN side_input S ON B.auction % 10000 = S.key
    """,
    "q14": """
        SELECT auction, bidder, 0.908 * price AS price,
               CASE WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
                    WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
                    ELSE 'otherTime' END AS bidTimeType,
               dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    "q15": f"SELECT {_DAY} AS day, {_STATISTICS} FROM bid GROUP BY {_DAY}",
    "q16": f"""
        SELECT channel, {_DAY} AS day, max(date_format(dateTime, 'HH:mm')) AS minute, {_STATISTICS}
        FROM bid GROUP BY channel, {_DAY}
    """,
    "q17": f"""
        SELECT auction, {_DAY} AS day, {_counts()}, min(price), max(price), avg(price), sum(price)
        FROM bid GROUP BY auction, {_DAY}
    """,
    "q18": """
        SELECT bidder, auction, max_by(struct(price, channel, url, dateTime, extra), dateTime)
        FROM bid GROUP BY bidder, auction
    """,
    "q19": """
        SELECT auction, max_by(struct(bidder, price, channel, url, dateTime, extra), price, 10)
        FROM bid GROUP BY auction
    """,
    "q20": """
        SELECT auction, bidder, price, channel, url, B.dateTime, B.extra, itemName, description,
               initialBid, reserve, A.dateTime AS auctionTime, expires, seller, category,
               A.extra AS auctionExtra
        FROM bid B JOIN auction A ON B.auction = A.id
        WHERE A.category = 10
    """,
    "q21": f"""
        SELECT auction, bidder, price, channel,
               CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
                    WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE {_CHANNEL_ID} END AS id
        FROM bid
        WHERE {_CHANNEL_ID} != '' OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')
    """,
    "q22": """
        SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1,
               split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
        FROM bid
    """,
}

UPDATED = {"q4", "q9", "q15", "q16", "q17", "q18", "q19"}
"""Queries whose rows are updated. The others have rows that stay, in mode append."""

VIEWS = {
    "person": "id bigint, name string, email string, credit_card string, city string, "
    "state string, extra string",
    "auction": "id bigint, item_name string, description string, initial_bid bigint, "
    "reserve bigint, expires bigint, seller bigint, category bigint, extra string",
    "bid": "auction bigint, bidder bigint, price bigint, channel string, url string, extra string",
}
SCHEMA = "kind string, date_time bigint, " + ", ".join(
    f"{name} struct<{fields.replace(' ', ':').replace(',:', ',')}>"
    for name, fields in VIEWS.items()
)
COLUMNS = {
    "person": "person.id, person.name, person.city, person.state, dateTime, person.extra",
    "auction": "auction.id, auction.item_name AS itemName, auction.description, "
    "auction.initial_bid AS initialBid, auction.reserve, dateTime, "
    "timestamp_millis(auction.expires) AS expires, auction.seller, auction.category, "
    "auction.extra",
    "bid": "bid.auction, bid.bidder, bid.price, bid.channel, bid.url, dateTime, bid.extra",
}
