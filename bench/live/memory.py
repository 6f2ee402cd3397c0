"""Resident memory of this process, the JVM below it and the Python workers below that, from /proc.

Only Linux has /proc; elsewhere there are no figures. The workers are all Python processes under the
JVM: the daemon that forks them, and some that are idle after an earlier query. Those do not change,
and only the growth of the sum counts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Resident(NamedTuple):
    """In MiB."""

    workers: float
    driver: float
    jvm: float


def resident() -> Resident:
    children = _children()
    below, todo = [], [os.getpid()]
    while todo:
        process = todo.pop()
        below.append(process)
        todo += children.get(process, [])
    sums = {"workers": 0.0, "driver": 0.0, "jvm": 0.0}
    for process in below:
        fields = _status(process)
        kind = "jvm" if fields.get("Name") == "java" else "workers"
        if process == os.getpid():
            kind = "driver"
        sums[kind] += int(fields.get("VmRSS", "0 kB").split()[0]) / 1024
    return Resident(**sums)


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*"):
        process = int(entry.name)
        parent = _status(process).get("PPid")
        if parent is not None:
            children.setdefault(int(parent), []).append(process)
    return children


def _status(process: int) -> dict[str, str]:
    try:
        lines = (_PROC / str(process) / "status").read_text().splitlines()
    except OSError:  # it has ended, or there is no /proc
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
