"""Blocks: how the reader of a log tells whole blocks, blocks torn by a crash and damaged blocks apart.

::

    magic 4 | length 4 | durable 8 | checksum 8 | body

The checksum covers length, ``durable``, body and the block's own offset, so that a block at the wrong
offset is invalid. ``durable`` is how much of the log was known to be on the disk when the block was
written. It tells two faults apart:

- A crash may leave anything behind the last ``fsync``: half a block, zeros, or a whole block behind
  a hole, since a disk writes pages in its own order. No process has relied on any of that. The log
  ends at the first block that is not whole, silently.
- If a block is not whole and a later one says that it had been durable, it was damaged later: times
  that the front assigned are lost, and the reader raises an error.

If no block follows the synced ones, the writer adds an empty block, a *witness* to their durability.
The reader cannot tell a log that lost its end together with its witnesses from one that a crash cut
off. The next segment records the length of the log (`logs.front_log`), and from then on it can.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from xxhash import xxh64_intdigest

from emberflow.checkpoint.errors import DamagedLogError

_MAGIC = b"\xe6EFL"
_HEAD = struct.Struct("<4sIQQ")
_CHECKED = struct.Struct("<IQ")
HEAD_BYTES = _HEAD.size


class Block(NamedTuple):
    offset: int
    end: int
    durable: int
    body: bytes


def encoded_block(body: bytes, offset: int, durable: int) -> bytes:
    """A block to be written at an offset.

    >>> block_at(encoded_block(b"times", 0, 0), 0)
    Block(offset=0, end=29, durable=0, body=b'times')
    """
    checksum = _checksum(len(body), durable, body, offset)
    return _HEAD.pack(_MAGIC, len(body), durable, checksum) + body


def block_at(data: bytes, offset: int, *, number: int | None = None) -> Block | None:
    """The block at an offset; None if it is not whole.

    ``number`` is for a block in a file of its own, which was written with the number as its offset.
    """
    if offset + HEAD_BYTES > len(data):
        return None
    magic, length, durable, checksum = _HEAD.unpack_from(data, offset)
    end = offset + HEAD_BYTES + length
    if magic != _MAGIC or end > len(data):
        return None
    body = data[offset + HEAD_BYTES : end]
    if checksum != _checksum(length, durable, body, offset if number is None else number):
        return None
    return Block(offset, end, durable, body)


def blocks(data: bytes, name: str, limit: int | None = None) -> Iterator[Block]:
    """The blocks of a log, up to a limit that is known to have been durable, or up to its end."""
    if limit is not None and len(data) < limit:
        raise DamagedLogError(
            f"{name} is damaged at offset {len(data)}: it ends there, and it had {limit} bytes."
        )
    offset, end = 0, len(data) if limit is None else limit
    while offset < end:
        block = block_at(data, offset)
        if block is None or block.end > end:
            if limit is not None or _was_durable(data, offset):
                raise DamagedLogError(
                    f"{name} is damaged at offset {offset}: what follows is not what was written "
                    f"there, and it had been durable. Times that this front assigned are lost. "
                    f"Restore the file from a backup."
                )
            return
        yield block
        offset = block.end


def _was_durable(data: bytes, offset: int) -> bool:
    """Whether a later whole block says that the log was durable beyond this offset."""
    candidate = data.find(_MAGIC, offset + 1)
    while candidate >= 0:
        block = block_at(data, candidate)
        if block is not None and block.durable > offset:
            return True
        candidate = data.find(_MAGIC, candidate + 1)
    return False


def _checksum(length: int, durable: int, body: bytes, offset: int) -> int:
    return int(xxh64_intdigest(_CHECKED.pack(length, durable) + body, seed=offset))
