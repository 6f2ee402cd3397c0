"""How even the machine itself is: a loop that only counts, on every core at once, piece by piece.

Where other machines share the processor, the same loop is fast and slow by turns, each core by itself.
What is 80% of a fast second is more than all of a slow one, and no queue is short then.
"""

from __future__ import annotations

import multiprocessing
import os
import time

_PIECE_SECONDS = 0.25
_STEPS = 2_000


def evenness(seconds: float) -> tuple[float, float]:
    """Of the speed of the fastest piece: that of the slowest one, and that of the median."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pieces = sorted(piece for own in pool.map(_pieces, [seconds] * cores) for piece in own)
    return pieces[0] / pieces[-1], pieces[len(pieces) // 2] / pieces[-1]


def _pieces(seconds: float) -> list[float]:
    """Steps a second, of each piece of time."""
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
