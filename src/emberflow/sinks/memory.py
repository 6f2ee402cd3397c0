"""`sinks.Memory`: output kept in the driver's memory, for tests and demonstrations."""

from __future__ import annotations

import threading
from typing import Any

from emberflow.sinks.protocol import StoredBundle
from emberflow.values.item import GlobalTime


class Memory:
    """Keeps all output of a query, in order.

    >>> memory = Memory()
    >>> memory.open(0).store(StoredBundle("s", 0, GlobalTime(1, 0), ["a", "b"]))
    >>> memory.payloads()
    ['a', 'b']
    """

    on_driver = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bundles: dict[int, list[StoredBundle]] = {}

    def open(self, partition: int) -> _MemoryWriter:
        with self._lock:
            return _MemoryWriter(self._bundles.setdefault(partition, []), self._lock)

    def payloads(self, partition: int = 0) -> list[Any]:
        """What a partition has stored so far."""
        with self._lock:
            bundles = list(self._bundles.get(partition, ()))
        return [payload for bundle in bundles for payload in bundle.payloads]

    def bundles(self, partition: int = 0) -> list[StoredBundle]:
        with self._lock:
            return list(self._bundles.get(partition, ()))


class _MemoryWriter:
    def __init__(self, bundles: list[StoredBundle], lock: threading.Lock) -> None:
        self._bundles = bundles
        self._lock = lock

    def last(self) -> GlobalTime | None:
        with self._lock:
            return self._bundles[-1].last if self._bundles else None

    def store(self, bundle: StoredBundle) -> None:
        with self._lock:
            self._bundles.append(bundle)

    def close(self) -> None:
        pass
