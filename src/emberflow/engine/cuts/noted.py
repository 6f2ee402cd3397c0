"""Which buckets a capture has seen, and which are noted (`changes`), compiled in C.

What is guaranteed: both give the same objects in the same order.

Which objects are in is known by their numbers (``id``), in some sets and not in one: a set doubles when it is
full, and with a million numbers that takes longer than a capture may in one go. The sets get unequal parts, so
that they are full at different times.
"""

from __future__ import annotations

from typing import Any

from emberflow import native

#: The number of sets; `headers/noted.h` has the same.
SETS = 64


def _set_of(number: int) -> int:
    """In which set a number is: the greater of two of its digits."""
    return max(number >> 6 & SETS - 1, number >> 12 & SETS - 1)


def _fresh(objects: list[Any], sets: list[Any]) -> list[Any]:
    """Those whose ``id`` is in none of the sets, each once. From now on it is."""
    found = []
    for each in objects:
        number = id(each)
        seen = sets[_set_of(number)]
        if number not in seen:
            seen.add(number)
            found.append(each)
    return found


#: A set of numbers.
Addresses: Any
if native.loops is None:
    fresh, Addresses = _fresh, set
else:
    fresh, Addresses = native.loops.fresh, native.loops.Addresses


def no_addresses() -> list[Any]:
    """Sets with nothing in them."""
    return [Addresses() for _ in range(SETS)]
