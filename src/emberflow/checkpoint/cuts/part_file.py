"""A part that is being read: no byte of it is returned before its checksum was verified.

Parquet has checksums of pages, but none of page headers, statistics and the footer. A flipped bit there
may skip a row group, or end a column early, without an error. So the manifest has a checksum of every
block of a part (1 MiB), and a `PartFile` reads whole blocks and verifies them. A query for few keys
verifies the blocks that it needs, and no others.
"""

from __future__ import annotations

import io
from typing import Any

from xxhash import xxh64_hexdigest

from emberflow.checkpoint.cuts.manifest import PartInfo
from emberflow.checkpoint.errors import DamagedCutError

#: Blocks that are kept: the columns of a row group may be in two, and the footer is in another.
_KEPT = 3


class PartFile(io.RawIOBase):
    """A file for reading, as pyarrow takes it, over the file of a part."""

    def __init__(self, file: Any, part: PartInfo) -> None:
        super().__init__()
        self._file = file
        self._part = part
        self._position = 0
        # The file of a small part is one block, and the checksum of the part is that of the block.
        self._checksums = part.blocks or (part.checksum,)
        self._size = part.block_bytes if part.blocks else part.bytes
        self._blocks: dict[int, bytes] = {}

    def read(self, size: int = -1, /) -> bytes:
        end = self._part.bytes if size < 0 else min(self._position + size, self._part.bytes)
        found = []
        position = self._position
        while position < end:
            number, begin = divmod(position, self._size)
            found.append(self._block(number)[begin : end - number * self._size])
            position += len(found[-1])
        self._position = max(self._position, end)
        return found[0] if len(found) == 1 else b"".join(found)

    def _block(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            begin = number * self._size
            self._file.seek(begin)
            block = bytes(self._file.read(min(self._size, self._part.bytes - begin)))
            if xxh64_hexdigest(block) != self._checksums[number]:
                raise DamagedCutError(
                    f"block {number} of {len(self._checksums)} does not have the checksum that it "
                    f"was written with"
                )
            while len(self._blocks) >= _KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = block
        return block

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        begins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._part.bytes}
        self._position = begins[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        super().close()
        self._file.close()
