"""The hottest loops of the engine, apart from the rest, so that they can be compiled.

Each loop deals with items one after another while they are as most items are, and returns the position of
the first that is not: it has a new key, it is out of order, a function raises on it. Such an item is
untouched, and the caller deals with it. So the rare cases are in one place, in Python, and a loop is short
enough to be written twice: here, and in C as ``_loops`` (see `emberflow.native`). Both give the same to the
byte; workers of one run may differ in which they have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from typing import Any

from emberflow import native
from emberflow.engine.cuts.cut import Row
from emberflow.engine.messages import Moment
from emberflow.graph import transactions as transactional
from emberflow.values.hashing import key_hash
from emberflow.values.item import FlatItem, Place

_place_of = itemgetter(0)


class Restored:
    """In place of a mapped item, in a version that was restored: its payload is never needed."""

    __slots__ = ("key",)

    def __init__(self, key: Any) -> None:
        self.key = key


def _history(key: Any, version: Any) -> list[Any]:
    """The versions of a key, of which this is the first: a list. In C it is a type of its own, which Python
    can use like a list, and which takes a sixth of the memory once all but one version are dropped."""
    return [version]


#: The types of keys that the compiled loops hash themselves, and of the parts of tuples that are keys.
_COMMON_KEYS = frozenset((int, str, float, bytes, bool, type(None)))
#: Tuples in tuples of more levels are left to Python.
_LEVELS_MAX = 8


def is_common(key: Any, level: int = 0) -> bool:
    """Whether the compiled loops hash a key themselves. (Those that are very long they leave to Python.)

    >>> is_common((1, ("a", None))), is_common((1, frozenset())), is_common(float("nan"))
    (True, False, False)
    """
    kind = key.__class__
    if kind is tuple:
        return level < _LEVELS_MAX and all(is_common(part, level + 1) for part in key)
    return kind in _COMMON_KEYS and key == key


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
    expires: int | None,
) -> int:
    """Reduce items that are in order, each behind all versions of its key. See `machines.reduce`.

    ``absent`` is the type of what stands for an accumulator that is not there, ``refused`` the type that
    no accumulator may have. An item that comes ``expires`` or more behind the last version is left to the
    caller.
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
            if expires is not None and place[0] - last[0][0] >= expires:
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


def _reduce_triples(
    items: list[FlatItem],
    start: int,
    end: int,
    output: list[FlatItem],
    combine: Callable[[Any, Any], Any],
    buckets: dict[Any, list[Any]],
    touched: list[list[Any]],
    out: Place,
    absent: type,
    expires: int | None,
    ticks_of: Callable[[Any], Any] | None,
    ticking: list[FlatItem],
) -> int:
    """The same of items up to a position, whose payloads are triples ``(key, False, value)``: what leaves is
    ``(key, True, accumulator)``.

    ``ticks_of`` of what would leave is None if nothing at all follows from it: then it does not leave. If it
    is not empty, the loop appends to ``ticking`` what the ticks are of, and stops behind that item unless all
    ticks are in a list and come at later times than the last item: others may come ahead of the next one.
    """
    append = output.append
    position = start
    for position in range(start, min(end, len(items))):
        place, mark, mapped = items[position]
        if mapped.__class__ is not tuple or len(mapped) != 3:
            return position
        key, _, value = mapped
        try:
            versions = buckets[key]
            last = versions[-1]
            before = last[3]
            if not last[0] < place or mark & 1 or before.__class__ is absent:
                return position
            if expires is not None and place[0] - last[0][0] >= expires:
                return position
            accumulator = combine(before, value)
            sent = (key, True, accumulator)
            ticks = () if ticks_of is None else ticks_of(sent)
            has_ticks = bool(ticks)
        except Exception:
            return position
        versions.append((place, mark, mapped, accumulator))
        if len(versions) == 2:
            touched.append(versions)
        if ticks is None:
            continue
        append((place + out, mark, sent))
        if has_ticks:
            ticking.append((place, mark, sent))
            if not _are_later(ticks, items[min(end, len(items)) - 1]):
                return position + 1
    return max(start, min(end, len(items)))


def _are_later(ticks: Any, last: Any) -> bool:
    """Whether all ticks, which are instances of `At` in a list, have later times than an item."""
    if ticks.__class__ is not list:
        return False
    try:
        time = last[0][0]
        return all(tick.time.__class__ is int and tick.time > time for tick in ticks)
    except Exception:
        return False


def _some_values(values: dict[Any, Any], start: int, count: int) -> tuple[int, list[Any]]:
    """Some values of a dict, ``count`` at most, from a position on; and the position behind them, 0 at the end.

    Who goes on from there sees each value that stays, unless the dict grows, shrinks or is put in order
    meanwhile: then it may pass over some, or see some again. In C a step costs no more for a large dict.
    """
    found = list(islice(values.values(), start, start + count))
    return (start + count if len(found) == count else 0), found


def _spread(
    items: list[FlatItem],
    start: int,
    spread: list[list[FlatItem]],
    key_of: Callable[[Any], Any],
    owners: dict[Any, int],
    marks: list[dict[int, int]],
    hosts: list[int],
) -> int:
    """Deal out items whose key's owner is known, each with the mark that it has after the hop there.

    ``hosts`` has the owner of each range of hashes, where the hash decides it; it is empty otherwise. In C
    it is quicker to hash the commonest keys again than to find them in a large dict. Here it is not.
    """
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
    touched: list[list[Any]],
    minimal: Moment,
    begun: Moment,
    key_of: Callable[[Any], Any] | None,
    absent: type,
    restored: type,
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Drop all versions but the last, in buckets whose last one is below the minimal time.

    Returns the buckets whose last one is not, and those of several versions whose first one was older than
    ``begun``; one of a single older version has not changed since. In C,
    histories keep of the last one what a cut needs. They ask ``key_of``, if it is given, where it is not
    known whether the key of the last version looks like that of the bucket.
    """
    rest: list[list[Any]] = []
    unnoted: list[list[Any]] = []
    for versions in touched:
        if versions:
            if len(versions) > 1 and versions[0][0] < begun:
                unnoted.append(versions)
            if versions[-1][0] < minimal:
                del versions[:-1]
            else:
                rest.append(versions)
    return rest, unnoted


def _last_accumulators(
    given: list[list[Any]],
    moment: Moment,
    since: Moment,
    key_of: Callable[[Any], Any],
    operation: str,
    absent: type,
    restored: Any,
    packs: bool,
) -> tuple[list[list[Any]], list[Row], list[list[Any]], list[list[Any]], bytes, int]:
    """The rows of the last versions of keys below a moment, where these are not below ``since``. Of their
    places they have the global time.

    ``restored`` is the type of what stands for the mapped item of a version that was restored. Returns
    the buckets that have a row, and the rows; the buckets that go on beyond the moment; the buckets
    that are not so simple: without an accumulator, or with a key of a rare type; and, if it ``packs``, what is
    compiled packs the rows that are plain (`cuts.packed`), and tells how many they are.
    """
    found: list[list[Any]] = []
    rows: list[Row] = []
    going_on: list[list[Any]] = []
    others: list[list[Any]] = []
    for versions in given:
        final = len(versions)
        if final and versions[-1][0] >= moment:
            going_on.append(versions)
            final = bisect_left(versions, (moment,))
        if not final:
            continue
        place, _, mapped, accumulator = versions[final - 1]
        if place < since:
            continue
        try:
            key = mapped.key if mapped.__class__ is restored else key_of(mapped)
        except Exception:
            others.append(versions)
            continue
        if accumulator.__class__ is absent or not is_common(key):
            others.append(versions)
            continue
        found.append(versions)
        rows.append(Row(operation, key_hash(key), key, place[:2], accumulator))
    return found, rows, going_on, others, b"", 0


def _sort_by_place(items: list[FlatItem]) -> bool:
    """Sort by place, stably; whether it could. In C it cannot where a place is not made of numbers of 64
    bits, and leaves the list as it is."""
    items.sort(key=_place_of)
    return True


def sort_by_place(items: list[FlatItem]) -> None:
    """Sort items by place. Those of one place stay in the order they have.

    >>> items = [((2, 0), 0, "b"), ((1, 0, 3), 0, "a"), ((1, 0), 0, "first"), ((1, 0), 1, "second")]
    >>> sort_by_place(items)
    >>> [payload for _, _, payload in items]
    ['first', 'second', 'a', 'b']
    """
    if not _compiled_sort(items):
        _sort_by_place(items)


# Machines that keep nothing. Each gives the outputs of all items; or None if something is unusual, such as
# a function that raises or an image that is scheduled. Then the caller deals with all items, one by one.


def _extended(items: list[FlatItem], child: Place) -> list[FlatItem]:
    """The same items, each with one child id more."""
    return [(place + child, mark, payload) for place, mark, payload in items]


def _mapped(
    items: list[FlatItem], function: Callable[[Any], Any], child: Place, at: type
) -> list[FlatItem] | None:
    """The one image of each item."""
    try:
        images = [function(item[2]) for item in items]
    except Exception:
        return None
    return _imaged(items, images, child, at)


def _mapped_with_time(
    items: list[FlatItem], function: Callable[[int, Any], Any], child: Place, at: type
) -> list[FlatItem] | None:
    """The one image of each item, by its time and payload."""
    try:
        images = [function(item[0][0], item[2]) for item in items]
    except Exception:
        return None
    return _imaged(items, images, child, at)


def _imaged(
    items: list[FlatItem], images: list[Any], child: Place, at: type
) -> list[FlatItem] | None:
    """Images in the places of their items, unless one of them is scheduled."""
    if at in set(map(type, images)):
        return None
    return [(item[0] + child, item[1], image) for item, image in zip(items, images, strict=True)]


def _kept(
    items: list[FlatItem], function: Callable[[Any], Any], child: Place
) -> list[FlatItem] | None:
    """Those items that the function holds for."""
    try:
        return [
            (place + child, mark, payload) for place, mark, payload in items if function(payload)
        ]
    except Exception:
        return None


def _flat_mapped(
    items: list[FlatItem], function: Callable[[Any], Any], children: tuple[Place, ...], at: type
) -> list[FlatItem] | None:
    """All images of each item, which must be a tuple or a list, and no more than there are child ids."""
    output: list[FlatItem] = []
    append = output.append
    try:
        for place, mark, payload in items:
            images = function(payload)
            kind = images.__class__
            if (kind is not tuple and kind is not list) or len(images) > len(children):
                return None
            for child, image in zip(children, images):  # noqa: B905 - children are enough
                if image.__class__ is at:
                    return None
                append((place + child, mark, image))
    except Exception:
        return None
    return output


def _accesses(
    items: list[FlatItem],
    key_of: Callable[[Any], Any],
    number: int,
    depth: int,
    alone: bool,
    carried: bool,
) -> list[FlatItem] | None:
    """Accesses of a state: from a payload to ``(key, number, identity's length, payload)``.

    Only for keys of which all of a type have a stable hash.
    """
    try:
        keys = [key_of(item[2][1] if carried else item[2]) for item in items]
    except Exception:
        return None
    if not _STABLE.issuperset(map(type, keys)):
        return None
    if alone and not carried:
        return [
            (place, mark, (key, number, len(place) - depth, (payload, payload)))
            for (place, mark, payload), key in zip(items, keys, strict=True)
        ]
    return [
        (place, mark, (key, number, len(place) - depth, payload))
        for (place, mark, payload), key in zip(items, keys, strict=True)
    ]


def _reports(items: list[FlatItem], depth: int, number: int) -> list[FlatItem]:
    """Reports to a closer: from a payload to ``(identity, number, payload)``."""
    return [
        (place, mark, (place[: len(place) - depth], number, payload))
        for place, mark, payload in items
    ]


_STABLE = frozenset((int, str, bytes))

if native.loops is None:
    reduce_in_order, reduce_triples = _reduce_in_order, _reduce_triples
    spread, trim_to_last = _spread, _trim_to_last
    last_accumulators, history = _last_accumulators, _history
    some_values, _compiled_sort = _some_values, _sort_by_place
    extended, mapped, kept, flat_mapped = _extended, _mapped, _kept, _flat_mapped
    mapped_with_time = _mapped_with_time
    accesses, reports = _accesses, _reports
    closer_key, front_of = transactional.closer_key, transactional.front_of
else:
    native.loops.prepare(Row, Restored)
    history = native.loops.History
    reduce_in_order = native.loops.reduce_in_order
    reduce_triples, spread = native.loops.reduce_triples, native.loops.spread
    trim_to_last, last_accumulators = native.loops.trim_to_last, native.loops.last_accumulators
    some_values, _compiled_sort = native.loops.some_values, native.loops.sort_by_place
    extended, mapped, kept = native.loops.extended, native.loops.mapped, native.loops.kept
    flat_mapped, mapped_with_time = native.loops.flat_mapped, native.loops.mapped_with_time
    accesses, reports = native.loops.accesses, native.loops.reports
    closer_key, front_of = native.loops.closer_key, native.loops.front_of
