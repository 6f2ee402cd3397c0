"""The memory of a worker: when it runs out, the fronts slow down before the kernel kills the process.

Three limits count, and the nearest one decides: that of the process itself (``RLIMIT_AS``, which Spark
sets for ``spark.executor.pyspark.memory``), that of its container (cgroup), and that of the machine.

From `SLOW_FROM` on, the worker lets fewer and fewer elements enter in a round; near the limit a few a
second. It never stops altogether: a state that has grown to the limit is not a reason to stand still
silently. The worker tells the driver, which logs it.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

from emberflow.runners.interpreter import memory_used

#: The share of the memory in use from which on fronts are slowed down, and at which they nearly stop.
SLOW_FROM: Final = 0.85
STOP_AT: Final = 0.95
#: How often the worker looks, and how long it pauses between two elements when memory is nearly gone.
_LOOK_SECONDS: Final = 0.25
_PAUSE_SECONDS: Final = 0.25

_PAGE: Final = resource.getpagesize()


class MemoryWatch:
    """Says how many elements may enter in a round."""

    def __init__(self) -> None:
        self.pressure = 0.0
        self._looked_at = -_LOOK_SECONDS
        self._let_in_at = 0.0
        self._container = _container()

    def most(self, wanted: int, now: float, also: float = 0.0) -> int:
        """How many of so many elements may enter now. ``also`` is a pressure from elsewhere.

        >>> watch = MemoryWatch()
        >>> watch.look = lambda now: 0.90
        >>> watch.most(1_000, now=1.0)
        500
        """
        pressure = max(self.look(now), also)
        if pressure < SLOW_FROM:
            return wanted
        if pressure < STOP_AT:
            return max(1, round(wanted * (STOP_AT - pressure) / (STOP_AT - SLOW_FROM)))
        if now - self._let_in_at < _PAUSE_SECONDS:
            return 0
        self._let_in_at = now
        return 1

    def look(self, now: float) -> float:
        """The share of the memory that is in use; looked up now and then."""
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self.pressure = max(_of_process(), _of_container(self._container), _of_machine())
        return self.pressure


def available() -> int:
    """The memory that the container has, or the machine."""
    folder = _container()
    try:
        if folder is not None:
            return int((folder / "memory.max").read_text())
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * _PAGE


def _of_process() -> float:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit in (resource.RLIM_INFINITY, 0):
        return 0.0
    return memory_used().virtual / limit


def _of_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        known = {
            name: int(rest.split()[0]) for name, _, rest in (row.partition(":") for row in lines)
        }
        return 1.0 - known["MemAvailable"] / known["MemTotal"]
    except (OSError, ValueError, KeyError, IndexError):
        return 0.0


def _container() -> Path | None:
    """The folder of this process's control group, if that has a limit."""
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                folder = Path("/sys/fs/cgroup") / path.strip("/")
                if (folder / "memory.max").read_text().strip() != "max":
                    return folder
    except (OSError, ValueError):
        pass
    return None


def _of_container(folder: Path | None) -> float:
    """What is in use without the pages of files, which the kernel drops when it needs memory."""
    if folder is None:
        return 0.0
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        rows = (row.split() for row in (folder / "memory.stat").read_text().splitlines())
        files = sum(int(size) for name, size in rows if name in ("active_file", "inactive_file"))
        return (used - files) / limit
    except (OSError, ValueError, ZeroDivisionError):
        return 0.0
