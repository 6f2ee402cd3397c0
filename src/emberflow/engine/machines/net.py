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

from emberflow.values.item import FlatItem, Place

_place_of = itemgetter(0)


class NetOutput:
    """Collects what a batch sends and takes back.

    ``early`` is what it sent in order before it came to a change, from buckets that changed later:
    by place, mark and the key of the bucket. What is sent once all changes are in place is final.
    """

    __slots__ = ("early", "items", "tombstones")

    def __init__(self, output: list[FlatItem], keys: list[Any], changed: set[Any]) -> None:
        """``output`` was sent in order, under these keys; the buckets of some have changed."""
        self.early: dict[tuple[Place, int, Any], Any] = {}
        self.items: list[FlatItem] = []
        self.tombstones: list[FlatItem] = []
        for item, key in zip(output, keys, strict=True):
            if key in changed:
                self.early[item[0], item[1], key] = item[2]
            else:
                self.items.append(item)

    def take_back(self, place: Place, mark: int, key: Any, payload: Any) -> None:
        if self.early and (place, mark, key) in self.early:
            del self.early[place, mark, key]
        else:
            self.tombstones.append((place, mark | 1, payload))

    def all(self) -> list[FlatItem]:
        """Tombstones, then items in order, to spare what comes behind a replay of its own."""
        items = self.items
        items += [(place, mark, payload) for (place, mark, _), payload in self.early.items()]
        items.sort(key=_place_of)
        return self.tombstones + items
