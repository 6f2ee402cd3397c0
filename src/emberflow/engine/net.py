"""The net effect of a batch on what a stateful machine has sent.

A machine applies a whole batch to its buckets and only then says what changed: tombstones for what
earlier batches sent and is now wrong, and the items that are right now. Two things depend on it.

*Correctness.* An item may be taken back in one bucket and come again in another (its key changed),
under the same place and mark. Were the new one sent before the tombstone of the old one, the
tombstone would take back the wrong one. So all tombstones of a batch go first, over all buckets;
and what this very batch sent and took back again is not sent at all.

*Cost.* A correction is a tombstone and an item at one place. Were they applied one after the other,
each would make the next item in the bucket wrong in its own way, that one the next two times over,
and a chain of n corrections would cost 2 to the n. Applied together, each costs the next one
correction.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from emberflow.item import FlatItem, Place

_place_of = itemgetter(0)


class NetOutput:
    """Collects what a batch sends and takes back. Entries belong to a bucket, named by its key."""

    __slots__ = ("_items", "_tombstones")

    def __init__(self) -> None:
        self._items: dict[tuple[Place, int, Any], Any] = {}
        self._tombstones: list[FlatItem] = []

    def send(self, place: Place, mark: int, key: Any, payload: Any) -> None:
        self._items[place, mark, key] = payload

    def take_back(self, place: Place, mark: int, key: Any, payload: Any) -> None:
        if (place, mark, key) in self._items:
            del self._items[place, mark, key]
        else:
            self._tombstones.append((place, mark | 1, payload))

    def all(self) -> list[FlatItem]:
        """Tombstones, then items in order, to spare what comes behind a replay of its own."""
        items = [(place, mark, payload) for (place, mark, _), payload in self._items.items()]
        items.sort(key=_place_of)
        return self._tombstones + items
