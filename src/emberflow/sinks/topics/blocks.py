"""Blocks: the partitions of a topic that one writer stores to in the same transactions.

A block begins at a multiple of its size, which is a power of two: 0 to 1, 4 to 7, 5 alone. So two blocks
are apart, or one is within the other, whoever made them: a worker of another number of workers, another
query, the next version. A block that has a partition overlaps every block that has it, and these few
are known without asking anybody. `transactions` needs exactly this to shut out older writers.

>>> blocks_of([0, 1, 2])
[Block(first=0, size=2), Block(first=2, size=1)]
>>> [str(block) for block in overlapping(Block(2, 2))]
['2', '3', '0-3', '0-7']
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

#: Partitions of the largest block. A writer takes over the ids of all blocks that overlap its own, so a
#: larger one would make all others slower to open.
BLOCK_MAX = 8
#: Transactional ids of a block, used in turn.
IDS = 2


class Block(NamedTuple):
    """Partitions from the first one on; ``first`` is a multiple of ``size``, a power of two."""

    first: int
    size: int

    @property
    def partitions(self) -> range:
        return range(self.first, self.first + self.size)

    def __str__(self) -> str:
        return str(self.first) if self.size == 1 else f"{self.first}-{self.first + self.size - 1}"


def blocks_of(partitions: Iterable[int]) -> list[Block]:
    """The fewest blocks that have exactly these partitions, in order."""
    left = set(partitions)
    found = []
    while left:
        first, size = min(left), BLOCK_MAX
        while first % size or not left.issuperset(Block(first, size).partitions):
            size //= 2
        found.append(Block(first, size))
        left.difference_update(found[-1].partitions)
    return found


def overlapping(block: Block) -> Iterator[Block]:
    """All other blocks that have a partition of this one: those within it, and those around it."""
    size = 1
    while size <= BLOCK_MAX:
        if size < block.size:
            yield from (Block(first, size) for first in range(*_ends(block), size))
        elif size > block.size:
            yield Block(block.first - block.first % size, size)
        size *= 2


def transactional_id(name: str, block: Block, number: int) -> str:
    """The id of a sink's block with this number.

    That of a single partition is the id of writers that knew no blocks, and the first of these that of
    writers which had only one id.
    """
    own = f"emberflow {name} {block}"
    return own if number == 0 else f"{own}/{number}"


def _ends(block: Block) -> tuple[int, int]:
    return block.first, block.first + block.size
