"""Seats under contention: everybody wants the same few, several at once, side by side.

A party books all its seats or none. Only the times of the requests decide who comes first, however
many workers there are and however late a request arrives at one of them. If a worker takes back a
booking that it had assumed, nobody has seen it. The last lines show this: the same requests, on one
to eight workers over slow links, give the same bookings.

    $ python examples/seats.py
    ada has 1A and 1B
    bob waits: 1B is taken
    eve has 1C and 1D
    dan waits: 1D is taken
    joe has 2A and 2B
    40 more parties: 5 booked, 35 waited
    the same on 1, 2, 4 and 8 workers
"""

from random import Random
from typing import NamedTuple

import emberflow as ef

FREE = ""


class Request(NamedTuple):
    name: str
    seats: tuple[str, ...]


class Wish(NamedTuple):
    name: str
    seat: str


REQUESTS = [
    Request("ada", ("1A", "1B")),
    Request("bob", ("1B", "1C")),
    Request("eve", ("1C", "1D")),
    Request("dan", ("1D", "2A")),
    Request("joe", ("2A", "2B")),
]


def crowd(parties: int) -> list[Request]:
    """Parties that want two or three of sixteen seats."""
    random = Random(7)
    seats = [f"{row}{letter}" for row in range(2, 6) for letter in "ABCD"]
    return [
        Request(f"party {number}", tuple(random.sample(seats, random.choice((2, 3)))))
        for number in range(parties)
    ]


def booked(holder: str, wish: Wish) -> str:
    """A seat that is free is taken; one that is taken has two names on it, which the check sees.

    >>> booked("", Wish("ada", "1A")), booked("ada", Wish("bob", "1A"))
    ('ada', 'ada and bob')
    """
    return wish.name if holder == FREE else f"{holder} and {wish.name}"


def one_holder(holder: str) -> bool:
    return " and " not in holder


flow = ef.Flow("seats")
seats = flow.state("seats", default=FREE)

with flow.front("requests").transaction(name="booking") as booking:
    wishes = booking.flat_map(lambda r: [Wish(r.name, seat) for seat in r.seats])
    wishes.key_by(lambda wish: wish.seat).update(seats, booked, check=one_holder)

booking.committed.sink("booked")
booking.rejected.map(lambda r: (r.element.name, next(iter(r.values))[1])).sink("waiting")


def main() -> None:
    requests = REQUESTS + crowd(40)
    outputs = ef.run(flow, requests=requests)
    wants = dict(outputs["waiting"])
    for request in REQUESTS:
        if request.name in wants:
            print(f"{request.name} waits: {wants[request.name]} is taken")
        else:
            print(f"{request.name} has {' and '.join(request.seats)}")
    more = [request for request in outputs["booked"] if request not in REQUESTS]
    print(f"40 more parties: {len(more)} booked, {40 - len(more)} waited")
    workers = (1, 2, 4, 8)
    for number in workers:
        assert ef.simulate(flow, requests=requests, seed=number, workers=number).outputs == outputs
    print(f"the same on {', '.join(map(str, workers[:-1]))} and {workers[-1]} workers")


if __name__ == "__main__":
    main()
