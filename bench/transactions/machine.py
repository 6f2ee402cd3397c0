"""How steady the machine itself is.

A counting loop on every core at once, timed piece by piece: where other machines share the
processor, the loop's speed varies, on each core by itself. 80% of a fast second is more than all of
a slow one, and then queues grow. And the processor time that the host gave to others while this
machine had work to do, where the system counts it (Linux calls it steal).
"""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

_PIECE_SECONDS = 0.25
_STEPS = 2_000


def evenness(seconds: float) -> tuple[float, float]:
    """The speed of the slowest piece and of the median piece, as shares of the fastest."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pieces = sorted(piece for own in pool.map(_pieces, [seconds] * cores) for piece in own)
    return pieces[0] / pieces[-1], pieces[len(pieces) // 2] / pieces[-1]


class Stolen:
    """The share of all processor time that went to other machines since this was made.

    >>> 0 <= (Stolen().share or 0) <= 1
    True
    """

    def __init__(self) -> None:
        self._begin = _ticks()

    @property
    def share(self) -> float | None:
        """None where the system does not count it."""
        if self._begin is None or (now := _ticks()) is None:
            return None
        of_all, stolen = (after - before for after, before in zip(now, self._begin, strict=True))
        return stolen / of_all if of_all else 0.0


def _ticks() -> tuple[int, int] | None:
    """All ticks of all cores so far, and those that other machines had."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0].split()
    except OSError:
        return None
    # user nice system idle iowait irq softirq steal; guests' time is part of user
    ticks = [int(field) for field in first[1:9]]
    return (sum(ticks), ticks[7]) if len(ticks) == 8 else None


def _pieces(seconds: float) -> list[float]:
    """Steps per second of each piece of time."""
    found = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        steps = 0
        while (now := time.perf_counter()) - begin < _PIECE_SECONDS:
            for _ in range(_STEPS):
                pass
            steps += _STEPS
        found.append(steps / (now - begin))
    return found
