"""Fronts with random elements out of order, on which all runners must agree.

`out_of_order(random, elements)` takes lists of elements, as `tests.strategies` draws them, and makes fronts
of some. Their elements come in one to three partitions, and one partition may be far behind another.
Within a partition times are out of order, many are equal, some are late by any rule, and one may be of the
far future. Where errors are diverted, some records are malformed.

The functions are closures, so that they can be pickled by value.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import emberflow as ef
from emberflow import fronts
from emberflow.fronts.protocol import Malformed
from tests.strategies import Elements

#: How many elements a front has.
ELEMENTS = 24
FAR = 10**6


def out_of_order(
    random: Random, elements: Elements, *, diverts: bool, share: float = 0.7
) -> dict[str, Any]:
    """The same fronts, some with elements out of order; at least one.

    Unless errors are diverted, no record is malformed.
    """
    names = [name for name in elements if random.random() < share]
    names = names or [random.choice(list(elements))]
    return {
        name: front_out_of_order(random, given, diverts=diverts) if name in names else given
        for name, given in elements.items()
    }


def front_out_of_order(random: Random, given: list[Any], *, diverts: bool) -> fronts.Iterable:
    """A front with the payloads of a list, drawn again."""
    payloads = [element.payload if isinstance(element, ef.At) else element for element in given]
    partitions = random.choice((1, 1, 2, 3))
    ahead = random.choice((None, 100, 100)) if diverts else None
    behind = [random.choice((0, 0, 5, 40)) for _ in range(partitions)]
    far = random.randrange(ELEMENTS) if random.random() < 0.5 else None
    records: list[Any] = []
    at = -12
    for number in range(ELEMENTS):
        at += random.choice((0, 0, 1, 1, 3))
        time = at - behind[number % partitions] - random.choice((0, 0, 0, 1, 4, 15))
        payload = random.choice(payloads) if payloads else random.randint(-9, 9)
        if number == far:
            time += FAR
        if diverts and random.random() < 0.1:
            payload = Malformed(str(number), "it is malformed", before_next=random.random() < 0.5)
        records.append(ef.At(time, payload))
    rule: dict[str, Any] = {"disorder": random.choice((0, 1, 4, 12))}
    if random.random() < 0.25:
        rule = {"watermark": promised_by(random.randint(2, 4))}
    on_late: Any = random.choice(("divert", "divert", "drop"))
    return fronts.Iterable(records, partitions=partitions, ahead=ahead, on_late=on_late, **rule)


def promised_by(modulus: int) -> Callable[[Any], int | None]:
    """What ints promise."""
    return lambda n: None if n % modulus else 3 * (n % 19 - 9)
