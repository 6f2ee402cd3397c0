"""What waits for rows: items of a gathered region whose rows are not on the host yet.

What is guaranteed:

- *Of one place, none overtakes another.* What takes an item back, or takes its place, may be of another
  row. So items of one place wait in a queue, and only the first of them waits for its row.
- *Linear.* A row that comes looks at what waited for it, and at nothing else.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any

from emberflow.values.item import FlatItem, Place


class Waiting:
    """Items that wait, by place and by the row that the first of each place waits for.

    >>> item, tombstone = ((5, 0), 2, ("ann", None, 2)), ((5, 0), 3, ("bob", None, 2))
    >>> waiting = Waiting()
    >>> waiting.admit([item, tombstone], known={"bob"})
    []
    >>> waiting.arrive("ann", known={"ann", "bob"}) == [item, tombstone]
    True
    """

    __slots__ = ("_leasts", "_numbers", "_places_by_key", "_queues")

    def __init__(self) -> None:
        #: By place, what waits of it, in the order it came.
        self._queues: dict[Place, list[FlatItem]] = {}
        #: By key of a row that is not here: the places whose first item waits for it.
        self._places_by_key: dict[Any, list[Place]] = {}
        #: A heap of what waits by the identity of its transaction. It may have items that went on.
        self._leasts: list[tuple[Place, int, FlatItem]] = []
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[FlatItem]:
        for queue in self._queues.values():
            yield from queue

    def admit(self, items: Iterable[FlatItem], known: Container[Any]) -> list[FlatItem]:
        """The items that can go on, with the rows that are known. The others wait."""
        queues = self._queues
        admitted: list[FlatItem] = []
        for item in items:
            place, _, payload = item
            key = payload[0]
            queue = queues.get(place)
            if queue is None:
                if key in known:
                    admitted.append(item)
                    continue
                queues[place] = [item]
                self._places_by_key.setdefault(key, []).append(place)
            else:
                queue.append(item)
            heappush(self._leasts, (identity_of(item), next(self._numbers), item))
        return admitted

    def arrive(self, key: Any, known: Container[Any]) -> list[FlatItem]:
        """A row has come, and is known: what goes on now. Of one place, it is in the order it came."""
        queues = self._queues
        admitted: list[FlatItem] = []
        for place in self._places_by_key.pop(key, ()):
            queue = queues[place]
            for number, item in enumerate(queue):
                if item[2][0] not in known:
                    admitted += queue[:number]
                    queues[place] = queue[number:]
                    self._places_by_key.setdefault(item[2][0], []).append(place)
                    break
            else:
                admitted += queue
                del queues[place]
        return admitted

    def least(self) -> FlatItem | None:
        """An item whose transaction comes no later than any that waits; None if nothing waits."""
        leasts, queues = self._leasts, self._queues
        while leasts and leasts[0][2][0] not in queues:
            heappop(leasts)
        return leasts[0][2] if leasts else None


def identity_of(item: FlatItem) -> Place:
    """The identity of the transaction that an access is of."""
    place: Place = item[0]
    return place[: item[2][2]]
