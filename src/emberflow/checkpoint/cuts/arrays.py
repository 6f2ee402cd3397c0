"""Arrow's arrays of plain values, made of their buffers.

What is guaranteed: an array here equals what ``pyarrow.array`` makes of the same values, and nothing is
imported for it. ``pyarrow.array`` asks pandas whether a list is one of its own, and so imports pandas
first. That takes a second of processor time: a worker would spend it in the middle of its first cut.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa


def ints(values: Sequence[int | None]) -> pa.Array:
    """
    >>> ints([7, None, -1]).to_pylist()
    [7, None, -1]
    """
    words = array("q", [value or 0 for value in values])
    return pa.Array.from_buffers(pa.int64(), len(values), [_validity(values), pa.py_buffer(words)])


def int64s(column: Any) -> pa.Array:
    """Of an array of numpy's, without a copy if its numbers have 64 bits.

    >>> import numpy as np
    >>> int64s(np.array([7, -1], np.int32)).to_pylist()
    [7, -1]
    """
    words = column.astype("int64", copy=False)
    return pa.Array.from_buffers(pa.int64(), len(words), [None, pa.py_buffer(words)])


def binaries(values: Sequence[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """
    >>> binaries([b"ab", None, b""]).to_pylist()
    [b'ab', None, b'']
    """
    whole = values if None not in values else [value or b"" for value in values]
    data = b"".join(whole)  # type: ignore[arg-type]
    return pa.Array.from_buffers(
        pa.binary() if kind is None else kind,
        len(values),
        [_validity(values), _offsets(whole), pa.py_buffer(data)],
    )


def strings(values: Sequence[str]) -> pa.Array:
    """
    >>> strings(["ab", "ä"]).to_pylist()
    ['ab', 'ä']
    """
    return binaries([value.encode() for value in values], pa.string())


def lists_of_ints(values: Sequence[tuple[int, ...] | None]) -> pa.Array:
    """
    >>> lists_of_ints([(1, 2), (), None, (3,)]).to_pylist()
    [[1, 2], [], None, [3]]
    """
    whole = values if None not in values else [value or () for value in values]
    numbers = ints(list(chain.from_iterable(whole)))  # type: ignore[arg-type]
    return pa.Array.from_buffers(
        pa.list_(pa.int64()), len(values), [_validity(values), _offsets(whole)], children=[numbers]
    )


def _offsets(values: Sequence[Any]) -> pa.Buffer:
    return pa.py_buffer(array("i", accumulate(map(len, values), initial=0)))


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    """A bit for each value that is not None; nothing if all are there."""
    if None not in values:
        return None
    bits = bytearray((len(values) + 7) // 8)
    for position, value in enumerate(values):
        if value is not None:
            bits[position >> 3] |= 1 << (position & 7)
    return pa.py_buffer(bytes(bits))
