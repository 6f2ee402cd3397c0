"""Which worker owns which hashes, and from which global time on.

The hash space is cut into `SLICES` slices of equal size, whatever the number of workers. An owner table
says which worker has which slice. What is guaranteed: **every slice has exactly one owner at every global
time.** A table has a version and the moment from which on it holds; the next version holds from a later
moment on. What is below that moment belongs to the owner before, what is from it on to the new one, and
the state of the slice as of that moment moves between the two.

This is the one place that knows. Routes ask it for the worker of a key, restores for the ranges of hashes
of a worker, reads for whom to ask.

A worker that feeds fronts has more work for each element (it reads, maps and distributes), so it has half
as many slices as others; a third where it also closes the transactions of its fronts
(`engine.worker.routing`). If all workers feed fronts, or none does, all have as many slices.

Owners decide which worker does the work and nothing else. So any number of workers, with any table, can
restore a cut: they find its rows by hash. And no table has to outlive its workers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import groupby, pairwise

from emberflow.values.hashing import HashRange, hash_ranges, owner

#: The number of slices of the hash space.
SLICES = 1_024


class Owners:
    """An owner table: immutable. ``of_slice`` gives the worker of each slice.

    ``since`` is the moment from which on it holds; None if it does from the beginning.

    >>> owners = equal_owners(3)
    >>> [owners.owner(hash) for hash in (-(2**31), -(2**30), 0, 2**31 - 1)]
    [0, 0, 1, 2]
    >>> print(*owners.ranges(2))
    [713031680, 2147483647]
    """

    __slots__ = ("of_slice", "since", "version", "workers")

    def __init__(
        self,
        of_slice: Sequence[int],
        workers: int,
        *,
        version: int = 0,
        since: tuple[int, int] | None = None,
    ) -> None:
        if len(of_slice) != SLICES:
            raise ValueError(f"an owner table has {SLICES} slices, got {len(of_slice)}")
        strangers = set(of_slice) - set(range(workers))
        if strangers:
            raise ValueError(f"slices belong to workers 0 to {workers - 1}, got {strangers}")
        self.of_slice = tuple(of_slice)
        self.workers = workers
        self.version = version
        self.since = since

    def __reduce__(self) -> tuple[object, ...]:
        return _unpickled, (self.of_slice, self.workers, self.version, self.since)

    def __repr__(self) -> str:
        counts = ", ".join(map(str, self.counts()))
        return f"Owners(version {self.version}, slices of each worker: {counts})"

    def owner(self, hash: int) -> int:
        """The worker that owns a hash."""
        return self.of_slice[owner(hash, SLICES)]

    def counts(self) -> list[int]:
        """How many slices each worker has."""
        counts = [0] * self.workers
        for worker in self.of_slice:
            counts[worker] += 1
        return counts

    def ranges(self, worker: int) -> list[HashRange]:
        """The hashes that a worker owns, in order. Slices that adjoin are one range."""
        return _ranges([of == worker for of in self.of_slice])

    def arriving(self, before: Owners, worker: int) -> list[HashRange]:
        """The hashes that a worker owns, and did not own by the table before."""
        pairs = zip(before.of_slice, self.of_slice, strict=True)
        return _ranges([new == worker != old for old, new in pairs])

    def moved(self, before: Owners) -> int:
        """The number of slices that have another owner than by the table before."""
        return sum(map(int.__ne__, before.of_slice, self.of_slice))

    def next(
        self, of_slice: Sequence[int], workers: int, since: tuple[int, int] | None = None
    ) -> Owners:
        """The next version of the table."""
        return Owners(of_slice, workers, version=self.version + 1, since=since)

    def holding_from(self, since: tuple[int, int]) -> Owners:
        """This version, once it is known from when on it holds."""
        return Owners(self.of_slice, self.workers, version=self.version, since=since)

    def rescaled(self, weights: Sequence[int]) -> Owners:
        """The next version for as many workers as there are weights, in proportion to them.

        No more slices move than must.

        >>> equal_owners(2).rescaled([1, 1, 1, 1])
        Owners(version 1, slices of each worker: 256, 256, 256, 256)
        >>> equal_owners(2).rescaled([1, 1, 1, 1]).moved(equal_owners(2))
        512
        >>> equal_owners(3).rescaled([1, 1]).moved(equal_owners(3))
        342
        """
        left = _quotas(weights)
        of_slice = list(self.of_slice)
        homeless: list[int] = []
        for number, worker in enumerate(of_slice):
            if worker < len(left) and left[worker]:
                left[worker] -= 1
            else:
                homeless.append(number)
        heirs = (worker for worker, count in enumerate(left) for _ in range(count))
        for number, worker in zip(homeless, heirs, strict=True):
            of_slice[number] = worker
        return self.next(of_slice, len(left))


def _unpickled(
    of_slice: tuple[int, ...], workers: int, version: int, since: tuple[int, int] | None
) -> Owners:
    return Owners(of_slice, workers, version=version, since=since)


@cache
def _hashes_of_slices() -> Sequence[HashRange]:
    """To make them takes some milliseconds, and while slices move others wait for it."""
    return tuple(hash_ranges(SLICES))


def _ranges(is_in: Sequence[bool]) -> list[HashRange]:
    slices = _hashes_of_slices()
    ranges = []
    for belongs, run in groupby(range(SLICES), is_in.__getitem__):
        if belongs:
            numbers = list(run)
            ranges.append(HashRange(slices[numbers[0]].low, slices[numbers[-1]].high))
    return ranges


def _quotas(weights: Sequence[int]) -> list[int]:
    """How many slices each worker gets: in proportion to the weights, and one at least."""
    if not 1 <= len(weights) <= SLICES:
        raise ValueError(f"{SLICES} slices are for 1 to {SLICES} workers, got {len(weights)}")
    total, beyond, bounds = sum(weights), 0, [0]
    for weight in weights:
        beyond += weight
        bounds.append(beyond * SLICES // total)
    quotas = [end - begin for begin, end in pairwise(bounds)]
    while not all(quotas):
        quotas[quotas.index(max(quotas))] -= 1
        quotas[quotas.index(0)] += 1
    return quotas


def weighted_owners(weights: Sequence[int]) -> Owners:
    """A first table, in which each worker has slices that adjoin, in proportion to its weight.

    >>> weighted_owners([1, 2])
    Owners(version 0, slices of each worker: 341, 683)
    """
    quotas = _quotas(weights)
    of_slice = [worker for worker, quota in enumerate(quotas) for _ in range(quota)]
    return Owners(of_slice, len(quotas))


def equal_owners(workers: int) -> Owners:
    return weighted_owners([1] * workers)


def weights_beside_fronts(
    workers: int, feeding: Collection[int], *, closing: bool = False
) -> list[int]:
    """The weights of workers where those in ``feeding`` feed fronts.

    ``closing`` says that these also close the transactions of their fronts.

    >>> weights_beside_fronts(2, feeding=[0])
    [1, 2]
    >>> weights_beside_fronts(2, feeding=[0], closing=True)
    [1, 3]
    >>> weights_beside_fronts(3, feeding=[0, 1, 2])
    [1, 1, 1]
    """
    others = set(range(workers)) - set(feeding)
    if len(others) in (0, workers):
        return [1] * workers
    weight = 3 if closing else 2
    return [weight if worker in others else 1 for worker in range(workers)]
