"""The hottest loops of the engine, apart from the rest, so that they can be compiled.

Each deals with items one after another while they are as items mostly are, and returns the position
of the first that is not: a new key, an item out of order, a function that raises. Such an item is
untouched, and the caller sees to it. So there is one place for the rare cases, in Python, and a loop
is short enough to be written twice: here, and in C as ``_loops``, which is built with the package
where there is a compiler and used if it is there. Both give the same to the byte; workers of one run
may differ in which they have.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, TypeAlias

from emberflow.engine.messages import Moment
from emberflow.item import FlatItem, Place

#: Values by column: 64-bit words if they are ints that fit, a tuple of columns if they are tuples of one
#: length, else the list of them.
Column: TypeAlias = "bytes | tuple[Column, ...] | list[Any]"

#: How many items; their places by column, an int where all have the same one; their marks, one int if
#: all have the same one; their payloads.
Packed: TypeAlias = "tuple[int, tuple[int | bytes, ...], int | list[int], Column]"


def _reduce_in_order(
    items: list[FlatItem],
    start: int,
    output: list[FlatItem],
    key_of: Callable[[Any], Any],
    combine: Callable[[Any, Any], Any],
    buckets: dict[Any, list[Any]],
    touched: list[list[Any]],
    out: Place,
    with_key: bool,
    absent: type,
    refused: type,
) -> int:
    """Reduce items that are in order, each behind all versions of its key. See `reduction`.

    ``absent`` is the type of what stands for no accumulator, ``refused`` of one that is none.
    """
    append = output.append
    position = start
    for position in range(start, len(items)):
        place, mark, payload = items[position]
        try:
            key = key_of(payload)
            versions = buckets[key]
            last = versions[-1]
            before = last[3]
            if not last[0] < place or mark & 1 or before.__class__ is absent:
                return position
            # In order: one comparison, one combine.
            accumulator = combine(before, payload)
        except Exception:
            return position
        if accumulator.__class__ is refused:
            return position
        versions.append((place, mark, payload, accumulator))
        if len(versions) == 2:
            touched.append(versions)
        append((place + out, mark, (key, accumulator) if with_key else accumulator))
    return len(items)


def _spread(
    items: list[FlatItem],
    start: int,
    spread: list[list[FlatItem]],
    key_of: Callable[[Any], Any],
    owners: dict[Any, int],
    marks: list[dict[int, int]],
) -> int:
    """Deal out items whose key's owner is known, each with the mark it has after the hop there."""
    for position in range(start, len(items)):
        place, mark, payload = items[position]
        try:
            worker = owners[key_of(payload)]
            marked = marks[worker][mark]
        except Exception:
            return position
        spread[worker].append((place, marked, payload))
    return len(items)


def _trim_to_last(
    touched: list[list[Any]], minimal: Moment, begun: Moment
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Drop all but the last version where that is below the minimal time.

    Returns the buckets whose last version is not, and those whose first was older than ``begun``.
    """
    rest: list[list[Any]] = []
    unnoted: list[list[Any]] = []
    for versions in touched:
        if versions:
            if versions[0][0] < begun:
                unnoted.append(versions)
            if versions[-1][0] < minimal:
                del versions[:-1]
            else:
                rest.append(versions)
    return rest, unnoted


# What travels is packed by column, which takes half the bytes and less than half the time of pickling
# items as they are. In Python it would take longer: there it is sent as it is, and packed is only read.


def _pack(items: list[FlatItem]) -> Packed | None:
    """Items by column; None if their places differ in length, or do not fit."""
    return None


def _unpack(
    count: int, places: tuple[int | bytes, ...], marks: int | list[int], payloads: Column
) -> list[FlatItem]:
    """The items again."""
    columns = [[one] * count if isinstance(one, int) else array("q", one) for one in places]
    of_all = [marks] * count if isinstance(marks, int) else marks
    return list(
        zip(zip(*columns, strict=True), of_all, _unpack_column(payloads, count), strict=True)
    )


def _pack_column(values: list[Any]) -> Column:
    """Values by column."""
    return values


def _unpack_column(column: Column, count: int) -> list[Any]:
    """The values again."""
    if isinstance(column, bytes):
        column = array("q", column).tolist()
    elif isinstance(column, tuple):
        column = list(zip(*[_unpack_column(part, count) for part in column], strict=True))
    if len(column) != count:
        raise ValueError(f"a column has {len(column)} values, and {count} were sent")
    return column


try:
    from emberflow.engine import _loops  # type: ignore[attr-defined]
except ImportError:
    is_compiled = False
    reduce_in_order, spread, trim_to_last = _reduce_in_order, _spread, _trim_to_last
    pack, unpack, pack_column, unpack_column = _pack, _unpack, _pack_column, _unpack_column
else:
    is_compiled = True
    reduce_in_order, spread = _loops.reduce_in_order, _loops.spread
    trim_to_last = _loops.trim_to_last
    pack, unpack = _loops.pack, _loops.unpack
    pack_column, unpack_column = _loops.pack_column, _loops.unpack_column
