"""Packed rows (`engine.cuts.packed`), sorted and as the columns of a part, compiled in C.

What is guaranteed: both give the same bytes. The compiled ones need the interpreter only to begin and to end: a
worker's loop goes on meanwhile.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

from emberflow import native
from emberflow.engine.cuts.packed import HEAD

#: Hashes, key offsets, keys, times, fronts, payload offsets and payloads: the buffers of Arrow's arrays.
Columns = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes]


def _packed_order(chunks: list[bytes], count: int) -> bytes:
    """Where the records in these chunks are, by hash; those of one hash stay in order. Each place is the number of
    the chunk and the position in it, in a word."""
    found = []
    for number, data in enumerate(chunks):
        begin = 0
        while begin < len(data):
            _, _, key_hash, key_bytes, payload_bytes = HEAD.unpack_from(data, begin)
            found.append((key_hash, number << 32 | begin))
            begin += HEAD.size + key_bytes + payload_bytes
    assert len(found) == count
    return array("Q", [place for _, place in sorted(found)]).tobytes()


def _packed_columns(chunks: list[bytes], order: bytes, begin: int, end: int) -> Columns:
    """The columns of the records at some places of an order."""
    heads, keys, payloads = [], [], []
    for place in array("Q", order)[begin:end]:
        data, at = chunks[place >> 32], place & 0xFFFFFFFF
        head = HEAD.unpack_from(data, at)
        middle = at + HEAD.size + head[3]
        heads.append(head)
        keys.append(data[at + HEAD.size : middle])
        payloads.append(data[middle : middle + head[4]])
    return (
        array("q", [head[2] for head in heads]).tobytes(),
        array("i", accumulate(map(len, keys), initial=0)).tobytes(),
        b"".join(keys),
        array("q", [head[0] for head in heads]).tobytes(),
        array("q", [head[1] for head in heads]).tobytes(),
        array("i", accumulate(map(len, payloads), initial=0)).tobytes(),
        b"".join(payloads),
    )


if native.rows is None:
    packed_order, packed_columns = _packed_order, _packed_columns
else:
    packed_order, packed_columns = native.rows.packed_order, native.rows.packed_columns
