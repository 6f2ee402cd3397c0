"""Which slices are to move from the busiest workers to the idlest: a function of the loads alone.

What is guaranteed of a plan, whatever the loads are:

- *It makes no worker busier than the busiest is now.* A slice moves from the worker that is the busiest by
  then to the one that is the idlest, and only if both are below what the first one was.
- *It is bounded*: no more than `MOVES_MAX` slices move, each of them once, and every worker keeps one.
- *It is the same* for the same loads.

There are two ways to go on from move to move. One takes the slice that brings the two workers nearest to each
other: few slices have to move, but a hot one may only change places and end the plan. The other takes the
greatest slice that leaves the first worker the busier one of the two: a hot slice stays, and its neighbours
leave it. The plan is that of the two which relieves the busiest worker more.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

#: How many slices move at a time: one in sixteen.
MOVES_MAX = 64
#: Workers whose loads differ by less than this part of the greater one are as good as equal.
_EQUAL = 0.05


#: Takes the slices that may move, with their loads in order, and the load that were best.
Choice: TypeAlias = Callable[[Sequence[tuple[float, int]], float], tuple[float, int] | None]


class Move(NamedTuple):
    """One slice that goes to another worker."""

    number: int
    source: int
    target: int


class Plan(NamedTuple):
    """Moves, and the load of the busiest worker before and after them."""

    moves: tuple[Move, ...]
    before: float
    after: float

    @property
    def relief(self) -> float:
        """The part of its load that the busiest worker loses."""
        return 1 - self.after / self.before if self.before > 0 else 0.0

    def applied(self, of_slice: Sequence[int]) -> list[int]:
        """The owners of all slices after the moves."""
        owners = list(of_slice)
        for move in self.moves:
            owners[move.number] = move.target
        return owners


def planned(
    of_slice: Sequence[int],
    workers: Sequence[float],
    slices: Mapping[int, float],
    *,
    moves_max: int = MOVES_MAX,
) -> Plan:
    """The moves that relieve the busiest worker.

    ``of_slice`` has the owner of each slice. ``workers`` has all that each worker does, and ``slices`` the
    part of it that a slice takes with it when it moves, for those that have any.

    >>> planned([0, 0, 0, 1], [0.9, 0.1], {0: 0.1, 1: 0.4, 2: 0.3}).moves
    (Move(number=1, source=0, target=1),)
    """
    plans = (_plan(of_slice, workers, slices, moves_max, choose) for choose in (_nearest, _within))
    return min(plans, key=_quality)


def _quality(plan: Plan) -> tuple[float, int]:
    return plan.after, len(plan.moves)


def _plan(
    of_slice: Sequence[int],
    workers: Sequence[float],
    slices: Mapping[int, float],
    moves_max: int,
    choose: Choice,
) -> Plan:
    loads = list(workers)
    #: By worker: its slices that may still move, by their load.
    movable: list[list[tuple[float, int]]] = [[] for _ in loads]
    left = [0] * len(loads)
    for number, worker in enumerate(of_slice):
        left[worker] += 1
        load = slices.get(number, 0.0)
        if load > 0:
            insort(movable[worker], (load, number))
    moves: list[Move] = []
    while len(moves) < moves_max:
        source = max(range(len(loads)), key=lambda worker: (loads[worker], -worker))
        target = min(range(len(loads)), key=lambda worker: (loads[worker], worker))
        gap = loads[source] - loads[target]
        if gap <= _EQUAL * loads[source] or left[source] == 1:
            break
        found = choose(movable[source], gap / 2)
        if found is None or not _helps(found[0], loads[source], loads[target]):
            break
        load, number = found
        movable[source].remove(found)
        loads[source] -= load
        loads[target] += load
        left[source] -= 1
        left[target] += 1
        moves.append(Move(number, source, target))
    return Plan(tuple(moves), max(workers, default=0.0), max(loads, default=0.0))


def _helps(load: float, source: float, target: float) -> bool:
    """Whether both workers are below what the source is, and by enough to be told from rounding."""
    return load > 1e-9 and target + load < source - 1e-9


def _nearest(by_load: Sequence[tuple[float, int]], wanted: float) -> tuple[float, int] | None:
    """The slice whose load is nearest to what is wanted; the smaller one of two."""
    position = bisect_left(by_load, (wanted, -1))
    around = by_load[max(0, position - 1) : position + 1]
    return min(around, key=lambda entry: (abs(entry[0] - wanted), entry), default=None)


def _within(by_load: Sequence[tuple[float, int]], wanted: float) -> tuple[float, int] | None:
    """The slice with the greatest load that is not beyond what is wanted."""
    position = bisect_left(by_load, (wanted, -1))
    return by_load[position - 1] if position else None
