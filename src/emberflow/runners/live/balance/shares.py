"""Which worker is to own which slices when their number changes: by the loads that are known.

What is guaranteed of a new table, whatever the loads are:

- *Every worker has a slice*, and every slice has a worker that is there.
- *It follows the loads*: no worker has more than its share by more than a slice and a twentieth. The share of a
  worker is what brings all of them to one level, with what each does besides (its fronts).
- *A slice moves only if it must*: because its worker leaves, or has more than its share without it.
- *It is the same* for the same loads.

A slice of which nothing is known takes memory, and may be busy tomorrow. So a tenth of the load counts as that of
all slices alike.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace

#: So much of the load is taken for that of all slices alike.
_ALIKE = 0.1
#: A worker that has more than its share by this part of the level keeps it: loads vary by as much.
_WITHIN = 0.05


def shared(
    of_slice: Sequence[int], slices: Mapping[int, float], besides: Sequence[float]
) -> list[int]:
    """The owners of all slices, for as many workers as there are figures in ``besides``: what each of them will
    do that stays with it. ``of_slice`` has the present owners; those who leave have greater numbers.

    >>> shared([0, 0, 0, 0, 1, 1, 1, 1], {0: 0.6, 5: 0.1, 6: 0.1}, [0, 0, 0])
    [0, 2, 2, 2, 1, 1, 1, 1]
    """
    workers, total = len(besides), sum(slices.values())
    alike = _ALIKE * total / len(of_slice) if total else 1.0
    known = (1 - _ALIKE) if total else 0.0
    loads = [known * slices.get(number, 0.0) + alike for number in range(len(of_slice))]
    level = _level(sum(loads), besides)
    own: list[list[tuple[float, int]]] = [[] for _ in range(workers)]
    homeless: list[tuple[float, int]] = []
    for number, worker in enumerate(of_slice):
        (own[worker] if worker < workers else homeless).append((loads[number], number))
    rooms: list[tuple[float, int]] = []
    for worker, kept in enumerate(own):
        kept.sort()
        room = level - besides[worker] - sum(load for load, _ in kept)
        while room < -_WITHIN * level and len(kept) > 1:
            at = bisect_right(kept, (-room, len(of_slice))) - 1
            if at < 0:
                break  # each of them is more than is too much
            homeless.append(kept.pop(at))
            room += homeless[-1][0]
        # A worker without any comes first, whatever it does besides.
        rooms.append((-room if kept else -float("inf"), worker))
    owners = list(of_slice)
    heapify(rooms)
    for load, number in sorted(homeless, reverse=True):
        taken, worker = rooms[0]
        owners[number] = worker
        if taken == -float("inf"):
            taken = besides[worker] - level
        heapreplace(rooms, (taken + load, worker))
    return _with_one_each(owners, loads, workers)


def _level(total: float, besides: Sequence[float]) -> float:
    """To which all workers come if the load is shared out, but for those who do more than that besides."""
    level = 0.0
    for count, own in enumerate(sorted(besides), 1):
        if count > 1 and own >= level:
            break
        total += own
        level = total / count
    return level


def _with_one_each(owners: list[int], loads: Sequence[float], workers: int) -> list[int]:
    """Nobody left a slice for some: the lightest ones of those who have most."""
    counts = [owners.count(worker) for worker in range(workers)]
    for worker in range(workers):
        if not counts[worker]:
            richest = max(range(workers), key=lambda other: (counts[other], -other))
            lightest = min(
                (number for number, owner in enumerate(owners) if owner == richest),
                key=lambda number: (loads[number], number),
            )
            owners[lightest] = worker
            counts[richest] -= 1
            counts[worker] += 1
    return owners
