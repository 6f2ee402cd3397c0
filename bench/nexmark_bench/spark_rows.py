"""The running aggregates q15 to q19 in Spark with a row for each bid, as Emberflow and Flink have them.

Spark's SQL gives a row for each group and micro-batch, which is less work. To have a row for each bid, one
writes the state by hand: a Python function that gets the bids of a group, and its state, with each batch
(`applyInPandasWithState`). The functions here are what one would write: they change sets and lists in place,
which our pure functions may not. The state is a pickle.
"""

from __future__ import annotations

import pickle
import sys
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType

_LEVELS = ("total", "rank1", "rank2", "rank3")
_BIDS = ", ".join(f"{level}_bids bigint" for level in _LEVELS)
_SETS = ", ".join(f"{level}_{what} bigint" for what in ("bidders", "auctions") for level in _LEVELS)
_BID = "bidder: bigint, auction: bigint, price: bigint, channel: string, url: string, extra: string"
_DAY = "date_format(dateTime, 'yyyy-MM-dd') AS day"
_TOP = 10


class Rows(NamedTuple):
    """A query: its key columns, the columns of its rows, and what a bid makes of a state and gives."""

    key: tuple[str, ...]
    columns: str
    begin: Callable[[], Any]
    #: From a state and a bid to a row without the key, or None; changes the state.
    row: Callable[[Any, Any], tuple[Any, ...] | None]


def _levels(price: int) -> tuple[int, int]:
    """The levels that a price counts for: all, and its own."""
    return 0, 1 if price < 10_000 else 2 if price < 1_000_000 else 3


class Statistics:
    """How many bids, bidders and auctions, by level of price, and the latest minute."""

    def __init__(self) -> None:
        self.bids = [0] * len(_LEVELS)
        self.bidders: list[set[int]] = [set() for _ in _LEVELS]
        self.auctions: list[set[int]] = [set() for _ in _LEVELS]
        self.minute = ""

    def add(self, bid: Any) -> None:
        for level in _levels(bid.price):
            self.bids[level] += 1
            self.bidders[level].add(bid.bidder)
            self.auctions[level].add(bid.auction)
        self.minute = max(self.minute, bid.minute)

    def counts(self) -> tuple[int, ...]:
        return (*self.bids, *map(len, self.bidders), *map(len, self.auctions))


def _day(state: Statistics, bid: Any) -> tuple[Any, ...]:
    state.add(bid)
    return state.counts()


def _channel(state: Statistics, bid: Any) -> tuple[Any, ...]:
    state.add(bid)
    return state.minute, *state.counts()


def _prices(state: list[int], bid: Any) -> tuple[Any, ...]:
    """The state: bids by level, then the least price, the greatest and the sum."""
    price = bid.price
    for level in _levels(price):
        state[level] += 1
    first = state[0] == 1
    state[4] = price if first else min(state[4], price)
    state[5] = max(state[5], price)
    state[6] += price
    return *state[:6], state[6] / state[0], state[6]


def _last(state: None, bid: Any) -> tuple[Any, ...]:
    return bid.price, bid.channel, bid.url, bid.extra


def _best(state: list[tuple[int, Any]], bid: Any) -> tuple[Any, ...] | None:
    if len(state) == _TOP and bid.price <= -state[-1][0]:
        return None
    taken = (bid.bidder, bid.auction, bid.price, bid.channel, bid.url, bid.extra)
    insort(state, (-bid.price, taken), key=lambda one: one[0])
    del state[_TOP:]
    return ([one for _, one in state],)


_PRICES = "min_price bigint, max_price bigint, avg_price double, sum_price bigint"
ROWS = {
    "q15": Rows(("day",), f"day string, {_BIDS}, {_SETS}", Statistics, _day),
    "q16": Rows(
        ("channel", "day"),
        f"channel string, day string, minute string, {_BIDS}, {_SETS}",
        Statistics,
        _channel,
    ),
    "q17": Rows(
        ("auction", "day"),
        f"auction bigint, day string, {_BIDS}, {_PRICES}",
        lambda: [0] * 7,
        _prices,
    ),
    "q18": Rows(
        ("bidder", "auction"),
        "bidder bigint, auction bigint, price bigint, channel string, url string, extra string",
        lambda: None,
        _last,
    ),
    "q19": Rows(
        ("auction",),
        f"auction bigint, best array<struct<{_BID}>>",
        list,
        _best,
    ),
}


def rows_of(query: str, bids: DataFrame) -> DataFrame:
    """The query over bids, with a row for each, or for each that changes something."""
    asked = ROWS[query]
    names = StructType.fromDDL(asked.columns).fieldNames()
    folder = str(Path(__file__).parents[1])

    def told(key: tuple[Any, ...], batches: Iterable[pd.DataFrame], held: Any) -> Iterator[Any]:
        # Spark's workers do not have the folders that this process imports from.
        if folder not in sys.path:
            sys.path.append(folder)
        asked = import_module("nexmark_bench.spark_rows").ROWS[query]
        state = pickle.loads(held.get[0]) if held.exists else asked.begin()
        rows = []
        for batch in batches:
            for bid in batch.sort_values("dateTime", kind="stable").itertuples(index=False):
                row = asked.row(state, bid)
                if row is not None:
                    rows.append((*key, *row))
        held.update((pickle.dumps(state),))
        yield pd.DataFrame(rows, columns=names)

    with_parts = bids.selectExpr("*", _DAY, "date_format(dateTime, 'HH:mm') AS minute")
    return with_parts.groupBy(*asked.key).applyInPandasWithState(
        told, asked.columns, "state binary", "update", GroupStateTimeout.NoTimeout
    )
