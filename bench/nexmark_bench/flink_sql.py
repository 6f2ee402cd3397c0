"""The queries in Flink's SQL, as in its own NEXMark suite.

This module imports nothing: it is read by the Python that has PyFlink, and not by Emberflow's.

- q6 is refused by Flink.
- q10 writes no files, as nobody else here. q12 takes the event time, as ours.
- q13: the files of Flink cannot be looked up, so the side input is the other side of a plain join.
- q14 has no function of the user's own, but the same result by functions of SQL.
"""

from __future__ import annotations

_STATISTICS = ", ".join(
    f"COUNT({what}) {where} AS {level}_{name}"
    for what, name in (
        ("*", "bids"),
        ("DISTINCT bidder", "bidders"),
        ("DISTINCT auction", "auctions"),
    )
    for level, where in (
        ("total", ""),
        ("rank1", "FILTER (WHERE price < 10000)"),
        ("rank2", "FILTER (WHERE price >= 10000 AND price < 1000000)"),
        ("rank3", "FILTER (WHERE price >= 1000000)"),
    )
)
_COUNTS = ", ".join(_STATISTICS.split(", ")[:4])
_DAY = "DATE_FORMAT(`dateTime`, 'yyyy-MM-dd')"
_IN_TIME = (
    "auction A JOIN bid B ON A.id = B.auction AND B.`dateTime` BETWEEN A.`dateTime` AND A.expires"
)
_HOPPING = """
    SELECT auction, COUNT(*) AS num, window_start AS starttime, window_end AS endtime
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end
"""
_CHANNEL_ID = "REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2)"


def _tumbling(table: str, columns: str) -> str:
    return f"""
        SELECT {columns}, window_start AS starttime, window_end AS endtime
        FROM TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
    """


SQL = {
    "q0": "SELECT auction, bidder, price, `dateTime`, extra FROM bid",
    "q1": "SELECT auction, bidder, 0.908 * price AS price, `dateTime`, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
    "q3": """
        SELECT P.name, P.city, P.state, A.id
        FROM auction AS A INNER JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')
    """,
    "q4": f"""
        SELECT Q.category, AVG(Q.final)
        FROM (SELECT MAX(B.price) AS final, A.category FROM {_IN_TIME} GROUP BY A.id, A.category) Q
        GROUP BY Q.category
    """,
    "q5": f"""
        SELECT AuctionBids.auction, AuctionBids.num
        FROM ({_HOPPING}) AS AuctionBids
        JOIN (SELECT MAX(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime
              FROM ({_HOPPING}) AS CountBids
              GROUP BY CountBids.starttime, CountBids.endtime) AS MaxBids
        ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime
           AND AuctionBids.num >= MaxBids.maxn
    """,
    "q6": f"""
        SELECT Q.seller, AVG(Q.price) OVER
               (PARTITION BY Q.seller ORDER BY Q.`dateTime` ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
        FROM (SELECT A.seller, B.price, B.`dateTime`,
                     ROW_NUMBER() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC) AS rownum
              FROM {_IN_TIME}) AS Q
        WHERE rownum <= 1
    """,
    "q7": """
        SELECT B.auction, B.bidder, B.price, B.`dateTime`, B.extra
        FROM bid B
        JOIN (SELECT MAX(price) AS maxprice, window_end AS `dateTime`
              FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
              GROUP BY window_start, window_end) B1
        ON B.price = B1.maxprice
        WHERE B.`dateTime` BETWEEN B1.`dateTime` - INTERVAL '10' SECOND AND B1.`dateTime`
    """,
    "q8": f"""
        SELECT P.id, P.name, P.starttime
        FROM ({_tumbling("person", "id, name")} GROUP BY id, name, window_start, window_end) P
        JOIN ({_tumbling("auction", "seller")} GROUP BY seller, window_start, window_end) A
        ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime
    """,
    "q9": f"""
        SELECT * FROM (
            SELECT A.*, B.auction, B.bidder, B.price, B.`dateTime` AS bid_dateTime,
                   B.extra AS bid_extra, ROW_NUMBER()
                       OVER (PARTITION BY A.id ORDER BY B.price DESC, B.`dateTime` ASC) AS rownum
            FROM {_IN_TIME})
        WHERE rownum <= 1
    """,
    "q10": f"""
        SELECT auction, bidder, price, `dateTime`, extra, {_DAY} AS dt,
               DATE_FORMAT(`dateTime`, 'HH:mm') AS hm
        FROM bid
    """,
    "q11": """
        SELECT bidder, COUNT(*) AS bid_count, window_start, window_end
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(`dateTime`), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end
    """,
    "q12": f"""
        {_tumbling("bid", "bidder, COUNT(*) AS bid_count")}
        GROUP BY bidder, window_start, window_end
    """,
    "q13": """
        SELECT B.auction, B.bidder, B.price, B.`dateTime`, S.v
        FROM bid B JOIN side_input S ON MOD(B.auction, 10000) = S.k
    """,
    "q14": """
        SELECT auction, bidder, 0.908 * price AS price,
               CASE WHEN HOUR(`dateTime`) >= 8 AND HOUR(`dateTime`) <= 18 THEN 'dayTime'
                    WHEN HOUR(`dateTime`) <= 6 OR HOUR(`dateTime`) >= 20 THEN 'nightTime'
                    ELSE 'otherTime' END AS bidTimeType,
               `dateTime`, extra,
               CHAR_LENGTH(extra) - CHAR_LENGTH(REPLACE(extra, 'c', '')) AS c_counts
        FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
    """,
    "q15": f"SELECT {_DAY} AS `day`, {_STATISTICS} FROM bid GROUP BY {_DAY}",
    "q16": f"""
        SELECT channel, {_DAY} AS `day`, MAX(DATE_FORMAT(`dateTime`, 'HH:mm')) AS `minute`,
               {_STATISTICS}
        FROM bid GROUP BY channel, {_DAY}
    """,
    "q17": f"""
        SELECT auction, {_DAY} AS `day`, {_COUNTS}, MIN(price) AS min_price,
               MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price
        FROM bid GROUP BY auction, {_DAY}
    """,
    "q18": """
        SELECT auction, bidder, price, channel, url, `dateTime`, extra
        FROM (SELECT *, ROW_NUMBER()
                        OVER (PARTITION BY bidder, auction ORDER BY `dateTime` DESC) AS rank_number
              FROM bid)
        WHERE rank_number <= 1
    """,
    "q19": """
        SELECT * FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number
            FROM bid)
        WHERE rank_number <= 10
    """,
    "q20": """
        SELECT auction, bidder, price, channel, url, B.`dateTime`, B.extra, itemName, description,
               initialBid, reserve, A.`dateTime` AS auctionTime, expires, seller, category,
               A.extra AS auctionExtra
        FROM bid AS B INNER JOIN auction AS A ON B.auction = A.id
        WHERE A.category = 10
    """,
    "q21": f"""
        SELECT auction, bidder, price, channel,
               CASE WHEN LOWER(channel) = 'apple' THEN '0' WHEN LOWER(channel) = 'google' THEN '1'
                    WHEN LOWER(channel) = 'facebook' THEN '2' WHEN LOWER(channel) = 'baidu' THEN '3'
                    ELSE {_CHANNEL_ID} END AS channel_id
        FROM bid
        WHERE {_CHANNEL_ID} IS NOT NULL
           OR LOWER(channel) IN ('apple', 'google', 'facebook', 'baidu')
    """,
    "q22": """
        SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3) AS dir1,
               SPLIT_INDEX(url, '/', 4) AS dir2, SPLIT_INDEX(url, '/', 5) AS dir3
        FROM bid
    """,
}

#: The watermark is behind by a millisecond: several events may have the same time.
EVENTS = """
    CREATE TABLE {name} (
        kind STRING,
        date_time BIGINT,
        person ROW<id BIGINT, name STRING, city STRING, state STRING, extra STRING>,
        auction ROW<id BIGINT, item_name STRING, description STRING, initial_bid BIGINT,
                    reserve BIGINT, expires BIGINT, seller BIGINT, category BIGINT, extra STRING>,
        bid ROW<auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING,
                extra STRING>,
        `dateTime` AS TO_TIMESTAMP_LTZ(date_time, 3),
        WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '0.001' SECOND
    ) WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'json')
"""
VIEWS = {
    "person": "person.id, person.name, person.city, person.state, `dateTime`, person.extra",
    "auction": "auction.id, auction.item_name AS itemName, auction.description, "
    "auction.initial_bid AS initialBid, auction.reserve, `dateTime`, "
    "TO_TIMESTAMP_LTZ(auction.expires, 3) AS expires, auction.seller, auction.category, "
    "auction.extra",
    "bid": "bid.auction, bid.bidder, bid.price, bid.channel, bid.url, `dateTime`, bid.extra",
}
SIDE_INPUT = """
    CREATE TABLE side_input (k BIGINT, v STRING)
    WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')
"""
