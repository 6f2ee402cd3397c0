"""Messages of the bridge as bytes: JSON, and behind it the byte strings that are in it.

Decoding a message makes plain values and nothing else, whatever the bytes are. So neither side can make
the other run code, even with the token. Texts, numbers, booleans, None, byte strings, lists and dicts
with texts as keys come back as they were; a tuple comes back as a list.

    length of the JSON, 4 bytes   JSON   byte strings, one behind the other

In the JSON a byte string is ``{"": [offset, length]}``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

_LENGTH = struct.Struct(">I")


def encoded(value: Any) -> bytes:
    """Raises `TypeError` for a value that is not plain.

    >>> decoded(encoded({"rows": [b"ash", b"ember"], "at": (7, 0)}))
    {'rows': [b'ash', b'ember'], 'at': [7, 0]}
    """
    pieces: list[bytes] = []
    offset = 0

    def placed(data: Any) -> dict[str, list[int]]:
        nonlocal offset
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"a message holds plain values, and no {type(data).__qualname__}")
        pieces.append(bytes(data))
        begin, offset = offset, offset + len(pieces[-1])
        return {"": [begin, len(pieces[-1])]}

    body = json.dumps(value, default=placed, separators=(",", ":")).encode("ascii")
    return b"".join((_LENGTH.pack(len(body)), body, *pieces))


def decoded(data: bytes) -> Any:
    """Raises `ValueError` or `RecursionError` if these are not the bytes of a message."""
    if len(data) < _LENGTH.size:
        raise ValueError("the message is too short")
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    if len(data) < begin:
        raise ValueError("the message is too short")
    attached = memoryview(data)[begin:]

    def taken(found: dict[str, Any]) -> Any:
        if list(found) != [""]:
            return found
        match found[""]:
            case [int(offset), int(size)] if 0 <= offset <= offset + size <= len(attached):
                return bytes(attached[offset : offset + size])
        raise ValueError("a byte string is not where the message says")

    return json.loads(data[_LENGTH.size : begin], object_hook=taken)


def frames(message: bytes, size_max: int) -> Iterator[bytes]:
    """A message in pieces of limited size; at least one."""
    for begin in range(0, max(1, len(message)), size_max):
        yield message[begin : begin + size_max]
