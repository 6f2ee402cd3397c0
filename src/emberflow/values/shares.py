"""Which worker owns which hashes.

The hash space is divided into slices of equal size. Each worker owns one or more adjacent slices:
its *share*. A worker that feeds fronts has more work for each element (it reads, maps and
distributes), so its share is half of the others'; a third where it also closes their transactions
(`engine.worker.routing`). If all workers feed fronts, or none does, the shares are equal.

Shares decide which worker does the work and nothing else: any number of workers, with any shares,
can restore a cut, because they find its rows by hash.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from emberflow.values.hashing import HashRange, hash_ranges, owner

#: The owner of each slice, in ascending order: each worker appears once or several times in a row.
Shares: TypeAlias = tuple[int, ...]


def equal_shares(workers: int) -> Shares:
    return tuple(range(workers))


def shares_beside_fronts(
    workers: int, feeding: Collection[int], *, closing: bool = False
) -> Shares:
    """The shares of workers where those in ``feeding`` feed fronts.

    ``closing`` says that these also close the transactions of their fronts.

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
