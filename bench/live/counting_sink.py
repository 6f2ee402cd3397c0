"""A sink on the workers that only counts, as that of the Bytewax flow does.

Each partition leaves in a folder when its first and its last output came, and how much it was, by the
system's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from emberflow.item import GlobalTime
from emberflow.sinks import StoredBundle


class CountingSink:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, partition: int) -> _Counter:
        return _Counter(self._folder / f"{partition}.json")

    def rate(self, count: int) -> float:
        """Elements a second from the first output of all partitions to the last."""
        told = [json.loads(path.read_text()) for path in self._folder.glob("*.json")]
        stored = sum(each["count"] for each in told)
        assert stored == count, f"{stored:,} of {count:,} are stored"
        first = min(told, key=lambda each: each["first_at"])
        last_at = max(each["last_at"] for each in told)
        return (count - first["first_count"]) / (last_at - first["first_at"])


class _Counter:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = self._first_count = 0
        self._first_at = self._last_at = 0.0

    def last(self) -> GlobalTime | None:
        return None

    def store(self, bundle: StoredBundle) -> None:
        self._count += len(bundle.payloads)
        self._last_at = time.monotonic()
        if not self._first_count:
            self._first_count, self._first_at = self._count, self._last_at

    def close(self) -> None:
        if self._count:
            told = {
                "first_at": self._first_at,
                "first_count": self._first_count,
                "last_at": self._last_at,
                "count": self._count,
            }
            self._path.write_text(json.dumps(told))
