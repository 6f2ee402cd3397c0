"""How much memory payloads take, roughly and quickly: for bounds in bytes.

A bound that counts elements says nothing about memory: a line may have ten bytes or ten megabytes. The
estimate is about the bytes of the content, without the overhead of Python's objects. It is never far
below the content of strings, bytes and whatever is built of plain values.
"""

from __future__ import annotations

import marshal
import sys
from collections.abc import Sequence
from typing import Any, Final

#: What a payload takes at the least.
_OBJECT_BYTES: Final = 50
#: Payloads that are looked at, where an estimate from some of them is enough.
_SAMPLES: Final = 32


def payload_bytes(payload: Any) -> int:
    """About how many bytes a payload holds.

    >>> payload_bytes("x" * 1_000)
    1050
    >>> payload_bytes({"text": "x" * 1_000}) > 1_000
    True
    """
    if payload.__class__ is str or payload.__class__ is bytes:
        return len(payload) + _OBJECT_BYTES
    try:
        return len(marshal.dumps(payload)) + _OBJECT_BYTES
    except ValueError:  # an object of a class, or nested too deeply
        return _shallow_bytes(payload)


def payloads_bytes(payloads: Sequence[Any]) -> int:
    """About how many bytes all of these hold. Looks at each one.

    >>> payloads_bytes(["x" * 10] * 100), payloads_bytes([("x" * 10, 7)] * 100) > 1_000
    (6000, True)
    """
    kinds = set(map(type, payloads))
    if kinds <= {str, bytes}:
        return sum(map(len, payloads)) + _OBJECT_BYTES * len(payloads)
    try:
        # All at once is many times faster than one by one. Named tuples count as the tuples that they are.
        plain = map(tuple, payloads) if all(issubclass(one, tuple) for one in kinds) else payloads
        return len(marshal.dumps(list(plain))) + _OBJECT_BYTES * len(payloads)
    except Exception:  # objects of a class, or one whose own __iter__ raises
        return sum(map(payload_bytes, payloads))


def sampled_bytes(payloads: Sequence[Any]) -> int:
    """The same from some of them, evenly picked.

    >>> sampled_bytes(["x" * 1_000] * 10_000)
    10500000
    """
    count = len(payloads)
    if count <= _SAMPLES:
        return payloads_bytes(payloads)
    some = payloads[:: count // _SAMPLES]
    return payloads_bytes(some) * count // len(some)


def _shallow_bytes(payload: Any) -> int:
    """The object, and what its attributes hold, not deeper."""
    held = getattr(payload, "__dict__", None)
    values = list(held.values()) if isinstance(held, dict) else []
    if isinstance(payload, list | tuple | set | frozenset):
        values += payload
    elif isinstance(payload, dict):
        values += [*payload.keys(), *payload.values()]
    try:
        return sys.getsizeof(payload, _OBJECT_BYTES) + sum(
            sys.getsizeof(value, _OBJECT_BYTES) for value in values
        )
    except Exception:  # a class may define __sizeof__
        return _OBJECT_BYTES
