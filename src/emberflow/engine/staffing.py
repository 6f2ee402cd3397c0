"""Staffing: which process is which worker, when the workers of a life are followed by others.

What is guaranteed: **each worker of the next life is one process, which either goes on from this life or is
added; and whoever is to leave does, whatever its number.** The workers of a life are numbered from 0 on, without
gaps. So if a worker leaves and none takes its place, one with a greater number takes its number.

A worker's number says which keys it owns, which fronts it reads and which sinks it writes. What is in its memory
stays with its process. So the owner table of this life is given the numbers of the next one before the two
are compared: those who leave have numbers behind all others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from emberflow.values.owners import Owners


class Staffing(NamedTuple):
    """Who goes on, and who is added."""

    before: int
    workers: int
    #: By number in this life: the number in the next one. The others leave.
    stays: Mapping[int, int]

    @property
    def added(self) -> list[int]:
        """The workers of the next life whose processes are still to come."""
        return sorted(set(range(self.workers)) - set(self.stays.values()))

    @property
    def leaving(self) -> list[int]:
        return [worker for worker in range(self.before) if worker not in self.stays]

    @property
    def is_trivial(self) -> bool:
        return not self.added and not self.leaving

    def renamed(self, owners: Owners) -> Owners:
        """The table of this life, with the numbers of the next one.

        >>> from emberflow.values.owners import equal_owners
        >>> staffed(3, 2, leaving=[0]).renamed(equal_owners(3))
        Owners(version 0, slices of each worker: 342, 341, 341)
        >>> staffed(2, 2, leaving=[0]).renamed(equal_owners(2))
        Owners(version 0, slices of each worker: 0, 512, 512)
        """
        names = dict(self.stays) | {
            worker: self.workers + order for order, worker in enumerate(self.leaving)
        }
        of_slice = [names[worker] for worker in owners.of_slice]
        workers = self.workers + len(self.leaving)
        return Owners(of_slice, workers, version=owners.version, since=owners.since)


def staffed(before: int, workers: int, leaving: Collection[int] = ()) -> Staffing:
    """Who is who, if so many workers follow, and these leave in any case.

    Whoever can keeps its number. If more have to leave, those with the greatest numbers do.

    >>> staffed(3, 5).added
    [3, 4]
    >>> staffed(4, 2).leaving
    [2, 3]
    >>> dict(staffed(3, 3, leaving=[1]).stays)
    {0: 0, 2: 2}
    >>> dict(staffed(3, 2, leaving=[0]).stays)
    {1: 1, 2: 0}
    """
    staying = [worker for worker in range(before) if worker not in leaving][:workers]
    free = iter(sorted(set(range(workers)) - set(staying)))
    stays = {worker: worker if worker < workers else next(free) for worker in staying}
    return Staffing(before, workers, stays)
