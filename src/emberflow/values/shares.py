"""Which worker owns which hashes.

The hashes are cut into slices of one size, and each worker owns some that are neighbours: its *share*.
A worker that also feeds fronts has more to do for each element than one that does not: it reads,
maps and deals out. So it gets half of what the others get, unless all or none feed fronts; a third,
where it closes their transactions too (`engine.worker.routing`).

Nothing depends on shares but who does what: a cut is restored by any number of workers, in any
shares, because its rows are found by their hashes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from emberflow.values.hashing import HashRange, hash_ranges, owner

#: The owner of each slice: every worker, once or several times in a row, in their order.
Shares: TypeAlias = tuple[int, ...]


def equal_shares(workers: int) -> Shares:
    return tuple(range(workers))


def shares_beside_fronts(
    workers: int, feeding: Collection[int], *, closing: bool = False
) -> Shares:
    """The shares of workers, some of which feed fronts, and close their transactions.

    >>> shares_beside_fronts(2, feeding=[0])
    (0, 1, 1)
    >>> shares_beside_fronts(2, feeding=[0], closing=True)
    (0, 1, 1, 1)
    >>> shares_beside_fronts(3, feeding=[0, 1, 2])
    (0, 1, 2)
    """
    others = set(range(workers)) - set(feeding)
    if len(others) in (0, workers):
        return equal_shares(workers)
    share = 3 if closing else 2
    return tuple(
        worker for worker in range(workers) for _ in range(share if worker in others else 1)
    )


def owner_in(shares: Shares, hash: int) -> int:
    """The worker that owns a hash.

    >>> [owner_in((0, 1, 1), hash) for hash in (-(2**31), -715827883, -715827882, 2**31 - 1)]
    [0, 0, 1, 1]
    """
    return shares[owner(hash, len(shares))]


def range_in(shares: Shares, worker: int) -> HashRange:
    """All hashes that a worker owns.

    >>> print(range_in((0, 1, 1), 1))
    [-715827882, 2147483647]
    """
    slices = hash_ranges(len(shares))
    first = shares.index(worker)
    return HashRange(slices[first].low, slices[first + shares.count(worker) - 1].high)
