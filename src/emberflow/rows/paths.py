"""Paths: the part of a place after its time, as bytes that sort as the order says.

Spark sorts the items of a key, so places must be columns that Spark can compare. A place is ``(time,
front, *child ids)``. The time is a column of its own, a long, because it decides nearly every
comparison. The rest is the *path*, a binary column. Guarantees:

- paths compare, byte by byte and unsigned, exactly as the tuples ``(front, *child ids)`` do;
- the path of a child is its parent's path followed by the code of its child id. So a map makes a place
  by one concatenation, and nothing is decoded on the way.

The code of a small int is one byte. The code of another int is its length and then its bytes. No code is
the beginning of another, and a longer code is further from zero::

    -2**64 ... -113    0x08..0x0F, then the bytes of -1 - n, inverted
       -112 ... -1     0x10..0x7F
          0 ... 111    0x80..0xEF
        112 ... 2**64  0xF0..0xF7, then the bytes of n

A tuple is smaller than the tuples that begin with it, and so are its bytes. So codes need no end mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Final

_SMALL: Final = 112
_BYTES_MAX: Final = 8


def encoded_int(number: int) -> bytes:
    """The code of one int.

    >>> encoded_int(0), encoded_int(-1), encoded_int(300)
    (b'\\x80', b'\\x7f', b'\\xf1\\x01,')
    """
    if number >= 0:
        if number < _SMALL:
            return _CODES[number]
        length = (number.bit_length() + 7) // 8
        if length <= _BYTES_MAX:
            return bytes((0xF0 + length - 1,)) + number.to_bytes(length, "big")
    else:
        below = -1 - number
        if below < _SMALL:
            return bytes((0x7F - below,))
        length = (below.bit_length() + 7) // 8
        if length <= _BYTES_MAX:
            turned = (1 << 8 * length) - 1 - below
            return bytes((0x0F - length + 1,)) + turned.to_bytes(length, "big")
    raise OverflowError(f"{number} has more than 64 bits, and no part of a place has")


_CODES: Final = tuple(bytes((0x80 + number,)) for number in range(_SMALL))

#: The codes of the first child ids: the most frequent ones cost no call.
CHILDREN: Final = tuple(encoded_int(number) for number in range(1024))


def child_codes(count: int) -> tuple[bytes, ...]:
    """The codes of the child ids below ``count``."""
    if count <= len(CHILDREN):
        return CHILDREN[:count]
    return (*CHILDREN, *map(encoded_int, range(len(CHILDREN), count)))


def encoded_path(numbers: Iterable[int]) -> bytes:
    """The path ``(front, *child ids)`` as bytes.

    >>> encoded_path((0, 1)) < encoded_path((0, 1, 0)) < encoded_path((0, 2))
    True
    """
    return b"".join(map(encoded_int, numbers))


def decoded_path(path: bytes) -> tuple[int, ...]:
    """The numbers of a path.

    >>> decoded_path(encoded_path((-(2**33), 5, 2**62, 0)))
    (-8589934592, 5, 4611686018427387904, 0)
    """
    numbers: list[int] = []
    position, end = 0, len(path)
    while position < end:
        head = path[position]
        position += 1
        if head >= 0xF0:
            length = head - 0xF0 + 1
            numbers.append(int.from_bytes(path[position : position + length], "big"))
            position += length
        elif head >= 0x10:
            numbers.append(head - 0x80)
        else:
            length = 0x0F - head + 1
            turned = int.from_bytes(path[position : position + length], "big")
            numbers.append(turned - (1 << 8 * length))
            position += length
    return tuple(numbers)


def front_of(path: bytes) -> int:
    """The first number of a path."""
    head = path[0]
    if 0x10 <= head < 0xF0:
        return head - 0x80
    length = head - 0xEF if head >= 0xF0 else 0x10 - head
    return decoded_path(path[: 1 + length])[0]


def fronts_of(paths: list[bytes]) -> list[int]:
    """The first number of each path."""
    heads = set(map(itemgetter(0), paths))
    if all(0x10 <= head < 0xF0 for head in heads):  # codes of one byte
        if len(heads) == 1:
            return [heads.pop() - 0x80] * len(paths)
        return [path[0] - 0x80 for path in paths]
    return [front_of(path) for path in paths]


def split_path(path: bytes, depth: int) -> tuple[bytes, bytes]:
    """A path without its last ``depth`` child ids, and these.

    >>> split_path(encoded_path((0, 300, 2)), 2) == (encoded_path((0,)), encoded_path((300, 2)))
    True
    """
    if not depth:
        return path, b""
    starts: list[int] = []
    position, end = 0, len(path)
    while position < end:
        starts.append(position)
        head = path[position]
        position += 1
        if head >= 0xF0:
            position += head - 0xEF
        elif head < 0x10:
            position += 0x10 - head
    at = starts[-depth]
    return path[:at], path[at:]
