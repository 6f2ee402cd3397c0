"""The events of an online auction: new people, new auctions, bids.

The events are those of a seed: the same arguments give the same events, in every process. They follow the
rules of the NEXMark generator of Apache Beam and Flink, though not its random numbers:

- Of 50 events one is a person, three are auctions and 46 are bids.
- Event ``n`` has the time ``begin + n / rate``, in milliseconds. Several events may have the same time.
- Half of the bids are for the *hot auction*, the first of the last hundred. The others are for one of the last
  ``in_flight`` auctions, or for one of the next ten, which does not exist yet.
- Three of four bids are by the *hot bidder*, the second of the last hundred people, and three of four auctions
  by the *hot seller*, the first of them. The others are by one of the last ``active_people``, or of the next ten.
- Prices are from 1 to 1,000,000 dollars in cents, evenly spread over the powers of ten.
- An auction lasts a random time, on average as long as it takes until ``in_flight`` others are made.
- Half of the bids come through one of four well-known channels, the others through one of 10,000.

With ``disorder`` events come out of order: each is delayed by a random time of up to so many milliseconds.

>>> [type(event).__name__ for event in generated(6)]
['Person', 'Auction', 'Auction', 'Auction', 'Bid', 'Bid']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from heapq import heappop, heappush
from random import Random
from string import ascii_lowercase
from typing import NamedTuple, TypeAlias

import emberflow as ef

#: 15 July 2015, as in the original.
BEGIN_MS = 1_436_918_400_000
RATE = 10_000

PEOPLE, AUCTIONS, BIDS = 1, 3, 46
ROUND = PEOPLE + AUCTIONS + BIDS
FIRST_PERSON = FIRST_AUCTION = 1_000
FIRST_CATEGORY, CATEGORIES = 10, 5
#: How far ids may be ahead of what exists.
LEAD = 10
#: One of so many people and auctions is hot.
HOT = 100

STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = (
    *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland"),
    *("Bend", "Redmond", "Seattle", "Kent", "Cheyenne"),
)
FIRST_NAMES = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky"),
    *("Kate", "Julie", "Sarah", "Deiter", "Walter"),
)
LAST_NAMES = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels"),
    *("Walton", "Smith", "Jones", "Noris"),
)
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
CHANNELS = 10_000


class Person(NamedTuple):
    id: int
    name: str
    email: str
    credit_card: str
    city: str
    state: str
    date_time: int
    extra: str


class Auction(NamedTuple):
    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: int
    expires: int
    seller: int
    category: int
    extra: str


class Bid(NamedTuple):
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str


Event: TypeAlias = Person | Auction | Bid


def generated(
    count: int,
    *,
    seed: int = 0,
    rate: float = RATE,
    disorder: int = 0,
    begin: int = BEGIN_MS,
    in_flight: int = 100,
    active_people: int = 1_000,
) -> Iterator[Event]:
    """The first ``count`` events, in the order in which they come."""
    maker = _Maker(Random(f"nexmark {seed}"), rate, begin, in_flight, active_people)
    events = (maker.event(number) for number in range(count))
    return _delayed(events, disorder, Random(f"disorder {seed}")) if disorder else events


def front(events: Iterable[Event], *, disorder: int = 0) -> ef.fronts.Iterable:
    """A front of events that come out of order by at most ``disorder``: none of them is late."""
    return ef.fronts.Iterable(
        [ef.At(event.date_time, event) for event in events], disorder=disorder
    )


def _delayed(events: Iterable[Event], disorder: int, draw: Random) -> Iterator[Event]:
    waiting: list[tuple[int, int, Event]] = []
    for number, event in enumerate(events):
        heappush(waiting, (event.date_time + draw.randint(0, disorder), number, event))
        while waiting[0][0] <= event.date_time:
            yield heappop(waiting)[2]
    while waiting:
        yield heappop(waiting)[2]


class _Maker:
    """Makes events of their numbers."""

    def __init__(
        self, draw: Random, rate: float, begin: int, in_flight: int, active_people: int
    ) -> None:
        self.draw, self.rate, self.begin = draw, rate, begin
        self.in_flight, self.active_people = in_flight, active_people
        # Extras are parts of one long text: to draw each letter would take longer than all else.
        self._letters = "".join(draw.choices(ascii_lowercase, k=10_000))

    def event(self, number: int) -> Event:
        epoch, offset = divmod(number, ROUND)
        if offset < PEOPLE:
            return self._person(number, epoch)
        # The base of ids: auctions and people that exist by now.
        if offset < PEOPLE + AUCTIONS:
            return self._auction(number, epoch * AUCTIONS + offset - PEOPLE, epoch)
        return self._bid(number, epoch * AUCTIONS + AUCTIONS - 1, epoch)

    def _time(self, number: int) -> int:
        return self.begin + int(number * 1_000 / self.rate)

    def _person(self, number: int, last_person: int) -> Person:
        draw = self.draw
        name = f"{draw.choice(FIRST_NAMES)} {draw.choice(LAST_NAMES)}"
        email = f"{self._text(7)}@{self._text(5)}.com"
        card = " ".join(f"{draw.randrange(10_000):04}" for _ in range(4))
        city, state = draw.choice(CITIES), draw.choice(STATES)
        size = 8 + len(name) + len(email) + len(card) + len(city) + len(state)
        return Person(
            last_person + FIRST_PERSON,
            name,
            email,
            card,
            city,
            state,
            self._time(number),
            self._extra(200 - size),
        )

    def _auction(self, number: int, last_auction: int, last_person: int) -> Auction:
        draw = self.draw
        hot = draw.randrange(4) > 0
        seller = last_person // HOT * HOT if hot else self._any_person(last_person)
        initial = self._price()
        name, description = self._text(20), self._text(100)
        time = self._time(number)
        mean_ms = self._time(number + self.in_flight * ROUND // AUCTIONS) - time
        return Auction(
            last_auction + FIRST_AUCTION,
            name,
            description,
            initial,
            initial + self._price(),
            time,
            time + 1 + draw.randrange(max(2 * mean_ms, 1)),
            seller + FIRST_PERSON,
            FIRST_CATEGORY + draw.randrange(CATEGORIES),
            self._extra(500 - 48 - len(name) - len(description)),
        )

    def _bid(self, number: int, last_auction: int, last_person: int) -> Bid:
        draw = self.draw
        if draw.randrange(2) > 0:
            auction = last_auction // HOT * HOT
        else:
            least = max(last_auction - self.in_flight, 0)
            auction = draw.randrange(least, last_auction + 1 + LEAD)
        hot = draw.randrange(4) > 0
        bidder = last_person // HOT * HOT + 1 if hot else self._any_person(last_person)
        if draw.randrange(2) > 0:
            channel = draw.choice(HOT_CHANNELS)
            url = _base_url(channel)
        else:
            channel, url = _channel(draw.randrange(CHANNELS))
        return Bid(
            auction + FIRST_AUCTION,
            bidder + FIRST_PERSON,
            self._price(),
            channel,
            url,
            self._time(number),
            self._extra(100 - 32),
        )

    def _any_person(self, last_person: int) -> int:
        people = last_person + 1
        active = min(people, self.active_people)
        return people - active + self.draw.randrange(active + LEAD)

    def _price(self) -> int:
        dollars: float = 10.0 ** (self.draw.random() * 6.0)
        return round(dollars * 100.0)

    def _text(self, length_max: int) -> str:
        return "".join(self.draw.choices(ascii_lowercase, k=self.draw.randrange(3, length_max)))

    def _extra(self, size: int) -> str:
        """A text that makes an event of the right size, give or take a fifth."""
        if size <= 0:
            return ""
        spread = round(size * 0.2)
        length = size - spread + (self.draw.randrange(2 * spread) if spread else 0)
        begin = self.draw.randrange(len(self._letters) - length)
        return self._letters[begin : begin + length]


@cache
def _base_url(channel: str) -> str:
    draw = Random(channel)
    folders = "/".join("_".join(draw.choices(ascii_lowercase, k=3)) for _ in range(3))
    return f"https://www.nexmark.com/{folders}/item.htm?query=1"


@cache
def _channel(number: int) -> tuple[str, str]:
    """A channel that is not well known. Nine of ten have an id in their URL."""
    name = f"channel-{number}"
    url = _base_url(name)
    if Random(number).randrange(10) > 0:
        url += f"&channel_id={abs(_reversed_bits(number))}"
    return name, url


def _reversed_bits(number: int) -> int:
    """The 32 bits of a number in reverse, as a signed int, so that ids look nothing like numbers."""
    bits = int(f"{number:032b}"[::-1], 2)
    return bits - (1 << 32) if bits >= 1 << 31 else bits
