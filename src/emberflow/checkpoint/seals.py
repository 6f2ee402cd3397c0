"""Seals: a file that is not what was written is never taken for what was written.

A seal follows the data. It is a checksum of the data and of the file's own name, so that a file in the
place of another is found as well. Readers that know where the data ends, as those of Arrow streams do,
need not know about seals.
"""

from __future__ import annotations

import struct

from xxhash import xxh64

from emberflow.checkpoint.errors import DamagedFileError

_MAGIC = b"EFS1"
_SEAL = struct.Struct("<4sQ")


def sealed(data: bytes, name: str) -> bytes:
    """The content of a file of this name.

    >>> unsealed(sealed(b"rows", "batch-7"), "batch-7", "/inbox/batch-7")
    b'rows'
    """
    return data + _SEAL.pack(_MAGIC, _checksum(data, name))


def unsealed(content: bytes, name: str, shown: str) -> bytes:
    """The data of a file of this name. Raises `DamagedFileError`, with the full name that is ``shown``."""
    data, seal = content[: -_SEAL.size], content[-_SEAL.size :]
    if seal != _SEAL.pack(_MAGIC, _checksum(data, name)):
        raise DamagedFileError(
            f"{shown} is damaged: its content does not have the checksum that it was written with. "
            f"Restore the file from a backup."
        )
    return data


def _checksum(data: bytes, name: str) -> int:
    digest = xxh64(name.encode() + b"\0")
    digest.update(data)
    return int(digest.intdigest())
