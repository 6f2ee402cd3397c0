"""The loops of a capture over the buckets that may have changed (`changes`), compiled in C.

What is guaranteed: both give the same objects in the same order.

Which objects were seen is known by their numbers (``id``), in some sets and not in one: a set doubles when it is
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


def _fresh(objects: list[Any], sets: list[set[int]]) -> list[Any]:
    """Those whose ``id`` is in none of the sets, each once. From now on it is."""
    found = []
    for each in objects:
        number = id(each)
        seen = sets[_set_of(number)]
        if number not in seen:
            seen.add(number)
            found.append(each)
    return found


def _popped(values: dict[int, Any], most: int) -> list[Any]:
    """Take the last values out of a dict, ``most`` at most."""
    return [values.popitem()[1] for _ in range(min(most, len(values)))]


if native.loops is None:
    fresh, popped = _fresh, _popped
else:
    fresh, popped = native.loops.fresh, native.loops.popped
