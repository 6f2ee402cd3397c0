"""The net effect of a batch on what a stateful machine has sent.

A machine applies a whole batch to its buckets and only then sends what changed: tombstones for items of
earlier batches that are now wrong, and the items that are right. Two things depend on it.

*Correctness.* An item may be taken back in one bucket and enter another (its key changed), with the same
place and mark. If the machine sent the new item before the tombstone of the old one, the tombstone would
take back the wrong one. So all tombstones of a batch go first, over all buckets. An item that the same
batch sent and took back is not sent at all.

*Cost.* A correction is a tombstone and an item at one place. If a machine applied them one after the
other, each of them would cause a correction of the next item in the bucket, each of those two corrections
of the one after it, and a chain of n corrections would cost 2 to the n. Applied together, a correction
causes one correction of the next item.
"""

from __future__ import annotations

from typing import Any

from emberflow.engine.loops.items import sort_by_place
from emberflow.values.item import FlatItem, Place


class NetOutput:
    """Collects what a batch sends and takes back.

    ``early`` is what the batch sent in order from buckets that a later item of it changed: by place, mark
    and the key of the bucket. What is sent once all changes are in place stays.
    """

    __slots__ = ("early", "items", "tombstones")

    def __init__(self, output: list[FlatItem], keys: list[Any], changed: set[Any]) -> None:
        """``output`` was sent in order, under these keys; the buckets of the keys ``changed`` changed."""
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
        """Tombstones, then items in order: then the next machine need not replay."""
        items = self.items
        items += [(place, mark, payload) for (place, mark, _), payload in self.early.items()]
        sort_by_place(items)
        return self.tombstones + items
