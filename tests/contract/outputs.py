"""Outputs as bytes, partition by partition, so that 'the same' is exact.

Python calls 1, True and 1.0 equal, and 0.0 and -0.0. A pickle does not. But a plain pickle also
shows whether two equal strings are one object, which is no property of the output; without the memo
it shows values and types only.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, TypeAlias

from emberflow.errors import ERRORS_SINK
from emberflow.graph.nodes import Graph
from emberflow.values.hashing import key_hash, owner

#: By sink and partition: the bytes of each payload, in order.
Bytes: TypeAlias = dict[tuple[str, int], list[bytes]]


def as_bytes(payload: Any) -> bytes:
    """
    >>> len({as_bytes(one) for one in (1, True, 1.0, "1", b"1", (1,), [1])})
    7
    >>> as_bytes(("a" * 99,) * 2) == as_bytes(("a" * 99, "".join("a" * 99)))
    True
    """
    written = io.BytesIO()
    pickler = pickle.Pickler(written, protocol=5)
    pickler.fast = True  # no memo
    pickler.dump(payload)
    return written.getvalue()


def by_partition(graph: Graph, outputs: dict[str, list[Any]]) -> Bytes:
    """The expected content of each partition, from outputs that are in one order."""
    partitions: Bytes = {}
    if ERRORS_SINK in outputs and ERRORS_SINK not in graph.sinks:
        partitions[ERRORS_SINK, 0] = list(map(as_bytes, outputs[ERRORS_SINK]))
    for sink in graph.sinks.values():
        for partition in range(sink.partitions):
            partitions[sink.name, partition] = []
        key: Callable[[Any], Any] | None = None if sink.key is None else sink.key.function
        for payload in outputs[sink.name]:
            partition = 0 if key is None else owner(key_hash(key(payload)), sink.partitions)
            partitions[sink.name, partition].append(as_bytes(payload))
    return partitions


def differences(got: Bytes, want: Bytes) -> list[str]:
    """Each partition that is wrong, and where it begins to differ."""
    if got.keys() != want.keys():
        return [f"partitions {sorted(got)}, expected {sorted(want)}"]
    found = []
    for (sink, partition), expected in want.items():
        came = got[sink, partition]
        if came != expected:
            same = next(
                (
                    n
                    for n, pair in enumerate(zip(came, expected, strict=False))
                    if len(set(pair)) > 1
                ),
                min(len(came), len(expected)),
            )
            found.append(
                f"sink {sink!r} partition {partition}, payload {same}: got {_shown(came, same)}, "
                f"expected {_shown(expected, same)} ({len(came)} came, {len(expected)} expected)"
            )
    return found


def _shown(payloads: list[bytes], number: int) -> str:
    return repr(pickle.loads(payloads[number])) if number < len(payloads) else "none"
