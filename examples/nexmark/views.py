"""What the queries share: the views of the one stream of events, and parts of its times.

A time is a number of milliseconds since 1970, and days and hours are those of UTC, on every machine.
"""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import TypeAlias, cast

import emberflow as ef
from nexmark.generator import Auction, Bid, Event, Person

Events: TypeAlias = ef.Stream[Event]

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def people(events: Events) -> ef.Stream[Person]:
    return cast(ef.Stream[Person], events.filter(lambda event: isinstance(event, Person)))


def auctions(events: Events) -> ef.Stream[Auction]:
    return cast(ef.Stream[Auction], events.filter(lambda event: isinstance(event, Auction)))


def bids(events: Events) -> ef.Stream[Bid]:
    return cast(ef.Stream[Bid], events.filter(lambda event: isinstance(event, Bid)))


def day_of(time: int) -> str:
    """
    >>> day_of(1_436_918_400_000)
    '2015-07-15'
    """
    return _day(time // _DAY_MS)


@cache
def _day(number: int) -> str:
    return date.fromordinal(_EPOCH_DAY + number).isoformat()


def hour_of(time: int) -> int:
    """
    >>> hour_of(1_436_918_400_000 + 5 * 3_600_000)
    5
    """
    return time // _HOUR_MS % 24


def minute_of(time: int) -> str:
    """
    >>> minute_of(1_436_918_400_000 + 5 * 3_600_000 + 61_000)
    '05:01'
    """
    return f"{hour_of(time):02}:{time // 60_000 % 60:02}"
