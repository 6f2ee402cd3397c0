"""What the SQL of each query says, by plain loops over the list of all events.

Written from the SQL, clause by clause, and without Emberflow: each join is two loops, each group a scan. The
events are in the order of their times. A query with rows that stay gives all of them; one with rows that are
updated gives the table that it has in the end, by its key.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

TEN_SECONDS = 10_000


class Database:
    """The three tables."""

    def __init__(self, events: Iterable[Any]) -> None:
        tables: dict[str, list[Any]] = {"Person": [], "Auction": [], "Bid": []}
        for event in events:
            tables[type(event).__name__].append(event)
        self.people, self.auctions, self.bids = tables.values()

    def winning(self) -> list[tuple[Any, Any]]:
        """FROM auction A, bid B WHERE A.id = B.auction AND B.dateTime BETWEEN ..."""
        return [
            (a, b)
            for a in self.auctions
            for b in self.bids
            if a.id == b.auction and a.date_time <= b.date_time <= a.expires
        ]


def grouped(rows: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def mean(values: list[int]) -> float:
    return sum(values) / len(values)


def formatted(time: int, pattern: str) -> str:
    return datetime.fromtimestamp(time // 1000, UTC).strftime(pattern)


def day(row: Any) -> str:
    return formatted(row.date_time, "%Y-%m-%d")


def tumbling(time: int) -> int:
    return time // TEN_SECONDS * TEN_SECONDS


# --- Rows that stay ---------------------------------------------------------------------------------


def q0(db: Database) -> list[Any]:
    return [(b.auction, b.bidder, b.price, b.date_time, b.extra) for b in db.bids]


def q1(db: Database) -> list[Any]:
    return [
        (b.auction, b.bidder, Decimal(908 * b.price) / 1000, b.date_time, b.extra) for b in db.bids
    ]


def q2(db: Database) -> list[Any]:
    return [(b.auction, b.price) for b in db.bids if b.auction % 123 == 0]


def q3(db: Database) -> list[Any]:
    return [
        (p.name, p.city, p.state, a.id)
        for a in db.auctions
        for p in db.people
        if a.seller == p.id
        and a.category == 10
        and (p.state == "OR" or p.state == "ID" or p.state == "CA")
    ]


def q5(db: Database) -> list[Any]:
    hopping = [
        (start, b.auction)
        for b in db.bids
        for start in range(b.date_time // 2_000 * 2_000, b.date_time - TEN_SECONDS, -2_000)
    ]
    nums = Counter(hopping)
    maxn: dict[int, int] = {}
    for (start, _), num in nums.items():
        maxn[start] = max(num, maxn.get(start, 0))
    return [(auction, num) for (start, auction), num in nums.items() if num >= maxn[start]]


def q6(db: Database) -> list[Any]:
    """As the query says: by the last ten auctions that have closed, at the closing of each."""
    finals = [
        (a.expires, at, a.seller, max(b.price for x, b in pairs if x is a))
        for pairs in (db.winning(),)
        for at, a in enumerate(db.auctions)
        if any(x is a for x, _ in pairs)
    ]
    finals.sort()
    return [
        (seller, mean([price for *_, other, price in finals[: n + 1] if other == seller][-10:]))
        for n, (_, _, seller, _) in enumerate(finals)
    ]


def q7(db: Database) -> list[Any]:
    windows = grouped(db.bids, lambda b: tumbling(b.date_time))
    return [
        (b.auction, b.bidder, b.price, b.date_time, b.extra)
        for b in db.bids
        if b.price == max(other.price for other in windows[tumbling(b.date_time)])
    ]


def q8(db: Database) -> list[Any]:
    new = {(p.id, p.name, tumbling(p.date_time)) for p in db.people}
    sellers = {(a.seller, tumbling(a.date_time)) for a in db.auctions}
    return [row for row in new if (row[0], row[2]) in sellers]


def q10(db: Database) -> list[Any]:
    return [
        (*row, day(b), formatted(b.date_time, "%H:%M"))
        for row, b in zip(q0(db), db.bids, strict=True)
    ]


def q11(db: Database) -> list[Any]:
    rows = []
    for bidder, held in grouped(db.bids, lambda b: b.bidder).items():
        times = [b.date_time for b in held]
        begins = [n for n, time in enumerate(times) if n == 0 or time - times[n - 1] >= TEN_SECONDS]
        for begin, end in zip(begins, [*begins[1:], len(times)], strict=True):
            rows.append((bidder, end - begin, times[begin], times[end - 1] + TEN_SECONDS))
    return rows


def q12(db: Database) -> list[Any]:
    groups = grouped(db.bids, lambda b: (b.bidder, tumbling(b.date_time)))
    return [
        (bidder, len(held), start, start + TEN_SECONDS) for (bidder, start), held in groups.items()
    ]


def q13(db: Database) -> list[Any]:
    return [
        (b.auction, b.bidder, b.price, b.date_time, f"value of {b.auction % 10000}")
        for b in db.bids
    ]


def q14(db: Database) -> list[Any]:
    rows = []
    for b in db.bids:
        hour = datetime.fromtimestamp(b.date_time // 1000, UTC).hour
        kind = "otherTime" if hour in (7, 19) else "dayTime" if 8 <= hour <= 18 else "nightTime"
        if 1_000_000_000 < 908 * b.price < 50_000_000_000:
            price = Decimal(908 * b.price) / 1000
            letters = sum(letter == "c" for letter in b.extra)
            rows.append((b.auction, b.bidder, price, kind, b.date_time, b.extra, letters))
    return rows


def q20(db: Database) -> list[Any]:
    return [
        (
            *(b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, b.extra),
            *(a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires),
            *(a.seller, a.category, a.extra),
        )
        for b in db.bids
        for a in db.auctions
        if b.auction == a.id and a.category == 10
    ]


def q21(db: Database) -> list[Any]:
    known = ["Apple", "Google", "Facebook", "Baidu"]
    rows = []
    for b in db.bids:
        ids = re.findall("(?:&|^)channel_id=([^&]*)", b.url)
        if b.channel in known or ids:
            found = str(known.index(b.channel)) if b.channel in known else ids[0]
            rows.append((b.auction, b.bidder, b.price, b.channel, found))
    return rows


def q22(db: Database) -> list[Any]:
    pattern = re.compile("https://[^/]+/([^/]+)/([^/]+)/([^/]+)/")
    return [
        (b.auction, b.bidder, b.price, b.channel, *pattern.match(b.url).groups())  # type: ignore[union-attr]
        for b in db.bids
    ]


# --- Rows that are updated --------------------------------------------------------------------------


def q4(db: Database) -> dict[Any, Any]:
    finals = {
        key: max(b.price for _, b in pairs)
        for key, pairs in grouped(db.winning(), lambda pair: (pair[0].id, pair[0].category)).items()
    }
    categories = grouped(finals.items(), lambda item: item[0][1])
    return {category: mean([price for _, price in items]) for category, items in categories.items()}


def q9(db: Database) -> dict[Any, Any]:
    return {
        auction: min(pairs, key=lambda pair: (-pair[1].price, pair[1].date_time))
        for auction, pairs in grouped(db.winning(), lambda pair: pair[0].id).items()
    }


def statistics(held: list[Any]) -> tuple[int, ...]:
    levels = [
        held,
        [b for b in held if b.price < 10_000],
        [b for b in held if b.price >= 10_000 and b.price < 1_000_000],
        [b for b in held if b.price >= 1_000_000],
    ]
    return (
        *(len(level) for level in levels),
        *(len({b.bidder for b in level}) for level in levels),
        *(len({b.auction for b in level}) for level in levels),
    )


def q15(db: Database) -> dict[Any, Any]:
    return {key: (key, *statistics(held)) for key, held in grouped(db.bids, day).items()}


def q16(db: Database) -> dict[Any, Any]:
    return {
        key: (*key, max(formatted(b.date_time, "%H:%M") for b in held), *statistics(held))
        for key, held in grouped(db.bids, lambda b: (b.channel, day(b))).items()
    }


def q17(db: Database) -> dict[Any, Any]:
    rows = {}
    for key, held in grouped(db.bids, lambda b: (b.auction, day(b))).items():
        prices = [b.price for b in held]
        totals = (min(prices), max(prices), mean(prices), sum(prices))
        rows[key] = (*key, *statistics(held)[:4], *totals)
    return rows


def q18(db: Database) -> dict[Any, Any]:
    return {
        key: max(enumerate(held), key=lambda one: (one[1].date_time, one[0]))[1]
        for key, held in grouped(db.bids, lambda b: (b.bidder, b.auction)).items()
    }


def q19(db: Database) -> dict[Any, Any]:
    return {
        key: tuple(sorted(held, key=lambda b: -b.price)[:10])
        for key, held in grouped(db.bids, lambda b: b.auction).items()
    }


ROWS = {
    query.__name__: query
    for query in (q0, q1, q2, q3, q5, q6, q7, q8, q10, q11, q12, q13, q14, q20, q21, q22)
}
TABLES = {query.__name__: query for query in (q4, q9, q15, q16, q17, q18, q19)}
